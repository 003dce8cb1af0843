"""The network against the paper, and the properties that packing and caching stand on."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers.batching.packing import NeighborIndex, Packer, pack_texts
from graphformers.batching.tokens import tokenize
from graphformers.batching.two_pass import BatchLimits
from graphformers.errors import GraphFormersError
from graphformers.graph.sampling import Neighborhood, NeighborSampler
from graphformers.model.config import ModelConfig
from graphformers.model.encoder import GraphFormers
from graphformers.model.network import GraphAttention, GraphFormersNetwork
from graphformers.model.registry import method_class, methods
from tests.conftest import make_graph
from tests.model import naive
from tests.model.conftest import make_model, make_texts, sequences

CLOSE = 1e-5
METHODS = methods()
CASCADED = [name for name in METHODS[1:] if method_class(name).has_transformer]


def draw_neighbors(texts: list[str], seed: int, most: int = 5) -> list[list[str]]:
    draw = random.Random(seed)
    return [draw.sample(texts, draw.randint(0, most)) for _ in texts]


def assert_close_to(
    formula: Any, model: GraphFormers, texts: list[str], neighbors: list[list[str]]
) -> None:
    """Encoding gives what a naive formula gives, one neighbourhood at a time; in float64, so that
    only the formula counts.
    """
    model.double()
    weights = dict(model.network.state_dict())
    for text, around, vector in zip(texts, neighbors, model.encode(texts, neighbors), strict=True):
        expected = formula(model.config, weights, sequences(model, [text, *around]))
        assert np.abs(expected.numpy() - vector).max() <= CLOSE


@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize("share_gnn", [True, False])
@pytest.mark.parametrize("position_bias", [True, False])
@pytest.mark.parametrize("relative_buckets", [0, 8])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("isolated_graph_token", [True, False])
def test_the_network_is_algorithm_1(
    direction: str,
    share_gnn: bool,
    position_bias: bool,
    relative_buckets: int,
    pooling: str,
    isolated_graph_token: bool,
) -> None:
    model = make_model(
        pooling=pooling,
        isolated_graph_token=isolated_graph_token,
        direction=direction,
        share_gnn=share_gnn,
        position_bias=position_bias,
        relative_buckets=relative_buckets,
        relative_distance=16,
    )
    texts = make_texts(8)
    neighbors = draw_neighbors(texts, 1)
    neighbors[0] = []
    assert_close_to(naive.graphformers, model, texts, neighbors)


@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
def test_without_a_graph_token_a_text_alone_is_encoded_as_by_its_backbone(direction: str) -> None:
    model = make_model(isolated_graph_token=False, direction=direction)
    backbone = make_model(method="plm")
    weights = model.network.state_dict()
    backbone.network.load_state_dict(
        {name: weights[name] for name in backbone.network.state_dict()}
    )
    texts = make_texts(6)
    assert np.allclose(model.encode(texts), backbone.encode(texts), atol=1e-6)
    assert not np.allclose(model.encode(texts, [texts] * 6), backbone.encode(texts), atol=1e-2)


@pytest.mark.parametrize("method", CASCADED)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_baselines_are_their_formulas(method: str, pooling: str) -> None:
    model = make_model(method=method, pooling=pooling)
    texts = make_texts(6)
    neighbors = draw_neighbors(texts, 2)
    neighbors[0] = []
    assert_close_to(naive.cascaded, model, texts, neighbors)


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_shallow_networks(num_layers: int, direction: str, pooling: str) -> None:
    model = make_model(num_layers=num_layers, direction=direction, pooling=pooling)
    texts = make_texts(5)
    neighbors = draw_neighbors(texts, 3)
    assert_close_to(naive.graphformers, model, texts, neighbors)


@pytest.mark.parametrize(
    "changes", [{"dropout": 2.0}, {"attention_dropout": 1.0}, {"dropout": -0.1}]
)
def test_a_share_that_is_none_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(GraphFormersError, match="given, expected 0 to below 1"):
        make_model(**changes)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(["unidirectional", "bidirectional"]),
    st.sampled_from([12, 16, 40, 100]),
    st.integers(1, 20),
    st.sampled_from([1, 5]),
    st.sampled_from([1, 9]),
    st.sampled_from(["cls", "mean"]),
)
def test_packing_never_changes_a_vector(
    seed: int,
    direction: str,
    row_width: int,
    slots: int,
    row_multiple: int,
    width: int,
    pooling: str,
) -> None:
    """Whatever else is in the batch, in whatever order, rows and neighbourhoods of whatever width:
    a node's vector is its own.
    """
    model = make_model(direction=direction, pooling=pooling)
    texts = make_texts(12, seed)
    neighbors = draw_neighbors(texts, seed)
    alone = np.concatenate(
        [model.encode([text], [around]) for text, around in zip(texts, neighbors, strict=True)]
    )
    order = np.random.default_rng(seed).permutation(len(texts))
    flat = [text for i in order for text in neighbors[i]]
    tokens = tokenize([*(texts[i] for i in order), *flat], model.tokenizer)
    indptr = np.concatenate([[0], np.cumsum([len(neighbors[i]) for i in order])]).astype(np.int64)
    neighborhood = Neighborhood(np.arange(len(texts)), indptr, np.arange(len(flat)) + len(texts))
    inputs = model.network.inputs(model.config)
    packer = Packer(12, 0, inputs, row_width, slots, row_multiple, width)
    with torch.inference_mode():
        packed = model.network(packer.pack_neighborhoods(tokens, neighborhood)).numpy()
    assert np.abs(packed - alone[order]).max() <= CLOSE


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(METHODS),
    st.sampled_from(["unidirectional", "bidirectional"]),
)
def test_the_order_of_neighbours_never_matters(seed: int, method: str, direction: str) -> None:
    model = make_model(method=method, direction=direction)
    texts = make_texts(6, seed)
    neighbors = draw_neighbors(texts, seed)
    shuffled = [random.Random(seed + 1).sample(around, len(around)) for around in neighbors]
    assert np.abs(model.encode(texts, neighbors) - model.encode(texts, shuffled)).max() <= CLOSE


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_states_of_a_neighbour_are_its_plain_encoding(texts: list[str], pooling: str) -> None:
    model = make_model(pooling=pooling)
    model.double()  # so that only the formula counts, not the rounding
    weights = dict(model.network.state_dict())
    tokens = tokenize(texts, model.tokenizer)
    assert isinstance(model.network, GraphFormersNetwork)
    with torch.inference_mode():
        states = model.network.neighbor_states(model.packer().pack(tokens, np.arange(len(texts))))
    assert len(states) == model.config.num_layers - 1
    for i, sequence in enumerate(sequences(model, texts)):
        expected = naive.plain(model.config, weights, sequence)
        for layer, state in enumerate(states):
            assert (state[i] - expected[layer]).abs().max() <= CLOSE


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
def test_encoding_nodes_equals_encoding_texts(method: str, direction: str) -> None:
    """Two passes over states, in many small batches, give what one joint forward gives."""
    model, graph = make_model(method=method, direction=direction), make_graph(60, 200)
    nodes = np.random.default_rng(0).permutation(graph.num_nodes)[:40]
    model.limits = BatchLimits(tokens=60, entries=13)
    vectors = model.encode_nodes(graph, nodes)
    model.limits = None
    links = graph.indptr, graph.indices, graph.id_hashes
    sampler = NeighborSampler(*links, model.config.num_neighbors)
    neighborhood = sampler.sample(nodes)
    around = [graph.texts_of(neighborhood.of(b)) for b in range(len(nodes))]
    assert np.abs(vectors - model.encode(graph.texts_of(nodes), around)).max() <= CLOSE


@pytest.mark.parametrize("method", ["graphformers", "max", "plm"])
def test_encoding_in_parts_gives_the_same_vectors(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, graph = make_model(method=method), make_graph(60, 200)
    expected = model.encode_nodes(graph)
    assert "parts" not in caplog.text
    model.limits = BatchLimits(states=20)
    assert np.abs(model.encode_nodes(graph) - expected).max() <= CLOSE
    assert ("nodes are encoded in" in caplog.text) == (method != "plm")
    # fewer than a node has neighbours
    model.limits = BatchLimits(states=1)
    assert np.abs(model.encode_nodes(graph) - expected).max() <= CLOSE


def test_few_centres_and_neighbours_are_read_together() -> None:
    model = make_model()
    tokens = tokenize(make_texts(9), model.tokenizer)
    # 4 is asked for twice, read once
    neighborhood = Neighborhood(np.array([0, 1]), np.array([0, 3, 4]), np.array([3, 4, 5, 4]))
    # with a graph token for each centre
    size = int(tokens.lengths(np.array([0, 1, 3, 4, 5]), model.config.max_tokens).sum()) + 2
    for few_tokens, few_neighbors, expected in [
        (size, 3, True),
        (size - 1, 3, False),
        (size, 2, False),
        (7, 3, False),
    ]:
        limits = BatchLimits(one_pass_tokens=few_tokens, one_pass_neighbors=few_neighbors)
        assert model.two_pass(limits=limits).fits_one_pass(tokens, neighborhood) == expected
    nobody = Neighborhood(np.zeros(0, int), np.zeros(1, int), np.zeros(0, int))
    assert not model.two_pass().fits_one_pass(tokens, nobody)
    for changes in ({"direction": "bidirectional"}, {"method": "max"}, {"method": "plm"}):
        assert not make_model(**changes).two_pass().fits_one_pass(tokens, neighborhood)


def test_each_text_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten centres around one hub: its states are computed once."""
    model = make_model()
    read: list[int] = []
    states = type(model.network).neighbor_states
    monkeypatch.setattr(
        type(model.network),
        "neighbor_states",
        lambda self, batch: read.append(batch.num_nodes) or states(self, batch),
    )
    model.encode(make_texts(10), [["graph node"]] * 10)
    assert sum(read) == 1


