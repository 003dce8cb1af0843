"""Plan of an embedding: everything that determines the bytes of its result."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from graphformers.data.arrays import Array
from graphformers.data.graph import TextGraph
from graphformers.embedding.settings import EmbedSettings
from graphformers.embedding.shards import bounds
from graphformers.embedding.states import StatesKey, states_dtype
from graphformers.model.encoding import BATCH_TOKENS, GraphFormers
from graphformers.model.passes import MOST_PLACES, Passes, check_together

SHARD_SIZES = {"cuda": 65_536}
USUAL_SHARD = 4096
# The rows of a batch are a multiple of this: cuDNN plans attention anew for every shape.
GPU_ROWS = 64
# On a GPU, neighbourhoods of up to FEW_NEIGHBORS have one width, larger ones WIDTHS widths.
FEW_NEIGHBORS = 8
WIDTHS = 4
# 504 full rows of 128: packed, that is nearly always 512.
GPU_TOKENS = 64_512
# Nodes from which compiling pays: it takes about a minute.
COMPILE_FROM = 100_000


@dataclass(frozen=True)
class Plan:
    """Everything that decides the bytes: two runs with equal plans can be one."""

    key: StatesKey
    graph: str  # fingerprint
    num_nodes: int
    method: str
    similarity: str
    hidden_size: int
    num_states: int  # of a node; 0 for models that read everything in one pass
    num_neighbors: int
    seed: int
    precision: str
    keep_states: bool
    shard_size: int
    batch_tokens: int
    row_multiple: int
    most_places: int  # centres times neighbours of a batch
    compute: str  # the type in which the network computes
    compile: bool  # whether layers are compiled, which rounds otherwise

    @staticmethod
    def of(
        model: GraphFormers, graph: TextGraph, settings: EmbedSettings, kind: str | None = None
    ) -> "Plan":
        """`kind` is the device that will compute, where it is not the model's own."""
        kind = kind or model.device.type
        passes = model.passes()
        on_gpu = kind == "cuda"
        own = next(model.parameters()).dtype
        compute = torch.bfloat16 if on_gpu and own == torch.float32 else own
        usual = GPU_TOKENS if on_gpu else BATCH_TOKENS.get(kind, BATCH_TOKENS["cpu"])
        asked = (
            model.config.num_neighbors if settings.num_neighbors is None else settings.num_neighbors
        )
        if passes.is_joint:
            check_together(min(asked, int(graph.degrees().max(initial=0))))
        return Plan(
            key=StatesKey.of(model, settings.states_precision),
            graph=graph.fingerprint,
            num_nodes=graph.num_nodes,
            method=model.config.method,
            similarity=model.config.similarity,
            hidden_size=model.config.hidden_size,
            num_states=passes.num_states,
            num_neighbors=asked if passes.is_joint or passes.num_states else 0,
            seed=settings.seed,
            precision=settings.precision,
            keep_states=settings.keep_states and passes.num_states > 0,
            shard_size=settings.shard_size or SHARD_SIZES.get(kind, USUAL_SHARD),
            batch_tokens=settings.batch_tokens or usual,
            row_multiple=GPU_ROWS if on_gpu else 1,
            most_places=4 * MOST_PLACES if on_gpu else MOST_PLACES,
            compute=str(compute).removeprefix("torch."),
            compile=on_gpu and graph.num_nodes >= COMPILE_FROM
            if settings.compile is None
            else settings.compile,
        )

    def passes(self, model: GraphFormers) -> Passes:
        """How the model reads nodes, in the batches of this plan."""
        passes = model.passes(self.row_multiple, self.batch_tokens, self.width_multiple)
        return replace(passes, most_places=self.most_places)

    @property
    def width_multiple(self) -> int:
        """Of the batches' neighbourhoods: where layers are compiled there are few widths, none much
        wider than needed.
        """
        if self.row_multiple == 1:
            return 1
        return (
            self.num_neighbors
            if self.num_neighbors <= FEW_NEIGHBORS
            else -(-self.num_neighbors // WIDTHS)
        )

    def counts(self, graph: TextGraph, nodes: Array) -> Array:
        """How many neighbours are sampled for each."""
        counts: Array = np.minimum(
            graph.indptr[nodes + 1] - graph.indptr[nodes], self.num_neighbors
        )
        return counts

    def by_neighbors(self, graph: TextGraph, nodes: Array) -> Array:
        """The order in which centres are read: those with as many neighbours together, a batch is
        as wide as its widest one.
        """
        ordered: Array = nodes[np.argsort(self.counts(graph, nodes), kind="stable")]
        return ordered

    @property
    def shards(self) -> list[tuple[int, int]]:
        """The first node of each shard and the one after its last."""
        return bounds(self.num_nodes, self.shard_size)

    def bytes_of_states(self) -> int:
        return (
            self.num_nodes
            * self.num_states
            * self.hidden_size
            * states_dtype(self.key.precision).itemsize
        )

    def bytes_of_vectors(self) -> int:
        return self.num_nodes * (
            self.hidden_size * np.dtype(self.precision).itemsize + 4 * (self.precision == "int8")
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def differences(self, other: dict[str, Any]) -> list[str]:
        """In words, what another plan says otherwise."""
        own = _flat(self.to_json())
        theirs = {"compile": False} | _flat(other)  # which older ones do not say
        return [
            f"{name} {_short(theirs.get(name))}, now {_short(own[name])}"
            for name in own
            if theirs.get(name) != own[name]
        ]


def stay_in_memory(plan: Plan, settings: EmbedSettings, device: torch.device) -> bool:
    """Whether states stay in the memory of the device between the two passes."""
    return plan.num_states > 0 and (
        settings.states == "memory" or (settings.states == "auto" and fits_on_device(plan, device))
    )


def fits_on_device(plan: Plan, device: torch.device) -> bool:
    """Whether all states can stay on a GPU beside what computing takes."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return plan.bytes_of_states() < free - 0.1 * total


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    # a plan of somebody else may hold anything there
    told = values.get("key")
    told = told if isinstance(told, dict) else {}
    key = {_flat_name(name): value for name, value in told.items()}
    return {name: value for name, value in values.items() if name != "key"} | key


def _flat_name(name: str) -> str:
    return "states_precision" if name == "precision" else name


def _short(value: Any) -> str:
    return f"{value[:12]}" if isinstance(value, str) else str(value)
