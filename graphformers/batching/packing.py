"""PackedBatch: several texts in one row, under a block-diagonal mask, so that little is padding.

A text is not split over rows. The slot of a token is the number of its text within the row; padding
has slot C. Every row takes the longest texts that still fit, so that all rows but the last ones are
full. Rows are no wider than the longest text of a batch needs, since attention and its mask grow
with the square of the width. A node with a graph token has one more position, in front of its
[CLS]; the network writes the graph token there.

Shapes: N nodes, R rows, W tokens of a row, C slots of a row (at most C nodes share it), T tokens in
one line, B centres, K neighbours of a centre at most, M neighbours in all, G = 1 + K.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from graphformers.arrays import Array, ranges
from graphformers.batching.tokens import TokenCache
from graphformers.graph.sampling import Neighborhood

if TYPE_CHECKING:
    from torch import Tensor

ROW_FIELDS = ("tokens_RW", "positions_RW", "slots_RW", "cls_RC", "is_graph_RW")
# tokens of a row, except for longer texts
ROW_WIDTH = 128
# rows filled less than this are given more slots
FULL_ROW = 0.8
Batch = TypeVar("Batch")
Leaf = TypeVar("Leaf")


@dataclass(frozen=True)
class NetworkInputs:
    """The content that a network needs in its batches.

    Attributes:
        num_states: How many states of a neighbour its centres use; 0 if none can be cached.
        joint: Whether neighbours depend on their centre, so that both are encoded together.
        graph_tokens: Whether centres, and in joint networks neighbours, have graph tokens.
        centers_from_states: Whether centres, too, are computed from cached states alone.
        node_ids: Whether batches hold the hashes of node ids.
    """

    num_states: int = 0
    joint: bool = False
    graph_tokens: bool = False
    centers_from_states: bool = False
    node_ids: bool = False


@dataclass(frozen=True)
class PackedBatch:
    """N texts in R rows.

    Attributes:
        tokens_RW: int64.
        positions_RW: int64: the position of each token in its text, from 0.
        slots_RW: int64: 0 to C-1, C for padding.
        cls_RC: int64: the position of the [CLS] of each slot in its row. Empty slots have 0;
            results computed for them are not used.
        is_graph_RW: bool: whether this is the position of a graph token.
        slot_N: int64: the slot of each node among all R * C, in the order given.
        cls_N: int64: the [CLS] of each node among the R * W tokens; a graph token is before it.
        ids_N: int64: hashes of the nodes' ids, for networks that need them.
    """

    tokens_RW: "Tensor"
    positions_RW: "Tensor"
    slots_RW: "Tensor"
    cls_RC: "Tensor"
    is_graph_RW: "Tensor"
    slot_N: "Tensor"
    cls_N: "Tensor"
    ids_N: "Tensor | None" = None

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.slot_N)

    @property
    def num_slots(self) -> int:
        """C."""
        return self.cls_RC.shape[1]

    @property
    def num_tokens(self) -> int:
        """Tokens of texts; graph tokens do not count."""
        return int(((self.slots_RW < self.num_slots) & ~self.is_graph_RW).sum())

    def fullness(self) -> float:
        """The share of positions that hold tokens of a text."""
        return self.num_tokens / max(self.slots_RW.numel(), 1)


@dataclass(frozen=True)
class NeighborIndex:
    """The neighbours of each of B centres.

    Attributes:
        rows_BK: int64: rows of the M neighbours, 0 where there is none.
        exists_BK: bool: whether there is a neighbour.
    """

    rows_BK: "Tensor"
    exists_BK: "Tensor"

    @staticmethod
    def from_lists(indptr: Array, rows: Array, multiple: int = 1) -> "NeighborIndex":
        """Builds the index from lists of different lengths.

        Args:
            indptr: The rows of centre b are rows[indptr[b]:indptr[b + 1]].
            rows: Rows of the M neighbours.
            multiple: K is a multiple of this.
        """
        counts = np.diff(indptr)
        most = max(-(-int(counts.max(initial=0)) // multiple), 1) * multiple
        exists_BK = np.arange(most) < counts[:, None]
        rows_BK = np.zeros(exists_BK.shape, dtype=np.int64)
        rows_BK[exists_BK] = rows
        return NeighborIndex(torch.from_numpy(rows_BK), torch.from_numpy(exists_BK))

    def groups(self) -> "Tensor":
        """(B, G): rows of the states of B centres followed by M neighbours, the centre first.

        A missing neighbour is replaced by the centre.
        """
        count = len(self.rows_BK)
        own_B1 = torch.arange(count, device=self.rows_BK.device)[:, None]
        return torch.cat([own_B1, torch.where(self.exists_BK, self.rows_BK + count, own_B1)], 1)


@dataclass(frozen=True)
class PackedNeighborhoods:
    """B centres and M neighbours, the centres' rows first, and the neighbours of each centre.

    Holds every distinct neighbour once; in joint networks one copy for each group, in order.

    Attributes:
        nodes: B + M nodes.
        num_centers: B.
        center_rows: Number of rows that hold the centres.
        index: The neighbours of each centre.
        first_use_M: int64: index among B * K at which each neighbour is first used.
    """

    nodes: PackedBatch
    num_centers: int
    center_rows: int
    index: NeighborIndex
    first_use_M: "Tensor"

    @property
    def centers(self) -> PackedBatch:
        """The centres alone."""
        nodes, count = self.nodes, self.num_centers
        rows = {name: getattr(nodes, name)[: self.center_rows] for name in ROW_FIELDS}
        ids_N = None if nodes.ids_N is None else nodes.ids_N[:count]
        return PackedBatch(
            **rows, slot_N=nodes.slot_N[:count], cls_N=nodes.cls_N[:count], ids_N=ids_N
        )

    @property
    def neighbors(self) -> PackedBatch:
        """The neighbours alone."""
        nodes, count, rows = self.nodes, self.num_centers, self.center_rows
        kept = {name: getattr(nodes, name)[rows:] for name in ROW_FIELDS}
        return PackedBatch(
            **kept,
            slot_N=nodes.slot_N[count:] - rows * nodes.num_slots,
            cls_N=nodes.cls_N[count:] - rows * nodes.tokens_RW.shape[1],
            ids_N=None if nodes.ids_N is None else nodes.ids_N[count:],
        )


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Copies all tensors of a batch to a device; from pinned memory the copy is asynchronous."""
    moved: Batch = map_nested(
        batch, torch.Tensor, lambda tensor: tensor.to(device, non_blocking=True)
    )
    return moved


