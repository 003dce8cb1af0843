"""Prefetching: worker processes prepare batches ahead of their use.

All tensors of a batch are sent in one buffer: one message through a pipe, one copy in pinned memory
and one transfer to the GPU for each batch, however many tensors it has.

Workers are forked, so that they share the graph. A DataLoader is not used: its workers keep batches
in shared memory, of which containers have little and which leaks when they are killed, and they
keep running after their parent is killed.
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
# keys assigned to a worker at a time: it prepares one batch while another is sent
KEYS_PER_WORKER = 2
WORKER_DIED = (
    "a worker process that makes batches has died, perhaps for lack of memory; fewer workers "
    "(--set workers=1) need less"
)


@dataclass(frozen=True)
class _TensorPlace:
    """The position, shape and type of a tensor in the buffer."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class FlatBatch(Generic[Batch]):
    """A batch whose tensors are stored in one buffer.

    Attributes:
        buffer: uint8.
        content: The batch, with a _TensorPlace instead of each tensor.
    """

    buffer: Tensor
    content: object

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
        # the workers that have yet to send a batch, in order
        self._pending: deque[Connection] = deque()
        self._workers: list[tuple[Connection, BaseProcess]] = []
        context = multiprocessing.get_context("fork")
        for _ in range(num_workers):
            parent_end, worker_end = context.Pipe()
            parent_ends = [parent_end, *(connection for connection, _ in self._workers)]
            process = context.Process(
                target=_work, args=(worker_end, parent_ends, make, os.getpid()), daemon=True
            )
            process.start()
            worker_end.close()
            self._workers.append((parent_end, process))

    def batches(self, wanted: Iterable[Key]) -> Iterator[FlatBatch[Batch]]:
        """Yields the batches of these keys, in order.

        Unused batches of an earlier call are dropped.
        """
        keys = iter(wanted)
        if not self._workers:
            for key in keys:
                yield FlatBatch.of(self._make(key))
            return
        while self._pending:
            with suppress(GraphFormersError):
                self._receive()
        # `keys` is the last argument, so that zip does not consume a key without a worker
        for (connection, _), key in zip(self._workers * KEYS_PER_WORKER, keys, strict=False):
            self._send(connection, key)
        while self._pending:
            connection, batch = self._receive()
            for key in islice(keys, 1):
                self._send(connection, key)
            yield batch

    def _send(self, connection: Connection, key: Key) -> None:
        try:
            connection.send(key)
        except ConnectionError as error:
            raise GraphFormersError(WORKER_DIED) from error
        self._pending.append(connection)

    def _receive(self) -> tuple[Connection, FlatBatch[Batch]]:
        connection = self._pending.popleft()
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
        # Workers are killed before their pipes are closed, which would make them print tracebacks.
        for _, process in self._workers:
            process.kill()
        for connection, process in self._workers:
            process.join()
            connection.close()
        self._workers = []
        self._pending.clear()


def _work(
    connection: Connection, parent_ends: list[Connection], make: Callable[[Key], Batch], parent: int
) -> None:
    """Runs a worker process: receives keys, sends batches, and ends with its parent.

    It ignores signals: Ctrl-C reaches every process of the terminal, and torchrun sends SIGTERM to
    every process, but the parent finishes its step first and then ends its workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        # 1 is PR_SET_PDEATHSIG: the kernel kills this process if its parent is killed.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        return
    # A fork inherits the parent's ends of the pipes; while these are open, no end of file arrives.
    for end in parent_ends:
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
