"""Comparisons of methods under one training budget, with a report and the tables of the paper."""

import json
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from graphformers.artifact import COMPARISON, check_place, comparison_files
from graphformers.compare import tables as paper
from graphformers.compare.conditions import conditions_of
from graphformers.compare.efficiency import measure_efficiency
from graphformers.compare.forecast import ComparisonForecast, forecast_runs, stored_plan
from graphformers.compare.report import render_report
from graphformers.compare.results import Results
from graphformers.compare.runs import finish_run, rank_untrained
from graphformers.compare.settings import ComparisonSettings
from graphformers.compare.variants import DEFAULT, Variant, variants, variants_of
from graphformers.compare.verdict import verdict
from graphformers.errors import ArtifactError, GraphFormersError, MissingExtraError
from graphformers.evaluation.text_search import known_item_queries
from graphformers.files import foreign_entry, write_whole
from graphformers.places import refuse_links_out
from graphformers.records import sealed
from graphformers.settings import usage
from graphformers.table import Table, tables_html
from graphformers.training.recipes import settings_for
from graphformers.training.settings import divide_settings
from graphformers.version import __version__

logger = logging.getLogger(__name__)

# settings that the budget overrides, or that the report states elsewhere
HIDDEN_SETTINGS = ("epochs", "patience", "max_steps", "minutes", "batch_size")


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison and the files that hold them.

    Args:
        results: The results of all systems.
        verdict: Conclusions, in sentences.
        details: Settings and data of the comparison, by name.
        tables: The requested tables of the paper.
        report: report.html, or tables.md where nothing was trained or plotly is missing.
        numbers: results.json.
    """

    results: Results
    verdict: list[str]
    details: dict[str, object]
    tables: list[Table]
    report: Path
    numbers: Path

    def to_dict(self) -> dict[str, object]:
        """Plain numbers, for JSON; the content of results.json."""
        return {
            "made by": self.details,
            **self.results.to_dict(),
            "verdict": self.verdict,
            "tables": [table.to_dict() for table in self.tables],
        }

    def as_tables(self) -> list[Table]:
        """The tables, the last one followed by the verdict."""
        *others, last = self.tables
        notes = [f"- {line}" for line in self.verdict]
        return [*others, Table(last.header, last.rows, last.title, notes, last.bold)]

    def print(self) -> None:
        """Prints the tables, the verdict and the path of the report."""
        for table in self.tables:
            table.print(gap=True)
            print()
        for line in self.verdict:
            print(f"- {line}")
        print(f"\n{self.report}: the report; numbers in {self.numbers.name}")

    def _repr_html_(self) -> str:
        return tables_html(self.as_tables())


def compare(
    settings: ComparisonSettings,
    *,
    table: str | None = None,
    methods: Sequence[str] | None = None,
    retrain: bool = False,
) -> Comparison:
    """Trains and scores methods under one budget, and writes a report.

    Finished runs are reused, so that an interrupted comparison continues.

    Args:
        settings: The settings that all runs share.
        table: A table of the paper: datasets, overall, neighbours, ablation or efficiency.
        methods: Methods such as max or max.one-stage, instead of a table; by default plm, max and
            graphformers, each in two stages and in one.
        retrain: For the table neighbours: also train with each number of neighbours.

    Returns:
        Results, verdict, tables and the paths of the files.

    Raises:
        GraphFormersError: The arguments contradict each other, the folder holds other files, or
            runs in it were made with other settings.

    Examples:
        >>> settings = ComparisonSettings(LinkSplit.load("papers.split"), Path("report"))
        >>> compare(settings, methods=["plm", "graphformers"]).verdict[0]
        'The graph helps: P@1 of PLM 0.480, of GraphFormers 0.521 …
    """
    started = time.monotonic()
    chosen = _chosen_variants(settings, table, methods, retrain=retrain)
    check_folder(settings.folder)
    _warn_of_unused_settings(settings, chosen)
    # The baselines come first, because they take seconds: errors then appear before the training.
    queries = known_item_queries(settings.split.graph) if chosen else None
    untrained = rank_untrained(settings, queries) if chosen else {}
    if chosen and settings.minutes is not None:
        settings = _with_steps(settings, chosen, table, started)
    count = settings.num_neighbors
    runs = [
        finish_run(settings, each, seed, conditions_of(each, table, count), queries)
        for seed in settings.seeds
        for each in chosen
    ]
    results = Results.from_runs(settings.split, runs, untrained)
    tables = _tables(settings, results, table, retrain=retrain)
    return _write_files(settings, results, tables, table)


def forecast_comparison(
    settings: ComparisonSettings,
    *,
    table: str | None = None,
    methods: Sequence[str] | None = None,
    retrain: bool = False,
) -> ComparisonForecast:
    """Estimates the time of a comparison by trying a few steps of each method; writes nothing.

    Args:
        settings: The settings that all runs share.
        table: As for `compare`.
        methods: As for `compare`.
        retrain: As for `compare`.

    Returns:
        Steps and time of each method, and the total.

    Raises:
        GraphFormersError: The arguments contradict each other, nothing is to be trained, or the
            minutes do not suffice.

    Examples:
        >>> settings = ComparisonSettings(LinkSplit.load("papers.split"), Path("report"))
        >>> print(forecast_comparison(settings, methods=["plm"]).as_table())
    """
    chosen = _chosen_variants(settings, table, methods, retrain=retrain)
    if not chosen:
        raise GraphFormersError(
            f"{usage('table', table)} given, which trains nothing, so that nothing can be estimated"
        )
    return forecast_runs(settings, chosen, table)[1]


def _with_steps(
    settings: ComparisonSettings, chosen: Sequence[Variant], table: str | None, started: float
) -> ComparisonSettings:
    """The settings with the steps that fit into the minutes, and a message that says so.

    A comparison that is continued keeps its steps.
    """
    stored = stored_plan(settings, chosen)
    if stored is not None:
        found, again = settings.with_plan(stored), ", as before"
    else:
        elapsed = time.monotonic() - started
        found, again = forecast_runs(settings, chosen, table, elapsed=elapsed)[0], ""
    config, _ = divide_settings(found.run_settings(chosen[0], found.seeds[0]))
    total = len(settings.split.valid)
    logger.info(
        f"{settings.minutes:g} minutes for {len(chosen) * len(settings.seeds)} runs: "
        f"{config.max_steps:,} steps each{again}; validations rank "
        f"{min(total, config.max_valid):,} of {total:,} questions, every {config.validate_steps:,} "
        f"steps"
    )
    return found


def _chosen_variants(
    settings: ComparisonSettings,
    table: str | None,
    methods: Sequence[str] | None,
    *,
    retrain: bool,
) -> list[Variant]:
    """The variants to train.

    Raises:
        GraphFormersError: The arguments contradict each other.
    """
    if retrain and table != "neighbours":
        raise GraphFormersError(
            f"{usage('retrain', True)} given without {usage('table', 'neighbours')}, the table "
            "whose methods it trains with each number of neighbours"
        )
    own_count = next((name for name in settings.given if name.endswith(".num_neighbors")), None)
    if table == "neighbours" and own_count is not None:
        raise GraphFormersError(
            f"{own_count} given, but this table gives all methods the same neighbours: set "
            f"num_neighbors"
        )
    if table is not None and methods:
        raise GraphFormersError(
            "a table and methods given, expected one of them: a table defines its methods"
        )
    if table is None:
        return variants(methods or DEFAULT)
    return variants_of(table, retrain=retrain, max_neighbors=settings.num_neighbors)


def check_folder(folder: Path) -> None:
    """Prepares a folder for a comparison: a new one, or one that a comparison made.

    Raises:
        GraphFormersError: It is a file, or a folder with other files.
    """
    if folder.is_file():
        raise GraphFormersError(f"{folder}: a file, expected a folder for the report")
    entry = foreign_entry(folder, COMPARISON)
    if entry is not None:
        raise GraphFormersError(
            f"{folder}: contains {entry!r}, which no comparison wrote; choose another folder"
        )
    # A symbolic link could redirect what is written.
    refuse_links_out(folder)
    if not (folder / COMPARISON).is_file():
        check_place(folder / COMPARISON)
        write_whole(folder / COMPARISON, sealed({"files": {}}))


def _warn_of_unused_settings(settings: ComparisonSettings, chosen: Sequence[Variant]) -> None:
    """Warns of settings for methods that are not compared, which may be typing errors."""
    methods = {each.method for each in chosen}
    unused = [
        name
        for name in settings.settings or {}
        if "." in name and name.partition(".")[0] not in methods
    ]
    if chosen and unused:
        logger.warning(
            f"settings without effect: {', '.join(unused)}; the compared methods are "
            f"{', '.join(sorted(methods))}"
        )


def _tables(
    settings: ComparisonSettings, results: Results, table: str | None, *, retrain: bool
) -> list[Table]:
    found = [paper.dataset_table(results)]
    if table is None:
        found.append(paper.system_table("Compared", (*results.systems, *results.search_only)))
    elif table == "overall":
        found += [paper.overall_table(results), paper.untrained_table(results)]
    elif table == "neighbours":
        found.append(paper.neighbor_table(results, settings.num_neighbors, retrain=retrain))
    elif table == "ablation":
        found.append(paper.ablation_table(results))
    elif table == "efficiency":
        measured = measure_efficiency(settings.source, settings.given, settings.device)
        found.append(paper.efficiency_table(*measured))
    return found


def _write_files(
    settings: ComparisonSettings, results: Results, tables: list[Table], table: str | None
) -> Comparison:
    """Writes results.json, tables.md and report.html; for a table, overall.json and so on."""
    numbers, markdown, report = (
        settings.folder / (name if table is None else f"{table}{Path(name).suffix}")
        for name in ("results.json", "tables.md", "report.html")
    )
    lines = verdict(results)
    found = Comparison(results, lines, _details(settings, results), tables, report, numbers)
    encoded = json.dumps(found.to_dict(), ensure_ascii=False, indent=1).encode()
    written = {numbers: write_whole(numbers, encoded + b"\n")}
    text = "".join(f"## {each.title}\n\n{each.markdown()}\n" for each in tables)
    if lines:
        text += "## Conclusions\n\n" + "".join(f"- {line}\n" for line in lines)
    written[markdown] = write_whole(markdown, text.encode())
    # an old report would contradict the new numbers
    report.unlink(missing_ok=True)
    name = settings.split.artifact.path.name if settings.split.artifact else "a split"
    title = f"{name}: {table}" if table else f"{name}: does the graph help?"
    try:
        if results.trained:
            page = render_report(results, title, lines, found.details, tables)
            written[report] = write_whole(report, page.encode())
    except MissingExtraError as error:
        logger.warning(f"no {report.name}: {error}")
    _note_files(settings.folder, written, {report.name} - {file.name for file in written})
    return found if report in written else replace(found, report=markdown)


def _note_files(folder: Path, written: Mapping[Path, str], gone: Collection[str]) -> None:
    """Notes the checksums of a report's files, beside those of other tables of the comparison."""
    try:
        before = comparison_files(folder, verify=False)
    except ArtifactError:
        # It still marks the folder; all files of other tables will have to be written again.
        before = {}
    files = before | {file.name: digest for file, digest in written.items()}
    files = {name: digest for name, digest in files.items() if name not in gone}
    write_whole(folder / COMPARISON, sealed({"files": files}))


def _details(settings: ComparisonSettings, results: Results) -> dict[str, object]:
    """Data, budget and settings, with which the comparison can be repeated."""
    split = settings.split
    config, _ = divide_settings(settings_for("graphformers", settings.given))
    shown = {name: value for name, value in settings.given.items() if name not in HIDDEN_SETTINGS}
    steps = sorted({run.facts["steps"] for system in results.trained for run in system.runs})
    budget = ", ".join(f"{count:,} steps" for count in steps)
    if settings.minutes is not None:
        budget += f", of {settings.minutes:g} minutes for all runs"
    return {
        "split": str(split.artifact.path) if split.artifact else "",
        "pairs": ", ".join(f"{name} {value:,}" for name, value in split.sizes().items()),
        "backbone": settings.source,
        "budget of every run": budget,
        "batch size": config.batch_size,
        "seeds": ", ".join(map(str, settings.seeds)),
        "settings": ", ".join(f"{name}={value}" for name, value in shown.items()) or "defaults",
        "graphformers": __version__,
    }
