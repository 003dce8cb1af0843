"""Plan of an embedding: everything that determines the bytes of its result."""

from dataclasses import asdict, dataclass

import numpy as np
import torch

from graphformers.arrays import Array
from graphformers.batching.two_pass import BatchLimits, TwoPass, check_joint_neighbors
from graphformers.embedding.settings import EmbedSettings
from graphformers.embedding.shards import bounds
from graphformers.embedding.states import StatesKey, states_dtype
from graphformers.errors import GraphFormersError
from graphformers.graph.textgraph import TextGraph
from graphformers.memory import available_memory
from graphformers.model.compute import Compute
from graphformers.model.encoder import BATCH_TOKENS, GraphFormers
from graphformers.progress import amount

SHARD_SIZES = {"cuda": 65_536}
USUAL_SHARD = 4096
# The rows of a batch are a multiple of this: cuDNN plans attention anew for every shape.
GPU_ROWS = 64
# On a GPU, neighbourhoods of up to FEW_NEIGHBORS have one width, larger ones WIDTHS widths.
FEW_NEIGHBORS = 8
WIDTHS = 4
# 504 full rows of 128: packed, that is nearly always 512.
GPU_TOKENS = 64_512
# The batch that is computed, and those that are made ready meanwhile.
BATCHES_IN_MEMORY = 3
# Numbers of a token in a layer without gradients, in hidden sizes.
LAYER_NUMBERS = 16
# Nodes from which compiling pays: it takes about a minute.
COMPILE_FROM = 100_000


