"""compare: trains methods under one budget, and writes report.html, tables.md and results.json
beside the runs.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphformers import __version__
from graphformers.artifact import COMPARISON, check_place
from graphformers.compare import tables as tables_of
from graphformers.compare.efficiency import measure_efficiency
from graphformers.compare.report import render_report
from graphformers.compare.results import Results
from graphformers.compare.runs import ALONE, ASKED, SHUFFLED, Plan, finish_run, untrained
from graphformers.compare.variants import DEFAULT, Variant, variants, variants_of
from graphformers.errors import GraphFormersError
from graphformers.files import foreign_entry, write_whole
from graphformers.model.config import ModelConfig
from graphformers.places import refuse_links_out
from graphformers.progress import say
from graphformers.train.settings import divide_settings, settings_for


@dataclass(frozen=True)
class Comparison:
    """What was compared, and where it lies."""

    results: Results
    tables: list[tables_of.Table]
    report: Path  # report.html, or tables.md where plotly is missing
    numbers: Path


def compare(
    plan: Plan,
    *,
    table: str | None = None,
    methods: Sequence[str] | None = None,
    retrain: bool = False,
) -> Comparison:
    """Runs what is missing of a comparison and writes its report.

    `table` is one of the paper's tables, by name; `methods` are names such as max or max.one-stage.
    What an interrupted comparison finished is used.
    """
    if retrain and table != "neighbours":
        raise GraphFormersError(
            "--retrain is for --table neighbours, which it has trained for each number of "
            "neighbours"
        )
    check_folder(plan.folder)
    _check_table(plan, table)
    most = num_neighbors(plan)
    if table is not None and methods:
        raise GraphFormersError(
            "a table by name and methods given, expected one of them: a table knows its methods"
        )
    chosen = (
        variants_of(table, retrain=retrain, most_neighbors=most)
        if table
        else variants(methods or DEFAULT)
    )
    _tell_unused(plan, chosen)
    # before hours of training: what can fail should fail now
    simple = untrained(plan) if chosen else {}
    runs = []
    for seed in plan.seeds:
        for each in chosen:
            runs.append(finish_run(plan, each, seed, conditions_of(each, table, most)))
    results = Results.of(plan.split, runs, simple)
    found = _tables(plan, results, table, most, retrain=retrain)
    return Comparison(results, found, *write_files(plan, results, found, table))


def check_folder(folder: Path) -> None:
    """A report goes into a new folder, or into one that a comparison made."""
    if folder.is_file():
        raise GraphFormersError(f"{folder}: a file, expected a folder for the report")
    strange = foreign_entry(folder, COMPARISON)
    if strange is not None:
        raise GraphFormersError(
            f"{folder}: holds {strange!r} and no report of ours; choose another folder"
        )
    # reports and runs would be written elsewhere
    refuse_links_out(folder)
    if not (folder / COMPARISON).is_file():
        check_place(folder / COMPARISON)
        write_whole(folder / COMPARISON, b"made by graphformers compare\n")


def _check_table(plan: Plan, table: str | None) -> None:
    own = next((name for name in plan.settings or {} if name.endswith(".num_neighbors")), None)
    if table == "neighbours" and own is not None:
        raise GraphFormersError(
            f"{own} given, but this table gives all methods the same neighbours: set num_neighbors"
        )


def _tell_unused(plan: Plan, chosen: Sequence[Variant]) -> None:
    """Says which settings are for methods that are not compared: perhaps another name was meant."""
    methods = {each.method for each in chosen}
    unused = [
        name
        for name in plan.settings or {}
        if "." in name and name.partition(".")[0] not in methods
    ]
    if chosen and unused:
        say(
            f"without effect: {', '.join(unused)}; the methods compared are "
            f"{', '.join(sorted(methods))}"
        )


def num_neighbors(plan: Plan) -> int:
    """As many as all methods read, where a table counts them."""
    _, changes = divide_settings(settings_for("graphformers", plan.settings or {}))
    return int(changes.get("num_neighbors", ModelConfig.num_neighbors))


def conditions_of(variant: Variant, table: str | None, most: int) -> list[str]:
    """Under which conditions a variant is scored: as asked, and where it reads neighbours with
    wrong ones and with none.
    """
    if not variant.reads_neighbors:
        return [ASKED]
    fewer = (
        [f"#N = {count}" for count in range(1, most)]
        if table == "neighbours" and "." not in variant.name
        else []
    )
    return [ASKED, SHUFFLED, ALONE, *fewer]


def _tables(
    plan: Plan, results: Results, table: str | None, most: int, *, retrain: bool
) -> list[tables_of.Table]:
    found = [tables_of.dataset_table(results)]
    if table == "overall":
        found += [tables_of.overall_table(results), tables_of.untrained_table(results)]
    elif table == "neighbours":
        found.append(tables_of.neighbor_table(results, most, retrain=retrain))
    elif table == "ablation":
        found.append(tables_of.ablation_table(results))
    elif table == "efficiency":
        found.append(
            tables_of.efficiency_table(
                *measure_efficiency(plan.source, plan.settings or {}, plan.device)
            )
        )
    elif table is None:
        found.append(tables_of.system_table("Compared", (*results.trained, *results.untrained)))
    return found


def write_files(
    plan: Plan, results: Results, tables: Sequence[tables_of.Table], table: str | None
) -> tuple[Path, Path]:
    """results.json, tables.md, and report.html where plotly is installed; overall.json and so on
    for a table of the paper's.

    Gives the report and the numbers.
    """
    details = _details(plan, results)
    numbers, written, report = (
        plan.folder / (name if table is None else f"{table}{Path(name).suffix}")
        for name in ("results.json", "tables.md", "report.html")
    )
    told: dict[str, Any] = {
        "made by": details,
        **results.table(),
        "tables": [each.table() for each in tables],
    }
    write_whole(numbers, json.dumps(told, ensure_ascii=False, indent=1).encode() + b"\n")
    shown = "".join(f"## {each.title}\n\n{each.markdown()}\n" for each in tables)
    write_whole(written, f"{shown}{_verdict_lines(told['verdict'])}".encode())
    report.unlink(missing_ok=True)  # an old one would stand beside new numbers
    if not results.trained:
        return written, numbers
    name = plan.split.artifact.path.name if plan.split.artifact else "a split"
    title = f"{name}: {table}" if table else f"{name}: does the graph help?"
    try:
        write_whole(report, render_report(results, title, details, tables).encode())
    except GraphFormersError as error:
        say(f"no {report.name}: {error}")
        return written, numbers
    return report, numbers


def _verdict_lines(lines: Sequence[str]) -> str:
    return "## In words\n\n" + "".join(f"- {line}\n" for line in lines) if lines else ""


def _details(plan: Plan, results: Results) -> dict[str, Any]:
    """What a reader needs to repeat it."""
    table = results.split.table()
    config, _ = divide_settings(settings_for("graphformers", plan.settings or {}))
    # said otherwise, or without effect here
    hidden = ("epochs", "patience", "max_steps", "max_seconds", "batch_size")
    told = {name: value for name, value in (plan.settings or {}).items() if name not in hidden}
    steps = sorted({run.facts["steps"] for system in results.trained for run in system.runs})
    seconds = (plan.settings or {}).get("max_seconds")
    budget = (
        f"{seconds:.0f} s of training"
        if seconds
        else ", ".join(f"{count:,} steps" for count in steps)
    )
    return {
        "split": str(plan.split.artifact.path) if plan.split.artifact else "",
        "pairs": ", ".join(f"{name} {value:,}" for name, value in table.items()),
        "backbone": plan.source,
        "budget of every run": budget,
        "batch size": config.batch_size,
        "seeds": ", ".join(map(str, plan.seeds)),
        "settings": ", ".join(f"{name}={value}" for name, value in told.items()) or "defaults",
        "graphformers": __version__,
    }
