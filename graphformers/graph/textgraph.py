"""TextGraph: texts as nodes and the links between them, immutable and memory-mapped.

Links are stored twice: as directed, typed
edges as they were read, and as undirected neighbours in compressed rows (CSR): the neighbours of
node v are `indices[indptr[v]:indptr[v + 1]]`, sorted, each once, never v itself.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.arrays import (
    Array,
    check_range,
    check_rows,
    check_table,
    hash_strings,
    is_unicode,
    load_array,
    load_table,
    one_chunk,
    pair_keys,
    save_array,
    save_table,
)
from graphformers.artifact import Artifact, open_artifact, write_artifact
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.graph.protocol import Graph, Link, json_values, no_column, plain_ids
from graphformers.graph.sampling import Neighborhood, NeighborSampler
from graphformers.graph.settings import ImportSettings
from graphformers.records import ELSEWHERE, JsonObject, checked

KIND = "graph"
VERSION = 1
TABLE = "nodes.arrow"
# attributes saved as .npy files, with their types and numbers of dimensions
ARRAYS = {
    "id_hashes": ("uint64", 1),
    "indptr": ("int64", 1),
    "indices": ("int32", 1),
    "edges": ("int32", 2),
    "edge_types": ("int16", 1),
    "edge_times": ("float64", 1),
}
# those of every graph
REQUIRED = ("id_hashes", "indptr", "indices", "edges")


class GraphSettings(TypedDict):
    """What the manifest of a graph says under `settings`."""

    type_names: tuple[str, ...]


class GraphSummary(TypedDict):
    """What the manifest of a graph says under `summary`, as far as it is used again."""

    self_loops: NotRequired[int]
    left_aside: NotRequired[dict[str, int]]
    edge_columns_not_kept: NotRequired[list[str]]
    skipped: NotRequired[dict[str, int]]
    skipped_examples: NotRequired[list[str]]
    other_texts: NotRequired[dict[str, list[str]]]
    read_as: NotRequired[ImportSettings]


@dataclass(frozen=True, eq=False, repr=False)
class TextGraph(Graph):
    """A graph of N texts, P linked pairs and E directed edges.

    Made by `read_graph`, `build_graph` or `TextGraph.load`. Methods without a docstring here are
    documented in `Graph`.

    Attributes:
        table: N rows with the columns id and text, then the user's own columns.
        id_hashes: (N,) uint64: the hash of each id, from which all random draws are made.
        indptr: (N + 1,) int64: where each node's neighbours start in `indices`.
        indices: (2P,) int32: the neighbours of each node, sorted, each once.
        edges: (2, E) int32: sources and targets, in the order in which they were read.
        edge_types: (E,) int16: indices into `type_names`; None for an untyped graph.
        type_names: The names of the types.
        edge_times: (E,) float64: the time of each edge, NaN if unknown; None without times.
        summary: Counts of the import, such as skipped rows.
        artifact: The folder this graph was loaded from or saved to, if any.

    Examples:
        >>> graph = TextGraph.load("papers.graph")
        >>> len(graph), "p7" in graph, graph["p7"].neighbors[:2]
        (80, True, ('p2', 'p22'))
    """

    table: pa.Table
    id_hashes: Array
    indptr: Array
    indices: Array
    edges: Array
    edge_types: Array | None = None
    type_names: tuple[str, ...] = ()
    edge_times: Array | None = None
    summary: JsonObject = field(default_factory=dict)
    artifact: Artifact | None = None

    @property
    def num_nodes(self) -> int:
        """Number of nodes, N."""
        return len(self.indptr) - 1

    @property
    def num_rows(self) -> int:
        """Number of row numbers, which is the number of nodes."""
        return self.num_nodes

    @property
    def nodes(self) -> Array:
        """(N,) the row numbers of all nodes, 0 to N - 1."""
        return np.arange(self.num_nodes)

    @property
    def num_pairs(self) -> int:
        """Number of unordered pairs of linked nodes, P."""
        return len(self.indices) // 2

    @property
    def column_names(self) -> list[str]:
        """The user's own node columns."""
        return [name for name in self.table.column_names if name not in ("id", "text")]

    def column(self, name: str) -> pa.Array:
        if name not in self.column_names:
            raise no_column(name, self.column_names)
        return one_chunk(self.table[name])

    def column_type(self, name: str) -> pa.DataType | None:
        if name not in self.table.column_names:
            return None
        kind = self.table.schema.field(name).type
        return None if pa.types.is_null(kind) else kind

    @cached_property
    def ids(self) -> pa.Array:
        """The ids of all nodes."""
        return one_chunk(self.table["id"])

    @cached_property
    def texts(self) -> pa.Array:
        """The texts of all nodes."""
        return one_chunk(self.table["text"])

    @cached_property
    def text_groups(self) -> Array:
        """(N,) a number for each distinct text: nodes with equal texts have equal numbers."""
        return np.asarray(pc.dictionary_encode(self.texts).indices)

    @cached_property
    def _by_hash(self) -> Array:
        return np.argsort(self.id_hashes, kind="stable")

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the graph's folder; without a folder, a hash of texts and links."""
        if self.artifact is not None:
            return self.artifact.fingerprint
        digest = hashlib.sha256(self.text_hash(0, self.num_nodes).encode())
        for array in (self.id_hashes, self.indptr, self.indices, self.edges):
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def text_hash(self, start: int, stop: int) -> str:
        """A hash of the texts of consecutive nodes, computed from their lengths and their bytes.

        Args:
            start: The first node.
            stop: The node after the last.

        Returns:
            The hash, in hexadecimal.
        """
        texts = self.texts[start:stop]
        _, offsets, content = texts.buffers()
        ends = np.frombuffer(offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
        digest = hashlib.sha256((ends - ends[0]).tobytes())
        if content is not None:
            digest.update(memoryview(content)[int(ends[0]) : int(ends[-1])])
        return digest.hexdigest()

    def find_nodes(self, ids: Sequence[str]) -> Array:
        ids = plain_ids(ids)
        invalid = [id for id in ids if not isinstance(id, str)]
        if invalid:
            raise GraphFormersError(
                f"the id {invalid[0]!r} is a {type(invalid[0]).__name__}, ids are strings: "
                f"{str(invalid[0])!r}"
            )
        if self.num_nodes == 0 or len(ids) == 0:
            return np.full(len(ids), -1, dtype=np.int64)
        # An id that is not Unicode is unknown, as the empty id is.
        ids = [id if is_unicode(id) else "" for id in ids]
        hashes = hash_strings(ids)
        first = np.searchsorted(self.id_hashes, hashes, sorter=self._by_hash)
        found = self._by_hash[np.minimum(first, self.num_nodes - 1)]
        same = pc.equal(self.ids.take(pa.array(found)), pa.array(ids, pa.large_string()))
        for i in np.flatnonzero(~np.asarray(same)):
            # The id is unknown, or several ids have this hash.
            last = np.searchsorted(self.id_hashes, hashes[i], "right", sorter=self._by_hash)
            same_hash = self._by_hash[first[i] : last]
            matches = (node for node in same_hash if self.ids[node].as_py() == ids[int(i)])
            found[i] = next(matches, -1)
        return found

    def neighbors_of(self, node: int) -> Array:
        return self.indices[self.indptr[node] : self.indptr[node + 1]]

    def ids_of(self, nodes: Array) -> list[str]:
        return list(self.ids.take(pa.array(nodes)).to_pylist())

    def texts_of(self, nodes: Array) -> list[str]:
        return list(self.texts.take(pa.array(nodes)).to_pylist())

    def values_of(self, nodes: Array, columns: Sequence[str]) -> list[dict[str, object]]:
        rows = pa.array(nodes)
        found = {name: json_values(self.column(name).take(rows)) for name in columns}
        return [{name: values[i] for name, values in found.items()} for i in range(len(nodes))]

    def degrees(self) -> Array:
        return np.diff(self.indptr)

    def links_between(self, pairs: Sequence[tuple[int, int]]) -> list[list[Link]]:
        found: dict[tuple[int, int], list[Link]] = {(min(pair), max(pair)): [] for pair in pairs}
        if found:
            is_end = np.zeros(self.num_nodes, dtype=bool)
            is_end[[end for pair in found for end in pair]] = True
            for e in np.flatnonzero(is_end[self.edges[0]] & is_end[self.edges[1]]).tolist():
                ends = self.edges[:, e]
                links = found.get((int(ends.min()), int(ends.max())))
                if links is not None:
                    kind = "" if self.edge_types is None else self.type_names[self.edge_types[e]]
                    source, target = self.ids_of(ends)
                    links.append((source, target, kind or None))
        return [found[min(pair), max(pair)] for pair in pairs]

    def sample(self, nodes: Array, num_neighbors: int = 5, seed: int = 42) -> Neighborhood:
        sampler = NeighborSampler(self.indptr, self.indices, self.id_hashes, num_neighbors, seed)
        return sampler.sample(nodes)

    def freeze(self) -> "TextGraph":
        return self

    def pairs(self) -> Array:
        """Every linked pair once.

        Returns:
            (P, 2) int32, sorted; the smaller row number comes first.
        """
        sources = np.repeat(np.arange(self.num_nodes, dtype=np.int32), self.degrees())
        once = sources < self.indices
        return np.stack([sources[once], np.asarray(self.indices)[once]], axis=1)

    def pair_times(self) -> Array | None:
        """The time of each of `pairs()`: that of its earliest edge.

        Returns:
            (P,) float64, NaN where no edge has a time; None for a graph without times.
        """
        if self.edge_times is None:
            return None
        edges, pairs = np.asarray(self.edges), self.pairs()
        is_pair = edges[0] != edges[1]
        rows = np.searchsorted(pair_keys(*pairs.T), pair_keys(*edges[:, is_pair]))
        times = np.full(len(pairs), np.nan)
        np.fmin.at(times, rows, np.asarray(self.edge_times)[is_pair])
        return times

    def save(self, path: str | Path, *, force: bool = False) -> "TextGraph":
        """Writes the graph as a folder.

        Args:
            path: The folder to write.
            force: Replace a graph folder that exists.

        Returns:
            The graph as loaded from the folder.

        Raises:
            ArtifactError: The folder exists.
            GraphFormersError: The disk is full.

        Examples:
            >>> graph = read_graph("papers.csv", "citations.csv").save("papers.graph", force=True)
        """
        with write_artifact(path, KIND, VERSION, force=force) as draft:
            save_table(draft.path(TABLE), self.table)
            for name in ARRAYS:
                array = getattr(self, name)
                if array is not None:
                    save_array(draft.path(f"{name}.npy"), array)
            draft.settings = {"type_names": list(self.type_names)}
            counts = {"nodes": self.num_nodes, "pairs": self.num_pairs}
            draft.summary = self.summary | counts | {"edges": self.edges.shape[1]}
        return TextGraph.load(path)

    @staticmethod
    def load(path: str | Path) -> "TextGraph":
        """Maps a graph folder into memory; takes milliseconds at any size.

        Args:
            path: The folder.

        Returns:
            The graph.

        Raises:
            ArtifactError: The folder is missing, damaged or of another kind.
        """
        artifact = open_artifact(path, KIND, VERSION)
        names = [name for name in ARRAYS if name in REQUIRED or f"{name}.npy" in artifact.files]
        files = [TABLE, *(f"{name}.npy" for name in names)]
        artifact.paths(files, lambda _: _check(_read(artifact, names)))
        return _read(artifact, names)


def _read(artifact: Artifact, names: list[str]) -> TextGraph:
    """Maps a graph folder into memory; its content is checked once, by `_check`."""
    settings = checked(artifact.manifest, artifact.settings, GraphSettings, "settings")
    checked(artifact.manifest, artifact.summary, GraphSummary, "summary")
    return TextGraph(
        table=load_table(artifact.path / TABLE),
        type_names=settings["type_names"],
        summary=artifact.summary,
        artifact=artifact,
        **{name: load_array(artifact.path / f"{name}.npy", *ARRAYS[name]) for name in names},
    )


def _check(graph: TextGraph) -> None:
    """Raises an ArtifactError if the arrays of a loaded graph do not fit each other."""
    assert graph.artifact is not None, "a loaded graph has a folder"
    place, num_nodes, num_edges = graph.artifact.path, graph.num_nodes, graph.edges.shape[1]
    check_table(place / TABLE, graph.table)
    found = graph.table.schema
    for name in ("id", "text"):
        types = [found.field(i).type for i in found.get_all_field_indices(name)]
        if types != [pa.large_string()] or graph.table[name].null_count:
            words = f"the column {name} is not one of texts without gaps"
            raise ArtifactError(f"{place / TABLE}: {words}; {ELSEWHERE}")
    lengths = {
        TABLE: (len(graph.table), num_nodes),
        "id_hashes.npy": (len(graph.id_hashes), num_nodes),
        "edges.npy": (len(graph.edges), 2),
    }
    if graph.edge_types is not None:
        lengths["edge_types.npy"] = len(graph.edge_types), num_edges
    if graph.edge_times is not None:
        lengths["edge_times.npy"] = len(graph.edge_times), num_edges
    for name, (length, expected) in lengths.items():
        if length != expected:
            words = f"{length:,} rows, expected {expected:,}"
            raise ArtifactError(f"{place / name}: {words}; {ELSEWHERE}")
    check_rows(place / "indptr.npy", graph.indptr, num_nodes, len(graph.indices))
    check_range(place / "indices.npy", graph.indices, num_nodes)
    check_range(place / "edges.npy", graph.edges, num_nodes)
    if graph.edge_types is not None:
        check_range(place / "edge_types.npy", graph.edge_types, len(graph.type_names))


def loaded_graph(graph: Graph | str | Path) -> TextGraph:
    """Returns a graph with its arrays, loaded from its folder if a path is given."""
    return TextGraph.load(graph) if isinstance(graph, str | Path) else graph.freeze()
