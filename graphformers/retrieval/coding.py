"""Coding: vectors as the graph of near neighbours compares them, a byte a number where that keeps
their order.

The graph is made by inner products and needs vectors of one length, whatever lengths the stored
ones have. A stored x becomes (x - m, r, …, r): m is the mean of all, which changes every score of a
query by the same amount, and r makes up for what x - m lacks to the longest of all. It is spread
over several numbers, so that none of them is large. A query q becomes (q, 0, …, 0).

Without their mean the numbers of a vector are small and of one size, so bytes hold them well: half
the memory of float16, and the same recall from a walk that is nearly twice as fast, since most of
its time is waiting for memory. Where they do not, because a few numbers are far larger than the
rest, float16 is taken; whoever makes an index tries it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graphformers.arrays import Array, unit_rows
from graphformers.embedding.vectors import VectorStore

EXTRA = 32  # numbers over which the missing length is spread
LARGEST = 127
BLOCK = 65_536  # vectors at a time


@dataclass(frozen=True)
class Coding:
    """How a store's vectors are written into its graph of near neighbours."""

    precision: str  # "i8" or "f16"
    mean: Array
    longest: float  # of x - mean
    unit: float  # what 1 stands for in bytes

    @property
    def size(self) -> int:
        """Numbers of a vector in the graph."""
        return len(self.mean) + EXTRA

    def stored(self, vectors: Array) -> Array:
        """(N, size) of vectors as they are compared."""
        moved = vectors - self.mean
        missing = np.sqrt(
            np.maximum(self.longest**2 - (moved.astype(np.float64) ** 2).sum(1), 0) / EXTRA
        )
        whole = np.concatenate([moved, np.repeat(missing[:, None], EXTRA, 1).astype(np.float32)], 1)
        if self.precision == "i8":
            return to_bytes(whole / np.float32(self.unit))
        return whole / np.float32(self.longest or 1)


def to_bytes(numbers: Array) -> Array:
    return np.clip(np.rint(numbers), -LARGEST, LARGEST).astype(np.int8)


def asked(queries_QD: Array, precision: str) -> Array:
    """(Q, D + EXTRA) queries as the graph is asked; each is scaled by its largest number, which
    does not change who is near.
    """
    count, size = queries_QD.shape
    whole = np.zeros((count, size + EXTRA), dtype=np.int8 if precision == "i8" else np.float32)
    largest = np.abs(queries_QD).max(1, keepdims=True)
    scaled = queries_QD / np.where(largest > 0, largest, 1)
    whole[:, :size] = to_bytes(scaled * LARGEST) if precision == "i8" else scaled
    return whole


def coding_of(store: VectorStore, precision: str) -> Coding:
    """How to write a store's vectors: two passes over them.

    Nothing is clipped: the largest numbers are those of the longest vectors, which inner products
    find most often.
    """
    total = np.zeros(store.size)
    for vectors in compared_blocks(store):
        total += vectors.sum(0, dtype=np.float64)
    mean = (total / max(store.num_base, 1)).astype(np.float32)
    shortest, longest, largest = np.inf, 0.0, 0.0
    for vectors in compared_blocks(store):
        lengths = np.linalg.norm(vectors - mean, axis=1)
        shortest, longest = min(shortest, float(lengths.min())), max(longest, float(lengths.max()))
        largest = max(largest, float(np.abs(vectors - mean).max()))
    missing = np.sqrt(max(longest**2 - shortest**2, 0) / EXTRA)
    return Coding(precision, mean, longest, max(largest, float(missing), 1e-12) / LARGEST)


def compared(store: VectorStore, nodes: Array) -> Array:
    """(N, D) vectors of base nodes as they are compared: of length one, where angles are."""
    vectors = store.base_vectors(nodes)
    return unit_rows(vectors) if store.is_cosine else vectors


def compared_blocks(store: VectorStore) -> Iterator[Array]:
    for start in range(0, store.num_base, BLOCK):
        yield compared(store, np.arange(start, min(start + BLOCK, store.num_base)))
