"""Likely links: nodes that are near a node, or share neighbours with it, and are not linked to it.

The score of a pair is the model's, plus a weight times the Adamic–Adar index

    Σ 1 / ln(degree of z)   over the common neighbours z of both.

The weight belongs to the model: training chooses it on the validation questions. Hubs are bounded:
of many neighbours a sample by hashes of ids counts, and of these, those with the fewest links, as
long as all their links together are not too many. What is left out is the same for every candidate.
"""

from collections.abc import Callable

import numpy as np

from graphformers.arrays import Array
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import ArtifactError
from graphformers.graph.protocol import Graph
from graphformers.retrieval.hits import Hits, best_hits
from graphformers.settings import has_type

# Neighbours of a node that count as common neighbours, and links that all of them have together.
MOST_NEIGHBORS = 256
MOST_LINKS = 16_384


def link_weight(store: VectorStore) -> float:
    """The weight of Adamic–Adar that a store's model has.

    Raises:
        ArtifactError: The folder holds anything else.
    """
    weight: object = store.settings.get("link_weight", 0.0)
    if not has_type(weight, "float") or not 0 <= float(weight) < np.inf:  # type: ignore[arg-type]
        raise ArtifactError(
            f"{store.path}: link_weight {str(weight)[:50]!r}, expected a number of at least 0; "
            f"embed the graph again"
        )
    return float(weight)  # type: ignore[arg-type]


def counted_neighbors(graph: Graph, node: int, most: int = MOST_NEIGHBORS) -> Array:
    """The neighbours of a node that count as common neighbours: all, or a sample of many."""
    row = graph.neighbors_of(node)
    return row if len(row) <= most else np.sort(graph.sample(np.array([node]), most).of(0))


def adamic_adar(
    neighbors: Array, neighbors_of: Callable[[int], Array], most_links: int = MOST_LINKS
) -> tuple[Array, Array]:
    """The Adamic–Adar index of a node and all nodes with which it has common neighbours.

    Args:
        neighbors: The neighbours of the node that count, sorted.
        neighbors_of: Returns the neighbours of a node.
        most_links: Links that are followed; neighbours with the fewest links come first.

    Returns:
        The nodes, sorted, with the node itself and perhaps its neighbours among them; and the
        index of each, float32.
    """
    rows = [neighbors_of(other) for other in neighbors.tolist()]
    degrees = np.array([len(row) for row in rows], dtype=np.int64)
    order = np.argsort(degrees, kind="stable")
    order = order[np.cumsum(degrees[order]) <= most_links]
    if not len(order):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    # A neighbour with a single link is no common neighbour of two nodes, so its weight is not used.
    weights = 1 / np.log(np.maximum(degrees[order], 2))
    found, places = np.unique(
        np.concatenate([rows[place] for place in order.tolist()]), return_inverse=True
    )
    sums = np.bincount(places, np.repeat(weights, degrees[order]))
    return found.astype(np.int64), sums.astype(np.float32)


def with_common_neighbors(
    store: VectorStore, node: int, near: Hits, allowed: Array | None, weight: float, k: int
) -> Hits:
    """The `k` likeliest links of a node: the best of its nearest nodes and those two steps away.

    No other node has a higher score, as far as `near` are the nearest nodes.

    Args:
        store: A state of a store.
        node: The row number of the node.
        near: (1, k) the nearest nodes that are not linked to it.
        allowed: By row number, which nodes may be found; None for all.
        weight: The weight of Adamic–Adar.
        k: Number of links.
    """
    graph = store.graph
    nodes, sums = adamic_adar(counted_neighbors(graph, node), graph.neighbors_of)
    is_new = ~np.isin(nodes, graph.neighbors_of(node)) & (nodes != node)
    if allowed is not None:
        is_new &= allowed[nodes]
    nodes, sums = nodes[is_new], sums[is_new]
    close = near.nodes_QK[0][near.nodes_QK[0] >= 0]
    candidates = np.union1d(close, nodes)
    vectors = store.compared(np.append(candidates, node))
    # Not a matrix product, which may round equal rows differently.
    scores = np.einsum("d,md->m", vectors[-1], vectors[:-1])
    scores[np.searchsorted(candidates, nodes)] += np.float32(weight) * sums
    return best_hits(candidates[None], scores[None], k)
