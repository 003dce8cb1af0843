"""update: what a full embedding of the changed graph gives, with only the work that the changes
cause.
"""

import errno
import shutil
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from graphformers.arrays import one_chunk
from graphformers.embedding import compaction, shards
from graphformers.embedding import edits as edits_module
from graphformers.embedding.edit_input import read_edits
from graphformers.embedding.edits import apply
from graphformers.embedding.job import embed
from graphformers.embedding.settings import CompactionSettings
from graphformers.embedding.update import Updater, UpdateReport, update
from graphformers.embedding.vectors import VectorStore, locked
from graphformers.errors import GraphFormersError
from graphformers.graph.edited import EditedGraph
from graphformers.graph.interop import build_graph
from graphformers.graph.readers import read_graph
from graphformers.graph.settings import ImportSettings
from graphformers.graph.textgraph import TextGraph
from graphformers.model.encoder import GraphFormers
from graphformers.retrieval.filters import allowed_nodes
from tests import forked
from tests.embedding.conftest import EXACT, MODELS, bytes_of, farthest, make_model, some_graph


class Plain:
    """The same graph as a dict of texts and a set of pairs."""

    def __init__(self, graph: TextGraph) -> None:
        ids = graph.ids.to_pylist()
        self.texts = dict(zip(ids, graph.texts.to_pylist(), strict=True))
        self.pairs = {frozenset(graph.ids_of(pair)) for pair in graph.pairs()}

    def change(
        self, nodes: dict[str, str], edges: list[Any], remove: list[str], remove_edges: list[Any]
    ) -> None:
        for id in remove:
            self.texts.pop(id, None)
        self.pairs = {pair for pair in self.pairs if not pair & set(remove)}
        self.texts |= nodes
        self.pairs -= {frozenset(pair) for pair in remove_edges}
        self.pairs |= {frozenset(pair) for pair in edges if len(set(pair)) == 2}

    def build(self) -> TextGraph:
        """Its nodes in another order than before: row numbers must not matter."""
        ids = sorted(self.texts)
        ends = sorted(sorted(pair) for pair in self.pairs)
        table = pa.table({"id": ids, "text": [self.texts[id] for id in ids]})
        return build_graph(
            table, {"source": [pair[0] for pair in ends], "target": [pair[1] for pair in ends]}
        )


def compact_now(store: VectorStore) -> VectorStore:
    with locked(store.path):
        return compaction.compact(store)


def make_base(folder: Path, model: GraphFormers, **changes: Any) -> VectorStore:
    return embed(model, some_graph(), folder / "some.vectors", **EXACT | changes)


IDS = [*some_graph().ids.to_pylist()[:12], "new 1", "new 2", "new 3"]
TEXTS = ["graph", "text node", "a layer of vectors", "unknown"]
EDIT = st.fixed_dictionaries(
    {
        "nodes": st.dictionaries(st.sampled_from(IDS), st.sampled_from(TEXTS), max_size=4),
        "edges": st.lists(st.tuples(st.sampled_from(IDS), st.sampled_from(IDS)), max_size=5),
        "remove": st.lists(st.sampled_from(IDS), max_size=3),
        "remove_edges": st.lists(st.tuples(st.sampled_from(IDS), st.sampled_from(IDS)), max_size=3),
    }
)


