"""TNVE and IFTN against formulas written one word at a time, and how they know nodes."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from graphformers.arrays import hash_strings
from graphformers.batching.tokens import graph_tokens
from graphformers.errors import GraphFormersError
from graphformers.evaluation.ranking import evaluate
from graphformers.graph.interop import build_graph
from graphformers.graph.textgraph import TextGraph
from graphformers.model.backbones import from_backbone
from graphformers.model.encoder import GraphFormers
from graphformers.model.node_id_baselines import (
    NodeIdNetwork,
    TnveNetwork,
    divergence,
    linked_divergence,
)
from tests.conftest import make_graph
from tests.model.conftest import make_model, make_texts, sequences
from tests.training.conftest import make_split

CLOSE = 1e-5
NODE_ID = ("tnve", "iftn")
GRAPH = make_graph(30, 60)
Weights = dict[str, torch.Tensor]


def known_model(method: str, nodes: Any = slice(0, 20), **changes: Any) -> GraphFormers:
    """A model that knows some nodes of GRAPH, all parameters random."""
    model = make_model(method=method, **changes)
    model.add_nodes(GRAPH.id_hashes[nodes])
    with torch.no_grad():
        network_of(model).nodes.vectors_TS.normal_(
            std=0.3, generator=torch.Generator().manual_seed(9)
        )
    return model


def network_of(model: GraphFormers) -> NodeIdNetwork:
    assert isinstance(model.network, NodeIdNetwork)
    return model.network


def naive_features(
    weights: Weights, tokens: list[int], about: torch.Tensor | None = None
) -> torch.Tensor:
    """One text, one word at a time."""
    size = weights["features.norm.weight"].shape
    words = [
        F.layer_norm(weights["text.words.weight"][token], size, *norm_of(weights))
        for token in tokens
    ]
    words = [word if about is None else word + about for word in words]
    nothing = torch.zeros(size, dtype=words[0].dtype)
    found = []
    for i, word in enumerate(words):
        window = torch.cat(
            [words[i - 1] if i else nothing, word, words[i + 1] if i + 1 < len(words) else nothing]
        )
        hidden = F.gelu(
            weights["features.convolution.weight"] @ window + weights["features.convolution.bias"]
        )
        found.append(
            word + weights["features.down.weight"] @ hidden + weights["features.down.bias"]
        )
    scores = torch.stack([weights["features.attention.weight"][0] @ word for word in found])
    return sum(
        (share * word for share, word in zip(scores.softmax(0), found, strict=True)), nothing
    )


def norm_of(weights: Weights) -> tuple[torch.Tensor, torch.Tensor, float]:
    return weights["features.norm.weight"], weights["features.norm.bias"], 1e-12


def naive_vector(
    method: str, weights: Weights, tokens: list[int], own: torch.Tensor | None
) -> torch.Tensor:
    """`own` is the node's own vector, if it has one."""
    project = weights["nodes.project.weight"]
    node = torch.zeros(len(project), dtype=project.dtype) if own is None else project @ own
    if method == "tnve":
        return (
            weights["mean.weight"] @ naive_features(weights, tokens) + weights["mean.bias"] + node
        )
    text = naive_features(weights, tokens, weights["inform.weight"] @ node)
    both = torch.cat([text, node])
    open_text, open_node = (
        (weights["gates.weight"] @ both + weights["gates.bias"]).sigmoid().chunk(2)
    )
    return open_text * text + open_node * node


@pytest.mark.parametrize("method", NODE_ID)
def test_vectors_are_the_formula(method: str) -> None:
    """Of nodes with a vector of their own and without; rows of the table are found by id."""
    model = known_model(method).double()
    weights = dict(model.network.state_dict())
    table = dict(zip(weights["nodes.hashes_T"].tolist(), weights["nodes.vectors_TS"], strict=True))
    assert len(table) == 20
    vectors = model.encode_nodes(GRAPH)
    for node, sequence in enumerate(sequences(model, GRAPH.texts_of(np.arange(GRAPH.num_nodes)))):
        own = table.get(int(GRAPH.id_hashes[node].astype(np.int64)))
        assert (own is not None) == (node < 20)
        assert (
            np.abs(naive_vector(method, weights, sequence, own).numpy() - vectors[node]).max()
            <= CLOSE
        )


@pytest.mark.parametrize("method", NODE_ID)
def test_a_node_is_the_same_whatever_else_is_in_the_batch(method: str) -> None:
    model = known_model(method)
    whole = model.encode_nodes(GRAPH)
    order = np.random.default_rng(0).permutation(GRAPH.num_nodes)
    assert np.abs(model.encode_nodes(GRAPH, order) - whole[order]).max() <= CLOSE
    for node in (3, 25):
        assert np.abs(model.encode_nodes(GRAPH, np.array([node]))[0] - whole[node]).max() <= CLOSE


