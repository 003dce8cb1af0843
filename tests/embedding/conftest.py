"""Small graphs and models, and folders of them."""

import resource
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from graphformers.embedding.database import TABLES
from graphformers.embedding.vectors import VectorStore
from graphformers.graph.textgraph import TextGraph
from graphformers.model.encoder import GraphFormers
from tests.conftest import make_graph
from tests.model.conftest import make_model as make_random_model

EXACT = {"states_precision": "float32", "shard_size": 20, "batch_tokens": 200}
MODELS: dict[str, dict[str, Any]] = {
    "graphformers": {},
    "two layers": {"num_layers": 2},
    "one layer": {"num_layers": 1},
    "own gnn": {"share_gnn": False, "position_bias": False},
    "bidirectional": {"direction": "bidirectional"},
    "mean of tokens": {"pooling": "mean"},
    **{
        method: {"method": method}
        for method in ("plm", "gat", "max", "mean", "att", "tnve", "iftn")
    },
}


def make_model(**changes: Any) -> GraphFormers:
    """A small random model; one that has vectors of nodes has them for two nodes of three."""
    model = make_random_model(**changes)
    model.add_nodes(some_graph().id_hashes[::3])
    model.add_nodes(some_graph().id_hashes[1::3])
    return model


def some_graph(seed: int = 0) -> TextGraph:
    """60 nodes, some without neighbours, a hub among them."""
    return make_graph(60, 120, seed)


def farthest(store: VectorStore, model: GraphFormers, graph: TextGraph) -> float:
    """The largest difference between a store and what the model gives for the graph from
    scratch.
    """
    ids = graph.ids.to_pylist()
    assert sorted(store.ids.to_pylist()) == sorted(ids)
    return float(np.abs(store.vectors(ids) - model.encode_nodes(graph)).max(initial=0))


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but the notes on what was verified, which hold times, and the number
    of acknowledged commits, which may lag behind. Databases are their rows: the order of their
    pages depends on what was interrupted.
    """
    found = {}
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or file.name.startswith(".verified"):
            continue
        name = str(file.relative_to(folder))
        if file.suffix == ".sqlite":
            found[name] = repr(rows_of(file)).encode()
        elif not name.startswith("edits-"):
            found[name] = file.read_bytes()
    return found


def rows_of(database: Path) -> dict[str, list[object]]:
    """All rows of a database by table.

    They are read from a copy, since a WAL that a killed process left is only read by who may write.
    """
    with tempfile.TemporaryDirectory() as folder:
        for file in database.parent.glob(f"{database.name}*"):
            shutil.copy(file, folder)
        with closing(sqlite3.connect(Path(folder) / database.name)) as connection:
            tables = ["store", "commits", *TABLES]
            rows = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
    return rows


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """No file of this process can grow beyond a size, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 4
    file.write_bytes(data)


__all__ = [
    "EXACT",
    "MODELS",
    "bytes_of",
    "farthest",
    "flip",
    "limited_files",
    "make_model",
    "rows_of",
    "some_graph",
]
