"""Ray: the same bytes as a local run, also when a worker is killed in the middle."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from graphformers.embedding.job import embed
from graphformers.errors import GraphFormersError
from tests.embedding.conftest import EXACT, bytes_of, make_model, some_graph

SCRIPT = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from graphformers.data.graph import TextGraph
from graphformers.embedding.cluster import Cluster, embed_on_cluster
from graphformers.embedding.plan import EmbedSettings
from graphformers.model.encoding import GraphFormers
folder = Path(sys.argv[1])
model = GraphFormers.from_pretrained(folder / "start.model", device="cpu")
settings = EmbedSettings(states_precision="float32", shard_size=2, batch_tokens=200)
embed_on_cluster(model, TextGraph.load(folder / "some.graph"), folder / "ray.vectors", settings, Cluster("local", 2, threads=1))
"""


def workers_of(parent: int) -> list[int]:
    """The processes of Ray's actors below a process."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and b"ray::Worker" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return [pid for pid in found if is_below(pid, parent)]


def is_below(pid: int, parent: int) -> bool:
    while pid > 1 and pid != parent:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return pid == parent


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_two_workers_one_killed_give_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    model = make_model()
    model.save_pretrained(tmp_path / "start.model")
    graph = some_graph().save(tmp_path / "some.graph")
    local = embed(model, graph, tmp_path / "local.vectors", **EXACT | {"shard_size": 2})
    running = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    killed: list[int] = []

    def kill_one() -> None:
        notes = tmp_path / "ray.vectors.embedding" / "notes"
        while running.poll() is None and not killed:
            if notes.is_dir() and len(list(notes.iterdir())) >= 2 and (found := workers_of(running.pid)):
                os.kill(found[0], signal.SIGKILL)
                killed.append(found[0])
            time.sleep(0.01)

    thread = threading.Thread(target=kill_one)
    thread.start()
    _, errors = running.communicate(timeout=240)
    thread.join()
    assert running.returncode == 0, errors[-3000:]
    assert killed
    assert "a worker died at shard" in errors
    assert bytes_of(tmp_path / "ray.vectors") == bytes_of(local.path)


def test_workers_need_folders(tmp_path: Path) -> None:
    from graphformers.embedding.cluster import Cluster, embed_on_cluster
    from graphformers.embedding.plan import EmbedSettings

    with pytest.raises(GraphFormersError, match="workers read them from folders, so save both first"):
        embed_on_cluster(make_model(), some_graph(), tmp_path / "some.vectors", EmbedSettings(), Cluster())
    with pytest.raises(GraphFormersError, match="workers=0 given"):
        Cluster(workers=0)
