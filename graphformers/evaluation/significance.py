"""Confidence intervals of metrics, and paired tests between systems.

Shapes: Q questions, K metrics, R resamples, S and T seeds of two systems.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
from scipy.special import stdtrit

from graphformers.arrays import Array
from graphformers.errors import GraphFormersError
from graphformers.evaluation.metrics import METRICS, Ranks

RESAMPLES = 2000
SIGN_DRAWS = 9999
# standard deviations around the mean that hold 95 % of a normal distribution
NORMAL_95 = 1.959964
# numbers drawn at a time, and the maximum that is cached for the next call
BLOCK_SIZE = 4_000_000
CACHE_SIZE = 40_000_000


@dataclass(frozen=True)
class Score:
    """The mean of a metric over the questions, with its 95 % bootstrap interval.

    Examples:
        >>> print(Score(0.5, 0.41, 0.6))
        0.5000 [0.4100, 0.6000]
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"

    def to_dict(self) -> dict[str, object]:
        """Value and interval, for JSON."""
        return {"value": self.value, "interval": [self.low, self.high]}


@dataclass(frozen=True)
class Difference:
    """The mean difference of a metric between two systems on the same questions.

    With its 95 % interval and the p-value of a paired test: how often a difference at least as
    large occurs if the two systems are swapped at random, question by question.

    Examples:
        >>> print(Difference(0.02, 0.01, 0.03, 0.004))
        +0.0200 [+0.0100, +0.0300], p = 0.004
    """

    value: float
    low: float
    high: float
    p_value: float

    def __str__(self) -> str:
        p = "p < 0.001" if self.p_value < 0.001 else f"p = {self.p_value:.3f}"
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}], {p}"

    def to_dict(self) -> dict[str, float]:
        """The four numbers, for JSON."""
        return asdict(self)


def summarize(ranks: Ranks, seed: int = 0) -> dict[str, Score]:
    """Every registered metric with its interval.

    Args:
        ranks: The ranks of the positives.
        seed: Seeds the resampling.

    Raises:
        GraphFormersError: There are no questions.
    """
    if not len(ranks):
        raise GraphFormersError("no questions to score")
    return {
        name: _widen_unanimous(bootstrap(metric(ranks), seed), len(ranks))
        for name, metric in METRICS.items()
    }


def bootstrap(values: Array, seed: int = 0, minimum: float = 0.0) -> Score:
    """The mean of some values, and the 2.5th and 97.5th percentile of the means of resamples.

    Args:
        values: (Q,) values between `minimum` and 1.
        seed: Seeds the resampling.
        minimum: The smallest possible value.

    Returns:
        The mean with its interval, which is wider than the percentiles if there are few values.
    """
    # One multinomial draw per resample: drawing Q questions with replacement is the same as drawing
    # how often each distinct value occurs, and there are few distinct values.
    distinct, counts = np.unique(values, return_counts=True)
    draw, means = np.random.default_rng(seed), []
    for size in _block_sizes(RESAMPLES, len(distinct), BLOCK_SIZE):
        means.append(
            draw.multinomial(len(values), counts / len(values), size=size) @ distinct / len(values)
        )
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return _widen_small_sample(
        Score(float(values.mean()), float(low), float(high)), len(values), minimum
    )


def bootstrap_jointly(
    values_KQ: Array,
    seed: int = 0,
    *,
    block_size: int = BLOCK_SIZE,
    cache_size: int = CACHE_SIZE,
) -> list[Score]:
    """Means and intervals of several metrics of the same questions, from the same resamples.

    Faster than `bootstrap` for each metric if most values are distinct.

    Args:
        values_KQ: Values between 0 and 1.
        seed: Seeds the resampling.
        block_size: Numbers drawn at a time.
        cache_size: Up to so many numbers are cached for the next call.
    """
    total = values_KQ.shape[1]
    means_RK = np.concatenate(
        [
            counts_RQ @ (values_KQ / total).astype(np.float32).T
            for counts_RQ in _resamples(total, seed, block_size, cache_size)
        ]
    )
    low_K, high_K = np.percentile(means_RK, [2.5, 97.5], axis=0)
    scores = [
        Score(*map(float, each)) for each in zip(values_KQ.mean(1), low_K, high_K, strict=True)
    ]
    return [_widen_unanimous(_widen_small_sample(score, total), total) for score in scores]


def paired_difference(one: Array, other: Array, seed: int = 0) -> Difference:
    """The mean of one - other: bootstrap interval and two-sided sign-flip test.

    Args:
        one: (Q,) the values of one system.
        other: (Q,) the values of the other on the same questions.
        seed: Seeds resampling and test.

    Raises:
        GraphFormersError: The systems did not answer the same questions.
    """
    if one.shape != other.shape or not len(one):
        raise GraphFormersError(
            f"{len(one):,} and {len(other):,} questions given, expected the same ones, at least one"
        )
    difference = one - other
    mean = bootstrap(difference, seed, minimum=-1.0)
    # Questions with differences of the same size are drawn together: the number of those that keep
    # their sign is binomial.
    sizes, counts = np.unique(np.abs(difference).round(12), return_counts=True)
    draw, extreme = np.random.default_rng(seed), 0
    for size in _block_sizes(SIGN_DRAWS, len(counts), BLOCK_SIZE):
        drawn = np.abs((2 * draw.binomial(counts, 0.5, size=(size, len(counts))) - counts) @ sizes)
        extreme += int((drawn >= abs(float(difference.sum())) - 1e-9).sum())
    return Difference(mean.value, mean.low, mean.high, (extreme + 1) / (SIGN_DRAWS + 1))


