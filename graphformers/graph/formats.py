"""The table of input formats, and importers of other packages.

A format is an entry of FORMATS or, in another package, an entry point of the group
`graphformers.importers` that refers to a `Format`. The help of the command line, docs/formats.md
and error messages are made from these entries; docs/extending.md shows how to add one.

This module imports nothing heavy, so that the command line can show the help texts at once.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from graphformers.errors import GraphFormersError
from graphformers.settings import usage

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from graphformers.graph.builder import GraphBuilder
    from graphformers.graph.importers.sources import Source
    from graphformers.graph.settings import ImportSettings

# the entry points by which other packages offer importers
GROUP = "graphformers.importers"


class Importer(Protocol):
    """A function that reads the files of one format."""

    def __call__(
        self, files: Sequence["Source"], builder: "GraphBuilder", settings: "ImportSettings"
    ) -> None:
        """Reads files into a builder.

        `Records` (`graph/importers/records`) reads text files line by line and passes on what is
        found one at a time; the builder checks ids, texts and the ends of links.

        Args:
            files: The inputs, each with its path.
            builder: Takes nodes and links, in any order.
            settings: The options that the user gave.
        """


@dataclass(frozen=True)
class Format:
    """An input format.

    Attributes:
        about: The content of the files, in one phrase.
        reader: The importer, as "module:function". It is imported when the format is used.
        example: The first lines of a file, for the documentation.
        suffixes: Suffixes that files of the format have, for messages.
        settings: The settings of `ImportSettings` that the format uses, besides `skip_bad`,
            `bad_rows`, `keep_empty` and the limits, which apply to all formats.
        outside: Whether links to nodes outside the data are normal. They are then counted and left
            out; otherwise they are bad rows.
        reads_files: Whether the inputs are files; otherwise they are names.
    """

    about: str
    reader: str
    example: str = field(default="", repr=False)
    suffixes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    outside: bool = False
    reads_files: bool = True


TEXT = ("encoding",)
TABLES = ("columns", "keep", "header", "quotes", "list_separator")
LIMITS = ("max_row", "max_columns", "max_nesting", "max_expansion")
VIEWS = ("window", "min_count", "max_views")
_IMPORTERS = "graphformers.graph.importers"
FORMATS = {
    "tables": Format(
        "tables of nodes and of edges, distinguished by their columns",
        f"{_IMPORTERS}.tables:read",
        """\
papers.csv:     id,title,year
                p1,Graphs of texts,2019
citations.csv:  source,target
                p1,p2""",
        suffixes=(".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".parquet"),
        settings=(*TABLES, *TEXT),
    ),
    "dblp": Format(
        "titles and references of dblp.v12.json, one record per line",
        f"{_IMPORTERS}.dblp:read",
        """\
[
{"id":1,"title":"Graphs of texts","year":2019,"references":[2,99]}
,{"id":2,"title":"Texts of graphs","year":2018}""",
        suffixes=(".json",),
        outside=True,
        settings=TEXT,
    ),
    "wikidata5m": Format(
        "files of id<TAB>text and of head<TAB>relation<TAB>tail; the first sentence is the text",
        f"{_IMPORTERS}.wikidata5m:read",
        """\
wikidata5m_text.txt:   Q1<TAB>The universe is all of space and time. It is large.
wikidata5m_train.txt:  Q1<TAB>P31<TAB>Q2""",
        suffixes=(".txt",),
        settings=TEXT,
    ),
    "amazon": Format(
        "titles and similar items of SNAP's amazon-meta.txt",
        f"{_IMPORTERS}.amazon:read",
        """\
Id:   1
ASIN: 0827229534
  title: Patterns of Preaching
  similar: 2  0804215715  156101074X""",
        suffixes=(".txt",),
        outside=True,
        settings=TEXT,
    ),
    "debian": Format(
        "descriptions and dependencies of Debian's Packages files",
        f"{_IMPORTERS}.debian:read",
        """\
Package: less
Depends: libc6 (>= 2.34), libtinfo6
Description: pager program similar to more""",
        outside=True,
        settings=TEXT,
    ),
    "sessions": Format(
        "an item table and a log of user, time, item, linking items viewed together",
        f"{_IMPORTERS}.sessions:read",
        """\
items.csv:  item,title
            i1,A red lamp
views.csv:  user,time,item
            u1,2024-05-01 12:30:00,i1""",
        suffixes=(".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".parquet"),
        settings=(*TABLES, *TEXT, *VIEWS),
    ),
    "pairs": Format(
        "the TSV of the 2021 code, where equal texts are one node",
        f"{_IMPORTERS}.pairs:read",
        "a text|'|a neighbour|'|another<TAB>its partner|'|a neighbour",
        suffixes=(".tsv", ".txt"),
        settings=TEXT,
    ),
    "python": Format(
        "docstrings of installed packages, given by name, or of the standard library, with the "
        "links member of, calls and inherits",
        f"{_IMPORTERS}.python:read",
        "graphformers import --format python numpy -o numpy.graph",
        reads_files=False,
    ),
}


def find_format(name: str) -> Format:
    """The format of a name, of this package or another.

    Raises:
        GraphFormersError: There is no such format, or its package is broken.
    """
    return FORMATS[name] if name in FORMATS else _other_format(name)


def load_importer(name: str) -> Importer:
    """Imports the reader of a format.

    Raises:
        GraphFormersError: There is no such format, or its package is broken.
    """
    found = find_format(name)
    module, _, function = found.reader.partition(":")
    if name in FORMATS:
        return getattr(import_module(module), function)  # type: ignore[no-any-return]
    try:
        importer = getattr(import_module(module), function)
    except Exception as error:
        raise _broken(name, f"{found.reader}: {_words(error)}") from error
    return importer  # type: ignore[no-any-return]


def other_formats() -> dict[str, str]:
    """Name and package of each format of other packages. None of them is imported."""
    return {entry.name: _package(entry) for entry in _entry_points()}


@functools.cache
def _other_format(name: str) -> Format:
    """The format of another package."""
    entries = [entry for entry in _entry_points() if entry.name == name]
    if not entries:
        known = [*FORMATS, *other_formats()]
        is_suffix = f".{name}" in FORMATS["tables"].suffixes
        near = ["tables"] if is_suffix else get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise GraphFormersError(
            f"{usage('format', name)} given, expected one of: {', '.join(known)}{hint}"
        )
    if len(entries) > 1:
        packages = " and ".join(sorted(map(_package, entries)))
        raise GraphFormersError(
            f"the format {name!r} is offered by {packages}, expected one; uninstall the others"
        )
    try:
        # A module of another package may raise anything when it is imported.
        found: Any = entries[0].load()
    except Exception as error:
        raise _broken(name, f"{entries[0].value}: {_words(error)}") from error
    if not isinstance(found, Format):
        raise _broken(name, f"{entries[0].value} is a {type(found).__name__}, expected a Format")
    return found


def _entry_points() -> list["EntryPoint"]:
    """The entry points of importers, by name; those with the name of a format of ours are not used.

    importlib.metadata is slow to import and reads a file of every installed package.
    """
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    return sorted((entry for entry in found if entry.name not in FORMATS), key=lambda e: e.name)


def _package(entry: "EntryPoint") -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.module


def _broken(name: str, problem: str) -> GraphFormersError:
    return GraphFormersError(
        f"the format {name!r} of the package {other_formats()[name]} cannot be used ({problem}); "
        f"update or uninstall that package"
    )


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
