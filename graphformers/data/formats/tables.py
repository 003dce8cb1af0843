"""Node and edge tables: .csv .tsv .jsonl .parquet, several files per side, column names guessed or given."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from graphformers.data.builder import GraphBuilder
from graphformers.data.settings import ImportSettings, guess_column, require_column
from graphformers.data.sources import file_kind
from graphformers.data.tables import DELIMITERS, read_table, table_columns


def read(nodes: list[Path], edges: list[Path], builder: GraphBuilder, settings: ImportSettings) -> None:
    """Reads the node files, then the edge files."""
    for path in nodes:
        read_nodes(path, builder, settings)
    builder.seal_nodes()
    for path in edges:
        _read_edges(path, builder, settings)


def sort_inputs(paths: list[Path], settings: ImportSettings) -> tuple[list[Path], list[Path]]:
    """Tells node files from edge files by their columns: an edge file has a source and a target."""
    nodes: list[Path] = []
    edges: list[Path] = []
    for path in paths:
        names = table_columns(path, header=settings.header, quotes=settings.quotes)
        is_edges = all(guess_column(role, names, settings) for role in ("src", "dst"))
        (edges if is_edges else nodes).append(path)
    return nodes, edges


def read_nodes(path: Path, builder: GraphBuilder, settings: ImportSettings) -> None:
    """Reads one file of nodes. Several text columns, "title,abstract", are joined with a full stop."""
    names = table_columns(path, header=settings.header, quotes=settings.quotes)
    parts = settings.columns.get("text", "").split(",")
    if len(parts) > 1:
        texts = [require_column("text", names, _with_text(settings, part), path) for part in parts]
    else:
        texts = [require_column("text", names, settings, path)]
    id_name = require_column("id", [name for name in names if name not in texts] or names, settings, path)
    kept = [name for name in names if name not in (id_name, *texts) and (settings.keep is None or name in settings.keep)]
    if file_kind(path) in DELIMITERS:
        builder.untyped_columns.update(kept)
    only = [id_name, *(text for text in texts if text != id_name), *kept]
    for batch in read_table(path, builder.problems, header=settings.header, quotes=settings.quotes, only=only):
        columns = {_column_name(name): batch.columns[name] for name in kept}
        builder.add_nodes(batch.columns[id_name], _join([batch.columns[text] for text in texts]), columns, batch.locate)


def _read_edges(path: Path, builder: GraphBuilder, settings: ImportSettings) -> None:
    names = table_columns(path, header=settings.header, quotes=settings.quotes)
    source, target = (require_column(role, names, settings, path) for role in ("src", "dst"))
    type_name = guess_column("type", names, settings)
    if "type" in settings.columns:
        type_name = require_column("type", names, settings, path)
    only = [source, target] + ([type_name] if type_name else [])
    for batch in read_table(path, builder.problems, header=settings.header, quotes=settings.quotes, only=only):
        types = batch.columns[type_name] if type_name else None
        builder.add_edges(batch.columns[source], batch.columns[target], types, batch.locate)


def _with_text(settings: ImportSettings, name: str) -> ImportSettings:
    return replace(settings, columns=settings.columns | {"text": name.strip()})


def _column_name(name: str) -> str:
    """A user's column may not be called like one of ours."""
    return f"{name}_" if name in ("id", "text") else name


def _join(texts: list[pa.Array]) -> pa.Array:
    if len(texts) == 1:
        return texts[0]
    strings = [text.cast(pa.large_string()) for text in texts]
    present = [pc.if_else(pc.equal(text, ""), None, text) for text in strings]
    return pc.binary_join_element_wise(*present, pa.scalar(". ", pa.large_string()), null_handling="skip")
