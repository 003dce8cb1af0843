"""What TNVE and IFTN learn: links from vectors of nodes alone, and from texts alone for nodes they
have never seen.
"""

import random

import numpy as np
import pyarrow as pa
import pytest

from graphformers.evaluation.ranking import evaluate
from graphformers.graph.interop import build_graph
from graphformers.graph.textgraph import TextGraph
from graphformers.model.node_id_baselines import NodeIdNetwork
from graphformers.splits.split import split_links
from graphformers.training.forecast import forecast
from graphformers.training.optimizer import make_optimizer
from graphformers.training.settings import TrainConfig
from graphformers.training.trainer import Trainer
from tests.training.conftest import make_model, make_split, make_topics

QUICK = TrainConfig(
    batch_size=32,
    learning_rate=1e-3,
    graph_factor=5.0,
    epochs=8,
    patience=8,
    two_stage=False,
    workers=0,
)
CHANCE = 1 / 20
NODE_ID = ("tnve", "iftn")
FACTOR = NodeIdNetwork.learning_rate_factor


def make_blind(num_nodes: int = 160) -> TextGraph:
    """Groups of nodes that are linked with each other and whose texts say nothing."""
    draw = random.Random(0)
    words = ["graph", "text", "node", "link", "vector", "model", "layer"]
    texts = [" ".join(draw.choices(words, k=4)) for _ in range(num_nodes)]
    ends = [
        (a, b)
        for a in range(num_nodes)
        for b in range(a)
        if a % 16 == b % 16 and draw.random() < 0.6
    ]
    table = pa.table({"id": [f"n{i}" for i in range(num_nodes)], "text": texts})
    return build_graph(table, [(f"n{a}", f"n{b}") for a, b in ends])


@pytest.mark.parametrize("method", NODE_ID)
def test_structure_alone_is_learnt_by_the_vectors_of_nodes(method: str) -> None:
    split = split_links(make_blind(), valid=30, test=60, candidates=20)
    model = make_model(method=method, similarity="cosine")
    Trainer(model, split, TrainConfig(**vars(QUICK) | {"temperature": 0.05})).train()
    assert evaluate(model, split).scores["P@1"].value > 8 * CHANCE
    other = make_model(method="plm", similarity="cosine")
    Trainer(other, split, TrainConfig(**vars(QUICK) | {"temperature": 0.05, "epochs": 1})).train()
    assert evaluate(other, split).scores["P@1"].value < 3 * CHANCE


@pytest.mark.parametrize("method", NODE_ID)
def test_nodes_never_seen_are_found_by_their_texts(method: str) -> None:
    """They get no vectors of their own, and beat chance by far."""
    split = split_links(make_topics(), valid=20, test=20, candidates=20, held_out="nodes")
    model = make_model(method=method, similarity="cosine")
    Trainer(model, split, TrainConfig(**vars(QUICK) | {"temperature": 0.05})).train()
    assert evaluate(model, split).scores["P@1"].value > 5 * CHANCE
    assert isinstance(model.network, NodeIdNetwork)
    known = model.network.nodes.hashes_T.numpy().view(np.uint64)
    assert set(known) == set(split.graph.id_hashes[np.unique(split.train)])
    assert len(split.held_out_nodes) == 40
    assert not set(known) & set(split.graph.id_hashes[split.held_out_nodes])


@pytest.mark.parametrize("method", NODE_ID)
def test_both_stages_train_it(method: str) -> None:
    split, model = make_split(), make_model(method=method)
    result = Trainer(
        model, split, TrainConfig(**vars(QUICK) | {"two_stage": True, "epochs": 4})
    ).train()
    assert {entry["stage"] for entry in result.history} == {1, 2}
    assert evaluate(model, split).scores["P@1"].value > 8 * CHANCE


def test_a_forecast_counts_the_vectors_of_nodes() -> None:
    split, model = make_split(), make_model(method="iftn")
    before = sum(parameter.numel() for parameter in model.parameters())
    found = forecast(Trainer(model, split, QUICK))
    assert found.parameters == before + 16 * len(np.unique(split.train))


def test_nodes_learn_fastest() -> None:
    model = make_model(method="tnve")
    model.add_nodes(make_topics().id_hashes)
    groups = make_optimizer(model, QUICK).param_groups
    rates = {id(parameter): group["factor"] for group in groups for parameter in group["params"]}
    found = {name: rates[id(parameter)] for name, parameter in model.network.named_parameters()}
    assert found.pop("nodes.vectors_TS") == FACTOR * QUICK.graph_factor
    assert set(found.values()) == {FACTOR}
    assert {group["factor"] for group in make_optimizer(make_model(), QUICK).param_groups} == {
        1.0,
        QUICK.graph_factor,
    }
