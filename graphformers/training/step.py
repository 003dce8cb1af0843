"""One training step: from a batch to the gradients of all parameters.

The step goes through vectors: all centres are encoded, the loss gives the gradient of each vector,
and only then the network is walked backwards. Between the two, vectors of all processes are
exchanged, so that every anchor has the keys of the whole batch to choose from, wherever they were
encoded.

In several chunks (gradient caching) the first pass keeps nothing; in the second each chunk is
computed again, under the same random numbers, and walked back at once. Neighbours that several
chunks share are still encoded once in each pass: their states are collected first, gather gradients
from all chunks, and are walked back last.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphformers.batching.packing import PackedNeighborhoods
from graphformers.data.arrays import mix
from graphformers.errors import GraphFormersError
from graphformers.memory import SuppressOutOfMemory
from graphformers.model.encoder import GraphFormers
from graphformers.training.batches import CenterChunk, TrainBatch
from graphformers.training.distributed import World
from graphformers.training.objective import link_loss
from graphformers.training.settings import TrainConfig


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """On a CPU, gradients that meet in one place are added in a fixed order, so that a run can be
    repeated to the bit.

    (Otherwise threads add them as they come. It costs nothing that could be measured.)
    """
    if device.type != "cpu":
        yield
        return
    settings: Any = torch.utils.deterministic
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    filled = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        settings.fill_uninitialized_memory = filled


# steps after which larger chunks are tried again; twice as many each time that it was in vain
PATIENCE = 64


class Stepper:
    """Computes gradients. `remake` makes a batch again in smaller chunks, which is asked for when
    memory runs out.

    Larger ones are tried again later: it may have been others who needed the GPU's memory, and
    small chunks take longer.
    """

    def __init__(
        self,
        model: GraphFormers,
        config: TrainConfig,
        world: World,
        remake: Callable[[TrainBatch, int], TrainBatch],
    ) -> None:
        self.model, self.config, self.world, self.remake = model, config, world, remake
        self.chunk_size = config.chunk_size  # of the batches to come, at most
        self.used = config.chunk_size  # of the last step
        self._patience, self._waited, self._is_trying = PATIENCE, 0, False
        self._most = 0  # pairs that this process has had in a batch

    def run(self, batch: TrainBatch, seed: int) -> Tensor:
        """The mean loss over the pairs of all processes, a scalar; every parameter's `grad` is that
        of this loss.

        All random numbers of the step come from `seed`. When memory runs out, this process goes on
        with smaller chunks; what it exchanges with others stays the same. (If that happens on the
        way back, the dropout of this one step differs between the two passes.)
        """
        whole, (states, vectors) = self._until_it_fits(
            batch, lambda part: self._forward(part, seed)
        )
        loss, gradient_B2D = self._loss(whole, vectors)
        kept = [(states, vectors)]
        del states, vectors

        def backward(part: TrainBatch) -> None:
            # in smaller chunks: what was computed in larger ones is of no use
            if part is not whole:
                kept.clear()
                kept.append((self._neighbor_states(part, seed), []))
            self._backward(part, seed, *kept[0], gradient_B2D)

        done, _ = self._until_it_fits(whole, backward)
        self._note(done)
        return loss

    def _note(self, done: TrainBatch) -> None:
        """After a step: whether the size that was tried is good, and whether a larger one is to be
        tried.
        """
        self.used, self._most = done.key.chunk_size, max(self._most, len(done.pairs))
        tried = min(self.chunk_size or self._most, self._most)
        # not the small rest of an epoch
        if self._is_trying and self.used == self.chunk_size and len(done.pairs) >= tried:
            self._patience, self._is_trying = PATIENCE, False
        if self.chunk_size == self.config.chunk_size or self.chunk_size is None or self._is_trying:
            return
        self._waited += 1
        if self._waited >= self._patience:
            is_whole = 2 * self.chunk_size >= (self.config.chunk_size or self._most)
            self.chunk_size = self.config.chunk_size if is_whole else 2 * self.chunk_size
            self._waited, self._is_trying = 0, True

    def _until_it_fits(
        self, batch: TrainBatch, work: Callable[[TrainBatch], Any]
    ) -> tuple[TrainBatch, Any]:
        """The batch in chunks for which the memory of the GPU is enough, and what the work gave."""
        while True:
            with SuppressOutOfMemory():
                return batch, work(batch)
            batch = self._smaller(batch)

    def _smaller(self, batch: TrainBatch) -> TrainBatch:
        """The same batch in chunks of half the size."""
        size = min(batch.key.chunk_size or len(batch.pairs), len(batch.pairs))
        if size <= 1:
            raise GraphFormersError(
                "the GPU's memory is too small even for one pair at a time; take a smaller "
                "max_tokens or backbone"
            )
        self.chunk_size = -(-size // 2)
        self._patience *= 1 + self._is_trying
        self._waited, self._is_trying = 0, False
        self.model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        return self.remake(batch, self.chunk_size)

    def _forward(
        self, batch: TrainBatch, seed: int
    ) -> tuple[list[Tensor], list[tuple[Tensor, ...]]]:
        """The neighbours' states, where they are encoded first, and each chunk's vectors, with a
        graph if there is one chunk.
        """
        states = self._neighbor_states(batch, seed)
        with torch.set_grad_enabled(len(batch.chunks) == 1):
            return states, [
                self._vectors(chunk, states, mix_seed(seed, 1, i))
                for i, chunk in enumerate(batch.chunks)
            ]

    def _neighbor_states(self, batch: TrainBatch, seed: int) -> list[Tensor]:
        if not batch.neighbors:
            return []
        is_training = self.model.training
        # what does not learn needs no dropout
        self.model.train(is_training and self.config.neighbor_gradients)
        with torch.no_grad():
            parts = [
                self._states(part, mix_seed(seed, 0, i)) for i, part in enumerate(batch.neighbors)
            ]
        self.model.train(is_training)
        states = [torch.cat(layer) for layer in zip(*parts, strict=True)]
        # in float32 at least: gradients from all chunks are summed in them
        exact = [layer.to(torch.promote_types(layer.dtype, torch.float32)) for layer in states]
        return [layer.requires_grad_(self.config.neighbor_gradients) for layer in exact]

    def _states(self, part: Any, seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        with self._precision():
            return list(self.model.network.neighbor_states(part))

    def _vectors(
        self, chunk: PackedNeighborhoods | CenterChunk, states: list[Tensor], seed: int
    ) -> tuple[Tensor, ...]:
        """(2 n, D) float32: anchors, then positives of a chunk; and what the network adds to the
        loss, summed over the pairs.

        Few networks add anything.
        """
        torch.manual_seed(seed)
        network = self.model.network
        with self._precision():
            if isinstance(chunk, PackedNeighborhoods):
                vectors, added = network.forward_with_loss(chunk)
                return (vectors,) if added is None else (vectors, added)
            near = [layer[chunk.needed_m] for layer in states]
            return (network.center_vectors(chunk.centers, near, chunk.index),)

    def _precision(self) -> torch.autocast:
        """bfloat16 on a GPU, float32 elsewhere. A new context each time: autocast remembers weights
        cast without a graph.
        """
        return self.model.compute.autocast()

    def _loss(self, batch: TrainBatch, vectors: list[tuple[Tensor, ...]]) -> tuple[Tensor, Tensor]:
        """The loss over the pairs of all processes, and its gradient (B, 2, D) for the vectors of
        this one.
        """
        halves = [chunk[0].detach().chunk(2) for chunk in vectors]
        empty = torch.zeros(0, self.model.config.hidden_size, device=self.model.device)
        own_B2D = torch.stack(
            [torch.cat([empty, *(half[side] for half in halves)]) for side in (0, 1)], 1
        )
        all_K2D = self.world.gather(own_B2D, batch.sizes).requires_grad_()
        scored = F.normalize(all_K2D, dim=-1) if self.model.is_cosine else all_K2D
        own, temperature = slice(batch.first, batch.first + len(own_B2D)), self.config.temperature
        often = (None, None) if batch.often_K2 is None else batch.often_K2.unbind(1)
        loss = link_loss(
            scored[own, 0], scored[:, 1], batch.first, batch.left_out, temperature, often[1]
        )
        if self.config.symmetric:
            back = link_loss(
                scored[own, 1],
                scored[:, 0],
                batch.first,
                batch.left_out_anchors,
                temperature,
                often[0],
            )
            loss = (loss + back) / 2
        loss = loss / sum(batch.sizes)
        (gradient_K2D,) = torch.autograd.grad(loss, all_K2D)
        loss = loss.detach() + sum(
            added.detach() for chunk in vectors for added in chunk[1:]
        ) / sum(batch.sizes)
        summed = self.world.sum(torch.cat([gradient_K2D.flatten(), loss[None]]))
        gradient_B2D = summed[:-1].view_as(gradient_K2D)[own]
        return summed[-1], gradient_B2D

    def _backward(
        self,
        batch: TrainBatch,
        seed: int,
        states: list[Tensor],
        vectors: list[tuple[Tensor, ...]],
        gradient_B2D: Tensor,
    ) -> None:
        """Walks the network backwards, from the gradients of the vectors; what was not kept is
        computed again.
        """
        for i, chunk in enumerate(batch.chunks):
            is_kept = len(vectors) == 1 and vectors[0][0].requires_grad
            found = vectors.pop() if is_kept else self._vectors(chunk, states, mix_seed(seed, 1, i))
            own_N2D = gradient_B2D[batch.bounds[i] : batch.bounds[i + 1]]
            shares = [torch.full_like(added, 1 / sum(batch.sizes)) for added in found[1:]]
            torch.autograd.backward(found, [own_N2D.transpose(0, 1).flatten(0, 1), *shares])
        begin = 0
        for i, nodes in enumerate(batch.neighbors if self.config.neighbor_gradients else []):
            if nodes.num_nodes:
                found_L = self._states(nodes, mix_seed(seed, 0, i))
                given_L = [
                    _part(layer.grad, begin, nodes.num_nodes).to(found_L[0].dtype)
                    for layer in states
                ]
                torch.autograd.backward(found_L, given_L)
            begin += nodes.num_nodes


def _part(gradient: Tensor | None, begin: int, count: int) -> Tensor:
    assert gradient is not None, "every layer's states are read"
    return gradient[begin : begin + count]


def mix_seed(*parts: int) -> int:
    """One seed from several numbers."""
    return int(mix(*parts)) >> 1
