"""Results of a comparison: the runs of each variant, aggregated over seeds.

Shapes: Q questions, S and T seeds of two methods, K scores.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graphformers.arrays import Array
from graphformers.compare.conditions import OWN_NEIGHBORS, TEXT_SEARCH
from graphformers.compare.runs import UNTRAINED, Run
from graphformers.compare.variants import Variant
from graphformers.evaluation.metrics import METRICS, PRIMARY, Ranks
from graphformers.evaluation.significance import (
    Difference,
    Score,
    bootstrap_jointly,
    paired_difference,
    paired_difference_over_seeds,
)
from graphformers.evaluation.slices import Slices, slices_of
from graphformers.evaluation.text_search import SEARCH_METRIC
from graphformers.splits.split import LinkSplit


@dataclass(frozen=True)
class System:
    """A variant with the runs of all its seeds, or a system that needs no training.

    Args:
        title: The name in tables and reports.
        ranks: The ranks of each seed, by condition. Those of search by words are of other
            questions.
        variant: The trained variant; None for a system that needs no training.
        runs: One run per seed.
        nodes_per_second: Encoding speed of the network: the maximum over all runs of that network.
        seconds_per_step: Duration of a training step: the minimum over all runs of that network.
            Other processes on the machine only slow runs down, so the fastest one is the least
            disturbed.
    """

    title: str
    ranks: dict[str, list[Ranks]]
    variant: Variant | None = None
    runs: tuple[Run, ...] = ()
    nodes_per_second: float = 0.0
    seconds_per_step: float = 0.0

    @property
    def name(self) -> str:
        """The name of the variant, or the title."""
        return self.title if self.variant is None else self.variant.name

    @property
    def can_search(self) -> bool:
        """Whether search by words was measured."""
        return TEXT_SEARCH in self.ranks

    @property
    def reads_neighbors(self) -> bool:
        return self.variant is not None and self.variant.reads_neighbors

    def values(self, metric: str = PRIMARY, condition: str = OWN_NEIGHBORS) -> Array:
        """(Q,) the metric of each question, averaged over the seeds."""
        values: Array = np.mean([METRICS[metric](ranks) for ranks in self.ranks[condition]], axis=0)
        return values

    def by_seed(self, metric: str = PRIMARY, condition: str = OWN_NEIGHBORS) -> list[float]:
        """The mean over the questions for each seed."""
        return [float(METRICS[metric](ranks).mean()) for ranks in self.ranks[condition]]

    def mean(self, metric: str = PRIMARY, condition: str = OWN_NEIGHBORS) -> float:
        """The mean over seeds and questions."""
        return float(np.mean(self.by_seed(metric, condition)))

    def deviation(self, metric: str = PRIMARY, condition: str = OWN_NEIGHBORS) -> float | None:
        """The standard deviation over seeds; None for a single seed."""
        values = self.by_seed(metric, condition)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    def score(self, metric: str = PRIMARY, condition: str = OWN_NEIGHBORS) -> Score:
        """The mean over seeds and questions, with its interval over questions."""
        return self._scores[metric, condition]

    @cached_property
    def _scores(self) -> dict[tuple[str, str], Score]:
        found: dict[tuple[str, str], Score] = {}
        links = [condition for condition in self.ranks if condition != TEXT_SEARCH]
        for conditions in (links, [TEXT_SEARCH] if self.can_search else []):
            keys = [(metric, condition) for condition in conditions for metric in METRICS]
            if keys:
                values_KQ = np.stack([self.values(*key) for key in keys])
                found |= zip(keys, bootstrap_jointly(values_KQ), strict=True)
        return found

    @property
    def valid(self) -> float:
        """The primary metric on the valid questions, averaged over the seeds."""
        return float(np.mean([run.facts["valid"] for run in self.runs]))

    @property
    def steps(self) -> float:
        """Training steps, averaged over the seeds."""
        return float(np.mean([run.facts["steps"] for run in self.runs]))

    @property
    def seconds(self) -> float:
        """Seconds of training, averaged over the seeds."""
        return float(np.mean([run.facts["seconds"] for run in self.runs]))

    def to_dict(self) -> dict[str, object]:
        """Plain numbers, for JSON."""
        found: dict[str, object] = {"title": self.title}
        for condition in self.ranks:
            found[condition] = {
                metric: self.score(metric, condition).to_dict()
                | {"by_seed": self.by_seed(metric, condition)}
                for metric in METRICS
            }
        if self.runs:
            found["seeds"] = [run.seed for run in self.runs]
            found["runs"] = [run.facts for run in self.runs]
        return found


@dataclass(frozen=True)
class Results:
    """All systems of a comparison on the test questions of one split.

    Attributes:
        split: The split.
        trained: The trained variants.
        untrained: Systems without training that rank links.
        search_only: Systems without training that only search by words: BM25.
    """

    split: LinkSplit
    trained: tuple[System, ...]
    untrained: tuple[System, ...]
    search_only: tuple[System, ...] = ()

    @staticmethod
    def from_runs(
        split: LinkSplit,
        runs: Sequence[Run],
        untrained: Mapping[str, Mapping[str, Ranks]],
    ) -> "Results":
        """Groups runs by variant.

        Args:
            split: The split of all runs.
            runs: Runs of any variants and seeds.
            untrained: The ranks of systems that need no training, by title and condition.
        """
        by_name: dict[str, list[Run]] = {}
        speeds: dict[str, tuple[float, float]] = {}
        for run in runs:
            by_name.setdefault(run.variant.name, []).append(run)
            nodes_per_second, seconds_per_step = speeds.get(_network(run.variant), (0.0, math.inf))
            seconds = run.facts["seconds"] / max(run.facts["steps"], 1)
            speeds[_network(run.variant)] = (
                max(nodes_per_second, run.facts["nodes_per_second"]),
                min(seconds_per_step, seconds),
            )
        trained = []
        for group in by_name.values():
            variant = group[0].variant
            shared = [name for name in group[0].ranks if all(name in run.ranks for run in group)]
            ranks = {name: [run.ranks[name] for run in group] for name in shared}
            trained.append(
                System(variant.title, ranks, variant, tuple(group), *speeds[_network(variant)])
            )
        others = [
            System(title, {condition: [ranks] for condition, ranks in conditions.items()})
            for title, conditions in untrained.items()
        ]
        return Results(
            split,
            tuple(trained),
            tuple(each for each in others if OWN_NEIGHBORS in each.ranks),
            tuple(each for each in others if OWN_NEIGHBORS not in each.ranks),
        )

    @property
    def systems(self) -> tuple[System, ...]:
        """Trained and untrained systems that rank links."""
        return (*self.trained, *self.untrained)

    @property
    def searchers(self) -> tuple[System, ...]:
        """The systems with which search by words was measured."""
        return tuple(each for each in (*self.systems, *self.search_only) if each.can_search)

    @cached_property
    def slices(self) -> Slices:
        """The slices of the test questions."""
        return slices_of(self.split, self.split.test)

    @property
    def is_one_device(self) -> bool:
        """Whether all runs were timed on the same kind of device."""
        # None for runs that were not scored with their own neighbours.
        return len({run.facts.get("device") for each in self.trained for run in each.runs}) <= 1

    @property
    def backbone(self) -> System | None:
        """The untrained backbone; None if it was not evaluated."""
        return next((each for each in self.untrained if each.title.endswith(UNTRAINED)), None)

    def find(self, name: str) -> System | None:
        """The trained variant with a name; None if there is none."""
        return next((each for each in self.trained if each.name == name), None)

    def best(self) -> System | None:
        """The trained variant that is best on the valid questions; None if nothing was trained."""
        return _best(self.trained)

    def best_reader(self) -> System | None:
        """The best on the valid questions among variants that use neighbours."""
        return _best([each for each in self.trained if each.reads_neighbors])

    def text_only(self) -> System | None:
        """The best on the valid questions among the variants of PLM."""
        return _best(
            [each for each in self.trained if each.variant and each.variant.method == "plm"]
        )

    def to_dict(self) -> dict[str, object]:
        """Plain numbers, for JSON."""
        return {
            "split": self.split.sizes(),
            "trained": {each.name: each.to_dict() for each in self.trained},
            "untrained": {each.title: each.to_dict() for each in self.untrained},
            "search only": {each.title: each.to_dict() for each in self.search_only},
            "slices": {
                group: {
                    name: {"questions": int(mask.sum())}
                    | {each.title: float(each.values()[mask].mean()) for each in self.systems}
                    for name, mask in names.items()
                }
                for group, names in self.slices.items()
            },
        }


def difference(one: System, other: System, condition: str = OWN_NEIGHBORS) -> Difference:
    """P@1 of one system minus that of another, on the same questions.

    Interval and test are over questions, and over seeds if there are several. Two conditions of one
    system are compared seed by seed.

    Args:
        one: The first system, under the regular condition.
        other: The second system.
        condition: The condition of the second system.
    """
    one_SQ = np.array([METRICS[PRIMARY](ranks) for ranks in one.ranks[OWN_NEIGHBORS]])
    other_TQ = np.array([METRICS[PRIMARY](ranks) for ranks in other.ranks[condition]])
    if one is other:
        one_SQ, other_TQ = one_SQ - other_TQ, np.zeros_like(other_TQ[:1])
    return _paired(one_SQ, other_TQ)


def search_difference(one: System, other: System) -> Difference:
    """MRR of search by words of one system minus that of another, as `difference` computes it."""
    one_SQ, other_TQ = (
        np.array([METRICS[SEARCH_METRIC](ranks) for ranks in each.ranks[TEXT_SEARCH]])
        for each in (one, other)
    )
    return _paired(one_SQ, other_TQ)


def _paired(one_SQ: Array, other_TQ: Array) -> Difference:
    if len(one_SQ) == len(other_TQ) == 1:
        return paired_difference(one_SQ[0], other_TQ[0])
    return paired_difference_over_seeds(one_SQ, other_TQ)


def _network(variant: Variant) -> str:
    """Identifies the network of a variant, regardless of its number of training stages."""
    own = {name: value for name, value in variant.settings.items() if name != "two_stage"}
    return f"{variant.method} {sorted(own.items())}"


def _best(systems: Sequence[System]) -> System | None:
    return max(systems, key=lambda each: each.valid, default=None)
