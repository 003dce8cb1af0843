"""Arrays in files, stable hashes, and compressed rows: used by graphs, splits and tokens."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from graphformers.errors import ArtifactError
from graphformers.records import ELSEWHERE, RESTORE

Array = NDArray[Any]


def save_array(path: Path, array: Array) -> None:
    """Writes a .npy file. numpy's own writer does not report that the disk is full."""
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        np.lib.format.write_array_header_2_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.reshape(-1).view(np.uint8).data)


def load_array(path: Path, kind: str = "number", ndim: int | None = None) -> Array:
    """Maps a .npy file into memory, read-only.

    Args:
        path: The file.
        kind: The type of its numbers, such as int64, or a class of types, such as integer.
        ndim: The number of its dimensions; None for any.

    Raises:
        ArtifactError: It is no such array.
    """
    try:
        # A plain array: indexing a memmap is slower.
        array = np.asarray(np.lib.format.open_memmap(path, mode="r"))
    except FileNotFoundError:
        raise
    # Any exception: numpy evaluates the header, and what is in it decides what is raised.
    except Exception as error:
        raise ArtifactError(f"{path}: not a .npy file of numbers ({error}); {RESTORE}") from error
    is_kind = np.issubdtype(array.dtype, getattr(np, kind)) and array.dtype.isnative
    if not is_kind or ndim not in (None, array.ndim):
        found = f"{array.dtype} in {array.ndim} dimensions"
        expected = kind if ndim is None else f"{kind} in {ndim}"
        raise ArtifactError(f"{path}: holds {found}, expected {expected}; {ELSEWHERE}")
    return array


def save_table(path: Path, table: pa.Table) -> None:
    """Writes an Arrow file with one chunk per column, so that rows are found by their offset."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write_batch(batch)


def load_table(path: Path) -> pa.Table:
    """Maps an Arrow file into memory.

    Its columns may refer to bytes outside of the file until `check_table` has been called.

    Raises:
        ArtifactError: It is not an Arrow file.
    """
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _not_a_table(path, error) from error


def check_table(path: Path, table: pa.Table) -> None:
    """Raises an ArtifactError if values of a table lie outside of its file, or are not Unicode."""
    try:
        table.validate(full=True)
    except pa.ArrowException as error:
        raise _not_a_table(path, error) from error


def _not_a_table(path: Path, error: Exception) -> ArtifactError:
    reason = (str(error).splitlines() or [""])[0]
    return ArtifactError(f"{path}: not a whole Arrow file ({reason}); {RESTORE}")


def check_rows(path: Path, indptr: Array, num_rows: int, length: int) -> None:
    """Raises an ArtifactError if `indptr`, of a file, does not divide an array into rows."""
    is_whole = len(indptr) == num_rows + 1 and indptr[0] == 0 and indptr[-1] == length
    if not is_whole or (indptr[1:] < indptr[:-1]).any():
        words = f"does not divide {length:,} entries into {num_rows:,} rows"
        raise ArtifactError(f"{path}: {words}; {ELSEWHERE}")


def check_range(path: Path, array: Array, stop: int) -> None:
    """Raises an ArtifactError if numbers of a file are not between 0 and `stop` - 1."""
    if array.size and not 0 <= array.min() <= array.max() < stop:
        words = f"holds {array.min():,} to {array.max():,}, expected 0 to {stop - 1:,}"
        raise ArtifactError(f"{path}: {words}; {ELSEWHERE}")


def one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as a single array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def is_unicode(text: str) -> bool:
    """Whether a text can be stored as UTF-8; one with a lone surrogate cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def hash_strings(strings: list[str]) -> Array:
    """A 64-bit hash of each string, the same on every machine and in every version (BLAKE2b)."""
    digests = [hashlib.blake2b(string.encode(), digest_size=8).digest() for string in strings]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def mix(*parts: Array | int) -> Array:
    """Combines 64-bit integers into one 64-bit hash, elementwise.

    The finalizer of splitmix64 is applied after each part. The order of the parts matters; arrays
    broadcast against each other.
    """
    state: Array = np.zeros(1, dtype=np.uint64)
    shape: tuple[int, ...] = ()
    for part in parts:
        value = np.asarray(part % 2**64 if isinstance(part, int) else part, dtype=np.uint64)
        shape = np.broadcast_shapes(shape, value.shape)
        state = state ^ value
        state += np.uint64(0x9E3779B97F4A7C15)
        shifted = state >> np.uint64(30)
        state ^= shifted
        state *= np.uint64(0xBF58476D1CE4E5B9)
        state ^= np.right_shift(state, np.uint64(27), out=shifted)
        state *= np.uint64(0x94D049BB133111EB)
        state ^= np.right_shift(state, np.uint64(31), out=shifted)
    return state.reshape(shape)


def uniform(hashes: Array) -> Array:
    """Uniform numbers in [0, 1) from 64-bit hashes."""
    return (hashes >> np.uint64(11)).astype(np.float64) / 2.0**53


def ranges(starts: Array, lengths: Array) -> Array:
    """The concatenation of range(start, start + length): flat indices of ragged rows."""
    total = int(lengths.sum())
    ends = np.cumsum(lengths)
    indices: Array = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return indices


def equal_parts(total: int, count: int) -> list[int]:
    """The boundaries of `count` parts of about the same size: each start, and the last end."""
    return [total * part // count for part in range(count + 1)]


def edge_keys(sources: Array, targets: Array) -> Array:
    """Each edge as one 64-bit number, source << 32 | target.

    Sorted keys are sorted by source, then by target.
    """
    keys = sources.astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= targets.astype(np.uint64)
    return keys


def pair_keys(ones: Array, others: Array) -> Array:
    """Each unordered pair as one 64-bit number: the key of the edge from the smaller node."""
    return edge_keys(np.minimum(ones, others), np.maximum(ones, others))


def compressed_rows(num_nodes: int, *keys: Array) -> tuple[Array, Array]:
    """The compressed rows of edges given as keys: sorted, without duplicates and self-loops.

    One sort of 64-bit keys is faster than sparse-matrix libraries (docs/decisions.md).

    Returns:
        indptr, int64, and indices, int32.
    """
    joined = np.concatenate(keys)
    joined.sort()
    keep = np.ones(len(joined), dtype=bool)
    keep[1:] = joined[1:] != joined[:-1]
    # the low 32 bits
    columns = joined.astype(np.uint32).view(np.int32)
    joined >>= np.uint64(32)
    rows = joined.astype(np.int32)
    keep &= rows != columns
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows[keep], minlength=num_nodes), out=indptr[1:])
    return indptr, columns[keep]


def are_linked(indptr: Array, indices: Array, nodes: Array, others_QC: Array) -> Array:
    """(Q, C): whether others_QC[q, c] is in the compressed row of nodes[q].

    All rows are searched at once, by binary search.
    """
    low = np.broadcast_to(indptr[nodes][:, None], others_QC.shape).copy()
    end = np.broadcast_to(indptr[nodes + 1][:, None], others_QC.shape)
    high = end.copy()
    last = len(indices) - 1
    if last < 0 or not low.size:
        return np.zeros(others_QC.shape, dtype=bool)
    for _ in range(int((high - low).max()).bit_length()):
        middle = (low + high) // 2
        below = (middle < high) & (indices[np.minimum(middle, last)] < others_QC)
        low = np.where(below, middle + 1, low)
        high = np.where(below, high, middle)
    found: Array = (low < end) & (indices[np.minimum(low, last)] == others_QC)
    return found


def unit_rows(vectors: Array) -> Array:
    """Rows scaled to length one, float32; rows of zeros stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)
