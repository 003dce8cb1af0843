"""Node and edge tables (.csv .tsv .jsonl .parquet); the roles of columns are guessed or named."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.errors import InputError
from graphformers.graph.batches import EdgeBatch, Table, TableBatch, check_columns
from graphformers.graph.builder import GraphBuilder
from graphformers.graph.columns import ColumnNames
from graphformers.graph.importers.sources import Source
from graphformers.graph.importers.table_files import open_tables
from graphformers.graph.problems import Problems
from graphformers.graph.settings import ImportSettings, columns_for, guess_column, require_column
from graphformers.graph.times import TimeColumn


@dataclass(frozen=True)
class NodeColumns:
    """The columns of the id and of the texts of a table of nodes, which may have no texts."""

    id: str
    texts: Sequence[str]


def read(files: Sequence[Source], builder: GraphBuilder, settings: ImportSettings) -> None:
    """Reads the tables of nodes, then those of edges; their columns tell which is which.

    Edges of a group of tables that is not the last wait in the builder.
    """
    names = ColumnNames()
    times = TimeColumn() if "time" in settings.columns else None
    seen: dict[str, list[Path]] = {"nodes": [], "edges": []}
    for group, is_last in open_tables(files, settings, builder.problems):
        tables: dict[str, list[Table]] = {"nodes": [], "edges": []}
        for source, table in group:
            kind = source.holds or _kind_of(table, settings)
            tables[kind].append(table)
            seen[kind].append(table.path)
        for table in tables["edges"]:
            edge_columns(table.names, settings, table.path)
        if is_last:
            _check_inputs(seen["nodes"], seen["edges"], settings)
        read_nodes(tables["nodes"], names, builder, settings, is_last=is_last)
        for table in tables["edges"]:
            for batch in edge_batches(table, builder.problems, settings, times):
                builder.add_edges(batch)


def _kind_of(table: Table, settings: ImportSettings) -> str:
    """Whether a table holds nodes or edges: edges have a source and a target."""
    names = table.names
    is_edges = all(guess_column(role, names, settings) for role in ("src", "dst"))
    if is_edges and "id" in names and {"text", "title"} & set(names):
        raise InputError(
            f"{table.path}: both nodes and edges by its columns ({', '.join(names)}); say which "
            f"with --nodes or --edges"
        )
    return "edges" if is_edges else "nodes"


def _check_inputs(nodes: list[Path], edges: list[Path], settings: ImportSettings) -> None:
    if edges and not nodes:
        listed = ", ".join(map(str, edges))
        raise InputError(
            f"{listed}: edges by the columns, and there is no table of nodes (id, text); name one "
            f"with --nodes FILE"
        )
    unused = [role for role in ("src", "dst", "type", "time") if role in settings.columns]
    if unused and not edges:
        named = f"{unused[0]}={settings.columns[unused[0]]}"
        raise InputError(
            f"--column {named} given, but no file holds edges: each link is a row with its source "
            f"and its target"
        )


def read_nodes(
    tables: list[Table],
    names: ColumnNames,
    builder: GraphBuilder,
    settings: ImportSettings,
    *,
    is_last: bool,
) -> None:
    """Reads a group of tables of nodes, and seals the nodes in the builder after the last group.

    Args:
        tables: The tables.
        names: The stored names of all columns seen so far.
        builder: Receives the nodes.
        settings: The columns that were named or are kept.
        is_last: Whether there are no further groups.
    """
    columns = [node_columns(table.names, settings, table.path) for table in tables]
    for table, found in zip(tables, columns, strict=True):
        names.add(table.names)
        _note_other_texts(table, found, builder.problems, settings)
    if tables:
        check_columns(list(names), str(tables[-1].path), settings)
    if is_last and all(table.is_complete for table in tables):
        check_kept(names, settings)
    for table, found in zip(tables, columns, strict=True):
        for batch in node_batches(table, found, names, settings):
            builder.add_nodes(batch)
    if is_last:
        check_kept(names, settings)
        builder.seal_nodes()


def _note_other_texts(
    table: Table, columns: NodeColumns, problems: Problems, settings: ImportSettings
) -> None:
    if "text" not in settings.columns:
        possible = columns_for("text", table.names, settings)
        if others := [name for name in possible if name not in (columns.id, *columns.texts)]:
            problems.other_texts.setdefault(columns.texts[0], {}).update(dict.fromkeys(others))


def node_batches(
    table: Table, columns: NodeColumns, names: ColumnNames, settings: ImportSettings
) -> Iterator[TableBatch]:
    """Reads the nodes of a table: id, text unless there are no texts, and the other columns.

    Several texts are joined with full stops.
    """
    roles = list(dict.fromkeys([columns.id, *columns.texts]))
    only = None
    if settings.keep is not None:
        available = table.names if table.is_complete else settings.keep
        kept = [name for name in available if name in settings.keep and name not in roles]
        only = [*roles, *kept]
    kept_texts = [
        name for name in columns.texts if name in (settings.keep or ()) and name != columns.id
    ]
    # Of several text columns, a record needs only one.
    required = roles if len(columns.texts) == 1 else [columns.id]
    for batch in table.batches(only, roles, required):
        others = [name for name in batch.columns if name not in roles] + kept_texts
        # A requested column that no record of a .jsonl has is an array of nulls.
        others = [
            name for name in others if name in table.names or batch.columns[name].type != pa.null()
        ]
        found = {"id": batch.columns[columns.id]}
        if columns.texts:
            found["text"] = _join([batch.columns[name] for name in columns.texts])
        found |= {names[name]: batch.columns[name] for name in others}
        untyped = frozenset(names[name] for name in others if name in batch.untyped)
        yield TableBatch(found, batch.locate, untyped)


def node_columns(
    found: list[str], settings: ImportSettings, path: Path, possible: list[str] | None = None
) -> NodeColumns:
    """The columns of the id and of the texts.

    Columns that the user named come first. A column called "name" may be the id or the text.

    Args:
        found: The names of the columns.
        settings: The columns that the user named.
        path: The file, for messages.
        possible: The columns that may be the text, where the user named none; by default all.
    """
    possible = found if possible is None else possible
    parts = settings.columns.get("text", "").split(",")
    if len(parts) > 1:
        texts = [require_column("text", found, _with_text(settings, part), path) for part in parts]
    else:
        others = [name for name in possible if name != settings.columns.get("id")]
        texts = [
            guess_column("text", others, settings) or require_column("text", found, settings, path)
        ]
    if settings.columns.get("id") in texts:
        return NodeColumns(require_column("id", found, settings, path), texts)
    id_name = guess_column("id", [name for name in found if name not in texts] or found, settings)
    if id_name is None and "text" not in settings.columns:
        id_name = require_column("id", found, settings, path)
        others = [name for name in possible if name != id_name]
        texts = [guess_column("text", others, settings) or texts[0]]
    return NodeColumns(id_name or require_column("id", found, settings, path), texts)


def check_kept(names: Collection[str], settings: ImportSettings) -> None:
    """Raises an error if a column to keep is not among those of the nodes."""
    for name in settings.keep or ():
        if name not in names:
            near = get_close_matches(name, names, n=1, cutoff=0)
            raise InputError(
                f"--keep {name}: no node file has a column of that name, the nearest is "
                f"{near[0]!r} of: {', '.join(names)}"
            )


def edge_columns(
    names: list[str], settings: ImportSettings, path: Path
) -> tuple[str, str, str | None]:
    """The columns of the sources, the targets and the types of edges; None without types."""
    source, target = (require_column(role, names, settings, path) for role in ("src", "dst"))
    if "type" in settings.columns:
        return source, target, require_column("type", names, settings, path)
    return source, target, guess_column("type", names, settings)


def edge_batches(
    table: Table, problems: Problems, settings: ImportSettings, times: TimeColumn | None = None
) -> Iterator[EdgeBatch]:
    """Reads the edges of a table, with their times if `times` is given."""
    names, path = table.names, table.path
    source, target, type_name = edge_columns(names, settings, path)
    time_name = require_column("time", names, settings, path) if times else None
    texts = [source, target] + ([type_name] if type_name else [])
    only = texts + ([time_name] if time_name else [])
    problems.unread |= dict.fromkeys(name for name in names if name not in only)
    for batch in table.batches(only, texts, [source, target]):
        moments = None
        if times and time_name:
            moments, bad = times.read(
                batch.columns[time_name], time_name, path, batch.locate, problems
            )
            if bad.any():
                batch, moments = batch.take(np.flatnonzero(~bad)), moments[~bad]
        types = batch.columns[type_name] if type_name else None
        sources, targets = batch.columns[source], batch.columns[target]
        yield EdgeBatch(sources, targets, batch.locate, types, moments)


def _with_text(settings: ImportSettings, name: str) -> ImportSettings:
    return replace(settings, columns=settings.columns | {"text": name.strip()})


def _join(texts: list[pa.Array]) -> pa.Array:
    """Joins the texts of each row with full stops, skipping missing ones.

    Arrow's own null handling would lose rows.
    """
    joined, *others = texts
    for text in others:
        joined, text = pc.fill_null(joined, ""), pc.fill_null(text, "")
        gap = pc.if_else(pc.and_(pc.not_equal(joined, ""), pc.not_equal(text, "")), ". ", "").cast(
            pa.large_string()
        )
        joined = pc.binary_join_element_wise(joined, gap, text, pa.scalar("", pa.large_string()))
    return joined
