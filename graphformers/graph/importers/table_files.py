"""Tables of files, pipes and folders: .csv .tsv .jsonl (also .gz .xz .bz2) and .parquet."""

import json
import logging
import re
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from graphformers.arrays import Array
from graphformers.artifact import MANIFEST
from graphformers.errors import BadRowError, InputError
from graphformers.files import full_disk
from graphformers.graph.batches import Table, TableBatch, check_columns, line_locator
from graphformers.graph.columns import as_strings, is_text, make_column, text_column
from graphformers.graph.formats import FORMATS, other_formats
from graphformers.graph.importers.delimited import BATCH_ROWS, DELIMITERS, DelimitedTable
from graphformers.graph.importers.encodings import bad_bytes
from graphformers.graph.importers.sources import (
    PARQUET,
    BrokenStreamError,
    Source,
    Stream,
    file_kind,
    is_stream,
    open_stream,
    stream_lines,
)
from graphformers.graph.problems import Place, Problems
from graphformers.graph.settings import ImportSettings
from graphformers.progress import progress

logger = logging.getLogger(__name__)
KINDS = tuple(suffix.removeprefix(".") for suffix in FORMATS["tables"].suffixes)
# Records of a .jsonl file that are read to find its columns, in all of at most so many bytes.
RECORDS_AHEAD = 10_000
BYTES_AHEAD = 1 << 20
# the beginning of an array of JSON objects, and of an object that has its fields on further lines
JSON_ARRAY, JSON_LINES = re.compile(rb"\s*\[\s*\{"), re.compile(rb"\s*\{[ \t\r]*\n")
# tables that are open at a time
OPEN_TABLES = 64
# Fields within objects that messages list.
PATHS_SHOWN = 100
# Folders with tables that messages list.
FOLDERS_SHOWN = 3
Record = dict[str, object]


def open_tables(
    sources: Sequence[Source], settings: ImportSettings, problems: Problems
) -> Iterator[tuple[list[tuple[Source, Table]], bool]]:
    """Opens tables in groups, so that their columns are known before any rows are read.

    A group has up to OPEN_TABLES tables, and at most one pipe: a program that writes several pipes
    one after the other must not wait for a reader. A folder stands for the tables in it.

    Yields:
        The tables of a group, which are closed after it; and whether it is the last.
    """
    files = [file for source in sources for file in _files_of(source)]
    while files:
        pipes = [i for i, source in enumerate(files) if is_stream(source.path)]
        size = min(OPEN_TABLES, *(pipes[1:2] or [len(files)]))
        group, files = files[:size], files[size:]
        with ExitStack() as stack:
            opened: list[tuple[Source, Table]] = []
            for source in group:
                try:
                    table = open_table(source.path, settings, problems)
                except InputError as error:
                    if source in sources or isinstance(error, BadRowError):
                        raise
                    raise InputError(
                        f"{error}; to leave the file out, name the other files instead of the "
                        f"folder, or move it elsewhere"
                    ) from error
                opened.append((source, stack.enter_context(table)))
            yield opened, not files


def _files_of(source: Source) -> list[Source]:
    """The tables in a folder but hidden ones, sorted by name; a file is itself."""
    folder = source.path
    if not folder.is_dir():
        return [source]
    files = [path for path in sorted(folder.iterdir()) if _is_table(path)]
    nested = _tables_within(folder)
    if files:
        if nested:
            logger.warning(
                f"WARNING: {folder}: folders within it are not read, name them: {nested}"
            )
        return [replace(source, path=path) for path in files]
    if (folder / MANIFEST).is_file():
        raise InputError(
            f"{folder}: a folder that graphformers wrote, expected files or a folder of tables; "
            f"graphformers info {folder} describes it"
        )
    expected = ", ".join(f".{kind}" for kind in KINDS)
    message = f"{folder}: a folder, expected a file, or a folder of tables ({expected})"
    if nested:
        message += f"; folders within it are not read, name them: {nested}"
    raise InputError(message)


def _tables_within(folder: Path) -> str:
    """Some of the folders within a folder that hold tables, as a list for messages."""
    inner = chain(folder.glob("*/*"), folder.glob("*/*/*"))
    nested = sorted({path.parent for path in inner if _is_table(path)})
    more = ", …" if len(nested) > FOLDERS_SHOWN else ""
    return ", ".join(map(str, nested[:FOLDERS_SHOWN])) + more


def _is_table(path: Path) -> bool:
    return not path.name.startswith(".") and file_kind(path) in KINDS and path.is_file()


