"""Hits: what a search finds. Shapes as in index.py."""

from dataclasses import dataclass

import numpy as np
import torch

from graphformers.arrays import Array


@dataclass(frozen=True)
class Hits:
    """The best nodes of each query, best first; where there are fewer than K, -1 with a score of
    -inf.
    """

    nodes_QK: Array  # int64
    scores_QK: Array  # float32


def top_hits(
    queries_QD: Array, nodes_M: Array, vectors_MD: Array, is_hidden_M: Array | None, k: int
) -> Hits:
    """The `k` best of some nodes by their vectors, -inf for those that are hidden; all, as they
    stand, where there are no more.

    (Multiplied by torch: numpy's own library takes twice as long for a few queries.)
    """
    scores_QM = torch.from_numpy(queries_QD) @ torch.from_numpy(vectors_MD).T
    if is_hidden_M is not None:
        scores_QM[:, torch.from_numpy(is_hidden_M)] = -torch.inf
    if k >= len(nodes_M):
        return Hits(np.broadcast_to(nodes_M, scores_QM.shape), scores_QM.numpy())
    top = scores_QM.topk(k, dim=1)
    return Hits(nodes_M[top.indices.numpy()], top.values.numpy())


def merge_hits(one: Hits, other: Hits, k: int) -> Hits:
    """The `k` best of both."""
    nodes = np.concatenate([one.nodes_QK, other.nodes_QK], 1)
    return best_hits(nodes, np.concatenate([one.scores_QK, other.scores_QK], 1), k)


def best_hits(nodes: Array, scores: Array, k: int) -> Hits:
    """The `k` best of `k` or more; of equals the smaller number comes first, so that the order
    never depends on blocks.
    """
    order = np.lexsort((np.where(nodes < 0, np.iinfo(np.int64).max, nodes), -scores), axis=1)[:, :k]
    nodes, scores = np.take_along_axis(nodes, order, 1), np.take_along_axis(scores, order, 1)
    return Hits(np.where(np.isneginf(scores), -1, nodes), scores)
