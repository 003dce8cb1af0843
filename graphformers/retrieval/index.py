"""Index: the nearest vectors of a store, by one of several kinds of search.

An `Index` covers the store's base, which never changes. `StoreIndex` adds what edits changed since:
vectors that they added are compared one by one, and those that they replaced or removed are
skipped. So a new vector is found immediately, and nothing is rebuilt to remove one. A compaction
makes a new base and thus a new index.

Shapes: Q queries, K hits of each, D numbers of a vector, N nodes of the base.
"""

import copy
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar, Protocol

import numpy as np

from graphformers.arrays import Array, unit_rows
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import GraphFormersError, nearest
from graphformers.retrieval.hits import Hits, merge_hits
from graphformers.retrieval.overlay import Overlay

_HERE = "graphformers.retrieval"
# The kinds of indexes by their names. A module is imported when its index is used.
INDEXES = {"exact": f"{_HERE}.exact:ExactIndex", "usearch": f"{_HERE}.usearch_index:UsearchIndex"}
# Vectors below which exact search is used.
EXACT_BELOW = 20_000


@dataclass(frozen=True)
class Hidden:
    """Which vectors of the base are not searched.

    Attributes:
        mask_N: (N,) whether a vector is hidden.
        num_visible: Number of vectors that are not.
    """

    mask_N: Array
    num_visible: int

    @staticmethod
    def of(mask_N: Array) -> "Hidden":
        """Counts the vectors that are not hidden."""
        return Hidden(mask_N, len(mask_N) - int(np.count_nonzero(mask_N)))


class Index(Protocol):
    """Finds the nearest vectors of a store's base. An index never changes."""

    name: ClassVar[str]
    """The name in INDEXES."""

    recall: float
    """Recall@10 against exact search, measured when it was built."""

    @classmethod
    def open(cls, store: VectorStore) -> "Index":
        """The store's index from disk; built and saved if there is none.

        Args:
            store: The store.
        """

    def search(self, queries_QD: Array, k: int, hidden: Hidden, *, are_nodes: bool = False) -> Hits:
        """The `k` best visible vectors for each query.

        Args:
            queries_QD: The query vectors, finite, normalized for cosines.
            k: Number of hits, at least 1.
            hidden: Which vectors do not count.
            are_nodes: Whether the queries are vectors of nodes in the store, which are found more
                easily.
        """

    def renumbered(self, store: VectorStore, numbers: Array) -> "Index":
        """An index for a compacted store, until that has its own.

        Args:
            store: The compacted store, whose row numbers are new.
            numbers: (N,) the new number of each old one; -1 for vectors that are not searched.
        """


def index_class(name: str) -> type[Index]:
    """The class of a kind of index.

    Raises:
        GraphFormersError: There is no such kind.
    """
    if name not in INDEXES:
        raise GraphFormersError(f"no index {name!r}; {nearest(name, INDEXES)}")
    module, _, found = INDEXES[name].partition(":")
    kind: type[Index] = getattr(import_module(module), found)
    return kind


def is_exact_fast(count: int) -> bool:
    """Whether comparing so many vectors takes milliseconds."""
    return count < EXACT_BELOW


def default_index(store: VectorStore) -> str:
    """Exact search for small stores and without usearch, otherwise usearch."""
    return "exact" if is_exact_fast(store.num_base) or not has_usearch() else "usearch"


def has_usearch() -> bool:
    """Whether usearch is installed."""
    try:
        import usearch.index  # noqa: F401
    except ImportError:
        return False
    return True


