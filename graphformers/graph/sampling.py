"""NeighborSampler: up to k neighbours of each node, drawn by hashes of ids.

Every (node, neighbour) gets a 64-bit hash of (seed, epoch, node's id, neighbour's id); the
neighbours with the k smallest hashes are taken, in the order of their hashes. This is a uniform
draw without replacement, and it does not depend on the order of a batch, on the number of
processes, on row numbers, or on nodes added elsewhere in the graph. An excluded neighbour is
replaced by the one with the next smallest hash.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np

from graphformers.arrays import Array, mix, ranges
from graphformers.errors import GraphFormersError


@cache
def _threads() -> ThreadPoolExecutor:
    """The threads that sample blocks.

    numpy releases the GIL while it gathers and sorts: two threads sample 1.6 times as fast as one.
    """
    return ThreadPoolExecutor(min(4, os.cpu_count() or 1), "sampling")


# Threads do not survive a fork; a pool from before it would wait for them forever.
os.register_at_fork(after_in_child=_threads.cache_clear)


@dataclass(frozen=True, repr=False)
class Neighborhood:
    """Centres and their sampled neighbours.

    Attributes:
        centers: (B,) row numbers.
        indptr: (B + 1,) int64.
        neighbors: (indptr[-1],) int32 row numbers; those of centers[b] are
            neighbors[indptr[b]:indptr[b + 1]].

    Examples:
        >>> neighborhood = split.sampler(num_neighbors=2).sample([7, 8])
        >>> graph.ids_of(neighborhood.of(0))
        ['p22', 'p2']
    """

    centers: Array
    indptr: Array
    neighbors: Array

    def __len__(self) -> int:
        return len(self.centers)

    def __repr__(self) -> str:
        return f"Neighborhood({len(self.centers):,} centers, {len(self.neighbors):,} neighbors)"

    def of(self, b: int) -> Array:
        """The neighbours of one centre.

        Args:
            b: The index of the centre in `centers`.

        Returns:
            Row numbers.
        """
        return self.neighbors[self.indptr[b] : self.indptr[b + 1]]

    def slice(self, part: slice) -> "Neighborhood":
        """Consecutive centres, with their neighbours.

        Args:
            part: Their indices in `centers`.

        Returns:
            The neighbourhood of these centres.
        """
        indptr = self.indptr[part.start : part.stop + 1]
        neighbors = self.neighbors[indptr[0] : indptr[-1]]
        return Neighborhood(self.centers[part], indptr - indptr[0], neighbors)

    def without_neighbors(self) -> "Neighborhood":
        """The centres alone.

        Returns:
            A neighbourhood in which no centre has a neighbour.
        """
        return Neighborhood(self.centers, np.zeros_like(self.indptr), self.neighbors[:0])


@dataclass(frozen=True)
class NeighborSampler:
    """Samples neighbours from the links of a graph, or from the train links of a split.

    Attributes:
        indptr: (N + 1,) where the neighbours of each node begin in `indices`.
        indices: The neighbours, row numbers.
        id_hashes: (N,) hashes of the ids. Row numbers would change when nodes are added.
        num_neighbors: Maximum number of sampled neighbours per node.
        seed: Seed of the hashes.
        block_size: Centres that a thread samples at a time.
        block_neighbors: Neighbours that it hashes at a time, unless a single centre has more. This
            limits memory where many centres are hubs.
        surplus: In a long row, only about `surplus * num_neighbors` neighbours with small hashes
            are sorted.

    Examples:
        >>> sampler = NeighborSampler(graph.indptr, graph.indices, graph.id_hashes, num_neighbors=2)
        >>> sampler.sample([0, 1, 2])
        Neighborhood(3 centers, 6 neighbors)
    """

    indptr: Array
    indices: Array
    id_hashes: Array
    num_neighbors: int = 5
    seed: int = 42
    block_size: int = 2048
    block_neighbors: int = 2_000_000
    surplus: float = 4.0

    def __post_init__(self) -> None:
        if self.num_neighbors < 0:
            raise GraphFormersError(f"num_neighbors={self.num_neighbors} given, expected 0 or more")

    def sample(
        self, centers: Array, *, epoch: int = 0, exclude: Array | None = None
    ) -> Neighborhood:
        """Samples the neighbours of some nodes.

        Args:
            centers: (B,) row numbers.
            epoch: Each epoch samples other neighbours.
            exclude: (B,) for each centre a node that is not sampled, -1 for none.

        Returns:
            The centres and their neighbours.

        Raises:
            GraphFormersError: `centers` are not row numbers of this graph.
        """
        centers = self._checked(np.asarray(centers))
        excluded = None if exclude is None else np.asarray(exclude)

        def draw(part: slice) -> tuple[Array, Array]:
            return self._sample_block(
                centers[part], epoch, None if excluded is None else excluded[part]
            )

        parts = list(self._parts(centers))
        blocks = list(_threads().map(draw, parts) if len(parts) > 1 else map(draw, parts))
        indptr = np.zeros(len(centers) + 1, dtype=np.int64)
        if blocks:
            np.cumsum(np.concatenate([counts for counts, _ in blocks]), out=indptr[1:])
        neighbors = (
            np.concatenate([found for _, found in blocks])
            if blocks
            else np.zeros(0, dtype=np.int32)
        )
        return Neighborhood(centers, indptr, neighbors)

    def _checked(self, centers: Array) -> Array:
        """Returns the centres as int64 row numbers.

        Raises:
            GraphFormersError: They are not integers in range. Strings of digits are refused, too.
        """
        if centers.ndim != 1 or (len(centers) and centers.dtype.kind not in "iu"):
            raise GraphFormersError(
                "a list of nodes is given by their row numbers; graph.nodes_of(ids) gives those of "
                "ids"
            )
        count = len(self.indptr) - 1
        if len(centers) and not (centers.min() >= 0 and centers.max() < count):
            wrong = centers[(centers < 0) | (centers >= count)][0]
            raise GraphFormersError(
                f"the node {wrong} given, expected row numbers from 0 to {count - 1:,}"
            )
        return centers.astype(np.int64, copy=False)

    def _parts(self, centers: Array) -> Iterator[slice]:
        """Yields the blocks, as slices of the centres."""
        ends = np.cumsum(self.indptr[centers + 1] - self.indptr[centers])
        start = 0
        while start < len(centers):
            done = ends[start - 1] if start else 0
            fit = int(np.searchsorted(ends, done + self.block_neighbors, "right"))
            stop = min(start + self.block_size, max(fit, start + 1))
            yield slice(start, stop)
            start = stop

    def _sample_block(
        self, centers: Array, epoch: int, exclude: Array | None
    ) -> tuple[Array, Array]:
        """Returns (B,) counts, and the sampled neighbours of one centre after the other."""
        starts = self.indptr[centers]
        degrees = self.indptr[centers + 1] - starts
        neighbors = self.indices[ranges(starts, degrees)]
        rows = np.repeat(np.arange(len(centers), dtype=np.uint16), degrees)
        hashes = np.repeat(mix(self.seed, epoch, self.id_hashes[centers]), degrees)
        # Both hashes are well mixed, so two multiplications are enough to combine them.
        hashes ^= self.id_hashes[neighbors]
        hashes *= np.uint64(0xBF58476D1CE4E5B9)
        hashes ^= hashes >> np.uint64(32)
        hashes *= np.uint64(0x94D049BB133111EB)
        allowed = None if exclude is None else neighbors != np.repeat(exclude, degrees)
        kept, counts = self._preselect(hashes, rows, degrees, allowed)
        # by centre, then by hash
        keys = rows[kept].astype(np.uint64) << np.uint64(48) | hashes[kept] >> np.uint64(16)
        order = kept[np.argsort(keys)]
        taken = np.minimum(counts, self.num_neighbors)
        return taken, neighbors[order[ranges(np.cumsum(counts) - counts, taken)]]

    def _preselect(
        self, hashes: Array, rows: Array, degrees: Array, allowed: Array | None
    ) -> tuple[Array, Array]:
        """Selects allowed neighbours whose hash can be among the k smallest of their row.

        The neighbours of a hub are hashed, but only the selected ones have to be sorted.

        Returns:
            The indices of the selected neighbours, and (B,) their counts.
        """
        share = self.surplus * self.num_neighbors / np.maximum(degrees, 1)
        # In short rows 0 - 1 wraps around to the largest number: all neighbours are kept.
        limits = np.where(share < 1, share * 2.0**64, 0).astype(np.uint64) - np.uint64(1)
        small = hashes <= np.repeat(limits, degrees)
        kept = np.flatnonzero(small if allowed is None else small & allowed)
        counts = np.bincount(rows[kept], minlength=len(degrees))
        short = (counts < self.num_neighbors) & (share < 1)
        if short.any():
            # This is rare: all neighbours of rows with too few small hashes are kept.
            small |= short[rows]
            kept = np.flatnonzero(small if allowed is None else small & allowed)
            counts = np.bincount(rows[kept], minlength=len(degrees))
        return kept, counts
