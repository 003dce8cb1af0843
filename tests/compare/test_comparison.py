"""Whole comparisons on a small graph with a small random backbone."""

import html
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from graphformers.cli import app
from graphformers.compare import runs as runs_module
from graphformers.compare.comparison import check_folder, compare, forecast_comparison
from graphformers.compare.conditions import (
    NO_NEIGHBORS,
    OWN_NEIGHBORS,
    SHUFFLED_NEIGHBORS,
    TEXT_SEARCH,
    ShuffledSampler,
    sampler_of,
)
from graphformers.compare.figures import figures_of
from graphformers.compare.forecast import Costs, PlannedRun, fit, stored_plan
from graphformers.compare.report import metrics_table, search_table
from graphformers.compare.results import Results
from graphformers.compare.runs import Run, finish_run, rank_untrained
from graphformers.compare.settings import ComparisonSettings
from graphformers.compare.tables import ablation_table, neighbor_table, overall_table, system_table
from graphformers.compare.variants import variant, variants_of
from graphformers.compare.verdict import Change, Decision, Learning, decide, verdict
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.evaluation.baselines import sentence_encoder
from graphformers.evaluation.metrics import METRICS, Ranks, hits_at, register_metric
from graphformers.evaluation.ranking import evaluate, question_nodes, rank_listed
from graphformers.evaluation.scores import VectorScores
from graphformers.evaluation.text_search import (
    backbone_search,
    known_item_queries,
    text_search,
    word_search,
)
from graphformers.files import held
from graphformers.model.encoder import GraphFormers
from graphformers.splits.split import LinkSplit, split_links
from graphformers.training.checkpoint import RunFolder
from graphformers.training.recipes import RECIPES, read_recipe
from graphformers.training.settings import TrainConfig
from tests.training.conftest import make_model, make_topics

