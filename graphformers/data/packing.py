"""PackedBatch: several nodes in one row, under a block-diagonal mask, so that no work is spent on
padding.

Shapes: N nodes, R rows, W tokens of a row, C slots of a row (at most C nodes share it), B centres,
K neighbours of a centre.

A node lies in one piece in one row; the slot of a token says which of the row's nodes it belongs
to, C that it is padding. Every row takes the longest nodes that still fit, so that rows are full
but for the last ones. Rows are no wider than the longest text of a batch wants, since attention and
its mask grow with their square. A node that reads its neighbourhood has one place more, in front of
its [CLS], for the graph token; what stands there is written by the network.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from graphformers.data.arrays import Array, ranges
from graphformers.data.sampling import Neighborhood
from graphformers.data.tokens import TokenCache

if TYPE_CHECKING:
    from torch import Tensor

ROW_FIELDS = ("tokens_RW", "positions_RW", "slots_RW", "cls_RC", "is_graph_RW")
ROW_WIDTH = 128  # tokens of a row, but for longer texts
FULL_ROW = 0.8  # the share of a row that texts of usual length fill
Batch = TypeVar("Batch")


@dataclass(frozen=True)
class PackedBatch:
    """N nodes in R rows. Empty slots have [CLS] at 0; what is computed for them is never read."""

    tokens_RW: "Tensor"  # int64
    positions_RW: "Tensor"  # int64: the place of each token in its node, from 0
    slots_RW: "Tensor"  # int64: 0..C-1, C for padding
    cls_RC: "Tensor"  # int64: where in the row the [CLS] of each slot stands
    is_graph_RW: "Tensor"  # bool: whether this is the place of a graph token
    # int64: where the nodes lie among the R * C slots, in the order they were given
    places_N: "Tensor"
    # int64: where their [CLS] stand among the R * W places of all rows; a graph token stands just
    # before
    cls_N: "Tensor"
    # int64: the hashes of their ids, for networks that know nodes by name
    ids_N: "Tensor | None" = None

    @property
    def num_nodes(self) -> int:
        return len(self.places_N)

    @property
    def num_slots(self) -> int:
        return self.cls_RC.shape[1]

    @property
    def num_tokens(self) -> int:
        """Of texts; graph tokens are not counted."""
        return int(((self.slots_RW < self.num_slots) & ~self.is_graph_RW).sum())

    def fullness(self) -> float:
        """The share of places that hold tokens of a text."""
        return self.num_tokens / max(self.slots_RW.numel(), 1)


@dataclass(frozen=True)
class PackedNeighborhoods:
    """B centres and M neighbours in rows of their own, the centres' rows first, and which
    neighbours each centre has.

    Unidirectional: every distinct neighbour once. Bidirectional: one copy for each neighbourhood it
    belongs to, in order.
    """

    nodes: PackedBatch  # B + M nodes
    num_centers: int
    center_rows: int
    index_BK: "Tensor"  # int64: into the M neighbours, 0 where there is none
    open_BK: "Tensor"  # bool: whether there is one
    places_M: "Tensor"  # int64: where among the B * K places each neighbour is first used
    # int64: where everyone's [CLS] stands in a line of the centres' rows, whole, and the others'
    # slots
    line_N: "Tensor"

    @property
    def centers(self) -> PackedBatch:
        """The centres alone."""
        rows = {name: getattr(self.nodes, name)[: self.center_rows] for name in ROW_FIELDS}
        few = slice(self.num_centers)
        ids_N = None if self.nodes.ids_N is None else self.nodes.ids_N[few]
        return PackedBatch(
            **rows, places_N=self.nodes.places_N[few], cls_N=self.nodes.cls_N[few], ids_N=ids_N
        )


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with all its tensors on a device; from pinned memory the copy goes on in the
    background.
    """
    moved: Batch = map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))
    return moved


def map_tensors(value: Any, function: Callable[[Any], Any], kind: type = torch.Tensor) -> Any:
    """A copy of nested dataclasses, lists and tuples with `function` applied to everything of one
    kind in them.
    """
    if isinstance(value, kind):
        return function(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{
                entry.name: map_tensors(getattr(value, entry.name), function, kind)
                for entry in fields(value)
            },
        )
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(entry, function, kind) for entry in value)
    return value


