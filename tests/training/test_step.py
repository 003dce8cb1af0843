import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from graphformers.batching.packing import PackedBatch
from graphformers.errors import GraphFormersError
from graphformers.graph.sampling import Neighborhood
from graphformers.model.encoder import GraphFormers
from graphformers.model.node_id_baselines import TnveNetwork
from graphformers.training.batches import BatchKey, BatchMaker
from graphformers.training.chunks import ChunkSize
from graphformers.training.distributed import World
from graphformers.training.loader import Loader
from graphformers.training.queries import draw_queries
from graphformers.training.settings import TrainConfig
from graphformers.training.step import EncodedChunk, TrainStep
from tests.training.conftest import make_model, make_split

SPLIT = make_split()
Gradients = dict[str, torch.Tensor]


def make_step(
    model: GraphFormers, *, retry_steps: int = 64, **changes: Any
) -> tuple[TrainStep, BatchMaker]:
    config = TrainConfig(**{"batch_size": 24, "temperature": 0.7, **changes})
    maker = BatchMaker.of(model, SPLIT, config)
    loader = Loader(maker, ChunkSize(None, retry_steps), 0, torch.device("cpu"))
    return TrainStep(model, config, World(), loader), maker


def gradients(model: GraphFormers) -> Gradients:
    found = {
        name: parameter.grad
        for name, parameter in model.network.named_parameters()
        if parameter.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return found


def run(
    model: GraphFormers, chunk_size: int | None = None, seed: int = 3, **changes: Any
) -> tuple[float, Gradients]:
    step, maker = make_step(model, **changes)
    loss = step.run(maker.make(BatchKey(0, 0, False, chunk_size)), seed)
    return float(loss.detach()), gradients(model)


def node_id_model(method: str) -> GraphFormers:
    """One whose nodes are known, and which hides and draws nothing."""
    model = make_model(method=method)
    model.add_nodes(SPLIT.graph.id_hashes)
    return model.eval()


def naive(
    model: GraphFormers,
    *,
    symmetric: bool = False,
    mask_false_negatives: bool = True,
    logq_correction: bool = False,
    text_query_weight: float = 0.0,
    margin: float = 0.0,
) -> tuple[float, Gradients]:
    """One pair at a time through the network, eq. 6 one score at a time, and autograd for the
    rest.
    """
    maker = make_step(model)[1]
    pairs = maker.pairs(0, 0)
    links = {frozenset(pair) for pair in SPLIT.train.tolist()}
    vectors, added = [], torch.zeros(())
    for pair in pairs:
        one = maker.packer.pack_neighborhoods(maker.tokens, maker.neighborhood(pair[None], 0))
        vectors.append(model.network(one))
        if isinstance(model.network, TnveNetwork):
            added = added + naive_bound(model.network, one.centers)
    anchors, keys = (torch.stack([both[side] for both in vectors]) for side in (0, 1))
    if model.config.similarity == "cosine":
        anchors, keys = F.normalize(anchors, dim=-1), F.normalize(keys, dim=-1)

    learned = model.network.log_temperature
    temperature = 0.7 if learned is None else 0.7 * learned.exp()

    def score(
        mine: torch.Tensor, theirs: torch.Tensor, node: int, margin: float = 0.0
    ) -> torch.Tensor:
        frequency = math.log((SPLIT.train == node).sum()) if logq_correction else 0.0
        return (mine @ theirs - margin) / temperature - frequency

    def one_way(mine: torch.Tensor, theirs: torch.Tensor, side: int) -> torch.Tensor:
        losses = []
        for b, own in enumerate(pairs):
            others = []
            for k, other in enumerate(pairs):
                node = other[1 - side]
                same = node in (own[0], own[1]) or frozenset((int(own[side]), int(node))) in links
                if k != b and not (same and mask_false_negatives):
                    others.append(score(mine[b], theirs[k], node))
            positive = score(mine[b], theirs[b], own[1 - side], margin)
            losses.append(torch.logsumexp(torch.stack([positive, *others]), 0) - positive)
        return torch.stack(losses).mean()

    loss = one_way(anchors, keys, 0)
    if symmetric:
        loss = (loss + one_way(keys, anchors, 1)) / 2
    loss = loss + added / len(pairs)
    if text_query_weight:
        nodes, ends = pairs[:, 0], np.concatenate([pairs[:, 0], pairs[:, 1]])
        texts = draw_queries(maker.tokens, nodes, 10, maker.continues_word, 42, 0)
        queries = []
        for b in range(len(nodes)):
            tokens = texts.tokens[texts.offsets[b] : texts.offsets[b + 1]]
            alone = replace(texts, tokens=tokens, offsets=np.array([0, len(tokens)]))
            none = Neighborhood(np.array([0]), np.array([0, 0]), np.array([], dtype=np.int64))
            queries.append(model.network(maker.packer.pack_neighborhoods(alone, none))[0])
        losses = []
        for b, query in enumerate(queries):
            own = F.normalize(query, dim=-1) if model.config.similarity == "cosine" else query
            vectors = torch.cat([anchors, keys])
            kept = [(own @ vectors[b] - margin) / temperature]
            kept += [
                own @ other / temperature
                for other, node in zip(vectors, ends, strict=True)
                if node != nodes[b]
            ]
            losses.append(torch.logsumexp(torch.stack(kept), 0) - kept[0])
        loss = loss + text_query_weight * torch.stack(losses).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach()), gradients(model)


