"""What is known without training: words, links, and a language model's own sentence vectors. They
stand beside every model.

All of them see what models see: the texts, and the links that are left for training.
"""

import re
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from graphformers.data.arrays import Array
from graphformers.data.graph import TextGraph
from graphformers.data.split import LinkSplit
from graphformers.evaluation.scores import Scorer, SparseScores
from graphformers.model.backbones import find_backbone, pooling_of
from graphformers.model.config import POOLINGS
from graphformers.model.encoder import GraphFormers
from graphformers.progress import say

WORD = re.compile(r"\w+")
NAMES = {
    "degree": "degree alone",
    "common": "common neighbours",
    "adamic": "Adamic–Adar",
    "tfidf": "TF-IDF",
    "tfidf_near": "TF-IDF with {} neighbours",
}


def simple_scores(split: LinkSplit, num_neighbors: int = 5) -> dict[str, Scorer]:
    """The rankings that cost nothing, by the names people know them under."""
    features = word_features(text.as_py() for text in split.graph.texts)
    links, degrees = link_matrix(split), np.diff(split.indptr)
    # who has one neighbour is nobody's common neighbour
    weights = 1 / np.log(np.maximum(degrees, 2))
    rows: dict[str, Scorer] = {
        "degree": SparseScores(_column(np.ones(len(degrees))), _column(degrees)),
        "common": SparseScores(links),
        "adamic": SparseScores((links @ _diagonal(np.sqrt(weights))).tocsr()),
        "tfidf": SparseScores(features),
        "tfidf_near": SparseScores(with_neighbors(features, split, num_neighbors)),
    }
    return {NAMES[key].format(num_neighbors): scorer for key, scorer in rows.items()}


def word_features(texts: Iterable[str]) -> Any:
    """(N, V) CSR of unit rows: how often a word occurs in a text, times ln((1 + N) / (1 + texts
    with it)) + 1.
    """
    from scipy.sparse import csr_matrix

    places: dict[str, int] = {}
    # millions of texts: lists of numbers would fill the memory
    columns, counts, indptr = array("i"), array("f"), array("q", [0])
    for text in texts:
        found = Counter(WORD.findall(text.lower()))
        columns.extend(places.setdefault(word, len(places)) for word in found)
        counts.extend(found.values())
        indptr.append(len(columns))
    flat = (
        np.frombuffer(counts, dtype=np.float32).copy(),
        np.frombuffer(columns, dtype=np.int32).copy(),
    )
    matrix = csr_matrix(
        (*flat, np.frombuffer(indptr, dtype=np.int64)), shape=(len(indptr) - 1, max(len(places), 1))
    )
    matrix.sort_indices()
    spread = np.bincount(matrix.indices, minlength=matrix.shape[1])
    matrix.data *= (np.log((1 + matrix.shape[0]) / (1 + spread)) + 1).astype(np.float32)[
        matrix.indices
    ]
    return _unit_rows(matrix)


def with_neighbors(features: Any, split: LinkSplit, num_neighbors: int) -> Any:
    """Each row plus the mean of the rows of the neighbours that a model would see, of length one
    again.
    """
    from scipy.sparse import csr_matrix

    around = split.sampler(num_neighbors).sample(np.arange(split.graph.num_nodes))
    counts = np.diff(around.indptr)
    shares = np.repeat((1 / np.maximum(counts, 1)).astype(np.float32), counts)
    means = (
        csr_matrix((shares, around.neighbors, around.indptr), shape=(len(counts), len(counts)))
        @ features
    )
    summed = (features + means).tocsr()
    summed.sort_indices()
    return _unit_rows(summed)


def link_matrix(split: LinkSplit) -> Any:
    """(N, N) CSR of ones: the links that models may see."""
    from scipy.sparse import csr_matrix

    ones = np.ones(len(split.indices), dtype=np.float32)
    return csr_matrix(
        (ones, split.indices, split.indptr), shape=(split.graph.num_nodes, split.graph.num_nodes)
    )


def _unit_rows(matrix: Any) -> Any:
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel())
    return (_diagonal(1 / np.maximum(lengths, 1e-12)) @ matrix).tocsr()


def _diagonal(values: Array) -> Any:
    from scipy.sparse import diags

    return diags(values.astype(np.float32), format="csr")


def _column(values: Array) -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix(values.astype(np.float32)[:, None])


def sentence_vectors(
    source: str | Path,
    graph: TextGraph,
    nodes: Array,
    max_tokens: int = 32,
    device: str | None = None,
) -> Array:
    """(len(nodes), D) float32: the texts of some nodes, read by an untrained backbone; to be
    compared by cosine.
    """
    folder = find_backbone(source)
    pooling = pooling_of(folder) or "mean"
    if pooling not in POOLINGS:
        say(
            f"{folder}: its own way to pool is {pooling}; it is read by the mean of its tokens here"
        )
        pooling = "mean"
    model = GraphFormers.from_backbone(
        source, "plm", device=device, max_tokens=max_tokens, pooling=pooling
    )
    return model.encode_nodes(graph, nodes)