def pack_nodes(
    flat: Array,
    indptr: Array,
    row_width: int,
    slots: int,
    pad_token: int,
    *,
    graph_tokens: bool = False,
    row_multiple: int = 1,
) -> PackedBatch:
    """Packs sequences (flat tokens and where each starts, as `TokenCache.read` gives them) into
    rows.
    """
    lengths, front = np.diff(indptr), int(graph_tokens)
    assert len(lengths) == 0 or lengths.max() + front <= row_width, (
        "no sequence is longer than a row"
    )
    order, rows_N, slots_N, starts_N = _fill_rows(lengths + front, row_width, slots)
    num_rows = -(-(int(rows_N[-1]) + 1) // row_multiple) * row_multiple if len(order) else 0
    # where in all rows a node begins, its graph token first
    ordered, begins = lengths[order], rows_N * row_width + starts_N
    places_T = ranges(begins + front, ordered)
    tokens = np.full(num_rows * row_width, pad_token, dtype=np.int64)
    positions = np.zeros(num_rows * row_width, dtype=np.int64)
    slot_of = np.full(num_rows * row_width, slots, dtype=np.int64)
    is_graph = np.zeros(num_rows * row_width, dtype=bool)
    cls = np.zeros(num_rows * slots, dtype=np.int64)
    tokens[places_T] = flat[ranges(indptr[:-1][order], ordered)]
    positions[places_T] = ranges(np.zeros(len(order), dtype=np.int64), ordered)
    slot_of[ranges(begins, ordered + front)] = np.repeat(slots_N, ordered + front)
    cls[rows_N * slots + slots_N] = starts_N + front
    places_N, cls_N = np.empty((2, len(order)), dtype=np.int64)
    places_N[order], cls_N[order] = rows_N * slots + slots_N, begins + front
    is_graph[begins if graph_tokens else begins[:0]] = True
    shapes = [
        (tokens, row_width),
        (positions, row_width),
        (slot_of, row_width),
        (cls, slots),
        (is_graph, row_width),
    ]
    rows = [array.reshape(num_rows, width) for array, width in shapes]
    return PackedBatch(*map(torch.from_numpy, [*rows, places_N, cls_N]))


def _fill_rows(lengths: Array, row_width: int, slots: int) -> tuple[Array, Array, Array, Array]:
    """The nodes in the order in which rows hold them; and the row, the slot and the start of each
    in that order.

    Rows are filled one after the other with the longest nodes that still fit; the loop is over rows
    and distinct lengths.
    """
    order = np.argsort(-lengths, kind="stable")
    distinct, counts = np.unique(-lengths, return_counts=True)
    sizes, left = (-distinct).tolist(), counts.tolist()  # the longest first
    # where in `order` the next node of each length stands
    nexts = (np.cumsum(counts) - counts).tolist()
    pieces: list[tuple[int, int, int]] = []  # row, first of its nodes in `order`, how many
    row, longest = 0, 0
    while longest < len(sizes):
        room, free = row_width, slots
        for i in range(longest, len(sizes)):
            taken = min(left[i], room // sizes[i], free)
            if taken:
                pieces.append((row, nexts[i], taken))
                nexts[i] += taken
                left[i] -= taken
                room -= taken * sizes[i]
                free -= taken
                if not room or not free:
                    break
        while longest < len(sizes) and not left[longest]:
            longest += 1
        row += 1
    rows_P, firsts_P, counts_P = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    order = order[ranges(firsts_P, counts_P)]
    rows_N = np.repeat(rows_P, counts_P)
    first_of_row = np.searchsorted(rows_N, rows_N)
    ends = np.cumsum(lengths[order])
    begins = ends - lengths[order]
    return order, rows_N, np.arange(len(order)) - first_of_row, begins - begins[first_of_row]


@dataclass(frozen=True)
class Packer:
    """Turns neighbourhoods into packed batches for one model."""

    max_tokens: int
    pad_token: int
    distinct: bool = True  # every neighbour once (unidirectional), or one copy per neighbourhood
    row_width: int = ROW_WIDTH  # of the widest rows: at least max_tokens
    slots: int = 16  # of a row of ROW_WIDTH; wider ones have more
    row_multiple: int = 1
    width_multiple: int = 1  # of neighbourhoods: compiled layers are compiled for each width
    # centres have graph tokens (and, one copy per neighbourhood, neighbours too)
    nested: bool = True
    named: bool = False  # batches tell whose texts they hold

    def __post_init__(self) -> None:
        needed = self.max_tokens + int(self.nested)
        # rows are as wide as the longest sequence, rounded for the GPU's sake
        if needed > self.row_width:
            object.__setattr__(self, "row_width", -(-needed // 8) * 8)

    def row_of(self, lengths: Array) -> tuple[int, int]:
        """The width and the slots of rows for texts of these lengths: few kinds of rows, since
        layers are compiled for each.

        No wider than the longest text wants; with twice as many slots where texts are so short that
        they would leave rows empty.
        """
        width = ROW_WIDTH
        while width < lengths.max(initial=0):
            width *= 2
        width = min(width, self.row_width)
        slots = max(self.slots, self.slots * width // ROW_WIDTH)
        return width, slots * 2 if lengths.sum() * slots < FULL_ROW * width * len(
            lengths
        ) else slots

    def pack(
        self,
        tokens: TokenCache,
        nodes: Array,
        *,
        graph_tokens: bool = False,
        row: tuple[int, int] | None = None,
    ) -> PackedBatch:
        """The texts of some nodes, in rows of the kind given, or of their own."""
        flat, indptr = tokens.read(np.asarray(nodes), self.max_tokens)
        sizes = (*(row or self.row_of(np.diff(indptr) + int(graph_tokens))), self.pad_token)
        packed = pack_nodes(
            flat, indptr, *sizes, graph_tokens=graph_tokens, row_multiple=self.row_multiple
        )
        if not self.named or tokens.id_hashes is None:
            return packed
        return replace(packed, ids_N=torch.from_numpy(tokens.id_hashes[nodes].view(np.int64)))

    def pack_neighborhoods(
        self, tokens: TokenCache, neighborhood: Neighborhood
    ) -> PackedNeighborhoods:
        """The texts of some centres and of their neighbours."""
        if self.distinct:
            neighbors, first, index = np.unique(
                neighborhood.neighbors, return_index=True, return_inverse=True
            )
        else:
            neighbors, index = neighborhood.neighbors, np.arange(len(neighborhood.neighbors))
            first = index
        index_BK, open_BK = ragged_index(neighborhood.indptr, index, self.width_multiple)
        places = np.flatnonzero(open_BK)[first]
        everyone = np.concatenate([neighborhood.centers, neighbors])
        row = self.row_of(tokens.lengths(everyone, self.max_tokens) + int(self.nested))
        centers = self.pack(tokens, neighborhood.centers, graph_tokens=self.nested, row=row)
        others = self.pack(
            tokens, neighbors, graph_tokens=self.nested and not self.distinct, row=row
        )
        return PackedNeighborhoods(
            _stack(centers, others),
            len(neighborhood),
            len(centers.tokens_RW),
            torch.from_numpy(index_BK),
            torch.from_numpy(open_BK),
            torch.from_numpy(places),
            torch.cat([centers.cls_N, others.places_N + centers.tokens_RW.numel()]),
        )


def _stack(upper: PackedBatch, lower: PackedBatch) -> PackedBatch:
    """The rows and nodes of two batches, one after the other."""
    rows = {name: torch.cat([getattr(upper, name), getattr(lower, name)]) for name in ROW_FIELDS}
    places_N = torch.cat([upper.places_N, lower.places_N + upper.cls_RC.numel()])
    cls_N = torch.cat([upper.cls_N, lower.cls_N + upper.tokens_RW.numel()])
    ids_N = (
        None
        if upper.ids_N is None or lower.ids_N is None
        else torch.cat([upper.ids_N, lower.ids_N])
    )
    return PackedBatch(**rows, places_N=places_N, cls_N=cls_N, ids_N=ids_N)


def ragged_index(indptr: Array, index: Array, multiple: int = 1) -> tuple[Array, Array]:
    """Ragged rows as a rectangle, K a multiple: (B, K) indices, 0 beyond a row's end, and (B, K)
    whether there is one.
    """
    counts = np.diff(indptr)
    open_BK = (
        np.arange(max(-(-int(counts.max(initial=0)) // multiple), 1) * multiple) < counts[:, None]
    )
    index_BK = np.zeros(open_BK.shape, dtype=np.int64)
    index_BK[open_BK] = index
    return index_BK, open_BK
