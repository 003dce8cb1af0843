import numpy as np
import pytest

from graphformers.errors import GraphFormersError
from graphformers.evaluation.metrics import METRICS, Ranks
from graphformers.evaluation.significance import (
    bootstrap,
    bootstrap_jointly,
    paired_difference,
    paired_difference_over_seeds,
    summarize,
)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        score = bootstrap((draw.random(200) < 0.3).astype(float), seed=trial)
        covered += score.low <= 0.3 <= score.high
    assert 0.90 <= covered / 300 <= 0.985


@pytest.mark.parametrize("count", [2, 3, 5, 10, 30])
@pytest.mark.parametrize("together", [False, True])
def test_intervals_of_few_questions_are_wide_enough(count: int, together: bool) -> None:
    """Of reciprocal ranks, which lie far apart: a plain bootstrap holds their mean 40, 64 and 77
    times of 100 for 2, 5 and 10.
    """
    draw, covered = np.random.default_rng(count), 0
    share = 1 / np.arange(1, 31) ** 1.2
    values = 1 / np.arange(1, 31)
    truth = float(values @ share / share.sum())
    for trial in range(400):
        drawn = draw.choice(values, count, p=share / share.sum())
        score = bootstrap_jointly(drawn[None], trial)[0] if together else bootstrap(drawn, trial)
        covered += score.low <= truth <= score.high
        assert 0 <= score.low <= score.value <= score.high <= 1
    # where all drawn are alike, nothing shows that others are not
    assert covered / 400 >= (0.86 if count > 2 else 0.7)


def test_one_question_says_nothing() -> None:
    assert (bootstrap(np.array([0.4])).low, bootstrap(np.array([0.4])).high) == (0, 1)
    found = paired_difference(np.array([0.4]), np.array([0.1]))
    assert (found.low, found.high) == (-1, 1)
    assert found.value == pytest.approx(0.3)


@pytest.mark.parametrize("cache_size", [0, 10**9])
def test_joint_intervals_are_those_of_each_metric(cache_size: int) -> None:
    values = np.random.default_rng(3).random((3, 400)) ** np.array([[1], [2], [30]])
    joint = bootstrap_jointly(values, block_size=100_000, cache_size=cache_size)
    for together, alone in zip(joint, [bootstrap(each) for each in values], strict=True):
        assert together.value == pytest.approx(alone.value)
        assert together.low == pytest.approx(alone.low, abs=0.005)
        assert together.high == pytest.approx(alone.high, abs=0.005)


@pytest.mark.parametrize("count", [1, 11, 100])
def test_what_never_happened_may_still_happen(count: int) -> None:
    """All questions missed, or all answered: the interval of the binomial distribution, by
    scipy.
    """
    from scipy.stats import binomtest

    missed, found = (
        Ranks(np.full(count, 9), np.zeros(count, dtype=int)),
        Ranks(np.zeros(count, dtype=int), np.zeros(count, dtype=int)),
    )
    for ranks, hits in ((missed, 0), (found, count)):
        expected = binomtest(hits, count).proportion_ci()
        for score in (summarize(ranks)["P@1"], bootstrap_jointly(METRICS["P@1"](ranks)[None])[0]):
            assert (score.low, score.high) == pytest.approx((expected.low, expected.high))


def test_an_interval_is_the_same_for_the_same_seed() -> None:
    values = np.random.default_rng(1).random(100)
    assert bootstrap(values, 3) == bootstrap(values, 3)


def test_the_paired_test_is_that_of_scipy() -> None:
    from scipy.stats import permutation_test

    draw = np.random.default_rng(5)
    one, other = draw.random(40).round(2), draw.random(40).round(2) - 0.08
    expected = permutation_test(
        (one, other),
        lambda a, b: np.mean(a - b),
        permutation_type="samples",
        n_resamples=20_000,
        rng=draw,
    ).pvalue
    found = paired_difference(one, other)
    assert found.value == pytest.approx((one - other).mean())
    assert found.p_value == pytest.approx(expected, abs=0.02)
    assert found.low < found.value < found.high
    # the names as they are count as one of the draws
    assert paired_difference(np.ones(40), np.zeros(40)).p_value == 1e-4


def test_two_systems_that_are_the_same_do_not_differ() -> None:
    values = np.random.default_rng(0).random(50)
    found = paired_difference(values, values)
    assert (found.value, found.low, found.high, found.p_value) == (0, 0, 0, 1)
    assert str(found) == "+0.0000 [+0.0000, +0.0000], p = 1.000"


def test_the_paired_test_errs_as_often_as_it_says() -> None:
    draw = np.random.default_rng(2)
    wrong = sum(
        paired_difference(draw.random(30), draw.random(30), seed).p_value < 0.05
        for seed in range(300)
    )
    assert 4 <= wrong <= 28


def test_only_the_same_questions_are_compared() -> None:
    with pytest.raises(GraphFormersError, match="3 and 2 questions given"):
        paired_difference(np.zeros(3), np.zeros(2))


def test_seeds_that_differ_more_than_methods_make_no_difference() -> None:
    """Two methods whose runs scatter: with questions alone resampled, chance would look like a
    difference far too often.
    """
    draw = np.random.default_rng(7)
    for count in (2, 3, 5):
        wrong = 0
        for _ in range(300):
            levels = 0.4 + 0.05 * draw.normal(size=2 * count)
            runs = (draw.random((2 * count, 400)) < levels[:, None]).astype(float)
            wrong += paired_difference_over_seeds(runs[:count], runs[count:]).p_value < 0.05
        assert wrong <= 24  # 15 expected
    for size in (5, 30):  # few questions, on which the seeds agree
        wrong = 0
        for _ in range(300):
            one, other = (
                np.tile((draw.random(size) < 0.5).astype(float), (2, 1)) for _ in range(2)
            )
            wrong += paired_difference_over_seeds(one, other).p_value < 0.05
        assert wrong <= 24
    for scatter in (0.01, 0.05):  # against what has no seeds
        wrong = 0
        for _ in range(300):
            fixed, level = draw.random(1000) < 0.4, 0.4 + scatter * draw.normal(size=3)
            runs = np.stack(
                [
                    np.where(draw.random(1000) < 0.9, fixed, draw.random(1000) < each)
                    for each in level
                ]
            )
            shift = draw.random((3, 1000)) < np.abs(level - 0.4)[:, None]
            runs = np.where(shift, (level > 0.4)[:, None], runs).astype(float)
            wrong += paired_difference_over_seeds(runs, fixed[None].astype(float)).p_value < 0.05
        assert wrong <= 24
    alone = paired_difference_over_seeds(np.ones((2, 1)), np.zeros((2, 1)))
    assert alone.p_value == paired_difference(np.ones(1), np.zeros(1)).p_value == 1
    scattered = paired_difference_over_seeds(np.array([[1.0], [0.0]]), np.array([[0.0], [1.0]]))
    assert (scattered.low, scattered.high) == (-1, 1)
    apart = paired_difference_over_seeds(
        (draw.random((3, 400)) < 0.6).astype(float), (draw.random((3, 400)) < 0.4).astype(float)
    )
    assert apart.p_value < 0.05
    assert apart.low < apart.value < apart.high
