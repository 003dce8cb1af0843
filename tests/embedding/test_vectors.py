"""VectorStore: vectors by id, and as other programs want them."""

import os
import time
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow.parquet as parquet
import pytest
from hypothesis import given

from graphformers.embedding.job import embed
from graphformers.embedding.update import update
from graphformers.embedding.vectors import NodeSet, VectorStore, to_precision
from graphformers.errors import GraphFormersError
from graphformers.evaluation.external import read_vectors
from graphformers.files import put_in_place
from graphformers.retrieval.searcher import search
from tests.embedding.conftest import EXACT, make_model, some_graph
from tests.forked import Forked


@pytest.fixture
def store(tmp_path: Path) -> VectorStore:
    """With edits."""
    model = make_model()
    base = embed(model, some_graph(), tmp_path / "some.vectors", **EXACT)
    update(
        base,
        nodes={"new": "graph layer"},
        edges=[("new", base.ids[0].as_py())],
        remove=[base.ids[1].as_py()],
        model=model,
    )
    return VectorStore.load(base.path)


def test_vectors_by_id(store: VectorStore) -> None:
    ids = store.ids.to_pylist()
    assert len(store) == len(ids) == 60
    assert "new" in store
    assert some_graph().ids[1].as_py() not in store
    assert store["new"].shape == (24,)
    assert store["new"].dtype == np.float32
    assert np.array_equal(store.vectors(["new", ids[0]])[0], store["new"])
    assert store.text("new") == "graph layer"
    together = [
        (id, vector)
        for names, vectors in store.blocks()
        for id, vector in zip(names, vectors, strict=True)
    ]
    assert [id for id, _ in together] == ids
    assert all(np.array_equal(vector, store[id]) for id, vector in together)
    with pytest.raises(KeyError, match=r"^no vector with the id 'nobody' among the 60") as unknown:
        store["nobody"]
    assert isinstance(unknown.value, GraphFormersError)
    with pytest.raises(GraphFormersError, match="no node with the id 'nobody' among the 60"):
        store.text("nobody")
    with pytest.raises(GraphFormersError, match="ids are strings"):
        store[3]  # type: ignore[index]


def test_exports_say_the_same(store: VectorStore, tmp_path: Path) -> None:
    ids, vectors = store.ids.to_pylist(), store.vectors(store.ids.to_pylist())
    for suffix in (".npy", ".parquet", ".txt"):
        store.export(tmp_path / f"out{suffix}")
        with pytest.raises(GraphFormersError, match="exists already"):
            store.export(tmp_path / f"out{suffix}")
        store.export(tmp_path / f"out{suffix}", force=True)
    assert np.array_equal(np.load(tmp_path / "out.npy"), vectors)
    assert (tmp_path / "out.ids.txt").read_text().splitlines() == ids
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table["id"].to_pylist() == ids
    assert np.array_equal(np.array(table["vector"].to_pylist(), dtype=np.float32), vectors)
    first, *lines = (tmp_path / "out.txt").read_text().splitlines()
    assert first == "60 24"
    assert [line.split(" ")[0] for line in lines] == ids
    own = read_vectors(store.path)  # the folder itself
    assert own[0] == ids
    assert np.array_equal(own[1], vectors)
    assert np.array_equal(
        np.array([line.split(" ")[1:] for line in lines], dtype=np.float32), vectors
    )
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_exports_that_cannot_be_are_said(store: VectorStore, tmp_path: Path) -> None:
    with pytest.raises(
        GraphFormersError,
        match=r"cannot tell the format from the name, expected one of .npy, .parquet, .txt",
    ):
        store.export(tmp_path / "out.csv")
    update(store, nodes={"two words": "graph", "two\nlines": "text"}, model=make_model())
    odd = VectorStore.load(store.path)
    with pytest.raises(
        GraphFormersError,
        match="the id 'two words' has a blank, which word2vec's format cannot hold",
    ):
        odd.export(tmp_path / "out.txt")
    with pytest.raises(GraphFormersError, match="has a line break"):
        odd.export(tmp_path / "out.npy")
    odd.export(tmp_path / "new" / "out.parquet")  # a folder that is made
    (tmp_path / "file").touch()
    with pytest.raises(GraphFormersError, match="file is not a folder"):
        odd.export(tmp_path / "file" / "out.parquet")
    assert not list(tmp_path.glob("out.txt"))


@pytest.mark.parametrize("id", [" a", "a ", "\na", "a\u2028b", "a\x0b"])
def test_exports_refuse_ids_that_they_would_change(
    id: str, store: VectorStore, tmp_path: Path
) -> None:
    update(store, nodes={id: "graph"}, model=make_model())
    odd = VectorStore.load(store.path)
    with pytest.raises(GraphFormersError, match="has a blank"):
        odd.export(tmp_path / "out.txt")
    if len(id.splitlines()) > 1 or "\x0b" in id:
        with pytest.raises(GraphFormersError, match="has a line break"):
            odd.export(tmp_path / "out.npy")
    else:
        odd.export(tmp_path / "out.npy")
        assert (tmp_path / "out.ids.txt").read_text().splitlines() == odd.ids.to_pylist()


