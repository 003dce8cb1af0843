"""Baselines without training: degrees, common neighbours, TF-IDF, untrained embeddings.

They use the same data as models: the texts, and the links that are left for training.

Shapes: N nodes, V words of the vocabulary.
"""

import logging
import re
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphformers.arrays import Array
from graphformers.evaluation.scores import SparseScores
from graphformers.model.backbones import find_backbone, pooling_of
from graphformers.model.config import POOLINGS
from graphformers.model.encoder import GraphFormers
from graphformers.splits.split import LinkSplit

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

logger = logging.getLogger(__name__)

WORD = re.compile(r"\w+")
# titles in tables and JSON; {} is the number of neighbours
TITLES = {
    "degree": "degree alone",
    "common": "common neighbours",
    "adamic": "Adamic–Adar",
    "tfidf": "TF-IDF",
    "tfidf_near": "TF-IDF with {} neighbours",
}


def baseline_scores(split: LinkSplit, num_neighbors: int = 5) -> dict[str, SparseScores]:
    """Makes the scorers that need neither training nor a language model.

    Args:
        split: The split; degrees and common neighbours are those of its training links.
        num_neighbors: The number of neighbours that TF-IDF vectors are averaged with.

    Returns:
        The scorers by their titles in tables.
    """
    features = tfidf_features(text.as_py() for text in split.graph.texts)
    links, degrees = adjacency_matrix(split), np.diff(split.indptr)
    # A node of degree 1 is no common neighbour of two others, so its weight 1 / log(1) is not used.
    weights = 1 / np.log(np.maximum(degrees, 2))
    scorers = {
        "degree": SparseScores(_column(np.ones(len(degrees))), _column(degrees)),
        "common": SparseScores(links),
        "adamic": SparseScores((links @ _diagonal(np.sqrt(weights))).tocsr()),
        "tfidf": SparseScores(features),
        "tfidf_near": SparseScores(add_neighbor_means(features, split, num_neighbors)),
    }
    return {TITLES[key].format(num_neighbors): scorer for key, scorer in scorers.items()}


def tfidf_features(texts: Iterable[str]) -> "csr_matrix":
    """(N, V) CSR of unit rows: term frequency times smoothed inverse document frequency.

    The latter is ln((1 + N) / (1 + document frequency)) + 1.
    """
    matrix = count_words(texts, {})
    return _weighted_rows(matrix, _tfidf_weights(matrix))


def tfidf_search(texts: Iterable[str], queries: Iterable[str]) -> SparseScores:
    """Scores queries against texts by the cosine of TF-IDF vectors. Anchors are the queries."""
    vocabulary: dict[str, int] = {}
    matrix = count_words(texts, vocabulary)
    weights_V = _tfidf_weights(matrix)
    asked = count_words(queries, vocabulary, extend=False)
    return SparseScores(_weighted_rows(asked, weights_V), _weighted_rows(matrix, weights_V))


def bm25_search(
    texts: Iterable[str], queries: Iterable[str], k1: float = 1.2, b: float = 0.75
) -> SparseScores:
    """Scores queries against texts by BM25. Anchors are the queries.

    A text's score is the sum over the words of the query, repeated ones repeatedly, of
    idf · tf · (k1 + 1) / (tf + k1 · (1 - b + b · length / mean length)), where tf is the number of
    times the word occurs in the text, and idf is ln(1 + (N - df + 0.5) / (df + 0.5)).

    Args:
        texts: The N texts.
        queries: The queries.
        k1: How slowly the weight of a word saturates as it is repeated in a text.
        b: How far long texts are discounted, from 0 to 1.
    """
    vocabulary: dict[str, int] = {}
    matrix = count_words(texts, vocabulary)
    total = matrix.shape[0]
    frequencies_V = np.bincount(matrix.indices, minlength=matrix.shape[1])
    idf_V = np.log1p((total - frequencies_V + 0.5) / (frequencies_V + 0.5))
    lengths_N = np.asarray(matrix.sum(1), dtype=np.float64).ravel()
    relative_N = lengths_N / max(lengths_N.mean(), 1e-12) if total else lengths_N
    saturation = np.repeat(k1 * (1 - b + b * relative_N), np.diff(matrix.indptr))
    weights = idf_V[matrix.indices] * matrix.data * (k1 + 1) / (matrix.data + saturation)
    matrix.data = weights.astype(np.float32)
    return SparseScores(count_words(queries, vocabulary, extend=False), matrix)


