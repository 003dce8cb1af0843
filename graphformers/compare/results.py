"""Results: the runs of a comparison brought together, and what they say in words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from graphformers.compare.runs import ALONE, ASKED, SHUFFLED, UNTRAINED, Run
from graphformers.compare.variants import Variant
from graphformers.data.arrays import Array
from graphformers.data.split import LinkSplit
from graphformers.evaluation.metrics import METRICS, PRIMARY, Ranks
from graphformers.evaluation.significance import (
    Difference,
    Score,
    bootstrap_jointly,
    paired_difference,
    paired_difference_over_seeds,
)
from graphformers.evaluation.slices import Slices, slices_of

SURE = 0.05  # p-values below this are taken for a difference
SAME = 0.01  # of P@1: an interval inside this is taken for no difference


@dataclass(frozen=True)
class System:
    """A variant over all its seeds, or something that needs no training."""

    title: str
    ranks: dict[str, list[Ranks]]  # condition -> one for each seed
    variant: Variant | None = None
    runs: tuple[Run, ...] = ()
    nodes_per_second: float = 0.0  # that its network reads, and
    # of training, at best of all runs of that network: others on the machine only slow them down
    seconds_per_step: float = 0.0
    _scores: dict[tuple[str, str], Score] = field(default_factory=dict, compare=False, repr=False)

    def values(self, metric: str = PRIMARY, condition: str = ASKED) -> Array:
        """(Q,) what each question scored, on average over the seeds."""
        values: Array = np.mean([METRICS[metric](ranks) for ranks in self.ranks[condition]], axis=0)
        return values

    def by_seed(self, metric: str = PRIMARY, condition: str = ASKED) -> list[float]:
        return [float(METRICS[metric](ranks).mean()) for ranks in self.ranks[condition]]

    def score(self, metric: str = PRIMARY, condition: str = ASKED) -> Score:
        """The mean over seeds and questions; the interval is over questions."""
        if not self._scores:
            asked = [(name, place) for place in self.ranks for name in METRICS]
            values_KQ = np.stack([self.values(*each) for each in asked])
            self._scores.update(zip(asked, bootstrap_jointly(values_KQ), strict=True))
        return self._scores[metric, condition]

    def mean(self, metric: str = PRIMARY, condition: str = ASKED) -> float:
        return float(np.mean(self.by_seed(metric, condition)))

    def spread(self, metric: str = PRIMARY, condition: str = ASKED) -> float | None:
        """The standard deviation over seeds, where there are several."""
        values = self.by_seed(metric, condition)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    @property
    def valid(self) -> float:
        return self.mean_fact("valid")

    def mean_fact(self, name: str) -> float:
        return float(np.mean([run.facts[name] for run in self.runs]))


def _network(run: Run) -> str:
    """What tells the network of a run from others: how it was trained does not."""
    changes = {name: value for name, value in run.variant.settings.items() if name != "two_stage"}
    return f"{run.variant.method} {sorted(changes.items())}"


@dataclass(frozen=True)
class Results:
    """All systems of a comparison on the test questions of one split."""

    split: LinkSplit
    trained: tuple[System, ...]
    untrained: tuple[System, ...]

    @staticmethod
    def of(split: LinkSplit, runs: Sequence[Run], untrained: Mapping[str, Ranks]) -> "Results":
        by_name: dict[str, list[Run]] = {}
        for run in runs:
            by_name.setdefault(run.variant.name, []).append(run)
        best: dict[str, tuple[float, float]] = {}
        for run in runs:
            pace, step = best.get(_network(run), (0.0, math.inf))
            seconds = run.facts["seconds"] / max(run.facts["steps"], 1)
            best[_network(run)] = max(pace, run.facts["nodes_per_second"]), min(step, seconds)
        trained = []
        for own in by_name.values():
            shared = [name for name in own[0].ranks if all(name in run.ranks for run in own)]
            ranks = {name: [run.ranks[name] for run in own] for name in shared}
            trained.append(
                System(
                    own[0].variant.title, ranks, own[0].variant, tuple(own), *best[_network(own[0])]
                )
            )
        return Results(
            split,
            tuple(trained),
            tuple(System(name, {ASKED: [ranks]}) for name, ranks in untrained.items()),
        )

    @cached_property
    def slices(self) -> Slices:
        return slices_of(self.split, self.split.test)

    @cached_property
    def words(self) -> list[str]:
        """The verdict."""
        return verdict(self)

    @property
    def is_one_device(self) -> bool:
        """Whether all runs were timed on the same kind of device. (Older ones do not tell.)"""
        return len({run.facts.get("device") for each in self.trained for run in each.runs}) <= 1

    def find(self, name: str) -> System | None:
        return next(
            (
                each
                for each in self.trained
                if each.variant is not None and each.variant.name == name
            ),
            None,
        )

    def best_reader(self) -> System | None:
        """The variant that reads neighbours and did best on the valid questions."""
        readers = [
            each
            for each in self.trained
            if each.variant is not None and each.variant.reads_neighbors
        ]
        return max(readers, key=lambda each: each.valid, default=None)

    def best(self) -> System | None:
        return max(self.trained, key=lambda each: each.valid, default=None)

    def text_only(self) -> System | None:
        """PLM, in the better of its schedules."""
        found = [
            each
            for each in self.trained
            if each.variant is not None and each.variant.method == "plm"
        ]
        return max(found, key=lambda each: each.valid, default=None)

    def table(self) -> dict[str, Any]:
        """As plain numbers, for JSON."""
        return {
            "split": self.split.table(),
            "trained": {
                (each.variant.name if each.variant else each.title): _numbers(each)
                for each in self.trained
            },
            "untrained": {each.title: _numbers(each) for each in self.untrained},
            "slices": {
                group: {
                    name: {"questions": int(mark.sum())}
                    | {
                        each.title: float(each.values()[mark].mean())
                        for each in (*self.trained, *self.untrained)
                    }
                    for name, mark in names.items()
                }
                for group, names in self.slices.items()
            },
            "verdict": self.words,
        }


def _numbers(system: System) -> dict[str, Any]:
    found: dict[str, Any] = {"title": system.title}
    for condition in system.ranks:
        scores = {}
        for metric in METRICS:
            score = system.score(metric, condition)
            scores[metric] = {
                "value": score.value,
                "interval": [score.low, score.high],
                "by_seed": system.by_seed(metric, condition),
            }
        found[condition] = scores
    if system.runs:
        found["seeds"] = [run.seed for run in system.runs]
        found["runs"] = [run.facts for run in system.runs]
    return found


def ahead(one: System, other: System, condition: str = ASKED) -> Difference:
    """By how much one system's P@1 is ahead of another's (under a condition) on the same questions.

    Where one was trained with several seeds, the interval and the test are over seeds as well.
    Between two conditions of one system each seed is compared with itself.
    """
    sides = (one.ranks[ASKED], other.ranks[condition])
    one_SQ, other_TQ = (np.array([METRICS[PRIMARY](ranks) for ranks in side]) for side in sides)
    if one is other:
        one_SQ, other_TQ = one_SQ - other_TQ, np.zeros_like(other_TQ[:1])
    if len(one_SQ) == len(other_TQ) == 1:
        return paired_difference(one_SQ[0], other_TQ[0])
    return paired_difference_over_seeds(one_SQ, other_TQ)


def caution(one: System, other: System) -> str:
    """What stands between a difference and its reason: unequal numbers of steps in equal time, and
    single runs.
    """
    steps = [each.mean_fact("steps") for each in (one, other)]
    words = (
        [f"{steps[0]:,.0f} steps against {steps[1]:,.0f} in the same time"]
        if steps[0] != steps[1]
        else []
    )
    if len(one.runs) == len(other.runs) == 1:
        words.append("one seed each: training again may change this")
    return f" ({'; '.join(words)})" if words else ""


def verdict(results: Results) -> list[str]:
    """What the numbers say, one sentence each. Which method is best is decided on the valid
    questions, not on the asked ones.
    """
    reader, text, best = results.best_reader(), results.text_only(), results.best()
    found = _learned_nothing(results)
    if reader and text:
        found.append(_does_the_graph_help(reader, text))
    if reader:
        found += _counterfactuals(reader)
    if best and len(results.trained) > 1:
        found.append(_which_to_take(results, best))
    found += _schedules(results) + _without_training(results, best)
    if reader and text and results.is_one_device:
        found.append(_cost(reader, text))
    return found


def _learned_nothing(results: Results) -> list[str]:
    """Where all methods are behind the backbone that they began with, their differences say nothing
    of them.
    """
    start = next((each for each in results.untrained if each.title.endswith(UNTRAINED)), None)
    if start is None or not results.trained:
        return []
    behind = [ahead(each, start) for each in results.trained]
    if not all(difference.value < 0 and difference.p_value < SURE for difference in behind):
        return []
    best = max(each.mean() for each in results.trained)
    return [
        f"Nothing is learned yet: every method finds fewer links than {start.title} "
        f"({start.mean():.3f}; the best {best:.3f}). "
        "Train longer, or otherwise, before you believe what follows."
    ]


def _does_the_graph_help(reader: System, text: System) -> str:
    difference = ahead(reader, text)
    numbers = (
        f"{text.title} {text.mean():.3f}, {reader.title} {reader.mean():.3f} "
        f"P@1 ({difference}){caution(text, reader)}"
    )
    if difference.p_value >= SURE:
        count = len(text.values())
        asked = "one question" if count == 1 else f"these {count:,} questions"
        return f"Whether the graph helps cannot be told from {asked}: {numbers}."
    if difference.value < 0:
        return f"The graph does not help here, it hurts: {numbers}."
    relative = (
        f"; {100 * difference.value / text.mean():.0f} % more links found at first sight"
        if text.mean()
        else ""
    )
    return f"The graph helps: {numbers}{relative}."


def _counterfactuals(reader: System) -> list[str]:
    own, found = reader.mean(), []
    same = min(SAME, own / 10)  # what is no difference, where little is found at all, is smaller
    conditions = (
        (SHUFFLED, "the neighbours of other nodes", "use"),
        (ALONE, "no neighbours at all", "need"),
    )
    for condition, name, verb in conditions:
        if condition in reader.ranks:
            difference = ahead(reader, reader, condition)
            value = reader.mean(condition=condition)
            # what may differ, 19 times of 20, where none of these questions does
            unseen = 3 / len(reader.values())
            is_sure = difference.p_value < SURE and f"{value:.3f}" != f"{own:.3f}"
            if max(own, value) == 0:
                found.append(
                    f"With {name}, {reader.title} finds none of the links, as with its own."
                )
            elif max(-difference.low, difference.high, unseen) <= same and not is_sure:
                words = f"does as well ({value:.3f} against {own:.3f}): it does not {verb} them"
                found.append(f"With {name}, {reader.title} {words}.")
            elif difference.p_value >= SURE:
                found.append(
                    f"With {name}, {reader.title} has {value:.3f} instead of {own:.3f}; too few "
                    f"questions to tell."
                )
            else:
                word = "falls" if value < own else "rises"
                found.append(f"With {name}, {reader.title} {word} from {own:.3f} to {value:.3f}.")
    return found


def _which_to_take(results: Results, best: System) -> str:
    """The best on valid, or a cheaper one that cannot be told from it; and who is surely better on
    the asked questions.
    """
    level = [each.title for each in results.trained if each.valid == best.valid]
    if len(level) > 1:
        names = f"{', '.join(level[:-1])} and {level[-1]}"
        return (
            f"The valid questions do not tell which to take: {names} do "
            f"equally well on them ({best.valid:.3f} P@1)."
        )
    others = {each.title: (each, ahead(best, each)) for each in results.trained if each is not best}
    equals = [
        each
        for each, difference in others.values()
        if difference.p_value >= SURE
        and each.nodes_per_second > 1.2 * best.nodes_per_second
        and results.is_one_device
    ]
    better = [
        each
        for each, difference in others.values()
        if difference.p_value < SURE and difference.value < 0
    ]
    words = (
        f"Take {best.title}: it is the best on the valid questions "
        f"({best.valid:.3f} P@1), {best.mean():.3f} here."
    )
    if better:
        first = max(better, key=lambda each: each.mean())
        words += (
            f" {first.title} finds more of the links asked for here "
            f"({first.mean():.3f}; {first.valid:.3f} on valid)."
        )
    if equals:
        cheaper = max(equals, key=lambda each: each.nodes_per_second)
        times = cheaper.nodes_per_second / best.nodes_per_second
        words += (
            f" {cheaper.title} cannot be told from it ({cheaper.mean():.3f}) "
            f"and encodes {times:.1f} times as fast."
        )
    return words


def _schedules(results: Results) -> list[str]:
    """How much the two stages bring, apart from how much the architecture brings."""
    found = []
    for each in results.trained:
        other = results.find(f"{each.variant.name}.one-stage") if each.variant is not None else None
        if other is not None:
            found.append(f"Two stages instead of one bring {each.title} {ahead(each, other)} P@1.")
    return found


def _without_training(results: Results, best: System | None) -> list[str]:
    """Where a ranking that costs nothing is not beaten, that should be said."""
    simple = max(results.untrained, key=lambda each: each.mean(), default=None)
    if best is None or simple is None:
        return []
    difference = ahead(best, simple)
    if difference.value > 0 and difference.p_value < SURE:
        return []
    is_behind = difference.value < 0 and difference.p_value < SURE
    words = "finds more links than" if is_behind else "cannot be told from"
    values = f"{simple.mean():.3f} against {best.mean():.3f}"
    advice = ": train longer, or take that" if is_behind or best.mean() < 1 else ""
    return [f"Without any training, {simple.title} {words} {best.title} ({values}){advice}."]


def _cost(reader: System, text: System) -> str:
    training = reader.seconds_per_step / max(text.seconds_per_step, 1e-9)
    encoding = text.nodes_per_second / reader.nodes_per_second
    return (
        f"What it costs: a training step of {reader.title} takes {training:.1f} times as long as "
        f"one of {text.title}, "
        f"reading a node {encoding:.1f} times as long ({reader.nodes_per_second:,.0f} nodes/s "
        f"here)."
    )
