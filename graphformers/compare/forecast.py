"""Forecast of a comparison: the time of every run, and the steps that fit into its minutes."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from graphformers.compare.conditions import conditions_of
from graphformers.compare.runs import TIMED_SECONDS, read_run_record
from graphformers.compare.settings import ComparisonSettings
from graphformers.compare.variants import Variant
from graphformers.errors import GraphFormersError
from graphformers.evaluation.ranking import question_nodes
from graphformers.evaluation.text_search import known_item_queries
from graphformers.progress import clock, progress
from graphformers.settings import SettingValue
from graphformers.splits.split import LinkSplit
from graphformers.table import Result, Table
from graphformers.training.budget import (
    ENOUGH_QUESTIONS,
    FEWEST_QUESTIONS,
    VALIDATION_SHARE,
    most_questions,
    round_up,
)
from graphformers.training.settings import TrainConfig, divide_settings
from graphformers.training.trainer import make_trainer

# Steps vary in time, and writing models is not measured.
MARGIN = 1.1
# validations of a stage, if enough questions can then be ranked
VALIDATIONS = 3
# the settings that minutes determine, which all runs share and their records contain
PLANNED = ("max_steps", "max_valid", "validate_steps")


@dataclass(frozen=True)
class Costs:
    """Measured costs of a network, in seconds.

    Attributes:
        setup: Loading the backbone twice, for training and for scoring, and compiling.
        step: A step.
        counts: Numbers of validation questions, ascending.
        validations: A validation with each number of questions.
        scoring: Ranking the test questions once.
        steps_per_epoch: The steps of an epoch, not seconds.
    """

    setup: float
    step: float
    counts: tuple[int, ...]
    validations: tuple[float, ...]
    scoring: float
    steps_per_epoch: int

    def validation(self, count: int) -> float:
        """The seconds of a validation with `count` questions."""
        return float(np.interp(count, self.counts, self.validations))


@dataclass(frozen=True)
class PlannedRun:
    """A run of a comparison before it starts.

    Attributes:
        variant: What it trains.
        config: Its training settings.
        costs: What its network costs.
        conditions: The number of conditions under which it is scored.
        search: Nodes that only search by words encodes, as a share of those of the questions.
    """

    variant: Variant
    config: TrainConfig
    costs: Costs
    conditions: int
    search: float = 0.0

    @property
    def scoring(self) -> float:
        """Seconds of scoring; the first condition is ranked up to three times, to time it."""
        once = self.costs.scoring
        return (self.conditions + self.search) * once + min(2 * once, TIMED_SECONDS)

    @property
    def num_validations(self) -> int:
        """The validations of the run."""
        config, steps = self.config, self.config.max_steps or 0
        first = max(1, round(steps * config.first_share))
        stages = [first, steps - first] if config.two_stage else [steps]
        every = config.validate_steps or self.costs.steps_per_epoch
        return int(config.validate_start) + sum(-(-stage // every) for stage in stages)

    @property
    def training(self) -> float:
        """Seconds of its steps."""
        return (self.config.max_steps or 0) * self.costs.step

    @property
    def validating(self) -> float:
        """Seconds of its validations."""
        return self.num_validations * self.costs.validation(self.config.max_valid)

    @property
    def seconds(self) -> float:
        """Seconds of the whole run."""
        return self.costs.setup + self.training + self.validating + self.scoring


@dataclass(frozen=True)
class ComparisonForecast(Result):
    """The estimated time of a comparison; runs that are finished already count, too.

    Attributes:
        runs: A run of each method.
        seeds: The number of seeds; each method is trained with each.
        minutes: The minutes that were given for the whole comparison.
    """

    runs: tuple[PlannedRun, ...]
    seeds: int
    minutes: float | None

    @property
    def seconds(self) -> float:
        """Seconds of all runs."""
        return self.seeds * sum(run.seconds for run in self.runs)

    def to_dict(self) -> dict[str, object]:
        """The forecast, for JSON."""
        return {
            "runs": [
                {
                    "method": run.variant.name,
                    "seconds_per_step": run.costs.step,
                    "steps": run.config.max_steps,
                    "validations": run.num_validations,
                    "seconds_setup": run.costs.setup,
                    "seconds_training": run.training,
                    "seconds_validating": run.validating,
                    "seconds_scoring": run.scoring,
                    "seconds": run.seconds,
                }
                for run in self.runs
            ],
            "seeds": self.seeds,
            "minutes": self.minutes,
            "seconds": self.seconds,
        }

    def as_table(self) -> Table:
        """A row for each method and the total."""
        header = ("method", "a step", "steps", "training", "validating", "other", "time")
        rows = [
            (
                run.variant.title,
                f"{run.costs.step:.3f} s",
                f"{run.config.max_steps or 0:,}",
                clock(run.training),
                clock(run.validating),
                clock(run.costs.setup + run.scoring),
                clock(run.seconds),
            )
            for run in self.runs
        ]
        times = f"{self.seeds} seeds" if self.seeds > 1 else "one seed"
        total = f"{clock(self.seconds)} in total, with {times}; other: loading, compiling, scoring"
        return Table(header, rows, notes=(total,))


def forecast_runs(
    settings: ComparisonSettings,
    chosen: Sequence[Variant],
    table: str | None = None,
    *,
    elapsed: float = 0.0,
) -> tuple[ComparisonSettings, ComparisonForecast]:
    """Measures a few steps of every method, which change nothing, and estimates the time of all.

    Args:
        settings: The settings of the comparison.
        chosen: The variants to train.
        table: The table of the paper to make.
        elapsed: Seconds of the comparison so far, which count in its minutes.

    Returns:
        The settings, with the steps that the minutes allow, if minutes are given; and the forecast.

    Raises:
        GraphFormersError: The minutes do not suffice for a step in every stage.
    """
    started = time.monotonic()
    costs, search = _measure_all(settings, chosen), _search_share(settings.split)

    def plan(settings: ComparisonSettings) -> tuple[PlannedRun, ...]:
        return tuple(
            PlannedRun(
                each,
                divide_settings(settings.run_settings(each, settings.seeds[0]))[0],
                found,
                len(conditions_of(each, table, settings.num_neighbors)),
                search,
            )
            for each, found in zip(chosen, costs, strict=True)
        )

    if settings.minutes is not None:
        planned = stored_plan(settings, chosen)
        if planned is None:
            elapsed += time.monotonic() - started
            planned = fit(plan(settings), settings.minutes, elapsed, len(settings.seeds))
        settings = settings.with_plan(planned)
    return settings, ComparisonForecast(plan(settings), len(settings.seeds), settings.minutes)


def stored_plan(
    settings: ComparisonSettings, chosen: Sequence[Variant]
) -> dict[str, SettingValue] | None:
    """The steps of a comparison that is continued with the same minutes; None for a new one.

    With `force`, only runs whose settings are otherwise the same are continued.
    """
    for each in chosen:
        for seed in settings.seeds:
            found = read_run_record(settings.model_folder(each, seed), force=settings.force)
            if found.get("minutes") != settings.minutes or not set(PLANNED) <= found.keys():
                continue
            planned = {name: found[name] for name in PLANNED}
            record = settings.with_plan(planned).run_record(each, seed)
            if not settings.force or found == json.loads(json.dumps(record)):
                return planned
    return None


def fit(
    runs: Sequence[PlannedRun], minutes: float, elapsed: float, seeds: int
) -> dict[str, SettingValue]:
    """The largest equal number of steps, and validations for them, that fit into some minutes.

    Args:
        runs: A run of each method, with the most steps that it may make.
        minutes: The minutes of the whole comparison.
        elapsed: Seconds of it that have passed.
        seeds: The number of seeds.

    Returns:
        The settings `max_steps`, `max_valid` and `validate_steps` of all runs.

    Raises:
        GraphFormersError: The minutes do not suffice.
    """
    config, total = runs[0].config, max(run.costs.counts[-1] for run in runs)
    stages = max(len(run.config.stages) for run in runs)

    def validating(count: int, per_stage: int) -> float:
        """Seconds of all validations, if a run in one stage has `per_stage`."""
        # a run in two stages may have one more, because each stage ends with one
        numbers = [
            per_stage + len(run.config.stages) - 1 + int(run.config.validate_start) for run in runs
        ]
        found = (run.costs.validation(count) for run in runs)
        return seeds * sum(number * each for number, each in zip(numbers, found, strict=True))

    fixed = seeds * sum(run.costs.setup + run.scoring for run in runs)
    steps_cost = seeds * sum(run.costs.step for run in runs)
    least_validating = validating(FEWEST_QUESTIONS, 1)
    least = max(
        elapsed + MARGIN * (fixed + least_validating + stages * steps_cost),
        least_validating / VALIDATION_SHARE,
    )
    if 60 * minutes < least:
        raise GraphFormersError(
            f"minutes={minutes:g} given for the whole comparison, expected at least "
            f"{round_up(MARGIN * least / 60)}: {clock(elapsed + fixed)} to load, compile and score "
            f"{seeds * len(runs)} runs, {clock(steps_cost)} for a step of each; fewer methods, "
            f"seeds or num_neighbors take less"
        )
    allowed = VALIDATION_SHARE * 60 * minutes
    per_stage = VALIDATIONS
    questions = most_questions(total, allowed, partial(validating, per_stage=per_stage))
    if questions < min(total, ENOUGH_QUESTIONS):
        per_stage = 1
        questions = most_questions(total, allowed, partial(validating, per_stage=per_stage))
        questions = min(questions, ENOUGH_QUESTIONS)
    seconds = (60 * minutes - elapsed) / MARGIN - fixed - validating(questions, per_stage)
    steps = min(
        max(int(seconds / steps_cost), stages), *(run.config.max_steps or 1 for run in runs)
    )
    every = config.validate_steps or runs[0].costs.steps_per_epoch
    return {
        "max_steps": steps,
        "max_valid": config.max_valid if questions == total else questions,
        "validate_steps": max(every, -(-steps // per_stage)),
    }


def _search_share(split: LinkSplit) -> float:
    """Nodes that only search by words encodes, as a share of those of the test questions."""
    queries = known_item_queries(split.graph)
    if not queries:
        return 0.0
    nodes = question_nodes(split.test)
    return len(np.setdiff1d(queries.candidates_of(split.graph), nodes)) / len(nodes)


def _measure_all(settings: ComparisonSettings, chosen: Sequence[Variant]) -> list[Costs]:
    """The costs of each variant; those that differ in their stages only are measured once."""
    known: dict[str, Costs] = {}
    found = []
    with progress("Trying", len(chosen), "methods") as task:
        for each in chosen:
            own = settings.run_settings(each, settings.seeds[0])
            key = json.dumps([each.method, own | {"two_stage": None}], sort_keys=True)
            if key not in known:
                known[key] = _measure(settings, each, own)
            found.append(known[key])
            task.advance()
    return found


def _measure(
    settings: ComparisonSettings, variant: Variant, own: Mapping[str, SettingValue]
) -> Costs:
    """Makes two steps, the first of which may compile, and encodes some of the questions."""
    started = time.perf_counter()
    split, source, device = settings.split, settings.source, settings.device
    trainer = make_trainer(split, source, None, variant.method, own, device)
    loading = time.perf_counter() - started
    with trainer.start() as run:
        first, second = run.try_step(), run.try_step()
        step = min(first, second)
        total = len(run.validation.questions)
        counts = sorted(
            {min(total, count) for count in (FEWEST_QUESTIONS, ENOUGH_QUESTIONS, total)}
        )
        return Costs(
            setup=2 * loading + max(first - step, 0.0),
            step=step,
            counts=tuple(counts),
            validations=tuple(run.validation.estimate_for(count) for count in counts),
            scoring=run.validation.estimate_seconds(split.test),
            steps_per_epoch=run.schedule.num_batches,
        )
