"""What every `Graph` does, stored or edited: the same content gives the same answers."""

import html
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers.errors import GraphFormersError, UnknownIdError
from graphformers.graph.edited import UNTYPED, EditedGraph
from graphformers.graph.interop import build_graph, to_networkx, to_pyg
from graphformers.graph.protocol import Graph, Link, Node
from graphformers.graph.textgraph import TextGraph, loaded_graph

KINDS = (None, "cites", "likes")


@dataclass
class Content:
    """What a graph should hold: columns of nodes by id, and links with their times, if known."""

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    links: dict[Link, float] = field(default_factory=dict)

    def table(self, ids: list[str] | None = None) -> pa.Table:
        """Some of the nodes, or all, in order."""
        schema = {"id": pa.large_string(), "text": pa.large_string(), "year": pa.int64()}
        rows = [{"id": id, **self.nodes[id]} for id in ids or self.nodes]
        return pa.Table.from_pylist(rows, pa.schema(schema))

    def build(self) -> TextGraph:
        edges = {
            "source": [source for source, _, _ in self.links],
            "target": [target for _, target, _ in self.links],
            "type": pa.array([kind for *_, kind in self.links], pa.large_string()),
            "time": pa.array(self.links.values(), pa.float64()),
        }
        if not any(kind for *_, kind in self.links):
            del edges["type"]
        return build_graph(self.table(), edges, columns={"time": "time"})

    def is_linked(self, one: str, other: str) -> bool:
        return any({one, other} == {*link[:2]} for link in self.links)

    def neighbors(self, id: str) -> set[str]:
        return {end for link in self.links if id in link[:2] for end in link[:2]} - {id}


def random_content(random: Random, num_nodes: int = 12) -> Content:
    content = Content()
    for i in range(num_nodes):
        set_node(content, f"n{i}", random)
    for _ in range(2 * num_nodes):
        one, other = random.sample(list(content.nodes), 2)
        kind = random.choice(KINDS)
        # An edit adds no link without a type to nodes that are linked.
        if kind or not content.is_linked(one, other):
            content.links[one, other, kind] = random.randrange(1990, 2020)
    return content


def set_node(content: Content, id: str, random: Random) -> None:
    year = random.choice([None, 1999, 2024])
    content.nodes[id] = {"text": f"text {random.randrange(1000)}", "year": year}


def edited_to(goal: Content, random: Random) -> EditedGraph:
    """A graph of other content, edited at random until it holds `goal`.

    Added links have no times, so the times of `goal` that are reached by adding become NaN.
    """
    now = Content(
        {id: dict(row) for id, row in goal.nodes.items() if random.random() < 0.7},
        {},
    )
    for i in range(random.randrange(4)):
        set_node(now, f"old{i}", random)
    for id in list(now.nodes):
        if random.random() < 0.3:
            set_node(now, id, random)
    for link, time in goal.links.items():
        if random.random() < 0.6 and {*link[:2]} <= now.nodes.keys():
            now.links[link] = time
    for _ in range(random.randrange(8)):
        if len(now.nodes) > 1:
            one, other = random.sample(list(now.nodes), 2)
            now.links.setdefault((one, other, random.choice(KINDS)), 1980.0)
    if not now.nodes:
        set_node(now, "old", random)
    graph = EditedGraph(now.build())
    for _ in range(random.randrange(12)):
        graph = graph.copy() if random.random() < 0.2 else graph
        random_edit(graph, now, random)
    for id in [id for id in now.nodes if id not in goal.nodes]:
        remove_node(graph, now, id)
    # Row numbers are in the order of the nodes: what is out of order is removed and added again.
    order = [id for id in now.nodes if id in goal.nodes]
    for i, id in enumerate(goal.nodes):
        if order[i : i + 1] != [id]:
            for other in order[i:]:
                remove_node(graph, now, other)
            del order[i:]
            add_node(graph, now, id, goal.nodes[id])
            order.append(id)
        elif now.nodes[id] != goal.nodes[id]:
            add_node(graph, now, id, goal.nodes[id])
    for one, other in {tuple(sorted(link[:2])) for link in now.links}:
        wanted = {link for link in goal.links if {*link[:2]} == {one, other}}
        has = {link for link in now.links if {*link[:2]} == {one, other}}
        if has - wanted or any(kind is None for *_, kind in wanted - has):
            unlink(graph, now, one, other)
    # Links without a type are added between nodes that are not linked yet.
    for link in sorted(goal.links, key=lambda link: link[2] is not None):
        if link not in now.links:
            add_link(graph, now, link)
    for link in goal.links:
        goal.links[link] = now.links[link]
    assert now.nodes == goal.nodes
    assert now.links == goal.links or any(np.isnan([*goal.links.values()]))
    return graph


