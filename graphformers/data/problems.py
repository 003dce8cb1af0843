"""Rows that are not what they should be: an error by default, counted and listed with
`--skip-bad`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphformers.data.arrays import Array
from graphformers.errors import BadRowError, InputError

SKIPPING = "--skip-bad leaves such rows out and counts them"
EXAMPLES = 5  # listed of each reason
ELSEWHERE = "\0"  # in a detail: where a second place comes in

RowKey = tuple[int, int, int]  # offset and first line of a block of a file, row of that block


@dataclass(frozen=True)
class LateLine:
    """A row whose line costs a reading of its file: `find` gives the lines of many rows in one."""

    find: Callable[[list[RowKey]], dict[RowKey, int]]
    row: RowKey


Spot = int | str | LateLine  # a line number, the words for one, or a line yet to be found
Place = tuple[Path, Spot]
Locate = Callable[[int], Place]  # row of a batch -> its file and line


@dataclass(frozen=True)
class _Example:
    place: Place
    detail: str
    other: Place | None

    def worded(self, lines: dict[LateLine, int]) -> str:
        detail = (
            self.detail
            if self.other is None
            else self.detail.replace(ELSEWHERE, _where(self.other, lines))
        )
        return f"{_where(self.place, lines)}: {detail}"


class Problems:
    """Collects what was wrong with the input of one import.

    `strict` raises at the first problem. Otherwise the row is left out, its reason counted and the
    first few are listed. What is normal for a format (a citation of a paper outside the data) goes
    through `normal` and never raises.
    """

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.counts: Counter[str] = Counter()
        self.normal: Counter[str] = Counter()
        self.unread: dict[str, None] = {}  # columns of edges that mean nothing here, in their order
        # column guessed as the text -> others that could have been, in order
        self.other_texts: dict[str, dict[str, None]] = {}
        self._examples: dict[str, list[_Example]] = {}

    def add(
        self,
        reason: str,
        path: Path,
        spot: Spot,
        detail: str,
        other: Place | None = None,
        advice: str = "",
    ) -> None:
        """`reason` groups the counts, `detail` says given and expected; `other` is the place that
        ELSEWHERE in it stands for.

        `advice` names a setting that takes such rows, where there is one.
        """
        example = _Example((path, spot), detail, other)
        if self.strict:
            raise BadRowError(example.worded(_find_lines([example])), advice)
        self.counts[reason] += 1
        if self.wants_examples(reason):
            self._examples.setdefault(reason, []).append(example)

    def wants_examples(self, reason: str) -> bool:
        """False once enough examples of a reason are listed: locating and wording more can then be
        saved.
        """
        return self.strict or len(self._examples.get(reason, ())) < EXAMPLES

    def report(
        self,
        reason: str,
        bad: Array,
        locate: Locate,
        detail: Callable[[int], str],
        advice: str = "",
    ) -> None:
        """Adds the rows of a batch where `bad` is true; `detail` words the problem of one row."""
        rows = np.flatnonzero(bad)
        for done, row in enumerate(rows.tolist()):
            if not self.wants_examples(reason):
                self.count(reason, len(rows) - done)
                break
            path, spot = locate(row)
            self.add(reason, path, spot, detail(row), advice=advice)

    def count(self, reason: str, number: int) -> None:
        """Counts more rows of a kind of which enough examples were listed."""
        self.counts[reason] += number

    def summary(self) -> dict[str, Any]:
        """For the manifest: what was left out and why. The lines of the examples are found here, in
        one reading per file.
        """
        examples = [example for group in self._examples.values() for example in group]
        lines = _find_lines(examples)
        listed = [example.worded(lines) for example in examples]
        left = {"left_aside": dict(self.normal), "edge_columns_not_kept": list(self.unread)}
        left |= (
            {"other_texts": {name: list(others) for name, others in self.other_texts.items()}}
            if self.other_texts
            else {}
        )
        return {"skipped": dict(self.counts), "skipped_examples": listed} | left


@contextmanager
def told_of_skipping() -> Iterator[None]:
    """Lets the error for a bad row say what can be done with such rows."""
    try:
        yield
    except BadRowError as error:
        advice = "; ".join(filter(None, [SKIPPING, error.advice]))
        raise InputError(f"{error} ({advice})") from error


def words_for(place: Place) -> str:
    """A place as messages name it: file:line."""
    example = _Example(place, "", None)
    return _where(place, _find_lines([example]))


def _find_lines(examples: list[_Example]) -> dict[LateLine, int]:
    places = [
        place
        for example in examples
        for place in (example.place, example.other)
        if place is not None
    ]
    wanted: dict[Callable[[list[RowKey]], dict[RowKey, int]], list[RowKey]] = {}
    for _, spot in places:
        if isinstance(spot, LateLine):
            wanted.setdefault(spot.find, []).append(spot.row)
    return {
        LateLine(find, row): line
        for find, rows in wanted.items()
        for row, line in find(rows).items()
    }


def _where(place: Place, lines: dict[LateLine, int]) -> str:
    path, spot = place
    if isinstance(spot, LateLine):
        spot = lines[spot]
    return f"{path}:{spot}" if isinstance(spot, int) else f"{path}, {spot}"
