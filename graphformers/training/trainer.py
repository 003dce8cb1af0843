"""Trainer: link prediction in two stages, first on masked text, then on clean text.

Each stage ends when validation stops improving; the second starts from the best weights so far. The
weights before the first step take part in the choice of the best.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from graphformers.artifact import MANIFEST, check_writable
from graphformers.errors import GraphFormersError
from graphformers.model.backbones import backbone_of, restored_random_state, save_pretrained
from graphformers.model.encoder import GraphFormers
from graphformers.progress import clock
from graphformers.settings import SettingValue, usage
from graphformers.splits.split import LinkSplit, loaded_split
from graphformers.table import Result, Table
from graphformers.training.checkpoint import LogEntry, RunFolder, TrainState
from graphformers.training.distributed import joined, own_device
from graphformers.training.recipes import settings_for
from graphformers.training.run import TrainingRun
from graphformers.training.settings import TrainConfig, divide_settings
from graphformers.version import __version__

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult(Result):
    """The result of a training run.

    Attributes:
        valid: Validation P@1 of the best weights, which the model holds.
        steps: Optimizer steps.
        seconds: Seconds of training, without validation.
        history: The entries of the training log.
        start: Validation P@1 before the first step, where it was measured.
        trained: The best validation P@1 after the first step.
        total_seconds: Seconds of the whole run by the clock.
        improved: Whether a validation was better than the one before the first step. If not, the
            model holds the starting weights. True where those were not validated.
    """

    valid: float
    steps: int
    seconds: float
    history: list[LogEntry] = field(repr=False)
    start: float | None = None
    trained: float = 0.0
    total_seconds: float = 0.0
    improved: bool = True

    def __str__(self) -> str:
        took = f"{self.steps:,} steps, {clock(self.total_seconds)}"
        if not self.improved:
            after = f"({self.trained:.4f} after training)"
            return f"the starting weights, P@1 {self.valid:.4f} {after}; {took}"
        before = "" if self.start is None else f" ({self.start:.4f} before training)"
        return f"the model of the best validation, P@1 {self.valid:.4f}{before}; {took}"

    def validations(self) -> list[LogEntry]:
        """The validations, each with the training since the one before."""
        names = ("stage", "epoch", "step", "loss", "P@1", "NDCG", "MRR", "pairs_per_second")
        return [
            {name: entry[name] for name in names}
            for entry in self.history
            if entry["kind"] == "validation"
        ]

    def to_dict(self) -> dict[str, object]:
        """The result with its validations, for JSON."""
        return {
            "valid_P@1": self.valid,
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "start_P@1": self.start,
            "trained_P@1": self.trained,
            "total_seconds": round(self.total_seconds, 1),
            "improved": self.improved,
            "history": self.validations(),
        }

    def as_table(self) -> Table:
        """The validations, for a terminal."""
        header = ("stage", "epoch", "step", "loss", "P@1", "NDCG", "MRR", "pairs/s")
        rows = [
            tuple(
                f"{value:.4f}" if isinstance(value, float) else f"{value:,}"
                for value in entry.values()
            )
            for entry in self.validations()
        ]
        return Table(header, rows)


class Trainer:
    """Trains a model on a split's training links.

    Args:
        model: The model, or a model folder.
        split: The split, or a split folder.
        config: The settings; by default those of the paper.
        output: The folder for the trained model. With it a run that was stopped or killed
            continues when `train` is called again with the same arguments. The unfinished run is in
            OUTPUT.training.
        backbone: The backbone that the model was made from; recorded with the trained model.

    Raises:
        GraphFormersError: The settings do not fit the model or the split.

    Examples:
        >>> trainer = Trainer(model, split, TrainConfig(max_steps=4, batch_size=8), "trained.model")
        >>> result = trainer.train()
        >>> print(result.as_table())  # doctest: +ELLIPSIS
        stage  epoch  step  loss ...
    """

    run_type: type[TrainingRun] = TrainingRun

    def __init__(
        self,
        model: GraphFormers | str | Path,
        split: LinkSplit | str | Path,
        config: TrainConfig | None = None,
        output: str | Path | None = None,
        *,
        backbone: str | None = None,
    ) -> None:
        self.model = (
            model if isinstance(model, GraphFormers) else GraphFormers.from_pretrained(model)
        )
        self.split = loaded_split(split)
        self.config = config or TrainConfig()
        self.output = None if output is None else Path(output)
        self.backbone = backbone
        if not isinstance(self.config, TrainConfig):
            raise GraphFormersError(
                f"a {type(self.config).__name__} given as settings, expected TrainConfig(…)"
            )
        if len(self.split.train) < 2:
            raise GraphFormersError(
                f"{len(self.split.train)} pairs to train on, expected at least 2"
            )
        if not len(self.split.valid):
            raise GraphFormersError("a split without valid questions, expected at least one")
        inputs = self.model.network.inputs(self.model.config)
        if inputs.joint and not self.config.neighbor_gradients:
            raise GraphFormersError(
                "neighbor_gradients=false given for a bidirectional model, which encodes centres "
                "and neighbours jointly; leave it out"
            )

    def train(self, *, force: bool = False, keep_start: bool = False) -> TrainResult:
        """Trains to the end, or continues a run that was stopped.

        The model then holds the weights of the best validation. If the one before the first step
        is the best, these are the starting weights, and no model is written. In several processes
        started by torchrun, each one calls this.

        Args:
            force: Start anew, and replace a finished model.
            keep_start: Write the model also if it has the starting weights.

        Returns:
            Validation score, steps, history, and whether training improved the model.

        Raises:
            GraphFormersError: The output exists; the folder holds a run with other settings; the
                loss is not finite; memory is too small for a single pair; `minutes` are too few.
            StoppedError: Ctrl-C or SIGTERM; the run is saved and can be continued.
        """
        check_output(self.output, force=force)
        folder = None if self.output is None else RunFolder(self.output)
        with self.start(folder, force=force) as run:
            run.train()
            return self._finish(run, keep_start=keep_start)

    @contextmanager
    def start(
        self, folder: RunFolder | None = None, *, force: bool = False
    ) -> Iterator[TrainingRun]:
        """A context with a run that is ready to make steps, in all processes of torchrun.

        `train` uses it; call it to make single steps.

        Args:
            folder: The folder of the run; None to keep nothing.
            force: Start anew where the folder holds an unfinished run.

        Returns:
            A context manager that yields the run.

        Examples:
            >>> with Trainer(model, split).start() as run:
            ...     run.step()
        """
        compute = self.model.compute
        with joined(compute.device) as world, restored_random_state(), compute.repeatable():
            own_folder = folder if world.is_first else None
            with nullcontext() if own_folder is None else own_folder.held():
                arguments = self.model, self.split, self.config, world, own_folder
                run = self.run_type(*arguments, force=force)
                try:
                    yield run
                finally:
                    run.close()

    def _finish(self, run: TrainingRun, *, keep_start: bool) -> TrainResult:
        """Writes the best model and removes the files of the unfinished run."""
        state, entries = run.state, run.log.entries
        start = state.start if state.start >= 0 else None
        improved = not state.is_start_best
        is_written = self.output is not None and (improved or keep_start)
        if not improved and run.world.is_first:
            self._warn_of_no_improvement(state, is_written=is_written)
        if is_written and self.output is not None and run.folder is not None:
            made = {
                "settings": run.definition,
                "valid": {
                    "P@1": state.best,
                    "step": state.best_step,
                    "start": start,
                    "trained": state.trained_best,
                    "questions": len(run.validation.questions),
                },
                "likely_links": asdict(state.link_weight),
                # unknown where the starting weights were not validated
                "improved": None if start is None else improved,
                "steps": state.step,
                "seconds": round(state.seconds, 3),
                "total_seconds": round(state.clock, 3),
                "backbone": self.backbone,
                "history": [entry for entry in entries if entry["kind"] == "validation"],
                "versions": {"graphformers": __version__, "torch": torch.__version__},
            }
            save_pretrained(self.model, self.output, force=True, training=made)
        if run.folder is not None:
            run.folder.finish()
        run.world.wait()
        return TrainResult(
            state.best,
            state.step,
            state.seconds,
            entries,
            start,
            trained=state.trained_best,
            total_seconds=run.read_clock(),
            improved=improved,
        )

    def _warn_of_no_improvement(self, state: TrainState, *, is_written: bool) -> None:
        """Says that the starting weights won, what became of them, and what may help."""
        kept = "The model holds the starting weights"
        if is_written:
            kept += f", which are written to {self.output}"
        elif self.output is not None:
            kept += f"; nothing is written ({usage('keep_start', True)} writes them)"
        warmup = "" if self.config.warmup else "warmup=0.1, "
        logger.warning(
            f"training did not improve the model: best valid P@1 {state.trained_best:.4f}, before "
            f"training {state.start:.4f}. {kept}. What may help: a learning_rate below "
            f"{self.config.learning_rate:g}, {warmup}a batch_size above {self.config.batch_size}, "
            f"more steps"
        )


def make_trainer(
    split: LinkSplit,
    source: str,
    output: Path | None = None,
    method: str | None = None,
    settings: Mapping[str, SettingValue] | None = None,
    device: str | None = None,
) -> Trainer:
    """Makes a trainer from settings by name, as the command line does.

    Args:
        split: The pairs to train on.
        source: A backbone for a new model, or a model folder to train further.
        output: The folder for the trained model.
        method: The method of a new model; graphformers by default.
        settings: Settings of training and of the model, by name; `METHOD.NAME` for one method.
        device: The device; by default the fastest available.

    Returns:
        The trainer.

    Raises:
        GraphFormersError: A model folder is of another method, or was made with other settings.
    """
    device, backbone = own_device(device), source
    if (Path(source) / MANIFEST).is_file():
        model = GraphFormers.from_pretrained(source, device=device)
        if method not in (None, model.config.method):
            raise GraphFormersError(
                f"{source}: a {model.config.method} model, {usage('method', method)} given; start "
                f"from a backbone instead"
            )
        config, changes = divide_settings(settings_for(model.config.method, settings or {}))
        # It matters only for the initial weights.
        changes.pop("graph_token_scale", None)
        for name, value in changes.items():
            if getattr(model.config, name) != value:
                raise GraphFormersError(
                    f"{source}: {name}={getattr(model.config, name)!r} is part of this model and "
                    f"cannot be changed"
                )
        backbone = backbone_of(source) or ""
    else:
        method = method or "graphformers"
        config, changes = divide_settings(settings_for(method, settings or {}))
        model = GraphFormers.from_backbone(
            source, method, seed=config.seed, device=device, **changes
        )
    if Path(backbone).is_dir():
        backbone = str(Path(backbone).resolve())
    return Trainer(model, split, config, output, backbone=backbone or None)


def check_output(output: Path | None, *, force: bool) -> None:
    """Raises an error before training if the output exists or cannot be written.

    A run that continues may replace a finished model.
    """
    if output is not None:
        check_writable(output, "model", force=force or RunFolder(output).exists())
