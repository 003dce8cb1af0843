import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from graphformers.artifact import open_artifact
from graphformers.embedding.job import embed
from graphformers.errors import ArtifactError, GraphFormersError, StoppedError
from graphformers.evaluation.ranking import evaluate
from graphformers.graph.interop import build_graph
from graphformers.model.backbones import training_of
from graphformers.model.encoder import GraphFormers
from graphformers.splits.split import split_links
from graphformers.training import checkpoint as checkpoint_module
from graphformers.training import run as run_module
from graphformers.training.batches import BatchMaker, TrainBatch
from graphformers.training.checkpoint import VERSION, RunFolder, TrainState, fingerprint
from graphformers.training.forecast import forecast
from graphformers.training.optimizer import make_optimizer
from graphformers.training.run import TrainingRun
from graphformers.training.schedule import Schedule
from graphformers.training.settings import TrainConfig
from graphformers.training.step import TrainStep
from graphformers.training.trainer import Trainer
from tests.training.conftest import make_model, make_split, make_topics

SPLIT = make_split()
QUICK: dict[str, Any] = {"batch_size": 32, "learning_rate": 3e-3, "epochs": 3, "workers": 0}


def quick(**changes: Any) -> TrainConfig:
    return TrainConfig(**QUICK | changes)


# validations: P@1 and MRR, or one number for both
Script = Sequence[float | tuple[float, float]]


