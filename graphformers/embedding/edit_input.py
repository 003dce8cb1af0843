"""Reads edits from files or from Python: new and changed nodes, new links, nodes and links to
remove.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from graphformers.arrays import is_unicode, one_chunk
from graphformers.embedding.edits import NO_NODES, Edits, lost_ends
from graphformers.errors import GraphFormersError, InputError
from graphformers.graph.batches import EdgeBatch, MemoryTable, Table, TableBatch
from graphformers.graph.builder import NODE, GraphBuilder, node_table
from graphformers.graph.columns import (
    ColumnNames,
    as_strings,
    is_text,
    python_values,
    table_in_memory,
)
from graphformers.graph.edited import UNTYPED, EditedGraph
from graphformers.graph.formats import LIMITS, TABLES, TEXT
from graphformers.graph.importers.delimited import DelimitedTable
from graphformers.graph.importers.sources import check_files, file_kind, input_path, read_lines
from graphformers.graph.importers.table_files import KINDS, open_table
from graphformers.graph.importers.tables import (
    NodeColumns,
    check_kept,
    edge_batches,
    edge_columns,
    link_columns,
    node_batches,
    node_columns,
)
from graphformers.graph.problems import Place, Problems, format_place
from graphformers.graph.protocol import Link, plain_ids
from graphformers.graph.settings import (
    ImportSettings,
    columns_for,
    guess_column,
    require_columns,
)
from graphformers.memory import available_memory
from graphformers.progress import amount

# bytes of memory for each byte of a list of ids, if these are short
LIST_MEMORY = 16
# what can be said of how files are read
READING = (*TABLES, *TEXT, "skip_bad", "keep_empty", *LIMITS)
Nodes = str | Path | Mapping[str, str] | Sequence[Mapping[str, Any]] | Any  # or an Arrow table
# or an Arrow table
Links = str | Path | Sequence[Sequence[str | None]] | Sequence[Mapping[str, Any]] | Any


def _typed(builder: GraphBuilder, graph: EditedGraph) -> pa.Table:
    """Nodes whose columns hold what the same columns hold elsewhere in the graph; rows with other
    values are bad ones.
    """
    nodes = builder.node_table()
    silent = [
        name
        for name in nodes.column_names
        if graph.column_type(name) is None and nodes[name].null_count == len(nodes)
    ]
    # they do not even say what they hold
    nodes, bad = nodes.drop_columns(silent), np.zeros(len(nodes), dtype=bool)
    for place, name in enumerate(nodes.column_names):
        kind, column = graph.column_type(name), nodes[name]
        if kind is None or column.type == kind:
            continue
        if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
            more = next(
                (field.name for field in column.type if kind.get_field_index(field.name) < 0), None
            )
            if more is not None:
                raise InputError(
                    f"the column {name!r} holds {kind}, which has no {more!r}: it would be lost"
                )
        found = _cast(column, kind)
        if found is None:
            # rows are taken out of it: the cast of a slice of lists looks at all of them
            whole = one_chunk(column)
            rows = [
                _cast(whole.take(pa.array([i])), kind) if whole[i].is_valid else pa.nulls(1, kind)
                for i in range(len(whole))
            ]
            strange = np.array([value is None for value in rows], dtype=bool)
            builder.problems.report(
                "value of another kind",
                strange & ~bad,
                builder.place_of,
                partial(_strange_value, nodes, name, kind),
            )
            bad |= strange
            found = pa.chunked_array(
                [pa.nulls(1, kind) if value is None else value for value in rows], kind
            )
        nodes = nodes.set_column(place, name, found)
    return nodes.filter(pa.array(~bad)).combine_chunks() if bad.any() else nodes


def _cast(
    column: pa.Array | pa.ChunkedArray, kind: pa.DataType
) -> pa.Array | pa.ChunkedArray | None:
    """An array as another kind of values; None where one of them is none."""
    try:
        return column.cast(kind)
    except pa.ArrowException:
        return None


def _strange_value(nodes: pa.Table, name: str, kind: pa.DataType, row: int) -> str:
    id, value = nodes["id"][row].as_py(), python_values(nodes[name].slice(row, 1))[0]
    return f"the node {id!r}: {value!r} is no {kind}, which the column {name!r} holds"


class _Collector:
    """Collects the links of files and tables. `untyped` is what an empty type means."""

    def __init__(self, problems: Problems, untyped: str | None) -> None:
        self.problems = problems
        self.links: list[Link] = []
        self.where: list[Place] = []
        self._untyped = untyped

    def add_edges(self, batch: EdgeBatch) -> None:
        empty = np.asarray(pc.or_(pc.is_null(batch.sources), pc.is_null(batch.targets)))
        self.problems.report(
            "edge to an unknown node",
            empty,
            batch.locate,
            lambda _: "an edge with an empty end, expected an id",
        )
        kinds = [None] * len(batch) if batch.types is None else batch.types.to_pylist()
        ends = zip(batch.sources.to_pylist(), batch.targets.to_pylist(), kinds, strict=True)
        for i, (one, other, kind) in enumerate(ends):
            if not empty[i]:
                self.links.append(
                    (
                        str(one),
                        str(other),
                        None if batch.types is None else str(kind) if kind else self._untyped,
                    )
                )
                self.where.append(batch.locate(i))


@dataclass(frozen=True)
class _Reading:
    """How files of changes are read: as the graph's own were, unless told otherwise."""

    graph: EditedGraph
    problems: Problems
    settings: ImportSettings  # with the columns that were asked for
    remembered: Mapping[str, str]  # role -> column of the graph's own files
    # columns of a file that become new ones of the graph; None for all
    taken: Sequence[str] | None = None

    @staticmethod
    def of(
        graph: EditedGraph, given: ImportSettings | None, changes: Mapping[str, object]
    ) -> "_Reading":
        strange = next((name for name in changes if name not in READING), None)
        if strange is not None:
            raise GraphFormersError(
                f"no setting {strange!r} of an update; there are: {', '.join(READING)}"
            )
        remembered: Mapping[str, str] = {}
        taken = None
        if given is not None:
            settings = replace(given, **changes)  # type: ignore[arg-type]
        else:
            summary = graph.base.summary
            usual = dict(summary.get("read_as", {}))
            if summary.get("empty_texts"):
                usual["keep_empty"] = True
            remembered, kept = usual.pop("columns", {}), usual.pop("keep", None)
            settings = ImportSettings(**{**usual, **changes})
            # what the import left out stays out
            taken = settings.keep if settings.keep is not None or kept is None else ()
            # all are read: the graph's own are known later
            settings = replace(settings, keep=None)
        return _Reading(graph, Problems(strict=not settings.skip_bad), settings, remembered, taken)

    def for_columns(self, found: Iterable[str]) -> ImportSettings:
        """With the columns that the graph's own files had, where this one has them, too."""
        names, asked = set(found), self.settings.columns
        own = {
            role: name
            for role, name in self.remembered.items()
            if role not in asked and names.issuperset(_parts(role, name, names))
        }
        return replace(self.settings, columns=own | asked)

    def no_texts(self) -> set[str]:
        """Columns that are not to be taken for texts: the graph has them beside its texts, or its
        texts are made of several.
        """
        columns = self.graph.column_names
        return {
            *columns,
            *_parts("text", self.remembered.get("text", "")),
            *({"text"} if "text_" in columns else ()),
        }

    def not_taken(self, nodes: pa.Table, found: Collection[str], path: Path) -> list[str]:
        """The columns of a file of nodes that the graph does not have and that are not to be new
        ones of it. `found` are all its columns, also those without a value.
        """
        taken, there = self.taken or (), {*nodes.column_names, *found}
        if missing := [name for name in taken if name not in there]:
            raise InputError(
                f"{ImportSettings.usage(keep=missing[:1])}: {path} has no column of that name; "
                f"there are: {', '.join(sorted(there))}"
            )
        return [
            name
            for name in nodes.column_names
            if name not in {"id", "text", *self.graph.column_names, *taken}
        ]

    def refuse_other_texts(self, names: Sequence[str]) -> None:
        """Nodes in memory without a column `text`, but with one that would be it in a file: it
        would be kept beside the text.
        """
        own, strange = _parts("text", self.remembered.get("text", "")), self.no_texts()
        rest = [name for name in names if name not in strange]
        if found := own if set(own) <= set(names) else columns_for("text", rest, self.settings):
            raise GraphFormersError(
                f"nodes with {', '.join(names)} given: in Python the text of a node is called "
                f"'text', and {found[0]!r} is a "
                "column beside it; rename it, or give 'text', too, to have such a column"
            )

    def check(self, *, nodes: bool, edges: bool, ids: bool) -> None:
        """Refuses what was asked for where no file can have it."""
        if self.taken and not nodes:
            raise GraphFormersError(
                f"the column {self.taken[0]!r} to keep given, but no file holds nodes"
            )
        for role, name in self.settings.columns.items():
            if role == "time":
                words = "but an update does not keep the times of links; import them instead"
            elif role in ("user", "item"):
                words = "which means nothing in an update"
            elif role in ("src", "dst", "type") and not edges:
                words = "but no file holds links"
            elif role in ("text", "links", "id") and not (nodes or (role == "id" and ids)):
                words = "but no file holds nodes"
            else:
                continue
            raise GraphFormersError(f"the column {name!r} for {role} given, {words}")


