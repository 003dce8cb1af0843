"""Bad rows of input files: an error by default, counted and listed with `--skip-bad`."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphformers.data.arrays import Array
from graphformers.errors import BadRowError, InputError
from graphformers.places import JsonObject

SKIPPING = "--skip-bad leaves such rows out and counts them"
EXAMPLES = 5  # listed of each reason
ELSEWHERE = "\0"  # in a detail: where a second place comes in

RowKey = tuple[int, int, int]  # offset and first line of a block of a file, row of that block


@dataclass(frozen=True)
class LateLine:
    """A row whose line is found by reading its file again; `find` gives those of many rows."""

    find: Callable[[list[RowKey]], dict[RowKey, int]]
    row: RowKey


Spot = int | str | LateLine  # a line number, the words for one, or a line yet to be found
Place = tuple[Path, Spot]
Locate = Callable[[int], Place]  # row of a batch -> its file and line


@dataclass(frozen=True)
class _Example:
    place: Place
    detail: str
    other: Place | None = None


class Problems:
    """Collects what was wrong with the input of one import.

    With `strict` the first problem is an error. Otherwise the row is left out, its reason counted
    and the first few are listed.

    Attributes:
        counts: Number of bad rows by reason.
        normal: Number of rows left out that are normal for a format, such as citations of papers
            outside the data.
        unread: Columns of edges that have no meaning, in order.
        other_texts: For a column that was guessed to be the text: the others that could have been
            it, in order.
    """

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.counts: Counter[str] = Counter()
        self.normal: Counter[str] = Counter()
        self.unread: dict[str, None] = {}
        self.other_texts: dict[str, dict[str, None]] = {}
        self._examples: dict[str, list[_Example]] = {}

    def add(
        self,
        reason: str,
        place: Place,
        detail: str,
        other: Place | None = None,
        advice: str = "",
    ) -> None:
        """Adds one problem.

        Args:
            reason: The kind of problem, by which problems are counted.
            place: The file and line.
            detail: What was given and what was expected.
            other: The place that ELSEWHERE in `detail` stands for.
            advice: The setting that accepts such rows, if there is one.
        """
        example = _Example(place, detail, other)
        if self.strict:
            raise BadRowError(_worded([example])[0], advice)
        self.counts[reason] += 1
        if self.wants_examples(reason):
            self._examples.setdefault(reason, []).append(example)

    def wants_examples(self, reason: str) -> bool:
        """Whether more examples of a reason are listed; otherwise it is enough to count them."""
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
                self.counts[reason] += len(rows) - done
                break
            self.add(reason, locate(row), detail(row), advice=advice)

    def examples(self) -> list[str]:
        """The messages of the listed problems. Their lines are found by reading each file once."""
        return _worded([example for group in self._examples.values() for example in group])

    def summary(self) -> JsonObject:
        """What was left out and why, for the manifest."""
        found: JsonObject = {
            "skipped": dict(self.counts),
            "skipped_examples": self.examples(),
            "left_aside": dict(self.normal),
            "edge_columns_not_kept": list(self.unread),
        }
        if self.other_texts:
            found["other_texts"] = {name: list(each) for name, each in self.other_texts.items()}
        return found


@contextmanager
def told_of_skipping() -> Iterator[None]:
    """Adds to the error for a bad row how such rows can be left out or accepted."""
    try:
        yield
    except BadRowError as error:
        advice = "; ".join(filter(None, [SKIPPING, error.advice]))
        raise InputError(f"{error} ({advice})") from error


def words_for(place: Place) -> str:
    """A place as messages name it: file:line."""
    return _words_for([place])[place]


def _worded(examples: list[_Example]) -> list[str]:
    """The messages of some problems."""
    places = [place for each in examples for place in (each.place, each.other) if place]
    words = _words_for(places)
    return [
        f"{words[each.place]}: "
        + (each.detail.replace(ELSEWHERE, words[each.other]) if each.other else each.detail)
        for each in examples
    ]


def _words_for(places: list[Place]) -> dict[Place, str]:
    """Places as messages name them. The lines of a file are all found in one reading."""
    wanted: dict[Callable[[list[RowKey]], dict[RowKey, int]], list[RowKey]] = {}
    for _, spot in places:
        if isinstance(spot, LateLine):
            wanted.setdefault(spot.find, []).append(spot.row)
    lines = {find: find(rows) for find, rows in wanted.items()}
    words = {}
    for path, spot in places:
        found = lines[spot.find][spot.row] if isinstance(spot, LateLine) else spot
        words[path, spot] = f"{path}:{found}" if isinstance(found, int) else f"{path}, {found}"
    return words