def test_an_export_killed_between_ids_and_vectors_leaves_no_wrong_pair(
    store: VectorStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.export(tmp_path / "out.npy")
    update(store, nodes={"new": "graph"}, model=make_model())
    replace = os.replace

    def kill(beside: Path, path: Path) -> None:
        if Path(path).suffix == ".npy":
            raise KeyboardInterrupt
        replace(beside, path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            VectorStore.load(store.path).export(tmp_path / "out.npy", force=True)
    assert not (tmp_path / "out.npy").exists()
    VectorStore.load(store.path).export(tmp_path / "out.npy", force=True)
    assert (
        len(np.load(tmp_path / "out.npy"))
        == len((tmp_path / "out.ids.txt").read_text().splitlines())
        == len(VectorStore.load(store.path))
    )


def stuck_export(target: Path) -> None:
    """An export that never ends."""
    with put_in_place(target) as beside:
        beside.write_bytes(b"half of it")
        print("begun", flush=True)
        time.sleep(600)


def test_what_a_killed_export_left_is_removed_by_the_next(
    store: VectorStore, tmp_path: Path
) -> None:
    target = tmp_path / "out.[1].txt"
    processes = [Forked(stuck_export, target) for _ in range(2)]
    try:
        assert [process.stdout.readline() for process in processes] == ["begun\n"] * 2
        processes[0].kill()
        processes[0].communicate(60)
        assert len(list(tmp_path.glob(".out*"))) == 2
        store.export(target)
        assert len(list(tmp_path.glob(".out*"))) == 1  # another process is writing it
    finally:
        for process in processes:
            process.kill()
    processes[1].communicate(60)
    store.export(target, force=True)
    assert not list(tmp_path.glob(".out*"))
    assert target.read_text().startswith("60 24")


def test_an_export_to_a_link_or_a_folder(store: VectorStore, tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    store.export(tmp_path / "link.txt", force=True)
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").is_file()
    (tmp_path / "away").mkdir()
    (tmp_path / "data.npy").symlink_to(tmp_path / "away" / "blob")  # its own name says what it is
    store.export(tmp_path / "data.npy")
    assert (
        len(np.load(tmp_path / "away" / "blob"))
        == len((tmp_path / "data.ids.txt").read_text().splitlines())
        == len(store)
    )
    (tmp_path / "out.npy").mkdir()
    with pytest.raises(GraphFormersError, match=r"out.npy: a folder, expected the name of a file"):
        store.export(tmp_path / "out.npy", force=True)


def test_int8_is_within_half_a_step() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 24)).astype(np.float32)
    vectors[7] = 0
    raw = to_precision(vectors, "int8")
    assert raw.scales is not None
    assert np.abs(raw.numbers).max() == 127
    assert (np.abs(raw.floats() - vectors) <= raw.scales[:, None] * 0.501).all()


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_updates_keep_the_precision(precision: str, tmp_path: Path) -> None:
    model = make_model()
    base = embed(model, some_graph(), tmp_path / "some.vectors", precision=precision)
    update(base, nodes={"new": "graph layer"}, edges=[("new", base.ids[0].as_py())], model=model)
    graph = VectorStore.load(base.path).graph.freeze()
    again = embed(model, graph, tmp_path / "again.vectors", precision=precision)
    assert (
        np.abs(
            VectorStore.load(base.path).vectors(again.ids.to_pylist())
            - again.vectors(again.ids.to_pylist())
        ).max()
        < 0.02
    )


def test_an_export_that_fails_leaves_the_old_one(store: VectorStore, tmp_path: Path) -> None:
    """Vectors and ids belong together."""
    store.export(tmp_path / "out.npy")
    before = (tmp_path / "out.npy").read_bytes(), (tmp_path / "out.ids.txt").read_bytes()
    update(store, nodes={"two\nlines": "graph"}, model=make_model())
    with pytest.raises(GraphFormersError, match="a line break"):
        VectorStore.load(store.path).export(tmp_path / "out.npy", force=True)
    assert ((tmp_path / "out.npy").read_bytes(), (tmp_path / "out.ids.txt").read_bytes()) == before


def test_a_store_is_an_array_of_its_vectors(tmp_path: Path) -> None:
    store = embed(make_model(), some_graph(), tmp_path / "some.vectors")
    assert np.array_equal(np.asarray(store), store.vectors(store.ids.to_pylist()))
    assert np.asarray(store, dtype=np.float16).dtype == np.float16
    with pytest.raises(GraphFormersError, match=r"expected VectorStore\.load\('some.vectors'\)"):
        VectorStore("some.vectors")  # type: ignore[arg-type]
    with pytest.raises(GraphFormersError, match="expected one text or one vector"):
        search(store, ["one", "two"])  # type: ignore[arg-type]


@given(
    start=st.sets(st.integers(0, 30)),
    steps=st.lists(
        st.tuples(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.booleans()),
        max_size=8,
    ),
)
def test_a_set_of_nodes_and_its_versions(
    start: set[int], steps: list[tuple[set[int], set[int], bool]]
) -> None:
    versions = [(NodeSet(np.array(sorted(start), dtype=np.int64)), start)]
    for added, removed, is_asked in steps:
        nodes, plain = versions[-1]
        after = (plain | added) - removed
        edited = nodes.edited(sorted(added), sorted(removed))
        assert (edited is nodes) == (after == plain)
        versions.append((edited, after))
        if is_asked:
            assert edited.sorted() is edited.sorted()
    for nodes, plain in versions:
        assert {node for node in range(31) if node in nodes} == plain
        assert nodes.sorted().tolist() == sorted(plain)
