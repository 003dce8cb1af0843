"""Descriptions of graphs, for `info`, and reports of imports, for `import`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.arrays import Array, mix
from graphformers.graph.protocol import Graph
from graphformers.graph.settings import ROLES, ImportSettings
from graphformers.graph.textgraph import TextGraph
from graphformers.graph.times import format_time
from graphformers.records import JsonObject
from graphformers.table import Result, Table, count_of, shorten

PERCENTILES = (5, 25, 50, 75, 95, 99, 100)
# Sample nodes, neighbours of each, and edge types that are listed.
NUM_SAMPLES = 5
NUM_TYPES = 6
# Columns whose names suggest times, in lower case.
TIMES = (*ROLES["time"], "year", "when")
# Times between these are probably years.
YEARS = 1000, 3000


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
        rows += [(f"left out: {kind}", f"{number:,}") for kind, number in self.left_aside.items()]
        rows += [(f"skipped: {reason}", f"{number:,}") for reason, number in self.skipped.items()]
        if self.edge_columns_not_kept:
            kept = [("type", self.edge_types), ("time", self.edge_times)]
            roles = tuple(role for role, values in kept if values)
            columns = _columns_not_kept(self.edge_columns_not_kept, roles)
            rows.append(("edge columns not kept", columns))
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
            lines += [
                "",
                f"{_shown(sample)}  [{count_of(sample['degree'], 'neighbour', 'neighbours')}]",
            ]
            lines += [f"    {_shown(neighbor)}" for neighbor in sample["neighbors"]]
        return lines


def describe_graph(graph: Graph) -> GraphDescription:
    """Describes a graph: counts, percentiles, rows that the import left out, and sample nodes.

    Examples:
        >>> describe_graph(TextGraph.load("papers.graph")).nodes
        400
    """
    graph = graph.freeze()
    degrees, summary = graph.degrees(), graph.summary
    words = np.asarray(pc.count_substring_regex(graph.texts, r"\S+"))
    types: dict[str, int] = {}
    if graph.edge_types is not None:
        counts = np.bincount(graph.edge_types, minlength=len(graph.type_names))
        found = zip(graph.type_names, counts.tolist(), strict=True)
        # A type may have lost all its links to edits.
        types = {name: count for name, count in found if count}
    return GraphDescription(
        nodes=graph.num_nodes,
        pairs=graph.num_pairs,
        edges=graph.edges.shape[1],
        isolated=int((degrees == 0).sum()),
        mean_degree=round(float(degrees.mean()), 2),
        degree_percentiles=_percentiles(degrees),
        words_percentiles=_percentiles(words),
        columns={name: str(graph.column(name).type) for name in graph.column_names},
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
        edge_roles: Which of "type" and "time" the edges have.
        edge_times: The earliest and the latest time; empty where edges have no times.
        summary: The summary of the graph, which counts rows that were left out.
        bad_rows: The file that holds all of those rows, if there is one.
    """

    nodes: int
    pairs: int
    edges: int
    edge_roles: tuple[str, ...]
    edge_times: Sequence[float]
    summary: JsonObject
    bad_rows: str | Path | None = None

    def to_dict(self) -> JsonObject:
        """The counts and the summary of the graph, for JSON."""
        counts = {"nodes": self.nodes, "pairs": self.pairs, "edges": self.edges}
        return {**counts, **self.summary}

    def as_table(self) -> Table:
        """One line for the counts, and one for each kind of row that was left out or merged."""
        found = self.summary
        pairs = count_of(self.pairs, "linked pair", "linked pairs")
        lines = [f"{count_of(self.nodes, 'node', 'nodes')}, {pairs}"]
        loops = found.get("self_loops", 0)
        repeated = self.edges - loops - self.pairs
        merged = []
        if repeated:
            words = "repeats or reverses another", "repeat or reverse others"
            merged.append(count_of(repeated, *words))
        if loops:
            merged.append(count_of(loops, "leads", "lead") + " from a node to itself")
        if merged:
            lines.append(f"  of {self.edges:,} edges, {' and '.join(merged)}")
        if columns := found.get("edge_columns_not_kept"):
            lines.append(
                f"  edge columns that were not kept: {_columns_not_kept(columns, self.edge_roles)}"
            )
        if self.edge_times and YEARS[0] <= self.edge_times[0] <= self.edge_times[1] <= YEARS[1]:
            span = " to ".join(dict.fromkeys(map(format_time, self.edge_times)))
            lines.append(
                f"  the times of links are numbers ({span}), kept as they are; dates such as "
                f"2021-05-01 would become seconds since 1970"
            )
        for name, others in found.get("other_texts", {}).items():
            every = ",".join([name, *others])
            lines.append(
                f"  the text of a node is its {name}, not its {' or '.join(others)}; "
                f"{_column('text', others[0])} takes another column, {_column('text', every)} all"
            )
        for name, value in found.get("like_numbers", {}).items():
            lines.append(
                f"  the column {name} is text because of values such as {value!r}; filters such as "
                f"{name}>=10 need numbers"
            )
        if empty := found.get("empty_texts"):
            lines.append(f"  kept {count_of(empty, 'node', 'nodes')} without a text")
        for kind, number in found["left_aside"].items():
            lines.append(f"  left out, as is normal for such data: {kind} ({number:,})")
        for reason, number in found["skipped"].items():
            lines.append(f"  skipped {count_of(number, 'row', 'rows')}: {reason}")
        examples = found["skipped_examples"]
        lines += [f"    {example}" for example in examples]
        if examples and (more := sum(found["skipped"].values()) - len(examples)):
            all_rows = f"{ImportSettings.usage(bad_rows='FILE.jsonl')} writes all of them"
            if self.bad_rows is not None:
                all_rows = f"{self.bad_rows} holds all of them"
            lines.append(f"    … and {more:,} more; {all_rows}")
        return Table((), [(line,) for line in lines])


