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

from graphformers.data.arrays import Array
from graphformers.data.graph import TextGraph
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
    from scipy.sparse import csr_matrix

    vocabulary: dict[str, int] = {}
    # typed arrays, because lists of numbers do not fit in memory for millions of texts
    columns, counts, indptr = array("i"), array("f"), array("q", [0])
    for text in texts:
        found = Counter(WORD.findall(text.lower()))
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
    frequencies_V = np.bincount(matrix.indices, minlength=matrix.shape[1])
    weights_V = (np.log((1 + matrix.shape[0]) / (1 + frequencies_V)) + 1).astype(np.float32)
    matrix.data *= weights_V[matrix.indices]
    return _normalize_rows(matrix)


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


def _normalize_rows(matrix: "csr_matrix") -> "csr_matrix":
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel())
    return (_diagonal(1 / np.maximum(lengths, 1e-12)) @ matrix).tocsr()


def _diagonal(values: Array) -> "csr_matrix":
    from scipy.sparse import diags

    return diags(values.astype(np.float32), format="csr")


def _column(values: Array) -> "csr_matrix":
    from scipy.sparse import csr_matrix

    return csr_matrix(values.astype(np.float32)[:, None])


def sentence_vectors(
    source: str | Path,
    graph: TextGraph,
    nodes: Array,
    max_tokens: int = 32,
    device: str | None = None,
) -> Array:
    """Embeds the texts of some nodes by an untrained backbone, to be compared by cosine.

    Args:
        source: The backbone: a folder, minilm, or a name on the hub.
        graph: The graph with the texts.
        nodes: The row numbers of the nodes.
        max_tokens: Texts are cut after so many tokens.
        device: Where to compute; by default the best device.

    Returns:
        (len(nodes), D) float32 vectors.
    """
    folder = find_backbone(source)
    pooling = pooling_of(folder) or "mean"
    if pooling not in POOLINGS:
        logger.warning(
            f"{folder}: pooling {pooling} is not supported; the mean of the token vectors is used "
            f"instead"
        )
        pooling = "mean"
    model = GraphFormers.from_backbone(
        source, "plm", device=device, max_tokens=max_tokens, pooling=pooling
    )
    return model.encode_nodes(graph, nodes)
