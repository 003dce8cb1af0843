"""The folder of an unfinished run: everything that is needed to go on exactly where it stopped.

    papers.model.training/
      checkpoint/     weights, optimizer, TrainState: replaced as a whole, never half
      best-000420/    the model with the best validation so far, a model folder like any other
      history.jsonl   what happened, one line each
      tensorboard/    the same as scalars

A new best is written before the checkpoint that speaks of it, the old one removed after: whenever
the process dies, the checkpoint finds the best it knows. Random numbers need no keeping: those of a
step are made from the seed and the step's number.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from graphformers.artifact import TRAINING, bring_back, open_artifact, write_artifact
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.files import held
from graphformers.model.backbones import from_pretrained, save_pretrained, save_tensors
from graphformers.model.encoder import GraphFormers
from graphformers.places import refuse_links_out, shown
from graphformers.training.batches import Counts

KIND = "checkpoint"
VERSION = 2


@dataclass
class Recent:
    """What happened since the last validation."""

    steps: int = 0
    loss: float = 0.0  # summed over the pairs
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
    start: float = -1.0  # P@1 on valid before the first step; -1 where it was not measured
    best: float = -1.0  # the same over all validations
    best_mrr: float = -1.0  # of the same validation: where P@1 is equal, the higher one is kept
    best_step: int = -1
    stage_best: float = -1.0
    waited: int = 0  # validations since stage_best
    recent: Recent = field(default_factory=Recent)

    @staticmethod
    def of(values: dict[str, Any]) -> "TrainState":
        """From `asdict`."""
        recent = dict(values["recent"])
        # it is part of the name of a folder
        if type(best := values["best_step"]) is not int:
            words = f"best_step = {shown(best)}, expected a whole number"
            raise ArtifactError(f"a checkpoint with {words}; --force (force=True) starts anew")
        return TrainState(
            **values | {"recent": Recent(**recent | {"counts": Counts(**recent["counts"])})}
        )


def bytes_of_run(parameters: int) -> int:
    """What a run keeps on disk: weights, two averages of Adam's, the best weights; all in
    float32.
    """
    return 4 * 4 * parameters


class RunFolder:
    """Writes and reads the folder of a run."""

    def __init__(self, output: str | Path) -> None:
        self.folder = Path(f"{Path(output)}{TRAINING}")
        # before anything there is read or written: it would be done elsewhere
        refuse_links_out(self.folder)
        self._best_written = -1  # the step of the best model on disk

    @property
    def history(self) -> Path:
        return self.folder / "history.jsonl"

    def best(self, state: TrainState) -> Path:
        return self.folder / f"best-{state.best_step:06d}"

    def exists(self) -> bool:
        """Whether there is a run to continue."""
        bring_back(self.folder / "checkpoint")
        return (self.folder / "checkpoint").is_dir()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from training into the same folder."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ArtifactError(
                f"{self.folder}: a file, expected a folder for the unfinished run; move it "
                f"elsewhere"
            )
        # the folder is what artifacts lock
        with held(self.folder / ".lock", f"{self.folder}: another process is training here"):
            yield

    def clear(self) -> None:
        """Removes an older run of ours; anything else in the folder is left alone."""
        self.finish()
        shutil.rmtree(self.folder / "tensorboard", ignore_errors=True)
        self.history.unlink(missing_ok=True)

    def finish(self, keep: Path | None = None) -> None:
        """What only an unfinished run needs goes, but for `keep`; the history stays."""
        if keep is None:
            shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)
            self._best_written = -1
        for pattern in ("best-*", ".best-*", ".checkpoint.*"):
            for folder in self.folder.glob(pattern):
                if folder != keep:
                    shutil.rmtree(folder, ignore_errors=True)

    def save(
        self,
        state: TrainState,
        model: GraphFormers,
        optimizer: torch.optim.Optimizer,
        settings: dict[str, Any],
    ) -> None:
        """Writes a checkpoint and removes models that are no longer the best."""
        with write_artifact(self.folder / "checkpoint", KIND, VERSION, force=True) as draft:
            save_tensors(draft.path("weights.safetensors"), model.network.state_dict())
            save_tensors(
                draft.path("optimizer.safetensors"),
                dict(_optimizer_tensors(model.network, optimizer)),
            )
            draft.settings = settings
            draft.summary = asdict(state)
        self.finish(keep=self.best(state))

    def start_of(self, own: str) -> str:
        """The fingerprint of the weights a run starts from. A model whose training was interrupted
        holds its checkpoint's.
        """
        if not self.exists():
            return own
        artifact = open_artifact(self.folder / "checkpoint", KIND, VERSION)
        start = str(artifact.settings["weights"])
        if own == start or fingerprint(load_file(artifact.file("weights.safetensors"))) == own:
            return start
        return own

    def load(
        self, model: GraphFormers, settings: dict[str, Any]
    ) -> tuple[TrainState, dict[str, Tensor]]:
        """The state of the run, the weights put into the model, and the optimizer's tensors. Other
        settings are refused.
        """
        artifact = open_artifact(self.folder / "checkpoint", KIND, VERSION)
        _refuse_changes(self.folder, artifact.settings, settings)
        model.network.load_state_dict(load_file(artifact.file("weights.safetensors")))
        state = TrainState.of(artifact.summary)
        # another best than this checkpoint's is of a run that was not saved
        self.finish(keep=self.best(state))
        self._best_written = state.best_step
        return state, load_file(artifact.file("optimizer.safetensors"))

    def save_best(self, state: TrainState, model: GraphFormers, weights: dict[str, Tensor]) -> None:
        """Writes the best model, if it is not there yet."""
        if self._best_written != state.best_step:
            save_pretrained(model, self.best(state), force=True, weights=weights)
            self._best_written = state.best_step

    def load_best(self, state: TrainState) -> dict[str, Tensor]:
        """The weights of the best model."""
        return dict(from_pretrained(self.best(state)).network.state_dict())

    def read_history(self, state: TrainState) -> list[dict[str, Any]]:
        """The entries up to where a run stands. A line that a dying process wrote half ends the
        history.
        """
        if not self.history.exists():
            return []
        found = []
        for line in self.history.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                break
            happens_again = (
                entry["kind"] == "validation"
                and entry["step"] == state.step
                and state.recent.steps > 0
            )
            happens_again |= entry["kind"] == "start" and state.start < 0
            if entry["step"] <= state.step and not happens_again:
                found.append(entry)
        return found


def _optimizer_tensors(
    network: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in network.named_parameters():
        for what, value in optimizer.state.get(parameter, {}).items():
            yield f"{name}:{what}", value


def restore_optimizer(
    network: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Gives an optimizer the tensors of a checkpoint."""
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
        if found:
            state[i] = found
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Of the weights of a network."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _refuse_changes(folder: Path, found: dict[str, Any], given: dict[str, Any]) -> None:
    changed = [
        name for name in sorted(found.keys() | given.keys()) if found.get(name) != given.get(name)
    ]
    if changed:
        first = "; ".join(
            f"{name} {_short(found.get(name))}, now {_short(given.get(name))}"
            for name in changed[:3]
        )
        raise GraphFormersError(
            f"{folder}: an unfinished run with other settings ({first}); the same ones continue "
            f"it, "
            "--force (force=True) starts anew"
        )


def _short(value: Any) -> str:
    return str(value)[:12] if isinstance(value, str) else json.dumps(value)
