"""Embedding whole graphs, from a tokenised graph folder to a folder of vectors; prints JSON.

One million generated titles with BERT-base in bfloat16 on a GPU, five million with the states in
memory alone, and MiniLM's shape in float32 on a CPU:

    python benchmarks/embed.py --tokenizer tokenizer.json
    python benchmarks/embed.py --tokenizer tokenizer.json --nodes 5000000 --only memory
    python benchmarks/embed.py --tokenizer tokenizer.json --nodes 2000 --small

What adding 100 papers costs with MiniLM, and the same graph beside sentence-transformers:

    python benchmarks/embed.py --papers arxiv9196
    python benchmarks/embed.py --papers arxiv9196 --beside

The graph is the one that benchmarks/graph_scale.py makes, with eight links a node (--links 64 where
more neighbours are to be read than most nodes would have); weights are random, speed does not
depend on them. Variants:

- memory: states stay on the device between the two phases and are dropped;
- written: states stay on the device and are written beside the vectors as well;
- disk: states are written and read back from disk;
- without: every batch reads its centres and their distinct neighbours from scratch, as encoding
  without stored states would.

Compiling and the first shapes are paid before the clock starts, by embedding a small graph in the
same way. Useful work counts real tokens only: projections, MLP and attention of the node's own
tokens in L-1 layers (phase 1) and L layers (phase 2), the last for [CLS] alone.
"""

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from encode import SHAPES, matmul_ceiling
from graph_scale import make_files

from graphformers import (
    GraphFormers,
    ModelConfig,
    TextGraph,
    build_graph,
    embed,
    read_graph,
    update,
)
from graphformers.batching.packing import to_device
from graphformers.batching.sampling import NeighborSampler
from graphformers.batching.tokens import TokenCache, Tokenizer, graph_tokens
from graphformers.compare.efficiency import synchronize
from graphformers.embedding.plan import GPU_ROWS, GPU_TOKENS

VARIANTS: dict[str, dict[str, Any]] = {
    "memory": {"states": "memory", "keep_states": False},
    "written": {"states": "memory", "keep_states": True},
    "disk": {"states": "disk", "keep_states": True},
}


def made_graph(folder: Path, num_nodes: int, links: int, tokenizer: Tokenizer) -> TextGraph:
    """A graph folder with its tokens, of so many links a node."""
    place = folder / f"made{num_nodes}x{links}.graph"
    if not place.is_dir():
        with tempfile.TemporaryDirectory(dir=folder) as files:  # others may be made beside this one
            nodes, edges = make_files(Path(files), num_nodes, links * num_nodes, "parquet")
            read_graph(nodes, edges).save(place)
    graph = TextGraph.load(place)
    graph_tokens(graph, tokenizer)
    return graph


def flops(lengths: np.ndarray[Any, Any], shape: str, num_layers: int) -> float:
    size, inner = SHAPES[shape]["hidden_size"], SHAPES[shape]["intermediate_size"]
    tokens, squares, nodes = float(lengths.sum()), float((lengths**2).sum()), len(lengths)
    full = tokens * 2 * (4 * size**2 + 2 * size * inner) + 4 * squares * size
    last = (
        tokens * 2 * 2 * size**2 + nodes * 2 * (2 * size**2 + 2 * size * inner) + 4 * tokens * size
    )
    return (num_layers - 1) * full + last


def time_embedding(model: GraphFormers, graph: TextGraph, folder: Path, **changes: Any) -> float:
    output = folder / "out.vectors"
    for left in (output, folder / "out.vectors.embedding"):
        shutil.rmtree(left, ignore_errors=True)
    started = time.perf_counter()
    embed(model, graph, output, **changes)
    taken = time.perf_counter() - started
    shutil.rmtree(output, ignore_errors=True)
    return taken


def time_without_states(
    model: GraphFormers, graph: TextGraph, tokens: TokenCache, num_neighbors: int, count: int
) -> float:
    """Nodes/s of computing alone, batches packed before, neighbours read again in every batch."""
    on_gpu = model.device.type == "cuda"
    packer = model.packer(GPU_ROWS if on_gpu else 1)
    nodes = np.random.default_rng(0).permutation(graph.num_nodes)[:count]
    drawn = NeighborSampler(graph.indptr, graph.indices, graph.id_hashes, num_neighbors).sample(
        nodes
    )
    lengths = tokens.lengths(nodes, model.config.max_tokens).mean() * (
        1 + np.diff(drawn.indptr).mean()
    )
    size = max(1, int((GPU_TOKENS if on_gpu else 4096) / lengths))
    parts = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    batches = [
        to_device(packer.pack_neighborhoods(tokens, drawn.slice(part)), model.device)
        for part in parts
    ]
    with model.inference() as network:
        # all of them: widths that come late would be compiled within the clock
        for batch in batches:
            network(batch)
        synchronize(model.device)
        started = time.perf_counter()
        for batch in batches:
            network(batch)
        synchronize(model.device)
    return count / (time.perf_counter() - started)


