"""A store after many single edits: writes, searches, and opening it; prints JSON.

    python benchmarks/store.py --nodes 100000 --edits 100000

A base of random vectors gets further nodes one by one, each with a text and some links, without
compaction. Vectors and states are random, so that only the store is measured. Times of the first
and the last thousand writes are compared, as are searches after the first thousand and at the end.
Another process opens the store then.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from graphformers.arrays import Array, save_array
from graphformers.artifact import write_artifact
from graphformers.embedding.database import EditWriter
from graphformers.embedding.edits import Edits
from graphformers.embedding.settings import CompactionSettings
from graphformers.embedding.shards import bounds, shard_name
from graphformers.embedding.states import StatesKey
from graphformers.embedding.update import Updater
from graphformers.embedding.vectors import (
    FIRST_BASE,
    KIND,
    VERSION,
    FolderLock,
    VectorStore,
    locked,
)
from graphformers.graph.edited import EditedGraph
from graphformers.graph.interop import build_graph
from graphformers.retrieval.index import StoreIndex

SHARD = 4096
# Edits at either end that are compared, and searches.
COMPARED = 1000


class SyntheticUpdater(Updater):
    """Gives nodes random vectors and states."""

    def __init__(self, store: VectorStore, lock: FolderLock) -> None:
        # No model, which the constructor would compare with the store.
        self.store, self._lock, self._limits = store, lock, CompactionSettings()
        self._writer: EditWriter | None = None
        self._draw = np.random.default_rng(1)

    def encode(self, graph: EditedGraph, reread: Array, centers: Array) -> tuple[Array, Array, int]:
        shape, size = self.store.settings["state_shape"], self.store.size
        states = self._draw.normal(size=(len(reread), *shape)).astype(np.float16)
        vectors = self._draw.normal(size=(len(centers), size)).astype(np.float32)
        return states, vectors, len(reread)


def make_store(path: Path, nodes: int, links: int, size: int, layers: int) -> None:
    """Writes a base of random vectors."""
    draw = np.random.default_rng(0)
    table = pa.table(
        {"id": [f"p{i}" for i in range(nodes)], "text": [f"text of node {i}" for i in range(nodes)]}
    )
    ends = draw.integers(0, nodes, (nodes * links // 2, 2))
    ends = ends[ends[:, 0] != ends[:, 1]]
    columns = {
        name: [f"p{i}" for i in side]
        for name, side in zip(("source", "target"), ends.T, strict=True)
    }
    graph = build_graph(table, columns)
    key = StatesKey("synthetic", "synthetic", 32, "float16")
    with write_artifact(path, KIND, VERSION) as draft:
        graph.save(draft.path(FIRST_BASE) / "graph")
        hashes = []
        for shard, (start, stop) in enumerate(bounds(nodes, SHARD)):
            count = stop - start
            arrays = {
                "vectors": draw.normal(size=(count, size)).astype(np.float32),
                "states": draw.normal(size=(count, layers, size)).astype(np.float16),
            }
            hashes.append(graph.text_hash(start, stop))
            for kind, array in arrays.items():
                place = draft.path(FIRST_BASE) / shard_name(kind, shard)
                place.parent.mkdir(exist_ok=True)
                save_array(place, array)
        draft.settings = {
            "base": FIRST_BASE,
            "method": "graphformers",
            "similarity": "cosine",
            "hidden_size": size,
            "num_neighbors": 5,
            "seed": 42,
            "precision": "float32",
            "shard_size": SHARD,
            "compute": "float32",
            "key": asdict(key),
            "state_shape": [layers, size],
            "states": {"key": asdict(key), "text_hashes": hashes},
        }
        draft.summary = {"nodes": nodes}
        draft.parents = {
            role: {"fingerprint": "synthetic", "path": ""} for role in ("model", "graph")
        }


def one_edit(number: int, nodes: int, links: int, draw: np.random.Generator) -> Edits:
    """A new node with links to nodes of the base."""
    id = f"new {number}"
    table = pa.table(
        {
            "id": pa.array([id], pa.large_string()),
            "text": pa.array([f"text of node {id}"], pa.large_string()),
        }
    )
    others = dict.fromkeys(draw.integers(0, nodes, links).tolist())
    return Edits(table, tuple((id, f"p{other}", None) for other in others))


def search_times(index: StoreIndex, count: int) -> Array:
    """Milliseconds of single searches for vectors of nodes."""
    draw, times = np.random.default_rng(2), []
    nodes = draw.choice(index.store.graph.nodes, count)
    for node in nodes.tolist():
        query = index.store.raw(np.array([node])).floats()
        started = time.perf_counter()
        index.search(query, 11, are_nodes=True)
        times.append(1000 * (time.perf_counter() - started))
    return np.array(times)


def measure(path: Path, edits: int, links: int) -> dict[str, Any]:
    """Milliseconds of writes and searches."""
    draw, times = np.random.default_rng(3), []
    with locked(path) as lock:
        updater = SyntheticUpdater(VectorStore.load(path), lock)
        index, nodes = StoreIndex.open(updater.store), updater.store.num_base
        searches = []
        for number in range(edits):
            edit = one_edit(number, nodes, links, draw)
            started = time.perf_counter()
            updater.apply(edit, compact=False)
            index = index.on(updater.store)
            times.append(1000 * (time.perf_counter() - started))
            if number + 1 in (COMPARED, edits):
                search_times(index, 10)
                searches.append(search_times(index, COMPARED))
        updater.close()
    first, last = np.median(times[:COMPARED]), np.median(times[-COMPARED:])
    near, far = np.quantile(searches[0], 0.99), np.quantile(searches[-1], 0.99)
    return {
        "write_ms": {"first": round(first, 3), "last": round(last, 3)},
        "write_ratio": round(last / first, 3),
        "search_p99_ms": {"first": round(near, 3), "last": round(far, 3)},
        "search_ratio": round(far / near, 3),
        "edit_mb": round(updater.store.commit.bytes / 1e6, 1),
        "database_mb": round(updater.store.database.path.stat().st_size / 1e6, 1),
        "index": index.base.name,
    }


def opened(path: Path) -> dict[str, Any]:
    """Seconds to open a store, and the memory of the process."""
    started, worked = time.perf_counter(), time.process_time()
    store = VectorStore.load(path)
    seconds, cpu = time.perf_counter() - started, time.process_time() - worked
    # What getrusage says may be the memory of the process that started this one.
    status = Path("/proc/self/status").read_text()
    memory = int(status.split("VmHWM:")[1].split()[0]) / 1024
    return {
        "nodes": len(store),
        "open_s": round(seconds, 3),
        "open_cpu_s": round(cpu, 3),
        "open_mb": round(memory, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=100_000, help="nodes of the base")
    parser.add_argument("--edits", type=int, default=100_000, help="nodes added one by one")
    parser.add_argument("--links", type=int, default=1, help="links of every new node")
    parser.add_argument("--size", type=int, default=384, help="numbers of a vector")
    parser.add_argument("--layers", type=int, default=5, help="states of a node")
    parser.add_argument("--folder", type=Path, default=None, help="where the store is made")
    parser.add_argument("--open", type=Path, default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.open is not None:
        print(json.dumps(opened(chosen.open)))
        return
    folder = Path(tempfile.mkdtemp(dir=chosen.folder))
    try:
        path = folder / "some.vectors"
        make_store(path, chosen.nodes, chosen.links, chosen.size, chosen.layers)
        result = measure(path, chosen.edits, chosen.links)
        done = subprocess.run(
            [sys.executable, __file__, "--open", str(path)], capture_output=True, check=True
        )
        about = {name: getattr(chosen, name) for name in ("nodes", "edits", "links", "size")}
        print(json.dumps({"base": about, **result, "opened": json.loads(done.stdout)}))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
