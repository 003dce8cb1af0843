"""Search by words, measured by known-item search: finding a node by half of the words of its text.

A query is encoded alone, as by `Searcher.text` and the search page, and compared with the vectors
of the nodes, which are computed with their neighbours. The definition of the queries is fixed, so
that figures of different versions can be compared:

- Words are the runs of letters, digits and underscores (`\\w+`) in a text, as they are written.
- Nodes whose text has at least four words qualify. Those with the smallest hashes are chosen.
- A query consists of half of the words, rounded up, in the order of the text, separated by blanks.
  The words with the smallest hashes of (seed, id, position) are drawn.
- The node is ranked among all nodes, or among a pool: the nodes of all queries, and those with the
  smallest hashes. Other nodes with exactly the same text are not ranked, since a query cannot
  distinguish them.

All draws are hashes of ids, so they do not depend on the order of rows.

Shapes: Q queries, C candidates, N nodes, D vector size.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from graphformers.arrays import Array, mix, ranges
from graphformers.errors import GraphFormersError
from graphformers.evaluation.baselines import WORD, bm25_search, sentence_encoder, tfidf_search
from graphformers.evaluation.metrics import Ranks
from graphformers.evaluation.ranking import encode_nodes, rank_rows
from graphformers.evaluation.scores import Scorer, VectorScores
from graphformers.graph.sampling import NeighborSampler
from graphformers.graph.textgraph import TextGraph, loaded_graph
from graphformers.model.config import ModelConfig
from graphformers.model.encoder import GraphFormers
from graphformers.splits.split import LinkSplit, loaded_split

# the metric of differences and figures, and those of tables
SEARCH_METRIC = "MRR"
SEARCH_METRICS = ("MRR", "P@1", "hits@10")
# default number of queries and of candidates
QUERIES = 2000
CANDIDATES = 50_000
MIN_WORDS = 4
# first parts of the hashes of the three draws
_DRAW_NODES, _DRAW_WORDS, _DRAW_CANDIDATES = 1, 2, 3
# nodes whose texts are read at a time
_BLOCK_NODES = 10_000


@dataclass(frozen=True)
class TextQueries:
    """Queries by text, each with the node that it should find.

    Attributes:
        nodes: (Q,) row numbers of the nodes to find.
        texts: The Q queries.
        candidates: (C,) sorted row numbers of the nodes to search in, which contain `nodes`; None
            for all nodes of the graph.

    Raises:
        GraphFormersError: There is not one node for each query, it is not among the candidates, or
            these are not sorted.

    Examples:
        >>> queries = TextQueries.from_ids(graph, [("networks of texts", "p7")])
        >>> queries.texts
        ('networks of texts',)
    """

    nodes: Array
    texts: Sequence[str]
    candidates: Array | None = None

    def __post_init__(self) -> None:
        if len(self.nodes) != len(self.texts):
            raise GraphFormersError(
                f"{len(self.texts):,} queries and {len(self.nodes):,} nodes given, expected one "
                f"node for each query"
            )
        if self.candidates is not None and np.any(np.diff(self.candidates) <= 0):
            raise GraphFormersError(
                "candidates given in another order, expected sorted row numbers"
            )
        if self.candidates is not None and not np.isin(self.nodes, self.candidates).all():
            raise GraphFormersError("the node of a query is not among the candidates")

    def __len__(self) -> int:
        return len(self.texts)

    def candidates_of(self, graph: TextGraph) -> Array:
        """The nodes to search in.

        Args:
            graph: The graph of the queries.

        Returns:
            Sorted row numbers.
        """
        return np.arange(graph.num_nodes) if self.candidates is None else self.candidates

    @staticmethod
    def from_ids(
        graph: TextGraph | str | Path,
        pairs: Iterable[tuple[str, str]],
        *,
        candidates: int = CANDIDATES,
        seed: int = 42,
    ) -> "TextQueries":
        """Queries of your own.

        Args:
            graph: The graph to search in, or its folder.
            pairs: Each query with the id of the node that it should find.
            candidates: The maximum number of nodes to search in.
            seed: Seed of the draw of candidates, if the graph has more nodes.

        Returns:
            The queries.

        Raises:
            UnknownIdError: A node is missing.

        Examples:
            >>> len(TextQueries.from_ids("papers.graph", [("a query", "p7"), ("another", "p8")]))
            2
        """
        graph, given = loaded_graph(graph), list(pairs)
        nodes = graph.nodes_of([id for _, id in given])
        return TextQueries(
            nodes, tuple(text for text, _ in given), draw_candidates(graph, nodes, candidates, seed)
        )


def known_item_queries(
    graph: TextGraph | str | Path,
    count: int = QUERIES,
    *,
    candidates: int = CANDIDATES,
    seed: int = 42,
) -> TextQueries:
    """Draws nodes of a graph, and for each a query of half of the words of its text.

    Args:
        graph: The graph, or its folder.
        count: The number of queries; fewer if fewer texts have four words.
        candidates: The maximum number of nodes to search in. In a larger graph they are drawn.
        seed: Seed of all draws.

    Returns:
        The queries; none if no text has four words.

    Raises:
        GraphFormersError: The number of queries or candidates is not a positive number, or the
            folder is not a graph.

    Examples:
        >>> queries = known_item_queries("papers.graph", count=20)
        >>> len(queries), queries.texts[0]
        (20, '...')
    """
    graph = loaded_graph(graph)
    if count < 1:
        raise GraphFormersError(f"{count} queries given, expected 1 or more")
    nodes: list[int] = []
    texts: list[str] = []
    order = np.argsort(mix(seed, _DRAW_NODES, graph.id_hashes), kind="stable")
    for start in range(0, len(order), _BLOCK_NODES):
        block = order[start : start + _BLOCK_NODES]
        for node, text in zip(block.tolist(), graph.texts_of(block), strict=True):
            words = WORD.findall(text)
            if len(words) < MIN_WORDS:
                continue
            hashes = mix(seed, _DRAW_WORDS, graph.id_hashes[node], np.arange(len(words)))
            drawn = np.sort(np.argsort(hashes, kind="stable")[: -(-len(words) // 2)])
            nodes.append(node)
            texts.append(" ".join(words[i] for i in drawn.tolist()))
            if len(nodes) == count:
                break
        if len(nodes) == count:
            break
    wanted = np.array(nodes, dtype=np.int64)
    return TextQueries(wanted, tuple(texts), draw_candidates(graph, wanted, candidates, seed))


def draw_candidates(graph: TextGraph, nodes: Array, limit: int, seed: int = 42) -> Array | None:
    """Draws the nodes to search in: those of the queries, and others up to a limit.

    Args:
        graph: The graph.
        nodes: The nodes of the queries.
        limit: The maximum number of candidates.
        seed: Seed of the draw.

    Returns:
        Sorted row numbers; None for all nodes.

    Raises:
        GraphFormersError: The limit is smaller than the number of nodes of the queries.
    """
    if graph.num_nodes <= limit:
        return None
    own = np.unique(nodes)
    if limit < max(len(own), 1):
        raise GraphFormersError(
            f"{limit:,} candidates given, expected at least the {len(own):,} nodes of the queries"
        )
    order = np.argsort(mix(seed, _DRAW_CANDIDATES, graph.id_hashes), kind="stable")
    others = order[~np.isin(order, own)][: limit - len(own)]
    return np.union1d(own, others)


def text_search(
    model: GraphFormers | str | Path,
    split: LinkSplit | str | Path,
    queries: TextQueries | None = None,
    *,
    sampler: NeighborSampler | None = None,
    known: VectorScores | None = None,
) -> Ranks:
    """Ranks the node of each query among the candidates, by a model as it serves searches.

    Queries are encoded without neighbours, nodes with theirs. They are compared by the model's own
    similarity.

    Args:
        model: A model or its folder.
        split: A split or its folder; neighbours are sampled from the links that models may see.
        queries: The queries; by default those of `known_item_queries`.
        sampler: Samples the neighbours of nodes; by default as in training.
        known: Vectors of nodes that the model has computed already; only others are encoded.

    Returns:
        The rank of the node of each query. Metrics, intervals and tests apply to it as to the ranks
        of links.

    Raises:
        GraphFormersError: A folder cannot be read, or there are no queries.

    Examples:
        >>> from graphformers.evaluation.significance import summarize
        >>> print(summarize(text_search("papers.model", "papers.split"))["MRR"])
        0... [0..., ...]
    """
    model = model if isinstance(model, GraphFormers) else GraphFormers.from_pretrained(model)
    split = loaded_split(split)
    queries = known_item_queries(split.graph) if queries is None else queries
    if not len(queries):
        raise GraphFormersError(
            f"no queries: no text of the graph has {MIN_WORDS} words, from which they are drawn"
        )
    candidates = queries.candidates_of(split.graph)
    is_known = np.isin(candidates, [] if known is None else known.covered)
    vectors_CD = np.empty((len(candidates), model.config.hidden_size), dtype=np.float32)
    if known is not None:
        vectors_CD[is_known] = known.vectors_of(candidates[is_known])
    vectors_CD[~is_known] = encode_nodes(model, split, candidates[~is_known], sampler)
    return search_by_vectors(model, split.graph, queries, vectors_CD, cosine=model.is_cosine)


def backbone_search(
    source: str | Path,
    graph: TextGraph,
    queries: TextQueries,
    max_tokens: int = ModelConfig.max_tokens,
    device: str | None = None,
) -> Ranks:
    """Ranks the node of each query by an untrained backbone: cosine of text vectors.

    Args:
        source: The backbone: a folder, minilm, or a name on the hub.
        graph: The graph of the queries.
        queries: The queries.
        max_tokens: Texts are cut after so many tokens.
        device: Where to compute; by default the best device.
    """
    model = sentence_encoder(source, max_tokens, device)
    vectors_CD = model.encode_nodes(graph, queries.candidates)
    return search_by_vectors(model, graph, queries, vectors_CD, cosine=True)


def word_search(graph: TextGraph, queries: TextQueries) -> dict[str, Ranks]:
    """Ranks the node of each query by TF-IDF and by BM25, over the texts of the candidates.

    Args:
        graph: The graph of the queries.
        queries: The queries.

    Returns:
        Ranks by title of the system.
    """
    texts = graph.texts if queries.candidates is None else graph.texts.take(queries.candidates)
    return {
        title: rank_queries(make((text.as_py() for text in texts), queries.texts), graph, queries)
        for title, make in (("TF-IDF", tfidf_search), ("BM25", bm25_search))
    }


def search_by_vectors(
    model: GraphFormers, graph: TextGraph, queries: TextQueries, vectors_CD: Array, *, cosine: bool
) -> Ranks:
    """Ranks the node of each query, given the vectors of the candidates.

    Args:
        model: Encodes the queries.
        graph: The graph of the queries.
        queries: The queries.
        vectors_CD: A vector for each candidate.
        cosine: Whether to compare by cosine instead of inner product.
    """
    queries_QD = model.encode(queries.texts)
    scorer = VectorScores(vectors_CD, cosine=cosine, device=model.device, anchors=queries_QD)
    return rank_queries(scorer, graph, queries)


def rank_queries(scorer: Scorer, graph: TextGraph, queries: TextQueries) -> Ranks:
    """Ranks the node of each query among the candidates, without other nodes of the same text.

    Args:
        scorer: Its anchors are the queries, its nodes the candidates, by their index.
        graph: The graph of the queries.
        queries: The queries.

    Raises:
        GraphFormersError: The scorer does not cover the candidates, or a score is not finite.
    """
    candidates = queries.candidates_of(graph)
    if scorer.num_nodes != len(candidates):
        raise GraphFormersError(
            f"scores of {scorer.num_nodes:,} nodes given, expected one for each of "
            f"{len(candidates):,} candidates"
        )
    groups_C = graph.text_groups[candidates]
    order_C = np.argsort(groups_C, kind="stable")
    sorted_C = groups_C[order_C]
    pairs = np.stack([np.arange(len(queries)), np.searchsorted(candidates, queries.nodes)], 1)

    def same_text(part: Array) -> tuple[Array, Array]:
        """The candidates with the text of the node, the node itself included, sorted by node."""
        own = groups_C[part[:, 1]]
        first, last = np.searchsorted(sorted_C, own), np.searchsorted(sorted_C, own, "right")
        nodes = order_C[ranges(first, last - first)]
        by_node = np.argsort(nodes, kind="stable")
        return np.repeat(np.arange(len(part)), last - first)[by_node], nodes[by_node]

    with torch.inference_mode():
        return rank_rows(scorer, pairs, same_text)
