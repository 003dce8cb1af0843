import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers.data.arrays import are_linked
from graphformers.errors import GraphFormersError
from graphformers.train.objective import ObjectiveSettings, link_loss, no_negatives
from tests.conftest import make_graph


def naive_loss(
    anchors: torch.Tensor, keys: torch.Tensor, labels: list[int], left_out: np.ndarray, options: ObjectiveSettings
) -> float:  # type: ignore[type-arg]
    """Eq. 6, one anchor and one key at a time."""
    total = 0.0
    for b, anchor in enumerate(anchors.double()):
        scores = []
        for k, key in enumerate(keys.double()):
            score = float(anchor @ key)
            if options.cosine:
                score /= float(anchor.norm() * key.norm())
            if k == labels[b] or not left_out[b, k]:
                scores.append(score / options.temperature)
        own = float(anchors[b].double() @ keys[labels[b]].double())
        if options.cosine:
            own /= float(anchors[b].double().norm() * keys[labels[b]].double().norm())
        total -= own / options.temperature - math.log(sum(math.exp(score) for score in scores))
    return total / len(anchors)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.booleans(), st.sampled_from([0.1, 1.0, 2.0]), st.booleans())
def test_the_loss_is_equation_6(seed: int, cosine: bool, temperature: float, some_left_out: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    anchors, keys = torch.randn(5, 8, generator=generator), torch.randn(9, 8, generator=generator)
    labels = [2, 3, 4, 5, 6]  # this process holds the keys 2 to 6 of nine
    left_out = (torch.rand(5, 9, generator=generator) < 0.3) & some_left_out
    options = ObjectiveSettings(temperature=temperature, cosine=cosine)
    found = link_loss(anchors, keys, torch.tensor(labels), left_out, options)
    assert float(found) == pytest.approx(naive_loss(anchors, keys, labels, left_out.numpy(), options), rel=1e-4, abs=1e-5)
    assert found.dtype == torch.float32


def test_scores_are_float32_whatever_the_vectors_are() -> None:
    anchors, keys = torch.full((2, 768), 1.0), torch.full((2, 768), 1.0)
    keys[1, 0] = 1.25  # 768 and 768.25: the same number in bfloat16
    exact = link_loss(anchors, keys, torch.tensor([0, 1]), None, ObjectiveSettings())
    half = link_loss(anchors.bfloat16(), keys.bfloat16(), torch.tensor([0, 1]), None, ObjectiveSettings())
    assert float(half) == pytest.approx(float(exact), rel=1e-6)


def test_the_symmetric_loss_is_the_mean_of_both_directions() -> None:
    generator = torch.Generator().manual_seed(1)
    anchors, keys, labels = torch.randn(6, 4, generator=generator), torch.randn(6, 4, generator=generator), torch.arange(6)
    one = link_loss(anchors, keys, labels, None, ObjectiveSettings())
    other = link_loss(keys, anchors, labels, None, ObjectiveSettings())
    both = link_loss(anchors, keys, labels, None, ObjectiveSettings(symmetric=True))
    assert float(both) == pytest.approx((float(one) + float(other)) / 2, rel=1e-5)


def test_what_is_left_out_has_no_gradient() -> None:
    anchors, keys = torch.randn(2, 4), torch.randn(3, 4, requires_grad=True)
    left_out = torch.tensor([[False, False, True], [False, False, True]])
    link_loss(anchors, keys, torch.tensor([0, 1]), left_out, ObjectiveSettings()).backward()
    assert keys.grad is not None
    assert keys.grad[2].abs().max() == 0
    assert keys.grad[:2].abs().min() > 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000))
def test_no_negatives_is_a_naive_check(seed: int) -> None:
    graph, draw = make_graph(60, 300, seed % 3), np.random.default_rng(seed)
    keys = draw.integers(0, 60, 20)
    anchors, labels = draw.integers(0, 60, 8), draw.integers(0, 20, 8)
    found = no_negatives(anchors, keys, labels, graph.indptr, graph.indices)
    for b, anchor in enumerate(anchors):
        for k, key in enumerate(keys):
            same = key in (keys[labels[b]], anchor) or key in graph.neighbors_of(anchor)
            assert found[b, k] == (bool(same) and k != labels[b])


def test_links_are_found_in_rows_without_links() -> None:
    indptr, indices = np.array([0, 0, 2, 2]), np.array([0, 2], dtype=np.int32)
    assert are_linked(indptr, indices, np.array([0, 1, 2]), np.array([[0, 2], [0, 2], [0, 2]])).tolist() == [
        [False, False],
        [True, True],
        [False, False],
    ]
    assert not are_linked(np.array([0, 0]), indices[:0], np.array([0]), np.array([[0]])).any()


def test_settings_are_checked() -> None:
    with pytest.raises(GraphFormersError, match="temperature=0 given, expected more than 0"):
        ObjectiveSettings(temperature=0)
