"""ExactIndex: compares every vector of a store's base with every query.

Shapes as in index.py.
"""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from graphformers.arrays import Array, unit_rows
from graphformers.embedding.vectors import VectorStore
from graphformers.retrieval.hits import Hits, merge_hits, top_hits
from graphformers.retrieval.index import Hidden

# Vectors compared at a time.
BLOCK = 65_536
# Vectors up to which an index that is searched again and again keeps them all in memory.
KEPT_BELOW = 200_000


class ExactIndex:
    """Exact search; it has nothing to build and no file.

    Args:
        store: The store.
        is_kept: Whether the vectors of a small store are kept in memory as float32.
    """

    name: ClassVar[str] = "exact"

    def __init__(self, store: VectorStore, *, is_kept: bool = True) -> None:
        self.store, self.recall = store, 1.0
        self._is_kept = is_kept and store.num_base <= KEPT_BELOW
        self._all: Array | None = None

    @classmethod
    def open(cls, store: VectorStore) -> "ExactIndex":
        return cls(store)

    def renumbered(self, store: VectorStore, numbers: Array) -> "ExactIndex":
        return ExactIndex(store)

    def search(self, queries_QD: Array, k: int, hidden: Hidden, *, are_nodes: bool = False) -> Hits:
        best = Hits(
            np.full((len(queries_QD), k), -1),
            np.full((len(queries_QD), k), -np.inf, dtype=np.float32),
        )
        mask_N = hidden.mask_N
        # Hiding scores is faster than gathering the other vectors, unless most are hidden.
        is_whole = self._is_kept and 2 * hidden.num_visible > len(mask_N)
        nodes = np.arange(len(mask_N)) if is_whole else np.flatnonzero(~mask_N)
        for start in range(0, len(nodes), BLOCK):
            part = nodes[start : start + BLOCK]
            vectors = (
                self._kept(part, is_whole) if self._is_kept else base_vectors(self.store, part)
            )
            best = merge_hits(best, top_hits(queries_QD, part, vectors, mask_N[part], k), k)
        return best

    def _kept(self, nodes: Array, is_slice: bool) -> Array:
        if self._all is None:
            self._all = base_vectors(self.store, np.arange(self.store.num_base))
        return self._all[nodes[0] : nodes[-1] + 1] if is_slice else self._all[nodes]


def base_vectors(store: VectorStore, nodes: Array) -> Array:
    """(N, D) float32 vectors of a store's base as they are compared: normalized for cosines."""
    vectors = store.base_vectors(nodes)
    return unit_rows(vectors) if store.is_cosine else vectors


def base_blocks(store: VectorStore) -> Iterator[tuple[Array, Array]]:
    """All row numbers of a store's base with their vectors, block by block."""
    for start in range(0, store.num_base, BLOCK):
        nodes = np.arange(start, min(start + BLOCK, store.num_base))
        yield nodes, base_vectors(store, nodes)
