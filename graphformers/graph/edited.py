"""EditedGraph: a stored graph with edits on top, so that one new node does not cost a new graph.

Nodes of the base keep their row numbers, and added nodes get the numbers after them. Row numbers of
removed nodes are not used again. Only what differs from the base is kept in memory: the records of
added and changed nodes, the neighbours of nodes whose links changed, and the added and removed
links. Copies share what they do not change (`SharedMap`), so an edit can be tried on a copy and
dropped, and every reader can keep a version of its own.
"""

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.arrays import (
    Array,
    are_linked,
    compressed_rows,
    edge_keys,
    hash_strings,
    one_chunk,
    pair_keys,
)
from graphformers.errors import GraphFormersError
from graphformers.graph.builder import join_times
from graphformers.graph.columns import OURS, join_column, python_values
from graphformers.graph.protocol import Graph, Link, json_values, no_column, plain_ids
from graphformers.graph.sampling import Neighborhood, NeighborSampler
from graphformers.graph.shared_map import SharedMap
from graphformers.graph.textgraph import TextGraph

# The type of untyped links, where links of one type are meant.
UNTYPED = ""
# Pairs whose links of the base are remembered.
MOST_FOUND = 100_000
OWN_TYPES = {"id": pa.large_string(), "text": pa.large_string()}
Key = TypeVar("Key")


class Record(NamedTuple):
    """The id, the text and the other columns of a node.

    The columns are a record batch of one row in Arrow's IPC format: an Arrow table for each node
    would take kilobytes.
    """

    id: str
    text: str
    schema: pa.Schema
    data: bytes

    def batch(self) -> pa.RecordBatch:
        """The columns besides id and text, one row."""
        return pa.ipc.read_record_batch(pa.py_buffer(self.data), self.schema)

    def values(self) -> dict[str, object]:
        """Id, text and columns as Python values."""
        own: dict[str, object] = {"id": self.id, "text": self.text}
        if self.schema.names:
            columns = zip(self.schema.names, self.batch().columns, strict=True)
            own |= {name: python_values(column)[0] for name, column in columns}
        return own

    def json_values(self, columns: Sequence[str]) -> dict[str, object]:
        """Some columns as JSON represents them; None where the node does not have it."""
        found: dict[str, object] = dict.fromkeys(columns)
        if self.schema.names:
            batch = self.batch()
            for name in found.keys() & {*self.schema.names}:
                (found[name],) = json_values(batch.column(name))
        return found | {name: getattr(self, name) for name in found.keys() & OWN_TYPES.keys()}


def records_of(table: pa.Table) -> list[Record]:
    """The rows of a table with the columns id and text, and any others."""
    columns = table.drop_columns(["id", "text"]).replace_schema_metadata().combine_chunks()
    # Arrow has no batches of rows without columns.
    data = [b""] * len(table)
    if columns.schema.names:
        data = [
            batch.slice(row, 1).serialize().to_pybytes()
            for batch in columns.to_batches()
            for row in range(len(batch))
        ]
    ids, texts = table["id"].to_pylist(), table["text"].to_pylist()
    return [
        Record(id, text, columns.schema, row)
        for id, text, row in zip(ids, texts, data, strict=True)
    ]


