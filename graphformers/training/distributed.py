"""Processes that train one model together, started by torchrun.

Gradients are summed here rather than by DistributedDataParallel: a step exchanges vectors once and
gradients once, however many chunks each process computes, and also if a process has no pairs in
the batch. A single process exchanges nothing and uses the same code.
"""

import atexit
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from graphformers.errors import GraphFormersError
from graphformers.progress import be_silent

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

Json = TypeVar("Json")

# bytes of gradients that are summed in one message
BUCKET_BYTES = 1 << 26
FAILURE_KEY = "graphformers/failed"
ACKNOWLEDGED_KEY = "graphformers/acknowledged"
# how long a failed process waits for the others to read its error, and then to print it
ACKNOWLEDGE_TIMEOUT = timedelta(seconds=15)
REPORT_SECONDS = 2.0
# Long, because another process may be tokenising or writing a checkpoint.
COLLECTIVE_TIMEOUT = timedelta(hours=2)


@dataclass(frozen=True)
class World:
    """The processes of a run.

    Attributes:
        rank: The number of this process.
        size: The number of processes.
        control: A process group for tensors on the CPU; None where the default group is one.
    """

    rank: int = 0
    size: int = 1
    control: dist.ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def gather(self, rows_BD: Tensor, sizes: Sequence[int]) -> Tensor:
        """The rows of all processes, in order of rank. `sizes` are their numbers of rows."""
        if self.size == 1:
            return rows_BD
        padded = rows_BD.new_zeros(max(sizes), *rows_BD.shape[1:])
        padded[: len(rows_BD)] = rows_BD
        found = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(found, padded)
        return torch.cat([rows[:size] for rows, size in zip(found, sizes, strict=True)])

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replaces each gradient by its sum over all processes."""
        if self.size == 1:
            return
        for bucket in _buckets(list(parameters)):
            flat = torch.cat([_gradient(parameter).flatten() for parameter in bucket])
            dist.all_reduce(flat)
            end = 0
            for parameter in bucket:
                parameter.grad = flat[end : end + parameter.numel()].view_as(parameter)
                end += parameter.numel()

    def largest(self, value: float) -> float:
        """The largest value of all processes."""
        if self.size == 1:
            return value
        found = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.control)
        return float(found)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        return self.largest(float(flag)) > 0

    def wait(self) -> None:
        """Waits until all processes have called this."""
        if self.size > 1:
            dist.barrier(group=self.control)

    @contextmanager
    def first_then_others(self) -> Iterator[None]:
        """A context that the first process runs alone; the others then find the files it wrote."""
        if not self.is_first:
            self.wait()
        yield
        if self.is_first:
            self.wait()

    def share(self, tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """The tensors of the first process, on every process."""
        if self.size == 1:
            return tensors
        layout = {
            name: (str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
            for name, tensor in tensors.items()
        }
        found = {}
        for name, (dtype, shape) in self.share_json(layout).items():
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            found[name] = (tensors[name] if self.is_first else tensor).to(device)
            dist.broadcast(found[name], 0)
        return found

    def share_json(self, value: Json) -> Json:
        """The value of the first process, on every process."""
        if self.size == 1:
            return value
        text = torch.frombuffer(
            bytearray(json.dumps(value if self.is_first else None).encode()), dtype=torch.uint8
        )
        size = torch.tensor([len(text)])
        dist.broadcast(size, 0, group=self.control)
        buffer = text if self.is_first else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(buffer, 0, group=self.control)
        shared: Json = json.loads(bytes(buffer.tolist()))
        return shared


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _buckets(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        bucket.append(parameter)
        size += parameter.nbytes
        if size >= BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


def is_first_process() -> bool:
    """Whether this process prints results: the only one, or the first that torchrun started."""
    return int(os.environ.get("RANK", "0")) == 0


def own_device(given: str | None) -> str | None:
    """The device of this process: its own GPU where torchrun started several processes."""
    if torch.cuda.is_available() and "LOCAL_RANK" in os.environ and given in (None, "cuda"):
        return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    return given


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """A context for the processes that torchrun started, or the caller's process group.

    An error on one process ends all of them, and each reports the message of the one that failed.
    """
    is_ours = not dist.is_initialized()
    if is_ours and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # torch's optimizers import this module, whose functions keep the process group as a default
    # argument. If it were imported after the group exists, it would keep the connections of a
    # failed process open, and torchrun would end the others before they can report the cause.
    import_module("torch.distributed.nn.functional")
    if is_ours:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", timeout=COLLECTIVE_TIMEOUT
        )
    control = (
        None
        if is_ours and dist.get_backend() == "gloo"
        else dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
    )
    world = World(dist.get_rank(), dist.get_world_size(), control)
    if not world.is_first:
        be_silent()
    store = dist.distributed_c10d._get_default_store()
    try:
        yield world
    except Exception as error:
        cause = _error_of_another_process(world, store, error)
        if is_ours:
            others = [rank for rank in range(world.size) if rank != world.rank]
            atexit.register(_wait_for_others, [] if cause else others, store)
        if cause:
            raise cause from error
        raise
    finally:
        if is_ours:
            dist.destroy_process_group()


def _wait_for_others(others: list[int], store: "Store") -> None:
    """Delays the exit of a failed process: torchrun ends all others as soon as one exits."""
    with suppress(Exception):
        store.wait([f"{ACKNOWLEDGED_KEY}/{rank}" for rank in others], ACKNOWLEDGE_TIMEOUT)
    time.sleep(REPORT_SECONDS)


def _error_of_another_process(
    world: World, store: "Store", error: Exception
) -> GraphFormersError | None:
    """The error of the process that failed first; None if it is this one.

    An error of this process is published to the others. A process whose connection fails, because
    another one has ended, reads the error of that one.
    """
    words = ("gloo", "nccl", "connection", "timed out", "socket")
    is_connection = isinstance(error, RuntimeError) and any(
        word in str(error).lower() for word in words
    )
    if is_connection:
        # fails if the first process, which hosts the store, has ended
        with suppress(Exception):
            store.wait([FAILURE_KEY], timedelta(seconds=5))
            store.set(f"{ACKNOWLEDGED_KEY}/{world.rank}", "")
            return GraphFormersError(
                f"stopped, because another process failed: {store.get(FAILURE_KEY).decode()}"
            )
        return GraphFormersError(
            f"stopped, because another process has ended ({str(error).splitlines()[0]})"
        )
    with suppress(Exception):
        store.set(FAILURE_KEY, f"rank {world.rank}: {error}")
        # If all processes fail, none has to wait for the others.
        store.set(f"{ACKNOWLEDGED_KEY}/{world.rank}", "")
    return None
