"""Delimited text, .csv and .tsv, as streams of column batches.

A file is read in blocks of whole rows. A block whose quotes and line ends are unambiguous is parsed
by Arrow. Any other block, and any that Arrow refuses, is parsed row by row with Python's `csv`,
which is slower and reports the line of every malformed row.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from graphformers.arrays import Array
from graphformers.errors import InputError
from graphformers.graph.batches import TableBatch, line_locator
from graphformers.graph.columns import repeated
from graphformers.graph.importers.sources import (
    BrokenStreamError,
    bad_bytes,
    file_kind,
    open_stream,
    report_broken,
)
from graphformers.graph.problems import DeferredLine, Place, Problems, RowKey
from graphformers.graph.settings import ImportSettings
from graphformers.progress import progress

if TYPE_CHECKING:
    from _csv import Reader

DELIMITERS = {"csv": ",", "tsv": "\t", "txt": "\t"}
BLOCK_BYTES = 16 << 20
# Arrow parses parts of this size on all cores.
ARROW_BYTES = 4 << 20
BATCH_ROWS = 65_536
# in characters; a longer field is taken for an unclosed quote
MAX_FIELD = 1 << 24
# A quoted field with at least this many whole lines that all have as many fields as a row is taken
# for one opened by a stray quote. Lines of prose may have that many commas, but rarely tabs.
LINES_LIKE_ROWS = {",": 20, "\t": 2, ";": 20, "|": 5}
DECLARED = re.compile(rb'"?sep=([,;|\t])"?')
QUOTE, LINE_FEED, RETURN = b'"\n\r'


@dataclass(frozen=True)
class TextTable:
    """The dialect and the columns of a delimited text file. Made by `TextTable.open`.

    Attributes:
        path: The file.
        delimiter: Separates fields.
        quotes: Whether quotes enclose fields.
        names: The names of the columns.
        header_lines: Number of lines before the rows.
    """

    path: Path
    delimiter: str
    quotes: bool
    names: list[str]
    header_lines: int

    @staticmethod
    def open(path: Path, settings: ImportSettings) -> "TextTable":
        """Reads the beginning of a file.

        The delimiter is that of the suffix. If the first line does not contain it, another one that
        it contains is used, such as the semicolon of European Excel. A first line such as "sep=;",
        as Excel writes it, declares the delimiter.
        Columns without a header are named "1", "2", ….
        """
        with open_stream(path) as stream:
            first_line = stream.readline()
            declared = DECLARED.fullmatch(first_line.rstrip(b"\r\n"))
            if declared:
                delimiter, lines = declared[1].decode(), iter(stream)
            else:
                usual = DELIMITERS[file_kind(path)]
                found = [other for other in (",", "\t", ";", "|") if other.encode() in first_line]
                delimiter = usual if usual in found or not found else found[0]
                lines = chain([first_line], stream)
            header = f"{path}:{2 if declared else 1}"
            reader = _parse_rows(lines, delimiter, settings.quotes)
            try:
                first = next((row for row in reader if row), None)
            except csv.Error as error:
                raise InputError(
                    f"{header}: {_explain(error)}, expected a text file with column names"
                ) from error
        if first is None:
            wanted = "a header and rows" if settings.header else "rows"
            raise InputError(f"{path}: empty file, expected {wanted}")
        header_lines = 1 if declared else 0
        names = [str(i + 1) for i in range(len(first))]
        if settings.header:
            names = [name.strip() for name in first]
            header_lines += reader.line_num
            wrong = bad_bytes(_encoded(delimiter.join(first)))
            if wrong is not None:
                raise InputError(f"{header}: the header: {wrong}")
        twice = repeated(names)
        if twice is not None:
            raise InputError(
                f"{header}: the column {twice!r} occurs twice in the header, expected each once"
            )
        return TextTable(path, delimiter, settings.quotes, names, header_lines)

    def rows(self, lines: Iterable[bytes]) -> "Reader":
        """Python's reader over lines. Bytes that are not UTF-8 become lone surrogates."""
        return _parse_rows(lines, self.delimiter, self.quotes)

    def lines_of(self, wanted: list[RowKey]) -> dict[RowKey, int]:
        """The lines on which rows start, found by reading the file once.

        Blocks without a wanted row are skipped.
        """
        found: dict[RowKey, int] = {}
        with open_stream(self.path) as stream:
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
                    # Blank lines are not rows.
                    if next(reader):
                        if row in left:
                            found[left.pop(row)] = line
                        row += 1
                    line = first_line + reader.line_num
        return found

    def hides_rows(self, field: bytes) -> bool:
        """Whether all lines of a quoted field but the first and the last look like rows."""
        lines = field.split(b"\n")[1:-1]
        delimiter = self.delimiter.encode()
        return len(lines) >= LINES_LIKE_ROWS[self.delimiter] and all(
            line.count(delimiter) == len(self.names) - 1 and not line.startswith(delimiter)
            for line in lines
        )


