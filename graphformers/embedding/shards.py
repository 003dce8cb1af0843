"""Shards: rows of a large array in .npy files of equally many rows, each written whole or not at
all.

A shard is finished when its note is there, a small file with its size and SHA-256 that is written
after the shard itself is on disk. So work that was interrupted goes on behind the last finished
shard, and a shard that was damaged since is noticed.
"""

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from torch import Tensor

from graphformers.arrays import Array, load_array
from graphformers.artifact import Artifact
from graphformers.errors import ArtifactError
from graphformers.files import checksum, write_whole
from graphformers.records import ELSEWHERE, read_record

LOCK_TRIES = 20
PIECE = 2048  # rows that a thread copies at a time
# threads: while one waits for the disk, another computes a checksum; each holds a shard in memory
WRITERS = {"cuda": 3}


@dataclass(frozen=True)
class ShardedRows:
    """Rows of one shape in memory-mapped parts of `size` rows each, the last one perhaps
    shorter.
    """

    parts: tuple[Array, ...]
    size: int

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def take(
        self, rows: Array, out: Array | None = None, readers: ThreadPoolExecutor | None = None
    ) -> Array:
        """Some rows, in the order asked for; written to `out` and copied by several threads where
        these are given.
        """
        assert self.parts, "there are no rows to take from"
        result = (
            np.empty((len(rows), *self.parts[0].shape[1:]), dtype=self.parts[0].dtype)
            if out is None
            else out
        )
        if (rows[1:] < rows[:-1]).any():
            order = np.argsort(rows, kind="stable")
            result[order] = self.take(rows[order], readers=readers)
            return result
        if len(rows) and not 0 <= rows[0] <= rows[-1] < len(self):
            raise IndexError(f"rows {rows[0]} to {rows[-1]} asked for, there are {len(self)}")
        edges = np.searchsorted(rows, np.arange(len(self.parts) + 1) * self.size).tolist()
        pieces = [
            (shard, slice(start, min(start + PIECE, end)))
            for shard, (first, end) in enumerate(pairwise(edges))
            for start in range(first, end, PIECE)
        ]

        # "clip" is faster than "raise", which copies once more
        def copy(shard: int, piece: slice) -> None:
            np.take(
                self.parts[shard],
                rows[piece] - shard * self.size,
                axis=0,
                out=result[piece],
                mode="clip",
            )

        for _ in (map if readers is None else readers.map)(lambda piece: copy(*piece), pieces):
            pass
        return result


def lock_folder(handle: int) -> bool:
    """Locks an open folder for this process; False when another has it.

    Tried for a moment: the helpers of a process that was killed hold its locks until they are gone,
    too.
    """
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
    return False


def which_folder(place: str | Path | int) -> tuple[int, int] | None:
    """Which folder stands at a path, or is open under a handle, whatever its name."""
    try:
        found = os.stat(place)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def locked_handle(path: Path) -> int | None:
    """A handle of the folder that stands at a path, locked; None where another process has it.

    Whoever had it before may have put another folder in its place, or removed it, which is a
    FileNotFoundError.
    """
    while True:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        is_ours = lock_folder(handle)
        if is_ours and which_folder(handle) == which_folder(path):
            return handle
        os.close(handle)
        if not is_ours:
            return None


def shard_name(kind: str, shard: int) -> str:
    """Where a shard lies inside a folder of vectors: states/00003.npy."""
    return f"{kind}/{shard:05d}.npy"


def load_rows(artifact: Artifact, kind: str, size: int) -> ShardedRows:
    """The shards of one kind in an artifact; checksums are compared when a file is first read."""
    names = sorted(
        (name for name in artifact.files if name.startswith(f"{kind}/")),
        key=lambda name: (len(name), name),
    )
    parts = tuple(map(load_array, artifact.paths(names)))
    is_even = size > 0 and all(len(part) == size for part in parts[:-1])
    if not is_even or len({(part.shape[1:], part.dtype) for part in parts}) > 1:
        words = f"parts that are not {size:,} rows of one size each, as its manifest says"
        raise ArtifactError(f"{artifact.path / kind}: {words}; {ELSEWHERE}")
    return ShardedRows(parts, size)