@dataclass(frozen=True)
class Plan:
    """Everything that determines the bytes of the result. A run can continue another one with an
    equal plan.
    """

    key: StatesKey
    # Fingerprint of the graph.
    graph: str
    num_nodes: int
    method: str
    similarity: str
    # Weight of common neighbours in likely links.
    link_weight: float
    hidden_size: int
    # States of a node; 0 for models with a single pass.
    num_states: int
    num_neighbors: int
    seed: int
    precision: str
    keep_states: bool
    shard_size: int
    batch_tokens: int
    row_multiple: int
    # Largest number of centres times neighbours of a batch.
    entries: int
    # Number type of the computation.
    compute: str
    # Compiled layers round differently.
    compile: bool

    @staticmethod
    def of(
        model: GraphFormers, graph: TextGraph, settings: EmbedSettings, kind: str | None = None
    ) -> "Plan":
        """The plan of an embedding.

        Args:
            model: The model.
            graph: The graph.
            settings: The settings of the embedding.
            kind: The type of the device that computes, where it is not the model's.
        """
        kind = kind or model.device.type
        inputs, limits = model.network.inputs(model.config), model.batch_limits()
        on_gpu = kind == "cuda"
        own = next(model.parameters()).dtype
        compute = Compute.on(torch.device(kind)).dtype if own == torch.float32 else own
        usual = GPU_TOKENS if on_gpu else BATCH_TOKENS.get(kind, BATCH_TOKENS["cpu"])
        asked = (
            model.config.num_neighbors if settings.num_neighbors is None else settings.num_neighbors
        )
        if inputs.joint:
            check_joint_neighbors(min(asked, int(graph.degrees().max(initial=0))), limits)
        return Plan(
            key=StatesKey.of(model, settings.states_precision),
            graph=graph.fingerprint,
            num_nodes=graph.num_nodes,
            method=model.config.method,
            similarity=model.config.similarity,
            link_weight=model.config.link_weight,
            hidden_size=model.config.hidden_size,
            num_states=inputs.num_states,
            num_neighbors=asked if inputs.joint or inputs.num_states else 0,
            seed=settings.seed,
            precision=settings.precision,
            keep_states=settings.keep_states and inputs.num_states > 0,
            shard_size=settings.shard_size or SHARD_SIZES.get(kind, USUAL_SHARD),
            batch_tokens=settings.batch_tokens or usual,
            row_multiple=GPU_ROWS if on_gpu else 1,
            entries=4 * limits.entries if on_gpu else limits.entries,
            compute=str(compute).removeprefix("torch."),
            compile=on_gpu and graph.num_nodes >= COMPILE_FROM
            if settings.compile is None
            else settings.compile,
        )

    def two_pass(self, model: GraphFormers) -> TwoPass:
        """The two encoding passes of the model, with the batches of this plan."""
        limits = BatchLimits(tokens=self.batch_tokens, entries=self.entries)
        return model.two_pass(self.row_multiple, self.width_multiple, limits)

    @property
    def width_multiple(self) -> int:
        """Neighbourhoods are padded to a multiple of this: compiled layers need few widths."""
        if self.row_multiple == 1:
            return 1
        return (
            self.num_neighbors
            if self.num_neighbors <= FEW_NEIGHBORS
            else -(-self.num_neighbors // WIDTHS)
        )

    def counts(self, graph: TextGraph, nodes: Array) -> Array:
        """Number of sampled neighbours of each node."""
        counts: Array = np.minimum(
            graph.indptr[nodes + 1] - graph.indptr[nodes], self.num_neighbors
        )
        return counts

    def by_neighbors(self, graph: TextGraph, nodes: Array) -> Array:
        """Centres sorted by their number of neighbours: a batch is as wide as its widest centre."""
        ordered: Array = nodes[np.argsort(self.counts(graph, nodes), kind="stable")]
        return ordered

    @property
    def shards(self) -> list[tuple[int, int]]:
        """The first node of each shard and the one after its last."""
        return bounds(self.num_nodes, self.shard_size)

    def bytes_of_states(self) -> int:
        """Size of all layer states."""
        return (
            self.num_nodes
            * self.num_states
            * self.hidden_size
            * states_dtype(self.key.precision).itemsize
        )

    def bytes_of_vectors(self) -> int:
        """Size of all vectors."""
        return self.num_nodes * (
            self.hidden_size * np.dtype(self.precision).itemsize + 4 * (self.precision == "int8")
        )

    def bytes_of_work(self, *, in_memory: bool) -> int:
        """Memory of the computation besides the weights, at most.

        With `in_memory`, all states stay in memory between the two passes.
        """
        of_node = self.num_states * self.hidden_size
        state_bytes = states_dtype(self.key.precision).itemsize
        # two shards: while one is written, the next one is computed
        rows = 2 * self.shard_size * max(of_node * state_bytes, 4 * self.hidden_size)
        # a text has at least two tokens
        centers = min(self.batch_tokens // 2, self.num_nodes)
        neighbors = min(centers * self.num_neighbors, self.entries, self.num_nodes)
        # The states of a batch and of the next ones; the former also in the network's precision.
        gathered = neighbors * of_node * (BATCHES_IN_MEMORY * state_bytes + 4)
        layer = self.batch_tokens * self.hidden_size * LAYER_NUMBERS * 4
        return rows + gathered + layer + self.bytes_of_states() * in_memory

    def differences(self, other: dict[str, object]) -> list[str]:
        """The differences to another plan, as text."""
        own, theirs = _flat(asdict(self)), _flat(other)
        return [
            f"{name} {_short(theirs.get(name))}, now {_short(own[name])}"
            for name in own
            if theirs.get(name) != own[name]
        ]


def stay_in_memory(plan: Plan, settings: EmbedSettings, device: torch.device) -> bool:
    """Whether states stay in the device's memory between the two passes."""
    return plan.num_states > 0 and (
        settings.states == "memory" or (settings.states == "auto" and fits_on_device(plan, device))
    )


def check_memory(plan: Plan, device: torch.device, *, in_memory: bool) -> None:
    """Raises an error if the memory is too small for a computation.

    A GPU that runs out of memory raises an error itself, and batches are then divided.
    """
    needed, available = plan.bytes_of_work(in_memory=in_memory), available_memory(device)
    if device.type != "cuda" and needed > available:
        advice = (
            "fewer neighbours, tokens of a batch and nodes of a shard need less: "
            f"{EmbedSettings.usage(num_neighbors=5, shard_size=1024)}"
        )
        advice = f"{EmbedSettings.usage(states='disk')}, {advice}" if in_memory else advice
        raise GraphFormersError(
            f"the embedding needs {amount(needed, 'B')} of memory, {amount(available, 'B')} are "
            f"available; {advice}"
        )


def fits_on_device(plan: Plan, device: torch.device) -> bool:
    """Whether a GPU has room for all states besides what the computation needs."""
    if device.type != "cuda":
        return False
    total = torch.cuda.mem_get_info(device)[1]
    return plan.bytes_of_states() < available_memory(device) - 0.1 * total


def _flat(values: dict[str, object]) -> dict[str, object]:
    # A plan that graphformers did not write may hold anything.
    told = values.get("key")
    told = told if isinstance(told, dict) else {}
    key = {
        "states_precision" if name == "precision" else name: value for name, value in told.items()
    }
    return {name: value for name, value in values.items() if name != "key"} | key


def _short(value: object) -> str:
    return f"{value[:12]}" if isinstance(value, str) else str(value)
