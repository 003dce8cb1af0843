"""Bad rows of input files: an error by default, counted and listed with `--skip-bad`."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from graphformers.arrays import Array
from graphformers.errors import BadRowError, InputError
from graphformers.places import JsonObject

SKIPPING = "--skip-bad leaves such rows out and counts them"
# number of examples listed for each reason
EXAMPLES = 5

# a line number, or a description such as "row 3"
Spot = int | str
Place = tuple[Path, Spot]
# from the row of a batch to its file and line
Locate = Callable[[int], Place]


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
        self._examples: dict[str, list[str]] = {}

    def add(
        self,
        reason: str,
        place: Place,
        detail: str,
        advice: str = "",
    ) -> None:
        """Adds one problem.

        Args:
            reason: The kind of problem, by which problems are counted.
            place: The file and line.
            detail: The value given and the one expected.
            advice: The setting that accepts such rows, if there is one.
        """
        message = f"{format_place(place)}: {detail}"
        if self.strict:
            raise BadRowError(message, advice)
        self.counts[reason] += 1
        if self.wants_examples(reason):
            self._examples.setdefault(reason, []).append(message)

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
        """The messages of the listed problems."""
        return [message for group in self._examples.values() for message in group]

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
        advice = "; ".join(filter(None, [SKIPPING, error.advice]))
        raise InputError(f"{error} ({advice})") from error


def format_place(place: Place) -> str:
    """A place as text: file:line."""
    path, spot = place
    return f"{path}:{spot}" if isinstance(spot, int) else f"{path}, {spot}"