class PairEdits(NamedTuple):
    """What was changed in the links of two nodes.

    Links that are added after a removal are added links: a removal holds for links of the base.
    """

    # Whether all links of the base were removed.
    is_cut: bool = False
    # Types of which all links of the base were removed.
    cut_types: tuple[str, ...] = ()
    # Number in the order of additions, source, target and type.
    added: tuple[tuple[int, int, int, str | None], ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether the pair is as in the base."""
        return not (self.is_cut or self.cut_types or self.added)


NO_EDITS = PairEdits()


class EditedGraph(Graph):
    """A stored graph, and the nodes and links that were added, changed and removed since.

    Methods without a docstring here are documented in `Graph`. Added links have no times.

    Args:
        base: The stored graph, which never changes.

    Examples:
        >>> graph = EditedGraph(TextGraph.load("papers.graph"))
        >>> (new,) = graph.add_nodes(pa.table({"id": ["p90"], "text": ["a new text"]}))
        >>> graph.add_link(new, graph.node("p7"), ("p90", "p7", None))
        >>> graph["p90"].neighbors
        ('p7',)
    """

    def __init__(self, base: TextGraph) -> None:
        self.base = base
        # Nodes added since, removed ones included.
        self.num_added = 0
        # The row numbers of added ids.
        self._added: SharedMap[str, int] = SharedMap()
        self._removed: SharedMap[int, None] = SharedMap()
        # The same, sorted, as they were when last asked for: nodes never come back.
        self._removed_nodes = np.zeros(0, dtype=np.int64)
        # The id, text and columns of new and changed nodes.
        self._records: SharedMap[int, Record] = SharedMap()
        # The neighbours of nodes whose links changed.
        self._neighbors: SharedMap[int, Array] = SharedMap()
        # The linked pairs whose links changed, the smaller row number first.
        self._pairs: SharedMap[tuple[int, int], PairEdits] = SharedMap()
        # Number of the next added link, and numbers of added links by type.
        self._next_link = 0
        self._types: dict[str, int] = {}
        # Number of records by the schema of their columns.
        self._schemas: dict[pa.Schema, int] = {}
        # Links of the base between pairs, where they were looked up; the same for all copies.
        self._found: dict[tuple[int, int], list[Link]] = {}

    @staticmethod
    def restored(
        base: TextGraph,
        records: Mapping[int, Record | None],
        pairs: Mapping[tuple[int, int], PairEdits],
    ) -> "EditedGraph":
        """A graph with the edits that another one had.

        Args:
            base: The stored graph.
            records: What `changed_records` gave, None for removed nodes.
            pairs: What `changed_pairs` gave.
        """
        graph = EditedGraph(base)
        graph.num_added = max(0, max(records, default=-1) + 1 - base.num_nodes)
        present = [(node, record) for node, record in records.items() if record is not None]
        removed = {node for node, record in records.items() if record is None}
        graph._records = SharedMap(present)
        graph._removed = SharedMap((node, None) for node in removed)
        graph._added = SharedMap(
            (record.id, node) for node, record in present if node >= base.num_nodes
        )
        graph._schemas = dict(Counter(record.schema for _, record in present))
        graph._pairs = SharedMap(
            (pair, edits)
            for pair, edits in pairs.items()
            if not edits.is_nothing and removed.isdisjoint(pair)
        )
        links = [link for _, edits in graph._pairs.items() for link in edits.added]
        graph._types = dict(Counter(kind for _, _, _, kind in links if kind is not None))
        graph._next_link = max((link[0] for link in links), default=-1) + 1
        graph._neighbors = SharedMap(graph._derived_neighbors().items())
        return graph

    def _derived_neighbors(self) -> dict[int, Array]:
        """The neighbours of all nodes whose links changed, from the edits of pairs and nodes."""
        base = self.base.num_nodes
        linked = [pair for pair, edits in self._pairs.items() if edits.added]
        lost = [pair for pair, edits in self._pairs.items() if edits.is_cut and not edits.added]
        lost += [
            (node, other)
            for node in self._removed
            if node < base
            for other in self.base.neighbors_of(node).tolist()
        ]
        gained_keys, lost_keys = (_both_ways(pairs) for pairs in (linked, lost))
        added = np.arange(base, self.num_rows)
        nodes = _distinct(np.concatenate([gained_keys >> 32, lost_keys >> 32, added]))
        nodes = nodes[~np.isin(nodes, self.removed_nodes)]
        of_base = nodes[nodes < base]
        counts = self.base.degrees()[of_base]
        near = [self.base.neighbors_of(node) for node in of_base.tolist()]
        base_keys = np.repeat(of_base, counts) << 32 | np.concatenate(
            [*near, np.zeros(0, dtype=np.int64)]
        ).astype(np.int64)
        keys = _distinct(np.concatenate([base_keys, gained_keys]))
        keys = np.setdiff1d(keys, lost_keys, assume_unique=True)
        others = keys & 0xFFFFFFFF
        starts, stops = np.searchsorted(keys, nodes << 32), np.searchsorted(keys, nodes + 1 << 32)
        return {
            node: others[start:stop]
            for node, start, stop in zip(
                nodes.tolist(), starts.tolist(), stops.tolist(), strict=True
            )
        }

    def copy(self) -> "EditedGraph":
        """A copy that can be edited without changing this graph."""
        other = copy.copy(self)
        other._added, other._removed = self._added.copy(), self._removed.copy()
        other._records, other._neighbors = self._records.copy(), self._neighbors.copy()
        other._pairs = self._pairs.copy()
        other._types, other._schemas = self._types.copy(), self._schemas.copy()
        return other

    def changed_records(self) -> dict[int, "Record | None"]:
        """The new and changed nodes since `forget_changes`, None for removed ones."""
        nodes = sorted(self._records.changed | self._removed.changed)
        return {node: None if node in self._removed else self._records.get(node) for node in nodes}

    def changed_pairs(self) -> dict[tuple[int, int], "PairEdits"]:
        """The edits of pairs whose links changed since `forget_changes`.

        Those of removed nodes are left out.
        """
        return {
            pair: self._pairs.get(pair) or NO_EDITS
            for pair in sorted(self._pairs.changed)
            if pair[0] not in self._removed and pair[1] not in self._removed
        }

    def forget_changes(self) -> None:
        """Begins a new set of changes for `changed_records` and `changed_pairs`."""
        for edits in (self._added, self._removed, self._records, self._neighbors, self._pairs):
            edits.forget_changes()

    @property
    def is_edited(self) -> bool:
        """Whether anything differs from the base."""
        return bool(
            self.num_added
            or len(self._removed)
            or len(self._records)
            or len(self._neighbors)
            or len(self._pairs)
        )

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.num_rows - len(self._removed)

    @property
    def num_rows(self) -> int:
        """Number of row numbers, those of removed nodes included."""
        return self.base.num_nodes + self.num_added

    @property
    def num_pairs(self) -> int:
        """Number of unordered pairs of linked nodes."""
        return int(self.degrees().sum()) // 2

    @property
    def nodes(self) -> Array:
        """The row numbers of all nodes, sorted."""
        return np.delete(np.arange(self.num_rows), self.removed_nodes)

    @property
    def removed_nodes(self) -> Array:
        """The row numbers of removed nodes, sorted."""
        if len(self._removed_nodes) < len(self._removed):
            self._removed_nodes = np.array(sorted(self._removed), dtype=np.int64)
        return self._removed_nodes

    def removed_since(self, other: "EditedGraph") -> list[int]:
        """The nodes that were removed since an earlier version of this graph."""
        return self._removed.differences(other._removed)

    def link_types(self) -> set[str]:
        """The types of all links, those of removed links of the base included."""
        return {*self.base.type_names, *self._types}

    def find_nodes(self, ids: Sequence[str]) -> Array:
        ids = plain_ids(ids)
        found = self.base.find_nodes(ids)
        if self.num_added or len(self._removed):
            for i, node in enumerate(self._added.get_all(ids)):
                if node is not None:
                    found[i] = node
                elif int(found[i]) in self._removed:
                    found[i] = -1
        return found

    def find_ends(self, links: Iterable[Sequence[str | None]]) -> Array:
        """The row numbers of the ends of links.

        Args:
            links: Links as (source, target, ...), by ids.

        Returns:
            (len(links), 2) int64: -1 for an id that no node has.
        """
        return self.find_nodes([str(end) for link in links for end in link[:2]]).reshape(-1, 2)

    def ids_of(self, nodes: Array) -> list[str]:
        base = self.base.num_nodes
        if not self.num_added:
            return self.base.ids_of(nodes)
        of_base = iter(self.base.ids_of(nodes[nodes < base]))
        return [next(of_base) if node < base else self._records[node].id for node in nodes.tolist()]

    def texts_of(self, nodes: Array) -> list[str]:
        records = self._records.get_all(nodes.tolist())
        in_base = np.array([record is None for record in records], dtype=bool)
        of_base = iter(self.base.texts_of(nodes[in_base]))
        return [next(of_base) if record is None else record.text for record in records]

    def values_of(self, nodes: Array, columns: Sequence[str]) -> list[dict[str, object]]:
        records = self._records.get_all(nodes.tolist())
        in_base = np.array([record is None for record in records], dtype=bool)
        absent = dict.fromkeys(columns)
        known = [name for name in columns if name in self.base.table.column_names]
        rows = iter(self.base.values_of(nodes[in_base], known))
        return [
            absent | next(rows) if record is None else record.json_values(columns)
            for record in records
        ]

    def types_of(self, nodes: Sequence[int]) -> dict[str, pa.DataType]:
        """The types of the columns that some nodes have, id and text included.

        Args:
            nodes: Row numbers.

        Returns:
            Types by column, without those of columns that have no value at all.
        """
        found = dict.fromkeys(
            self.base.table.schema if record is None else record.schema
            for record in self._records.get_all(nodes)
        )
        types = {field.name: field.type for schema in found for field in schema}
        return (OWN_TYPES if found else {}) | {
            name: kind for name, kind in types.items() if not pa.types.is_null(kind)
        }

    def names_of(self, node: int) -> list[str]:
        """The names of the columns that a node has, besides id and text.

        Args:
            node: The row number of the node.
        """
        record = self._records.get(node)
        schema = self.base.table.schema if record is None else record.schema
        return [name for name in schema.names if name not in OURS]

    def fields(self, node: int) -> dict[str, object]:
        """The id, the text and the columns of a node, those that its record has."""
        record = self._records.get(node)
        if record is not None:
            return record.values()
        table = self.base.table
        return {name: python_values(table[name].slice(node, 1))[0] for name in table.column_names}

    @property
    def column_names(self) -> list[str]:
        """The user's own node columns, those of the base first."""
        schemas = (self.base.table.schema, *self._schemas)
        names = dict.fromkeys(name for schema in schemas for name in schema.names)
        return [name for name in names if name not in OURS]

    def column_type(self, name: str) -> pa.DataType | None:
        schemas = (self.base.table.schema, *self._schemas)
        found = (schema.field(name).type for schema in schemas if name in schema.names)
        return next((kind for kind in found if not pa.types.is_null(kind)), None)

    def column(self, name: str) -> pa.Array:
        if name not in self.column_names:
            raise no_column(name, self.column_names)
        base = self.base.table
        if not len(self._records):
            return one_chunk(base[name])
        nodes, columns = self._columns_of_records()
        found = [
            one_chunk(table[name]) if name in table.column_names else None for table in columns
        ]
        lengths = [len(table) for table in columns]
        order = np.argsort(nodes)
        changed = nodes[order]
        values = join_column(found, lengths, [False] * len(found)).take(pa.array(order))
        kind = base[name].type if name in base.column_names else values.type
        own = pa.nulls(len(base), kind)
        if name in base.column_names:
            own = one_chunk(base[name])
        try:
            values = (
                values.cast(kind)
                if values.null_count < len(values)
                else pa.nulls(len(values), kind)
            )
        except pa.ArrowException:
            # A new node has words where the others have numbers.
            kind = pa.large_string()
            own, values = own.cast(kind), values.cast(kind)
        whole = pa.concat_arrays([own, pa.nulls(self.num_added, kind)])
        mask = np.zeros(len(whole), dtype=bool)
        mask[changed] = True
        try:
            return pc.replace_with_mask(whole, pa.array(mask), values)
        except pa.ArrowNotImplementedError:
            # Arrow does not replace lists and other nested values.
            rows = np.arange(len(whole))
            rows[changed] = len(whole) + np.arange(len(changed))
            return pa.concat_arrays([whole, values]).take(pa.array(rows))

    def neighbors_of(self, node: int) -> Array:
        found = self._neighbors.get(node)
        return self.base.neighbors_of(node) if found is None else found

    def degrees(self) -> Array:
        degrees = np.concatenate([self.base.degrees(), np.zeros(self.num_added, dtype=np.int64)])
        for node, row in self._neighbors.items():
            degrees[node] = len(row)
        degrees[self.removed_nodes] = 0
        return degrees

    def add_nodes(self, table: pa.Table) -> list[int]:
        """Adds nodes, and replaces the text and the columns of nodes that exist.

        Args:
            table: The columns id and text, and any others.

        Returns:
            The row number of each.
        """
        records = records_of(table)
        found: list[int] = self.find_nodes([record.id for record in records]).tolist()
        for i, record in enumerate(records):
            node = found[i]
            if node < 0:
                node = found[i] = self.num_rows
                self.num_added += 1
                self._added[record.id] = node
                self._neighbors[node] = np.zeros(0, dtype=np.int64)
            self._drop_record(node)
            self._records[node] = record
            self._schemas[record.schema] = self._schemas.get(record.schema, 0) + 1
        return found

    def _drop_record(self, node: int) -> None:
        record = self._records.pop(node)
        if record is not None:
            _take_one(self._schemas, record.schema)

    def remove_node(self, node: int) -> list[int]:
        """Removes a node and its links.

        Args:
            node: The row number of the node.

        Returns:
            The row numbers of its former neighbours.
        """
        former: list[int] = self.neighbors_of(node).tolist()
        for other in former:
            self._neighbors[other] = _without(self.neighbors_of(other), node)
            self._edit(node, other, NO_EDITS)
        record = self._records.get(node)
        if record is not None:
            self._added.pop(record.id)
        self._removed[node] = None
        self._neighbors.pop(node)
        self._drop_record(node)
        return former

    def add_link(self, one: int, other: int, link: Link) -> None:
        """Links two nodes. Nodes that are linked get one more link.

        Args:
            one: The row number of the link's source.
            other: The row number of its target, which is another node.
            link: The link by ids, which the graph does not have yet (see `has_links`).
        """
        edits, kind = self._pairs.get(_pair(one, other)) or NO_EDITS, link[2]
        added = (self._next_link, one, other, kind)
        self._next_link += 1
        self._edit(one, other, edits._replace(added=(*edits.added, added)))
        if not self.is_linked(one, other):
            self._neighbors[one] = _with(self.neighbors_of(one), other)
            self._neighbors[other] = _with(self.neighbors_of(other), one)

    def unlink(self, one: int, other: int) -> bool:
        """Removes all links between two nodes.

        Args:
            one: A row number.
            other: Another one.

        Returns:
            Whether they were linked.
        """
        if not self.is_linked(one, other):
            return False
        self._neighbors[one] = _without(self.neighbors_of(one), other)
        self._neighbors[other] = _without(self.neighbors_of(other), one)
        in_base = max(one, other) < self.base.num_nodes
        self._edit(one, other, PairEdits(is_cut=in_base))
        return True

    def remove_links(self, one: int, other: int, type: str) -> None:
        """Removes the links of one type between two nodes that have links of other types, too.

        Args:
            one: A row number.
            other: Another one.
            type: The type, UNTYPED for links without one.
        """
        edits = self._pairs.get(_pair(one, other)) or NO_EDITS
        kept = tuple(link for link in edits.added if (link[3] or UNTYPED) != type)
        cut = edits.cut_types
        if max(one, other) < self.base.num_nodes:
            cut = tuple(sorted({*cut, type}))
        self._edit(one, other, PairEdits(edits.is_cut, cut, kept))

    def _edit(self, one: int, other: int, edits: "PairEdits") -> None:
        """Puts the edits of a pair in place of those before."""
        pair = _pair(one, other)
        before = self._pairs.get(pair) or NO_EDITS
        for _, _, _, kind in before.added:
            if kind is not None:
                _take_one(self._types, kind)
        for _, _, _, kind in edits.added:
            if kind is not None:
                self._types[kind] = self._types.get(kind, 0) + 1
        if edits.is_nothing:
            self._pairs.pop(pair)
        else:
            self._pairs[pair] = edits

    def has_links(self, links: Sequence[Link]) -> list[bool]:
        """Whether there are these links, with this direction and type.

        Args:
            links: Links by ids.

        Returns:
            For each link whether there is one; False for links without a type.
        """
        ends: list[tuple[int, int]] = [
            (one, other) for one, other in self.find_ends(links).tolist()
        ]
        typed = [pair for pair, link in zip(ends, links, strict=True) if link[2] is not None]
        of_base = dict(zip(typed, self._base_links(typed), strict=True))
        return [
            link[2] is not None and (self._is_added(pair, link[2]) or link in of_base[pair])
            for pair, link in zip(ends, links, strict=True)
        ]

    def links_between(self, pairs: Sequence[tuple[int, int]]) -> list[list[Link]]:
        of_base = self._base_links(pairs)
        return [
            links + self._added_links(*pair) for links, pair in zip(of_base, pairs, strict=True)
        ]

    def look_up(self, pairs: Iterable[tuple[int, int]]) -> dict[tuple[int, int], list[Link]]:
        """Looks up links of the base, which takes as long for many pairs as for one.

        `links_between` and `has_links` of this graph and of its copies are fast afterwards.

        Args:
            pairs: Pairs of row numbers.

        Returns:
            The links of the base that were looked up until now, by pair, removed ones included.
        """
        found, base = self._found, self.base.num_nodes
        ordered = {_pair(*pair) for pair in pairs}
        wanted = [pair for pair in ordered if pair[0] >= 0 and pair[1] < base and pair not in found]
        if wanted:
            links = zip(wanted, self.base.links_between(wanted), strict=True)
            # A new dict: other threads read the old one.
            found = self._found = (found if len(found) < MOST_FOUND else {}) | dict(links)
        return found

    def _base_links(self, pairs: Sequence[tuple[int, int]]) -> list[list[Link]]:
        """The links of the base between nodes, without those that were removed."""
        found = self.look_up(pairs)
        return [
            []
            if pair[0] in self._removed or pair[1] in self._removed
            else [
                link
                for link in found.get(_pair(*pair), ())
                if not self._is_cut_link(_pair(*pair), link[2] or UNTYPED)
            ]
            for pair in pairs
        ]

    def _is_cut_link(self, pair: tuple[int, int], kind: str) -> bool:
        edits = self._pairs.get(pair)
        return edits is not None and (edits.is_cut or kind in edits.cut_types)

    def _is_added(self, ends: tuple[int, int], kind: str) -> bool:
        edits = self._pairs.get(_pair(*ends)) or NO_EDITS
        return any(link[1:] == (*ends, kind) for link in edits.added)

    def _added_links(self, one: int, other: int) -> list[Link]:
        edits = self._pairs.get(_pair(one, other))
        if edits is None:
            return []
        return [
            (*self.ids_of(np.array([source, target])), kind)  # type: ignore[misc]
            for _, source, target, kind in edits.added
        ]

    def sample(self, nodes: Array, num_neighbors: int = 5, seed: int = 42) -> Neighborhood:
        nodes = np.asarray(nodes)
        # The sampler refuses what is not a list of integers before the rows are collected.
        if nodes.ndim != 1 or (len(nodes) and nodes.dtype.kind not in "iu"):
            return self.base.sample(nodes, num_neighbors, seed)
        wrong = nodes[(nodes < 0) | (nodes >= self.num_rows) | np.isin(nodes, self.removed_nodes)]
        if len(wrong):
            raise GraphFormersError(
                f"the node {wrong[0]} given, expected row numbers from 0 to {self.num_rows - 1:,} "
                f"of nodes that were not removed"
            )
        rows = [self.neighbors_of(node) for node in nodes.tolist()]
        indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        near, index = np.unique(
            np.concatenate([*rows, np.zeros(0, dtype=np.int64)]), return_inverse=True
        )
        # A small graph of the given nodes and their neighbours, with row numbers of its own.
        hashes = self.hashes_of(np.concatenate([nodes, near]).astype(np.int64))
        sampler = NeighborSampler(indptr, index + len(nodes), hashes, num_neighbors, seed)
        found = sampler.sample(np.arange(len(nodes)))
        neighbors = near[found.neighbors - len(nodes)].astype(np.int64)
        return Neighborhood(nodes, found.indptr, neighbors)

    def hashes_of(self, nodes: Array) -> Array:
        """The hashes of the ids of some nodes.

        Args:
            nodes: Row numbers.

        Returns:
            (len(nodes),) uint64.
        """
        is_added = nodes >= self.base.num_nodes
        hashes = np.empty(len(nodes), dtype=np.uint64)
        hashes[~is_added] = self.base.id_hashes[nodes[~is_added]]
        hashes[is_added] = hash_strings(self.ids_of(nodes[is_added]))
        return hashes

    def freeze(self) -> TextGraph:
        if not self.is_edited:
            return self.base
        nodes = self.nodes
        new_rows = np.full(self.num_rows, -1, dtype=np.int32)
        new_rows[nodes] = np.arange(len(nodes), dtype=np.int32)
        indptr, indices = compressed_rows(len(nodes), self._pair_keys(new_rows))
        edges, types, names, times = self._edges(new_rows, indptr, indices)
        return TextGraph(
            table=self._table(nodes),
            id_hashes=self.hashes_of(nodes),
            indptr=indptr,
            indices=indices,
            edges=edges,
            edge_types=types,
            type_names=names,
            edge_times=times,
            summary=self.base.summary,
        )

    def _pair_keys(self, new_rows: Array) -> Array:
        """Every linked pair in both directions, by new row numbers."""
        rows = dict(self._neighbors.items())
        changed = np.fromiter(rows, dtype=np.int64, count=len(rows))
        is_same = np.ones(self.base.num_nodes, dtype=bool)
        is_same[changed[changed < self.base.num_nodes]] = False
        is_same[[node for node in self._removed if node < self.base.num_nodes]] = False
        sources = np.repeat(np.arange(self.base.num_nodes), self.base.degrees())
        kept = is_same[sources]
        own = [np.repeat(new_rows[node], len(row)) for node, row in rows.items()]
        near = [new_rows[row] for row in rows.values()]
        empty = np.zeros(0, dtype=np.int32)
        return edge_keys(
            np.concatenate([new_rows[sources[kept]], *own, empty]),
            np.concatenate([new_rows[self.base.indices[kept]], *near, empty]),
        )

    def _edges(
        self, new_rows: Array, indptr: Array, indices: Array
    ) -> tuple[Array, Array | None, tuple[str, ...], Array | None]:
        """The directed edges with their types and times; added ones have no time."""
        of_base = new_rows[np.asarray(self.base.edges)]
        types = (
            np.full(of_base.shape[1], -1, dtype=np.int16)
            if self.base.edge_types is None
            else np.asarray(self.base.edge_types)
        )
        of_base[:, self._is_cut(types)] = -1
        names = {name: code for code, name in enumerate(self.base.type_names)}
        links = sorted(link for _, edits in self._pairs.items() for link in edits.added)
        ends = np.array([link[1:3] for link in links], dtype=np.int64).reshape(-1, 2).T
        added = new_rows[ends]
        codes = [-1 if link[3] is None else names.setdefault(link[3], len(names)) for link in links]
        edges = np.concatenate([of_base, added], axis=1)
        kinds = np.concatenate([types, np.array(codes, dtype=np.int16)])
        times = join_times([self.base.edge_times, None], [of_base.shape[1], added.shape[1]])
        kept = np.flatnonzero((edges >= 0).all(0))
        linked = are_linked(indptr, indices, edges[0, kept], edges[1, kept][:, None])[:, 0]
        kept = kept[linked | (edges[0, kept] == edges[1, kept])]
        edges, kinds, times = edges[:, kept], kinds[kept], None if times is None else times[kept]
        if not names:
            return edges, None, (), times
        if (kinds < 0).any():
            kinds[kinds < 0] = names.setdefault(UNTYPED, len(names))
        return edges, kinds, tuple(names), times

    def _is_cut(self, types: Array) -> Array:
        """(E,) which edges of the base were removed, by their pair alone or by pair and type."""
        keys = pair_keys(*np.asarray(self.base.edges))

        def among(pairs: Iterable[tuple[int, int]]) -> Array:
            return np.isin(keys, pair_keys(*np.array(list(pairs), dtype=np.int64).reshape(-1, 2).T))

        found = among(pair for pair, edits in self._pairs.items() if edits.is_cut)
        codes = {UNTYPED: -1} | {name: code for code, name in enumerate(self.base.type_names)}
        by_type: dict[str, list[tuple[int, int]]] = {}
        for pair, edits in self._pairs.items():
            for kind in codes.keys() & edits.cut_types:
                by_type.setdefault(kind, []).append(pair)
        for kind, pairs in by_type.items():
            found |= (types == codes[kind]) & among(pairs)
        return found

    def _columns_of_records(self) -> tuple[Array, list[pa.Table]]:
        """New and changed nodes, and their columns: a table for each schema, in that order."""
        by_schema: dict[pa.Schema, tuple[list[int], list[Record]]] = {}
        for node, record in sorted(self._records.items()):
            nodes, records = by_schema.setdefault(record.schema, ([], []))
            nodes.append(node)
            records.append(record)
        order = [node for nodes, _ in by_schema.values() for node in nodes]
        tables = [
            pa.table(
                {
                    "id": pa.array([record.id for record in records], pa.large_string()),
                    "text": pa.array([record.text for record in records], pa.large_string()),
                }
                | _columns(schema, records)
            )
            for schema, (_, records) in by_schema.items()
        ]
        return np.array(order, dtype=np.int64), tables

    def _table(self, nodes: Array) -> pa.Table:
        """Ids, texts and columns of all nodes; a column that only some have is null elsewhere."""
        changed, tables = self._columns_of_records()
        in_base = nodes[~np.isin(nodes, changed)]
        pieces = [self.base.table.take(pa.array(in_base)), *tables]
        lengths = [len(piece) for piece in pieces]
        columns = dict.fromkeys(name for piece in pieces for name in piece.column_names)
        joined = {
            name: join_column(
                [
                    one_chunk(piece[name]) if name in piece.column_names else None
                    for piece in pieces
                ],
                lengths,
                [False] * len(pieces),
            )
            for name in columns
        }
        order = np.argsort(np.concatenate([in_base, changed]))
        return pa.table(joined).take(pa.array(order)).combine_chunks()


def _columns(schema: pa.Schema, records: list[Record]) -> dict[str, pa.ChunkedArray]:
    """The columns of records of one schema."""
    if not schema.names:
        return {}
    table = pa.Table.from_batches([record.batch() for record in records], schema)
    return dict(zip(schema.names, table.columns, strict=True))


def _pair(one: int, other: int) -> tuple[int, int]:
    return min(one, other), max(one, other)


def _with(row: Array, node: int) -> Array:
    return np.insert(row, int(np.searchsorted(row, node)), node).astype(np.int64)


def _without(row: Array, node: int) -> Array:
    return np.asarray(row[row != node], dtype=np.int64)


def _both_ways(pairs: Sequence[tuple[int, int]]) -> Array:
    """Pairs of nodes in both directions, as sorted keys."""
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return _distinct(np.concatenate([ends[:, 0] << 32 | ends[:, 1], ends[:, 1] << 32 | ends[:, 0]]))


def _distinct(keys: Array) -> Array:
    """Distinct numbers, sorted. (numpy's own takes ten times as long for millions.)"""
    keys = np.sort(keys)
    distinct: Array = keys[np.diff(keys, prepend=keys[:1] - 1) != 0]
    return distinct


def _take_one(counts: dict[Key, int], key: Key) -> None:
    """Counts one less, and forgets what is not there any more."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
