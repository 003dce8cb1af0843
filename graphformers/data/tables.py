"""Tables as streams of column batches: .csv .tsv .jsonl (also .gz .xz .bz2) and .parquet.

Clean files go through Arrow's reader. Where Arrow stumbles, the rest of the file goes through Python's `csv`, slower and exact:
it names the line, or leaves the row out. So speed is what clean data gets, and no row is lost to a guess.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.csv as arrow_csv

from graphformers.data.builder import Locate
from graphformers.data.problems import Problems
from graphformers.data.sources import BROKEN_COMPRESSION, describe_bad_bytes, file_kind, open_stream, read_lines, report_broken
from graphformers.errors import InputError
from graphformers.progress import Progress, progress

DELIMITERS = {"csv": ",", "tsv": "\t", "txt": "\t"}
KINDS = (*DELIMITERS, "jsonl", "ndjson", "parquet")
BLOCK_BYTES = 16 << 20
BATCH_ROWS = 65_536
LONGEST_FIELD = 1 << 24  # characters; longer ones are an unclosed quote


@dataclass(frozen=True)
class TableBatch:
    """Some rows of a table: equally long columns by name, and where each row stands in its file."""

    columns: dict[str, pa.Array]
    locate: Locate

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class TextTable:
    """A delimited text file: how to read it."""

    path: Path
    header: bool
    quotes: bool

    @property
    def delimiter(self) -> str:
        return DELIMITERS[file_kind(self.path)]

    def rows(self, stream: IO[bytes], *, strict: bool) -> Iterator[list[str]]:
        """Python's reader over the stream. Bytes that are not UTF-8 come as lone surrogates."""
        csv.field_size_limit(LONGEST_FIELD)
        lines = (line.decode(errors="surrogateescape") for line in stream)
        quoting = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        return csv.reader(lines, delimiter=self.delimiter, quoting=cast(Any, quoting), strict=strict)

    def line_of(self, row: int) -> int:
        """The line on which data row `row` (from 0) starts; the file is read again up to there."""
        task = Progress(self.path.name, None, "B")
        wanted = row + (1 if self.header else 0)
        seen, line = 0, 1
        with open_stream(self.path, task) as stream:
            reader = self.rows(stream, strict=False)
            for fields in reader:
                if fields:
                    if seen == wanted:
                        break
                    seen += 1
                line = cast(Any, reader).line_num + 1
        return line


class QuoteCounter:
    """Counts the quotes that Arrow reads: it takes a quote that is never closed for the end of the file and says nothing."""

    closed = False

    def __init__(self) -> None:
        self._quotes = 0

    def wrap(self, stream: IO[bytes]) -> "QuoteCounter":
        self._stream = stream
        return self

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._quotes += data.count(b'"')
        return data

    @property
    def is_even(self) -> bool:
        return self._quotes % 2 == 0


def table_columns(path: Path, *, header: bool = True, quotes: bool = True) -> list[str]:
    """The column names of a table; "1", "2", … where there is no header."""
    kind = file_kind(path)
    if kind not in KINDS:
        expected = ", ".join(f".{kind}" for kind in KINDS)
        raise InputError(
            f"{path}: cannot tell the format from the name, expected {expected} (also .gz); or choose one with --format"
        )
    try:
        if kind == "parquet":
            return list(_open_parquet(path).schema_arrow.names)
        if kind in DELIMITERS:
            return _text_columns(TextTable(path, header, quotes))[0]
        for _, record in _json_records(path, Problems(strict=True)):
            return list(record)
    except BROKEN_COMPRESSION as error:
        report_broken(path, 0, error, Problems(strict=True))
    raise InputError(f"{path}: empty file, expected rows")


def read_table(
    path: Path, problems: Problems, *, header: bool = True, quotes: bool = True, only: list[str] | None = None
) -> Iterator[TableBatch]:
    """Yields the rows of a table in batches, with all columns or `only` the named ones. Text columns come as strings."""
    kind = file_kind(path)
    if kind == "parquet":
        yield from _read_parquet(path, only)
    elif kind in DELIMITERS:
        yield from _read_text(TextTable(path, header, quotes), problems, only)
    else:
        yield from _read_json(path, problems, only)


