import json
import random
from pathlib import Path

import networkx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers.errors import GraphFormersError, InputError
from graphformers.graph.describe import describe_graph
from graphformers.graph.interop import build_graph, from_networkx, from_pyg, to_networkx, to_pyg
from graphformers.graph.textgraph import TextGraph


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=60))
def test_neighbours_are_those_of_a_naive_graph(
    num_nodes: int, drawn: list[tuple[int, int]]
) -> None:
    edges = [(a % num_nodes, b % num_nodes) for a, b in drawn]
    graph = build_graph(
        pa.table({"id": [f"n{i}" for i in range(num_nodes)], "text": ["words"] * num_nodes}),
        [(f"n{a}", f"n{b}") for a, b in edges],
    )
    linked: dict[int, set[int]] = {i: set() for i in range(num_nodes)}
    for a, b in edges:
        if a != b:
            linked[a].add(b)
            linked[b].add(a)
    for node in range(num_nodes):
        assert graph.neighbors_of(node).tolist() == sorted(linked[node])
        assert graph.neighbors(f"n{node}") == [f"n{other}" for other in sorted(linked[node])]
    assert graph.edges.T.tolist() == [list(edge) for edge in edges]
    assert {tuple(pair) for pair in graph.pairs().tolist()} == {
        (a, b) for a in linked for b in linked[a] if a < b
    }
    assert graph.num_pairs == len(graph.pairs())


def test_a_saved_graph_is_the_same(graph: TextGraph, tmp_path: Path) -> None:
    saved = graph.save(tmp_path / "a.graph")
    assert saved.table.equals(graph.table)
    for name in ("id_hashes", "indptr", "indices", "edges", "edge_types"):
        assert np.array_equal(getattr(saved, name), getattr(graph, name))
    assert saved.type_names == graph.type_names
    assert saved.texts.type == pa.large_string()
    assert saved.table["text"].num_chunks == 1
    with pytest.raises(ValueError, match="read-only"):
        saved.indices[0] = 1
    assert graph.artifact is None
    assert saved.artifact is not None
    again = graph.save(tmp_path / "b.graph")
    assert again.artifact is not None
    assert again.artifact.fingerprint == saved.artifact.fingerprint


def test_ids_are_found(graph: TextGraph) -> None:
    ids = graph.ids.to_pylist()
    order = random.Random(3).sample(range(len(ids)), len(ids))
    assert graph.nodes_of([ids[i] for i in order]).tolist() == order
    assert graph.text(ids[7]) == graph.texts[7].as_py()
    assert graph.nodes_of([]).tolist() == []
    with pytest.raises(GraphFormersError, match="no node with the id 'nobody'"):
        graph.nodes_of([ids[0], "nobody", ids[1]])


def test_ids_with_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("builder", "textgraph"):
        monkeypatch.setattr(
            f"graphformers.graph.{module}.hash_strings",
            lambda strings: np.array([len(s) for s in strings], dtype=np.uint64),
        )
    graph = build_graph(
        pa.table({"id": ["aa", "b", "cc", "dd"], "text": ["w"] * 4}), [("aa", "dd")]
    )
    assert graph.nodes_of(["dd", "cc", "b", "aa"]).tolist() == [3, 2, 1, 0]
    with pytest.raises(GraphFormersError, match="'ee'"):
        graph.node("ee")


def test_networkx_there_and_back(graph: TextGraph) -> None:
    other = to_networkx(graph)
    assert other.number_of_edges() == graph.edges.shape[1]
    assert other.nodes[graph.ids[3].as_py()] == {
        "text": graph.texts[3].as_py(),
        "year": graph.column("year")[3].as_py(),
    }
    back = from_networkx(other)
    assert back.table.equals(graph.table)
    assert np.array_equal(back.indices, graph.indices)
    assert sorted(back.type_names) == sorted(graph.type_names)


def test_networkx_without_text_is_refused() -> None:
    other = networkx.Graph()
    other.add_node("a", title="A title")
    with pytest.raises(InputError, match="no attribute 'text'"):
        from_networkx(other)
    assert from_networkx(other, text="title").text("a") == "A title"
    named = from_networkx(other, text=["Another title"])
    assert (named.text("a"), named.column("title").to_pylist()) == ("Another title", ["A title"])
    with pytest.raises(InputError, match="text=list of 2 texts for the 1 nodes of this networkx"):
        from_networkx(other, text=["one", "two"])


