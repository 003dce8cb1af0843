import errno
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers.embedding.job import embed
from graphformers.embedding.update import update
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import GraphFormersError
from graphformers.graph.interop import build_graph
from graphformers.retrieval import exact as exact_module
from graphformers.retrieval import index as index_module
from graphformers.retrieval.approximate import RecallTrial
from graphformers.retrieval.index import StoreIndex
from graphformers.retrieval.quantization import Quantization, quantized_queries
from graphformers.retrieval.usearch_index import LEAST_WIDTH, UsearchIndex
from tests.embedding.conftest import flip, make_model, some_graph

pytest.importorskip("usearch")

FILE, ABOUT = "index.usearch", "index.usearch.json"


def crowd(count: int, size: int = 16, seed: int = 0) -> Any:
    """Vectors in clusters, of lengths that differ by a factor of ten."""
    draw = np.random.default_rng(seed)
    centers = draw.normal(size=(20, size))
    vectors = centers[draw.integers(0, 20, count)] + 0.4 * draw.normal(size=(count, size))
    return (vectors * draw.uniform(0.3, 3, size=(count, 1))).astype(np.float32)


class Crowd(VectorStore):
    """A store of made vectors without a model: just what an index looks at."""

    def __init__(self, place: Path, vectors: Any, similarity: str) -> None:
        graph = build_graph(
            pa.table({"id": [f"n{i}" for i in range(len(vectors))], "text": ["x"] * len(vectors)})
        )
        model = make_model(method="plm", hidden_size=24)
        super().__init__(embed(model, graph, place).artifact)
        self._made, self.settings = (
            vectors,
            {**self.settings, "similarity": similarity, "hidden_size": vectors.shape[1]},
        )

    def base_vectors(self, nodes: Any) -> Any:
        return self._made[nodes]

    def raw(self, nodes: Any) -> Any:
        from graphformers.embedding.vectors import Raw

        return Raw(self._made[nodes])


def brute_force(store: VectorStore, query: Any, k: int, allowed: Any = None) -> list[int]:
    nodes = store.graph.nodes
    vectors = store.raw(nodes).floats().astype(float)
    if store.is_cosine:
        vectors, query = (
            vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
            query / np.linalg.norm(query),
        )
    scores = vectors @ query
    order = [
        int(nodes[i])
        for i in np.argsort(-scores, kind="stable")
        if allowed is None or allowed[nodes[i]]
    ]
    return order[:k]


