"""Overlay: the vectors that an index does not know, because edits changed them since. They are
compared one by one.

Shapes as in index.py; M rows of the overlay.
"""

import threading
from dataclasses import dataclass

import numpy as np

from graphformers.arrays import Array
from graphformers.embedding.vectors import VectorStore
from graphformers.retrieval.hits import Hits, top_hits

MANY = 500  # more than these are not sorted as a whole
LEAST_ROWS = 256


class Rows:
    """Vectors that several versions of an overlay share; later versions add rows.

    Attributes:
        nodes_M: The node of each row; there is room for more.
        vectors_MD: The vectors.
        count: Number of rows.
        places: The last row of each node.
        lock: Held while rows are added.
        last: The version that added the last ones.
    """

    def __init__(self, nodes: Array, vectors: Array) -> None:
        self.count = len(nodes)
        room = max(LEAST_ROWS, 2 * self.count)
        self.nodes_M = np.empty(room, dtype=np.int64)
        self.vectors_MD = np.empty((room, vectors.shape[1]), dtype=np.float32)
        self.nodes_M[: self.count], self.vectors_MD[: self.count] = nodes, vectors
        self.places = {node: row for row, node in enumerate(nodes.tolist())}
        self.lock = threading.Lock()
        self.last: Overlay | None = None

    def has_room(self, count: int) -> bool:
        """Whether so many rows can be added."""
        return self.count + count <= len(self.nodes_M)

    def rows_of(self, nodes: Array) -> list[int]:
        """The rows of those of the nodes that have one."""
        return [self.places[node] for node in nodes.tolist() if node in self.places]

    def add(self, nodes: Array, vectors: Array) -> None:
        """Adds rows behind those of all versions."""
        stop = self.count + len(nodes)
        self.nodes_M[self.count : stop], self.vectors_MD[self.count : stop] = nodes, vectors
        self.places |= {node: row for row, node in enumerate(nodes.tolist(), self.count)}
        self.count = stop


@dataclass(frozen=True)
class Overlay:
    """The unknown nodes of one version of a store.

    Attributes:
        store: The version.
        rows: Their vectors as they are compared, shared with other versions.
        hidden_M: (M,) which rows are not of this version: their nodes changed again or were
            removed.
    """

    store: VectorStore
    rows: Rows
    hidden_M: Array

    @staticmethod
    def of(store: VectorStore, unseen: Array, before: "Overlay | None" = None) -> "Overlay":
        """Of a store's changed nodes, and of those of the base that are `unseen`.

        Args:
            store: The store.
            unseen: Nodes of the base that the index does not know.
            before: The overlay of an earlier version with the same base and the same `unseen`;
                what it has is not read again.
        """
        if before is None:
            return Overlay._anew(store, unseen)
        if before.store is store:
            return before
        rows = before.rows
        with rows.lock:
            # Another thread was faster.
            if rows.last is not None and rows.last.store is store:
                return rows.last
            added, gone = store.changed_since(before.store)
            # Rows behind those of `before` belong to another version; then, too, all is made anew.
            is_last = rows.count == before.num_rows
            if not is_last or not rows.has_room(len(added)):
                return Overlay._anew(store, unseen)
            hidden_M = np.zeros(rows.count + len(added), dtype=bool)
            hidden_M[: rows.count] = before.hidden_M
            hidden_M[rows.rows_of(np.concatenate([added, gone]))] = True
            rows.add(added, store.compared(added))
            rows.last = Overlay(store, rows, hidden_M)
            return rows.last

    @property
    def num_rows(self) -> int:
        """Number of rows, hidden ones included."""
        return len(self.hidden_M)

    @staticmethod
    def _anew(store: VectorStore, unseen: Array) -> "Overlay":
        nodes = np.union1d(store.changed_nodes(), np.setdiff1d(unseen, store.overtaken()))
        rows = Rows(nodes, store.compared(nodes))
        return Overlay(store, rows, np.zeros(len(nodes), dtype=bool))

    def search(self, queries_QD: Array, k: int, allowed: Array | None) -> Hits:
        """The `k` best of them for each query, or all where they are few; `allowed` marks by node
        number who may be found.
        """
        count = self.num_rows
        nodes_M, vectors_MD = self.rows.nodes_M[:count], self.rows.vectors_MD[:count]
        hidden_M = self.hidden_M if allowed is None else self.hidden_M | ~allowed[nodes_M]
        mask_M = hidden_M if hidden_M.any() else None
        return top_hits(queries_QD, nodes_M, vectors_MD, mask_M, k if count > MANY else count)
