"""Table 5 of the paper: time and memory of encoding a mini-batch, by number of neighbours."""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from graphformers.batching.packing import to_device
from graphformers.batching.tokens import TokenCache
from graphformers.graph.sampling import Neighborhood
from graphformers.model.compute import choose_device
from graphformers.model.encoder import GraphFormers
from graphformers.progress import progress
from graphformers.settings import SettingValue
from graphformers.training.recipes import settings_for
from graphformers.training.settings import divide_settings

# the mini-batch of the paper; tokens include the special ones
CENTERS = 32
TOKENS = 16
COUNTS: Mapping[str, Sequence[int]] = {
    "cuda": (3, 5, 10, 20, 50, 100, 200),
    "cpu": (3, 5, 10, 20, 50),
}
METHODS = ("graphformers", "max")


def measure_efficiency(
    source: str,
    settings: Mapping[str, SettingValue],
    device: str | None = None,
    counts: Sequence[int] = (),
) -> tuple[list[dict[str, float]], str]:
    """Measures GraphFormers and PLM+Max on a backbone, prepared as `encode` does.

    Args:
        source: The backbone.
        settings: Model settings apply, except for the number of tokens, which is the paper's.
        device: Where to compute; by default the best device.
        counts: The numbers of neighbours; the default depends on the device.

    Returns:
        The rows of `table_5`, and the name of the device.
    """
    chosen = choose_device(device)
    models = {}
    for method in METHODS:
        _, changes = divide_settings(settings_for(method, settings))
        changes["max_tokens"] = TOKENS
        model = GraphFormers.from_backbone(source, method, device=str(chosen), **changes)
        models[method] = ready(model)
    return table_5(models, counts or COUNTS.get(chosen.type, COUNTS["cpu"])), device_name(chosen)


def ready(model: GraphFormers) -> GraphFormers:
    """Prepares a model for inference: without dropout; in bfloat16 and compiled on a GPU."""
    model.eval()
    return model.to(torch.bfloat16).compile_layers() if model.device.type == "cuda" else model


def table_5(models: Mapping[str, GraphFormers], counts: Sequence[int]) -> list[dict[str, float]]:
    """Encodes 32 centres with distinct neighbours, 16 tokens each, without cached states.

    Args:
        models: Models by method.
        counts: Numbers of neighbours.

    Returns:
        A row for each number: `neighbours`, and for each method `…_ms`; on a GPU also `…_gib` (peak
        memory) and `…_graph_ms` (as a CUDA graph, without the overhead of launching kernels).
    """
    found = []
    with progress("Measuring", len(counts) * len(models), "batches") as task:
        for count in counts:
            row: dict[str, float] = {"neighbours": count}
            for method, model in models.items():
                row |= {f"{method}_{name}": value for name, value in _measure(model, count).items()}
                task.advance()
            found.append(row)
    return found


def _measure(model: GraphFormers, count: int) -> dict[str, float]:
    num_nodes, device, tokenizer = CENTERS * (1 + count), model.device, model.tokenizer
    length = TOKENS - len(tokenizer.prefix) - len(tokenizer.suffix)
    # the upper half of the vocabulary has no special tokens
    tokens = np.random.default_rng(0).integers(
        tokenizer.vocab_size // 2, tokenizer.vocab_size, num_nodes * length
    )
    indptr = np.arange(num_nodes + 1) * length
    cache = TokenCache(tokens, indptr, tokenizer.prefix, tokenizer.suffix)
    neighborhood = Neighborhood(
        np.arange(CENTERS), np.arange(CENTERS + 1) * count, np.arange(CENTERS, num_nodes)
    )
    batch = to_device(model.packer().pack_neighborhoods(cache, neighborhood), device)

    def encode() -> None:
        with torch.inference_mode():
            model.network(batch)

    if device.type != "cuda":
        return {"ms": 1000 * seconds(encode, device, 3)}
    found = {"ms": 1000 * seconds(encode, device, 20)}
    torch.cuda.reset_peak_memory_stats(device)
    # without the memory of other models on the device
    before = torch.cuda.memory_allocated(device)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    encode()
    found["gib"] = (weights + torch.cuda.max_memory_allocated(device) - before) / 2**30
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        encode()
    found["graph_ms"] = 1000 * seconds(graph.replay, device, 20)
    return found


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median time of a call, after two calls to warm up."""
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
    """The name of a GPU, or the type of the device and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"


def synchronize(device: torch.device) -> None:
    """Waits for a GPU to finish."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
