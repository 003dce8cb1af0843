"""Two-pass encoding: divides nodes into the batches of each pass and packs them.

The first pass encodes every text independently; its states do not depend on the centre that uses
them. The second pass encodes every centre given its neighbours' states. Encoding in memory,
embedding to disk and updates share these batches and differ in where states are stored between the
passes.

A network whose neighbours depend on their centre (`joint` inputs) has no states: centres and
neighbours are encoded together. A network that does not use neighbours has no first pass.

Shapes: B centres, K neighbours of a centre at most, M neighbours in all.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphformers.arrays import Array
from graphformers.batching.packing import (
    NeighborIndex,
    PackedBatch,
    PackedNeighborhoods,
    Packer,
)
from graphformers.batching.tokens import TokenCache
from graphformers.errors import GraphFormersError
from graphformers.graph.sampling import Neighborhood
from graphformers.settings import Settings, setting


@dataclass(frozen=True)
class BatchLimits(Settings):
    """Limits on the size of a batch in inference."""

    tokens: int = setting(4096, "Tokens of a batch.", at_least=1)
    entries: int = setting(
        65_536,
        "Centres times neighbours of a batch; it limits the centres that share a batch with a hub.",
        at_least=1,
    )
    joint_neighbors: int = setting(
        4000,
        "Neighbours of a centre in a bidirectional model, whose attention grows with their square.",
        at_least=0,
    )
    one_pass_tokens: int = setting(
        8192, "Tokens up to which a GPU encodes centres and neighbours in one pass.", at_least=0
    )
    one_pass_neighbors: int = setting(
        63, "Neighbours of a centre up to which a GPU encodes them in the same pass.", at_least=0
    )
    states: int | None = setting(
        None,
        "Neighbours whose states an encoding in memory keeps; by default as many as fit.",
        at_least=1,
    )


@dataclass(frozen=True)
class CenterBatch:
    """A batch of the second pass: some centres, and the states that they need.

    Attributes:
        centers: The centres' texts; None for networks with `centers_from_states`.
        needed_M: int64: rows of the needed states: M neighbours, then centres without texts.
        num_neighbors: M.
        index: The neighbours of each centre, among the M.
    """

    centers: PackedBatch | None
    needed_M: Tensor
    num_neighbors: int
    index: NeighborIndex


@dataclass(frozen=True)
class TwoPass:
    """Divides an encoding into batches. It holds no weights, so worker processes can use it."""

    packer: Packer
    limits: BatchLimits

    def text_parts(self, tokens: TokenCache, nodes: Array) -> Iterator[slice]:
        """The batches of the first pass."""
        lengths = tokens.lengths(nodes, self.packer.max_tokens)
        return self._parts(lengths, np.zeros(len(nodes), dtype=np.int64))

    def center_parts(self, tokens: TokenCache, neighborhood: Neighborhood) -> Iterator[slice]:
        """The batches of the second pass."""
        counts = np.diff(neighborhood.indptr)
        if not self.packer.inputs.joint:
            return self.center_parts_by_count(tokens, neighborhood.centers, counts)
        check_joint_neighbors(counts.max(initial=0), self.limits)
        sizes = tokens.lengths(neighborhood.centers, self.packer.max_tokens) + 1
        neighbor_sizes = tokens.lengths(neighborhood.neighbors, self.packer.max_tokens)
        ends = np.concatenate([[0], np.cumsum(neighbor_sizes)])
        # Every node of a group attends to every other.
        return self._parts(sizes + np.diff(ends[neighborhood.indptr]), (counts + 1) ** 2)

    def center_parts_by_count(
        self, tokens: TokenCache, centers: Array, counts: Array
    ) -> Iterator[slice]:
        """Like `center_parts`, from the numbers of neighbours, for networks that are not joint."""
        multiple = self.packer.width_multiple
        wide = -(-counts // multiple) * multiple
        lengths = tokens.lengths(centers, self.packer.max_tokens)
        return self._parts(lengths + int(self.packer.inputs.graph_tokens), wide)

    def pack_centers(
        self, tokens: TokenCache, neighborhood: Neighborhood, known: Array | None = None
    ) -> CenterBatch | PackedNeighborhoods:
        """A batch of the second pass.

        Args:
            tokens: The texts.
            neighborhood: Centres and their neighbours.
            known: The nodes whose states are available, sorted; all nodes by default.
        """
        inputs = self.packer.inputs
        if inputs.joint:
            return self.packer.pack_neighborhoods(tokens, neighborhood)
        if not inputs.num_states:
            neighborhood = neighborhood.without_neighbors()
        near, rows = np.unique(neighborhood.neighbors, return_inverse=True)
        needed, centers = near, None
        if inputs.centers_from_states:
            needed = np.concatenate([near, neighborhood.centers])
        else:
            centers = self.packer.pack(tokens, neighborhood.centers, are_centers=True)
        needed = needed.astype(np.int64)
        if known is not None:
            needed = np.searchsorted(known, needed)
        index = NeighborIndex.from_lists(neighborhood.indptr, rows, self.packer.width_multiple)
        return CenterBatch(centers, torch.from_numpy(needed), len(near), index)

    def fits_one_pass(self, tokens: TokenCache, neighborhood: Neighborhood) -> bool:
        """Whether encoding these centres and their neighbours in one pass is faster on a GPU.

        One pass is faster for small batches, where launching kernels takes most of the time, and
        for few neighbours: attending to many neighbours is cheaper with cached states.
        """
        inputs = self.packer.inputs
        if inputs.joint or not inputs.graph_tokens or len(neighborhood) == 0:
            return False
        widest = int(np.diff(neighborhood.indptr).max())
        limit = self.limits.one_pass_tokens
        if widest > self.limits.one_pass_neighbors or len(neighborhood) * (1 + widest) > limit:
            return False
        nodes = np.concatenate([neighborhood.centers, np.unique(neighborhood.neighbors)])
        lengths = tokens.lengths(nodes.astype(np.int64), self.packer.max_tokens)
        return int(lengths.sum()) + len(neighborhood) <= limit

    def needed(self, neighborhood: Neighborhood) -> Array:
        """The nodes whose states the second pass needs, sorted."""
        if not self.packer.inputs.num_states:
            return np.zeros(0, dtype=np.int64)
        nodes = neighborhood.neighbors
        if self.packer.inputs.centers_from_states:
            nodes = np.concatenate([nodes, neighborhood.centers])
        return np.unique(nodes.astype(np.int64))

    def _parts(self, lengths: Array, widths: Array) -> Iterator[slice]:
        """Yields consecutive slices within the limits, of at least one node each."""
        ends = np.cumsum(lengths)
        start = 0
        while start < len(lengths):
            done = ends[start - 1] if start else 0
            fitting = int(np.searchsorted(ends, done + self.limits.tokens, "right"))
            stop = max(fitting, start + 1)
            widest = np.maximum.accumulate(widths[start:stop] + 1)
            entries = widest * np.arange(1, stop - start + 1)
            stop = start + max(int(np.searchsorted(entries, self.limits.entries, "right")), 1)
            yield slice(start, stop)
            start = stop


def check_joint_neighbors(count: int, limits: BatchLimits) -> None:
    """Raises an error if a node has more neighbours than a bidirectional model can encode."""
    if count > limits.joint_neighbors:
        raise GraphFormersError(
            f"a node with {count:,} neighbours; a bidirectional model encodes at most "
            f"{limits.joint_neighbors:,}, sample fewer"
        )
