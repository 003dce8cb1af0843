"""EditedGraph: a stored graph with edits on top, so that one new node does not cost a new graph.

Nodes of the base keep their row numbers, and added nodes get the numbers after them. Row numbers of
removed nodes are not used again. Only what differs from the base is kept in memory: the records of
added and changed nodes, the neighbours of nodes whose links changed, and the added and removed
links. A copy shares all values with the original, so an edit can be tried on a copy and dropped.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence

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
from graphformers.graph.textgraph import TextGraph

# The type of untyped links, where links of one type are meant.
UNTYPED = ""


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
        # The row numbers of added ids, and the ids of added nodes in the order of their numbers.
        self._added: dict[str, int] = {}
        self._added_ids: list[str] = []
        self._removed: set[int] = set()
        # The table and the row that hold the id, text and columns of a new or changed node.
        self._records: dict[int, tuple[pa.Table, int]] = {}
        # The neighbours of nodes whose links changed.
        self._neighbors: dict[int, Array] = {}
        # Added links, in order, and those of each pair of ids.
        self._links: dict[Link, None] = {}
        self._links_of: dict[frozenset[str], tuple[Link, ...]] = {}
        # Pairs that lost all links of the base, and (pair, type) that lost those of one type. Links
        # that are added to such a pair later are added links.
        self._cut: set[tuple[int, int]] = set()
        self._cut_types: set[tuple[int, int, str]] = set()

    def copy(self) -> "EditedGraph":
        """A copy that can be edited without changing this graph."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if name != "base":
                setattr(other, name, copy.copy(value))
        return other

    @property
    def is_edited(self) -> bool:
        """Whether anything differs from the base."""
        return bool(
            self._added_ids
            or self._removed
            or self._records
            or self._neighbors
            or self._links
            or self._cut_types
        )

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.num_rows - len(self._removed)

    @property
    def num_rows(self) -> int:
        """Number of row numbers, those of removed nodes included."""
        return self.base.num_nodes + len(self._added_ids)

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
        return np.array(sorted(self._removed), dtype=np.int64)

    def link_types(self) -> set[str]:
        """The types of all links, those of removed links of the base included."""
        return {*self.base.type_names, *(kind for _, _, kind in self._links if kind is not None)}

    def find_nodes(self, ids: Sequence[str]) -> Array:
        ids = plain_ids(ids)
        found = self.base.find_nodes(ids)
        if self._added or self._removed:
            for i, id in enumerate(ids):
                node = self._added.get(id, int(found[i]))
                found[i] = -1 if node in self._removed else node
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
        of_base = iter(self.base.ids_of(nodes[nodes < base]))
        return [
            next(of_base) if node < base else self._added_ids[node - base]
            for node in nodes.tolist()
        ]

    def texts_of(self, nodes: Array) -> list[str]:
        return [str(text) for text in self._values(nodes, "text")]

    def values_of(self, nodes: Array, columns: Sequence[str]) -> list[dict[str, object]]:
        found = {name: self._values(nodes, name) for name in columns}
        return [{name: values[i] for name, values in found.items()} for i in range(len(nodes))]

    def _values(self, nodes: Array, name: str) -> list[object]:
        """The values of some nodes in one column, as JSON represents them."""
        in_base = [node not in self._records for node in nodes.tolist()]
        rows = nodes[np.array(in_base, dtype=bool)]
        of_base = iter(_json_values(self.base.table, rows, name))
        return [
            next(of_base) if is_of_base else self._record_value(node, name)
            for node, is_of_base in zip(nodes.tolist(), in_base, strict=True)
        ]

    def _record_value(self, node: int, name: str) -> object:
        table, row = self._records[node]
        return _json_values(table, np.array([row]), name)[0]

    def record(self, node: int) -> tuple[pa.Table, int]:
        """The table that holds the id, text and columns of a node, and the row in it."""
        return self._records.get(node, (self.base.table, node))

    def fields(self, node: int) -> dict[str, object]:
        """The id, the text and the columns of a node, those that its record has."""
        table, row = self.record(node)
        return {name: python_values(table[name].slice(row, 1))[0] for name in table.column_names}

    @property
    def column_names(self) -> list[str]:
        """The user's own node columns, those of the base first."""
        names = dict.fromkeys(name for table in self._tables() for name in table.column_names)
        return [name for name in names if name not in OURS]

    def column_type(self, name: str) -> pa.DataType | None:
        found = (table[name].type for table in self._tables() if name in table.column_names)
        return next((kind for kind in found if not pa.types.is_null(kind)), None)

    def _tables(self) -> Iterator[pa.Table]:
        """The tables that hold nodes: that of the base, then those of edits.

        There may be many edits, so their tables are listed only if a caller reads on.
        """
        yield self.base.table
        yield from {id(table): table for table, _ in self._records.values()}.values()

    def column(self, name: str) -> pa.Array:
        if name not in self.column_names:
            raise no_column(name, self.column_names)
        base, changed = self.base.table, sorted(self._records)
        if not changed:
            return one_chunk(base[name])
        found = [
            one_chunk(table[name].slice(row, 1)) if name in table.column_names else None
            for table, row in (self._records[node] for node in changed)
        ]
        values = join_column(found, [1] * len(found), [False] * len(found))
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
        whole = pa.concat_arrays([own, pa.nulls(len(self._added_ids), kind)])
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
        degrees = np.concatenate(
            [self.base.degrees(), np.zeros(len(self._added_ids), dtype=np.int64)]
        )
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
        ids = table["id"].to_pylist()
        found: list[int] = self.find_nodes(ids).tolist()
        for i, id in enumerate(ids):
            if found[i] < 0:
                found[i] = self.num_rows
                self._added[id] = found[i]
                self._added_ids.append(id)
                self._neighbors[found[i]] = np.zeros(0, dtype=np.int64)
            self._records[found[i]] = (table, i)
        return found

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
            # Another node may get the same id later, which must not get these links.
            self._forget(self._added_links(node, other))
        id = self._id(node)
        self._removed.add(node)
        self._neighbors.pop(node, None)
        self._records.pop(node, None)
        self._added.pop(id, None)
        return former

    def add_link(self, one: int, other: int, link: Link) -> None:
        """Links two nodes. Nodes that are linked get one more link.

        Args:
            one: The row number of the link's source.
            other: The row number of its target, which is another node.
            link: The link by ids, which the graph does not have yet (see `has_links`).
        """
        self._links[link] = None
        pair = frozenset(link[:2])
        self._links_of[pair] = (*self._links_of.get(pair, ()), link)
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
        self._forget(self._added_links(one, other))
        if max(one, other) < self.base.num_nodes:
            self._cut.add(_pair(one, other))
        return True

    def remove_links(self, one: int, other: int, type: str) -> None:
        """Removes the links of one type between two nodes that have links of other types, too.

        Args:
            one: A row number.
            other: Another one.
            type: The type, UNTYPED for links without one.
        """
        self._forget(
            [link for link in self._added_links(one, other) if (link[2] or UNTYPED) == type]
        )
        if max(one, other) < self.base.num_nodes:
            self._cut_types.add((*_pair(one, other), type))

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
            link[2] is not None and (link in self._links or link in of_base[pair])
            for pair, link in zip(ends, links, strict=True)
        ]

    def links_between(self, pairs: Sequence[tuple[int, int]]) -> list[list[Link]]:
        of_base = self._base_links(pairs)
        return [
            links + self._added_links(*pair) for links, pair in zip(of_base, pairs, strict=True)
        ]

    def _base_links(self, pairs: Sequence[tuple[int, int]]) -> list[list[Link]]:
        """The links of the base between nodes, without those that were removed."""
        inside = [
            pair
            for pair in pairs
            if min(pair) >= 0
            and max(pair) < self.base.num_nodes
            and self._removed.isdisjoint(pair)
            and _pair(*pair) not in self._cut
        ]
        found = dict(zip(inside, self.base.links_between(inside), strict=True))
        return [
            [
                link
                for link in found.get(pair, ())
                if (*_pair(*pair), link[2] or UNTYPED) not in self._cut_types
            ]
            for pair in pairs
        ]

    def _added_links(self, one: int, other: int) -> list[Link]:
        if not self._links_of:
            return []
        return list(self._links_of.get(frozenset((self._id(one), self._id(other))), ()))

    def _forget(self, links: Sequence[Link]) -> None:
        """Removes added links."""
        for link in links:
            del self._links[link]
            pair = frozenset(link[:2])
            self._links_of[pair] = tuple(other for other in self._links_of[pair] if other != link)
            if not self._links_of[pair]:
                del self._links_of[pair]

    def _id(self, node: int) -> str:
        base = self.base.num_nodes
        return str(self.base.ids[node].as_py()) if node < base else self._added_ids[node - base]

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
        changed = np.fromiter(self._neighbors, dtype=np.int64, count=len(self._neighbors))
        is_same = np.ones(self.base.num_nodes, dtype=bool)
        is_same[changed[changed < self.base.num_nodes]] = False
        is_same[[node for node in self._removed if node < self.base.num_nodes]] = False
        sources = np.repeat(np.arange(self.base.num_nodes), self.base.degrees())
        kept = is_same[sources]
        own = [np.repeat(new_rows[node], len(row)) for node, row in self._neighbors.items()]
        near = [new_rows[row] for row in self._neighbors.values()]
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
        if self._cut or self._cut_types:
            of_base[:, self._is_cut(types)] = -1
        names = {name: code for code, name in enumerate(self.base.type_names)}
        ends = self.find_ends(self._links).T
        added = np.where(ends >= 0, new_rows[ends], -1).astype(np.int32)
        codes = [
            -1 if kind is None else names.setdefault(kind, len(names)) for _, _, kind in self._links
        ]
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

        found = among(self._cut)
        codes = {UNTYPED: -1} | {name: code for code, name in enumerate(self.base.type_names)}
        for kind in {kind for _, _, kind in self._cut_types} & set(codes):
            pairs = ((one, other) for one, other, own in self._cut_types if own == kind)
            found |= (types == codes[kind]) & among(pairs)
        return found

    def _table(self, nodes: Array) -> pa.Table:
        """Ids, texts and columns of all nodes; a column that only some have is null elsewhere."""
        in_base = np.ones(self.num_rows, dtype=bool)
        in_base[np.fromiter(self._records, dtype=np.int64, count=len(self._records))] = False
        order = [nodes[in_base[nodes]]]
        pieces = [self.base.table.take(pa.array(order[0]))]
        by_table: dict[int, tuple[pa.Table, list[int], list[int]]] = {}
        for node, (table, row) in self._records.items():
            _, rows, owners = by_table.setdefault(id(table), (table, [], []))
            rows.append(row)
            owners.append(node)
        for table, rows, owners in by_table.values():
            pieces.append(table.take(pa.array(rows)))
            order.append(np.array(owners, dtype=np.int64))
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
        return pa.table(joined).take(pa.array(np.argsort(np.concatenate(order)))).combine_chunks()


def _pair(one: int, other: int) -> tuple[int, int]:
    return min(one, other), max(one, other)


def _with(row: Array, node: int) -> Array:
    return np.insert(row, int(np.searchsorted(row, node)), node).astype(np.int64)


def _without(row: Array, node: int) -> Array:
    return np.asarray(row[row != node], dtype=np.int64)


def _json_values(table: pa.Table, rows: Array, name: str) -> list[object]:
    """Values of a column as JSON represents them; None where the table does not have it."""
    if name not in table.column_names:
        return [None] * len(rows)
    return json_values(one_chunk(table[name]).take(pa.array(rows)))
