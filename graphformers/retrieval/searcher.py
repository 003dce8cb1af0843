"""Searcher: nearest nodes of a text, a node or a vector."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from graphformers.arrays import Array
from graphformers.embedding.update import check_model, load_model
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import GraphFormersError
from graphformers.model.encoder import GraphFormers
from graphformers.retrieval.filters import allowed_nodes, check_columns
from graphformers.retrieval.index import Index
from graphformers.settings import has_type
from graphformers.table import Result, Table, shorten

MOST_HITS = 10_000


@dataclass(frozen=True)
class Match:
    """A node found by a search; higher scores are nearer.

    Attributes:
        id: The id of the node.
        score: Inner product or cosine, as the model compares vectors.
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


class Matches(list[Match], Result):
    """The matches of a search, best first."""

    def to_dict(self) -> list[dict[str, object]]:
        """The matches, for JSON."""
        return [match.to_dict() for match in self]

    def as_table(self) -> Table:
        """A row for each match: score, id, columns, text."""
        if not self:
            return Table((), [("nothing found",)])
        rows = []
        for match in self:
            own = [
                "" if value is None else shorten(str(value), 40) for value in match.columns.values()
            ]
            rows.append((f"{match.score:.3f}", shorten(match.id, 40), *own, shorten(match.text)))
        return Table(("score", "id", *self[0].columns, "text"), rows)


class Searcher:
    """Searches a store by text, by node or by vector.

    The model is loaded with the first search for a text; searches for a node do not need it.

    Args:
        store: The store of vectors, or its folder.
        model: The model that made the vectors; by default it is loaded from where it was then.
        exact: Whether to compare every vector instead of using the index; by default for small
            stores.
        device: The device of the model.
        columns: Node columns that matches come with.

    Raises:
        ArtifactError: Another model made the vectors.
        GraphFormersError: There is no such column.

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
        exact: bool | None = None,
        device: str | None = None,
        columns: Sequence[str] = (),
    ) -> None:
        self.store = store if isinstance(store, VectorStore) else VectorStore.load(store)
        self.columns = [columns] if isinstance(columns, str) else list(columns)
        check_columns(self.columns, self.store.graph.column_names if self.columns else [])
        self.index = Index.open(self.store, exact=exact)
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
        return self.vector(self.encode(text, neighbors), k, where=where)

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
        around = self.store.graph.texts_of(self._nodes(neighbors)) if neighbors else []
        vector: Array = self.model.encode([text], [around])[0]
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
        node = int(self._nodes([id])[0])
        return self._near(node, k, np.array([node]), where)

    def links(self, id: str, k: int = 10, *, where: Sequence[str] = ()) -> Matches:
        """The likeliest new links of a node: the nearest nodes that are not its neighbours.

        Args:
            id: The id of the node.
            k: The number of matches.
            where: Filters such as "year>=1995"; all must hold.

        Returns:
            The matches, best first.

        Raises:
            GraphFormersError: An id, a column or a filter is unknown.
        """
        node = int(self._nodes([id])[0])
        return self._near(node, k, np.append(self.store.graph.neighbors_of(node), node), where)

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
        check_k(k)
        hits = self.index.search(
            np.asarray(vector)[None], k, allowed=allowed_nodes(self.store.graph, where)
        )
        return self._matches(hits.nodes_QK[0], hits.scores_QK[0])

    def _near(self, node: int, k: int, left_out: Array, where: Sequence[str]) -> Matches:
        check_k(k)
        allowed = allowed_nodes(self.store.graph, where)
        hits = self.index.search(
            self.store.raw(np.array([node])).floats(),
            k + len(left_out),
            allowed=allowed,
            are_nodes=True,
        )
        kept = ~np.isin(hits.nodes_QK[0], left_out)
        return self._matches(hits.nodes_QK[0][kept][:k], hits.scores_QK[0][kept][:k])

    def _nodes(self, ids: Sequence[str]) -> Array:
        # A single id is not a list of its letters.
        return self.store.nodes([ids] if isinstance(ids, str) else ids)

    def _matches(self, nodes: Array, scores: Array) -> Matches:
        is_there = nodes >= 0
        nodes, graph = nodes[is_there], self.store.graph
        values = graph.values_of(nodes, self.columns)
        found = zip(
            graph.ids_of(nodes),
            scores[is_there].tolist(),
            graph.texts_of(nodes),
            values,
            strict=True,
        )
        return Matches(Match(*entry) for entry in found)


def check_k(k: int) -> None:
    """Raises an error unless `k` is a valid number of matches."""
    if not has_type(k, "int") or not 1 <= k <= MOST_HITS:
        raise GraphFormersError(f"k={k!r} given, expected 1 to {MOST_HITS:,}")


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
            "expected one text or one vector; for several texts, keep a Searcher and ask it one by "
            "one"
        )
    return searcher.vector(query, k, where=where)
