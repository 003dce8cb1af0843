"""Times as people write them, as numbers that grow."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.data.arrays import Array
from graphformers.data.columns import as_strings, is_text, make_column
from graphformers.data.problems import Locate, Problems
from graphformers.errors import InputError

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
FEW_SECONDS = 1e8  # since 1970: numbers below may count something else, such as years


class TimeColumn:
    """A column of times over many batches: all of them numbers, or all of them dates.

    A year among dates would else be a moment of 1970.
    """

    def __init__(self, *, seconds: bool = False) -> None:
        # every row needs a time, in seconds since 1970: then numbers and dates may stand together
        self.seconds = seconds
        self.kind: str | None = None  # "number" or "date", once it is known

    def read(
        self, column: pa.Array, name: str, path: Path, locate: Locate, problems: Problems
    ) -> tuple[Array, Array]:
        """Times as float64 (dates in seconds since 1970), not a number where there is none; and
        which rows are bad.

        Those are reported: rows that hold something else, and empty ones where times are needed.
        """
        try:
            numbers, dates = parse_times(column)
        except pa.ArrowNotImplementedError as error:
            raise InputError(
                f"{path}: the column {name!r} holds values of type {column.type}, expected "
                f"{EXPECTED[None]}"
            ) from error
        found = {"number": numbers, "date": dates}
        if self.kind is None:
            firsts = {
                kind: int(np.argmin(np.isnan(values)))
                for kind, values in found.items()
                if not np.isnan(values).all()
            }
            self.kind = min(firsts, key=firsts.__getitem__) if firsts else None
        times = found[self.kind] if self.kind else numbers
        if self.seconds:
            self.kind, times = None, np.where(np.isnan(dates), in_seconds(numbers), dates)
        bad = np.isnan(times) if self.seconds else np.isnan(times) & ~_is_empty(column)
        expected = (
            EXPECTED[self.kind]
            if (~np.isnan(numbers) | ~np.isnan(dates))[bad].any()
            else EXPECTED[None]
        )
        problems.report(
            "malformed row",
            bad,
            locate,
            lambda i: f"the time {column[i].as_py()!r}, expected {expected}",
        )
        return times, bad


def parse_times(column: pa.Array) -> tuple[Array, Array]:
    """(n,) float64 each: the values that are numbers, and those that are dates, in seconds since
    1970; else not a number.
    """
    nothing = np.full(len(column), np.nan)
    if pa.types.is_temporal(column.type):
        return nothing, _since_epoch(column)
    if not is_text(column.type):
        numbers = np.asarray(pc.fill_null(column.cast(pa.float64(), safe=False), np.nan))
        return np.where(np.isfinite(numbers), numbers, np.nan), nothing
    text = pc.fill_null(as_strings(column), "")
    numbers, dates = nothing.copy(), nothing.copy()
    is_number, is_date = (
        np.asarray(pc.match_substring_regex(text, pattern)) for pattern in (NUMBER, DATE)
    )
    numbers[is_number] = np.asarray(
        pc.utf8_trim_whitespace(text.filter(pa.array(is_number))).cast(pa.float64())
    )
    dates[is_date] = _parse_dates(text.filter(pa.array(is_date)))
    return np.where(np.isfinite(numbers), numbers, np.nan), dates


def _parse_dates(text: pa.Array) -> Array:
    """ISO 8601; a time without an offset is taken as UTC. Days that no month has are halved until
    they are alone.
    """
    # Arrow takes no more digits
    text = pc.replace_substring_regex(pc.utf8_trim_whitespace(text), r"(\.[0-9]{6})[0-9]+", r"\1")
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
        return (
            np.concatenate([_parse_dates(text[:half]), _parse_dates(text[half:])])
            if half
            else seconds
        )
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
    """Whether all that is there are times of one kind."""
    problems = Problems(strict=False)
    try:
        _, bad = TimeColumn().read(
            make_column(values), "times", Path("times"), lambda i: (Path("times"), i), problems
        )
    except InputError:
        return False
    return not bad.any()


def in_seconds(times: Array) -> Array:
    """Numbers that count milliseconds, microseconds or nanoseconds since 1970, told by the largest
    of them, in seconds.
    """
    size = float(np.nanmax(np.abs(times), initial=0.0))
    return times / next(
        (unit for least, unit in ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3)) if size >= least), 1.0
    )


def moment(value: float) -> str:
    """A time as people read it: a date where it counts seconds since 1970, else the number, such as
    a year.
    """
    if abs(value) < FEW_SECONDS:
        return f"{value:.12g}"
    (seconds,) = in_seconds(np.array([value]))
    return (
        np.datetime_as_string(np.datetime64(int(seconds * 1e6), "us"), unit="s")
        .replace("T", " ")
        .removesuffix(" 00:00:00")
    )
