"""What is installed to make a network faster computes the same as the plain network."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from graphformers.batching.packing import PackedBatch, PackedNeighborhoods
from graphformers.batching.tokens import tokenize
from graphformers.graph.sampling import Neighborhood
from graphformers.model import fast
from graphformers.model.config import ModelConfig
from graphformers.model.fast.layers import FastLayer
from graphformers.model.layers import OwnTextMask, TransformerLayer
from graphformers.model.registry import methods, register_part
from tests.model.conftest import make_model, make_texts

OTHER_PARTS: dict[str, Any] = {
    "layer": "test_pre_norm",
    "positions": "test_waves",
    "attention_mask": "test_window",
}


@register_part("layer", "test_pre_norm")
class PreNormLayer(TransformerLayer):
    """Norms before attention and MLP."""

    def forward(self, hidden_RWD: Tensor, mask_RHWW: Tensor) -> Tensor:
        normed_RWD = self.attention_norm(hidden_RWD)
        hidden_RWD = hidden_RWD + self.attention(normed_RWD, normed_RWD, mask_RHWW)
        result: Tensor = hidden_RWD + self.mlp(self.mlp_norm(hidden_RWD))
        return result


@register_part("positions", "test_waves")
class Waves(nn.Module):
    """Sines of the position, without weights."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.size = config.hidden_size

    def forward(self, positions_RW: Tensor) -> Tensor:
        waves_D = torch.arange(1, self.size + 1, device=positions_RW.device)
        return torch.sin(positions_RW[..., None] / waves_D)


@register_part("attention_mask", "test_window")
class Window(OwnTextMask):
    """Tokens attend to their own text's tokens that are at most two places away."""

    def forward(self, texts: PackedBatch) -> Tensor:
        own_RWW = super().forward(texts)
        places_W = torch.arange(own_RWW.shape[-1], device=own_RWW.device)
        near_WW = (places_W[:, None] - places_W).abs() <= 2
        attends_RWW: Tensor = own_RWW & near_WW
        return attends_RWW


VARIANTS: dict[str, dict[str, Any]] = {
    **{method: {"method": method} for method in methods()},
    "bidirectional": {"direction": "bidirectional"},
    "no isolated graph tokens": {"isolated_graph_token": False},
    "no isolated graph tokens, bidirectional": {
        "isolated_graph_token": False,
        "direction": "bidirectional",
    },
    "own attentions": {"share_gnn": False, "position_bias": False},
    "relative positions": {"relative_buckets": 8, "relative_distance": 16},
    "one layer": {"num_layers": 1},
    "two layers": {"num_layers": 2},
    "two layers, bidirectional": {"num_layers": 2, "direction": "bidirectional"},
    "other parts": OTHER_PARTS,
    "other parts, bidirectional": OTHER_PARTS | {"direction": "bidirectional"},
    "other parts, one layer": OTHER_PARTS | {"num_layers": 1},
}


def batch_of(model: Any, most: int = 5, count: int = 12) -> PackedNeighborhoods:
    texts = make_texts(40, seed=3)
    counts = np.arange(count) % (most + 1)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    neighborhood = Neighborhood(np.arange(count), indptr, np.arange(indptr[-1]) % 25 + count)
    packed: PackedNeighborhoods = model.packer().pack_neighborhoods(
        tokenize(texts, model.tokenizer), neighborhood
    )
    return packed


def computed(network: nn.Module, batch: PackedNeighborhoods) -> tuple[Tensor, dict[str, Tensor]]:
    """Vectors of a batch, and the gradient of every parameter for a random loss."""
    network.zero_grad()
    vectors = network(batch)
    weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0))
    (vectors * weights).sum().backward()
    found = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return vectors.detach(), {name: gradient.clone() for name, gradient in found.items()}


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_fast_equals_plain(changes: dict[str, Any], pooling: str) -> None:
    """Vectors and gradients, from scratch and from cached states."""
    model = make_model(**changes, pooling=pooling)
    model.double()
    plain, batch = fast.plain(model.network), batch_of(model)
    assert (
        type(plain) is not type(model.network)
        or not plain.has_transformer
        or "text" in dict(plain.named_children())
    )
    expected, gradients = computed(plain, batch)
    found, other = computed(model.network, batch)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert gradients.keys() == other.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(other[name], gradient, atol=1e-9, rtol=1e-6)
    with torch.inference_mode():
        torch.testing.assert_close(model.network(batch), expected, atol=1e-6, rtol=0)
        if not model.packer().inputs.joint:
            for network in (plain, model.network):
                states = network.neighbor_states(batch.neighbors)
                cached = network.center_vectors(batch.centers, states, batch.index)
                torch.testing.assert_close(cached, expected, atol=1e-6, rtol=0)


def test_a_registered_mask_limits_attention() -> None:
    """A token three layers of a window away from [CLS] does not change the state of [CLS]."""
    far = ["graph " * 8 + "graph", "graph " * 8 + "text"]
    for mask, is_equal in (("own_text", False), ("test_window", True)):
        model = make_model(method="plm", num_layers=3, attention_mask=mask)
        one, other = model.encode(far)
        assert np.allclose(one, other, atol=1e-6) == is_equal


def test_installing_keeps_parameters_and_their_names() -> None:
    model = make_model()
    plain = fast.plain(model.network)
    assert list(plain.state_dict()) == list(model.network.state_dict())
    for one, other in zip(plain.parameters(), model.network.parameters(), strict=True):
        assert one is other
    assert {type(layer) for layer in plain.text.layers} == {TransformerLayer}
    assert {type(layer) for layer in fast.install(plain).text.layers} == {FastLayer}


def test_projections_that_are_more_than_a_matrix_are_called() -> None:
    """As quantised ones are: their weight alone does not say what they compute."""

    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = make_model()
    batch = batch_of(model)
    before = model.network(batch)
    for module in list(model.network.modules()):
        for name in ("query", "key", "value", "key_value"):
            projection = getattr(module, name, None)
            if isinstance(projection, nn.Linear):
                projection.__class__ = Doubled
    plain = fast.plain(model.network)
    expected = plain(batch)
    assert (before - expected).abs().max() > 0.01
    torch.testing.assert_close(model.network(batch), expected, atol=1e-5, rtol=1e-5)
    model.eval()
    with torch.inference_mode():
        states = model.network.neighbor_states(batch.neighbors)
        cached = model.network.center_vectors(batch.centers, states, batch.index)
    torch.testing.assert_close(cached, expected.detach(), atol=1e-5, rtol=1e-5)
