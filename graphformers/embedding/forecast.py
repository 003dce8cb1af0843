"""Forecast of an embedding, from one batch of each phase, whose result is discarded."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import torch

from graphformers.arrays import Array
from graphformers.batching.packing import to_device
from graphformers.batching.tokens import TokenCache, tokenize
from graphformers.batching.two_pass import CenterBatch
from graphformers.embedding.plan import Plan, check_memory, stay_in_memory
from graphformers.embedding.settings import EmbedSettings
from graphformers.errors import GraphFormersError
from graphformers.graph.sampling import Neighborhood
from graphformers.graph.textgraph import TextGraph
from graphformers.memory import SuppressOutOfMemory
from graphformers.model.encoder import GraphFormers, center_vectors, text_states
from graphformers.progress import amount, clock
from graphformers.table import Result, Table

TRIED_NODES = 4096


@dataclass(frozen=True)
class EmbeddingForecast(Result):
    """Time and disk space of an embedding. Made by `forecast`.

    Attributes:
        method: The model's method.
        device: The device that would compute.
        neighbors: Neighbours sampled for a node.
        nodes: Nodes of the graph.
        shards: Shards of the result.
        nodes_tried: Nodes whose embedding was measured.
        seconds: Time of the whole embedding.
        nodes_per_second: Rate of the embedding.
        vectors_gb: Size of the vectors.
        states_gb: Size of the layer states.
        states: What becomes of the states: kept, in memory alone, dropped at the end, or none.
        memory_gb: Memory besides the weights, at most.
    """

    method: str
    device: str
    neighbors: int
    nodes: int
    shards: int
    nodes_tried: int
    seconds: float
    nodes_per_second: float
    vectors_gb: float
    states_gb: float
    states: str
    memory_gb: float

    def to_dict(self) -> dict[str, object]:
        """All fields, for JSON."""
        return asdict(self)

    def as_table(self) -> Table:
        """Method, nodes, time and disk space."""
        vectors, states = amount(1e9 * self.vectors_gb, "B"), amount(1e9 * self.states_gb, "B")
        kept = "no states" if self.states == "none" else f"{states} of states ({self.states})"
        rows = {
            "method": f"{self.method}, {self.neighbors} neighbours, on {self.device}",
            "nodes": f"{self.nodes:,} in {self.shards:,} shards",
            "time": f"{clock(self.seconds)}, measured on {self.nodes_tried:,} nodes",
            "memory": f"{amount(1e9 * self.memory_gb, 'B')} besides the weights, at most",
            "disk": f"{vectors} of vectors, {kept}",
        }
        return Table((), list(rows.items()))


def forecast(model: GraphFormers, graph: TextGraph, settings: EmbedSettings) -> EmbeddingForecast:
    """Measures a few batches; nothing is written, not even the graph's tokens.

    Raises:
        GraphFormersError: If the memory is too small.
    """
    plan = Plan.of(model, graph, settings)
    in_memory = stay_in_memory(plan, settings, model.device)
    check_memory(plan, model.device, in_memory=in_memory)
    tried = np.unique(
        np.linspace(0, graph.num_nodes - 1, min(TRIED_NODES, graph.num_nodes)).astype(np.int64)
    )
    seconds, count = _seconds_per_node(model, graph, plan, tried)
    states = "none"
    if plan.num_states:
        dropped = "in memory alone" if in_memory else "dropped at the end"
        states = "kept" if plan.keep_states else dropped
    return EmbeddingForecast(
        method=plan.method,
        device=str(model.device),
        neighbors=plan.num_neighbors,
        nodes=plan.num_nodes,
        shards=len(plan.shards),
        nodes_tried=count,
        seconds=seconds * plan.num_nodes,
        nodes_per_second=1 / max(seconds, 1e-12),
        vectors_gb=plan.bytes_of_vectors() / 1e9,
        states_gb=plan.bytes_of_states() / 1e9,
        states=states,
        memory_gb=plan.bytes_of_work(in_memory=in_memory) / 1e9,
    )


def _seconds_per_node(
    model: GraphFormers, graph: TextGraph, plan: Plan, nodes: Array
) -> tuple[float, int]:
    two_pass = plan.two_pass(model)
    nodes = nodes if two_pass.packer.inputs.joint else plan.by_neighbors(graph, nodes)
    drawn = graph.sample(nodes, plan.num_neighbors, plan.seed)
    everyone = np.unique(np.concatenate([nodes, drawn.neighbors]))
    tokens = tokenize(graph.texts_of(everyone), model.tokenizer)
    local = [np.searchsorted(everyone, numbers) for numbers in (nodes, drawn.neighbors)]
    drawn = Neighborhood(local[0], drawn.indptr, local[1])
    parts = [*two_pass.center_parts(tokens, drawn)] or [slice(0, 0)]
    part = parts[len(parts) // 2]
    while True:
        count = max(part.stop - part.start, 1)
        with SuppressOutOfMemory():
            return _seconds_of_batch(model, plan, tokens, drawn.slice(part)) / count, count
        if count == 1:
            raise GraphFormersError(
                "the memory is too small even for one node at a time, or other processes use it"
            )
        torch.cuda.empty_cache()
        part = slice(part.start, part.start + count // 2)


def _seconds_of_batch(
    model: GraphFormers, plan: Plan, tokens: TokenCache, drawn: Neighborhood
) -> float:
    two_pass, device = plan.two_pass(model), model.device
    with model.inference() as network:
        center = to_device(two_pass.pack_centers(tokens, drawn), device)
        needed = len(center.needed_M) if isinstance(center, CenterBatch) else 0
        states_MSD = torch.zeros(needed, plan.num_states, plan.hidden_size, device=device)
        seconds = _time(lambda: center_vectors(network, center, states_MSD), model)
        if plan.num_states:
            text = to_device(two_pass.packer.pack(tokens, drawn.centers), device)
            seconds += _time(lambda: text_states(network, text), model)
    return seconds


def _time(work: Callable[[], object], model: GraphFormers) -> float:
    """Seconds of the second of two calls."""
    for _ in range(2):
        started = time.perf_counter()
        work()
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
    return time.perf_counter() - started
