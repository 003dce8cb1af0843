"""On a GPU: bfloat16 next to float32, compiled next to not."""

import numpy as np
import pytest
import torch

from graphformers.data.packing import to_device
from graphformers.data.sampling import Neighborhood
from graphformers.data.tokens import tokenize
from graphformers.model.encoding import compile_network
from tests.model.conftest import make_model, make_texts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)


@pytest.mark.parametrize("method", ["graphformers", "plm", "gat", "max", "mean", "att"])
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
def test_bfloat16_is_close_to_float32(method: str, direction: str) -> None:
    model = make_model(method=method, direction=direction)
    texts = make_texts(50)
    neighbors = [texts[i : i + i % 6] for i in range(50)]
    expected = model.encode(texts, neighbors)
    found = model.cuda().encode(texts, neighbors)
    assert found.dtype == np.float32
    assert cosines(found, expected).min() > 0.99  # of 24 random numbers; those of real models are far closer


@pytest.mark.parametrize("relative_buckets", [0, 8])
def test_compiled_equals_not_compiled(relative_buckets: int) -> None:
    model = make_model(relative_buckets=relative_buckets, relative_distance=16).cuda()
    texts = make_texts(300)
    neighbors = [texts[i : i + i % 6] for i in range(300)]
    expected = model.encode(texts, neighbors)
    found = model.compile_layers().encode(texts, neighbors)
    assert model._inference_network().text.layers[0]._compiled_call_impl is not None
    assert cosines(found, expected).min() > 0.999


def test_gradients_of_a_batch_large_enough_for_the_compiler_to_join_reductions() -> None:
    gradients = []
    for is_compiled in (False, True):
        model = make_model(hidden_size=768, num_heads=12, num_layers=3, intermediate_size=64).cuda()
        if is_compiled:
            compile_network(model.network)
        for count in (2000, 1700):  # centres of eight tokens or so, more than 4,096 and twice the width in all
            neighborhood = Neighborhood(np.arange(count), np.arange(count + 1) * 3, np.arange(3 * count) % 900)
            batch = model.packer().pack_neighborhoods(tokenize(make_texts(2000), model.tokenizer), neighborhood)
            model.network(to_device(batch, model.device)).square().mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).cpu().numpy())
    assert cosines(*(found[None] for found in gradients)).min() > 0.999


def test_weights_that_changed_are_used() -> None:
    model = make_model().cuda()
    before = model.encode(["graph node"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)  # which does not tell that it changes weights
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert np.abs(model.encode(["graph node"]) - before).max() > 1e-3
