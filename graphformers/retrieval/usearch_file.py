"""The file of usearch's HNSW graph, checked before it is mapped into memory.

usearch trusts the numbers in its files: wrong ones make it read outside the map, which ends the
process. A file (version 2, little-endian) has the parts

    vectors   rows and bytes per row (uint32 each), then the rows
    head      64 bytes: "usearch", version, kinds of metric, number, key and slot, numbers of
              vectors
    sizes     vectors, links of a node above the lowest layer, links in it, highest layer, and the
              node where every search starts (uint64 each)
    layers    the highest layer of each node (int16)
    nodes     key (uint64), highest layer (int16), then for each layer from the lowest: the number
              of links (uint32), and room for that many (uint32 each)

Shapes: N nodes, L links of a node.
"""

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np

# Not from graphformers.arrays: index worker processes start without torch.
Array = np.ndarray[Any, Any]

MAGIC, VERSION = b"usearch", 2
MATRIX, HEAD, SIZES = struct.Struct("<II"), struct.Struct("<7sHHHBBBBQQQ?"), struct.Struct("<QQQQQ")
HEAD_BYTES = 64
# usearch's codes of "ip", of its types of numbers, and of the types of keys and slots.
INNER_PRODUCT, KEY, SLOT = ord("i"), 14, 15
PRECISIONS = {"i8": (23, 1), "f16": (12, 2)}
NODE_HEAD_BYTES = 8 + 2
BLOCK = 65_536


class DamagedFileError(Exception):
    """A file of an HNSW graph that usearch must not map."""


def check_file(path: Path, *, count: int, size: int, precision: str, connectivity: int) -> None:
    """Raises an error unless a file holds a whole HNSW graph of the expected vectors.

    Args:
        path: The file.
        count: The expected number of vectors; their keys are 0 … count - 1.
        size: The expected numbers of a vector.
        precision: The expected type of numbers, "i8" or "f16".
        connectivity: The expected links of a node above the lowest layer.

    Raises:
        DamagedFileError: It does not.
    """
    with path.open("rb") as file:
        try:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # Empty files cannot be mapped.
        except ValueError as error:
            raise DamagedFileError(str(error)) from error
        _check(np.frombuffer(content, dtype=np.uint8), count, size, precision, connectivity)


def _check(data: Array, count: int, size: int, precision: str, connectivity: int) -> None:
    code, itemsize = PRECISIONS[precision]
    start = MATRIX.size + count * size * itemsize
    if len(data) < start + HEAD_BYTES + SIZES.size + 2 * count:
        raise DamagedFileError(f"{len(data):,} bytes, too few for {count:,} vectors")
    if MATRIX.unpack_from(data.data) != (count, size * itemsize):
        raise DamagedFileError(f"expected {count:,} vectors of {size * itemsize} bytes")
    magic, version, _, _, *kinds, present, deleted, numbers, is_multi = HEAD.unpack_from(
        data.data, start
    )
    if (magic, version) != (MAGIC, VERSION):
        raise DamagedFileError(f"expected version {VERSION} of usearch's format")
    if kinds != [INNER_PRODUCT, code, KEY, SLOT] or is_multi:
        raise DamagedFileError(f"expected inner products of {precision}")
    if (present, deleted, numbers) != (count, 0, size):
        raise DamagedFileError(f"expected {count:,} vectors of {size} numbers")
    start += HEAD_BYTES
    nodes, upper, lowest, highest, entry = SIZES.unpack_from(data.data, start)
    if (nodes, upper, lowest) != (count, connectivity, 2 * connectivity):
        raise DamagedFileError(f"expected {count:,} nodes with {connectivity} links")
    start += SIZES.size
    layers_N = data[start : start + 2 * count].view("<i2").astype(np.int64)
    if count and not (layers_N.min() >= 0 and entry < count and layers_N[entry] == highest):
        raise DamagedFileError("wrong layers")
    sizes_N = NODE_HEAD_BYTES + 4 * (1 + lowest) + layers_N * 4 * (1 + upper)
    starts_N = start + 2 * count + np.concatenate([[0], np.cumsum(sizes_N)])
    if starts_N[-1] != len(data):
        raise DamagedFileError(f"{len(data):,} bytes, expected {starts_N[-1]:,}")
    _check_heads(data, starts_N[:-1], layers_N)
    _check_links(data, starts_N[:-1] + NODE_HEAD_BYTES, lowest, layers_N, 0)
    for layer in range(1, int(highest) + 1):
        there = np.flatnonzero(layers_N >= layer)
        skipped = NODE_HEAD_BYTES + 4 * (1 + lowest) + (layer - 1) * 4 * (1 + upper)
        _check_links(data, starts_N[there] + skipped, upper, layers_N, layer)


def _check_heads(data: Array, starts_N: Array, layers_N: Array) -> None:
    """Every node has a key of its own, and the layer that the list of layers says."""
    is_known = np.zeros(len(starts_N), dtype=bool)
    for begin in range(0, len(starts_N), BLOCK):
        heads = _windows(data, NODE_HEAD_BYTES)[starts_N[begin : begin + BLOCK]]
        keys = heads[:, :8].copy().view("<u8")[:, 0]
        if keys.max(initial=0) >= len(starts_N):
            raise DamagedFileError("a key beyond the last vector")
        is_known[keys.astype(np.int64)] = True
        layers = heads[:, 8:].copy().view("<i2")[:, 0]
        if not np.array_equal(layers, layers_N[begin : begin + BLOCK]):
            raise DamagedFileError("wrong layers")
    if not is_known.all():
        raise DamagedFileError("a key twice")


def _check_links(data: Array, starts: Array, most: int, layers_N: Array, layer: int) -> None:
    """The links of nodes in one layer lead to nodes that have this layer."""
    # A copy of a whole page of nodes is faster than a look at each.
    for begin in range(0, len(starts), BLOCK):
        rows = _windows(data, 4 * (1 + most))[starts[begin : begin + BLOCK]].view("<u4")
        counts, links = rows[:, :1], rows[:, 1:]
        if counts.max(initial=0) > most:
            raise DamagedFileError("more links than there is room for")
        links = links[np.arange(most) < counts]
        if links.max(initial=0) >= len(layers_N) or (layers_N[links] < layer).any():
            raise DamagedFileError("a link to a node that is not there")


def _windows(data: Array, size: int) -> Array:
    """All runs of `size` bytes, by where they start; nothing is copied."""
    return np.lib.stride_tricks.sliding_window_view(data, size)
