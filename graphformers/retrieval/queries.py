"""Queries, and their answers from one state of a store.

Many queries are answered together: those of the same kind are one search of the index. The command
line, Python and the server all search with `answer_queries`, and show what it finds in their own
ways.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from graphformers.arrays import Array
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import GraphFormersError, UnknownIdError
from graphformers.retrieval.filters import allowed_nodes, check_columns
from graphformers.retrieval.hits import Hits
from graphformers.retrieval.index import StoreIndex
from graphformers.retrieval.links import link_weight, with_common_neighbors

# From so many neighbours on, a mask hides them; below, more hits are requested.
MANY_LINKS = 256


@dataclass(frozen=True)
class Query:
    """A search for the nodes nearest to a text, a node or a vector.

    Give one of `text`, `id` and `vector`.

    Attributes:
        k: The number of matches.
        text: A text.
        id: The id of a node; the node itself is left out.
        vector: (D,) a vector as the model of the store makes them.
        links: Whether likely new links of the node are wanted instead of the nearest nodes.
        neighbors: Ids of nodes with which the text is encoded as neighbours.
        where: Filters such as "year>=1995"; all must hold.

    Examples:
        >>> searcher = Searcher("papers.vectors")
        >>> [len(found) for found in searcher.answer([Query(id="p7"), Query(text="graph", k=3)])]
        [10, 3]
    """

    k: int = 10
    text: str | None = None
    id: str | None = None
    vector: Array | None = None
    links: bool = False
    neighbors: tuple[str, ...] = ()
    where: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The nodes found for a query, best first.

    Attributes:
        nodes: Their row numbers.
        scores: Their scores.
        ids: Their ids.
        texts: Their texts.
        columns: Their values of the columns that were asked for.
        measure: What the scores are, such as "cosine".
    """

    nodes: Array
    scores: Array
    ids: list[str]
    texts: list[str]
    columns: list[dict[str, object]]
    measure: str


@dataclass
class _Search:
    """A query on one state of a store, and what was found for it."""

    query: Query
    vector: Array | None
    node: int = -1
    # The node and its neighbours, where these are left out.
    linked: Array | None = None
    nodes: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    scores: Array = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    error: Exception | None = None


def answer_queries(
    store: VectorStore,
    index: StoreIndex,
    queries: Sequence[Query],
    columns: Sequence[Sequence[str]] | None = None,
) -> list[Answer | Exception]:
    """Answers queries from one state of a store.

    Args:
        store: The state.
        index: Its index.
        queries: The queries; those by text have the vector of the text.
        columns: Node columns that the matches of each query come with; by default none.

    Returns:
        For each query an answer, or the error that it alone caused.
    """
    searches = [_Search(query, query.vector) for query in queries]
    for search in searches:
        if search.vector is not None:
            search.error = _vector_error(search.vector, store.size)
    _find_nodes(store, searches)
    shown = [()] * len(searches) if columns is None else columns
    known = store.graph.column_names if any(shown) else []
    for search, names in zip(searches, shown, strict=True):
        try:
            check_columns(names, known)
        except GraphFormersError as error:
            search.error = error
    weight = link_weight(store)
    for (wanted, where, mask, are_nodes), group in _groups(searches).items():
        try:
            allowed = _allowed(store, where, mask)
            vectors = np.stack([search.vector for search in group])  # type: ignore[misc]
            hits = index.search(vectors, wanted, allowed=allowed, are_nodes=are_nodes)
        # These queries failed; the others are answered.
        except Exception as error:
            for search in group:
                search.error = error
            continue
        for row, search in enumerate(group):
            _take(search, hits, row)
            if weight and search.linked is not None:
                near = Hits(search.nodes[None], search.scores[None])
                try:
                    near = with_common_neighbors(
                        store, search.node, near, allowed, weight, search.query.k
                    )
                except Exception as error:
                    search.error = error
                search.nodes, search.scores = near.nodes_QK[0], near.scores_QK[0]
    return _answers(store, searches, shown, weight)


