"""Speed of training steps on real texts, compared with the 2021 code; prints JSON.

    python benchmarks/train.py arxiv.split debian.split --tokenizer tokenizer.json --reference
      reference.jsonl

Models have the shape of BERT-base or MiniLM and random weights; speed does not depend on them.
Steps are those of the first stage of a run: sampling, masking, packing in worker processes,
bfloat16, gradients through neighbours, dropout 0.1, all parameters trained by Adam. After warm-up
steps, in which layers are compiled, a number of steps is measured by the wall clock. `--reference`
holds the results of the 2021 code on the same GPU (one JSON object per line, with "what":
"reference train", "graph", "batch", "pairs_per_s" and "peak_gib").

`--profile STEPS` instead prints milliseconds per step of the GPU's kernels (on a CPU, of torch's
operations), the longest first.

Useful work counts real tokens only: the forward pass as in encode.py, and twice that for the
backward pass. The ceiling is one large matrix product in bfloat16.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from encode import SHAPES, matmul_ceiling

from graphformers.batching.tokens import Tokenizer
from graphformers.model.compute import choose_device
from graphformers.model.config import ModelConfig
from graphformers.model.encoder import GraphFormers
from graphformers.splits.split import LinkSplit
from graphformers.training.batches import BatchCounts
from graphformers.training.checkpoint import RecentSteps
from graphformers.training.run import TrainingRun
from graphformers.training.settings import TrainConfig
from graphformers.training.trainer import Trainer


def make_trainer(
    split: LinkSplit,
    tokenizer: Tokenizer,
    shape: str,
    max_tokens: int,
    method: str,
    config: TrainConfig,
) -> Trainer:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": tokenizer.vocab_size,
        "max_positions": 512,
        "max_tokens": max_tokens,
        **SHAPES[shape],
    }
    model = GraphFormers(ModelConfig(method=method, **sizes), tokenizer).to(choose_device())
    return Trainer(model, split, config)


def useful_flops(counts: BatchCounts, lengths: tuple[float, float], shape: str) -> float:
    """FLOPs of the matrix products of steps, in the forward pass and twice that in the backward.

    Neighbours go through one layer less than centres; in a text's last layer only [CLS] has queries
    and an MLP.
    """
    size, layers, inner = (
        SHAPES[shape][name] for name in ("hidden_size", "num_layers", "intermediate_size")
    )
    # the means of a text's number of tokens and of its square
    mean, square = lengths
    total = 0.0
    for nodes, depth in ((2 * counts.anchors, layers), (counts.encoded_neighbors, layers - 1)):
        whole = 2 * mean * (4 * size * size + 2 * size * inner) + 4 * square * size
        last = (
            2 * mean * 2 * size * size + 2 * (2 * size * size + 2 * size * inner) + 4 * mean * size
        )
        total += nodes * ((depth - 1) * whole + last)
    return 3 * total


def measure(run: TrainingRun, shape: str, warmup: int, steps: int) -> dict[str, Any]:
    run.model.train()
    started = time.perf_counter()
    for _ in range(warmup):
        run.step()
    run.wait()
    compiled = time.perf_counter() - started
    on_gpu = run.model.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    run.state.recent = RecentSteps()
    started = time.perf_counter()
    for _ in range(steps):
        run.step()
    run.wait()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    counts, recent = run.state.recent.counts, run.state.recent
    texts = counts.encoded_neighbors + 2 * counts.anchors
    all_lengths = run.loader.maker.tokens.lengths(
        torch.arange(run.split.graph.num_nodes).numpy(), run.model.config.max_tokens
    )
    mean = counts.tokens / texts
    square = (
        float((all_lengths.astype(float) ** 2).mean()) * (mean / float(all_lengths.mean())) ** 2
    )
    return {
        "pairs_per_s": round(counts.pairs / seconds, 1),
        "ms_per_step": round(1000 * seconds / steps, 2),
        "useful_tflops": round(useful_flops(counts, (mean, square), shape) / seconds / 1e12, 1),
        "data_wait": round(recent.data_wait / seconds, 4),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if on_gpu else None,
        "tokens_per_text": round(mean, 1),
        "neighbors_saved": round(1 - counts.encoded_neighbors / max(counts.neighbors, 1), 3),
        "rows_full": round(counts.tokens / counts.token_slots, 3),
        "warmup_s": round(compiled, 1),
        "steps": steps,
    }


def profile(run: TrainingRun, warmup: int, steps: int) -> dict[str, Any]:
    """Milliseconds per step of each operation, the longest first, and of the whole step."""
    on_gpu = run.model.device.type == "cuda"
    activities = [
        torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU
    ]
    run.model.train()
    for _ in range(warmup):
        run.step()
    run.wait()
    with torch.profiler.profile(activities=activities) as found:
        started = time.perf_counter()
        for _ in range(steps):
            run.step()
        run.wait()
        seconds = time.perf_counter() - started
    taken = [
        (each.self_device_time_total if on_gpu else each.self_cpu_time_total, each.count, each.key)
        for each in found.key_averages()
    ]
    rows = [
        {
            "what": key[:120],
            "ms": round(time_us / 1000 / steps, 3),
            "calls": round(count / steps, 1),
        }
        for time_us, count, key in sorted(taken, reverse=True)[:40]
    ]
    return {
        "wall_ms": round(1000 * seconds / steps, 2),
        "device_ms": round(sum(t for t, _, _ in taken) / 1000 / steps, 2),
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "splits",
        type=Path,
        nargs="+",
        help="NAME.split folders; texts of NAME debian… are cut at 64 tokens, others at 32",
    )
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--shape", choices=[*SHAPES, "both"], default="both")
    parser.add_argument("--method", default="graphformers")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--profile", type=int, help="profile this number of steps instead")
    parser.add_argument(
        "--set", type=json.loads, default={}, metavar="JSON", help="settings of TrainConfig"
    )
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(options.tokenizer)
    ceiling = round(matmul_ceiling(torch.device("cuda")), 1) if torch.cuda.is_available() else None
    reference = {}
    for line in options.reference.read_text().splitlines() if options.reference else []:
        entry = json.loads(line)
        if entry.get("what") == "reference train":
            reference[entry["graph"], entry["batch"]] = entry
    for path in options.splits:
        split, name = LinkSplit.load(path), path.name.removesuffix(".split")
        for shape, batch in (("base", 240), ("small", 512)):
            if options.shape not in (shape, "both"):
                continue
            config = TrainConfig(
                **{"batch_size": batch, "learning_rate": 1e-6, "max_norm": 1.0, "workers": 8}
                | options.set
            )
            trainer = make_trainer(
                split, tokenizer, shape, 64 if "debian" in name else 32, options.method, config
            )
            found = {
                "graph": name,
                "shape": shape,
                "method": options.method,
                "batch": config.batch_size,
                **options.set,
            }
            if options.profile:
                with trainer.start() as run:
                    found |= profile(run, options.warmup, options.profile)
                print(json.dumps(found), flush=True)
                continue
            with trainer.start() as run:
                found |= measure(run, shape, options.warmup, options.steps)
            found["ceiling_tflops"] = ceiling
            theirs = reference.get((name, config.batch_size)) if shape == "base" else None
            if theirs:
                found["reference"] = {key: theirs[key] for key in ("pairs_per_s", "peak_gib")}
                found["times_reference"] = round(found["pairs_per_s"] / theirs["pairs_per_s"], 2)
            print(json.dumps(found), flush=True)
            del trainer


if __name__ == "__main__":
    main()
