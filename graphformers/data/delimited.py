"""Delimited text, .csv and .tsv, as streams of column batches.

A file is read in blocks of whole rows. A block whose quotes and line ends can be understood in one
way only goes to Arrow's reader; any other, and any that Arrow refuses, goes row by row through
Python's `csv`, slower and exact: it names the line, or leaves the row out. So speed is what clean
data gets, and no row is lost to a guess.
"""

import csv
import io
import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from graphformers.data.arrays import Array
from graphformers.data.columns import repeated
from graphformers.data.problems import LateLine, Locate, Place, Problems, RowKey
from graphformers.data.sources import (
    BrokenStreamError,
    bad_bytes,
    file_kind,
    open_stream,
    report_broken,
)
from graphformers.errors import InputError
from graphformers.progress import Progress, progress

DELIMITERS = {"csv": ",", "tsv": "\t", "txt": "\t"}
BLOCK_BYTES = 16 << 20
ARROW_BYTES = 4 << 20  # Arrow parses parts of this size on all cores
BATCH_ROWS = 65_536
LONGEST_FIELD = 1 << 24  # characters; longer ones are an unclosed quote
# From so many whole lines on, each with as many fields as a row, a quoted field is taken for one
# that a stray quote opened: prose with commas may look like rows for a while, prose with tabs
# hardly.
LINES_LIKE_ROWS = {",": 20, "\t": 2, ";": 20, "|": 5}
LIKE_ROWS = (
    "rows, expected a closing quote (--no-quotes reads quotes as "
    "plain characters; .jsonl takes any text)"
)
DECLARED = re.compile(rb'"?sep=([,;|\t])"?')
QUOTE, LINE_FEED, RETURN = b'"\n\r'

Columns = tuple[dict[str, pa.Array], Locate]


@dataclass(frozen=True)
class TextTable:
    """A delimited text file: how to read it."""

    path: Path
    header: bool
    quotes: bool

    @cached_property
    def _first_line(self) -> bytes:
        with open_stream(self.path, Progress(self.path.name, None, "B")) as stream:
            return stream.readline()

    @property
    def declared(self) -> str | None:
        """The delimiter that Excel's own first line names: sep=;"""
        found = DECLARED.fullmatch(self._first_line.rstrip(b"\r\n"))
        return found[1].decode() if found else None

    @cached_property
    def delimiter(self) -> str:
        """The suffix's own; another one where the first line has that and not the suffix's
        (semicolons of European Excel).
        """
        if self.declared:
            return self.declared
        usual, first = DELIMITERS[file_kind(self.path)], self._first_line
        found = [other for other in (",", "\t", ";", "|") if other.encode() in first]
        return usual if usual in found or not found else found[0]

    def rows(self, lines: Iterable[bytes]) -> Any:
        """Python's reader over lines. Bytes that are not UTF-8 come as lone surrogates."""
        csv.field_size_limit(LONGEST_FIELD)
        texts = (line.decode(errors="surrogateescape") for line in lines)
        quoting: Any = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        return csv.reader(texts, delimiter=self.delimiter, quoting=quoting, strict=True)

    def columns(self) -> tuple[list[str], int]:
        """The column names, "1", "2", … where there is no header, and how many lines come before
        the rows.
        """
        declared = 1 if self.declared else 0
        header = f"{self.path}:{declared + 1}"
        with open_stream(self.path, Progress(self.path.name, None, "B")) as stream:
            reader = self.rows(islice(stream, declared, None))
            try:
                first = next((row for row in reader if row), None)
            except csv.Error as error:
                raise InputError(
                    f"{header}: {_explain(error)}, expected a text file with column names"
                ) from error
        if first is None:
            raise InputError(
                f"{self.path}: empty file, expected {'a header and ' if self.header else ''}rows"
            )
        if not self.header:
            return [str(i + 1) for i in range(len(first))], declared
        names = [name.strip() for name in first]
        if any("\udc80" <= letter <= "\udcff" for letter in "".join(names)):
            wrong = bad_bytes(self.delimiter.join(first).encode(errors="surrogateescape"))
            raise InputError(f"{header}: the header: {wrong}")
        twice = repeated(names)
        if twice is not None:
            raise InputError(
                f"{header}: the column {twice!r} stands twice in the header, expected each once"
            )
        return names, declared + reader.line_num

    def lines_of(self, wanted: list[RowKey]) -> dict[RowKey, int]:
        """The lines on which rows start, in one reading of the file; blocks in which none is wanted
        are passed over.
        """
        found: dict[RowKey, int] = {}
        with open_stream(self.path, Progress(self.path.name, None, "B")) as stream:
            position = 0

            def lines() -> Iterator[bytes]:
                nonlocal position
                for line in stream:
                    position += len(line)
                    yield line

            for (offset, first_line), keys in groupby(sorted(set(wanted)), key=lambda key: key[:2]):
                _skip(stream, offset - position)
                position = offset
                reader = self.rows(lines())
                left = {key[2]: key for key in keys}
                row, line = 0, first_line
                while left:
                    if next(reader):  # blank lines are no rows
                        if row in left:
                            found[left.pop(row)] = line
                        row += 1
                    line = first_line + reader.line_num
        return found

    def hides_rows(self, field: bytes, width: int) -> bool:
        """Whether the lines within a quoted field, the first and the last aside, all look like rows
        of `width` fields.
        """
        lines = field.split(b"\n")[1:-1]
        delimiter = self.delimiter.encode()
        return len(lines) >= LINES_LIKE_ROWS[self.delimiter] and all(
            line.count(delimiter) == width - 1 and not line.startswith(delimiter) for line in lines
        )


