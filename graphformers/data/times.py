"""Times as people write them, as numbers that grow."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.data.arrays import Array
from graphformers.data.columns import as_strings, is_text
from graphformers.data.problems import Locate, Problems
from graphformers.errors import InputError

TIME = "a number of seconds or a date and time such as 2024-05-01 12:30:00"
FEW_SECONDS = 1e7  # since 1970: whoever has no more counts something else, such as years


def read_times(column: pa.Array, name: str, path: Path, locate: Locate, problems: Problems) -> Array:
    """The times of a batch in seconds; what is no time is a bad row and not a number."""
    try:
        seconds = parse_times(column)
    except pa.ArrowNotImplementedError as error:
        raise InputError(f"{path}: the column {name!r} holds values of type {column.type}, expected {TIME}") from error
    bad = ~np.isfinite(seconds)
    problems.report("malformed row", bad, locate, lambda i: f"the time {column[i].as_py()!r}, expected {TIME}")
    return seconds


def parse_times(column: pa.Array) -> Array:
    """Seconds since 1970, nan where a value is no time. A column with one that is none is halved until that one is alone."""
    try:
        if pa.types.is_temporal(column.type):
            return _since_epoch(column)
        if not is_text(column.type):
            return _scaled(column)
        try:
            return _scaled(column.cast(pa.float64()))
        except pa.ArrowInvalid:
            return _parse_dates(as_strings(column))
    except pa.ArrowInvalid:
        half = len(column) // 2
        return np.concatenate([parse_times(column[:half]), parse_times(column[half:])]) if half else np.array([np.nan])


def _parse_dates(text: pa.Array) -> Array:
    """ISO 8601; a time without an offset is taken as UTC."""
    text = pc.replace_substring_regex(pc.utf8_trim_whitespace(text), r"(\.[0-9]{6})[0-9]+", r"\1")  # Arrow takes no more digits
    with_offset = pc.fill_null(pc.match_substring_regex(text, r":[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"), False)
    seconds = np.full(len(text), np.nan)
    for mask, kind in ((with_offset, pa.timestamp("us", "UTC")), (pc.invert(with_offset), pa.timestamp("us"))):
        seconds[np.asarray(mask)] = _since_epoch(text.filter(mask).cast(kind))
    return seconds


def _since_epoch(times: pa.Array) -> Array:
    moments = times.cast(pa.timestamp("us"), safe=False)
    return np.asarray(pc.fill_null(pc.divide(moments.cast(pa.int64()).cast(pa.float64()), 1e6), np.nan))


def _scaled(column: pa.Array) -> Array:
    """Numbers in seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by their size."""
    numbers = np.asarray(pc.fill_null(column.cast(pa.float64(), safe=False), np.nan))
    size = np.abs(numbers)
    return np.asarray(numbers / np.select([size >= 1e17, size >= 1e14, size >= 1e11], [1e9, 1e6, 1e3], 1.0))


def moment(value: float) -> str:
    """A time as people read it: a date where it counts seconds since 1970, else the number, such as a year."""
    if abs(value) < FEW_SECONDS:
        return f"{value:g}"
    return np.datetime_as_string(np.datetime64(int(value * 1e6), "us"), unit="s").replace("T", " ").removesuffix(" 00:00:00")
