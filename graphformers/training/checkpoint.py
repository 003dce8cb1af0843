"""The folder of an unfinished run: everything needed to continue exactly where it stopped.

    papers.model.training/
      checkpoint/     weights, optimizer, TrainState, training log; replaced as a whole
      best-000420/    the model with the best validation so far, a model folder like any other
      history.jsonl   the training log for readers, one entry a line
      tensorboard/    the same as scalars
      recipe.toml     the settings of a finished run, written by the command line

A new best model is written before the checkpoint that names it, and the old one is removed after
it. So the best model of the checkpoint exists whenever the process is killed. The state of random
number generators is not stored: random numbers are seeded by the run's seed and the step's number.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from graphformers.artifact import TRAINING, bring_back, open_artifact, write_artifact
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.files import held, sync
from graphformers.model.backbones import (
    Validated,
    from_pretrained,
    load_tensors,
    save_pretrained,
    save_tensors,
)
from graphformers.model.encoder import GraphFormers
from graphformers.places import refuse_links_out
from graphformers.records import ELSEWHERE, checked, read_record
from graphformers.settings import SettingValue, usage
from graphformers.training.batches import BatchCounts
from graphformers.training.budget import Budget
from graphformers.training.link_weight import LinkWeight

KIND = "checkpoint"
VERSION = 5
# files of a checkpoint
WEIGHTS, OPTIMIZER, LOG = "weights.safetensors", "optimizer.safetensors", "log.json"
# an entry of the training log, a line of history.jsonl
LogEntry = dict[str, Any]


@dataclass
class RecentSteps:
    """The steps since the last validation.

    Attributes:
        steps: Their number.
        loss: Summed over their pairs.
        seconds: Their duration.
        data_wait: The part of it that was spent waiting for batches.
        counts: What their batches contained.
    """

    steps: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    data_wait: float = 0.0
    counts: BatchCounts = field(default_factory=BatchCounts)

    @property
    def pairs_per_second(self) -> float:
        """Pairs of all processes per second."""
        return self.counts.pairs / max(self.seconds, 1e-9)

    def summary(self) -> dict[str, float]:
        """Means over the steps, for the training log."""
        counts, anchors = self.counts, max(self.counts.anchors, 1)
        reused = 0.0
        if counts.neighbors:
            reused = 1 - counts.encoded_neighbors / max(counts.neighbors, 1)
        return {
            "loss": self.loss / counts.pairs,
            "pairs_per_second": self.pairs_per_second,
            "negatives": counts.negatives / anchors,
            "false_negatives": counts.false_negatives / anchors,
            "neighbors_reused": reused,
            "rows_filled": counts.tokens / max(counts.token_slots, 1),
            "data_wait": self.data_wait / max(self.seconds, 1e-9),
        }


@dataclass
class TrainState:
    """The progress of a run. Epochs and steps count over both stages.

    Attributes:
        stage: The stage, from 0.
        epoch: The epoch, from 0.
        batch: The next batch of the epoch.
        step: Optimizer steps done.
        seconds: Seconds spent in them.
        stage_epoch: Epochs done since the stage began.
        stage_step: Optimizer steps since the stage began.
        clock: Seconds of the whole run by the clock, over all processes that continued it.
        stage_clock: The clock when the stage began.
        start: Validation P@1 before the first step; -1 where it was not measured.
        best: The best validation P@1, that before the first step included; -1 before the first
            validation.
        best_mrr: MRR of the same validation, which decides where P@1 is equal.
        best_step: Its step; 0 for the starting weights.
        trained_best: The best validation P@1 after the first step; -1 before.
        link_weight: The weight of common neighbours in likely links that suits the best weights.
        stage_best: The best validation P@1 of the stage.
        stale_validations: Validations since then.
        validation_seconds: Seconds of the last validation; before the first, an estimate if there
            is a budget.
        validating_seconds: Seconds of all validations.
        budget: How a run with `minutes` spends its time.
        recent: The steps since the last validation.
        chunk_size: Pairs computed at a time, at most; None for whole batches.
    """

    stage: int = 0
    epoch: int = 0
    batch: int = 0
    step: int = 0
    seconds: float = 0.0
    stage_epoch: int = 0
    stage_step: int = 0
    clock: float = 0.0
    stage_clock: float = 0.0
    start: float = -1.0
    best: float = -1.0
    best_mrr: float = -1.0
    best_step: int = -1
    trained_best: float = -1.0
    link_weight: LinkWeight = field(default_factory=LinkWeight)
    stage_best: float = -1.0
    stale_validations: int = 0
    validation_seconds: float = 0.0
    validating_seconds: float = 0.0
    budget: Budget = field(default_factory=Budget)
    recent: RecentSteps = field(default_factory=RecentSteps)
    chunk_size: int | None = None

    @property
    def is_start_best(self) -> bool:
        """Whether the starting weights are the best so far."""
        return self.best_step == 0

    def next_batch(self, num_batches: int) -> None:
        """Moves on to the next batch, at the end of an epoch to the first of the next epoch."""
        self.step += 1
        self.stage_step += 1
        self.batch += 1
        if self.batch == num_batches:
            self.epoch += 1
            self.stage_epoch += 1
            self.batch = 0

    def next_stage(self) -> None:
        """Moves on to the next stage, and to a new epoch if the current one is unfinished."""
        self.stage += 1
        self.epoch += int(self.batch > 0)
        self.batch = self.stage_epoch = self.stage_step = self.stale_validations = 0
        self.stage_clock, self.stage_best = self.clock, -1.0

    def add_step(self, counts: BatchCounts, seconds: float, data_wait: float) -> None:
        """Counts a step."""
        self.seconds += seconds
        self.recent.steps += 1
        self.recent.counts += counts
        self.recent.seconds += seconds
        self.recent.data_wait += data_wait

    def add_start(self, precision: float, mrr: float) -> None:
        """Counts the validation before the first step, with which the choice of the best begins."""
        self.start = self.best = precision
        self.best_mrr, self.best_step = mrr, 0

    def add_validation(self, precision: float, mrr: float) -> bool:
        """Counts a validation; returns whether it is the best so far."""
        self.trained_best = max(self.trained_best, precision)
        self.stale_validations += 1
        if precision > self.stage_best:
            self.stage_best, self.stale_validations = precision, 0
        is_best = (precision, mrr) > (self.best, self.best_mrr)
        if is_best:
            self.best, self.best_mrr, self.best_step = precision, mrr, self.step
        return is_best


def bytes_of_run(parameters: int) -> int:
    """Bytes on disk of weights, Adam's two averages and the best weights, all in float32."""
    return 4 * 4 * parameters


