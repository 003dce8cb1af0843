"""Full filtered ranking of millions of nodes in a generated graph; prints JSON.

    python benchmarks/ranking.py --nodes 5000000 --anchors 2000      # on a CPU
    python benchmarks/ranking.py --nodes 5000000 --anchors 100000    # on a GPU

Vectors are random float32 in a memory-mapped file, links are random. The reported memory is the
peak of the process without the vectors, whose pages the system may drop at any time.
"""

import argparse
import json
import resource
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from graphformers.arrays import compressed_rows, edge_keys
from graphformers.evaluation.ranking import rank_all
from graphformers.evaluation.scores import VectorScores
from graphformers.graph.textgraph import TextGraph
from graphformers.model.compute import choose_device


def make_graph(num_nodes: int, num_pairs: int) -> TextGraph:
    """A graph without texts, which ranking does not use."""
    draw = np.random.default_rng(0)
    ends = draw.integers(0, num_nodes, (2, num_pairs)).astype(np.int32)
    indptr, indices = compressed_rows(
        num_nodes, edge_keys(ends[0], ends[1]), edge_keys(ends[1], ends[0])
    )
    return TextGraph(pa.table({}), np.zeros(0, dtype=np.uint64), indptr, indices, ends)


def make_vectors(path: Path, num_nodes: int, size: int) -> np.ndarray:  # type: ignore[type-arg]
    """(num_nodes, size) float32, in a memory-mapped file that does not count as memory."""
    draw = np.random.default_rng(1)
    with path.open("wb") as file:
        for start in range(0, num_nodes, 100_000):
            file.write(
                draw.standard_normal((min(100_000, num_nodes - start), size), dtype=np.float32).data
            )
    return np.memmap(path, dtype=np.float32, mode="r", shape=(num_nodes, size))


class Watch:
    """Measures the peak of the process's anonymous memory, without pages of mapped files."""

    def __init__(self) -> None:
        self.most, self.is_over = 0, threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self.is_over.wait(0.02):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    self.most = max(self.most, int(line.split()[1]))

    def __enter__(self) -> "Watch":
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.is_over.set()
        self.thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=5_000_000)
    parser.add_argument("--anchors", type=int, default=2000)
    parser.add_argument("--size", type=int, default=384, help="numbers of a vector")
    parser.add_argument("--folder", type=Path, default=None, help="where the file of vectors goes")
    parser.add_argument("--device", default=choose_device())
    chosen = parser.parse_args()
    graph = make_graph(chosen.nodes, 4 * chosen.nodes)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        vectors = make_vectors(Path(folder) / "vectors.f32", chosen.nodes, chosen.size)
        linked = np.flatnonzero(graph.degrees() > 0)
        anchors = np.random.default_rng(2).choice(linked, chosen.anchors)
        pairs = np.stack([anchors, graph.indices[graph.indptr[anchors]]], 1)
        with Watch() as watch:
            started = time.perf_counter()
            scorer = VectorScores(vectors, device=chosen.device)
            loaded = time.perf_counter()
            ranks = rank_all(scorer, graph, pairs)
            done = time.perf_counter()
    found = {
        "nodes": chosen.nodes,
        "anchors": chosen.anchors,
        "size": chosen.size,
        "device": torch.cuda.get_device_name() if chosen.device == "cuda" else "CPU",
        "check_and_load_s": round(loaded - started, 2),
        "ranking_s": round(done - loaded, 2),
        "scores_per_s": round(chosen.nodes * chosen.anchors / (done - loaded)),
        "tflops": round(
            2 * chosen.nodes * chosen.anchors * chosen.size / (done - loaded) / 1e12, 3
        ),
        "own_memory_gib": round(watch.most / 2**20, 2),
        "peak_rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "gpu_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)
        if chosen.device == "cuda"
        else None,
        "mean_better": float(ranks.better.mean()),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