def _parse_rows(lines: Iterable[bytes], delimiter: str, quotes: bool) -> "Reader":
    csv.field_size_limit(MAX_FIELD)
    texts = (line.decode(errors="surrogateescape") for line in lines)
    return csv.reader(
        texts,
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE,
        strict=True,
    )


def _encoded(text: str) -> bytes:
    """The original bytes of a text that was decoded with surrogate escapes."""
    return text.encode(errors="surrogateescape")


class Buffer:
    """Bytes of a stream that are not parsed yet, with their offset and line in the file."""

    def __init__(self, stream: io.BufferedReader, offset: int, line: int) -> None:
        self._stream = stream
        self.offset, self.line = offset, line
        self.data = b""
        self.ended = False
        self.broken: BrokenStreamError | None = None

    def fill(self, size: int) -> bool:
        """Reads until the buffer holds `size` bytes or the stream ends; returns if it holds any."""
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
            # The last line may be incomplete.
            self.data = self.data[: self.data.rfind(b"\n") + 1]
        return bool(self.data)

    def drop(self, size: int) -> None:
        """Removes the first `size` bytes."""
        self.offset += size
        self.line += self.data.count(b"\n", 0, size)
        self.data = self.data[size:]


def read_delimited(
    table: TextTable, problems: Problems, only: list[str] | None
) -> Iterator[TableBatch]:
    """Yields the rows of a file in batches, with all columns or `only` the named ones."""
    only = only or table.names
    size = BLOCK_BYTES
    with (
        progress(f"Reading {table.path.name}", table.path.stat().st_size, "B") as task,
        open_stream(table.path, task) as stream,
    ):
        header_bytes = sum(len(stream.readline()) for _ in range(table.header_lines))
        buffer = Buffer(stream, header_bytes, table.header_lines + 1)
        while buffer.fill(size):
            block, ended = buffer.data, buffer.ended and buffer.broken is None
            used, quoted = _whole_rows(table, block, ended=ended)
            rows = pa.py_buffer(block)[:used]
            parsed = _read_with_arrow(table, rows, only, quoted=quoted) if used else None
            if parsed is not None:
                batches = _located_batches(table, parsed, buffer.offset, buffer.line)
            else:
                reader = RowReader(table, only, problems, buffer.line)
                batches = reader.read(block[:used] or block, ended=ended or used > 0)
            for batch in batches:
                yield batch
                task.advance(0, len(batch))
            if parsed is None:
                used = reader.num_bytes
            # The rest of a broken stream is an incomplete row.
            if not used and buffer.broken is not None:
                break
            buffer.drop(used)
            # If no row was complete, a row is longer than the block.
            size = BLOCK_BYTES if used else 2 * size
        if buffer.broken is not None:
            report_broken(table.path, buffer.line - 1, buffer.broken, problems)


