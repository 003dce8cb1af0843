"""Atomic writes, locks and checksums of single files."""

import errno
import fcntl
import glob
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.progress import amount


def write_whole(path: Path, *pieces: bytes | memoryview) -> str:
    """Writes a file atomically and returns its SHA-256."""
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with put_in_place(path) as beside, beside.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def put_in_place(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside a file, and renames it to the file after the `with` block.

    The content is on disk before it is renamed. A failure removes the temporary file; a killed
    process leaves it unlocked, and `sweep_beside` removes it later.
    """
    beside, handle = path.with_name(f".{path.name}.{secrets.token_hex(4)}"), -1
    try:
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield beside
        sync(beside)
        os.replace(beside, path)
        sync(path.parent)
    except OSError as error:
        raise full_disk(error, path) from error
    finally:
        beside.unlink(missing_ok=True)
        if handle >= 0:
            os.close(handle)


def sweep_beside(path: Path) -> None:
    """Removes temporary files that killed processes left beside a file."""
    remove_abandoned(path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}"))


def remove_abandoned(drafts: Iterable[Path]) -> None:
    """Removes temporary files and folders that no process has locked."""
    for draft in drafts:
        # An error means that another process is writing it, or that it was removed.
        with suppress(OSError):
            handle = _open_lock(draft)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if draft.is_dir():
                    shutil.rmtree(draft, ignore_errors=True)
                else:
                    draft.unlink()
            finally:
                os.close(handle)


@contextmanager
def held(lock: Path, message: str | None = None, *, create: bool = True) -> Iterator[None]:
    """Holds a lock for a `with` block; the kernel releases it when the process ends.

    Args:
        lock: A folder, or a lock file, which is not removed.
        message: The error to raise if another process has the lock; without one, the call waits.
        create: Whether to create a lock file that does not exist, and its folder.
    """
    if create:
        lock.parent.mkdir(parents=True, exist_ok=True)
    handle = _open_lock(lock, os.O_CREAT if create else 0)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if message else 0))
        except BlockingIOError as error:
            raise ArtifactError(message) from error
        yield
    finally:
        os.close(handle)


def _open_lock(path: Path, flags: int = 0) -> int:
    """Opens a file or a folder as a handle that can be locked."""
    return os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | flags, 0o666)


def foreign_entry(folder: Path, mark: str) -> str | None:
    """The first entry of a folder that is not ours; None if the folder is.

    A folder is ours if it holds the file `mark`, or only temporary files of it.
    """
    if not folder.is_dir() or (folder / mark).is_file():
        return None
    names = sorted(entry.name for entry in folder.iterdir())
    return next((name for name in names if not name.startswith(f".{mark}.")), None)


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Waits until a file or a folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def require_space(place: Path, needed: int, advice: str = "") -> None:
    """Raises an error if a disk has less free space than needed."""
    free = shutil.disk_usage(place).free
    if needed > free:
        raise GraphFormersError(
            f"{place}: {amount(needed, 'B')} are needed, {amount(free, 'B')} are free{advice}"
        )


def full_disk(error: OSError, target: Path) -> Exception:
    """The exception to raise for an OSError: an ArtifactError if the disk is full, else itself."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ArtifactError(f"{target}: the disk is full; what was there before is unchanged")
    return error