def measure_made(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu, shape = device.type == "cuda", "small" if chosen.small else "base"
    tokenizer = Tokenizer.from_file(chosen.tokenizer)
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=tokenizer.vocab_size, max_positions=512, **SHAPES[shape])
    model = GraphFormers(config, tokenizer).eval().to(device)
    graph = made_graph(folder, chosen.nodes, chosen.links, tokenizer)
    tokens = graph_tokens(graph, tokenizer)
    lengths = tokens.lengths(np.arange(graph.num_nodes), config.max_tokens)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "torch": torch.__version__,
        "shape": shape,
        "nodes": graph.num_nodes,
        "links": graph.num_pairs,
        "mean_tokens": float(lengths.mean()),
        "ceiling_tflops": matmul_ceiling(device),
    }
    started = time.perf_counter()
    small = made_graph(
        folder, min(chosen.nodes, 300_000 if on_gpu else 1000), chosen.links, tokenizer
    )
    compiled = {"compile": on_gpu, "states": "memory"}
    time_embedding(model, small, folder, **compiled)
    result["warm_up_s"] = time.perf_counter() - started
    save(chosen.output, result)
    work = flops(lengths, shape, config.num_layers - 1) + flops(lengths, shape, config.num_layers)
    for name in VARIANTS if chosen.only is None else chosen.only:
        time_embedding(model, small, folder, **VARIANTS[name] | {"compile": on_gpu})
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        taken = time_embedding(model, graph, folder, **VARIANTS[name] | {"compile": on_gpu})
        result[name] = {
            "s": taken,
            "nodes_per_s": graph.num_nodes / taken,
            "useful_tflops": work / taken / 1e12,
        }
        result[name]["share_of_ceiling"] = result[name]["useful_tflops"] / result["ceiling_tflops"]
        if on_gpu:
            result[name]["gpu_gib"] = torch.cuda.max_memory_allocated() / 2**30
        save(chosen.output, result)
    result["neighbours"] = []
    for count in chosen.neighbours:
        few = min(chosen.without, graph.num_nodes)
        read = float(np.minimum(np.diff(graph.indptr), count).mean())
        row = {"neighbours": count, "read_on_average": read}
        row |= {"without_nodes_per_s": time_without_states(model, graph, tokens, count, few)}
        with_states = VARIANTS["memory"] | {"num_neighbors": count, "compile": on_gpu}
        time_embedding(model, small, folder, **with_states)
        taken = time_embedding(model, graph, folder, **with_states)
        row |= {"with_nodes_per_s": graph.num_nodes / taken}
        result["neighbours"].append(
            row | {"times_faster": row["with_nodes_per_s"] / row["without_nodes_per_s"]}
        )
        save(chosen.output, result)
    return result


def save(place: Path | None, result: dict[str, Any]) -> None:
    """What has been measured so far."""
    if place is not None:
        place.write_text(json.dumps(result, indent=1))


def measure_update(papers: Path, folder: Path, count: int, most: int | None) -> dict[str, Any]:
    """A graph of real papers without the latest `count` of a random order; then those are added."""
    nodes = parquet.read_table(papers / "nodes.parquet")
    ends = parquet.read_table(papers / "edges.parquet")
    ids = nodes["id"].to_pylist()
    order = np.random.default_rng(0).permutation(len(ids))[:most]
    late, kept = {ids[i] for i in order[:count]}, {ids[i] for i in order}
    edges = [
        (a, b)
        for a, b in zip(ends["src"].to_pylist(), ends["dst"].to_pylist(), strict=True)
        if {a, b} <= kept
    ]
    early = [(a, b) for a, b in edges if not {a, b} & late]
    chosen = np.array([i for i in sorted(order) if ids[i] not in late])
    graph = build_graph(
        nodes.take(pa.array(chosen)), [a for a, _ in early], [b for _, b in early]
    ).save(folder / "early.graph")
    model = GraphFormers.from_backbone("minilm")
    graph_tokens(graph, model.tokenizer)
    started = time.perf_counter()
    store = embed(model, graph, folder / "early.vectors")
    full = time.perf_counter() - started
    new = nodes.take(pa.array([i for i in range(len(ids)) if ids[i] in late]))
    report = update(
        store, nodes=new, edges=[pair for pair in edges if set(pair) & late], model=model
    )
    again = type(store).load(store.path)
    grown = again.graph()
    some = grown.nodes_of(sorted(late))
    some = np.unique(np.concatenate([some, *[grown.neighbors_of(int(node)) for node in some]]))
    cosines = _cosines(again.vectors(grown.ids_of(some)), model.encode_nodes(grown, some))
    return {
        "nodes": graph.num_nodes,
        "added": report.new_nodes,
        "links": report.new_links,
        "full_s": full,
        "full_nodes_per_s": graph.num_nodes / full,
        "full_forwards": 2 * graph.num_nodes,
        "update_s": report.seconds,
        "update_forwards": report.forwards,
        "share_of_forwards": report.forwards / (2 * graph.num_nodes),
        "share_of_seconds": report.seconds / full,
        "least_cosine_with_scratch": float(cosines.min()),
    }


