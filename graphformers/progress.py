"""Progress of long work on stderr.

A terminal shows a bar; elsewhere a line is printed every ten seconds. Short work shows nothing.
"""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

QUIET_SECONDS = 1.0
LINE_SECONDS = 10.0
_silent = False


def be_silent() -> None:
    """Disables progress and messages below warnings, for all processes of a run but the first."""
    global _silent
    _silent = True
    logging.getLogger("graphformers").setLevel(logging.WARNING)


class Progress:
    """Counts work towards `total` units and shows it. Use `progress` to make one."""

    def __init__(self, title: str, total: float | None, unit: str) -> None:
        self.title, self.total, self.unit = title, total, unit
        self.done = 0.0
        # Work of an earlier run, which does not count in the rate.
        self.initial = 0.0
        self.records = 0
        # shown at the end of the line
        self.note = ""
        # remaining seconds, where the caller knows them better than from the rate
        self.seconds_left: float | None = None
        self._started = self._shown = time.monotonic()
        self._bar: _Bar | None = None

    def advance(self, amount: float = 1, records: int = 0) -> None:
        """Adds units of work, and records (such as lines of a file that is measured in bytes)."""
        self.update(self.done + amount, records)

    def skip(self, amount: float) -> None:
        """Counts work of an earlier run."""
        self.done = self.initial = amount

    def update(self, done: float, records: int = 0) -> None:
        """Sets the units done so far and adds `records`."""
        self.done = done
        self.records += records
        now = time.monotonic()
        if _silent:
            return
        if self._bar is not None:
            self._bar.show(self)
        elif sys.stderr.isatty():
            if now - self._started > QUIET_SECONDS:
                self._bar = _Bar(self)
        elif now - self._shown > LINE_SECONDS:
            self._shown = now
            print(f"{self.title}: {self.line(now - self._started)}", file=sys.stderr, flush=True)

    def line(self, seconds: float) -> str:
        """Share, amount, rate and remaining time as text."""
        rate = (self.done - self.initial) / max(seconds, 1e-9)
        parts = [f"{amount(self.done, self.unit)}", f"{amount(rate, self.unit)}/s"]
        if self.records:
            parts.insert(0, f"{self.records:,} records")
        if self.total:
            parts.insert(0, f"{100 * self.done / self.total:.0f} %")
            left = self.seconds_left
            if left is None:
                left = (self.total - self.done) / max(rate, 1e-9)
            parts.append(f"{clock(left)} left")
        if self.note:
            parts.append(self.note)
        return ", ".join(parts)

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.close()


class _Bar:
    """The progress bar of a `Progress` on a terminal, drawn by rich."""

    def __init__(self, owner: Progress) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}"))
        self._rich = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._rich.add_task(owner.title, total=owner.total, line="")
        self._started = owner._started
        self._rich.start()
        self.show(owner)

    def show(self, owner: Progress) -> None:
        line = owner.line(time.monotonic() - self._started)
        self._rich.update(self._task, completed=owner.done, line=line)

    def close(self) -> None:
        self._rich.stop()


def clock(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    hours, rest = divmod(max(int(seconds), 0), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def amount(value: float, unit: str) -> str:
    """An amount of a unit as 1,234 nodes; bytes as 1.2 MB."""
    if unit != "B":
        return f"{value:,.0f} {unit}"
    for prefix in ("", "k", "M"):
        if value < 1000:
            return f"{value:.{0 if not prefix else 1}f} {prefix}B"
        value /= 1000
    return f"{value:.2f} GB"


@contextmanager
def progress(title: str, total: float | None = None, unit: str = "") -> Iterator[Progress]:
    """Shows the progress of a `with` block.

    Args:
        title: The name of the work, such as "Reading".
        total: The units of work, if known.
        unit: The name of a unit, such as "rows"; "B" for bytes.

    Examples:
        >>> with progress("Reading", 100, "rows") as task:
        ...     task.advance()
    """
    task = Progress(title, total, unit)
    try:
        yield task
    finally:
        task.close()