@pytest.mark.parametrize("method", NODE_ID)
def test_nodes_are_known_by_id_in_any_graph(method: str) -> None:
    """In another order, with others and without links; under another id a node is its text alone,
    as in `encode`.
    """
    model = known_model(method)
    vectors = model.encode_nodes(GRAPH)
    ids, texts = GRAPH.ids.to_pylist()[::-1], GRAPH.texts.to_pylist()[::-1]
    grown = build_graph(pa.table({"id": ["new", *ids], "text": [texts[0], *texts]}))
    assert np.abs(model.encode_nodes(grown)[1:] - vectors[::-1]).max() <= CLOSE
    other = build_graph(pa.table({"id": [f"other {id}" for id in ids], "text": texts}))
    alone = model.encode(texts)
    assert np.abs(model.encode_nodes(other) - alone).max() <= CLOSE
    differs = np.abs(alone[::-1] - vectors).max(1) > 0.01
    assert differs[:20].all()
    assert not differs[20:].any()


@pytest.mark.parametrize("method", NODE_ID)
def test_a_saved_model_knows_its_nodes(method: str, tmp_path: Path) -> None:
    model = known_model(method)
    model.save_pretrained(tmp_path / "a.model")
    loaded = GraphFormers.from_pretrained(tmp_path / "a.model", device="cpu")
    assert np.array_equal(loaded.encode_nodes(GRAPH), model.encode_nodes(GRAPH))
    loaded.save_pretrained(tmp_path / "b.model")
    one, other = (tmp_path / name / "model.safetensors" for name in ("a.model", "b.model"))
    assert one.read_bytes() == other.read_bytes()
    assert load_file(one)["nodes.hashes_T"].dtype == torch.int64


def test_nodes_that_are_known_keep_their_vectors() -> None:
    model = known_model("iftn", slice(0, 20))
    before = model.encode_nodes(GRAPH)
    model.add_nodes(GRAPH.id_hashes[10:])
    assert np.abs(model.encode_nodes(GRAPH)[:20] - before[:20]).max() <= CLOSE
    nodes = network_of(model).nodes
    assert len(nodes.hashes_T) == GRAPH.num_nodes
    assert (nodes.hashes_T.diff() > 0).all()
    model.add_nodes(hash_strings(["a", "b"]), seed=1)
    twin = known_model("iftn", slice(0, 20))
    twin.add_nodes(GRAPH.id_hashes[10:])
    # new vectors do not depend on the order of ids
    twin.add_nodes(hash_strings(["b", "a"]), seed=1)
    assert torch.equal(network_of(twin).nodes.vectors_TS, network_of(model).nodes.vectors_TS)


@pytest.mark.parametrize("method", NODE_ID)
def test_gradients_reach_every_parameter(method: str) -> None:
    model = known_model(method).train()
    batch = model.packer().pack(graph_tokens(GRAPH, model.tokenizer), np.arange(GRAPH.num_nodes))
    network = network_of(model)
    vectors, added = (
        network.vectors_and_bound(batch, GRAPH.num_nodes // 2)
        if isinstance(network, TnveNetwork)
        else (network.vectors(batch), 0.0)
    )
    draw = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0))
    ((vectors * draw).sum() + added).backward()
    missing = [
        name
        for name, p in network.named_parameters()
        if p.grad is None or not p.grad.abs().max() > 0
    ]
    assert missing == []


def test_in_training_some_nodes_are_their_text_alone() -> None:
    model = known_model("iftn", slice(0, 30), dropout=0.0).train()
    network = network_of(model)
    network.settings = replace(network.settings, node_dropout=0.5)
    batch = model.packer().pack(graph_tokens(GRAPH, model.tokenizer), np.arange(30))
    torch.manual_seed(0)
    drawn = network.vectors(batch)
    model.eval()
    full, alone = network.vectors(batch), network.vectors(replace(batch, ids_N=None))
    hidden = (drawn - alone).abs().amax(1) < CLOSE
    assert 5 < hidden.sum() < 25
    assert ((drawn - full).abs().amax(1) < CLOSE)[~hidden].all()


