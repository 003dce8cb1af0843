"""Kills embeddings and updates with kill -9 at random moments. Run as a process of its own, which
forks a child for each try.

    python -m tests.embedding.processes embed FOLDER | update FOLDER | compact FOLDER

The folder holds start.model, some.graph and, for updates, base.vectors. Every result must have the
bytes of an undisturbed one.
"""

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import torch

from graphformers.embedding.job import embed
from graphformers.embedding.settings import CompactionSettings
from graphformers.embedding.update import update
from graphformers.errors import ArtifactError
from graphformers.graph.textgraph import TextGraph
from graphformers.model.encoder import GraphFormers
from tests.embedding.conftest import EXACT, bytes_of

KILLS = 10
NEW = {f"new{i}": f"graph node {i}" for i in range(20)}


def run(work: Callable[[], object], limit: float | None = None) -> tuple[bool, float]:
    """Does the work in a child, killed after `limit` seconds; whether it was finished, and how long
    it took.
    """
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if limit is not None:
        time.sleep(limit)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "the child failed"
    return os.WIFEXITED(status), time.perf_counter() - started


def main(what: str, folder: Path) -> None:
    draw = random.Random(int(os.environ.get("KILL_SEED", "1")))
    model, graph = (
        GraphFormers.from_pretrained(folder / "start.model", device="cpu"),
        TextGraph.load(folder / "some.graph"),
    )
    ids = graph.ids.to_pylist()
    limits = (
        CompactionSettings(least_bytes=1, share=0.0) if what == "compact" else CompactionSettings()
    )

    def begin(place: Path) -> None:
        if what != "embed":
            shutil.copytree(folder / "base.vectors", place)

    def work(place: Path) -> None:
        if what == "embed":
            # killed after it was put in place
            with suppress(ArtifactError) if place.exists() else nullcontext():
                embed(model, graph, place, **EXACT)
        else:
            links = [(id, ids[i]) for i, id in enumerate(NEW)]
            update(place, nodes=NEW, edges=links, remove=ids[40:44], model=model, compaction=limits)

    begin(folder / "whole.vectors")
    _, seconds = run(lambda: work(folder / "whole.vectors"))
    expected = bytes_of(folder / "whole.vectors")
    has_edits = any(name.startswith("edits-") for name in expected)
    assert has_edits == (what == "update"), "edits are kept, or compacted"
    kills, rounds = 0, 0
    while kills < KILLS:
        rounds += 1
        place = folder / f"killed{rounds}.vectors"
        begin(place)
        for _ in range(3):
            is_finished, _ = run(partial(work, place), seconds * draw.random())
            kills += not is_finished
        run(partial(work, place))
        found = bytes_of(place)
        differing = [n for n in {*found, *expected} if found.get(n) != expected.get(n)]
        assert not differing, f"round {rounds}: {differing}"
        left = {entry.name for entry in folder.iterdir()} - {
            "start.model",
            "some.graph",
            "base.vectors",
            "whole.vectors",
        }
        assert left == {place.name}, left
        shutil.rmtree(place)
    print(f"{kills} kills in {rounds} rounds of {seconds:.2f} s")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]))
