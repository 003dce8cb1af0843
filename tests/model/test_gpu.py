"""On a GPU: bfloat16 next to float32, compiled next to not."""

from typing import Any

import numpy as np
import pytest
import torch

from graphformers.batching.packing import to_device
from graphformers.batching.tokens import tokenize
from graphformers.batching.two_pass import TwoPass
from graphformers.graph.sampling import Neighborhood
from graphformers.model.encoder import GraphFormers
from graphformers.model.fast import compile_network
from graphformers.model.fast.network import FastGraphFormers
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
    # of 24 random numbers; those of real models are far closer
    assert cosines(found, expected).min() > 0.99


@pytest.mark.parametrize("relative_buckets", [0, 8])
def test_compiled_equals_not_compiled(relative_buckets: int) -> None:
    model = make_model(relative_buckets=relative_buckets, relative_distance=16).cuda()
    texts = make_texts(300)
    neighbors = [texts[i : i + i % 6] for i in range(300)]
    expected = model.encode(texts, neighbors)
    found = model.compile_layers().encode(texts, neighbors)
    assert model._inference_network().text.layers[0]._compiled_call_impl is not None
    assert cosines(found, expected).min() > 0.999


def calm_model(times: float = 0.5, **changes: Any) -> GraphFormers:
    """One whose weights are small enough for bfloat16 to come close: larger ones make much of
    little differences.

    (Gradients in bfloat16 and float32 have a cosine of .44 with `times` = 1, of .9997 with 0.25.)
    """
    model = make_model(hidden_size=128, num_heads=4, **changes)
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if not name.endswith("norm.weight"):
                parameter.mul_(times)
    return model.cuda()


