"""Batches made ahead, in the background, by worker processes.

A batch travels as a parcel: all its tensors in one buffer. That is one message through a pipe, one
copy in pinned memory and one transfer to the GPU for each batch, however many pieces it has.

Workers are forked, so that they share the graph. They are ours rather than a DataLoader's: those
keep batches in shared memory, of which containers have little and whose end they do not survive,
and outlive a parent that is killed.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import prod
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from graphformers.batching.packing import map_tensors
from graphformers.errors import GraphFormersError

ALIGN = 16  # bytes
ORDERS = 2  # that each worker has at a time: one is sent, one is made


@dataclass(frozen=True)
class _Place:
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Parcel:
    """A batch whose tensors lie in one buffer."""

    buffer: Tensor  # uint8
    content: Any  # the batch, with places instead of tensors

    @staticmethod
    def of(batch: Any) -> "Parcel":
        tensors: list[tuple[int, Tensor]] = []
        end = 0

        def put(tensor: Tensor) -> _Place:
            nonlocal end
            tensors.append((end, tensor.contiguous()))
            end += -(-tensor.nbytes // ALIGN) * ALIGN
            return _Place(tensors[-1][0], tuple(tensor.shape), tensor.dtype)

        content = map_tensors(batch, put)
        buffer = torch.empty(end, dtype=torch.uint8)
        for offset, tensor in tensors:
            if tensor.numel():
                buffer[offset : offset + tensor.nbytes] = tensor.reshape(-1).view(torch.uint8)
        return Parcel(buffer, content)

    def open(self, device: torch.device) -> Any:
        """The batch on a device."""
        buffer = self.buffer.to(device, non_blocking=True)

        def take(place: _Place) -> Tensor:
            size = prod(place.shape) * place.dtype.itemsize
            if not size:
                return torch.empty(place.shape, dtype=place.dtype, device=device)
            return buffer[place.offset : place.offset + size].view(place.dtype).view(place.shape)

        return map_tensors(self.content, take, _Place)


class Workers:
    """Makes batches in `count` processes, in order; in this one where there are none. `make` turns
    a key into a batch.
    """

    def __init__(self, make: Callable[[Any], Any], count: int, device: torch.device) -> None:
        self._make = make
        self._is_pinned = device.type == "cuda"
        self._waiting: deque[Connection] = deque()  # whose answers are due, in order
        self._workers: list[tuple[Connection, Any]] = []
        context = multiprocessing.get_context("fork")
        for _ in range(count):
            here, there = context.Pipe()
            ends = [here, *(other for other, _ in self._workers)]
            process = context.Process(
                target=_work, args=(there, ends, make, os.getpid()), daemon=True
            )
            process.start()
            there.close()
            self._workers.append((here, process))

    def parcels(self, wanted: Iterable[Any]) -> Iterator[Parcel]:
        """The batches of these keys, in order; an earlier round that was left early does not
        disturb.
        """
        keys = iter(wanted)
        if not self._workers:
            for key in keys:
                yield Parcel.of(self._make(key))
            return
        while self._waiting:
            self._receive()
        for (connection, _), key in zip(
            self._workers * ORDERS, keys, strict=False
        ):  # in this order: zip must not take a key too many
            self._order(connection, key)
        while self._waiting:
            connection, parcel = self._receive()
            for key in islice(keys, 1):
                self._order(connection, key)
            yield parcel

    def _order(self, connection: Connection, key: Any) -> None:
        connection.send(key)
        self._waiting.append(connection)

    def _receive(self) -> tuple[Connection, Parcel]:
        connection = self._waiting.popleft()
        try:
            size, content = connection.recv()
            if size < 0:
                raise GraphFormersError(content)
            buffer = torch.empty(size, dtype=torch.uint8, pin_memory=self._is_pinned)
            if size:
                connection.recv_bytes_into(buffer.numpy())
        except (EOFError, ConnectionError) as error:
            raise GraphFormersError(
                "a process that makes batches is gone, perhaps for want of memory; fewer workers "
                "(--set workers=1) need less"
            ) from error
        return connection, Parcel(buffer, content)

    def close(self) -> None:
        """Ends the workers."""
        for _, process in self._workers:
            process.kill()  # before its pipe is closed: it would complain of that
        for connection, process in self._workers:
            process.join()
            connection.close()
        self._workers = []
        self._waiting.clear()


def _work(
    connection: Connection, ends: list[Connection], make: Callable[[Any], Any], parent: int
) -> None:
    """A worker: takes keys, sends parcels; dies with its parent, even by kill -9.

    Signals are the parent's affair: Ctrl-C reaches every process of the terminal, and torchrun
    sends SIGTERM to every process, but the parent wants to finish its step.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        return
    # the parent's, which a fork has too: kept open here, they would never tell that it is gone
    for end in ends:
        end.close()
    torch.set_num_threads(1)
    while True:
        try:
            key = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            parcel = Parcel.of(make(key))
        except Exception as error:
            reason = str(error) if isinstance(error, GraphFormersError) else traceback.format_exc()
            connection.send((-1, f"{key} could not be made: {reason}"))
            continue
        connection.send((len(parcel.buffer), parcel.content))
        if len(parcel.buffer):
            connection.send_bytes(parcel.buffer.numpy().data)
