"""Graph: what stored graphs (`TextGraph`) and edited graphs (`EditedGraph`) have in common.

A `node` is a row number, an `id` the user's own string. Functions that only read a graph take a
`Graph`; those that need its arrays call `freeze`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from graphformers.arrays import Array
from graphformers.errors import GraphFormersError, UnknownIdError
from graphformers.graph.sampling import Neighborhood
from graphformers.table import Result, Table, count_of, shorten

if TYPE_CHECKING:
    from graphformers.graph.textgraph import TextGraph

# A directed link: the ids of its source and target, and its type, None if it has none.
Link = tuple[str, str, str | None]
# Characters of a text and neighbours in the repr of a node; nodes and columns in a graph's table.
SHOWN_TEXT = 80
SHOWN_NEIGHBORS = 5
SHOWN_NODES = 5
SHOWN_COLUMNS = 8


@dataclass(frozen=True, repr=False)
class Node(Result):
    """A node with its neighbours, by ids. Made by `graph[id]`.

    Attributes:
        id: The id.
        text: The text.
        columns: The values of the user's own columns; None where the node has none. Dates are
            texts.
        neighbors: The ids of the linked nodes, in either direction.

    Examples:
        >>> graph = TextGraph.load("papers.graph")
        >>> graph["p7"]
        Node(id='p7', text='graph node text 7', columns={...}, neighbors=['p2', 'p22', ...])
    """

    id: str
    text: str
    columns: Mapping[str, object]
    neighbors: tuple[str, ...]

    def __repr__(self) -> str:
        shown = [repr(id) for id in self.neighbors[:SHOWN_NEIGHBORS]]
        if more := len(self.neighbors) - len(shown):
            shown.append(f"… {more:,} more")
        return (
            f"Node(id={self.id!r}, text={shorten(self.text, SHOWN_TEXT)!r}, "
            f"columns={dict(self.columns)!r}, neighbors=[{', '.join(shown)}])"
        )

    def as_table(self) -> Table:
        """One row for each of id, text, columns and neighbours."""
        rows = [("id", self.id), ("text", self.text)]
        rows += [
            (name, "" if value is None else str(value)) for name, value in self.columns.items()
        ]
        near = ", ".join(self.neighbors[:SHOWN_NEIGHBORS])
        more = len(self.neighbors) - SHOWN_NEIGHBORS
        count = f"{len(self.neighbors):,}: " if self.neighbors else "none"
        rows.append(("neighbors", f"{count}{near}" + (" …" if more > 0 else "")))
        return Table((), rows)


class Graph(Protocol):
    """A graph of texts that can be read.

    Row numbers are below `num_rows`. In a graph from which nodes were removed some of them stand
    for no node: `nodes` are those that do.

    Examples:
        >>> graph = TextGraph.load("papers.graph")
        >>> len(graph), "p7" in graph, graph["p7"].text
        (80, True, 'graph node text 7')
        >>> graph.ids_of(graph.neighbors_of(graph.node("p7")))[:2]
        ['p2', 'p22']
    """

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        ...

    @property
    def num_rows(self) -> int:
        """Number of row numbers, those of removed nodes included."""
        ...

    @property
    def num_pairs(self) -> int:
        """Number of unordered pairs of linked nodes."""
        ...

    @property
    def nodes(self) -> Array:
        """The row numbers of all nodes, sorted."""
        ...

    @property
    def column_names(self) -> list[str]:
        """The user's own node columns."""
        ...

    def column(self, name: str) -> pa.Array:
        """One of the user's node columns.

        Args:
            name: The name of the column.

        Returns:
            (num_rows,) its values by row number; null where a node has none.

        Raises:
            GraphFormersError: There is no such column.
        """
        ...

    def column_type(self, name: str) -> pa.DataType | None:
        """The type of a column.

        Args:
            name: The name of the column; `id` and `text`, too.

        Returns:
            Its type; None where there is no such column, or no node has a value.
        """
        ...

    def find_nodes(self, ids: Sequence[str]) -> Array:
        """The row numbers of some ids, -1 for unknown ones.

        Args:
            ids: The ids.

        Returns:
            (len(ids),) int64: -1 for an id that no node has.

        Raises:
            GraphFormersError: An id is not a string.
        """
        ...

    def ids_of(self, nodes: Array) -> list[str]:
        """The ids of some nodes.

        Args:
            nodes: Row numbers.

        Returns:
            Their ids.
        """
        ...

    def texts_of(self, nodes: Array) -> list[str]:
        """The texts of some nodes.

        Args:
            nodes: Row numbers.

        Returns:
            Their texts.
        """
        ...

    def values_of(self, nodes: Array, columns: Sequence[str]) -> list[dict[str, object]]:
        """The values of some nodes in some columns, as JSON represents them.

        Args:
            nodes: Row numbers.
            columns: The names of the columns.

        Returns:
            For each node its values by column; None where it has none.
        """
        ...

    def neighbors_of(self, node: int) -> Array:
        """The row numbers of the nodes linked to a node, in either direction.

        Args:
            node: The row number of the node.

        Returns:
            The row numbers of its neighbours, sorted.
        """
        ...

    def degrees(self) -> Array:
        """The number of neighbours of every node.

        Returns:
            (num_rows,) int64, by row number.
        """
        ...

    def links_between(self, pairs: Sequence[tuple[int, int]]) -> list[list[Link]]:
        """The directed links between nodes.

        Args:
            pairs: Pairs of row numbers. All edges are read once, however many pairs there are.

        Returns:
            For each pair its links in both directions.
        """
        ...

    def sample(self, nodes: Array, num_neighbors: int = 5, seed: int = 42) -> Neighborhood:
        """Samples neighbours of some nodes.

        The sample is a function of the seed, the ids of a node and of its neighbours, so that it is
        the same in every graph with these links.

        Args:
            nodes: Row numbers.
            num_neighbors: Maximum number of sampled neighbours per node.
            seed: Seed of the sampling.

        Returns:
            The nodes and their sampled neighbours.

        Raises:
            GraphFormersError: `nodes` are not row numbers of this graph.
        """
        ...

    def freeze(self) -> "TextGraph":
        """This graph as a `TextGraph`, whose row numbers have no gaps.

        Returns:
            A graph with the same content, its nodes in the order of `nodes`.
        """
        ...

    def __repr__(self) -> str:
        nodes = count_of(self.num_nodes, "node", "nodes")
        pairs = count_of(self.num_pairs, "linked pair", "linked pairs")
        return f"{type(self).__name__}({nodes}, {pairs})"

    def _repr_html_(self) -> str:
        """The first nodes with their columns, as a table for notebooks."""
        first, columns = self.nodes[:SHOWN_NODES], self.column_names[:SHOWN_COLUMNS]
        found = zip(
            self.ids_of(first),
            self.texts_of(first),
            self.values_of(first, columns),
            strict=True,
        )
        rows = [
            [shorten(_shown(cell)) for cell in (id, text, *values.values())]
            for id, text, values in found
        ]
        more = self.column_names[SHOWN_COLUMNS:]
        notes = [f"and the columns {', '.join(more)}"] if more else []
        return Table(("id", "text", *columns), rows, title=repr(self), notes=notes)._repr_html_()

    def __len__(self) -> int:
        return self.num_nodes

    def __iter__(self) -> Iterator[str]:
        """The ids of all nodes, in the order of their row numbers."""
        return iter(self.ids_of(self.nodes))

    def __contains__(self, id: object) -> bool:
        """Whether there is a node of this id."""
        (id,) = plain_ids([id])
        return isinstance(id, str) and bool(self.find_nodes([id])[0] >= 0)

    def __getitem__(self, id: str) -> Node:
        """A node by its id.

        Raises:
            UnknownIdError: There is no such node.
        """
        node = np.array([self.node(id)])
        (own_id,), (text,) = self.ids_of(node), self.texts_of(node)
        (columns,) = self.values_of(node, self.column_names)
        return Node(own_id, text, columns, tuple(self.ids_of(self.neighbors_of(int(node[0])))))

    def nodes_of(self, ids: Sequence[str]) -> Array:
        """The row numbers of some ids.

        Args:
            ids: The ids.

        Returns:
            (len(ids),) int64.

        Raises:
            UnknownIdError: A node is missing.
        """
        found = self.find_nodes(ids)
        unknown = np.flatnonzero(found < 0)
        if len(unknown):
            id = plain_ids(ids)[int(unknown[0])]
            raise UnknownIdError(
                f"no node with the id {id!r} in this graph of {self.num_nodes:,} nodes"
            )
        return found

    def node(self, id: str) -> int:
        """The row number of an id.

        Args:
            id: The id.

        Returns:
            The row number.

        Raises:
            UnknownIdError: There is no such node.
        """
        return int(self.nodes_of([id])[0])

    def text(self, id: str) -> str:
        """The text of a node.

        Args:
            id: The id of the node.

        Returns:
            The text.

        Raises:
            UnknownIdError: There is no such node.
        """
        return self.texts_of(self.nodes_of([id]))[0]

    def neighbors(self, id: str) -> list[str]:
        """The ids of the nodes linked to a node, in either direction.

        Args:
            id: The id of the node.

        Returns:
            The ids of its neighbours.

        Raises:
            UnknownIdError: There is no such node.
        """
        return self.ids_of(self.neighbors_of(self.node(id)))

    def is_linked(self, one: int, other: int) -> bool:
        """Whether two nodes are neighbours.

        Args:
            one: A row number.
            other: Another one.

        Returns:
            Whether there is a link between them, in either direction.
        """
        row = self.neighbors_of(one)
        place = int(np.searchsorted(row, other))
        return place < len(row) and bool(row[place] == other)


def _shown(value: object) -> str:
    return "" if value is None else str(value)


def plain_ids(ids: Iterable[object]) -> list[Any]:
    """Ids as Python values; scalars of Arrow are converted."""
    return [id.as_py() if isinstance(id, pa.Scalar) else id for id in ids]


def no_column(name: str, names: Sequence[str]) -> GraphFormersError:
    """The error for a column that a graph does not have."""
    return GraphFormersError(
        f"no node column {name!r} in this graph; it has: {', '.join(names) or 'none'}"
    )


def json_values(column: pa.Array) -> list[object]:
    """The values of a column as JSON has them.

    Times become texts, since Python has none in nanoseconds, and NaN becomes None.
    """
    if pa.types.is_duration(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.large_string())
    values = column.to_pylist()
    if pa.types.is_floating(column.type):
        return [value if value is not None and math.isfinite(value) else None for value in values]
    return list(values)
