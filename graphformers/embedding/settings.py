"""Settings of an embedding.

This module imports nothing heavy, so that the command line can show the help texts at once.
"""

from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict

from graphformers.settings import MOST_PROCESSES, MOST_SEED, Settings, require, setting

# Number types of stored vectors and of stored layer states.
VECTOR_PRECISIONS = ("float32", "float16", "int8")
STATE_PRECISIONS = ("float16", "float32")
# on all machines of a cluster
MOST_WORKERS = 10_000


class KeySettings(TypedDict):
    """What the manifest of a folder of vectors says of the model and of its states."""

    model: str
    tokenizer: str
    max_tokens: int
    precision: Literal["float16", "float32"]


class KeptStates(TypedDict):
    """What the manifest says of states that were kept."""

    key: KeySettings
    text_hashes: list[str]


class StoreSettings(TypedDict):
    """What the manifest of a folder of vectors says under `settings`."""

    base: str
    method: str
    similarity: Literal["dot", "cosine"]
    hidden_size: int
    num_neighbors: int
    seed: int
    precision: Literal["float32", "float16", "int8"]
    shard_size: int
    key: KeySettings
    state_shape: list[int]
    states: KeptStates | None
    link_weight: NotRequired[float]


@dataclass(frozen=True)
class EmbedSettings(Settings):
    """How a graph is embedded.

    Examples:
        >>> EmbedSettings(precision="float16", num_neighbors=20).keep_states
        True
    """

    precision: str = setting(
        "float32", "Precision of the vectors.", choices=VECTOR_PRECISIONS, option="--precision NAME"
    )
    states_precision: str = setting(
        "float16",
        "Precision of the layer states.",
        choices=STATE_PRECISIONS,
        option="--states-precision NAME",
    )
    keep_states: bool = setting(
        True,
        "Whether layer states are kept beside the vectors, so that updates need not compute them "
        "again.",
        option="--keep-states/--no-keep-states",
    )
    states: str = setting(
        "auto",
        "Where states are kept between the two passes: in memory of the model's device, on disk, "
        "or automatically where they fit.",
        choices=("auto", "memory", "disk"),
        option="--states WHERE",
    )
    num_neighbors: int | None = setting(
        None,
        "Neighbours sampled for a node; by default as the model was trained.",
        at_least=0,
        option="--neighbors NUMBER",
    )
    seed: int = setting(
        42, "Random seed of the neighbour sampling.", at_least=-MOST_SEED, at_most=MOST_SEED
    )
    shard_size: int | None = setting(
        None,
        "Nodes of a shard, the unit of writing and resuming; by default 65,536 on a GPU, 4,096 "
        "elsewhere.",
        at_least=1,
        option="--shard-size NUMBER",
    )
    batch_tokens: int | None = setting(
        None, "Tokens of a batch; by default by the device.", at_least=1
    )
    workers: int | None = setting(
        None,
        "Processes that pack batches; by default four on a GPU, none elsewhere.",
        at_least=0,
        at_most=MOST_PROCESSES,
    )
    compile: bool | None = setting(
        None, "Whether layers are compiled; by default on a GPU from 100,000 nodes on."
    )


@dataclass(frozen=True)
class Cluster(Settings):
    """A Ray cluster that computes an embedding."""

    address: str = setting("local", "Address of the cluster; local starts one on this machine.")
    workers: int = setting(
        2,
        "Number of workers on a Ray cluster.",
        at_least=1,
        at_most=MOST_WORKERS,
        option="--workers NUMBER",
    )
    gpus_per_worker: float = setting(
        0.0, "GPUs of each worker on a Ray cluster.", at_least=0, option="--gpus-per-worker NUMBER"
    )
    threads: int | None = setting(
        None,
        "Threads of a worker on a CPU; by default an equal share of the machine.",
        at_least=1,
        at_most=MOST_PROCESSES,
    )

    patience: float = setting(
        20.0, "Seconds without any worker after which a message says so.", at_least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        gpus = self.gpus_per_worker
        is_valid = gpus <= 1 or gpus == int(gpus)
        require(self, is_valid, "gpus_per_worker", "whole GPUs, or a part of one")

    @property
    def device(self) -> str:
        """The device type of the workers."""
        return "cuda" if self.gpus_per_worker else "cpu"


@dataclass(frozen=True)
class CompactionSettings(Settings):
    """When the log of changes of a store is written as a new base."""

    least_bytes: int = setting(
        64 << 20, "Size of the log below which it is not compacted.", at_least=0
    )
    most_bytes: int = setting(
        2 << 30,
        "Size of the log above which it is compacted in any case, because loading reads it.",
        at_least=0,
    )
    share: float = setting(
        0.25, "Share of the base's size above which the log is compacted.", at_least=0
    )
    least_changed: int = setting(
        16_384, "Number of changed vectors below which their share does not count.", at_least=0
    )
    changed_share: float = setting(
        0.05, "Share of changed vectors above which the log is compacted.", at_least=0
    )
