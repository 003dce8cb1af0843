"""Metrics of link prediction, pure functions of where the positive stands among its candidates.

A tie is not a rank: where others score exactly as the positive does, each metric is its expectation
over random orders of the tied, so that a model that scores everything equal gets exactly the chance
level.

Shapes: Q questions, C candidates of each.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import stdtrit

from graphformers.data.arrays import Array
from graphformers.errors import GraphFormersError

RESAMPLES = 2000
NORMAL = 1.959964  # standard deviations, within which 95 % of a normal distribution lie
SIGN_DRAWS = 9999
BLOCK = 4_000_000  # numbers that are drawn at a time
KEPT = 40_000_000  # a drawing of questions up to this size is kept for who asks next


@dataclass(frozen=True)
class Ranks:
    """How many candidates score better than the positive, and how many exactly as well, itself not
    counted.
    """

    better: Array  # (Q,) int64
    tied: Array  # (Q,) int64

    def __len__(self) -> int:
        return len(self.better)


@dataclass(frozen=True)
class Score:
    """The mean of a metric over the questions, with a 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True)
class Difference:
    """By how much one system is ahead of another on the same questions, with a 95 % interval and
    the p-value of a paired test.
    """

    value: float
    low: float
    high: float
    # how often a difference at least as large turns up when the names of the two are swapped at
    # random
    p_value: float

    def __str__(self) -> str:
        p = "p < 0.001" if self.p_value < 0.001 else f"p = {self.p_value:.3f}"
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}], {p}"


def rank_positives(scores_QC: Array) -> Ranks:
    """Ranks from scores, the positive's in the first column."""
    if np.isnan(scores_QC).any():
        raise GraphFormersError(
            f"{int(np.isnan(scores_QC).sum()):,} of {scores_QC.size:,} scores are not numbers (NaN)"
        )
    positive_Q1 = scores_QC[:, :1]
    return Ranks((scores_QC > positive_Q1).sum(1), (scores_QC == positive_Q1).sum(1) - 1)


def hits_at(ranks: Ranks, k: int) -> Array:
    """(Q,) the chance that the positive is among the first k. P@1 is `hits_at(ranks, 1)`."""
    chances: Array = np.clip(k - ranks.better, 0, ranks.tied + 1) / (ranks.tied + 1)
    return chances


def reciprocal_rank(ranks: Ranks) -> Array:
    """(Q,) the mean of 1 / rank; its mean over the questions is MRR."""
    return _mean_over_ties(ranks, lambda rank: 1 / rank)


def gain(ranks: Ranks) -> Array:
    """(Q,) the mean of 1 / log2(rank + 1): NDCG with one relevant candidate."""
    return _mean_over_ties(ranks, lambda rank: 1 / np.log2(rank + 1))


def _mean_over_ties(ranks: Ranks, value: Callable[[Array], Array]) -> Array:
    """The mean of a function of the rank over the ranks better + 1 … better + tied + 1."""
    worst = int((ranks.better + ranks.tied).max(initial=0)) + 1
    sums = np.concatenate([[0.0], np.cumsum(value(np.arange(1, worst + 1, dtype=np.float64)))])
    single = value((ranks.better + 1).astype(np.float64))
    mean = (sums[ranks.better + ranks.tied + 1] - sums[ranks.better]) / (ranks.tied + 1)
    result: Array = np.where(ranks.tied == 0, single, mean)  # a difference of two sums would round
    return result


METRICS: dict[str, Callable[[Ranks], Array]] = {
    "P@1": lambda ranks: hits_at(ranks, 1),
    "NDCG": gain,
    "MRR": reciprocal_rank,
    "hits@10": lambda ranks: hits_at(ranks, 10),
}


def summarize(ranks: Ranks, seed: int = 0) -> dict[str, Score]:
    """Every metric with its interval."""
    if not len(ranks):
        raise GraphFormersError("no questions to score")
    return {
        name: _from_few(bootstrap(metric(ranks), seed), len(ranks))
        for name, metric in METRICS.items()
    }


def bootstrap(values: Array, seed: int = 0, least: float = 0.0) -> Score:
    """The mean and the 2.5th and 97.5th percentile of the means of resampled questions, wider where
    there are few (`_widened`).

    Values are `least` to 1.

    Drawing Q questions with replacement is drawing how often each distinct value turns up: a
    multinomial, and there are few distinct values.
    """
    distinct, counts = np.unique(values, return_counts=True)
    draw, means = np.random.default_rng(seed), []
    for size in _blocks(RESAMPLES, len(distinct)):
        means.append(
            draw.multinomial(len(values), counts / len(values), size=size) @ distinct / len(values)
        )
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return _widened(Score(float(values.mean()), float(low), float(high)), len(values), least)


def _widened(score: Score, count: int, least: float = 0.0) -> Score:
    """The interval of a mean of few questions, as much wider as Student's distribution is than the
    normal one.

    Resampled questions vary too little, by a root of (n - 1) / n, and their percentiles know
    nothing of how little is known of the variance itself: of five questions, 95 % intervals held
    the truth 64 times of 100. One question says nothing.
    """
    if count < 2:
        return Score(score.value, least, 1.0)
    wider = float(stdtrit(count - 1, 0.975)) / NORMAL * math.sqrt(count / (count - 1))
    low, high = (score.value + wider * (edge - score.value) for edge in (score.low, score.high))
    return Score(score.value, max(min(low, score.value), least), min(max(high, score.value), 1.0))


