"""Scorers: scores of anchors against candidates, from vectors or sparse features.

A higher score means a likelier link.

Shapes: Q questions, C candidates per question, M nodes of a block, N vectors, D vector size.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graphformers.arrays import Array
from graphformers.errors import GraphFormersError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# bytes of vectors that are multiplied at a time
BLOCK_BYTES = 1 << 28
# bytes of candidate vectors gathered at a time, by device; ten times as fast if they fit a CPU's
# cache
GATHER_BYTES: Mapping[str, int] = {"cpu": 1 << 22, "cuda": 1 << 28}
# Two scores are tied if they differ by less than this share of the product of the vectors' lengths.
ROUNDING = 2.0**-20
SPARSE_BLOCK_ROWS = 1 << 18


class Scorer(Protocol):
    """Scores nodes of a graph for an anchor."""

    num_nodes: int
    """Nodes of the graph that have a score."""

    max_rows: int
    """Nodes of a block, at most."""

    @property
    def device(self) -> torch.device:
        """The device of `block` and `rounding`."""

    def listed(self, anchors_Q: Array, candidates_QC: Array) -> Array:
        """(Q, C) float32: each anchor against its own candidates.

        Equal candidates get equal scores, to the bit.
        """

    def block(self, anchors_Q: Array, start: int, stop: int) -> Tensor:
        """(Q, M) float32: each anchor against the nodes `start` … `stop - 1`."""

    def rounding(self, anchors_Q: Array, positives_Q: Array) -> Tensor:
        """(Q,) float32: the largest difference that counts as rounding in scores of `block`."""


class VectorScores:
    """Inner products or cosines of float32 vectors.

    On a GPU, all vectors are copied to it. On a CPU they are read block by block, so that they may
    be a memory-mapped file larger than the memory.

    Args:
        vectors: (N, D) numbers.
        nodes: The sorted row numbers of the nodes that the vectors belong to; by default all nodes.
        cosine: Whether to compare by cosine instead of inner product.
        device: Where to compute.
        gather_bytes: Bytes of candidate vectors gathered at a time; by default by device.
        anchors: (A, D) vectors of anchors that are no nodes, such as queries; anchor a is row a.
            By default anchors are nodes.

    Raises:
        GraphFormersError: The vectors do not match the nodes, are not finite, or have inner
            products outside float32.

    Examples:
        >>> scorer = VectorScores(np.eye(3, dtype=np.float32))
        >>> scorer.listed(np.array([0]), np.array([[0, 2]]))
        array([[1., 0.]], dtype=float32)
    """

    def __init__(
        self,
        vectors: Array,
        nodes: Array | None = None,
        *,
        cosine: bool = False,
        device: str | torch.device = "cpu",
        gather_bytes: int | None = None,
        anchors: Array | None = None,
    ) -> None:
        if vectors.ndim != 2 or (nodes is not None and len(vectors) != len(nodes)):
            expected = "rows of numbers" if nodes is None else f"one each for {len(nodes):,} nodes"
            raise GraphFormersError(
                f"{len(vectors):,} vectors of shape {vectors.shape[1:]} given, expected {expected}"
            )
        if anchors is not None and anchors.shape[1:] != vectors.shape[1:]:
            raise GraphFormersError(
                f"anchors of shape {anchors.shape[1:]} given, expected the shape of the vectors, "
                f"{vectors.shape[1:]}"
            )
        self.nodes, self.cosine, self.device = nodes, cosine, torch.device(device)
        self.anchors = anchors
        self.num_nodes = len(vectors) if nodes is None else int(nodes[-1]) + 1 if len(nodes) else 0
        self.max_rows = max(1, BLOCK_BYTES // (4 * max(vectors.shape[1], 1)))
        default_bytes = GATHER_BYTES.get(self.device.type, GATHER_BYTES["cpu"])
        self._gather_bytes = default_bytes if gather_bytes is None else gather_bytes
        for each in (vectors,) if anchors is None else (vectors, anchors):
            _check_range(each, cosine, self.max_rows)
        self._vectors: Array | Tensor = vectors
        if self.device.type != "cpu":
            dtype = torch.from_numpy(vectors[:0].copy()).dtype
            self._vectors = torch.empty(vectors.shape, dtype=dtype, device=self.device)
            for start in range(0, len(vectors), self.max_rows):
                rows = slice(start, start + self.max_rows)
                self._vectors[rows] = torch.from_numpy(np.array(vectors[rows]))

    def listed(self, anchors_Q: Array, candidates_QC: Array) -> Array:
        row_bytes = 4 * max(self._vectors.shape[1], 1)
        size = max(1, self._gather_bytes // (row_bytes * max(candidates_QC.shape[1], 1)))
        scores_QC = np.empty(candidates_QC.shape, dtype=np.float32)
        for start in range(0, len(candidates_QC), size):
            part = slice(start, start + size)
            anchor_QD = self._take_anchors(anchors_Q[part])
            candidate_QCD = self._take(self._rows_of(candidates_QC[part]))
            # A matrix product may round equal rows differently, depending on their position, so
            # that equal candidates would not be tied.
            scores_QC[part] = candidate_QCD.mul_(anchor_QD[:, None]).sum(-1).cpu().numpy()
        return scores_QC

    def block(self, anchors_Q: Array, start: int, stop: int) -> Tensor:
        assert self.nodes is None, "ranking all nodes needs the vectors of all nodes"
        anchor_QD = self._take_anchors(anchors_Q)
        scores_QM: Tensor = anchor_QD @ self._take(slice(start, stop)).T
        return scores_QM

    def rounding(self, anchors_Q: Array, positives_Q: Array) -> Tensor:
        anchor_QD = self._take_anchors(anchors_Q)
        positive_QD = self._take(self._rows_of(positives_Q))
        rounding_Q: Tensor = ROUNDING * anchor_QD.norm(dim=-1) * positive_QD.norm(dim=-1)
        return rounding_Q

    @property
    def covered(self) -> Array:
        """The sorted row numbers of the nodes that have a vector."""
        return np.arange(self.num_nodes) if self.nodes is None else self.nodes

    def vectors_of(self, nodes: Array) -> Array:
        """(len(nodes), D) float32: the vectors of some nodes, as they were given."""
        rows = self._rows_of(nodes)
        if isinstance(self._vectors, Tensor):
            index = torch.from_numpy(rows).to(self.device)
            return self._vectors[index].float().cpu().numpy()
        return np.take(self._vectors, rows, axis=0).astype(np.float32, copy=False)

    def _rows_of(self, nodes: Array) -> Array:
        """The rows of the vectors of some nodes."""
        if self.nodes is None:
            return nodes.astype(np.int64)
        rows = np.searchsorted(self.nodes, nodes)
        has_vector = self.nodes[np.minimum(rows, len(self.nodes) - 1)] == nodes
        assert has_vector.all(), "a node without a vector"
        return rows

    def _take_anchors(self, anchors_Q: Array) -> Tensor:
        """(Q, D) float32 vectors of anchors on the device, normalized if scores are cosines."""
        if self.anchors is None:
            return self._take(self._rows_of(anchors_Q))
        found = torch.from_numpy(self.anchors[anchors_Q].astype(np.float32, copy=False))
        found = found.to(self.device)
        return _normalize(found) if self.cosine else found

    def _take(self, rows: Array | slice) -> Tensor:
        """(…, D) float32 rows on the device, normalized if scores are cosines."""
        if isinstance(self._vectors, Tensor):
            index = rows if isinstance(rows, slice) else torch.from_numpy(rows).to(self.device)
            found = self._vectors[index].float()
        elif isinstance(rows, slice):
            found = torch.from_numpy(np.array(self._vectors[rows], dtype=np.float32))
        else:
            gathered = np.take(self._vectors, rows, axis=0)
            found = torch.from_numpy(gathered.astype(np.float32, copy=False))
        return _normalize(found) if self.cosine else found


def _check_range(vectors: Array, cosine: bool, block_rows: int) -> None:
    """Raises an error if scores would not be finite float32 numbers."""
    limit = float(np.finfo(np.float32).max)
    # the largest number with which a sum of D products does not overflow
    largest_allowed = limit if cosine else math.sqrt(limit / max(vectors.shape[1], 1))
    for start in range(0, len(vectors), block_rows):
        largest_N = _largest(vectors[start : start + block_rows])
        if not np.isfinite(largest_N).all():
            raise GraphFormersError("some vectors contain numbers that are not finite (NaN or inf)")
        if largest_N.max(initial=0) > largest_allowed:
            problem = "which" if cosine else "whose inner products"
            raise GraphFormersError(
                f"some vectors contain numbers as large as {largest_N.max():.1g}, {problem} are "
                f"too large for float32; divide all vectors by the same number"
            )


def _largest(vectors_ND: Array) -> Array:
    """(N,) float64: the largest absolute value of each vector; NaN or inf if it contains one."""
    # numpy reduces float16 five times more slowly than float32
    if vectors_ND.dtype == np.float16:
        vectors_ND = vectors_ND.astype(np.float32)
    high_N = np.max(vectors_ND, axis=1, initial=0).astype(np.float64)
    low_N = np.min(vectors_ND, axis=1, initial=0).astype(np.float64)
    largest_N: Array = np.maximum(high_N, -low_N)
    return largest_N


def _normalize(vectors_ND: Tensor) -> Tensor:
    """Divides vectors by their lengths; zero vectors stay zero.

    They are divided by their largest number first, because squares of very large or very small
    numbers are outside the range of float32.
    """
    largest_N1 = (
        vectors_ND.abs().amax(-1, keepdim=True) if vectors_ND.shape[-1] else vectors_ND.new_ones(())
    )
    scaled_ND = vectors_ND / torch.where(largest_N1 > 0, largest_N1, 1)
    return F.normalize(scaled_ND, dim=-1)


class SparseScores:
    """Inner products of sparse rows: those of the anchors with those of the candidates.

    A score is summed in the order of the columns, so equal candidates have exactly equal scores.

    Args:
        anchors: A CSR matrix with the features of each node as an anchor, or of other anchors such
            as queries.
        candidates: The features of each node as a candidate; by default the same.
    """

    def __init__(self, anchors: "csr_matrix", candidates: "csr_matrix | None" = None) -> None:
        self.anchors = anchors
        self.candidates = anchors if candidates is None else candidates
        self.num_nodes, self.max_rows = self.candidates.shape[0], SPARSE_BLOCK_ROWS
        self.device = torch.device("cpu")

    def listed(self, anchors_Q: Array, candidates_QC: Array) -> Array:
        scores_QC = np.empty(candidates_QC.shape, dtype=np.float32)
        # one anchor's row as a dense vector
        dense = np.zeros(self.anchors.shape[1], dtype=np.float32)
        for question, anchor in enumerate(anchors_Q.tolist()):
            entries = slice(self.anchors.indptr[anchor], self.anchors.indptr[anchor + 1])
            columns = self.anchors.indices[entries]
            dense[columns] = self.anchors.data[entries]
            scores_QC[question] = self.candidates[candidates_QC[question]] @ dense
            dense[columns] = 0
        return scores_QC

    def block(self, anchors_Q: Array, start: int, stop: int) -> Tensor:
        product = self.anchors[anchors_Q] @ self.candidates[start:stop].T
        return torch.from_numpy(product.toarray().astype(np.float32, copy=False))

    def rounding(self, anchors_Q: Array, positives_Q: Array) -> Tensor:
        return ROUNDING * torch.from_numpy(self.listed(anchors_Q, positives_Q[:, None])[:, 0]).abs()
