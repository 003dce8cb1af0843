"""Writes of many clients as few records of the log: each record is one forward of the model and one
wait for the disk.

Writes that wait at the same time have no order among each other, so those that do not contradict
each other are made one change of the graph. One that touches what another of the group touches
waits for the next group.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from graphformers.embedding.changes import NO_NODES, Changes, too_many_types
from graphformers.errors import GraphFormersError
from graphformers.graph.edited import UNTYPED, EditedGraph
from graphformers.graph.protocol import Link

Value = str | int | float | bool | None


class NotFoundError(GraphFormersError):
    """There is no such node or link."""


class RefusedError(GraphFormersError):
    """What was given does not fit this graph."""


@dataclass(frozen=True)
class PutNode:
    """A node that is new, or takes the place of what was known of it; links that it had stay, those
    given are added.
    """

    id: str
    text: str
    columns: dict[str, Value] = field(default_factory=dict)
    neighbors: tuple[str, ...] = ()

    @property
    def ids(self) -> list[str]:
        return [self.id, *self.neighbors]


@dataclass(frozen=True)
class AddEdges:
    """Links between nodes."""

    links: tuple[Link, ...]

    @property
    def ids(self) -> list[str]:
        return [end for link in self.links for end in link[:2]]


@dataclass(frozen=True)
class RemoveEdge:
    """Links of two nodes that go, whichever way they were given; all, or those of one type, which
    may be UNTYPED.
    """

    one: str
    other: str
    type: str | None = None

    @property
    def ids(self) -> list[str]:
        return [self.one, self.other]


@dataclass(frozen=True)
class DeleteNode:
    """A node that goes, with its links."""

    id: str

    @property
    def ids(self) -> list[str]:
        return [self.id]


Write = PutNode | AddEdges | RemoveEdge | DeleteNode
Answer = dict[str, object]


class Group:
    """Writes that can be one change of a graph."""

    def __init__(self, graph: EditedGraph, writes: Sequence[Write]) -> None:
        self._graph = graph
        self._asked = [
            link for write in writes if isinstance(write, AddEdges) for link in write.links
        ]
        ids = list(dict.fromkeys(id for write in writes for id in write.ids))
        self._known = {
            id: node
            for id, node in zip(ids, graph.find_nodes(ids).tolist(), strict=True)
            if node >= 0
        }
        self._puts: dict[str, PutNode] = {}
        self._types: pa.Schema | None = None
        self._rows: list[pa.Table] = []
        self._links: dict[Link, None] = {}
        self._pairs: set[frozenset[str]] = set()  # which these link
        self._unlinked: dict[frozenset[str], str | None] = {}  # and of which type
        self._removed: set[str] = set()
        self._ends: set[str] = set()

    def take(self, write: Write) -> Answer | None:
        """What to answer when the group is done; None where the write must wait. Raises where it is
        wrong.
        """
        if self._removed.intersection(write.ids):
            return None
        if isinstance(write, PutNode):
            return self._put(write)
        if isinstance(write, DeleteNode):
            return self._delete(write)
        if isinstance(write, RemoveEdge):
            return self._unlink(write)
        if any(frozenset(link[:2]) in self._unlinked for link in write.links):
            return None
        if too_many_types(write.links, self._graph):
            raise RefusedError(
                "more types of links than a graph can hold; is the right field used as the type?"
            )
        self._require(write.ids)
        added, loops = (
            sum(self._link(link) for link in write.links),
            sum(one == other for one, other, _ in write.links),
        )
        return {
            "added": added,
            "already_there": len(write.links) - added - loops,
            "self_links": loops,
        }

    def changes(self) -> Changes:
        nodes = pa.concat_tables(self._rows).combine_chunks() if self._rows else NO_NODES
        unlinked = tuple(
            (min(pair), max(pair), self._unlinked[pair])
            for pair in sorted(self._unlinked, key=sorted)
        )
        return Changes(nodes, tuple(self._links), tuple(sorted(self._removed)), unlinked)

    def _put(self, write: PutNode) -> Answer | None:
        kinds = {name: self._graph.column_type(name) for name in sorted(write.columns)}
        columns = {
            name: self._column(name, write.columns[name], kind) for name, kind in kinds.items()
        }
        # says nothing
        columns = {
            name: column for name, column in columns.items() if not pa.types.is_null(column.type)
        }
        own = {
            "id": pa.array([write.id], pa.large_string()),
            "text": pa.array([write.text], pa.large_string()),
        }
        row = pa.table(own | columns)
        self._require(id for id in write.neighbors if id != write.id)
        if write.id in self._puts or (
            self._types is not None and not row.schema.equals(self._types)
        ):
            return None
        if any(frozenset((write.id, id)) in self._unlinked for id in write.neighbors):
            return None
        self._puts[write.id], self._types = write, row.schema
        self._rows.append(row)
        links = sum(self._link((write.id, id, None)) for id in dict.fromkeys(write.neighbors))
        # as the command line tells them: a typing error makes one
        new = [name for name in columns if kinds[name] is None]
        return {
            "id": write.id,
            "is_new": write.id not in self._known,
            "new_links": links,
            "new_columns": new,
        }

    def _delete(self, write: DeleteNode) -> Answer | None:
        if write.id in self._puts or write.id in self._ends:
            return None
        if write.id not in self._known:
            raise NotFoundError(f"no node with the id {write.id!r}")
        self._removed.add(write.id)
        return {"id": write.id, "is_removed": True}

    def _unlink(self, write: RemoveEdge) -> Answer | None:
        pair = frozenset(write.ids)
        if pair in self._pairs or pair in self._unlinked:
            return None
        if not self._is_linked(write.one, write.other):
            raise NotFoundError(f"no link of {write.one!r} and {write.other!r}")
        if write.type is not None:
            (links,) = self._graph.links_between(
                [(self._known[write.one], self._known[write.other])]
            )
            if write.type not in {link[2] or UNTYPED for link in links}:
                raise NotFoundError(
                    f"no link of {write.one!r} and {write.other!r} of type {write.type!r}"
                )
        self._unlinked[pair] = write.type
        self._ends.update(pair)
        return {"source": write.one, "target": write.other, "is_removed": True}

    def _is_linked(self, one: str, other: str) -> bool:
        return (
            one in self._known
            and other in self._known
            and self._graph.is_linked(self._known[one], self._known[other])
        )

    @cached_property
    def _there(self) -> set[Link]:
        """Which of all the links asked for are there; looked up together, since each look reads all
        links of the graph.
        """
        links = [link for link in self._asked if self._known.keys() >= set(link[:2])]
        found = self._graph.has_links(links)
        return {link for link, is_there in zip(links, found, strict=True) if is_there}

    def _require(self, ids: Iterable[str]) -> None:
        unknown = next((id for id in ids if id not in self._known and id not in self._puts), None)
        if unknown is not None:
            raise RefusedError(f"no node with the id {unknown!r} to link to; put it first")

    def _link(self, link: Link) -> bool:
        """Notes a link; False where it is there already, or of a node to itself. A linked pair
        takes links of other types.
        """
        one, other = link[:2]
        pair = frozenset((one, other))
        self._ends.update(pair)
        if one == other or link in self._links:
            return False
        is_linked = self._is_linked(one, other)
        if link[2] is None and (is_linked or pair in self._pairs):
            return False
        if is_linked and link in self._there:
            return False
        self._links[link] = None
        self._pairs.add(pair)
        return True

    def _column(self, name: str, value: Value, kind: pa.DataType | None) -> pa.Array:
        """A value with the type `kind` that the graph's column has, if there is one."""
        if name in ("id", "text"):
            raise RefusedError(
                f"a column {name!r} given; the node's own {name} is given beside the columns"
            )
        try:
            if kind is not None:
                return pa.array([value]).cast(kind)
            return pa.array(
                [value],
                {str: pa.large_string(), int: pa.int64(), float: pa.float64()}.get(type(value)),
            )
        except (pa.ArrowException, OverflowError) as error:
            raise RefusedError(f"the column {name!r}: {value!r} is no {kind or 'int64'}") from error