def open_table(path: Path, settings: ImportSettings, problems: Problems) -> Table:
    """Opens a file or a pipe and reads its beginning, in which its columns are found.

    The suffix of a file tells its kind; a pipe's first bytes do. A .json file is read as a .jsonl.

    Args:
        path: The input.
        settings: Options for reading the file.
        problems: Collects bad rows.

    Raises:
        InputError: The format is not known, or the beginning is not that of a table.

    Examples:
        >>> with open_table(Path("papers.csv"), ImportSettings(), Problems(strict=True)) as table:
        ...     table.names
        ['id', 'title', 'year']
    """
    kind, is_pipe = file_kind(path), is_stream(path)
    if kind not in (*KINDS, "json") and not is_pipe:
        expected = ", ".join(FORMATS["tables"].suffixes)
        raise InputError(
            f"{path}: cannot tell the format from the name, expected {expected} (also .gz .xz "
            f".bz2); {_advise_format(path, kind)}"
        )
    if path.suffix.lower() == ".parquet" and not is_pipe:
        return ParquetTable(path, None, settings, problems)
    stream = open_stream(path, settings, parquet=is_pipe or kind == "parquet")
    try:
        if kind not in (*KINDS, "json"):
            kind = _kind_of(stream.head)
        if kind == "parquet":
            return ParquetTable(path, _spooled(stream), settings, problems)
        if kind in DELIMITERS:
            return DelimitedTable(stream, DELIMITERS[kind], settings, problems)
        _check_json(path, stream.head)
        return JsonTable(stream, settings, problems)
    except BaseException:
        stream.close()
        raise


def _advise_format(path: Path, kind: str) -> str:
    """What to do with a file that is not a table by its suffix."""
    if kind in ("xlsx", "xls", "ods"):
        return "save the sheet as .csv"
    if kind in ("graphml", "gexf", "gml"):
        return "in Python, networkx can read it and from_networkx convert it"
    if kind in ("zip", "zst", "7z", "rar", "tar", "tgz"):
        return "unpack it"
    names = [name for name in [*FORMATS, *other_formats()] if name != "tables"]
    return (
        f"rename it to end in .csv or what it is, or graphformers import - < {path.name}; of "
        f"another format, {ImportSettings.usage(format='NAME')} names one of {', '.join(names)}"
    )


def _kind_of(head: bytes) -> str:
    """The kind of a table by its first bytes."""
    if head.startswith(PARQUET):
        return "parquet"
    return "jsonl" if head.lstrip().startswith(b"{") or JSON_ARRAY.match(head) else "csv"


def _check_json(path: Path, head: bytes) -> None:
    """Raises an error if JSON is not one object per line by its first bytes."""
    if JSON_ARRAY.match(head):
        found, command = "a JSON array", "jq -c '.[]'"
    elif JSON_LINES.match(head):
        found, command = "a JSON object on several lines", "jq -c ."
    else:
        return
    if not is_stream(path):
        command += f" {path.name} > {path.name.partition('.')[0]}-lines.jsonl"
    message = f"{path}: {found}, expected one object per line; {command} converts it"
    if "dblp" in path.name.lower():
        message += f", and {ImportSettings.usage(format='dblp')} reads dblp.v12.json as it is"
    raise InputError(message)


def _spooled(stream: Stream) -> BinaryIO:
    """A temporary file without a name that holds the content of a stream."""
    file = tempfile.TemporaryFile(prefix="graphformers-")  # noqa: SIM115
    try:
        with stream.progress():
            shutil.copyfileobj(stream, file)
        file.seek(0)
    except BrokenStreamError as error:
        file.close()
        raise InputError(f"{stream.path}: {error}") from error
    except OSError as error:
        file.close()
        raise full_disk(error, Path(tempfile.gettempdir())) from error
    return file