def gradients(
    model: GraphFormers, texts: list[str], neighbors: list[list[str]]
) -> dict[str, float]:
    places: dict[str, int] = {}
    flat = [places.setdefault(text, len(places)) for around in neighbors for text in around]
    tokens = tokenize([*places, *texts], model.tokenizer)
    indptr = np.concatenate([[0], np.cumsum([len(around) for around in neighbors])]).astype(
        np.int64
    )
    neighborhood = Neighborhood(
        np.arange(len(texts)) + len(places), indptr, np.array(flat, dtype=np.int64)
    )
    batch = model.packer().pack_neighborhoods(tokens, neighborhood)
    weights = torch.randn(
        len(texts), model.config.hidden_size, generator=torch.Generator().manual_seed(0)
    )
    (model.network(batch) * weights).sum().backward()
    return {
        name: 0.0 if p.grad is None else float(p.grad.abs().max())
        for name, p in model.network.named_parameters()
    }


@pytest.mark.parametrize(
    ("method", "direction", "share_gnn"),
    [
        ("graphformers", direction, share)
        for direction in ("unidirectional", "bidirectional")
        for share in (True, False)
    ]
    + [(method, "unidirectional", True) for method in CASCADED],
)
def test_gradients_reach_every_parameter_that_can_matter(
    method: str, direction: str, share_gnn: bool
) -> None:
    """The others: key biases, which a softmax cannot see; and, when only centres look, the
    neighbour-neighbour bias.
    """
    model = make_model(
        method=method,
        direction=direction,
        share_gnn=share_gnn,
        relative_buckets=8,
        relative_distance=16,
    )
    texts = make_texts(30)
    model.double()  # what is zero in theory is zero to 1e-12
    found = gradients(model, texts, draw_neighbors(texts, 5))
    dead = {name for name, size in found.items() if size < 1e-9}
    expected = {name for name in found if name.startswith(("gnn.", "gat.")) and ".key.bias" in name}
    if method != "graphformers":
        expected |= {name for name in found if name.endswith("relative_bias.graph_token")}
    assert dead == expected
    size = model.config.hidden_size
    for name, parameter in model.network.named_parameters():
        assert parameter.grad is not None or name in dead
        if name.endswith("key_value.bias"):  # the first half is the keys'
            assert parameter.grad is not None
            assert parameter.grad[:size].abs().max() < 1e-9
            assert parameter.grad[size:].abs().max() > 1e-6
        if name.endswith("gnn.0.bias"):
            assert parameter.grad is not None
            third = float(parameter.grad[2].abs().max())
            assert third == 0 if direction == "unidirectional" else third > 0