def measure_beside(papers: Path, folder: Path, most: int | None) -> dict[str, Any]:
    """The same titles read by sentence-transformers, without any neighbours, and by us: states
    alone, and whole graph vectors.

    Everybody starts from texts: tokenising counts. Ours end on disk, theirs in memory.
    """
    from sentence_transformers import SentenceTransformer

    from graphformers.batching.tokens import tokenize
    from graphformers.model.backbones import find_backbone

    graph = read_graph(papers / "nodes.parquet", papers / "edges.parquet")
    if most is not None and most < graph.num_nodes:
        kept = np.random.default_rng(0).choice(graph.num_nodes, most, replace=False)
        inside = np.isin(graph.edges, kept).all(0)
        ends = [graph.ids_of(side[inside]) for side in graph.edges]
        graph = build_graph(graph.nodes.take(pa.array(np.sort(kept))), *ends)
    texts = graph.texts.to_pylist()
    theirs = SentenceTransformer(str(find_backbone("minilm")), device="cpu")
    theirs.max_seq_length = 32
    model = GraphFormers.from_backbone("minilm", device="cpu")
    theirs.encode(texts[:64])
    model.encode(texts[:64])
    seconds = {}
    started = time.perf_counter()
    theirs.encode(texts)
    seconds["sentence_transformers"] = time.perf_counter() - started
    started = time.perf_counter()
    model.encode_states(tokenize(texts, model.tokenizer), np.arange(len(texts)))
    seconds["plain_states"] = time.perf_counter() - started
    started = time.perf_counter()
    embed(model, graph, folder / "beside.vectors")
    seconds["graph_vectors"] = time.perf_counter() - started
    rates = {name: len(texts) / taken for name, taken in seconds.items()}
    return {
        "nodes": len(texts),
        "links": graph.num_pairs,
        "threads": torch.get_num_threads(),
        **{f"{name}_nodes_per_s": round(rate, 1) for name, rate in rates.items()},
        "plain_over_theirs": round(rates["plain_states"] / rates["sentence_transformers"], 2),
        "graph_over_theirs": round(rates["graph_vectors"] / rates["sentence_transformers"], 2),
    }


def _cosines(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = (
        (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    )
    return found


def show_stacks(seconds: float) -> None:
    """Tells every so often on stderr what each thread is doing.

    (faulthandler, which does not wait for the interpreter, crashed it while layers were compiled.)
    """
    while True:
        time.sleep(seconds)
        # without a name for a frame, which would keep what it holds until the next look
        told = [
            f"thread {number}:\n{''.join(traceback.format_stack(frame))}"
            for number, frame in sys._current_frames().items()
        ]
        print("\n".join(told), file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json")
    parser.add_argument(
        "--nodes", type=int, default=1_000_000, help="titles of the made graph, or papers to use"
    )
    parser.add_argument(
        "--small", action="store_true", help="MiniLM's shape instead of BERT-base's"
    )
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), help="which variants to run")
    parser.add_argument(
        "--neighbours",
        type=int,
        nargs="*",
        default=[],
        help="with against without states at these numbers",
    )
    parser.add_argument("--links", type=int, default=8, help="of the made graph, for each title")
    parser.add_argument(
        "--without", type=int, default=50_000, help="nodes for the rate without states"
    )
    parser.add_argument(
        "--papers",
        type=Path,
        help="a folder with nodes.parquet and edges.parquet: measure an update instead",
    )
    parser.add_argument(
        "--beside",
        action="store_true",
        help="with --papers: beside sentence-transformers, on a CPU",
    )
    parser.add_argument("--added", type=int, default=100, help="papers that the update adds")
    parser.add_argument(
        "--output",
        type=Path,
        help="a file for what has been measured so far, written after each part",
    )
    parser.add_argument(
        "--folder", type=Path, help="where to work; kept (by default a temporary folder)"
    )
    parser.add_argument(
        "--make", type=int, nargs="+", help="make graphs of so many titles in --folder, and no more"
    )
    parser.add_argument(
        "--stacks",
        type=float,
        help="seconds between two looks at where the program stands, on stderr",
    )
    chosen = parser.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="embed"))
    folder.mkdir(parents=True, exist_ok=True)
    if chosen.stacks:
        threading.Thread(target=show_stacks, args=(chosen.stacks,), daemon=True).start()
    try:
        if chosen.make:
            for count in chosen.make:
                made_graph(folder, count, chosen.links, Tokenizer.from_file(chosen.tokenizer))
        elif chosen.papers and chosen.beside:
            print(json.dumps(measure_beside(chosen.papers, folder, chosen.nodes), indent=1))
        elif chosen.papers:
            print(
                json.dumps(
                    measure_update(chosen.papers, folder, chosen.added, chosen.nodes), indent=1
                )
            )
        else:
            print(json.dumps(measure_made(chosen, folder), indent=1))
    finally:
        if chosen.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
