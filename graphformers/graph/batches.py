"""Batches of rows, which readers of files pass to a GraphBuilder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphformers.arrays import Array
from graphformers.graph.problems import Locate


@dataclass(frozen=True)
class TableBatch:
    """Rows of a table.

    Attributes:
        columns: Columns of equal length, by name.
        locate: Returns the file and the line of a row.
    """

    columns: dict[str, pa.Array]
    locate: Locate

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def take(self, rows: Array) -> "TableBatch":
        """A batch of the given rows."""
        taken = pa.array(rows)
        columns = {name: column.take(taken) for name, column in self.columns.items()}
        return TableBatch(columns, lambda i: self.locate(int(rows[i])))


@dataclass(frozen=True)
class EdgeBatch:
    """Directed edges between ids.

    Attributes:
        sources: The id at which each edge starts, as strings.
        targets: The id at which each edge ends.
        locate: Returns the file and the line of an edge.
        types: The type of each edge; None where edges have none.
        times: float64: the time of each edge, NaN if unknown; None where edges have none.
    """

    sources: pa.Array
    targets: pa.Array
    locate: Locate
    types: pa.Array | None = None
    times: Array | None = None

    def __len__(self) -> int:
        return len(self.sources)

    def take(self, rows: Array) -> "EdgeBatch":
        """A batch of the given edges."""
        taken = pa.array(rows)
        return EdgeBatch(
            self.sources.take(taken),
            self.targets.take(taken),
            lambda i: self.locate(int(rows[i])),
            None if self.types is None else self.types.take(taken),
            None if self.times is None else self.times[rows],
        )


def line_locator(path: Path, lines: Sequence[int]) -> Locate:
    """Returns a function that locates rows by the lines on which they start."""
    numbers = np.array(lines, dtype=np.int32)
    return lambda i: (path, int(numbers[i]))
