"""The engine in this process: groups of writes, states that never change, compaction under way."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from graphformers.embedding import edits as edits_module
from graphformers.embedding.job import embed
from graphformers.embedding.settings import CompactionSettings
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import ArtifactError
from graphformers.model.encoder import GraphFormers
from graphformers.retrieval.index import has_usearch
from graphformers.retrieval.queries import Query
from graphformers.retrieval.searcher import Searcher
from graphformers.serve.engine import Engine, Question
from graphformers.serve.settings import ServeSettings
from graphformers.serve.writing import (
    AddEdges,
    DeleteNode,
    NotFoundError,
    PutNode,
    RefusedError,
    RemoveEdge,
    Write,
)
from tests.embedding.conftest import EXACT, farthest, limited_files, make_model, some_graph


@pytest.fixture
def engine(place: Path) -> Iterator[Engine]:
    made = Engine(ServeSettings(place, device="cpu"))
    yield made
    made.close()


def found(engine: Engine, *, num_neighbors: int = 0, **query: Any) -> list[str]:
    question = Question(Query(**{"k": 5, **query}), num_neighbors)
    answer = msgspec.json.decode(engine.searches.put(question).result(20))
    return [match["id"] for match in answer["matches"]]


def test_likely_links_are_those_of_the_searcher(tmp_path: Path) -> None:
    """With common neighbours, also after a write that makes some."""
    make_model(link_weight=3.0).save_pretrained(tmp_path / "m.model")
    model = GraphFormers.from_pretrained(tmp_path / "m.model", device="cpu")
    embed(model, some_graph(), tmp_path / "v", **EXACT)
    engine = Engine(ServeSettings(tmp_path / "v", device="cpu"))
    try:
        ids = engine.view.store.ids.to_pylist()
        before = found(engine, id=ids[3], links=True)
        assert before != found(engine, id=ids[3])
        engine._write([PutNode("new", "graph", {}, (ids[3], ids[7], ids[9]))])
        searcher = Searcher(VectorStore.load(tmp_path / "v"), model)
        for id in ("new", *ids[:9]):
            links = searcher.links(id, 5)
            assert found(engine, id=id, links=True) == [match.id for match in links]
        assert links.measure == "inner product + 3 × Adamic–Adar"
    finally:
        engine.close()


def test_waiting_writes_are_one_transaction(engine: Engine, place: Path) -> None:
    ids = engine.view.store.ids.to_pylist()
    writes: list[Write] = [
        PutNode(f"new{i}", f"graph text {i}", {"year": 2000 + i}, (ids[i], "new0"))
        for i in range(8)
    ]
    writes.append(
        AddEdges((("new1", "new2", "cites"), (ids[3], "new3", None), ("new1", "new1", None)))
    )
    writes.append(DeleteNode(ids[50]))
    answers = engine._write(writes)
    assert answers[0] == {"id": "new0", "is_new": True, "new_links": 1, "new_columns": []}
    assert answers[3] == {"id": "new3", "is_new": True, "new_links": 2, "new_columns": []}
    assert answers[8] == {"added": 1, "already_there": 1, "self_links": 1}
    assert answers[9] == {"id": ids[50], "is_removed": True}
    assert VectorStore.load(place).commit.number == 1
    assert (
        farthest(VectorStore.load(place), engine.model, VectorStore.load(place).graph.freeze())
        < 1e-5
    )
    assert found(engine, id="new1", k=70)[0] not in ("new1", ids[50])
    assert set(found(engine, id="new1", k=70)) == {*ids, *(f"new{i}" for i in range(8))} - {
        "new1",
        ids[50],
    }


def test_writes_that_touch_each_other_are_both_done(engine: Engine) -> None:
    ids = engine.view.store.ids.to_pylist()
    writes: list[Write] = [
        PutNode("a", "graph"),
        PutNode("a", "graph again"),
        DeleteNode("a"),
        PutNode("b", "with another column", {"kind": "x"}),
        DeleteNode(ids[0]),
        AddEdges(((ids[0], ids[1], None),)),
        PutNode(ids[0], "comes back"),
    ]
    answers = engine._write(writes)
    graph = engine.view.store.graph
    assert answers[0] == {"id": "a", "is_new": True, "new_links": 0, "new_columns": []}
    assert isinstance(answers[2], dict | NotFoundError)
    assert graph.fields(int(graph.find_nodes(["b"])[0])) == {
        "id": "b",
        "text": "with another column",
        "kind": "x",
    }
    assert isinstance(answers[5], dict | RefusedError)
    assert all(answer is not None for answer in answers)


def test_links_of_one_type_can_go(engine: Engine, place: Path) -> None:
    ids = engine.view.store.ids.to_pylist()
    engine._write(
        [PutNode("a", "graph"), AddEdges((("a", ids[0], "cites"), (ids[0], "a", "likes")))]
    )
    answers = engine._write(
        [
            RemoveEdge(ids[0], "a", "extends"),
            RemoveEdge(ids[0], "a", "cites"),
            RemoveEdge("a", ids[0], "cites"),
        ]
    )
    assert [str(answer) for answer in answers[::2]] == [
        f"no link of {ids[0]!r} and 'a' of type 'extends'",
        f"no link of 'a' and {ids[0]!r} of type 'cites'",
    ]
    assert answers[1] == {"source": ids[0], "target": "a", "is_removed": True}
    graph = VectorStore.load(place).graph
    a, first = graph.find_nodes(["a", ids[0]]).tolist()
    assert graph.links_between([(a, first)]) == [[(ids[0], "a", "likes")]]
    assert list(graph.neighbors_of(a)) == [first]


def test_links_that_come_and_go_at_once(engine: Engine, place: Path) -> None:
    view = engine.view
    pair = next(pair for pair in view.store.graph.freeze().pairs().tolist())
    one, other = view.store.graph.ids_of(np.array(pair))
    answers = engine._write(
        [
            RemoveEdge(one, other),
            AddEdges(((other, one, None),)),  # these three wait for the first
            PutNode(one, "linked again", {}, (other,)),
            RemoveEdge(other, one),
            PutNode("a", "graph", {}, (other,)),
            RemoveEdge("a", other),
            DeleteNode(one),
        ]
    )
    assert answers[0] == {"source": one, "target": other, "is_removed": True}
    assert answers[1] == {"added": 1, "already_there": 0, "self_links": 0}
    assert answers[5] == {"source": "a", "target": other, "is_removed": True}
    assert all(isinstance(answer, dict) for answer in answers)
    graph = engine.view.store.graph
    assert graph.find_nodes([one])[0] < 0
    assert list(graph.neighbors_of(int(graph.find_nodes(["a"])[0]))) == []
    assert (
        farthest(VectorStore.load(place), engine.model, VectorStore.load(place).graph.freeze())
        < 1e-5
    )


def test_a_linked_pair_takes_links_of_other_types(engine: Engine, place: Path) -> None:
    graph = engine.view.store.graph.freeze()
    one, other = graph.ids_of(np.array(graph.pairs()[0]))
    cites, back = (one, other, "newly cites"), (other, one, "newly cites")
    answers = engine._write([AddEdges((cites, cites, (other, one, None))), AddEdges((cites, back))])
    assert answers == [
        {"added": 1, "already_there": 2, "self_links": 0},
        {"added": 1, "already_there": 1, "self_links": 0},
    ]
    assert engine._write([AddEdges((cites, back))]) == [
        {"added": 0, "already_there": 2, "self_links": 0}
    ]
    after = VectorStore.load(place).graph.freeze()
    assert after.edges.shape[1] == graph.edges.shape[1] + 2
    np.testing.assert_array_equal(after.indices, graph.indices)


def test_more_types_of_links_than_a_graph_holds_are_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = engine.view.store.graph.freeze()
    one, other = graph.ids_of(np.array(graph.pairs()[0]))
    types = len(graph.type_names)
    monkeypatch.setattr(edits_module, "MAX_TYPES", types + 1)
    # one is welcome
    answers = engine._write([AddEdges(((one, other, "x"),)), AddEdges(((one, other, "y"),))])
    assert answers[0] == {"added": 1, "already_there": 0, "self_links": 0}
    assert isinstance(answers[1], RefusedError)
    assert f"more than {types + 1} types of links" in str(answers[1])
    monkeypatch.setattr(edits_module, "MAX_TYPES", types)  # a type that is known is no new one
    assert engine._write([AddEdges(((other, one, "x"),))]) == [
        {"added": 1, "already_there": 0, "self_links": 0}
    ]


def test_a_wrong_write_is_refused_alone(engine: Engine) -> None:
    before = len(engine.view.store)
    answers = engine._write(
        [
            PutNode("good", "graph"),
            PutNode("bad", "graph", {"year": "soon"}),
            PutNode("lonely", "graph", {}, ("nobody",)),
            AddEdges((("good", "nobody", None),)),
            DeleteNode("nobody"),
            PutNode("late", "text", {"id": "x"}),
        ]
    )
    assert isinstance(answers[0], dict)
    for answer, words in zip(
        answers[1:],
        (
            "'year': 'soon' is no int64",
            "'nobody' to link to",
            "'nobody' to link to",
            "no node with the id",
            "a column 'id' given",
        ),
        strict=True,
    ):
        assert words in str(answer)
    assert len(engine.view.store) == before + 1


def test_a_view_never_changes(engine: Engine) -> None:
    """Who reads while others write sees one state: the same answers from a view before and
    after.
    """
    view, id = engine.view, engine.view.store.ids[5].as_py()
    hits = view.index.search(view.store[id][None], 60)
    before = (len(view.store), view.store[id].copy(), view.store.graph.neighbors_of(5).copy(), hits)
    engine._write(
        [
            PutNode(id, "something else"),
            PutNode("n", "new", {}, (id,)),
            DeleteNode(view.store.ids[7].as_py()),
        ]
    )
    assert engine.view is not view
    after = (
        len(view.store),
        view.store[id],
        view.store.graph.neighbors_of(5),
        view.index.search(view.store[id][None], 60),
    )
    assert before[0] == after[0]
    np.testing.assert_array_equal(before[1], after[1])
    np.testing.assert_array_equal(before[2], after[2])
    np.testing.assert_array_equal(before[3].nodes_QK, after[3].nodes_QK)
    assert not np.array_equal(engine.view.store[id], before[1])


def test_readers_never_stumble_over_writers(engine: Engine) -> None:
    """Many searches while nodes come and go: no error, and every node found has a text."""
    ids, is_over, errors = engine.view.store.ids.to_pylist(), threading.Event(), []

    def read(seed: int) -> None:
        draw = np.random.default_rng(seed)
        while not is_over.is_set():
            try:
                found(
                    engine,
                    id=ids[draw.integers(30)],
                    links=bool(draw.integers(2)),
                    num_neighbors=3,
                    k=60,
                )
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for i in range(30):
        engine.writes.put(PutNode(f"n{i}", f"graph {i}", {}, (ids[i],))).result(20)
        if i % 3 == 2:
            engine.writes.put(DeleteNode(f"n{i - 1}")).result(20)
    is_over.set()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_full_disk_is_told_and_passes(engine: Engine, place: Path) -> None:
    """Nothing of a write that could not be kept is seen; when there is room again, writing goes
    on.
    """
    before = len(engine.view.store)
    with limited_files(20_000):
        for write in (
            PutNode("a", "graph"),
            AddEdges(((engine.view.store.ids[0].as_py(), engine.view.store.ids[9].as_py(), None),)),
        ):
            with pytest.raises(ArtifactError, match="full disk; what was there before is unch"):
                engine.writes.put(write).result(20)
    assert len(engine.view.store) == before == len(VectorStore.load(place))
    assert engine.writes.put(PutNode("a", "graph")).result(20)["is_new"]
    assert "a" in VectorStore.load(place)


def test_no_second_writer(engine: Engine, place: Path) -> None:
    with pytest.raises(ArtifactError, match="is being changed by another process"):
        Engine(ServeSettings(place, device="cpu"))
    reader = Engine(ServeSettings(place, host="0.0.0.0", device="cpu"))
    assert not reader.is_writable
    reader.close()


@pytest.mark.parametrize("is_exact", [True, False])
def test_compaction_goes_on_beside_reads_and_writes(place: Path, is_exact: bool) -> None:
    """Compacted after every few writes: what was written is found at once and after, whoever's
    index is asked.
    """
    if not is_exact and not has_usearch():
        pytest.skip("usearch is not installed")
    limits = CompactionSettings(least_bytes=2500, share=0.0)
    index = "exact" if is_exact else "usearch"
    engine = Engine(ServeSettings(place, device="cpu", compaction=limits, index=index))
    ids, bases = engine.view.store.ids.to_pylist(), set()
    for i in range(24):
        id = f"n{i}"
        engine.writes.put(PutNode(id, f"graph {i}", {}, (ids[i], ids[i + 1]))).result(20)
        bases.add(engine.view.store.artifact.fingerprint)
        near = found(engine, id=id, k=200)
        assert len(near) == len(engine.view.store) - 1
        assert len(set(near)) == len(near)
        if i % 4 == 3:
            engine.writes.put(DeleteNode(f"n{i - 2}")).result(20)
            assert f"n{i - 2}" not in found(engine, id=id, k=200)
            vectors = engine.view.store
            everyone = vectors.ids.to_pylist()
            order = np.argsort(-(vectors.vectors(everyone) @ vectors[id]), kind="stable")
            expected = [everyone[j] for j in order if everyone[j] != id][:5]
            assert found(engine, id=id) == expected
    engine.close()
    assert len(bases) > 2, "there were compactions"
    store = VectorStore.load(place)
    assert farthest(store, engine.model, store.graph.freeze()) < 1e-5
    Engine(ServeSettings(place, device="cpu")).close()  # the folder was given back
