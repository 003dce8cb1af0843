"""Time to import, load, sample and tokenise a graph of five million titles; prints JSON.

    python benchmarks/graph_scale.py                     # 5 million nodes, 40 million edges, CSV
    python benchmarks/graph_scale.py --nodes 1000000 --edges 8000000 --format parquet --folder
      /tmp/million --keep

    python benchmarks/graph_scale.py --trees OLD . --times 3   # two checkouts import in turns

Titles are drawn from the words of the standard library's docstrings by Zipf's law; the degrees
follow a power law. `graphformers import` runs in a separate process, whose peak memory is measured.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from graphformers.batching.tokens import BATCH, Tokenizer
from graphformers.graph.importers.python import Library, standard_library_files
from graphformers.graph.sampling import NeighborSampler
from graphformers.graph.textgraph import TextGraph
from graphformers.model.backbones import find_backbone, read_tokenizer

BLOCK = 500_000


def words_of_python() -> list[str]:
    """The words of the standard library's docstrings, the most frequent first."""
    library = Library()
    for name, path in standard_library_files():
        library.add_module(name, path)
    counts = Counter(
        word
        for entry in library.entries.values()
        for word in (entry.text or "").lower().split()
        if word.isalpha()
    )
    return [word for word, _ in counts.most_common()]


def zipf_words(draw: np.random.Generator, vocabulary: pa.Array, count: int) -> pa.Array:
    weights = 1 / np.arange(10, len(vocabulary) + 10)
    places = np.searchsorted(np.cumsum(weights) / weights.sum(), draw.random(count))
    return vocabulary.take(pa.array(np.minimum(places, len(vocabulary) - 1)))


def node_batches(num_nodes: int, seed: int) -> Iterator[pa.Table]:
    """Tables of id and title; titles have 4 to 14 words."""
    draw = np.random.default_rng(seed)
    vocabulary = pa.array(words_of_python())
    for start in range(0, num_nodes, BLOCK):
        count = min(BLOCK, num_nodes - start)
        lengths = draw.integers(4, 15, count)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        titles = pc.binary_join(
            pa.ListArray.from_arrays(offsets, zipf_words(draw, vocabulary, int(offsets[-1]))), " "
        )
        yield pa.table({"id": node_ids(np.arange(start, start + count)), "title": titles})


def node_ids(nodes: np.ndarray[Any, Any]) -> pa.Array:
    """Ids of about ten digits, in no order: numbers multiplied by an odd constant."""
    return pa.array(nodes.astype(np.uint64) * np.uint64(2654435761) % np.uint64(2**33)).cast(
        pa.string()
    )


def edge_batches(num_nodes: int, num_edges: int, seed: int) -> Iterator[pa.Table]:
    """Tables of src and dst: sources uniform, targets by a power law, as citations are."""
    draw = np.random.default_rng(seed + 1)
    shuffled = draw.permutation(num_nodes)
    for start in range(0, num_edges, BLOCK):
        count = min(BLOCK, num_edges - start)
        popular = shuffled[(num_nodes * draw.random(count) ** 3).astype(np.int64)]
        yield pa.table(
            {"src": node_ids(draw.integers(0, num_nodes, count)), "dst": node_ids(popular)}
        )


def write_tables(path: Path, batches: Iterator[pa.Table]) -> None:
    first = next(batches)
    opener = parquet.ParquetWriter if path.suffix == ".parquet" else arrow_csv.CSVWriter
    with opener(str(path), first.schema) as writer:
        writer.write_table(first)
        for batch in batches:
            writer.write_table(batch)


def make_files(
    folder: Path, num_nodes: int, num_edges: int, suffix: str, seed: int = 0
) -> tuple[Path, Path]:
    nodes, edges = folder / f"nodes.{suffix}", folder / f"edges.{suffix}"
    write_tables(nodes, node_batches(num_nodes, seed))
    write_tables(edges, edge_batches(num_nodes, num_edges, seed))
    return nodes, edges


def run_import(
    nodes: Path, edges: Path, output: Path, tree: Path | None = None
) -> dict[str, float]:
    """Seconds and peak memory of `graphformers import`, of this or another checkout."""
    started = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "graphformers",
        "import",
        str(nodes),
        str(edges),
        "-o",
        str(output),
    ]
    environment = os.environ | ({"PYTHONPATH": str(tree.resolve())} if tree else {})
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    peak, done = 0, 0
    while not done:
        # ru_maxrss would count the memory of this process before the other program starts in it.
        peak = max(peak, peak_bytes(process.pid))
        time.sleep(0.05)
        done, status, usage = os.wait4(process.pid, os.WNOHANG)
    assert status == 0, "the import failed"
    return {
        "import_s": time.perf_counter() - started,
        "import_cpu_s": usage.ru_utime + usage.ru_stime,
        "import_peak_gb": peak / 1e9,
    }


