"""Node columns as Arrow arrays: conversion of values, joining of chunks, and distinct names."""

import json
import math
import numbers
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.arrays import one_chunk
from graphformers.errors import InputError
from graphformers.table import shorten

OURS = ("id", "text")
# A number as programs write it: without leading zeros, and without trailing ones except in "1.0".
_NUMBER = r"^-?(?:0|[1-9][0-9]*)(?:\.0|\.[0-9]*[1-9])?(?:[eE][+-]?[0-9]+)?$"
# A number as people write it, too.
_LIKE_NUMBER = r"^\s*[-+]?[0-9]+([.,][0-9]+)?\s*$"
# rows that tell whether a column holds numbers
ROWS_LOOKED_AT = 10_000
# significant digits that a 64-bit float represents exactly
MAX_DIGITS = 15


class ColumnNames(dict[str, str]):
    """Maps users' column names to stored names, distinct from ours and from each other.

    Looking up a new name adds it.
    """

    def __init__(self, names: Iterable[str] = (), ours: Sequence[str] = OURS) -> None:
        super().__init__()
        self.ours = ours
        self.add(names)

    def add(self, names: Iterable[str]) -> None:
        """Adds names.

        Those other than ours come first, so that a column named id_ keeps its name.
        """
        for name in sorted(dict.fromkeys(names), key=lambda name: name in self.ours):
            self[name]

    def __missing__(self, name: str) -> str:
        kept = f"{name}_" if name in self.ours else name
        while kept in self.values():
            kept += "_"
        self[name] = kept
        return kept


def is_missing(value: object) -> bool:
    """Whether a value is None, or the NaN, NA or NaT of another library."""
    if isinstance(value, numbers.Real):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def as_text(value: object) -> str | None:
    """A value as text, or None if it is missing.

    Strings are unchanged, whole numbers have no ".0", other values such as lists become JSON.
    """
    if isinstance(value, str):
        return value
    if is_missing(value):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    # a scalar of a type that Python does not have
    if isinstance(value, pa.Scalar):
        is_time = pa.types.is_temporal(value.type)
        return str(pc.cast(value, pa.large_string()).as_py()) if is_time else repr(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except TypeError:
        # A dict has keys that JSON does not support.
        return str(value)


def text_column(values: Iterable[object]) -> pa.Array:
    """An array of strings."""
    return pa.array([as_text(value) for value in values], pa.large_string())


def make_column(values: Sequence[object]) -> pa.Array:
    """An array of the type of the values; of text if they do not have a common type."""
    # A tensor of torch holds tensors.
    if hasattr(values, "numpy") and hasattr(values, "tolist"):
        values = values.tolist()
    kinds = set(map(type, values)) - {type(None)}
    # Arrow would convert False to 0.0.
    if bool in kinds and len(kinds) > 1:
        return text_column(values)
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError):
        return text_column(values)


def python_values(column: pa.Array | pa.ChunkedArray) -> list[object]:
    """Values as Python objects, or as Arrow scalars where Python has no such type.

    Python has no type for nanoseconds and for years after 9999.
    """
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_python_value(value) for value in column]


def _python_value(value: pa.Scalar) -> object:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return value


def table_in_memory(rows: Iterable[object], what: str, example: str) -> pa.Table:
    """Converts any kind of table in Python to an Arrow table.

    Args:
        rows: An Arrow table, a DataFrame, a dict of columns, or dicts.
        what: The plural name of the rows in messages, such as "nodes".
        example: A row, for messages.
    """
    try:
        if hasattr(rows, "__arrow_c_stream__"):
            table = pa.table(rows)
        elif isinstance(rows, Mapping):
            for name, values in rows.items():
                if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
                    raise InputError(
                        f"{what} given as a dict in which {name!r} is {shorten(repr(values))}, "
                        f"expected a list of the values of each column, or a list of dicts such as "
                        f"[{example}]"
                    )
            table = pa.table({name: make_column(values) for name, values in rows.items()})
        else:
            records: list[Mapping[str, object]] = []
            for row in rows:
                if not isinstance(row, Mapping):
                    raise InputError(
                        f"the {what.removesuffix('s')} {row!r} given, expected a dict such as "
                        f"{example}"
                    )
                records.append(row)
            seen = dict.fromkeys(name for record in records for name in record)
            table = pa.table(
                {name: make_column([record.get(name) for record in records]) for name in seen}
            )
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise InputError(
            f"{what} given that are not a table ({error}); expected a table, a list of dicts or a "
            f"dict of lists"
        ) from error
    twice = repeated(table.column_names)
    if twice is not None:
        raise InputError(f"the column {twice!r} occurs twice in the {what} given")
    # Columns named __index_level_… hold pandas' row labels.
    return table.select(
        [name for name in table.column_names if not name.startswith("__index_level_")]
    )


