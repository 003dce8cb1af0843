"""LiveGraph: a frozen graph with changes on top, so that one new node does not cost a new graph.

Nodes of the base keep their row numbers; added nodes get the numbers behind them. Only rows of
nodes that a change touches are kept apart; what was removed is never in any row. A copy is cheap,
so that a change can be tried and dropped.
"""

import copy
import math
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
from graphformers.graph.builder import join_times
from graphformers.graph.columns import join_column, python_values
from graphformers.graph.sampling import Neighborhood, NeighborSampler
from graphformers.graph.textgraph import TextGraph, plain_ids

Link = tuple[str, str, str | None]  # from, to, type
UNTYPED = ""  # where links of one type are asked for: those that have none


class LiveGraph:
    """A graph that changes. `base` never does."""

    def __init__(self, base: TextGraph) -> None:
        self.base = base
        self._numbers: dict[str, int] = {}  # of added ids
        self._ids: list[str] = []  # of added nodes, in order
        self._gone: set[int] = set()
        # where the id, text and columns of new and changed nodes stand
        self._records: dict[int, tuple[pa.Table, int]] = {}
        self._rows: dict[int, Array] = {}  # neighbours of nodes that a change touched
        self._links: dict[Link, None] = {}  # added, in order
        # those that each pair of ids has
        self._links_of: dict[frozenset[str], tuple[Link, ...]] = {}
        # pairs of the base that were parted: what is linked anew is a new link
        self._cut: set[tuple[int, int]] = set()
        # types of links that pairs of the base lost, which have others
        self._cut_types: set[tuple[int, int, str]] = set()

    def fork(self) -> "LiveGraph":
        """A copy that can be changed without changing this one."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if name != "base":
                setattr(other, name, copy.copy(value))
        return other

    @property
    def num_nodes(self) -> int:
        return self.num_numbers - len(self._gone)

    @property
    def is_changed(self) -> bool:
        return bool(
            self._ids or self._gone or self._records or self._rows or self._links or self._cut_types
        )

    def nodes(self) -> Array:
        """The numbers of all nodes there are, in order."""
        return np.delete(np.arange(self.num_numbers), self.removed())

    def removed(self) -> Array:
        """The numbers of nodes that were taken out, sorted."""
        return np.array(sorted(self._gone), dtype=np.int64)

    @property
    def num_numbers(self) -> int:
        """How many numbers were given out, to nodes that are there or were."""
        return self.base.num_nodes + len(self._ids)

    def link_types(self) -> set[str]:
        """The types that links have had."""
        return {*self.base.type_names, *(kind for _, _, kind in self._links if kind is not None)}

    def find(self, ids: Sequence[str]) -> Array:
        """The numbers of ids, -1 where there is no such node."""
        ids = plain_ids(ids)
        found = self.base.find_nodes(ids)
        for i, id in enumerate(ids) if self._numbers or self._gone else ():
            number = self._numbers.get(id, int(found[i]))
            found[i] = -1 if number in self._gone else number
        return found

    def find_ends(self, links: Iterable[Sequence[str | None]]) -> Array:
        """(len(links), 2) the numbers of the nodes that links join, -1 where there is none."""
        return self.find([str(end) for link in links for end in link[:2]]).reshape(-1, 2)

    def id(self, node: int) -> str:
        base = self.base.num_nodes
        return str(self.base.ids[node].as_py()) if node < base else self._ids[node - base]

    def ids_of(self, nodes: Array) -> list[str]:
        """The ids of many nodes."""
        base = self.base.num_nodes
        old = iter(self.base.ids_of(nodes[nodes < base]))
        return [next(old) if node < base else self._ids[node - base] for node in nodes.tolist()]

    def texts_of(self, nodes: Array) -> list[str]:
        """The texts of many nodes."""
        return [str(text) for text in self._values(nodes, "text")]

    def _values(self, nodes: Array, name: str) -> list[object]:
        """Of each node the value of a column, fit for JSON; None where it has none."""
        is_plain = [node not in self._records for node in nodes.tolist()]
        old = iter(_json_values(self.base.nodes, name, nodes[np.array(is_plain, dtype=bool)]))
        return [
            next(old) if plain else _json_value(*self._records[node], name)
            for node, plain in zip(nodes.tolist(), is_plain, strict=True)
        ]

    def record(self, node: int) -> tuple[pa.Table, int]:
        """The table in which a node stands, and its row there."""
        return self._records.get(node, (self.base.nodes, node))

    def fields(self, node: int) -> dict[str, object]:
        """The id, the text and the user's columns of a node."""
        table, row = self.record(node)
        return {name: python_values(table[name].slice(row, 1))[0] for name in table.column_names}

    def values_of(self, nodes: Array, columns: Sequence[str]) -> list[dict[str, object]]:
        """Of each node the values of some of its columns, fit for JSON; None where it has none."""
        found = {name: self._values(nodes, name) for name in columns}
        return [{name: values[i] for name, values in found.items()} for i in range(len(nodes))]

    def column_names(self) -> list[str]:
        """The user's own node columns, of any node."""
        names = dict.fromkeys(name for table in self._tables() for name in table.column_names)
        return [name for name in names if name not in ("id", "text")]

    def column_type(self, name: str) -> pa.DataType | None:
        """What a column holds; None where no node has it."""
        found = (table[name].type for table in self._tables() if name in table.column_names)
        return next((kind for kind in found if not pa.types.is_null(kind)), None)

    def _tables(self) -> Iterator[pa.Table]:
        """Those in which nodes stand: the graph's own, then those of changes, which may be many and
        are only looked for then.
        """
        yield self.base.nodes
        yield from {id(table): table for table, _ in self._records.values()}.values()

    def column(self, name: str) -> pa.Array:
        """A column of all numbered nodes, those that were removed included; null where a node does
        not have it.
        """
        base, total = self.base.nodes, self.num_numbers
        changed = sorted(self._records)
        records = [self._records[node] for node in changed]
        found = [
            one_chunk(table[name].slice(row, 1)) if name in table.column_names else None
            for table, row in records
        ]
        values = join_column(found, [1] * len(found), [False] * len(found))
        kind = base[name].type if name in base.column_names else values.type
        own = (
            one_chunk(base[name])
            if name in base.column_names
            else pa.nulls(self.base.num_nodes, kind)
        )
        if not changed:
            return own
        try:
            values = (
                values.cast(kind)
                if values.null_count < len(values)
                else pa.nulls(len(values), kind)
            )
        except pa.ArrowException:  # a new node has words where the others have numbers
            own, values, kind = (
                own.cast(pa.large_string()),
                values.cast(pa.large_string()),
                pa.large_string(),
            )
        whole, mask = (
            pa.concat_arrays([own, pa.nulls(len(self._ids), kind)]),
            np.zeros(total, dtype=bool),
        )
        mask[changed] = True
        try:
            return pc.replace_with_mask(whole, pa.array(mask), values)
        except pa.ArrowNotImplementedError:  # lists and the like
            places = np.arange(total)
            places[changed] = total + np.arange(len(changed))
            return pa.concat_arrays([whole, values]).take(pa.array(places))

    def row(self, node: int) -> Array:
        """The neighbours of a node, sorted."""
        found = self._rows.get(node)
        return self.base.neighbors_of(node) if found is None else found

    def is_linked(self, one: int, other: int) -> bool:
        """Whether two nodes are neighbours."""
        row = self.row(one)
        place = int(np.searchsorted(row, other))
        return place < len(row) and bool(row[place] == other)

    def put(self, table: pa.Table) -> list[int]:
        """Adds or changes nodes, with the columns id, text and whatever else; their numbers."""
        ids = table["id"].to_pylist()
        found = self.find(ids).tolist()
        for i, id in enumerate(ids):
            if found[i] < 0:
                found[i] = self.num_numbers
                self._numbers[id] = found[i]
                self._ids.append(id)
                self._rows[found[i]] = np.zeros(0, dtype=np.int64)
            self._records[found[i]] = (table, i)
        return [int(node) for node in found]

    def remove(self, node: int) -> list[int]:
        """Takes a node out, with its links; the nodes it was linked to."""
        around: list[int] = self.row(node).tolist()
        for other in around:
            self._rows[other] = _without(self.row(other), node)
            self._forget(self._own_links(node, other))  # another node may have the id one day
        id = self.id(node)
        self._gone.add(node)
        self._rows.pop(node, None)
        self._records.pop(node, None)
        self._numbers.pop(id, None)
        return around

    def have(self, links: Sequence[Link]) -> list[bool]:
        """Whether there are these links between nodes, with direction and type. No type: False."""
        ends: list[tuple[int, int]] = [
            (one, other) for one, other in self.find_ends(links).tolist()
        ]
        typed = [pair for pair, link in zip(ends, links, strict=True) if link[2] is not None]
        old = self._base_links(typed)
        return [
            link[2] is not None and (link in self._links or link in old[_pair(*pair)])
            for pair, link in zip(ends, links, strict=True)
        ]

    def _is_cut(self, one: int, other: int, kind: str) -> bool:
        """Whether a link of the base is gone."""
        pair = _pair(one, other)
        return pair in self._cut or (*pair, kind) in self._cut_types

    def links_between(self, pairs: Sequence[tuple[int, int]]) -> list[list[Link]]:
        """All links that each of these pairs of nodes has, either way."""
        old = self._base_links(pairs)
        return [old[_pair(one, other)] + self._own_links(one, other) for one, other in pairs]

    def _base_links(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], list[Link]]:
        """Those of the base that are not gone; all pairs are looked up together, since a look reads
        all edges.
        """
        base, found = self.base, {_pair(one, other): list[Link]() for one, other in pairs}
        ends = [end for pair in found for end in pair if max(pair) < base.num_nodes]
        if ends:
            is_end = np.zeros(base.num_nodes, dtype=bool)
            is_end[ends] = True
            places = np.flatnonzero(is_end[base.edges[0]] & is_end[base.edges[1]])
            for place, (one, other) in zip(
                places.tolist(), base.edges[:, places].T.tolist(), strict=True
            ):
                kind = "" if base.edge_types is None else base.type_names[base.edge_types[place]]
                if _pair(one, other) in found and not self._is_cut(one, other, kind):
                    found[_pair(one, other)].append((self.id(one), self.id(other), kind or None))
        return found

    def _own_links(self, one: int, other: int) -> list[Link]:
        """The added ones of two nodes."""
        return (
            list(self._links_of.get(frozenset((self.id(one), self.id(other))), ()))
            if self._links_of
            else []
        )

    def link(self, one: int, other: int, link: Link) -> None:
        """Links two nodes, not one to itself. To those that are linked it is one more link: `have`
        tells whether it is new.
        """
        self._links[link] = None
        pair = frozenset(link[:2])
        self._links_of[pair] = (*self._links_of.get(pair, ()), link)
        if not self.is_linked(one, other):
            self._rows[one] = _with(self.row(one), other)
            self._rows[other] = _with(self.row(other), one)

    def unlink(self, one: int, other: int) -> bool:
        """Parts two nodes, whatever links they had; False where they had none."""
        if not self.is_linked(one, other):
            return False
        self._rows[one] = _without(self.row(one), other)
        self._rows[other] = _without(self.row(other), one)
        self._forget(self._own_links(one, other))
        if max(one, other) < self.base.num_nodes:
            self._cut.add(_pair(one, other))
        return True

    def cut_type(self, one: int, other: int, kind: str) -> None:
        """Removes the links of one type, or without one, from two nodes, which have others and stay
        neighbours.
        """
        self._forget([link for link in self._own_links(one, other) if (link[2] or UNTYPED) == kind])
        if max(one, other) < self.base.num_nodes:
            self._cut_types.add((*_pair(one, other), kind))

    def _forget(self, links: Sequence[Link]) -> None:
        for link in links:
            del self._links[link]
            pair = frozenset(link[:2])
            self._links_of[pair] = tuple(other for other in self._links_of[pair] if other != link)
            if not self._links_of[pair]:
                del self._links_of[pair]

    def sample(self, centers: Array, num_neighbors: int, seed: int) -> Neighborhood:
        """What NeighborSampler draws in the graph as it is now; it depends on the ids of a node and
        its neighbours alone.
        """
        rows = [self.row(node) for node in centers.tolist()]
        indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        near, index = np.unique(
            np.concatenate([*rows, np.zeros(0, dtype=np.int64)]), return_inverse=True
        )
        hashes = self.hashes_of(np.concatenate([centers, near]).astype(np.int64))
        sampler = NeighborSampler(indptr, index + len(centers), hashes, num_neighbors, seed)
        drawn = sampler.sample(np.arange(len(centers)))
        return Neighborhood(
            centers, drawn.indptr, near[drawn.neighbors - len(centers)].astype(np.int64)
        )

    def hashes_of(self, nodes: Array) -> Array:
        """(len(nodes),) uint64: the hashes of their ids."""
        is_added = nodes >= self.base.num_nodes
        hashes = np.empty(len(nodes), dtype=np.uint64)
        hashes[~is_added] = self.base.id_hashes[nodes[~is_added]]
        hashes[is_added] = hash_strings(self.ids_of(nodes[is_added]))
        return hashes

    def freeze(self) -> TextGraph:
        """The graph as it is now, its nodes in the order of `nodes()`."""
        if not self.is_changed:
            return self.base
        nodes = self.nodes()
        places = np.full(self.num_numbers, -1, dtype=np.int32)
        places[nodes] = np.arange(len(nodes), dtype=np.int32)
        indptr, indices = compressed_rows(len(nodes), self._keys(nodes, places))
        edges, types, names, times = self._edges(places, indptr, indices)
        return TextGraph(
            nodes=self._table(nodes),
            id_hashes=self.hashes_of(nodes),
            indptr=indptr,
            indices=indices,
            edges=edges,
            edge_types=types,
            type_names=names,
            edge_times=times,
            summary=self.base.summary,
        )

    def _keys(self, nodes: Array, places: Array) -> Array:
        """Every linked pair, both ways, by new row numbers."""
        touched = np.fromiter(self._rows, dtype=np.int64, count=len(self._rows))
        plain = np.ones(self.base.num_nodes, dtype=bool)
        plain[touched[touched < self.base.num_nodes]] = False
        plain[[node for node in self._gone if node < self.base.num_nodes]] = False
        degrees = self.base.degrees()
        sources = np.repeat(np.arange(self.base.num_nodes), degrees)
        kept = plain[sources]
        own = [np.repeat(places[node], len(row)) for node, row in self._rows.items()]
        near = [places[row] for row in self._rows.values()]
        empty = np.zeros(0, dtype=np.int32)
        return edge_keys(
            np.concatenate([places[sources[kept]], *own, empty]),
            np.concatenate([places[self.base.indices[kept]], *near, empty]),
        )

    def _edges(
        self, places: Array, indptr: Array, indices: Array
    ) -> tuple[Array, Array | None, tuple[str, ...], Array | None]:
        """The directed edges of pairs that are still linked, with their types and times; added ones
        have no time.
        """
        old = places[np.asarray(self.base.edges)]
        types = (
            np.full(old.shape[1], -1, dtype=np.int16)
            if self.base.edge_types is None
            else np.asarray(self.base.edge_types)
        )
        if self._cut or self._cut_types:
            old[:, self._is_gone(types)] = -1
        names = {name: code for code, name in enumerate(self.base.type_names)}
        ends = self.find_ends(self._links).T
        added = np.where(ends >= 0, places[ends], -1).astype(np.int32)
        codes = [
            -1 if kind is None else names.setdefault(kind, len(names)) for _, _, kind in self._links
        ]
        edges = np.concatenate([old, added], axis=1)
        kinds = np.concatenate([types, np.array(codes, dtype=np.int16)])
        times = join_times([self.base.edge_times, None], [old.shape[1], added.shape[1]])
        kept = np.flatnonzero((edges >= 0).all(0))
        linked = are_linked(indptr, indices, edges[0, kept], edges[1, kept][:, None])[:, 0]
        kept = kept[linked | (edges[0, kept] == edges[1, kept])]
        edges, kinds, times = edges[:, kept], kinds[kept], None if times is None else times[kept]
        if not names:
            return edges, None, (), times
        if (kinds < 0).any():
            kinds[kinds < 0] = names.setdefault("", len(names))
        return edges, kinds, tuple(names), times

    def _is_gone(self, types: Array) -> Array:
        """(E,) which edges of the base are cut, by their pair alone or by pair and type."""
        keys = pair_keys(*np.asarray(self.base.edges))

        def among(pairs: Iterable[tuple[int, int]]) -> Array:
            return np.isin(keys, pair_keys(*np.array(list(pairs), dtype=np.int64).reshape(-1, 2).T))

        found, codes = (
            among(self._cut),
            {UNTYPED: -1} | {name: code for code, name in enumerate(self.base.type_names)},
        )
        for kind in {kind for _, _, kind in self._cut_types} & set(codes):
            pairs = ((one, other) for one, other, own in self._cut_types if own == kind)
            found |= (types == codes[kind]) & among(pairs)
        return found

    def _table(self, nodes: Array) -> pa.Table:
        """Ids, texts and columns of all nodes; a column that only some have is null elsewhere."""
        is_plain = np.ones(self.num_numbers, dtype=bool)
        is_plain[np.fromiter(self._records, dtype=np.int64, count=len(self._records))] = False
        order = [nodes[is_plain[nodes]]]
        pieces = [self.base.nodes.take(pa.array(order[0]))]
        tables: dict[int, tuple[pa.Table, list[int], list[int]]] = {}
        for node, (table, row) in self._records.items():
            _, rows, own = tables.setdefault(id(table), (table, [], []))
            rows.append(row)
            own.append(node)
        for table, rows, own in tables.values():
            pieces.append(table.take(pa.array(rows)))
            order.append(np.array(own, dtype=np.int64))
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


def _json_values(table: pa.Table, name: str, rows: Array) -> list[object]:
    """Values of a column; None where the table does not have it."""
    if name not in table.column_names:
        return [None] * len(rows)
    return plain_values(one_chunk(table[name]).take(pa.array(rows)))


def _json_value(table: pa.Table, row: int, name: str) -> object:
    return _json_values(table, name, np.array([row]))[0]


def plain_values(column: pa.Array) -> list[object]:
    """A column's values as JSON has them: times as text (Python has none of nanoseconds), what is
    no number as None.
    """
    if pa.types.is_duration(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.large_string())
    values = column.to_pylist()
    if pa.types.is_floating(column.type):
        return [value if value is not None and math.isfinite(value) else None for value in values]
    return list(values)
