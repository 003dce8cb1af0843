"""Tables of text, for terminals, notebooks, Markdown and JSON."""

import html
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

# zero-width characters inside words of some scripts and inside composed emoji
JOINERS = "\u200c\u200d"
# Wide enough that rich never wraps cells: lines that the terminal wraps are easier to read.
WIDTH = 1000


@dataclass(frozen=True)
class Table:
    """Rows of text under a header.

    Args:
        header: The names of the columns; empty for a table without a header.
        rows: The cells, row by row.
        title: A line above the table.
        notes: Lines below the table.
        bold: The cells to print in bold, as (row, column).

    Examples:
        >>> print(Table(["method", "P@1"], [["plm", "0.50"], ["graphformers", "0.63"]]))
        method        P@1
        plm           0.50
        graphformers  0.63
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()
    bold: frozenset[tuple[int, int]] = frozenset()

    def __str__(self) -> str:
        file = io.StringIO()
        self.print(file)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    def print(self, file: TextIO | None = None, *, gap: bool = False) -> None:
        """Prints the table with its title and notes.

        Args:
            file: Where to print, stdout by default. On a terminal the header is bold.
            gap: Whether a blank line separates the title from the cells.
        """
        # imported here, because importing rich is slow
        from rich.console import Console
        from rich.table import Table as Grid
        from rich.text import Text

        if self.title:
            print(self.title, end="\n\n" if gap else "\n", file=file)
        width = max((len(row) for row in (self.header, *self.rows)), default=0)
        grid = Grid(show_header=bool(self.header), box=None, padding=(0, 2, 0, 0))
        for name in self.header or [""] * width:
            grid.add_column(Text(printable(name)))
        for row in self.rows:
            grid.add_row(*(Text(printable(cell)) for cell in row))
        Console(file=file, soft_wrap=True, highlight=False, width=WIDTH).print(grid)
        for note in self.notes:
            print(note, file=file)

    def markdown(self) -> str:
        """The cells as a Markdown table, without title and notes."""
        lines = [_markdown_row(self.header), "|" + "---|" * len(self.header)]
        for i, row in enumerate(self.rows):
            lines.append(_markdown_row(row, {k for k in range(len(row)) if (i, k) in self.bold}))
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, object]:
        """Title, header and rows, for JSON."""
        return {
            "title": self.title,
            "header": list(self.header),
            "rows": [list(row) for row in self.rows],
        }

    def to_html(self) -> str:
        """The cells as an HTML table, escaped, without title and notes."""
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        body = ""
        for i, row in enumerate(self.rows):
            cells = ""
            for k, cell in enumerate(row):
                text = html.escape(cell)
                cells += f"<td><b>{text}</b></td>" if (i, k) in self.bold else f"<td>{text}</td>"
            body += f"<tr>{cells}</tr>"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _repr_html_(self) -> str:
        """The table with its title and notes, as HTML for notebooks."""
        title = f"<p><b>{html.escape(self.title)}</b></p>" if self.title else ""
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return title + self.to_html() + notes


class Result:
    """Base class of results that are shown as a table, on a terminal and in notebooks."""

    def as_table(self) -> Table:
        """The result as a table."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.as_table()._repr_html_()


def tables_html(tables: Iterable[Table]) -> str:
    """Several tables, one below the other, as HTML for notebooks."""
    return "\n".join(table._repr_html_() for table in tables)


def printable(text: str) -> str:
    """Replaces control characters by blanks, so that a text cannot control the terminal."""
    return "".join(letter if letter.isprintable() or letter in JOINERS else " " for letter in text)


def shorten(text: str, width: int = 100) -> str:
    """A text of at most `width` characters, without control characters."""
    text = printable(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def count_of(number: int, one: str, many: str) -> str:
    """A number and what it counts, such as "1 node" and "2,000 nodes"."""
    return f"{number:,} {one if number == 1 else many}"


def _markdown_row(cells: Sequence[str], bold: Iterable[int] = ()) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    marked = [f"**{cell}**" if k in bold else cell for k, cell in enumerate(escaped)]
    return "| " + " | ".join(marked) + " |"
