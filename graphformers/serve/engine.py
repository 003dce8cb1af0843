"""Engine: the vectors, the index and the model of the server.

Readers use a View, an immutable snapshot; a write makes the next snapshot and replaces the old one
in one step. So nobody waits for a writer, and a reader sees all of a change or nothing of it. Some
threads search, one encodes texts, one writes; each takes all waiting requests at once
(batching.py).
"""

import logging
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec
import numpy as np

from graphformers.arrays import Array
from graphformers.embedding.compaction import sweep
from graphformers.embedding.update import Updater, check_model, load_model
from graphformers.embedding.vectors import VectorStore, locked
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.model.encoder import GraphFormers
from graphformers.retrieval.filters import allowed_nodes, check_columns
from graphformers.retrieval.index import Index, load_index
from graphformers.serve.batching import Batcher
from graphformers.serve.settings import ServeSettings
from graphformers.serve.walker import Walker
from graphformers.serve.writing import (
    Answer,
    NotFoundError,
    RefusedError,
    Write,
    apply_write,
    link_pairs,
)

logger = logging.getLogger(__name__)

# From so many links on, a mask hides neighbours; below, more hits are requested.
MANY_LINKS = 256
# Threads that search, each with an index worker process.
SEARCHERS = min(4, max(2, os.cpu_count() or 1))
# Searches of a batch: larger batches delay some clients more, smaller ones all of them.
MOST_SEARCHES = 24
WARM_SEARCHES = 512
# Seconds that the first text waits for others.
PATIENCE = 0.003


@dataclass(frozen=True)
class View:
    """An immutable snapshot of the vectors and their index."""

    store: VectorStore
    index: Index

    def node(self, id: str) -> int:
        """The row number of an id."""
        node = int(self.store.graph.find_nodes([id])[0])
        if node < 0:
            raise NotFoundError(f"no node with the id {id!r}")
        return node


@dataclass(frozen=True)
class Question:
    """A search for the nodes nearest to a node or a vector."""

    k: int
    id: str | None = None
    vector: Array | None = None
    # Whether the node's neighbours are left out.
    is_unlinked: bool = False
    filters: tuple[str, ...] = ()
    # Neighbours to show with each match.
    num_neighbors: int = 0
    # Columns to show with each match.
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reading:
    """A text to encode, with the texts of neighbours."""

    text: str
    neighbors: tuple[str, ...] = ()