def peak_bytes(number: int) -> int:
    """The peak of the resident memory of a process so far; 0 if it has ended."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{number}/status").read_text())
    return 1024 * int(found[1]) if found else 0


def compare_trees(
    nodes: Path, edges: Path, folder: Path, trees: list[Path], times: int
) -> dict[str, Any]:
    """Imports by two checkouts in turns; the ratios are those of the second to the first."""
    rounds = []
    for number in range(times):
        found = []
        for i, tree in enumerate(trees):
            output = folder / f"turn{number}-{i}.graph"
            found.append(run_import(nodes, edges, output, tree))
            shutil.rmtree(output)
        rounds.append(found)
    names = rounds[0][0]
    return {
        "rounds": rounds,
        "ratios": {
            name: [round(new[name] / old[name], 3) for old, new in rounds] for name in names
        },
    }


def time_load(path: Path) -> float:
    script = f"""
import time
from graphformers.graph.textgraph import TextGraph
started = time.perf_counter()
graph = TextGraph.load({str(path)!r})
middle = graph.num_nodes // 2
text, neighbors = graph.texts[middle].as_py(), graph.neighbors_of(middle)
print(time.perf_counter() - started)
"""
    return float(
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout
    )


def time_sampling(graph: TextGraph) -> dict[str, float]:
    sampler = NeighborSampler(graph.indptr, graph.indices, graph.id_hashes, 5)
    draw = np.random.default_rng(0)
    times = []
    for epoch in range(60):
        centers = draw.integers(0, graph.num_nodes, 4096)
        started = time.perf_counter()
        sampler.sample(centers, epoch=epoch)
        times.append(1000 * (time.perf_counter() - started))
    return {
        "sample_4096x5_ms_median": float(np.median(times[10:])),
        "sample_4096x5_ms_p95": float(np.percentile(times[10:], 95)),
    }


def time_tokenising(graph: TextGraph, tokenizer: Tokenizer, num_texts: int) -> dict[str, float]:
    count = min(num_texts, graph.num_nodes)
    started = time.perf_counter()
    total = sum(
        len(tokenizer.encode(graph.texts[i : min(i + BATCH, count)].to_pylist())[0])
        for i in range(0, count, BATCH)
    )
    seconds = time.perf_counter() - started
    return {
        "tokenised_texts": count,
        "tokenise_texts_per_s": count / seconds,
        "tokens_per_text": total / count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=5_000_000)
    parser.add_argument("--edges", type=int, default=40_000_000)
    parser.add_argument("--format", choices=["csv", "parquet"], default="csv")
    parser.add_argument("--folder", type=Path, help="where to work (a temporary folder by default)")
    parser.add_argument("--keep", action="store_true", help="leave files and graph in the folder")
    parser.add_argument(
        "--tokenise",
        type=int,
        default=500_000,
        help="how many texts to tokenise for the rate; 0 for none",
    )
    parser.add_argument("--trees", type=Path, nargs=2, help="checkouts that import in turns")
    parser.add_argument("--times", type=int, default=3, help="rounds of both checkouts")
    chosen = parser.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="graph_scale"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        started = time.perf_counter()
        nodes, edges = make_files(folder, chosen.nodes, chosen.edges, chosen.format)
        result: dict[str, Any] = {
            "nodes": chosen.nodes,
            "edges": chosen.edges,
            "format": chosen.format,
        }
        result |= {
            "cores": os.cpu_count(),
            "files_gb": (nodes.stat().st_size + edges.stat().st_size) / 1e9,
        }
        result["make_files_s"] = time.perf_counter() - started
        if chosen.trees:
            result |= compare_trees(nodes, edges, folder, chosen.trees, chosen.times)
            print(json.dumps(result, indent=1))
            return
        result |= run_import(nodes, edges, folder / "scale.graph")
        result["load_s"] = time_load(folder / "scale.graph")
        graph = TextGraph.load(folder / "scale.graph")
        result |= {"pairs": graph.num_pairs, "max_degree": int(graph.degrees().max())}
        result["graph_gb"] = (
            sum(file.stat().st_size for file in (folder / "scale.graph").iterdir()) / 1e9
        )
        result |= time_sampling(graph)
        if chosen.tokenise:
            result |= time_tokenising(
                graph, read_tokenizer(find_backbone("minilm")), chosen.tokenise
            )
        print(
            json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in result.items()})
        )
    finally:
        if not chosen.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
