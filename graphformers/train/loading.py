"""Batches made ahead, in the background, by worker processes.

A batch travels as a parcel: all its tensors in one buffer. That is one message, one pinned copy and one transfer to the GPU for
each step, however many chunks it has. The message goes through a pipe: a megabyte or two take a millisecond, and a container
whose shared memory is full does not stop the run.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from graphformers.data.arrays import Array
from graphformers.data.packing import map_tensors
from graphformers.train.batches import BatchKey, BatchMaker, TrainBatch

ALIGN = 16  # bytes


@dataclass(frozen=True)
class _Place:
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Parcel:
    """A batch whose tensors lie in one buffer."""

    buffer: Array | Tensor  # uint8; an array until it is pinned, because torch would put tensors into shared memory
    content: Any  # the batch, with places instead of tensors

    @staticmethod
    def of(batch: TrainBatch) -> "Parcel":
        tensors: list[Tensor] = []
        offset = 0

        def put(tensor: Tensor) -> _Place:
            nonlocal offset
            tensors.append(tensor.contiguous())
            place = _Place(offset, tuple(tensor.shape), tensor.dtype)
            offset += -(-tensor.nbytes // ALIGN) * ALIGN
            return place

        content = map_tensors(batch, put)
        buffer = torch.empty(offset, dtype=torch.uint8)
        end = 0
        for tensor in tensors:
            if tensor.numel():
                buffer[end : end + tensor.nbytes] = tensor.reshape(-1).view(torch.uint8)
            end += -(-tensor.nbytes // ALIGN) * ALIGN
        return Parcel(buffer.numpy(), content)

    def pin_memory(self) -> "Parcel":
        return Parcel(torch.as_tensor(self.buffer).pin_memory(), self.content)

    def open(self, device: torch.device) -> TrainBatch:
        """The batch on a device."""
        buffer = torch.as_tensor(self.buffer).to(device, non_blocking=True)

        def take(place: _Place) -> Tensor:
            size = prod(place.shape) * place.dtype.itemsize
            if not size:
                return torch.empty(place.shape, dtype=place.dtype, device=device)
            return buffer[place.offset : place.offset + size].view(place.dtype).view(place.shape)

        batch: TrainBatch = map_tensors(self.content, take, _Place)
        return batch


class _Batches(Dataset[Parcel]):
    """Batches by their key."""

    def __init__(self, maker: BatchMaker) -> None:
        self.maker = maker

    def __getitem__(self, key: BatchKey) -> Parcel:
        return Parcel.of(self.maker.make(key))


class Loader(Sampler[BatchKey]):
    """Iterating gives the parcels of one epoch, from `start` on. Workers live as long as this does."""

    def __init__(self, maker: BatchMaker, workers: int, device: torch.device) -> None:
        self.maker = maker
        self.chunk_size: int | None = None
        self._epoch, self._start, self._is_polluted = 0, 0, False
        self._loader: DataLoader[Parcel] | None = DataLoader(
            _Batches(maker),
            batch_size=None,
            sampler=self,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=device.type == "cuda",
            worker_init_fn=_Worker(os.getpid()),
            persistent_workers=workers > 0,
            multiprocessing_context="fork" if workers else None,  # the graph is shared, not copied
        )

    def epoch(self, epoch: int, *, is_polluted: bool, start: int = 0) -> Iterator[Parcel]:
        """The parcels of an epoch."""
        self._epoch, self._start, self._is_polluted = epoch, start, is_polluted
        assert self._loader is not None, "not closed yet"
        return iter(self._loader)

    def close(self) -> None:
        """Ends the workers, once nobody holds an epoch's iterator any more."""
        self._loader = None

    def __iter__(self) -> Iterator[BatchKey]:
        for number in range(self._start, self.maker.num_batches):
            yield BatchKey(self._epoch, number, self._is_polluted, self.chunk_size)


def _as_it_is(parcel: Any) -> Any:
    return parcel


@dataclass(frozen=True)
class _Worker:
    """What a worker does first: it leaves signals to its parent, and dies with it, even by kill -9.

    Ctrl-C reaches every process of the terminal, and torchrun sends SIGTERM to every process: the parent wants to finish its step
    and ends its workers itself. A SIGTERM is obeyed twenty seconds later.
    """

    parent: int

    def __call__(self, number: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(20) and None)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != self.parent:
            os._exit(1)
