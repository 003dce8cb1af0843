"""Input files as streams: decompressed, with a progress bar; every failure names file and line."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from graphformers.data.problems import Problems
from graphformers.errors import InputError
from graphformers.progress import Progress, progress

RENAMED = "compressed files are known by their names, call it …"
UNPACKED = "unpack it, or save it as CSV"
BEGINNINGS = {  # of files that are not text, whatever their names say: what they are and what to do
    b"\x1f\x8b": ("gzip", f"{RENAMED}.gz"),
    b"\xfd7zXZ\0": ("xz", f"{RENAMED}.xz"),
    b"BZh91AY&SY": ("bzip2", f"{RENAMED}.bz2"),
    b"\x28\xb5\x2f\xfd": ("zstd", UNPACKED),
    b"PK\x03\x04": ("zip, as Excel's workbooks are", UNPACKED),
    b"PAR1": ("Parquet", "give it the suffix .parquet"),
}
Decompressor = gzip.GzipFile | lzma.LZMAFile | bz2.BZ2File
# suffix -> name, and how a compressed file is opened
COMPRESSED: dict[str, tuple[str, Callable[[io.BufferedReader], Decompressor]]] = {
    ".gz": ("gzip", lambda raw: gzip.GzipFile(fileobj=raw)),
    ".xz": ("xz", lzma.LZMAFile),
    ".bz2": ("bzip2", bz2.BZ2File),
}
LINES_PER_UPDATE = 4096


class BrokenStreamError(Exception):
    """A compressed stream ends early or is damaged."""

    def __init__(self, method: str, error: Exception) -> None:
        super().__init__(
            f"the {method} stream is cut short or damaged ({error}), expected a complete file; "
            f"fetch it again"
        )


def file_kind(path: Path) -> str:
    """The suffix that says what is in a file, compression aside: "papers.csv.gz" is "csv"."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED]
    return suffixes[-1].lstrip(".").lower() if suffixes else ""


def check_files(paths: list[Path]) -> None:
    """Raises before any work if one of the files cannot be read."""
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: no such file")
        if path.is_dir():
            raise InputError(f"{path}: a folder, expected a file")


class TrackedFile(io.FileIO):
    """A file that tells a progress bar how far it has been read, compressed or not."""

    def __init__(self, path: Path, task: Progress) -> None:
        super().__init__(path, "rb")
        self._task = task
        self._read = 0

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = super().readinto(buffer) or 0
        self._read += count
        self._task.update(self._read)
        return count


class Decompressed(io.RawIOBase):
    """The output of a decompressor, piece by piece: a stream that is cut short is read as far as it
    goes.
    """

    def __init__(self, method: str, file: Decompressor) -> None:
        self._method, self._file = method, file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            data = self._file.read1(len(buffer))
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise BrokenStreamError(self._method, error) from error
        except OSError as error:
            # the disk's error, not the data's: bz2 and gzip raise theirs without a number
            if error.errno is not None:
                raise
            raise BrokenStreamError(self._method, error) from error
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def open_stream(path: Path, task: Progress | None = None) -> Iterator[io.BufferedReader]:
    """The decompressed bytes of a file, without a byte order mark."""
    tracked = TrackedFile(path, task or Progress(path.name, None, "B"))
    raw: io.BufferedReader = io.BufferedReader(tracked, buffer_size=1 << 20)
    with raw:
        stream = raw
        if path.suffix in COMPRESSED:
            method, opened = COMPRESSED[path.suffix]
            stream = io.BufferedReader(Decompressed(method, opened(raw)), buffer_size=1 << 20)
        head = stream.peek(10)[:10]
        for beginning, (what, advice) in BEGINNINGS.items():
            if head.startswith(beginning):
                raise InputError(f"{path}:1: not text ({what}), expected UTF-8 text; {advice}")
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise InputError(
                f"{path}:1: UTF-16 text, expected UTF-8; convert it: iconv -f UTF-16 -t UTF-8 "
                f"{path.name}"
            )
        if head[:3] == b"\xef\xbb\xbf":
            stream.read(3)
        yield stream


def read_lines(path: Path, problems: Problems) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end). Lines that are not UTF-8 are problems, and
    so is a file that is cut short.
    """
    with progress(f"Reading {path.name}", path.stat().st_size, "B") as task:
        number = 0
        try:
            with open_stream(path, task) as stream:
                for number, line in enumerate(stream, 1):
                    if number % LINES_PER_UPDATE == 0:
                        task.advance(0, LINES_PER_UPDATE)
                    try:
                        text = line.rstrip(b"\r\n").decode()
                    except UnicodeDecodeError:
                        problems.add("wrong encoding", (path, number), bad_bytes(line) or "")
                    else:
                        yield number, text
        except BrokenStreamError as error:
            report_broken(path, number, error, problems)


def report_broken(path: Path, number: int, error: BrokenStreamError, problems: Problems) -> None:
    """Reports a compressed file that is broken after line `number`."""
    problems.add("broken compression", (path, f"after line {number}"), str(error))


def bad_bytes(data: bytes) -> str | None:
    """What is wrong with bytes that are not UTF-8, where, and what to type; None if they are."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        advice = "convert the file, for example: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW"
        return (
            f"byte 0x{data[error.start]:02x} at position {error.start + 1} "
            f"is not UTF-8, expected UTF-8 text; {advice}"
        )
    return None
