"""Edits of a graph, and the one function that applies them.

Whoever changes a store (Python, files, HTTP) makes `Edits`; `apply` tries them on a copy of the
graph and returns what each of them did. Reports and answers are made of that.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from graphformers.errors import InputError
from graphformers.graph.builder import MAX_TYPES
from graphformers.graph.columns import OURS, python_values
from graphformers.graph.edited import UNTYPED, EditedGraph
from graphformers.graph.problems import Place, format_place, skipping
from graphformers.graph.protocol import Link

NO_NODES = pa.table(
    {"id": pa.array([], pa.large_string()), "text": pa.array([], pa.large_string())}
)


@dataclass(frozen=True)
class Edits:
    """What is to change. Nothing refers to the same thing twice with different meanings.

    Attributes:
        nodes: The columns id, text and others of new and changed nodes.
        links: New links.
        removed: Ids of nodes to remove.
        unlinked: Links to remove, either way: of that type, UNTYPED, or (None) all of a pair.
        where: The place of each link, for messages.
        unread: Columns of a file of links that mean nothing here.
        skipped: Number of rows that were left out, by what is wrong with them.
        dropped: Columns of a file of nodes that are not kept, as they were not at the import.
    """

    nodes: pa.Table = field(default_factory=lambda: NO_NODES)
    links: tuple[Link, ...] = ()
    removed: tuple[str, ...] = ()
    unlinked: tuple[Link, ...] = ()
    where: tuple[Place, ...] = ()
    unread: tuple[str, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    def check(self, graph: EditedGraph) -> None:
        """Refuses what contradicts itself, and links to nodes that will not be there."""
        given = self.nodes["id"].to_pylist()
        both = sorted(set(given) & set(self.removed))
        if both:
            raise InputError(
                f"the id {both[0]!r} is both to be removed and given as a node; make that two "
                f"updates, one by one"
            )
        linked: dict[frozenset[str], set[str | None]] = {}
        for link in self.links:
            linked.setdefault(frozenset(link[:2]), set()).add(link[2])
        for one, other, kind in self.unlinked:
            kinds = linked.get(frozenset((one, other)))
            if kinds and (kind is None or None in kinds or kind in kinds):
                raise InputError(
                    f"the link of {one!r} and {other!r} is both given and to be removed; make that "
                    f"two updates"
                )
        if _too_many_types(self.links, graph):
            raise InputError(
                f"more than {MAX_TYPES:,} types of links; is the right column used as the type?"
            )
        lost = lost_ends(self.links, graph, set(given), set(self.removed))
        if lost:
            i, end = lost[0]
            place = self.where[i] if self.where else (Path("links"), f"row {i + 1}")
            raise UnknownEndError(
                place, end, is_removed=end in self.removed, advice=skipping() if self.where else ""
            )


class UnknownEndError(InputError):
    """A link to a node that will not be there.

    Args:
        place: Where the link is given.
        end: The id.
        is_removed: Whether the same edits remove the node.
        advice: What else can be done with the link.
    """

    def __init__(self, place: Place, end: str, *, is_removed: bool, advice: str) -> None:
        words = "expected the id of a node" + (f" ({advice})" if advice else "")
        if is_removed:
            words = "which the same changes remove; leave out the link, or keep the node"
        super().__init__(f"{format_place(place)}: a link to {end!r}, {words}")
        self.end = end


class Outcome(Enum):
    """What an edit did."""

    # A node or a link that was not there.
    NEW = "new"
    # A node with another text or other columns than before.
    CHANGED = "changed"
    # Nothing, because it was so before.
    SAME = "same"
    # Nothing: a link from a node to itself.
    SELF_LINK = "self_link"
    REMOVED = "removed"
    # Nothing: there is no such node or link.
    NOT_THERE = "not_there"
    # Nothing: a link to remove, whose ends have links of other types only.
    OTHERWISE = "otherwise"


@dataclass(frozen=True)
class EditResult:
    """What edits did: an outcome for each, in the order in which they were given.

    Attributes:
        graph: The graph afterwards.
        nodes: Of each node.
        links: Of each link.
        removed: Of each node to remove.
        unlinked: Of each link to remove.
        num_unlinked: Number of links that are gone.
        unknown: Ids to remove, or of ends of links to remove, that no node has.
        new_columns: Columns that no node had before.
        reread: Nodes whose text is new.
        touched: Nodes whose sampled neighbours may have changed.
    """

    graph: EditedGraph
    nodes: tuple[Outcome, ...]
    links: tuple[Outcome, ...]
    removed: tuple[Outcome, ...]
    unlinked: tuple[Outcome, ...]
    num_unlinked: int
    unknown: tuple[str, ...]
    new_columns: tuple[str, ...]
    reread: frozenset[int]
    touched: frozenset[int]

    @property
    def counts(self) -> Counter[Outcome]:
        """The number of edits by outcome."""
        return Counter((*self.nodes, *self.links, *self.removed, *self.unlinked))

    @property
    def is_nothing(self) -> bool:
        """Whether the graph is as before."""
        return self.counts.keys().isdisjoint({Outcome.NEW, Outcome.CHANGED, Outcome.REMOVED})


def apply(edits: Edits, before: EditedGraph) -> EditResult:
    """Applies edits to a copy of a graph: removals of nodes first, then nodes, then removals of
    links, then links.

    Args:
        edits: What is to change.
        before: The graph, which does not change.

    Returns:
        What each edit did, and the graph afterwards.

    Raises:
        InputError: Edits contradict each other, or a link leads to a node that will not be there.

    Example:
        >>> graph = EditedGraph(TextGraph.load("papers.graph"))
        >>> result = apply(Edits(removed=("p7", "nobody")), graph)
        >>> [outcome.name for outcome in result.removed]
        ['REMOVED', 'NOT_THERE']
    """
    edits.check(before)
    graph, touched, reread = before.copy(), set[int](), set[int]()
    removed = []
    for node in graph.find_nodes(edits.removed).tolist():
        removed.append(Outcome.NOT_THERE if node < 0 else Outcome.REMOVED)
        if node >= 0:
            touched.update(graph.remove_node(node))
    nodes = _put_nodes(edits.nodes, graph, reread)
    unlinked, num_unlinked = _unlink(edits.unlinked, graph, touched)
    links = _link(edits.links, graph, touched)
    for node in reread:
        touched.add(node)
        touched.update(graph.neighbors_of(node).tolist())
    known, given = {*before.column_names, *OURS}, {*edits.nodes["id"].to_pylist()}
    sought = dict.fromkeys([*edits.removed, *(end for link in edits.unlinked for end in link[:2])])
    numbers = before.find_nodes(list(sought)).tolist()
    return EditResult(
        graph=graph,
        nodes=nodes,
        links=links,
        removed=tuple(removed),
        unlinked=unlinked,
        num_unlinked=num_unlinked,
        unknown=tuple(
            id for id, node in zip(sought, numbers, strict=True) if node < 0 and id not in given
        ),
        new_columns=tuple(name for name in edits.nodes.column_names if name not in known),
        reread=frozenset(reread),
        touched=frozenset(touched),
    )


def lost_ends(
    links: Sequence[Link], graph: EditedGraph, given: Collection[str], removed: Collection[str]
) -> list[tuple[int, str]]:
    """The ends of links that will be no nodes: the number of the link, and the id."""
    return [
        (i, end)
        for i, (link, nodes) in enumerate(zip(links, graph.find_ends(links).tolist(), strict=True))
        for end, node in zip(link[:2], nodes, strict=True)
        if end in removed or (node < 0 and end not in given)
    ]


def _too_many_types(links: Iterable[Link], graph: EditedGraph) -> bool:
    """Whether these links bring more types than a graph can number."""
    given = {kind for _, _, kind in links if kind is not None}
    if given <= set(graph.base.type_names):
        return False
    known = graph.link_types()
    return not given <= known and len(given | known) > MAX_TYPES


def _put_nodes(nodes: pa.Table, graph: EditedGraph, reread: set[int]) -> tuple[Outcome, ...]:
    """Adds and changes nodes; `reread` gets those whose text is new."""
    if not len(nodes):
        return ()
    numbers = graph.find_nodes(nodes["id"].to_pylist()).tolist()
    known = [graph.fields(node) if node >= 0 else {} for node in numbers]
    nodes = _completed(nodes, known, graph.types_of([node for node in numbers if node >= 0]))
    given = {name: python_values(nodes[name]) for name in nodes.column_names}
    outcomes, rows = [], []
    for row, own in enumerate(known):
        is_same = not any(_differ(own.get(name), values[row]) for name, values in given.items())
        outcomes.append(Outcome.NEW if not own else Outcome.SAME if is_same else Outcome.CHANGED)
        if not is_same:
            rows.append(row)
    put = nodes.take(pa.array(rows, pa.int64())).combine_chunks()
    for node, row in zip(graph.add_nodes(put), rows, strict=True):
        if known[row].get("text") != given["text"][row]:
            reread.add(node)
    return tuple(outcomes)


def _link(links: Sequence[Link], graph: EditedGraph, touched: set[int]) -> tuple[Outcome, ...]:
    """Adds links; `touched` gets the nodes that gain a neighbour."""
    outcomes, added = [], set[Link]()
    ends = graph.find_ends(links).tolist()
    for (one, other), link, is_there in zip(ends, links, graph.has_links(links), strict=True):
        is_linked = graph.is_linked(one, other)
        if one == other:
            outcomes.append(Outcome.SELF_LINK)
        # A link without a type says nothing more of a linked pair.
        elif is_there or link in added or (is_linked and link[2] is None):
            outcomes.append(Outcome.SAME)
        else:
            graph.add_link(one, other, link)
            added.add(link)
            outcomes.append(Outcome.NEW)
            if not is_linked:
                touched.update((one, other))
    return tuple(outcomes)


def _unlink(
    asked: Sequence[Link], graph: EditedGraph, touched: set[int]
) -> tuple[tuple[Outcome, ...], int]:
    """Removes links; `touched` gets the nodes that lose a neighbour.

    Returns:
        Outcomes, and the number of links that are gone.
    """
    outcomes: dict[Link, Outcome] = dict.fromkeys(asked, Outcome.NOT_THERE)
    by_pair: dict[tuple[int, int], list[Link]] = {}
    number = 0
    for link, (one, other) in zip(outcomes, graph.find_ends(outcomes).tolist(), strict=True):
        if min(one, other) >= 0 and graph.is_linked(one, other):
            by_pair.setdefault((min(one, other), max(one, other)), []).append(link)
    have = graph.links_between(list(by_pair))
    for ((one, other), links), own in zip(by_pair.items(), have, strict=True):
        there = Counter(kind or UNTYPED for _, _, kind in own)
        gone: set[str] = set()
        for link in links:
            is_met = link[2] is None or link[2] in there
            outcomes[link] = Outcome.REMOVED if is_met else Outcome.OTHERWISE
            if is_met:
                gone |= set(there) if link[2] is None else {link[2]}
        number += sum(there[kind] for kind in gone)
        if gone and gone == set(there):
            graph.unlink(one, other)
            touched.update((one, other))
            continue
        for kind in sorted(gone):
            graph.remove_links(one, other, kind)
    seen: set[Link] = set()
    listed = []
    for link in asked:
        is_again = link in seen and outcomes[link] is Outcome.REMOVED
        listed.append(Outcome.SAME if is_again else outcomes[link])
        seen.add(link)
    return tuple(listed), number


def _differ(one: object, other: object) -> bool:
    """Whether two values are different; what is no number is not different from itself here, also
    inside of lists.
    """
    return bool(one != other) and repr(one) != repr(other)


def _completed(
    nodes: pa.Table, known: list[dict[str, object]], types: Mapping[str, pa.DataType]
) -> pa.Table:
    """What is not said of a node that is there stays: columns that are not given, or have no value.

    `known` are the fields that nodes have, `types` what their columns hold.
    """
    for name, kind in types.items():
        own = pa.array([fields.get(name) for fields in known], kind)
        if name not in nodes.column_names:
            nodes = nodes.append_column(name, own)
        elif nodes[name].null_count:
            place = nodes.column_names.index(name)
            nodes = nodes.set_column(place, name, pc.coalesce(nodes[name].cast(own.type), own))
    return nodes
