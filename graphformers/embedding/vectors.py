"""VectorStore: the vectors of a graph's nodes, a base that never changes and a log of changes.

    papers.vectors/   graph/ (the graph itself, ids and texts included), vectors/00000.npy …,
                      scales/ (int8), states/ (if kept),
                      changes.log (see log.py)

The folder is complete: encoding a new node needs its neighbours' states, links and texts. When the
log has grown to a share of the base, both are written as a new base.
"""

import copy
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from graphformers.arrays import Array, unit_rows
from graphformers.artifact import Artifact, bring_back, named, open_artifact
from graphformers.embedding.log import ChangeLog, Record
from graphformers.embedding.settings import EmbedSettings, StoreSettings
from graphformers.embedding.shards import ShardedRows, load_rows, locked_handle, which_folder
from graphformers.embedding.states import LayerStates, StatesKey
from graphformers.errors import ArtifactError, GraphFormersError, UnknownIdError
from graphformers.graph.edited import EditedGraph
from graphformers.graph.textgraph import TextGraph
from graphformers.records import ELSEWHERE, checked

logger = logging.getLogger(__name__)

KIND = "vectors"
VERSION = 1
# Attempts to open a folder that is being replaced.
TRIES = 20


@dataclass(frozen=True)
class Raw:
    """Vectors as they are stored: numbers and, for int8, the scale of each row."""

    numbers: Array  # (n, D)
    scales: Array | None = None  # (n,) float32

    def floats(self) -> Array:
        """(n, D) float32."""
        floats = self.numbers.astype(np.float32)
        return floats if self.scales is None else floats * self.scales[:, None]

    def arrays(self) -> dict[str, Array]:
        return {"vectors": self.numbers} | ({} if self.scales is None else {"scales": self.scales})


def to_precision(vectors: Array, precision: str) -> Raw:
    """Converts float32 vectors to their stored form.

    int8 has a scale for each vector, so that its largest number is 127.
    """
    if not np.isfinite(vectors).all():
        raise GraphFormersError(
            "the model gives vectors that are no numbers (NaN or infinite); its weights are "
            "damaged, or the states do not fit "
            f"into float16: {EmbedSettings.usage(states_precision='float32')} may help"
        )
    if precision != "int8":
        with np.errstate(over="ignore"):
            numbers = vectors.astype(precision, copy=False)
        if not np.isfinite(numbers).all():
            raise GraphFormersError(
                f"numbers of the vectors do not fit into {precision}; "
                f"{EmbedSettings.usage(precision='float32')} or int8 hold them"
            )
        return Raw(numbers)
    scales = np.maximum(np.abs(vectors).max(1, initial=0), np.float32(1e-30)).astype(
        np.float32
    ) / np.float32(127)
    return Raw(np.rint(vectors / scales[:, None]).astype(np.int8), scales)


@dataclass
class Rows:
    """Rows by node: those of the base, and those that the log has added or put in their place."""

    base: ShardedRows
    shape: tuple[int, ...]  # of a row
    dtype: str
    # The array and the row in it by node.
    logged: dict[int, tuple[Array, int]] = field(default_factory=dict)

    def take(self, nodes: Array) -> Array:
        """(len(nodes), *shape) the rows of nodes."""
        if len(nodes) and not self.logged:
            return self.base.take(nodes)
        listed = nodes.tolist()
        is_logged = np.array([node in self.logged for node in listed], dtype=bool)
        result = np.empty((len(nodes), *self.shape), dtype=self.dtype)
        if not is_logged.all():
            result[~is_logged] = self.base.take(nodes[~is_logged])
        for place in np.flatnonzero(is_logged).tolist():
            found, row = self.logged[listed[place]]
            result[place] = found[row]
        return result

    def put(self, nodes: Array, rows: Array) -> None:
        """Puts rows in the place of those of nodes."""
        self.logged |= {node: (rows, row) for row, node in enumerate(nodes.tolist())}

    def copy(self) -> "Rows":
        """A copy, which later rows do not change."""
        return replace(self, logged=self.logged.copy())


