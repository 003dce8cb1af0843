"""The log of a training run: messages, history.jsonl, and scalars for TensorBoard."""

import json
import logging
import os
import socket
import time
from collections.abc import Sequence
from io import BytesIO, FileIO
from pathlib import Path

from graphformers.training.checkpoint import LogEntry, RunFolder, TrainState

logger = logging.getLogger(__name__)

# maximum number of steps per epoch that get an entry in history.jsonl
STEPS_PER_EPOCH = 50


class TrainingLog:
    """The log entries of a run, in memory and in the folder of the run.

    Args:
        folder: The folder of the run; None to keep the entries in memory only.
        entries: The entries of a run that is continued, up to its checkpoint. Later ones in the
            folder are dropped, because the run will write them again.
    """

    def __init__(self, folder: RunFolder | None = None, entries: Sequence[LogEntry] = ()) -> None:
        self.entries = list(entries)
        self._file: FileIO | None = None
        self._scalars: Scalars | None = None
        if folder is not None:
            lines = "".join(json.dumps(entry) + "\n" for entry in self.entries)
            temporary = folder.history.with_suffix(".new")
            temporary.write_text(lines, encoding="utf-8")
            temporary.replace(folder.history)
            self._file = FileIO(folder.history, "a")
            if has_tensorboard():
                last = max((entry["step"] for entry in self.entries), default=0)
                self._scalars = Scalars(folder.path / "tensorboard", last)

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
            _append(self._file, json.dumps(entry).encode() + b"\n")
        if self._scalars is not None:
            self._scalars.add({f"{kind}/{name}": value for name, value in numbers.items()}, step)

    def close(self) -> None:
        """Closes the files."""
        if self._file is not None:
            self._file.close()
        if self._scalars is not None:
            self._scalars.close()


def has_tensorboard() -> bool:
    """Whether TensorBoard is installed (extra `tensorboard`)."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        return False
    return True


class Scalars:
    """A file of scalars for TensorBoard, each written at once.

    TensorBoard's own writer has a thread, which prints a traceback when the disk is full.

    Args:
        folder: The folder of such files.
        step: The last step of the files that are there; TensorBoard drops later ones.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files in the order of their names.
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = FileIO(folder / name, "a")
        self._add(file_version="brain.Event:2")
        self._add(step=step + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, values: dict[str, float], step: int) -> None:
        """Writes the values of a step, by their names."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        found = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step=step, summary=Summary(value=found))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _add(self, **parts: object) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = BytesIO()
        RecordWriter(record).write(Event(wall_time=time.time(), **parts).SerializeToString())
        _append(self._file, record.getvalue())


def _append(file: FileIO, data: bytes) -> None:
    """Writes to a file without a buffer, which closing it would try to write once more."""
    left = memoryview(data)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file.name)) from error
