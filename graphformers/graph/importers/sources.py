"""Inputs as decompressed streams: files, pipes and standard input. Each is opened once.

Errors name the file and the line.
"""

import bz2
import codecs
import gzip
import io
import logging
import lzma
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from graphformers.errors import InputError
from graphformers.graph.importers.encodings import (
    Converter,
    bad_bytes,
    guess_encoding,
    is_binary,
    is_text,
)
from graphformers.graph.problems import Problems, format_place
from graphformers.graph.settings import ImportSettings
from graphformers.progress import Progress, amount, progress

logger = logging.getLogger(__name__)
UNPACK = "unpack it, or save it as CSV"
TABLE = "save its content as a table, such as .csv"
# the first bytes of files that are not text: the name of the format, and advice
SIGNATURES = {
    b"\x1f\x8b": ("gzip within a compressed file", "decompress it once"),
    b"\xfd7zXZ\0": ("xz within a compressed file", "decompress it once"),
    b"BZh91AY&SY": ("bzip2 within a compressed file", "decompress it once"),
    b"\x28\xb5\x2f\xfd": ("zstd", UNPACK),
    b"PK\x03\x04": ("zip, as Excel's workbooks are", UNPACK),
    b"7z\xbc\xaf\x27\x1c": ("7z", UNPACK),
    b"Rar!": ("rar", UNPACK),
    b"PAR1": ("Parquet", "give it the suffix .parquet"),
    b"ARROW1\0": ("Feather, or Arrow IPC", TABLE),
    b"\xd0\xcf\x11\xe0": ("an old Excel or Office file", TABLE),
    b"SQLite format 3\0": ("SQLite", TABLE),
    b"\x89HDF": ("HDF5", TABLE),
    b"\x93NUMPY": ("NumPy", TABLE),
    b"%PDF-": ("PDF", TABLE),
    b"\x89PNG": ("PNG", TABLE),
    b"\xff\xd8\xff": ("JPEG", TABLE),
    b"GIF87a": ("GIF", TABLE),
    b"GIF89a": ("GIF", TABLE),
    b"\x7fELF": ("ELF, a program", TABLE),
}
# the first bytes, in lower case, of what a download may leave instead of a file
STAND_INS = {
    b"<!doctype html": ("a web page", "download the file itself, not the page that links to it"),
    b"<html": ("a web page", "download the file itself, not the page that links to it"),
    b"version https://git-lfs": ("a Git LFS pointer", "git lfs pull fetches the file"),
}
PARQUET = b"PAR1"
Decompressor = gzip.GzipFile | lzma.LZMAFile | bz2.BZ2File
# by suffix: the name of a compression, the first bytes of its files, and the function that opens
# a file
COMPRESSED: dict[str, tuple[str, bytes, Callable[[io.BufferedReader], Decompressor]]] = {
    ".gz": ("gzip", b"\x1f\x8b", lambda raw: gzip.GzipFile(fileobj=raw)),
    ".xz": ("xz", b"\xfd7zXZ\0", lzma.LZMAFile),
    ".bz2": ("bzip2", b"BZh", bz2.BZ2File),
}
STDIN = Path("/dev/stdin")
BUFFER_BYTES = 1 << 18
# read ahead of a decompressor
COMPRESSED_BYTES = 1 << 16
# Bytes at the beginning of an input that tell its kind.
HEAD_BYTES = 1024
# So much may be decompressed from a file of any size.
FREE_BYTES = 16_000_000
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


def input_path(name: str | Path) -> Path:
    """The path of an input as the user named it; "-" is standard input.

    Raises:
        InputError: The name is empty, or a URL.
    """
    if str(name) == "":
        raise InputError("an empty name given, expected that of a file; . is the current folder")
    # A Path has one slash only.
    if re.match(r"(https?|ftp|s3|gs):/", str(name)):
        raise InputError(f"{name}: a URL, expected a file; download it first")
    return STDIN if str(name) == "-" else Path(name)