def _vector_error(vector: Array, size: int) -> GraphFormersError | None:
    """What is wrong with the vector of a query; None if nothing is."""
    if vector.shape != (size,):
        given = "×".join(map(str, vector.shape)) or "1"
        return GraphFormersError(f"a vector of {given} numbers given, expected {size}")
    if not np.isfinite(vector).all():
        return GraphFormersError("the query holds numbers that are not finite (NaN or inf)")
    return None


def _find_nodes(store: VectorStore, searches: list[_Search]) -> None:
    """Finds the nodes of searches by id, and their vectors."""
    by_id = [search for search in searches if search.query.id is not None]
    found = store.graph.find_nodes([str(search.query.id) for search in by_id])
    vectors = iter(store.raw(found[found >= 0]).floats())
    for search, node in zip(by_id, found.tolist(), strict=True):
        search.node = node
        if node < 0:
            search.error = UnknownIdError(f"no node with the id {search.query.id!r}")
            continue
        search.vector = next(vectors)
        if search.query.links:
            search.linked = np.append(store.graph.neighbors_of(node), node)


def _groups(
    searches: list[_Search],
) -> dict[tuple[int, tuple[str, ...], int, bool], list[_Search]]:
    """Searches that are one of the index: same number of hits, filters, and node to unlink."""
    groups: dict[tuple[int, tuple[str, ...], int, bool], list[_Search]] = {}
    for search in searches:
        if search.error is not None:
            continue
        is_node, k = search.node >= 0, search.query.k
        wanted, mask = k + is_node, -1
        if search.linked is not None:
            if len(search.linked) > MANY_LINKS:
                wanted, mask = k, search.node
            else:
                # Rounded up, so that more searches go together.
                wanted = 1 << (k + len(search.linked) - 1).bit_length()
        groups.setdefault((wanted, search.query.where, mask, is_node), []).append(search)
    return groups


def _allowed(store: VectorStore, where: tuple[str, ...], mask: int) -> Array | None:
    graph = store.graph
    allowed = allowed_nodes(graph, where)
    if mask >= 0:
        allowed = np.ones(graph.num_rows, dtype=bool) if allowed is None else allowed
        allowed[np.append(graph.neighbors_of(mask), mask)] = False
    return allowed


def _take(search: _Search, hits: Hits, row: int) -> None:
    """Takes the hits of a search, without the nodes that it leaves out."""
    nodes, scores = hits.nodes_QK[row], hits.scores_QK[row]
    kept = (nodes >= 0) & (nodes != search.node)
    if search.linked is not None:
        kept &= ~np.isin(nodes, search.linked)
    k = search.query.k
    search.nodes, search.scores = nodes[kept][:k], scores[kept][:k]


def _answers(
    store: VectorStore,
    searches: list[_Search],
    shown: Sequence[Sequence[str]],
    weight: float,
) -> list[Answer | Exception]:
    """Fetches ids and texts for all searches together."""
    graph = store.graph
    everyone = np.concatenate([np.zeros(0, dtype=np.int64), *(one.nodes for one in searches)])
    ids, texts = graph.ids_of(everyone), graph.texts_of(everyone)
    measure = "cosine" if store.is_cosine else "inner product"
    of_links = f"{measure} + {weight:g} × Adamic–Adar" if weight else measure
    answers: list[Answer | Exception] = []
    start = 0
    for search, names in zip(searches, shown, strict=True):
        part = slice(start, start + len(search.nodes))
        start = part.stop
        if search.error is not None:
            answers.append(search.error)
            continue
        try:
            values = graph.values_of(search.nodes, names)
        # This query failed; the others are answered.
        except Exception as error:
            answers.append(error)
            continue
        own = measure if search.linked is None else of_links
        answers.append(Answer(search.nodes, search.scores, ids[part], texts[part], values, own))
    return answers