def _parts(role: str, name: str, names: Collection[str] = ()) -> list[str]:
    """The columns that a role was given: several for a text and for listed links."""
    if role == "links":
        return list(link_columns(name, names))
    return [part.strip() for part in name.split(",")] if role == "text" else [name]


def read_edits(
    graph: EditedGraph,
    nodes: Nodes | None = None,
    edges: Links | None = None,
    remove: str | Path | Iterable[str] | None = None,
    remove_edges: Links | None = None,
    settings: ImportSettings | None = None,
    **reading: object,
) -> Edits:
    """Edits from files (a path each) or from Python: dicts or a table of nodes, pairs of ids, ids.

    Nodes have an id and a text: {id: text}, a list of dicts or a table; with other columns, which
    may come without a text for nodes that are there. Links are (id, id) or (id, id, type), a list
    of dicts or a table. To be removed, a pair loses all its links, a link with a type those of that
    type, and one whose type is empty or None those without a type. `remove` as a file is a table
    with a column of ids, or holds one id a line.

    `graph` is what is changed: it tells how its own files were read, what its columns hold, and the
    texts of nodes of which only columns are given. `reading` are settings of ImportSettings that
    differ from how the graph was read, such as columns, keep, header, quotes, skip_bad and
    keep_empty; `settings` are used as they are.
    """
    how = _Reading.of(graph, settings, reading)
    edges, remove_edges = _listed(edges), _listed(remove_edges)
    is_file = [isinstance(given, str | Path) for given in (nodes, edges, remove, remove_edges)]
    how.check(
        nodes=is_file[0],
        edges=_has_columns(edges) or _has_columns(remove_edges),
        ids=is_file[2] and _is_table(input_path(str(remove))),
    )
    links, where, unread, _ = _links(edges, how)
    unlinked = _links_to_remove(remove_edges, how)
    removed = tuple(dict.fromkeys(_ids(remove, how)))
    listed = _Collector(how.problems, None)
    (table, found), dropped = _nodes(nodes, listed, how), list[str]()
    if isinstance(nodes, str | Path) and how.taken is not None:
        dropped = how.not_taken(table, found, input_path(nodes))
        table = table.drop_columns(dropped)
    known, gone = {*table["id"].to_pylist()}, set(removed)
    if how.settings.skip_bad and where:
        lost = {i for i, _ in lost_ends(links, graph, known, gone)}
        for i in lost:
            is_removed = not gone.isdisjoint(links[i][:2])
            what = "edge to a removed node" if is_removed else "edge to an unknown node"
            how.problems.counts[what] += 1
        kept = [i for i in range(len(links)) if i not in lost]
        links, where = [links[i] for i in kept], [where[i] for i in kept]
    # Links that nodes list to others outside the graph are normal.
    outside = {i for i, _ in lost_ends(listed.links, graph, known, gone)}
    kept = [i for i in range(len(listed.links)) if i not in outside]
    if where or not links:
        where = [*where, *(listed.where[i] for i in kept)]
    links = [*links, *(listed.links[i] for i in kept)]
    return Edits(
        table,
        tuple(links),
        removed,
        tuple(unlinked),
        tuple(where),
        tuple(unread),
        dict(how.problems.counts),
        tuple(dropped),
    )


