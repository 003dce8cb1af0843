from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers.errors import GraphFormersError
from graphformers.evaluation.metrics import METRICS, Ranks
from graphformers.evaluation.ranking import (
    evaluate,
    in_batch,
    model_scores,
    question_nodes,
    rank,
    rank_all,
    rank_listed,
)
from graphformers.evaluation.scores import ROUNDING, VectorScores
from graphformers.graph.textgraph import TextGraph
from graphformers.splits.split import LinkQuestions, split_links
from graphformers.training.settings import TrainConfig
from graphformers.training.trainer import Trainer
from tests.conftest import make_graph
from tests.model.conftest import make_model
from tests.training.conftest import make_topics

Array = np.ndarray  # type: ignore[type-arg]


def score(vectors: Array, a: int, b: int, cosine: bool) -> float:
    one, other = vectors[a].astype(float), vectors[b].astype(float)
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other) if cosine else 1))


def naive_ranks(vectors: Array, nodes: Array, asked: LinkQuestions, cosine: bool) -> list[int]:
    place = {int(node): i for i, node in enumerate(nodes)}
    found = []
    for (anchor, _), candidates in zip(asked.pairs, asked.candidates, strict=True):
        scores = [
            score(vectors, place[int(anchor)], place[int(candidate)], cosine)
            for candidate in candidates
        ]
        found.append(sum(score > scores[0] for score in scores[1:]))
    return found


@pytest.mark.parametrize("cosine", [False, True])
def test_ranks_are_those_of_a_naive_loop(cosine: bool) -> None:
    split = split_links(make_graph(), valid=0.1, test=0.1)
    nodes = question_nodes(split.test)
    vectors = np.random.default_rng(0).normal(size=(len(nodes), 12)).astype(np.float32)
    three_questions = 4 * 12 * split.test.candidates.shape[1] * 3
    scorer = VectorScores(vectors, nodes, cosine=cosine, gather_bytes=three_questions)
    found = rank_listed(scorer, split.test)
    assert found.better.tolist() == naive_ranks(vectors, nodes, split.test, cosine)
    assert found.tied.max() == 0


def test_equal_vectors_are_tied_wherever_they_stand() -> None:
    split = split_links(make_graph(), valid=0.1, test=0.1)
    nodes = question_nodes(split.test)
    one = torch.randn(37, generator=torch.Generator().manual_seed(0)).numpy()
    found = rank_listed(VectorScores(np.tile(one, (len(nodes), 1)), nodes), split.test)
    assert METRICS["P@1"](found).mean() == pytest.approx(
        1 / split.test.candidates.shape[1], rel=1e-9
    )


def naive_full(vectors: Array, graph: TextGraph, pairs: Array, cosine: bool) -> Ranks:
    better, tied = [], []
    for anchor, positive in pairs.tolist():
        left_out = {anchor, positive, *graph.neighbors_of(anchor).tolist()}
        own = score(vectors, anchor, positive, cosine)
        others = [
            score(vectors, anchor, node, cosine)
            for node in range(graph.num_nodes)
            if node not in left_out
        ]
        lengths = (
            1.0
            if cosine
            else float(np.linalg.norm(vectors[anchor]) * np.linalg.norm(vectors[positive]))
        )
        near = ROUNDING * lengths
        better.append(sum(other > own + near for other in others))
        tied.append(sum(abs(other - own) <= near for other in others))
    return Ranks(np.array(better), np.array(tied))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.integers(1, 90), st.integers(1, 9))
def test_full_ranking_is_that_of_a_naive_loop(
    seed: int, cosine: bool, width: int, height: int
) -> None:
    """Also with many equal vectors, and whatever the size of blocks."""
    split = split_links(make_graph(80, 200, seed=seed % 5), valid=10, test=30, candidates=10)
    draw = np.random.default_rng(seed)
    vectors = draw.normal(size=(7, 6)).astype(np.float32)[draw.integers(0, 7, 80)]
    vectors[::3] = draw.normal(size=(27, 6)).astype(np.float32)
    found = rank_all(
        VectorScores(vectors, cosine=cosine),
        split.graph,
        split.test.pairs,
        anchors_per_block=height,
        scores_per_block=width * height,
    )
    expected = naive_full(vectors, split.graph, split.test.pairs, cosine)
    assert found.better.tolist() == expected.better.tolist()
    assert found.tied.tolist() == expected.tied.tolist()


