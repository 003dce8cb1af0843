"""read_graph: makes a TextGraph from files of any supported format.

`formats.FORMATS` lists the formats and their readers.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from graphformers.errors import GraphFormersError, InputError
from graphformers.files import put_in_place, sweep_beside
from graphformers.graph.builder import GraphBuilder
from graphformers.graph.formats import find_format, load_importer
from graphformers.graph.importers.sources import Source, check_files, input_path, is_stream
from graphformers.graph.problems import Problems, advise_skipping
from graphformers.graph.settings import ImportSettings
from graphformers.graph.textgraph import TextGraph
from graphformers.settings import usage

# the first bytes of a file of bad rows
BAD_ROWS_START = b'{"file": "'
Paths = str | Path | Sequence[str | Path]


def read_graph(
    *files: Paths,
    nodes: Paths = (),
    edges: Paths = (),
    settings: ImportSettings | None = None,
    force: bool = False,
    **changes: Any,
) -> TextGraph:
    """Reads a graph from files.

    Args:
        files: The files, in any order, one by one or in lists. Tables of nodes and of edges are
            distinguished by their columns. A folder stands for the tables in it, and "-" for
            standard input. The format "python" takes names of packages.
        nodes: Tables of nodes, if their columns are ambiguous.
        edges: Tables of edges, if their columns are ambiguous.
        settings: The format and its options.
        force: Whether the file of bad rows may replace that of another import.
        changes: Settings of `ImportSettings` by name, instead of `settings`.

    Returns:
        The graph, in memory; `save` writes it as a folder.

    Raises:
        InputError: A file is missing or invalid; the message names the file and the line.
        GraphFormersError: A setting is invalid.

    Examples:
        >>> read_graph("papers.csv", "citations.csv", columns={"text": "title"})
        TextGraph(80 nodes, 156 linked pairs)
    """
    settings = settings or ImportSettings.from_keywords("read_graph", changes)
    sources = _sources(files, nodes, edges)
    format = find_format(settings.format)
    if format.reads_files:
        check_files([source.path for source in sources])
        if not sources:
            raise InputError(
                f"no files given for the format {settings.format}, expected at least one"
            )
        if settings.bad_rows is not None:
            _check_inputs_are_kept(Path(settings.bad_rows), sources)
    try:
        with advise_skipping(), _bad_rows_file(settings.bad_rows, force=force) as file:
            problems = Problems(strict=not settings.skip_bad, bad_rows=file)
            outside, keep_empty = format.outside, settings.keep_empty
            with GraphBuilder(problems, outside=outside, keep_empty=keep_empty) as builder:
                load_importer(settings.format)(sources, builder, settings)
                graph = builder.build()
    except MemoryError as error:
        raise GraphFormersError(
            f"the memory does not suffice to read the files ({error or 'out of memory'}); "
            f"{ImportSettings.usage(keep='NAMES')} leaves out columns that are not needed"
        ) from error
    all_rows = ImportSettings.usage(bad_rows="FILE.jsonl")
    problems.warn("" if settings.bad_rows else f"; {all_rows} writes all bad rows to a file")
    read_as = settings.remembered() if settings.format == "tables" else {}
    return replace(graph, summary=graph.summary | {"read_as": read_as}) if read_as else graph


def _sources(files: Sequence[Paths], nodes: Paths, edges: Paths) -> list[Source]:
    """The inputs, each once; a file that is also named as nodes or edges is what it is named."""
    named = [
        *(Source(path, "nodes") for path in _listed(nodes)),
        *(Source(path, "edges") for path in _listed(edges)),
    ]
    others = [Source(path) for given in files for path in _listed(given)]
    paths = {os.path.realpath(source.path) for source in named}
    sources = [*named, *(source for source in others if os.path.realpath(source.path) not in paths)]
    seen = set()
    for source in sources:
        # A table may hold nodes and their edges at once, but a pipe is read once.
        holds = None if is_stream(source.path) else source.holds
        key = os.path.realpath(source.path), holds
        if key in seen:
            raise InputError(f"{source.path}: given twice, expected each input once")
        seen.add(key)
    return sources


def _check_inputs_are_kept(bad_rows: Path, sources: Sequence[Source]) -> None:
    """Raises an error if the file for bad rows is an input, or would be one of the next import."""
    for path in (source.path for source in sources):
        files = [file for file in path.iterdir() if file.exists()] if path.is_dir() else [path]
        if bad_rows.exists() and any(map(bad_rows.samefile, files)):
            raise InputError(f"{bad_rows}: an input, expected another file to write bad rows to")
        if path.is_dir() and bad_rows.parent.exists() and bad_rows.parent.samefile(path):
            raise InputError(
                f"{bad_rows}: in the folder {path}, which is an input, expected a file to write "
                f"bad rows to in another folder; the next import would read it as a table"
            )


@contextmanager
def _bad_rows_file(path: str | Path | None, *, force: bool) -> Iterator[TextIO | None]:
    """Opens the file for bad rows, which is put in place after the `with` block.

    A failed import leaves what was there. An import without bad rows makes an empty file.
    """
    if path is None:
        yield None
        return
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder, expected one to write bad rows to")
    if os.path.lexists(path):
        if not _holds_bad_rows(path):
            raise InputError(
                f"{path}: exists and does not hold bad rows of an import; it is never replaced, "
                f"choose another name"
            )
        if not force:
            raise InputError(
                f"{path}: exists already; choose another name, or {usage('force', True)} "
                f"replaces it"
            )
    sweep_beside(path)
    # The names of files need not be UTF-8. What cannot be encoded is escaped as in JSON.
    with (
        put_in_place(path) as beside,
        beside.open("w", encoding="utf-8", errors="backslashreplace") as file,
    ):
        yield file


def _holds_bad_rows(path: Path) -> bool:
    """Whether a file is one that an import wrote, which is empty if there were no bad rows."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.readline(len(BAD_ROWS_START))
    return first in (b"", BAD_ROWS_START)


def _listed(paths: Paths) -> list[Path]:
    given: Any = paths
    listed = [given]
    # Tables and open files are iterable, too.
    is_other = isinstance(given, str | Path | Mapping) or hasattr(given, "columns")
    is_other = is_other or hasattr(given, "number_of_nodes")
    if isinstance(given, Iterable) and not is_other and not hasattr(given, "read"):
        listed = list(given)
    invalid = [path for path in listed if not isinstance(path, str | Path)]
    if invalid:
        kind = type(invalid[0]).__name__
        advice = ""
        if hasattr(given, "number_of_nodes"):
            advice = ", from_networkx a graph of networkx"
        elif hasattr(invalid[0], "read"):
            advice = ", and '-' stands for standard input"
        raise InputError(
            f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind} given, expected the names of "
            f"files; build_graph takes data in memory{advice}"
        )
    return [input_path(path) for path in listed]
