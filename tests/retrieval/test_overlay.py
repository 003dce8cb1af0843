"""What an index does not know is looked at one by one: against brute force, and carried from state
to state.
"""

from pathlib import Path

import numpy as np
import pytest

from graphformers.arrays import Array
from graphformers.embedding.edit_input import read_edits
from graphformers.embedding.job import embed
from graphformers.embedding.update import Updater
from graphformers.embedding.vectors import VectorStore, locked
from graphformers.retrieval.hits import best_hits
from graphformers.retrieval.overlay import Overlay, Rows
from tests.embedding.conftest import make_model, some_graph


@pytest.mark.parametrize("count", [400, 4000])
@pytest.mark.parametrize("share", [None, 0.5, 0.002])
def test_the_best_are_found(tmp_path: Path, count: int, share: float | None) -> None:
    draw = np.random.default_rng(0)
    vectors = (3 + 0.3 * draw.normal(size=(count, 32))).astype(np.float32)
    nodes, queries = np.sort(draw.permutation(9000)[:count]), vectors[:50] + 0.1
    embed(make_model(), some_graph(), tmp_path / "v")
    store = VectorStore.load(tmp_path / "v")
    allowed = None if share is None else draw.random(9000) < share
    hidden = draw.random(count) < 0.1
    found = Overlay(store, Rows(nodes, vectors), hidden).search(queries, 10, allowed)
    found = best_hits(found.nodes_QK, found.scores_QK, 10)
    scores = queries @ vectors.T
    scores[:, hidden] = -np.inf
    if allowed is not None:
        scores[:, ~allowed[nodes]] = -np.inf
    expected = np.take_along_axis(scores, np.argsort(-scores, 1, kind="stable"), 1)[:, :10]
    assert found.scores_QK == pytest.approx(expected, rel=1e-5)
    assert not set(found.nodes_QK.ravel().tolist()) & set(nodes[hidden].tolist())
    assert ((found.nodes_QK >= 0) == (expected > -np.inf)).all()
    if allowed is not None:
        assert allowed[found.nodes_QK[found.nodes_QK >= 0]].all()


def test_it_is_carried_from_state_to_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes come, change, and go: what is carried over equals what is read anew."""
    place, model = tmp_path / "v", make_model()
    embed(model, some_graph(), place)
    with locked(place) as lock:
        updater, carried = Updater(VectorStore.load(place), model, lock), None
        versions: list[tuple[Overlay, Overlay]] = []
        ids = updater.store.ids.to_pylist()
        for i in range(6):
            nodes = {
                f"new {i}": f"graph {i}",
                f"new {i // 2}": f"link {i}",
                ids[i]: f"vector text {i}",
            }
            updater.apply(
                read_edits(
                    updater.store.graph, nodes, [(f"new {i}", ids[2 * i])], [ids[20 + i]], None
                )
            )
            store, unseen = updater.store, np.array([30, 31, 32])
            with monkeypatch.context() as patch:
                read: list[np.ndarray] = []  # type: ignore[type-arg]
                patch.setattr(
                    store,
                    "compared",
                    lambda nodes, s=store, r=read: (
                        r.append(nodes) or VectorStore.compared(s, nodes)
                    ),
                )
                carried = Overlay.of(store, unseen, carried)
            anew = Overlay.of(store, unseen)
            untouched = set(unseen.tolist()) - set(store.changed_nodes().tolist())
            assert i == 0 or len(read[0]) < anew.num_rows, "what is known is not read again"
            assert i == 0 or not untouched & set(read[0].tolist())
            versions.append((carried, anew))
            assert Overlay.of(store, unseen, carried) is carried, "nothing has changed"
        updater.close()
    for carried, anew in versions:
        for one, other in zip(visible(carried), visible(anew), strict=True):
            assert np.array_equal(one, other)


def visible(overlay: Overlay) -> tuple[Array, Array]:
    """The nodes of an overlay, sorted, and their vectors."""
    rows = np.flatnonzero(~overlay.hidden_M)
    rows = rows[np.argsort(overlay.rows.nodes_M[rows])]
    return overlay.rows.nodes_M[rows], overlay.rows.vectors_MD[rows]


def test_a_version_that_was_left_out_or_overtaken(tmp_path: Path) -> None:
    """Versions without a search between them, and an earlier one that is searched later."""
    model = make_model()
    embed(model, some_graph(), tmp_path / "v")
    none = np.zeros(0, dtype=np.int64)
    with locked(tmp_path / "v") as lock:
        updater = Updater(VectorStore.load(tmp_path / "v"), model, lock)
        stores = [updater.store]
        for i, text in enumerate(("graph", "vector link", "node 42", "more")):
            updater.apply(read_edits(updater.store.graph, {"new": text, f"n {i}": text}))
            stores.append(updater.store)
        updater.apply(read_edits(updater.store.graph, remove=["n 1", "n 3"]))
        stores.append(updater.store)
        updater.close()
    first = Overlay.of(stores[1], none)
    made = {1: first, 5: Overlay.of(stores[5], none, first)}
    made |= {place: Overlay.of(stores[place], none, first) for place in (2, 4, 3)}
    made[5] = Overlay.of(stores[5], none, made[4])
    for place, overlay in made.items():
        nodes, vectors = visible(overlay)
        assert nodes.tolist() == stores[place].changed_nodes().tolist()
        assert np.array_equal(vectors, stores[place].compared(nodes))