def _text_columns(table: TextTable) -> tuple[list[str], int]:
    """The column names and how many lines the header takes."""
    with open_stream(table.path, Progress(table.path.name, None, "B")) as stream:
        reader = table.rows(stream, strict=False)
        try:
            first = next((row for row in reader if row), None)
        except csv.Error as error:
            raise InputError(f"{table.path}:1: {error}, expected a text file with column names") from error
    if first is None:
        raise InputError(f"{table.path}: empty file, expected {'a header and ' if table.header else ''}rows")
    if not table.header:
        return [str(i + 1) for i in range(len(first))], 0
    names = [name.strip() for name in first]
    if any("\udc80" <= letter <= "\udcff" for letter in "".join(names)):
        raise InputError(f"{table.path}:1: the header is not UTF-8 text, expected a text file with column names")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{table.path}:1: the column {twice[0]!r} stands twice in the header, expected each once")
    return names, cast(Any, reader).line_num


def _read_text(table: TextTable, problems: Problems, only: list[str] | None) -> Iterator[TableBatch]:
    names, header_lines = _text_columns(table)
    done = 0
    with progress(f"Reading {table.path.name}", table.path.stat().st_size, "B") as task:
        counter = QuoteCounter()
        held: TableBatch | None = None
        try:
            for batch in _read_with_arrow(table, names, header_lines, only, task, counter):
                task.advance(0, len(batch))
                if held is not None:
                    done += len(held)
                    yield held
                held = batch
            if counter.is_even or not table.quotes:
                if held is not None:
                    yield held
                return
        except (pa.ArrowInvalid, *BROKEN_COMPRESSION):
            pass
        yield from _read_carefully(table, names, only, problems, task, done)


def _read_with_arrow(
    table: TextTable, names: list[str], header_lines: int, only: list[str] | None, task: Progress, counter: "QuoteCounter"
) -> Iterator[TableBatch]:
    parsing = {"delimiter": table.delimiter, "quote_char": '"' if table.quotes else False, "newlines_in_values": table.quotes}
    with open_stream(table.path, task) as stream:
        reader = arrow_csv.open_csv(
            counter.wrap(stream),
            read_options=arrow_csv.ReadOptions(block_size=BLOCK_BYTES, column_names=names, skip_rows=header_lines),
            parse_options=arrow_csv.ParseOptions(**parsing),
            convert_options=arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.large_string()), include_columns=only),
        )
        done = 0
        for block in reader:
            first = done

            def locate(i: int, first: int = first) -> tuple[Path, int]:
                return table.path, table.line_of(first + i)

            done += block.num_rows
            if block.num_rows:
                yield TableBatch(dict(zip(block.schema.names, block.columns, strict=True)), locate)


def _read_carefully(
    table: TextTable, names: list[str], only: list[str] | None, problems: Problems, task: Progress, skip: int
) -> Iterator[TableBatch]:
    """The rows from data row `skip` on, one by one."""
    rows: list[list[str]] = []
    lines: list[int] = []
    line = 1
    try:
        with open_stream(table.path, task) as stream:
            for line, fields in _sound_rows(table, stream, names, problems, skip):
                rows.append(fields)
                lines.append(line)
                if len(rows) >= BATCH_ROWS:
                    yield _batch_of(table, names, only, rows, lines)
                    rows, lines = [], []
    except BROKEN_COMPRESSION as error:
        report_broken(table.path, line, error, problems)
    if rows:
        yield _batch_of(table, names, only, rows, lines)


