"""Tables as streams of column batches: .csv .tsv .jsonl (also .gz .xz .bz2) and .parquet."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from graphformers.arrays import Array
from graphformers.errors import InputError
from graphformers.graph.batches import TableBatch, line_locator
from graphformers.graph.columns import as_strings, is_text, make_column, repeated, text_column
from graphformers.graph.formats import FORMATS, other_formats
from graphformers.graph.importers.delimited import BATCH_ROWS, DELIMITERS, TextTable, read_delimited
from graphformers.graph.importers.sources import (
    BrokenStreamError,
    bad_bytes,
    file_kind,
    read_lines,
)
from graphformers.graph.problems import Place, Problems
from graphformers.graph.settings import ImportSettings
from graphformers.progress import progress

KINDS = tuple(suffix.removeprefix(".") for suffix in FORMATS["tables"].suffixes)
# records of a .jsonl file that are read to find its columns
RECORDS_AHEAD = 10_000
Record = dict[str, object]


def is_plain(path: Path) -> bool:
    """Whether the columns of a table are untyped text."""
    return file_kind(path) in DELIMITERS


def names_all_columns(path: Path) -> bool:
    """Whether a table names all its columns at its beginning; a .jsonl file does not."""
    return is_plain(path) or file_kind(path) == "parquet"


def table_columns(path: Path, settings: ImportSettings) -> list[str]:
    """The column names of a table; "1", "2", … where there is no header."""
    kind = file_kind(path)
    if kind not in KINDS:
        expected = ", ".join(FORMATS["tables"].suffixes)
        raise InputError(
            f"{path}: cannot tell the format from the name, expected {expected} (also .gz .xz "
            f".bz2); {_advise_format(kind)}"
        )
    if kind == "parquet":
        return list(_open_parquet(path).schema_arrow.names)
    if kind not in DELIMITERS:
        return _json_columns(path, settings)
    try:
        return TextTable.open(path, settings).names
    except BrokenStreamError as error:
        raise InputError(f"{path}:1: {error}") from error


def _advise_format(kind: str) -> str:
    """What to do with a file that is not a table by its suffix."""
    if kind in ("xlsx", "xls", "ods"):
        return "save the sheet as .csv"
    if kind in ("graphml", "gexf", "gml"):
        return "in Python, networkx can read it and from_networkx convert it"
    fitting = [name for name, each in FORMATS.items() if f".{kind}" in each.suffixes]
    if fitting:
        named = " or ".join(ImportSettings.usage(format=name) for name in fitting)
    else:
        names = [name for name in [*FORMATS, *other_formats()] if name != "tables"]
        named = f"{ImportSettings.usage(format='NAME')}, one of {', '.join(names)}"
    if kind == "json":
        return f"write one object per line as .jsonl, or name another format with {named}"
    return f"name another format with {named}"


def read_table(
    path: Path,
    problems: Problems,
    settings: ImportSettings,
    *,
    only: list[str] | None = None,
    texts: Sequence[str] = (),
    required: Sequence[str] = (),
) -> Iterator[TableBatch]:
    """Yields the rows of a table in batches.

    Args:
        path: The file.
        problems: Collects bad rows.
        settings: Options for reading the file.
        only: The columns to read; by default all.
        texts: The columns to read as strings. A row is bad if a value is neither text nor a number.
        required: Fields that a JSON record must have. Other missing fields are null.
    """
    kind = file_kind(path)
    if kind == "parquet":
        yield from _read_parquet(path, problems, only, texts)
    elif kind in DELIMITERS:
        yield from read_delimited(TextTable.open(path, settings), problems, only)
    else:
        yield from _read_json(path, problems, only, texts, required)


def _read_json(
    path: Path,
    problems: Problems,
    only: list[str] | None,
    texts: Sequence[str],
    required: Sequence[str],
) -> Iterator[TableBatch]:
    complete = _complete_records(path, problems, texts, required)
    while True:
        lines, records = [], []
        # Two lists: with tuples, garbage collection takes as long as decoding.
        for line, record in islice(complete, BATCH_ROWS):
            lines.append(line)
            records.append(record)
        if not records:
            return
        names = only or dict.fromkeys([*texts, *(name for record in records for name in record)])
        columns = {}
        for name in names:
            make = text_column if name in texts else make_column
            columns[name] = make([record.get(name) for record in records])
        yield TableBatch(columns, line_locator(path, lines))


def _complete_records(
    path: Path, problems: Problems, texts: Sequence[str], required: Sequence[str]
) -> Iterator[tuple[int, Record]]:
    """Yields (line, record) of every record with the required fields and without nested texts."""
    for line, record in _json_records(path, problems):
        missing = [name for name in required if name not in record]
        nested = [name for name in texts if isinstance(record.get(name), list | dict)]
        if missing:
            expected = ", ".join(required)
            detail = f"no field {missing[0]!r} in this record, expected {expected}"
            problems.add("missing field", (path, line), detail)
        elif nested:
            shown = repr(record[nested[0]])[:60]
            detail = f"the field {nested[0]!r} is {shown}, expected text or a number"
            problems.add("malformed row", (path, line), detail)
        else:
            yield line, record


def _json_columns(path: Path, settings: ImportSettings) -> list[str]:
    """The fields of the first records."""
    # Bad records are reported when they are read, or now if they are errors.
    records = islice(_json_records(path, Problems(strict=not settings.skip_bad)), RECORDS_AHEAD)
    names = list(dict.fromkeys(name for _, record in records for name in record))
    if not names:
        raise InputError(f"{path}: no records, expected one JSON object per line")
    return names


def _json_records(path: Path, problems: Problems) -> Iterator[tuple[int, Record]]:
    import msgspec

    decoder = msgspec.json.Decoder(Record)
    for line, text in read_lines(path, problems):
        if not text.strip():
            continue
        try:
            record = decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            detail = (
                _describe_constant(text)
                or f"{error}; found {text[:60]!r}, expected one JSON object per line"
            )
            problems.add("malformed row", (path, line), detail)
        else:
            yield line, record


def _describe_constant(text: str) -> str | None:
    """A message if a line is JSON but for a NaN or an Infinity, which Python writes; else None."""
    found: list[str] = []
    try:
        json.loads(text, parse_constant=found.append)
    except (ValueError, RecursionError):
        return None
    return (
        f"{found[0]} given, which JSON does not support, expected null for a missing number"
        if found
        else None
    )


def _open_parquet(path: Path) -> parquet.ParquetFile:
    try:
        file = parquet.ParquetFile(path, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a Parquet file or cut short ({error})") from error
    twice = repeated(file.schema_arrow.names)
    if twice is not None:
        raise InputError(
            f"{path}: the column {twice!r} occurs twice in the file, expected each once"
        )
    return file


def _read_parquet(
    path: Path, problems: Problems, only: list[str] | None, texts: Sequence[str]
) -> Iterator[TableBatch]:
    file = _open_parquet(path)
    done = 0
    with progress(f"Reading {path.name}", file.metadata.num_rows, "rows") as task:
        blocks = file.iter_batches(batch_size=BATCH_ROWS * 4, columns=only)
        while True:
            try:
                block = next(blocks, None)
            except (pa.ArrowException, OSError) as error:
                raise InputError(
                    f"{path}, after row {done}: the Parquet file is damaged ({error}); fetch it "
                    f"again"
                ) from error
            if block is None:
                return
            yield _parquet_batch(path, block, done, texts, problems)
            done += block.num_rows
            task.advance(block.num_rows)


def _parquet_batch(
    path: Path, block: pa.RecordBatch, first: int, texts: Sequence[str], problems: Problems
) -> TableBatch:
    """The rows of a block whose strings are UTF-8, which Parquet does not ensure.

    Other rows are reported.
    """

    def locate(i: int) -> Place:
        return path, f"row {first + i + 1}"

    columns: dict[str, pa.Array] = {}
    bad = np.zeros(block.num_rows, dtype=bool)
    for name, column in zip(block.schema.names, block.columns, strict=True):
        values = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        if is_text(values.type) or (name in texts and _is_binary(values.type)):
            columns[name], wrong = _decode(values)
            bad |= wrong

            def detail(i: int, name: str = name, values: pa.Array = values) -> str:
                value = values.slice(i, 1).cast(pa.large_binary())[0].as_py()
                return f"the column {name!r}: {bad_bytes(value)}"

            problems.report("wrong encoding", wrong, locate, detail)
        else:
            columns[name] = _numbers_as_text(path, name, values) if name in texts else values
    batch = TableBatch(columns, locate)
    return batch.take(np.flatnonzero(~bad)) if bad.any() else batch


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _decode(column: pa.Array) -> tuple[pa.Array, Array]:
    """The column as strings, and a mask of the rows that are not UTF-8, which are null."""
    raw = column.cast(pa.large_binary())
    wrong = np.zeros(len(raw), dtype=bool)
    try:
        return raw.cast(pa.large_string()), wrong
    except pa.ArrowInvalid:
        for i, value in enumerate(raw.to_pylist()):
            wrong[i] = value is not None and bad_bytes(value) is not None
    return pc.if_else(pa.array(~wrong), raw, None).cast(pa.large_string()), wrong


def _numbers_as_text(path: Path, name: str, column: pa.Array) -> pa.Array:
    try:
        return as_strings(column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"{path}: the column {name!r} holds values of type {column.type}, expected text or "
            f"numbers"
        ) from error
