"""Likely links against scores of all nodes, before and after updates."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers.cli import app
from graphformers.embedding.job import embed
from graphformers.embedding.update import update
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import ArtifactError
from graphformers.graph.common_neighbors import adamic_adar, counted_neighbors
from graphformers.graph.interop import build_graph
from graphformers.retrieval.filters import allowed_nodes
from graphformers.retrieval.links import link_weight
from graphformers.retrieval.searcher import Searcher
from tests.conftest import make_graph
from tests.embedding.conftest import EXACT, make_model
from tests.graph.test_common_neighbors import naive
from tests.test_foreign_folders import forge


def expected_links(store: VectorStore, id: str, where: list[str]) -> dict[str, float]:
    """The score of every node that is not linked to a node."""
    graph, weight = store.graph, link_weight(store)
    node, common = graph.node(id), naive(graph, graph.node(id))
    allowed = allowed_nodes(graph, where)
    scores = {}
    for other in graph.nodes.tolist():
        is_allowed = allowed is None or allowed[other]
        if other == node or graph.is_linked(node, other) or not is_allowed:
            continue
        one, two = store.compared(np.array([node, other])).astype(float)
        (name,) = graph.ids_of(np.array([other]))
        scores[name] = float(one @ two) + weight * common.get(other, 0.0)
    return scores


def check(store: VectorStore, model: Any, k: int, where: list[str]) -> None:
    searcher = Searcher(store, model)
    ids = store.ids.to_pylist()
    queries = {id: searcher.links(id, k, where=where) for id in ids[:: max(len(ids) // 12, 1)]}
    for id, found in queries.items():
        expected = expected_links(store, id, where)
        best = sorted(expected.values(), reverse=True)[:k]
        assert [match.score for match in found] == pytest.approx(best, rel=1e-4, abs=1e-4)
        assert [expected[match.id] for match in found] == pytest.approx(best, rel=1e-4, abs=1e-4)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 1000),
    weight=st.sampled_from([0.0, 0.05, 1.0, 40.0]),
    similarity=st.sampled_from(["dot", "cosine"]),
    k=st.sampled_from([1, 7, 80]),
    where=st.sampled_from([[], ["year>=1994"]]),
)
def test_links_are_the_best_of_all_nodes(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    weight: float,
    similarity: str,
    k: int,
    where: list[str],
) -> None:
    place, draw = tmp_path_factory.mktemp("v") / "v", np.random.default_rng(seed)
    model = make_model(link_weight=weight, similarity=similarity)
    graph = make_graph(40, 90, seed)
    store = embed(model, graph, place, **EXACT)
    check(store, model, k, where)
    ids = draw.permutation(graph.ids.to_pylist()).tolist()
    update(
        place,
        nodes=[{"id": "new", "text": "graph", "year": 1996}, {"id": ids[3], "text": "link node"}],
        edges=[("new", ids[0]), ("new", ids[1]), (ids[0], ids[2])],
        remove=[ids[4]],
        model=model,
    )
    edited = VectorStore.load(place)
    check(edited, model, k, where)
    again = embed(model, edited.graph.freeze(), place.with_name("again"), **EXACT)
    for id in ("new", ids[0]):
        found, fresh = (Searcher(each, model).links(id, k, where=where) for each in (edited, again))
        scores = [match.score for match in fresh]
        assert [match.score for match in found] == pytest.approx(scores, rel=1e-4, abs=1e-4)


def test_links_of_a_hub(tmp_path: Path) -> None:
    """With more links than are hidden one by one, and than count as common neighbours."""
    ids = [f"n{i}" for i in range(400)]
    links = [("n0", id) for id in ids[1:301]] + list(pairwise(ids[1:]))
    links += [(ids[i], ids[i + 100]) for i in range(200, 300)]
    graph = build_graph([{"id": id, "text": f"graph {id}"} for id in ids], links)
    model = make_model(method="plm", link_weight=2.0)
    store = embed(model, graph, tmp_path / "v", **EXACT)
    nodes, sums = adamic_adar(counted_neighbors(graph, 0), graph.neighbors_of)
    common = dict(zip(nodes.tolist(), sums.tolist(), strict=True))
    expected = {
        id: float(store["n0"] @ store[id]) + 2 * common.get(graph.node(id), 0) for id in ids[301:]
    }
    found = Searcher(store, model).links("n0", 20)
    assert [match.score for match in found] == pytest.approx(
        sorted(expected.values(), reverse=True)[:20], rel=1e-4
    )
    assert [expected[match.id] for match in found] == pytest.approx(
        [match.score for match in found], rel=1e-4
    )


def test_links_say_what_their_scores_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = make_graph(40, 90)
    id = graph.ids[int(np.argmax(graph.degrees()))].as_py()
    for weight, measure in [(0.0, "cosine"), (0.25, "cosine + 0.25 × Adamic–Adar")]:
        model = make_model(link_weight=weight, similarity="cosine")
        store = embed(model, graph, tmp_path / f"{weight}", **EXACT)
        searcher = Searcher(store, model)
        links, similar = searcher.links(id, 5), searcher.similar(id, 40)
        assert (links.measure, similar.measure) == (measure, "cosine")
        unlinked = [match for match in similar if match.id not in graph.neighbors(id)][:5]
        assert (weight == 0.0) == (links == unlinked)
        app(["search", str(tmp_path / f"{weight}"), "--links", id, "--json"], standalone_mode=False)
        assert json.loads(capsys.readouterr().out)["measure"] == measure
        app(["search", str(tmp_path / f"{weight}"), "--links", id], standalone_mode=False)
        shown = capsys.readouterr().out.splitlines()
        assert shown[0].split()[0] == ("score" if weight else "cosine")
        assert (f"score: {measure}" in shown) == (weight > 0)


@pytest.mark.parametrize("weight", ["0.5", None, -1.0, float("nan"), True, [1.0]])
def test_a_weight_of_another_kind_is_damage(weight: object, tmp_path: Path) -> None:
    embed(make_model(), make_graph(20, 30), tmp_path / "v", **EXACT)
    forge(tmp_path / "v", lambda manifest: manifest["settings"].update(link_weight=weight))
    store = VectorStore.load(tmp_path / "v")
    with pytest.raises(ArtifactError, match="expected a number of at least 0"):
        Searcher(store).links(store.ids[0].as_py())