def test_full_ranking_of_equal_vectors_is_the_chance_level() -> None:
    split = split_links(make_graph(300, 600), valid=20, test=60)
    one = np.random.default_rng(0).normal(size=(1, 61)).astype(np.float32)
    found = rank(VectorScores(np.repeat(one, 300, 0)), split.graph, split.test, "full")
    left = (
        299 - split.graph.degrees()[split.test.pairs[:, 0]]
    )  # the anchor and its known links are left out, but for the positive
    assert found.scores["P@1"].value == pytest.approx((1 / (left + 1)).mean(), rel=1e-9)
    assert found.num_candidates == 300


def test_full_ranking_needs_all_nodes() -> None:
    split = split_links(make_graph(), valid=0.1, test=0.1)
    with pytest.raises(GraphFormersError, match=r"vectors of 7 nodes, full ranking needs all"):
        rank_all(VectorScores(np.ones((7, 3), dtype=np.float32)), split.graph, split.test.pairs)


@pytest.mark.parametrize(
    ("count", "size"), [(10, 3), (9, 3), (2, 5), (1, 4), (300, 300), (301, 300)]
)
def test_in_batch_asks_among_consecutive_positives_and_drops_nothing(count: int, size: int) -> None:
    pairs = np.stack([np.arange(count), np.arange(count) + 1000], 1)
    found = in_batch(pairs, size)
    size = min(size, count)
    assert found.candidates[:, 0].tolist() == pairs[:, 1].tolist()
    for i, candidates in enumerate(found.candidates.tolist()):
        start = min(i - i % size, count - size)
        assert sorted(candidates) == pairs[start : start + size, 1].tolist()


def test_in_batch_is_what_a_batch_of_the_2021_code_scores() -> None:
    """Its scores are the products of a batch's anchors with its positives, the diagonal being
    right.
    """
    split = split_links(make_graph(), valid=0.1, test=12, candidates=10)
    vectors = np.random.default_rng(3).normal(size=(split.graph.num_nodes, 8)).astype(np.float32)
    found = rank_listed(VectorScores(vectors), in_batch(split.test.pairs, 6))
    for start in (0, 6):
        block = split.test.pairs[start : start + 6]
        product = vectors[block[:, 0]] @ vectors[block[:, 1]].T
        assert (
            found.better[start : start + 6].tolist()
            == (product > np.diag(product)[:, None] + 1e-5).sum(1).tolist()
        )


@pytest.mark.parametrize("protocol", ["saved", "in-batch", "full"])
def test_a_model_is_evaluated_with_the_neighbours_it_may_see(protocol: str) -> None:
    split, model = split_links(make_graph(), valid=0.1, test=0.1), make_model()
    found = evaluate(model, split, protocol=protocol)
    vectors = model.encode_nodes(split.graph, sampler=split.sampler(model.config.num_neighbors))
    assert found == rank(VectorScores(vectors), split.graph, split.test, protocol)
    assert evaluate(model, split, split.valid).num_questions == len(split.valid)
    table: Any = found.to_dict()
    assert table["questions"] == len(split.test)
    assert table["P@1"]["interval"][0] <= table["P@1"]["value"] <= table["P@1"]["interval"][1]
    assert str(found).startswith("P@1 0.")
    assert found.as_table().header == ["", *METRICS]
    assert "<th>P@1</th>" in found._repr_html_()


def test_a_model_that_compares_by_cosine_is_evaluated_so() -> None:
    split, model = split_links(make_graph(), valid=0.1, test=0.1), make_model(similarity="cosine")
    vectors = model.encode_nodes(split.graph, sampler=split.sampler(model.config.num_neighbors))
    by_cosine, by_product = (
        rank(VectorScores(vectors, cosine=cosine), split.graph, split.test)
        for cosine in (True, False)
    )
    found = evaluate(model, split)
    assert found.ranks.better.tolist() == by_cosine.ranks.better.tolist()
    assert found.ranks.better.tolist() != by_product.ranks.better.tolist()


