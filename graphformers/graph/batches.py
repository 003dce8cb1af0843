"""Batches of rows, which readers of files pass to a GraphBuilder."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from graphformers.arrays import Array, one_chunk
from graphformers.errors import InputError
from graphformers.graph.columns import as_strings, repeated
from graphformers.graph.problems import Locate
from graphformers.graph.settings import ImportSettings


@dataclass(frozen=True)
class TableBatch:
    """Rows of a table.

    Attributes:
        columns: Columns of equal length, by name.
        locate: Returns the file and the line of a row.
        untyped: Columns of text that may stand for another type, such as those of a CSV file.
    """

    columns: dict[str, pa.Array]
    locate: Locate
    untyped: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def take(self, rows: Array) -> "TableBatch":
        """A batch of the given rows."""
        taken = pa.array(rows)
        columns = {name: column.take(taken) for name, column in self.columns.items()}
        return TableBatch(columns, lambda i: self.locate(int(rows[i])), self.untyped)


@dataclass(frozen=True)
class EdgeBatch:
    """Directed edges between ids.

    Attributes:
        sources: The id at which each edge starts, as strings.
        targets: The id at which each edge ends.
        locate: Returns the file and the line of an edge.
        types: The type of each edge; None where edges have none.
        times: float64: the time of each edge, NaN if unknown; None where edges have none.
        outside: Whether edges to nodes outside the data are normal, also where the format has none.
    """

    sources: pa.Array
    targets: pa.Array
    locate: Locate
    types: pa.Array | None = None
    times: Array | None = None
    outside: bool = False

    def __len__(self) -> int:
        return len(self.sources)


class Table(ABC):
    """A table of rows that is opened once and read once, such as a file.

    Its columns are known before its rows are read.

    Attributes:
        path: The file, for messages.
        names: The names of the columns.
        paths: Fields within columns that hold objects, such as doc.title. They are read where they
            are named.
        is_complete: Whether `names` lists all columns; a .jsonl file may have more.
    """

    path: Path
    names: list[str]
    paths: Sequence[str] = ()
    is_complete = True

    @property
    def fields(self) -> list[str]:
        """All names that a user may give: columns, and fields within them."""
        return [*self.names, *(path for path in self.paths if path not in self.names)]

    @abstractmethod
    def batches(
        self, only: list[str] | None, texts: Sequence[str] = (), required: Sequence[str] = ()
    ) -> Iterator[TableBatch]:
        """Yields the rows in batches. Called once.

        Args:
            only: The columns to read; None for all.
            texts: The columns to read as strings. A row is bad if a value is neither text nor a
                number.
            required: Fields that a JSON record must have. Other missing fields are null.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class MemoryTable(Table):
    """A table in memory, of which messages name the rows."""

    def __init__(self, path: Path, table: pa.Table) -> None:
        self.path, self.names = path, table.column_names
        self._table = table

    def batches(
        self, only: list[str] | None, texts: Sequence[str] = (), required: Sequence[str] = ()
    ) -> Iterator[TableBatch]:
        """Yields all rows in one batch; see `Table.batches`."""
        columns = {
            name: one_chunk(self._table[name]) for name in (self.names if only is None else only)
        }
        path = self.path
        for name in texts:
            try:
                columns[name] = as_strings(columns[name])
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InputError(
                    f"{path}: the column {name!r} holds values of type {columns[name].type}, "
                    f"expected text or numbers"
                ) from error
        yield TableBatch(columns, lambda i: (path, f"row {i + 1}"))

    def close(self) -> None:
        """Does nothing: nothing is open."""


def check_columns(names: Sequence[str], place: str, settings: ImportSettings) -> None:
    """Raises an error if a table has too many columns, or one of them twice."""
    if len(names) > settings.max_columns:
        raise InputError(
            f"{place}: {len(names):,} columns, expected at most {settings.max_columns:,}; "
            f"{ImportSettings.usage(max_columns=len(names))} allows more"
        )
    twice = repeated(names)
    if twice is not None:
        # Names of columns rarely have digits.
        is_data = settings.header and re.search(r"\d", twice)
        no_header = f"; or, if the first line is data, {ImportSettings.usage(header=False)}"
        raise InputError(
            f"{place}: the column {twice!r} occurs twice in the file, expected each once; rename "
            f"one of them{no_header if is_data else ''}"
        )


def line_locator(path: Path, lines: Sequence[int] | Array) -> Locate:
    """Returns a function that locates rows by the lines on which they start."""
    numbers = np.array(lines, dtype=np.int32)
    return lambda i: (path, int(numbers[i]))
