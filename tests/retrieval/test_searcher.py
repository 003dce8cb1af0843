import json
import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from graphformers.cli import app
from graphformers.embedding.job import embed
from graphformers.embedding.update import update
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import GraphFormersError
from graphformers.graph.interop import build_graph
from graphformers.retrieval.filters import allowed_nodes
from graphformers.retrieval.queries import Query, answer_queries
from graphformers.retrieval.searcher import Searcher, Truncation, search
from tests.embedding.conftest import make_model, some_graph


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Vectors and their model, as folders."""
    make_model().save_pretrained(tmp_path / "m.model")
    from graphformers.model.encoder import GraphFormers

    embed(
        GraphFormers.from_pretrained(tmp_path / "m.model", device="cpu"),
        some_graph(),
        tmp_path / "v",
    )
    return tmp_path / "v"


def test_similar_nodes_links_and_texts(place: Path) -> None:
    store, model, graph = VectorStore.load(place), make_model(), some_graph()
    searcher = Searcher(store, device="cpu")
    id = graph.ids[int(np.argmax(graph.degrees()))].as_py()
    everyone = store.vectors(graph.ids.to_pylist())
    order = [graph.ids[int(i)].as_py() for i in np.argsort(-(everyone @ store[id]), kind="stable")]
    similar = searcher.similar(id, 7)
    assert [match.id for match in similar] == [other for other in order if other != id][:7]
    assert similar[0].text == graph.text(similar[0].id)
    linked = {id, *graph.neighbors(id)}
    assert [match.id for match in searcher.links(id, 7)] == [
        other for other in order if other not in linked
    ][:7]
    vector = model.encode(["graph text"], [[graph.text(id)]])[0]
    expected = [
        graph.ids[int(i)].as_py() for i in np.argsort(-(everyone @ vector), kind="stable")[:5]
    ]
    assert [match.id for match in searcher.text("graph text", 5, neighbors=[id])] == expected
    assert [match.id for match in search(store, vector, 5)] == expected
    assert [match.id for match in search(place, "graph text", 5, neighbors=[id])] == expected
    # no list of its letters
    assert [match.id for match in search(place, "graph text", 5, neighbors=id)] == expected


def test_filters_are_those_of_a_loop(place: Path) -> None:
    model = make_model()
    update(
        place,
        nodes=[{"id": "new", "text": "graph", "year": 1995, "kind": "x"}],
        remove=["a1"],
        model=model,
    )
    graph = VectorStore.load(place).graph
    rows = {node: graph.fields(node) for node in graph.nodes.tolist()}
    for filter, test in {
        "year>=1995": lambda row: row["year"] >= 1995,
        "year = 1995": lambda row: row["year"] == 1995,
        "year==1995": lambda row: row["year"] == 1995,
        "year!=1990": lambda row: row["year"] != 1990,
        "year<1993": lambda row: row["year"] < 1993,
        "kind=x": lambda row: row.get("kind") == "x",
        "year in 1991, 1995": lambda row: row["year"] in (1991, 1995),
        "kind in y,x": lambda row: row.get("kind") == "x",
        "kind~X": lambda row: row.get("kind") == "x",
        "kind ~ z": lambda row: False,
    }.items():
        mark = allowed_nodes(graph, [filter])
        assert mark is not None
        assert [bool(mark[node]) for node in rows] == [bool(test(row)) for row in rows.values()]
    both = allowed_nodes(graph, ["year>=1993", "year<1996"])
    assert [bool(both[node]) for node in rows] == [
        1993 <= row["year"] < 1996 for row in rows.values()
    ]  # type: ignore[index,operator]
    assert allowed_nodes(graph, []) is None
    found = Searcher(place, model).similar("new", 60, where=["year>=1995"])
    years = {str(row["id"]): row["year"] for row in rows.values()}
    assert {match.id for match in found} == {
        id for id, year in years.items() if year >= 1995 and id != "new"
    }  # type: ignore[operator]


def test_values_may_look_like_filters(place: Path) -> None:
    model = make_model()
    update(
        place,
        nodes=[{"id": "new", "text": "graph", "kind": "a=b", "made in": "here", "x~y": 1.5}],
        model=model,
    )
    searcher = Searcher(place, model, columns=["made in", "year", "x~y"])
    for filter in (
        *(
            "kind in x,a=b",
            "kind=a=b",
            "kind~=B",
            "kind =~ A=",
            "made in=here",
            "made in in there,here",
            "made in~HER",
        ),
        *("x~y>1", "x~y in 1.5", "x~y = 1.5"),
    ):
        (found,) = searcher.text("graph", where=[filter])
        assert (found.id, found.columns) == ("new", {"made in": "here", "year": None, "x~y": 1.5})
        assert found in {found}  # a match can be counted


def test_values_that_python_does_not_have(tmp_path: Path) -> None:
    day = pa.array([1_577_836_800_123_456_789, None], pa.timestamp("ns"))
    far = pa.array([10**17, 0], pa.timestamp("s"))
    span = pa.array([5, None], pa.duration("ns"))
    table = pa.table(
        {
            "id": ["a", "b"],
            "text": ["graph", "node"],
            "day": day,
            "far": far,
            "span": span,
            "x": [math.nan, 2.0],
        }
    )
    model = make_model()
    store = embed(model, build_graph(table, [("a", "b")]), tmp_path / "v.vectors")
    searcher = Searcher(store, model, columns=["day", "far", "span", "x"])
    (found,) = searcher.text("graph", where=["day in 2020-01-01T00:00:00.123456789"])
    assert found.id == "a"
    assert found.columns["day"] == "2020-01-01 00:00:00.123456789"
    assert (found.columns["span"], found.columns["x"]) == (5, None)
    # what is shown as no value is none
    for where, expected in [("x!=3", ["b"]), ("x=2", ["b"]), ("x in 2,nan", ["b"])]:
        assert [match.id for match in searcher.text("graph", where=[where])] == expected


def test_columns_of_what_is_found(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = VectorStore.load(place).graph
    found = search(place, "graph text", 5, columns="year", model=make_model())
    assert [match.columns for match in found] == [
        {"year": graph.fields(int(node))["year"]}
        for node in graph.find_nodes([match.id for match in found])
    ]
    app(
        ["search", str(place), "graph text", "-k", "5", "--show", "year", "--json"],
        standalone_mode=False,
    )
    assert [match["columns"] for match in json.loads(capsys.readouterr().out)["matches"]] == [
        match.columns for match in found
    ]
    app(["search", str(place), "graph text", "-k", "5", "--show", "year"], standalone_mode=False)
    header, first, *_ = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", header.strip()) == ["inner product", "id", "year", "text"]
    assert str(found[0].columns["year"]) in first
    with pytest.raises(GraphFormersError, match="no node column 'yaer'; did you mean 'year'"):
        Searcher(place, columns=["yaer"])


def test_numbers_are_not_compared_with_letters(place: Path) -> None:
    model = make_model()
    nodes = [
        {"id": "new", "text": "graph", "price": "17,33", "day": "2020-07-01"},
        {"id": "b", "text": "t", "day": "2021"},
    ]
    update(place, nodes=nodes, model=model)
    searcher = Searcher(place, model)
    with pytest.raises(
        GraphFormersError,
        match="'price<5,0': the column holds texts such as '17,33', which have no order",
    ):
        searcher.text("graph", where="price<5,0")
    assert [match.id for match in searcher.text("graph", where=["price=17,33"])] == ["new"]
    assert [match.id for match in searcher.text("graph", where=["day<2021"])] == ["new"]


def test_vectors_of_a_model_that_has_no_folder(tmp_path: Path) -> None:
    model = make_model()
    store = embed(model, some_graph(), tmp_path / "a.vectors")
    assert search(store, "graph text", 3, model=model) == Searcher(store, model).text(
        "graph text", 3
    )
    assert list(store) == store.ids.to_pylist()
    assert np.array_equal(store.vectors(store.ids), store.vectors(list(store)))
    with pytest.raises(
        GraphFormersError, match="made with a model that had no folder; pass it as model="
    ):
        search(store, "graph text", 3)


def test_long_vectors_are_directions(tmp_path: Path) -> None:
    model = make_model(similarity="cosine")
    searcher = Searcher(embed(model, some_graph(), tmp_path / "a.vectors"), model)
    query = model.encode(["graph text"])[0]
    expected = [
        (match.id, pytest.approx(match.score, abs=1e-5)) for match in searcher.vector(query, 5)
    ]
    for length in (1e30, 1e-30):
        assert [
            (match.id, match.score) for match in searcher.vector(query * np.float32(length), 5)
        ] == expected


def test_wrong_questions(place: Path) -> None:
    searcher = Searcher(place, make_model())
    with pytest.raises(GraphFormersError, match="no node with the id 'nobody'"):
        searcher.similar("nobody")
    with pytest.raises(GraphFormersError, match="k=0 given, expected 1 to 10,000"):
        searcher.vector(np.zeros(24), 0)
    with pytest.raises(GraphFormersError, match=r"no node column 'yaer'; .*year"):
        searcher.text("x", where=["yaer=1"])
    with pytest.raises(
        GraphFormersError, match="'soon' is no int64, which the column 'year' holds"
    ):
        searcher.text("x", where=["year>soon"])
    with pytest.raises(
        GraphFormersError, match="'soon' is no int64, which the column 'year' holds"
    ):
        searcher.text("x", where=["year in 1990,soon"])
    with pytest.raises(
        GraphFormersError, match="a value is empty, expected values with commas between them"
    ):
        searcher.text("x", where=["year in 1990,"])
    with pytest.raises(GraphFormersError, match="no node column 'yaer'; did you mean 'year'"):
        searcher.text("x", where=["yaer=made in here"])
    with pytest.raises(
        GraphFormersError, match="the column holds int64, ~ looks for letters in texts"
    ):
        searcher.text("x", where=["year~19"])
    with pytest.raises(GraphFormersError, match="expected COLUMN=VALUE"):
        searcher.text("x", where=["year"])
    with pytest.raises(GraphFormersError, match="expected COLUMN=VALUE"):
        searcher.text("x", where=[" " * 5000])  # a moment, not half an hour
    with pytest.raises(GraphFormersError, match="expected COLUMN=VALUE"):
        searcher.text("x", where=[" =1990"])
    with pytest.raises(GraphFormersError, match="made with another model"):
        Searcher(place, make_model(seed=5))


def test_queries_are_answered_together(place: Path) -> None:
    searcher = Searcher(place, make_model(), columns=["year"])
    ids = searcher.store.ids.to_pylist()
    vector = searcher.encode("vector link")
    queries = [
        Query(4, text="graph text"),
        Query(5, id=ids[3], where=("year>=1993",)),
        Query(3, text="graph text", neighbors=(ids[0], ids[1])),
        Query(70, id=ids[4], links=True),
        Query(2, vector=vector),
    ]
    expected = [
        searcher.text("graph text", 4),
        searcher.similar(ids[3], 5, where=["year>=1993"]),
        searcher.text("graph text", 3, neighbors=ids[:2]),
        searcher.links(ids[4], 70),
        searcher.vector(vector, 2),
    ]
    for found, alone in zip(searcher.answer(queries), expected, strict=True):
        assert [match.id for match in found] == [match.id for match in alone]
        scores = [match.score for match in alone]
        assert [match.score for match in found] == pytest.approx(scores, rel=1e-5)
    assert searcher.answer([]) == []
    with pytest.raises(GraphFormersError, match="a query with text and id given, expected one of"):
        searcher.answer([Query(text="x", id=ids[0])])
    with pytest.raises(GraphFormersError, match="links given without the id of a node"):
        searcher.answer([Query(text="x", links=True)])
    with pytest.raises(GraphFormersError, match="no node with the id 'nobody'"):
        searcher.answer([Query(text="x"), Query(id="nobody")])
    for wrong, told in [(np.zeros(3), "3"), (np.zeros((2, 24)), "2×24")]:
        with pytest.raises(
            GraphFormersError, match=f"a vector of {told} numbers given, expected 24"
        ):
            searcher.answer([Query(vector=vector), Query(vector=wrong)])
    answers = answer_queries(
        searcher.store,
        searcher.index,
        [Query(vector=vector), Query(vector=vector * np.nan), Query(id="nobody"), Query(id=ids[0])],
    )
    assert [isinstance(answer, Exception) for answer in answers] == [False, True, True, False]


def test_a_text_that_is_cut_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model()
    words, most = "graph text node " * 5, model.config.max_tokens
    fits = "graph " * (most - 2)  # [CLS] and [SEP]
    searcher = Searcher(place, model)
    for text, expected in [(words, Truncation(17, most)), (fits, None), (f"{fits} x", most + 1)]:
        expected = Truncation(expected, most) if isinstance(expected, int) else expected
        assert searcher.text(text, 2).truncated == expected
    cut = {"tokens": 17, "max_tokens": most}
    app(["search", str(place), words, "-k", "2", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["truncated"] == cut
    app(["search", str(place), words, "-k", "2"], standalone_mode=False)
    told = f"the text has 17 tokens, of which the model reads the first {most} (max_tokens)"
    assert told in capsys.readouterr().out
    assert "truncated" not in searcher.similar(searcher.store.ids[0].as_py()).to_dict()


def test_an_index_is_chosen_by_name(place: Path) -> None:
    assert Searcher(place).index.base.name == "exact"
    with pytest.raises(GraphFormersError, match="no index 'exakt'; did you mean 'exact'"):
        Searcher(place, index="exakt")


def test_matches_render_themselves(place: Path) -> None:
    found = search(place, "graph text", 3, columns="year", model=make_model())
    assert found.to_dict() == {
        "matches": [
            {"id": each.id, "score": each.score, "text": each.text, "columns": each.columns}
            for each in found
        ],
        "measure": "inner product",
    }
    html = found._repr_html_()
    assert html.count("<tr>") == 4
    assert f"<td>{found[0].id}</td>" in html


def test_the_command(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = VectorStore.load(place)
    id = store.ids[3].as_py()
    app(["search", str(place), "--id", id, "-k", "3", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["measure"] == "inner product"
    assert [match["id"] for match in found["matches"]] == [
        match.id for match in Searcher(store).similar(id, 3)
    ]
    app(
        ["search", str(place), "graph node", "-k", "4", "--where", "year>=1990", "--device", "cpu"],
        standalone_mode=False,
    )
    assert len(capsys.readouterr().out.splitlines()) == 5
    ids = [store.ids[i].as_py() for i in range(3)]
    update(place, nodes={"a,b": "graph node"}, model=make_model())
    near = ["--neighbors", "a,b", "--neighbors", f"{ids[0]}, {ids[1]}"]
    app(["search", str(place), "graph text", "-k", "3", *near, "--json"], standalone_mode=False)
    expected = Searcher(place).text("graph text", 3, neighbors=["a,b", *ids[:2]])
    assert [match["id"] for match in json.loads(capsys.readouterr().out)["matches"]] == [
        match.id for match in expected
    ]
    with pytest.raises(Exception, match="an empty text given"):
        app(["search", str(place), " "], standalone_mode=False)
    app(["search", str(place), "--links", id, "--where", "year>3000"], standalone_mode=False)
    assert capsys.readouterr().out == "nothing found\n"
    with pytest.raises(Exception, match="nothing given, expected one of TEXT"):
        app(["search", str(place)], standalone_mode=False)
    with pytest.raises(Exception, match="--neighbors given without a text"):
        app(["search", str(place), "--id", id, "--neighbors", "x"], standalone_mode=False)
