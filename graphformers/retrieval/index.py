"""Index: the nearest vectors of a store, by exact search or by an HNSW graph (usearch).

The index covers the store's base, which never changes: a file that is mapped into memory and shared
by all processes. Vectors that the log has changed since are searched exactly, and superseded base
vectors are skipped; so a new vector is found immediately, and nothing is rebuilt to remove one. A
compaction makes a new base and thus a new index.

See coding.py for how vectors are quantised. The best hits of the HNSW graph are scored again with
the stored vectors.

    papers.vectors/index.usearch, index.json   the HNSW graph, and what it was made of

Shapes: Q queries, K hits of each, D numbers of a vector, N nodes.
"""

import copy
import errno
import json
import logging
import os
import weakref
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphformers.arrays import Array, unit_rows
from graphformers.artifact import open_artifact
from graphformers.embedding.vectors import KIND, VERSION, VectorStore
from graphformers.errors import GraphFormersError
from graphformers.files import checksum, put_in_place, write_whole
from graphformers.progress import progress
from graphformers.retrieval.coding import BLOCK, EXTRA, Coding, asked, coding_of, compared
from graphformers.retrieval.hits import Hits, best_hits, merge_hits, top_hits
from graphformers.retrieval.near import NearGraph, Searchable
from graphformers.retrieval.overlay import Overlay

if TYPE_CHECKING:
    from usearch.index import Index as UsearchIndex

logger = logging.getLogger(__name__)

FILE, ABOUT = "index.usearch", "index.json"
# Nodes below which exact search is used: it takes milliseconds.
EXACT_BELOW = 20_000
# Links of a node in the HNSW graph; with 16, vectors in tight clusters lose two hits in a hundred.
CONNECTIVITY, BUILD_WIDTH = 24, 160
# Search widths that are tried.
WIDTHS = (64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 512, 768, 1024, 1536, 2048)
# For queries that are no nodes: they may differ much from those by which the index is measured.
LEAST_WIDTH = 128
# Recall@10 for which a width is chosen when an index is built.
RECALL = 0.99
# Times as many hits as wanted are scored again.
SURPLUS = 2
RECALL_QUERIES = 500
# Vectors that a single thread adds first: in an almost empty graph several would miss each other.
FIRST = 2_000


@dataclass(frozen=True)
class IndexFacts:
    """What an index on disk was made of."""

    # Fingerprint of the store's base.
    base: str
    count: int
    # Number type: i8 or f16.
    precision: str
    connectivity: int
    build_width: int
    search_width: int
    # For vectors of nodes of the store, which are found more easily.
    node_width: int
    # Recall@10 against exact search, for other queries.
    recall: float
    # Checksum of the file.
    checksum: str


class OpenFile:
    """An open file, whatever replaces it on disk; closed with its last reference."""

    def __init__(self, path: Path) -> None:
        self.handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.handle)

    @property
    def path(self) -> Path:
        """A path under which this process and its children can open the file."""
        return Path(f"/dev/fd/{self.handle}")