def paired_difference_over_seeds(one_SQ: Array, other_TQ: Array, seed: int = 0) -> Difference:
    """The mean difference of two methods that were trained with several seeds.

    Accounts for two sources of variance. Questions are resampled. The variance between seeds is
    drawn from Student's distribution with Welch's degrees of freedom, because resampling a few runs
    underestimates it. A method with one row has no variance between seeds.

    The p-value is two-sided: twice the share of draws on the other side of zero. It is at least
    that of `paired_difference` of the means over seeds, and the interval contains the interval of
    that difference, because more seeds do not compensate for few questions.

    Args:
        one_SQ: The values of one method, a row for each seed.
        other_TQ: The values of the other on the same questions.
        seed: Seeds resampling and tests.
    """
    draw, total = np.random.default_rng(seed), one_SQ.shape[1]
    difference_Q = ((one_SQ.mean(0) - other_TQ.mean(0)) / total).astype(np.float32)
    differences = np.concatenate(
        [counts_RQ @ difference_Q for counts_RQ in _resamples(total, seed, BLOCK_SIZE, CACHE_SIZE)]
    )
    runs = [values.mean(1) for values in (one_SQ, other_TQ)]
    variances = np.array([each.var(ddof=1) / len(each) if len(each) > 1 else 0.0 for each in runs])
    if variances.any():
        freedom = (
            variances.sum() ** 2 / (variances**2 / [max(len(each) - 1, 1) for each in runs]).sum()
        )
        differences = differences + np.sqrt(variances.sum()) * draw.standard_t(freedom, RESAMPLES)
    # no metric differs by more than 1
    low, high = np.percentile(differences, [2.5, 97.5]).clip(-1, 1)
    opposite = min((differences <= 0).mean(), (differences >= 0).mean())
    alone = paired_difference(one_SQ.mean(0), other_TQ.mean(0), seed)
    p_value = min(1.0, max(2 * opposite, 1 / RESAMPLES, alone.p_value))
    return Difference(
        alone.value, min(float(low), alone.low), max(float(high), alone.high), float(p_value)
    )


def _widen_small_sample(score: Score, count: int, minimum: float = 0.0) -> Score:
    """Widens a bootstrap interval by the ratio of Student's distribution to the normal one.

    Means of resamples vary too little, by a factor of sqrt((n - 1) / n), and their percentiles
    ignore that the variance is an estimate: with five questions, 95 % intervals contained the true
    mean in 64 % of the trials. For one question the interval covers all possible values.
    """
    if count < 2:
        return Score(score.value, minimum, 1.0)
    factor = float(stdtrit(count - 1, 0.975)) / NORMAL_95 * math.sqrt(count / (count - 1))
    low, high = (score.value + factor * (edge - score.value) for edge in (score.low, score.high))
    return Score(score.value, max(min(low, score.value), minimum), min(max(high, score.value), 1.0))


def _widen_unanimous(score: Score, count: int) -> Score:
    """Replaces the interval by that of Clopper-Pearson if all questions score 0, or all score 1.

    All resamples are then the same, so the bootstrap interval would have no width.
    """
    bound = 0.025 ** (1 / count)
    if score.value == 0:
        return Score(0.0, 0.0, 1 - bound)
    return Score(1.0, bound, 1.0) if score.value == 1 else score


def _resamples(total: int, seed: int, block_size: int, cache_size: int) -> Iterator[Array]:
    """Blocks of (R, Q) float32: how often each question occurs in each resample."""
    if total * RESAMPLES <= cache_size:
        yield _cached_resamples(total, seed, block_size)
    else:
        yield from _draw_resamples(total, seed, block_size)


# cached, because all metrics and systems of a comparison have the same questions: links and queries
@lru_cache(maxsize=2)
def _cached_resamples(total: int, seed: int, block_size: int) -> Array:
    return np.concatenate(list(_draw_resamples(total, seed, block_size)))


def _draw_resamples(total: int, seed: int, block_size: int) -> Iterator[Array]:
    draw = np.random.default_rng(seed)
    for size in _block_sizes(RESAMPLES, total, block_size):
        yield draw.multinomial(total, np.full(total, 1 / total), size=size).astype(np.float32)


def _block_sizes(draws: int, width: int, block_size: int) -> list[int]:
    """Divides draws of `width` numbers into blocks of at most `block_size` numbers."""
    size = max(1, block_size // max(width, 1))
    return [min(size, draws - start) for start in range(0, draws, size)]
