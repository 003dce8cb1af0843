"""The map: the directions are the principal ones, new nodes have their place, and a large graph is
sampled.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from graphformers.serve import projection
from graphformers.serve.engine import Engine
from graphformers.serve.projection import Map, make_plane, principal_axes
from graphformers.serve.settings import ServeSettings
from graphformers.serve.writing import DeleteNode, PutNode


@pytest.fixture
def engine(place: Path) -> Iterator[Engine]:
    made = Engine(ServeSettings(place, device="cpu"))
    yield made
    made.close()


def made(engine: Engine, most: int = 50_000) -> tuple[Map, dict[str, Any]]:
    whole = Map(engine, most)
    while whole.body() is None:
        assert whole._thread is not None
        whole._thread.join(20)
    body = whole.body()
    assert body is not None
    return whole, msgspec.json.decode(gzip.decompress(body))


def test_axes_are_those_of_a_singular_value_decomposition() -> None:
    vectors = (
        np.random.default_rng(0).normal(size=(200, 12)).astype(np.float32)
        * np.linspace(1, 3, 12, dtype=np.float32)
        + 5
    )
    mean, axes = principal_axes(vectors)
    np.testing.assert_allclose(mean, vectors.mean(0), atol=1e-4)
    expected = np.linalg.svd(vectors - vectors.mean(0))[2][:3].T
    np.testing.assert_allclose(np.abs((axes * expected).sum(0)), 1, atol=1e-3)
    assert principal_axes(vectors[:, :2])[1].shape == (2, 3)


def test_every_node_has_its_place_and_new_ones_too(engine: Engine) -> None:
    whole, told = made(engine)
    ids = engine.view.store.ids.to_pylist()
    assert told["ids"] == ids
    assert [told["x"][3], told["y"][3], told["z"][3]] == pytest.approx(
        whole.places([ids[3]])[0], abs=1e-3
    )
    engine.writes.put(PutNode("new", engine.view.store.text(ids[3]), {}, ())).result(20)
    places = whole.places(["new", "nobody"])
    assert places[0] is not None
    assert places[1] is None
    for id in ids[:20]:
        engine.writes.put(DeleteNode(id)).result(20)
    whole.body()  # too much has changed: made anew, the old one is shown meanwhile
    assert whole._thread is not None
    whole._thread.join(20)
    body = whole.body()
    assert body is not None
    assert set(msgspec.json.decode(gzip.decompress(body))["ids"]) == {*ids[20:], "new"}


def test_a_large_graph_is_sampled(engine: Engine) -> None:
    _, told = made(engine, most=25)
    assert (len(told["ids"]), len(set(told["ids"])), len(told["x"]), told["nodes"]) == (
        25,
        25,
        25,
        60,
    )


def test_pacmap_is_used_where_it_is(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reducer:
        def fit_transform(self, vectors: Any) -> Any:
            return np.stack([np.arange(len(vectors)), -np.arange(len(vectors))], 1)

    monkeypatch.setattr(projection, "pacmap_reducer", Reducer)
    whole, told = made(engine)
    assert (told["method"], told["x"][5], told["y"][5]) == ("pacmap", 5, -5)
    assert whole.places([told["ids"][5], "nobody"])[1] is None
    assert make_plane(engine.view, 5).method == "pca", "too few for it"
