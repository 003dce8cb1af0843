"""Searcher: nearest nodes of texts, nodes and vectors, and likely links."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from graphformers.arrays import Array
from graphformers.embedding.update import check_model, load_model
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import GraphFormersError
from graphformers.model.encoder import GraphFormers
from graphformers.retrieval.filters import check_columns
from graphformers.retrieval.index import StoreIndex
from graphformers.retrieval.queries import Answer, Query, answer_queries
from graphformers.settings import has_type
from graphformers.table import Result, Table, shorten

MOST_HITS = 10_000


@dataclass(frozen=True)
class Match:
    """A node found by a search; higher scores are nearer.

    Attributes:
        id: The id of the node.
        score: Its score; `Matches.measure` says what it is.
        text: The text of the node.
        columns: The node's values of the columns that were asked for.

    Examples:
        >>> match = search("papers.vectors", "graph neural networks", columns=["year"])[0]
        >>> match.columns["year"] >= 1990
        True
    """

    id: str
    score: float
    text: str
    columns: dict[str, object] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, object]:
        """The match, for JSON.

        Returns:
            Id, score and text, and the columns if some were asked for.
        """
        found = {"id": self.id, "score": self.score, "text": self.text}
        return found | {"columns": self.columns} if self.columns else found


@dataclass(frozen=True)
class Truncation:
    """A query's text that is longer than the model reads.

    Attributes:
        tokens: The tokens of the text, special tokens included.
        max_tokens: The tokens that the model reads.
    """

    tokens: int
    max_tokens: int

    def __str__(self) -> str:
        return (
            f"the text has {self.tokens:,} tokens, of which the model reads the first "
            f"{self.max_tokens:,} (max_tokens)"
        )

    @staticmethod
    def of(tokens: int, max_tokens: int) -> "Truncation | None":
        """The truncation of a text with so many tokens; None if the model reads all of it."""
        return Truncation(tokens, max_tokens) if tokens > max_tokens else None

    def to_dict(self) -> dict[str, int]:
        """Both numbers, for JSON."""
        return {"tokens": self.tokens, "max_tokens": self.max_tokens}


class Matches(list[Match], Result):
    """The matches of a search, best first.

    Args:
        matches: The matches.
        measure: What the scores are: "cosine", "inner product", or for likely links the sum of one
            of them and weighted Adamic–Adar.
        truncated: Whether the query was a text that the model reads in part only.
    """

    def __init__(
        self,
        matches: Iterable[Match] = (),
        measure: str = "score",
        truncated: Truncation | None = None,
    ) -> None:
        super().__init__(matches)
        self.measure, self.truncated = measure, truncated

    def to_dict(self) -> dict[str, object]:
        """The matches with what their scores are, for JSON."""
        found: dict[str, object] = {
            "matches": [match.to_dict() for match in self],
            "measure": self.measure,
        }
        return found | ({"truncated": self.truncated.to_dict()} if self.truncated else {})

    def as_table(self) -> Table:
        """A row for each match: score, id, columns, text."""
        notes = [str(self.truncated)] if self.truncated else []
        if not self:
            return Table((), [("nothing found",)], notes=notes)
        rows = []
        for match in self:
            own = [
                "" if value is None else shorten(str(value), 40) for value in match.columns.values()
            ]
            rows.append((f"{match.score:.3f}", shorten(match.id, 40), *own, shorten(match.text)))
        # A sum is too long for the head of a column.
        is_sum = "+" in self.measure
        score = "score" if is_sum else self.measure
        notes = [f"score: {self.measure}"] * is_sum + notes
        return Table((score, "id", *self[0].columns, "text"), rows, notes=notes)


class Searcher:
    """Searches a store by text, by node or by vector.

    The model is loaded with the first search for a text; searches for a node do not need it.

    Args:
        store: The store of vectors, or its folder.
        model: The model that made the vectors; by default it is loaded from where it was then.
        index: The kind of index: "exact" compares every vector, "usearch" finds most of the
            nearest in an HNSW graph; by default exact for small stores.
        device: The device of the model.
        columns: Node columns that matches come with.

    Raises:
        ArtifactError: Another model made the vectors.
        GraphFormersError: There is no such column or index.

    Examples:
        >>> searcher = Searcher("papers.vectors", columns=["year"])
        >>> len(searcher.text("graph neural networks", k=5, where=["year>=1995"]))
        5
        >>> len(searcher.links("p7", k=3))
        3
    """

    def __init__(
        self,
        store: VectorStore | str | Path,
        model: GraphFormers | None = None,
        *,
        index: str | None = None,
        device: str | None = None,
        columns: Sequence[str] = (),
    ) -> None:
        self.store = store if isinstance(store, VectorStore) else VectorStore.load(store)
        self.columns = [columns] if isinstance(columns, str) else list(columns)
        check_columns(self.columns, self.store.graph.column_names if self.columns else [])
        self.index = StoreIndex.open(self.store, index)
        self._model, self._device, self._loading = model, device, threading.Lock()
        if model is not None:
            check_model(self.store, model)

    @property
    def model(self) -> GraphFormers:
        """The model that made the vectors."""
        with self._loading:
            if self._model is None:
                self._model = load_model(self.store, self._device)
                check_model(self.store, self._model)
            return self._model

    def text(
        self, text: str, k: int = 10, *, neighbors: Sequence[str] = (), where: Sequence[str] = ()
    ) -> Matches:
        """The nodes nearest to a text.

        Args:
            text: The text.
            k: The number of matches.
            neighbors: Ids of nodes with which the text is encoded as neighbours.
            where: Filters such as "year>=1995"; all must hold.

        Returns:
            The matches, best first.

        Raises:
            GraphFormersError: An id, a column or a filter is unknown.
        """
        query = Query(k, text=text, neighbors=_listed(neighbors), where=_listed(where))
        return self.answer([query])[0]

    def encode(self, text: str, neighbors: Sequence[str] = ()) -> Array:
        """The vector of a text.

        Args:
            text: The text.
            neighbors: Ids of nodes with which the text is encoded as neighbours.

        Returns:
            (D,) float32.

        Raises:
            GraphFormersError: An id is unknown.
        """
        vector: Array = self._encoded([Query(text=text, neighbors=_listed(neighbors))])[0]
        return vector

    def similar(self, id: str, k: int = 10, *, where: Sequence[str] = ()) -> Matches:
        """The nodes nearest to a node, without the node itself.

        Args:
            id: The id of the node.
            k: The number of matches.
            where: Filters such as "year>=1995"; all must hold.

        Returns:
            The matches, best first.

        Raises:
            GraphFormersError: An id, a column or a filter is unknown.
        """
        return self.answer([Query(k, id=id, where=_listed(where))])[0]

    def links(self, id: str, k: int = 10, *, where: Sequence[str] = ()) -> Matches:
        """The likeliest new links of a node, among all nodes that are not its neighbours.

        Scores are those of the model, plus Adamic–Adar, a measure of common neighbours, with the
        weight that training chose. A weight of zero gives the nearest nodes.

        Args:
            id: The id of the node.
            k: The number of matches.
            where: Filters such as "year>=1995"; all must hold.

        Returns:
            The matches, best first.

        Raises:
            GraphFormersError: An id, a column or a filter is unknown.
        """
        return self.answer([Query(k, id=id, links=True, where=_listed(where))])[0]

    def vector(self, vector: Array, k: int = 10, *, where: Sequence[str] = ()) -> Matches:
        """The nodes nearest to a vector.

        Args:
            vector: (D,) as the model of the store makes them.
            k: The number of matches.
            where: Filters such as "year>=1995"; all must hold.

        Returns:
            The matches, best first.

        Raises:
            GraphFormersError: The vector has another size, or a column or a filter is unknown.
        """
        return self.answer([Query(k, vector=np.asarray(vector), where=_listed(where))])[0]

    def answer(self, queries: Sequence[Query]) -> list[Matches]:
        """Answers many queries together, which is faster than one after the other.

        Args:
            queries: The queries.

        Returns:
            The matches of each, best first.

        Raises:
            GraphFormersError: A query has not one of text, id and vector, or an id, a column or a
                filter is unknown.

        Examples:
            >>> queries = [Query(k=3, text=text) for text in ("graph", "vector")]
            >>> [len(found) for found in Searcher("papers.vectors").answer(queries)]
            [3, 3]
        """
        for query in queries:
            check_query(query)
        texts = [query for query in queries if query.text is not None]
        vectors, tokens = iter(self._encoded(texts)), iter(self._tokens(texts))
        ready = [
            query if query.text is None else replace(query, vector=next(vectors))
            for query in queries
        ]
        answers = answer_queries(self.store, self.index, ready, [self.columns] * len(ready))
        found = []
        for query, answer in zip(queries, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            found.append(matches_of(answer, None if query.text is None else next(tokens)))
        return found

    def _encoded(self, queries: Sequence[Query]) -> Array:
        """(len(queries), D) vectors of texts with their neighbours."""
        if not queries:
            return np.zeros((0, self.store.size), dtype=np.float32)
        lists = [self.store.graph.texts_of(self.store.nodes(query.neighbors)) for query in queries]
        vectors: Array = self.model.encode([str(query.text) for query in queries], lists)
        return vectors

    def _tokens(self, queries: Sequence[Query]) -> list[Truncation | None]:
        """Whether the texts of queries are truncated."""
        if not queries:
            return []
        counts = self.model.tokenizer.count([str(query.text) for query in queries])
        return [Truncation.of(count, self.model.config.max_tokens) for count in counts.tolist()]


def matches_of(answer: Answer, truncated: Truncation | None) -> Matches:
    """The matches of an answer."""
    rows = zip(answer.ids, answer.scores.tolist(), answer.texts, answer.columns, strict=True)
    return Matches((Match(*row) for row in rows), answer.measure, truncated)


def check_query(query: Query) -> None:
    """Raises an error for a query that no search can answer."""
    check_k(query.k)
    given = [name for name in ("text", "id", "vector") if getattr(query, name) is not None]
    if len(given) != 1:
        raise GraphFormersError(
            f"a query with {' and '.join(given) or 'nothing'} given, expected one of text, id and "
            f"vector"
        )
    if query.links and query.id is None:
        raise GraphFormersError("links given without the id of a node")


def check_k(k: int) -> None:
    """Raises an error unless `k` is a valid number of matches."""
    if not has_type(k, "int") or not 1 <= k <= MOST_HITS:
        raise GraphFormersError(f"k={k!r} given, expected 1 to {MOST_HITS:,}")


def _listed(words: Sequence[str]) -> tuple[str, ...]:
    """Words as a tuple: a single word is not a list of its letters."""
    return (words,) if isinstance(words, str) else tuple(words)


def search(
    store: VectorStore | str | Path,
    query: str | Array,
    k: int = 10,
    *,
    neighbors: Sequence[str] = (),
    where: Sequence[str] = (),
    columns: Sequence[str] = (),
    model: GraphFormers | None = None,
) -> Matches:
    """The nodes of a store nearest to a text or a vector.

    For several searches, make a `Searcher`, which keeps index and model.

    Args:
        store: The store of vectors, or its folder.
        query: A text or a vector.
        k: The number of matches.
        neighbors: Ids of nodes with which the text is encoded as neighbours.
        where: Filters such as "year>=1995"; all must hold.
        columns: Node columns that matches come with.
        model: The model that made the vectors; by default it is loaded from where it was then.

    Returns:
        The matches, best first.

    Raises:
        GraphFormersError: An id, a column or a filter is unknown.

    Examples:
        >>> print(*(match.id for match in search("papers.vectors", "graph text node", k=3)))
        p... p... p...
    """
    searcher = Searcher(store, model, columns=columns)
    if isinstance(query, str):
        return searcher.text(query, k, neighbors=neighbors, where=where)
    if np.asarray(query).dtype.kind not in "fiu":
        raise GraphFormersError(
            "expected one text or one vector; for several, give a Searcher several queries: "
            "Searcher(store).answer([Query(text=text), ...])"
        )
    return searcher.vector(query, k, where=where)