def built(store: VectorStore) -> StoreIndex:
    return StoreIndex(store, UsearchIndex.make(store))


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small stores are treated as large ones."""
    monkeypatch.setattr(index_module, "EXACT_BELOW", 10)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_recall_is_high_whatever_the_lengths(similarity: str, tmp_path: Path, large: None) -> None:
    store = Crowd(tmp_path / "v", crowd(3000), similarity)
    index = built(store)
    assert not index.is_exact
    assert index.base.recall >= 0.98
    queries = crowd(50, seed=0)[::-1] + crowd(50, seed=0) / 4  # of the same kind, but none of them
    found = index.search(queries, 10)
    hits = sum(
        len(set(found.nodes_QK[q].tolist()) & set(brute_force(store, queries[q], 10)))
        for q in range(50)
    )
    assert hits >= 0.98 * 500


@pytest.mark.parametrize(("largest", "precision"), [(1, "i8"), (15, "f16")])
def test_numbers_are_bytes_where_that_keeps_the_order(
    largest: float, precision: str, tmp_path: Path, large: None
) -> None:
    vectors = crowd(2000, size=96)
    vectors[::7, 3] *= largest  # a few numbers that dwarf all others
    index = UsearchIndex.make(Crowd(tmp_path / "v", vectors, "dot"))
    assert index.settings.precision == precision
    assert index.recall >= 0.98


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_nodes_with_the_same_vector_do_not_widen_the_search(
    similarity: str, tmp_path: Path, large: None
) -> None:
    vectors = crowd(3000, size=64)
    vectors[::20] = vectors[7]
    index = UsearchIndex.make(Crowd(tmp_path / "v", vectors, similarity))
    assert index.recall >= 0.99
    assert index.settings.node_width <= index.settings.search_width <= 512


@pytest.mark.parametrize("factor", [1e-9, 1e6])
def test_the_length_of_a_query_does_not_matter(factor: float, tmp_path: Path, large: None) -> None:
    vectors = crowd(2000, size=96)
    vectors[::7, 3] *= 15
    store = Crowd(tmp_path / "v", vectors, "dot")
    base = UsearchIndex.make(store)
    assert base.settings.precision == "f16"
    index = StoreIndex(store, base)
    queries = vectors[:20]
    expected = index.search(queries, 10).nodes_QK
    np.testing.assert_array_equal(index.search(queries * np.float32(factor), 10).nodes_QK, expected)


@given(st.integers(0, 10_000), st.sampled_from(["i8", "f16"]), st.booleans())
def test_coded_vectors_have_one_length_and_keep_their_order(
    seed: int, precision: str, is_moved: bool
) -> None:
    draw = np.random.default_rng(seed)
    vectors = (draw.normal(size=(300, 64)) * draw.uniform(0.2, 2, (300, 1)) + 5 * is_moved).astype(
        np.float32
    )
    query = draw.normal(size=(1, 64)).astype(np.float32)
    quantization = Quantization.of(Rows(vectors), precision)  # type: ignore[arg-type]
    coded = quantization.vectors(vectors).astype(float)
    lengths = np.linalg.norm(coded, axis=1)
    assert lengths.max() / lengths.min() < (1.1 if precision == "i8" else 1.0001)
    mine, truth = coded @ quantized_queries(query, precision)[0].astype(float), vectors @ query[0]
    line = np.polyfit(truth, mine, 1)  # the same up to a factor and a constant
    assert np.abs(np.polyval(line, truth) - mine).max() < (0.05 if precision == "i8" else 1e-4) * (
        mine.max() - mine.min()
    )


class Rows:
    """As much of a store as a quantization reads."""

    is_cosine = False

    def __init__(self, vectors: Any) -> None:
        self._vectors, (self.num_base, self.size) = vectors, vectors.shape

    def base_vectors(self, nodes: Any) -> Any:
        return self._vectors[nodes]


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_exact_search_is_brute_force(
    similarity: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Crowd(tmp_path / "v", crowd(400), similarity)
    queries = np.random.default_rng(9).normal(size=(5, 16)).astype(np.float32)
    for block in (1 << 16, 37):
        monkeypatch.setattr(exact_module, "BLOCK", block)
        found = StoreIndex.open(store).search(queries, 12)
        assert found.nodes_QK.tolist() == [brute_force(store, query, 12) for query in queries]
    allowed = np.arange(400) % 7 == 0
    found = StoreIndex.open(store).search(queries, 12, allowed=allowed)
    assert found.nodes_QK.tolist() == [brute_force(store, query, 12, allowed) for query in queries]
    assert StoreIndex.open(store).search(queries, 1000).nodes_QK.shape == (5, 400)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(0, 1000), st.integers(1, 30), st.sampled_from([1.0, 0.5, 0.1, 0.02]))
def test_filters_are_correct_against_brute_force(
    tmp_path_factory: pytest.TempPathFactory, seed: int, k: int, share: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "EXACT_BELOW", 50)
        store = Crowd(tmp_path_factory.mktemp("v") / "v", crowd(1200, seed=seed), "dot")
        index = built(store)
        allowed = np.random.default_rng(seed).random(1200) < share
        queries = np.random.default_rng(seed + 1).normal(size=(40, 16)).astype(np.float32)
        found = index.search(queries, k, allowed=allowed).nodes_QK
        right = 0
        for query, row in zip(queries, found, strict=True):
            hits, expected = row[row >= 0].tolist(), brute_force(store, query, k, allowed)
            assert all(allowed[hits])
            assert len(hits) == len(set(hits)) == len(expected)
            right += len(set(hits) & set(expected))
        # near neighbours are found nearly always, not always
        assert right >= 0.95 * 40 * min(k, int(allowed.sum()))


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1000))
def test_changes_are_found_at_once_and_what_is_gone_never(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "EXACT_BELOW", 10)
        place, model, draw = (
            tmp_path_factory.mktemp("v") / "v",
            make_model(),
            np.random.default_rng(seed),
        )
        graph = some_graph(seed % 3)
        embed(model, graph, place)
        UsearchIndex.make(VectorStore.load(place))
        ids = graph.ids.to_pylist()
        gone, changed = ids[int(draw.integers(60))], ids[int(draw.integers(60))]
        nodes = {"new one": "graph text 42", "new two": "vector link"} | (
            {changed: "layer layer"} if changed != gone else {}
        )
        update(place, nodes=nodes, edges=[("new one", "new two")], remove=[gone], model=model)
        store = VectorStore.load(place)
        index = StoreIndex.open(store)
        assert not index.is_exact
        for id in ("new one", "new two", *([changed] if changed != gone else [])):
            query = store[id]
            found = index.search(query[None], 61)
            names = store.graph.ids_of(found.nodes_QK[0][found.nodes_QK[0] >= 0])
            assert id in names
            assert gone not in names
            assert len(names) == len(set(names)) == 61
            top = index.search(query[None], 5).scores_QK[0]
            expected = np.sort(store.vectors(store.ids.to_pylist()) @ query)[::-1][:5]
            assert top == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_an_index_is_kept_and_mapped(tmp_path: Path, large: None) -> None:
    embed(make_model(), some_graph(), tmp_path / "v")
    store = VectorStore.load(tmp_path / "v")
    made = StoreIndex.open(store)
    assert (tmp_path / "v" / FILE).is_file()
    again = UsearchIndex.load(VectorStore.load(tmp_path / "v"))
    assert again is not None
    assert isinstance(made.base, UsearchIndex)
    assert (again.settings, again.recall) == (made.base.settings, made.base.recall)
    queries = store.base_vectors(np.arange(5))
    found = StoreIndex(store, again).search(queries, 5)
    assert found.nodes_QK.tolist() == made.search(queries, 5).nodes_QK.tolist()
    assert again.smallest_width(RecallTrial.of(store), LEAST_WIDTH) == (
        made.base.settings.search_width,
        made.base.recall,
    )


def test_an_index_that_cannot_be_kept_serves(
    tmp_path: Path, large: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    store = embed(make_model(), some_graph(), tmp_path / "v")
    monkeypatch.setattr("graphformers.retrieval.approximate.put_in_place", refuse)
    made = StoreIndex.open(store)
    assert "the index cannot be kept there (Read-only file system)" in caplog.text
    assert (made.search(store.base_vectors(np.arange(3)), 1).nodes_QK >= 0).all()


def test_a_damaged_or_foreign_index_is_made_again(
    tmp_path: Path, large: None, caplog: pytest.LogCaptureFixture
) -> None:
    embed(make_model(), some_graph(), tmp_path / "v")
    StoreIndex.open(VectorStore.load(tmp_path / "v"))
    flip(tmp_path / "v" / FILE, 500)
    assert not StoreIndex.open(VectorStore.load(tmp_path / "v")).is_exact
    assert "damaged, its checksum does not match; it is made again" in caplog.text
    assert UsearchIndex.load(VectorStore.load(tmp_path / "v")) is not None
    (tmp_path / "v" / ABOUT).write_text("{")
    assert UsearchIndex.load(VectorStore.load(tmp_path / "v")) is None
    embed(make_model(), some_graph(), tmp_path / "w")
    embed(make_model(seed=1), some_graph(), tmp_path / "x")
    StoreIndex.open(VectorStore.load(tmp_path / "w"))
    for name in (FILE, ABOUT):
        (tmp_path / "x" / name).write_bytes((tmp_path / "w" / name).read_bytes())
    assert UsearchIndex.load(VectorStore.load(tmp_path / "x")) is None


def test_an_index_of_an_older_base_does_not_replace_the_new_one(
    tmp_path: Path, large: None
) -> None:
    """As a process would write it that has the folder open since before a compaction."""
    old = embed(make_model(), some_graph(), tmp_path / "v")
    new = embed(make_model(), some_graph(1), tmp_path / "v", force=True)
    StoreIndex.open(new)
    kept = (tmp_path / "v" / ABOUT).read_text()
    assert UsearchIndex.make(old).file is None
    assert (tmp_path / "v" / ABOUT).read_text() == kept
    assert UsearchIndex.load(new) is not None


def test_wrong_queries(tmp_path: Path) -> None:
    index = StoreIndex.open(embed(make_model(), some_graph(), tmp_path / "v"))
    with pytest.raises(GraphFormersError, match="expected rows of 24 numbers"):
        index.search(np.zeros((1, 3)), 5)
    with pytest.raises(GraphFormersError, match="not finite"):
        index.search(np.full((1, 24), np.nan), 5)
    assert index.search(np.zeros((0, 24)), 5).nodes_QK.shape == (0, 0)
