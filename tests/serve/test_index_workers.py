"""The index in a process of its own gives what it gives here, ends with its owner, and can be done
without.
"""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from graphformers.embedding.vectors import VectorStore
from graphformers.retrieval import index as index_module
from graphformers.retrieval.approximate import OpenFile
from graphformers.retrieval.hnsw import Searchable
from graphformers.retrieval.index import StoreIndex, has_usearch
from graphformers.retrieval.usearch_index import UsearchIndex
from graphformers.serve.engine import open_index
from graphformers.serve.index_workers import IndexWorkers

FILE = "index.usearch"
pytestmark = pytest.mark.skipif(not has_usearch(), reason="usearch is not installed")


@pytest.fixture
def index(place: Path, monkeypatch: pytest.MonkeyPatch) -> StoreIndex:
    monkeypatch.setattr(index_module, "EXACT_BELOW", 10)
    UsearchIndex.make(VectorStore.load(place))
    return StoreIndex.open(VectorStore.load(place))


def graph_of(index: StoreIndex) -> Searchable:
    assert isinstance(index.base, UsearchIndex)
    return index.base.graph


def through(index: StoreIndex, graph: Searchable) -> StoreIndex:
    assert isinstance(index.base, UsearchIndex)
    return StoreIndex(index.store, index.base.through(graph))


@pytest.mark.parametrize("count", [1, 2, 30])
def test_it_finds_what_is_found_here(index: StoreIndex, place: Path, count: int) -> None:
    workers = IndexWorkers(OpenFile(place / FILE), graph_of(index))
    queries = index.store.base_vectors(np.arange(count))
    for k in (1, 7, 100):
        mine, theirs = index.search(queries, k), through(index, workers).search(queries, k)
        np.testing.assert_array_equal(mine.nodes_QK, theirs.nodes_QK)
        np.testing.assert_allclose(mine.scores_QK, theirs.scores_QK, rtol=1e-6)


def test_a_killed_one_is_done_without(
    index: StoreIndex, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers = IndexWorkers(OpenFile(place / FILE), graph_of(index), num_processes=2)
    queries = index.store.base_vectors(np.arange(3))
    expected = index.search(queries, 5).nodes_QK
    np.testing.assert_array_equal(through(index, workers).search(queries, 5).nodes_QK, expected)
    for left in (1, 0):
        workers.workers[left].process.kill()
        workers.workers[left].process.wait()
        for _ in range(3):
            np.testing.assert_array_equal(
                through(index, workers).search(queries, 5).nodes_QK, expected
            )
        assert caplog.text.count("is gone") == 1
        assert f"{left} left" in caplog.text
        caplog.clear()


def test_a_failure_of_another_kind_loses_one_and_blocks_nobody(
    index: StoreIndex, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = IndexWorkers(OpenFile(place / FILE), graph_of(index))
    queries = index.store.base_vectors(np.arange(3))
    expected = index.search(queries, 5).nodes_QK
    with monkeypatch.context() as patch:
        patch.setattr(
            "graphformers.serve.index_workers.Connection.recv_bytes", lambda *given: 1 / 0
        )
        with pytest.raises(ZeroDivisionError):
            through(index, workers).search(queries, 5)
    np.testing.assert_array_equal(through(index, workers).search(queries, 5).nodes_QK, expected)
    assert workers.workers[0].process.poll() is not None


def test_workers_import_nothing_from_the_current_folder(
    index: StoreIndex, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("numpy", "json", "usearch", "graphformers"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w').write('run')")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", str(here), *sys.path])
    workers = IndexWorkers(OpenFile(place / FILE), graph_of(index))
    queries = index.store.base_vectors(np.arange(3))
    np.testing.assert_array_equal(
        through(index, workers).search(queries, 5).nodes_QK, index.search(queries, 5).nodes_QK
    )
    assert workers.workers[0].process.poll() is None
    assert not (tmp_path / "run").exists()


def test_several_threads_ask_at_once(index: StoreIndex, place: Path) -> None:
    workers = IndexWorkers(OpenFile(place / FILE), graph_of(index), num_processes=2)
    queries = index.store.base_vectors(np.arange(40))
    expected = index.search(queries, 5).nodes_QK
    asking = through(index, workers)
    with ThreadPoolExecutor(6) as threads:
        found = list(
            threads.map(
                lambda row: asking.search(queries[row : row + 1], 5).nodes_QK[0],
                list(range(40)) * 5,
            )
        )
    np.testing.assert_array_equal(found, np.concatenate([expected] * 5))


def test_it_ends_with_its_owner_and_not_by_signals(index: StoreIndex, place: Path) -> None:
    opened = open_index(VectorStore.load(place))
    workers = graph_of(opened)
    assert isinstance(workers, IndexWorkers)
    process = workers.workers[0].process
    opened.search(index.store.base_vectors(np.arange(3)), 5)
    # as a group is told when the server is to stop: it still has to answer
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(0.1)
    opened.search(index.store.base_vectors(np.arange(3)), 5)
    assert process.poll() is None
    del opened, workers
    assert process.poll() == 0
