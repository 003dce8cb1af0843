"""Adamic–Adar against sums over all common neighbours, and what is left out at hubs."""

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphformers.graph.common_neighbors import adamic_adar, counted_neighbors
from graphformers.graph.edited import EditedGraph
from graphformers.graph.interop import build_graph
from graphformers.graph.protocol import Graph
from tests.conftest import make_graph
from tests.graph.test_protocol import random_content


def naive(graph: Graph, one: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for middle in graph.neighbors_of(one).tolist():
        for other in graph.neighbors_of(middle).tolist():
            degree = len(graph.neighbors_of(middle))
            found[other] = found.get(other, 0.0) + 1 / math.log(max(degree, 2))
    return found


def check(graph: Graph) -> None:
    for node in graph.nodes.tolist():
        nodes, sums = adamic_adar(counted_neighbors(graph, node), graph.neighbors_of)
        expected = naive(graph, node)
        assert nodes.tolist() == sorted(expected)
        assert sums == pytest.approx([expected[other] for other in nodes.tolist()], rel=1e-6)


@given(st.integers(0, 10_000))
def test_it_is_the_sum_over_all_common_neighbors(seed: int) -> None:
    graph = random_content(Random(seed)).build()
    check(graph)
    edited = EditedGraph(graph)
    draw = Random(seed)
    edited.remove_node(draw.choice(edited.nodes.tolist()))
    one, other = draw.sample(edited.nodes.tolist(), 2)
    if edited.is_linked(one, other):
        edited.unlink(one, other)
    else:
        ids = edited.ids_of(np.array([one, other]))
        edited.add_link(one, other, (ids[0], ids[1], None))
    check(edited)


def test_neighbors_with_few_links_are_followed_first() -> None:
    """x has the neighbours a, b, c with 2, 3 and 6 links."""
    ids = ["x", "a", "b", "c", *(f"n{i}" for i in range(8))]
    links = [("x", "a"), ("x", "b"), ("x", "c"), ("a", "n0"), ("b", "n0"), ("b", "n1")]
    links += [("c", f"n{i}") for i in range(2, 7)]
    graph = build_graph([{"id": id, "text": id} for id in ids], links)
    x = graph.node("x")
    for most, expected in [(20, 8), (11, 8), (10, 3), (4, 2), (1, 0)]:
        nodes, sums = adamic_adar(graph.neighbors_of(x), graph.neighbors_of, most)
        assert len(nodes) == len(sums) == expected
    nodes, sums = adamic_adar(graph.neighbors_of(x), graph.neighbors_of, 5)
    assert graph.ids_of(nodes) == ["x", "n0", "n1"]
    assert sums.tolist() == pytest.approx(
        [1 / math.log(2) + 1 / math.log(3)] * 2 + [1 / math.log(3)], rel=1e-6
    )


def test_many_neighbors_are_sampled_by_their_ids() -> None:
    graph = make_graph(60, 400)
    order = np.random.default_rng(0).permutation(60)
    nodes = [{"id": graph.ids_of(order[[i]])[0], "text": "x"} for i in range(60)]
    pairs = [tuple(graph.ids_of(pair)) for pair in graph.pairs()]
    other = build_graph(nodes, pairs)
    hub = graph.ids_of(np.argsort(graph.degrees())[-1:])[0]
    for each in (graph, other, EditedGraph(other)):
        counted = counted_neighbors(each, each.node(hub), 5)
        assert len(counted) == 5
        assert (np.diff(counted) > 0).all()
        assert sorted(each.ids_of(counted)) == sorted(
            graph.ids_of(counted_neighbors(graph, graph.node(hub), 5))
        )
