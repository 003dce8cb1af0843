"""The weights that are shown are those that the model used."""

import numpy as np
import pytest
import torch

from graphformers.model.attention import attention_of, center_weights
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
    found = attention_of(model, texts[0], texts[1 : 1 + count])
    layers = 1 if model.config.method == "gat" else model.config.num_layers - 1
    assert found.weights_AHN.shape == (layers, 3, 1 + count)
    np.testing.assert_allclose(found.weights_AHN.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(found.average().sum(), 1, atol=1e-5)
    np.testing.assert_allclose(
        found.vector_D, model.encode(texts[:1], [texts[1 : 1 + count]])[0], atol=1e-5
    )
    assert not any(hasattr(module, "kept") for module in model.modules()), (
        "the model itself is left as it was"
    )


@pytest.mark.parametrize("queries", [1, 5])
def test_weighted_values_are_what_graph_attention_computes(queries: int) -> None:
    """Both its ways: the one for a single query, and the attention kernel for all nodes of a
    neighbourhood.
    """
    attention = make_model().network.gnn[0]
    states = torch.randn(9, 24, generator=torch.Generator().manual_seed(0))
    index = torch.tensor([[0, 3, 4, 5, 6], [1, 7, 1, 1, 1], [2, 2, 2, 2, 2]])
    is_open = torch.tensor([[True] * 4, [True] + [False] * 3, [False] * 4])
    mask = attention.mask(is_open, queries)
    weights = center_weights(attention, states, index, mask)
    assert (weights[1, :, 2:] == 0).all(), "nobody is listened to who is not there"
    assert weights.std() > 0.05, "the weights differ, so that the comparison below means something"
    values = attention.query_key_value(states)[index, 48:].unflatten(-1, (3, 8))
    mixed = torch.einsum("bhn,bnhd->bhd", weights, values).flatten(1)
    torch.testing.assert_close(mixed, attention(states, index, mask)[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", ["plm", "max", "mean", "att"])
def test_models_without_graph_attention_have_none(method: str) -> None:
    model, texts = make_model(method=method), make_texts(4)
    found = attention_of(model, texts[0], texts[1:])
    assert found.weights_AHN.shape == (0, 3, 4)
    np.testing.assert_allclose(found.vector_D, model.encode(texts[:1], [texts[1:]])[0], atol=1e-5)
