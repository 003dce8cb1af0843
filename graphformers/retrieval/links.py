"""Likely links: nodes that are near a node, or share neighbours with it, and are not linked to it.

The score of a pair is the model's, plus a weight times their Adamic–Adar index
(`graph/common_neighbors`). Training chooses the weight by the validation questions, and the model
keeps it.
"""

import numpy as np

from graphformers.arrays import Array
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import ArtifactError
from graphformers.graph.common_neighbors import adamic_adar, counted_neighbors
from graphformers.retrieval.hits import Hits, best_hits
from graphformers.settings import has_type


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