def _nodes(given: Nodes | None, links: _Collector, how: _Reading) -> tuple[pa.Table, list[str]]:
    """Nodes with their columns as the graph has them, and the columns of the file.

    Links that the nodes list are collected.
    """
    if given is None:
        return NO_NODES, []
    builder = GraphBuilder(how.problems, keep_empty=how.settings.keep_empty)
    if isinstance(given, str | Path):
        names = _add_file(input_path(given), builder, links, how)
    else:
        names = list[str]()
        if isinstance(given, Mapping):
            if set(given) == {"id", "text"} and all(
                isinstance(value, str) for value in given.values()
            ):
                raise GraphFormersError(
                    f"{dict(given)!r} given: one node goes in a list, [{{…}}]; else id: text for "
                    f"each"
                )
            given = [{"id": id, "text": text} for id, text in given.items()]
        table = table_in_memory(given, "nodes", NODE)
        given_names = table.column_names
        without_texts = "id" in given_names and "text" not in given_names
        if without_texts:
            texts = _known_texts(how.graph, one_chunk(table["id"]))
            if not texts.null_count:
                table = table.append_column("text", texts)
        table = node_table(table)
        if without_texts:
            how.refuse_other_texts(given_names)
        if not len(table):
            return NO_NODES, []
        builder.add_table(table)
    builder.seal_nodes()
    return _typed(builder, how.graph), names


