"""Records: one node or one edge at a time, gathered into the batches that a GraphBuilder takes."""

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from graphformers.data.arrays import Array
from graphformers.data.builder import GraphBuilder
from graphformers.data.columns import make_column
from graphformers.data.problems import Locate

BATCH = 65_536


class Records:
    """Feeds the records of one file to a builder: `with Records(builder, path, ["year"]) as
    records: records.add_node(…)`.
    """

    def __init__(self, builder: GraphBuilder, path: Path, columns: list[str] | None = None) -> None:
        self._builder, self._path = builder, path
        self._column_names = columns or []
        self._nodes: list[tuple[int, str, str, tuple[Any, ...]]] = []
        self._edges: list[tuple[int, str, str, str | None]] = []

    def add_node(self, line: int, id: str, text: str | None, *columns: Any) -> None:
        """A node found at `line`, with one value for each of the column names."""
        self._nodes.append((line, id, text or "", columns))
        if len(self._nodes) >= BATCH:
            self._flush_nodes()

    def add_edge(self, line: int, source: str, target: str, type: str | None = None) -> None:
        """A directed edge found at `line`; all edges of a file have a type, or none has."""
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
        columns = {
            name: make_column([row[i] for row in values])
            for i, name in enumerate(self._column_names)
        }
        self._builder.add_nodes(
            pa.array(ids), pa.array(texts), columns, self._locate(np.array(lines))
        )
        self._nodes = []

    def _flush_edges(self) -> None:
        if not self._edges:
            return
        lines, sources, targets, types = zip(*self._edges, strict=True)
        kinds = None if types[0] is None else pa.array(types, pa.string())
        self._builder.add_edges(
            pa.array(sources),
            pa.array(targets),
            kinds,
            self._locate(np.array(lines, dtype=np.int32)),
        )
        self._edges = []

    def _locate(self, lines: Array) -> Locate:
        path = self._path
        return lambda i: (path, int(lines[i]))