class StoreIndex:
    """Searches one state of a store: an index of its base, and the vectors changed since.

    Args:
        store: The state of the store.
        base: An index of its base.
        unseen: Base nodes that the index does not know; they are compared one by one.

    Examples:
        >>> index = StoreIndex.open(store)
        >>> index.search(store.vectors(["p7"]), 3).nodes_QK.shape
        (1, 3)
    """

    def __init__(self, store: VectorStore, base: Index, unseen: Array | None = None) -> None:
        self.store, self.base = store, base
        self._unseen = np.zeros(0, dtype=np.int64) if unseen is None else unseen
        self._overlay: Overlay | None = None
        self._replaced: tuple[Array, Hidden] | None = None

    @staticmethod
    def open(store: VectorStore, name: str | None = None) -> "StoreIndex":
        """Opens the index of a store from disk, or builds it.

        Args:
            store: The store.
            name: A kind of index; by default `default_index`.

        Raises:
            GraphFormersError: There is no such kind.
        """
        return StoreIndex(store, index_class(name or default_index(store)).open(store))

    def on(self, store: VectorStore) -> "StoreIndex":
        """The index of another state of the store with the same base.

        What edits added and removed between the states is added and removed; vectors that were
        read before are kept.
        """
        assert store.artifact is self.store.artifact, "an index belongs to one base"
        other = copy.copy(self)
        other.store = store
        return other

    def carried_over(self, before: VectorStore, store: VectorStore) -> "StoreIndex":
        """An index of a compacted store, until it has its own.

        The index of the old base stays, its nodes get their new numbers; vectors that it does not
        know are compared one by one.
        """
        nodes = before.graph.nodes
        numbers = np.full(before.graph.num_rows, -1, dtype=np.int64)
        numbers[nodes] = np.arange(len(nodes))
        unseen = np.union1d(numbers[before.changed_nodes()], numbers[self._unseen])
        numbers[before.overtaken()] = -1
        base = self.base.renumbered(store, numbers)
        return StoreIndex(store, base, None if self.is_exact else unseen[unseen >= 0])

    @property
    def is_exact(self) -> bool:
        """Whether every vector is compared."""
        return self.base.name == "exact"

    def search(
        self, queries_QD: Array, k: int, *, allowed: Array | None = None, are_nodes: bool = False
    ) -> Hits:
        """The `k` best nodes for each query.

        Args:
            queries_QD: The query vectors.
            k: Number of hits.
            allowed: By row number, which nodes may be found; None for all.
            are_nodes: Whether the queries are vectors of nodes in the store; makes search faster.

        Raises:
            GraphFormersError: The vectors have another size, or are not finite.
        """
        queries_QD = self._checked(queries_QD)
        k = min(k, len(self.store))
        if k < 1 or not len(queries_QD):
            shape = len(queries_QD), 0
            return Hits(np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32))
        hits = self.base.search(queries_QD, k, self._hidden(allowed), are_nodes=are_nodes)
        self._overlay = overlay = Overlay.of(self.store, self._unseen, self._overlay)
        if not overlay.num_rows:
            return hits
        return merge_hits(hits, overlay.search(queries_QD, k, allowed), k)

    def _checked(self, queries_QD: Array) -> Array:
        """The queries as they are compared."""
        queries_QD = np.ascontiguousarray(queries_QD, dtype=np.float32)
        if queries_QD.ndim != 2 or queries_QD.shape[1] != self.store.size:
            raise GraphFormersError(
                f"queries of shape {queries_QD.shape} given, expected rows of {self.store.size} "
                f"numbers"
            )
        if not np.isfinite(queries_QD).all():
            raise GraphFormersError("the query holds numbers that are not finite (NaN or inf)")
        if self.store.is_cosine:
            # A float32 may not hold their squares.
            largest_Q1 = np.abs(queries_QD).max(axis=1, keepdims=True, initial=0)
            queries_QD = unit_rows(queries_QD / np.where(largest_Q1 > 0, largest_Q1, 1))
        return queries_QD

    def _hidden(self, allowed: Array | None) -> Hidden:
        """The base vectors that were replaced, that the index does not know, or not allowed."""
        overtaken = self.store.overtaken()
        if self._replaced is None or self._replaced[0] is not overtaken:
            mask_N = np.zeros(self.store.num_base, dtype=bool)
            mask_N[overtaken] = True
            mask_N[self._unseen] = True
            self._replaced = overtaken, Hidden.of(mask_N)
        hidden = self._replaced[1]
        if allowed is None:
            return hidden
        return Hidden.of(hidden.mask_N | ~allowed[: self.store.num_base])