def _sound_rows(
    table: TextTable, stream: IO[bytes], names: list[str], problems: Problems, skip: int
) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, fields) of the data rows from `skip` on that are as they should be; the others are reported."""
    reader = table.rows(stream, strict=True)
    seen = -1 if table.header else 0  # data rows so far, the header being row 0
    while True:
        line = cast(Any, reader).line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if seen < skip:  # Arrow, which is more lenient about quotes, has taken this row already
                seen += 1
                continue
            expected = f"{len(names)} fields separated by {table.delimiter!r}"
            problems.add("malformed row", table.path, line, f"{_explain(error)}, expected {expected}")
            continue
        if fields:
            seen += 1
            if seen > skip and _is_sound(table, names, fields, line, problems):
                yield line, fields


def _is_sound(table: TextTable, names: list[str], fields: list[str], line: int, problems: Problems) -> bool:
    if len(fields) != len(names):
        shown = table.delimiter.join(fields)
        problems.add(
            "malformed row", table.path, line, f"{len(fields)} fields ({shown[:60]!r}), expected {len(names)}: {', '.join(names)}"
        )
        return False
    try:
        for field in fields:
            field.encode()
    except UnicodeEncodeError:
        try:
            table.delimiter.join(fields).encode(errors="surrogateescape").decode()
        except UnicodeDecodeError as error:
            problems.add("wrong encoding", table.path, line, describe_bad_bytes(error))
            return False
    return True


def _batch_of(table: TextTable, names: list[str], only: list[str] | None, rows: list[list[str]], lines: list[int]) -> TableBatch:
    columns = {name: pa.array(column, pa.large_string()) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    return TableBatch({name: columns[name] for name in only or names}, lambda i: (table.path, lines[i]))


def _explain(error: csv.Error) -> str:
    words = str(error)
    if "end of data" in words or "field limit" in words:
        return "a field opened with a quote here is never closed (--no-quotes reads quotes as plain characters)"
    return words


def _read_json(path: Path, problems: Problems, only: list[str] | None) -> Iterator[TableBatch]:
    records: list[dict[str, Any]] = []
    lines: list[int] = []
    for line, record in _json_records(path, problems):
        missing = [name for name in only or [] if name not in record]
        if missing:
            problems.add("missing field", path, line, f"no field {missing[0]!r} in this record, expected {', '.join(only or [])}")
            continue
        records.append(record)
        lines.append(line)
        if len(records) >= BATCH_ROWS:
            yield _json_batch(path, records, lines, only)
            records, lines = [], []
    if records:
        yield _json_batch(path, records, lines, only)


def _json_records(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    import msgspec

    decoder = msgspec.json.Decoder(dict[str, Any])
    for line, text in read_lines(path, problems):
        if not text.strip():
            continue
        try:
            yield line, decoder.decode(text)
        except msgspec.DecodeError as error:
            problems.add("malformed row", path, line, f"{error}; found {text[:60]!r}, expected one JSON object per line")


def _json_batch(path: Path, records: list[dict[str, Any]], lines: list[int], only: list[str] | None) -> TableBatch:
    names = only or list(dict.fromkeys(name for record in records for name in record))
    return TableBatch(
        {name: _json_column([record.get(name) for record in records]) for name in names}, lambda i: (path, lines[i])
    )


def _json_column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # values of several types
        return pa.array([None if value is None else str(value) for value in values], pa.large_string())


def _open_parquet(path: Path) -> Any:
    import pyarrow.parquet as parquet

    try:
        return parquet.ParquetFile(path, memory_map=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: not a Parquet file or cut short ({error})") from error


def _read_parquet(path: Path, only: list[str] | None) -> Iterator[TableBatch]:
    file = _open_parquet(path)
    done = 0
    with progress(f"Reading {path.name}", file.metadata.num_rows, "rows") as task:
        try:
            for block in file.iter_batches(batch_size=BATCH_ROWS * 4, columns=only):
                first = done

                def locate(i: int, first: int = first) -> tuple[Path, str]:
                    return path, f"row {first + i + 1}"

                yield TableBatch(dict(zip(block.schema.names, map(_decode_dictionary, block.columns), strict=True)), locate)
                done += block.num_rows
                task.advance(block.num_rows)
        except OSError as error:
            raise InputError(f"{path}, after row {done}: the Parquet file is damaged ({error}); fetch it again") from error


def _decode_dictionary(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