@pytest.mark.parametrize("most", [1, 5, 40, 100])
@pytest.mark.parametrize("share_gnn", [True, False])
def test_graph_tokens_written_by_one_kernel(
    most: int, share_gnn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = calm_model(num_layers=4, share_gnn=share_gnn)
    texts, counts = make_texts(2000), np.maximum(most - np.arange(40) % 3, 0)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    neighborhood = Neighborhood(np.arange(40), indptr, np.arange(indptr[-1]) % 1900 + 40)
    batch = to_device(
        model.packer().pack_neighborhoods(tokenize(texts, model.tokenizer), neighborhood),
        model.device,
    )
    with torch.inference_mode():
        expected = model.eval().network(batch).cpu().numpy()
        model.to(torch.bfloat16)
        # else the other way, which the next lines take again
        groups = batch.index.groups()
        assert (model.network._graph_kernel(batch, groups) is not None) == (most < 64)
        assert model.train().network._graph_kernel(batch, groups) is None  # it has no dropout
        found = model.eval().network(batch).cpu().numpy()
        monkeypatch.setattr(FastGraphFormers, "_graph_kernel", lambda *_: None)
        other = model.network(batch).cpu().numpy()
    assert cosines(found, expected).min() > 0.9997
    assert np.abs(found - expected).mean() < 1.3 * np.abs(other - expected).mean()


def test_few_nodes_in_one_pass_equal_two(monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = calm_model(), make_texts(60)
    neighbors = [texts[i : i + i % 6] for i in range(50)]
    found = model.encode(texts[:50], neighbors)
    monkeypatch.setattr(TwoPass, "fits_one_pass", lambda *_: False)
    two = model.encode(texts[:50], neighbors)
    assert cosines(found, two).min() > 0.999
    assert np.abs(found - two).max() > 0  # they were computed in different ways


def test_gradients_of_a_batch_large_enough_for_the_compiler_to_join_reductions() -> None:
    gradients = []
    for is_compiled in (False, True):
        model = make_model(hidden_size=768, num_heads=12, num_layers=3, intermediate_size=64).cuda()
        if is_compiled:
            compile_network(model.network, model.compute)
        # centres of eight tokens or so, more than 4,096 and twice the width in all
        for count in (2000, 1700):
            neighborhood = Neighborhood(
                np.arange(count), np.arange(count + 1) * 3, np.arange(3 * count) % 900
            )
            batch = model.packer().pack_neighborhoods(
                tokenize(make_texts(2000), model.tokenizer), neighborhood
            )
            model.network(to_device(batch, model.device)).square().mean().backward()
        gradients.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            .cpu()
            .numpy()
        )
    assert cosines(*(found[None] for found in gradients)).min() > 0.999


def dropped_and_normed(
    update: torch.Tensor,
    residual: torch.Tensor,
    norm: torch.nn.LayerNorm,
    seed: int,
    dropout: float,
) -> Any:
    import graphformers.model.fast.norm_kernel  # noqa: F401  # needs a GPU

    given = (norm.weight, norm.bias, torch.tensor([seed], device="cuda"), dropout, norm.eps)
    return torch.ops.graphformers.add_norm(update, residual, *given)


def kept_places(rows: int, size: int, seed: int, dropout: float) -> torch.Tensor:
    ones = torch.ones(rows, size, device="cuda", dtype=torch.bfloat16)
    norm = torch.nn.LayerNorm(size, device="cuda")
    total: torch.Tensor = dropped_and_normed(ones, torch.zeros_like(ones), norm, seed, dropout)[1]
    return (total > 0).float()


@pytest.mark.parametrize("shape", [(1, 24), (1003, 384), (9, 128, 768), (77, 1000), (5, 3072)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_norm_kernels_equal_torch(shape: tuple[int, ...], dropout: float) -> None:
    torch.manual_seed(0)
    size, seed = shape[-1], 3 << 40
    norm = torch.nn.LayerNorm(size, 1e-6).cuda()
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    update, residual, toward = (torch.randn(*shape, device="cuda").bfloat16() for _ in range(3))
    residual, toward = (
        residual.transpose(0, -1).contiguous().transpose(0, -1),
        toward[:1].expand(shape),
    )  # not one after the other
    kept = kept_places(update.numel() // size, size, seed, dropout).view(shape)
    given = [update.requires_grad_(), residual.requires_grad_(), *norm.parameters()]
    found = dropped_and_normed(update, residual, norm, seed, dropout)[0]
    expected = norm(residual.float() + update.float() * kept / (1 - dropout))
    gradients = torch.autograd.grad(found, given, toward)
    expected_gradients = torch.autograd.grad(expected, given, toward.float())
    for one, other in [(found, expected), *zip(gradients, expected_gradients, strict=True)]:
        assert float(((one - other).norm() / other.norm()).detach()) < 0.006


def test_norm_kernels_of_nothing() -> None:
    nothing = torch.zeros(0, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    norm = torch.nn.LayerNorm(64, device="cuda")
    found = dropped_and_normed(nothing, nothing, norm, 1, 0.1)[0]
    gradients = torch.autograd.grad(found.sum(), [nothing, *norm.parameters()])
    assert [tuple(gradient.shape) for gradient in gradients] == [(0, 64), (64,), (64,)]
    assert not gradients[1].any()


def test_what_is_dropped_is_random() -> None:
    rows, size, dropout = 4096, 768, 0.1
    kept = kept_places(rows, size, 5, dropout)
    deviation = (dropout * (1 - dropout)) ** 0.5
    for axis, count in ((None, rows * size), (0, rows), (1, size)):
        means = kept.mean() if axis is None else kept.mean(axis)
        away = (means - (1 - dropout)).abs() / deviation * count**0.5
        assert float(away.max()) < 5.5
    centered = (kept - (1 - dropout)) / deviation
    for one, other in [
        (centered[1:], centered[:-1]),
        (centered[:, 1:], centered[:, :-1]),
        *(
            (centered, (kept_places(rows, size, seed, dropout) - (1 - dropout)) / deviation)
            for seed in (4, 6, 5 + (1 << 32))
        ),
    ]:
        assert abs(float((one * other).mean())) * one.numel() ** 0.5 < 5
    assert torch.equal(kept, kept_places(rows, size, 5, dropout))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_compiled_training_has_norm_kernels(dropout: float) -> None:
    """Without dropout as without kernels; with it, a pass that keeps nothing sees what the pass
    with gradients does.
    """
    found = []
    for is_compiled in (False, True):
        model = calm_model(times=0.25, dropout=dropout, attention_dropout=0.0).train()
        if is_compiled:
            compile_network(model.network, model.compute, trains=True)
            assert all(layer.add_norm_kernel for layer in model.network.text.layers)
        neighborhood = Neighborhood(np.arange(300), np.arange(301) * 3, np.arange(900) % 500)
        batch = to_device(
            model.packer().pack_neighborhoods(
                tokenize(make_texts(500), model.tokenizer), neighborhood
            ),
            model.device,
        )
        with torch.autocast("cuda", torch.bfloat16):
            with torch.no_grad():
                torch.manual_seed(1)
                before = model.network(batch)
            torch.manual_seed(1)
            vectors = model.network(batch)
            torch.manual_seed(2)
            other = model.network(batch)
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True
        ) as profile:
            with torch.autocast("cuda", torch.bfloat16):
                again = model.network(batch)
            again.sum().backward()
        assert (
            {"_forward", "_backward"} <= {entry.key for entry in profile.key_averages()}
        ) == is_compiled
        model.zero_grad()
        vectors.square().mean().backward()
        if is_compiled:
            assert cosines(before.cpu().numpy(), vectors.detach().cpu().numpy()).min() > 0.999
            assert (
                cosines(other.detach().cpu().numpy(), vectors.detach().cpu().numpy()).min() < 0.99
            ) == (dropout > 0)
        found.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            .cpu()
            .numpy()
        )
    if dropout == 0:
        assert cosines(*(gradient[None] for gradient in found)).min() > 0.995


def test_weights_that_changed_are_used() -> None:
    model = make_model().cuda()
    before = model.encode(["graph node"])
    # which does not tell that it changes weights
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert np.abs(model.encode(["graph node"]) - before).max() > 1e-3
