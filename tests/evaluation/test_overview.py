import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphformers.cli import app
from graphformers.errors import GraphFormersError
from graphformers.evaluation.baselines import TITLES, baseline_scores, sentence_encoder
from graphformers.evaluation.metrics import METRICS, hits_at, register_metric
from graphformers.evaluation.overview import evaluate_with_baselines, overview
from graphformers.evaluation.ranking import evaluate, question_nodes, rank_listed
from graphformers.evaluation.scores import VectorScores
from graphformers.splits.split import LinkSplit, split_links
from tests.conftest import make_graph
from tests.model.conftest import make_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A split and a model, as folders."""
    split_links(make_graph().save(tmp_path / "g.graph"), valid=0.1, test=0.1).save(
        tmp_path / "g.split"
    )
    make_model().save_pretrained(tmp_path / "g.model")
    return tmp_path


def test_a_model_stands_beside_what_needs_no_training(folder: Path) -> None:
    split = LinkSplit.load(folder / "g.split")
    found = evaluate_with_baselines(
        folder / "g.model",
        split,
        split.test,
        protocols=("saved", "in-batch", "full"),
        backbone="minilm",
        device="cpu",
    )
    own = str(folder / "g.model")
    assert list(found.evaluations) == ["saved", "in-batch", "full"]
    for protocol, systems in found.evaluations.items():
        assert list(systems) == [
            own,
            "minilm, untrained",
            *(name.format(5) for name in TITLES.values()),
        ]
        assert systems[own] == evaluate(make_model(), split, protocol=protocol)
    nodes = question_nodes(split.test)
    plain = VectorScores(
        sentence_encoder("minilm", device="cpu").encode_nodes(split.graph, nodes),
        nodes,
        cosine=True,
    )
    untrained = found.evaluations["saved"]["minilm, untrained"].ranks
    assert untrained.better.tolist() == rank_listed(plain, split.test).better.tolist()
    assert set(found.differences()) == {
        "minilm, untrained",
        *(name.format(5) for name in TITLES.values()),
    }
    total = sum(each.num_questions for each in found.slices["neighbours of the anchor"].values())
    assert total == len(split.test)


def test_the_command_prints_tables_and_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(folder / "g.model"), str(folder / "g.split"), "--device", "cpu"]
    app([*words, "--protocol", "all"], standalone_mode=False)
    shown = capsys.readouterr().out
    for text in (
        "Adamic–Adar",
        "TF-IDF with 5 neighbours",
        "Among all nodes",
        "minus P@1 of",
        "relation asked",
        "11–20",
    ):
        assert text in shown
    app([*words, "--json"], standalone_mode=False)
    table = json.loads(capsys.readouterr().out)
    assert table["protocols"]["saved"]["degree alone"]["questions"] == len(
        LinkSplit.load(folder / "g.split").test
    )
    assert {"value", "low", "high", "p_value"} == set(table["ahead"]["TF-IDF"])


def test_more_or_fewer_neighbours_than_in_training(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split, own = LinkSplit.load(folder / "g.split"), str(folder / "g.model")
    for number in (0, 2, 40):
        app(
            ["evaluate", own, str(folder / "g.split"), "--neighbors", str(number), "--json"],
            standalone_mode=False,
        )
        found = json.loads(capsys.readouterr().out)["protocols"]["saved"][own]
        expected = evaluate(make_model(), split, sampler=split.sampler(number)).to_dict()
        assert found == json.loads(json.dumps(expected))
        assert found != json.loads(json.dumps(evaluate(make_model(), split).to_dict()))
    with pytest.raises(GraphFormersError, match="num_neighbors=-1 given, expected 0 or more"):
        app(["evaluate", own, str(folder / "g.split"), "--neighbors", "-1"], standalone_mode=False)


def test_vectors_of_another_system_are_ranked_on_the_same_lists(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split, model = LinkSplit.load(folder / "g.split"), make_model()
    vectors = model.encode_nodes(split.graph, sampler=split.sampler(model.config.num_neighbors))
    np.savez(folder / "v.npz", ids=np.array(split.graph.ids.to_pylist()), vectors=vectors)
    app(
        ["evaluate", str(folder / "g.split"), "--vectors", str(folder / "v.npz"), "--json"],
        standalone_mode=False,
    )
    found = json.loads(capsys.readouterr().out)["protocols"]["saved"]
    assert found[str(folder / "v.npz")] == json.loads(json.dumps(evaluate(model, split).to_dict()))
    assert "minilm, untrained" not in found  # nobody said which


@pytest.fixture
def metric() -> Iterator[str]:
    """The name of a metric that only this test registers."""
    register_metric("hits@3", headline=True)(lambda ranks: hits_at(ranks, 3))
    yield "hits@3"
    del METRICS["hits@3"]


def test_a_new_metric_is_in_every_table(folder: Path, metric: str) -> None:
    split = LinkSplit.load(folder / "g.split")
    found = overview(dict(baseline_scores(split)), split, split.test)
    per_system, _, *slices = found.as_tables()
    assert metric in per_system.header
    assert all(metric in table.header for table in slices)
    assert f"<th>{metric}</th>" in found._repr_html_()
    protocols: Any = found.to_dict()["protocols"]
    assert metric in protocols["saved"]["degree alone"]


def test_nothing_to_evaluate_is_an_error(folder: Path) -> None:
    split = LinkSplit.load(folder / "g.split")
    with pytest.raises(GraphFormersError, match="expected a model or a file of vectors"):
        evaluate_with_baselines(None, split, split.test)
    with pytest.raises(Exception, match=r"g\.split given, expected MODEL SPLIT"):
        app(["evaluate", str(folder / "g.split")], standalone_mode=False)
