"""Records: collects nodes and edges found one at a time into batches for a GraphBuilder."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from graphformers.graph.batches import EdgeBatch, TableBatch, line_locator
from graphformers.graph.builder import GraphBuilder
from graphformers.graph.columns import make_column
from graphformers.graph.importers.sources import read_lines
from graphformers.graph.settings import ImportSettings

BATCH = 65_536


class Records:
    """Feeds the records of one file to a builder.

    `with Records(builder, path, ["year"]) as records: records.add_node(…)`
    """

    def __init__(self, builder: GraphBuilder, path: Path, columns: list[str] | None = None) -> None:
        self._builder, self._path = builder, path
        self._column_names = columns or []
        self._nodes: list[tuple[int, str, str, tuple[object, ...]]] = []
        self._edges: list[tuple[int, str, str, str | None]] = []

    def lines(self, settings: ImportSettings) -> Iterator[tuple[int, str]]:
        """The lines of the file, with their numbers."""
        return read_lines(self._path, settings, self._builder.problems)

    def reject(self, line: int, detail: str, reason: str = "malformed row") -> None:
        """Reports a bad row; `detail` states the value given and the one expected."""
        self._builder.problems.add(reason, (self._path, line), detail)

    def add_node(self, line: int, id: str, text: str | None, *columns: object) -> None:
        """Adds a node found at `line`, with one value for each of the column names."""
        self._nodes.append((line, id, text or "", columns))
        if len(self._nodes) >= BATCH:
            self._flush_nodes()

    def add_edge(self, line: int, source: str, target: str, type: str | None = None) -> None:
        """Adds a directed edge found at `line`; all edges of a file have a type, or none has."""
        self._edges.append((line, source, target, type))
        if len(self._edges) >= BATCH:
            self._flush_edges()

    def __enter__(self) -> "Records":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._flush_nodes()
            self._flush_edges()

    def _flush_nodes(self) -> None:
        if not self._nodes:
            return
        lines, ids, texts, values = zip(*self._nodes, strict=True)
        columns = {"id": pa.array(ids), "text": pa.array(texts)}
        for i, name in enumerate(self._column_names):
            columns[name] = make_column([row[i] for row in values])
        self._builder.add_nodes(TableBatch(columns, line_locator(self._path, lines)))
        self._nodes = []

    def _flush_edges(self) -> None:
        if not self._edges:
            return
        lines, sources, targets, types = zip(*self._edges, strict=True)
        kinds = None if types[0] is None else pa.array(types, pa.string())
        self._builder.add_edges(
            EdgeBatch(pa.array(sources), pa.array(targets), line_locator(self._path, lines), kinds)
        )
        self._edges = []
