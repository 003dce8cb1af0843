"""read_graph: makes a TextGraph from files of any supported format.

`formats.FORMATS` lists the formats and their readers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphformers.errors import GraphFormersError, InputError
from graphformers.graph.builder import GraphBuilder
from graphformers.graph.formats import find_format, load_importer
from graphformers.graph.importers.sources import Source, check_files, input_path
from graphformers.graph.problems import Problems, advise_skipping
from graphformers.graph.settings import ImportSettings
from graphformers.graph.textgraph import TextGraph

Paths = str | Path | Sequence[str | Path]


def read_graph(
    *files: Paths,
    nodes: Paths = (),
    edges: Paths = (),
    settings: ImportSettings | None = None,
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
        changes: Settings of `ImportSettings` by name, instead of `settings`.

    Returns:
        The graph, in memory; `save` writes it as a folder.

    Raises:
        InputError: A file is missing or invalid; the message names the file and the line.
        GraphFormersError: A setting is invalid.

    Example:
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
            _check_bad_rows(Path(settings.bad_rows), sources)
    problems = Problems(strict=not settings.skip_bad, bad_rows=settings.bad_rows)
    builder = GraphBuilder(problems, outside=format.outside, keep_empty=settings.keep_empty)
    try:
        with advise_skipping(), problems, builder:
            load_importer(settings.format)(sources, builder, settings)
            graph = builder.build()
    except MemoryError as error:
        raise GraphFormersError(
            f"the memory does not suffice to read the files ({error or 'out of memory'}); "
            f"{ImportSettings.usage(keep='NAMES')} leaves out columns that are not needed"
        ) from error
    file = ImportSettings.usage(bad_rows="FILE.jsonl")
    problems.warn("" if settings.bad_rows else f"; {file} writes all bad rows to a file")
    read_as = settings.remembered() if settings.format == "tables" else {}
    return replace(graph, summary=graph.summary | {"read_as": read_as}) if read_as else graph


def _sources(files: Sequence[Paths], nodes: Paths, edges: Paths) -> list[Source]:
    """The inputs, each once; a file that is also named as nodes or edges is what it is named."""
    named = [
        *(Source(path, "nodes") for path in _listed(nodes)),
        *(Source(path, "edges") for path in _listed(edges)),
    ]
    others = [Source(path) for given in files for path in _listed(given)]
    paths = {source.path.resolve() for source in named}
    sources = [*named, *(source for source in others if source.path.resolve() not in paths)]
    seen = set()
    for source in sources:
        # A table may hold nodes and their edges at once.
        key = source.path.resolve(), source.holds
        if key in seen:
            raise InputError(f"{source.path}: given twice, expected each input once")
        seen.add(key)
    return sources


def _check_bad_rows(path: Path, sources: Sequence[Source]) -> None:
    """Raises an error if the file for bad rows is one of the inputs."""
    if any(path.exists() and path.samefile(source.path) for source in sources):
        raise InputError(f"{path}: an input, expected another file to write bad rows to")


def _listed(paths: Paths) -> list[Path]:
    given: Any = paths
    listed = [given]
    # Tables and open files are iterable, too.
    is_other = isinstance(given, str | Path | Mapping) or hasattr(given, "columns")
    if isinstance(given, Iterable) and not is_other and not hasattr(given, "read"):
        listed = list(given)
    invalid = [path for path in listed if not isinstance(path, str | Path)]
    if invalid:
        raise InputError(
            f"a {type(invalid[0]).__name__} given, expected the names of files; build_graph takes "
            f"data in memory"
        )
    return [input_path(path) for path in listed]