def test_divergences_are_those_of_torch_distributions() -> None:
    """The single one exactly; the linked one as the least over all correlations of the
    posterior.
    """
    draw = torch.Generator().manual_seed(0)
    a, log_a, b, log_b = (torch.randn(6, 1, generator=draw, dtype=torch.float64) for _ in range(4))
    normal = torch.distributions.Normal
    exact = torch.distributions.kl_divergence(
        normal(a, (log_a / 2).exp()), normal(torch.zeros_like(a), torch.ones_like(a))
    )
    assert torch.allclose(divergence(a, log_a), exact[:, 0])
    joint = torch.distributions.MultivariateNormal
    for correlation in (0.0, 0.5, 0.99):
        prior = joint(
            torch.zeros(2).double(),
            torch.tensor([[1.0, correlation], [correlation, 1.0]], dtype=torch.float64),
        )
        found = linked_divergence(a, log_a, b, log_b, correlation)
        for i in range(6):
            s, t = math.exp(log_a[i] / 2), math.exp(log_b[i] / 2)
            tried = torch.linspace(-6.0, 6.0, 20_001, dtype=torch.float64).tanh()
            ones = torch.ones_like(tried)
            covariances = torch.stack([ones * s * s, tried * s * t, tried * s * t, ones * t * t])
            posterior = joint(torch.cat([a[i], b[i]]), covariances.T.reshape(-1, 2, 2))
            least = float(torch.distributions.kl_divergence(posterior, prior).min())
            assert least - 1e-6 <= found[i] <= least + 1e-9
    plain = linked_divergence(a, log_a, b, log_b, 0.0)
    # nothing known of the pair
    assert torch.allclose(plain, divergence(a, log_a) + divergence(b, log_b))


def test_linked_nodes_want_similar_latents() -> None:
    mean, variance = (
        torch.randn(3, 8, generator=torch.Generator().manual_seed(0)),
        torch.full((3, 8), -2.0),
    )
    near = linked_divergence(mean, variance, mean, variance, 0.99)
    far = linked_divergence(mean, variance, -mean, variance, 0.99)
    assert (near < far).all()
    assert (near < divergence(mean, variance) * 2).all()


def test_the_surprise_is_that_of_a_bag_of_words() -> None:
    model = known_model("tnve").double()
    network, texts = model.network, make_texts(7)
    assert isinstance(network, TnveNetwork)
    graph = build_graph(pa.table({"id": [str(i) for i in range(7)], "text": texts}))
    batch = model.packer().pack(graph_tokens(graph, model.tokenizer), np.arange(7))
    latents = torch.randn(7, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = network._negative_log_likelihood(latents, network.words(batch.tokens_RW), batch)
    for i, sequence in enumerate(sequences(model, texts)):
        logits = network.words.weight @ network.decoder(latents[i]) + network.frequency_V
        expected = -sum(logits.log_softmax(0)[token] for token in sequence[1:])
        assert float((found[i] - expected).detach().abs()) < 1e-6


@pytest.mark.parametrize("method", NODE_ID)
@pytest.mark.usefixtures("minilm")
def test_words_start_as_the_backbones(method: str) -> None:
    """And a text as the average of its words; nothing of the Transformer is kept."""
    model, backbone = from_backbone("minilm", method), from_backbone("minilm", "plm")
    words = backbone.network.text.embedding.words.weight
    assert torch.equal(network_of(model).words.weight, words)
    assert not any("layers" in name for name in model.network.state_dict())
    vector = torch.from_numpy(model.encode(["graph neural networks"])[0])
    flat, _ = graph_tokens(one_text("graph neural networks"), model.tokenizer).read(
        np.arange(1), 32
    )
    mean = F.layer_norm(words[torch.from_numpy(flat)], (384,), eps=1e-12).mean(0)
    assert F.cosine_similarity(vector, mean, dim=0) > 0.98


def one_text(text: str) -> TextGraph:
    return build_graph(pa.table({"id": ["one"], "text": [text]}))


def test_no_text_and_no_node() -> None:
    model = known_model("tnve")
    assert model.encode([]).shape == (0, 24)
    assert np.isfinite(model.encode(["", "graph"])).all()
    assert model.encode_nodes(GRAPH, np.zeros(0, dtype=np.int64)).shape == (0, 24)


def test_a_model_that_knows_nobody_can_be_evaluated() -> None:
    split = make_split()
    found = evaluate(make_model(method="iftn", max_tokens=10), split)
    assert found.num_questions == 30


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(
        GraphFormersError,
        match="expected one of graphformers, plm, gat, max, mean, att, tnve, iftn",
    ):
        make_model(method="tvne")


@pytest.mark.parametrize("method", NODE_ID)
def test_half_precision(method: str) -> None:
    """As a GPU trains, under autocast, and as it encodes, with weights in bfloat16."""
    model = known_model(method)
    network, exact = network_of(model), model.encode_nodes(GRAPH)
    batch = model.packer().pack(graph_tokens(GRAPH, model.tokenizer), np.arange(GRAPH.num_nodes))
    with torch.autocast("cpu", torch.bfloat16):
        vectors = (
            network.vectors_and_bound(batch, GRAPH.num_nodes // 2)[0]
            if isinstance(network, TnveNetwork)
            else network.vectors(batch)
        )
    assert vectors.dtype == torch.float32
    vectors.sum().backward()  # type: ignore[no-untyped-call]
    coarse = model.to(torch.bfloat16).encode_nodes(GRAPH)
    for found in (vectors.detach().numpy(), coarse):
        assert 1e-5 < np.abs(found - exact).max() < 0.05 * np.abs(exact).max()