def is_stream(path: Path) -> bool:
    """Whether an input is a pipe or a device, whose name does not tell what it holds."""
    named = path == STDIN or path.parent in (Path("/dev/fd"), Path("/proc/self/fd"))
    return named or not path.is_file()


def file_kind(path: Path) -> str:
    """The suffix of a file without that of a compression: "papers.csv.gz" is "csv"."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    suffixes = [suffix for suffix in suffixes if suffix not in COMPRESSED]
    return suffixes[-1].lstrip(".") if suffixes else ""


def check_files(paths: list[Path]) -> None:
    """Raises an error if one of the files does not exist."""
    for path in paths:
        if not path.exists():
            names = [file.name for file in path.parent.glob("*")]
            near = get_close_matches(path.name, names, 1, cutoff=0.75)
            hint = f"; did you mean {path.with_name(near[0])}?" if near else ""
            raise InputError(f"{path}: no such file{hint}")


class _Bytes(io.RawIOBase):
    """Bytes whose beginning can be looked at before they are read."""

    _ahead = b""
    _broken: BrokenStreamError | None = None

    def readable(self) -> bool:
        return True

    def head(self, size: int) -> bytes:
        """The first bytes that are not read yet, `size` of them unless there are fewer."""
        while len(self._ahead) < size:
            buffer = bytearray(size - len(self._ahead))
            try:
                count = self._read_more(memoryview(buffer))
            except BrokenStreamError as error:
                # What comes before the damage can be read.
                self._broken = error
                break
            if not count:
                break
            self._ahead += bytes(buffer[:count])
        return self._ahead

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._ahead:
            if self._broken is not None:
                raise self._broken
            return self._read_more(buffer)
        part = self._ahead[: len(buffer)]
        buffer[: len(part)] = part
        self._ahead = self._ahead[len(part) :]
        return len(part)

    def _read_more(self, buffer: memoryview) -> int:
        raise NotImplementedError


class _File(_Bytes):
    """A file or a pipe that updates a progress bar by the bytes read."""

    def __init__(self, path: Path) -> None:
        try:
            # Opening /dev/stdin fails where standard input is a socket.
            self._file = io.FileIO(0, closefd=False) if path == STDIN else io.FileIO(path)
        except IsADirectoryError as error:
            raise InputError(f"{path}: a folder, expected a file") from error
        found = os.fstat(self._file.fileno())
        self.size = found.st_size if stat.S_ISREG(found.st_mode) else None
        self.task: Progress | None = None
        self.num_read = 0

    def close(self) -> None:
        self._file.close()
        super().close()

    def _read_more(self, buffer: memoryview) -> int:
        count = self._file.readinto(buffer) or 0
        self.num_read += count
        if self.task is not None:
            self.task.update(self.num_read)
        return count


class _Decompressed(_Bytes):
    """The output of a decompressor, as a stream that can be read up to where it is damaged.

    Raises an error if the output is larger than `max_expansion` times the input.
    """

    def __init__(self, path: Path, method: str, raw: _File, max_expansion: int) -> None:
        self._path, self._method, self._raw = path, method, raw
        self._file = next(
            opener(io.BufferedReader(raw, COMPRESSED_BYTES))
            for name, _, opener in COMPRESSED.values()
            if name == method
        )
        self._max_expansion = max_expansion
        self._num_written = 0

    def close(self) -> None:
        self._raw.close()
        super().close()

    def _read_more(self, buffer: memoryview) -> int:
        try:
            data = self._file.read1(len(buffer))
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise BrokenStreamError(self._method, error) from error
        except OSError as error:
            # Errors of the disk have a number; bz2 and gzip raise errors without one.
            if error.errno is not None:
                raise
            raise BrokenStreamError(self._method, error) from error
        self._num_written += len(data)
        if self._num_written > max(FREE_BYTES, self._max_expansion * self._raw.num_read):
            raise InputError(
                f"{self._path}: the {self._method} stream holds more than {self._max_expansion} "
                f"times its own size, expected at most that; "
                f"{ImportSettings.usage(max_expansion=10 * self._max_expansion)} allows more"
            )
        buffer[: len(data)] = data
        return len(data)


class _Converted(_Bytes):
    """Text of another encoding, converted to UTF-8. A warning is logged if it was UTF-8."""

    def __init__(self, path: Path, text: _Bytes, encoding: str) -> None:
        self._path, self._text, self._encoding = path, text, encoding
        self._converter = Converter(encoding)
        self._done, self._is_last = b"", False
        # While all bytes are UTF-8, the decoder of UTF-8, and whether any are not ASCII.
        self._utf8: codecs.IncrementalDecoder | None = codecs.getincrementaldecoder("utf-8")()
        self._is_ascii = True

    def close(self) -> None:
        self._text.close()
        super().close()

    def _read_more(self, buffer: memoryview) -> int:
        while not self._done and not self._is_last:
            piece = bytearray(BUFFER_BYTES)
            count = self._text.readinto(memoryview(piece))
            self._is_last = count == 0
            data = bytes(piece[:count])
            self._check_utf8(data)
            try:
                self._done = self._converter.convert(data, final=self._is_last)
            except UnicodeError as error:
                # Such as a byte order mark that is missing.
                raise InputError(
                    f"{self._path}: not {self._encoding} ({error}); the encoding holds for all "
                    f"files: convert those in it to UTF-8, such as with iconv -f {self._encoding} "
                    f"-t utf-8 FILE > NEW, and leave out "
                    f"{ImportSettings.usage(encoding=self._encoding)}"
                ) from error
        part, self._done = self._done[: len(buffer)], self._done[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def _check_utf8(self, data: bytes) -> None:
        """Logs a warning at the end of text that is UTF-8 and not only ASCII."""
        if self._utf8 is None:
            return
        self._is_ascii &= data.isascii()
        try:
            self._utf8.decode(data, self._is_last)
        except UnicodeDecodeError:
            self._utf8 = None
            return
        if self._is_last and not self._is_ascii:
            logger.warning(
                f"WARNING: {self._path}: read as {self._encoding}, but the whole file is UTF-8, "
                f"and its characters beyond ASCII are probably wrong now; the encoding holds for "
                f"all files: convert those that are not UTF-8, and leave out "
                f"{ImportSettings.usage(encoding=self._encoding)}"
            )


class Stream(io.BufferedReader):
    """The decompressed bytes of an input, without a byte order mark. Made by `open_stream`.

    Attributes:
        path: The input.
        head: The first bytes.
    """

    def __init__(self, path: Path, file: _File, text: _Bytes, head: bytes) -> None:
        super().__init__(text, BUFFER_BYTES)
        self.path, self.head = path, head
        self._file = file

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Shows the progress of reading during a `with` block, after which the stream is closed."""
        with self, progress(f"Reading {self.path.name}", self._file.size, "B") as task:
            self._file.task = task
            yield task