def _whole_rows(table: TextTable, block: bytes, *, ended: bool) -> tuple[int, bool]:
    """Finds the whole rows of a block.

    Returns:
        Their number of bytes, 0 if quotes or line ends are ambiguous; and whether fields are
        quoted.
    """
    if table.quotes and b'"' in block:
        # The line feed added at the end also serves as the byte before the first.
        text = np.frombuffer(block + b"\n", np.uint8)
        quotes = np.flatnonzero(text == QUOTE)
        before = text[quotes - 1]
        # A quote opens a field only at its start; within a field it is a plain character.
        if _is_one_of(before, ord(table.delimiter), LINE_FEED).any():
            return _whole_quoted_rows(table, block, text, quotes, ended=ended), True
    end = len(block) if ended else block.rfind(b"\n") + 1
    returns = block.count(b"\r", 0, end)
    return end if returns == 0 or returns == block.count(b"\r\n", 0, end) else 0, False


def _whole_quoted_rows(
    table: TextTable, block: bytes, text: Array, quotes: Array, *, ended: bool
) -> int:
    """The number of bytes of the whole rows of a block with quotes, 0 if they are ambiguous.

    Every quote must open a field, close one, or be doubled within one.
    """
    end = len(block) if ended and len(quotes) % 2 == 0 else _last_row_end(block, quotes)
    quotes = quotes[: np.searchsorted(quotes, end)]
    # A doubled quote is treated as a closing quote and an opening one.
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
        # Parsers differ on carriage returns outside quotes.
        if (np.searchsorted(quotes, bare) % 2 == 0).any():
            return 0
    # the boundaries of whole fields
    starts, ends = opening[before != QUOTE], closing[after != QUOTE]
    line_feeds = np.flatnonzero(text[:end] == LINE_FEED)
    num_lines = np.searchsorted(line_feeds, ends) - np.searchsorted(line_feeds, starts)
    for field in np.flatnonzero(num_lines > LINES_LIKE_ROWS[table.delimiter]):
        if table.hides_rows(block[starts[field] : ends[field]]):
            return 0
    return end


def _last_row_end(block: bytes, quotes: Array) -> int:
    """The end of the last line that does not end within quotes; 0 if there is none."""
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
    table: TextTable, block: pa.Buffer, only: list[str], *, quoted: bool
) -> pa.Table | None:
    """The rows of a block; None if Arrow finds it malformed."""
    try:
        return arrow_csv.read_csv(
            pa.BufferReader(block),
            read_options=arrow_csv.ReadOptions(block_size=ARROW_BYTES, column_names=table.names),
            parse_options=arrow_csv.ParseOptions(
                delimiter=table.delimiter,
                quote_char='"' if quoted else False,
                newlines_in_values=quoted,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(table.names, pa.large_string()), include_columns=only
            ),
        )
    except pa.ArrowInvalid:
        return None


def _located_batches(
    table: TextTable, rows: pa.Table, offset: int, line: int
) -> Iterator[TableBatch]:
    """The rows of the block that starts at this offset and line of the file."""
    first = 0
    for batch in rows.to_batches():

        def locate(i: int, first: int = first) -> Place:
            return table.path, DeferredLine(table.lines_of, (offset, line, first + i))

        yield TableBatch(dict(zip(batch.schema.names, batch.columns, strict=True)), locate)
        first += batch.num_rows