SETTINGS = {
    "batch_size": 32,
    "learning_rate": 3e-3,
    "max_steps": 6,
    "workers": 0,
    "num_neighbors": 3,
    "max_tokens": 10,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A split and a backbone."""
    place = tmp_path_factory.mktemp("compare")
    split_links(make_topics().save(place / "t.graph"), valid=30, test=30, candidates=20).save(
        place / "t.split"
    )
    write_backbone(place / "backbone")
    return place


def write_backbone(place: Path) -> None:
    """A BERT of the tiny model's shape, as its makers would save it."""
    from transformers import BertConfig, BertModel

    model = make_model(method="plm")
    sizes = {
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 40,
    }
    BertModel(
        BertConfig(vocab_size=model.config.vocab_size, hidden_size=16, **sizes)
    ).save_pretrained(place)
    (place / "tokenizer.json").write_text(model.tokenizer.to_json())


def make_settings(
    folder: Path, output: Path, split: LinkSplit | None = None, **changes: Any
) -> ComparisonSettings:
    split = split or LinkSplit.load(folder / "t.split")
    return ComparisonSettings(
        split, output, str(folder / "backbone"), SETTINGS, device="cpu", **changes
    )


def test_everybody_gets_the_same_budget(folder: Path, tmp_path: Path) -> None:
    settings = make_settings(folder, tmp_path)
    one, two = (
        settings.run_settings(variant("max.one-stage"), 7),
        settings.run_settings(variant("graphformers"), 7),
    )
    assert (one["two_stage"], two["two_stage"]) == (False, True)
    assert one["max_steps"] == two["max_steps"] == 6
    assert one["seed"] == 7
    assert one["patience"] == two["patience"] > 1000  # nobody stops early
    epochs = ComparisonSettings(
        settings.split, tmp_path, settings={"batch_size": 50, "epochs": 3}
    ).run_settings(variant("plm"), 1)
    assert epochs["max_steps"] == 2 * 3 * -(-len(settings.split.train) // 50)
    assert epochs["patience"] >= epochs["max_steps"]
    timed = ComparisonSettings(
        settings.split, tmp_path, settings={"minutes": 9.0, "max_steps": 4, "patience": 1}
    )
    assert timed.run_settings(variant("plm"), 1)["max_steps"] == 4
    assert timed.run_settings(variant("plm"), 1)["minutes"] is None
    assert timed.run_record(variant("plm"), 1)["minutes"] == 9.0
    own = ComparisonSettings(
        settings.split, tmp_path, settings={"learning_rate": 1e-3, "max.learning_rate": 2e-3}
    )
    assert own.run_settings(variant("max"), 1)["learning_rate"] == 2e-3
    assert own.run_settings(variant("plm"), 1)["learning_rate"] == 1e-3


def test_a_comparison_ends_with_a_report_and_is_not_done_twice(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = make_settings(folder, tmp_path / "report", seeds=(1, 2))
    found = compare(settings, methods=["plm", "graphformers", "graphformers.one-stage"])
    assert found.report == tmp_path / "report" / "report.html"
    told = json.loads((tmp_path / "report" / "results.json").read_text())
    assert list(told["trained"]) == ["plm", "graphformers", "graphformers.one-stage"]
    assert [run["steps"] for each in told["trained"].values() for run in each["runs"]] == [6] * 6
    assert told["trained"]["graphformers"]["seeds"] == [1, 2]
    assert set(told["trained"]["graphformers"]) >= {OWN_NEIGHBORS, SHUFFLED_NEIGHBORS, NO_NEIGHBORS}
    assert SHUFFLED_NEIGHBORS not in told["trained"]["plm"]
    assert any(
        line.startswith("Training in two stages instead of one changes P@1 of GraphFormers by ")
        for line in told["verdict"]
    )
    assert "Plotly.react" in (tmp_path / "report" / "report.html").read_text()
    _, compared = found.tables
    assert compared.header == ["", "P@1", "NDCG", "MRR", "search MRR", "steps"]
    rows = {row[0]: list(row) for row in compared.rows}
    value = told["trained"]["plm"][TEXT_SEARCH]["MRR"]["value"]
    assert rows["PLM"][4].startswith(f"{value:.4f} ± ")
    assert rows["degree alone"][4] == ""
    assert rows["BM25"][1:4] == ["", "", ""]
    assert float(rows["BM25"][4]) > 0
    assert told["search only"]["BM25"][TEXT_SEARCH]["MRR"]["value"] > 0

    monkeypatch.setattr(runs_module, "make_trainer", None)  # nobody trains again
    monkeypatch.setattr(runs_module, "score_model", None)
    again = compare(settings, methods=["plm", "graphformers", "graphformers.one-stage"])
    assert again.results.to_dict() == found.results.to_dict()
    assert "without effect" not in caplog.text

    # a recipe may hold settings of methods that are not compared
    recipe = {"gat.learning_rate": 1e-3, "learning_rate": 0.5}
    compare(replace(settings, recipe=recipe), methods=["plm", "graphformers"])
    assert "without effect" not in caplog.text

    own = {"plm.learning_rate": 3e-3, "gat.learning_rate": 1e-3}
    compare(replace(settings, settings=SETTINGS | own), methods=["plm", "graphformers"])
    assert (
        "settings without effect: gat.learning_rate; the compared methods are graphformers, plm"
        in caplog.text
    )


def test_minutes_are_those_of_all_runs_and_are_divided_into_equal_steps(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    methods, output = ["max", "max.one-stage"], tmp_path / "report"
    budget = {**SETTINGS, "max_steps": None, "epochs": 10**4, "minutes": 0.3}
    settings = replace(make_settings(folder, output, seeds=(1, 2)), settings=budget)
    found = compare(settings, methods=methods).results
    (steps,) = {run.facts["steps"] for system in found.trained for run in system.runs}
    assert steps > 1
    assert f"0.3 minutes for 4 runs: {steps:,} steps each; validations rank 30 of 30" in caplog.text
    record = json.loads((output / "runs" / "max-1.json").read_text())
    assert record["minutes"] == 0.3
    assert record["max_steps"] == steps
    # interrupted before its last run, it goes on with the same steps
    for place in (output / "runs").glob("max-2.*"):
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    again = compare(settings, methods=methods).results
    assert f"{steps:,} steps each, as before" in caplog.text
    assert again.find("max").runs[1].facts["steps"] == steps  # type: ignore[union-attr]
    with pytest.raises(
        GraphFormersError, match=r"made with minutes=0\.3, now minutes=0\.4 is given"
    ):
        other = replace(settings, settings={**budget, "minutes": 0.4})
        finish_run(other, variant("max"), 1)
    with pytest.raises(
        GraphFormersError, match=r"minutes=0.001 given for the whole comparison, expected at least"
    ):
        forecast_comparison(
            replace(settings, settings={**budget, "minutes": 0.001}), methods=["gat"]
        )
    with pytest.raises(GraphFormersError, match=r"minutes=-1\.0 given, expected more than 0"):
        replace(settings, settings={**budget, "minutes": -1.0})


def planned(method: str, step: float, per_question: float, **changes: Any) -> PlannedRun:
    config = TrainConfig(max_steps=10_000, validate_start=False, **changes)
    costs = Costs(3.0, step, (100, 500, 2000), (1.0, 5.0, 2000 * per_question), 2.0, 50)
    return PlannedRun(variant(method), config, costs, 3)


@pytest.mark.parametrize("per_question", [0.01, 0.1])
@pytest.mark.parametrize("minutes", [10, 60, 1000])
def test_planned_runs_fit_into_the_minutes(minutes: float, per_question: float) -> None:
    runs = [planned("plm", 0.5, per_question), planned("max", 2.0, 0.01, two_stage=False)]
    found = fit(runs, minutes, elapsed=30.0, seeds=2)
    changed = [replace(run, config=replace(run.config, **found)) for run in runs]
    seconds = 30 + 2 * sum(run.seconds for run in changed)
    assert seconds <= 60 * minutes
    assert 2 * sum(run.validating for run in changed) <= 6 * minutes + 1e-6
    if found["max_steps"] < 10_000:
        assert seconds > 0.8 * 60 * minutes
    assert found["max_valid"] in (100, 500, 10_000) or minutes == 10


def test_what_is_named_as_the_least_minutes_of_a_comparison_works() -> None:
    runs = [planned("plm", 0.5, 0.01), planned("max", 2.0, 0.01)]
    with pytest.raises(GraphFormersError, match=r"minutes=0\.5 given") as refused:
        fit(runs, 0.5, elapsed=30.0, seeds=2)
    least = float(str(refused.value).split("at least ")[1].split(":")[0])
    assert fit(runs, least, elapsed=30.0, seeds=2)["max_steps"] >= 2


def test_a_dry_run_of_a_comparison_writes_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", str(folder / "t.split"), "-o", str(tmp_path / "report"), "--dry-run"]
    words += ["--from", str(folder / "backbone"), "--device", "cpu", "--method", "plm"]
    words += ["--set", "max_steps=40", "--set", "batch_size=32", "--seeds", "1,2"]
    app(words, standalone_mode=False)
    shown = capsys.readouterr().out
    header, row, *_ = shown.splitlines()
    assert header.split("  ")[0] == "method"
    assert header.split()[1:4] == ["a", "step", "steps"]
    assert header.split()[4:] == ["training", "validating", "other", "time"]
    assert row.startswith("PLM  ")
    assert " in total, with 2 seeds" in shown
    app([*words, "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["runs"][0]["steps"] == 40
    assert found["seconds"] == pytest.approx(2 * found["runs"][0]["seconds"])
    assert not list(tmp_path.iterdir())
    with pytest.raises(GraphFormersError, match="--table datasets given, which trains nothing"):
        app([*words[:5], "--table", "datasets"], standalone_mode=False)


def test_runs_that_did_not_improve_a_model_are_scored_and_say_so(
    folder: Path, tmp_path: Path
) -> None:
    settings = make_settings(folder, tmp_path / "report")
    assert "improved" not in finish_run(settings, variant("plm"), 1).facts
    # So small a rate changes no weight.
    still = {**SETTINGS, "learning_rate": 1e-30, "validate_start": True, "max_steps": 2}
    settings = replace(settings, folder=tmp_path / "still", settings=still)
    run = finish_run(settings, variant("plm"), 1)
    assert run.facts["improved"] is False
    assert OWN_NEIGHBORS in run.ranks


def test_scores_are_those_of_evaluate(folder: Path, tmp_path: Path) -> None:
    """Question by question, under every condition."""
    settings = make_settings(folder, tmp_path / "report")
    found = compare(settings, table="neighbours")
    own = settings.split.sampler(3)
    samplers: dict[str, Any] = {
        OWN_NEIGHBORS: None,
        NO_NEIGHBORS: settings.split.sampler(0),
        "#N = 1": settings.split.sampler(1),
    }
    samplers[SHUFFLED_NEIGHBORS] = ShuffledSampler(
        own.indptr, own.indices, own.id_hashes, 3, own.seed
    )
    for name in ("max", "graphformers"):
        model = GraphFormers.from_pretrained(settings.model_folder(variant(name), 42), device="cpu")
        system = found.results.find(name)
        assert system is not None
        expected = {
            condition: evaluate(model, settings.split, sampler=sampler).ranks
            for condition, sampler in samplers.items()
        }
        for condition, ranks in expected.items():
            assert system.ranks[condition][0].better.tolist() == ranks.better.tolist()
        if name == "max":  # with so few steps the other hardly listens
            assert len({tuple(ranks.better.tolist()) for ranks in expected.values()}) == len(
                expected
            )
    nodes = question_nodes(settings.split.test)
    plain = VectorScores(
        sentence_encoder(settings.source, 10, "cpu").encode_nodes(settings.split.graph, nodes),
        nodes,
        cosine=True,
    )
    simple = {each.title: each.ranks[OWN_NEIGHBORS][0] for each in found.results.untrained}
    assert (
        simple["backbone, untrained"].better.tolist()
        == rank_listed(plain, settings.split.test).better.tolist()
    )


def test_search_by_words_is_that_of_evaluations(folder: Path, tmp_path: Path) -> None:
    """For every system, also if the vectors of nodes are computed again."""
    settings = make_settings(folder, tmp_path / "report")
    found = compare(settings, methods=["plm", "max"]).results
    graph = settings.split.graph
    queries = known_item_queries(graph)
    expected = {
        "backbone, untrained": backbone_search(settings.source, graph, queries, 10, "cpu"),
        **word_search(graph, queries),
    }
    for name in ("plm", "max"):
        model = GraphFormers.from_pretrained(settings.model_folder(variant(name), 42), device="cpu")
        expected[found.find(name).title] = text_search(model, settings.split, queries)  # type: ignore[union-attr]
    ranks = {each.title: each.ranks[TEXT_SEARCH][0] for each in found.searchers}
    assert ranks.keys() == expected.keys()
    for title, each in expected.items():
        # other batches round differently
        assert np.abs(ranks[title].better - each.better).max() <= 2, title
        assert len(each) == len(queries)
    shown = search_table(found)
    assert len(shown.rows) == 5
    assert shown.title == f"Search by words: {len(queries):,} queries among {graph.num_nodes} nodes"


def test_scores_of_an_older_format_are_computed_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(folder, tmp_path / "report")
    with monkeypatch.context() as patch:
        patch.setattr(runs_module, "VERSION", 1)
        found = compare(settings, methods=["plm"]).results.to_dict()
    scores = [settings.folder / "runs" / f"{name}.scores" for name in ("plm-42", "untrained")]
    for each in scores:
        with pytest.raises(ArtifactError, match="scores of format 1, this version reads format 2"):
            runs_module.load_ranks(each)
    again = compare(settings, methods=["plm"]).results.to_dict()
    for each in scores:
        runs_module.load_ranks(each)
    # everything but the speed
    assert again["untrained"] == found["untrained"]
    assert again["slices"] == found["slices"]


def test_a_graph_of_short_texts_is_compared_without_search(tmp_path: Path) -> None:
    topics = make_topics()
    texts = [" ".join(text.split()[:3]) for text in topics.texts.to_pylist()]
    nodes = topics.table.set_column(
        topics.table.column_names.index("text"), "text", pa.array(texts, topics.texts.type)
    )
    graph = replace(topics, table=nodes).save(tmp_path / "t.graph")
    split_links(graph, valid=30, test=30, candidates=20).save(tmp_path / "t.split")
    write_backbone(tmp_path / "backbone")
    found = compare(make_settings(tmp_path, tmp_path / "report"), methods=["plm"])
    assert not found.results.searchers
    assert "axes" not in figures_of(found.results)
    assert found.tables[-1].header == ["", "P@1", "NDCG", "MRR", "steps"]
    assert not any("earch by words" in line for line in found.verdict)


def test_who_is_read_under_a_condition(folder: Path) -> None:
    """Links that are asked for are never seen."""
    split = LinkSplit.load(folder / "t.split")
    anchors, positives = split.test.pairs.T
    for condition, most in (
        (OWN_NEIGHBORS, 3),
        (SHUFFLED_NEIGHBORS, 3),
        (NO_NEIGHBORS, 0),
        ("#N = 2", 2),
    ):
        drawn = sampler_of(condition, split, 3).sample(anchors)
        assert np.diff(drawn.indptr).max() == most
        seen = [
            set(split.indices[split.indptr[node] : split.indptr[node + 1]].tolist())
            for node in anchors
        ]
        if condition != SHUFFLED_NEIGHBORS:
            for place, positive in enumerate(positives.tolist()):
                assert set(drawn.of(place).tolist()) <= seen[place]
                assert positive not in drawn.of(place)
        else:
            assert any(set(drawn.of(place).tolist()) - seen[place] for place in range(len(anchors)))


def test_an_interrupted_comparison_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(folder, tmp_path / "report")
    original = runs_module.score_model

    def fail(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    # after the training, before the scores are kept
    monkeypatch.setattr(runs_module, "score_model", fail)
    with pytest.raises(KeyboardInterrupt):
        compare(settings, methods=["plm"])
    monkeypatch.setattr(runs_module, "score_model", original)
    before = (settings.model_folder(variant("plm"), 42) / "manifest.json").stat().st_mtime_ns
    compare(settings, methods=["plm"])
    assert (
        settings.model_folder(variant("plm"), 42) / "manifest.json"
    ).stat().st_mtime_ns == before


def test_a_model_that_was_trained_again_has_all_its_ranks_of_one_kind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first model was not kept; training the second, which differs, was followed by an
    interruption.
    """
    settings = make_settings(folder, tmp_path / "report", keep_models=False)
    first = finish_run(
        settings, variant("max"), 42, (OWN_NEIGHBORS, SHUFFLED_NEIGHBORS, NO_NEIGHBORS)
    )
    original, make_trainer = runs_module.score_model, runs_module.make_trainer

    def another(
        split: Any, source: Any, model: Any, method: str, settings: dict[str, Any], device: Any
    ) -> Any:
        return make_trainer(split, source, model, method, settings | {"learning_rate": 0.1}, device)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    # as another machine, or another budget of time, would
    monkeypatch.setattr(runs_module, "make_trainer", another)
    monkeypatch.setattr(runs_module, "score_model", fail)
    with pytest.raises(KeyboardInterrupt):
        finish_run(settings, variant("max"), 42, (OWN_NEIGHBORS, "#N = 1"))
    monkeypatch.setattr(runs_module, "make_trainer", None)
    monkeypatch.setattr(runs_module, "score_model", original)
    kept = make_settings(folder, tmp_path / "report")
    found = finish_run(kept, variant("max"), 42, (OWN_NEIGHBORS, "#N = 1"))
    assert set(found.ranks) == {OWN_NEIGHBORS, SHUFFLED_NEIGHBORS, NO_NEIGHBORS, "#N = 1"}
    model = GraphFormers.from_pretrained(settings.model_folder(variant("max"), 42), device="cpu")
    for condition, ranks in found.ranks.items():
        sampler = sampler_of(condition, settings.split, model.config.num_neighbors)
        assert (
            ranks.better.tolist()
            == evaluate(model, settings.split, sampler=sampler).ranks.better.tolist()
        )
    assert found.ranks[OWN_NEIGHBORS].better.tolist() != first.ranks[OWN_NEIGHBORS].better.tolist()
    assert found.facts["history"] != first.facts["history"]


def test_other_settings_are_refused_unless_forced(folder: Path, tmp_path: Path) -> None:
    compare(make_settings(folder, tmp_path / "report"), methods=["plm"])
    split = LinkSplit.load(folder / "t.split")
    other = {**SETTINGS, "learning_rate": 1e-3}
    with pytest.raises(
        GraphFormersError,
        match=r"made with learning_rate=0.003, now learning_rate=0.001 is given.*force=True",
    ):
        compare(
            ComparisonSettings(
                split, tmp_path / "report", str(folder / "backbone"), other, device="cpu"
            ),
            methods=["plm"],
        )
    forced = ComparisonSettings(
        split,
        tmp_path / "report",
        str(folder / "backbone"),
        other,
        device="cpu",
        force=True,
        keep_models=False,
    )
    compare(forced, methods=["plm"])
    assert not forced.model_folder(variant("plm"), 42).exists()
    compare(
        ComparisonSettings(
            split, tmp_path / "report", str(folder / "backbone"), other, device="cpu"
        ),
        methods=["plm"],
    )


def test_force_waits_for_nobody_and_takes_nothing_from_anybody(
    folder: Path, tmp_path: Path
) -> None:
    """Another process that trains in the folder keeps it."""
    settings = make_settings(folder, tmp_path / "report")
    compare(settings, methods=["plm"])
    other = ComparisonSettings(
        settings.split,
        settings.folder,
        settings.source,
        {**SETTINGS, "learning_rate": 1e-3},
        device="cpu",
        force=True,
    )
    model = settings.model_folder(variant("plm"), 42)
    with (
        RunFolder(model).held(),
        pytest.raises(ArtifactError, match="another process is training here"),
    ):
        compare(other, methods=["plm"])
    assert (model / "manifest.json").is_file()
    compare(other, methods=["plm"])


def test_a_damaged_record_of_a_run_is_no_other_setting(folder: Path, tmp_path: Path) -> None:
    """The steps of a comparison with minutes are taken from there."""
    settings = make_settings(folder, tmp_path / "report")
    first = finish_run(settings, variant("plm"), 42)
    record = settings.model_folder(variant("plm"), 42).with_suffix(".json")
    whole = record.read_text()
    record.write_text(whole.replace('"max_steps": 6', '"max_steps": 7'))
    with pytest.raises(ArtifactError, match=r"plm-42\.json: damaged .* force=True makes this run"):
        finish_run(settings, variant("plm"), 42)
    with pytest.raises(ArtifactError, match=r"plm-42\.json: damaged"):
        stored_plan(settings, [variant("plm")])
    again = finish_run(make_settings(folder, tmp_path / "report", force=True), variant("plm"), 42)
    assert again.facts["valid"] == first.facts["valid"]
    assert record.read_text() == whole


def test_a_damaged_report_is_not_shown(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, settings = tmp_path / "report", make_settings(folder, tmp_path / "report")
    compare(settings, table="datasets")
    (report / "mine.md").write_text("a note of somebody")
    app(["info", str(report)], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "## Data" in shown
    assert "a note" not in shown
    table = report / "datasets.md"
    table.write_text(table.read_text().replace("30", "90"))
    with pytest.raises(ArtifactError, match=r"datasets\.md: damaged .* the same compare command"):
        app(["info", str(report)], standalone_mode=False)
    (report / ".comparison").write_text("made by graphformers compare\n")
    with pytest.raises(ArtifactError, match=r"\.comparison: damaged .* the same compare command"):
        app(["info", str(report)], standalone_mode=False)
    compare(settings, table="datasets")
    capsys.readouterr()
    app(["info", str(report)], standalone_mode=False)
    assert capsys.readouterr().out == shown


def test_two_comparisons_do_not_make_the_same_run_at_once(folder: Path, tmp_path: Path) -> None:
    settings = make_settings(folder, tmp_path / "report")
    model = settings.model_folder(variant("plm"), 42)
    check_folder(settings.folder)
    with (
        held(model.with_name(".plm-42.lock")),
        pytest.raises(ArtifactError, match="another process is making this run"),
    ):
        compare(settings, methods=["plm"])
    assert not model.with_suffix(".json").exists()
    compare(settings, methods=["plm"])


def test_recipes_serve_comparisons(folder: Path, tmp_path: Path) -> None:
    for recipe in RECIPES.glob("*.toml"):
        assert ComparisonSettings(
            LinkSplit.load(folder / "t.split"), tmp_path, "minilm", read_recipe(recipe)
        ).settings


@pytest.mark.parametrize(
    "change", [{"max_tokens": 7}, {"similarity": "cosine"}, {"num_neighbors": 2}]
)
def test_a_model_of_other_settings_is_not_taken_for_the_wanted_one(
    folder: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Also where it was trained and not yet scored, or is unfinished."""
    compare(make_settings(folder, tmp_path / "report"), methods=["max"])
    settings = make_settings(folder, tmp_path / "report")
    place = settings.model_folder(variant("max"), 42)
    shutil.rmtree(place.with_suffix(".scores"))
    before = (place / "config.json").read_bytes()
    other = ComparisonSettings(
        settings.split, settings.folder, settings.source, {**SETTINGS, **change}, device="cpu"
    )
    with pytest.raises(GraphFormersError, match="or force=True to train again"):
        compare(other, methods=["max"])
    forced = ComparisonSettings(
        settings.split,
        settings.folder,
        settings.source,
        {**SETTINGS, **change},
        device="cpu",
        force=True,
    )
    compare(forced, methods=["max"])
    assert (place / "config.json").read_bytes() != before


def test_a_backbone_that_changed_under_its_name_is_noticed(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "backbone", tmp_path / "backbone")
    split = LinkSplit.load(folder / "t.split")
    compare(
        ComparisonSettings(
            split, tmp_path / "report", str(tmp_path / "backbone"), SETTINGS, device="cpu"
        ),
        methods=["plm"],
    )
    shutil.rmtree(tmp_path / "backbone")
    write_backbone(tmp_path / "backbone")  # other random weights
    with pytest.raises(GraphFormersError, match="made with backbone="):
        compare(
            ComparisonSettings(
                split, tmp_path / "report", str(tmp_path / "backbone"), SETTINGS, device="cpu"
            ),
            methods=["plm"],
        )
    for name in ("vocab.txt", "1_Pooling/config.json"):
        output = tmp_path / name.replace("/", "-")
        compare(make_settings(tmp_path, output, split=split), methods=["plm"])
        (tmp_path / "backbone" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "backbone" / name).write_text("{}")
        for work in (rank_untrained, lambda each: finish_run(each, variant("plm"), 42)):
            with pytest.raises(GraphFormersError, match="made with backbone="):
                work(make_settings(tmp_path, output, split=split))


def test_runs_of_another_split_are_not_taken_for_those_of_this_one(
    folder: Path, tmp_path: Path
) -> None:
    compare(make_settings(folder, tmp_path / "report"), methods=["plm"])
    other = split_links(
        LinkSplit.load(folder / "t.split").graph, valid=30, test=30, candidates=20, seed=7
    )
    for work in (rank_untrained, lambda each: finish_run(each, variant("plm"), 42)):
        with pytest.raises(GraphFormersError, match="made with split="):
            work(make_settings(folder, tmp_path / "report", split=other))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 3}, r"seed cannot be set in a comparison; use seeds=\[42, 43\]"),
        ({"two_stage": False}, "two_stage cannot be set"),
        ({"max.max_steps": 60}, "all methods have the same budget; set max_steps"),
    ],
)
def test_settings_that_would_make_it_unfair(
    folder: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(GraphFormersError, match=message):
        ComparisonSettings(LinkSplit.load(folder / "t.split"), tmp_path, settings=settings)
    with pytest.raises(GraphFormersError, match="seeds 4, 4 given, expected different ones"):
        make_settings(folder, tmp_path, seeds=(4, 4))


def test_a_folder_that_is_not_ours_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("years of work")
    with pytest.raises(
        GraphFormersError, match=r"contains 'results.json', which no comparison wrote"
    ):
        compare(make_settings(folder, tmp_path), methods=["plm"])
    assert (tmp_path / "results.json").read_text() == "years of work"


def test_shuffled_neighbours_are_those_of_another_node(folder: Path) -> None:
    split = LinkSplit.load(folder / "t.split")
    own = split.sampler(3)
    shuffled = ShuffledSampler(own.indptr, own.indices, own.id_hashes, 3, own.seed)
    nodes = np.array([5, 17, 80])
    found, everyone = shuffled.sample(nodes), own.sample(np.arange(split.graph.num_nodes))
    lists = [everyone.of(node).tolist() for node in range(split.graph.num_nodes)]
    assert found.centers.tolist() == nodes.tolist()
    for place, node in enumerate(nodes):
        assert found.of(place).tolist() in lists
        assert found.of(place).tolist() != lists[node]
    partners = {
        tuple(shuffled.sample(np.array([node])).of(0).tolist())
        for node in range(split.graph.num_nodes)
    }
    # everybody's neighbours go to somebody
    assert len(partners) == len({tuple(each) for each in lists})


@pytest.mark.parametrize("table", ["neighbours", "ablation", "overall"])
def test_the_papers_tables(folder: Path, tmp_path: Path, table: str) -> None:
    found = compare(make_settings(folder, tmp_path / "report"), table=table)
    if table == "ablation":
        rows = ablation_table(found.results).rows
        titles = [row[0] for row in rows]
        assert titles == [
            "GraphFormers",
            "PLM+Max",
            "- Progressive",
            "- Simplified",
            "- Shared GNNs",
            "- Position",
        ]
        best = [max(range(6), key=lambda i: rows[i][column]) for column in (1, 2, 3)]
        assert {(best[0], 1), (best[1], 2), (best[2], 3)} <= ablation_table(found.results).bold
    elif table == "overall":
        titles = [row[0] for row in overall_table(found.results).rows]
        assert titles == [
            "PLM",
            "TNVE",
            "IFTN",
            "PLM+GAT",
            "PLM+Max",
            "PLM+Mean",
            "PLM+Att",
            "GraphFormers",
        ]
    else:
        rows = neighbor_table(found.results, 3, retrain=False).rows
        assert [row[0] for row in rows] == ["1", "2", "3"]
        assert all(len(row) == 7 and all(row) for row in rows)
    assert "## " in (tmp_path / "report" / f"{table}.md").read_text()
    assert found.report == tmp_path / "report" / f"{table}.html"


def test_tables_without_training_and_the_command(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "compare",
        str(folder / "t.split"),
        "-o",
        str(tmp_path / "report"),
        "--from",
        str(folder / "backbone"),
    ]
    app([*words, "--table", "datasets"], standalone_mode=False)
    assert "#Train" in capsys.readouterr().out
    app([*words, "--table", "efficiency", "--device", "cpu"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "Time: PLM+Max" in shown
    assert "Time: GraphFormers" in shown
    with pytest.raises(GraphFormersError, match=r"no table 'overal'; .*overall"):
        app([*words, "--table", "overal"], standalone_mode=False)
    with pytest.raises(
        GraphFormersError,
        match=r"max.num_neighbors given, but this table gives all methods the same neighbours",
    ):
        app(
            [*words, "--table", "neighbours", "--set", "max.num_neighbors=2"], standalone_mode=False
        )
    with pytest.raises(GraphFormersError, match="--retrain given without --table neighbours"):
        app([*words, "--retrain"], standalone_mode=False)
    with pytest.raises(GraphFormersError, match="a table and methods given"):
        app([*words, "--table", "overall", "--method", "plm"], standalone_mode=False)
    with pytest.raises(Exception, match="expected different whole numbers such as 42,43,44"):
        app([*words, "--seeds", "many"], standalone_mode=False)
    with pytest.raises(Exception, match="expected different whole numbers such as 42,43,44"):
        app([*words, "--seeds", "42,042"], standalone_mode=False)


def fake_results(
    folder: Path, values: dict[str, list[float]], simple: list[float] | None = None
) -> Results:
    """Runs whose P@1 of each question is given, by variant name."""
    split, made = (
        LinkSplit.load(folder / "t.split"),
        [fake_run(name, found) for name, found in values.items()],
    )
    return Results.from_runs(
        split,
        made,
        {} if simple is None else {"degree alone": {OWN_NEIGHBORS: ranks_of(simple)}},
    )


def fake_run(
    name: str,
    asked: list[float],
    others: dict[str, list[float]] | None = None,
    *,
    seed: int = 42,
    **told: Any,
) -> Run:
    """A run with the P@1 of each question given, under some conditions; it was as good on valid,
    unless told.
    """
    facts = {
        "valid": float(np.mean(asked)),
        "steps": 5,
        "seconds": 2.0,
        "parameters": 3,
        "nodes_per_second": 10.0,
    }
    ranks = {
        condition: (found_by if condition == TEXT_SEARCH else ranks_of)(values)
        for condition, values in {OWN_NEIGHBORS: asked, **(others or {})}.items()
    }
    return Run(variant(name), seed, ranks, facts | {"history": []} | told)


def ranks_of(values: list[float]) -> Ranks:
    return Ranks((np.array(values) < 1).astype(np.int64), np.zeros(len(values), dtype=np.int64))


def found_by(values: list[float]) -> Ranks:
    """Ranks of queries whose MRR is the share of the found ones: others are found nowhere near."""
    ranks = ranks_of(values)
    return Ranks(9999 * ranks.better, ranks.tied)


def test_the_verdict_says_what_the_numbers_say(folder: Path) -> None:
    bad, good = [0.0] * 25 + [1.0] * 5, [1.0] * 25 + [0.0] * 5
    helps = verdict(fake_results(folder, {"plm": bad, "graphformers": good}))[0]
    assert helps.startswith("The graph helps: P@1 of PLM 0.167, of GraphFormers 0.833 (+0.6667 [")
    assert helps.endswith("400 % more links are ranked first.")
    assert "(one seed each: another seed may change this)" in helps
    assert verdict(fake_results(folder, {"plm": good, "graphformers": bad}))[0].startswith(
        "The graph hurts: P@1 of PLM 0.833"
    )
    none = verdict(fake_results(folder, {"plm": [0.0] * 30, "graphformers": good}))[0]
    assert "% more" not in none
    same = verdict(fake_results(folder, {"plm": good, "max": good}))
    assert same[0].startswith(
        "No significant difference on 30 questions; whether the graph helps remains open: "
    )
    assert "1.0 times as long" in same[-1]
    beaten = verdict(fake_results(folder, {"plm": bad, "graphformers": bad}, simple=good))
    assert any(line.startswith("Without training, degree alone is better than ") for line in beaten)
    ahead = verdict(fake_results(folder, {"plm": bad, "graphformers": good}, simple=bad))
    assert not any(line.startswith("Without training") for line in ahead)
    assert [
        row[0] for row in overall_table(fake_results(folder, {"plm": good, "max": bad})).rows
    ] == ["PLM", "PLM+Max"]


def test_the_verdict_on_models_that_are_worse_than_where_they_began(folder: Path) -> None:
    runs = (fake_run("plm", share(0.3)), fake_run("graphformers", share(0.1)))
    words = words_of(folder, *runs, **{"minilm, untrained": share(0.5)})[0]
    assert words.startswith(
        "Every method is worse than the untrained backbone: P@1 of minilm, untrained 0.500, of the "
        "best method 0.300."
    )
    for start in (share(0.2), share(0.3)):  # one of the two has learned, or it cannot be told
        assert not words_of(folder, *runs, **{"minilm, untrained": start})[0].startswith(
            "Every method is worse"
        )
    assert not words_of(folder, *runs, **{"degree alone": share(0.5)})[0].startswith(
        "Every method is worse"
    )


def searched(asked: list[float], search: list[float]) -> dict[str, Ranks]:
    """A system without training that answers these links and these queries."""
    return {OWN_NEIGHBORS: ranks_of(asked), TEXT_SEARCH: found_by(search)}


def decision_of(
    folder: Path,
    learned: dict[str, tuple[float, float]],
    start: tuple[float, float] = (0.5, 0.5),
) -> tuple[Decision, list[str]]:
    """What is decided on methods with these shares of answered links and found queries."""
    runs = [
        fake_run(name, share(links), {TEXT_SEARCH: share(search, 2000)})
        for name, (links, search) in learned.items()
    ]
    simple = {
        "minilm, untrained": searched(share(start[0]), share(start[1], 2000)),
        "BM25": {TEXT_SEARCH: found_by(share(0.9, 2000))},
    }
    results = Results.from_runs(LinkSplit.load(folder / "t.split"), runs, simple)
    return decide(results), verdict(results)


@pytest.mark.parametrize(
    ("links", "learning", "words"),
    [
        ((0.3, 0.2), Learning.WORSE, "Every method is worse than the untrained backbone"),
        ((0.5, 0.2), Learning.NOTHING, "No method is significantly better than the untrained"),
        ((0.51, 0.505), Learning.NOTHING, "No method is significantly better than the untrained"),
    ],
)
def test_nothing_is_recommended_if_nothing_was_learned(
    folder: Path, links: tuple[float, float], learning: Learning, words: str
) -> None:
    """Also if the variants differ from each other."""
    draw = np.random.default_rng(0)
    runs = [
        fake_run(name, draw.permutation(share(value)).tolist())
        for name, value in zip(("graphformers", "plm"), links, strict=True)
    ]
    simple = {"minilm, untrained": {OWN_NEIGHBORS: ranks_of(share(0.5))}}
    results = Results.from_runs(LinkSplit.load(folder / "t.split"), runs, simple)
    decision, lines = decide(results), verdict(results)
    assert decision.learning is learning
    assert decision.recommended is None
    assert lines[0].startswith(words)
    assert "No method is recommended." in lines[0]
    assert not any(line.startswith(("Choose ", "Of the trained", "The valid")) for line in lines)


def test_a_method_is_recommended_if_it_learned(folder: Path) -> None:
    decision, lines = decision_of(folder, {"graphformers": (0.7, 0.5), "plm": (0.4, 0.5)})
    assert decision.learning is Learning.LEARNED
    assert decision.recommended is decision.best
    assert not any("No method" in line for line in lines)
    assert any(line.startswith("Choose GraphFormers: ") for line in lines)


def test_what_an_untrained_system_beats_is_not_recommended(folder: Path) -> None:
    """The sentences do not contradict each other: choose a method, use another instead."""
    runs = [fake_run("graphformers", share(0.6)), fake_run("plm", share(0.5))]
    simple = {"minilm, untrained": share(0.2), "degree alone": share(0.8)}
    lines = words_of(folder, *runs, **simple)
    assert not any(line.startswith("Choose ") for line in lines)
    assert any(
        line.startswith("Of the trained methods, GraphFormers is the best") for line in lines
    )
    assert any(
        "degree alone is better than GraphFormers" in line and "use it instead" in line
        for line in lines
    )


def test_the_verdict_says_what_training_did_to_search(folder: Path) -> None:
    def about_search(learned: dict[str, tuple[float, float]]) -> tuple[Decision, list[str]]:
        decision, lines = decision_of(folder, learned, start=(0.5, 0.586))
        return decision, [line for line in lines if "earch by words" in line]

    decision, lines = about_search({"plm": (0.6, 0.45), "graphformers": (0.7, 0.396)})
    assert [each.change for each in decision.search] == [Change.WORSE] * 2
    (line,) = lines
    assert line.startswith(
        "Search by words became worse by training: MRR 0.586 untrained, 0.396 with GraphFormers "
        "(-0.1900 ["
    ), line
    assert line.endswith("p < 0.001), 0.450 with PLM, 0.900 with BM25.")

    decision, lines = about_search({"plm": (0.6, 0.586), "graphformers": (0.7, 0.65)})
    assert [each.change for each in decision.search] == [Change.BETTER, Change.SAME]
    assert lines[0].startswith(
        "Search by words became better by training: MRR 0.586 untrained, 0.650 with GraphFormers ("
    )
    assert lines[1].startswith(
        "Training did not cost search by words: MRR 0.586 untrained, 0.586 with PLM ("
    )
    assert len(lines) == 2


def test_a_change_of_search_that_is_not_significant_is_left_open(folder: Path) -> None:
    """A wide interval does not show that training cost nothing."""
    draw = np.random.default_rng(0)
    start, after = (draw.permutation(share(value, 200)).tolist() for value in (0.58, 0.56))
    results = Results.from_runs(
        LinkSplit.load(folder / "t.split"),
        [fake_run("plm", share(0.6), {TEXT_SEARCH: after})],
        {"minilm, untrained": searched(share(0.5), start)},
    )
    (effect,) = decide(results).search
    assert effect.change is Change.OPEN
    assert any(
        line.startswith("No significant change of search by words by training; whether it costs")
        for line in verdict(results)
    )


def share(value: float, count: int = 1000) -> list[float]:
    """So many questions, of which this share is answered."""
    return [1.0] * round(value * count) + [0.0] * (count - round(value * count))


def words_of(folder: Path, *runs: Run, **simple: list[float]) -> list[str]:
    ranks = {name: {OWN_NEIGHBORS: ranks_of(values)} for name, values in simple.items()}
    return verdict(Results.from_runs(LinkSplit.load(folder / "t.split"), runs, ranks))


@pytest.mark.parametrize(
    ("asked", "condition", "given", "words"),
    [
        (
            0.7,
            SHUFFLED_NEIGHBORS,
            0.4,
            "Given neighbours of other nodes, GraphFormers falls from P@1 0.700 to 0.400.",
        ),
        (
            0.4,
            NO_NEIGHBORS,
            0.7,
            "Given no neighbours, GraphFormers rises from P@1 0.400 to 0.700.",
        ),
        (
            0.7,
            SHUFFLED_NEIGHBORS,
            0.7,
            "GraphFormers performs the same (P@1 0.700, with their own neighbours 0.700): it does "
            "not use them.",
        ),
        (
            0.7,
            NO_NEIGHBORS,
            0.7,
            "GraphFormers performs the same (P@1 0.700, with their own neighbours 0.700): it does "
            "not need them.",
        ),
        (
            0.8,
            NO_NEIGHBORS,
            0.793,
            "GraphFormers falls from P@1 0.800 to 0.793.",
        ),  # little, but sure
        (
            0.009,
            SHUFFLED_NEIGHBORS,
            0.0,
            "GraphFormers falls from P@1 0.009 to 0.000.",
        ),  # little, but all of it
        (0.5, SHUFFLED_NEIGHBORS, 0.499, "GraphFormers performs the same"),
        # sure, but nothing that shows
        (
            0.7,
            NO_NEIGHBORS,
            0.6996,
            "GraphFormers performs the same (P@1 0.700, with their own neighbours 0.700)",
        ),
        (
            0.0,
            NO_NEIGHBORS,
            0.0,
            "GraphFormers ranks no link first, as with each node's own neighbours.",
        ),
        (
            0.004,
            SHUFFLED_NEIGHBORS,
            0.003,
            "GraphFormers has P@1 0.003 instead of 0.004, which is not significant.",
        ),
    ],
)
def test_the_verdict_on_other_neighbours(
    folder: Path, asked: float, condition: str, given: float, words: str
) -> None:
    count = 50_000 if round(given, 3) != given else 1000
    found = words_of(
        folder, fake_run("graphformers", share(asked, count), {condition: share(given, count)})
    )
    assert any(words in line for line in found), found


def test_between_conditions_every_seed_is_compared_with_itself(folder: Path) -> None:
    """Seeds that differ much, each of which falls by the same."""
    runs = [
        fake_run("graphformers", share(value), {NO_NEIGHBORS: share(value - 0.05)}, seed=seed)
        for seed, value in enumerate((0.3, 0.5, 0.7))
    ]
    assert any("falls from P@1 0.500 to 0.450" in line for line in words_of(folder, *runs))
    scattered = [
        fake_run("graphformers", share(0.5), {NO_NEIGHBORS: share(value)}, seed=seed)
        for seed, value in enumerate((0.3, 0.8))
    ]
    assert any(
        "has P@1 0.550 instead of 0.500, which is not significant" in line
        for line in words_of(folder, *scattered)
    )


def test_what_is_taken_is_chosen_on_the_valid_questions(folder: Path) -> None:
    plm = fake_run("plm", share(0.6), valid=0.5, nodes_per_second=90.0)
    slower = fake_run("plm.one-stage", share(0.3), valid=0.4, nodes_per_second=90.0)
    reader = fake_run("graphformers", share(0.55), valid=0.7)
    other = fake_run("max", share(0.9), valid=0.3)
    found = words_of(folder, plm, slower, reader, other)
    assert found[0].startswith("The graph hurts: P@1 of PLM 0.600, of GraphFormers 0.550")
    (line,) = [each for each in found if each.startswith("Choose ")]
    assert line.startswith(
        "Choose GraphFormers: it is the best on the valid questions (P@1 0.700; 0.550 on the test "
        "questions)."
    )
    assert "PLM+Max is better on the test questions (0.900; 0.300 on the valid questions)." in line
    assert "does not differ" not in line
    alike = words_of(
        folder, fake_run("plm", share(0.551), valid=0.5, nodes_per_second=25.0), reader
    )
    (line,) = [each for each in alike if each.startswith("Choose ")]
    assert line.endswith(
        "PLM does not differ significantly from it (0.551) and encodes 2.5 times as fast."
    )
    assert "encoding a node 2.5 times as long (10 nodes/s on this machine)" in alike[-1]


def test_methods_that_valid_cannot_tell_apart_are_not_chosen_from(folder: Path) -> None:
    found = words_of(
        folder, fake_run("plm", [1.0]), fake_run("max", [1.0]), fake_run("gat", [0.0]), words=[1.0]
    )
    assert found[0].startswith(
        "No significant difference on one question; whether the graph helps remains open: "
    )
    assert (
        "The valid questions do not decide which method to choose: PLM and PLM+Max have the same "
        "P@1 on them (1.000)." in found
    )
    assert (
        "Without training, words does not differ significantly from PLM (P@1 1.000 and 1.000)."
        in found
    )


def test_costs_of_different_devices_are_not_compared(folder: Path) -> None:
    here, there = (
        fake_run("plm", share(0.5), device="cpu"),
        fake_run("graphformers", share(0.6), device="a GPU"),
    )
    assert not any("Cost: " in line for line in words_of(folder, here, there))
    assert any(
        "Cost: " in line
        for line in words_of(folder, here, fake_run("graphformers", share(0.6), device="cpu"))
    )


def test_seeds_count_against_what_needs_no_training(folder: Path) -> None:
    """One that is behind with two seeds and ahead with a third cannot be told from it."""
    runs = [
        fake_run("graphformers", share(value), seed=seed)
        for seed, value in enumerate((0.4, 0.45, 0.65))
    ]
    found = words_of(folder, *runs, words=share(0.55), degree=share(0.1))
    assert any(
        line.startswith("Without training, words does not differ significantly from GraphFormers")
        for line in found
    ), found
    even = [fake_run("graphformers", share(0.5), seed=seed) for seed in range(3)]
    assert any(
        "words is better than GraphFormers" in line
        for line in words_of(folder, *even, words=share(0.55))
    )


def test_the_table_of_neighbours_with_models_trained_for_each(folder: Path, tmp_path: Path) -> None:
    found = compare(
        make_settings(folder, tmp_path / "report"), table="neighbours", retrain=True
    ).results
    rows = neighbor_table(found, 3, retrain=True).rows
    for count, row in enumerate(rows, 1):
        names = [
            f"{method}.n{count}" if count < 3 else method for method in ("graphformers", "max")
        ]
        expected = [
            f"{found.find(name).mean(metric):.4f}"
            for name in names
            for metric in ("P@1", "NDCG", "MRR")
        ]  # type: ignore[union-attr]
        assert row == [str(count), *expected]
    assert rows != neighbor_table(found, 3, retrain=False).rows


def test_a_new_metric_is_in_the_tables_and_in_the_report(folder: Path) -> None:
    register_metric("hits@3", headline=True)(lambda ranks: hits_at(ranks, 3))
    try:
        results = fake_results(folder, {"plm": [1.0] * 30}, simple=[0.0] * 30)
        assert "hits@3" in system_table("Compared", results.systems).header
        assert "hits@3" in metrics_table(results).header
        trained: Any = results.to_dict()["trained"]
        assert "hits@3" in trained["plm"][OWN_NEIGHBORS]
    finally:
        del METRICS["hits@3"]


def test_a_comparison_renders_itself(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compare(make_settings(folder, tmp_path / "report"), methods=["plm"])
    assert found.to_dict() == json.loads(found.numbers.read_text())
    found.print()
    shown = capsys.readouterr().out
    for text in ("Data\n\n", "Compared\n\n", *found.verdict, f"{found.report}: the report"):
        assert text in shown
    shown = found._repr_html_()
    assert shown.count("<table>") == len(found.as_tables()) == 2
    assert all(html.escape(line) in shown for line in found.verdict)


def test_what_each_table_trains() -> None:
    assert [each.name for each in variants_of("overall")] == [
        "plm",
        "tnve",
        "iftn",
        "gat",
        "max",
        "mean",
        "att",
        "graphformers",
    ]
    assert [each.name for each in variants_of("neighbours")] == ["graphformers", "max"]
    assert len(variants_of("neighbours", retrain=True)) == 10
    assert variants_of("datasets") == []
    with pytest.raises(GraphFormersError, match=r"no method 'maxx'; .*max"):
        variant("maxx")
    with pytest.raises(GraphFormersError, match=r"expected max or max\.one-stage"):
        variant("max.three-stage")
    assert variant("graphformers.simplified").settings == {
        "two_stage": True,
        "direction": "bidirectional",
        "neighbor_gradients": True,
    }
    assert {each.name: each for each in variants_of("ablation")}["graphformers.shared"] == variant(
        "graphformers.shared"
    )
    with pytest.raises(GraphFormersError, match=r"expected max or max\.one-stage$"):
        variant("max.simplified")