def open_stream(path: Path, settings: ImportSettings, *, parquet: bool = False) -> Stream:
    """Opens an input. Its first bytes tell whether it is compressed, and how.

    Args:
        path: A file, a pipe or a device.
        settings: Limits of reading.
        parquet: Whether a Parquet file may be read as bytes; otherwise only text.

    Raises:
        InputError: The input is a folder, or holds something else than text.
    """
    file = _File(path)
    try:
        text: _Bytes = file
        head = file.head(HEAD_BYTES)
        method = _compression(path, head)
        if method is not None:
            text = _Decompressed(path, method, file, settings.max_expansion)
            head = text.head(HEAD_BYTES)
        is_parquet = parquet and head.startswith(PARQUET)
        # A byte order mark of UTF-8 comes before the encoding that the user named.
        if not is_parquet and not head.startswith(codecs.BOM_UTF8):
            _check_text(path, head, settings.encoding)
            if settings.encoding != "utf-8":
                text = _Converted(path, text, settings.encoding)
                head = text.head(HEAD_BYTES)
        stream = Stream(path, file, text, head)
        if head.startswith(codecs.BOM_UTF8):
            stream.read(3)
            stream.head = head[3:]
    except BaseException:
        file.close()
        raise
    return stream


def _compression(path: Path, head: bytes) -> str | None:
    """The compression of a file by its first bytes, or else its suffix; None if it has none."""
    for name, mark, _ in COMPRESSED.values():
        if head.startswith(mark):
            return name
    if path.suffix.lower() not in COMPRESSED:
        return None
    name = COMPRESSED[path.suffix.lower()][0]
    if head and is_text(head):
        _check_text(path, head, "utf-8")
        raise InputError(
            f"{path}: not {name}, in spite of its name, but text; rename it to {path.stem}"
        )
    return name