def repeated(names: Sequence[str]) -> str | None:
    """The first name that occurs more than once."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def as_strings(column: pa.Array) -> pa.Array:
    """A column as strings with 64-bit offsets; NaN becomes null."""
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return column if pa.types.is_large_string(column.type) else column.cast(pa.large_string())


def join_column(
    chunks: list[pa.Array | None],
    lengths: list[int],
    untyped: list[bool],
) -> pa.Array:
    """Joins the chunks of a column.

    The type depends on all values together, not on the boundaries of chunks: integers and floats
    become floats, other types are widened by Arrow's rules, and without a common type values become
    text.

    Args:
        chunks: The values of each batch; None where a batch has no such column.
        lengths: The number of rows of each batch.
        untyped: Whether each chunk is text that may stand for another type, such as that of a CSV
            file.
    """
    # Empty fields of untyped text are null.
    chunks = [
        pc.if_else(pc.equal(chunk, ""), None, chunk) if flag and chunk is not None else chunk
        for chunk, flag in zip(chunks, untyped, strict=True)
    ]
    guessed = _guess_type(
        [chunk for chunk, flag in zip(chunks, untyped, strict=True) if flag and chunk is not None]
    )
    typed = [
        _cast(chunk, guessed) if flag and chunk is not None else chunk
        for chunk, flag in zip(chunks, untyped, strict=True)
    ]
    kind = _common_type([chunk.type for chunk in typed if chunk is not None])
    if kind is not None:
        try:
            return _concatenate(typed, lengths, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # An integer is too large for a float.
            pass
    texts = [None if chunk is None else _as_text_column(chunk) for chunk in chunks]
    return _concatenate(texts, lengths, pa.large_string())


def find_no_number(column: pa.Array) -> str | None:
    """The first value that is not written as a number, if most values of a text column are numbers.

    The first rows decide whether most are.
    """
    if not is_text(column.type):
        return None
    known = column.slice(0, ROWS_LOOKED_AT).drop_null()
    num_numbers = pc.sum(pc.match_substring_regex(known, _LIKE_NUMBER), min_count=0).as_py()
    if 2 * num_numbers <= len(known):
        return None
    row = pc.index(pc.match_substring_regex(column, _NUMBER), False).as_py()
    return None if row < 0 else str(column[row].as_py())


def _concatenate(chunks: list[pa.Array | None], lengths: list[int], kind: pa.DataType) -> pa.Array:
    filled = [
        pa.nulls(length, kind) if chunk is None else _cast(chunk, kind)
        for chunk, length in zip(chunks, lengths, strict=True)
    ]
    return one_chunk(pa.chunked_array(filled, kind))


def _cast(chunk: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.nulls(len(chunk), kind) if chunk.null_count == len(chunk) else chunk.cast(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds texts."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _as_text_column(chunk: pa.Array) -> pa.Array:
    return as_strings(chunk) if is_text(chunk.type) else text_column(python_values(chunk))


def _common_type(kinds: list[pa.DataType]) -> pa.DataType | None:
    """The type to which all types can be widened; None if there is none."""
    found = dict.fromkeys(_enlarged(kind) for kind in kinds if not pa.types.is_null(kind))
    if not found:
        return pa.large_string()
    schemas = [pa.schema([("", kind)]) for kind in found]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None


def _enlarged(kind: pa.DataType) -> pa.DataType:
    """The type with 64-bit offsets instead of 32-bit offsets or views.

    With 32 bits, chunks cannot be joined beyond 2 GB. Views do not support `take`.
    """
    if is_text(kind):
        return pa.large_string()
    if pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.large_list(_enlarged(kind.value_type))
    return kind


def _guess_type(chunks: list[pa.Array]) -> pa.DataType:
    """The type of untyped text: integers, floats or text.

    Integers and floats are chosen only if all values can be written back unchanged.
    """
    if all(chunk.null_count == len(chunk) for chunk in chunks):
        return pa.null()
    if all(map(_are_whole, chunks)):
        return pa.int64()
    return pa.float64() if all(map(_are_numbers, chunks)) else pa.large_string()


def _are_whole(text: pa.Array) -> bool:
    try:
        return bool(text.cast(pa.int64()).cast(text.type).equals(text))
    except pa.ArrowInvalid:
        return False


def _are_numbers(text: pa.Array) -> bool:
    try:
        # The cast fails at the first word, so it comes before the slower patterns.
        numbers = text.cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    digits = pc.utf8_ltrim(pc.replace_substring_regex(text, r"[eE].*|[-.]", ""), "0")
    checks = (
        pc.is_finite(numbers),
        pc.match_substring_regex(text, _NUMBER),
        pc.less_equal(pc.utf8_length(digits), MAX_DIGITS),
    )
    return all(pc.all(check, min_count=0).as_py() for check in checks)