class JsonTable(Table):
    """A .jsonl file: one JSON object per line. Its columns are those of the first records."""

    is_complete = False

    def __init__(self, stream: Stream, settings: ImportSettings, problems: Problems) -> None:
        self.path = stream.path
        self._stream, self._settings, self._problems = stream, settings, problems
        self._records = self._decoded()
        self._ahead: list[tuple[int, Record]] = []
        self._num_bytes = 0
        # the fields of objects, by column
        self._fields: dict[str, set[tuple[str, ...]]] = {}
        for entry in islice(self._records, RECORDS_AHEAD):
            self._ahead.append(entry)
            if self._num_bytes > BYTES_AHEAD:
                break
        self.names = list(dict.fromkeys(name for _, record in self._ahead for name in record))
        self.paths = self._find_paths()
        if not self.names:
            raise InputError(f"{self.path}: no records, expected one JSON object per line")
        check_columns(self.names, str(self.path), settings)

    def close(self) -> None:
        """Closes the file."""
        self._records.close()
        self._stream.close()

    def batches(
        self, only: list[str] | None, texts: Sequence[str] = (), required: Sequence[str] = ()
    ) -> Iterator[TableBatch]:
        """Yields the rows; see `Table.batches`."""
        records, self._ahead = chain(self._ahead, self._records), []
        complete = self._complete(records, texts, required)
        while True:
            lines, found = [], []
            # Two lists: with tuples, garbage collection takes as long as decoding.
            for line, record in islice(complete, BATCH_ROWS):
                lines.append(line)
                found.append(record)
            if not found:
                return
            names = only
            if names is None:
                names = list(dict.fromkeys(chain(texts, self._named, *found)))
                check_columns(names, f"{self.path}:{lines[0]}", self._settings)
            columns = {}
            for name in names:
                read = field_of if "." in name else Record.get
                values = [read(record, name) for record in found]
                if name in texts:
                    columns[name] = text_column(values)
                    continue
                self._count_fields(name, values, lines[0])
                columns[name] = make_column(values)
            yield TableBatch(columns, line_locator(self.path, lines))

    def _complete(
        self, records: Iterable[tuple[int, Record]], texts: Sequence[str], required: Sequence[str]
    ) -> Iterator[tuple[int, Record]]:
        """Yields (line, record) of the records with the required fields and no nested texts."""
        for line, record in records:
            # A part of a path that is missing is a missing value.
            missing = [name for name in required if name not in record and "." not in name]
            nested = [name for name in texts if isinstance(field_of(record, name), list | dict)]
            if missing:
                expected = ", ".join(required)
                detail = f"no field {missing[0]!r} in this record, expected {expected}"
                self._problems.add("missing field", (self.path, line), detail)
            elif nested:
                shown = repr(field_of(record, nested[0]))[:60]
                detail = f"the field {nested[0]!r} is {shown}, expected text or a number"
                self._problems.add("malformed row", (self.path, line), detail)
            else:
                yield line, record

    def _find_paths(self) -> list[str]:
        """Fields of objects within the first records: those that the user named, and some."""
        named = [path for path in named_paths(self._settings) if path not in self.names]
        records = [record for _, record in self._ahead]
        self._named = [
            path for path in named if any(field_of(record, path) is not None for record in records)
        ]
        paths = dict.fromkeys(self._named)
        for record in records:
            paths.update(dict.fromkeys(_paths_of(record)))
            if len(paths) > PATHS_SHOWN:
                break
        return list(paths)

    def _count_fields(self, name: str, values: list[object], line: int) -> None:
        """Raises an error if the objects in a column have too many fields.

        Each field becomes a column of its own inside of the column.
        """
        fields = self._fields.setdefault(name, set())
        level: dict[tuple[str, ...], list[object]] = {(): values}
        while level:
            inner: dict[tuple[str, ...], list[object]] = {}
            for path, found in level.items():
                for value in found:
                    if isinstance(value, dict):
                        for key, each in value.items():
                            inner.setdefault((*path, key), []).append(each)
                    elif isinstance(value, list) and value:
                        inner.setdefault(path, []).extend(value)
                if len(inner) > self._settings.max_columns:
                    break
            fields.update(path for path in inner if path)
            if len(fields) > self._settings.max_columns:
                raise InputError(
                    f"{self.path}:{line}: the objects in the column {name!r} have more than "
                    f"{self._settings.max_columns:,} different fields; "
                    f"{ImportSettings.usage(keep='NAMES')} leaves the column out, "
                    f"{ImportSettings.usage(max_columns='NUMBER')} reads more"
                )
            level = inner

    def _decoded(self) -> Generator[tuple[int, Record], None, None]:
        import msgspec

        decoder, limit = msgspec.json.Decoder(Record), self._settings.max_nesting
        for line, text in stream_lines(self._stream, self._settings, self._problems):
            if not text.strip():
                continue
            self._num_bytes += len(text)
            detail = None
            try:
                record = decoder.decode(text)
            except (msgspec.DecodeError, RecursionError) as error:
                detail = (
                    _describe_constant(text)
                    or f"{error}; found {text[:60]!r}, expected one JSON object per line"
                )
            else:
                # Counting brackets is cheap, and few records have so many.
                if text.count("[") + text.count("{") > limit and _nesting(record) > limit:
                    detail = (
                        f"more than {limit} levels of lists and objects within each other; found "
                        f"{text[:60]!r}; {ImportSettings.usage(max_nesting=2 * limit)} allows more"
                    )
            if detail is None:
                yield line, record
            else:
                self._problems.add("malformed row", (self.path, line), detail)


