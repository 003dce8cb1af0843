"""The index in a process of its own gives what it gives here, ends with its owner, and can be done
without.
"""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from graphformers.embedding.vectors import VectorStore
from graphformers.retrieval import index as index_module
from graphformers.retrieval.index import FILE, Index, OpenFile, has_usearch, load_index
from graphformers.serve.engine import open_index
from graphformers.serve.walker import Walker

pytestmark = pytest.mark.skipif(not has_usearch(), reason="usearch is not installed")


@pytest.fixture
def index(place: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    monkeypatch.setattr(index_module, "EXACT_BELOW", 10)
    Index.open(VectorStore.load(place))  # makes it
    found = load_index(VectorStore.load(place))
    assert found is not None
    return found


@pytest.mark.parametrize("count", [1, 2, 30])
def test_it_finds_what_is_found_here(index: Index, place: Path, count: int) -> None:
    walker = Walker(OpenFile(place / FILE), index.graph)
    queries = index.store.base_vectors(np.arange(count))
    for k in (1, 7, 100):
        mine, theirs = index.search(queries, k), index.through(walker).search(queries, k)
        np.testing.assert_array_equal(mine.nodes_QK, theirs.nodes_QK)
        np.testing.assert_allclose(mine.scores_QK, theirs.scores_QK, rtol=1e-6)


def test_a_killed_one_is_done_without(
    index: Index, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    walker = Walker(OpenFile(place / FILE), index.graph, num_processes=2)
    queries = index.store.base_vectors(np.arange(3))
    expected = index.search(queries, 5).nodes_QK
    np.testing.assert_array_equal(index.through(walker).search(queries, 5).nodes_QK, expected)
    for left in (1, 0):
        walker.children[left].process.kill()
        walker.children[left].process.wait()
        for _ in range(3):
            np.testing.assert_array_equal(
                index.through(walker).search(queries, 5).nodes_QK, expected
            )
        assert caplog.text.count("is gone") == 1
        assert f"{left} left" in caplog.text
        caplog.clear()


def test_a_failure_of_another_kind_loses_one_and_blocks_nobody(
    index: Index, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walker = Walker(OpenFile(place / FILE), index.graph)
    queries = index.store.base_vectors(np.arange(3))
    expected = index.search(queries, 5).nodes_QK
    with monkeypatch.context() as patch:
        patch.setattr("graphformers.serve.walker.Connection.recv_bytes", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            index.through(walker).search(queries, 5)
    np.testing.assert_array_equal(index.through(walker).search(queries, 5).nodes_QK, expected)
    assert walker.children[0].process.poll() is not None


def test_several_threads_ask_at_once(index: Index, place: Path) -> None:
    walker = Walker(OpenFile(place / FILE), index.graph, num_processes=2)
    queries = index.store.base_vectors(np.arange(40))
    expected = index.search(queries, 5).nodes_QK
    asking = index.through(walker)
    with ThreadPoolExecutor(6) as threads:
        found = list(
            threads.map(
                lambda row: asking.search(queries[row : row + 1], 5).nodes_QK[0],
                list(range(40)) * 5,
            )
        )
    np.testing.assert_array_equal(found, np.concatenate([expected] * 5))


def test_it_ends_with_its_owner_and_not_by_signals(index: Index, place: Path) -> None:
    opened = open_index(VectorStore.load(place))
    assert isinstance(opened.graph, Walker)
    process = opened.graph.children[0].process
    opened.search(index.store.base_vectors(np.arange(3)), 5)
    # as a group is told when the server is to stop: it still has to answer
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(0.1)
    opened.search(index.store.base_vectors(np.arange(3)), 5)
    assert process.poll() is None
    del opened
    assert process.poll() == 0
