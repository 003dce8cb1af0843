import numpy as np
import pyarrow as pa

from graphformers.evaluation.slices import slices_of, types_of
from graphformers.graph.interop import build_graph
from graphformers.splits.split import split_links
from tests.conftest import make_graph


def naive_types(graph: object, a: int, b: int) -> set[str]:
    edges = zip(
        graph.edges[0].tolist(), graph.edges[1].tolist(), graph.edge_types.tolist(), strict=True
    )  # type: ignore[attr-defined]
    return {graph.type_names[type] for x, y, type in edges if {x, y} == {a, b}}  # type: ignore[attr-defined]


def is_meant(name: str, count: int) -> bool:
    low, _, high = name.replace(" or more", "–1000").replace("none", "0").partition("–")
    return int(low) <= count <= int(high or low)


def test_slices_are_those_of_a_naive_loop() -> None:
    split = split_links(make_graph(num_nodes=60, num_edges=150), valid=0.1, test=0.2, candidates=10)
    graph, found = split.graph, slices_of(split, split.test)
    number, types = types_of(graph, split.test.pairs)
    for q, (a, b) in enumerate(split.test.pairs.tolist()):
        near = split.indices[split.indptr[a] : split.indptr[a + 1]].tolist()
        kinds = naive_types(graph, a, b)
        assert {graph.type_names[t] for t in types[number == q]} == kinds
        around = set().union(*(naive_types(graph, a, n) for n in near)) if near else set()
        shares = bool(kinds & around)
        assert found["neighbours in the relation asked"]["at least one"][q] == shares
        assert found["neighbours in the relation asked"]["none"][q] == (not shares)
        for name in graph.type_names:
            assert found["relation asked"][name][q] == (name in kinds)
        (name,) = (name for name, mark in found["neighbours of the anchor"].items() if mark[q])
        assert is_meant(name, len(near))
    assert "anchor" not in found


def test_neighbours_that_both_ends_have_are_counted() -> None:
    draw = np.random.default_rng(0)
    ends = [
        (f"n{a}", f"n{b}")
        for a, b in (draw.exponential(15, (600, 2)).astype(int) % 80).tolist()
        if a != b
    ]
    table = pa.table({"id": [f"n{i}" for i in range(80)], "text": [f"text {i}" for i in range(80)]})
    graph = build_graph(table, ends)
    split = split_links(graph, valid=0.1, test=0.4, candidates=10)
    found = slices_of(split, split.test)["common neighbours"]
    assert list(found) == ["none", "1", "2–5", "6 or more"]
    for q, pair in enumerate(split.test.pairs.tolist()):
        near, far = (
            set(split.indices[split.indptr[node] : split.indptr[node + 1]].tolist())
            for node in pair
        )
        (name,) = (name for name, mark in found.items() if mark[q])
        assert is_meant(name, len(near & far))


def test_rare_relations_share_a_slice() -> None:
    draw = np.random.default_rng(0)
    ends = [(f"n{a}", f"n{b}") for a, b in draw.integers(0, 80, (400, 2)).tolist() if a != b]
    kinds = [f"kind{min(int(number), 16)}" for number in draw.exponential(4, len(ends))]
    table = pa.table({"id": [f"n{i}" for i in range(80)], "text": [f"text {i}" for i in range(80)]})
    graph = build_graph(
        table, {"source": [a for a, _ in ends], "target": [b for _, b in ends], "type": kinds}
    )
    split = split_links(graph, valid=0.1, test=0.4, candidates=10)
    asked = [naive_types(graph, a, b) for a, b in split.test.pairs.tolist()]
    found = slices_of(split, split.test)["relation asked"]
    shown = set(found) - {"all others"}
    assert len(shown) == 12
    assert found["all others"].tolist() == [bool(kinds - shown) for kinds in asked]
    assert found["all others"].any()


def test_anchors_unknown_in_training_have_a_slice() -> None:
    split = split_links(make_graph(), valid=0.1, test=0.1, held_out="nodes", candidates=10)
    found = slices_of(split, split.test)["anchor"]
    assert (
        found["unknown in training"].all()
        == np.isin(split.test.pairs[:, 0], split.held_out_nodes).all()
    )
    assert set(found) == {"unknown in training"}  # slices without a question are not shown