def _add_file(path: Path, builder: GraphBuilder, links: _Collector, how: _Reading) -> list[str]:
    """Adds the nodes of a file and the links that they list, and returns its columns.

    Without texts, nodes keep theirs.
    """
    check_files([path])
    with open_table(path, how.settings, how.problems) as table:
        found, settings = table.fields, how.for_columns(table.fields)
        strange = how.no_texts() if "text" not in settings.columns else set()
        possible = [name for name in found if name not in strange]
        if "text" not in settings.columns and not guess_column("text", possible, settings):
            columns = NodeColumns(require_columns(["id"], found, settings, path)[0], ())
        else:
            columns = node_columns(found, settings, path, possible)
        names = ColumnNames(table.names)
        names.add(path for path in table.paths if path in (settings.keep or ()))
        if table.is_complete:
            check_kept(names, settings)
        for batch, listed in node_batches(table, columns, names, settings):
            for edges in listed:
                links.add_edges(edges)
            if not columns.texts:
                batch = _with_known_texts(batch, found, how.graph)
            builder.add_nodes(_as_in_graph(batch, how.graph))
        check_kept(names, settings)
    return found


def _with_known_texts(batch: TableBatch, found: list[str], graph: EditedGraph) -> TableBatch:
    ids = batch.columns["id"]
    texts = _known_texts(graph, ids)
    if texts.null_count:
        row = next(row for row in range(len(ids)) if not texts[row].is_valid)
        raise InputError(
            f"{format_place(batch.locate(row))}: the node {ids[row].as_py()!r} is new and "
            f"needs a text, but there is no column for it among: {', '.join(found)}; name one "
            f"with {ImportSettings.usage(columns={'text': 'NAME'})}"
        )
    return replace(batch, columns=batch.columns | {"text": texts})


def _as_in_graph(batch: TableBatch, graph: EditedGraph) -> TableBatch:
    """Columns that are texts in the graph are texts here, even if they look like numbers."""
    kinds = {name: graph.column_type(name) for name in batch.untyped}
    texts = {name for name, kind in kinds.items() if kind is not None and is_text(kind)}
    columns = {
        name: pc.if_else(pc.equal(column, ""), None, column) if name in texts else column
        for name, column in batch.columns.items()
    }
    return replace(batch, columns=columns, untyped=batch.untyped - texts)


def _known_texts(graph: EditedGraph, ids: pa.Array) -> pa.Array:
    """The texts of these nodes, null where there is no such node."""
    nodes = graph.find_nodes(as_strings(ids).to_pylist())
    found = iter(graph.texts_of(nodes[nodes >= 0]))
    return pa.array(
        [next(found) if node >= 0 else None for node in nodes.tolist()], pa.large_string()
    )


def _has_columns(links: Links | None) -> bool:
    """Whether links come from a file or a table, and not as pairs."""
    if isinstance(links, list):
        return bool(links) and all(isinstance(entry, Mapping) for entry in links)
    return links is not None


def _listed(links: Links | None) -> Links | None:
    """What can be looked at more than once."""
    return (
        links
        if links is None or isinstance(links, str | Path) or hasattr(links, "__arrow_c_stream__")
        else list(links)
    )


class _Links(NamedTuple):
    """Links as they were given."""

    links: list[Link]
    where: list[Place]  # each of them stands, in a file
    unread: list[str]  # columns beside them that nobody reads
    has_types: bool  # a column for them


def _links(given: Links | None, how: _Reading, untyped: str | None = None) -> _Links:
    """`untyped` is what an empty type means, where types are told."""
    if given is None:
        return _Links([], [], [], False)
    if isinstance(given, str | Path):
        path = input_path(given)
        check_files([path])
        with open_table(path, how.settings, how.problems) as table:
            return _links_of_table(table, how.for_columns(table.fields), how.problems, untyped)
    if _has_columns(given):
        rows = table_in_memory(given, "links", "{'source': 'p1', 'target': 'p2'}")
        table = MemoryTable(Path("links"), rows)
        return _links_of_table(table, how.settings, how.problems, untyped)
    return _Links([_link(entry, untyped) for entry in given], [], [], False)


