"""The tables of a comparison as Markdown: the paper's own, by name, and what was compared."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphformers.compare.results import Results, System
from graphformers.compare.runs import ASKED
from graphformers.compare.variants import TITLES, ablations, variants

METRIC_NAMES = ("P@1", "NDCG", "MRR")


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    lines.insert(1, "|" + "---|" * len(header))
    return "\n".join(lines) + "\n"


def metric_cells(system: System, condition: str = ASKED) -> list[str]:
    """P@1, NDCG and MRR: means over seeds, ± their standard deviation where there are several."""
    cells = []
    for metric in METRIC_NAMES:
        spread = system.spread(metric, condition)
        value = f"{system.mean(metric, condition):.4f}"
        cells.append(value if spread is None else f"{value} ± {spread:.4f}")
    return cells


def emphasize(rows: list[list[str]], columns: range) -> list[list[str]]:
    """The best of each column in bold, as the paper has it."""
    for column in columns:
        values = [row[column].split(" ")[0] for row in rows if row[column]]
        best = max(values, default="")
        for row in rows:
            if row[column] and row[column].split(" ")[0] == best:
                row[column] = f"**{row[column]}**"
    return rows


def dataset_table(results: Results) -> str:
    """Table 1."""
    table = results.split.table()
    return markdown(list(table), [[f"{value:,}" for value in table.values()]])


def system_table(systems: Sequence[System]) -> str:
    rows = [[system.title, *metric_cells(system), _steps(system)] for system in systems]
    return markdown(["", *METRIC_NAMES, "steps"], emphasize(rows, range(1, 4)))


def _steps(system: System) -> str:
    return ", ".join(f"{steps:,}" for steps in sorted({run.facts["steps"] for run in system.runs}))


def overall_table(results: Results) -> str:
    """Table 2: all methods, in the paper's order, and what needs no training."""
    found = [results.find(each.name) for each in variants(list(TITLES))]
    return system_table([each for each in found if each is not None]) + "\n" + system_table(results.untrained)


def ablation_table(results: Results) -> str:
    """Table 4."""
    rows = []
    for each in ablations():
        system = results.find(each.name)
        if system is not None:
            rows.append([each.title, *metric_cells(system)])
    return markdown(["", *METRIC_NAMES], emphasize(rows, range(1, 4)))


def neighbor_table(results: Results, most: int, *, retrain: bool) -> str:
    """Table 3: #N neighbours at test, or in training as well."""
    rows = []
    for count in range(1, most + 1):
        row = [str(count)]
        for method in ("graphformers", "max"):
            retrained = results.find(f"{method}.n{count}") if retrain and count < most else None
            system = retrained or results.find(method)
            condition = ASKED if retrained or count == most else f"#N = {count}"
            row += metric_cells(system, condition) if system is not None and condition in system.ranks else [""] * 3
        rows.append(row)
    titles = [f"{TITLES[method]} {metric}" for method in ("graphformers", "max") for metric in METRIC_NAMES]
    return markdown(["#N", *titles], rows)


def efficiency_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Table 5: milliseconds and memory of a mini-batch, by number of neighbours."""
    rows = []
    for method in ("max", "graphformers"):
        rows.append([f"Time: {TITLES[method]}", *(f"{entry[f'{method}_ms']:.2f} ms" for entry in found)])
    for method in ("max", "graphformers"):
        if all(f"{method}_gib" in entry for entry in found):
            rows.append([f"Memory: {TITLES[method]}", *(f"{entry[f'{method}_gib']:.2f} GiB" for entry in found)])
    return markdown(["#N", *(str(entry["neighbours"]) for entry in found)], rows)
