"""The paper's Table 5: time and memory of a mini-batch read from scratch, by number of
neighbours.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from graphformers.batching.packing import to_device
from graphformers.batching.sampling import Neighborhood
from graphformers.batching.tokens import TokenCache
from graphformers.model.compute import choose_device
from graphformers.model.encoder import GraphFormers
from graphformers.progress import progress
from graphformers.train.settings import divide_settings, settings_for

CENTERS = 32
TOKENS = 16  # of each text, special ones included
COUNTS = {"cuda": (3, 5, 10, 20, 50, 100, 200), "cpu": (3, 5, 10, 20, 50)}


def measure_efficiency(
    source: str, settings: Mapping[str, Any], device: str | None = None, counts: Sequence[int] = ()
) -> tuple[list[dict[str, Any]], str]:
    """GraphFormers and PLM+Max on a backbone, ready for inference as `encode` has them; and the
    name of what computes.

    Of the settings those of models count, but for the number of tokens, which is the paper's.
    """
    place = choose_device(device)
    models = {}
    for method in ("graphformers", "max"):
        _, changes = divide_settings(settings_for(method, settings))
        changes["max_tokens"] = TOKENS
        models[method] = ready(
            GraphFormers.from_backbone(source, method, device=str(place), **changes)
        )
    return table_5(models, counts or COUNTS.get(place.type, COUNTS["cpu"])), device_name(place)


def ready(model: GraphFormers) -> GraphFormers:
    """Without dropout; in bfloat16 and compiled on a GPU."""
    model.eval()
    return model.to(torch.bfloat16).compile_layers() if model.device.type == "cuda" else model


def table_5(models: Mapping[str, GraphFormers], counts: Sequence[int]) -> list[dict[str, Any]]:
    """32 centres, 16 tokens a node, distinct neighbours, from scratch, inference: milliseconds and
    peak memory of each model.

    On a GPU also replayed as a CUDA graph: what is left when launching kernels costs nothing.
    """
    found = []
    with progress("Measuring", len(counts) * len(models), "batches") as task:
        for count in counts:
            row: dict[str, Any] = {"neighbours": count}
            for method, model in models.items():
                row |= {f"{method}_{name}": value for name, value in _measure(model, count).items()}
                task.advance()
            found.append(row)
    return found


def _measure(model: GraphFormers, count: int) -> dict[str, float]:
    num_nodes, device = CENTERS * (1 + count), model.device
    length = TOKENS - len(model.tokenizer.prefix) - len(model.tokenizer.suffix)
    flat = np.random.default_rng(0).integers(
        model.tokenizer.vocab_size // 2, model.tokenizer.vocab_size, num_nodes * length
    )
    cache = TokenCache(
        flat, np.arange(num_nodes + 1) * length, model.tokenizer.prefix, model.tokenizer.suffix
    )
    neighborhood = Neighborhood(
        np.arange(CENTERS), np.arange(CENTERS + 1) * count, np.arange(CENTERS, num_nodes)
    )
    batch = to_device(model.packer().pack_neighborhoods(cache, neighborhood), device)

    def work() -> None:
        with torch.inference_mode():
            model.network(batch)

    if device.type != "cuda":
        return {"ms": 1000 * seconds(work, device, 3)}
    found = {"ms": 1000 * seconds(work, device, 20)}
    torch.cuda.reset_peak_memory_stats(device)
    before, own = (
        torch.cuda.memory_allocated(device),
        sum(each.nbytes for each in model.parameters()),
    )
    work()
    # other models do not count
    found["gib"] = (own + torch.cuda.max_memory_allocated(device) - before) / 2**30
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    found["graph_ms"] = 1000 * seconds(graph.replay, device, 20)
    return found


def seconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """The median time of some work that has been warmed up."""
    for _ in range(2):
        work()
    times = []
    for _ in range(repeats):
        synchronize(device)
        started = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def device_name(device: torch.device) -> str:
    """What computes, in words."""
    return (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{device.type}, {torch.get_num_threads()} threads"
    )


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