class Index:
    """Finds the nearest nodes of a store: `Index.open(store).search(vectors, k)`."""

    def __init__(
        self,
        store: VectorStore,
        graph: Searchable | None = None,
        facts: IndexFacts | None = None,
    ) -> None:
        self.store, self.graph, self.facts = store, graph, facts
        self._all: Array | None = None
        # The file that the HNSW graph is mapped from, if any.
        self.file: OpenFile | None = None
        self._overlay: Overlay | None = None
        self._covered: tuple[Array, Array, int] | None = None
        # Numbers in the store of the HNSW graph's nodes, -1 for those that changed; None for the
        # same.
        self._numbers: Array | None = None
        # Base nodes that the HNSW graph does not know.
        self._unseen = np.zeros(0, dtype=np.int64)

    def on(self, store: VectorStore) -> "Index":
        """The same index for another state of the store with the same base; vectors read before are
        kept.
        """
        assert store.artifact is self.store.artifact, "an index belongs to one base"
        other = copy.copy(self)
        other.store = store
        return other

    def through(self, graph: Searchable) -> "Index":
        """The same index with another HNSW graph, such as one in another process."""
        other = copy.copy(self)
        other.graph = graph
        return other

    def with_width(self, width: int) -> "Index":
        """The same index with another search width of the HNSW graph."""
        assert self.facts is not None, "a graph has its facts"
        other = copy.copy(self)
        other.facts = replace(self.facts, search_width=width)
        return other

    def carried_over(self, before: VectorStore, store: VectorStore) -> "Index":
        """An index of a compacted store, until it has its own.

        The HNSW graph of `before` stays, its nodes get their new numbers; vectors that it does not
        know are searched exactly.
        """
        if self.graph is None:
            return Index(store)
        nodes = before.graph.nodes
        numbers = np.full(before.graph.num_rows, -1, dtype=np.int64)
        numbers[nodes] = np.arange(len(nodes))
        changed = numbers[before.changed_nodes()]
        unseen = np.union1d(changed, numbers[self._unseen])
        numbers[before.overtaken()] = -1
        mine = np.arange(before.num_base) if self._numbers is None else self._numbers
        other = Index(store, self.graph, self.facts)
        other._numbers = np.where(mine >= 0, numbers[mine], -1)
        other._unseen = unseen[unseen >= 0]
        return other

    @staticmethod
    def open(store: VectorStore, *, exact: bool | None = None) -> "Index":
        """The store's index from disk, built when there is none.

        Search is exact for small stores, when asked for, and without usearch.
        """
        if exact is None:
            exact = store.num_base < EXACT_BELOW or not has_usearch()
        if exact:
            return Index(store)
        found = load_index(store)
        return found if found is not None else build_index(store)

    @property
    def is_exact(self) -> bool:
        return self.graph is None

    def search(
        self, queries_QD: Array, k: int, *, allowed: Array | None = None, are_nodes: bool = False
    ) -> Hits:
        """The `k` best nodes for each query.

        Args:
            queries_QD: The query vectors.
            k: Number of hits.
            allowed: (N,) which nodes may be found; None for all.
            are_nodes: Whether the queries are vectors of nodes in the store; makes search faster.
        """
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
        k = min(k, len(self.store))
        if k < 1 or not len(queries_QD):
            return Hits(
                np.zeros((len(queries_QD), 0), dtype=np.int64),
                np.zeros((len(queries_QD), 0), dtype=np.float32),
            )
        if self.graph is None or (allowed is not None and allowed.sum() < EXACT_BELOW):
            return self._search_all(queries_QD, k, allowed)
        return self._search_graph(queries_QD, k, allowed, are_nodes=are_nodes)

    def _search_all(self, queries_QD: Array, k: int, allowed: Array | None) -> Hits:
        """Compares every vector with every query, block by block."""
        hidden, _ = self._hidden(allowed)
        best = Hits(
            np.full((len(queries_QD), k), -1),
            np.full((len(queries_QD), k), -np.inf, dtype=np.float32),
        )
        is_kept = self.is_exact and self.store.num_base <= 10 * EXACT_BELOW
        nodes = (
            np.arange(len(hidden)) if is_kept and hidden.mean() < 0.5 else np.flatnonzero(~hidden)
        )
        for start in range(0, len(nodes), BLOCK):
            part = nodes[start : start + BLOCK]
            vectors = (
                self._kept(part, len(nodes) == len(hidden))
                if is_kept
                else compared(self.store, part)
            )
            best = merge_hits(best, top_hits(queries_QD, part, vectors, hidden[part], k), k)
        return self._with_changes(best, queries_QD, k, allowed)

    def _kept(self, nodes: Array, is_slice: bool) -> Array:
        """(M, D) float32 vectors of the base. Small stores that are searched exactly keep them in
        memory.
        """
        if self._all is None:
            self._all = compared(self.store, np.arange(self.store.num_base))
        return self._all[nodes[0] : nodes[-1] + 1] if is_slice else self._all[nodes]

    def _hidden(self, allowed: Array | None) -> tuple[Array, int]:
        """(num_base,) which base vectors do not count, and the number of those that do.

        Hidden are superseded vectors, nodes that the HNSW graph does not know, and nodes not
        allowed.
        """
        overtaken = self.store.overtaken()
        if self._covered is None or self._covered[0] is not overtaken:
            hidden = np.zeros(self.store.num_base, dtype=bool)
            hidden[overtaken] = True
            hidden[self._unseen] = True
            self._covered = (overtaken, hidden, len(hidden) - int(hidden.sum()))
        _, hidden, count = self._covered
        if allowed is not None:
            hidden = hidden | ~allowed[: self.store.num_base]
            count = len(hidden) - int(hidden.sum())
        return hidden, count

    def _with_changes(self, best: Hits, queries_QD: Array, k: int, allowed: Array | None) -> Hits:
        """Hits of the base merged with those of the logged changes."""
        self._overlay = overlay = Overlay.of(self.store, self._unseen, self._overlay)
        return (
            merge_hits(best, overlay.search(queries_QD, k, allowed), k)
            if len(overlay.nodes_M)
            else best
        )

    def _search_graph(
        self, queries_QD: Array, k: int, allowed: Array | None, *, are_nodes: bool
    ) -> Hits:
        """Hits of the HNSW graph, four times as many while too few of them count, and of logged
        changes.
        """
        hidden, possible = self._hidden(allowed)
        wanted = SURPLUS * k
        while True:
            # So few count that exact search is faster, and the HNSW graph might miss some.
            if wanted > self.store.num_base // 4:
                return self._search_all(queries_QD, k, allowed)
            keys_QM = self._walk(queries_QD, wanted, are_nodes=are_nodes)
            keys_QM[(keys_QM >= 0) & hidden[keys_QM]] = -1
            if ((keys_QM >= 0).sum(1) >= min(k + k // 2, possible)).all():
                break
            wanted *= 4
        return self._with_changes(self._score_again(queries_QD, keys_QM, k), queries_QD, k, allowed)

    def _walk(self, queries_QD: Array, count: int, *, are_nodes: bool) -> Array:
        """(Q, count) base nodes that the HNSW graph finds, -1 where it finds fewer."""
        assert self.graph is not None, "there is an HNSW graph"
        assert self.facts is not None, "a graph has its facts"
        width = self.facts.node_width if are_nodes else self.facts.search_width
        keys_QM = self.graph.search(asked(queries_QD, self.facts.precision), count, width)
        return (
            keys_QM if self._numbers is None else np.where(keys_QM >= 0, self._numbers[keys_QM], -1)
        )

    def _score_again(self, queries_QD: Array, keys_QM: Array, k: int) -> Hits:
        """The `k` best candidates by the stored vectors; -1 stands for none."""
        distinct, places = np.unique(keys_QM, return_inverse=True)
        vectors = compared(self.store, distinct[distinct >= 0])
        if len(distinct) and distinct[0] < 0:
            vectors = np.concatenate([np.zeros((1, self.store.size), dtype=np.float32), vectors])
        scores_QM = np.einsum("qd,qmd->qm", queries_QD, vectors[places.reshape(keys_QM.shape)])
        scores_QM[keys_QM < 0] = -np.inf
        missing = max(k - keys_QM.shape[1], 0)
        if missing:
            keys_QM = np.pad(keys_QM, ((0, 0), (0, missing)), constant_values=-1)
            scores_QM = np.pad(scores_QM, ((0, 0), (0, missing)), constant_values=-np.inf)
        return best_hits(keys_QM, scores_QM.astype(np.float32), k)


def has_usearch() -> bool:
    try:
        import usearch.index  # noqa: F401
    except ImportError:
        return False
    return True


def build_index(store: VectorStore) -> Index:
    """Builds the index of a store's base, measures its recall, and saves it beside the vectors."""
    trial, of_nodes = Trial.of(store), Trial.of_nodes(store)
    coding = coding_of(store, "i8")
    graph, facts = _built(store, trial, of_nodes, coding)
    # A few numbers are so large that eight bits hold nothing of the others.
    if facts.recall < RECALL:
        other, other_facts = _built(store, trial, of_nodes, replace(coding, precision="f16"))
        if other_facts.recall > facts.recall:
            graph, facts = other, other_facts
    logger.info(f"index of {store.num_base:,} vectors: recall@10 {facts.recall:.3f}")
    index = Index(store, NearGraph(graph), facts)
    try:
        if open_artifact(store.path, KIND, VERSION).fingerprint != store.artifact.fingerprint:
            # Another base replaced this one, with an index of its own.
            return index
        with put_in_place(store.path / FILE) as draft:
            graph.save(str(draft))
            index.facts = replace(facts, checksum=checksum(draft))
        write_whole(store.path / ABOUT, (json.dumps(asdict(index.facts), indent=1) + "\n").encode())
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        logger.info(
            f"{store.path}: the index cannot be kept there ({error.strerror}); it will be built "
            f"again the next time"
        )
    return index


def _built(
    store: VectorStore, trial: "Trial", of_nodes: "Trial", coding: Coding
) -> "tuple[UsearchIndex, IndexFacts]":
    """An HNSW graph in memory, and its facts."""
    graph = _empty_graph(coding.size, coding.precision)
    with progress("Indexing", store.num_base, "vectors") as task:
        edges = sorted({0, *range(FIRST, store.num_base, BLOCK // 4), store.num_base})
        for start, end in pairwise(edges):
            nodes = np.arange(start, end)
            graph.add(nodes, coding.stored(compared(store, nodes)), threads=0 if start else 1)
            task.advance(len(nodes))
    made = (store.artifact.fingerprint, store.num_base, coding.precision, CONNECTIVITY, BUILD_WIDTH)
    facts = IndexFacts(*made, search_width=WIDTHS[0], node_width=WIDTHS[0], recall=0, checksum="")
    index = Index(store, NearGraph(graph), facts)
    width, recall = trial.choose_width(index, LEAST_WIDTH)
    node_width = min(of_nodes.choose_width(index, WIDTHS[0])[0], width)
    return graph, replace(facts, search_width=width, node_width=node_width, recall=recall)


def load_index(store: VectorStore) -> Index | None:
    """The index from disk; None if there is none, it belongs to another base, or is damaged."""
    try:
        facts = IndexFacts(**json.loads((store.path / ABOUT).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    if facts.base != store.artifact.fingerprint or facts.count != store.num_base:
        return None
    try:
        file = OpenFile(store.path / FILE)
    except OSError:
        return None
    if checksum(file.path) != facts.checksum:
        logger.warning(
            f"{store.path / FILE}: damaged, its checksum does not match; it is made again"
        )
        return None
    graph = _empty_graph(store.size + EXTRA, facts.precision)
    # Exactly this file: a compaction may replace it at any moment.
    graph.view(str(file.path))
    found = Index(store, NearGraph(graph), facts)
    found.file = file
    return found


def _empty_graph(size: int, precision: str) -> "UsearchIndex":
    from usearch.index import Index as UsearchIndex

    return UsearchIndex(
        ndim=size,
        metric="ip",
        dtype=precision,
        connectivity=CONNECTIVITY,
        expansion_add=BUILD_WIDTH,
    )


@dataclass(frozen=True)
class Trial:
    """Queries by which the recall of an index is measured. Ties count as hits."""

    queries_QD: Array
    # Nodes to leave out; -1 for none.
    own_Q: Array
    # Score of the last true hit.
    worst_Q: Array
    # Number of true hits.
    count: int

    @staticmethod
    def of_nodes(store: VectorStore) -> "Trial":
        """Vectors of the store; each leaves itself out."""
        nodes = np.random.default_rng(1).choice(
            store.num_base, min(store.num_base, RECALL_QUERIES), replace=False
        )
        return Trial.made(store, compared(store, nodes), nodes)

    @staticmethod
    def of(store: VectorStore) -> "Trial":
        """Random points between pairs of vectors of the store."""
        draw = np.random.default_rng(0)
        ends = draw.integers(0, store.num_base, (2, RECALL_QUERIES))
        share = draw.uniform(0, 0.5, (RECALL_QUERIES, 1)).astype(np.float32)
        queries = (1 - share) * store.base_vectors(ends[0]) + share * store.base_vectors(ends[1])
        return Trial.made(
            store, unit_rows(queries) if store.is_cosine else queries, np.full(len(queries), -1)
        )

    @staticmethod
    def made(store: VectorStore, queries_QD: Array, own_Q: Array) -> "Trial":
        best = Index(store)._search_all(queries_QD, min(11, store.num_base), None)
        # The node itself comes first and is skipped.
        scores = np.where(best.nodes_QK == own_Q[:, None], np.inf, best.scores_QK)
        is_own = int((own_Q >= 0).any())
        count = min(10, store.num_base - is_own)
        return Trial(
            queries_QD, own_Q, -np.sort(-scores, axis=1)[:, max(is_own + count - 1, 0)], count
        )

    def recall(self, found: Hits) -> float:
        """The share of the true hits, or equally near ones, that are found."""
        enough = self.worst_Q - 1e-5 * np.abs(self.worst_Q)
        is_right = (
            (found.scores_QK >= enough[:, None])
            & (found.nodes_QK != self.own_Q[:, None])
            & (found.nodes_QK >= 0)
        )
        return (
            float(np.minimum(is_right.sum(1), self.count).sum() / (self.count * len(self.own_Q)))
            if self.count
            else 1.0
        )

    def choose_width(self, index: Index, least: int) -> tuple[int, float]:
        """The smallest search width for a recall@10 of RECALL, at least a given one; and its
        recall.
        """
        recall = 0.0
        for width in (width for width in WIDTHS if width >= least):
            recall = self.recall(index.with_width(width).search(self.queries_QD, 11))
            if recall >= RECALL:
                break
        return width, recall
