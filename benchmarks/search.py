"""Nearest neighbours: recall, build time and queries per second of the index; prints JSON.

On the vectors of a store, and on a million vectors generated from them:

    python benchmarks/search.py papers.vectors
    python benchmarks/search.py papers.vectors --grow 1000000

A generated vector lies between two real ones that are close in a random direction, with a little
noise, so that clusters and lengths are similar to those of real vectors. Queries are generated in
the same way and are not in the store.
"""

import argparse
import json
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from graphformers.arrays import Array
from graphformers.embedding.vectors import Raw, VectorStore
from graphformers.retrieval.exact import ExactIndex
from graphformers.retrieval.index import StoreIndex
from graphformers.retrieval.usearch_index import UsearchIndex


class Grown(VectorStore):
    """A store with more vectors than its folder has."""

    def __init__(self, origin: VectorStore, vectors: Array) -> None:
        super().__init__(origin.artifact)
        self._grown = vectors
        self._no_nodes = np.zeros(0, dtype=np.int64)

    @property
    def num_base(self) -> int:
        return len(self._grown)

    def __len__(self) -> int:
        return len(self._grown)

    def base_vectors(self, nodes: Array) -> Array:
        return self._grown[nodes].astype(np.float32)

    def raw(self, nodes: Array) -> Raw:
        return Raw(self._grown[nodes])

    def changed_nodes(self) -> Array:
        return self._no_nodes

    def overtaken(self) -> Array:
        return self._no_nodes


def moved(vectors: Array, count: int, seed: int) -> Array:
    """`count` vectors between real ones."""
    draw = np.random.default_rng(seed)
    # Vectors that are close in a random direction are neighbours in this order.
    order = np.argsort(vectors @ draw.normal(size=vectors.shape[1]), kind="stable")
    first = draw.integers(0, len(vectors) - 20, count)
    second = first + draw.integers(1, 20, count)
    share = draw.uniform(0, 0.5, (count, 1)).astype(np.float32)
    result = np.empty((count, vectors.shape[1]), dtype=np.float32)
    spread = vectors.std(0) * 0.1
    for start in range(0, count, 100_000):
        part = slice(start, min(start + 100_000, count))
        one, other = vectors[order[first[part]]], vectors[order[second[part]]]
        noise = draw.standard_normal(one.shape, dtype=np.float32) * spread
        result[part] = (1 - share[part]) * one + share[part] * other + noise
    return result


def measure(store: VectorStore, queries: Array, widths: list[int]) -> dict[str, Any]:
    started = time.perf_counter()
    index = UsearchIndex.make(store)
    built = time.perf_counter() - started
    started = time.perf_counter()
    again = UsearchIndex.load(store)
    opened = time.perf_counter() - started
    assert again is not None
    started = time.perf_counter()
    truth = StoreIndex(store, ExactIndex(store, is_kept=False)).search(queries, 10)
    exact = (time.perf_counter() - started) / len(queries)
    found: dict[str, Any] = {
        "vectors": store.num_base,
        "size": store.size,
        "similarity": "cosine" if store.is_cosine else "inner product",
        "build_s": round(built, 1),
        "open_s": round(opened, 2),
        "index_gb": round((store.path / "index.usearch").stat().st_size / 1e9, 3),
        "exact_queries_per_s_in_batches": round(1 / exact, 1),
        "chosen_width": index.settings.search_width,
        "recall_at_build": round(index.recall, 4),
        "widths": [],
    }
    for width in sorted({*widths, found["chosen_width"]}):
        tried = StoreIndex(store, again.with_width(width))
        started = time.perf_counter()
        hits = [tried.search(query[None], 10).nodes_QK[0] for query in queries]
        taken = time.perf_counter() - started
        right = sum(
            len(set(a.tolist()) & set(b.tolist()))
            for a, b in zip(truth.nodes_QK, hits, strict=True)
        )
        entry = {"width": width, "recall@10": round(right / truth.nodes_QK.size, 4)}
        found["widths"].append(entry | {"queries_per_s_one_by_one": round(len(queries) / taken, 1)})
    found["peak_gb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("vectors", type=Path, help="a folder of vectors")
    parser.add_argument("--grow", type=int, default=None, help="number of vectors to generate")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--widths", type=int, nargs="*", default=[64, 128, 192, 256])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # The index of the folder itself is left alone.
        origin = VectorStore.load(shutil.copytree(chosen.vectors, Path(folder) / "a.vectors"))
        real = origin.base_vectors(np.arange(origin.num_base))
        vectors = real if chosen.grow is None else moved(real, chosen.grow, 1)
        store = Grown(origin, vectors)
        print(json.dumps(measure(store, moved(real, chosen.queries, 2), chosen.widths)))


if __name__ == "__main__":
    main()
