"""Quantization: vectors as an HNSW graph compares them, in int8 where that keeps their order.

The graph is made by inner products and needs vectors of one length, whatever lengths the stored
ones have. A stored x becomes (x - m, r, …, r): m is the mean of all, which changes every score of a
query by the same amount, and r makes up for what x - m lacks to the longest of all. It is spread
over several numbers, so that none of them is large. A query q becomes (q, 0, …, 0).

Without their mean, the numbers of a vector are small and of similar size, so int8 holds them well:
half the memory of float16, and the same recall from a search that is nearly twice as fast, since
most of its time is waiting for memory. Where a few numbers are far larger than the rest, int8 does
not hold the others, and float16 is taken.
"""

from dataclasses import dataclass

import numpy as np

from graphformers.arrays import Array
from graphformers.embedding.vectors import VectorStore
from graphformers.retrieval.exact import base_blocks

# Numbers over which the missing length is spread.
EXTRA = 32
LARGEST = 127


@dataclass(frozen=True)
class Quantization:
    """How a store's vectors are converted for an HNSW graph.

    Attributes:
        precision: "i8" or "f16".
        mean: (D,) mean of all vectors.
        longest: Largest length of a vector without the mean.
        unit: The number that 1 stands for in int8.
    """

    precision: str
    mean: Array
    longest: float
    unit: float

    @staticmethod
    def of(store: VectorStore, precision: str) -> "Quantization":
        """The quantization of a store's base: two passes over its vectors.

        Nothing is clipped: the largest numbers are those of the longest vectors, which inner
        products find most often.
        """
        total = np.zeros(store.size)
        for _, vectors in base_blocks(store):
            total += vectors.sum(0, dtype=np.float64)
        mean = (total / max(store.num_base, 1)).astype(np.float32)
        shortest, longest, largest = np.inf, 0.0, 0.0
        for _, vectors in base_blocks(store):
            lengths = np.linalg.norm(vectors - mean, axis=1)
            shortest = min(shortest, float(lengths.min()))
            longest = max(longest, float(lengths.max()))
            largest = max(largest, float(np.abs(vectors - mean).max()))
        missing = np.sqrt(max(longest**2 - shortest**2, 0) / EXTRA)
        unit = max(largest, float(missing), 1e-12) / LARGEST
        return Quantization(precision, mean, longest, unit)

    @property
    def size(self) -> int:
        """Numbers of a vector in the graph."""
        return len(self.mean) + EXTRA

    def vectors(self, vectors_ND: Array) -> Array:
        """(N, size) stored vectors as the graph holds them."""
        moved = vectors_ND - self.mean
        missing = np.sqrt(
            np.maximum(self.longest**2 - (moved.astype(np.float64) ** 2).sum(1), 0) / EXTRA
        )
        whole = np.concatenate([moved, np.repeat(missing[:, None], EXTRA, 1).astype(np.float32)], 1)
        if self.precision == "i8":
            return _to_int8(whole / np.float32(self.unit))
        return whole / np.float32(self.longest or 1)


def quantized_queries(queries_QD: Array, precision: str) -> Array:
    """(Q, D + EXTRA) queries as the graph reads them.

    Each is scaled by its largest number, which does not change which vectors are nearest.
    """
    count, size = queries_QD.shape
    whole = np.zeros((count, size + EXTRA), dtype=np.int8 if precision == "i8" else np.float32)
    largest = np.abs(queries_QD).max(1, keepdims=True)
    scaled = queries_QD / np.where(largest > 0, largest, 1)
    whole[:, :size] = _to_int8(scaled * LARGEST) if precision == "i8" else scaled
    return whole


def _to_int8(numbers: Array) -> Array:
    return np.clip(np.rint(numbers), -LARGEST, LARGEST).astype(np.int8)
