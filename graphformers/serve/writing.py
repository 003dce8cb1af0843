"""Changes that clients ask for over HTTP, as edits, and what is answered."""

from dataclasses import dataclass, field

import pyarrow as pa

from graphformers.embedding.edits import EditResult, Edits, Outcome, UnknownEndError
from graphformers.embedding.update import Transaction
from graphformers.errors import GraphFormersError, InputError
from graphformers.graph.columns import OURS
from graphformers.graph.edited import EditedGraph
from graphformers.graph.protocol import Link

Value = str | int | float | bool | None
Answer = dict[str, object]
# Arrow's type of a value in a column that no node has yet.
NEW_COLUMN = {str: pa.large_string(), int: pa.int64(), float: pa.float64()}


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

    def edits(self, graph: EditedGraph) -> Edits:
        """The change as edits; values are of the types that the graph's columns hold."""
        columns = {name: _column(graph, name, value) for name, value in self.columns.items()}
        own = {
            "id": pa.array([self.id], pa.large_string()),
            "text": pa.array([self.text], pa.large_string()),
        }
        # A new column without a value says nothing.
        said = {name: value for name, value in columns.items() if not pa.types.is_null(value.type)}
        links: list[Link] = [(self.id, other, None) for other in dict.fromkeys(self.neighbors)]
        return Edits(pa.table(own | said), tuple(links))

    def answer(self, result: EditResult) -> Answer:
        """What the client is told."""
        return {
            "id": self.id,
            "is_new": result.nodes[0] is Outcome.NEW,
            "new_links": result.links.count(Outcome.NEW),
            # As the command line tells them: a typing error makes one.
            "new_columns": sorted(result.new_columns),
        }


@dataclass(frozen=True)
class AddEdges:
    """Links between nodes."""

    links: tuple[Link, ...]

    def edits(self, graph: EditedGraph) -> Edits:
        """The change as edits."""
        return Edits(links=self.links)

    def answer(self, result: EditResult) -> Answer:
        """What the client is told."""
        return {
            "added": result.links.count(Outcome.NEW),
            "already_there": result.links.count(Outcome.SAME),
            "self_links": result.links.count(Outcome.SELF_LINK),
        }


@dataclass(frozen=True)
class RemoveEdge:
    """Links of two nodes that go, whichever way they were given; all, or those of one type, which
    may be UNTYPED.
    """

    one: str
    other: str
    type: str | None = None

    def edits(self, graph: EditedGraph) -> Edits:
        """The change as edits."""
        return Edits(unlinked=((self.one, self.other, self.type),))

    def answer(self, result: EditResult) -> Answer:
        """What the client is told."""
        outcome = result.unlinked[0]
        if outcome is not Outcome.REMOVED:
            of_type = f" of type {self.type!r}" if outcome is Outcome.OTHERWISE else ""
            raise NotFoundError(f"no link of {self.one!r} and {self.other!r}{of_type}")
        return {"source": self.one, "target": self.other, "is_removed": True}


@dataclass(frozen=True)
class DeleteNode:
    """A node that goes, with its links."""

    id: str

    def edits(self, graph: EditedGraph) -> Edits:
        """The change as edits."""
        return Edits(removed=(self.id,))

    def answer(self, result: EditResult) -> Answer:
        """What the client is told."""
        if result.removed[0] is Outcome.NOT_THERE:
            raise NotFoundError(f"no node with the id {self.id!r}")
        return {"id": self.id, "is_removed": True}


Write = PutNode | AddEdges | RemoveEdge | DeleteNode


def link_pairs(graph: EditedGraph, writes: list[Write]) -> list[tuple[int, int]]:
    """The linked nodes whose links are needed to apply changes."""
    links: list[Link] = []
    for write in writes:
        if isinstance(write, AddEdges):
            links += write.links
        elif isinstance(write, RemoveEdge):
            links.append((write.one, write.other, write.type))
    return [
        (one, other)
        for one, other in graph.find_ends(links).tolist()
        if min(one, other) >= 0 and graph.is_linked(one, other)
    ]


def apply_write(write: Write, transaction: Transaction) -> Answer:
    """Makes a change part of a transaction; returns what to answer when that is on disk.

    Raises:
        NotFoundError: Nothing was there to remove. Nothing changed.
        RefusedError: The change does not fit the graph. Nothing changed.
    """
    try:
        return write.answer(transaction.apply(write.edits(transaction.graph)))
    except UnknownEndError as error:
        raise RefusedError(f"no node with the id {error.end!r} to link to; put it first") from error
    except InputError as error:
        raise RefusedError(str(error)) from error


def _column(graph: EditedGraph, name: str, value: Value) -> pa.Array:
    """A value with the type that the graph's column has, if there is one."""
    if name in OURS:
        raise RefusedError(
            f"a column {name!r} given; the node's own {name} is given beside the columns"
        )
    kind = graph.column_type(name)
    try:
        if kind is not None:
            return pa.array([value]).cast(kind)
        return pa.array([value], NEW_COLUMN.get(type(value)))
    except (pa.ArrowException, OverflowError) as error:
        raise RefusedError(f"the column {name!r}: {value!r} is no {kind or 'int64'}") from error
