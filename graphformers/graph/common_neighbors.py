"""Adamic–Adar: how strongly two nodes are linked by common neighbours.

The index of nodes x and y is the sum of 1 / ln(degree of z) over their common neighbours z, so that
neighbours with few links count most. Hubs are bounded: of many neighbours of x a sample by hashes
of ids counts, and of these, those with the fewest links, as long as all their links together are
not too many. What is left out is the same for every y.
"""

from collections.abc import Callable

import numpy as np

from graphformers.arrays import Array
from graphformers.graph.protocol import Graph

# Neighbours of a node that count as common neighbours, and links that all of them have together.
MOST_NEIGHBORS = 256
MOST_LINKS = 16_384


def counted_neighbors(graph: Graph, node: int, most: int = MOST_NEIGHBORS) -> Array:
    """The neighbours of a node that count: all, or a sample of many; sorted.

    Args:
        graph: The graph.
        node: The row number of the node.
        most: Neighbours, at most.
    """
    row = graph.neighbors_of(node)
    return row if len(row) <= most else np.sort(graph.sample(np.array([node]), most).of(0))


def adamic_adar(
    neighbors: Array, neighbors_of: Callable[[int], Array], most_links: int = MOST_LINKS
) -> tuple[Array, Array]:
    """The Adamic–Adar index of a node and all nodes with which it has common neighbours.

    Args:
        neighbors: The neighbours of the node that count, sorted.
        neighbors_of: Returns the neighbours of a node.
        most_links: Links that are followed; those of the neighbours with the fewest come first.

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
