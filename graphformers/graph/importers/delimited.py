"""Delimited text, .csv and .tsv, as streams of column batches.

A file is read in blocks of whole rows. A block whose quotes and line ends are unambiguous is parsed
by Arrow. Any other block, and any that Arrow refuses, is parsed row by row with Python's `csv`,
which is slower and reports the line of every malformed row.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from graphformers.arrays import Array
from graphformers.errors import InputError
from graphformers.graph.batches import Table, TableBatch, check_columns, line_locator
from graphformers.graph.importers.encodings import bad_bytes
from graphformers.graph.importers.sources import (
    BrokenStreamError,
    Stream,
    report_broken,
    skip_line,
    too_long,
)
from graphformers.graph.problems import Locate, Problems
from graphformers.graph.settings import ImportSettings
from graphformers.progress import Progress

if TYPE_CHECKING:
    from _csv import Reader

# Arrow would start a thread for signals in every call, and end the process where it cannot. Python
# handles signals between the calls, which are short.
pa.enable_signal_handlers(False)
DELIMITERS = {"csv": ",", "tsv": "\t", "txt": "\t"}
# Blocks are this large after a malformed row, so that few rows are parsed by Python. They double
# while Arrow parses them.
BLOCK_BYTES = 1 << 18
CLEAN_BYTES = 1 << 20
BATCH_ROWS = 65_536
# A quoted field with at least this many whole lines that all have as many fields as a row is taken
# for one opened by a stray quote. Lines of prose may have that many commas, but rarely tabs.
LINES_LIKE_ROWS = {",": 20, "\t": 2, ";": 20, "|": 5}
MALFORMED = "malformed row"
DECLARED = re.compile(rb'"?sep=([,;|\t])"?')
QUOTE, LINE_FEED, RETURN = b'"\n\r'


class DelimitedTable(Table):
    """A delimited text file. Its beginning is read when it is made.

    The delimiter is that of the suffix. If the first line does not contain it, another one that it
    contains is used, such as the semicolon of European Excel. A first line such as "sep=;", as
    Excel writes it, declares the delimiter. Columns without a name are called by their numbers,
    "1", "2", ….
    """

    def __init__(
        self, stream: Stream, delimiter: str, settings: ImportSettings, problems: Problems
    ) -> None:
        self.path = stream.path
        self._stream, self._settings, self._problems = stream, settings, problems
        self._quotes, self.encoding = settings.quotes, settings.encoding
        self._limit = settings.row_bytes
        self._buffer = Buffer(stream)
        first_line = self._first_line()
        declared = DECLARED.fullmatch(first_line.rstrip(b"\r\n"))
        found = [other for other in (",", "\t", ";", "|") if other.encode() in first_line]
        if declared:
            delimiter = declared[1].decode()
        elif found and delimiter not in found:
            delimiter = found[0]
        self.delimiter = delimiter
        # bytes before the rows: of the line that declares the delimiter, and of the header
        self._declared = len(first_line) if declared else 0
        self._header = 0
        place = f"{self.path}:{2 if declared else 1}"
        first, header = self._first_row(place)
        self.names = _column_names(first if settings.header else [""] * len(first))
        check_columns(self.names, place, settings)
        if settings.header:
            wrong = bad_bytes(_encoded(delimiter.join(first)), settings.encoding)
            if wrong is not None:
                raise InputError(f"{place}: the header: {wrong}")
            self._header = header

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()

    def drop_header(self) -> None:
        """Takes the header for a row, as with `header=False`. Called before rows are read."""
        self.names, self._header = [str(i + 1) for i in range(len(self.names))], 0

    def _first_line(self) -> bytes:
        size = BLOCK_BYTES
        while True:
            block, ended = self._buffer.block(min(size, self._limit + 1))
            end = block.find(b"\n") + 1
            if self._buffer.broken is not None and not end:
                raise InputError(f"{self.path}:1: {self._buffer.broken}")
            if end or ended:
                return block[: end or len(block)]
            if size > self._limit:
                raise InputError(f"{self.path}:1: {too_long(self._settings)}")
            size *= 4

    def _first_row(self, place: str) -> tuple[list[str], int]:
        """The fields of the first row, and the number of bytes up to its end."""
        size = BLOCK_BYTES
        while True:
            block, ended = self._buffer.block(min(size, self._limit + 1))
            lines = io.BytesIO(block[self._declared :]).readlines()
            if lines and not ended and not lines[-1].endswith(b"\n"):
                lines.pop()
            reader = self.rows(lines)
            is_cut = False
            try:
                first = next((row for row in reader if row), None)
            except csv.Error as error:
                is_cut = not ended and "end of data" in str(error)
                if not is_cut or size > self._limit:
                    raise InputError(
                        f"{place}: {_explain(error, self.path)}, expected a text file with column "
                        f"names"
                    ) from error
                first = None
            if first is not None:
                return first, sum(map(len, lines[: reader.line_num]))
            if ended and self._buffer.broken is not None:
                raise InputError(f"{place}: {self._buffer.broken}")
            if ended and not is_cut:
                wanted = "a header and rows" if self._settings.header else "rows"
                raise InputError(f"{self.path}: empty file, expected {wanted}")
            if size > self._limit:
                raise InputError(f"{place}: {too_long(self._settings)}")
            size *= 4

    def rows(self, lines: Iterable[bytes]) -> "Reader":
        """Python's reader over lines. Bytes that are not UTF-8 become lone surrogates."""
        # Blocks bound the length of fields.
        csv.field_size_limit(self._limit + 1)
        texts = (line.decode(errors="surrogateescape") for line in lines)
        return csv.reader(
            texts,
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self._quotes else csv.QUOTE_NONE,
            strict=True,
        )

    def hides_rows(self, field: bytes) -> bool:
        """Whether all lines of a quoted field but the first and the last look like rows."""
        lines = field.split(b"\n")[1:-1]
        delimiter = self.delimiter.encode()
        return len(lines) >= LINES_LIKE_ROWS[self.delimiter] and all(
            line.count(delimiter) == len(self.names) - 1 and not line.startswith(delimiter)
            for line in lines
        )

    def batches(
        self, only: list[str] | None, texts: Sequence[str] = (), required: Sequence[str] = ()
    ) -> Iterator[TableBatch]:
        """Yields the rows; see `Table.batches`. All columns are texts, and no field is missing."""
        only = self.names if only is None else only
        buffer, size, was_clean = self._buffer, BLOCK_BYTES, False
        with self._stream.progress() as task:
            buffer.drop(self._declared + self._header)
            while True:
                # A row that does not end within so many bytes is too long.
                size = min(size, self._limit + 1)
                block, ended = buffer.block(size)
                if not block:
                    break
                ended = ended and buffer.broken is None
                used, quoted = self._whole_rows(block, ended=ended)
                batches = self._parse_block(block[:used], only, quoted=quoted) if used else None
                if batches is None and was_clean:
                    # The malformed row is looked for in a smaller block.
                    size, was_clean = BLOCK_BYTES, False
                    continue
                was_clean = batches is not None
                if batches is not None:
                    size = min(2 * size, CLEAN_BYTES)
                    yield from _counted(batches, task)
                    buffer.drop(used)
                    continue
                reader = RowReader(self, only, self._problems, buffer.line)
                is_whole = ended or used > 0
                is_full = not is_whole and size > self._limit
                yield from _counted(
                    reader.read(block[:used] or block, ended=is_whole, full=is_full), task
                )
                if reader.num_bytes:
                    buffer.drop(reader.num_bytes)
                    size = BLOCK_BYTES
                elif buffer.broken is not None and len(block) == len(buffer.data):
                    # The rest of a broken stream is an incomplete row.
                    break
                elif is_full:
                    place = self.path, buffer.line
                    self._problems.add(MALFORMED, place, too_long(self._settings))
                    buffer.skip_line()
                else:
                    size *= 4
            if buffer.broken is not None:
                report_broken(self.path, buffer.line - 1, buffer.broken, self._problems)

    def too_long(self) -> str:
        """A message about a row that does not end within the longest block."""
        return too_long(self._settings)

    def _whole_rows(self, block: bytes, *, ended: bool) -> tuple[int, bool]:
        """Finds the whole rows of a block.

        Returns:
            Their number of bytes, 0 if quotes or line ends are ambiguous; and whether fields are
            quoted.
        """
        if self._quotes and b'"' in block:
            # The line feed added at the end also serves as the byte before the first.
            text = np.frombuffer(block + b"\n", np.uint8)
            quotes = np.flatnonzero(text == QUOTE)
            before = text[quotes - 1]
            # A quote opens a field only at its start; within a field it is a plain character.
            if _is_one_of(before, ord(self.delimiter), LINE_FEED).any():
                return self._whole_quoted_rows(block, text, quotes, ended=ended), True
        end = len(block) if ended else block.rfind(b"\n") + 1
        returns = block.count(b"\r", 0, end)
        return end if returns == 0 or returns == block.count(b"\r\n", 0, end) else 0, False

    def _whole_quoted_rows(self, block: bytes, text: Array, quotes: Array, *, ended: bool) -> int:
        """The number of bytes of the whole rows of a block with quotes, 0 if they are ambiguous.

        Every quote must open a field, close one, or be doubled within one.
        """
        end = len(block) if ended and len(quotes) % 2 == 0 else _last_row_end(block, quotes)
        quotes = quotes[: np.searchsorted(quotes, end)]
        # A doubled quote is treated as a closing quote and an opening one.
        opening, closing = quotes[0::2], quotes[1::2]
        delimiter = ord(self.delimiter)
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
        for field in np.flatnonzero(num_lines > LINES_LIKE_ROWS[self.delimiter]):
            if self.hides_rows(block[starts[field] : ends[field]]):
                return 0
        return end

    def _parse_block(
        self, block: bytes, only: list[str], *, quoted: bool
    ) -> list[TableBatch] | None:
        """The rows of a block of whole rows; None if Arrow finds it malformed."""
        block = self._without_empty_rows(block, quoted=quoted)
        try:
            rows = arrow_csv.read_csv(
                pa.BufferReader(block),
                read_options=arrow_csv.ReadOptions(
                    # Threads cost more than they save on blocks of this size.
                    use_threads=False,
                    block_size=len(block) + 1,
                    column_names=self.names,
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=self.delimiter,
                    quote_char='"' if quoted else False,
                    newlines_in_values=quoted,
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(self.names, pa.large_string()), include_columns=only
                ),
            )
        except pa.ArrowInvalid:
            return None
        locate = self._locate_rows(block, rows.num_rows, quoted=quoted)
        if locate is None:
            return None
        batches, first = [], 0
        for batch in rows.to_batches():
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            from_first = _shifted(locate, first)
            batches.append(TableBatch(columns, from_first, frozenset(columns)))
            first += batch.num_rows
        return batches

    def _without_empty_rows(self, block: bytes, *, quoted: bool) -> bytes:
        """A block with blank lines for rows of delimiters alone, which spreadsheets write."""
        delimiter = self.delimiter.encode()
        # Looking for two bytes is faster than a pattern, and few rows start so.
        if b"\n" + delimiter not in block and not block.startswith(delimiter):
            return block
        pattern = rb"^" + re.escape(delimiter) + rb"+(?=\r?$)"
        if not quoted:
            return re.sub(pattern, b"", block, flags=re.MULTILINE)
        quotes = np.flatnonzero(np.frombuffer(block, np.uint8) == QUOTE)

        def blank(found: re.Match[bytes]) -> bytes:
            is_within_field = np.searchsorted(quotes, found.start()) % 2 == 1
            return found[0] if is_within_field else b""

        return re.sub(pattern, blank, block, flags=re.MULTILINE)

    def _locate_rows(self, block: bytes, num_rows: int, *, quoted: bool) -> Locate | None:
        """Returns the lines of the rows of a block; None if it has another number of rows."""
        path, first = self.path, self._buffer.line
        num_lines = block.count(b"\n") + (not block.endswith(b"\n"))
        if num_lines == num_rows:
            return lambda i: (path, first + i)
        text = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
        line_feeds = np.flatnonzero(text == LINE_FEED)
        ends = np.arange(len(line_feeds))
        if quoted:
            quotes = np.flatnonzero(text == QUOTE)
            ends = ends[np.searchsorted(quotes, line_feeds) % 2 == 0]
        starts = np.concatenate([[0], ends[:-1] + 1])
        # Blank lines are not rows.
        sizes = line_feeds[ends] - np.concatenate([[0], line_feeds[ends[:-1]] + 1])
        is_blank = (sizes == 0) | ((sizes == 1) & (text[line_feeds[ends] - 1] == RETURN))
        starts = starts[~is_blank]
        return line_locator(path, first + starts) if len(starts) == num_rows else None