def test_networkx_texts_by_node() -> None:
    graph = networkx.Graph([(1, 2)])
    assert from_networkx(graph, text={2: "two", 1: "one"}).texts.to_pylist() == ["one", "two"]
    with pytest.raises(InputError, match="without a text for the node 2"):
        from_networkx(graph, text={1: "one"})
    for text in (None, str, 5):
        with pytest.raises(InputError, match="expected the name of an attribute, or a list"):
            from_networkx(graph, text=text)  # type: ignore[arg-type]
    graph.add_node("1")
    with pytest.raises(InputError, match=r"nodes 1 and '1' have the same id .*relabel_nodes"):
        from_networkx(graph, text=["one", "two", "three"])
    with pytest.raises(InputError, match="expected a graph of networkx"):
        from_networkx([1, 2])  # type: ignore[arg-type]


def test_a_networkx_node_without_a_text_names_its_attributes() -> None:
    graph = networkx.Graph()
    graph.add_node("a", title="Apple", words=["a", "b"])
    with pytest.raises(InputError, match="its attributes: 'title', 'words'"):
        from_networkx(graph)
    with pytest.raises(InputError, match="no attribute 'words' with a text"):
        from_networkx(graph, text="words")


def test_networkx_nodes_without_a_text_are_kept() -> None:
    graph = networkx.Graph([(1, 2)])
    graph.add_node(1, title="one")
    advice = "; keep_empty=True keeps nodes without a text"
    for text in ("title", {1: "one"}, ["one", " "]):
        with pytest.raises(InputError, match=rf"\b2\b.*{advice}$"):
            from_networkx(graph, text=text)
        found = from_networkx(graph, text=text, keep_empty=True)
        assert (found.texts.to_pylist(), found.num_pairs) == (["one", ""], 1)
    graph.add_node(2, title=float("nan"))
    with pytest.raises(InputError, match=r"no attribute 'title' with a text, but nan; its attri"):
        from_networkx(graph, text="title")
    data = to_pyg(from_networkx(graph, text="title", keep_empty=True))
    with pytest.raises(InputError, match=rf"the text of node '2' is empty.*{advice}$"):
        from_pyg(data)
    assert from_pyg(data, keep_empty=True).texts.to_pylist() == ["one", ""]


def test_networkx_attributes_of_any_kind() -> None:
    other = networkx.DiGraph()
    other.add_node(1, title="First", text="other", id=7)
    other.add_node(2, title="Second", year=1999, mixed="x")
    other.add_node(3, title="Third", mixed=3)
    other.add_edge(1, 2, type=5)
    other.add_edge(2, 3)
    found = from_networkx(other, text="title")
    assert found.texts.to_pylist() == ["First", "Second", "Third"]
    kept = {name: found.column(name).to_pylist() for name in found.column_names}
    assert kept == {
        "text_": ["other", None, None],
        "id_": [7, None, None],
        "year": [None, 1999, None],
        "mixed": [None, "x", "3"],
    }
    assert found.type_names == ("5", "")
    with pytest.raises(
        InputError, match="the networkx graph has no nodes, expected at least one with a text"
    ):
        from_networkx(networkx.Graph())


def test_pyg_there_and_back(graph: TextGraph) -> None:
    data = to_pyg(graph)
    assert data.validate()
    assert not data.has_self_loops()
    assert data.is_undirected()
    back = from_pyg(data)
    assert np.array_equal(back.indices, graph.indices)
    assert back.texts.equals(graph.texts)
    assert back.ids.equals(graph.ids)
    with pytest.raises(InputError, match="1 texts for the 200 nodes"):
        from_pyg(data, text=["one"])


