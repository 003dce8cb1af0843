"""Input files as decompressed streams with a progress bar; errors name the file and the line."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from graphformers.errors import InputError
from graphformers.graph.problems import Problems
from graphformers.progress import Progress, progress

RENAME = "compressed files are recognised by their suffix, name it …"
UNPACK = "unpack it, or save it as CSV"
# the first bytes of files that are not text: the name of the format, and advice
SIGNATURES = {
    b"\x1f\x8b": ("gzip", f"{RENAME}.gz"),
    b"\xfd7zXZ\0": ("xz", f"{RENAME}.xz"),
    b"BZh91AY&SY": ("bzip2", f"{RENAME}.bz2"),
    b"\x28\xb5\x2f\xfd": ("zstd", UNPACK),
    b"PK\x03\x04": ("zip, as Excel's workbooks are", UNPACK),
    b"PAR1": ("Parquet", "give it the suffix .parquet"),
}
Decompressor = gzip.GzipFile | lzma.LZMAFile | bz2.BZ2File
# the name of a compression, and the function that opens a file, by suffix
COMPRESSED: dict[str, tuple[str, Callable[[io.BufferedReader], Decompressor]]] = {
    ".gz": ("gzip", lambda raw: gzip.GzipFile(fileobj=raw)),
    ".xz": ("xz", lzma.LZMAFile),
    ".bz2": ("bzip2", bz2.BZ2File),
}
LINES_PER_UPDATE = 4096


@dataclass(frozen=True)
class Source:
    """An input of an import.

    Attributes:
        path: The file; for the format "python" the name of a package.
        holds: "nodes" or "edges" if the user said which; None otherwise.
    """

    path: Path
    holds: str | None = None


class BrokenStreamError(Exception):
    """A compressed stream ends early or is damaged."""

    def __init__(self, method: str, error: Exception) -> None:
        super().__init__(
            f"the {method} stream is cut short or damaged ({error}), expected a complete file; "
            f"fetch it again"
        )


def file_kind(path: Path) -> str:
    """The suffix of a file without that of a compression: "papers.csv.gz" is "csv"."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED]
    return suffixes[-1].lstrip(".").lower() if suffixes else ""


def check_files(paths: list[Path]) -> None:
    """Raises an error if one of the files does not exist or is a folder."""
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: no such file")
        if path.is_dir():
            raise InputError(f"{path}: a folder, expected a file")


class TrackedFile(io.FileIO):
    """A file that updates a progress bar by the bytes read."""

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
    """The output of a decompressor, as a stream that can be read up to where it is damaged."""

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
            # Errors of the disk have a number; bz2 and gzip raise errors without one.
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
        for signature, (kind, advice) in SIGNATURES.items():
            if head.startswith(signature):
                raise InputError(f"{path}:1: not text ({kind}), expected UTF-8 text; {advice}")
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise InputError(
                f"{path}:1: UTF-16 text, expected UTF-8; convert it: iconv -f UTF-16 -t UTF-8 "
                f"{path.name}"
            )
        if head[:3] == b"\xef\xbb\xbf":
            stream.read(3)
        yield stream


def read_lines(path: Path, problems: Problems) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end).

    Lines that are not UTF-8 and truncated files are reported as problems.
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
    """A message about the first byte that is not UTF-8; None if all are."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        advice = "convert the file, for example: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW"
        return (
            f"byte 0x{data[error.start]:02x} at position {error.start + 1} "
            f"is not UTF-8, expected UTF-8 text; {advice}"
        )
    return None
