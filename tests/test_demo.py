"""The demo's last step; the whole walk is tested in test_cli.py."""

from pathlib import Path

import pytest

from graphformers.demo import embed_and_search
from graphformers.embedding.vectors import VectorStore
from graphformers.retrieval.searcher import search
from tests.conftest import make_graph
from tests.model.conftest import make_model


def test_embeds_once_for_each_model_and_says_what_is_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = make_graph(80, 200)
    for seed in (0, 5):
        make_model(seed=seed).save_pretrained(tmp_path / f"{seed}.model")
    found = embed_and_search(tmp_path / "0.model", graph, tmp_path, "graph text")
    assert found.matches == search(found.vectors, "graph text", 3)
    assert "embedding 80 docstrings" in caplog.text
    assert embed_and_search(tmp_path / "0.model", graph, tmp_path, "graph text") == found
    assert "made by an earlier run" in caplog.text
    before = VectorStore.load(found.vectors).key.model
    assert embed_and_search(tmp_path / "5.model", graph, tmp_path, "graph text") != found
    assert VectorStore.load(found.vectors).key.model != before
    shown = str(found.as_table())
    assert found.matches[0].id in shown
    assert (
        f"Next: make serve (a page to search in), or graphformers search {found.vectors}" in shown
    )
