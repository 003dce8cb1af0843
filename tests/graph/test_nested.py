"""Fields within JSON objects, and columns that list the ids of linked nodes."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from graphformers.errors import GraphFormersError, InputError
from graphformers.graph.builder import OUTSIDE
from graphformers.graph.interop import build_graph
from graphformers.graph.readers import read_graph
from graphformers.graph.settings import ImportSettings
from graphformers.graph.textgraph import TextGraph

RECORDS = [
    {"meta": {"key": "a"}, "doc": {"title": "One", "body": "first", "year": 2001}, "x": 1},
    {"meta": {"key": "b"}, "doc": {"title": "Two", "year": 2002}},
    {"meta": {"key": "c"}, "doc": {"body": "third"}, "doc.title": "Three"},
]
NAMED = {"id": "meta.key", "text": "doc.title,doc.body"}
PAPERS = [
    {"id": "p1", "title": "One", "references": ["p2", "p3", "x9"]},
    {"id": "p2", "title": "Two", "references": []},
    {"id": "p3", "title": "Three", "references": ["p2"]},
    {"id": "p4", "title": "Four"},
]


def write_jsonl(path: Path, records: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def edges_of(graph: TextGraph) -> list[tuple[str, str, str | None]]:
    ids = graph.ids.to_pylist()
    types = [None] * graph.edges.shape[1]
    if graph.edge_types is not None:
        types = [graph.type_names[i] for i in graph.edge_types]
    return [(ids[a], ids[b], kind) for (a, b), kind in zip(graph.edges.T, types, strict=True)]


def test_fields_within_objects(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "n.jsonl", RECORDS)
    graph = read_graph(path, columns=NAMED, keep=("doc.year",))
    assert graph.ids.to_pylist() == ["a", "b", "c"]
    assert graph.texts.to_pylist() == ["One. first", "Two", "Three. third"]
    assert graph.column_names == ["doc.year"]
    assert graph.column("doc.year").to_pylist() == [2001, 2002, None]
    assert read_graph(path, columns=NAMED).column_names == ["meta", "doc", "x"]


def test_a_part_that_is_missing_is_a_missing_value(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "n.jsonl", [*RECORDS[:2], {"meta": "c", "doc": {"title": "x"}}])
    (tmp_path / "m.jsonl").write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(InputError, match=r"n.jsonl:3: the id is empty, expected a unique string"):
        read_graph(path, columns=NAMED)
    with pytest.raises(
        InputError, match=r"among: meta, doc, x, meta.key, doc.title, doc.body, doc"
    ):
        read_graph(path, columns={"id": "meta.key", "text": "doc.titel"})
    with pytest.raises(InputError, match=r"keep=\['doc.yaer'\]: no node file has a column"):
        read_graph(tmp_path / "m.jsonl", columns=NAMED, keep=("doc.yaer",))


def test_fields_within_structs_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "n.parquet"
    parquet.write_table(pa.Table.from_pylist(RECORDS[:2]), path)
    graph = read_graph(path, columns=NAMED, keep=("doc.year",))
    assert graph.texts.to_pylist() == ["One. first", "Two"]
    assert graph.column("doc.year").to_pylist() == [2001, 2002]
    assert read_graph(path, columns=NAMED).column_names == ["meta", "doc", "x"]


def tables(folder: Path) -> dict[str, Path]:
    csv = ["id,title,references"]
    csv += [
        f"{each['id']},{each['title']},{';'.join(each.get('references', ()))}" for each in PAPERS
    ]  # type: ignore[arg-type]
    (folder / "n.csv").write_text("\n".join(csv) + "\n")
    parquet.write_table(pa.Table.from_pylist(PAPERS), folder / "n.parquet")
    quoted = [dict(each, references=json.dumps(each.get("references", []))) for each in PAPERS]
    return {
        "csv": folder / "n.csv",
        "parquet": folder / "n.parquet",
        "jsonl": write_jsonl(folder / "n.jsonl", PAPERS),
        "text": write_jsonl(folder / "t.jsonl", quoted),
    }


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "text"])
def test_a_column_of_ids_is_links(tmp_path: Path, kind: str) -> None:
    path = tables(tmp_path)[kind]
    graph = read_graph(path, columns={"links": "references"})
    assert edges_of(graph) == [("p1", "p2", None), ("p1", "p3", None), ("p3", "p2", None)]
    assert graph.summary["left_aside"] == {OUTSIDE: 1}
    assert graph.column_names == []
    typed = read_graph(path, columns={"links": "references:cites"}, keep=("references",))
    assert {kind for _, _, kind in edges_of(typed)} == {"cites"}
    assert typed.column_names == ["references"]
    beside = tmp_path / "edges.csv"
    beside.write_text("src,dst,type\np4,p1,likes\n")
    both = read_graph(path, beside, columns={"links": "references:cites"})
    assert ("p4", "p1", "likes") in edges_of(both)
    assert len(edges_of(both)) == 4


def test_other_separators_and_several_columns(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text(
        'id,title,cites,similar\n1,One,2| 3 |,3\n2,Two,,\n3,Three,"[1, ""2""]",2|1\n'
    )
    graph = read_graph(
        tmp_path / "n.csv",
        columns={"links": "cites:cites, similar:is similar to"},
        list_separator="|",
    )
    assert edges_of(graph) == [
        ("1", "2", "cites"),
        ("1", "3", "cites"),
        ("3", "1", "cites"),
        ("3", "2", "cites"),
        ("1", "3", "is similar to"),
        ("3", "2", "is similar to"),
        ("3", "1", "is similar to"),
    ]
    with pytest.raises(GraphFormersError, match="list_separator='' given, expected a character"):
        ImportSettings(list_separator="")
    with pytest.raises(InputError, match=r"no column for links \(looked for refs\) among: id, ti"):
        read_graph(tmp_path / "n.csv", columns={"links": "refs:cites"})


def test_tables_in_memory_are_read_with_the_same_settings() -> None:
    rows = [{"id": 1, "title": "one", "refs": "2,3", "year": 1999}, {"id": 2, "title": "two"}]
    rows += [{"id": 3, "title": "three", "refs": "2", "year": None}]
    graph = build_graph(rows, columns={"links": "refs"}, list_separator=",", keep=["year"])
    assert graph.num_pairs == 3
    assert graph.column_names == ["year"]
    with pytest.raises(GraphFormersError, match="expected a list of columns"):
        build_graph(rows, keep="year")


def test_lists_of_numbers_and_tables_in_memory() -> None:
    papers = [{"id": 1, "text": "One", "to": [2, 7]}, {"id": 2, "text": "Two", "to": []}]
    graph = build_graph(papers, columns={"links": "to"})
    assert edges_of(graph) == [("1", "2", None)]


def test_ids_that_no_node_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All of them: the separator is probably another."""
    (tmp_path / "n.csv").write_text("id,title,to\n1,One,2 3\n2,Two,3 1\n3,Three,\n")
    read_graph(tmp_path / "n.csv", columns={"links": "to"})
    assert "none of the 2 listed ids is the id of a node, such as '2 3'" in caplog.text
    assert "list_separator=' '" in caplog.text
    caplog.clear()
    read_graph(tmp_path / "n.csv", columns={"links": "to"}, list_separator=" ")
    assert not caplog.text


