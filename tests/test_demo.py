"""The demo's last step; the other steps are tested in test_cli.py."""

from pathlib import Path

import numpy as np
import pytest

from graphformers.arrays import unit_rows
from graphformers.demo import MATCHES, QUERIES, embed_and_search
from graphformers.embedding.vectors import VectorStore
from graphformers.evaluation.baselines import sentence_encoder
from graphformers.graph.interop import build_graph
from graphformers.retrieval.searcher import search
from tests.conftest import make_graph
from tests.golden.samples import write_backbone
from tests.model.conftest import make_model


def test_embeds_once_for_each_model_and_shows_both_searches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph, backbone = make_graph(80, 200), tmp_path / "backbone"
    write_backbone(backbone)
    for seed in (0, 5):
        make_model(seed=seed).save_pretrained(tmp_path / f"{seed}.model")
    found = embed_and_search(tmp_path / "0.model", graph, tmp_path, backbone)
    for query in QUERIES:
        assert found.with_graph[query] == search(found.vectors, query, MATCHES)
    assert "embedding 80 docstrings" in caplog.text
    assert embed_and_search(tmp_path / "0.model", graph, tmp_path, backbone) == found
    assert "made by an earlier run" in caplog.text
    before = VectorStore.load(found.vectors).key.model
    other = embed_and_search(tmp_path / "5.model", graph, tmp_path, backbone)
    assert other.with_graph != found.with_graph
    assert other.alone == found.alone
    assert VectorStore.load(found.vectors).key.model != before
    shown = str(found.as_table())
    for query in QUERIES:
        assert query in shown
        assert found.with_graph[query][0].id in shown
        assert found.alone[query][-1].id in shown
    assert f"graphformers search {found.vectors}" in shown


def test_the_untrained_backbone_searches_by_cosine(tmp_path: Path) -> None:
    write_backbone(tmp_path / "backbone")
    rows = [{"id": f"n{i}", "text": text} for i, text in enumerate([*QUERIES, "other", "words"])]
    graph = build_graph(rows, [("n0", "n1")])
    make_model(max_tokens=12).save_pretrained(tmp_path / "a.model")
    found = embed_and_search(tmp_path / "a.model", graph, tmp_path, tmp_path / "backbone")
    for i, query in enumerate(QUERIES):
        assert found.alone[query][0].id == f"n{i}"
        assert found.alone[query][0].score == pytest.approx(1)
    encoder = sentence_encoder(tmp_path / "backbone", 12)
    vectors = unit_rows(encoder.encode_nodes(graph, np.arange(5)))
    expected = np.sort(vectors @ vectors[0])[: -MATCHES - 1 : -1]
    shown = [match.score for match in found.alone[QUERIES[0]]]
    assert shown == pytest.approx(expected.tolist(), abs=1e-5)