def test_dropout_is_off_when_encoding_and_training_is_restored(texts: list[str]) -> None:
    model = make_model(dropout=0.5, attention_dropout=0.5)
    expected = model.encode(texts)
    model.train()
    model.network.text.eval()  # a part that is frozen
    assert np.array_equal(model.encode(texts), expected)
    assert model.training
    assert model.network.training
    assert not model.network.text.training


def test_threads_that_encode_a_model_in_training_agree(texts: list[str]) -> None:
    model = make_model(dropout=0.5, attention_dropout=0.5)
    expected = model.encode(texts)
    model.train()
    with ThreadPoolExecutor(3) as threads:
        assert all(
            np.array_equal(found, expected)
            for found in threads.map(lambda _: model.encode(texts), range(6))
        )
    assert model.training


@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
def test_autocast_serves_training_and_encoding(texts: list[str], direction: str) -> None:
    model = make_model(direction=direction)
    neighbors = draw_neighbors(texts, 4)
    expected = model.encode(texts, neighbors)
    with torch.autocast("cpu", torch.bfloat16):
        found = model.encode(texts, neighbors)
        assert max(gradients(model, texts[:5], neighbors[:5]).values()) > 0
    assert np.abs(found - expected).max() < 0.3
    assert (found * expected).sum() / np.linalg.norm(found) / np.linalg.norm(expected) > 0.999


