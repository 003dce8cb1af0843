"""The tables of a comparison: the paper's own, by name, and what was compared.

A table is its cells; tables.md, report.html and the terminal each write it in their own way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphformers.compare.results import Results, System
from graphformers.compare.runs import ASKED
from graphformers.compare.variants import TITLES, ablations, variants
from graphformers.evaluation.metrics import headline_metrics


@dataclass(frozen=True)
class Table:
    """Cells under a header; `bold` are places (row, column) of the best."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = frozenset()

    def markdown(self) -> str:
        """As tables.md has it."""
        lines = [
            "| " + " | ".join(_escaped(cell) for cell in self.header) + " |",
            "|" + "---|" * len(self.header),
        ]
        for i, row in enumerate(self.rows):
            cells = [
                f"**{_escaped(cell)}**" if (i, k) in self.bold else _escaped(cell)
                for k, cell in enumerate(row)
            ]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def table(self) -> dict[str, Any]:
        """As results.json has it."""
        return {
            "title": self.title,
            "header": list(self.header),
            "rows": [list(row) for row in self.rows],
        }


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def metric_cells(system: System, condition: str = ASKED) -> list[str]:
    """P@1, NDCG and MRR: means over seeds, ± their standard deviation where there are several."""
    cells = []
    for metric in headline_metrics():
        spread = system.spread(metric, condition)
        value = f"{system.mean(metric, condition):.4f}"
        cells.append(value if spread is None else f"{value} ± {spread:.4f}")
    return cells


def with_best(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose second to fourth columns are metrics; the best of each is bold, as the paper
    has it.
    """
    bold = set()
    for column in range(1, 1 + len(headline_metrics())):
        values = [row[column].split(" ")[0] for row in rows]
        bold |= {(i, column) for i, value in enumerate(values) if value and value == max(values)}
    return Table(title, header, rows, frozenset(bold))


def dataset_table(results: Results) -> Table:
    """Table 1."""
    table = results.split.table()
    return Table("Data", list(table), [[f"{value:,}" for value in table.values()]])


def system_table(title: str, systems: Sequence[System]) -> Table:
    rows = [[system.title, *metric_cells(system), _steps(system)] for system in systems]
    return with_best(title, ["", *headline_metrics(), "steps"], rows)


def _steps(system: System) -> str:
    return ", ".join(f"{steps:,}" for steps in sorted({run.facts["steps"] for run in system.runs}))


def overall_table(results: Results) -> Table:
    """Table 2: all methods, in the paper's order."""
    found = [results.find(each.name) for each in variants(list(TITLES))]
    return system_table("Overall", [each for each in found if each is not None])


def untrained_table(results: Results) -> Table:
    """What needs no training, on the same questions."""
    return system_table("Without training", results.untrained)


def ablation_table(results: Results) -> Table:
    """Table 4."""
    rows = []
    for title, each in ablations().items():
        system = results.find(each.name)
        if system is not None:
            rows.append([title, *metric_cells(system)])
    return with_best("Ablation", ["", *headline_metrics()], rows)


def neighbor_table(results: Results, most: int, *, retrain: bool) -> Table:
    """Table 3: #N neighbours at test, or in training as well."""
    rows = []
    for count in range(1, most + 1):
        row = [str(count)]
        for method in ("graphformers", "max"):
            retrained = results.find(f"{method}.n{count}") if retrain and count < most else None
            system = retrained or results.find(method)
            condition = ASKED if retrained or count == most else f"#N = {count}"
            row += (
                metric_cells(system, condition)
                if system is not None and condition in system.ranks
                else [""] * len(headline_metrics())
            )
        rows.append(row)
    titles = [
        f"{TITLES[method]} {metric}"
        for method in ("graphformers", "max")
        for metric in headline_metrics()
    ]
    return Table(
        f"Neighbours {'in training and at test' if retrain else 'at test'}", ["#N", *titles], rows
    )


def efficiency_table(found: Sequence[Mapping[str, Any]], device: str) -> Table:
    """Table 5: milliseconds and memory of a mini-batch, by number of neighbours.

    On a GPU also without what launching kernels takes, which is most of the time where there is
    little to do.
    """
    rows = []
    for words, name, unit in (
        ("Time", "ms", "ms"),
        ("Time of the GPU", "graph_ms", "ms"),
        ("Memory", "gib", "GiB"),
    ):
        for method in ("max", "graphformers"):
            if all(f"{method}_{name}" in entry for entry in found):
                rows.append(
                    [
                        f"{words}: {TITLES[method]}",
                        *(f"{entry[f'{method}_{name}']:.2f} {unit}" for entry in found),
                    ]
                )
    return Table(
        f"Efficiency on {device}", ["#N", *(str(entry["neighbours"]) for entry in found)], rows
    )