def _links_of_table(
    table: Table, settings: ImportSettings, problems: Problems, untyped: str | None
) -> _Links:
    problems.unread.clear()
    collector = _Collector(problems, untyped)
    has_types = edge_columns(table.fields, settings, table.path)[2] is not None
    for batch in edge_batches(table, problems, settings):
        collector.add_edges(batch)
    return _Links(collector.links, collector.where, list(problems.unread), has_types)


def _link(entry: object, untyped: str | None) -> Link:
    """A pair of ids, or one with a type."""
    link = (
        entry
        if isinstance(entry, str | Mapping) or not isinstance(entry, Iterable)
        else plain_ids(entry)
    )
    if not isinstance(link, list) or len(link) not in (2, 3):
        raise GraphFormersError(
            f"the link {entry!r} given, expected a pair of ids, or (id, id, type)"
        )
    for end in link[:2]:
        if not isinstance(end, str):
            raise GraphFormersError(
                f"the link {entry!r}: {end!r} is a {type(end).__name__}, ids are strings"
            )
    one, other = str(link[0]), str(link[1])
    if len(link) == 2:
        return one, other, None
    kind = link[2]
    if not isinstance(kind, str | None):
        raise GraphFormersError(
            f"the link {entry!r}: its type is a {type(kind).__name__}, types are strings, or None"
        )
    if kind is not None and not is_unicode(kind):
        raise GraphFormersError(
            f"the link {entry!r}: its type is no Unicode, it holds half of a character"
        )
    return one, other, kind or untyped


def _links_to_remove(given: Links | None, how: _Reading) -> list[Link]:
    """A column that is not understood may be the type of the links that are meant: then more than
    these would go.
    """
    found = _links(given, how, UNTYPED)
    if found.unread and not found.has_types and how.graph.link_types() - {UNTYPED}:
        place = given if isinstance(given, str | Path) else "links"
        raise InputError(
            f"{place}: the column {found.unread[0]!r} means nothing here, so that all links of a "
            f"pair would be removed, whatever "
            f"their type; name their type with "
            f"{ImportSettings.usage(columns={'type': found.unread[0]})}, or leave the column out"
        )
    return found.links


def _ids(given: str | Path | Iterable[str] | None, how: _Reading) -> list[str]:
    if given is None:
        return []
    if isinstance(given, str | Path):
        check_files([input_path(given)])
        return _ids_in(input_path(given), how)
    ids = plain_ids(given)
    strange = next((id for id in ids if not isinstance(id, str)), None)
    if strange is not None:
        raise GraphFormersError(
            f"the id {strange!r} is a {type(strange).__name__}, ids are strings: {str(strange)!r}"
        )
    return ids


def _is_table(path: Path) -> bool:
    """Whether ids come from a column; a .txt is a list, and so is a pipe."""
    return file_kind(path) in set(KINDS) - {"txt"}


def _ids_in(path: Path, how: _Reading) -> list[str]:
    """The column of ids of a table, whose only column may have any name, or none; the lines of any
    other file, such as .txt.
    """
    size, available = path.stat().st_size, available_memory(torch.device("cpu"))
    if path.is_file() and LIST_MEMORY * size > available:
        raise GraphFormersError(
            f"{path}: {amount(size, 'B')} of ids take about {amount(LIST_MEMORY * size, 'B')} of "
            f"memory, {amount(available, 'B')} are available; remove them by several updates, "
            f"each with a part of the list"
        )
    if not _is_table(path):
        return [line for _, line in read_lines(path, how.settings, how.problems) if line]
    if path.is_file() and not path.stat().st_size:
        return []
    with open_table(path, how.settings, how.problems) as table:
        settings = how.for_columns(table.names)
        is_only = len(table.names) == 1 and "id" not in settings.columns
        is_named = guess_column("id", table.names, settings) is not None
        if is_only and not is_named and isinstance(table, DelimitedTable):
            table.drop_header()
        names = table.names
        name = names[0] if is_only else require_columns(["id"], names, settings, path)[0]
        return [
            id
            for batch in table.batches([name], [name], [name])
            for id in as_strings(batch.columns[name]).to_pylist()
            if id
        ]
