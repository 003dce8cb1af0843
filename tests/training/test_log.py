"""The log of a training run: history.jsonl, and scalars for TensorBoard."""

import resource
import time
from pathlib import Path

import pytest

from graphformers.training.checkpoint import RunFolder
from graphformers.training.log import TrainingLog
from tests import forked


def fill_the_disk(output: Path) -> None:
    """Logs into files that may not grow beyond 10,000 bytes, those of TensorBoard the faster."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    log = TrainingLog(RunFolder(output))
    numbers = {"P@1": 0.5, "MRR": 0.5, **{f"n{i}": 0.5 for i in range(50)}}
    try:
        for _ in range(100):
            log.start(numbers)
            time.sleep(0.01)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}")
    log.close()


def test_a_full_disk_is_one_error_and_no_traceback_of_a_thread(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "a.model.training").mkdir()
    done = forked.run(fill_the_disk, tmp_path / "a.model")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{tmp_path}/a.model.training/tensorboard/events.out.tfevents" in done.stdout
    assert done.stdout.endswith(": File too large\n")
