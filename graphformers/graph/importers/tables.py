"""Node and edge tables (.csv .tsv .jsonl .parquet); the roles of columns are guessed or named."""

import ast
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.errors import InputError
from graphformers.graph.batches import EdgeBatch, Table, TableBatch, check_columns
from graphformers.graph.builder import GraphBuilder
from graphformers.graph.columns import ColumnNames, as_strings, as_text
from graphformers.graph.importers.sources import Source
from graphformers.graph.importers.table_files import open_tables
from graphformers.graph.problems import Locate, Problems, format_place
from graphformers.graph.settings import (
    ImportSettings,
    columns_for,
    guess_column,
    missing_columns,
    require_columns,
)
from graphformers.graph.times import TimeColumn
from graphformers.settings import usage


@dataclass(frozen=True)
class NodeColumns:
    """The columns of a table of nodes by their roles.

    Attributes:
        id: The id.
        texts: The texts, which are joined; empty if the nodes have no texts.
        links: Columns that list the ids of linked nodes, and the type of these links.
    """

    id: str
    texts: Sequence[str]
    links: Mapping[str, str | None] = field(default_factory=dict)


def read(files: Sequence[Source], builder: GraphBuilder, settings: ImportSettings) -> None:
    """Reads the tables of nodes, then those of edges; their columns tell which is which.

    Edges of a group of tables that is not the last wait in the builder.
    """
    views = [role for role in ("user", "item") if role in settings.columns]
    if views:
        raise InputError(
            f"{ImportSettings.usage(columns={views[0]: settings.columns[views[0]]})} given, but "
            f"tables of nodes and edges do not use it; "
            f"{ImportSettings.usage(format='sessions')} reads logs of views"
        )
    names = ColumnNames()
    times = TimeColumn() if "time" in settings.columns else None
    seen: dict[str, list[Path]] = {"nodes": [], "edges": []}
    misspelt: InputError | None = None
    for group, is_last in open_tables(files, settings, builder.problems):
        tables: dict[str, list[Table]] = {"nodes": [], "edges": []}
        for source, table in group:
            kind = source.holds or _kind_of(table, settings)
            tables[kind].append(table)
            seen[kind].append(table.path)
            if kind == "nodes" and source.holds is None:
                misspelt = misspelt or _misspelt_ends(table, settings)
        for table in tables["edges"]:
            edge_columns(table.fields, settings, table.path)
        if is_last:
            if misspelt is not None and not seen["edges"]:
                raise misspelt
            _check_inputs(seen["nodes"], seen["edges"], settings)
        read_nodes(tables["nodes"], names, builder, settings, is_last=is_last)
        for table in tables["edges"]:
            for batch in edge_batches(table, builder.problems, settings, times):
                builder.add_edges(batch)


def _kind_of(table: Table, settings: ImportSettings) -> str:
    """Whether a table holds nodes or edges: edges have a source and a target."""
    names = table.fields
    is_edges = all(guess_column(role, names, settings) for role in ("src", "dst"))
    if is_edges and "id" in names and {"text", "title"} & set(names):
        raise InputError(
            f"{table.path}: both nodes and edges by its columns ({', '.join(names)}); say which "
            f"with {usage('nodes', table.path)} or {usage('edges', table.path)}"
        )
    return "edges" if is_edges else "nodes"


def _misspelt_ends(table: Table, settings: ImportSettings) -> InputError | None:
    """An error if a table has columns of sources and targets except for how they were written."""
    ends = {role: settings.columns.get(role) for role in ("src", "dst")}
    absent = {role: name for role, name in ends.items() if name and name not in table.fields}
    is_near = all(get_close_matches(name, table.fields, 1, cutoff=0.75) for name in absent.values())
    others = [guess_column(role, table.fields, settings) for role in ends if role not in absent]
    if absent and is_near and all(others):
        return missing_columns(absent, table.fields, table.path)
    return None


