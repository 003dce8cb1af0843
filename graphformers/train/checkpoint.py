"""The folder of an unfinished run: everything that is needed to go on exactly where it stopped.

    papers.model.training/
      checkpoint/     weights, optimizer, TrainState: replaced as a whole, never half
      best-000420/    the model with the best validation so far, a model folder like any other
      history.jsonl   what happened, one line each
      tensorboard/    the same as scalars

A new best is written before the checkpoint that speaks of it, the old one removed after: whenever the process dies, the
checkpoint finds the best it knows. Random numbers need no keeping: those of a step are made from the seed and the step's number.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from graphformers.artifact import open_artifact, write_artifact
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.model.backbones import from_pretrained, save_pretrained, save_tensors
from graphformers.model.encoding import GraphFormers
from graphformers.train.batches import Counts

KIND = "checkpoint"
VERSION = 1


@dataclass
class Recent:
    """What happened since the last validation."""

    steps: int = 0
    loss: float = 0.0  # summed over the steps
    seconds: float = 0.0
    data_wait: float = 0.0  # seconds of them
    counts: Counts = field(default_factory=Counts)


@dataclass
class TrainState:
    """Where a run stands. Epochs and steps count over both stages."""

    stage: int = 0
    epoch: int = 0
    number: int = 0  # the next batch of the epoch
    step: int = 0  # optimizer steps done
    seconds: float = 0.0  # spent in them
    stage_epoch: int = 0  # the same three since the stage began
    stage_step: int = 0
    stage_seconds: float = 0.0
    best: float = -1.0  # P@1 on valid, over all
    best_step: int = -1
    stage_best: float = -1.0
    waited: int = 0  # validations since stage_best
    recent: Recent = field(default_factory=Recent)

    @staticmethod
    def of(values: dict[str, Any]) -> "TrainState":
        """From `asdict`."""
        recent = dict(values["recent"])
        return TrainState(**values | {"recent": Recent(**recent | {"counts": Counts(**recent["counts"])})})


class RunFolder:
    """Writes and reads the folder of a run."""

    def __init__(self, output: str | Path) -> None:
        self.folder = Path(f"{Path(output)}.training")

    @property
    def history(self) -> Path:
        return self.folder / "history.jsonl"

    def best(self, state: TrainState) -> Path:
        return self.folder / f"best-{state.best_step:06d}"

    def exists(self) -> bool:
        return (self.folder / "checkpoint").is_dir()

    def clear(self) -> None:
        """Removes an older run of ours; anything else there is left alone."""
        if self.folder.is_dir() and not self.exists() and not self.history.exists() and any(self.folder.iterdir()):
            raise ArtifactError(f"{self.folder}: exists and is not a training run of ours; move it elsewhere")
        shutil.rmtree(self.folder, ignore_errors=True)

    def save(self, state: TrainState, model: GraphFormers, optimizer: torch.optim.Optimizer, settings: dict[str, Any]) -> None:
        """Writes a checkpoint and removes models that are no longer the best."""
        with write_artifact(self.folder / "checkpoint", KIND, VERSION, force=True) as draft:
            save_tensors(draft.path("weights.safetensors"), model.network.state_dict())
            save_tensors(draft.path("optimizer.safetensors"), dict(_optimizer_tensors(model.network, optimizer)))
            draft.settings = settings
            draft.summary = asdict(state)
        for folder in self.folder.glob("best-*"):
            if folder != self.best(state):
                shutil.rmtree(folder)

    def load(self, model: GraphFormers, settings: dict[str, Any]) -> tuple[TrainState, dict[str, Tensor]]:
        """The state of the run, the weights put into the model, and the optimizer's tensors. Other settings are refused."""
        artifact = open_artifact(self.folder / "checkpoint", KIND, VERSION)
        _refuse_changes(self.folder, artifact.settings, settings)
        model.network.load_state_dict(load_file(artifact.file("weights.safetensors")))
        return TrainState.of(artifact.summary), load_file(artifact.file("optimizer.safetensors"))

    def save_best(self, state: TrainState, model: GraphFormers, weights: dict[str, Tensor]) -> None:
        """Writes the best model, once."""
        if not self.best(state).is_dir():
            save_pretrained(model, self.best(state), weights=weights)

    def load_best(self, state: TrainState) -> dict[str, Tensor]:
        """The weights of the best model."""
        return dict(from_pretrained(self.best(state)).network.state_dict())

    def finish(self) -> None:
        """What only an unfinished run needs goes; the history stays."""
        shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)
        for folder in self.folder.glob("best-*"):
            shutil.rmtree(folder, ignore_errors=True)

    def read_history(self, step: int) -> list[dict[str, Any]]:
        """The entries up to a step. A line that a dying process wrote half ends the history."""
        if not self.history.exists():
            return []
        found = []
        for line in self.history.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                break
            if entry["step"] <= step:
                found.append(entry)
        return found


def _optimizer_tensors(network: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in network.named_parameters():
        for what, value in optimizer.state.get(parameter, {}).items():
            yield f"{name}:{what}", value


def restore_optimizer(network: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Gives an optimizer the tensors of a checkpoint."""
    names = {parameter: name for name, parameter in network.named_parameters()}
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for i, parameter in enumerate(ordered):
        start = f"{names[parameter]}:"
        found = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
        if found:
            state[i] = found
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def fingerprint(network: nn.Module) -> str:
    """Of the weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _refuse_changes(folder: Path, found: dict[str, Any], given: dict[str, Any]) -> None:
    changed = [name for name in sorted(found.keys() | given.keys()) if found.get(name) != given.get(name)]
    if changed:
        first = "; ".join(f"{name} {_short(found.get(name))}, now {_short(given.get(name))}" for name in changed[:3])
        raise GraphFormersError(
            f"{folder}: an unfinished run with other settings ({first}); the same ones continue it, --force starts anew"
        )


def _short(value: Any) -> str:
    return str(value)[:12] if isinstance(value, str) else json.dumps(value)
