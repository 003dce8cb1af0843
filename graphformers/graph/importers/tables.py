"""Node and edge tables (.csv .tsv .jsonl .parquet); the roles of columns are guessed or named."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.errors import InputError
from graphformers.graph.batches import EdgeBatch, TableBatch
from graphformers.graph.builder import GraphBuilder
from graphformers.graph.columns import ColumnNames
from graphformers.graph.importers.table_files import (
    is_plain,
    names_all_columns,
    read_table,
    table_columns,
)
from graphformers.graph.problems import Problems, advise_skipping, format_place
from graphformers.graph.settings import ImportSettings, columns_for, guess_column, require_column
from graphformers.graph.times import TimeColumn


@dataclass(frozen=True)
class Known:
    """The nodes of a graph that is updated.

    Attributes:
        texts: Returns the texts of ids, null for unknown ones.
        columns: Columns that are not texts, even if their names suggest it.
    """

    texts: Callable[[pa.Array], pa.Array]
    columns: Collection[str]


def read(
    nodes: list[Path], edges: list[Path], builder: GraphBuilder, settings: ImportSettings
) -> None:
    """Reads the node files, then the edge files."""
    unused = [role for role in ("src", "dst", "type", "time") if role in settings.columns]
    if unused and not edges:
        named = f"{unused[0]}={settings.columns[unused[0]]}"
        raise InputError(
            f"--column {named} given, but no file holds edges: each link is a row with its source "
            f"and its target"
        )
    read_nodes(nodes, builder, settings)
    times = TimeColumn() if "time" in settings.columns else None
    for path in edges:
        for batch in read_edges(path, builder.problems, settings, times):
            builder.add_edges(batch)


def sort_inputs(paths: list[Path], settings: ImportSettings) -> tuple[list[Path], list[Path]]:
    """Divides files into node files and edge files; an edge file has a source and a target."""
    nodes: list[Path] = []
    edges: list[Path] = []
    for path in paths:
        with advise_skipping():
            names = table_columns(path, settings)
        is_edges = all(guess_column(role, names, settings) for role in ("src", "dst"))
        if is_edges and "id" in names and {"text", "title"} & set(names):
            raise InputError(
                f"{path}: both nodes and edges by its columns ({', '.join(names)}); say which with "
                f"--nodes or --edges"
            )
        (edges if is_edges else nodes).append(path)
    if edges and not nodes:
        listed = ", ".join(map(str, edges))
        raise InputError(
            f"{listed}: edges by the columns, and there is no table of nodes (id, text); name one "
            f"with --nodes FILE"
        )
    return nodes, edges


def read_nodes(
    paths: list[Path], builder: GraphBuilder, settings: ImportSettings, known: Known | None = None
) -> None:
    """Reads all files of nodes and seals them in the builder.

    If a file has no texts, those of `known` nodes are used.
    """
    columns = {path: table_columns(path, settings) for path in paths}
    names = ColumnNames(name for found in columns.values() for name in found)
    if all(map(names_all_columns, paths)):
        _check_kept(names, settings)
    for path, found in columns.items():
        _read_node_file(path, found, names, builder, settings, known)
    _check_kept(names, settings)
    builder.seal_nodes()


def _read_node_file(
    path: Path,
    found: list[str],
    names: ColumnNames,
    builder: GraphBuilder,
    settings: ImportSettings,
    known: Known | None,
) -> None:
    """Reads one file of nodes. Several text columns are joined with full stops."""
    id_name, texts = node_columns(found, settings, path, known)
    if texts and "text" not in settings.columns:
        possible = columns_for("text", found, settings)
        if others := [name for name in possible if name not in (id_name, *texts)]:
            builder.problems.other_texts.setdefault(texts[0], {}).update(dict.fromkeys(others))
    roles = list(dict.fromkeys([id_name, *texts]))
    only = None
    if settings.keep is not None:
        available = found if names_all_columns(path) else settings.keep
        kept = [name for name in available if name in settings.keep and name not in roles]
        only = [*roles, *kept]
    kept_texts = [name for name in texts if name in (settings.keep or ()) and name != id_name]
    # Of several text columns, a record needs only one.
    required = roles if len(texts) == 1 else [id_name]
    for batch in read_table(
        path, builder.problems, settings, only=only, texts=roles, required=required
    ):
        others = [name for name in batch.columns if name not in roles] + kept_texts
        # A requested column that no record of a .jsonl has is an array of nulls.
        columns = {
            names[name]: batch.columns[name]
            for name in others
            if name in found or batch.columns[name].type != pa.null()
        }
        ids, given = batch.columns[id_name], [batch.columns[name] for name in texts]
        text = known.texts(ids) if known is not None and not given else join_texts(given)
        if not given and text.null_count:
            row = next(row for row in range(len(ids)) if not text[row].is_valid)
            raise InputError(
                f"{format_place(batch.locate(row))}: the node {ids[row].as_py()!r} is new and "
                f"needs a text, but there is no column for it among: {', '.join(found)}; name one "
                f"with --column text=NAME"
            )
        nodes = TableBatch({"id": ids, "text": text, **columns}, batch.locate)
        builder.add_nodes(nodes, plain=is_plain(path))


def node_columns(
    found: list[str], settings: ImportSettings, path: Path, known: Known | None = None
) -> tuple[str, list[str]]:
    """The columns of the id and of the texts; no text if there is no column and texts are `known`.

    Columns that the user named come first. A column called "name" may be the id or the text.
    """
    no_texts = () if known is None or "text" in settings.columns else known.columns
    possible = [name for name in found if name not in no_texts]
    parts = settings.columns.get("text", "").split(",")
    if known and "text" not in settings.columns and not guess_column("text", possible, settings):
        return require_column("id", found, settings, path), []
    if len(parts) > 1:
        texts = [require_column("text", found, _with_text(settings, part), path) for part in parts]
    else:
        others = [name for name in possible if name != settings.columns.get("id")]
        texts = [
            guess_column("text", others, settings) or require_column("text", found, settings, path)
        ]
    if settings.columns.get("id") in texts:
        return require_column("id", found, settings, path), texts
    id_name = guess_column("id", [name for name in found if name not in texts] or found, settings)
    if id_name is None and "text" not in settings.columns:
        id_name = require_column("id", found, settings, path)
        others = [name for name in possible if name != id_name]
        texts = [guess_column("text", others, settings) or texts[0]]
    return id_name or require_column("id", found, settings, path), texts


def _check_kept(names: Collection[str], settings: ImportSettings) -> None:
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


def read_edges(
    path: Path, problems: Problems, settings: ImportSettings, times: TimeColumn | None = None
) -> Iterator[EdgeBatch]:
    """Reads one file of edges, with their times if `times` is given."""
    names = table_columns(path, settings)
    source, target, type_name = edge_columns(names, settings, path)
    time_name = require_column("time", names, settings, path) if times else None
    texts = [source, target] + ([type_name] if type_name else [])
    only = texts + ([time_name] if time_name else [])
    problems.unread |= dict.fromkeys(name for name in names if name not in only)
    for batch in read_table(
        path, problems, settings, only=only, texts=texts, required=[source, target]
    ):
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


def join_texts(texts: list[pa.Array]) -> pa.Array:
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