def count_words(
    texts: Iterable[str], vocabulary: dict[str, int], *, extend: bool = True
) -> "csr_matrix":
    """(N, V) CSR: how often each word occurs in each text, in lower case.

    Args:
        texts: The texts.
        vocabulary: The column of each word.
        extend: Whether new words are added to the vocabulary; otherwise they are ignored.
    """
    from scipy.sparse import csr_matrix

    # typed arrays, because lists of numbers do not fit in memory for millions of texts
    columns, counts, indptr = array("i"), array("f"), array("q", [0])
    for text in texts:
        found = Counter(WORD.findall(text.lower()))
        if not extend:
            found = Counter({word: count for word, count in found.items() if word in vocabulary})
        columns.extend(vocabulary.setdefault(word, len(vocabulary)) for word in found)
        counts.extend(found.values())
        indptr.append(len(columns))
    entries = (
        np.frombuffer(counts, dtype=np.float32).copy(),
        np.frombuffer(columns, dtype=np.int32).copy(),
        np.frombuffer(indptr, dtype=np.int64),
    )
    matrix = csr_matrix(entries, shape=(len(indptr) - 1, max(len(vocabulary), 1)))
    matrix.sort_indices()
    return matrix


def add_neighbor_means(
    features: "csr_matrix", split: LinkSplit, num_neighbors: int
) -> "csr_matrix":
    """Adds the mean row of a node's sampled neighbours to each row, and normalizes the sum.

    The neighbours are those that a model with `num_neighbors` uses.
    """
    from scipy.sparse import csr_matrix

    sampled = split.sampler(num_neighbors).sample(np.arange(split.graph.num_nodes))
    counts = np.diff(sampled.indptr)
    shares = np.repeat((1 / np.maximum(counts, 1)).astype(np.float32), counts)
    averaging = csr_matrix(
        (shares, sampled.neighbors, sampled.indptr), shape=(len(counts), len(counts))
    )
    summed = (features + averaging @ features).tocsr()
    summed.sort_indices()
    return _normalize_rows(summed)


def adjacency_matrix(split: LinkSplit) -> "csr_matrix":
    """(N, N) CSR with ones at the links that models may see."""
    from scipy.sparse import csr_matrix

    ones, size = np.ones(len(split.indices), dtype=np.float32), split.graph.num_nodes
    return csr_matrix((ones, split.indices, split.indptr), shape=(size, size))


def _tfidf_weights(counts: "csr_matrix") -> Array:
    """(V,) the smoothed inverse document frequency of each word."""
    frequencies_V = np.bincount(counts.indices, minlength=counts.shape[1])
    weights_V: Array = np.log((1 + counts.shape[0]) / (1 + frequencies_V)) + 1
    return weights_V.astype(np.float32)


def _weighted_rows(counts: "csr_matrix", weights_V: Array) -> "csr_matrix":
    counts.data *= weights_V[counts.indices]
    return _normalize_rows(counts)


def _normalize_rows(matrix: "csr_matrix") -> "csr_matrix":
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel())
    return (_diagonal(1 / np.maximum(lengths, 1e-12)) @ matrix).tocsr()


def _diagonal(values: Array) -> "csr_matrix":
    from scipy.sparse import diags

    return diags(values.astype(np.float32), format="csr")


def _column(values: Array) -> "csr_matrix":
    from scipy.sparse import csr_matrix

    return csr_matrix(values.astype(np.float32)[:, None])


def sentence_encoder(
    source: str | Path, max_tokens: int = 32, device: str | None = None
) -> GraphFormers:
    """An untrained backbone that encodes texts alone, with the pooling it was trained for.

    Args:
        source: The backbone: a folder, minilm, or a name on the hub.
        max_tokens: Texts are cut after so many tokens.
        device: Where to compute; by default the best device.
    """
    folder = find_backbone(source)
    pooling = pooling_of(folder) or "mean"
    if pooling not in POOLINGS:
        logger.warning(
            f"{folder}: pooling {pooling} is not supported; the mean of the token vectors is used "
            f"instead"
        )
        pooling = "mean"
    return GraphFormers.from_backbone(
        source, "plm", device=device, max_tokens=max_tokens, pooling=pooling
    )
