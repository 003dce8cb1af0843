"""Speed of packed rows compared with padding, and the paper's Table 5; prints JSON.

BERT-base in bfloat16 on a GPU, MiniLM's shape in float32 on a CPU, and short texts on a CPU:

    python benchmarks/encode.py --texts arxiv9196/nodes.parquet --tokenizer tokenizer.json
    python benchmarks/encode.py --texts arxiv9196/nodes.parquet --tokenizer tokenizer.json --small
    python benchmarks/encode.py --tokenizer tokenizer.json --small --max-tokens 32 128 512

Weights are random; speed does not depend on them. All variants run the same compiled layers in one
process, on batches that are already on the device:

- packed: rows of 128 tokens, several nodes per row;
- padded: one node per row, as wide as the longest of the batch, in the order of the file, as the
  2021 code pads;
- sorted: as padded, with nodes sorted by length first.

Useful work counts real tokens only: for each layer the projections, the MLP and attention over the
node's own tokens; in the last layer keys and values of all tokens, the rest for [CLS] only.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import torch

from graphformers.batching.packing import (
    NetworkInputs,
    PackedBatch,
    Packer,
    pack_texts,
    to_device,
)
from graphformers.batching.tokens import TokenCache, Tokenizer, tokenize
from graphformers.compare.efficiency import TOKENS, ready, seconds, table_5
from graphformers.model.config import ModelConfig
from graphformers.model.encoder import GraphFormers

SHAPES = {
    "base": {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "intermediate_size": 3072},
    "small": {"hidden_size": 384, "num_layers": 6, "num_heads": 12, "intermediate_size": 1536},
}


def make_model(
    shape: str,
    tokenizer: Tokenizer,
    device: torch.device,
    method: str = "graphformers",
    max_tokens: int = 32,
) -> GraphFormers:
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        max_positions=512,
        method=method,
        max_tokens=max_tokens,
        **SHAPES[shape],
    )
    torch.manual_seed(0)
    return ready(GraphFormers(config, tokenizer).to(device)).compile_layers()


def matmul_ceiling(device: torch.device) -> float:
    """TFLOP/s of one large matrix product in the precision used."""
    size, kind = (8192, torch.bfloat16) if device.type == "cuda" else (2048, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    return 2 * size**3 / seconds(lambda: a @ b, device, 10) / 1e12


def useful_flops(lengths: np.ndarray[Any, Any], shape: str) -> float:
    size, layers, inner = (
        SHAPES[shape][name] for name in ("hidden_size", "num_layers", "intermediate_size")
    )
    tokens, squares, nodes = float(lengths.sum()), float((lengths**2).sum()), len(lengths)
    full = tokens * 2 * (4 * size**2 + 2 * size * inner) + 4 * squares * size
    last = (
        tokens * 2 * 2 * size**2 + nodes * 2 * (2 * size**2 + 2 * size * inner) + 4 * tokens * size
    )
    return (layers - 1) * full + last


def make_batches(
    cache: TokenCache, nodes: np.ndarray[Any, Any], size: int, variant: str, device: torch.device
) -> list[PackedBatch]:
    packer = Packer(32, 0, NetworkInputs())
    batches = []
    for start in range(0, len(nodes), size):
        part = nodes[start : start + size]
        if variant == "packed":
            batches.append(packer.pack(cache, part))
        else:
            flat, indptr = cache.read(part, 32)
            batches.append(pack_texts(flat, indptr, int(np.diff(indptr).max()), 1, 0))
    return [to_device(batch, device) for batch in batches]


def compare_padding(
    cache: TokenCache, tokenizer: Tokenizer, shape: str, device: torch.device, size: int, count: int
) -> dict[str, Any]:
    nodes = np.random.default_rng(0).permutation(len(cache.offsets) - 1)[:count]
    lengths = cache.lengths(nodes, 32)
    model = make_model(shape, tokenizer, device)
    results: dict[str, Any] = {"nodes": len(nodes), "mean_tokens": float(lengths.mean())}
    for variant in ("packed", "padded", "sorted"):
        # Every variant is compiled separately.
        torch._dynamo.reset()
        ordered = nodes[np.argsort(lengths, kind="stable")] if variant == "sorted" else nodes
        batches = make_batches(cache, ordered, size, variant, device)

        def work(batches: list[PackedBatch] = batches) -> None:
            with torch.inference_mode():
                for batch in batches:
                    model.network.text.states(batch, model.config.num_layers)

        taken = seconds(work, device, 5)
        results[variant] = {
            "nodes_per_s": len(nodes) / taken,
            "useful_tflops": useful_flops(lengths, shape) / taken / 1e12,
        }
        results[variant]["fullness"] = float(np.mean([batch.fullness() for batch in batches]))
    results["packed_over_padded"] = (
        results["packed"]["nodes_per_s"] / results["padded"]["nodes_per_s"]
    )
    results["packed_over_sorted"] = (
        results["packed"]["nodes_per_s"] / results["sorted"]["nodes_per_s"]
    )
    started = time.perf_counter()
    make_batches(cache, nodes, size, "packed", torch.device("cpu"))
    results["packing_nodes_per_s"] = len(nodes) / (time.perf_counter() - started)
    return results


def few_words(
    tokenizer: Tokenizer, shape: str, device: torch.device, most: list[int], count: int = 2000
) -> list[dict[str, Any]]:
    """Texts/s of `encode`, not compiled, for several values of max_tokens.

    Texts are short, or short with one long text in 50.
    """
    short = [f"short {i}" for i in range(count)]
    mixed = [
        "word " * 150 if i % 50 == 0 else f"a title of some eight words number {i}"
        for i in range(count)
    ]
    found = []
    for max_tokens in most:
        sizes = {
            "vocab_size": tokenizer.vocab_size,
            "max_positions": 512,
            "max_tokens": max_tokens,
            **SHAPES[shape],
        }
        model = GraphFormers(ModelConfig(method="plm", **sizes), tokenizer).eval().to(device)
        row: dict[str, Any] = {"max_tokens": max_tokens}
        for name, texts in (("short", short), ("mixed", mixed)):
            model.encode(texts[:64])
            started = time.perf_counter()
            model.encode(texts)
            row[f"{name}_texts_per_s"] = round(count / (time.perf_counter() - started), 1)
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, help="a Parquet file with a column text")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument(
        "--small", action="store_true", help="MiniLM's shape instead of BERT-base's"
    )
    parser.add_argument(
        "--nodes",
        type=int,
        default=None,
        help="number of nodes to encode; all on a GPU, 2,000 on a CPU",
    )
    parser.add_argument(
        "--neighbours",
        type=int,
        nargs="*",
        default=None,
        help="neighbours per centre in the Table 5 part",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        nargs="+",
        help="encode short texts with models of these values of max_tokens",
    )
    chosen = parser.parse_args()
    if not chosen.texts and not chosen.max_tokens:
        parser.error("--texts FILE is needed, or --max-tokens")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    shape = "small" if chosen.small else "base"
    tokenizer = Tokenizer.from_file(chosen.tokenizer)
    if chosen.max_tokens:
        print(json.dumps(few_words(tokenizer, shape, device, chosen.max_tokens), indent=1))
        return
    texts = parquet.read_table(chosen.texts, columns=["text"])["text"].to_pylist()
    cache = tokenize(texts, tokenizer)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "torch": torch.__version__,
        "shape": shape,
    }
    result["ceiling_tflops"] = matmul_ceiling(device)
    count = chosen.nodes or (len(texts) if on_gpu else 2000)
    result["padding"] = compare_padding(
        cache, tokenizer, shape, device, 4096 if on_gpu else 256, count
    )
    result["packed_share_of_ceiling"] = (
        result["padding"]["packed"]["useful_tflops"] / result["ceiling_tflops"]
    )
    counts = (
        chosen.neighbours
        if chosen.neighbours is not None
        else ([3, 5, 10, 20, 50, 100, 200] if on_gpu else [5])
    )
    torch._dynamo.reset()
    models = {
        method: make_model(shape, tokenizer, device, method, TOKENS)
        for method in ("graphformers", "max")
    }
    result["table_5"] = table_5(models, counts)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
