"""The log of a training run: messages, history.jsonl, and scalars for TensorBoard."""

import json
import logging
from pathlib import Path
from typing import Any

from graphformers.training.checkpoint import RunFolder, TrainState

logger = logging.getLogger(__name__)

# Entries of single steps in history.jsonl, at most.
STEPS_PER_EPOCH = 50


class TrainingLog:
    """Keeps the entries of a run, and writes them where the run has a folder."""

    def __init__(self, run: RunFolder | None, state: TrainState) -> None:
        self.entries = [] if run is None else run.read_history(state)
        self._file = self._scalars = None
        if run is not None:
            # Entries after the checkpoint are written again when the run gets there.
            lines = "".join(json.dumps(entry) + "\n" for entry in self.entries)
            temporary = run.history.with_suffix(".new")
            temporary.write_text(lines, encoding="utf-8")
            temporary.replace(run.history)
            self._file = run.history.open("a", encoding="utf-8")
            self._scalars = _scalar_writer(run.folder / "tensorboard", state.step)

    def step(
        self,
        place: tuple[int, int, int],
        loss: float,
        learning_rate: float,
        pairs_per_second: float,
    ) -> None:
        """One optimizer step; `place` is its number, its stage and its epoch."""
        self._write(
            "step",
            place,
            {"loss": loss, "learning_rate": learning_rate, "pairs_per_second": pairs_per_second},
        )

    def start(self, numbers: dict[str, float]) -> None:
        """The validation before the first step."""
        self._write("start", (0, 1, 0), numbers)
        logger.info(f"before training: valid P@1 {numbers['P@1']:.4f}, MRR {numbers['MRR']:.4f}")

    def validation(self, state: TrainState, numbers: dict[str, float]) -> None:
        """A validation, with what the steps since the last one were like."""
        epoch = state.epoch + int(state.number > 0)  # of the whole run
        self._write("validation", (state.step, state.stage + 1, epoch), numbers)
        found = {name: numbers[name] for name in ("loss", "P@1", "MRR")}
        mark = " (best)" if state.best_step == state.step else ""
        place = f"stage {state.stage + 1}, epoch {epoch}, step {state.step:,}"
        logger.info(
            f"{place}: loss {found['loss']:.4f}; valid P@1 {found['P@1']:.4f}{mark}, MRR "
            f"{found['MRR']:.4f}\n"
            f"    {numbers['pairs_per_second']:,.0f} pairs/s, {numbers['data_wait']:.1%} of the "
            f"time waiting for data; "
            f"{numbers['negatives']:,.1f} negatives per anchor, {numbers['left_out']:.1f} left "
            f"out; "
            f"{numbers['saved']:.0%} of the neighbours saved; rows {numbers['fullness']:.0%} full"
        )

    def failure(self, place: tuple[int, int, int], learning_rate: float, pairs: list[str]) -> None:
        """A step whose loss was no number."""
        self._write("failure", place, {"learning_rate": learning_rate}, pairs=pairs)

    def _write(
        self, kind: str, place: tuple[int, int, int], numbers: dict[str, float], **more: Any
    ) -> None:
        step, stage, epoch = place
        entry = {"kind": kind, "step": step, "stage": stage, "epoch": epoch, **numbers, **more}
        self.entries.append(entry)
        if self._file is not None:
            try:
                self._file.write(json.dumps(entry) + "\n")
                self._file.flush()
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._file.name) from error
        if self._scalars is not None:
            for name, value in numbers.items():
                self._scalars.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._scalars is not None:
            self._scalars.close()


def _scalar_writer(folder: Path, step: int) -> Any:
    """TensorBoard's writer, where it is installed (extra `tensorboard`)."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=step + 1)