class Buffer:
    """The bytes of a stream that are not yet read as rows, and where in the file they stand."""

    def __init__(self, stream: IO[bytes], offset: int, line: int) -> None:
        self._stream: Any = stream
        self.offset, self.line = offset, line
        self.data = b""
        self.ended = False
        self.broken: BrokenStreamError | None = None

    def fill(self, size: int) -> bool:
        """Reads on until `size` bytes are there or the stream ends; False when there is nothing
        left.
        """
        pieces, held = [self.data], len(self.data)
        while held < size and not self.ended:
            try:
                pieces.append(self._stream.read1(size - held))
            except BrokenStreamError as error:
                self.broken = error
            self.ended = self.broken is not None or not pieces[-1]
            held += len(pieces[-1])
        self.data = b"".join(pieces)
        if self.broken:
            self.data = self.data[: self.data.rfind(b"\n") + 1]  # the last line may be half of one
        return bool(self.data)

    def drop(self, size: int) -> None:
        """Removes the first `size` bytes, which are read."""
        self.offset += size
        self.line += self.data.count(b"\n", 0, size)
        self.data = self.data[size:]


def read_delimited(
    table: TextTable, problems: Problems, only: list[str] | None
) -> Iterator[Columns]:
    """Yields the rows of a file in batches, with all columns or `only` the named ones."""
    names, header_lines = table.columns()
    size = BLOCK_BYTES
    with (
        progress(f"Reading {table.path.name}", table.path.stat().st_size, "B") as task,
        open_stream(table.path, task) as stream,
    ):
        header_bytes = sum(len(stream.readline()) for _ in range(header_lines))
        buffer = Buffer(stream, header_bytes, header_lines + 1)
        while buffer.fill(size):
            careful = CarefulReader(table, names, only, problems, buffer.line)
            place, block = (buffer.offset, buffer.line), buffer.data
            ended = buffer.ended and buffer.broken is None
            used, quoted = _whole_rows(table, block, len(names), ended=ended)
            fast = (
                _read_with_arrow(table, pa.py_buffer(block)[:used], names, only, quoted=quoted)
                if used
                else None
            )
            if fast is not None:
                yield from _place_batches(table, fast, place)
            else:
                used = yield from careful.read(block[:used] or block, ended=ended or used > 0)
            task.advance(0, careful.num_rows if fast is None else fast.num_rows)
            if not used and buffer.broken is not None:
                break  # what is left is a part of a row
            buffer.drop(used)
            size = BLOCK_BYTES if used else 2 * size  # a row longer than a block
        if buffer.broken is not None:
            report_broken(table.path, buffer.line - 1, buffer.broken, problems)


