"""ChangeLog: an append-only file of records, each of which is there whole or not at all.

    head      the format, and the fingerprint of the base the changes belong to
    record    length (8 bytes), check of the length (8), SHA-256 over the previous record's and the
              payload (32), payload, END

A record counts once END stands behind it, which is written after everything before it is on disk.
What a killed writer left behind the last END is cut off by the next writer and ignored by readers,
who are told how much it is. Anything else that does not fit, a flipped bit or a lost sector
anywhere before, is damage and refused: every checksum covers the one before, so that no record can
be lost or exchanged in the middle.

Whole records are read through a map of the file, since they stay as they are. What lies behind them
may be cut off at any moment, and touching a map there kills the process; so whether a record is
whole is read by system calls.

A payload is a JSON object and some arrays.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphformers.arrays import Array
from graphformers.errors import ArtifactError
from graphformers.files import full_disk, sync

NAME = "changes.log"
MAGIC = b"graphformers changes 1 "
END = b"\nwhole.\n"
PREFIX = 48
ALIGN = 64
BLOCK = 1 << 20  # bytes read at a time


@dataclass(frozen=True)
class Record:
    """One change: what it says, and its arrays by name."""

    content: dict[str, Any]
    arrays: dict[str, Array]


class ChangeLog:
    """The log of one folder of vectors. Reading maps it; appending needs the folder's lock, see
    `vectors.locked`.
    """

    def __init__(self, folder: Path, base: str) -> None:
        self.path = folder / NAME
        self._head = MAGIC + base.encode() + b"\n"
        self._digest = hashlib.sha256(self._head).digest()
        self.end = 0  # of what is whole
        self.unfinished = 0  # bytes behind that, when it was read

    def read(self) -> Iterator[Record]:
        """All whole records, in order, each checked; arrays are views of the mapped file."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            head = os.pread(file.fileno(), len(self._head), 0)
            if len(head) < len(self._head) or self._is_unwritten(file.fileno(), head, 0):
                self.unfinished = os.fstat(file.fileno()).st_size
                return
            if head != self._head:
                raise self._damaged(0, "its head does not name this folder's base")
            self.end = len(self._head)
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            while (payload := self._next(file.fileno(), view)) is not None:
                yield unpack(payload)
            self.unfinished = max(0, min(len(view), os.fstat(file.fileno()).st_size) - self.end)

    def _next(self, handle: int, view: memoryview) -> memoryview | None:
        """The payload of the next record, checked; None where there is no whole one any more."""
        start = self.end
        prefix = os.pread(handle, PREFIX, start)
        if len(prefix) < PREFIX or self._is_unwritten(handle, prefix[:16], start):
            return None
        length = int.from_bytes(prefix[:8], "little")
        if prefix[8:16] != self._check(length):
            raise self._damaged(start, "a record's length is not what its check says")
        stop = start + PREFIX + length
        end = os.pread(handle, len(END), stop)
        if (
            len(end) < len(END)
            or len(view) < stop + len(END)
            or self._is_unwritten(handle, end, stop)
        ):
            return None
        payload = view[start + PREFIX : stop]
        digest = self._digest_of([payload])
        if prefix[16:] != digest or end != END:
            raise self._damaged(start, "a record's checksum does not match")
        self._digest, self.end = digest, stop + len(END)
        return payload

    def _is_unwritten(self, handle: int, data: bytes, place: int) -> bool:
        """Whether these bytes are zeros that a power failure left. Then no whole record is behind
        them, or it is damage.
        """
        if any(data):
            return False
        start, before = place, b""
        while block := os.pread(handle, BLOCK, start):
            if END in before + block:
                raise self._damaged(place, "zeros stand there, and whole records behind them")
            start, before = start + len(block), block[1 - len(END) :]
        return True

    def append(self, record: Record) -> None:
        """Adds a record; when this returns it is on disk. Where it fails, the log is as it was."""
        payload = pack(record)
        digest, length = self._digest_of(payload), sum(map(len, payload))
        prefix = length.to_bytes(8, "little") + self._check(length) + digest
        begun = self.end
        if begun and (not self.path.exists() or self.path.stat().st_size < begun):
            raise ArtifactError(
                f"{self.path}: was removed or cut while it was in use; restore it, nothing more is "
                f"written"
            )
        try:
            handle = os.open(self.path, os.O_RDWR | (0 if begun else os.O_CREAT), 0o666)
            try:
                os.ftruncate(handle, begun)  # what a killed writer left
                os.lseek(handle, begun, os.SEEK_SET)
                _write_all(handle, (b"" if begun else self._head) + prefix)
                for piece in payload:
                    _write_all(handle, piece)
                os.fsync(handle)
                _write_all(handle, END)
                os.fsync(handle)
                end = os.lseek(handle, 0, os.SEEK_CUR)
                if not begun:
                    sync(self.path.parent)
            except OSError:
                os.ftruncate(handle, begun)
                raise
            finally:
                os.close(handle)
        except OSError as error:
            raise full_disk(error, self.path) from error
        self._digest, self.end, self.unfinished = digest, end, 0

    def _digest_of(self, payload: Sequence[bytes | memoryview]) -> bytes:
        """Of a record, which covers the one before."""
        digest = hashlib.sha256(self._digest)
        for piece in payload:
            digest.update(piece)
        return digest.digest()

    def _check(self, length: int) -> bytes:
        return hashlib.sha256(self._digest + length.to_bytes(8, "little")).digest()[:8]

    def _damaged(self, place: int, reason: str) -> ArtifactError:
        return ArtifactError(
            f"{self.path}: damaged at byte {place:,}, {reason}; restore it, or remove it to go "
            f"back to the vectors without "
            "the changes it holds"
        )


def _write_all(handle: int, data: bytes | memoryview) -> None:
    """Past Python's buffers, which would be written after all when a disk is full and the log was
    cut back.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def pack(record: Record) -> list[bytes | memoryview]:
    """A payload in pieces: the length of the JSON part, the JSON part, and every array at a
    multiple of ALIGN bytes behind it.
    """
    places: dict[str, Any] = {}
    body: list[bytes | memoryview] = []
    end = 0
    for name, array in record.arrays.items():
        places[name] = {"dtype": array.dtype.str, "shape": list(array.shape), "offset": end}
        gap = -array.nbytes % ALIGN
        body += [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, bytes(gap)]
        end += array.nbytes + gap
    text = json.dumps({"content": record.content, "arrays": places}, ensure_ascii=False).encode()
    return [len(text).to_bytes(8, "little"), text, *body]


def unpack(payload: memoryview) -> Record:
    start = 8 + int.from_bytes(payload[:8], "little")
    parts: Mapping[str, Any] = json.loads(bytes(payload[8:start]))
    arrays = {}
    for name, place in parts["arrays"].items():
        dtype, shape = np.dtype(place["dtype"]), tuple(place["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        first = start + place["offset"]
        arrays[name] = np.frombuffer(
            payload[first : first + count * dtype.itemsize], dtype=dtype
        ).reshape(shape)
    return Record(parts["content"], arrays)
