"""Embedding on a GPU: in bfloat16, states on the device or on disk, packed ahead by processes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from graphformers.embedding.job import embed
from graphformers.embedding.update import update
from graphformers.embedding.vectors import VectorStore
from tests.conftest import make_graph
from tests.embedding.conftest import MODELS, bytes_of, make_model, some_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("name", MODELS)
def test_where_states_lie_does_not_matter(name: str, tmp_path: Path) -> None:
    model, graph = make_model(**MODELS[name]), some_graph()
    expected = model.encode_nodes(graph)
    model.to("cuda")
    stores = [
        embed(model, graph, tmp_path / f"{states}.vectors", states=states, shard_size=20)
        for states in ("memory", "disk")
    ]
    assert bytes_of(stores[0].path) == bytes_of(stores[1].path)
    vectors = stores[0].vectors(graph.ids.to_pylist())
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((vectors * expected).sum(1) / lengths).min() > 0.99


def test_continued_and_updated(tmp_path: Path) -> None:
    model, graph = make_model().to("cuda"), some_graph()
    store = embed(model, graph, tmp_path / "some.vectors", compile=True, workers=2)
    ids = graph.ids.to_pylist()
    report = update(
        store, nodes={"new": "graph layer"}, edges=[("new", ids[0])], remove=[ids[5]], model=model
    )
    assert report.plain_forwards == 1
    found = VectorStore.load(store.path)
    again = embed(model, found.graph.freeze(), tmp_path / "again.vectors")
    one, other = (each.vectors(again.ids.to_pylist()) for each in (found, again))
    assert (
        (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    ).min() > 0.999


def test_with_little_memory_batches_are_read_in_pieces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_layers": 4, "num_heads": 8}
    model, graph = make_model(**sizes).to("cuda"), make_graph(20_000, 40_000)
    with torch.no_grad():
        for parameter in model.parameters():
            # as they are drawn, rounding alone turns a vector in five by half a right angle
            parameter.mul_(0.25)
    ids = graph.ids.to_pylist()
    expected = embed(model, graph, tmp_path / "roomy.vectors").vectors(ids)
    torch.cuda.empty_cache()
    assert "pieces" not in caplog.text
    torch.cuda.set_per_process_memory_fraction(0.5 * 2**30 / torch.cuda.mem_get_info()[1])
    try:
        vectors = [
            embed(model, graph, tmp_path / f"{states}.vectors", states=states).vectors(ids)
            for states in ("auto", "disk")
        ]
        vectors.append(model.encode_nodes(graph))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert caplog.text.count("out of memory: batches are computed in") >= 3
    for found in vectors:
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
        assert ((found * expected).sum(1) / lengths).min() > 0.999
