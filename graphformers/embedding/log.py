"""ChangeLog: an append-only file of records, each of which is there whole or not at all.

    head      the format, and the fingerprint of the base the changes belong to
    record    length (8 bytes), check of the length (8), SHA-256 over the previous record's and the payload (32), payload, END

A record counts once END stands behind it, which is written after everything before it is on disk. What a killed writer left
behind the last END is cut off by the next writer and ignored by readers, who are told how much it is. Anything else that does
not fit, a flipped bit anywhere before, is damage and refused: every checksum covers the one before, so that no record can be lost
or exchanged in the middle.

A payload is a JSON object and some arrays.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphformers.data.arrays import Array
from graphformers.errors import ArtifactError
from graphformers.files import full_disk, sync

NAME = "changes.log"
MAGIC = b"graphformers changes 1 "
END = b"\nwhole.\n"
PREFIX = 48
ALIGN = 64


@dataclass(frozen=True)
class Record:
    """One change: what it says, and its arrays by name."""

    content: dict[str, Any]
    arrays: dict[str, Array]


class ChangeLog:
    """The log of one folder of vectors. Reading maps it; appending needs the folder's lock, see `vectors.locked`."""

    def __init__(self, folder: Path, base: str) -> None:
        self.path = folder / NAME
        self._head = MAGIC + base.encode() + b"\n"
        self._digest = hashlib.sha256(self._head).digest()
        self.end = 0  # of what is whole
        self.unfinished = 0  # bytes behind that, when it was read

    def read(self) -> Iterator[Record]:
        """All whole records, in order, each checked; arrays are views of the mapped file."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < len(self._head):
            self.unfinished = size
            return
        with self.path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if not any(data[: len(self._head)]) and data.find(END) < 0:  # left unwritten by a power failure; nothing was whole
            self.unfinished = size
            return
        if data[: len(self._head)] != self._head:
            raise self._damaged(0, "its head does not name this folder's base")
        self.end = len(self._head)
        view = memoryview(data)
        while (payload := self._next(view)) is not None:
            yield unpack(payload)
        self.unfinished = len(view) - self.end

    def _next(self, view: memoryview) -> memoryview | None:
        start, left = self.end, len(view) - self.end
        if left < PREFIX or not any(view[start : start + 16]):
            return None
        length = int.from_bytes(view[start : start + 8], "little")
        if view[start + 8 : start + 16] != self._check(length):
            raise self._damaged(start, "a record's length is not what its check says")
        stop = start + PREFIX + length
        if len(view) < stop + len(END) or not any(view[stop : stop + len(END)]):
            return None
        payload = view[start + PREFIX : stop]
        digest = hashlib.sha256(self._digest + payload).digest()
        if view[start + 16 : start + PREFIX] != digest or view[stop : stop + len(END)] != END:
            raise self._damaged(start, "a record's checksum does not match")
        self._digest, self.end = digest, stop + len(END)
        return payload

    def append(self, record: Record) -> None:
        """Adds a record; when this returns it is on disk. Where it fails, the log is as it was."""
        payload = pack(record)
        digest = hashlib.sha256(self._digest + payload).digest()
        prefix = len(payload).to_bytes(8, "little") + self._check(len(payload)) + digest
        begun = self.end
        if begun and (not self.path.exists() or self.path.stat().st_size < begun):
            raise ArtifactError(f"{self.path}: was removed or cut while it was in use; restore it, nothing more is written")
        try:
            handle = os.open(self.path, os.O_RDWR | (0 if begun else os.O_CREAT), 0o666)
            try:
                os.ftruncate(handle, begun)  # what a killed writer left
                os.lseek(handle, begun, os.SEEK_SET)
                _write_all(handle, (b"" if begun else self._head) + prefix)
                _write_all(handle, payload)
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

    def _check(self, length: int) -> bytes:
        return hashlib.sha256(self._digest + length.to_bytes(8, "little")).digest()[:8]

    def _damaged(self, place: int, reason: str) -> ArtifactError:
        return ArtifactError(
            f"{self.path}: damaged at byte {place:,}, {reason}; restore it, or remove it to go back to the vectors without "
            "the changes it holds"
        )


def _write_all(handle: int, data: bytes) -> None:
    """Past Python's buffers, which would be written after all when a disk is full and the log was cut back."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def pack(record: Record) -> bytes:
    """A payload: the length of the JSON part, the JSON part, and every array at a multiple of ALIGN bytes behind it."""
    places: dict[str, Any] = {}
    end = 0
    for name, array in record.arrays.items():
        places[name] = {"dtype": array.dtype.str, "shape": list(array.shape), "offset": end}
        end += -(-array.nbytes // ALIGN) * ALIGN
    text = json.dumps({"content": record.content, "arrays": places}, ensure_ascii=False).encode()
    body = bytearray(end)
    for name, array in record.arrays.items():
        offset = places[name]["offset"]
        body[offset : offset + array.nbytes] = np.ascontiguousarray(array).tobytes()
    return len(text).to_bytes(8, "little") + text + bytes(body)


def unpack(payload: memoryview) -> Record:
    start = 8 + int.from_bytes(payload[:8], "little")
    parts: Mapping[str, Any] = json.loads(bytes(payload[8:start]))
    arrays = {}
    for name, place in parts["arrays"].items():
        dtype, shape = np.dtype(place["dtype"]), tuple(place["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        first = start + place["offset"]
        arrays[name] = np.frombuffer(payload[first : first + count * dtype.itemsize], dtype=dtype).reshape(shape)
    return Record(parts["content"], arrays)
