"""VectorStore: the vectors of a graph's nodes, a base that never changes and the edits since.

    papers.vectors/   base-0001/ (graph/, the graph itself with ids and texts; vectors/00000.npy …,
                      scales/ (int8), states/ (if kept)),
                      edits-0001.sqlite and edits-0001.commits (see database.py)

The folder is complete: encoding a new node needs its neighbours' states, links and texts. The
manifest names the files of the current base. When the edits have grown to a share of it, both are
written as the next base with edits of its own, and one rename of the manifest switches to it.

A store that was loaded never changes. A writer makes the next version of it, which shares all that
is the same.
"""

import copy
import fcntl
import gc
import os
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from graphformers.arrays import Array, unit_rows
from graphformers.artifact import MANIFEST, Artifact, bring_back, named, open_artifact
from graphformers.embedding.database import Commit, EditDatabase, EditRows
from graphformers.embedding.settings import EmbedSettings, StoreSettings
from graphformers.embedding.shards import ShardedRows, load_rows, locked_handle, which_folder
from graphformers.embedding.states import LayerStates, StatesKey
from graphformers.errors import ArtifactError, GraphFormersError, UnknownIdError
from graphformers.graph.edited import EditedGraph
from graphformers.graph.shared_map import SharedMap
from graphformers.graph.textgraph import TextGraph
from graphformers.records import ELSEWHERE, checked

KIND = "vectors"
VERSION = 2
# The base of a store that was never compacted.
FIRST_BASE = "base-0001"
# Attempts to open a folder whose base is being replaced.
TRIES = 20
# Edits of a `NodeSet` from which on they are sorted in.
MOST_PENDING = 1000
# Characters of a strange name in a message.
SHOWN = 40


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
        """By the names of their folders."""
        return {"vectors": self.numbers} | ({} if self.scales is None else {"scales": self.scales})

    def rows(self) -> list[bytes]:
        """The bytes of each vector, its scale in front."""
        numbers = [row.tobytes() for row in self.numbers]
        if self.scales is None:
            return numbers
        return [scale.tobytes() + row for scale, row in zip(self.scales, numbers, strict=True)]


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