def _whole_rows(table: TextTable, block: bytes, width: int, *, ended: bool) -> tuple[int, bool]:
    """How many bytes of a block are whole rows that can be understood in one way only, 0 where
    something is odd about them; and whether there are quoted fields among them.
    """
    if table.quotes and b'"' in block:
        text = np.frombuffer(block + b"\n", np.uint8)
        quotes = np.flatnonzero(text == QUOTE)
        before = text[quotes - 1]  # that of the very first byte is the line feed at the end
        # elsewhere in a field a quote is a plain character
        if _is_one_of(before, ord(table.delimiter), LINE_FEED).any():
            return _whole_quoted_rows(table, block, text, quotes, width, ended=ended), True
    end = len(block) if ended else block.rfind(b"\n") + 1
    returns = block.count(b"\r", 0, end)
    return end if returns == 0 or returns == block.count(b"\r\n", 0, end) else 0, False


def _whole_quoted_rows(
    table: TextTable, block: bytes, text: Array, quotes: Array, width: int, *, ended: bool
) -> int:
    """The same for a block with quotes, of which each must open a field, close one, or be doubled
    within one.
    """
    end = len(block) if ended and len(quotes) % 2 == 0 else _last_row_end(block, quotes)
    quotes = quotes[: np.searchsorted(quotes, end)]
    # of a doubled quote the first closes and the second opens again
    opening, closing = quotes[0::2], quotes[1::2]
    delimiter = ord(table.delimiter)
    before = text[opening - 1]
    after = text[closing + 1]
    if not (
        _is_one_of(before, delimiter, LINE_FEED, QUOTE)
        & _is_one_of(after, delimiter, LINE_FEED, RETURN, QUOTE)
    ).all():
        return 0
    if b"\r" in block:
        returns = np.flatnonzero(text[:end] == RETURN)
        bare = returns[text[returns + 1] != LINE_FEED]
        # outside quotes, where readers differ on them
        if (np.searchsorted(quotes, bare) % 2 == 0).any():
            return 0
    starts, ends = opening[before != QUOTE], closing[after != QUOTE]  # of whole fields
    line_feeds = np.flatnonzero(text[:end] == LINE_FEED)
    num_lines = np.searchsorted(line_feeds, ends) - np.searchsorted(line_feeds, starts)
    for field in np.flatnonzero(num_lines > LINES_LIKE_ROWS[table.delimiter]):
        if table.hides_rows(block[starts[field] : ends[field]], width):
            return 0
    return end


def _last_row_end(block: bytes, quotes: Array) -> int:
    """Where the last line ends that does not end within quotes; 0 when there is none."""
    end = len(block)
    while end > 0:
        end = block.rfind(b"\n", 0, end) + 1
        before = int(np.searchsorted(quotes, end))
        if before % 2 == 0:
            break
        end = int(quotes[before - 1])
    return end


def _is_one_of(bytes_: Array, *values: int) -> Array:
    return np.asarray(np.logical_or.reduce([bytes_ == value for value in values]))


def _read_with_arrow(
    table: TextTable, block: pa.Buffer, names: list[str], only: list[str] | None, *, quoted: bool
) -> pa.Table | None:
    """The rows of a block; None where Arrow finds it malformed."""
    try:
        return arrow_csv.read_csv(
            pa.BufferReader(block),
            read_options=arrow_csv.ReadOptions(block_size=ARROW_BYTES, column_names=names),
            parse_options=arrow_csv.ParseOptions(
                delimiter=table.delimiter,
                quote_char='"' if quoted else False,
                newlines_in_values=quoted,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.large_string()), include_columns=only
            ),
        )
    except pa.ArrowInvalid:
        return None


def _place_batches(table: TextTable, rows: pa.Table, place: tuple[int, int]) -> Iterator[Columns]:
    first = 0
    for batch in rows.to_batches():

        def locate(i: int, first: int = first) -> Place:
            return table.path, LateLine(table.lines_of, (*place, first + i))

        yield dict(zip(batch.schema.names, batch.columns, strict=True)), locate
        first += batch.num_rows


