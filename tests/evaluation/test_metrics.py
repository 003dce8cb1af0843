import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from graphformers.errors import GraphFormersError
from graphformers.evaluation import metrics
from graphformers.evaluation.metrics import (
    METRICS,
    Ranks,
    discounted_gain,
    headline_metrics,
    hits_at,
    rank_positives,
    reciprocal_rank,
    register_metric,
)
from graphformers.evaluation.significance import summarize


def ranks_of(*scores: list[float]) -> Ranks:
    return rank_positives(np.array(scores))


def test_hand_computed_without_ties() -> None:
    ranks = ranks_of([3, 1, 2], [2, 3, 1], [1, 3, 2])  # first, second, third
    assert hits_at(ranks, 1).tolist() == [1, 0, 0]
    assert hits_at(ranks, 2).tolist() == [1, 1, 0]
    assert reciprocal_rank(ranks).tolist() == [1, 1 / 2, 1 / 3]
    assert discounted_gain(ranks) == pytest.approx([1, 1 / np.log2(3), 1 / 2])


def test_hand_computed_with_ties() -> None:
    ranks = ranks_of([2, 2, 1, 0], [1, 2, 1, 1])  # first or second; second, third or fourth
    assert hits_at(ranks, 1) == pytest.approx([1 / 2, 0])
    assert hits_at(ranks, 3) == pytest.approx([1, 2 / 3])
    assert reciprocal_rank(ranks) == pytest.approx([(1 + 1 / 2) / 2, (1 / 2 + 1 / 3 + 1 / 4) / 3])
    assert discounted_gain(ranks) == pytest.approx(
        [(1 + 1 / np.log2(3)) / 2, (1 / np.log2(3) + 1 / 2 + 1 / np.log2(5)) / 3]
    )


@pytest.mark.parametrize("count", [2, 10, 300])
def test_a_model_that_scores_everything_equal_gets_the_chance_level(count: int) -> None:
    found = summarize(rank_positives(np.full((50, count), 0.7, dtype=np.float32)))
    places = np.arange(1, count + 1)
    chance = {
        "P@1": 1 / count,
        "NDCG": (1 / np.log2(places + 1)).mean(),
        "MRR": (1 / places).mean(),
    }
    for name, level in chance.items():
        assert found[name].value == pytest.approx(level, rel=1e-12)
        assert found[name].low == pytest.approx(level)
        assert found[name].high == pytest.approx(level)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 40))
def test_the_gain_is_scikit_learns_ndcg(seed: int, count: int) -> None:
    scores = np.random.default_rng(seed).normal(size=(7, count))
    truth = np.zeros((7, count))
    truth[:, 0] = 1
    assert discounted_gain(rank_positives(scores)).mean() == pytest.approx(
        ndcg_score(truth, scores)
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_a_metric_with_ties_is_its_mean_over_orders_of_the_tied(seed: int) -> None:
    draw = np.random.default_rng(seed)
    scores = draw.integers(0, 3, size=(1, 6)).astype(float)
    tied = {name: metric(rank_positives(scores))[0] for name, metric in METRICS.items()}
    orders = [scores + draw.random(6) * 0.5 for _ in range(3000)]
    for name, metric in METRICS.items():
        drawn = metric(rank_positives(np.concatenate(orders)))
        assert tied[name] == pytest.approx(
            drawn.mean(), abs=5 * drawn.std() / np.sqrt(len(orders)) + 1e-9
        )


def test_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(GraphFormersError, match=r"1 of 4 scores are not numbers \(NaN\)"):
        ranks_of([1, np.nan], [1, 2])
    with pytest.raises(GraphFormersError, match="no questions to score"):
        summarize(rank_positives(np.zeros((0, 3))))


def test_metrics_are_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "METRICS", {})
    function = register_metric("wins", headline=True)(lambda ranks: hits_at(ranks, 1))
    register_metric("places")(function)
    assert list(metrics.METRICS) == ["wins", "places"]
    assert headline_metrics() == ["wins"]
    with pytest.raises(GraphFormersError, match="a metric 'wins' is registered already"):
        register_metric("wins")(function)