def test_edges_of_what_can_be_encoded() -> None:
    model = make_model()
    model.double()  # so that only the formula counts, not the rounding
    weights = dict(model.network.state_dict())
    long = "graph " * 500
    vectors = model.encode(["", long, "graph node"], [[], [""], ["graph node", "graph node"]])
    cut = sequences(model, [long])[0]
    assert len(cut) == 12
    for vector, texts in zip(vectors, ([""], [long, ""], ["graph node"] * 3), strict=True):
        expected = naive.graphformers(model.config, weights, sequences(model, texts))
        assert np.abs(expected.numpy() - vector).max() <= CLOSE
    assert model.encode([]).shape == (0, 24)
    assert model.encode([], []).shape == (0, 24)
    with pytest.raises(GraphFormersError, match="2 lists of neighbours for 1 texts"):
        model.encode(["a"], [[], []])
    with pytest.raises(GraphFormersError, match="not Unicode: it holds half of a character"):
        model.encode(["bad \ud83d"])
    with pytest.raises(GraphFormersError, match="a NoneType was given: neighbors="):
        model.encode(["graph"], [None])  # type: ignore[list-item]
    with pytest.raises(GraphFormersError, match="a NoneType given, expected texts"):
        model.encode(["graph"], [[None]])  # type: ignore[list-item]
    with pytest.raises(GraphFormersError, match="neighbors takes a list of texts for each text"):
        model.encode(["graph"], ["node link"])
    with pytest.raises(GraphFormersError, match="a bidirectional model encodes at most 4,000"):
        make_model(direction="bidirectional").encode(["graph"], [["node"] * 5000])


def test_one_text_is_one_vector() -> None:
    model = make_model()
    (alone,), (among,) = (
        model.encode(["graph node"]),
        model.encode(["graph node"], [["link", "text"]]),
    )
    assert np.array_equal(model.encode("graph node"), alone)
    assert np.array_equal(model.encode("graph node", ["link", "text"]), among)
    assert np.array_equal(model.encode("graph node", [["link", "text"]]), among)
    assert np.array_equal(model.encode("graph node", []), alone)
    assert np.linalg.norm(model.encode("graph node", normalize=True)) == pytest.approx(1)
    assert model.similarity(alone, [alone, among]) == pytest.approx(
        np.array([[alone @ alone, alone @ among]]), rel=1e-5
    )
    cosines = make_model(similarity="cosine").similarity(alone, [2 * alone, among])
    assert cosines[0, 0] == pytest.approx(1)
    assert cosines[0, 1] == pytest.approx(
        alone @ among / np.linalg.norm(alone) / np.linalg.norm(among), rel=1e-5
    )