class CarefulReader:
    """Reads a block row by row; rows that are not as they should be are reported, and nothing
    behind them is lost.

    A quote that opens a field and is not closed as it should be makes one bad row of the line it
    stands on: reading goes on with the next line.
    """

    def __init__(
        self,
        table: TextTable,
        names: list[str],
        only: list[str] | None,
        problems: Problems,
        first_line: int,
    ) -> None:
        self._table, self._names, self._only, self._problems = table, names, only or names, problems
        self._first_line = first_line
        self._is_utf8 = True
        self.num_rows = 0

    def read(self, block: bytes, *, ended: bool) -> Generator[Columns, None, int]:
        """Yields batches; returns how many bytes were read. What may be a part of a row stays,
        unless the file `ended`.
        """
        self._is_utf8 = bad_bytes(block) is None
        lines = io.BytesIO(block).readlines()
        if not ended and not block.endswith(b"\n"):
            lines.pop()
        rows: list[list[str]] = []
        numbers: list[int] = []
        done = 0
        for start, after, fields in self._rows(lines, ended=ended):
            done = after
            if fields:
                rows.append(fields)
                numbers.append(self._first_line + start)
            if len(rows) >= BATCH_ROWS:
                yield self._batch(rows, numbers)
                rows, numbers = [], []
        if rows:
            yield self._batch(rows, numbers)
        return sum(map(len, lines[:done]))

    def _rows(self, lines: list[bytes], *, ended: bool) -> Iterator[tuple[int, int, list[str]]]:
        """(first line, line after the last, fields) of one row after the other, the fields empty
        where there are none to keep.
        """
        width = len(self._names)
        after = 0
        while after < len(lines):
            base = start = after
            reader = self._table.rows(map(lines.__getitem__, range(base, len(lines))))
            try:
                for fields in reader:
                    start, after = after, base + reader.line_num
                    if after - start > 1 and self._hides_rows(fields):
                        self._report(
                            start,
                            f"a field opened with a quote here holds lines that look like "
                            f"{LIKE_ROWS}",
                        )
                        after = start + 1
                        yield start, after, []
                        break
                    sound = (len(fields) == width and self._is_utf8) or self._is_sound(
                        fields, start, after
                    )
                    yield start, after, fields if sound else []
            except csv.Error as error:
                if not ended and "end of data" in str(error):
                    return
                start, after = after, after + 1
                expected = f"{width} fields separated by {self._table.delimiter!r}"
                self._report(start, f"{_explain(error)}, expected {expected}")
                yield start, after, []

    def _hides_rows(self, fields: list[str]) -> bool:
        width = len(self._names)
        return any(
            "\n" in field and self._table.hides_rows(field.encode(errors="surrogateescape"), width)
            for field in fields
        )

    def _report(self, start: int, detail: str) -> None:
        self._problems.add("malformed row", self._table.path, self._first_line + start, detail)

    def _is_sound(self, fields: list[str], start: int, after: int) -> bool:
        if not fields:
            return False
        if len(fields) != len(self._names):
            shown = self._table.delimiter.join(fields)[:60]
            lines = f" on {after - start} lines" if after - start > 1 else ""
            expected = f"{len(self._names)}: {', '.join(self._names)}"
            self._report(start, f"{len(fields)} fields{lines} ({shown!r}), expected {expected}")
            return False
        wrong = (
            None
            if self._is_utf8
            else bad_bytes(self._table.delimiter.join(fields).encode(errors="surrogateescape"))
        )
        if wrong is not None:
            self._problems.add("wrong encoding", self._table.path, self._first_line + start, wrong)
        return wrong is None

    def _batch(self, rows: list[list[str]], numbers: list[int]) -> Columns:
        self.num_rows += len(rows)
        columns = dict(zip(self._names, zip(*rows, strict=True), strict=True))
        path, lines = self._table.path, np.array(numbers)
        return {
            name: pa.array(columns[name], pa.large_string()) for name in self._only
        }, lambda i: (path, int(lines[i]))


def _explain(error: csv.Error) -> str:
    words = str(error)
    advice = "(--no-quotes reads quotes as plain characters)"
    if "end of data" in words:
        return f"a field opened with a quote here is never closed {advice}"
    if "field limit" in words:
        return (
            f"a field of more than {LONGEST_FIELD:,} characters, or "
            f"a quote that is never closed {advice}"
        )
    if "expected after" in words:
        return f"a field opened with a quote here goes on after the quote that closes it {advice}"
    if "new-line character" in words:
        return "a carriage return that ends no line (tr '\\r' '\\n' converts files of old Macs)"
    return words


def _skip(stream: IO[bytes], count: int) -> None:
    if stream.seekable():
        stream.seek(count, io.SEEK_CUR)
        return
    while count > 0:
        count -= len(cast(Any, stream).read1(min(count, BLOCK_BYTES))) or count