def test_pyg_keeps_columns_directions_and_types() -> None:
    import torch

    nodes = pa.table(
        {
            "id": ["a", "b", "c"],
            "text": ["x", "y", "z"],
            "year": [1, 2, 3],
            "edge_attr": ["p", None, "q"],
            "edge_attr_": [4, 5, 6],
        }
    )
    nodes = nodes.append_column("known", pa.array([True, False, True])).append_column(
        "part", pa.array([0.5, None, 1.0])
    )
    typed = build_graph(nodes, [("a", "b", "cites"), ("a", "c", "likes"), ("c", "a", "cites")])
    data = to_pyg(typed, directed=True)
    assert data.validate()
    assert data.year.tolist() == [1, 2, 3]
    assert data.known.dtype == torch.bool
    assert (data.part, data["edge_attr__"]) == ([0.5, None, 1.0], ["p", None, "q"])
    assert data["edge_attr_"].tolist() == [4, 5, 6]
    back = from_pyg(data)
    assert np.array_equal(back.edges, typed.edges)
    assert [back.type_names[code] for code in back.edge_types] == ["cites", "likes", "cites"]
    kept = {name: back.column(name).to_pylist() for name in back.column_names}
    assert kept == {
        "year": [1, 2, 3],
        "known": [True, False, True],
        "part": [0.5, None, 1.0],
        "edge_attr_": [4, 5, 6],
        "edge_attr__": ["p", None, "q"],
    }
    data.x = torch.zeros(3, 8)
    assert from_pyg(data).column_names == back.column_names  # a matrix is no column


def test_pyg_that_is_not_as_expected() -> None:
    import torch
    from torch_geometric.data import Data, HeteroData

    texts = ["a", "b", "c"]
    named = Data(
        edge_index=torch.tensor([[0, 1], [1, 2]]),
        num_nodes=3,
        id=torch.tensor([5, 6, 7]),
        text=texts,
    )
    named.edge_type = torch.tensor([1, 0])
    found = from_pyg(named)
    assert (found.ids.to_pylist(), found.type_names, found.num_pairs) == (
        ["5", "6", "7"],
        ("1", "0"),
        2,
    )
    assert from_pyg(Data(num_nodes=3, text=texts)).num_pairs == 0
    titled = from_pyg(Data(num_nodes=3, title=texts, text=["x", "y", "z"]), text="title")
    assert (titled.texts.to_pylist(), titled.column_names) == (texts, ["text_"])
    listed = from_pyg(Data(num_nodes=3, title=texts, text=["x", "y", "z"]), text=texts)
    assert (listed.texts.to_pylist(), listed.column_names) == (texts, ["title"])
    with pytest.raises(InputError, match="no attribute 'title'; pass text=… with the name"):
        from_pyg(Data(num_nodes=3, text=texts), text="title")
    for wrong in (-1, 3):
        with pytest.raises(
            InputError, match=f"an edge of node {wrong} in edge_index, expected 0 to 2"
        ):
            from_pyg(Data(edge_index=torch.tensor([[0, wrong], [1, 2]]), num_nodes=3, text=texts))
    with pytest.raises(InputError, match="1 ids for the 3 nodes"):
        from_pyg(Data(num_nodes=3, text=texts, id=["x"]))
    with pytest.raises(InputError, match="the text of node '1' is empty"):
        from_pyg(Data(num_nodes=2, text=["a", float("nan")]))
    with pytest.raises(InputError, match="a HeteroData given, expected a Data"):
        from_pyg(HeteroData(), text=texts)