def naive_bound(network: TnveNetwork, pair: PackedBatch) -> torch.Tensor:
    """Of one linked pair, by torch's own distributions; half of all pairs are taken for unlinked
    ones.
    """
    words = network.words(pair.tokens_RW)
    latent, mean, log_variance = network._latents(words, pair)
    s, t = (log_variance / 2).exp()
    strength = network.settings.correlation
    c = strength * s * t / (1 - strength**2)
    covariance = (((1 + 4 * c**2).sqrt() - 1) / (2 * c)) * s * t
    posterior = MultivariateNormal(
        mean.T, torch.stack([s * s, covariance, covariance, t * t], -1).view(-1, 2, 2)
    )
    prior = MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, strength], [strength, 1.0]]))
    linked = kl_divergence(posterior, prior).sum()
    unlinked = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0)).sum()
    surprise = torch.zeros(())
    for node in range(2):
        row, slot = divmod(int(pair.slot_N[node]), pair.num_slots)
        tokens = pair.tokens_RW[row][pair.slots_RW[row] == slot][1:]
        logits = network.words.weight @ network.decoder(latent[node]) + network.frequency_V
        surprise = surprise - logits.log_softmax(0)[tokens].sum()
    return network.settings.bound_weight * (surprise + (linked + unlinked) / 2)


def assert_close(one: tuple[float, Gradients], other: tuple[float, Gradients]) -> None:
    assert one[0] == pytest.approx(other[0], abs=1e-5)
    assert one[1].keys() == other[1].keys()
    for name, gradient in one[1].items():
        assert (gradient - other[1][name]).abs().max() < 1e-5, name


@pytest.mark.parametrize("method", ["graphformers", "plm", "gat", "max", "mean", "att"])
def test_a_step_is_the_naive_one(method: str) -> None:
    model = make_model(method=method)
    expected = naive(model)
    assert_close(run(model), expected)
    assert_close(run(model, chunk_size=7), expected)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("isolated_graph_token", [True, False])
def test_a_step_with_text_queries_is_the_naive_one(
    similarity: str, isolated_graph_token: bool
) -> None:
    model = make_model(similarity=similarity, isolated_graph_token=isolated_graph_token)
    expected = naive(model, text_query_weight=0.5)
    assert_close(run(model, text_query_weight=0.5), expected)
    assert_close(run(model, chunk_size=7, text_query_weight=0.5), expected)


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_step_with_a_margin_and_a_learned_temperature_is_the_naive_one(symmetric: bool) -> None:
    model = make_model(similarity="cosine", learn_temperature=True)
    assert model.network.log_temperature is not None
    torch.nn.init.constant_(model.network.log_temperature, -0.4)
    changes: dict[str, Any] = {"margin": 0.2, "text_query_weight": 0.5, "symmetric": symmetric}
    expected = naive(model, **changes)
    assert expected[1]["log_temperature"].abs() > 1e-3
    assert_close(run(model, **changes), expected)
    assert_close(run(model, chunk_size=7, **changes), expected)


@pytest.mark.parametrize("method", ["plm", "max", "tnve", "iftn"])
def test_other_methods_learn_from_text_queries(method: str) -> None:
    model = node_id_model(method) if method in ("tnve", "iftn") else make_model(method=method)
    expected = naive(model, text_query_weight=2.0)
    assert_close(run(model, text_query_weight=2.0), expected)
    assert_close(run(model, chunk_size=7, text_query_weight=2.0), expected)