def random_edit(graph: EditedGraph, now: Content, random: Random) -> None:
    """One edit, of the graph and of what it should hold."""
    act, ids = random.randrange(5), list(now.nodes)
    if act == 0 or len(ids) < 2:
        id = random.choice([*ids, f"new{random.randrange(3)}", "n1"])
        kept = Content()
        set_node(kept, id, random)
        add_node(graph, now, id, kept.nodes[id])
        return
    one, other = random.sample(ids, 2)
    if act == 1:
        remove_node(graph, now, one)
    elif act == 2:
        add_link(graph, now, (one, other, random.choice(KINDS)))
    elif act == 3:
        unlink(graph, now, one, other)
    else:
        kinds = {link[2] for link in now.links if {*link[:2]} == {one, other}}
        if len(kinds) > 1:
            kind = random.choice(sorted(kinds, key=str))
            graph.remove_links(graph.node(one), graph.node(other), kind or UNTYPED)
            now.links = {
                link: time
                for link, time in now.links.items()
                if {*link[:2]} != {one, other} or link[2] != kind
            }


def add_node(graph: EditedGraph, now: Content, id: str, row: dict[str, Any]) -> None:
    now.nodes[id] = dict(row)
    (node,) = graph.add_nodes(now.table([id]))
    assert graph.node(id) == node


def remove_node(graph: EditedGraph, now: Content, id: str) -> None:
    around = graph.remove_node(graph.node(id))
    assert set(graph.ids_of(np.array(around, dtype=np.int64))) == now.neighbors(id)
    del now.nodes[id]
    now.links = {link: time for link, time in now.links.items() if id not in link[:2]}


def add_link(graph: EditedGraph, now: Content, link: Link) -> None:
    assert graph.has_links([link]) == [link[2] is not None and link in now.links]
    if link not in now.links and (link[2] or not now.is_linked(*link[:2])):
        graph.add_link(graph.node(link[0]), graph.node(link[1]), link)
        now.links[link] = np.nan


def unlink(graph: EditedGraph, now: Content, one: str, other: str) -> None:
    assert graph.unlink(graph.node(one), graph.node(other)) == now.is_linked(one, other)
    now.links = {link: t for link, t in now.links.items() if {*link[:2]} != {one, other}}


