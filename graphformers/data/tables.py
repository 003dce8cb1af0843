"""Tables as streams of column batches: .csv .tsv .jsonl (also .gz .xz .bz2) and .parquet."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.data.arrays import Array
from graphformers.data.columns import as_strings, is_text, make_column, repeated, text_column
from graphformers.data.delimited import BATCH_ROWS, DELIMITERS, TextTable, read_delimited
from graphformers.data.problems import Locate, Place, Problems
from graphformers.data.settings import ImportSettings
from graphformers.data.sources import (
    BrokenStreamError,
    bad_bytes,
    broken_words,
    file_kind,
    read_lines,
)
from graphformers.errors import InputError
from graphformers.progress import progress

KINDS = (*DELIMITERS, "jsonl", "ndjson", "parquet")
RECORDS_AHEAD = 10_000  # of a .jsonl file that are looked at for its columns


@dataclass(frozen=True)
class TableBatch:
    """Some rows of a table: equally long columns by name, and where each row stands in its file."""

    columns: dict[str, pa.Array]
    locate: Locate

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def is_plain(path: Path) -> bool:
    """Whether the columns of a table are untyped text."""
    return file_kind(path) in DELIMITERS


def names_all_columns(path: Path) -> bool:
    """Whether a table says at its beginning which columns it has; the records of a .jsonl may each
    have others.
    """
    return is_plain(path) or file_kind(path) == "parquet"


def table_columns(path: Path, settings: ImportSettings) -> list[str]:
    """The column names of a table; "1", "2", … where there is no header."""
    kind = file_kind(path)
    if kind not in KINDS:
        expected = ", ".join(f".{kind}" for kind in KINDS)
        drawn = (
            "; what networkx reads, from_networkx takes, in Python"
            if kind in ("graphml", "gexf", "gml", "json")
            else ""
        )
        raise InputError(
            f"{path}: cannot tell the format from the name, expected {expected} (also .gz); import "
            f"can be told by --format{drawn}"
        )
    if kind == "parquet":
        return list(_open_parquet(path).schema_arrow.names)
    if kind not in DELIMITERS:
        return _json_columns(path, settings)
    try:
        return TextTable(path, settings.header, settings.quotes).columns()[0]
    except BrokenStreamError as error:
        raise InputError(f"{path}:1: {broken_words(path, error)}") from error


def read_table(
    path: Path,
    problems: Problems,
    settings: ImportSettings,
    *,
    only: list[str] | None = None,
    texts: Sequence[str] = (),
    required: Sequence[str] = (),
) -> Iterator[TableBatch]:
    """Yields the rows of a table in batches, with all columns or `only` the named ones.

    The columns `texts` come as strings, and a value that is no text or number makes a bad row. So
    does a JSON record without one of the fields `required`; other fields may be missing and are
    null.
    """
    kind = file_kind(path)
    if kind == "parquet":
        yield from _read_parquet(path, problems, only, texts)
    elif kind in DELIMITERS:
        for columns, locate in read_delimited(
            TextTable(path, settings.header, settings.quotes), problems, only
        ):
            yield TableBatch(columns, locate)
    else:
        yield from _read_json(path, problems, only, texts, required)


def _read_json(
    path: Path,
    problems: Problems,
    only: list[str] | None,
    texts: Sequence[str],
    required: Sequence[str],
) -> Iterator[TableBatch]:
    records: list[dict[str, Any]] = []
    lines: list[int] = []
    for line, record in _json_records(path, problems):
        missing = [name for name in required if name not in record]
        nested = [name for name in texts if isinstance(record.get(name), list | dict)]
        if missing:
            problems.add(
                "missing field",
                path,
                line,
                f"no field {missing[0]!r} in this record, expected {', '.join(required)}",
            )
        elif nested:
            shown = repr(record[nested[0]])[:60]
            problems.add(
                "malformed row",
                path,
                line,
                f"the field {nested[0]!r} is {shown}, expected text or a number",
            )
        else:
            records.append(record)
            lines.append(line)
        if len(records) >= BATCH_ROWS:
            yield _json_batch(path, records, lines, only, texts)
            records, lines = [], []
    if records:
        yield _json_batch(path, records, lines, only, texts)


def _json_columns(path: Path, settings: ImportSettings) -> list[str]:
    """The fields of the first records; what is wrong with them is reported when they are read, or
    now if that is to stop us.
    """
    records = islice(_json_records(path, Problems(strict=not settings.skip_bad)), RECORDS_AHEAD)
    names = list(dict.fromkeys(name for _, record in records for name in record))
    if not names:
        raise InputError(f"{path}: no records, expected one JSON object per line")
    return names


def _json_records(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    import msgspec

    decoder = msgspec.json.Decoder(dict[str, Any])
    for line, text in read_lines(path, problems):
        if not text.strip():
            continue
        try:
            record = decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            reason = (
                _no_number(text)
                or f"{error}; found {text[:60]!r}, expected one JSON object per line"
            )
            problems.add("malformed row", path, line, reason)
        else:
            yield line, record


def _no_number(text: str) -> str | None:
    """What is wrong with a line that is JSON but for the NaN and Infinity that Python writes; None
    where it is something else.
    """
    found: list[str] = []
    try:
        json.loads(text, parse_constant=found.append)
    except (ValueError, RecursionError):
        return None
    return (
        f"{found[0]} given, but JSON has no such number, expected null where there is none"
        if found
        else None
    )


def _json_batch(
    path: Path,
    records: list[dict[str, Any]],
    lines: list[int],
    only: list[str] | None,
    texts: Sequence[str],
) -> TableBatch:
    names = only or list(dict.fromkeys([*texts, *(name for record in records for name in record)]))
    columns = {
        name: (text_column if name in texts else make_column)(
            [record.get(name) for record in records]
        )
        for name in names
    }
    return TableBatch(columns, lambda i: (path, lines[i]))


def _open_parquet(path: Path) -> Any:
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a Parquet file or cut short ({error})") from error
    twice = repeated(file.schema_arrow.names)
    if twice is not None:
        raise InputError(
            f"{path}: the column {twice!r} stands twice in the file, expected each once"
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
    """The rows of a block whose strings are UTF-8, which Parquet does not make sure of; the others
    are reported.
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
                return (
                    f"the column {name!r}: "
                    f"{bad_bytes(values.slice(i, 1).cast(pa.large_binary())[0].as_py())}"
                )

            problems.report("wrong encoding", wrong, locate, detail)
        else:
            columns[name] = _numbers_as_text(path, name, values) if name in texts else values
    if not bad.any():
        return TableBatch(columns, locate)
    kept = np.flatnonzero(~bad)
    return TableBatch(
        {name: column.take(pa.array(kept)) for name, column in columns.items()},
        lambda i: locate(int(kept[i])),
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _decode(column: pa.Array) -> tuple[pa.Array, Array]:
    """The column as strings, and which rows are not UTF-8 and came out null."""
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
