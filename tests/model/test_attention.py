"""The attention weights that are shown are those with which the model computes."""

import numpy as np
import pytest
import torch

from graphformers.batching.packing import NeighborIndex
from graphformers.model.attention import attention_weights
from graphformers.model.network import GraphAttention
from tests.model.conftest import make_model, make_texts

VARIANTS = {
    "shared": {},
    "own": {"share_gnn": False, "position_bias": False},
    "bidirectional": {"direction": "bidirectional"},
    "two layers": {"num_layers": 2},
    "gat": {"method": "gat"},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("count", [0, 1, 6])
def test_weights_are_distributions_and_the_vector_is_the_models(
    changes: dict[str, object], count: int
) -> None:
    model, texts = make_model(**changes), make_texts(7)
    found = attention_weights(model, texts[0], texts[1 : 1 + count])
    layers = 1 if model.config.method == "gat" else model.config.num_layers - 1
    assert found.weights_AHG.shape == (layers, 3, 1 + count)
    np.testing.assert_allclose(found.weights_AHG.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(found.average().sum(), 1, atol=1e-5)
    expected = model.encode(texts[:1], [texts[1 : 1 + count]])[0]
    np.testing.assert_allclose(found.vector_D, expected, atol=1e-5)
    assert not any(module._forward_hooks for module in model.modules()), "the model is as it was"


def test_weighted_values_are_what_graph_attention_computes() -> None:
    attention = make_model().network.gnn[0]
    assert isinstance(attention, GraphAttention)
    states = torch.randn(9, 24, generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([[0, 1, 2, 3], [4, 0, 0, 0], [0, 0, 0, 0]])
    exists = torch.tensor([[True] * 4, [True] + [False] * 3, [False] * 4])
    index = NeighborIndex(rows, exists)
    groups = index.groups()
    assert groups.tolist() == [[0, 3, 4, 5, 6], [1, 7, 1, 1, 1], [2, 2, 2, 2, 2]]
    query, key, value = attention.project(states, groups)
    weights = attention.weights(query, key, attention.mask(index))
    assert (weights[1, 2:] == 0).all(), "no attention where there is no neighbour"
    assert weights.std() > 0.05, "the weights differ, or the comparison below would mean nothing"
    values = value.unflatten(-1, (3, 8))
    mixed = torch.einsum("bgh,bghd->bhd", weights, values).flatten(1)
    found = attention(states[:3], states[3:], index)
    torch.testing.assert_close(mixed, found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", ["plm", "max", "mean", "att"])
def test_models_without_graph_attention_have_none(method: str) -> None:
    model, texts = make_model(method=method), make_texts(4)
    found = attention_weights(model, texts[0], texts[1:])
    assert found.weights_AHG.shape == (0, 3, 4)
    np.testing.assert_allclose(found.vector_D, model.encode(texts[:1], [texts[1:]])[0], atol=1e-5)