def test_ten_thousand_neighbours() -> None:
    """One centre with 10,000 neighbours among others with few: all of them count."""
    model = make_model()
    many = make_texts(10_000, 1, longest=3)
    few = make_texts(3)
    vectors = model.encode([*few, "graph"], [["node"], [], ["link"], many])
    assert np.isfinite(vectors).all()
    assert np.abs(vectors[:3] - model.encode(few, [["node"], [], ["link"]])).max() <= CLOSE
    reference = model.encode(["graph"], [sorted(many)])
    # sums of 10,000 numbers in another order
    assert np.abs(vectors[3] - reference[0]).max() <= 1e-4
    assert np.abs(vectors[3] - model.encode(["graph"], [many[:9000]])[0]).max() > 1e-6


def test_a_graph_token_starts_as_the_average() -> None:
    """Of a new model, whose Q and K are small: ẑ is the mean of the neighbourhood's states."""
    model = make_model()
    fresh = GraphAttention(model.config).eval()
    center, neighbors = torch.randn(2, 24), torch.randn(5, 24)
    index, is_open = (
        torch.tensor([[0, 1, 2], [3, 0, 0]]),
        torch.tensor([[True] * 3, [True, False, False]]),
    )
    found = fresh(center, neighbors, NeighborIndex(index, is_open))
    expected = torch.stack(
        [
            torch.cat([center[:1], neighbors[:3]]).mean(0),
            torch.cat([center[1:], neighbors[3:4]]).mean(0),
        ]
    )
    assert (found - expected).abs().max() < 0.05


def test_settings_are_checked() -> None:
    good = {
        "vocab_size": 10,
        "hidden_size": 24,
        "num_layers": 2,
        "num_heads": 3,
        "intermediate_size": 8,
        "max_positions": 64,
    }
    ModelConfig(**good)
    for wrong in (
        {"method": "gcn"},
        {"direction": "both"},
        {"num_heads": 5},
        {"max_tokens": 65},
        {"max_tokens": 2},
        {"activation": "swish"},
    ):
        with pytest.raises(GraphFormersError, match="given, expected"):
            ModelConfig(**(good | wrong))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 12), max_size=60),
    st.integers(13, 50),
    st.integers(1, 8),
    st.integers(1, 4),
    st.booleans(),
)
def test_rows_hold_every_token_once(
    lengths: list[int], width: int, slots: int, multiple: int, graph: bool
) -> None:
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    flat = np.arange(indptr[-1]) + 100
    batch = pack_texts(flat, indptr, width, slots, 7, graph_tokens=graph, row_multiple=multiple)
    assert batch.tokens_RW.shape[0] % multiple == 0
    rows, found = batch.cls_RC.shape[0], []
    for node, length in enumerate(lengths):
        row, slot = divmod(int(batch.slot_N[node]), slots)
        start = int(batch.cls_RC[row, slot])
        own = (batch.slots_RW[row] == slot) & ~batch.is_graph_RW[row]
        assert divmod(int(batch.cls_N[node]), width) == (row, start)
        if graph:
            assert batch.is_graph_RW[row, start - 1]
            assert int(batch.slots_RW[row, start - 1]) == slot
        assert own.nonzero().flatten().tolist() == list(range(start, start + length))
        assert batch.positions_RW[row][own].tolist() == list(range(length))
        found += batch.tokens_RW[row][own].tolist()
    assert found == flat.tolist()
    assert int(batch.is_graph_RW.sum()) == graph * len(lengths)
    padding = (batch.slots_RW == slots) | batch.is_graph_RW
    assert int((~padding).sum()) == len(flat)
    assert (batch.tokens_RW[padding] == 7).all()
    assert (rows >= 1) == (len(lengths) > 0)
