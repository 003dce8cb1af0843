"""Real servers on free ports of this machine."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from graphformers.embedding.job import embed
from graphformers.graph.textgraph import TextGraph
from graphformers.model.encoder import GraphFormers
from tests.embedding.conftest import EXACT, make_model, some_graph
from tests.forked import Forked, command

TOKEN = "a-secret-of-more-than-16-letters"


class Running:
    """A server in a process of its own: forked, or as a user starts it."""

    def __init__(
        self,
        place: Path,
        *words: str,
        environment: dict[str, str] | None = None,
        is_forked: bool = True,
    ) -> None:
        words = ("serve", str(place), "--port", "0", "--device", "cpu", *words)
        variables = os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {})
        self.process: Forked | subprocess.Popen[str]
        if is_forked:
            self.process = Forked(command, *words, environment=variables)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "graphformers", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=variables,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, (line, self.process.communicate()[1])
        self.address, self.place = found.group().rstrip("/"), place

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.address, headers=headers, timeout=60, trust_env=False)

    def kill(self) -> None:
        """kill -9: nothing is said, nothing is finished."""
        self.process.kill()
        self.process.communicate()

    def stop(self) -> tuple[int, str]:
        """SIGTERM; the exit code, and what was said on stderr."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@contextmanager
def running(
    place: Path, *words: str, environment: dict[str, str] | None = None, is_forked: bool = True
) -> Iterator[Running]:
    server = Running(place, *words, environment=environment, is_forked=is_forked)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


def make_vectors(folder: Path, graph: TextGraph | None = None, **settings: Any) -> Path:
    """Vectors of a small graph, and the model that made them, as folders."""
    make_model().save_pretrained(folder / "m.model")
    model = GraphFormers.from_pretrained(folder / "m.model", device="cpu")
    embed(model, graph or some_graph(), folder / "v.vectors", **{**EXACT, **settings})
    return folder / "v.vectors"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return make_vectors(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for tests that leave no traces that others would see."""
    with running(make_vectors(tmp_path_factory.mktemp("shared")), is_forked=False) as server:
        yield server
