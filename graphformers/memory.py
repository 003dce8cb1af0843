"""Memory: how much is available, and recovery when it runs out.

On a CPU a process that uses too much memory is killed without an error, so work is divided by what
is available before it starts. On every device, work that still runs out of memory is repeated in
smaller pieces.
"""

import logging
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import torch

from graphformers.arrays import equal_parts
from graphformers.errors import GraphFormersError

logger = logging.getLogger(__name__)

# Bytes that the activations of a step, or the states of an encoding, may take on a CPU. It is a
# fixed number, so that a busy machine divides work as an idle one does, with equal results. More
# would not be faster.
CPU_WORK_BYTES = 2 << 30
# The share of the available memory that work may take. On a CPU other processes need some, too.
WORK_SHARES = {"cuda": 0.9}
CPU_WORK_SHARE = 0.5


def work_bytes(device: torch.device, available: int | None = None) -> int:
    """Bytes that the activations of a step, or the states of an encoding, may take.

    Args:
        device: The device that computes.
        available: The memory that is available there; by default `available_memory(device)`.
    """
    available = available_memory(device) if available is None else available
    share = int(max(available, 0) * WORK_SHARES.get(device.type, CPU_WORK_SHARE))
    return share if device.type == "cuda" else min(share, CPU_WORK_BYTES)


def available_memory(
    device: torch.device,
    *,
    proc: Path = Path("/proc"),
    cgroups: Path = Path("/sys/fs/cgroup"),
    address_space: int | None = None,
) -> int:
    """Bytes that this process can still allocate on a device.

    On a CPU this is the least of what the machine, the control groups of the process (containers)
    and its address space (`ulimit -v`) leave.

    Args:
        device: The device.
        proc: The folder of Linux's process information.
        cgroups: The folder of Linux's control groups.
        address_space: The limit of the address space in bytes; by default that of this process.
    """
    if device.type == "cuda":
        # torch keeps freed memory, and uses it again.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    found = [*_machine_memory(proc), *_cgroup_memory(proc, cgroups)]
    if address_space is None:
        address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    used = _numbers(proc / "self" / "status").get("VmSize", 0)
    if address_space != resource.RLIM_INFINITY:
        found.append(address_space - used * 1024)
    return max(min(found), 0)


def _machine_memory(proc: Path) -> list[int]:
    """The available memory of the machine; half of all where the system does not say it."""
    available = _numbers(proc / "meminfo").get("MemAvailable")
    if available is not None:
        return [available * 1024]
    return [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2]


def _cgroup_memory(proc: Path, cgroups: Path) -> Iterator[int]:
    """What each control group with a limit leaves, from that of the process to the root."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        if not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
        place = root / path.lstrip("/")
        # In a container the path may be that of the host; then the root is its group.
        for folder in (place, *place.parents):
            with suppress(OSError, ValueError):
                limit, used = (int((folder / name).read_text()) for name in names[:2])
                # The kernel frees cached files before it kills a process.
                cached = _numbers(folder / "memory.stat").get(names[2], 0)
                yield limit - used + cached
            if folder == root:
                break


def _numbers(file: Path) -> dict[str, int]:
    """The numbers of a file with lines such as `MemAvailable:  1024 kB`, by their names."""
    try:
        rows = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that a device has no memory left.

    torch has an error type for GPUs, but the libraries that it calls, and its allocator on a CPU,
    raise plain RuntimeErrors.
    """
    messages = ("out of memory", "STATUS_ALLOC_FAILED", "can't allocate memory", "enough memory")
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in messages)


class SuppressOutOfMemory:
    """Ends a `with` block early, without an error, when a device has no memory left."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return error is not None and is_out_of_memory(error)


class BatchSplitter:
    """Computes batches in pieces that fit into memory.

    Batches are whole at first. When one does not fit, it and all later ones are divided into twice
    as many pieces. The results differ at most by rounding.
    """

    def __init__(self) -> None:
        self.num_pieces = 1

    def run(self, part: slice, compute: Callable[[slice], None]) -> None:
        """Calls `compute` with the items of a batch, all of them or some at a time.

        Raises:
            GraphFormersError: The memory is too small for a single item.
        """
        size = part.stop - part.start
        before = self.num_pieces
        while True:
            count = max(1, min(self.num_pieces, size))
            edges = [part.start + edge for edge in equal_parts(size, count)]
            try:
                for start, stop in pairwise(edges):
                    compute(slice(start, stop))
                break
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if self.num_pieces >= size:
                    raise GraphFormersError(
                        "the memory is too small even for one node at a time, "
                        f"or other processes use it ({error})"
                    ) from error
            self.num_pieces *= 2
            torch.cuda.empty_cache()
        if self.num_pieces > before:
            logger.warning(
                "out of memory: batches are computed in %d pieces, which takes longer",
                self.num_pieces,
            )
