"""Several processes that train one model together, started by torchrun; one process is the same
with nothing to exchange.

Gradients are summed here rather than by DistributedDataParallel: a step exchanges vectors once and
gradients once, however many chunks each process computes it in, and whether it has pairs in this
batch or not.
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
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from graphformers.errors import GraphFormersError
from graphformers.progress import be_silent

BUCKET_BYTES = 1 << 26  # of gradients that are summed in one message
FAILURE_KEY = "graphformers/failed"
HEARD_KEY = "graphformers/heard"
# that a process which failed waits until the others have noticed …
LONGEST_HEARING = timedelta(seconds=15)
LAST_WORDS = 2.0  # … and seconds that it leaves them then to say why they end
# of a process for the others: one may be tokenising or writing a checkpoint
LONGEST_WAIT = timedelta(hours=2)


@dataclass(frozen=True)
class World:
    """This process among all."""

    rank: int = 0
    size: int = 1
    control: Any = None  # a group for messages between CPUs; None where the usual one is such

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gather(self, rows_BD: Tensor, sizes: Sequence[int]) -> Tensor:
        """The rows of all processes, one after the other; each has its own number of them."""
        if self.size == 1:
            return rows_BD
        most = max(sizes)
        padded = rows_BD.new_zeros(most, *rows_BD.shape[1:])
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
        """Every parameter's gradient becomes the sum over all processes."""
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
        """The largest value of all processes. All of them get the same answer."""
        if self.size == 1:
            return value
        found = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.control)
        return float(found)

    def any(self, flag: bool) -> bool:
        """Whether it holds for any process."""
        return self.largest(float(flag)) > 0

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier(group=self.control)

    @contextmanager
    def first_then_others(self) -> Iterator[None]:
        """The first process runs the block alone, so that the others find what it made."""
        if not self.is_first:
            self.wait()
        yield
        if self.is_first:
            self.wait()

    def share(self, tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """The first process's tensors, on every process; what the others give does not matter."""
        if self.size == 1:
            return tensors
        kinds = {
            name: (str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
            for name, tensor in tensors.items()
        }
        found = {}
        for name, (kind, shape) in self.share_json(kinds).items():
            given = (
                tensors[name] if self.is_first else torch.empty(shape, dtype=getattr(torch, kind))
            )
            found[name] = given.to(device)
            dist.broadcast(found[name], 0)
        return found

    def share_json(self, value: Any) -> Any:
        """The first process's value, on every process."""
        if self.size == 1:
            return value
        text = torch.frombuffer(
            bytearray(json.dumps(value if self.is_first else None).encode()), dtype=torch.uint8
        )
        size = torch.tensor([len(text)])
        dist.broadcast(size, 0, group=self.control)
        buffer = text if self.is_first else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(buffer, 0, group=self.control)
        return json.loads(bytes(buffer.tolist()))


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


def own_device(asked: str | None) -> str | None:
    """The GPU of this process when torchrun started several on this machine."""
    if torch.cuda.is_available() and "LOCAL_RANK" in os.environ and asked in (None, "cuda"):
        return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    return asked


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """This process among those that torchrun started, or that the caller brought together; alone
    where there are no others.

    An error on one process ends all of them, each with the message of the one that failed.
    """
    is_ours = not dist.is_initialized()
    if is_ours and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Imported later, by torch's optimizers, this module's functions would keep the group as their
    # default, and with it the connections: those of a process that fails would stay open until it
    # is gone, and the others ended before they could say why.
    import_module("torch.distributed.nn.functional")
    if is_ours:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=LONGEST_WAIT)
    control = (
        None
        if is_ours and dist.get_backend() == "gloo"
        else dist.new_group(backend="gloo", timeout=LONGEST_WAIT)
    )
    world = World(dist.get_rank(), dist.get_world_size(), control)
    if not world.is_first:
        be_silent()
    store = dist.distributed_c10d._get_default_store()
    try:
        yield world
    except Exception as error:
        reason = _failure(world, store, error)
        if is_ours:
            atexit.register(
                _stay,
                [] if reason else [rank for rank in range(world.size) if rank != world.rank],
                store,
            )
        raise (reason or error) from (error if reason else None)
    finally:
        if is_ours:
            dist.destroy_process_group()


def _stay(others: list[int], store: Any) -> None:
    """What a process that failed does at its end, its error told: torchrun ends all as soon as one
    has ended.
    """
    with suppress(Exception):
        store.wait([f"{HEARD_KEY}/{rank}" for rank in others], LONGEST_HEARING)
    time.sleep(LAST_WORDS)


def _failure(world: World, store: Any, error: Exception) -> GraphFormersError | None:
    """The error of the process that left the others alone, if that is why this one fails; otherwise
    the others are told.
    """
    lost_the_others = isinstance(error, RuntimeError) and any(
        word in str(error).lower() for word in ("gloo", "nccl", "connection", "timed out", "socket")
    )
    if lost_the_others:
        with suppress(Exception):  # the store goes down with the first process
            store.wait([FAILURE_KEY], timedelta(seconds=5))
            store.set(f"{HEARD_KEY}/{world.rank}", "")
            return GraphFormersError(
                f"stopped, because another process failed: {store.get(FAILURE_KEY).decode()}"
            )
        return GraphFormersError(
            f"stopped, because another process is gone ({str(error).splitlines()[0]})"
        )
    with suppress(Exception):
        store.set(FAILURE_KEY, f"rank {world.rank}: {error}")
        # where all fail together, nobody waits for the others to hear of it
        store.set(f"{HEARD_KEY}/{world.rank}", "")
    return None
