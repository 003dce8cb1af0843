"""Rank metrics of link prediction, and their registry.

Every metric is a function of the rank of the positive among its candidates. Where candidates have
the same score as the positive, a metric is its expectation over random orders of the tied ones: a
model that scores all candidates equally gets exactly chance level.

A metric is added by registering a function::

    @register_metric("hits@100")
    def hits_at_100(ranks: Ranks) -> Array:
        return hits_at(ranks, 100)

Evaluations, tables and reports show all registered metrics. Compact tables show those that are
registered with `headline=True`.

Shapes: Q questions, C candidates per question.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphformers.arrays import Array
from graphformers.errors import GraphFormersError


@dataclass(frozen=True)
class Ranks:
    """The rank of each positive.

    Attributes:
        better: (Q,) int64: candidates with a higher score than the positive.
        tied: (Q,) int64: other candidates with the same score.
    """

    better: Array
    tied: Array

    def __len__(self) -> int:
        return len(self.better)

    def __getitem__(self, mask: Array) -> "Ranks":
        """The ranks of some of the questions."""
        return Ranks(self.better[mask], self.tied[mask])


def rank_positives(scores_QC: Array) -> Ranks:
    """Computes ranks from scores. The first column holds the scores of the positives."""
    if np.isnan(scores_QC).any():
        raise GraphFormersError(
            f"{int(np.isnan(scores_QC).sum()):,} of {scores_QC.size:,} scores are not numbers (NaN)"
        )
    positive_Q1 = scores_QC[:, :1]
    return Ranks((scores_QC > positive_Q1).sum(1), (scores_QC == positive_Q1).sum(1) - 1)


@dataclass(frozen=True)
class Metric:
    """A named function of ranks. Calling it returns (Q,) values between 0 and 1."""

    name: str
    function: Callable[[Ranks], Array]
    headline: bool

    def __call__(self, ranks: Ranks) -> Array:
        return self.function(ranks)


# the metric of comparisons, differences and figures
PRIMARY: Final = "P@1"
METRICS: dict[str, Metric] = {}


def register_metric(
    name: str, *, headline: bool = False
) -> Callable[[Callable[[Ranks], Array]], Callable[[Ranks], Array]]:
    """Decorator that registers a metric: a function from `Ranks` to (Q,) values between 0 and 1.

    Args:
        name: The name of the metric in tables, reports and JSON.
        headline: Whether compact tables show it, too.

    Raises:
        GraphFormersError: Another metric has this name.
    """

    def register(function: Callable[[Ranks], Array]) -> Callable[[Ranks], Array]:
        if name in METRICS:
            raise GraphFormersError(f"a metric {name!r} is registered already")
        METRICS[name] = Metric(name, function, headline)
        return function

    return register


def headline_metrics() -> list[str]:
    """The names of the metrics in compact tables."""
    return [name for name, metric in METRICS.items() if metric.headline]


def hits_at(ranks: Ranks, k: int) -> Array:
    """(Q,) the probability that the positive is among the first k."""
    chances: Array = np.clip(k - ranks.better, 0, ranks.tied + 1) / (ranks.tied + 1)
    return chances


@register_metric(PRIMARY, headline=True)
def precision_at_1(ranks: Ranks) -> Array:
    """(Q,) the probability that the positive comes first."""
    return hits_at(ranks, 1)


@register_metric("NDCG", headline=True)
def discounted_gain(ranks: Ranks) -> Array:
    """(Q,) the expected 1 / log2(rank + 1): NDCG with one relevant candidate."""
    return _mean_over_ties(ranks, lambda rank: 1 / np.log2(rank + 1))


@register_metric("MRR", headline=True)
def reciprocal_rank(ranks: Ranks) -> Array:
    """(Q,) the expected 1 / rank. Its mean over the questions is MRR."""
    return _mean_over_ties(ranks, lambda rank: 1 / rank)


@register_metric("hits@10")
def hits_at_10(ranks: Ranks) -> Array:
    """(Q,) the probability that the positive is among the first ten."""
    return hits_at(ranks, 10)


def _mean_over_ties(ranks: Ranks, value: Callable[[Array], Array]) -> Array:
    """The mean of `value(rank)` over the ranks better + 1 … better + tied + 1."""
    worst = int((ranks.better + ranks.tied).max(initial=0)) + 1
    sums = np.concatenate([[0.0], np.cumsum(value(np.arange(1, worst + 1, dtype=np.float64)))])
    mean = (sums[ranks.better + ranks.tied + 1] - sums[ranks.better]) / (ranks.tied + 1)
    # Without ties the value is computed directly, because the difference of two sums is rounded.
    single = value((ranks.better + 1).astype(np.float64))
    result: Array = np.where(ranks.tied == 0, single, mean)
    return result
