"""Node columns: values of any kind as Arrow arrays, the chunks of several files as one column,
names that do not clash.
"""

import json
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.data.arrays import one_chunk
from graphformers.errors import InputError

OURS = ("id", "text")
# A number as programs write it: no leading zero, no trailing one but in "1.0".
_NUMBER = r"^-?(?:0|[1-9][0-9]*)(?:\.0|\.[0-9]*[1-9])?(?:[eE][+-]?[0-9]+)?$"
MOST_DIGITS = 15  # significant ones that a 64-bit float keeps


class ColumnNames(dict[str, str]):
    """The names under which users' columns are kept: none is called like ours, nor like another.
    New ones may turn up late.
    """

    def __init__(self, names: Iterable[str] = (), ours: Sequence[str] = OURS) -> None:
        super().__init__()
        self.ours = ours
        # a column already called id_ stays that
        for name in sorted(dict.fromkeys(names), key=lambda name: name in ours):
            self[name]

    def __missing__(self, name: str) -> str:
        kept = f"{name}_" if name in self.ours else name
        while kept in self.values():
            kept += "_"
        self[name] = kept
        return kept


def is_missing(value: object) -> bool:
    """Whether a value says that there is none: None, or the NaN, NA or NaT of other libraries'
    tables.
    """
    if isinstance(value, numbers.Real):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def as_text(value: object) -> str | None:
    """A value as text: strings as they are, whole numbers without ".0", lists and the like as JSON;
    None where it is missing.
    """
    if isinstance(value, str):
        return value
    if is_missing(value):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, pa.Scalar):  # Python has none of the kind
        return (
            str(pc.cast(value, pa.large_string()).as_py())
            if pa.types.is_temporal(value.type)
            else repr(value)
        )
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except TypeError:  # keys that JSON does not have
        return str(value)


def text_column(values: Iterable[object]) -> pa.Array:
    """An array of strings."""
    return pa.array([as_text(value) for value in values], pa.large_string())


def make_column(values: Sequence[object]) -> pa.Array:
    """An array of the type of the values; text where they are of several types or too large for
    one.
    """
    kinds = set(map(type, values)) - {type(None)}
    if bool in kinds and len(kinds) > 1:  # Arrow would take False for 0.0
        return text_column(values)
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError):
        return text_column(values)


def python_values(column: pa.Array | pa.ChunkedArray) -> list[object]:
    """Values as Python has them; as Arrow's own where Python has none of the kind: nanoseconds,
    years after 9999.
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
    """Rows in any of the forms that Python has for tables, as an Arrow table; `what` they are, and
    an `example`, for messages.
    """
    try:
        if hasattr(rows, "__arrow_c_stream__"):
            table = pa.table(rows)
        elif isinstance(rows, Mapping):
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
            f"{what} that are no table given ({error}); expected a table, a list of dicts or a "
            f"dict of lists"
        ) from error
    twice = repeated(table.column_names)
    if twice is not None:
        raise InputError(f"the column {twice!r} stands twice in the {what} given")
    # pandas' row labels
    return table.select(
        [name for name in table.column_names if not name.startswith("__index_level_")]
    )


def repeated(names: list[str]) -> str | None:
    """The first name of a column that stands more than once."""
    return next((name for name in names if names.count(name) > 1), None)


def as_strings(column: pa.Array) -> pa.Array:
    """A column as strings with 64-bit offsets; NaN is no text."""
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return column if pa.types.is_large_string(column.type) else column.cast(pa.large_string())


def join_column(
    chunks: list[pa.Array | None],
    lengths: list[int],
    plain: list[bool],
    *,
    stays_text: bool = False,
) -> pa.Array:
    """One array from the chunks of a column; None where a file lacks it, `plain` where it came as
    untyped text.

    `stays_text`: plain text is text, whatever it looks like.

    The type is that of all chunks together, however they were cut: numbers of both kinds are
    floats, types that differ otherwise are widened by Arrow's rules, and what has no common type
    becomes text.
    """
    blanks = [
        _without_blanks(chunk) if flag and chunk is not None else None
        for chunk, flag in zip(chunks, plain, strict=True)
    ]
    guessed = (
        pa.large_string()
        if stays_text
        else _guess_type([blank for blank in blanks if blank is not None])
    )
    typed = [
        chunk if blank is None else _cast(blank, guessed)
        for chunk, blank in zip(chunks, blanks, strict=True)
    ]
    kind = _common_type([chunk.type for chunk in typed if chunk is not None])
    if kind is not None:
        try:
            return _concatenate(typed, lengths, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # a whole number that no float holds
            pass
    texts = [
        chunk if blank is None else blank for chunk, blank in zip(typed, blanks, strict=True)
    ]  # plain text as it was written
    return _concatenate(
        [None if text is None else _as_text_column(text) for text in texts],
        lengths,
        pa.large_string(),
    )


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
    if is_text(chunk.type):
        return as_strings(chunk)
    return text_column(python_values(chunk))


def _common_type(kinds: list[pa.DataType]) -> pa.DataType | None:
    """The type that holds all; None when there is none."""
    found = list(dict.fromkeys(_enlarged(kind) for kind in kinds if not pa.types.is_null(kind)))
    if not found:
        return pa.large_string()
    try:
        return (
            pa.unify_schemas(
                [pa.schema([("", kind)]) for kind in found], promote_options="permissive"
            )
            .field(0)
            .type
        )
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None


def _enlarged(kind: pa.DataType) -> pa.DataType:
    """With 64-bit offsets: chunks of strings with 32-bit ones cannot be joined beyond 2 GB; views
    cannot be taken.
    """
    if is_text(kind):
        return pa.large_string()
    if pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.large_list(_enlarged(kind.value_type))
    return kind


def _without_blanks(text: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(text, ""), None, text)


def _guess_type(chunks: list[pa.Array]) -> pa.DataType:
    """Columns of CSV files have no type: whole numbers, then numbers, then text, whichever can be
    written back as it was.
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
        numbers = text.cast(pa.float64())  # before the patterns: it stops at the first word
    except pa.ArrowInvalid:
        return False
    digits = pc.utf8_ltrim(pc.replace_substring_regex(text, r"[eE].*|[-.]", ""), "0")
    checks = (
        pc.is_finite(numbers),
        pc.match_substring_regex(text, _NUMBER),
        pc.less_equal(pc.utf8_length(digits), MOST_DIGITS),
    )
    return all(pc.all(check, min_count=0).as_py() for check in checks)