def test_other_neighbours_give_other_scores() -> None:
    split, model = split_links(make_graph(), valid=0.1, test=0.1), make_model()
    alone = model_scores(model, split, split.test, sampler=split.sampler(0))
    nodes = question_nodes(split.test)
    assert alone.listed(nodes[:1], nodes[None, :3]) == pytest.approx(
        VectorScores(model.encode(split.graph.texts_of(nodes)), nodes).listed(
            nodes[:1], nodes[None, :3]
        ),
        rel=1e-4,
    )


def test_wrong_inputs() -> None:
    split = split_links(make_graph(), valid=0.1, test=0.1)
    with pytest.raises(
        GraphFormersError, match=r"3 vectors of shape \(4,\) given, expected one each for"
    ):
        VectorScores(np.zeros((3, 4), dtype=np.float32), question_nodes(split.test))
    with pytest.raises(GraphFormersError, match="not finite"):
        VectorScores(np.array([[1.0, np.nan]]))
    with pytest.raises(GraphFormersError, match=r"no protocol 'ful'; .*full"):
        rank(VectorScores(np.ones((split.graph.num_nodes, 2))), split.graph, split.test, "ful")


@pytest.mark.parametrize("length", [1e-20, 1e-13, 1e19, 1e30])
@pytest.mark.parametrize("protocol", ["saved", "full"])
def test_vectors_of_any_length_have_the_same_cosines(length: float, protocol: str) -> None:
    split = split_links(make_graph(), valid=0.1, test=0.1)
    vectors = np.random.default_rng(0).normal(size=(split.graph.num_nodes, 16)).astype(np.float32)
    vectors[7] = 0
    expected = rank(VectorScores(vectors, cosine=True), split.graph, split.test, protocol)
    found = rank(
        VectorScores(vectors * np.float32(length), cosine=True), split.graph, split.test, protocol
    )
    assert found.ranks.better.tolist() == expected.ranks.better.tolist()


def test_inner_products_that_leave_float32_are_refused() -> None:
    """Where a score is no number nothing is better than it, and it would look like the first of
    all.
    """
    split = split_links(make_graph(), valid=0.1, test=0.1)
    vectors = np.random.default_rng(0).normal(size=(split.graph.num_nodes, 16)).astype(np.float32)
    with pytest.raises(
        GraphFormersError,
        match=r"numbers as large as [\d.]+e\+20, whose inner products are too large",
    ):
        VectorScores(vectors * np.float32(1e20))
    with pytest.raises(
        GraphFormersError, match=r"numbers as large as [\d.]+e\+200, which are too large"
    ):
        VectorScores(vectors.astype(np.float64) * 1e200, cosine=True)
    half = VectorScores(vectors.astype(np.float16))
    with pytest.raises(GraphFormersError, match="not finite"):
        VectorScores(np.array([[1.0, np.inf]], dtype=np.float16))
    assert half.listed(np.array([0]), np.array([[1]])) == pytest.approx(
        vectors[:1] @ vectors[1:2].T, abs=0.01
    )
    fine = rank(VectorScores(vectors * np.float32(1e18)), split.graph, split.test, "full")
    assert (
        fine.ranks.better.tolist()
        == rank(VectorScores(vectors), split.graph, split.test, "full").ranks.better.tolist()
    )

    class Broken(VectorScores):
        def listed(self, anchors_Q: Array, candidates_QC: Array) -> Array:
            return np.full(candidates_QC.shape, np.nan, dtype=np.float32)

    with pytest.raises(GraphFormersError, match="some scores of the positives are not finite"):
        rank(Broken(vectors), split.graph, split.test, "full")


def test_a_model_of_another_split_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = make_topics().save(tmp_path / "t.graph")
    own, other = (
        split_links(graph, valid=20, test=20, candidates=10, seed=seed) for seed in (1, 2)
    )
    config = TrainConfig(two_stage=False, max_steps=1, batch_size=16, workers=0)
    trainer = Trainer(make_model(), own.save(tmp_path / "own.split"), config, tmp_path / "t.model")
    trainer.train(keep_start=True)
    evaluate(tmp_path / "t.model", tmp_path / "own.split")
    assert "another split" not in caplog.text
    evaluate(tmp_path / "t.model", other)
    assert "t.model: trained on another split." in caplog.text
