"""Scores of anchors against candidates, higher is nearer: by vectors, or by sparse features such as
words and neighbours.

Shapes: Q questions, C candidates of each, M nodes of a block, D numbers of a vector.
"""

import math
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graphformers.data.arrays import Array
from graphformers.errors import GraphFormersError

BLOCK_BYTES = 1 << 28  # of vectors at a time
# of candidates: what stays in a CPU's cache is ten times as fast
LISTED_BYTES = {"cpu": 1 << 22, "cuda": 1 << 28}
# of the product of two lengths: scores that are nearer to each other than this are the same
ROUNDING = 2.0**-20


class Scorer(Protocol):
    """What can rank nodes. `num_nodes` is that of the graph."""

    num_nodes: int
    most_rows: int  # nodes of a block, at most

    def listed(self, anchors_Q: Array, candidates_QC: Array) -> Array:
        """(Q, C) float32: each anchor against its own candidates. Equal candidates get equal scores
        to the bit.
        """

    def block(self, anchors_Q: Array, start: int, stop: int) -> Tensor:
        """(Q, M) float32: each anchor against the nodes start … stop."""

    def rounding(self, anchors_Q: Array, positives_Q: Array) -> Tensor:
        """(Q,) float32: by how much the scores of equal nodes may differ in `block`."""


