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
from dataclasses import dataclass

import msgspec
import numpy as np

from graphformers.arrays import Array
from graphformers.embedding.compaction import sweep
from graphformers.embedding.update import Updater, check_model, load_model
from graphformers.embedding.vectors import VectorStore, locked
from graphformers.errors import ArtifactError, GraphFormersError, UnknownIdError
from graphformers.model.encoder import GraphFormers
from graphformers.retrieval.index import StoreIndex
from graphformers.retrieval.queries import Answer as Found
from graphformers.retrieval.queries import Query, answer_queries
from graphformers.retrieval.searcher import Truncation
from graphformers.retrieval.usearch_index import UsearchIndex
from graphformers.serve.batching import Batcher
from graphformers.serve.index_workers import IndexWorkers
from graphformers.serve.settings import ServeSettings
from graphformers.serve.writing import (
    Answer,
    NotFoundError,
    RefusedError,
    Write,
    apply_write,
    link_pairs,
)

logger = logging.getLogger(__name__)

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
    index: StoreIndex

    def node(self, id: str) -> int:
        """The row number of an id."""
        node = int(self.store.graph.find_nodes([id])[0])
        if node < 0:
            raise NotFoundError(f"no node with the id {id!r}")
        return node


@dataclass(frozen=True)
class Question:
    """A search, and what its answer shows of each match."""

    query: Query
    # Neighbours of each match.
    num_neighbors: int = 0
    # Columns of each match.
    columns: tuple[str, ...] = ()
    # Whether the query is a text that the model reads in part only.
    truncated: Truncation | None = None


@dataclass(frozen=True)
class Reading:
    """A text to encode, with the texts of neighbours."""

    text: str
    neighbors: tuple[str, ...] = ()


@dataclass(frozen=True)
class EncodedText:
    """The vector of a text."""

    vector: Array
    # Tokens of the text that were read, without special tokens.
    num_read: int
    # Whether the text has more of them.
    truncated: Truncation | None


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
            self.view = View(store, open_index(store, settings.index))
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
        self.texts: Batcher[Reading, EncodedText] = Batcher(
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
            self._search([Question(Query(10, id=id)) for id in ids])

    def close(self) -> None:
        """Finishes all accepted requests and releases the folder."""
        for batcher in (self.texts, self.searches, self.writes):
            batcher.close()
        if self._indexing is not None:
            self._indexing.join()
        if self._updater is not None:
            self._updater.close()
        self._held.close()

    def _read(self, readings: list[Reading]) -> Sequence[EncodedText | Exception]:
        texts = [reading.text for reading in readings]
        with self._modeling:
            vectors = self.model.encode(texts, [reading.neighbors for reading in readings])
        tokenizer, most = self.model.tokenizer, self.model.config.max_tokens
        special = len(tokenizer.prefix) + len(tokenizer.suffix)
        return [
            EncodedText(vector, min(count, most) - special, Truncation.of(count, most))
            for vector, count in zip(vectors, tokenizer.count(texts).tolist(), strict=True)
        ]

    def _search(self, questions: list[Question]) -> Sequence[bytes | Exception]:
        """Responses as JSON; questions of the same kind are one search."""
        view = self.view
        answers = answer_queries(
            view.store,
            view.index,
            [question.query for question in questions],
            [question.columns for question in questions],
        )
        return [
            _response(view, question, answer)
            for question, answer in zip(questions, answers, strict=True)
        ]

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
            index = open_index(self.view.store, self.settings.index)
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

    def info(self) -> dict[str, object]:
        """Numbers that describe the store and the server."""
        view = self.view
        store, index = view.store, view.index
        return {
            "nodes": len(store),
            "size": store.size,
            "similarity": store.settings["similarity"],
            "precision": store.precision,
            "method": store.settings["method"],
            "model": store.key.model[:12],
            "num_neighbors": store.settings["num_neighbors"],
            "max_tokens": self.model.config.max_tokens,
            "index": index.base.name,
            "recall_at_10": None if index.is_exact else index.base.recall,
            "edit_bytes": store.commit.bytes,
            "writable": self.is_writable,
        }


def open_index(store: VectorStore, name: str | None = None) -> StoreIndex:
    """The index of a store, of a kind or by default; usearch searches in worker processes."""
    index = StoreIndex.open(store, name)
    base = index.base
    if isinstance(base, UsearchIndex) and base.file is None:
        # It was just built and is in memory, where processes cannot map it.
        base = UsearchIndex.load(store) or base
    if isinstance(base, UsearchIndex) and base.file is not None:
        base = base.through(IndexWorkers(base.file, base.graph, SEARCHERS))
    return StoreIndex(store, base)


def _response(view: View, question: Question, answer: Found | Exception) -> bytes | Exception:
    """The answer to a question as JSON; or what is wrong with it, as the client is told."""
    if isinstance(answer, UnknownIdError):
        return NotFoundError(str(answer))
    if isinstance(answer, GraphFormersError):
        return RefusedError(str(answer))
    if isinstance(answer, Exception):
        return answer
    try:
        content: dict[str, object] = {
            "matches": _matches(view, question, answer),
            "measure": answer.measure,
        }
        if question.truncated is not None:
            content["truncated"] = question.truncated.to_dict()
        return msgspec.json.encode(content, enc_hook=str)
    # This question failed; the others are answered.
    except Exception as error:
        return error


def _matches(view: View, question: Question, answer: Found) -> list[dict[str, object]]:
    matches: list[dict[str, object]] = []
    for id, text, score, node, values in zip(
        answer.ids,
        answer.texts,
        answer.scores.tolist(),
        answer.nodes.tolist(),
        answer.columns,
        strict=True,
    ):
        match: dict[str, object] = {"id": id, "score": score, "text": text}
        if question.columns:
            match["columns"] = values
        if question.num_neighbors:
            match |= neighbors_of(view, node, question.num_neighbors)
        matches.append(match)
    return matches


def neighbors_of(view: View, node: int, count: int, *, start: int = 0) -> dict[str, object]:
    """Some neighbours of a node with their texts, and their total number."""
    graph = view.store.graph
    row = graph.neighbors_of(node)
    some = row[start : start + count]
    told = zip(graph.ids_of(some), graph.texts_of(some), strict=True)
    return {"num_neighbors": len(row), "neighbors": [{"id": id, "text": text} for id, text in told]}
