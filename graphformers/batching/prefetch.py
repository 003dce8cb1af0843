"""Batches made ahead by worker processes.

All tensors of a batch travel in one buffer: one message through a pipe, one copy in pinned memory
and one transfer to the GPU for each batch, however many tensors it has.

Workers are forked, so that they share the graph. A DataLoader is not used: its workers keep batches
in shared memory, of which containers have little and which leaks when they are killed, and they
outlive a parent that is killed.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import prod
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

import torch
from torch import Tensor

from graphformers.batching.packing import map_nested
from graphformers.errors import GraphFormersError

Key = TypeVar("Key")
Batch = TypeVar("Batch")

ALIGNMENT = 16  # bytes
# keys that a worker has at a time: one batch is sent while the next is made
KEYS_PER_WORKER = 2
WORKER_DIED = (
    "a worker process that makes batches has died, perhaps for lack of memory; fewer workers "
    "(--set workers=1) need less"
)


@dataclass(frozen=True)
class _TensorPlace:
    """Where in the buffer a tensor lies."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class FlatBatch(Generic[Batch]):
    """A batch whose tensors lie in one buffer."""

    buffer: Tensor  # uint8
    content: object  # the batch, with a _TensorPlace instead of each tensor

    @classmethod
    def of(cls, batch: Batch) -> "FlatBatch[Batch]":
        """Copies the tensors of a batch into one buffer."""
        tensors: list[tuple[int, Tensor]] = []
        end = 0

        def put(tensor: Tensor) -> _TensorPlace:
            nonlocal end
            tensors.append((end, tensor.contiguous()))
            end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
            return _TensorPlace(tensors[-1][0], tuple(tensor.shape), tensor.dtype)

        content = map_nested(batch, Tensor, put)
        buffer = torch.empty(end, dtype=torch.uint8)
        for offset, tensor in tensors:
            if tensor.numel():
                buffer[offset : offset + tensor.nbytes] = tensor.reshape(-1).view(torch.uint8)
        return cls(buffer, content)

    def to(self, device: torch.device) -> Batch:
        """The batch on a device; its tensors are views of one buffer."""
        buffer = self.buffer.to(device, non_blocking=True)

        def take(place: _TensorPlace) -> Tensor:
            size = prod(place.shape) * place.dtype.itemsize
            if not size:
                return torch.empty(place.shape, dtype=place.dtype, device=device)
            return buffer[place.offset : place.offset + size].view(place.dtype).view(place.shape)

        batch: Batch = map_nested(self.content, _TensorPlace, take)
        return batch


class Prefetcher(Generic[Key, Batch]):
    """Makes batches in worker processes, in order.

    Args:
        make: Turns a key into a batch.
        num_workers: The number of processes; with 0 batches are made in this process.
        device: Where batches will go; for a GPU, buffers are pinned.
    """

    def __init__(
        self, make: Callable[[Key], Batch], num_workers: int, device: torch.device
    ) -> None:
        self._make = make
        self._is_pinned = device.type == "cuda"
        # the workers whose batches are due, in order
        self._due: deque[Connection] = deque()
        self._workers: list[tuple[Connection, BaseProcess]] = []
        context = multiprocessing.get_context("fork")
        for _ in range(num_workers):
            here, there = context.Pipe()
            ends = [here, *(other for other, _ in self._workers)]
            process = context.Process(
                target=_work, args=(there, ends, make, os.getpid()), daemon=True
            )
            process.start()
            there.close()
            self._workers.append((here, process))

    def batches(self, wanted: Iterable[Key]) -> Iterator[FlatBatch[Batch]]:
        """The batches of these keys, in order.

        Batches of an earlier call that nobody took are dropped.
        """
        keys = iter(wanted)
        if not self._workers:
            for key in keys:
                yield FlatBatch.of(self._make(key))
            return
        while self._due:
            with suppress(GraphFormersError):
                self._receive()
        # the keys last: zip would otherwise take one more key than there are workers
        for (connection, _), key in zip(self._workers * KEYS_PER_WORKER, keys, strict=False):
            self._send(connection, key)
        while self._due:
            connection, batch = self._receive()
            for key in islice(keys, 1):
                self._send(connection, key)
            yield batch

    def _send(self, connection: Connection, key: Key) -> None:
        try:
            connection.send(key)
        except ConnectionError as error:
            raise GraphFormersError(WORKER_DIED) from error
        self._due.append(connection)

    def _receive(self) -> tuple[Connection, FlatBatch[Batch]]:
        connection = self._due.popleft()
        try:
            size, content = connection.recv()
            if size < 0:
                raise GraphFormersError(content)
            buffer = torch.empty(size, dtype=torch.uint8, pin_memory=self._is_pinned)
            if size:
                connection.recv_bytes_into(buffer.numpy())
        except (EOFError, ConnectionError) as error:
            raise GraphFormersError(WORKER_DIED) from error
        return connection, FlatBatch(buffer, content)

    def close(self) -> None:
        """Ends the workers."""
        # before their pipes are closed: they would print a traceback about that
        for _, process in self._workers:
            process.kill()
        for connection, process in self._workers:
            process.join()
            connection.close()
        self._workers = []
        self._due.clear()


def _work(
    connection: Connection, ends: list[Connection], make: Callable[[Key], Batch], parent: int
) -> None:
    """A worker process: receives keys, sends batches, dies with its parent, even by kill -9.

    It ignores signals: Ctrl-C reaches every process of the terminal, and torchrun sends SIGTERM to
    every process, but the parent finishes its step first and then ends its workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        return
    # A fork inherits the parent's ends; while they are open, a pipe does not report its end.
    for end in ends:
        end.close()
    torch.set_num_threads(1)
    while True:
        try:
            key = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            batch = FlatBatch.of(make(key))
        except Exception as error:
            reason = str(error) if isinstance(error, GraphFormersError) else traceback.format_exc()
            connection.send((-1, f"{key} could not be made: {reason}"))
            continue
        connection.send((len(batch.buffer), batch.content))
        if len(batch.buffer):
            connection.send_bytes(batch.buffer.numpy().data)
