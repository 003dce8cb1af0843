"""Bad rows of input files: an error by default, counted and listed with `skip_bad`."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np

from graphformers.arrays import Array
from graphformers.errors import BadRowError, InputError
from graphformers.graph.settings import ImportSettings
from graphformers.records import JsonObject

logger = logging.getLogger(__name__)
# number of examples listed for each reason
EXAMPLES = 5
# A larger share of bad rows is probably a mistake in how the file is read.
LARGE_SHARE = 0.01

# a line number, or a description such as "row 3"
Spot = int | str
Place = tuple[Path, Spot]
# from the row of a batch to its file and line
Locate = Callable[[int], Place]


class Problems:
    """Collects the bad rows of one import.

    With `strict` the first bad row is an error. Otherwise bad rows are left out and counted by
    reason, and the first few of each reason are listed. All of them are written to the open file
    `bad_rows`, if it is given.

    Attributes:
        num_read: Number of rows of nodes and edges that are good.
        counts: Number of bad rows by reason.
        normal: Number of rows left out that are normal for a format, such as citations of papers
            outside the data.
        unread: Columns of edges that are not used, in order.
        other_texts: For each column that was guessed to be the text, the other columns that could
            have been, in order.
        like_numbers: For each column of text in which most values are numbers, one that is not
            written as a number.
    """

    def __init__(self, *, strict: bool, bad_rows: TextIO | None = None) -> None:
        self.strict = strict
        self.num_read = 0
        self.counts: Counter[str] = Counter()
        self.normal: Counter[str] = Counter()
        self.unread: dict[str, None] = {}
        self.other_texts: dict[str, dict[str, None]] = {}
        self.like_numbers: dict[str, str] = {}
        self._examples: dict[str, list[str]] = {}
        self._file = bad_rows

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
        if self._file is not None:
            path, spot = place
            row = {"file": str(path), "line": spot, "reason": reason, "detail": detail}
            self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        if self._lacks_examples(reason):
            self._examples.setdefault(reason, []).append(message)

    def wants_details(self, reason: str) -> bool:
        """Whether rows are listed or written; otherwise it is enough to count them."""
        return self.strict or self._file is not None or self._lacks_examples(reason)

    def _lacks_examples(self, reason: str) -> bool:
        return len(self._examples.get(reason, ())) < EXAMPLES

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
            if not self.wants_details(reason):
                self.counts[reason] += len(rows) - done
                break
            self.add(reason, locate(row), detail(row), advice=advice)

    def warn(self, advice: str = "") -> None:
        """Logs how many rows were left out, and the most common reason; nothing if none were.

        Args:
            advice: What else the user can do if they are many.
        """
        if not self.counts:
            return
        bad = self.counts.total()
        total = bad + self.num_read
        ((reason, count),) = self.counts.most_common(1)
        share = bad / total
        message = (
            f"left out {bad:,} of {total:,} rows ({float(f'{100 * share:.2g}'):g} %); the most "
            f"common reason is {reason} ({count:,})"
        )
        if reason in self._examples:
            message += f", such as {self._examples[reason][0]}"
        if share > LARGE_SHARE:
            message = (
                f"WARNING: {message}. So many bad rows may mean that the data are read in the "
                f"wrong way{advice}"
            )
        logger.warning(message)

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
        if self.like_numbers:
            found["like_numbers"] = self.like_numbers
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
    """A place as text: file:line. Bytes of a file's name that are not UTF-8 are escaped."""
    path, spot = place
    name = str(path).encode("utf-8", "backslashreplace").decode()
    return f"{name}:{spot}" if isinstance(spot, int) else f"{name}, {spot}"
