"""Overlay: the vectors that an index does not know, because the log changed them since. They are looked at one by one.

A few hundred are scored as they are. Of thousands all are first scored roughly, in bfloat16 and without their mean, where the
processor computes with such numbers (a quarter of the time); the best by far more than are asked for are then scored as they are.

Shapes as in index.py; M nodes of the overlay, P of them picked for a query.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from graphformers.data.arrays import Array
from graphformers.embedding.vectors import VectorStore
from graphformers.retrieval.hits import Hits, best_hits

MANY = 500  # more than these are not sorted as a whole
SURPLUS, MORE = 2, 16  # of many, SURPLUS * k + MORE are scored again


@cache
def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 itself; where it does not, that takes longer than float32."""
    try:
        return bool(torch.cpu._is_avx512_bf16_supported())
    except (AttributeError, RuntimeError):  # another processor, or a torch that cannot tell
        return False


@dataclass(frozen=True)
class Rough:
    """The same vectors for a first look."""

    center_D: Array  # what was taken off; it moves all scores of a query alike
    vectors_MD: Tensor  # bfloat16


@dataclass(frozen=True)
class Overlay:
    """The unknown nodes of one state of a store, in order, and their vectors as they are compared."""

    store: VectorStore
    end: int  # of the log that was read
    nodes_M: Array
    vectors_MD: Array
    rough: Rough | None

    @staticmethod
    def of(store: VectorStore, unseen: Array, before: "Overlay | None" = None) -> "Overlay":
        """Of a store's changed nodes, and of those of the base that are `unseen`; what `before` holds is not read again.

        `before` is that of an earlier state with the same base and the same `unseen`.
        """
        if before is not None and before.store is store and before.end == store.log.end:
            return before
        end, still = store.log.end, np.setdiff1d(unseen, store.overtaken())
        nodes_M = np.union1d(store.changed_nodes(), still)
        vectors_MD = np.empty((len(nodes_M), store.size), dtype=np.float32)
        is_known, places = np.zeros(len(nodes_M), dtype=bool), np.zeros(0, dtype=np.int64)
        if before is not None and len(before.nodes_M):
            places = np.minimum(np.searchsorted(before.nodes_M, nodes_M), len(before.nodes_M) - 1)
            is_same = store.is_same_vector(before.store, nodes_M) | np.isin(nodes_M, still, assume_unique=True)
            is_known = (before.nodes_M[places] == nodes_M) & is_same
            places = places[is_known]
            vectors_MD[is_known] = before.vectors_MD[places]
        vectors_MD[~is_known] = store.compared(nodes_M[~is_known])
        rough = None
        if len(nodes_M) > MANY and has_bfloat16():
            rough = _rough(vectors_MD, is_known, places, None if before is None else before.rough)
        return Overlay(store, end, nodes_M, vectors_MD, rough)

    def search(self, queries_QD: Array, k: int, allowed: Array | None) -> Hits:
        """At most `k` of them for each query, in any order; `allowed` marks by node number who may be found."""
        is_closed_M = None if allowed is None else ~allowed[self.nodes_M]
        if len(self.nodes_M) <= MANY:
            scores_QM = queries_QD @ self.vectors_MD.T
            if is_closed_M is not None:
                scores_QM[:, is_closed_M] = -np.inf
            return Hits(np.broadcast_to(self.nodes_M, scores_QM.shape), scores_QM)
        queries = torch.from_numpy(queries_QD)
        if self.rough is None:
            found, places = _top(queries @ torch.from_numpy(self.vectors_MD).T, k, is_closed_M)
        else:
            found, places = _top((queries.bfloat16() @ self.rough.vectors_MD.T).float(), SURPLUS * k + MORE, is_closed_M)
            scores_QP = np.einsum("qd,qpd->qp", queries_QD, self.vectors_MD[places])
            found = np.where(np.isneginf(found), found, scores_QP)
        return best_hits(self.nodes_M[places], found, k)


def _top(scores_QM: Tensor, count: int, is_closed_M: Array | None) -> tuple[Array, Array]:
    """The best of each row, -inf for what is closed, and their places."""
    if is_closed_M is not None:
        scores_QM[:, torch.from_numpy(is_closed_M)] = -torch.inf
    top = scores_QM.topk(min(count, scores_QM.shape[1]), dim=1)
    return top.values.numpy(), top.indices.numpy()


def _rough(vectors_MD: Array, is_known: Array, places: Array, before: Rough | None) -> Rough:
    """Vectors for a first look; those that are known come from the `places` of the one before."""
    if before is None:
        center_D = vectors_MD.mean(0)
        return Rough(center_D, torch.from_numpy(vectors_MD - center_D).bfloat16())
    rough_MD = torch.empty(vectors_MD.shape, dtype=torch.bfloat16)
    rough_MD[torch.from_numpy(is_known)] = before.vectors_MD[torch.from_numpy(places)]
    rough_MD[torch.from_numpy(~is_known)] = torch.from_numpy(vectors_MD[~is_known] - before.center_D).bfloat16()
    return Rough(before.center_D, rough_MD)