@pytest.mark.parametrize("method", ["tnve", "iftn"])
@pytest.mark.parametrize("neighbor_gradients", [True, False])
def test_a_step_of_a_network_with_terms_of_its_own_is_the_naive_one(
    method: str, neighbor_gradients: bool
) -> None:
    model = node_id_model(method)
    if isinstance(model.network, TnveNetwork):
        # so that it matters
        model.network.settings = replace(model.network.settings, bound_weight=0.05)
    expected = naive(model)
    assert {name for name, _ in model.network.named_parameters()} - expected[1].keys() <= {
        "log_variance.weight"
    }
    assert_close(run(model, neighbor_gradients=neighbor_gradients), expected)
    assert_close(run(model, chunk_size=7, neighbor_gradients=neighbor_gradients), expected)


@pytest.mark.parametrize(
    "changes", [{"direction": "bidirectional"}, {"similarity": "cosine"}, {"share_gnn": False}]
)
def test_variants(changes: dict[str, Any]) -> None:
    model = make_model(**changes)
    expected = naive(model)
    assert_close(run(model), expected)
    assert_close(run(model, chunk_size=5), expected)


@pytest.mark.parametrize("mask_false_negatives", [False, True])
@pytest.mark.parametrize("logq_correction", [False, True])
def test_keys_that_look_for_their_anchors(
    mask_false_negatives: bool, logq_correction: bool
) -> None:
    model, changes = (
        make_model(),
        {"mask_false_negatives": mask_false_negatives, "logq_correction": logq_correction},
    )
    expected = naive(model, symmetric=True, **changes)
    assert_close(run(model, symmetric=True, **changes), expected)
    assert expected[0] != pytest.approx(naive(model, **changes)[0], abs=1e-4)
    assert_close(run(model, chunk_size=7, **changes), naive(model, **changes))


@pytest.mark.parametrize("method", ["graphformers", "max"])
def test_without_neighbor_gradients_neighbours_are_constants(method: str) -> None:
    model = make_model(method=method)
    states, center_vectors = model.network.neighbor_states, model.network.center_vectors
    expected_loss, _ = naive(model)
    loss, whole = run(model, neighbor_gradients=False)
    _, chunked = run(model, chunk_size=7, neighbor_gradients=False)
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    assert_close((0, whole), (0, chunked))
    # by hand: the states without a graph, the rest with one
    maker = make_step(model, neighbor_gradients=False)[1]
    batch = maker.make(BatchKey(0, 0, False))
    with torch.no_grad():
        near = states(batch.neighbors[0])
    chunk: Any = batch.chunks[0]
    vectors = center_vectors(chunk.centers, [layer[chunk.needed_m] for layer in near], chunk.index)
    scores = (vectors[:24] @ vectors[24:].T / 0.7).index_put(
        tuple(batch.false_negatives[0]), torch.tensor(-math.inf)
    )
    F.cross_entropy(scores, torch.arange(24)).backward()  # type: ignore[no-untyped-call]
    assert_close((0, gradients(model)), (0, whole))


def test_with_dropout_both_passes_see_the_same_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(dropout=0.3, attention_dropout=0.2).train()
    step, maker = make_step(model)
    seen: dict[str, list[torch.Tensor]] = {"vectors": [], "states": []}
    vectors, states = step._encode_chunk, step._encode_neighbors

    def watched_vectors(*arguments: Any) -> EncodedChunk:
        found = vectors(*arguments)
        seen["vectors"].append(found.vectors_ND.detach().clone())
        return found

    def watched_states(*arguments: Any) -> list[torch.Tensor]:
        found = states(*arguments)
        seen["states"].append(torch.stack(found).detach().clone())
        return found

    monkeypatch.setattr(step, "_encode_chunk", watched_vectors)
    monkeypatch.setattr(step, "_encode_neighbors", watched_states)
    step.run(maker.make(BatchKey(0, 0, False, chunk_size=8)), seed=5)
    for name, calls in seen.items():
        assert len(calls) == 6, name
        for first, second in zip(calls[:3], calls[3:], strict=True):
            assert torch.equal(first, second), name
    assert not torch.equal(seen["vectors"][0], seen["vectors"][1])


@pytest.mark.parametrize("method", ["graphformers", "tnve", "iftn"])
def test_the_gradient_with_dropout_is_that_of_the_loss_it_saw(method: str) -> None:
    """Under fixed random numbers the chunked loss is a function of the weights: its gradient by
    differences.
    """
    model = make_model(
        method=method, dropout=0.2, attention_dropout=0.1, hidden_size=8, num_heads=2
    )
    model.add_nodes(SPLIT.graph.id_hashes)
    model.double().train()
    _, found = run(model, chunk_size=9)
    generator = torch.Generator().manual_seed(0)
    direction = {
        name: torch.randn(p.shape, generator=generator, dtype=p.dtype)
        for name, p in model.network.named_parameters()
    }
    slope = sum(float((found[name] * direction[name]).sum()) for name in found)
    values = []
    for step in (1e-4, -2e-4):
        with torch.no_grad():
            for name, parameter in model.network.named_parameters():
                parameter += step * direction[name]
        values.append(run(model, chunk_size=9)[0])
    assert (values[0] - values[1]) / 2e-4 == pytest.approx(slope, rel=2e-2)