class RunSettings(TypedDict):
    """What the manifest of a checkpoint says under `settings`, as far as it is used by name."""

    weights: str


class LogHead(TypedDict):
    """What every entry of the training log says."""

    kind: str
    step: int


class RunFolder:
    """Writes and reads the folder of a run."""

    def __init__(self, output: str | Path) -> None:
        self.path = Path(f"{Path(output)}{TRAINING}")
        # A symbolic link could redirect all reads and writes below.
        refuse_links_out(self.path)
        # the step of the best model on disk
        self._best_written = -1

    @property
    def history(self) -> Path:
        """The file of the training log."""
        return self.path / "history.jsonl"

    def best(self, state: TrainState) -> Path:
        """The folder of the best model."""
        return self.path / f"best-{state.best_step:06d}"

    def exists(self) -> bool:
        """Whether there is a run to continue."""
        bring_back(self.path / "checkpoint")
        return (self.path / "checkpoint").is_dir()

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context in which no other process can train into the same folder."""
        if self.path.exists() and not self.path.is_dir():
            raise ArtifactError(
                f"{self.path}: a file, expected a folder for the unfinished run; move it elsewhere"
            )
        # not the folder itself, which artifacts lock
        with held(self.path / ".lock", f"{self.path}: another process is training here"):
            yield

    def clear(self) -> None:
        """Removes an older run; other files in the folder are left alone."""
        self.finish()
        shutil.rmtree(self.path / "tensorboard", ignore_errors=True)
        self.history.unlink(missing_ok=True)

    def finish(self, keep: Path | None = None) -> None:
        """Removes the files that only an unfinished run needs; keeps the log and `keep`."""
        if keep is None:
            shutil.rmtree(self.path / "checkpoint", ignore_errors=True)
            self._best_written = -1
        for pattern in ("best-*", ".best-*", ".checkpoint.*"):
            for folder in self.path.glob(pattern):
                if folder != keep:
                    shutil.rmtree(folder, ignore_errors=True)

    def save(
        self,
        state: TrainState,
        model: GraphFormers,
        optimizer: torch.optim.Optimizer,
        settings: Mapping[str, SettingValue],
        entries: Sequence[LogEntry],
    ) -> None:
        """Writes a checkpoint and removes models that are no longer the best."""
        optimizer_tensors = {
            f"{name}:{key}": value
            for name, parameter in model.network.named_parameters()
            for key, value in optimizer.state.get(parameter, {}).items()
        }
        with write_artifact(self.path / "checkpoint", KIND, VERSION, force=True) as draft:
            save_tensors(draft.path(WEIGHTS), model.network.state_dict())
            save_tensors(draft.path(OPTIMIZER), optimizer_tensors)
            draft.path(LOG).write_text(json.dumps(list(entries)), encoding="utf-8")
            draft.settings = dict(settings)
            draft.summary = asdict(state)
        self.finish(keep=self.best(state))

    def initial_weights(self, own: str) -> str:
        """The fingerprint of the weights that the run started from.

        Args:
            own: The fingerprint of the model's present weights. After an interruption they may be
                those of the checkpoint.
        """
        if not self.exists():
            return own
        artifact = open_artifact(self.path / "checkpoint", KIND, VERSION)
        start = checked(artifact.manifest, artifact.settings, RunSettings, "settings")["weights"]
        if own == start or fingerprint(load_tensors(artifact.file(WEIGHTS))) == own:
            return start
        return own

    def load(
        self, model: GraphFormers, settings: Mapping[str, SettingValue]
    ) -> tuple[TrainState, dict[str, Tensor], list[LogEntry]]:
        """Loads a checkpoint; its weights go into the model.

        Returns:
            The state of the run, the optimizer's tensors, and the entries of the training log.

        Raises:
            GraphFormersError: The run has other settings.
        """
        artifact = open_artifact(self.path / "checkpoint", KIND, VERSION)
        _refuse_changes(self.path, artifact.settings, settings)
        try:
            model.network.load_state_dict(load_tensors(artifact.file(WEIGHTS)))
        except RuntimeError as error:
            words = f"not the weights of this network; {ELSEWHERE}"
            raise ArtifactError(f"{artifact.path / WEIGHTS}: {words}") from error
        state = checked(artifact.manifest, artifact.summary, TrainState, "summary")
        entries = read_record(artifact.file(LOG), list[LogEntry])
        for i, entry in enumerate(entries):
            shape = Validated if entry.get("kind") == "validation" else LogHead
            checked(artifact.path / LOG, entry, shape, f"entry {i + 1}")
        # removes a best model that was written after the checkpoint
        self.finish(keep=self.best(state))
        self._best_written = state.best_step
        return state, load_tensors(artifact.file(OPTIMIZER)), entries

    def measure_save(self, model: GraphFormers) -> float:
        """The seconds of writing the weights of a model; removes them again."""
        file = self.path / ".measured.safetensors"
        started = time.perf_counter()
        try:
            save_tensors(file, model.network.state_dict())
            sync(file)
        finally:
            file.unlink(missing_ok=True)
        return time.perf_counter() - started

    def save_best(self, state: TrainState, model: GraphFormers, weights: dict[str, Tensor]) -> None:
        """Writes the best model, if it is not there yet."""
        if self._best_written != state.best_step:
            save_pretrained(model, self.best(state), force=True, weights=weights)
            self._best_written = state.best_step

    def load_best(self, state: TrainState) -> dict[str, Tensor]:
        """The weights of the best model."""
        return dict(from_pretrained(self.best(state)).network.state_dict())


def restore_optimizer(
    network: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Loads the tensors of a checkpoint into an optimizer.

    Raises:
        ArtifactError: They are not of this network.
    """
    names = {parameter: name for name, parameter in network.named_parameters()}
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for i, parameter in enumerate(ordered):
        start = f"{names[parameter]}:"
        found = {
            key.removeprefix(start): value
            for key, value in tensors.items()
            if key.startswith(start)
        }
        if any(value.shape not in (parameter.shape, ()) for value in found.values()):
            raise ArtifactError(f"{OPTIMIZER}: {names[parameter]} has another shape; {ELSEWHERE}")
        if found:
            state[i] = found
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """A checksum of the weights of a network."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _refuse_changes(
    folder: Path, found: Mapping[str, SettingValue], given: Mapping[str, SettingValue]
) -> None:
    changed = [
        name for name in sorted(found.keys() | given.keys()) if found.get(name) != given.get(name)
    ]
    if changed:
        first = "; ".join(
            f"{name} {_short(found.get(name))}, now {_short(given.get(name))}"
            for name in changed[:3]
        )
        raise GraphFormersError(
            f"{folder}: an unfinished run with other settings ({first}); the same settings "
            f"continue it, {usage('force', True)} starts anew"
        )


def _short(value: SettingValue) -> str:
    return str(value)[:12] if isinstance(value, str) else json.dumps(value)
