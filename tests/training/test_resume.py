"""Runs that are stopped, killed, or run out of disk, in processes of their own.

Those that are told by a signal, and the undisturbed one that all others must equal, are started as
a user starts them; the others are forked, which saves their imports.
"""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graphformers.artifact import open_artifact
from graphformers.cli import main
from graphformers.splits.split import split_links
from graphformers.training.checkpoint import VERSION
from graphformers.training.validation import Validation
from tests import forked
from tests.training.conftest import make_model, make_topics

SETTINGS = ["batch_size=32", "learning_rate=3e-3", "epochs=2", "workers=1", "checkpoint_minutes=0"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A split and a model to start from, with dropout."""
    folder = tmp_path_factory.mktemp("runs")
    graph = make_topics().save(folder / "topics.graph")
    split_links(graph, valid=30, test=30, candidates=20).save(folder / "topics.split")
    make_model(dropout=0.1, attention_dropout=0.1).save_pretrained(folder / "start.model")
    # an empty recipe: the settings that are not given have their defaults
    (folder / "empty.toml").write_text("")
    return folder


def words_of(place: Path, output: Path, *more: str) -> list[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    base = ["train", str(place / "topics.split"), "--from", str(place / "start.model")]
    base += ["--config", str(place / "empty.toml")]
    return [*base, "-o", str(output), "--device", "cpu", *settings, *more]


def command(place: Path, output: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "graphformers", *words_of(place, output, *more)]


def train(place: Path, output: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return forked.run(forked.command, *words_of(place, output, *more))


@pytest.fixture
def refusal(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What a command says that must not begin; in this process, which saves an import."""

    def message(output: Path, *more: str) -> str:
        monkeypatch.setattr(sys, "argv", ["graphformers", *words_of(place, output, *more)])
        monkeypatch.setattr(signal, "signal", lambda *arguments: None)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
        return capsys.readouterr().err

    return message


@pytest.fixture(scope="module")
def undisturbed(place: Path) -> Path:
    words = command(place, place / "undisturbed.model", "--json")
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["valid_P@1"] > 0.1
    return place / "undisturbed.model"


def step_of(run: Path) -> int:
    """How far the checkpoint is."""
    manifest = run / "checkpoint" / "manifest.json"
    for _ in range(50):
        try:
            return int(json.loads(manifest.read_text())["summary"]["step"])
        except (OSError, ValueError):
            time.sleep(0.05)  # not there yet, or being replaced
    return 0


def test_killed_at_random_moments_it_ends_with_the_same_bytes(
    place: Path, undisturbed: Path
) -> None:
    output, draw = place / "killed.model", random.Random(1)
    kills = 0
    while not output.exists():
        running = forked.Forked(forked.command, *words_of(place, output))
        begun, wanted = step_of(Path(f"{output}.training")), draw.randint(1, 25)
        deadline = time.monotonic() + 60
        while running.poll() is None and time.monotonic() < deadline:
            if kills < 5 and step_of(Path(f"{output}.training")) >= begun + wanted:
                time.sleep(draw.random() * 0.05)
                running.kill()
                kills += 1
                break
            time.sleep(0.01)
        _, errors = running.communicate(timeout=60)
        assert running.returncode in (0, -signal.SIGKILL), errors
    assert kills >= 3
    assert (output / "model.safetensors").read_bytes() == (
        undisturbed / "model.safetensors"
    ).read_bytes()
    histories = [
        [
            {key: entry.get(key) for key in ("kind", "step", "loss", "P@1")}
            for entry in map(json.loads, path.read_text().splitlines())
        ]
        for path in (Path(f"{name}.training") / "history.jsonl" for name in (output, undisturbed))
    ]
    assert histories[0] == histories[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_a_checkpoint_and_it_goes_on(
    place: Path, undisturbed: Path, number: signal.Signals
) -> None:
    output = place / f"signal{int(number)}.model"
    more = ["--set", "checkpoint_minutes=100"]  # no other checkpoint than that of the signal
    running = subprocess.Popen(
        command(place, output, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    history = Path(f"{output}.training") / "history.jsonl"
    while running.poll() is None and (not history.exists() or history.read_text().count("\n") < 7):
        time.sleep(0.01)
    running.send_signal(number)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 128 + number, errors
    assert "the same command continues from there" in errors
    assert step_of(Path(f"{output}.training")) >= 7
    again = train(place, output, *more)
    assert again.returncode == 0, again.stderr
    assert "continuing an unfinished run at step" in again.stderr
    assert (output / "model.safetensors").read_bytes() == (
        undisturbed / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("validated", ["the start", "an epoch"])
def test_a_signal_interrupts_a_validation_which_is_repeated(place: Path, validated: str) -> None:
    """Each validation takes seconds; the signal is answered within it."""
    whole, output = (place / f"{name}-{validated[-5:]}.model" for name in ("whole", "slow"))
    settings = ["--set", "validate_steps=6", "--set", "max_steps=12", "--set", "two_stage=false"]
    assert train(place, whole, *settings).returncode == 0
    words = words_of(place, output, *settings, "--set", "checkpoint_minutes=100")
    number = 1 if validated == "the start" else 2
    running = forked.Forked(slow_validation, str(place / validated), number, *words)
    begun = place / validated
    while running.poll() is None and not begun.exists():
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGINT, errors
    steps = 6 * (number - 1)
    assert "stopping …; a second Ctrl-C ends the run at once" in errors
    assert f"stopped after step {steps}; the same command continues from there" in errors
    assert step_of(Path(f"{output}.training")) == steps
    again = train(place, output, *settings, "--set", "checkpoint_minutes=100")
    assert again.returncode == 0, again.stderr
    one, other = (folder / "model.safetensors" for folder in (output, whole))
    assert one.read_bytes() == other.read_bytes()
    runs = [
        [
            (entry["kind"], entry["step"], entry["P@1"])
            for entry in map(
                json.loads, (Path(f"{folder}.training") / "history.jsonl").read_text().splitlines()
            )
            if entry["kind"] != "step"
        ]
        for folder in (output, whole)
    ]
    assert runs[0] == runs[1]
    assert [kind for kind, _, _ in runs[0]] == ["start", "validation", "validation"]


def slow_validation(begun: str, number: int, *words: str) -> None:
    """Trains by a command whose validation of this number does not end."""
    encode, count = Validation._encode, 0

    def endless(self: Validation, nodes: Any) -> Any:
        nonlocal count
        count += 1
        if count == number:
            Path(begun).touch()
            time.sleep(600)
        return encode(self, nodes)

    Validation._encode = endless  # type: ignore[method-assign]
    forked.command(*words)


def test_training_that_does_not_improve_a_model_has_an_exit_code_of_its_own(place: Path) -> None:
    """A good model, and a learning rate that is far too high."""
    good, output = place / "good.model", place / "ruined.model"
    assert train(place, good, "--set", "epochs=4").returncode == 0
    more = ["--from", str(good), "--set", "learning_rate=0.5", "--set", "max_steps=12"]
    done = subprocess.run(
        command(place, output, *more), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 3, done.stderr
    assert "training did not improve the model: best valid P@1 0." in done.stderr
    assert "What may help: a learning_rate below 0.5, warmup=0.1" in done.stderr
    assert "not written: the starting weights, P@1 0." in done.stdout
    assert not output.exists()
    kept = train(place, output, *more, "--keep-start", "--json")
    assert kept.returncode == 3, kept.stderr
    assert not json.loads(kept.stdout)["improved"]
    one, other = (folder / "model.safetensors" for folder in (output, good))
    assert one.read_bytes() == other.read_bytes()


def test_minutes_are_continued_where_they_were_left(place: Path) -> None:
    output = place / "minutes.model"
    more = ["--minutes", "0.25", "--set", "epochs=500", "--set", "patience=500"]
    # a slow machine must have time for all validations
    more += ["--set", "validate_start=false"]
    stop_after(place, output, 3, *more)
    before = state_of(Path(f"{output}.training"))
    assert before["clock"] > 0
    assert before["budget"]["questions"] == 30
    done = train(place, output, *more, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["total_seconds"] > before["clock"]
    assert done.stderr.count("(time limit reached)") == 2
    assert {entry["stage"] for entry in found["history"]} == {1, 2}
    assert json.loads((output / "training.json").read_text())["valid"]["questions"] == 30
    refused = train(place, output, "--force", "--minutes", "0.001")
    assert refused.returncode == 1
    assert "minutes=0.001 given, expected at least 0." in refused.stderr
    assert not (Path(f"{output}.training") / "checkpoint").exists()


def state_of(run: Path) -> dict[str, Any]:
    """The state in the checkpoint."""
    found: dict[str, Any] = json.loads((run / "checkpoint" / "manifest.json").read_text())
    return found["summary"]


def stop_after(place: Path, output: Path, steps: int, *more: str) -> None:
    running = forked.Forked(forked.command, *words_of(place, output, *more))
    while running.poll() is None and step_of(Path(f"{output}.training")) < steps:
        time.sleep(0.01)
    running.send_signal(signal.SIGTERM)
    running.communicate(60)
    assert (Path(f"{output}.training") / "checkpoint").is_dir()


@pytest.mark.parametrize("method", ["tnve", "iftn"])
def test_networks_with_vectors_of_nodes_go_on_too(place: Path, method: str) -> None:
    make_model(method=method, dropout=0.1).save_pretrained(place / f"{method}.start.model")
    more = ["--from", str(place / f"{method}.start.model")]  # the later one wins
    more += ["--set", "max_steps=40"]  # each stage longer than an epoch
    done = train(place, place / f"{method}.whole.model", *more)
    assert done.returncode == 0, done.stderr
    output = place / f"{method}.stopped.model"
    stop_after(place, output, 7, *more)
    again = train(place, output, *more)
    assert again.returncode == 0, again.stderr
    assert "continuing an unfinished run at step" in again.stderr
    one, other = (
        folder / "model.safetensors" for folder in (output, place / f"{method}.whole.model")
    )
    assert one.read_bytes() == other.read_bytes()


def test_other_settings_do_not_continue_a_run(
    place: Path, undisturbed: Path, refusal: Callable[..., str]
) -> None:
    """But the same ones do, also where a run was to replace a finished model."""
    output = place / "changed.model"
    shutil.copytree(undisturbed, output)
    assert "exists already" in refusal(output)
    stop_after(place, output, 3, "--force")
    message = "an unfinished run with other settings (learning_rate 0.003, now 0.0001)"
    assert message in refusal(output, "--set", "learning_rate=1e-4")
    done = train(place, output)
    assert done.returncode == 0, done.stderr
    assert "continuing an unfinished run at step" in done.stderr
    assert (output / "model.safetensors").read_bytes() == (
        undisturbed / "model.safetensors"
    ).read_bytes()


def test_a_full_disk_leaves_the_old_checkpoint(place: Path) -> None:
    output = place / "full.model"
    stop_after(place, output, 3)
    before = step_of(Path(f"{output}.training"))
    done = forked.run(partial(forked.command, largest_file=20_000), *words_of(place, output))
    assert done.returncode == 1, done.stderr
    assert "the disk is full; what was there before is unchanged" in done.stderr
    kept = open_artifact(Path(f"{output}.training") / "checkpoint", "checkpoint", VERSION)
    kept.verify()
    assert kept.summary["step"] == before


def test_a_dry_run_writes_nothing(place: Path) -> None:
    done = train(place, place / "dry.model", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["method"] == "graphformers"
    assert found["seconds_at_most"] > 0
    assert not list(place.glob("dry.model*"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--set", "learning_rat=1"], "no setting 'learning_rat'; did you mean 'learning_rate'?"),
        (["--set", "max_minutes=5"], "no setting 'max_minutes'; did you mean 'minutes'?"),
        (["--minutes", "0"], "minutes=0.0 given, expected more than 0"),
        (["--set", "epochs=many"], "epochs='many' given, expected int"),
        (["--set", "batch_size=1"], "batch_size=1 given, expected at least 2"),
        (["--set", "batch_size"], "--set batch_size given, expected NAME=VALUE"),
        (["--method", "gat"], "a graphformers model, --method gat given"),
        (["--set", "max_tokens=8"], "max_tokens=10 is part of this model and cannot be changed"),
        (
            ["--config", "missing.toml"],
            "missing.toml: No such file or directory, expected a .toml file or a built-in "
            "recipe; there are: dblp, minilm",
        ),
        (["--config", "minlm"], "a built-in recipe; did you mean 'minilm'?"),
    ],
)
def test_mistakes_are_said(
    place: Path, more: list[str], message: str, refusal: Callable[..., str]
) -> None:
    assert message in refusal(place / "wrong.model", *more)
    assert not list(place.glob("wrong*"))
