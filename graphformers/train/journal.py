"""What a run tells: a line for every validation, history.jsonl, and TensorBoard's scalars."""

import json
import sys
from pathlib import Path
from typing import Any

from graphformers.train.checkpoint import RunFolder, TrainState

STEPS_PER_EPOCH = 50  # entries of single steps


class Journal:
    """Writes down what happens; does nothing but keep it in memory where there is no folder."""

    def __init__(self, run: RunFolder | None, state: TrainState, *, is_quiet: bool) -> None:
        self.entries = [] if run is None else run.read_history(state)
        self.is_quiet = is_quiet
        self._file = self._scalars = None
        if run is not None:
            # later ones happen again
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
        self.say(f"before training: valid P@1 {numbers['P@1']:.4f}, MRR {numbers['MRR']:.4f}")

    def validation(self, state: TrainState, numbers: dict[str, float]) -> None:
        """A validation, with what the steps since the last one were like."""
        epoch = state.epoch + int(state.number > 0)  # of the whole run
        self._write("validation", (state.step, state.stage + 1, epoch), numbers)
        found = {name: numbers[name] for name in ("loss", "P@1", "MRR")}
        mark = " (best)" if state.best_step == state.step else ""
        place = f"stage {state.stage + 1}, epoch {epoch}, step {state.step:,}"
        self.say(
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

    def say(self, message: str) -> None:
        if not self.is_quiet:
            print(message, file=sys.stderr, flush=True)

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
