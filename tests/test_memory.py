import resource
from pathlib import Path

import pytest
import torch

from graphformers.errors import GraphFormersError
from graphformers.memory import (
    CPU_WORK_BYTES,
    BatchSplitter,
    SuppressOutOfMemory,
    available_memory,
    work_bytes,
)

CPU = torch.device("cpu")
GIB = 1 << 30


def make_proc(folder: Path, groups: str = "", *, available: int = 8 * GIB) -> Path:
    """The process information of a machine with so much available memory."""
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text(
        f"MemTotal: {32 * GIB // 1024} kB\nMemAvailable: {available // 1024} kB\n"
    )
    (folder / "self" / "status").write_text(f"Name:\tpython\nVmSize:\t{GIB // 1024} kB\n")
    (folder / "self" / "cgroup").write_text(groups)
    return folder


def write_files(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def available(proc: Path, address_space: int = resource.RLIM_INFINITY) -> int:
    return available_memory(
        CPU, proc=proc, cgroups=proc.parent / "cgroup", address_space=address_space
    )


def test_the_machine_limits_memory(tmp_path: Path) -> None:
    assert available(make_proc(tmp_path / "proc", available=3 * GIB)) == 3 * GIB


def test_the_address_space_limits_memory(tmp_path: Path) -> None:
    proc = make_proc(tmp_path / "proc")
    assert available(proc, 4 * GIB) == 3 * GIB
    # more is used than is allowed
    assert available(proc, GIB // 2) == 0


def test_every_control_group_above_the_process_limits_memory(tmp_path: Path) -> None:
    proc = make_proc(tmp_path / "proc", "0::/jobs/mine\n")
    inner, outer = tmp_path / "cgroup" / "jobs" / "mine", tmp_path / "cgroup" / "jobs"
    write_files(inner, memory__max="max", memory__current=GIB)
    assert available(proc) == 8 * GIB
    write_files(outer, memory__max=6 * GIB, memory__current=2 * GIB)
    assert available(proc) == 4 * GIB
    # Cached files are freed when memory is needed.
    write_files(outer, memory__stat=f"anon 5\ninactive_file {GIB}")
    assert available(proc) == 5 * GIB
    write_files(inner, memory__max=3 * GIB)
    assert available(proc) == 2 * GIB


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    proc = make_proc(tmp_path / "proc", "5:cpu,cpuacct:/job\n4:memory:/job\n")
    place = tmp_path / "cgroup" / "memory" / "job"
    write_files(place, memory__limit_in_bytes=3 * GIB, memory__usage_in_bytes=2 * GIB)
    assert available(proc) == GIB


def test_in_a_container_the_root_is_the_group_of_the_process(tmp_path: Path) -> None:
    proc = make_proc(tmp_path / "proc", "0::/on/the/host\n")
    write_files(tmp_path / "cgroup", memory__max=2 * GIB, memory__current=GIB)
    assert available(proc) == GIB


def test_without_process_information_half_of_the_memory_counts(tmp_path: Path) -> None:
    assert 0 < available(tmp_path / "nowhere") < 1 << 50


def test_work_on_a_cpu_takes_a_fixed_amount_if_there_is_enough() -> None:
    assert work_bytes(CPU, 5 * GIB) == work_bytes(CPU, 500 * GIB) == CPU_WORK_BYTES
    assert work_bytes(CPU, GIB) == GIB // 2
    assert work_bytes(CPU, 0) == 0


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 3 GiB"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("CUDNN_STATUS_ALLOC_FAILED"),
    ],
)
def test_work_that_runs_out_of_memory_is_repeated_in_pieces(error: Exception) -> None:
    done: list[slice] = []

    def compute(part: slice) -> None:
        if part.stop - part.start > 3:
            raise error
        done.append(part)

    BatchSplitter().run(slice(0, 10), compute)
    assert [part.start for part in done] == [0, 2, 5, 7]
    with pytest.raises(GraphFormersError, match="too small even for one node"):
        BatchSplitter().run(slice(0, 1), lambda part: compute(slice(0, 10)))


def test_a_failed_allocation_of_torch_is_recognised() -> None:
    with SuppressOutOfMemory():
        torch.empty(1 << 60, dtype=torch.uint8)
        raise AssertionError("so much memory was given")
