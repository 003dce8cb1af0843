"""Times in files: numbers, and dates converted to seconds since 1970, as float64."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.arrays import Array
from graphformers.errors import InputError
from graphformers.graph.columns import as_strings, is_text, make_column
from graphformers.graph.problems import Locate, Problems

NUMBER = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$"
DATE = (
    r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}([ "
    r"T][0-9]{2}(:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?)?)?\s*(Z|[-+][0-9]{2}(:?[0-9]{2})?)?\s*$"
)
OFFSET = r":[0-9]{2}(\.[0-9]+)?\s*(Z|[-+][0-9]{2}(:?[0-9]{2})?)\s*$"
EXPECTED = {
    None: "a number of seconds or a date and time such as 2024-05-01 12:30:00",
    "number": "a number, as the times before it are",
    "date": "a date and time such as 2024-05-01 12:30:00, as the times before it are",
}
# Smaller numbers may not be seconds since 1970, but years for example.
MIN_SECONDS = 1e8


class TimeColumn:
    """A column of times over many batches: all of them numbers, or all of them dates.

    They may not be mixed, since a year among dates would be taken for seconds since 1970.

    Args:
        seconds: Whether every row needs a time in seconds since 1970. Numbers and dates may then be
            mixed.
    """

    def __init__(self, *, seconds: bool = False) -> None:
        self.seconds = seconds
        # "number" or "date", once it is known
        self.kind: str | None = None

    def read(
        self, column: pa.Array, name: str, path: Path, locate: Locate, problems: Problems
    ) -> tuple[Array, Array]:
        """Reads the times of a batch and reports invalid ones.

        Empty rows are invalid only if `seconds` is set.

        Returns:
            The times, NaN for missing ones, and a mask of invalid rows.
        """
        try:
            numbers, dates = parse_times(column)
        except pa.ArrowNotImplementedError as error:
            raise InputError(
                f"{path}: the column {name!r} holds values of type {column.type}, expected "
                f"{EXPECTED[None]}"
            ) from error
        found = {"number": numbers, "date": dates}
        is_time = ~np.isnan(numbers) | ~np.isnan(dates)
        if self.seconds:
            times = np.where(np.isnan(dates), in_seconds(numbers), dates)
            bad = np.isnan(times)
        else:
            if self.kind is None and is_time.any():
                self.kind = "date" if np.isnan(numbers[is_time.argmax()]) else "number"
            times = found[self.kind or "number"]
            bad = np.isnan(times) & ~_is_empty(column)
        expected = EXPECTED[self.kind if is_time[bad].any() else None]
        problems.report(
            "malformed row",
            bad,
            locate,
            lambda i: f"the time {column[i].as_py()!r}, expected {expected}",
        )
        return times, bad


def parse_times(column: pa.Array) -> tuple[Array, Array]:
    """Parses numbers and dates.

    Returns:
        Two arrays (n,) of float64, NaN for other values: the numbers, and the dates in seconds
        since 1970.
    """
    numbers, dates = np.full(len(column), np.nan), np.full(len(column), np.nan)
    if pa.types.is_temporal(column.type):
        dates = _since_epoch(column)
    elif not is_text(column.type):
        numbers = np.asarray(pc.fill_null(column.cast(pa.float64(), safe=False), np.nan))
    else:
        text = pc.fill_null(pc.utf8_trim_whitespace(as_strings(column)), "")
        is_number = pc.match_substring_regex(text, NUMBER)
        is_date = pc.match_substring_regex(text, DATE)
        numbers[np.asarray(is_number)] = np.asarray(text.filter(is_number).cast(pa.float64()))
        dates[np.asarray(is_date)] = _parse_dates(text.filter(is_date))
    return np.where(np.isfinite(numbers), numbers, np.nan), dates


def _parse_dates(text: pa.Array) -> Array:
    """Parses ISO 8601; a time without an offset is taken as UTC.

    Arrow refuses all dates if one does not exist, so the array is halved until that one is found.
    """
    # Arrow supports at most six digits.
    text = pc.replace_substring_regex(text, r"(\.[0-9]{6})[0-9]+", r"\1")
    with_offset = pc.match_substring_regex(text, OFFSET)
    seconds = np.full(len(text), np.nan)
    try:
        for mask, kind in (
            (with_offset, pa.timestamp("us", "UTC")),
            (pc.invert(with_offset), pa.timestamp("us")),
        ):
            seconds[np.asarray(mask)] = _since_epoch(text.filter(mask).cast(kind))
    except pa.ArrowInvalid:
        half = len(text) // 2
        if half:
            return np.concatenate([_parse_dates(text[:half]), _parse_dates(text[half:])])
    return seconds


def _since_epoch(times: pa.Array) -> Array:
    moments = times.cast(pa.timestamp("us"), safe=False)
    return np.asarray(
        pc.fill_null(pc.divide(moments.cast(pa.int64()).cast(pa.float64()), 1e6), np.nan)
    )


def _is_empty(column: pa.Array) -> Array:
    if not is_text(column.type):
        empty = column.is_null(nan_is_null=pa.types.is_floating(column.type))
    else:
        empty = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(as_strings(column)), ""), True)
    return np.asarray(empty.to_numpy(zero_copy_only=False))


def are_times(values: Sequence[object]) -> bool:
    """Whether all values are times of one kind; missing ones are ignored."""
    problems = Problems(strict=False)
    try:
        _, bad = TimeColumn().read(
            make_column(values), "times", Path("times"), lambda i: (Path("times"), i), problems
        )
    except InputError:
        return False
    return not bad.any()


def in_seconds(times: Array) -> Array:
    """Converts milliseconds, microseconds or nanoseconds since 1970 to seconds.

    The unit is guessed from the largest number.
    """
    largest = float(np.nanmax(np.abs(times), initial=0.0))
    for least, unit in ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3)):
        if largest >= least:
            return times / unit
    return times


def format_time(value: float) -> str:
    """A time as text: a date if it may be seconds since 1970, else the number, such as a year."""
    if abs(value) < MIN_SECONDS:
        return f"{value:.12g}"
    (seconds,) = in_seconds(np.array([value]))
    return (
        np.datetime_as_string(np.datetime64(int(seconds * 1e6), "us"), unit="s")
        .replace("T", " ")
        .removesuffix(" 00:00:00")
    )