class HeldBase:
    """Keeps a base from being removed as long as something refers to this object."""

    def __init__(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ArtifactError(f"{folder}: is being removed, another base replaced it") from error


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
        self.base: str = self.settings["base"]
        if not re.fullmatch(r"base-\d{4,}", self.base):
            raise ArtifactError(
                f"{artifact.path / MANIFEST}: the base is {self.base[:SHOWN]!r}, expected one such "
                f"as {FIRST_BASE}; embed the graph again"
            )
        self._held = HeldBase(artifact.path / self.base)
        base_graph = TextGraph.load(artifact.path / self.base / "graph")
        size = self.settings["shard_size"]
        self._base_vectors = load_rows(artifact, f"{self.base}/vectors", size)
        if len(self._base_vectors) != base_graph.num_nodes:
            raise ArtifactError(
                f"{artifact.path}: {len(self._base_vectors):,} vectors, but "
                f"{base_graph.num_nodes:,} nodes; embed the graph again"
            )
        self._base_scales = (
            load_rows(artifact, f"{self.base}/scales", size) if self.precision == "int8" else None
        )
        self.states = LayerStates.load(artifact)
        self._check_rows("vectors", self._base_vectors, self.precision, (self.size,))
        if self._base_scales is not None:
            self._check_rows("scales", self._base_scales, "float32", ())
        if self.states is not None:
            shape = tuple(self.settings["state_shape"])
            self._check_rows("states", self.states.rows, self.states.key.precision, shape)
        self.database = EditDatabase(artifact.path, self.base, artifact.fingerprint)
        with paused_collection():
            self.commit, edits, states = self.database.read()
            self.graph = EditedGraph.restored(base_graph, edits.records, edits.pairs)
            # The stored vectors of edited nodes, and the rows of their states in the database.
            self._vectors: SharedMap[int, bytes] = SharedMap(
                (node, data)
                for node, data in edits.vectors.items()
                if edits.records.get(node, self) is not None
            )
            self._states: SharedMap[int, int] = SharedMap(states.items())
        row_bytes = self._row_type.itemsize
        if any(len(data) != row_bytes for _, data in self._vectors.items()):
            raise ArtifactError(
                f"{self.database.path}: damaged, vectors of another size than {row_bytes} bytes"
            )
        changed = np.array(sorted(self._vectors), dtype=np.int64)
        overtaken = np.union1d(changed, self.graph.removed_nodes)
        self._changed = NodeSet(changed)
        self._overtaken = NodeSet(overtaken[overtaken < self.num_base])

    def _check_rows(self, kind: str, rows: ShardedRows, dtype: str, shape: tuple[int, ...]) -> None:
        expected = np.dtype((dtype, shape))
        if any(np.dtype((part.dtype, part.shape[1:])) != expected for part in rows.parts):
            raise ArtifactError(
                f"{self.path / self.base / kind}: rows are not {shape} of {dtype}, as the manifest "
                f"says; {ELSEWHERE}"
            )

    @staticmethod
    def load(path: str | Path) -> "VectorStore":
        """Maps the base of a folder of vectors into memory and reads its edits.

        Where another base replaces it meanwhile, the folder is opened again.

        Args:
            path: The folder.

        Returns:
            The store.

        Raises:
            ArtifactError: The folder is missing, damaged or of another kind.
        """
        path = named(path)

        def current() -> tuple[object, object]:
            return which_folder(path), which_folder(path / MANIFEST)

        for _ in range(TRIES):
            before = current()
            try:
                store = VectorStore(open_artifact(path, KIND, VERSION))
            except Exception:
                if current() == before:
                    raise
                continue
            if current() == before:
                return store
        raise ArtifactError(
            f"{path}: another base was put in its place again and again; try again later"
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
        size = self._base_vectors.size
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
        found = self._vectors.get_all(nodes.tolist()) if len(self._vectors) else []
        data = [row for row in found if row is not None]
        if not data:
            return self._raw_of_base(nodes)
        in_base = np.array([row is None for row in found], dtype=bool)
        rows = np.frombuffer(b"".join(data), dtype=self._row_type)
        numbers = np.empty((len(nodes), self.size), dtype=self.precision)
        numbers[~in_base] = rows["numbers"]
        scales = None
        if self._base_scales is not None:
            scales = np.empty(len(nodes), dtype=np.float32)
            scales[~in_base] = rows["scale"]
        if in_base.any():
            own = self._raw_of_base(nodes[in_base])
            numbers[in_base] = own.numbers
            if scales is not None:
                scales[in_base] = own.scales
        return Raw(numbers, scales)

    def _raw_of_base(self, nodes: Array) -> Raw:
        if not len(nodes):
            scales = None if self._base_scales is None else np.zeros(0, dtype=np.float32)
            return Raw(np.zeros((0, self.size), dtype=self.precision), scales)
        scales = None if self._base_scales is None else self._base_scales.take(nodes)
        return Raw(self._base_vectors.take(nodes), scales)

    @property
    def _row_type(self) -> np.dtype[Any]:
        """How the vector of an edited node is stored."""
        numbers = ("numbers", self.precision, (self.size,))
        return np.dtype([("scale", "<f4"), numbers] if self.precision == "int8" else [numbers])

    @property
    def num_base(self) -> int:
        """Number of vectors of the base, which never change; edits supersede them."""
        return self.graph.base.num_nodes

    def base_vectors(self, nodes: Array) -> Array:
        """Vectors of the base, without the edits.

        Args:
            nodes: Row numbers in the base.

        Returns:
            (len(nodes), D) float32.
        """
        return self._raw_of_base(nodes).floats()

    @property
    def num_changed(self) -> int:
        """Number of nodes whose vectors were computed since the base was written."""
        return len(self._vectors)

    def changed_nodes(self) -> Array:
        """The nodes whose vectors were computed since the base was written.

        Returns:
            Row numbers, sorted; the same array while they are the same.
        """
        return self._changed.sorted()

    def overtaken(self) -> Array:
        """The nodes of the base whose vectors count no more: changed and removed ones.

        Returns:
            Row numbers, sorted; the same array while they are the same.
        """
        return self._overtaken.sorted()

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
        assert self.states is not None, "states were kept"
        shape, dtype = tuple(self.settings["state_shape"]), self.states.key.precision
        found = self._states.get_all(nodes.tolist()) if len(self._states) else []
        rows = [row for row in found if row is not None]
        if not rows:
            return self.states.take(nodes) if len(nodes) else np.empty((0, *shape), dtype=dtype)
        in_base = np.array([row is None for row in found], dtype=bool)
        result = np.empty((len(nodes), *shape), dtype=dtype)
        data = b"".join(self.database.states(rows))
        result[~in_base] = np.frombuffer(data, dtype=dtype).reshape(-1, *shape)
        if in_base.any():
            result[in_base] = self.states.take(nodes[in_base])
        return result

    def followed_by(
        self, commit: Commit, rows: EditRows, states: dict[int, int], graph: EditedGraph
    ) -> "VectorStore":
        """The version after a transaction.

        Args:
            commit: The commit of the transaction.
            rows: What it wrote.
            states: The rows of the states it wrote, by node.
            graph: The graph afterwards.

        Returns:
            A store that shares with this one what did not change.
        """
        other = copy.copy(self)
        other.commit, other.graph = commit, graph
        other._vectors, other._states = self._vectors.copy(), self._states.copy()
        removed = [node for node, record in rows.records.items() if record is None]
        for node, data in rows.vectors.items():
            other._vectors[node] = data
        for node, row in states.items():
            other._states[node] = row
        for node in removed:
            other._vectors.pop(node)
        other._vectors.forget_changes()
        other._states.forget_changes()
        other._changed = self._changed.edited(rows.vectors, removed)
        overtaken = [node for node in (*rows.vectors, *removed) if node < self.num_base]
        other._overtaken = self._overtaken.edited(overtaken)
        return other

    def changed_since(self, other: "VectorStore") -> tuple[Array, Array]:
        """The nodes whose vectors differ from those of an earlier version with the same base.

        Takes as long as there are such nodes, however many were changed before.

        Args:
            other: The earlier version.

        Returns:
            Row numbers of nodes with another vector, and of those that were removed, sorted.
        """
        edited = set(self._vectors.differences(other._vectors))
        gone = edited | set(self.graph.removed_since(other.graph))
        edited = {node for node in edited if node in self._vectors}
        nodes = (np.array(sorted(found), dtype=np.int64) for found in (edited, gone - edited))
        return next(nodes), next(nodes)

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


class NodeSet:
    """Sorted row numbers, edited without copying all of them every time.

    Args:
        nodes: The row numbers, sorted.
        pending: Row numbers that were added (True) and removed (False) since.
    """

    def __init__(self, nodes: Array, pending: Mapping[int, bool] | None = None) -> None:
        self._nodes, self._pending = nodes, pending or {}

    def edited(self, added: Iterable[int], removed: Iterable[int] = ()) -> "NodeSet":
        """The set with some more and some less; this set if it is the same."""
        wanted = dict.fromkeys(added, True) | dict.fromkeys(removed, False)
        wanted = {node: there for node, there in wanted.items() if (node in self) != there}
        if not wanted:
            return self
        other = NodeSet(self._nodes, {**self._pending, **wanted})
        if len(other._pending) > MOST_PENDING:
            other.sorted()
        return other

    def __contains__(self, node: int) -> bool:
        is_there = self._pending.get(node)
        if is_there is None:
            place = int(np.searchsorted(self._nodes, node))
            is_there = place < len(self._nodes) and bool(self._nodes[place] == node)
        return is_there

    def sorted(self) -> Array:
        """The row numbers, sorted; the same array at every call."""
        if self._pending:
            added, removed = (
                np.array(sorted(n for n, there in self._pending.items() if there == kind), np.int64)
                for kind in (True, False)
            )
            # Twice is as good as once, should another thread do the same.
            self._nodes = _without(_with(self._nodes, added), removed)
            self._pending = {}
        return self._nodes


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pauses Python's collection of cyclic garbage. Millions of new objects trigger it again and
    again, which takes longer than making them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _with(nodes: Array, more: Array) -> Array:
    """Sorted nodes and more sorted ones; the same array if it has them."""
    places = np.searchsorted(nodes, more)
    known = places < len(nodes)
    known[known] = nodes[places[known]] == more[known]
    return nodes if known.all() else np.insert(nodes, places[~known], more[~known])


def _without(nodes: Array, gone: Array) -> Array:
    """Sorted nodes without some; the same array if it has none of them."""
    is_gone = np.isin(nodes, gone) if len(gone) else np.zeros(0, dtype=bool)
    return nodes[~is_gone] if is_gone.any() else nodes


class FolderLock:
    """The lock of a folder of vectors, held on the folder itself.

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