def named_paths(settings: ImportSettings) -> list[str]:
    """The columns that the user named and whose names may be paths."""
    named = [part.strip() for name in settings.columns.values() for part in name.split(",")]
    # The type of listed links follows their column.
    named += [name.rpartition(":")[0] for name in named]
    return [name for name in dict.fromkeys([*named, *(settings.keep or ())]) if "." in name]


def field_of(record: Record, name: str) -> object:
    """A field, also one of an object within the record, such as doc.title; None if it is missing.

    A field whose own name has a full stop comes first. Of a list of objects, such as
    references.id, the result is the list of their fields.
    """
    if name in record:
        return record[name]
    value: object = record
    for part in name.split("."):
        if isinstance(value, list):
            value = [each.get(part) for each in value if isinstance(each, dict)]
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value


def _paths_of(record: Record) -> Iterator[str]:
    """The paths of all fields of objects within a record."""
    for name, value in record.items():
        objects = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
        for each in objects:
            if isinstance(each, dict):
                yield from (f"{name}.{inner}" for inner in each)
                yield from (f"{name}.{path}" for path in _paths_of(each))


def _nesting(value: object) -> int:
    """The number of levels of lists and objects within each other."""
    level, values = 0, [value]
    while values := [each for each in values if isinstance(each, list | dict)]:
        level += 1
        values = [
            inner
            for each in values
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return level


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


class ParquetTable(Table):
    """A Parquet file.

    Args:
        path: The file.
        content: The content of a pipe; None for a file, which is memory-mapped.
        settings: Limits of reading.
        problems: Collects bad rows.
    """

    def __init__(
        self, path: Path, content: BinaryIO | None, settings: ImportSettings, problems: Problems
    ) -> None:
        self.path, self._problems = path, problems
        try:
            self._file = parquet.ParquetFile(content or path, memory_map=content is None)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: not a Parquet file or cut short ({error})") from error
        self.names = list(self._file.schema_arrow.names)
        self.paths = [path for field in self._file.schema_arrow for path in _paths_of_type(field)]
        self._named = [path for path in named_paths(settings) if path in self.paths]
        check_columns(self.names, str(path), settings)

    def close(self) -> None:
        """Closes the file."""
        self._file.close(force=True)

    def batches(
        self, only: list[str] | None, texts: Sequence[str] = (), required: Sequence[str] = ()
    ) -> Iterator[TableBatch]:
        """Yields the rows; see `Table.batches`."""
        file, path = self._file, self.path
        done = 0
        with self, progress(f"Reading {path.name}", file.metadata.num_rows, "rows") as task:
            names = None
            if only is None and (self._named or any(name in self.paths for name in texts)):
                names = list(dict.fromkeys([*self.names, *texts, *self._named]))
            # Parquet reads a field within a column as the column with this field alone.
            # A thread that cannot be started, or runs out of memory, may end the process.
            blocks = file.iter_batches(BATCH_ROWS * 4, columns=only, use_threads=False)
            while True:
                try:
                    block = next(blocks, None)
                except MemoryError:
                    raise
                except (pa.ArrowException, OSError) as error:
                    raise InputError(
                        f"{path}, after row {done}: the Parquet file is damaged ({error}); fetch "
                        f"it again"
                    ) from error
                if block is None:
                    return
                if wanted := names or only:
                    block = pa.record_batch([_column(block, name) for name in wanted], wanted)
                yield _parquet_batch(path, block, done, texts, self._problems)
                done += block.num_rows
                task.advance(block.num_rows)


def _paths_of_type(field: pa.Field) -> Iterator[str]:
    """The paths of all fields within a column of structs."""
    if pa.types.is_struct(field.type):
        for inner in field.type:
            yield f"{field.name}.{inner.name}"
            yield from (f"{field.name}.{path}" for path in _paths_of_type(inner))


def _column(block: pa.RecordBatch, name: str) -> pa.Array:
    """A column, or a field within one, such as doc.title."""
    if name in block.schema.names:
        return block.column(name)
    first, *parts = name.split(".")
    return pc.struct_field(block.column(first), parts)


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
