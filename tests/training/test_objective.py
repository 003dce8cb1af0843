import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers.arrays import are_linked
from graphformers.errors import GraphFormersError
from graphformers.training.objective import ObjectiveSettings, find_false_negatives, link_loss
from tests.conftest import make_graph


def naive_loss(
    anchors: torch.Tensor,
    keys: torch.Tensor,
    first: int,
    left_out: set[tuple[int, int]],
    temperature: float,
    counts: list[int],
) -> float:
    """Eq. 6, one anchor and one key at a time; a key that comes so many times weighs so much
    less.
    """
    total = 0.0
    for b, anchor in enumerate(anchors.double()):
        scores = [
            float(anchor @ key) / temperature - math.log(count)
            for key, count in zip(keys.double(), counts, strict=True)
        ]
        kept = [score for k, score in enumerate(scores) if (b, k) not in left_out]
        total -= scores[first + b] - math.log(sum(math.exp(score) for score in kept))
    return total


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.1, 1.0, 2.0]), st.booleans(), st.booleans())
def test_the_loss_is_equation_6(
    seed: int, temperature: float, some_left_out: bool, logq_correction: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    anchors, keys = torch.randn(5, 8, generator=generator), torch.randn(9, 8, generator=generator)
    first = 2  # this process holds the keys 2 to 6 of nine
    places = (
        torch.nonzero(torch.rand(5, 9, generator=generator) < 0.3).tolist() if some_left_out else []
    )
    left_out = {(b, k) for b, k in places if k != first + b}
    given = torch.tensor(sorted(left_out), dtype=torch.int64).reshape(-1, 2).T
    counts = torch.randint(1, 100, (9,), generator=generator)
    found = link_loss(
        anchors, keys, first, temperature, given, counts.log() if logq_correction else None
    )
    expected = naive_loss(
        anchors, keys, first, left_out, temperature, counts.tolist() if logq_correction else [1] * 9
    )
    assert float(found) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert found.dtype == torch.float32


def test_scores_are_float32_whatever_the_vectors_are() -> None:
    anchors, keys = torch.full((2, 768), 1.0), torch.full((2, 768), 1.0)
    keys[1, 0] = 1.25  # 768 and 768.25: the same number in bfloat16
    exact = link_loss(anchors, keys, 0, 1.0)
    half = link_loss(anchors.bfloat16(), keys.bfloat16(), 0, 1.0)
    assert float(half) == pytest.approx(float(exact), rel=1e-6)


def test_what_is_left_out_has_no_gradient() -> None:
    anchors, keys = torch.randn(2, 4), torch.randn(3, 4, requires_grad=True)
    link_loss(anchors, keys, 0, 1.0, torch.tensor([[0, 1], [2, 2]])).backward()
    assert keys.grad is not None
    assert keys.grad[2].abs().max() == 0
    assert keys.grad[:2].abs().min() > 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000))
def test_find_false_negatives_is_a_naive_check(seed: int) -> None:
    graph, draw = make_graph(60, 300, seed % 3), np.random.default_rng(seed)
    keys = draw.integers(0, 60, 20)
    anchors, first = draw.integers(0, 60, 8), int(draw.integers(0, 12))
    found = set(
        map(
            tuple,
            find_false_negatives(anchors, keys, first, graph.indptr, graph.indices).T.tolist(),
        )
    )
    for b, anchor in enumerate(anchors):
        for k, key in enumerate(keys):
            same = key in (keys[first + b], anchor) or key in graph.neighbors_of(anchor)
            assert ((b, k) in found) == (bool(same) and k != first + b)


def test_links_are_found_in_rows_without_links() -> None:
    indptr, indices = np.array([0, 0, 2, 2]), np.array([0, 2], dtype=np.int32)
    assert are_linked(
        indptr, indices, np.array([0, 1, 2]), np.array([[0, 2], [0, 2], [0, 2]])
    ).tolist() == [
        [False, False],
        [True, True],
        [False, False],
    ]
    assert not are_linked(np.array([0, 0]), indices[:0], np.array([0]), np.array([[0]])).any()


def test_settings_are_checked() -> None:
    with pytest.raises(GraphFormersError, match="temperature=0 given, expected more than 0"):
        ObjectiveSettings(temperature=0)


def test_popularity_is_learnt_where_it_is_wanted() -> None:
    """Free scores of one anchor, keys drawn by their links: what is learnt is the chance of a link,
    or chance taken out of it.
    """
    draw, linked, known = np.random.default_rng(0), np.array([1.0, 2.0, 4.0, 8.0]), {}
    for logq_correction in (False, True):
        scores = torch.zeros(4, requires_grad=True)
        optimizer = torch.optim.Adam([scores], lr=0.05)
        for _ in range(400):
            # the first of a row is its positive
            keys = torch.from_numpy(draw.choice(4, (32, 8), p=linked / linked.sum()))
            often = torch.from_numpy(np.log(linked)).float()[keys]
            loss = torch.stack(
                [
                    link_loss(
                        torch.ones(1, 1),
                        scores[row][:, None],
                        0,
                        1.0,
                        None,
                        log if logq_correction else None,
                    )
                    for row, log in zip(keys, often, strict=True)
                ]
            ).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        known[logq_correction] = scores.detach().numpy() - scores.detach().numpy().mean()
    assert np.abs(known[False]).max() < 0.3  # every key is a positive as often as it is a negative
    assert np.abs(known[True] - (np.log(linked) - np.log(linked).mean())).max() < 0.3