def _column_names(header: Sequence[str]) -> list[str]:
    """The names in a header; a column without one is called by its number, such as "1"."""
    names = [name.strip() for name in header]
    for i, name in enumerate(names):
        if not name:
            names[i] = str(i + 1)
            # pandas writes the header ",0,1": no name, and then names that are numbers.
            while names[i] in names[:i] + names[i + 1 :]:
                names[i] += "_"
    return names


def _counted(batches: Iterable[TableBatch], task: Progress) -> Iterator[TableBatch]:
    """The batches, whose rows are counted."""
    for batch in batches:
        yield batch
        task.advance(0, len(batch))


def _shifted(locate: Locate, first: int) -> Locate:
    return lambda i: locate(first + i)


def _encoded(text: str) -> bytes:
    """The original bytes of a text that was decoded with surrogate escapes."""
    return text.encode(errors="surrogateescape")


class Buffer:
    """Bytes of a stream that are not parsed yet, and the line on which they start."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.line = 1
        self.data = b""
        self.broken: BrokenStreamError | None = None
        self._ended = False

    def block(self, size: int) -> tuple[bytes, bool]:
        """The first `size` bytes, and whether the stream ends with them.

        There are fewer if it does.
        """
        if len(self.data) < size and not self._ended:
            self._fill(size)
        return self.data[:size], self._ended and len(self.data) <= size

    def _fill(self, size: int) -> None:
        pieces, held = [self.data], len(self.data)
        while held < size and not self._ended:
            try:
                pieces.append(self._stream.read1(size - held))
            except BrokenStreamError as error:
                self.broken = error
            self._ended = self.broken is not None or not pieces[-1]
            held += len(pieces[-1])
        self.data = b"".join(pieces)
        if self.broken is not None:
            # The last line may be incomplete.
            self.data = self.data[: self.data.rfind(b"\n") + 1]

    def drop(self, size: int) -> None:
        """Removes the first `size` bytes."""
        self.line += self.data.count(b"\n", 0, size)
        self.data = self.data[size:]

    def skip_line(self) -> None:
        """Removes the first line, without keeping the part of it that is not read yet."""
        end = self.data.find(b"\n") + 1
        if end:
            self.drop(end)
            return
        self.data, self.line = b"", self.line + 1
        try:
            skip_line(self._stream)
        except BrokenStreamError as error:
            self.broken, self._ended = error, True


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


class RowReader:
    """Reads a block row by row and reports malformed rows without losing the rows after them.

    If a quote opens a field and is not closed properly, its line is one bad row, and reading
    continues with the next line.

    Attributes:
        num_bytes: The bytes of the lines that were read.
    """

    def __init__(
        self, table: DelimitedTable, only: list[str], problems: Problems, first_line: int
    ) -> None:
        self._table, self._only, self._problems = table, only, problems
        self._is_utf8 = True
        # the line after those that were read
        self._line = first_line
        self.num_bytes = 0

    def read(self, block: bytes, *, ended: bool, full: bool) -> Iterator[TableBatch]:
        """Yields batches. An incomplete row at the end is not read, unless the file `ended`.

        If the block is `full`, an incomplete row that is its first is too long. It is reported, and
        the rows after its first line are left to other blocks.
        """
        self._is_utf8 = bad_bytes(block) is None
        end = len(block) if ended else block.rfind(b"\n") + 1
        found = self._rows(block[:end], ended=ended, full=full)
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
                frozenset(self._only),
            )

    def _rows(self, block: bytes, *, ended: bool, full: bool) -> Iterator[tuple[int, list[str]]]:
        """Yields (line number, fields) of each valid row."""
        while self.num_bytes < len(block):
            lines = _Lines(block, self.num_bytes)
            base = self._line
            reader = self._table.rows(lines)
            try:
                for fields in reader:
                    start, line = self.num_bytes, self._line
                    self.num_bytes, self._line = lines.end, base + reader.line_num
                    if self._line - line > 1 and any(map(self._hides_rows, fields)):
                        detail = (
                            "a field opened with a quote here holds lines that look like rows, "
                            f"expected a closing quote ({_plain_quotes()}; .jsonl takes any text)"
                        )
                        self._leave_out_line(block, start, line, detail)
                        break
                    row = block[start : self.num_bytes]
                    # Spreadsheets write delimiters alone below their rows.
                    if not any(fields) and QUOTE not in row:
                        continue
                    if self._is_valid(fields, line):
                        yield line, fields
            except csv.Error as error:
                start, line = self.num_bytes, self._line
                if not ended and "end of data" in str(error):
                    if full and start == 0:
                        never_closed = f"a quote that is never closed ({_plain_quotes()})"
                        detail = f"{self._table.too_long()}; or {never_closed}"
                        self._leave_out_line(block, start, line, detail)
                    return
                expected = f"{len(self._table.names)} fields separated by {self._table.delimiter!r}"
                detail = f"{_explain(error, self._table.path)}, expected {expected}"
                self._leave_out_line(block, start, line, detail)

    def _leave_out_line(self, block: bytes, start: int, line: int, detail: str) -> None:
        """Reports the line that starts here and continues with the next."""
        # Where the row has several lines, the others may be taken for rows.
        after = "" if self._problems.strict else "; reading goes on at the next line"
        self._report(line, detail + after)
        self.num_bytes, self._line = block.find(b"\n", start) + 1 or len(block), line + 1

    def _hides_rows(self, field: str) -> bool:
        return "\n" in field and self._table.hides_rows(_encoded(field))

    def _is_valid(self, fields: list[str], line: int) -> bool:
        """Whether a row has as many fields as the table and is UTF-8; reports it if not."""
        names = self._table.names
        if not fields or (len(fields) == len(names) and self._is_utf8):
            return bool(fields)
        if len(fields) != len(names):
            if not self._problems.wants_details(MALFORMED):
                self._problems.counts[MALFORMED] += 1
                return False
            row = self._table.delimiter.join(fields)
            lines = f" on {self._line - line} lines" if self._line - line > 1 else ""
            expected = f"{len(names)}: {', '.join(names)}"
            found = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            other = next((mark for mark in LINES_LIKE_ROWS if len(fields) == 1 and mark in row), "")
            asked = f"; is {other!r} the separator here?" if other else ""
            self._report(line, f"{found}{lines} ({row[:60]!r}), expected {expected}{asked}")
            return False
        row = self._table.delimiter.join(fields)
        wrong = bad_bytes(_encoded(row), self._table.encoding)
        if wrong is not None:
            self._report(line, wrong, "wrong encoding")
        return wrong is None

    def _report(self, line: int, detail: str, reason: str = MALFORMED) -> None:
        self._problems.add(reason, (self._table.path, line), detail)


class _Lines:
    """The lines of a block from a byte on, and the end of the last one that was read."""

    def __init__(self, block: bytes, start: int) -> None:
        self._stream = io.BytesIO(block)
        self._stream.seek(start)
        self.end = start

    def __iter__(self) -> Iterator[bytes]:
        for line in self._stream:
            self.end += len(line)
            yield line


def _plain_quotes() -> str:
    return f"{ImportSettings.usage(quotes=False)} reads quotes as plain characters"


def _explain(error: csv.Error, path: Path) -> str:
    words, advice = str(error), f"({_plain_quotes()})"
    if "end of data" in words:
        return f"a field opened with a quote here is never closed {advice}"
    if "expected after" in words:
        return (
            "a field opened with a quote here has text after its closing quote; double the quotes "
            f"within a field {advice}"
        )
    if "new-line character" in words:
        ends = "'\\r' '\\n'"
        return (
            f"a carriage return within a line (tr {ends} < {path} > new.csv converts files of old "
            f"Macs)"
        )
    return words