class WatchedRun(TrainingRun):
    """Notes the weights with which stages begin and those that were the best; validates by a script
    where one is given.
    """

    def __init__(self, *arguments: Any, script: Script | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.begins: dict[int, str] = {}
        self.bests: dict[int, str] = {}
        self.stages: list[tuple[int, int, bool]] = []
        measure, waiting = self.validation.measure, list(script or [])

        def scripted() -> dict[str, float]:
            if script is None or self.state.step == 0:
                return measure()
            value = waiting.pop(0)
            precision, mrr = value if isinstance(value, tuple) else (value, value)
            return {"P@1": precision, "NDCG": precision, "MRR": mrr}

        self.validation.measure = scripted  # type: ignore[method-assign]

    def step(self) -> None:
        if self.state.stage_step == 0:
            self.begins[self.state.stage] = fingerprint(self.model.network.state_dict())
        super().step()

    def next_batch(self) -> TrainBatch:
        batch = super().next_batch()
        self.stages.append((self.state.stage, batch.key.epoch, batch.key.is_masked))
        return batch

    def validate(self) -> None:
        before = self.state.best
        super().validate()
        if self.state.best > before:
            self.bests[self.state.stage] = fingerprint(self.model.network.state_dict())


class Watched(Trainer):
    """A trainer whose last run can be looked at."""

    last: WatchedRun

    def __init__(self, *arguments: Any, script: Script | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)

        def watch(*arguments: Any, **options: Any) -> WatchedRun:
            self.last = WatchedRun(*arguments, script=script, **options)
            return self.last

        self.run_type = watch  # type: ignore[assignment]


@pytest.mark.parametrize("method", ["graphformers", "plm", "max"])
def test_training_finds_the_links(method: str) -> None:
    model = make_model(method=method)
    before = evaluate(model, SPLIT).scores["P@1"].value
    result = Trainer(model, SPLIT, quick(epochs=6)).train()
    after = evaluate(model, SPLIT).scores["P@1"].value
    assert after > max(0.4, before + 0.2)
    assert result.valid == evaluate(model, SPLIT, SPLIT.valid).scores["P@1"].value
    assert not model.training


def test_stage_2_starts_from_the_best_of_stage_1_on_clean_text() -> None:
    trainer = Watched(
        make_model(),
        SPLIT,
        quick(patience=2, epochs=9),
        script=[0.2, 0.5, 0.4, 0.3, 0.45, 0.6, 0.1, 0.2],
    )
    result = trainer.train()
    assert trainer.last.begins[1] == trainer.last.bests[0]
    # the sixth validation, not the last
    assert trainer.last.bests[1] == fingerprint(trainer.model.network.state_dict())
    validations = [entry for entry in result.history if entry["kind"] == "validation"]
    # two without a better one end each stage
    assert [entry["stage"] for entry in validations] == [1] * 4 + [2] * 4
    assert result.valid == 0.6
    assert {(stage, masked) for stage, _, masked in trainer.last.stages} == {(0, True), (1, False)}
    # never the same draw again
    assert {epoch for stage, epoch, _ in trainer.last.stages if stage == 1} == {4, 5, 6, 7}


def test_training_that_makes_a_model_worse_says_so(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    model = make_model()
    Trainer(model, SPLIT, quick(epochs=6)).train()
    good = evaluate(model, SPLIT, SPLIT.valid).scores["P@1"].value
    caplog.clear()
    before = fingerprint(model.network.state_dict())
    settings, output = quick(epochs=1, learning_rate=0.5), tmp_path / "worse.model"
    result = Trainer(model, SPLIT, settings, output).train()
    told = caplog.text
    assert not result.improved
    assert result.start == result.valid == good > result.trained
    assert fingerprint(model.network.state_dict()) == before
    assert f"before training: valid P@1 {good:.4f}" in told
    assert (
        f"training did not improve the model: best valid P@1 {result.trained:.4f}, before training "
        f"{good:.4f}. The model holds the starting weights; nothing is written "
        f"(keep_start=True writes them). What may help: a learning_rate below 0.5, warmup=0.1, a "
        f"batch_size above 32, more steps" in told
    )
    assert not output.exists()
    run = tmp_path / "worse.model.training"
    assert sorted(path.name for path in run.iterdir()) == [".lock", "history.jsonl", "tensorboard"]
    # the same again, and other settings are no other settings of an unfinished run
    again = Trainer(model, SPLIT, settings, output).train(keep_start=True)
    assert (again.valid, again.trained, again.improved) == (good, result.trained, False)
    made = training_of(output)
    assert made["valid"]["start"] == made["valid"]["P@1"] == good
    assert made["valid"]["step"] == 0
    assert not made["improved"]
    kept = GraphFormers.from_pretrained(output, device="cpu")
    assert fingerprint(kept.network.state_dict()) == before
    unmeasured = Trainer(make_model(), SPLIT, quick(epochs=1, validate_start=False)).train()
    assert unmeasured.start is None
    assert unmeasured.improved


def test_stage_2_starts_from_the_starting_weights_if_stage_1_did_not_improve_them() -> None:
    trainer = Watched(make_model(), SPLIT, quick(max_steps=4), script=[0.0, 0.9])
    before = fingerprint(trainer.model.network.state_dict())
    result = trainer.train()
    assert trainer.last.begins[1] == trainer.last.begins[0] == before
    assert result.improved
    assert result.valid == result.trained == 0.9


def test_of_equal_validations_the_better_mrr_is_kept() -> None:
    """Where few questions are asked, P@1 is often the same: stage 2 would be thrown away."""

    state = TrainState(step=2)
    assert state.add_validation(0.0, mrr=0.02)
    state.step = 4
    assert state.add_validation(0.0, mrr=0.04)
    state.step = 6
    assert not state.add_validation(0.0, mrr=0.03)
    assert (state.best_step, state.stale_validations) == (4, 2)
    settings = quick(max_steps=4, validate_start=False)
    trainer = Watched(make_model(), SPLIT, settings, script=[(0.0, 0.02), (0.0, 0.04)])
    trainer.train()
    assert (trainer.last.state.step, trainer.last.state.best_step) == (4, 4)


def test_texts_that_are_cut_are_told(caplog: pytest.LogCaptureFixture) -> None:
    Trainer(make_model(max_tokens=5), SPLIT, quick(max_steps=1)).train()
    assert "100% of the texts are longer than max_tokens=5 and cut there" in caplog.text
    caplog.clear()
    Trainer(make_model(max_tokens=20), SPLIT, quick(max_steps=1)).train()
    assert "cut there" not in caplog.text


def test_what_is_no_split_or_no_settings_is_refused() -> None:
    with pytest.raises(GraphFormersError, match="a TextGraph given, expected a split: split_links"):
        Trainer(make_model(), SPLIT.graph)  # type: ignore[arg-type]
    with pytest.raises(GraphFormersError, match="a dict given as settings, expected TrainConfig"):
        Trainer(make_model(), SPLIT, {"epochs": 1})  # type: ignore[arg-type]
    with pytest.raises(GraphFormersError, match="a TextGraph given, expected a split"):
        evaluate(make_model(), SPLIT.graph)  # type: ignore[arg-type]


def test_one_stage_reads_clean_text_alone() -> None:
    trainer = Watched(make_model(), SPLIT, quick(two_stage=False, epochs=1))
    trainer.train()
    assert {masked for _, _, masked in trainer.last.stages} == {False}


def test_a_budget_of_steps_holds_over_both_stages() -> None:
    trainer = Watched(
        make_model(), SPLIT, quick(max_steps=11, first_share=0.3, epochs=50), script=[0.1] * 50
    )
    assert trainer.train().steps == 11
    assert [stage for stage, _, _ in trainer.last.stages] == [0] * 3 + [1] * 8


def test_validation_reads_clean_text_and_other_draws_than_training() -> None:
    model = make_model()
    trainer = Trainer(model, SPLIT, quick(epochs=1))
    result = trainer.train()
    entry = next(entry for entry in result.history if entry["kind"] == "validation")
    assert set(entry) >= {
        "loss",
        "P@1",
        "NDCG",
        "MRR",
        "pairs_per_second",
        "negatives",
        "false_negatives",
        "neighbors_reused",
        "rows_filled",
        "data_wait",
    }
    assert entry["negatives"] + entry["false_negatives"] == pytest.approx(
        np.mean(
            [
                len(SPLIT.train[i : i + 32]) - 1
                for i in range(0, len(SPLIT.train), 32)
                for _ in SPLIT.train[i : i + 32]
            ]
        )
    )


def test_the_same_seed_gives_the_same_weights_whatever_the_workers() -> None:
    prints = []
    for workers in (0, 2):
        model = make_model(dropout=0.1)
        Trainer(model, SPLIT, quick(epochs=1, workers=workers)).train()
        prints.append(fingerprint(model.network.state_dict()))
    assert prints[0] == prints[1]
    model = make_model(dropout=0.1)
    Trainer(model, SPLIT, quick(epochs=1, seed=7)).train()
    assert fingerprint(model.network.state_dict()) != prints[0]


class InterruptedRun(TrainingRun):
    """Somebody presses Ctrl-C in the sixth step."""

    def step(self) -> None:
        super().step()
        if self.state.step == 6:
            signal.raise_signal(signal.SIGINT)


def test_the_model_whose_training_was_interrupted_goes_on(tmp_path: Path) -> None:
    """As when a cell of a notebook is run again: the model is the one that was stopped."""
    settings, model = quick(max_steps=12, two_stage=False), make_model()
    Trainer(undisturbed := make_model(), SPLIT, settings).train()
    with pytest.raises(StoppedError, match="stopped after step 6"):
        trainer = Trainer(model, SPLIT, settings, tmp_path / "a.model")
        trainer.run_type = InterruptedRun
        trainer.train()
    with pytest.raises(GraphFormersError, match="other settings"):
        Trainer(make_model(seed=5), SPLIT, settings, tmp_path / "a.model").train()
    with pytest.raises(GraphFormersError, match="split"):  # though neither was saved
        Trainer(model, make_split(seed=3), settings, tmp_path / "a.model").train()
    result = Trainer(model, SPLIT, settings, tmp_path / "a.model").train()
    assert "history" not in repr(result)
    assert fingerprint(model.network.state_dict()) == fingerprint(undisturbed.network.state_dict())


def test_numbers_of_numpy_and_folders(tmp_path: Path) -> None:
    SPLIT.graph.save(tmp_path / "a.graph")
    split = split_links(
        tmp_path / "a.graph", valid=30, test=30, candidates=20, seed=np.int64(3)
    ).save(tmp_path / "a.split")
    make_model().save_pretrained(tmp_path / "start.model")
    settings = quick(batch_size=np.int64(32), learning_rate=np.float32(1e-3), max_steps=2)
    assert type(settings.batch_size) is int
    Trainer(tmp_path / "start.model", tmp_path / "a.split", settings, tmp_path / "a.model").train()
    assert json.loads((tmp_path / "a.model" / "training.json").read_text())["steps"] == 2
    assert split.settings.seed == 3


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_threads_do_not_change_a_bit(pooling: str) -> None:
    """Large enough for torch to use both."""
    threads, prints = torch.get_num_threads(), set()
    torch.set_num_threads(2)
    try:
        for _ in range(3):
            model = make_model(hidden_size=256, num_heads=4, num_layers=2, pooling=pooling)
            Trainer(model, SPLIT, quick(batch_size=128, max_steps=4, workers=0)).train()
            prints.add(fingerprint(model.network.state_dict()))
    finally:
        torch.set_num_threads(threads)
    assert len(prints) == 1
    assert not torch.are_deterministic_algorithms_enabled()  # others decide for themselves


def test_a_signal_before_the_first_step_is_an_ordinary_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchMaker, "of", lambda *arguments: os.kill(os.getpid(), signal.SIGINT))
    # a job in the background would ignore it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Trainer(make_model(), SPLIT, quick(), tmp_path / "x.model").train()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not (tmp_path / "x.model").exists()


def test_random_numbers_of_others_are_not_disturbed() -> None:
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    Trainer(make_model(dropout=0.1), SPLIT, quick(epochs=1, two_stage=False)).train()
    assert torch.equal(torch.randn(3), expected)


def test_memory_that_others_needed_for_a_while_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With batches made ahead, of which some are larger than what fits, and some smaller."""
    model, calls = make_model(), []
    trainer = Watched(
        model,
        SPLIT,
        quick(two_stage=False, max_steps=40, workers=2, validate_start=False, chunk_retry_steps=6),
    )
    forward = model.network.forward

    def limited(batch: Any, near: Any = None) -> Tensor:
        if torch.is_grad_enabled():
            calls.append(batch)
            if len(calls) == 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
        result: Tensor = forward(batch, near)
        return result

    monkeypatch.setattr(model.network, "forward", limited)
    trainer.train()
    told = [message for message in caplog.messages if "memory" in message]
    assert [line.partition(":")[0] for line in told] == [
        "out of memory",
        "the memory again suffices for all pairs of a batch at a time",
    ]
    assert "from now on 16 pairs of a batch are computed at a time" in told[0]
    assert trainer.last.loader.chunks.current is None


def test_chunks_do_not_change_the_result() -> None:
    weights = []
    for chunk_size in (None, 9):
        model = make_model()
        config = quick(
            epochs=1, two_stage=False, chunk_size=chunk_size, learning_rate=1e-4, epsilon=1e-3
        )
        # With its usual epsilon Adam makes large steps of gradients that are zero but for rounding.
        Trainer(model, SPLIT, config).train()
        weights.append(
            torch.cat([parameter.detach().flatten() for parameter in model.network.parameters()])
        )
    assert (weights[0] - weights[1]).abs().max() < 1e-5


def test_the_output_is_a_model_with_its_history(tmp_path: Path) -> None:
    model = make_model()
    result = Trainer(model, SPLIT, quick(epochs=1), tmp_path / "a.model").train()
    again = GraphFormers.from_pretrained(tmp_path / "a.model", device="cpu")
    assert fingerprint(again.network.state_dict()) == fingerprint(model.network.state_dict())
    made = json.loads((tmp_path / "a.model" / "training.json").read_text())
    assert made["valid"]["P@1"] == result.valid
    assert made["settings"]["learning_rate"] == QUICK["learning_rate"]
    assert [entry["stage"] for entry in made["history"]] == [1, 2]
    run = tmp_path / "a.model.training"
    assert sorted(path.name for path in run.iterdir()) == [".lock", "history.jsonl", "tensorboard"]
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert lines == result.history
    assert [entry["step"] for entry in lines if entry["kind"] == "step"] == list(
        range(1, result.steps + 1)
    )
    open_artifact(tmp_path / "a.model", "model", 2).verify()


def test_tensorboard_reads_the_scalars(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    result = Trainer(make_model(), SPLIT, quick(epochs=1), tmp_path / "a.model").train()
    found = event_accumulator.EventAccumulator(str(tmp_path / "a.model.training" / "tensorboard"))
    found.Reload()
    values = [(event.step, event.value) for event in found.Scalars("validation/P@1")]
    expected = [
        (entry["step"], entry["P@1"]) for entry in result.history if entry["kind"] == "validation"
    ]
    assert values == [(step, pytest.approx(value)) for step, value in expected]


def test_an_existing_model_is_not_replaced(tmp_path: Path) -> None:
    Trainer(make_model(), SPLIT, quick(epochs=1), tmp_path / "a.model").train()
    with pytest.raises(ArtifactError, match="exists already"):
        Trainer(make_model(), SPLIT, quick(epochs=1), tmp_path / "a.model").train()
    Trainer(make_model(), SPLIT, quick(epochs=1), tmp_path / "a.model").train(force=True)


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    model = make_model()
    with pytest.raises(
        GraphFormersError,
        match=(
            r"the (loss|gradient) of step \d+ is (nan|inf).* at learning "
            r"rate 1e\+30; its pairs: n\d+ – n\d+"
        ),
    ):
        Trainer(
            model, SPLIT, quick(learning_rate=1e30, checkpoint_minutes=0), tmp_path / "a.model"
        ).train()
    run = tmp_path / "a.model.training"
    kept = open_artifact(run / "checkpoint", "checkpoint", VERSION)
    failure = json.loads((run / "history.jsonl").read_text().splitlines()[-1])
    assert failure["kind"] == "failure"
    assert len(failure["pairs"]) == 32
    assert kept.summary["step"] < failure["step"]
    assert not (tmp_path / "a.model").exists()


def test_a_gradient_that_is_no_number_ends_the_run(
    tmp_path: Path,
) -> None:
    class SpoiltRun(TrainingRun):
        def update_weights(self) -> torch.Tensor:
            if self.state.step == 3:
                next(iter(self.model.network.parameters())).grad[0] = torch.inf  # type: ignore[index]
            return super().update_weights()

    trainer = Trainer(
        make_model(), SPLIT, quick(max_norm=1.0, checkpoint_minutes=0), tmp_path / "a.model"
    )
    trainer.run_type = SpoiltRun
    with pytest.raises(
        GraphFormersError,
        match="the norm of the gradient of step 4 is inf, at learning rate",
    ):
        trainer.train()
    kept = open_artifact(tmp_path / "a.model.training" / "checkpoint", "checkpoint", VERSION)
    assert kept.summary["step"] == 3
    assert all(
        tensor.isfinite().all() for tensor in load_file(kept.file("weights.safetensors")).values()
    )


def test_a_best_model_of_a_run_that_was_never_saved_is_not_trusted(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "a.model")
    stale = make_model(seed=9)
    stale.save_pretrained(run.path / "best-000012")
    trainer = Watched(
        make_model(), SPLIT, quick(max_steps=24), tmp_path / "a.model", script=[0.5, 0.1, 0.1]
    )
    trainer.train()
    assert (
        trainer.last.bests[0]
        == fingerprint(trainer.model.network.state_dict())
        != fingerprint(stale.network.state_dict())
    )


def test_foreign_files_beside_a_run_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a.model.training"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    for force in (False, True):
        Trainer(make_model(), SPLIT, quick(epochs=1), tmp_path / "a.model").train(force=force)
    assert (folder / "thesis.tex").read_text() == "years of work"


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path / "a.model").held(),
        pytest.raises(ArtifactError, match="another process is training here"),
    ):
        Trainer(make_model(), SPLIT, quick(epochs=1), tmp_path / "a.model").train()


def test_progress_is_of_what_will_be_run_and_tells_no_loss_that_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[Any] = []

    @contextmanager
    def record(title: str, total: float, unit: str) -> Iterator[Any]:
        task = SimpleNamespace(note="", skip=lambda value: None)
        task.update = lambda value: shown.append((total, value, task.note))
        yield task

    monkeypatch.setattr(run_module, "progress", record)
    Trainer(make_model(), SPLIT, quick(two_stage=False, max_steps=3, batch_size=32)).train()
    assert [(total, value) for total, value, _ in shown] == [(96, 32), (96, 64), (96, 96)]
    assert ["loss" in note for _, _, note in shown] == [False, True, True]
    assert not any("nan" in note for _, _, note in shown)
    shown.clear()
    Trainer(make_model(), SPLIT, quick(two_stage=False, epochs=1, batch_size=200)).train()
    assert {total for total, _, _ in shown} == {len(SPLIT.train)}
    assert shown[-1][1] == len(SPLIT.train)


def test_a_disk_without_room_is_told_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    size = sum(parameter.numel() for parameter in model.network.parameters())
    monkeypatch.setattr(TrainingRun, "step", None)
    monkeypatch.setattr(
        checkpoint_module.shutil, "disk_usage", lambda path: SimpleNamespace(free=16 * size - 1)
    )
    with pytest.raises(GraphFormersError, match=r"a\.model\.training: .* are needed, .* are free"):
        Trainer(model, SPLIT, quick(), tmp_path / "a.model").train()


def test_what_cannot_be_trained_is_said() -> None:
    with pytest.raises(
        GraphFormersError, match="neighbor_gradients=false given for a bidirectional model"
    ):
        Trainer(make_model(direction="bidirectional"), SPLIT, quick(neighbor_gradients=False))


def test_a_forecast_changes_nothing() -> None:
    model = make_model(dropout=0.1)
    before = fingerprint(model.network.state_dict())
    found = forecast(Trainer(model, SPLIT, quick()))
    assert fingerprint(model.network.state_dict()) == before
    assert found.steps_at_most == 2 * 3 * -(-len(SPLIT.train) // 32)
    assert found.parameters == sum(parameter.numel() for parameter in model.network.parameters())
    assert found.seconds_at_most > 0


def test_the_advice_of_a_forecast_is_less_than_what_was_asked_for() -> None:
    found = forecast(Trainer(make_model(), SPLIT, quick(max_steps=120)))
    found = replace(found, seconds_at_most=1e6)
    shown = str(found.as_table())
    assert "neighbor_gradients=false" in shown
    assert "max_steps=200" not in shown
    assert "batch_size=64" not in shown
    alone = forecast(Trainer(make_model(method="plm"), SPLIT, quick()))
    shown = str(replace(alone, seconds_at_most=1e6).as_table())
    assert "faster with" in shown
    assert "neighbor" not in shown.partition("faster with")[2]
    large = {"batch_size": 512, "train_neighbors": 20, "neighbor_gradients": True}
    shown = str(replace(found, steps_at_most=5000, settings=large).as_table())
    assert (
        "--set batch_size=64, --set train_neighbors=3, --set neighbor_gradients=false, --set "
        "max_steps=200" in shown
    )


def test_a_forecast_is_of_the_run_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its chunks, and no longer than it may be."""
    sizes = []
    run = TrainStep.run
    monkeypatch.setattr(
        TrainStep,
        "run",
        lambda own, batch, seed: sizes.append(len(batch.chunks)) or run(own, batch, seed),
    )
    found = forecast(
        Trainer(
            make_model(), SPLIT, quick(batch_size=32, chunk_size=8, epochs=100_000, minutes=0.5)
        )
    )
    # two steps to divide the minutes, and four that are measured
    assert sizes == [4] * 6
    assert found.steps_at_most <= 30 / found.seconds_per_step + 3
    assert found.seconds_at_most <= 30


@pytest.mark.parametrize("changes", [{"batch_size": 10_000}, {"validate_steps": 1}, {}])
def test_checkpoints_come_by_the_clock_however_often_it_validates(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    saved: list[int] = []

    class SavedRun(TrainingRun):
        def save(self) -> None:
            saved.append(self.state.step)
            super().save()

    settings = quick(epochs=2, checkpoint_minutes=0.0, **changes)
    trainer = Trainer(make_model(), SPLIT, settings, tmp_path / "saved.model")
    trainer.run_type = SavedRun
    steps = trainer.train().steps
    assert set(saved) == set(range(1, steps + 1))


def test_the_loss_of_an_epoch_is_that_of_its_pairs() -> None:
    """A last batch of one pair, whose loss is nothing, does not halve it."""
    count = len(SPLIT.train)
    found = {}
    for size in (count, count - 1):
        settings = quick(
            batch_size=size,
            epochs=1,
            two_stage=False,
            learning_rate=1e-9,
            validate_start=False,
            mask_false_negatives=False,
        )
        found[size] = Trainer(make_model(), SPLIT, settings).train().history[-1]["loss"]
    assert found[count - 1] == pytest.approx(found[count], rel=0.01)


def test_biases_do_not_decay() -> None:
    model = make_model(relative_buckets=8)
    optimizer = make_optimizer(model, quick(weight_decay=0.1))
    decaying = {
        id(each)
        for group in optimizer.param_groups
        if group["weight_decay"]
        for each in group["params"]
    }
    names = {name for name, each in model.network.named_parameters() if id(each) in decaying}
    assert "gnn.0.query.weight" in names
    assert not [name for name in names if "bias" in name or "norm" in name]


def test_a_forecast_of_slow_steps_is_short_and_has_advice() -> None:
    assert forecast(Trainer(make_model(), SPLIT, quick())).steps_tried == 4
    found = forecast(Trainer(make_model(), SPLIT, quick()), max_seconds=0.0)
    assert found.steps_tried == 2
    assert "faster with" not in str(found.as_table())
    long = str(replace(found, seconds_at_most=3600.0).as_table())
    assert "faster with   --set neighbor_gradients=false" in long


def states(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.learning_rate(TrainState(stage_step=step, step=step)) for step in range(steps)]


def test_the_learning_rate_rises_and_falls() -> None:
    config = TrainConfig(learning_rate=1.0, epochs=2, warmup=0.2, decay="linear", two_stage=False)
    rates = states(Schedule(config, 10), 20)
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4] == 1.0
    assert rates[12] == pytest.approx(0.5)
    assert rates == sorted(rates[:5]) + sorted(rates[5:], reverse=True)
    assert 0 < rates[-1] < 0.1
    assert states(Schedule(TrainConfig(learning_rate=1.0), 10), 5) == [1.0] * 5
    cosine = states(
        Schedule(TrainConfig(learning_rate=1.0, epochs=1, decay="cosine", two_stage=False), 10), 10
    )
    assert cosine[5] == pytest.approx(0.5)
    timed = Schedule(
        TrainConfig(
            learning_rate=1.0, warmup=0.5, minutes=100 / 60, two_stage=False, decay="linear"
        ),
        10**6,
    )
    early, late = (
        timed.learning_rate(TrainState(stage_step=n, step=n, clock=n, seconds=n)) for n in (25, 75)
    )
    assert (early, late) == (pytest.approx(0.5), pytest.approx(0.5))
    assert states(Schedule(TrainConfig(learning_rate=1.0, warmup=3), 10), 4) == pytest.approx(
        [0.25, 0.5, 0.75, 1.0]
    )
    counted = Schedule(
        TrainConfig(learning_rate=1.0, warmup=3, minutes=100 / 60, two_stage=False, decay="linear"),
        10**6,
    )
    places = [TrainState(stage_step=n, step=n, clock=n, seconds=n) for n in (0, 1, 2, 3, 50, 99)]
    assert [counted.learning_rate(place) for place in places] == pytest.approx(
        [0.25, 0.5, 0.75, 1.0, 50 / 97, 1 / 97]
    )


def test_compiling_is_no_training_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is done before the first step, by one that leaves no trace."""
    plain, compiled = (
        Watched(make_model(dropout=0.1), SPLIT, quick(max_steps=3)) for _ in range(2)
    )
    plain.train()
    run, seconds = TrainStep.run, []

    def slow_at_first(self: TrainStep, batch: TrainBatch, seed: int) -> Tensor:
        if not seconds:
            time.sleep(0.5)
        seconds.append(compiled.last.state.seconds)
        return run(self, batch, seed)

    monkeypatch.setattr(TrainStep, "run", slow_at_first)
    monkeypatch.setattr("graphformers.training.run.compile_network", lambda *_, trains: None)
    compiled.config = replace(compiled.config, compile=True)
    result = compiled.train()
    assert len(seconds) == 1 + 3
    assert seconds[:2] == [0.0, 0.0]
    for one, other in zip(plain.model.parameters(), compiled.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert result.steps == 3


def test_a_trainer_that_trains_again_keeps_what_it_can_continue(tmp_path: Path) -> None:
    trainer = Trainer(make_model(), SPLIT, quick(epochs=1), tmp_path / "a.model")
    trainer.train()
    trainer.model.load_state_dict(make_model().state_dict())
    folder = tmp_path / "a.model.training"
    saved: list[list[str]] = []

    class SavedRun(TrainingRun):
        def save(self) -> None:
            super().save()
            saved.append(sorted(entry.name for entry in folder.glob("best-*")))

    trainer.run_type = SavedRun
    trainer.train(force=True)
    assert saved
    assert all(len(names) == 1 for names in saved)


@pytest.mark.parametrize("method", ["graphformers", "max", "tnve"])
def test_nodes_without_a_text(method: str, tmp_path: Path) -> None:
    """Every third node has none: trained, embedded and ranked like others, by the company they
    keep.
    """
    whole = make_topics()
    rows = [
        {"id": id, "text": "" if i % 3 == 0 else whole.text(id)}
        for i, id in enumerate(whole.ids.to_pylist())
    ]
    edges = [whole.ids_of(pair) for pair in whole.pairs()]
    graph = build_graph(rows, edges, keep_empty=True)
    split, model = split_links(graph, valid=10, test=10, candidates=20), make_model(method=method)
    Trainer(model, split, TrainConfig(batch_size=16, max_steps=3, workers=0)).train()
    assert 0 < evaluate(model, split).scores["MRR"].value <= 1
    store = embed(model, graph, tmp_path / "g.vectors")
    vectors = store.vectors(graph.ids)
    assert np.isfinite(vectors).all()
    assert np.abs(vectors - model.encode_nodes(graph)).max() < 5e-3  # states are kept in float16
