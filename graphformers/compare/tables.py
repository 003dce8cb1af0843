"""The tables of the paper, made from the results of a comparison."""

from collections.abc import Mapping, Sequence

from graphformers.compare.conditions import OWN_NEIGHBORS, TEXT_SEARCH, fewer_neighbors
from graphformers.compare.results import Results, System
from graphformers.compare.variants import NEIGHBOR_METHODS, ablations, variants_of
from graphformers.evaluation.metrics import headline_metrics
from graphformers.evaluation.text_search import SEARCH_METRIC
from graphformers.model.registry import method_class
from graphformers.table import Table


def dataset_table(results: Results) -> Table:
    """Table 1: the sizes of the split."""
    sizes = results.split.sizes()
    return Table(list(sizes), [[f"{size:,}" for size in sizes.values()]], "Data")


def overall_table(results: Results) -> Table:
    """Table 2: all methods, in the paper's order."""
    found = [results.find(each.name) for each in variants_of("overall")]
    return system_table("Overall", [each for each in found if each is not None])


def untrained_table(results: Results) -> Table:
    """Systems that need no training."""
    return system_table("Without training", results.untrained)


def system_table(title: str, systems: Sequence[System]) -> Table:
    """Headline metrics, MRR of search by words if measured, and training steps of some systems."""
    searches = any(each.can_search for each in systems)
    metrics = [*headline_metrics(), *([f"search {SEARCH_METRIC}"] if searches else [])]
    rows = []
    for system in systems:
        steps = sorted({run.facts["steps"] for run in system.runs})
        cells = metric_cells(system)
        if searches:
            cells.append(metric_cell(system, SEARCH_METRIC, TEXT_SEARCH))
        rows.append([system.title, *cells, ", ".join(f"{each:,}" for each in steps)])
    return mark_best(Table(["", *metrics, "steps"], rows, title), len(metrics))


def neighbor_table(results: Results, num_neighbors: int, *, retrain: bool) -> Table:
    """Table 3: scores by number of neighbours.

    Args:
        results: The results.
        num_neighbors: The regular number, which is the largest.
        retrain: Whether models were trained with each number, or only tested with it.
    """
    metrics = headline_metrics()
    rows = []
    for count in range(1, num_neighbors + 1):
        is_regular = count == num_neighbors
        row = [str(count)]
        for method in NEIGHBOR_METHODS:
            retrained = results.find(f"{method}.n{count}") if retrain and not is_regular else None
            system = retrained or results.find(method)
            condition = OWN_NEIGHBORS if retrained or is_regular else fewer_neighbors(count)
            if system is not None and condition in system.ranks:
                row += metric_cells(system, condition)
            else:
                row += [""] * len(metrics)
        rows.append(row)
    titles = [method_class(method).title for method in NEIGHBOR_METHODS]
    names = [f"{title} {metric}" for title in titles for metric in metrics]
    title = f"Neighbours {'in training and at test' if retrain else 'at test'}"
    return Table(["#N", *names], rows, title)


def ablation_table(results: Results) -> Table:
    """Table 4: GraphFormers without some of its parts."""
    rows = []
    for title, each in ablations().items():
        system = results.find(each.name)
        if system is not None:
            rows.append([title, *metric_cells(system)])
    return mark_best(Table(["", *headline_metrics()], rows, "Ablation"))


def efficiency_table(measured: Sequence[Mapping[str, float]], device: str) -> Table:
    """Table 5: milliseconds and memory of a mini-batch by number of neighbours.

    On a GPU also the time as a CUDA graph, without the overhead of launching kernels.
    """
    rows = []
    for quantity, name, unit in (
        ("Time", "ms", "ms"),
        ("Time of the GPU", "graph_ms", "ms"),
        ("Memory", "gib", "GiB"),
    ):
        for method in ("max", "graphformers"):
            key = f"{method}_{name}"
            if all(key in entry for entry in measured):
                cells = [f"{entry[key]:.2f} {unit}" for entry in measured]
                rows.append([f"{quantity}: {method_class(method).title}", *cells])
    counts = [str(entry["neighbours"]) for entry in measured]
    return Table(["#N", *counts], rows, f"Efficiency on {device}")


def metric_cells(system: System, condition: str = OWN_NEIGHBORS) -> list[str]:
    """The headline metrics under a condition."""
    return [metric_cell(system, metric, condition) for metric in headline_metrics()]


def metric_cell(system: System, metric: str, condition: str) -> str:
    """A metric: its mean over seeds, ± standard deviation if there are several.

    Empty if the system was not scored under the condition.
    """
    if condition not in system.ranks:
        return ""
    mean, deviation = system.mean(metric, condition), system.deviation(metric, condition)
    return f"{mean:.4f}" if deviation is None else f"{mean:.4f} ± {deviation:.4f}"


def mark_best(table: Table, num_metrics: int | None = None) -> Table:
    """Prints the largest value of each metric in bold, as in the paper.

    Args:
        table: The table. Metrics start in the second column.
        num_metrics: The number of columns with metrics; by default that of the headline metrics.
    """
    bold = set()
    for column in range(1, 1 + (num_metrics or len(headline_metrics()))):
        values = [row[column].split(" ")[0] for row in table.rows]
        bold |= {(i, column) for i, value in enumerate(values) if value and value == max(values)}
    return Table(table.header, table.rows, table.title, bold=frozenset(bold))
