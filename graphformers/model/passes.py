"""Passes: how a model reads nodes. First what every text gives on its own, then every centre in the
light of its neighbours.

`encode`, `embed` and `update` cut, pack and read in the same way; they differ in where the states
lie between the two passes. A `Passes` owns no weights, so that worker processes can pack.

Shapes as in modeling.py; S states of a node: z^1..z^{L-1} in GraphFormers, the text vector in a
baseline that reads neighbours. The others have none, and neither has a bidirectional model, whose
neighbours' states depend on who asks: they read everything in one pass.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphformers.data.arrays import Array, equal_parts
from graphformers.data.packing import PackedBatch, PackedNeighborhoods, Packer, ragged_index
from graphformers.data.sampling import Neighborhood
from graphformers.data.tokens import TokenCache
from graphformers.errors import GraphFormersError, is_memory_full
from graphformers.model.modeling import ModelConfig
from graphformers.progress import say

# neighbours of one centre in a bidirectional model, whose attention grows with their square
MOST_TOGETHER = 4000
FEW_TOKENS, FEW_NEIGHBORS = 8192, 63  # of what is read in one pass on a GPU
# centres times neighbours of a batch: a centre with 10,000 neighbours comes with few others
MOST_PLACES = 65_536


@dataclass(frozen=True)
class CenterBatch:
    """Some centres, and which states of others they need."""

    centers: PackedBatch | None  # None where the centre, too, comes from the states
    # int64: places among the states: the distinct neighbours, then the centres where they come from
    # there
    needed_M: Tensor
    num_near: int  # how many of them are neighbours
    index_BK: Tensor  # int64: into the neighbours
    open_BK: Tensor


@dataclass(frozen=True)
class Passes:
    """The two passes of one model."""

    config: ModelConfig
    packer: Packer
    batch_tokens: int  # of a batch, at most
    most_places: int | None = None  # centres times neighbours of a batch; MOST_PLACES by default

    @property
    def is_joint(self) -> bool:
        """Whether centres and neighbours must be read together."""
        return self.config.method == "graphformers" and self.config.direction == "bidirectional"

    @property
    def num_states(self) -> int:
        """S: how many states of a node others may ask for."""
        if self.is_joint or not self.config.reads_neighbors:
            return 0
        return self.config.num_layers - 1 if self.config.method == "graphformers" else 1

    def text_parts(self, tokens: TokenCache, nodes: Array) -> Iterator[slice]:
        """The batches of the first pass."""
        return self._parts(
            tokens.lengths(nodes, self.config.max_tokens), np.zeros(len(nodes), dtype=np.int64)
        )

    def pack_texts(self, tokens: TokenCache, nodes: Array) -> PackedBatch:
        """A batch of the first pass."""
        return self.packer.pack(tokens, nodes)

    def center_parts(self, tokens: TokenCache, neighborhood: Neighborhood) -> Iterator[slice]:
        """The batches of the second pass."""
        counts = np.diff(neighborhood.indptr)
        if not self.is_joint:
            return self.counted_parts(tokens, neighborhood.centers, counts)
        sizes = tokens.lengths(neighborhood.centers, self.config.max_tokens) + 1
        check_together(counts.max(initial=0))
        around = np.concatenate(
            [[0], np.cumsum(tokens.lengths(neighborhood.neighbors, self.config.max_tokens))]
        )
        # everybody looks at everybody
        return self._parts(sizes + np.diff(around[neighborhood.indptr]), (counts + 1) ** 2)

    def counted_parts(self, tokens: TokenCache, centers: Array, counts: Array) -> Iterator[slice]:
        """The same from the numbers of neighbours alone, where centres are read without them."""
        wide = -(-counts // self.packer.width_multiple) * self.packer.width_multiple
        return self._parts(
            tokens.lengths(centers, self.config.max_tokens) + int(self.packer.nested), wide
        )

    def pack_centers(
        self, tokens: TokenCache, neighborhood: Neighborhood, known: Array | None = None
    ) -> CenterBatch | PackedNeighborhoods:
        """A batch of the second pass. `known` are the nodes whose states are at hand, sorted; all
        of them by default.
        """
        if self.is_joint:
            return self.packer.pack_neighborhoods(tokens, neighborhood)
        if not self.num_states:
            neighborhood = without_neighbors(neighborhood)
        near, index = np.unique(neighborhood.neighbors, return_inverse=True)
        from_states = self.num_states > 0 and self.config.method != "graphformers"
        needed = np.concatenate([near, neighborhood.centers if from_states else near[:0]]).astype(
            np.int64
        )
        if known is not None:
            needed = np.searchsorted(known, needed)
        centers = (
            None
            if from_states
            else self.packer.pack(tokens, neighborhood.centers, graph_tokens=self.packer.nested)
        )
        index_BK, open_BK = map(
            torch.from_numpy, ragged_index(neighborhood.indptr, index, self.packer.width_multiple)
        )
        return CenterBatch(centers, torch.from_numpy(needed), len(near), index_BK, open_BK)

    def fit_together(self, tokens: TokenCache, neighborhood: Neighborhood) -> bool:
        """Whether a GraphFormers had better read some centres and their neighbours in one pass on a
        GPU.

        That is so as long as what takes time is launching, and with few neighbours: to many, known
        states are cheaper to attend.
        """
        if self.config.method != "graphformers" or self.is_joint or len(neighborhood) == 0:
            return False
        widest = int(np.diff(neighborhood.indptr).max())
        if widest > FEW_NEIGHBORS or len(neighborhood) * (1 + widest) > FEW_TOKENS:
            return False
        nodes = np.concatenate([neighborhood.centers, np.unique(neighborhood.neighbors)]).astype(
            np.int64
        )
        return (
            int(tokens.lengths(nodes, self.config.max_tokens).sum()) + len(neighborhood)
            <= FEW_TOKENS
        )

    def needed(self, neighborhood: Neighborhood) -> Array:
        """The nodes whose states the second pass asks for, sorted."""
        if not self.num_states:
            return np.zeros(0, dtype=np.int64)
        others = [] if self.config.method == "graphformers" else [neighborhood.centers]
        return np.unique(np.concatenate([neighborhood.neighbors, *others]).astype(np.int64))

    def _parts(self, lengths: Array, num_neighbors: Array) -> Iterator[slice]:
        """Consecutive slices of at most batch_tokens tokens and MOST_PLACES places, at least one
        node each.
        """
        ends = np.cumsum(lengths)
        start = 0
        while start < len(lengths):
            done = ends[start - 1] if start else 0
            stop = max(int(np.searchsorted(ends, done + self.batch_tokens, "right")), start + 1)
            widest = np.maximum.accumulate(num_neighbors[start:stop] + 1) * np.arange(
                1, stop - start + 1
            )
            stop = start + max(
                int(np.searchsorted(widest, self.most_places or MOST_PLACES, "right")), 1
            )
            yield slice(start, stop)
            start = stop


def check_together(most: int) -> None:
    """Refuses a node with more neighbours than a bidirectional model can read together."""
    if most > MOST_TOGETHER:
        raise GraphFormersError(
            f"a node with {most:,} neighbours; a bidirectional model reads at most "
            f"{MOST_TOGETHER:,}, sample fewer"
        )


class Pieces:
    """Has batches read whole, or in as many pieces as the memory of a GPU asks for.

    That is the first that does not fit, and all after it; what comes out differs by no more than
    rounding.
    """

    def __init__(self) -> None:
        self.count = self._told = 1

    def read(self, part: slice, work: Callable[[slice], None]) -> None:
        """Has `work` read and keep the nodes of a batch, all of them or some at a time; fewer where
        memory runs out.
        """
        size = part.stop - part.start
        while True:
            edges = [part.start + edge for edge in equal_parts(size, max(1, min(self.count, size)))]
            try:
                for start, stop in pairwise(edges):
                    work(slice(start, stop))
                break
            except RuntimeError as error:
                if not is_memory_full(error):
                    raise
                if self.count >= size:
                    told = (
                        "the GPU's memory is too small even for one "
                        "node at a time, or others use it"
                    )
                    raise GraphFormersError(f"{told} ({error})") from error
            self.count *= 2
            torch.cuda.empty_cache()
        if self.count > self._told:
            self._told = self.count
            say(
                f"the GPU's memory is full: batches are read in {self.count} pieces, which takes "
                f"longer"
            )


def read_texts(network: Any, batch: PackedBatch) -> Tensor:
    """(N, S, D): the first pass."""
    states: Tensor = torch.stack(network.neighbor_states(batch), 1)
    return states


def read_centers(
    network: Any, batch: CenterBatch | PackedNeighborhoods, states_MSD: Tensor
) -> Tensor:
    """(B, D) float32: the second pass. `states_MSD` are those that the batch needs, in its
    order.
    """
    vectors_BD: Tensor
    if isinstance(batch, PackedNeighborhoods):
        vectors_BD = network(batch)
        return vectors_BD
    states_MSD = states_MSD.to(next(network.parameters()).dtype)
    near = list(states_MSD[: batch.num_near].unbind(1)) or [
        states_MSD.new_zeros(0, states_MSD.shape[-1])
    ]
    if batch.centers is None:
        vectors_BD = network.aggregate(
            states_MSD[batch.num_near :, 0], near[0], batch.index_BK, batch.open_BK
        )
    else:
        vectors_BD = network.center_vectors(batch.centers, near, batch.index_BK, batch.open_BK)
    return vectors_BD


def without_neighbors(neighborhood: Neighborhood) -> Neighborhood:
    """The centres alone."""
    return Neighborhood(
        neighborhood.centers, np.zeros_like(neighborhood.indptr), neighborhood.neighbors[:0]
    )


def cut(neighborhood: Neighborhood, part: slice) -> Neighborhood:
    """Some of the centres, with their neighbours."""
    indptr = neighborhood.indptr[part.start : part.stop + 1]
    return Neighborhood(
        neighborhood.centers[part],
        indptr - indptr[0],
        neighborhood.neighbors[indptr[0] : indptr[-1]],
    )
