"""Ray: the same bytes as a local run, also when a worker is killed in the middle."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from graphformers.embedding.job import embed
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import GraphFormersError
from graphformers.model.encoder import GraphFormers
from tests.embedding.conftest import EXACT, bytes_of, farthest, make_model, some_graph

SCRIPT = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from graphformers.cli import show_messages
from graphformers.graph.textgraph import TextGraph
from graphformers.embedding.cluster import embed_on_cluster
from graphformers.embedding.settings import Cluster, EmbedSettings
from graphformers.model.encoder import GraphFormers
show_messages()
folder = Path(sys.argv[1])
model = GraphFormers.from_pretrained(folder / "start.model", device="cpu")
settings = EmbedSettings(states_precision="float32", shard_size=2, batch_tokens=200)
graph, cluster = TextGraph.load(folder / "some.graph"), Cluster("local", 2, threads=1)
embed_on_cluster(model, graph, folder / "ray.vectors", settings, cluster)
"""


def workers_of(parent: int) -> list[int]:
    """The processes of Ray's actors below a process that are computing a shard."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and b"ray::Worker.run" in (place / "cmdline").read_bytes():
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
    running = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    killed: list[int] = []

    def kill_one() -> None:
        notes = tmp_path / "ray.vectors.embedding" / "notes"
        while running.poll() is None and not killed:
            if (
                notes.is_dir()
                and len(list(notes.iterdir())) >= 2
                and (found := workers_of(running.pid))
            ):
                os.kill(found[0], signal.SIGKILL)
                killed.append(found[0])

    thread = threading.Thread(target=kill_one)
    thread.start()
    _, errors = running.communicate(timeout=240)
    thread.join()
    assert running.returncode == 0, errors[-3000:]
    assert killed
    assert "a worker died at shard" in errors
    assert bytes_of(tmp_path / "ray.vectors") == bytes_of(local.path)


def test_workers_need_folders(tmp_path: Path) -> None:
    from graphformers.embedding.cluster import embed_on_cluster
    from graphformers.embedding.settings import Cluster, EmbedSettings

    with pytest.raises(
        GraphFormersError, match="workers read them from folders, so save both first"
    ):
        embed_on_cluster(
            make_model(), some_graph(), tmp_path / "some.vectors", EmbedSettings(), Cluster()
        )
    model, graph = make_model(), some_graph().save(tmp_path / "some.graph")
    model.save_pretrained(tmp_path / "some.model")
    saved = GraphFormers.from_pretrained(tmp_path / "some.model", device="cpu")
    with pytest.raises(
        GraphFormersError, match="workers=2 given, which pack batches on this machine"
    ):
        embed_on_cluster(
            saved, graph, tmp_path / "some.vectors", EmbedSettings(workers=2), Cluster()
        )
    with pytest.raises(GraphFormersError, match="workers=0 given"):
        Cluster(workers=0)
    with pytest.raises(GraphFormersError, match="gpus_per_worker=-1 given, expected 0 or more"):
        Cluster(gpus_per_worker=-1)
    with pytest.raises(GraphFormersError, match="expected whole GPUs, or a part of one"):
        Cluster(gpus_per_worker=1.5)


@pytest.mark.slow
def test_a_worker_that_is_killed_for_want_of_memory_is_replaced_so_often(tmp_path: Path) -> None:
    """By Ray itself, which has an error of its own for that; here it finds too little memory from
    the start.
    """
    pytest.importorskip("ray")
    make_model(direction="bidirectional").save_pretrained(tmp_path / "start.model")
    some_graph().save(tmp_path / "some.graph")
    command, little = (
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        {"RAY_memory_usage_threshold": "0.01"},
    )
    little |= {"RAY_memory_monitor_refresh_ms": "200"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=os.environ | little
    )
    assert done.stderr.count("a worker died") == 5, done.stderr[-3000:]
    assert "GraphFormersError: 5 workers died" in done.stderr
    assert "6 forwards instead of 2" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ray", "nowhere"], "no Ray cluster at 'nowhere'"),
        (
            ["--ray", "local", "--gpus-per-worker", "1"],
            "this machine has not a CPU and 1 GPUs, which a worker needs",
        ),
        (
            ["--ray", "local", "--device", "cpu"],
            "with --ray, where --gpus-per-worker chooses the device",
        ),
        (["--ray", "local", "--dry-run"], "it measures this machine; leave --ray out"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_made(
    options: list[str], message: str, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    make_model().save_pretrained(tmp_path / "start.model")
    some_graph().save(tmp_path / "some.graph")
    words = [
        "embed",
        str(tmp_path / "start.model"),
        str(tmp_path / "some.graph"),
        "-o",
        str(tmp_path / "some.vectors"),
    ]
    command = [sys.executable, "-m", "graphformers", *words, *options]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode != 0
    assert "Traceback" not in found.stderr
    assert message in " ".join(found.stderr.replace("│", "").split())
    assert not list(tmp_path.glob("*.embedding"))


def wait(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.slow
def test_a_worker_without_room_is_not_waited_for(tmp_path: Path) -> None:
    """A cluster with one processor, where two workers are asked for; and somebody else has it for a
    while.
    """
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster as RayCluster

    model, graph = make_model(), some_graph()
    model.save_pretrained(tmp_path / "start.model")
    graph.save(tmp_path / "some.graph")
    cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        script = SCRIPT.replace(
            'Cluster("local", 2, threads=1)',
            f"Cluster({cluster.address!r}, 2, threads=1, patience=0.5)",
        )
        ray.init(address=cluster.address, include_dashboard=False, log_to_driver=False)
        busy = ray.remote(num_cpus=1)(wait).remote(15)
        command = [sys.executable, "-c", script, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        ray.get(busy)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert done.returncode == 0, done.stderr[-3000:]
    assert "the cluster has room for 1 of 2 workers" in done.stderr
    assert "waiting for a worker" in done.stderr
    assert farthest(VectorStore.load(tmp_path / "ray.vectors"), model, graph) <= 1e-5
