"""The log of a training run: messages, history.jsonl, and scalars for TensorBoard."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from graphformers.training.checkpoint import LogEntry, RunFolder, TrainState

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)

# maximum number of steps per epoch that get an entry in history.jsonl
STEPS_PER_EPOCH = 50


class TrainingLog:
    """The log entries of a run, in memory and in the folder of the run.

    Args:
        folder: The folder of the run; None to keep the entries in memory only.
        state: The progress of the run. Later entries in the folder are dropped, because the run
            will write them again.
    """

    def __init__(self, folder: RunFolder | None, state: TrainState) -> None:
        self.entries = [] if folder is None else folder.read_history(state)
        self._file = self._scalars = None
        if folder is not None:
            lines = "".join(json.dumps(entry) + "\n" for entry in self.entries)
            temporary = folder.history.with_suffix(".new")
            temporary.write_text(lines, encoding="utf-8")
            temporary.replace(folder.history)
            self._file = folder.history.open("a", encoding="utf-8")
            self._scalars = _scalar_writer(folder.path / "tensorboard", state.step)

    def step(
        self,
        place: tuple[int, int, int],
        loss: float,
        learning_rate: float,
        pairs_per_second: float,
    ) -> None:
        """Logs an optimizer step; `place` is its number, its stage and its epoch."""
        numbers = {
            "loss": loss,
            "learning_rate": learning_rate,
            "pairs_per_second": pairs_per_second,
        }
        self._write("step", place, numbers)

    def start(self, numbers: dict[str, float]) -> None:
        """Logs the validation before the first step."""
        self._write("start", (0, 1, 0), numbers)
        logger.info(f"before training: valid P@1 {numbers['P@1']:.4f}, MRR {numbers['MRR']:.4f}")

    def validation(self, state: TrainState, numbers: dict[str, float]) -> None:
        """Logs a validation, with a summary of the steps since the last one."""
        epoch = state.epoch + int(state.batch > 0)
        self._write("validation", (state.step, state.stage + 1, epoch), numbers)
        best = " (best)" if state.best_step == state.step else ""
        logger.info(
            f"stage {state.stage + 1}, epoch {epoch}, step {state.step:,}: loss "
            f"{numbers['loss']:.4f}; valid P@1 {numbers['P@1']:.4f}{best}, MRR "
            f"{numbers['MRR']:.4f}\n"
            f"    {numbers['pairs_per_second']:,.0f} pairs/s, {numbers['data_wait']:.1%} of the "
            f"time waiting for data; {numbers['negatives']:,.1f} negatives per anchor, "
            f"{numbers['false_negatives']:.1f} false negatives masked; "
            f"{numbers['neighbors_reused']:.0%} of the neighbours reused; rows "
            f"{numbers['rows_filled']:.0%} full"
        )

    def failure(self, place: tuple[int, int, int], learning_rate: float, pairs: list[str]) -> None:
        """Logs a step whose loss or gradient is not finite."""
        self._write("failure", place, {"learning_rate": learning_rate}, pairs=pairs)

    def _write(
        self,
        kind: str,
        place: tuple[int, int, int],
        numbers: dict[str, float],
        **more: list[str],
    ) -> None:
        step, stage, epoch = place
        entry: LogEntry = {"kind": kind, "step": step, "stage": stage, "epoch": epoch}
        entry |= {**numbers, **more}
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
        """Closes the files."""
        if self._file is not None:
            self._file.close()
        if self._scalars is not None:
            self._scalars.close()


def _scalar_writer(folder: Path, step: int) -> "SummaryWriter | None":
    """TensorBoard's writer; None if TensorBoard is not installed (extra `tensorboard`)."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=step + 1)