def _check_inputs(nodes: list[Path], edges: list[Path], settings: ImportSettings) -> None:
    if edges and not nodes:
        listed = ", ".join(map(str, edges))
        raise InputError(
            f"{listed}: edges by the columns, and there is no table of nodes (id, text); name one "
            f"with {usage('nodes', 'FILE')}"
        )
    unused = [role for role in ("src", "dst", "type", "time") if role in settings.columns]
    if unused and not edges:
        named = ImportSettings.usage(columns={unused[0]: settings.columns[unused[0]]})
        raise InputError(
            f"{named} given, but no file holds edges: each link is a row with its source "
            f"and its target; {usage('edges', 'FILE')} names a file of them"
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
    columns = [node_columns(table.fields, settings, table.path) for table in tables]
    for table, found in zip(tables, columns, strict=True):
        names.add(table.names)
        names.add(path for path in table.paths if path in (settings.keep or ()))
        _note_other_texts(table, found, builder.problems, settings)
    if tables:
        check_columns(list(names), str(tables[-1].path), settings)
    if is_last and all(table.is_complete for table in tables):
        check_kept(names, settings)
    for table, found in zip(tables, columns, strict=True):
        for batch, listed in node_batches(table, found, names, settings):
            builder.add_nodes(batch)
            for links in listed:
                builder.add_edges(links)
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
) -> Iterator[tuple[TableBatch, list[EdgeBatch]]]:
    """Reads the nodes of a table: id, text unless there are no texts, and the other columns.

    Several texts are joined with full stops. The links that the nodes list come with them.
    """
    roles = list(dict.fromkeys([columns.id, *columns.texts]))
    only = None
    if settings.keep is not None:
        available = table.fields if table.is_complete else settings.keep
        kept = [name for name in available if name in settings.keep and name not in roles]
        only = list(dict.fromkeys([*roles, *columns.links, *kept]))
    # Texts and listed links are columns, too, if they are kept by name.
    used = [*columns.texts, *columns.links]
    kept_used = [name for name in used if name in (settings.keep or ()) and name != columns.id]
    # Of several text columns, a record needs only one.
    required = roles if len(columns.texts) == 1 else [columns.id]
    for batch in table.batches(only, roles, required):
        others = [name for name in batch.columns if name not in (*roles, *columns.links)]
        others += kept_used
        # A requested column that no record of a .jsonl has is an array of nulls.
        others = [
            name for name in others if name in table.names or batch.columns[name].type != pa.null()
        ]
        found = {"id": batch.columns[columns.id]}
        if columns.texts:
            found["text"] = _join([batch.columns[name] for name in columns.texts])
        found |= {names[name]: batch.columns[name] for name in others}
        untyped = frozenset(names[name] for name in others if name in batch.untyped)
        listed = [
            list_edges(found["id"], batch.columns[name], name, kind, batch.locate, settings)
            for name, kind in columns.links.items()
        ]
        yield TableBatch(found, batch.locate, untyped), listed


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
    given = settings.columns
    parts = [part.strip() for part in given.get("text", "").split(",")]
    missing: dict[str, str | None] = {}
    if len(parts) > 1:
        texts = [part for part in parts if part in found]
        if texts != parts:
            missing["text"] = given["text"]
    else:
        others = [name for name in possible if name != given.get("id")]
        text = guess_column("text", others, settings) or guess_column("text", found, settings)
        texts = [text] if text else []
        if text is None:
            missing["text"] = given.get("text")
    if given.get("id") in texts:
        id_name: str | None = given["id"]
    else:
        rest = [name for name in found if name not in texts]
        id_name = guess_column("id", rest or found, settings)
        if id_name is None and "text" not in given:
            id_name = guess_column("id", found, settings)
            others = [name for name in possible if name != id_name]
            texts = [guess_column("text", others, settings) or name for name in texts]
    if id_name is None:
        missing = {"id": given.get("id"), **missing}
    links = link_columns(given["links"], found) if "links" in given else {}
    if any(name not in found for name in links):
        missing["links"] = given["links"]
    if id_name is None or missing:
        raise missing_columns(missing, found, path)
    return NodeColumns(id_name, texts, links)


def link_columns(given: str, names: Collection[str]) -> dict[str, str | None]:
    """The columns that list linked nodes, and the types of these links.

    Args:
        given: Columns as the user named them: references, or references:cites with a type.
        names: The columns of the table, whose own names may have a colon.
    """
    links: dict[str, str | None] = {}
    for part in map(str.strip, given.split(",")):
        name, _, kind = part.rpartition(":")
        if part in names or not name:
            links[part] = None
        else:
            links[name] = kind
    return links


