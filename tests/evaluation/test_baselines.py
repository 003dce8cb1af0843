import json
from pathlib import Path

import numpy as np
import pytest
import torch

from graphformers.data.graph import TextGraph
from graphformers.evaluation.baselines import pool, pooling_of, sentence_vectors
from graphformers.model.backbones import find_backbone
from tests.conftest import make_graph
from tests.model.conftest import make_model, make_texts


def test_the_vectors_are_those_of_transformers_and_mean_pooling() -> None:
    from transformers import AutoModel, AutoTokenizer

    graph, nodes = make_graph(), np.array([5, 3, 3, 100, 42])
    folder = find_backbone("minilm")
    reference, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(graph.texts_of(nodes), padding=True, truncation=True, max_length=32, return_tensors="pt")
    with torch.inference_mode():
        hidden = reference(**batch).last_hidden_state
    weights = batch["attention_mask"][:, :, None].float()
    expected = (hidden * weights).sum(1) / weights.sum(1)
    found = sentence_vectors("minilm", graph, nodes, device="cpu")
    assert np.abs(found - expected.numpy()).max() < 1e-5


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_pooling_brings_the_tokens_of_a_text_together(pooling: str) -> None:
    model = make_model(method="plm")
    from graphformers.data.tokens import tokenize

    tokens = tokenize(make_texts(30), model.tokenizer)
    together = pool(model, model.packer().pack(tokens, np.arange(30)), pooling)
    for i in range(30):
        alone = model.packer().pack(tokens, np.array([i]))
        hidden, mask = model.network.text.embed(alone), model.network.text.mask(alone)
        for layer in model.network.text.layers:
            hidden = layer(hidden, mask)
        own = hidden[0][alone.slots_RW[0] == 0]
        expected = {"mean": own.mean(0), "max": own.amax(0), "cls": own[0]}[pooling]
        assert (together[i] - expected).abs().max() < 1e-5


def test_a_folder_says_how_it_pools(tmp_path: Path) -> None:
    assert pooling_of(tmp_path) == "mean"
    (tmp_path / "1_Pooling").mkdir()
    for key, name in {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_tokens": "mean",
    }.items():
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({key: True}))
        assert pooling_of(tmp_path) == name


def test_a_graph_without_the_asked_nodes_gives_nothing() -> None:
    graph: TextGraph = make_graph()
    assert sentence_vectors("minilm", graph, np.zeros(0, dtype=np.int64), device="cpu").shape == (0, 384)