class _SmallMemory:
    """Runs out of memory when more nodes are encoded at once than fit."""

    def __init__(self, network: Any, most: int, *, backward: bool) -> None:
        self.network, self.most, self.is_backward, self.refused = network, most, backward, 0

    def check(self, nodes: int, result: torch.Tensor | None = None) -> None:
        if nodes > self.most and (not self.is_backward or result is None):
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        if result is not None and result.requires_grad and nodes > self.most:
            result.register_hook(lambda gradient: self.check(nodes))


@pytest.mark.parametrize("backward", [False, True])
def test_when_memory_runs_out_chunks_get_smaller(
    backward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(similarity="cosine", learn_temperature=True)
    expected = run(model)
    memory = _SmallMemory(model.network, most=40, backward=backward)
    forward = model.network.forward

    def limited_forward(batch: Any, near: Any = None) -> torch.Tensor:
        if not backward:
            memory.check(batch.nodes.num_nodes)
        result: torch.Tensor = forward(batch, near)
        if backward:
            memory.check(batch.nodes.num_nodes, result)
        return result

    monkeypatch.setattr(model.network, "forward", limited_forward)
    step, maker = make_step(model)
    loss = step.run(maker.make(BatchKey(0, 0, False)), 3)
    assert memory.refused >= 1
    assert step.loader.chunks.current is not None
    assert step.loader.chunks.current < 24
    assert_close((float(loss), gradients(model)), expected)


@pytest.mark.parametrize("others", [5, 10_000])
def test_larger_chunks_are_tried_again(others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """When others needed the memory for some steps, all is as before soon; when it is small, it is
    tried ever more rarely.
    """
    model = make_model()
    expected = run(model)
    step, maker = make_step(model, retry_steps=3)
    chunks = step.loader.chunks
    used: list[int | None] = []
    refused: list[int] = []

    def limited(call: Any) -> Any:
        def tried(batch: Any, *more: Any) -> torch.Tensor:
            if len(used) < others and getattr(batch, "nodes", batch).num_nodes > 20:
                refused.append(len(used))
                raise torch.OutOfMemoryError("CUDA out of memory")
            result: torch.Tensor = call(batch, *more)
            return result

        return tried

    monkeypatch.setattr(model.network, "forward", limited(model.network.forward))
    for _ in range(100):
        loss = step.run(maker.make(BatchKey(0, 0, False, chunks.current)), 3)
        used.append(chunks.used)
        assert_close((float(loss), gradients(model)), expected)
    assert used[0] == 6
    if others == 5:
        assert refused[-1] == 3  # in vain, hence six steps to the next time
        assert used == [6] * 9 + [12] * 3 + [None] * 88
    else:
        assert set(used) == {6}
        assert [number for number in refused if number] == [3, 9, 21, 45, 93]


def test_the_small_rest_of_an_epoch_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fits in any case; patience with larger batches must grow none the less, or they fail once
    an epoch.
    """
    model = make_model()
    step, maker = make_step(model, retry_steps=3)
    forward, refused = model.network.forward, []

    def limited(batch: Any, near: Any = None) -> torch.Tensor:
        if batch.nodes.num_nodes > most:
            refused.append(number)
            raise torch.OutOfMemoryError("CUDA out of memory")
        result: torch.Tensor = forward(batch, near)
        return result

    monkeypatch.setattr(model.network, "forward", limited)
    rest = maker.num_batches - 1
    most = maker.make(BatchKey(0, rest, False)).chunks[0].nodes.num_nodes  # type: ignore[union-attr]
    assert len(maker.pairs(0, rest)) < 24
    for number in range(120):
        chunk_size = step.loader.chunks.current
        key = BatchKey(0, rest if number % 4 == 3 else 0, False, chunk_size)
        step.run(maker.make(key), 3)
    assert [number for number in refused if number] == [4, 10, 22, 46, 94]


def test_memory_too_small_for_anything_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()

    def refuse(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model.network, "forward", refuse)
    step, maker = make_step(model)
    with pytest.raises(GraphFormersError, match="too small even for one pair at a time"):
        step.run(maker.make(BatchKey(0, 0, False)), 3)
