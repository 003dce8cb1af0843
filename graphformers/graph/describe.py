"""Descriptions of graphs, for `info`, and reports of imports, for `import`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict

import numpy as np
import pyarrow.compute as pc

from graphformers.arrays import Array, mix
from graphformers.graph.textgraph import TextGraph
from graphformers.graph.times import format_time
from graphformers.places import JsonObject
from graphformers.table import Result, Table, shorten

PERCENTILES = (5, 25, 50, 75, 95, 99, 100)
# Sample nodes, neighbours of each, and edge types that are listed.
NUM_SAMPLES = 5
NUM_TYPES = 6


class Neighbor(TypedDict):
    """Id and text of a node."""

    id: str
    text: str


class Sample(Neighbor):
    """A sample node with some of its neighbours."""

    degree: int
    neighbors: list[Neighbor]


@dataclass(frozen=True)
class GraphDescription(Result):
    """Counts, percentiles, columns and sample nodes of a graph. Made by `describe_graph`.

    Attributes:
        nodes: Number of nodes.
        pairs: Number of linked pairs.
        edges: Number of edges, as they were given.
        isolated: Number of nodes without a link.
        mean_degree: Mean number of neighbours.
        degree_percentiles: Percentiles of the number of neighbours.
        words_percentiles: Percentiles of the number of words of a text.
        columns: Type of each node column.
        edge_types: Number of edges of each type.
        edge_times: The earliest and the latest time; empty where edges have no times.
        self_loops: Number of edges from a node to itself.
        left_aside: Number of rows that are left out as is normal for the format, by their kind.
        edge_columns_not_kept: Edge columns that the import did not keep.
        skipped: Number of bad rows by reason.
        skipped_examples: Some of their error messages.
        samples: Some nodes with their neighbours.
    """

    nodes: int
    pairs: int
    edges: int
    isolated: int
    mean_degree: float
    degree_percentiles: Mapping[str, int]
    words_percentiles: Mapping[str, int]
    columns: Mapping[str, str]
    edge_types: Mapping[str, int]
    edge_times: Sequence[float]
    self_loops: int
    left_aside: Mapping[str, int]
    edge_columns_not_kept: Sequence[str]
    skipped: Mapping[str, int]
    skipped_examples: Sequence[str]
    samples: Sequence[Sample]

    def to_dict(self) -> JsonObject:
        """All fields, for JSON."""
        return asdict(self)

    def as_table(self) -> Table:
        """The counts and percentiles, with the sample nodes as notes."""
        names = ("nodes", "pairs", "edges", "isolated", "mean_degree")
        rows = [(name.replace("_", " "), f"{getattr(self, name):,}") for name in names]
        rows += [(kind, f"{number:,}") for kind, number in self.left_aside.items()]
        rows += [(f"skipped: {reason}", f"{number:,}") for reason, number in self.skipped.items()]
        if self.edge_columns_not_kept:
            rows.append(("not kept of the edges", ", ".join(self.edge_columns_not_kept)))
        columns = ", ".join(f"{name} ({type})" for name, type in self.columns.items())
        rows.append(("node columns", columns or "none"))
        types = sorted(self.edge_types.items(), key=lambda item: -item[1])
        listed = ", ".join(f"{name or 'untyped'} {count:,}" for name, count in types[:NUM_TYPES])
        more = " …" if len(types) > NUM_TYPES else ""
        rows.append(("edge types", listed + more or "none"))
        if self.edge_times:
            rows.append(("edge times", " to ".join(map(format_time, self.edge_times))))
        return Table((), [*rows, *self._percentile_rows()], notes=self._sample_lines())

    def _percentile_rows(self) -> list[tuple[str, str]]:
        """Percentiles of degree and words, aligned in one cell each."""
        rows = {
            "percentile": list(self.degree_percentiles),
            "degree": [f"{value:,}" for value in self.degree_percentiles.values()],
            "words": [f"{value:,}" for value in self.words_percentiles.values()],
        }
        widths = [max(map(len, column)) for column in zip(*rows.values(), strict=True)]
        return [
            (name, "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)))
            for name, cells in rows.items()
        ]

    def _sample_lines(self) -> list[str]:
        lines = []
        for sample in self.samples:
            lines += ["", f"{_shown(sample)}  [{sample['degree']} neighbours]"]
            lines += [f"    {_shown(neighbor)}" for neighbor in sample["neighbors"]]
        return lines


def describe_graph(graph: TextGraph) -> GraphDescription:
    """Describes a graph: counts, percentiles, rows that the import left out, and sample nodes.

    Example:
        >>> describe_graph(TextGraph.load("papers.graph")).nodes
        400
    """
    degrees, summary = graph.degrees(), graph.summary
    words = np.asarray(pc.count_substring_regex(graph.texts, r"\S+"))
    types: dict[str, int] = {}
    if graph.edge_types is not None:
        counts = np.bincount(graph.edge_types, minlength=len(graph.type_names))
        types = dict(zip(graph.type_names, counts.tolist(), strict=True))
    return GraphDescription(
        nodes=graph.num_nodes,
        pairs=graph.num_pairs,
        edges=graph.edges.shape[1],
        isolated=int((degrees == 0).sum()),
        mean_degree=round(float(degrees.mean()), 2),
        degree_percentiles=_percentiles(degrees),
        words_percentiles=_percentiles(words),
        columns={name: str(graph.table.schema.field(name).type) for name in graph.column_names},
        edge_types=types,
        edge_times=_span(graph.edge_times),
        self_loops=summary.get("self_loops", 0),
        left_aside=summary.get("left_aside", {}),
        edge_columns_not_kept=summary.get("edge_columns_not_kept", []),
        skipped=summary.get("skipped", {}),
        skipped_examples=summary.get("skipped_examples", []),
        samples=[_sample(graph, int(node)) for node in _sample_nodes(graph)],
    )


@dataclass(frozen=True)
class ImportReport(Result):
    """The rows that an import read and those that it left out. Made by `describe_import`.

    Attributes:
        nodes: Number of nodes.
        pairs: Number of linked pairs.
        edges: Number of edges, as they were given.
        summary: The summary of the graph, which counts rows that were left out.
    """

    nodes: int
    pairs: int
    edges: int
    summary: JsonObject

    def to_dict(self) -> JsonObject:
        """The counts and the summary of the graph, for JSON."""
        counts = {"nodes": self.nodes, "pairs": self.pairs, "edges": self.edges}
        return {**counts, **self.summary}

    def as_table(self) -> Table:
        """One line for the counts, and one for each kind of row that was left out or merged."""
        found = self.summary
        lines = [f"{self.nodes:,} nodes, {self.pairs:,} linked pairs"]
        loops = found.get("self_loops", 0)
        repeated = self.edges - loops - self.pairs
        kinds = {"repeated or reversed": repeated, "from a node to itself": loops}
        if merged := [f"{kind}: {number:,}" for kind, number in kinds.items() if number]:
            lines.append(f"  of {self.edges:,} edges {', '.join(merged)}")
        if columns := found.get("edge_columns_not_kept"):
            lines.append(
                f"  not kept of the edges: {', '.join(columns)}; links have a type and a time "
                f"(--column time=NAME) at most"
            )
        for name, others in found.get("other_texts", {}).items():
            lines.append(
                f"  the text is {name}, not {', '.join(others)}; --column text=NAME chooses, "
                f"--column text={','.join([name, *others])} takes all"
            )
        if empty := found.get("empty_texts"):
            lines.append(f"  kept without a text: {empty:,} nodes")
        for kind, number in found["left_aside"].items():
            lines.append(f"  left out, as is normal for this format: {number:,} {kind}")
        for reason, number in found["skipped"].items():
            lines.append(f"  skipped: {number:,} × {reason}")
        lines += [f"    {example}" for example in found["skipped_examples"]]
        return Table((), [(line,) for line in lines])


def describe_import(graph: TextGraph) -> ImportReport:
    """Reports the rows that an import read into a graph and those that it left out."""
    return ImportReport(graph.num_nodes, graph.num_pairs, graph.edges.shape[1], graph.summary)


def _shown(node: Neighbor) -> str:
    return f"{shorten(node['id'])}: {shorten(node['text'])}"


def _span(times: Array | None) -> list[float]:
    """The earliest and the latest known time."""
    known = np.zeros(0) if times is None else times[~np.isnan(times)]
    return [float(known.min()), float(known.max())] if len(known) else []


def _percentiles(values: Array) -> dict[str, int]:
    found = np.percentile(values, PERCENTILES, method="lower")
    return {str(percent): int(value) for percent, value in zip(PERCENTILES, found, strict=True)}


def _sample_nodes(graph: TextGraph) -> Array:
    """Sample nodes, with neighbours if the graph has any; the same ones at every call."""
    linked = np.flatnonzero(graph.degrees() > 0)
    nodes = linked if len(linked) else np.arange(graph.num_nodes)
    hashes = mix(0, graph.id_hashes[nodes])
    return nodes[np.argpartition(hashes, min(NUM_SAMPLES, len(nodes)) - 1)[:NUM_SAMPLES]]


def _sample(graph: TextGraph, node: int) -> Sample:
    neighbors = graph.neighbors_of(node)
    shown = neighbors[:NUM_SAMPLES]
    return {
        "id": graph.ids[node].as_py(),
        "text": graph.texts[node].as_py(),
        "degree": len(neighbors),
        "neighbors": [
            {"id": id, "text": text}
            for id, text in zip(graph.ids_of(shown), graph.texts_of(shown), strict=True)
        ],
    }
