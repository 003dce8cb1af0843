"""Rows that are not what they should be: an error by default, counted and listed with `--skip-bad`."""

from collections import Counter
from pathlib import Path
from typing import Any

from graphformers.errors import InputError

MAX_EXAMPLES = 20


class Problems:
    """Collects what was wrong with the input of one import.

    `strict` raises at the first problem. Otherwise the row is left out, its reason counted and the first few are listed.
    What is normal for a format (a citation of a paper outside the data) goes through `normal` and never raises.
    """

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.counts: Counter[str] = Counter()
        self.examples: list[str] = []
        self.normal: Counter[str] = Counter()

    def add(self, reason: str, path: Path, place: str | int, detail: str) -> None:
        """`reason` groups the counts, `place` is a line number (or the words for one), `detail` says given and expected."""
        where = f"{path}:{place}" if isinstance(place, int) else f"{path}, {place}"
        if self.strict:
            raise InputError(f"{where}: {detail} (--skip-bad leaves such rows out and counts them)")
        self.counts[reason] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{where}: {detail}")

    @property
    def wants_examples(self) -> bool:
        """False once the list of examples is full: finding the line of a row can then be saved."""
        return self.strict or len(self.examples) < MAX_EXAMPLES

    def count(self, reason: str, number: int) -> None:
        """Counts more rows of a kind of which enough examples were listed."""
        self.counts[reason] += number

    def summary(self) -> dict[str, Any]:
        """For the manifest: what was left out and why."""
        return {"skipped": dict(self.counts), "skipped_examples": self.examples, "left_aside": dict(self.normal)}