def list_edges(
    ids: pa.Array,
    values: pa.Array,
    name: str,
    kind: str | None,
    locate: Locate,
    settings: ImportSettings,
) -> EdgeBatch:
    """The links of nodes to those that a column of them lists.

    Args:
        ids: The ids of the nodes.
        values: Lists of ids, or texts: ids with separators, or lists in JSON or Python.
        name: The column of the lists.
        kind: The type of the links; None for links without.
        locate: Returns the place of a node.
        settings: The separator.
    """
    if not pa.types.is_list(values.type) and not pa.types.is_large_list(values.type):
        values = _split_lists(as_strings(values), settings.list_separator)
    try:
        rows, found = pc.list_parent_indices(values), as_strings(pc.list_flatten(values))
    except pa.ArrowNotImplementedError as error:
        place, kinds = format_place(locate(0)).partition(":")[0], values.type.value_type
        message = f"{place}: a column of links holds lists of {kinds}, expected lists of ids"
        if pa.types.is_struct(kinds):
            fields = [entry.name for entry in kinds]
            id_name = guess_column("id", fields, ImportSettings()) or fields[0]
            chosen = ImportSettings.usage(columns={"links": f"{name}.{id_name}"})
            message += f"; {chosen} takes the field {id_name!r} of the objects"
        raise InputError(message) from error
    targets = pc.utf8_trim_whitespace(found)
    is_id = pc.fill_null(pc.not_equal(targets, ""), False)
    rows, targets = rows.filter(is_id), targets.filter(is_id)
    places = np.asarray(rows)
    types = None if kind is None else pa.repeat(pa.scalar(kind, pa.large_string()), len(rows))
    sources = as_strings(ids).take(rows)
    return EdgeBatch(sources, targets, lambda i: locate(int(places[i])), types, None, outside=True)


def _split_lists(texts: pa.Array, separator: str) -> pa.Array:
    """Lists of ids in texts such as p1;p2 and ["p1","p2"]."""
    is_json = pc.fill_null(pc.starts_with(pc.utf8_ltrim_whitespace(texts), "["), False)
    if not pc.any(is_json).as_py():
        return pc.split_pattern(texts, separator)
    lists = []
    for text in texts.to_pylist():
        values = _parse_list(text) if text and text.lstrip().startswith("[") else None
        if not isinstance(values, list):
            values = text.split(separator) if text else []
        lists.append([as_text(value) for value in values])
    return pa.array(lists, pa.large_list(pa.large_string()))


def _parse_list(text: str) -> object:
    """A list in JSON, or in Python as pandas writes columns of lists; None for other text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        # Python joins the strings of ['p2' 'p3'], as NumPy writes arrays, to one.
        return None if re.search(r"['\"]\s+['\"]", text) else ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def check_kept(names: Collection[str], settings: ImportSettings) -> None:
    """Raises an error if a column to keep is not among those of the nodes."""
    for name in settings.keep or ():
        if name not in names:
            near = get_close_matches(name, names, n=1)
            nearest = f", the nearest is {near[0]!r} of: " if near else "; there are: "
            raise InputError(
                f"{ImportSettings.usage(keep=[name])}: no node file has a column of that name"
                f"{nearest}{', '.join(names)}"
            )


def edge_columns(
    names: list[str], settings: ImportSettings, path: Path
) -> tuple[str, str, str | None]:
    """The columns of the sources, the targets and the types of edges; None without types.

    Raises:
        InputError: One of them, or the column of times that the user named, is missing.
    """
    roles = ["src", "dst", *(role for role in ("type", "time") if role in settings.columns)]
    found = dict(zip(roles, require_columns(roles, names, settings, path), strict=True))
    return found["src"], found["dst"], found.get("type") or guess_column("type", names, settings)


def edge_batches(
    table: Table, problems: Problems, settings: ImportSettings, times: TimeColumn | None = None
) -> Iterator[EdgeBatch]:
    """Reads the edges of a table, with their times if `times` is given."""
    names, path = table.names, table.path
    source, target, type_name = edge_columns(table.fields, settings, path)
    time_name = settings.columns["time"] if times else None
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