def map_nested(value: object, kind: type[Leaf], function: Callable[[Leaf], object]) -> Any:
    """Copies nested dataclasses, lists and tuples, applying `function` to all values of a type."""
    if isinstance(value, kind):
        return function(value)
    if is_dataclass(value) and not isinstance(value, type):
        mapped = {
            entry.name: map_nested(getattr(value, entry.name), kind, function)
            for entry in fields(value)
        }
        return replace(value, **mapped)
    if isinstance(value, list | tuple):
        return type(value)(map_nested(entry, kind, function) for entry in value)
    return value


def pack_texts(
    flat: Array,
    indptr: Array,
    row_width: int,
    slots: int,
    pad_token: int,
    *,
    graph_tokens: bool = False,
    row_multiple: int = 1,
) -> PackedBatch:
    """Packs sequences into rows.

    Args:
        flat: Tokens, sequence after sequence.
        indptr: Where each sequence starts in `flat`, as `TokenCache.read` gives them.
        row_width: Tokens of a row; no sequence may be longer.
        slots: How many sequences may share a row.
        pad_token: The token of padding.
        graph_tokens: Whether each sequence has one more position, in front of its first token.
        row_multiple: The number of rows is a multiple of this.
    """
    lengths, front = np.diff(indptr), int(graph_tokens)
    assert len(lengths) == 0 or lengths.max() + front <= row_width, "no sequence exceeds a row"
    order, rows_N, slots_N, starts_N = _fill_rows(lengths + front, row_width, slots)
    num_rows = -(-(int(rows_N[-1]) + 1) // row_multiple) * row_multiple if len(order) else 0
    # the position among all rows where each node begins, its graph token first
    begins = rows_N * row_width + starts_N
    ordered = lengths[order]
    written_T = ranges(begins + front, ordered)
    tokens = np.full(num_rows * row_width, pad_token, dtype=np.int64)
    positions = np.zeros(num_rows * row_width, dtype=np.int64)
    slot_of = np.full(num_rows * row_width, slots, dtype=np.int64)
    is_graph = np.zeros(num_rows * row_width, dtype=bool)
    cls = np.zeros(num_rows * slots, dtype=np.int64)
    tokens[written_T] = flat[ranges(indptr[:-1][order], ordered)]
    positions[written_T] = ranges(np.zeros(len(order), dtype=np.int64), ordered)
    slot_of[ranges(begins, ordered + front)] = np.repeat(slots_N, ordered + front)
    cls[rows_N * slots + slots_N] = starts_N + front
    slot_N, cls_N = np.empty((2, len(order)), dtype=np.int64)
    slot_N[order], cls_N[order] = rows_N * slots + slots_N, begins + front
    is_graph[begins if graph_tokens else begins[:0]] = True
    tables = [
        (tokens, row_width),
        (positions, row_width),
        (slot_of, row_width),
        (cls, slots),
        (is_graph, row_width),
    ]
    rows = [array.reshape(num_rows, width) for array, width in tables]
    return PackedBatch(*map(torch.from_numpy, [*rows, slot_N, cls_N]))


def _fill_rows(lengths: Array, row_width: int, slots: int) -> tuple[Array, Array, Array, Array]:
    """Returns the nodes in the order in which rows hold them, and the row, slot and start of each.

    Rows are filled one after the other with the longest nodes that still fit; the loop is over rows
    and distinct lengths.
    """
    order = np.argsort(-lengths, kind="stable")
    distinct, counts = np.unique(-lengths, return_counts=True)
    # the longest first
    sizes, left = (-distinct).tolist(), counts.tolist()
    # index in `order` of the next node of each length
    nexts = (np.cumsum(counts) - counts).tolist()
    # row, index of its first node in `order`, number of nodes
    pieces: list[tuple[int, int, int]] = []
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
    """Packs texts and neighbourhoods into batches for one network.

    Attributes:
        max_tokens: Longer texts are truncated to this.
        pad_token: The token of padding.
        inputs: The content that the network needs.
        row_width: Tokens of the widest rows; at least as many as one text needs.
        slots: How many texts may share a row of ROW_WIDTH; wider rows have more.
        row_multiple: The number of rows is a multiple of this.
        width_multiple: K is a multiple of this, since layers are compiled for each K.
    """

    max_tokens: int
    pad_token: int
    inputs: NetworkInputs
    row_width: int = ROW_WIDTH
    slots: int = 16
    row_multiple: int = 1
    width_multiple: int = 1

    def __post_init__(self) -> None:
        needed = self.max_tokens + int(self.inputs.graph_tokens)
        if needed > self.row_width:
            # a multiple of 8, which GPUs compute faster
            object.__setattr__(self, "row_width", -(-needed // 8) * 8)

    def row_shape(self, lengths: Array) -> tuple[int, int]:
        """The width and the slots of rows for texts of these lengths.

        Layers are compiled for each shape, so there are few: a power of two no wider than the
        longest text needs, and twice as many slots if short texts would leave rows half empty.
        """
        width = ROW_WIDTH
        while width < lengths.max(initial=0):
            width *= 2
        width = min(width, self.row_width)
        slots = max(self.slots, self.slots * width // ROW_WIDTH)
        are_short = lengths.sum() * slots < FULL_ROW * width * len(lengths)
        return width, slots * 2 if are_short else slots

    def pack(
        self,
        tokens: TokenCache,
        nodes: Array,
        *,
        are_centers: bool = False,
        row_shape: tuple[int, int] | None = None,
    ) -> PackedBatch:
        """Packs the texts of nodes into rows of the given shape, by default `row_shape`."""
        graph_tokens = self.inputs.graph_tokens and (are_centers or self.inputs.joint)
        flat, indptr = tokens.read(np.asarray(nodes), self.max_tokens)
        width, slots = row_shape or self.row_shape(np.diff(indptr) + int(graph_tokens))
        packed = pack_texts(
            flat,
            indptr,
            width,
            slots,
            self.pad_token,
            graph_tokens=graph_tokens,
            row_multiple=self.row_multiple,
        )
        if not self.inputs.node_ids:
            return packed
        hashes = np.zeros(len(nodes), dtype=np.uint64)
        if tokens.id_hashes is not None:
            hashes = tokens.id_hashes[nodes]
        return replace(packed, ids_N=torch.from_numpy(hashes.view(np.int64)))

    def pack_centers(
        self,
        tokens: TokenCache,
        centers: Array,
        queries: TokenCache | None = None,
        row_shape: tuple[int, int] | None = None,
    ) -> PackedBatch:
        """Packs the texts of centres, followed by texts that belong to no node."""
        if queries is None:
            return self.pack(tokens, centers, are_centers=True, row_shape=row_shape)
        nodes = tokens, centers
        texts = queries, np.arange(queries.num_texts)
        row_shape = row_shape or self.row_shape(
            np.concatenate([self._lengths(*each) for each in (nodes, texts)])
        )
        return _stack(
            *(self.pack(*each, are_centers=True, row_shape=row_shape) for each in (nodes, texts))
        )

    def _lengths(self, tokens: TokenCache, nodes: Array) -> Array:
        """The places of nodes in a row, those for graph tokens included."""
        return tokens.lengths(nodes, self.max_tokens) + int(self.inputs.graph_tokens)

    def pack_neighborhoods(
        self, tokens: TokenCache, neighborhood: Neighborhood, queries: TokenCache | None = None
    ) -> PackedNeighborhoods:
        """Packs the texts of centres and of their neighbours.

        Args:
            tokens: The texts.
            neighborhood: Centres and their neighbours.
            queries: Texts that belong to no node; they are further centres without neighbours.
        """
        if self.inputs.joint:
            neighbors, rows = neighborhood.neighbors, np.arange(len(neighborhood.neighbors))
            first = rows
        else:
            neighbors, first, rows = np.unique(
                neighborhood.neighbors, return_index=True, return_inverse=True
            )
        num_queries = 0 if queries is None else queries.num_texts
        index = self.neighbor_index(neighborhood, rows, num_queries)
        lengths = self._lengths(tokens, np.concatenate([neighborhood.centers, neighbors]))
        if queries is not None:
            own = self._lengths(queries, np.arange(num_queries))
            lengths = np.concatenate([lengths, own])
        shape = self.row_shape(lengths)
        centers = self.pack_centers(tokens, neighborhood.centers, queries, shape)
        packed_neighbors = self.pack(tokens, neighbors, row_shape=shape)
        return PackedNeighborhoods(
            _stack(centers, packed_neighbors),
            len(neighborhood) + num_queries,
            len(centers.tokens_RW),
            index,
            index.exists_BK.flatten().nonzero()[:, 0][first],
        )

    def neighbor_index(
        self, neighborhood: Neighborhood, rows: Array, num_queries: int = 0
    ) -> NeighborIndex:
        """The rows of the neighbours of each centre; further centres have none."""
        indptr = np.pad(neighborhood.indptr, (0, num_queries), mode="edge")
        return NeighborIndex.from_lists(indptr, rows, self.width_multiple)


def _stack(upper: PackedBatch, lower: PackedBatch) -> PackedBatch:
    """The rows and nodes of two batches, one after the other."""
    rows = {name: torch.cat([getattr(upper, name), getattr(lower, name)]) for name in ROW_FIELDS}
    slot_N = torch.cat([upper.slot_N, lower.slot_N + upper.cls_RC.numel()])
    cls_N = torch.cat([upper.cls_N, lower.cls_N + upper.tokens_RW.numel()])
    ids_N = None
    if upper.ids_N is not None and lower.ids_N is not None:
        ids_N = torch.cat([upper.ids_N, lower.ids_N])
    return PackedBatch(**rows, slot_N=slot_N, cls_N=cls_N, ids_N=ids_N)