class Engine:
    """Everything that the server needs to answer. Construction takes as long as loading; `close`
    ends it.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self.settings, self._held = settings, ExitStack()
        # Such as on a read-only disk.
        is_fixed = os.path.isdir(settings.vectors) and not os.access(settings.vectors, os.W_OK)
        self.is_writable = settings.allows_writes and not is_fixed
        if settings.allows_writes and is_fixed:
            logger.info(
                f"{settings.vectors}: cannot be written to, so this server takes no changes"
            )
        try:
            self._lock = (
                self._held.enter_context(locked(settings.vectors)) if self.is_writable else None
            )
            if self._lock is not None:
                # A killed compaction leaves a base.
                sweep(self._lock.path)
            store = VectorStore.load(settings.vectors)
            if settings.model is None:
                self.model = load_model(store, settings.device)
            else:
                self.model = GraphFormers.from_pretrained(settings.model, device=settings.device)
            check_model(store, self.model)
            self._updater = (
                Updater(store, self.model, self._lock, settings.compaction)
                if self._lock is not None
                else None
            )
            self.view = View(store, open_index(store))
        except BaseException:
            self._held.close()
            raise
        self._indexing: threading.Thread | None = None
        # After a failed compaction, the size of the edits from which on it is tried again.
        self._patient = 0
        # One thread at a time uses the model, which uses all cores.
        self._modeling = threading.Lock()
        # Held while the next snapshot is made.
        self._swapping = threading.Lock()
        self._warm_up()
        self.searches: Batcher[Question, bytes] = Batcher(
            "searching", self._search, most=MOST_SEARCHES, num_threads=SEARCHERS
        )
        self.texts: Batcher[Reading, Array] = Batcher(
            "reading", self._read, most=64, patience=PATIENCE
        )
        self.writes: Batcher[Write, Answer] = Batcher(
            "writing", self._write, most=256, patience=PATIENCE
        )
        self.writes.after = self._compact_if_due

    def _warm_up(self) -> None:
        """Runs everything once that is slow the first time, such as reading mapped files.

        On a GPU a kernel is compiled for each power of two below a small number of neighbours.
        """
        most = min(
            max(self.model.config.num_neighbors, 1), self.model.batch_limits().one_pass_neighbors
        )
        for power in range(1, 1 + most.bit_length()):
            self._read([Reading("warm", tuple(map(str, range(2**power - 1))))])
        nodes = self.view.store.graph.nodes
        some = np.random.default_rng(0).choice(nodes, min(len(nodes), WARM_SEARCHES), replace=False)
        for start in range(0, len(some), MOST_SEARCHES):
            ids = self.view.store.graph.ids_of(some[start : start + MOST_SEARCHES])
            self._search([Question(10, id=id) for id in ids])

    def close(self) -> None:
        """Finishes all accepted requests and releases the folder."""
        for batcher in (self.texts, self.searches, self.writes):
            batcher.close()
        if self._indexing is not None:
            self._indexing.join()
        if self._updater is not None:
            self._updater.close()
        self._held.close()

    def _read(self, readings: list[Reading]) -> Sequence[Array | Exception]:
        with self._modeling:
            return list(
                self.model.encode(
                    [reading.text for reading in readings],
                    [reading.neighbors for reading in readings],
                )
            )

    def _search(self, questions: list[Question]) -> Sequence[bytes | Exception]:
        """Responses as JSON; questions of the same kind are one search."""
        return _Search(self.view, questions).answers()

    def _write(self, writes: list[Write]) -> Sequence[Answer | Exception]:
        assert self._updater is not None, "a server that takes no changes refuses them before"
        try:
            with self._modeling:
                answers = self._write_together(writes)
        except (ArtifactError, OSError) as error:
            # Such as a full disk; nothing was changed.
            return [error] * len(writes)
        except GraphFormersError as error:
            # One by one, so that only the wrong one fails.
            if len(writes) > 1:
                return [answer for write in writes for answer in self._write([write])]
            return [error]
        with self._swapping:
            store = self._updater.store
            if store is not self.view.store:
                self.view = View(store, self.view.index.on(store))
        return answers

    def _write_together(self, writes: list[Write]) -> list[Answer | Exception]:
        """Makes changes in their order, as one transaction; wrong ones are refused alone."""
        assert self._updater is not None
        transaction = self._updater.transaction()
        transaction.graph.look_up(link_pairs(transaction.graph, writes))
        answers: list[Answer | Exception] = []
        for write in writes:
            try:
                answers.append(apply_write(write, transaction))
            except (NotFoundError, RefusedError) as error:
                answers.append(error)
        transaction.commit()
        return answers

    def _compact_if_due(self) -> None:
        """Writes base and edits as a new base if it is due. Reads continue, writes wait.

        Until the new base has its own index, the old one is used, and vectors that it does not know
        are searched exactly.
        """
        updater = self._updater
        if (
            updater is None
            or (self._indexing is not None and self._indexing.is_alive())
            or updater.store.commit.bytes < self._patient
            or not updater.is_compaction_due()
        ):
            return
        before = updater.store
        logger.info(f"{self.settings.vectors}: compacting {before.commit.bytes:,} bytes of edits …")
        try:
            updater.compact()
        # Whatever the error is, waiting loses nothing.
        except Exception as error:
            logger.warning(f"{self.settings.vectors}: not compacted: {error}")
            self._patient = 2 * before.commit.bytes
            return
        with self._swapping:
            self.view = View(updater.store, self.view.index.carried_over(before, updater.store))
        if not self.view.index.is_exact:
            self._indexing = threading.Thread(target=self._index_anew, name="indexing", daemon=True)
            self._indexing.start()

    def _index_anew(self) -> None:
        try:
            index = open_index(self.view.store)
        # The old index serves for longer.
        except (GraphFormersError, OSError) as error:
            logger.warning(f"{self.settings.vectors}: no new index: {error}")
            return
        with self._swapping:
            state = self.view.store
            self.view = View(state, index.on(state))

    @property
    def name(self) -> str:
        """The name of the model in responses."""
        return f"graphformers-{self.view.store.key.model[:12]}"

    def num_tokens(self, text: str) -> int:
        """Number of tokens of a text that the model reads."""
        return min(len(self.model.tokenizer.encode([text])[0]), self.model.config.max_tokens)

    def info(self) -> dict[str, object]:
        """Numbers that describe the store and the server."""
        view = self.view
        store, facts = view.store, view.index.facts
        return {
            "nodes": len(store),
            "size": store.size,
            "similarity": store.settings["similarity"],
            "precision": store.precision,
            "method": store.settings["method"],
            "model": store.key.model[:12],
            "num_neighbors": store.settings["num_neighbors"],
            "max_tokens": self.model.config.max_tokens,
            "index": "exact" if view.index.is_exact else "usearch",
            "recall_at_10": None if facts is None else facts.recall,
            "edit_bytes": store.commit.bytes,
            "writable": self.is_writable,
        }


def open_index(store: VectorStore) -> Index:
    """The index of a store, searched in worker processes unless every search is exact."""
    index = Index.open(store)
    # An index that was just built is in memory, where processes cannot map it.
    if not index.is_exact and index.file is None:
        index = load_index(store) or index
    if index.file is None or index.graph is None:
        return index
    return index.through(Walker(index.file, index.graph, SEARCHERS))


@dataclass
class _Sought:
    """A question on one snapshot, and what was found for it."""

    question: Question
    vector: Array | None
    node: int = -1
    # The node and its neighbours, where these are left out.
    linked: Array | None = None
    nodes: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    scores: Array = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    error: Exception | None = None


class _Search:
    """Some questions, answered on one snapshot."""

    def __init__(self, view: View, questions: list[Question]) -> None:
        self.view = view
        self.sought = [_Sought(question, question.vector) for question in questions]
        graph = view.store.graph
        by_id = [one for one in self.sought if one.question.id is not None]
        found = graph.find_nodes([str(one.question.id) for one in by_id])
        vectors = iter(view.store.raw(found[found >= 0]).floats())
        for one, node in zip(by_id, found.tolist(), strict=True):
            one.node = node
            if node < 0:
                one.error = NotFoundError(f"no node with the id {one.question.id!r}")
                continue
            one.vector = next(vectors)
            if one.question.is_unlinked:
                one.linked = np.append(graph.neighbors_of(node), node)
        columns = graph.column_names if any(question.columns for question in questions) else []
        for one in self.sought:
            try:
                check_columns(one.question.columns, columns)
            except GraphFormersError as error:
                one.error = RefusedError(str(error))

    def answers(self) -> list[bytes | Exception]:
        """A response or an error for each question."""
        for (wanted, filters, mask, are_nodes), group in self._groups().items():
            try:
                allowed = self._allowed(filters, mask)
                queries = np.stack([one.vector for one in group])  # type: ignore[misc]
                found = self.view.index.search(
                    queries, wanted, allowed=allowed, are_nodes=are_nodes
                )
            # These questions failed; the others are answered.
            except Exception as error:
                is_refused = isinstance(error, GraphFormersError)
                for one in group:
                    one.error = RefusedError(str(error)) if is_refused else error
                continue
            for row, one in enumerate(group):
                nodes, scores = found.nodes_QK[row], found.scores_QK[row]
                kept = (nodes >= 0) & (nodes != one.node)
                if one.linked is not None:
                    kept &= ~np.isin(nodes, one.linked)
                k = one.question.k
                one.nodes, one.scores = nodes[kept][:k], scores[kept][:k]
        return self._responses()

    def _groups(self) -> dict[tuple[int, tuple[str, ...], int, bool], list[_Sought]]:
        """Questions that form one search: same number of hits, filters, and node to unlink."""
        groups: dict[tuple[int, tuple[str, ...], int, bool], list[_Sought]] = {}
        for one in self.sought:
            if one.error is not None:
                continue
            is_node, k = one.node >= 0, one.question.k
            wanted, mask = k + is_node, -1
            if one.linked is not None:
                if len(one.linked) > MANY_LINKS:
                    wanted, mask = k, one.node
                else:
                    # Rounded up, so that more questions go together.
                    wanted = 1 << (k + len(one.linked) - 1).bit_length()
            groups.setdefault((wanted, one.question.filters, mask, is_node), []).append(one)
        return groups

    def _allowed(self, filters: tuple[str, ...], mask: int) -> Array | None:
        graph = self.view.store.graph
        allowed = allowed_nodes(graph, filters)
        if mask >= 0:
            allowed = np.ones(graph.num_rows, dtype=bool) if allowed is None else allowed
            allowed[np.append(graph.neighbors_of(mask), mask)] = False
        return allowed

    def _responses(self) -> list[bytes | Exception]:
        """Fetches ids and texts for all questions together."""
        graph = self.view.store.graph
        everyone = np.concatenate([one.nodes for one in self.sought])
        shown = iter(zip(graph.ids_of(everyone), graph.texts_of(everyone), strict=True))
        answers: list[bytes | Exception] = []
        for one in self.sought:
            shown_of = [next(shown) for _ in one.nodes]
            if one.error is not None:
                answers.append(one.error)
                continue
            try:
                content = {"matches": self._matches(one, shown_of)}
                answers.append(msgspec.json.encode(content, enc_hook=str))
            # This question failed; the others are answered.
            except Exception as error:
                answers.append(error)
        return answers

    def _matches(self, one: _Sought, shown: list[tuple[str, str]]) -> list[dict[str, object]]:
        columns = self.view.store.graph.values_of(one.nodes, one.question.columns)
        matches: list[dict[str, object]] = []
        for (id, text), score, node, values in zip(
            shown, one.scores.tolist(), one.nodes.tolist(), columns, strict=True
        ):
            match: dict[str, object] = {"id": id, "score": score, "text": text}
            if one.question.columns:
                match["columns"] = values
            if one.question.num_neighbors:
                match |= neighbors_of(self.view, node, one.question.num_neighbors)
            matches.append(match)
        return matches


def neighbors_of(view: View, node: int, count: int, *, start: int = 0) -> dict[str, object]:
    """Some neighbours of a node with their texts, and their total number."""
    graph = view.store.graph
    row = graph.neighbors_of(node)
    some = row[start : start + count]
    told = zip(graph.ids_of(some), graph.texts_of(some), strict=True)
    return {"num_neighbors": len(row), "neighbors": [{"id": id, "text": text} for id, text in told]}