@pytest.mark.parametrize("name", ["graphformers", "bidirectional", "plm", "max"])
def test_any_edits_give_what_embedding_again_gives(name: str, tmp_path: Path) -> None:
    model = make_model(**MODELS[name])
    base = make_base(tmp_path, model)

    @settings(
        max_examples=12,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(edits=st.lists(EDIT, min_size=1, max_size=3), compacted=st.booleans())
    def edited(edits: list[dict[str, Any]], compacted: bool) -> None:
        shutil.rmtree(tmp_path / "edited", ignore_errors=True)
        shutil.copytree(base.path, tmp_path / "edited")
        plain = Plain(some_graph())
        for edit in edits:
            edit["remove"] = [id for id in edit["remove"] if id not in edit["nodes"]]
            known = (set(plain.texts) | set(edit["nodes"])) - set(edit["remove"])
            edit["edges"] = [pair for pair in edit["edges"] if set(pair) <= known]
            wanted = {frozenset(pair) for pair in edit["edges"]}
            edit["remove_edges"] = [
                pair for pair in edit["remove_edges"] if frozenset(pair) not in wanted
            ]
            update(tmp_path / "edited", model=model, **edit)
            plain.change(**edit)
            before = bytes_of(tmp_path / "edited")
            assert update(tmp_path / "edited", model=model, **edit).forwards == 0
            assert bytes_of(tmp_path / "edited") == before
            store = VectorStore.load(tmp_path / "edited")
            if compacted:
                store = compact_now(store)
        graph = plain.build()
        assert farthest(store, model, graph) <= 1e-5
        own = store.graph.freeze()
        assert Plain(own).pairs == plain.pairs
        assert Plain(own).texts == plain.texts
        assert farthest(store, model, own) <= 1e-5

    edited()


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_kept_up_to_date(name: str, keep: bool, tmp_path: Path) -> None:
    model = make_model(**MODELS[name])
    store = make_base(tmp_path, model, keep_states=keep)
    ids = store.ids.to_pylist()
    plain = Plain(some_graph())
    edit = {
        "nodes": {"new": "graph layer", "other": "node", ids[3]: "another text"},
        "edges": [("new", ids[0]), ("other", "new"), (ids[7], ids[8])],
        "remove": [ids[20], ids[21]],
        "remove_edges": [
            tuple(sorted(pair))
            for pair in sorted(plain.pairs, key=sorted)[:2]
            if not pair & {ids[20], ids[21]}
        ],
    }
    update(store, model=model, **edit)
    plain.change(**edit)
    assert farthest(VectorStore.load(store.path), model, plain.build()) <= 1e-5


def test_only_the_work_that_changes_cause(tmp_path: Path) -> None:
    model, graph = make_model(num_neighbors=2), some_graph()
    store = make_base(tmp_path, model)
    ids = graph.ids.to_pylist()
    alone = next(node for node in range(graph.num_nodes) if not len(graph.neighbors_of(node)))

    def do(**edit: Any) -> UpdateReport:
        return update(store, model=model, **edit)

    report = do(nodes={"new": "graph"}, edges=[("new", ids[alone])])
    # itself; itself and the node that now sees it
    assert (report.plain_forwards, report.center_forwards) == (1, 2)
    report = do(edges=[(ids[alone], "new")])
    assert (report.forwards, report.already_so) == (0, 1)
    report = do(nodes={"new": "graph"})
    assert (report.forwards, report.already_so, report.new_nodes) == (0, 1, 0)
    report = do(nodes={"new": "text"})
    assert (report.plain_forwards, report.center_forwards, report.changed_nodes) == (1, 2, 1)
    report = do(nodes=[{"id": "new", "text": "text", "year": 2026}])
    assert (report.forwards, report.changed_nodes) == (0, 1)
    assert report.new_columns == ()
    assert do(nodes=[{"id": "new", "text": "text", "shelf": "A3"}]).new_columns == ("shelf",)
    report = do(remove=["new", "nobody"])
    assert (
        report.plain_forwards,
        report.center_forwards,
        report.removed_nodes,
        report.already_so,
    ) == (0, 1, 1, 1)
    assert report.not_there == ("nobody",)
    # A node with more neighbours than are drawn sees the new one only where it is drawn.
    degrees = graph.degrees()
    hub = ids[int(np.argmax(degrees))]
    seen = [
        do(nodes={f"far {i}": "graph"}, edges=[(f"far {i}", hub)]).center_forwards
        for i in range(12)
    ]
    assert set(seen) == {1, 2}
    assert (
        farthest(VectorStore.load(store.path), model, VectorStore.load(store.path).graph.freeze())
        <= 1e-5
    )


def test_what_is_not_said_of_a_node_stays(tmp_path: Path) -> None:
    model, graph = make_model(), some_graph()
    store = make_base(tmp_path, model)
    one, other = graph.ids.to_pylist()[:2]

    def columns(id: str) -> dict[str, Any]:
        graph = VectorStore.load(store.path).graph
        return {
            name: value
            for name, value in graph.fields(int(graph.find_nodes([id])[0])).items()
            if name not in ("id", "text")
        }

    before = columns(one)
    assert before["year"] is not None
    update(store, model=model, nodes={one: "another text", other: "another one"})
    assert columns(one) == before
    update(store, model=model, nodes=[{"id": one, "text": "another text", "shelf": "A3"}])
    assert columns(one) == before | {"shelf": "A3"}
    update(
        store,
        model=model,
        nodes=[{"id": one, "text": "a third", "year": 1900}, {"id": other, "text": "a fourth"}],
    )
    assert columns(one) == before | {"shelf": "A3", "year": 1900}
    assert update(store, model=model, nodes={one: "a third"}).already_so == 1


def test_columns_and_types_are_kept(tmp_path: Path) -> None:
    model, graph = make_model(), some_graph()
    store = make_base(tmp_path, model)
    ids = graph.ids.to_pylist()
    update(
        store, nodes=[{"id": "new", "text": "graph", "year": 2026, "venue": "here"}], model=model
    )
    update(
        store,
        edges=[("new", ids[0], "extends"), ("new", ids[1], "likes"), ("new", ids[2])],
        model=model,
    )
    for changed in (VectorStore.load(store.path), compact_now(VectorStore.load(store.path))):
        after = changed.graph.freeze()
        assert after.column("year").to_pylist() == [*graph.column("year").to_pylist(), 2026]
        assert after.column("venue").to_pylist() == [None] * graph.num_nodes + ["here"]
        assert after.edges.shape[1] == graph.edges.shape[1] + 3
        assert set(after.type_names) == {"cites", "extends", "likes", ""}
        assert np.array_equal(np.asarray(after.edges)[:, :-3], graph.edges)
    assert changed.commit.bytes == 0


@pytest.mark.parametrize(
    "limits",
    [
        CompactionSettings(least_bytes=2500, share=0.0),
        CompactionSettings(least_changed=4, changed_share=0.0),
    ],
)
def test_the_log_is_compacted_by_itself(tmp_path: Path, limits: CompactionSettings) -> None:
    model = make_model()
    store = make_base(tmp_path, model)
    reports = [
        update(store.path, nodes={f"new {i}": "graph"}, model=model, compaction=limits)
        for i in range(12)
    ]
    assert [report.is_compacted for report in reports].count(True) >= 2
    found = VectorStore.load(store.path)
    assert found.commit.bytes <= 2500 if limits.share == 0 else len(found.changed_nodes()) <= 4
    assert len(found) == 72
    assert farthest(found, model, found.graph.freeze()) <= 1e-5
    found.artifact.verify()
    assert [entry.name for entry in tmp_path.iterdir()] == ["some.vectors"]


def test_everything_can_be_removed(tmp_path: Path) -> None:
    model = make_model()
    store = make_base(tmp_path, model)
    assert update(store, remove=store.ids.to_pylist(), model=model).nodes == 0
    empty = compact_now(VectorStore.load(store.path))
    assert len(empty) == 0
    update(empty, nodes={"a": "graph", "b": "text"}, edges=[("a", "b")], model=model)
    full = VectorStore.load(store.path)
    assert farthest(full, model, full.graph.freeze()) <= 1e-5


def test_the_model_is_found_and_a_foreign_one_refused(tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "some.model")
    store = make_base(tmp_path, model)
    assert update(store, nodes={"new": "graph"}).new_nodes == 1
    before = bytes_of(store.path)
    with pytest.raises(
        GraphFormersError,
        match=r"was made with another model than the one given: fingerprint \w{12}, found",
    ):
        update(store, nodes={"newer": "graph"}, model=make_model(seed=1))
    make_model(seed=1).save_pretrained(tmp_path / "some.model", force=True)
    with pytest.raises(GraphFormersError, match=r"was made with another model than .*some.model"):
        update(store, nodes={"newer": "graph"})
    shutil.rmtree(tmp_path / "some.model")
    with pytest.raises(
        GraphFormersError, match="put it or a link to it there, or say where it is with model="
    ):
        update(store, nodes={"newer": "graph"})
    assert bytes_of(store.path) == before


def test_copied_vectors_do_not_name_a_model_that_never_was(tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "some.model")
    store = make_base(tmp_path, model)
    shutil.copytree(store.path, tmp_path / "elsewhere" / "some.vectors")
    with pytest.raises(
        GraphFormersError, match=r"looked for .*elsewhere/some\.model.* model='FOLDER'"
    ) as refused:
        update(tmp_path / "elsewhere" / "some.vectors", nodes={"new": "graph"})
    assert "made from the model /" not in str(refused.value)
    assert (
        update(
            tmp_path / "elsewhere" / "some.vectors",
            nodes={"new": "graph"},
            model=tmp_path / "some.model",
        ).new_nodes
        == 1
    )


def test_a_model_that_was_never_saved_must_be_passed(tmp_path: Path) -> None:
    store = make_base(tmp_path, make_model())
    with pytest.raises(GraphFormersError, match="a model that had no folder; pass it"):
        update(store, nodes={"new": "graph"})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"nodes": [{"id": "new"}]}, "nodes with the columns id given, 'text' is missing"),
        (
            {"nodes": [{"id": "new", "text": "a"}, {"id": "new", "text": "b"}]},
            "the id 'new' is used already at nodes, row 1",
        ),
        ({"nodes": {"new": " "}}, "the text of node 'new' is empty"),
        (
            {"nodes": {"new": "a"}, "remove": ["new"]},
            "'new' is both to be removed and given as a node",
        ),
        ({"edges": [("nobody", "no one")]}, "a link to 'nobody', expected the id of a node"),
        ({"edges": ["ab"]}, "the link 'ab' given, expected a pair of ids"),
        ({"edges": [7]}, "the link 7 given, expected a pair of ids"),
        (
            {"nodes": ["a"]},
            "the node 'a' given, expected a dict such as {'id': 'p1', 'text': 'a title'}",
        ),
        ({"nodes": {"id": "55", "text": "abc"}}, "one node goes in a list"),
        (
            {"nodes": [{"id": "a", "text": "t"}, {"id": "b", "text": float("nan")}]},
            "the text of node 'b' is empty",
        ),
        ({"nodes": {"a": float("nan")}}, "the text of node 'a' is empty"),
        (
            {"nodes": {"a": "a", "b": "b"}, "edges": [("a", "b", {"weight": 0.5})]},
            "its type is a dict, types are strings",
        ),
        ({"remove": [3]}, "the id 3 is a int, ids are strings"),
        (
            {"nodes": {"a": "a", "b": "b"}, "edges": [("a", "b")], "remove_edges": [("b", "a")]},
            "both given and to be removed",
        ),
        ({"nodes": "missing.csv"}, "missing.csv"),
        (
            {"nodes": [{"id": "new", "text": "a", "year": "now"}]},
            "'new': 'now' is no int64, which the column 'year' holds",
        ),
    ],
)
def test_mistakes_change_nothing(edit: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = make_model()
    store = make_base(tmp_path, model)
    before = bytes_of(store.path)
    with pytest.raises(GraphFormersError, match=message):
        update(store, model=model, **edit)
    assert bytes_of(store.path) == before


def test_ids_of_arrow_are_ids(tmp_path: Path) -> None:
    model = make_model()
    store = make_base(tmp_path, model)
    ids = store.graph.freeze().ids
    update(store, remove=ids.slice(0, 2), edges=[(ids[3], ids[9], pa.scalar("cites"))], model=model)
    found = VectorStore.load(store.path)
    assert set(ids.to_pylist()) - set(found.ids.to_pylist()) == {ids[0].as_py(), ids[1].as_py()}
    assert (
        found.graph.links_between(
            [tuple(found.graph.find_nodes(ids.take([3, 9]).to_pylist()).tolist())]
        )[0][-1][2]
        == "cites"
    )


def test_columns_have_one_type_whoever_writes_them(tmp_path: Path) -> None:
    """Also where the graph did not have the column."""
    model = make_model()
    store = make_base(tmp_path, model)
    update(store, nodes=[{"id": "new", "text": "graph", "year": "2026", "pages": 3}], model=model)
    assert VectorStore.load(store.path).graph.column("year").type == pa.int64()
    assert VectorStore.load(store.path).graph.column("year").to_pylist()[-1] == 2026
    with pytest.raises(
        GraphFormersError,
        match="the node 'other': 'few' is no int64, which the column 'pages' holds",
    ):
        update(store, nodes=[{"id": "other", "text": "graph", "pages": "few"}], model=model)


def test_a_list_of_ids_is_taken_to_the_letter(tmp_path: Path) -> None:
    model = make_model()
    store = make_base(tmp_path, model)
    update(store, nodes={" x ": "graph", "x": "node", "y\u2028z": "text"}, model=model)
    (tmp_path / "gone.txt").write_bytes(" x \r\n\ny\u2028z\n".encode())
    assert update(store, remove=tmp_path / "gone.txt", model=model).removed_nodes == 2
    assert "x" in VectorStore.load(store.path).ids.to_pylist()
    (tmp_path / "gone.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(
        GraphFormersError, match=r"gone.txt:1: byte 0xe9 at position 4 is not UTF-8"
    ) as refused:
        update(store, remove=tmp_path / "gone.txt", model=model)
    assert "skip_bad=True leaves such rows out" in str(refused.value)


def test_a_link_to_nobody_is_said_with_its_line(tmp_path: Path) -> None:
    model = make_model()
    store = make_base(tmp_path, model)
    (tmp_path / "links.csv").write_text(
        f"source,target\n{store.ids[0]},{store.ids[1]}\n{store.ids[0]},nobody\n"
    )
    with pytest.raises(GraphFormersError, match=r"links.csv:3: a link to 'nobody'"):
        update(store, edges=tmp_path / "links.csv", model=model)


def test_ends_of_links_that_nobody_has_are_named(tmp_path: Path) -> None:
    model = make_model()
    store = typed_base(tmp_path, model)
    (tmp_path / "links.csv").write_text(
        "source,target\na,b\na,nobody\nb,c\nno one,nobody\na,c\nnew,a\n"
    )
    report = update(
        store,
        nodes={"new": "text"},
        remove_edges=tmp_path / "links.csv",
        remove=["nobody", "c"],
        model=model,
    )
    # c was there, new is now; a and c were not linked, which is no mistake
    assert report.not_there == ("nobody", "no one")
    assert (report.removed_nodes, report.removed_links, report.already_so) == (1, 1, 6)


def test_columns_of_links_that_are_not_kept_are_named(tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "some.model")
    store = typed_base(tmp_path, model)
    (tmp_path / "links.csv").write_text("source,target,type,when,weight\na,c,likes,2001,0.5\n")
    (tmp_path / "plain.csv").write_text("source,target,type\nc,a,likes\n")

    def said(name: str, *words: str) -> str:
        done = forked.run(
            forked.command,
            "update",
            str(store.path),
            "--edges",
            str(tmp_path / name),
            "--device",
            "cpu",
            *words,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert (
        "not kept of the edges: when, weight; links that an update adds have a type at most\n"
        in said("links.csv")
    )
    assert '"edge_columns_not_kept": ["when", "weight"]' in said("links.csv", "--json")
    assert "not kept" not in said("plain.csv")
    assert links_of(store) == [
        ("a", "b", "cites"),
        ("a", "c", "likes"),
        ("b", "c", "cites"),
        ("c", "a", "likes"),
    ]


def test_a_new_column_without_values_is_none(tmp_path: Path) -> None:
    """It does not say what it holds: numbers that come later would be texts."""
    model, store = imported_base(tmp_path, "id,text\na,graph\nb,text\n")
    assert (
        update(store, nodes=[{"id": "a", "text": "graph", "pages": None}], model=model).already_so
        == 1
    )
    (tmp_path / "new.csv").write_text("id,text,pages\nc,words,\n")
    assert update(store, nodes=tmp_path / "new.csv", model=model).new_columns == ()
    assert update(
        store, nodes=[{"id": "b", "text": "text", "pages": 5}], model=model
    ).new_columns == ("pages",)
    assert VectorStore.load(store.path).graph.fields(1)["pages"] == 5
    (tmp_path / "new.csv").write_text("id,text,pages\nc,words,\nd,more,7\n")
    update(store, nodes=tmp_path / "new.csv", model=model)
    assert VectorStore.load(store.path).graph.freeze().table["pages"].to_pylist() == [
        None,
        5,
        None,
        7,
    ]


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    model = make_model()
    store = make_base(tmp_path, model)
    with (
        locked(store.path),
        pytest.raises(GraphFormersError, match="is being changed by another process"),
    ):
        embed(model, some_graph(), store.path, force=True)
    with (
        locked(store.path),
        pytest.raises(GraphFormersError, match="is being changed by another process"),
    ):
        update(store, nodes={"new": "graph"}, model=model)
    assert update(store, nodes={"new": "graph"}, model=model).nodes == 61


def test_one_writer_for_many_changes_keeps_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server works: one lock, one model, every change on disk before the next; compactions in
    between.
    """
    model = make_model()
    path = make_base(tmp_path, model).path
    monkeypatch.setattr(shards, "LOCK_TRIES", 1)
    limits = CompactionSettings(least_bytes=2500, share=0.0)
    with locked(path) as lock:
        updater = Updater(VectorStore.load(path), model, lock, limits)
        ids = updater.store.ids.to_pylist()
        compactions = 0
        for i in range(8):
            report = updater.apply(
                read_edits(
                    updater.store.graph, nodes={f"new {i}": "graph"}, edges=[(f"new {i}", ids[i])]
                )
            )
            compactions += report.is_compacted
            assert f"new {i}" in updater.store
            assert np.array_equal(VectorStore.load(path)[f"new {i}"], updater.store[f"new {i}"])
            with (
                pytest.raises(GraphFormersError, match="is being changed by another process"),
                locked(path),
            ):
                pass
        assert compactions >= 1
    found = VectorStore.load(path)
    assert farthest(found, model, found.graph.freeze()) <= 1e-5


def typed_base(folder: Path, model: GraphFormers, **columns: list[Any]) -> VectorStore:
    """Three nodes with columns of any type."""
    nodes = pa.table({"id": ["a", "b", "c"], "text": ["graph", "text", "node"], **columns})
    return embed(
        model,
        build_graph(nodes, [("a", "b", "cites"), ("b", "c", "cites")]),
        folder / "typed.vectors",
        **EXACT,
    )


@pytest.mark.parametrize("values", [[["x"], [], ["y", "z"]], [{"n": 1}, None, {"n": 3}]])
def test_columns_of_lists_and_objects_change_as_others_do(
    values: list[Any], tmp_path: Path
) -> None:
    model = make_model()
    store = typed_base(tmp_path, model, odd=values)
    update(
        store,
        nodes=[
            {"id": "d", "text": "new", "odd": values[2]},
            {"id": "a", "text": "graph", "odd": values[2]},
        ],
        model=model,
    )
    found = VectorStore.load(store.path)
    assert found.graph.column("odd").to_pylist() == [values[2], *values[1:], values[2]]
    assert compact_now(found).graph.freeze().column("odd").to_pylist() == [
        values[2],
        *values[1:],
        values[2],
    ]
    with pytest.raises(
        GraphFormersError, match=r"which the column 'odd' holds|which cannot be compared"
    ):
        allowed_nodes(found.graph, ["odd<[1]"])


def test_text_stays_as_it_was_written(tmp_path: Path) -> None:
    """Whatever it looks like: versions are no numbers."""
    model = make_model()
    store = typed_base(tmp_path, model, version=["1.0", "2.0-beta", "3"])
    (tmp_path / "new.csv").write_text("id,text,version\na,graph,1.0\nb,text,1e5\nd,new,\n")
    report = update(store, nodes=tmp_path / "new.csv", model=model)
    assert report.changed_nodes == 1  # b: a has that version already
    assert VectorStore.load(store.path).graph.column("version").to_pylist() == [
        "1.0",
        "1e5",
        "3",
        None,
    ]


def test_fields_of_an_object_are_not_lost(tmp_path: Path) -> None:
    model = make_model()
    store = typed_base(tmp_path, model, meta=[{"n": 1}, None, {"n": 3}])
    with pytest.raises(GraphFormersError, match="has no 'm': it would be lost"):
        update(store, nodes=[{"id": "a", "text": "graph", "meta": {"m": 5}}], model=model)


def test_a_link_without_an_end_is_no_link_to_none(tmp_path: Path) -> None:
    model = make_model()
    store = typed_base(tmp_path, model)
    update(store, nodes={"None": "text"}, model=model)
    parquet.write_table(
        pa.table({"src": ["a", None], "dst": ["c", "a"]}), tmp_path / "links.parquet"
    )
    with pytest.raises(GraphFormersError, match="an edge with an empty end"):
        update(store, edges=tmp_path / "links.parquet", model=model)
    with pytest.raises(GraphFormersError, match="an edge with an empty end"):
        update(store, remove_edges=tmp_path / "links.parquet", model=model)
    report = update(
        store, edges=tmp_path / "links.parquet", model=model, settings=ImportSettings(skip_bad=True)
    )
    assert report.new_links == 1


def links_of(store: VectorStore) -> list[tuple[str, str, str]]:
    """As a reader of the folder finds them, sorted."""
    graph = VectorStore.load(store.path).graph.freeze()
    ends = (graph.ids_of(side) for side in np.asarray(graph.edges))
    return sorted(zip(*ends, [graph.type_names[kind] for kind in graph.edge_types], strict=True))


def test_a_linked_pair_takes_links_of_other_types(tmp_path: Path) -> None:
    """Their neighbourhoods stay what they were, so nothing is computed."""
    model = make_model()
    store = typed_base(tmp_path, model)
    more = [("a", "b", "extends"), ("b", "a", "cites")]
    report = update(
        store,
        edges=[*more, *more, ("a", "b", "cites"), ("b", "a", None), ("a", "a", "cites")],
        model=model,
    )
    assert (report.new_links, report.forwards) == (2, 0)
    expected = sorted([("a", "b", "cites"), *more, ("b", "c", "cites")])
    assert links_of(store) == expected
    assert update(VectorStore.load(store.path), edges=more, model=model).new_links == 0
    compact_now(VectorStore.load(store.path))
    assert links_of(store) == expected
    found = VectorStore.load(store.path)
    assert update(found, edges=[*more, ("c", "b", "extends")], model=model).new_links == 1
    update(found, remove_edges=[("b", "a")], model=model)
    assert links_of(store) == [("b", "c", "cites"), ("c", "b", "extends")]
    assert update(found, edges=[("a", "b", "cites")], model=model).new_links == 1
    assert farthest(found, model, found.graph.freeze()) <= 1e-5


def test_an_empty_type_means_links_without_one(tmp_path: Path) -> None:
    """Where types are told; all links of the pair would be more than was said."""
    model, store = imported_base(tmp_path, "id,text\na,graph\nb,text\n", links="a,b,\nb,a,likes\n")
    (tmp_path / "gone.csv").write_text("src,dst,type\nb,a,\n")
    report = update(store, remove_edges=tmp_path / "gone.csv", model=model)
    assert (report.removed_links, report.forwards) == (1, 0)
    assert links_of(store) == [("b", "a", "likes")]
    report = update(store, remove_edges=[("a", "b", None)], model=model)
    assert (report.removed_links, report.linked_otherwise) == (0, (("a", "b", ""),))
    compact_now(VectorStore.load(store.path))
    assert links_of(store) == [("b", "a", "likes")]
    assert (
        update(
            store, edges=[("a", "b", "cites")], remove_edges=[("a", "b", "likes")], model=model
        ).removed_links
        == 1
    )
    assert (
        update(store, edges=[("b", "a", "cites"), ("a", "b", "likes")], model=model).new_links == 2
    )
    assert update(store, remove_edges=[("a", "b")], model=model).removed_links == 3


def test_links_from_tables_in_memory(tmp_path: Path) -> None:
    model, store = imported_base(tmp_path, "id,text\na,graph\nb,text\nc,node\n")
    table = pa.table({"source": ["a", "b"], "target": ["c", "c"], "type": ["cites", None]})
    assert update(store, edges=table, model=model).new_links == 2
    assert (
        update(
            store, edges=[{"source": "c", "target": "b", "relation": "likes"}], model=model
        ).new_links
        == 1
    )
    assert update(store, remove_edges=table, model=model).removed_links == 2
    assert links_of(store) == [("a", "b", "cites"), ("a", "b", "likes"), ("c", "b", "likes")]
    own = [{"one": "a", "two": "c"}]
    with pytest.raises(GraphFormersError, match=r"^links: no column for src"):
        update(store, edges=own, model=model)
    assert (
        update(store, edges=own, model=model, columns={"src": "one", "dst": "two"}).new_links == 1
    )
    with pytest.raises(GraphFormersError, match=r"^links: no column for type"):
        update(
            store,
            remove_edges=({"src": a, "dst": b} for a, b in ["ab"]),
            model=model,
            columns={"type": "kind"},
        )
    with pytest.raises(GraphFormersError, match=r"half of a character|surrogates not allowed"):
        update(store, edges=[{"src": "a", "dst": "b", "type": "\ud800"}], model=model)
    # as pandas has them
    labelled = pa.table({"src": ["b"], "dst": ["c"], "__index_level_0__": [5]})
    assert update(store, remove_edges=labelled, model=model).removed_links == 1
    with pytest.raises(GraphFormersError, match="links: the column 'kind' means nothing here"):
        update(store, remove_edges=[{"source": "a", "target": "c", "kind": "likes"}], model=model)
    with pytest.raises(
        GraphFormersError, match=r"the link \(11, 'a'\): 11 is a int, ids are strings"
    ):
        update(store, edges=[(11, "a")], model=model)
    with pytest.raises(
        GraphFormersError, match="no setting 'bogus' of an update; there are: columns"
    ):
        update(store, edges=table, model=model, bogus=1)


def test_nodes_in_memory_whose_text_has_another_name_are_refused(tmp_path: Path) -> None:
    """A file with these columns would change the text; this would leave it, and make a column of
    it.
    """
    (tmp_path / "1").mkdir()
    model, store = imported_base(tmp_path / "1", "id,title,year\na,graph,1\nb,text,2\n")
    with pytest.raises(
        GraphFormersError,
        match="in Python the text of a node is called 'text', and 'title' is a column beside it",
    ):
        update(store, nodes=[{"id": "a", "title": "other"}], model=model)
    assert update(store, nodes=[{"id": "a", "year": 5}], model=model).changed_nodes == 1
    (tmp_path / "2").mkdir()
    model, store = imported_base(
        tmp_path / "2", "id,words\na,graph\nb,text\n", columns={"text": "words"}
    )
    with pytest.raises(GraphFormersError, match="and 'words' is a column beside it"):
        update(store, nodes=pa.table({"id": ["a"], "words": ["other"]}), model=model)


@pytest.mark.parametrize("place", [".", "../some.vectors/."])
def test_a_folder_can_be_changed_from_within(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a path has no name, the folder around it would be itself; a compaction leaves the
    folder where it is.
    """
    model = make_model()
    store = make_base(tmp_path, model)
    monkeypatch.chdir(store.path)
    always = CompactionSettings(least_bytes=1, share=0.0)
    for i in range(2):
        assert update(
            place if not i else store.path,
            nodes={f"new {i}": "graph"},
            model=model,
            compaction=always,
        ).is_compacted
    monkeypatch.chdir(store.path)
    assert len(VectorStore.load(".")) == 62
    assert update(".", nodes={"one more": "graph"}, model=model, compaction=always).nodes == 63
    assert len(VectorStore.load(".")) == 63
    monkeypatch.chdir(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["some.vectors"]


def test_links_of_one_type_can_be_removed(tmp_path: Path) -> None:
    """Either way; a pair that stays linked by others stays a neighbour, and nothing is computed."""
    model = make_model()
    store = typed_base(tmp_path, model)
    update(
        store, edges=[("b", "a", "extends"), ("b", "a", "cites"), ("c", "b", "likes")], model=model
    )
    (tmp_path / "gone.csv").write_text(
        "source,target,type\na,b,cites\na,b,likes\nc,b,cites\na,c,cites\nb,c,cites\nb,c,cites\n"
    )
    report = update(store, remove_edges=tmp_path / "gone.csv", model=model)
    assert (report.removed_links, report.new_links, report.already_so, report.forwards) == (
        3,
        0,
        3,
        0,
    )
    assert report.linked_otherwise == (("a", "b", "likes"),)
    expected = [("b", "a", "extends"), ("c", "b", "likes")]
    assert links_of(store) == expected
    assert update(store, remove_edges=[("a", "b", "cites")], model=model).already_so == 1
    compact_now(VectorStore.load(store.path))
    assert links_of(store) == expected
    exchanged = {"remove_edges": [("a", "b", "extends")], "edges": [("a", "b", "cites")]}
    report = update(store, **exchanged, model=model)
    assert (report.removed_links, report.new_links, report.forwards) == (1, 1, 0)
    report = update(
        store, remove_edges=[("a", "b", "cites"), ("b", "c", "cites"), ("b", "c")], model=model
    )
    assert (report.removed_links, report.already_so, report.center_forwards) == (2, 1, 3)
    found = VectorStore.load(store.path)
    assert found.graph.freeze().num_pairs == 0
    assert farthest(found, model, found.graph.freeze()) <= 1e-5


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_links_come_and_go_as_in_a_plain_set(data: st.DataObject) -> None:
    ids, kinds = ["a", "b", "c", "d"], [None, "cites", "likes"]
    link = st.tuples(st.sampled_from(ids), st.sampled_from(ids), st.sampled_from(kinds)).filter(
        lambda link: link[0] != link[1]
    )
    table = pa.table({"id": ids, "text": ids})
    some = data.draw(st.lists(link, max_size=6, unique=True))
    typed = any(kind for *_, kind in some)
    graph = EditedGraph(build_graph(table, some if typed else [pair[:2] for pair in some]))
    plain = {(one, other, kind or "") for one, other, kind in some}
    pair = st.tuples(st.sampled_from(ids), st.sampled_from(ids)).filter(
        lambda pair: pair[0] != pair[1]
    )
    for _ in range(data.draw(st.integers(1, 4))):
        removed = data.draw(st.lists(st.one_of(link, pair), max_size=3))
        pairs = {frozenset(each[:2]) for each in removed}
        added = [
            each
            for each in data.draw(st.lists(link, max_size=3))
            if frozenset(each[:2]) not in pairs
        ]
        result = apply(read_edits(graph, edges=added, remove_edges=removed), graph)
        before = plain
        for one, other, *kind in removed:
            plain = {
                own
                for own in plain
                if {one, other} != {*own[:2]} or (kind and own[2] != (kind[0] or ""))
            }
        assert result.num_unlinked == len(before) - len(plain)
        graph = result.graph
        for one, other, kind in added:
            if kind or not any({one, other} == {*own[:2]} for own in plain):
                plain.add((one, other, kind or ""))
        frozen = graph.freeze()
        names = (
            [""] * frozen.edges.shape[1]
            if frozen.edge_types is None
            else [frozen.type_names[kind] for kind in frozen.edge_types]
        )
        assert (
            set(
                zip(*(frozen.ids_of(side) for side in np.asarray(frozen.edges)), names, strict=True)
            )
            == plain
        )
        assert {frozenset(frozen.ids_of(pair)) for pair in frozen.pairs()} == {
            frozenset(own[:2]) for own in plain
        }
        graph = EditedGraph(frozen) if data.draw(st.booleans()) else graph


def test_links_that_stay_keep_their_times(tmp_path: Path) -> None:
    model = make_model()
    table = pa.table({"id": ["a", "b", "c"], "text": ["graph", "node", "text"]})
    ends = [
        ("a", "b", "cites", 2001),
        ("a", "b", "likes", 2002),
        ("b", "a", "likes", 2003),
        ("b", "c", "cites", 2004),
    ]
    sources, targets, kinds, years = (list(column) for column in zip(*ends, strict=True))
    graph = build_graph(
        table,
        {"source": sources, "target": targets, "type": kinds, "time": years},
        columns={"time": "time"},
    )
    store = embed(model, graph, tmp_path / "some.vectors")
    assert update(store, remove_edges=[("b", "a", "cites")], model=model).removed_links == 1

    def found() -> list[tuple[Any, ...]]:
        left = VectorStore.load(store.path).graph.freeze()
        names = [left.type_names[kind] for kind in left.edge_types.tolist()]
        return list(
            zip(
                *(left.ids_of(side) for side in np.asarray(left.edges)),
                names,
                left.edge_times.tolist(),
                strict=True,
            )
        )

    assert found() == ends[1:]
    compact_now(VectorStore.load(store.path))
    assert found() == ends[1:]
    update(store, edges=[("a", "b", "cites")], model=model)
    assert [link[:3] for link in found()] == [*(link[:3] for link in ends[1:]), ("a", "b", "cites")]


def test_a_link_without_a_type_is_none_of_a_type(tmp_path: Path) -> None:
    """In a graph without types, nothing is removed where one is asked for, which is said; a blank
    type is none.
    """
    model = make_model()
    table = pa.table({"id": ["a", "b", "c"], "text": ["graph", "node", "text"]})
    store = embed(model, build_graph(table, [("a", "b"), ("b", "c")]), tmp_path / "some.vectors")
    (tmp_path / "gone.csv").write_text("source,target,type\na,b,cites\nc,b,\n")
    report = update(store, edges=[("a", "b", "likes")], model=model)
    report = update(store, remove_edges=tmp_path / "gone.csv", model=model)
    assert (report.removed_links, report.linked_otherwise) == (1, (("a", "b", "cites"),))
    assert (
        "linked otherwise: 1 links, such as 'a' – 'b', which have no link of type 'cites'"
        in str(report.as_table())
    )
    update(store, remove_edges=[("a", "b", "likes")], model=model)
    assert VectorStore.load(store.path).graph.freeze().num_pairs == 1


def test_links_that_were_removed_do_not_come_back(tmp_path: Path) -> None:
    model = make_model()
    store = typed_base(tmp_path, model)

    def links() -> set[tuple[str, str, str]]:
        return set(links_of(store))

    update(store, remove_edges=[("a", "b")], model=model)
    update(store, edges=[("b", "a", "retracts")], model=model)
    assert links() == {("b", "a", "retracts"), ("b", "c", "cites")}
    update(store, remove_edges=[("a", "b")], model=model)
    update(store, edges=[("a", "b", "likes")], model=model)
    assert links() == {("a", "b", "likes"), ("b", "c", "cites")}
    update(store, remove=["a"], model=model)
    update(store, nodes={"a": "another"}, edges=[("a", "b", "knows")], model=model)
    assert links() == {("a", "b", "knows"), ("b", "c", "cites")}
    compact_now(VectorStore.load(store.path))
    assert links() == {("a", "b", "knows"), ("b", "c", "cites")}


def test_views_of_strings_are_strings(tmp_path: Path) -> None:
    """As polars gives them."""
    model = make_model()
    venues = pa.array(["x", "y", "x"], pa.string_view())
    store = typed_base(tmp_path, model, venue=venues)
    update(store, nodes=[{"id": "d", "text": "new", "venue": "y"}], model=model)
    found = compact_now(VectorStore.load(store.path))
    assert found.graph.freeze().column("venue").to_pylist() == ["x", "y", "x", "y"]
    assert allowed_nodes(found.graph, ["venue=y"]).tolist() == [False, True, False, True]  # type: ignore[union-attr]


def test_an_update_whose_compaction_fails_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    store = make_base(tmp_path, model)

    def fail(store: VectorStore) -> VectorStore:
        raise GraphFormersError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "is_due", lambda *given: True)
        patch.setattr(compaction, "compact", fail)
        assert not update(store, nodes={"new": "graph"}, model=model).is_compacted
    assert (
        "the update is done, but its edits could not be compacted: the disk is full" in caplog.text
    )
    assert "new" in VectorStore.load(store.path)


def test_a_folder_that_is_exchanged_while_it_is_opened_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction between the manifest and the graph: both would be of different bases."""
    model = make_model()
    store = make_base(tmp_path, model)
    first = store.ids[0].as_py()
    update(store, remove=[first], nodes={"new": "graph"}, model=model)
    load, calls = TextGraph.load, []

    def exchange(path: Path) -> TextGraph:
        calls.append(path)
        if len(calls) == 1:
            with monkeypatch.context() as patch:
                patch.setattr(TextGraph, "load", load)
                compact_now(VectorStore.load(store.path))
        return load(path)

    monkeypatch.setattr(TextGraph, "load", exchange)
    found = VectorStore.load(store.path)
    monkeypatch.undo()
    assert len(calls) == 2
    assert found.commit.bytes == 0
    assert farthest(found, model, found.graph.freeze()) <= 1e-5


def test_nobody_else_writes_between_a_compaction_and_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even while the new base is being opened; an updater that lives on goes on behind what is
    there then.
    """
    model = make_model()
    store, tried = make_base(tmp_path, model), []
    load = VectorStore.load

    def opened(path: Path) -> VectorStore:
        with (
            pytest.raises(GraphFormersError, match="is being changed by another process"),
            locked(path),
        ):
            pass
        tried.append(path)
        return load(path)

    monkeypatch.setattr(compaction, "is_due", lambda *given: len(tried) == 0)
    with locked(store.path) as lock:
        updater = Updater(VectorStore.load(store.path), model, lock)
        monkeypatch.setattr(VectorStore, "load", staticmethod(opened))
        assert updater.apply(read_edits(updater.store.graph, nodes={"one": "graph"})).is_compacted
        monkeypatch.undo()
        assert tried
        updater.apply(read_edits(updater.store.graph, nodes={"two": "graph text"}))
        with pytest.raises(GraphFormersError, match="is being changed by another process"):
            update(store, nodes={"three": "text"}, model=model)
    update(store, nodes={"three": "text"}, model=model)
    assert {"one", "two", "three"} <= set(VectorStore.load(store.path))


def test_an_updater_whose_new_base_cannot_be_opened_writes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the old one alone, whose edits are not read any more."""
    model = make_model()
    store = make_base(tmp_path, model)

    def fail(path: Path) -> VectorStore:
        raise OSError(errno.EMFILE, "too many open files")

    with locked(store.path) as lock:
        updater = Updater(VectorStore.load(store.path), model, lock)
        with monkeypatch.context() as patch:
            patch.setattr(compaction, "is_due", lambda *given: True)
            patch.setattr(VectorStore, "load", staticmethod(fail))
            assert not updater.apply(
                read_edits(updater.store.graph, nodes={"one": "graph"})
            ).is_compacted
        with pytest.raises(GraphFormersError, match="another base was put in its place"):
            updater.apply(read_edits(updater.store.graph, nodes={"two": "graph text"}))
    update(store, nodes={"three": "text"}, model=model)
    assert {"one", "three"} <= set(VectorStore.load(store.path))


def test_columns_alone_leave_texts_and_vectors(tmp_path: Path) -> None:
    """From a file and from Python; a new node needs a text."""
    model, graph = make_model(), some_graph()
    store = embed(model, graph, tmp_path / "some.vectors")
    one, other = graph.ids_of(np.array([1, 2]))
    (tmp_path / "years.csv").write_text(f"id,year,colour\n{one},2001,red\n")
    report = update(store, nodes=tmp_path / "years.csv", model=model)
    assert report.forwards == 0
    store = VectorStore.load(store.path)
    update(store, nodes=[{"id": other, "year": 2002}], model=model)
    store = VectorStore.load(store.path)
    assert [store.graph.fields(node)["year"] for node in store.graph.find_nodes([one, other])] == [
        2001,
        2002,
    ]
    assert store.graph.fields(int(store.graph.find_nodes([one])[0]))["colour"] == "red"
    assert store.graph.texts_of(store.graph.find_nodes([one, other])) == graph.texts_of(
        np.array([1, 2])
    )
    assert np.array_equal(
        np.asarray(store), np.asarray(embed(model, graph, tmp_path / "again.vectors"))
    )
    with pytest.raises(
        GraphFormersError, match="nodes with the columns id, year given, 'text' is missing"
    ):
        update(store, nodes=[{"id": "new", "year": 2002}], model=model)
    (tmp_path / "years.csv").write_text("id,year\nnew,2001\n")
    with pytest.raises(
        GraphFormersError, match=r"years\.csv:2: the node 'new' is new and needs a text"
    ):
        update(store, nodes=tmp_path / "years.csv", model=model)


def imported_base(folder: Path, table: str, **settings: Any) -> tuple[GraphFormers, VectorStore]:
    """Vectors of a graph read from a table, links of two types included."""
    (folder / "nodes.csv").write_text(table)
    links = settings.pop("links", "a,b,cites\na,b,likes\n")
    (folder / "links.csv").write_text(
        f"src,dst,type\n{links}" if settings.get("header", True) else "a,b\n"
    )
    model, columns = make_model(), settings.pop("columns", {})
    if not settings.get("header", True):
        columns |= {"src": "1", "dst": "2"}
    graph = read_graph(
        nodes=folder / "nodes.csv", edges=folder / "links.csv", columns=columns, **settings
    )
    return model, embed(model, graph.save(folder / "some.graph"), folder / "some.vectors", **EXACT)


def test_files_are_read_as_those_of_the_graph_were(tmp_path: Path) -> None:
    """Another column would be taken for the text otherwise, and all texts be changed by the very
    file they came from.
    """
    columns = {"id": "paper", "text": "title, abstract"}
    model, store = imported_base(
        tmp_path, "paper,title,abstract,year\na,graph,node,1\nb,text,layer,2\n", columns=columns
    )
    assert update(store, nodes=tmp_path / "nodes.csv", model=model).already_so == 2
    (tmp_path / "new.csv").write_text("paper,title,abstract\na,graph,node\nc,new,words\n")
    report = update(store, nodes=tmp_path / "new.csv", model=model)
    assert (report.new_nodes, report.changed_nodes, report.already_so) == (1, 0, 1)
    assert VectorStore.load(store.path).text("c") == "new. words"
    (tmp_path / "half.csv").write_text("paper,title\na,other\n")  # one of the two texts is none
    assert update(store, nodes=tmp_path / "half.csv", model=model).new_columns == ("title",)
    assert VectorStore.load(store.path).text("a") == "graph. node"
    (tmp_path / "half.csv").write_text("paper,title\nd,other\n")
    with pytest.raises(
        GraphFormersError, match=r"half.csv:2: the node 'd' is new and needs a text"
    ):
        update(store, nodes=tmp_path / "half.csv", model=model)
    (tmp_path / "plain.csv").write_text("id,text\nd,other\n")  # as anybody would write it
    assert update(store, nodes=tmp_path / "plain.csv", model=model).new_nodes == 1
    (tmp_path / "told.csv").write_text("paper,title\ne,other\n")
    assert (
        update(store, nodes=tmp_path / "told.csv", model=model, columns={"text": "title"}).new_nodes
        == 1
    )
    assert VectorStore.load(store.path).text("e") == "other"


def test_columns_that_the_import_left_out_stay_out(tmp_path: Path) -> None:
    table = "id,title,note,year\na,graph,x,1\nb,text,y,2\n"
    model, store = imported_base(tmp_path, table, columns={"text": "title"}, keep=("year",))
    assert update(store, nodes=tmp_path / "nodes.csv", model=model).already_so == 2
    (tmp_path / "new.csv").write_text("id,title,note,year\na,graph,z,3\n")
    report = update(store, nodes=tmp_path / "new.csv", model=model)
    assert (report.changed_nodes, report.new_columns, report.columns_not_kept) == (1, (), ("note",))
    assert (
        "not kept of the nodes: note, as when the graph was imported; keep=['note'] keeps them"
        in str(report.as_table())
    )
    (tmp_path / "few.csv").write_text("id,title\nc,words\n")  # none of those that are kept
    assert update(store, nodes=tmp_path / "few.csv", model=model).new_nodes == 1
    report = update(store, nodes=tmp_path / "new.csv", model=model, keep=("note",))
    assert (report.new_columns, report.columns_not_kept) == (("note",), ())
    assert VectorStore.load(store.path).graph.fields(0) == {
        "id": "a",
        "text": "graph",
        "year": 3,
        "note": "z",
    }
    # it is a column of the graph now
    assert update(store, nodes=tmp_path / "nodes.csv", model=model).changed_nodes == 2
    with pytest.raises(
        GraphFormersError,
        match=r"keep=\['colour'\]: .*new.csv has no column of that name; there are: id, note",
    ):
        update(store, nodes=tmp_path / "new.csv", model=model, keep=("colour",))
    with pytest.raises(
        GraphFormersError, match="the column 'colour' to keep given, but no file holds nodes"
    ):
        update(store, nodes={"a": "graph"}, model=model, keep=("colour",))
    # beside those that the graph has
    (tmp_path / "new.csv").write_text("id,title,year,colour,size\nd,more,7,red,\n")
    assert update(
        store, nodes=tmp_path / "new.csv", model=model, keep=["colour", "size"]
    ).new_columns == ("colour",)
    assert VectorStore.load(store.path).graph.fields(3) == {
        "id": "d",
        "text": "more",
        "year": 7,
        "colour": "red",
    }


def test_a_value_that_does_not_fit_its_column_is_told_with_its_line(tmp_path: Path) -> None:
    model, store = imported_base(tmp_path, "id,text,year\na,graph,1\nb,text,2\n")
    (tmp_path / "new.csv").write_text(
        "id,text,year\nc,words,3\nc,again,4\nd,more,soon\ne,last,late\n"
    )
    with pytest.raises(GraphFormersError, match=r"new.csv:3: the id 'c' is used already"):
        update(store, nodes=tmp_path / "new.csv", model=model)
    report = update(store, nodes=tmp_path / "new.csv", model=model, skip_bad=True)
    assert dict(report.skipped) == {"duplicate id": 1, "value of another kind": 2}
    assert [
        VectorStore.load(store.path).graph.fields(2)[name] for name in ("id", "text", "year")
    ] == ["c", "words", 3]
    (tmp_path / "new.csv").write_text("id,text,year\nc,words,3\nd,more,soon\n")
    expected = (
        r"new.csv:3: the node 'd': 'soon' is no int64, which the "
        r"column 'year' holds \(skip_bad=True leaves"
    )
    with pytest.raises(GraphFormersError, match=expected):
        update(store, nodes=tmp_path / "new.csv", model=model)
    records = ['"c", "tags": ["1"]', '"d", "tags": ["z"]', '"e", "tags": ["2"]', '"f"']
    (tmp_path / "new.jsonl").write_text(
        "".join(f'{{"text": "some", "id": {record}}}\n' for record in records)
    )
    tagged = update(store, nodes=[{"id": "a", "text": "graph", "tags": [1]}], model=model)
    assert tagged.new_columns == ("tags",)
    with pytest.raises(GraphFormersError, match=r"new.jsonl:2: the node 'd': \['z'\] is no"):
        update(store, nodes=tmp_path / "new.jsonl", model=model)
    assert update(store, nodes=tmp_path / "new.jsonl", model=model, skip_bad=True).skipped == {
        "value of another kind": 1
    }
    graph = VectorStore.load(store.path).graph
    assert [graph.fields(int(node))["tags"] for node in graph.find_nodes(["a", "c", "e", "f"])] == [
        [1],
        [1],
        [2],
        None,
    ]
    with pytest.raises(GraphFormersError, match="nodes, row 1: the node 'd': 'soon' is no int64"):
        update(store, nodes=[{"id": "d", "text": "more", "year": "soon"}], model=model)


def test_columns_that_are_called_like_ours(tmp_path: Path) -> None:
    table = "id,text,abstract,doi\na,short,graph,x\nb,short,text,y\n"
    model, store = imported_base(tmp_path, table, columns={"text": "abstract"})
    # the text that the graph has beside its own
    (tmp_path / "new.csv").write_text("id,text\na,brief\n")
    assert update(store, nodes=tmp_path / "new.csv", model=model).forwards == 0
    fields = VectorStore.load(store.path).graph.fields(0)
    assert (fields["text"], fields["text_"]) == ("graph", "brief")
    # a column of the graph may be the id of a file
    (tmp_path / "new.csv").write_text("doi,abstract\na,other\n")
    assert (
        update(store, nodes=tmp_path / "new.csv", model=model, columns={"id": "doi"}).changed_nodes
        == 1
    )
    assert VectorStore.load(store.path).text("a") == "other"


def test_a_column_that_the_graph_has_is_not_taken_for_the_text(tmp_path: Path) -> None:
    model, store = imported_base(tmp_path, "id,title,abstract\na,graph,node\nb,text,layer\n")
    (tmp_path / "new.csv").write_text("id,abstract\na,other\n")
    assert update(store, nodes=tmp_path / "new.csv", model=model).forwards == 0
    found = VectorStore.load(store.path)
    assert (found.text("a"), found.graph.fields(0)["abstract"]) == ("graph", "other")


def test_files_without_a_header_and_nodes_without_a_text(tmp_path: Path) -> None:
    columns = {"id": "1", "text": "2"}
    model, store = imported_base(
        tmp_path, "a,graph\nb,\n", header=False, keep_empty=True, columns=columns
    )
    (tmp_path / "new.csv").write_text("b,\nc,\nd,text\n")
    report = update(store, nodes=tmp_path / "new.csv", model=model)
    assert (report.new_nodes, report.already_so) == (2, 1)
    found = VectorStore.load(store.path)
    assert [found.text(id) for id in "abcd"] == ["graph", "", "", "text"]
    assert farthest(found, model, found.graph.freeze()) <= 1e-5
    (tmp_path / "new.csv").write_text("id,text\ne,words\n")
    with pytest.raises(GraphFormersError, match="no column for text"):
        update(
            store, nodes=tmp_path / "new.csv", model=model, header=True, columns={"text": "words"}
        )
    assert update(store, nodes=tmp_path / "new.csv", model=model, header=True).new_nodes == 1


def test_rows_that_are_left_out_are_counted(tmp_path: Path) -> None:
    model, store = imported_base(tmp_path, "id,text\na,graph\nb,text\n")
    (tmp_path / "new.csv").write_text("id,text\nc,\nd,words\n")
    with pytest.raises(
        GraphFormersError,
        match=r"new.csv:2: the text of node 'c' is empty.*skip_bad=True leaves such rows out",
    ):
        update(store, nodes=tmp_path / "new.csv", model=model)
    (tmp_path / "links.csv").write_text("src,dst\na,a\nd,a\nnobody,a\n")
    with pytest.raises(
        GraphFormersError, match=r"links.csv:4: a link to 'nobody', expected the id of a node"
    ):
        update(store, nodes={"d": "words"}, model=model, edges=tmp_path / "links.csv")
    report = update(
        store, nodes=tmp_path / "new.csv", model=model, skip_bad=True, edges=tmp_path / "links.csv"
    )
    assert dict(report.skipped) == {"empty text": 1, "edge to an unknown node": 1}
    assert (report.new_nodes, report.new_links, report.self_links, report.already_so) == (
        1,
        1,
        1,
        0,
    )
    shown = str(report.as_table())
    assert "skipped: 1 × empty text" in shown
    assert "left out: 1 links from a node to itself" in shown


def test_a_column_that_may_be_the_type_of_links_to_remove_is_not_passed_over(
    tmp_path: Path,
) -> None:
    model, store = imported_base(tmp_path, "id,text\na,graph\nb,text\n")
    # types are told: the rest means nothing
    (tmp_path / "gone.csv").write_text("source,target,type,weight\na,b,none,1\n")
    assert update(store, remove_edges=tmp_path / "gone.csv", model=model).linked_otherwise == (
        ("a", "b", "none"),
    )
    (tmp_path / "gone.csv").write_text("source,target,kind\na,b,likes\n")
    with pytest.raises(
        GraphFormersError,
        match=r"gone.csv: the column 'kind' means nothing here.*columns={'type': 'kind'}",
    ):
        update(store, remove_edges=tmp_path / "gone.csv", model=model)
    assert (
        update(
            store, remove_edges=tmp_path / "gone.csv", model=model, columns={"type": "kind"}
        ).removed_links
        == 1
    )
    assert VectorStore.load(store.path).graph.links_between([(0, 1)]) == [[("a", "b", "cites")]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ids.txt", b"b\n"),
        ("ids.csv", b"b\n"),
        ("ids.csv", b'id\n"b"\n'),
        ("ids.csv", b'"b"\n'),
        ("ids.csv", b"text,id\nsome words,b\n"),
        ("ids.jsonl", b'{"id": "b"}\n'),
        ("ids.parquet", None),
    ],
)
def test_ids_to_remove_are_lines_or_a_column(
    name: str, content: bytes | None, tmp_path: Path
) -> None:
    model, store = imported_base(tmp_path, "id,text\na,graph\nb,text\n")
    if content is None:
        parquet.write_table(pa.table({"paper": ["b"]}), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(content)
    report = update(store, remove=tmp_path / name, model=model)
    assert (report.removed_nodes, report.not_there) == (1, ())
    assert list(VectorStore.load(store.path)) == ["a"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": "x"}, "means nothing in an update"),
        ({"id": "x"}, "'x' for id given, but no file holds nodes"),
        ({"src": "x"}, "'x' for src given, but no file holds links"),
        ({"text": "x"}, "'x' for text given, but no file holds nodes"),
    ],
)
def test_columns_for_files_that_are_not_given_are_refused(
    columns: dict[str, str], message: str, tmp_path: Path
) -> None:
    model, store = imported_base(tmp_path, "id,text\na,graph\nb,text\n")
    (tmp_path / "gone.txt").write_text("a\n")
    with pytest.raises(GraphFormersError, match=message):
        update(store, remove=tmp_path / "gone.txt", model=model, columns=columns)


def test_more_types_of_links_than_a_graph_holds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, store = imported_base(tmp_path, "id,text\na,graph\nb,text\n")
    monkeypatch.setattr(edits_module, "MAX_TYPES", 4)
    update(store, edges=[("a", "b", "x"), ("a", "b", "y")], model=model)
    with pytest.raises(GraphFormersError, match="more than 4 types of links"):
        update(store, edges=[("a", "b", "z")], model=model)
    with pytest.raises(GraphFormersError, match="half of a character"):
        update(store, edges=[("a", "b", "\ud800")], model=model)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 1234567890123456789, None], pa.timestamp("ns")),
        pa.array([1, 12345, None], pa.time64("ns")),
        pa.array([1, 400_000_000_000, None], pa.timestamp("s")),
        pa.array([[1], [1234567890123456789], None], pa.list_(pa.timestamp("ns"))),
        pa.array([float("nan"), 1.0, None]),
        pa.array([[float("nan")], [1.0], None]),
    ],
    ids=["nanoseconds", "times", "years after 9999", "lists", "no numbers", "lists of no numbers"],
)
def test_values_that_python_does_not_have(values: pa.Array, tmp_path: Path) -> None:
    model = make_model()
    store = typed_base(tmp_path, model, odd=values)
    nodes = pa.table(
        {"id": ["a", "b", "d"], "text": ["other", "text", "new"], "odd": values.take([0, 1, 1])}
    )
    report = update(store, nodes=nodes, model=model)
    assert (report.new_nodes, report.changed_nodes, report.already_so) == (1, 1, 1)
    assert update(store, nodes=nodes, model=model).already_so == 3
    found = VectorStore.load(store.path)
    expected = pa.concat_arrays([values, values.slice(1, 1)])
    for column in (
        found.graph.column("odd"),
        one_chunk(compact_now(found).graph.freeze().column("odd")),
    ):
        # which knows no equality of NaN
        assert column.cast(expected.type).to_string() == expected.to_string()


def test_empty_files_of_ids_and_ids_of_another_column(tmp_path: Path) -> None:
    model, store = imported_base(tmp_path, "id,text\na,graph\nb,text\n")
    for name in ("none.csv", "none.txt"):
        (tmp_path / name).write_text("")
        assert update(store, remove=tmp_path / name, model=model).removed_nodes == 0
    (tmp_path / "gone.csv").write_text("id\na\n")
    with pytest.raises(GraphFormersError, match=r"no column for id \(looked for paper\)"):
        update(store, remove=tmp_path / "gone.csv", model=model, columns={"id": "paper"})


def test_nanoseconds_where_words_or_numbers_are(tmp_path: Path) -> None:
    model, times = make_model(), pa.array([1234567890123456789], pa.timestamp("ns"))
    store = typed_base(tmp_path, model, odd=pa.array([1.5, 2.5, None]))
    with pytest.raises(GraphFormersError, match="is no double, which the column 'odd' holds"):
        update(store, nodes=pa.table({"id": ["a"], "text": ["graph"], "odd": times}), model=model)
    parquet.write_table(
        pa.table({"id": ["a"], "text": ["graph"], "odd": times}), tmp_path / "one.parquet"
    )
    (tmp_path / "two.csv").write_text("id,text,odd\nb,text,yesterday\n")
    graph = read_graph([tmp_path / "one.parquet", tmp_path / "two.csv"])
    assert graph.column("odd").to_pylist() == ["2009-02-13 23:31:30.123456789", "yesterday"]


def test_links_that_new_nodes_list(tmp_path: Path) -> None:
    """As when the graph was imported; ids that no node has are left out."""
    table = "id,title,cites\na,graph,b;x\nb,text,\n"
    model, store = imported_base(tmp_path, table, columns={"links": "cites:cites"})
    (tmp_path / "new.csv").write_text("id,title,cites\nc,node,a;zz\nd,word,c;b\n")
    report = update(store, nodes=tmp_path / "new.csv", model=model)
    assert (report.new_nodes, report.new_links, report.new_columns) == (2, 3, ())
    graph = VectorStore.load(store.path).graph
    assert sorted(graph.neighbors("c")) == ["a", "d"]
    with pytest.raises(GraphFormersError, match="'cites' for links given, but no file holds nodes"):
        update(store, edges=[("a", "c")], columns={"links": "cites"}, model=model)
