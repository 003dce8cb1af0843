"""Overlay: the vectors that an index does not know, because edits changed them since. They are
looked at one by one.

Shapes as in index.py; M nodes of the overlay.
"""

from dataclasses import dataclass

import numpy as np

from graphformers.arrays import Array
from graphformers.embedding.vectors import VectorStore
from graphformers.retrieval.hits import Hits, top_hits

MANY = 500  # more than these are not sorted as a whole


@dataclass(frozen=True)
class Overlay:
    """The unknown nodes of one state of a store, in order, and their vectors as they are
    compared.
    """

    store: VectorStore
    nodes_M: Array
    vectors_MD: Array

    @staticmethod
    def of(store: VectorStore, unseen: Array, before: "Overlay | None" = None) -> "Overlay":
        """Of a store's changed nodes, and of those of the base that are `unseen`; what `before`
        holds is not read again.

        `before` is that of an earlier version with the same base and the same `unseen`.
        """
        if before is not None and before.store is store:
            return before
        still = np.setdiff1d(unseen, store.overtaken())
        nodes_M = np.union1d(store.changed_nodes(), still)
        vectors_MD, is_known = (
            np.empty((len(nodes_M), store.size), dtype=np.float32),
            np.zeros(len(nodes_M), dtype=bool),
        )
        if before is not None and len(before.nodes_M):
            places = np.minimum(np.searchsorted(before.nodes_M, nodes_M), len(before.nodes_M) - 1)
            is_same = store.is_same_vector(before.store, nodes_M) | np.isin(
                nodes_M, still, assume_unique=True
            )
            is_known = (before.nodes_M[places] == nodes_M) & is_same
            vectors_MD[is_known] = before.vectors_MD[places[is_known]]
        vectors_MD[~is_known] = store.compared(nodes_M[~is_known])
        return Overlay(store, nodes_M, vectors_MD)

    def search(self, queries_QD: Array, k: int, allowed: Array | None) -> Hits:
        """The `k` best of them for each query, or all where they are few; `allowed` marks by node
        number who may be found.
        """
        count = len(self.nodes_M)
        is_hidden_M = None if allowed is None else ~allowed[self.nodes_M]
        return top_hits(
            queries_QD, self.nodes_M, self.vectors_MD, is_hidden_M, k if count > MANY else count
        )