def test_most_of_the_ids_that_no_node_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One known id among lists with another separator is a list of one."""
    path = tmp_path / "n.csv"
    path.write_text('id,title,to\n1,One,"2,3"\n2,Two,1\n3,Three,"1,2"\n')
    read_graph(path, columns={"links": "to"})
    assert "2 of the 3 listed ids are not those of nodes, such as '2,3'" in caplog.text
    assert "list_separator=','" in caplog.text
    caplog.clear()
    # Ids of these nodes have slashes.
    path.write_text("id,title,to\n10/1,One,10/2;10/7;10/8\n10/2,Two,\n")
    read_graph(path, columns={"links": "to"})
    assert not caplog.text


def test_lists_in_python(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "n.csv"
    rows = ["id,title,to", "1,One,\"['2', '3']\"", "2,Two,\"[1, '3']\"", "3,Three,[]", "[4],Four,"]
    path.write_text("\n".join(rows))
    expected = [("1", "2", None), ("1", "3", None), ("2", "1", None), ("2", "3", None)]
    assert edges_of(read_graph(path, columns={"links": "to"})) == expected
    assert not caplog.text
    # NumPy writes arrays without commas.
    path.write_text("id,title,to\n1,One,['2' '3']\n2,Two,[1 3]\n3,Three,\n")
    assert read_graph(path, columns={"links": "to"}).num_pairs == 0
    assert "such as \"['2' '3']\"; lists are written in JSON, such as" in caplog.text


def test_lists_of_objects(tmp_path: Path) -> None:
    records = [
        {"id": "a", "text": "One", "refs": [{"paper": {"id": "b"}}, {"paper": {"id": "z"}}, {}]},
        {"id": "b", "text": "Two", "refs": [{"paper": None}]},
    ]
    path = write_jsonl(tmp_path / "n.jsonl", records)
    graph = read_graph(path, columns={"links": "refs.paper.id"})
    assert edges_of(graph) == [("a", "b", None)]
    with pytest.raises(InputError, match=r"a column of links holds lists of struct.*of ids"):
        read_graph(path, columns={"links": "refs"})
    with pytest.raises(InputError, match=r"of ids; columns={'links': 'refs.paper.id'} takes the"):
        read_graph(path, columns={"links": "refs.paper"})
