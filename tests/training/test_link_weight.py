"""The weight of common neighbours: chosen where it helps, and kept in the model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graphformers.cli import app
from graphformers.embedding.job import embed
from graphformers.embedding.states import model_fingerprint
from graphformers.evaluation.baselines import TITLES, baseline_scores
from graphformers.graph.textgraph import TextGraph
from graphformers.model.backbones import training_of
from graphformers.model.encoder import GraphFormers
from graphformers.retrieval.searcher import Searcher
from graphformers.splits.split import split_links
from graphformers.training.link_weight import LinkWeight, choose_weight, common_neighbors
from graphformers.training.settings import TrainConfig
from graphformers.training.trainer import Trainer
from tests.training.conftest import make_model, make_split


def test_common_neighbors_are_those_of_the_baseline(graph: TextGraph) -> None:
    split = split_links(graph, valid=30, test=30, candidates=20)
    scorer = baseline_scores(split)[TITLES["adamic"]]
    anchors, candidates = split.valid.pairs[:, 0], split.valid.candidates
    assert common_neighbors(split, split.valid) == pytest.approx(
        scorer.listed(anchors, candidates), abs=1e-5
    )


def test_a_weight_is_chosen_where_it_helps() -> None:
    draw = np.random.default_rng(0)
    scores = draw.normal(size=(400, 30)).astype(np.float32) * 3
    scores[:, 0] += 3
    common = (draw.random((400, 30)) < 0.1).astype(np.float32)
    assert choose_weight(scores, common).weight == 0
    assert choose_weight(scores, np.zeros_like(common)).weight == 0
    common[:, 0] = draw.random(400) < 0.7
    found = choose_weight(scores, common)
    assert found.weight > 0
    assert found.precision > found.precision_alone + 0.05
    assert f"+ {found.weight:g} × Adamic–Adar" in str(found)
    # in the unit of the scores
    larger = choose_weight(scores * 100, common)
    assert larger.weight == pytest.approx(100 * found.weight, rel=0.01)
    assert larger.precision == found.precision


def test_a_weight_that_harms_is_zero() -> None:
    draw = np.random.default_rng(0)
    scores = draw.normal(size=(400, 30)).astype(np.float32)
    common = np.ones((400, 30), dtype=np.float32)
    common[:, 0] = 0
    found = choose_weight(scores, common)
    assert (found.weight, found.precision) == (0, found.precision_alone)
    assert "add nothing" in str(found)
    assert LinkWeight().weight == 0


def test_training_chooses_a_weight_that_embeddings_keep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    split = make_split()
    config = TrainConfig(two_stage=False, max_steps=2, batch_size=32, workers=0)
    trainer = Trainer(make_model(method="plm"), split, config, tmp_path / "a.model")
    trainer.train(keep_start=True)
    weight = trainer.model.config.link_weight
    assert weight > 0
    told = f"likely links are ranked by the model's scores + {weight:g} × Adamic–Adar"
    assert told in caplog.text
    model = GraphFormers.from_pretrained(tmp_path / "a.model", device="cpu")
    assert model.config.link_weight == weight
    kept = training_of(tmp_path / "a.model")["likely_links"]
    assert kept["weight"] == weight
    assert kept["precision"] > kept["precision_alone"]
    app(["info", str(tmp_path / "a.model")], standalone_mode=False)
    assert f"scores + {weight:g} × Adamic–Adar" in capsys.readouterr().out
    store = embed(model, split.graph, tmp_path / "a.vectors")
    found = Searcher(store).links("n0", 3)
    assert found.measure == f"inner product + {weight:g} × Adamic–Adar"
    # It changes no vector.
    before = model_fingerprint(model)
    model.config = replace(model.config, link_weight=0.0)
    assert model_fingerprint(model) == before