class Stream:
    """What DataFrames of several libraries have in common."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


ROWS = [{"id": 1, "text": "one", "year": 1990}, {"id": 2, "text": "two", "year": None}]


@pytest.mark.parametrize(
    "nodes",
    [
        ROWS,
        {"id": [1, 2], "text": ["one", "two"], "year": [1990, None]},
        pa.Table.from_pylist(ROWS),
        Stream(pa.Table.from_pylist(ROWS).append_column("__index_level_0__", [[7, 8]])),
    ],
    ids=["list of dicts", "dict of lists", "table", "stream"],
)
def test_graphs_from_memory_come_in_many_forms(nodes: object) -> None:
    columns = [
        ([1], [2]),
        (np.array([1]), np.array([2])),
        (["1"], ["2"]),
        (pa.array([1]), pa.array([2])),
    ]
    tables = [{"source": one, "target": other, "type": [3]} for one, other in columns]
    records = [{"from": 1, "to": 2, "relation": 3}]
    for edges in (
        *tables,
        records,
        pa.Table.from_pylist(records),
        [(1, 2, 3)],
        np.array([[1, 2, 3]]),
    ):
        found = build_graph(nodes, edges)
        assert (found.ids.to_pylist(), found.num_pairs, found.type_names) == (["1", "2"], 1, ("3",))
        assert found.column("year").to_pylist() == [1990, None]
    assert build_graph(nodes, [(1, 2), (2, 1, "cites")]).type_names == ("", "cites")
    assert build_graph(nodes).num_pairs == 0
    assert build_graph(nodes, []).num_pairs == 0


def test_columns_in_memory_are_recognised_as_in_files() -> None:
    nodes = {"key": ["a", "b"], "title": ["One", "Two"], "abstract": ["x", ""], "id_": [1, 2]}
    edges = {"citing": ["a"], "cited": ["b"], "year": [1999], "weight": [0.5]}
    graph = build_graph(nodes, edges)
    assert (graph.ids.to_pylist(), graph.texts.to_pylist()) == (["a", "b"], ["One", "Two"])
    assert graph.column_names == ["abstract", "id_"]
    assert graph.edge_times is None
    assert graph.summary["edge_columns_not_kept"] == ["year", "weight"]
    assert graph.summary["other_texts"] == {"title": ["abstract"]}
    columns = {"text": "title,abstract", "time": "year", "type": "weight"}
    graph = build_graph(nodes, edges, columns=columns)
    assert graph.texts.to_pylist() == ["One. x", "Two"]
    assert (graph.edge_times.tolist(), graph.type_names) == ([1999.0], ("0.5",))
    assert graph.summary["read_as"] == {"columns": {"text": "title,abstract", "type": "weight"}}
    with pytest.raises(
        InputError, match=r"columns=\{'src': 'from'\} given, but there are no edges"
    ):
        build_graph(nodes, columns={"src": "from"})
    with pytest.raises(InputError, match=r"columns=\{'user': 'who'\} given, expected the roles"):
        build_graph(nodes, columns={"user": "who"})
    with pytest.raises(GraphFormersError, match="no column role 'txt'"):
        build_graph(nodes, columns={"txt": "title"})


def test_graphs_from_memory_that_are_wrong() -> None:
    wrong: list[tuple[tuple[object, ...], str]] = [
        (([{"id": 1}],), r"nodes.*no column for text .* among: id"),
        ((ROWS, {"source": [1], "target": []}), r"edges given that are not a table .*length 1"),
        ((ROWS, {"source": [1], "target": [2], "type": []}), "edges given that are not a table"),
        ((ROWS, {"source": [1]}), r"edges.*no column for dst .* among: source"),
        ((ROWS, {"source": [[1]], "target": [2]}), "edges: the column 'source' holds values of"),
        ((ROWS, [(1, 2), (float("nan"), 1)]), "edges, row 2: an edge with an empty end"),
        ((ROWS, [(1, 2, "cites", 3)]), r"the edge \(1, 2, 'cites', 3\) given, expected \(source"),
        ((ROWS, ["12"]), "the edge '12' given, expected"),
        ((ROWS, 12), "edges=12 given, expected a table, or pairs"),
        (({"id": "p1", "text": "x"},), "nodes given as a dict in which 'id' is 'p1', expected a"),
        (({"id": {0: "p1"}, "text": {0: "x"}},), "a dict in which 'id' is {0: 'p1'}, expected a"),
        ((networkx.Graph([(1, 2)]),), "a Graph given, expected a table; from_networkx takes such"),
        ((ROWS, "citations.csv"), r"'citations.csv' given, expected .*read_graph reads files"),
        (("papers.csv",), r"'papers.csv' given, expected .*read_graph reads files"),
        (
            ([{"id": 1, "text": "x"}, {"id": 2, "text": float("nan")}],),
            "the text of node '2' is empty",
        ),
        ((pa.table({"id": [1, 2], "text": [1.5, float("nan")]}),), "the text of node '2' is empty"),
        (
            (pa.table([[1], ["x"], [3], [4]], names=["id", "text", "a", "a"]),),
            "the column 'a' occurs twice",
        ),
        (({"id": [1, 2], "text": ["x"]},), "nodes given that are not a table"),
        ((["x"],), "the node 'x' given, expected a dict"),
    ]
    for arguments, message in wrong:
        with pytest.raises(InputError, match=message):
            build_graph(*arguments)  # type: ignore[arg-type]
    assert (
        build_graph([*ROWS, {"id": 3, "text": None}], [(1, 2), (1, 9)], skip_bad=True).num_nodes
        == 2
    )


def test_ids_as_they_come_from_a_graph(graph: TextGraph) -> None:
    assert graph.nodes_of(graph.ids).tolist() == list(range(graph.num_nodes))
    id = graph.ids[7]
    assert graph.nodes_of(list(graph.ids)).tolist() == list(range(graph.num_nodes))
    assert (graph.node(id), graph.text(id)) == (7, graph.texts[7].as_py())
    assert graph.neighbors(id) == graph.neighbors(id.as_py())
    assert id in graph
    assert pa.scalar("nobody") not in graph
    assert pa.scalar(7) not in graph
    assert build_graph(graph.table, [(id, graph.ids[8])]).neighbors(id) == [graph.ids[8].as_py()]
    with pytest.raises(GraphFormersError, match="no node with the id 'nobody' in"):
        graph.text(pa.scalar("nobody"))
    for wrong, message in (
        (pa.scalar(7), "the id 7 is a int, ids are strings: '7'"),
        (None, "the id None is a NoneType"),
    ):
        with pytest.raises(GraphFormersError, match=message):
            graph.node(wrong)  # type: ignore[arg-type]


def test_describe_counts(graph: TextGraph) -> None:
    found = describe_graph(graph)
    degrees = graph.degrees()
    assert (found.nodes, found.pairs) == (200, graph.num_pairs)
    assert found.isolated == int((degrees == 0).sum())
    assert found.degree_percentiles["100"] == degrees.max()
    assert found.words_percentiles["100"] == max(
        len(text.split()) for text in graph.texts.to_pylist()
    )
    assert len(found.samples) == 5
    for sample in found.samples:
        assert {n["id"] for n in sample["neighbors"]} <= set(graph.neighbors(sample["id"]))


def test_a_description_renders_itself(graph: TextGraph) -> None:
    found = describe_graph(graph)
    rows = {line.split("  ")[0]: line for line in str(found.as_table()).splitlines()}
    assert rows["nodes"].split() == ["nodes", "200"]
    assert rows["percentile"].split() == ["percentile", *found.degree_percentiles]
    assert rows["degree"].split()[1:] == [f"{n:,}" for n in found.degree_percentiles.values()]
    assert json.loads(json.dumps(found.to_dict()))["samples"] == found.samples
    assert "<td>nodes</td><td>200</td>" in found._repr_html_()


def test_a_graph_of_one_node() -> None:
    graph = build_graph(pa.table({"id": ["a"], "text": ["alone"]}))
    assert graph.num_pairs == 0
    assert describe_graph(graph).isolated == 1
    assert graph.neighbors("a") == []


def test_unknown_column_lists_the_known(graph: TextGraph) -> None:
    with pytest.raises(
        GraphFormersError, match="no node column 'venue' in this graph; it has: year"
    ):
        graph.column("venue")


def test_the_order_of_nodes_changes_no_neighbours(graph: TextGraph) -> None:
    order = random.Random(1).sample(range(graph.num_nodes), graph.num_nodes)
    ids = graph.ids.to_pylist()
    sources, targets = ([ids[node] for node in ends] for ends in graph.edges.tolist())
    other = build_graph(graph.table.take(pa.array(order)), {"source": sources, "target": targets})
    assert other.ids.to_pylist() != ids
    for name in ids:
        assert sorted(other.neighbors(name)) == sorted(graph.neighbors(name))


def test_whether_there_is_a_node(graph: TextGraph) -> None:
    assert graph.ids[3].as_py() in graph
    assert "nobody" not in graph
    assert "half \ud83d" not in graph
    assert "half \ud83d" not in build_graph([{"id": "half ?", "text": "a"}])
    assert 3 not in graph
    with pytest.raises(InputError, match="half of a character"):
        build_graph(ROWS, [("half \ud83d", "1")])


def test_edges_may_be_tensors() -> None:
    import torch

    for edges in (
        {"source": torch.tensor([1]), "target": torch.tensor([2])},
        torch.tensor([[1, 2]]),
    ):
        assert build_graph(ROWS, edges).neighbors("1") == ["2"]
