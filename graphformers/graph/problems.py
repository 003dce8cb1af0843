"""Bad rows of input files: an error by default, counted and listed with `skip_bad`."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphformers.arrays import Array
from graphformers.errors import BadRowError, InputError
from graphformers.graph.settings import ImportSettings
from graphformers.places import JsonObject

# number of examples listed for each reason
EXAMPLES = 5
# placeholder for a second place in a detail
ELSEWHERE = "\0"

# offset and first line of a block of a file, and the row within that block
RowKey = tuple[int, int, int]


@dataclass(frozen=True)
class DeferredLine:
    """A row whose line is not known yet; `find` reads the file again for the lines of many rows."""

    find: Callable[[list[RowKey]], dict[RowKey, int]]
    row: RowKey


# a line number, a description such as "row 3", or a line yet to be found
Spot = int | str | DeferredLine
Place = tuple[Path, Spot]
# from the row of a batch to its file and line
Locate = Callable[[int], Place]


@dataclass(frozen=True)
class _Example:
    place: Place
    detail: str
    other: Place | None = None


class Problems:
    """Collects the bad rows of one import.

    With `strict` the first bad row is an error. Otherwise bad rows are left out and counted by
    reason, and the first few of each reason are listed.

    Attributes:
        counts: Number of bad rows by reason.
        normal: Number of rows left out that are normal for a format, such as citations of papers
            outside the data.
        unread: Columns of edges that are not used, in order.
        other_texts: For each column that was guessed to be the text, the other columns that could
            have been, in order.
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
            detail: The value given and the one expected.
            other: The place that replaces ELSEWHERE in `detail`.
            advice: The setting that accepts such rows, if there is one.
        """
        example = _Example(place, detail, other)
        if self.strict:
            raise BadRowError(_messages([example])[0], advice)
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
        """Adds the rows of a batch where `bad` is true; `detail` describes the problem of a row."""
        rows = np.flatnonzero(bad)
        for done, row in enumerate(rows.tolist()):
            if not self.wants_examples(reason):
                self.counts[reason] += len(rows) - done
                break
            self.add(reason, locate(row), detail(row), advice=advice)

    def examples(self) -> list[str]:
        """The messages of the listed problems. Their lines are found by reading each file once."""
        return _messages([example for group in self._examples.values() for example in group])

    def summary(self) -> JsonObject:
        """The counts and examples of rows that were left out, for the manifest."""
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
def advise_skipping() -> Iterator[None]:
    """Adds advice on leaving out or accepting bad rows to errors raised in a `with` block."""
    try:
        yield
    except BadRowError as error:
        advice = "; ".join(filter(None, [skipping(), error.advice]))
        raise InputError(f"{error} ({advice})") from error


def skipping() -> str:
    """Advice on leaving out bad rows."""
    return f"{ImportSettings.usage(skip_bad=True)} leaves such rows out and counts them"


def format_place(place: Place) -> str:
    """A place as text: file:line."""
    return _format_places([place])[place]


def _messages(examples: list[_Example]) -> list[str]:
    """The messages of some problems."""
    places = [place for each in examples for place in (each.place, each.other) if place]
    texts = _format_places(places)
    return [
        f"{texts[each.place]}: "
        + (each.detail.replace(ELSEWHERE, texts[each.other]) if each.other else each.detail)
        for each in examples
    ]


def _format_places(places: list[Place]) -> dict[Place, str]:
    """Places as text. All lines of a file are found by reading it once."""
    wanted: dict[Callable[[list[RowKey]], dict[RowKey, int]], list[RowKey]] = {}
    for _, spot in places:
        if isinstance(spot, DeferredLine):
            wanted.setdefault(spot.find, []).append(spot.row)
    lines = {find: find(rows) for find, rows in wanted.items()}
    texts = {}
    for path, spot in places:
        found = lines[spot.find][spot.row] if isinstance(spot, DeferredLine) else spot
        texts[path, spot] = f"{path}:{found}" if isinstance(found, int) else f"{path}, {found}"
    return texts