def bounds(total: int, size: int) -> list[tuple[int, int]]:
    """The first row of every shard, and the one after its last."""
    return [(start, min(start + size, total)) for start in range(0, total, size)]


def npy_pieces(array: Array) -> tuple[bytes, memoryview]:
    """What a .npy file of this array consists of: its header and its numbers."""
    from io import BytesIO

    array = np.ascontiguousarray(array)
    head = BytesIO()
    np.lib.format.write_array_header_2_0(head, np.lib.format.header_data_from_array_1_0(array))
    return head.getvalue(), array.reshape(-1).view(np.uint8).data


class Note(TypedDict):
    """The note of a finished shard."""

    bytes: int
    sha256: str
    text_hash: NotRequired[str]  # of states


@dataclass(frozen=True)
class ShardFolder:
    """Shards being made: `folder` holds them, `notes` says which are finished."""

    folder: Path
    notes: Path

    def write(self, name: str, array: Array, about: Mapping[str, str] | None = None) -> None:
        """Writes a shard, then its note."""
        pieces = npy_pieces(array)
        note: dict[str, object] = {"bytes": sum(map(len, pieces))}
        note |= {"sha256": write_whole(self.folder / name, *pieces), **(about or {})}
        write_whole(self._note(name), json.dumps(note).encode())

    def note(self, name: str) -> Note | None:
        """What was noted of a finished shard; None where it is not finished or its size is
        wrong.
        """
        try:
            note = read_record(self._note(name), Note)
            return note if (self.folder / name).stat().st_size == note["bytes"] else None
        except (OSError, ArtifactError):
            return None

    def is_intact(self, name: str) -> bool:
        """Whether a finished shard still is what was written, by its checksum."""
        note = self.note(name)
        return note is not None and checksum(self.folder / name) == note["sha256"]

    def _note(self, name: str) -> Path:
        return self.notes / f"{name.replace('/', '-')}.json"


class ShardWriter:
    """Writes shards in the background while others are computed; what goes wrong there is raised
    here.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._count = WRITERS.get(device.type, 1)
        self._threads = ThreadPoolExecutor(self._count, "writing")
        self._waiting: list[Future[None]] = []
        # of each thread: a stream and pinned memory, which is dear to make
        self._own = threading.local()

    def put(self, rows: Tensor, write: Callable[[Array], None]) -> None:
        """Has `write` called with the rows as they will be when everything asked of the device
        until now is done.
        """
        while len(self._waiting) > self._count or (self._waiting and self._waiting[0].done()):
            self._waiting.pop(0).result()
        ready: Any = None
        if self._device.type == "cuda":
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record(torch.cuda.current_stream(self._device))
        self._waiting.append(self._threads.submit(self._write, rows, ready, write))

    def _write(self, rows: Tensor, ready: Any, write: Callable[[Array], None]) -> None:
        if ready is None:
            write(rows.numpy())
            return
        own, needed = self._own, rows.numel() * rows.element_size()
        if not hasattr(own, "stream"):
            own.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            own.staging = torch.empty(0, dtype=torch.uint8)
        if own.staging.numel() < needed:
            own.staging = torch.empty(needed, dtype=torch.uint8, pin_memory=True)
        here = own.staging[:needed].view(rows.dtype).view(rows.shape)
        with torch.inference_mode(), torch.cuda.stream(own.stream):
            own.stream.wait_event(ready)
            here.copy_(rows, non_blocking=True)
            own.stream.synchronize()
        write(here.numpy())

    def finish(self) -> None:
        """Returns when everything is on disk."""
        while self._waiting:
            self._waiting.pop(0).result()

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
