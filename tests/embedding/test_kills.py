"""kill -9 at random moments: the same bytes in the end, nothing left beside them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphformers.embedding.job import embed
from tests.embedding.conftest import EXACT, make_model, some_graph


@pytest.mark.parametrize("what", ["embed", "update", "compact"])
def test_killed_ten_times_it_ends_with_the_same_bytes(what: str, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "start.model")
    graph = some_graph().save(tmp_path / "some.graph")
    if what != "embed":
        embed(tmp_path / "start.model", graph, tmp_path / "base.vectors", **EXACT)
    command = [sys.executable, "-m", "tests.embedding.processes", what, str(tmp_path)]
    # Each try is a fork of that process: an allocator with threads of its own may be locked in it
    # for ever.
    environment = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "kills in" in done.stdout
