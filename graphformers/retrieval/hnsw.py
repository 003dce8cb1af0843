"""HnswGraph: an HNSW graph of usearch. Imports little: index worker processes start with it."""

import threading
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from usearch.index import Index as UsearchGraph

Numbers = np.ndarray[Any, Any]


class Searchable(Protocol):
    """An HNSW graph in this process or in others."""

    def search(self, rows: Numbers, count: int, width: int) -> Numbers:
        """The numbers of the nearest vectors of each row, -1 where fewer than `count` are found.

        Args:
            rows: Queries, quantised as the vectors of the graph.
            count: Number of vectors for each row.
            width: Search width (`ef`).
        """


class HnswGraph:
    """usearch's HNSW graph.

    Args:
        graph: The graph.
        threads: Number of threads of a search; 0 for all cores.
    """

    def __init__(self, graph: "UsearchGraph", threads: int = 0) -> None:
        self.graph, self._threads, self._guard = graph, threads, threading.Lock()

    def search(self, rows: Numbers, count: int, width: int) -> Numbers:
        # The width belongs to usearch's object.
        with self._guard:
            self.graph.expansion_search = width  # type: ignore[misc]
            found = self.graph.search(rows, count, threads=self._threads)
        keys = np.atleast_2d(found.keys).astype(np.int64)
        # usearch answers a single query in another shape, without empty places.
        if len(rows) > 1:
            keys[np.arange(keys.shape[1]) >= found.counts[:, None]] = -1  # type: ignore[union-attr]
        return keys