class RowReader:
    """Reads a block row by row and reports malformed rows without losing the rows after them.

    If a quote opens a field and is not closed properly, its line is one bad row, and reading
    continues with the next line.
    """

    def __init__(
        self, table: TextTable, only: list[str], problems: Problems, first_line: int
    ) -> None:
        self._table, self._only, self._problems = table, only, problems
        self._first_line = first_line
        self._is_utf8 = True
        # lines that were read, and their bytes
        self._done = 0
        self.num_bytes = 0

    def read(self, block: bytes, *, ended: bool) -> Iterator[TableBatch]:
        """Yields batches. An incomplete row at the end is not read, unless the file `ended`."""
        self._is_utf8 = bad_bytes(block) is None
        lines = io.BytesIO(block).readlines()
        if not ended and not block.endswith(b"\n"):
            lines.pop()
        found = self._rows(lines, ended=ended)
        while True:
            numbers, rows = [], []
            for number, fields in islice(found, BATCH_ROWS):
                numbers.append(number)
                rows.append(fields)
            if not rows:
                break
            columns = dict(zip(self._table.names, zip(*rows, strict=True), strict=True))
            yield TableBatch(
                {name: pa.array(columns[name], pa.large_string()) for name in self._only},
                line_locator(self._table.path, numbers),
            )
        self.num_bytes = sum(map(len, lines[: self._done]))

    def _rows(self, lines: list[bytes], *, ended: bool) -> Iterator[tuple[int, list[str]]]:
        """Yields (line number, fields) of each valid row."""
        while self._done < len(lines):
            base = start = self._done
            reader = self._table.rows(map(lines.__getitem__, range(base, len(lines))))
            try:
                for fields in reader:
                    start, self._done = self._done, base + reader.line_num
                    if self._done - start > 1 and any(map(self._hides_rows, fields)):
                        self._report(
                            start,
                            "a field opened with a quote here holds lines that look like rows, "
                            f"expected a closing quote ({_plain_quotes()}; .jsonl takes any text)",
                        )
                        self._done = start + 1
                        break
                    if self._is_valid(fields, start):
                        yield self._first_line + start, fields
            except csv.Error as error:
                if not ended and "end of data" in str(error):
                    return
                start, self._done = self._done, self._done + 1
                expected = f"{len(self._table.names)} fields separated by {self._table.delimiter!r}"
                self._report(start, f"{_explain(error)}, expected {expected}")

    def _hides_rows(self, field: str) -> bool:
        return "\n" in field and self._table.hides_rows(_encoded(field))

    def _is_valid(self, fields: list[str], start: int) -> bool:
        """Whether a row has as many fields as the table and is UTF-8; reports it if not."""
        names = self._table.names
        if not fields or (len(fields) == len(names) and self._is_utf8):
            return bool(fields)
        row = self._table.delimiter.join(fields)
        if len(fields) != len(names):
            lines = f" on {self._done - start} lines" if self._done - start > 1 else ""
            expected = f"{len(names)}: {', '.join(names)}"
            detail = f"{len(fields)} fields{lines} ({row[:60]!r}), expected {expected}"
            self._report(start, detail)
            return False
        wrong = bad_bytes(_encoded(row))
        if wrong is not None:
            self._report(start, wrong, "wrong encoding")
        return wrong is None

    def _report(self, start: int, detail: str, reason: str = "malformed row") -> None:
        self._problems.add(reason, (self._table.path, self._first_line + start), detail)


def _plain_quotes() -> str:
    return f"{ImportSettings.usage(quotes=False)} reads quotes as plain characters"


def _explain(error: csv.Error) -> str:
    words = str(error)
    advice = f"({_plain_quotes()})"
    if "end of data" in words:
        return f"a field opened with a quote here is never closed {advice}"
    if "field limit" in words:
        return (
            f"a field of more than {MAX_FIELD:,} characters, or "
            f"a quote that is never closed {advice}"
        )
    if "expected after" in words:
        return f"a field opened with a quote here has text after its closing quote {advice}"
    if "new-line character" in words:
        return "a carriage return within a line (tr '\\r' '\\n' converts files of old Macs)"
    return words


def _skip(stream: io.BufferedReader, count: int) -> None:
    if stream.seekable():
        stream.seek(count, io.SEEK_CUR)
        return
    while count > 0:
        count -= len(stream.read1(min(count, BLOCK_BYTES))) or count