class VectorScores:
    """Inner products, or cosines, of vectors in float32.

    `nodes` are the sorted row numbers that the vectors belong to, all of the graph by default. On a
    GPU the vectors are kept there; elsewhere they are read block by block, so that they may be
    larger than the memory.
    """

    def __init__(
        self,
        vectors: Array,
        nodes: Array | None = None,
        *,
        cosine: bool = False,
        device: str | torch.device = "cpu",
    ) -> None:
        if vectors.ndim != 2 or (nodes is not None and len(vectors) != len(nodes)):
            expected = "rows of numbers" if nodes is None else f"one each for {len(nodes):,} nodes"
            raise GraphFormersError(
                f"{len(vectors):,} vectors of shape {vectors.shape[1:]} given, expected {expected}"
            )
        self.nodes, self.cosine, self.device = nodes, cosine, torch.device(device)
        self.num_nodes = len(vectors) if nodes is None else int(nodes[-1]) + 1 if len(nodes) else 0
        self.most_rows = self._size = max(1, BLOCK_BYTES // (4 * max(vectors.shape[1], 1)))
        limit = float(np.finfo(np.float32).max)
        # inner products of larger numbers overflow
        most = limit if cosine else math.sqrt(limit / max(vectors.shape[1], 1))
        is_copied = self.device.type != "cpu"
        kind = torch.from_numpy(vectors[:0].copy()).dtype
        self._vectors: Any = (
            torch.empty(vectors.shape, dtype=kind, device=self.device) if is_copied else vectors
        )
        for start in range(0, len(vectors), self._size):
            part = slice(start, start + self._size)
            largest_N = _largest(vectors[part])
            if not np.isfinite(largest_N).all():
                raise GraphFormersError(
                    "some of the vectors hold numbers that are not finite (NaN or inf)"
                )
            if largest_N.max(initial=0) > most:
                what = (
                    f"numbers as large as {largest_N.max():.1g}, "
                    f"{'which' if cosine else 'whose inner products'} are too large"
                )
                raise GraphFormersError(
                    f"some of the vectors hold {what} for float32; make all of them smaller by one "
                    f"factor"
                )
            if is_copied:
                self._vectors[part] = torch.from_numpy(np.array(vectors[part]))

    def _take(self, places: Array | slice) -> Tensor:
        """(…, D) float32 on the device, of length 1 where cosines are asked for."""
        if isinstance(self._vectors, Tensor):
            found = self._vectors[
                places if isinstance(places, slice) else torch.from_numpy(places).to(self.device)
            ].float()
        elif isinstance(places, slice):
            found = torch.from_numpy(np.array(self._vectors[places], dtype=np.float32))
        else:
            found = torch.from_numpy(
                np.take(self._vectors, places, axis=0).astype(np.float32, copy=False)
            )
        return _of_length_one(found) if self.cosine else found

    def _places(self, nodes: Array) -> Array:
        if self.nodes is None:
            return nodes.astype(np.int64)
        places = np.searchsorted(self.nodes, nodes)
        assert (self.nodes[np.minimum(places, len(self.nodes) - 1)] == nodes).all(), (
            "a node without a vector was asked for"
        )
        return places

    def listed(self, anchors_Q: Array, candidates_QC: Array) -> Array:
        most = LISTED_BYTES.get(self.device.type, LISTED_BYTES["cpu"])
        size = max(1, most // (4 * max(self._vectors.shape[1], 1) * max(candidates_QC.shape[1], 1)))
        scores_QC = np.empty(candidates_QC.shape, dtype=np.float32)
        for start in range(0, len(candidates_QC), size):
            part = slice(start, start + size)
            anchor_QD, near_QCD = (
                self._take(self._places(anchors_Q[part])),
                self._take(self._places(candidates_QC[part])),
            )
            # a matrix product may round equal rows differently, by their place; what is tied must
            # stay tied
            scores_QC[part] = near_QCD.mul_(anchor_QD[:, None]).sum(-1).cpu().numpy()
        return scores_QC

    def block(self, anchors_Q: Array, start: int, stop: int) -> Tensor:
        assert self.nodes is None, "all nodes are needed to rank all nodes"
        scores_QM: Tensor = self._take(self._places(anchors_Q)) @ self._take(slice(start, stop)).T
        return scores_QM

    def rounding(self, anchors_Q: Array, positives_Q: Array) -> Tensor:
        anchor_QD, positive_QD = (
            self._take(self._places(anchors_Q)),
            self._take(self._places(positives_Q)),
        )
        rounding_Q: Tensor = ROUNDING * anchor_QD.norm(dim=-1) * positive_QD.norm(dim=-1)
        return rounding_Q


def _largest(vectors_ND: Array) -> Array:
    """(N,) float64: the largest absolute value of each; not finite where one of its numbers is
    not.
    """
    if vectors_ND.dtype == np.float16:  # of which numpy finds the largest five times more slowly
        vectors_ND = vectors_ND.astype(np.float32)
    high_N, low_N = (
        edge(vectors_ND, axis=1, initial=0).astype(np.float64) for edge in (np.max, np.min)
    )
    largest_N: Array = np.maximum(high_N, -low_N)
    return largest_N


def _of_length_one(vectors_ND: Tensor) -> Tensor:
    """Vectors divided by their lengths, zeros left as they are. However long or short: their
    squares might leave float32.
    """
    largest_N1 = (
        vectors_ND.abs().amax(-1, keepdim=True) if vectors_ND.shape[-1] else vectors_ND.new_ones(())
    )
    scaled_ND = vectors_ND / torch.where(largest_N1 > 0, largest_N1, 1)
    return F.normalize(scaled_ND, dim=-1)


class SparseScores:
    """Inner products of sparse rows: `left` of the anchors, `right` of the candidates (scipy's CSR,
    one row for every node).

    A score is summed in the order of the columns, wherever the candidate stands: equal candidates
    are tied to the bit.
    """

    def __init__(self, left: Any, right: Any = None) -> None:
        self.left, self.right = left, left if right is None else right
        self.num_nodes, self.most_rows = left.shape[0], 1 << 18

    def listed(self, anchors_Q: Array, candidates_QC: Array) -> Array:
        scores_QC = np.empty(candidates_QC.shape, dtype=np.float32)
        spread = np.zeros(self.left.shape[1], dtype=np.float32)  # one anchor's row, written out
        for question, anchor in enumerate(anchors_Q.tolist()):
            own = slice(self.left.indptr[anchor], self.left.indptr[anchor + 1])
            columns = self.left.indices[own]
            spread[columns] = self.left.data[own]
            scores_QC[question] = self.right[candidates_QC[question]] @ spread
            spread[columns] = 0
        return scores_QC

    def block(self, anchors_Q: Array, start: int, stop: int) -> Tensor:
        product = self.left[anchors_Q] @ self.right[start:stop].T
        return torch.from_numpy(product.toarray().astype(np.float32, copy=False))

    def rounding(self, anchors_Q: Array, positives_Q: Array) -> Tensor:
        return ROUNDING * torch.from_numpy(self.listed(anchors_Q, positives_Q[:, None])[:, 0]).abs()
