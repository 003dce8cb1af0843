"""One training step: from a batch to the gradients of all parameters.

A step has three parts, so that every anchor competes with the keys of the whole batch, whichever
process encoded them and however few pairs fit into memory at a time:

1. `encode`: vectors of all centres, chunk by chunk;
2. `loss`: all processes exchange vectors; the loss gives the gradient of each vector;
3. `backward`: from the gradients of vectors to those of parameters, chunk by chunk.

With several chunks (gradient caching) the first part keeps no autograd graph. The third computes
each chunk again, with the same random numbers, and runs it backward at once. Neighbours that
several chunks share are encoded once in each part: their states are computed first and collect
gradients from all chunks; the backward pass through them comes last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from graphformers.arrays import mix
from graphformers.batching.packing import PackedBatch, PackedNeighborhoods
from graphformers.memory import SuppressOutOfMemory
from graphformers.model.encoder import GraphFormers
from graphformers.training.batches import TrainBatch
from graphformers.training.distributed import World
from graphformers.training.loader import Loader
from graphformers.training.objective import Objective
from graphformers.training.settings import TrainConfig

Result = TypeVar("Result")

# numbers that enter the seeds, so that neighbours and centres get different random numbers
NEIGHBORS, CENTERS = 0, 1


@dataclass(frozen=True)
class EncodedChunk:
    """The outputs of the network for the pairs of a chunk.

    Attributes:
        vectors_ND: (S n, D) float32: vectors of n anchors, then of their positives, then of their
            text queries, if there are any.
        extra_loss: A loss of the network's own, summed over the pairs; None for most networks.
    """

    vectors_ND: Tensor
    extra_loss: Tensor | None = None


@dataclass
class EncodedBatch:
    """A batch after the first part of a step.

    Attributes:
        states: States of the neighbours that are encoded once for all chunks.
        chunks: Each chunk's vectors; with an autograd graph if there is one chunk.
    """

    states: list[Tensor]
    chunks: list[EncodedChunk]


class TrainStep:
    """Computes gradients.

    Args:
        model: The model; gradients are added to the `grad` of its parameters.
        config: The settings of the objective.
        world: The processes that compute a batch together.
        loader: Makes a batch again in smaller chunks when memory runs out.
    """

    def __init__(
        self, model: GraphFormers, config: TrainConfig, world: World, loader: Loader
    ) -> None:
        self.model = model
        self.config = config
        self.world = world
        self.loader = loader
        self.objective = Objective(config, cosine=model.is_cosine)

    def run(self, batch: TrainBatch, seed: int) -> Tensor:
        """Adds the gradients of the mean loss over the pairs of all processes.

        When memory runs out, this process continues in smaller chunks; the tensors that it
        exchanges with others stay the same. If that happens in `backward`, the dropout of this one
        step differs between the two passes.

        Args:
            batch: The part of the batch that this process computes.
            seed: Seeds all random numbers of the step.

        Returns:
            The mean loss, a scalar.
        """
        batch, encoded = self._until_it_fits(batch, lambda part: self.encode(part, seed))
        loss, gradient_BSD, gradient_of_temperature = self.loss(batch, encoded.chunks)

        def backward(part: TrainBatch) -> None:
            if part is not batch:
                # Free the results of larger chunks, which are useless now.
                encoded.chunks, encoded.states = [], []
                encoded.states = self.neighbor_states(part, seed)
            self.backward(part, encoded, gradient_BSD, seed)

        done, _ = self._until_it_fits(batch, backward)
        if self.model.network.log_temperature is not None:
            # After the other gradients, which are removed when memory runs out.
            self.model.network.log_temperature.grad = gradient_of_temperature
        self.loader.chunks.record(done)
        return loss

    def _until_it_fits(
        self, batch: TrainBatch, work: Callable[[TrainBatch], Result]
    ) -> tuple[TrainBatch, Result]:
        """Repeats work in smaller chunks until memory suffices; returns the batch and a result."""
        while True:
            with SuppressOutOfMemory():
                return batch, work(batch)
            self.model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            batch = self.loader.in_chunks(batch, self.loader.chunks.shrink(batch))

    def encode(self, batch: TrainBatch, seed: int) -> EncodedBatch:
        """Computes the vectors of all centres."""
        states = self.neighbor_states(batch, seed)
        with torch.set_grad_enabled(len(batch.chunks) == 1):
            chunks = [
                self._encode_chunk(batch, i, states, mix_seed(seed, CENTERS, i))
                for i in range(len(batch.chunks))
            ]
        return EncodedBatch(states, chunks)

    def neighbor_states(self, batch: TrainBatch, seed: int) -> list[Tensor]:
        """States of neighbours encoded once for all chunks, as leaves of the autograd graph."""
        if not batch.neighbors:
            return []
        is_training = self.model.training
        # Without gradients nothing is learned through neighbours, and dropout would be mere noise.
        self.model.train(is_training and self.config.neighbor_gradients)
        with torch.no_grad():
            parts = [
                self._encode_neighbors(texts, mix_seed(seed, NEIGHBORS, i))
                for i, texts in enumerate(batch.neighbors)
            ]
        self.model.train(is_training)
        states = [torch.cat(layer) for layer in zip(*parts, strict=True)]
        # in float32 at least, because gradients from all chunks are summed in them
        exact = [layer.to(torch.promote_types(layer.dtype, torch.float32)) for layer in states]
        return [layer.requires_grad_(self.config.neighbor_gradients) for layer in exact]

    def _encode_neighbors(self, texts: PackedBatch, seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        with self.model.compute.autocast():
            return self.model.network.neighbor_states(texts)

    def _encode_chunk(
        self, batch: TrainBatch, number: int, states: list[Tensor], seed: int
    ) -> EncodedChunk:
        torch.manual_seed(seed)
        network, chunk = self.model.network, batch.chunks[number]
        num_pairs = batch.bounds[number + 1] - batch.bounds[number]
        with self.model.compute.autocast():
            if isinstance(chunk, PackedNeighborhoods):
                return EncodedChunk(*network.forward_with_loss(chunk, num_pairs))
            needed = [layer[chunk.needed_m] for layer in states]
            return EncodedChunk(network.center_vectors(chunk.centers, needed, chunk.index))

    def loss(
        self, batch: TrainBatch, chunks: list[EncodedChunk]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Computes the loss and its gradient for the vectors of this process.

        Returns:
            The mean loss over the pairs of all processes; (B, S, D): the gradients of the vectors
            of B anchors, positives and text queries; and this process's part of the gradient of the
            temperature, if that is learned.
        """
        sides = [chunk.vectors_ND.detach().chunk(batch.num_sides) for chunk in chunks]
        empty = torch.zeros(0, self.model.config.hidden_size, device=self.model.device)
        own_BSD = torch.stack(
            [torch.cat([empty, *(each[i] for each in sides)]) for i in range(batch.num_sides)], 1
        )
        all_KSD = self.world.gather(own_BSD, batch.sizes).requires_grad_()
        num_pairs = sum(batch.sizes)
        learned = self.model.network.log_temperature
        loss = self.objective.loss(all_KSD, batch, learned) / num_pairs
        inputs = [all_KSD] if learned is None else [all_KSD, learned]
        gradient_KSD, *others = torch.autograd.grad(loss, inputs)
        extra = [chunk.extra_loss.detach() for chunk in chunks if chunk.extra_loss is not None]
        loss = loss.detach() + sum(extra) / num_pairs
        summed = self.world.sum(torch.cat([gradient_KSD.flatten(), loss[None]]))
        own = summed[:-1].view_as(gradient_KSD)[batch.own]
        return summed[-1], own, others[0] if others else None

    def backward(
        self, batch: TrainBatch, encoded: EncodedBatch, gradient_BSD: Tensor, seed: int
    ) -> None:
        """Adds the gradients of the parameters, given those of the vectors."""
        kept = encoded.chunks.pop() if len(batch.chunks) == 1 and encoded.chunks else None
        for i in range(len(batch.chunks)):
            found = kept or self._encode_chunk(batch, i, encoded.states, mix_seed(seed, CENTERS, i))
            kept = None
            own_BSD = gradient_BSD[batch.bounds[i] : batch.bounds[i + 1]]
            results, gradients = [found.vectors_ND], [own_BSD.transpose(0, 1).flatten(0, 1)]
            if found.extra_loss is not None:
                results.append(found.extra_loss)
                gradients.append(torch.full_like(found.extra_loss, 1 / sum(batch.sizes)))
            torch.autograd.backward(results, gradients)
        if self.config.neighbor_gradients:
            self._backward_neighbors(batch, encoded.states, seed)

    def _backward_neighbors(self, batch: TrainBatch, states: list[Tensor], seed: int) -> None:
        """Encodes the neighbours again, and runs backward from the gradients of their states."""
        start = 0
        for i, texts in enumerate(batch.neighbors):
            stop = start + texts.num_nodes
            if texts.num_nodes:
                found = self._encode_neighbors(texts, mix_seed(seed, NEIGHBORS, i))
                gradients = []
                for layer in states:
                    assert layer.grad is not None, "the states of every layer are used"
                    gradients.append(layer.grad[start:stop].to(found[0].dtype))
                torch.autograd.backward(found, gradients)
            start = stop


def mix_seed(*parts: int) -> int:
    """Combines several numbers into one seed."""
    return int(mix(*parts)) >> 1
