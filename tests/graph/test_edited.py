"""EditedGraph beyond what every graph does, which test_protocol checks."""

import numpy as np
import pyarrow as pa
import pytest

from graphformers.errors import GraphFormersError
from graphformers.graph.edited import EditedGraph
from graphformers.graph.interop import build_graph
from graphformers.graph.protocol import Node
from tests.graph.test_protocol import check_content, small


def test_a_copy_of_an_edited_graph_can_be_edited_alone() -> None:
    graph = EditedGraph(small().build())
    other = graph.copy()
    other.remove_node(other.node("a"))
    other.add_nodes(pa.table({"id": ["new"], "text": ["three"], "month": [5]}))
    other.add_link(other.node("new"), other.node("b"), ("new", "b", None))
    other.add_link(other.node("n0"), other.node("b"), ("n0", "b", "cites"))
    other.remove_links(other.node("n0"), other.node("b"), "likes")
    assert not graph.is_edited
    check_content(graph, small())
    assert ("a" in other, other["new"].columns, len(other)) == (
        False,
        {"year": None, "month": 5},
        10,
    )
    assert other.column("month").to_pylist() == [None] * 10 + [5]
    assert (other.num_rows, other.removed_nodes.tolist()) == (11, [0])
    for wrong in (0, 11, -1):
        with pytest.raises(
            GraphFormersError, match=f"the node {wrong} given, expected row numbers"
        ):
            other.sample(np.array([wrong]))


def test_a_graph_whose_nodes_were_all_removed() -> None:
    graph = EditedGraph(build_graph([{"id": "a", "text": "one"}]))
    graph.remove_node(0)
    assert (len(graph), list(graph), graph.num_pairs, "a" in graph) == (0, [], 0, False)
    assert len(graph.freeze()) == 0
    assert graph.add_nodes(pa.table({"id": ["a"], "text": ["two"]})) == [1]
    assert graph["a"] == Node("a", "two", {}, ())