def check_content(graph: Graph, content: Content) -> None:
    """Compares every part of the protocol with the content, and with a graph made of it."""
    built = content.build()
    ids = list(content.nodes)
    nodes = graph.nodes_of(ids)
    # Nodes and row numbers.
    assert (len(graph), graph.num_nodes, graph.num_pairs) == (len(ids), len(ids), built.num_pairs)
    assert (list(graph), graph.ids_of(graph.nodes)) == (ids, ids)
    assert nodes.tolist() == sorted(nodes.tolist()) == graph.nodes.tolist()
    assert graph.num_rows > max(nodes.tolist())
    assert all(id in graph for id in ids)
    assert repr(graph).endswith(repr(built).removeprefix("TextGraph"))
    # Texts and columns.
    assert graph.texts_of(nodes) == [row["text"] for row in content.nodes.values()]
    assert (graph.column_names, graph.column_type("id")) == (["year"], pa.large_string())
    assert len(graph.column("year")) == graph.num_rows
    years = [row["year"] for row in content.nodes.values()]
    assert graph.column("year").take(pa.array(nodes)).to_pylist() == years
    assert graph.values_of(nodes, ["year"]) == [{"year": year} for year in years]
    # Neighbours and links.
    assert len(graph.degrees()) == graph.num_rows
    assert graph.degrees()[nodes].tolist() == built.degrees().tolist()
    assert graph.degrees().sum() == built.degrees().sum()
    for id, node in zip(ids, nodes.tolist(), strict=True):
        row = graph.neighbors_of(node)
        assert row.tolist() == sorted(row.tolist())
        assert set(graph.neighbors(id)) == content.neighbors(id)
        assert graph.neighbors(id) == built.neighbors(id)
        assert (graph.node(id), graph.text(id)) == (node, content.nodes[id]["text"])
        found = graph[id]
        assert (
            found
            == built[id]
            == Node(
                id, graph.text(id), {"year": content.nodes[id]["year"]}, tuple(graph.neighbors(id))
            )
        )
        for other, its in zip(ids, nodes.tolist(), strict=True):
            assert graph.is_linked(node, its) == (other in content.neighbors(id))
    pairs = [(one, other) for one in nodes.tolist() for other in nodes.tolist() if one < other]
    for (one, other), links in zip(pairs, graph.links_between(pairs), strict=True):
        ends = {*graph.ids_of(np.array([one, other]))}
        assert set(links) == {link for link in content.links if {*link[:2]} == ends}
        assert graph.links_between([(other, one)]) == [links]
    # Samples depend on ids only.
    for num_neighbors, seed in ((2, 42), (5, 1), (0, 3)):
        mine, own = (
            graph.sample(nodes, num_neighbors, seed),
            built.sample(built.nodes, num_neighbors, seed),
        )
        assert graph.ids_of(mine.neighbors) == built.ids_of(own.neighbors)
        assert mine.indptr.tolist() == own.indptr.tolist()
    # Arrays.
    frozen = graph.freeze()
    assert isinstance(frozen, TextGraph)
    assert frozen.table.equals(built.table)
    for name in ("id_hashes", "indptr", "indices"):
        assert np.array_equal(getattr(frozen, name), getattr(built, name))
    assert edges_of(frozen) == {
        (*link, None if np.isnan(time) else time) for link, time in content.links.items()
    }
    check_unknown(graph)


def edges_of(graph: TextGraph) -> set[tuple[str, str, str | None, float | None]]:
    """Directed edges with their types and times."""
    count = graph.edges.shape[1]
    codes = np.full(count, -1) if graph.edge_types is None else graph.edge_types
    kinds = [graph.type_names[code] or None if code >= 0 else None for code in codes.tolist()]
    times = np.full(count, np.nan) if graph.edge_times is None else graph.edge_times
    known = [None if np.isnan(time) else time for time in times.tolist()]
    found = list(zip(*map(graph.ids_of, graph.edges), kinds, known, strict=True))
    assert len(found) == len(set(found))
    return set(found)