class VectorStore:
    """Vectors by id: `store["p7"]`, `"p7" in store`, `len(store)`, `numpy.asarray(store)`.

    Made by `embed` or `VectorStore.load`. `store.graph` is the graph of these vectors, an
    `EditedGraph` with all updates.

    Args:
        artifact: The folder, opened.

    Raises:
        ArtifactError: The folder is damaged.
        GraphFormersError: A path is given instead.

    Examples:
        >>> store = VectorStore.load("papers.vectors")
        >>> store["p7"].shape == (store.size,)
        True
    """

    def __init__(self, artifact: Artifact) -> None:
        if not isinstance(artifact, Artifact):
            raise GraphFormersError(
                f"VectorStore({str(artifact)!r}) given, expected "
                f"VectorStore.load({str(artifact)!r})"
            )
        self.artifact = artifact
        checked(artifact.manifest, artifact.settings, StoreSettings, "settings")
        self.settings: dict[str, Any] = artifact.settings
        self.graph = EditedGraph(TextGraph.load(artifact.path / "graph"))
        size = self.settings["shard_size"]
        vectors = load_rows(artifact, "vectors", size)
        if len(vectors) != self.graph.base.num_nodes:
            raise ArtifactError(
                f"{artifact.path}: {len(vectors):,} vectors, but "
                f"{self.graph.base.num_nodes:,} nodes; embed the graph again"
            )
        self.states = LayerStates.load(artifact)
        # By their names in a record of the log.
        self._rows = {"vectors": Rows(vectors, (self.size,), self.precision)}
        if self.precision == "int8":
            self._rows["scales"] = Rows(load_rows(artifact, "scales", size), (), "float32")
        if self.states is not None:
            shape = tuple(self.settings["state_shape"])
            self._rows["states"] = Rows(self.states.rows, shape, self.states.key.precision)
        for name, rows in self._rows.items():
            expected = np.dtype((rows.dtype, rows.shape))
            if any(np.dtype((part.dtype, part.shape[1:])) != expected for part in rows.base.parts):
                words = f"rows are not {rows.shape} of {rows.dtype}, as its manifest says"
                raise ArtifactError(f"{artifact.path / name}: {words}; {ELSEWHERE}")
        # End of the log when changes were last counted, and the changes.
        self._seen: tuple[int, Array, Array] | None = None
        self.log = ChangeLog(artifact.path, artifact.fingerprint)
        for record in self.log.read():
            self.absorb(record, self.graph)

    @staticmethod
    def load(path: str | Path) -> "VectorStore":
        """Maps a folder of vectors into memory and reads its log.

        Where a compaction replaces the folder meanwhile, it is opened again. An unfinished record
        at the end of the log is ignored with a warning.

        Args:
            path: The folder.

        Returns:
            The store.

        Raises:
            ArtifactError: The folder is missing, damaged or of another kind.
        """
        path = named(path)
        for _ in range(TRIES):
            before = which_folder(path)
            try:
                store = VectorStore(open_artifact(path, KIND, VERSION))
            except Exception:
                if which_folder(path) == before:
                    raise
                continue
            if which_folder(path) == before:
                if store.log.unfinished:
                    logger.warning(
                        f"{store.log.path}: the last {store.log.unfinished:,} bytes are an "
                        f"unfinished record and are ignored: "
                        "a change that is being written, or one that was broken off"
                    )
                return store
        raise ArtifactError(
            f"{path}: another folder was put in its place again and again; try again later"
        )

    def __repr__(self) -> str:
        return f"VectorStore({len(self):,} vectors of {self.size} numbers)"

    def _repr_html_(self) -> str:
        from graphformers.embedding.describe import describe_store

        return describe_store(self)._repr_html_()

    def __len__(self) -> int:
        return self.graph.num_nodes

    def __iter__(self) -> Iterator[str]:
        """The ids."""
        return iter(self.ids.to_pylist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """(len(self), D) float32: all vectors, in the order of `ids`."""
        return self.vectors(self.ids.to_pylist()).astype(dtype or np.float32, copy=False)

    def __contains__(self, id: str) -> bool:
        return id in self.graph

    def __getitem__(self, id: str) -> Array:
        """(D,) float32."""
        found: Array = self.vectors([id])[0]
        return found

    @property
    def path(self) -> Path:
        """The folder."""
        return self.artifact.path

    @property
    def size(self) -> int:
        """D, the dimension of a vector."""
        return int(self.settings["hidden_size"])

    @property
    def precision(self) -> str:
        """Number type of the stored vectors."""
        return str(self.settings["precision"])

    @property
    def is_cosine(self) -> bool:
        """Whether these vectors are compared by cosine, not by inner product."""
        return bool(self.settings["similarity"] == "cosine")

    @property
    def key(self) -> StatesKey:
        """Which model made these vectors, and how."""
        return StatesKey(**self.settings["key"])

    @property
    def ids(self) -> pa.Array:
        """The ids of all vectors, in the order of `blocks`."""
        return (
            pa.array(self.graph.ids_of(self.graph.nodes), pa.large_string())
            if self.graph.is_edited
            else self.graph.base.ids
        )

    def vectors(self, ids: Sequence[str]) -> Array:
        """The vectors of some ids.

        Args:
            ids: The ids.

        Returns:
            (len(ids), D) float32.

        Raises:
            UnknownIdError: A node is missing.
        """
        return self.raw(self.nodes(ids, "vector")).floats()

    def nodes(self, ids: Sequence[str], sought: str = "node") -> Array:
        """The row numbers of some ids.

        Args:
            ids: The ids.
            sought: What they stand for, for the message.

        Returns:
            (len(ids),) int64.

        Raises:
            UnknownIdError: A node is missing.
        """
        nodes = self.graph.find_nodes(ids)
        unknown = np.flatnonzero(nodes < 0)
        if len(unknown):
            raise UnknownIdError(
                f"no {sought} with the id {ids[int(unknown[0])]!r} among the {len(self):,} of "
                f"{self.path}"
            )
        return nodes

    def text(self, id: str) -> str:
        """The text of a node.

        Args:
            id: The id of the node.

        Returns:
            The text.

        Raises:
            UnknownIdError: There is no such node.
        """
        return self.graph.texts_of(self.nodes([id]))[0]

    def blocks(self) -> Iterator[tuple[list[str], Array]]:
        """All ids and vectors, block by block.

        Yields:
            Ids, and their vectors (n, D) float32.
        """
        nodes = self.graph.nodes
        size = self._rows["vectors"].base.size
        for start in range(0, len(nodes), size):
            part = nodes[start : start + size]
            yield self.graph.ids_of(part), self.raw(part).floats()

    def raw(self, nodes: Array) -> Raw:
        """The vectors of nodes in their stored form.

        Args:
            nodes: Row numbers.

        Returns:
            Numbers and, for int8, the scale of each row.
        """
        scales = self._rows.get("scales")
        return Raw(
            self._rows["vectors"].take(nodes), None if scales is None else scales.take(nodes)
        )

    @property
    def num_base(self) -> int:
        """Number of vectors of the base, which never change; the log supersedes them."""
        return self.graph.base.num_nodes

    def base_vectors(self, nodes: Array) -> Array:
        """Vectors of the base, without the log.

        Args:
            nodes: Row numbers in the base.

        Returns:
            (len(nodes), D) float32.
        """
        scales = self._rows.get("scales")
        numbers = self._rows["vectors"].base.take(nodes)
        return Raw(numbers, None if scales is None else scales.base.take(nodes)).floats()

    def changed_nodes(self) -> Array:
        """The nodes whose vectors are in the log.

        Returns:
            Row numbers, sorted.
        """
        return self._changes()[0]

    def overtaken(self) -> Array:
        """The base nodes whose base vectors are superseded: changed and removed nodes.

        Returns:
            Row numbers, sorted.
        """
        return self._changes()[1]

    def _changes(self) -> tuple[Array, Array]:
        if self._seen is None or self._seen[0] != self.log.end:
            gone = self.graph.removed_nodes
            logged = np.array(sorted(self._rows["vectors"].logged), dtype=np.int64)
            overtaken = np.union1d(logged, gone)
            self._seen = (
                self.log.end,
                np.setdiff1d(logged, gone),
                overtaken[overtaken < self.num_base],
            )
        return self._seen[1:]

    def compared(self, nodes: Array) -> Array:
        """Vectors as they are compared: normalized if that is by cosine.

        Args:
            nodes: Row numbers.

        Returns:
            (len(nodes), D) float32.
        """
        vectors = self.raw(nodes).floats()
        return unit_rows(vectors) if self.is_cosine else vectors

    def states_of(self, nodes: Array) -> Array:
        """The saved states of nodes.

        Args:
            nodes: Row numbers.

        Returns:
            (len(nodes), S, D).
        """
        return self._rows["states"].take(nodes)

    def absorb(self, record: Record, graph: EditedGraph) -> None:
        """Applies a record of the log.

        Args:
            record: The record.
            graph: The graph after the record.
        """
        if graph is self.graph:
            replay(record, graph)
        self.graph = graph
        for name, rows in self._rows.items():
            ids = record.content["states" if name == "states" else "vectors"]
            if ids:
                rows.put(graph.find_nodes(ids), record.arrays[name])

    def copy(self) -> "VectorStore":
        """A copy of this state, which later changes do not affect. Base and arrays are shared.

        Returns:
            The copy.
        """
        other = copy.copy(self)
        other._rows = {name: rows.copy() for name, rows in self._rows.items()}
        other.log = copy.copy(self.log)
        return other

    def is_same_vector(self, other: "VectorStore", nodes: Array) -> Array:
        """Whether this store and its copy have the same logged vector of a node.

        Args:
            other: The copy.
            nodes: Row numbers.

        Returns:
            (len(nodes),) bool.
        """
        mine, theirs = self._rows["vectors"].logged, other._rows["vectors"].logged
        return np.array(
            [node in mine and mine[node] is theirs.get(node) for node in nodes.tolist()], dtype=bool
        )

    def export(self, path: str | Path, *, force: bool = False) -> None:
        """Writes the vectors in a common format, by the name of the file.

        Args:
            path: The file to write: .npy has the ids beside it in .ids.txt; .parquet has id and
                vector; .txt is word2vec's text format.
            force: Replace files that exist.

        Raises:
            GraphFormersError: The file exists, or its name says no known format.

        Examples:
            >>> store.export("papers.npy")
        """
        from graphformers.embedding.export import export_vectors

        export_vectors(self, Path(path), force=force)


def replay(record: Record, graph: EditedGraph) -> None:
    """Applies the changes of a record to a graph."""
    content = record.content
    gone = graph.find_nodes(content["removed"])
    for node in gone.tolist():
        graph.remove_node(node)
    if "nodes" in record.arrays:
        graph.add_nodes(table_from(record.arrays["nodes"]))
    ends = graph.find_ends(content["unlinked"]).tolist()
    for (one, other), link in zip(ends, content["unlinked"], strict=True):
        if len(link) == 2:
            graph.unlink(one, other)
        else:
            graph.remove_links(one, other, link[2])
    ends = graph.find_ends(content["linked"]).tolist()
    for (one, other), link in zip(ends, content["linked"], strict=True):
        graph.add_link(one, other, (link[0], link[1], link[2]))


def table_bytes(table: pa.Table) -> Array:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return np.frombuffer(sink.getvalue(), dtype=np.uint8)


def table_from(data: Array) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all().combine_chunks()


class FolderLock:
    """The lock of a folder of vectors, held on the folder itself, which a compaction replaces.

    Raises:
        ArtifactError: If another process has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = named(path)
        bring_back(self.path)
        try:
            handle = locked_handle(self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ArtifactError(f"{self.path}: no such folder") from error
        if handle is None:
            raise ArtifactError(
                f"{self.path}: is being changed by another process (an update or a server); try "
                f"again later"
            )
        self._handle = handle

    def hand_over(self, handle: int) -> None:
        """Moves the lock to the locked folder open under `handle`, which replaced the old one."""
        self.release()
        self._handle = handle

    def check(self) -> None:
        """Raises an error if another folder replaced the locked one."""
        if which_folder(self._handle) != which_folder(self.path):
            raise ArtifactError(
                f"{self.path}: was replaced or moved while it was in use; nothing more is written "
                f"to it"
            )

    def release(self) -> None:
        """Releases the lock. Afterwards every check fails."""
        os.close(self._handle)
        self._handle = -1


@contextmanager
def locked(path: str | Path) -> Iterator[FolderLock]:
    """Holds the lock of a folder of vectors for a `with` block; the kernel releases it with the
    process.
    """
    lock = FolderLock(Path(path))
    try:
        yield lock
    finally:
        lock.release()
