"""The memory of a training step, estimated before the first step, and the chunks that fit into it.

The estimate is a function of packed batches: of their rows, their neighbours and the layers of the
network. Batches spread over the first epoch are packed for it, so that it follows the lengths of
the texts and the numbers of neighbours in the data.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from graphformers.batching.packing import ROW_WIDTH, PackedNeighborhoods, map_nested
from graphformers.batching.prefetch import KEYS_PER_WORKER
from graphformers.errors import GraphFormersError
from graphformers.memory import available_memory, work_bytes
from graphformers.model.activations import BatchSize
from graphformers.model.encoder import GraphFormers
from graphformers.progress import amount
from graphformers.training.batches import BatchKey, BatchMaker, TrainBatch

# pairs and batches that are packed for an estimate, at least
SAMPLED_PAIRS, SAMPLED_BATCHES = 2048, 4
# What freed and reused memory takes beyond its contents, because the gaps between tensors that are
# still in use are of other sizes. Measured: 1.1 to 1.3.
HEAP_FACTOR = 1.2
# The share of the available memory that a step may take in all.
LARGEST_SHARE = 0.9


@dataclass(frozen=True)
class StepMemory:
    """The estimated memory of a training step, in bytes, besides the weights.

    Attributes:
        optimizer: Gradients, Adam's averages, and the weights of the best validation.
        shared: What all chunks share: the states of neighbours with their gradients, vectors and
            scores.
        activations: What the largest chunk keeps for its backward pass, and its temporary tensors.
        batches: The tokens of this batch and of those that are made ahead.
    """

    optimizer: int
    shared: int
    activations: int
    batches: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.optimizer + self.shared + self.activations + self.batches

    @classmethod
    def of(cls, model: GraphFormers, batch: TrainBatch, num_workers: int = 0) -> "StepMemory":
        """The memory of a step on a batch.

        Args:
            model: The model.
            batch: The batch, in its chunks.
            num_workers: Processes that make batches.
        """
        network, config = model.network, model.config
        parameters = [parameter.nbytes for parameter in network.parameters()]
        sizes = [BatchSize.of_texts(texts) for texts in batch.neighbors]
        for chunk in batch.chunks:
            if isinstance(chunk, PackedNeighborhoods):
                sizes.append(BatchSize.of_neighborhoods(chunk))
            else:
                given = len(chunk.needed_m)
                sizes.append(BatchSize.of_centers(chunk.centers, chunk.index, given))
        numbers = max(map(network.activations, sizes), default=0)
        activations = HEAP_FACTOR * numbers * model.compute.dtype.itemsize
        num_states = network.inputs(config).num_states
        num_neighbors = sum(texts.num_nodes for texts in batch.neighbors)
        states = 2 * 4 * num_neighbors * num_states * config.hidden_size
        own, keys = len(batch.pairs), sum(batch.sizes)
        # Text queries are ranked among both ends of all pairs.
        num_scores = own * keys * (1 if batch.query_duplicates is None else 3)
        scores = 4 * (4 * num_scores + 4 * keys * config.hidden_size)
        nbytes: list[int] = []
        map_nested(batch, Tensor, lambda tensor: nbytes.append(tensor.nbytes))
        return cls(
            optimizer=4 * sum(parameters),
            shared=states + scores,
            # The gradient of the word table is made for every chunk and added to the others.
            activations=int(activations) + max(parameters, default=0),
            batches=sum(nbytes) * (2 + KEYS_PER_WORKER * num_workers),
        )


@dataclass(frozen=True)
class MemoryPlan:
    """How many pairs are computed at a time, and why.

    Attributes:
        chunk_size: Pairs at a time; None for whole batches.
        num_pairs: Pairs of a batch of this process.
        step: The memory of a step in these chunks.
        whole: The memory of a step on a whole batch.
        available: The available memory.
    """

    chunk_size: int | None
    num_pairs: int
    step: StepMemory
    whole: StepMemory
    available: int

    def __str__(self) -> str:
        needed, available = amount(self.step.total, "B"), amount(self.available, "B")
        chunks = "whole batches" if self.chunk_size is None else f"{self.chunk_size:,} at a time"
        return f"a step needs about {needed} of {available} available, computing {chunks}"

    def reason(self) -> str | None:
        """Why batches are computed in chunks; None if they are not."""
        if self.chunk_size is None or self.chunk_size >= self.num_pairs:
            return None
        return (
            f"{self.num_pairs:,} pairs are computed {self.chunk_size:,} at a time: all at once "
            f"would need {amount(self.whole.total, 'B')}, {self.chunk_size:,} need "
            f"{amount(self.step.total, 'B')} ({amount(self.available, 'B')} are available)"
        )


def plan_memory(
    model: GraphFormers,
    maker: BatchMaker,
    num_workers: int = 0,
    limit: int | None = None,
    available: int | None = None,
    work: int | None = None,
) -> MemoryPlan:
    """Chooses how many pairs are computed at a time.

    On a CPU with enough memory the choice depends only on the settings and the data, so that a run
    can be repeated to the bit.

    Args:
        model: The model.
        maker: Makes the batches of this process.
        num_workers: Processes that make batches.
        limit: Pairs at a time at most; None for whole batches.
        available: The available memory in bytes; by default that of the device, divided among the
            processes on a CPU.
        work: What activations may take; by default `work_bytes` of what is available.

    Raises:
        GraphFormersError: Not even one pair fits.
    """
    if available is None:
        available = available_memory(model.device)
        available //= 1 if model.device.type == "cuda" else maker.num_processes
    planner = _Planner(model, num_workers, available, work)
    num_pairs = -(-min(len(maker.split.train), maker.config.batch_size) // maker.num_processes)
    step, fits = whole = planner.largest(maker, limit)
    size = limit
    while not fits and (size is None or size > 1):
        size = -(-min(size or num_pairs, num_pairs) // 2)
        step, fits = planner.largest(maker, size)
    if not fits and step.total > LARGEST_SHARE * available:
        raise GraphFormersError(
            f"a training step needs about {amount(step.total, 'B')}, even for one pair at a time; "
            f"{amount(available, 'B')} are available; {planner.advice(maker)}"
        )
    return MemoryPlan(size, num_pairs, step, whole[0], available)


@dataclass(frozen=True)
class _Planner:
    """Compares estimated steps of a model with the available memory."""

    model: GraphFormers
    num_workers: int
    available: int
    work: int | None

    def fits(self, step: StepMemory) -> bool:
        """Whether the activations of a step are small enough, besides its other memory."""
        rest = self.available - step.total + step.activations
        work = work_bytes(self.model.device, rest) if self.work is None else self.work
        return step.activations <= min(work, int(LARGEST_SHARE * rest))

    def largest(self, maker: BatchMaker, chunk_size: int | None) -> tuple[StepMemory, bool]:
        """The largest of some steps in chunks of this size, or one that does not fit; and which."""
        count = max(SAMPLED_BATCHES, -(-SAMPLED_PAIRS // maker.config.batch_size))
        last = maker.num_batches - 1
        numbers = np.unique(np.linspace(0, last, min(count, last + 1)).astype(np.int64))
        largest = StepMemory(0, 0, 0, 0)
        for number in numbers.tolist():
            batch = maker.make(BatchKey(0, number, False, chunk_size))
            step = StepMemory.of(self.model, batch, self.num_workers)
            if not self.fits(step):
                return step, False
            largest = max(largest, step, key=lambda each: each.total)
        return largest, True

    def advice(self, maker: BatchMaker) -> str:
        """Settings with which one pair at a time would fit."""
        config, sampler, packer = maker.config, maker.sampler, maker.packer

        def with_tokens(value: int) -> BatchMaker:
            return replace(maker, packer=replace(packer, max_tokens=value, row_width=ROW_WIDTH))

        def with_neighbors(value: int) -> BatchMaker:
            return replace(maker, sampler=replace(sampler, num_neighbors=value))

        def with_batch(value: int) -> BatchMaker:
            return replace(maker, config=replace(config, batch_size=value))

        settings: list[tuple[str, int, Callable[[int], BatchMaker]]] = [
            ("max_tokens", packer.max_tokens, with_tokens),
            ("train_neighbors", sampler.num_neighbors, with_neighbors),
            ("batch_size", config.batch_size, with_batch),
        ]
        found = []
        for name, given, changed in settings:
            # Texts of fewer tokens hold little more than [CLS] and [SEP].
            least, value = 4 if name == "max_tokens" else 2, given // 2
            while value >= least:
                step, _ = self.largest(changed(value), 1)
                if step.total <= LARGEST_SHARE * self.available:
                    found.append(f"{name}={value}")
                    break
                value //= 2
        return f"{' or '.join(found)} would fit" if found else "use a smaller backbone"