def describe_import(graph: TextGraph, bad_rows: str | Path | None = None) -> ImportReport:
    """Reports the rows that an import read into a graph and those that it left out.

    Args:
        graph: The graph.
        bad_rows: The file to which the import wrote all rows that it left out, if any.
    """
    kept = [("type", graph.edge_types), ("time", graph.edge_times)]
    roles = tuple(role for role, values in kept if values is not None)
    times = _span(graph.edge_times)
    return ImportReport(
        graph.num_nodes,
        graph.num_pairs,
        graph.edges.shape[1],
        roles,
        times,
        graph.summary,
        bad_rows,
    )


def describe_missing_links(graph: TextGraph) -> str:
    """A warning about a graph without linked nodes, with advice if a column has lists."""
    warning = (
        "warning: no two nodes are linked; a graph without links cannot be split or trained on"
    )
    kinds = {name: graph.column(name).type for name in graph.column_names}
    is_list = pa.types.is_list, pa.types.is_large_list
    lists = [name for name, kind in kinds.items() if any(check(kind) for check in is_list)]
    if lists:
        name = lists[0]
        warning += f"; if {name} lists ids of nodes, {_column('links', name)} links them"
    return warning


def _columns_not_kept(columns: Sequence[str], roles: Collection[str]) -> str:
    """The edge columns that an import did not keep, and the options that keep them.

    Args:
        columns: Their names.
        roles: Which of "type" and "time" the edges have.
    """
    listed = ", ".join(columns)
    like_times = [name for name in columns if name.lower() in TIMES]
    others = [name for name in columns if name not in like_times]
    advice = []
    if "type" not in roles:
        name = (others or like_times)[0]
        advice.append(f"{_column('type', name)} keeps {name} as the type of links")
    if "time" not in roles:
        name = (like_times or others)[0]
        advice.append(f"{_column('time', name)} keeps {name} as their time")
    return f"{listed} ({', '.join(advice) or 'links have a type and a time at most'})"


def _column(role: str, name: str) -> str:
    """The setting that names the column of a role."""
    return ImportSettings.usage(columns={role: name})


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
    shown = np.append(node, neighbors[:NUM_SAMPLES])
    first, *others = (
        Neighbor(id=id, text=text)
        for id, text in zip(graph.ids_of(shown), graph.texts_of(shown), strict=True)
    )
    return {**first, "degree": len(neighbors), "neighbors": others}