def check_unknown(graph: Graph) -> None:
    """Unknown ids, columns and row numbers are errors of one kind each."""
    assert "nobody" not in graph
    assert 3 not in graph
    assert "half \ud83d" not in graph
    assert pa.scalar("nobody") not in graph
    assert graph.find_nodes(["nobody", "half \ud83d", ""]).tolist() == [-1, -1, -1]
    assert graph.find_nodes([]).tolist() == []
    acts: list[Callable[[], object]] = [
        lambda: graph["nobody"],
        lambda: graph.node("nobody"),
        lambda: graph.text("nobody"),
        lambda: graph.neighbors("nobody"),
        lambda: graph.nodes_of(["nobody"]),
    ]
    for act in acts:
        with pytest.raises(
            UnknownIdError, match=f"the id 'nobody' in this graph of {len(graph)} nodes"
        ):
            act()
    with pytest.raises(KeyError):
        graph["nobody"]
    with pytest.raises(GraphFormersError, match="the id 7 is a int, ids are strings: '7'"):
        graph.find_nodes([7])  # type: ignore[list-item]
    for name in ("month", "text"):
        with pytest.raises(
            GraphFormersError, match=f"no node column '{name}' in this graph; it has: year"
        ):
            graph.column(name)
    assert graph.column_type("month") is None
    for wrong in ([-1], [graph.num_rows]):
        with pytest.raises(
            GraphFormersError, match=f"the node {wrong[0]} given, expected row numbers"
        ):
            graph.sample(np.array(wrong))
    with pytest.raises(GraphFormersError, match=r"graph\.nodes_of"):
        graph.sample(np.array(["p1"]))


def stored(content: Content, random: Random) -> Graph:
    return content.build()


def loaded(content: Content, random: Random) -> Graph:
    with TemporaryDirectory() as folder:
        return content.build().save(Path(folder) / "g.graph")


def untouched(content: Content, random: Random) -> Graph:
    return EditedGraph(content.build())


@pytest.mark.parametrize("make", [stored, loaded, untouched, edited_to])
@settings(max_examples=60, deadline=None)
@given(random=st.randoms(use_true_random=False), num_nodes=st.integers(2, 9))
def test_the_same_content_gives_the_same_answers(
    make: Callable[[Content, Random], Graph], random: Random, num_nodes: int
) -> None:
    content = random_content(random, num_nodes)
    check_content(make(content, random), content)


def small() -> Content:
    nodes = {
        "a": {"text": "one <b>", "year": 1999},
        "b": {"text": ("two " * 40).strip(), "year": None},
        **{f"n{i}": {"text": f"text {i}", "year": 2000 + i} for i in range(8)},
    }
    links: dict[Link, float] = {("a", "b", "cites"): 2001.0, ("b", "a", None): np.nan}
    return Content(nodes, links | {(f"n{i}", "b", "likes"): np.nan for i in range(8)})


@pytest.mark.parametrize("make", [stored, loaded, untouched, edited_to])
def test_a_graph_and_its_nodes_are_shown(make: Callable[[Content, Random], Graph]) -> None:
    graph = make(small(), Random(1))
    kind = type(graph).__name__
    assert repr(graph) == f"{kind}(10 nodes, 9 linked pairs)"
    assert (
        repr(graph["a"]) == "Node(id='a', text='one <b>', columns={'year': 1999}, neighbors=['b'])"
    )
    shown = repr(graph["b"])
    assert shown.endswith(
        "columns={'year': None}, neighbors=['a', 'n0', 'n1', 'n2', 'n3', … 4 more])"
    )
    assert len(shown) < 200
    table = graph._repr_html_()
    assert f"{kind}(10 nodes, 9 linked pairs)" in table
    assert "<th>id</th><th>text</th><th>year</th>" in table
    assert "<td>1999</td>" in table
    assert "one <b>" not in table
    assert html.escape("one <b>") in table
    assert "<td>9: a, n0, n1, n2, n3 …</td>" in graph["b"]._repr_html_()


@pytest.mark.parametrize("make", [stored, loaded, untouched, edited_to])
def test_other_libraries_take_every_graph(make: Callable[[Content, Random], Graph]) -> None:
    content = small()
    graph = make(content, Random(2))
    other = to_networkx(graph)
    assert list(other.nodes) == list(content.nodes)
    assert {
        (one, two, data["type"] or None) for one, two, data in other.edges(data=True)
    } == content.links.keys()
    assert to_pyg(graph).id == list(content.nodes)
    assert loaded_graph(graph).ids.to_pylist() == list(content.nodes)