def _check_text(path: Path, head: bytes, encoding: str) -> None:
    """Raises an error if the first bytes of an input are not those of text in an encoding."""
    for mark, (kind, advice) in SIGNATURES.items():
        if head.startswith(mark):
            raise InputError(f"{path}:1: not text ({kind}), expected UTF-8 text; {advice}")
    for mark, (kind, advice) in STAND_INS.items():
        if head.lstrip().lower().startswith(mark):
            raise InputError(f"{path}:1: {kind}, expected a file of data; {advice}")
    if codecs.lookup(encoding).name.startswith(("utf-16", "utf-32")):
        return
    found = guess_encoding(head)
    if not is_text(head, found) if found else encoding == "utf-8" and is_binary(head):
        raise InputError(f"{path}:1: not text, expected text in {encoding}; {TABLE}")
    if found and encoding == "utf-8":
        raise InputError(
            f"{path}:1: {found.upper()} text, expected UTF-8; "
            f"{ImportSettings.usage(encoding=found)} reads it"
        )
    if found:
        raise InputError(
            f"{path}:1: {found.upper()} text, expected {encoding}; the encoding holds for all "
            f"files: convert those in another one first, such as with iconv -f {found} -t utf-8 "
            f"{path.name} > NEW"
        )


def read_lines(
    path: Path, settings: ImportSettings, problems: Problems
) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end) of an input.

    Lines that are not UTF-8 or too long, and truncated files, are reported as problems.
    """
    return stream_lines(open_stream(path, settings), settings, problems)


def stream_lines(
    stream: Stream, settings: ImportSettings, problems: Problems
) -> Iterator[tuple[int, str]]:
    """Yields the lines of an open input, as `read_lines`, and closes it."""
    limit, path, number = settings.row_bytes, stream.path, 0
    with stream.progress() as task:
        try:
            lines = iter(partial(stream.readline, limit + 1), b"")
            for number, line in enumerate(lines, 1):
                if number % LINES_PER_UPDATE == 0:
                    task.advance(0, LINES_PER_UPDATE)
                if len(line) > limit and not line.endswith(b"\n"):
                    problems.add("malformed row", (path, number), too_long(settings))
                    skip_line(stream)
                    continue
                try:
                    text = line.rstrip(b"\r\n").decode()
                except UnicodeDecodeError:
                    wrong = bad_bytes(line, settings.encoding) or ""
                    problems.add("wrong encoding", (path, number), wrong)
                else:
                    yield number, text
        except BrokenStreamError as error:
            report_broken(path, number, error, problems)


def skip_line(stream: io.BufferedReader) -> None:
    """Reads to the end of a line without keeping it."""
    while (line := stream.readline(BUFFER_BYTES)) and not line.endswith(b"\n"):
        pass


def too_long(settings: ImportSettings) -> str:
    """A message about a row that is longer than the settings allow."""
    return (
        f"a row of more than {amount(settings.row_bytes, 'B')}, expected at most that; "
        f"{ImportSettings.usage(max_row=2 * settings.max_row)} allows longer ones"
    )


def report_broken(path: Path, number: int, error: BrokenStreamError, problems: Problems) -> None:
    """Reports a compressed file that is broken after line `number`."""
    place = path, f"after line {number}"
    if problems.strict:
        reads = ImportSettings.usage(skip_bad=True)
        raise InputError(f"{format_place(place)}: {error}, or {reads} reads what is there")
    problems.add("broken compression", place, str(error))
    logger.warning(f"WARNING: {path}: everything after line {number:,} is missing: {error}")