def bootstrap_together(values_KQ: Array, seed: int = 0) -> list[Score]:
    """The same for several metrics of the same questions, which are drawn once for all: better
    where most values differ.
    """
    total = values_KQ.shape[1]
    means_RK = np.concatenate(
        [
            weights_RQ @ (values_KQ / total).astype(np.float32).T
            for weights_RQ in _drawn(total, seed)
        ]
    )
    low_K, high_K = np.percentile(means_RK, [2.5, 97.5], axis=0)
    scores = [
        Score(*map(float, each)) for each in zip(values_KQ.mean(1), low_K, high_K, strict=True)
    ]
    return [_from_few(_widened(score, total), total) for score in scores]


def _from_few(score: Score, count: int) -> Score:
    """A score whose questions all have nothing, or all have everything: drawn again they would
    agree in that for ever.

    How high it may be in truth, or how low, 39 times of 40, is what the binomial distribution says
    (by Clopper and Pearson).
    """
    unseen = 0.025 ** (1 / count)
    if score.value == 0:
        return Score(0.0, 0.0, 1 - unseen)
    return Score(1.0, unseen, 1.0) if score.value == 1 else score


def paired_difference(one: Array, other: Array, seed: int = 0) -> Difference:
    """The mean of one - other over questions that both answered: bootstrap interval, and a test by
    random signs, two-sided.

    Questions with equal differences are drawn together: of `n` differences of size d, how many keep
    their sign is binomial.
    """
    if one.shape != other.shape or not len(one):
        raise GraphFormersError(
            f"{len(one):,} and {len(other):,} questions given, expected the same ones, at least one"
        )
    difference = one - other
    mean = bootstrap(difference, seed, least=-1.0)
    sizes, counts = np.unique(np.abs(difference).round(12), return_counts=True)
    draw, extreme = np.random.default_rng(seed), 0
    for size in _blocks(SIGN_DRAWS, len(counts)):
        drawn = np.abs((2 * draw.binomial(counts, 0.5, size=(size, len(counts))) - counts) @ sizes)
        extreme += int((drawn >= abs(float(difference.sum())) - 1e-9).sum())
    return Difference(mean.value, mean.low, mean.high, (extreme + 1) / (SIGN_DRAWS + 1))


def paired_over_seeds(one_SQ: Array, other_TQ: Array, seed: int = 0) -> Difference:
    """The same between methods that were trained with several seeds: who trains again gets other
    runs, and asks other questions.

    A side with one row is one that training again would not change.

    Questions are drawn again. Of so few runs as there are seeds, drawing again would show too
    little: how far their mean may be off is drawn from Student's distribution, as in Welch's test.
    The p-value is how often a drawn difference has the other sign, times two; but no less, and the
    interval no narrower, than what the questions alone allow, by the test of one run: few of them
    prove little, however often they are asked.
    """
    draw, total = np.random.default_rng(seed), one_SQ.shape[1]
    apart_Q = ((one_SQ.mean(0) - other_TQ.mean(0)) / total).astype(np.float32)
    differences = np.concatenate([weights_RQ @ apart_Q for weights_RQ in _drawn(total, seed)])
    runs = [values.mean(1) for values in (one_SQ, other_TQ)]
    spread = np.array([each.var(ddof=1) / len(each) if len(each) > 1 else 0.0 for each in runs])
    if spread.any():
        freedom = spread.sum() ** 2 / (spread**2 / [max(len(each) - 1, 1) for each in runs]).sum()
        differences = differences + np.sqrt(spread.sum()) * draw.standard_t(freedom, RESAMPLES)
    low, high = np.percentile(differences, [2.5, 97.5]).clip(-1, 1)  # no metric differs by more
    against = min((differences <= 0).mean(), (differences >= 0).mean())
    alone = paired_difference(one_SQ.mean(0), other_TQ.mean(0), seed)
    p_value = min(1.0, max(2 * against, 1 / RESAMPLES, alone.p_value))
    return Difference(
        alone.value, min(float(low), alone.low), max(float(high), alone.high), float(p_value)
    )


def _drawn(total: int, seed: int) -> Iterator[Array]:
    """Blocks (R, Q) float32 of how often each question is in a resample."""
    return iter([_kept(total, seed)]) if total * RESAMPLES <= KEPT else _draw(total, seed)


@lru_cache(maxsize=1)
def _kept(total: int, seed: int) -> Array:
    return np.concatenate(list(_draw(total, seed)))


def _draw(total: int, seed: int) -> Iterator[Array]:
    draw = np.random.default_rng(seed)
    for size in _blocks(RESAMPLES, total):
        yield draw.multinomial(total, np.full(total, 1 / total), size=size).astype(np.float32)


def _blocks(total: int, width: int) -> list[int]:
    """How many draws at a time."""
    size = max(1, BLOCK // max(width, 1))
    return [min(size, total - start) for start in range(0, total, size)]
