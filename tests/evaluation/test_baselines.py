import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from graphformers.evaluation.baselines import (
    TITLES,
    add_neighbor_means,
    adjacency_matrix,
    baseline_scores,
    sentence_encoder,
    tfidf_features,
)
from graphformers.evaluation.ranking import rank, rank_listed
from graphformers.graph.textgraph import TextGraph
from graphformers.model.backbones import find_backbone, pooling_of
from graphformers.model.encoder import GraphFormers
from graphformers.splits.split import LinkQuestions, LinkSplit, split_links
from tests.conftest import make_graph


def test_the_vectors_are_those_of_transformers_and_mean_pooling() -> None:
    from transformers import AutoModel, AutoTokenizer

    graph, nodes = make_graph(), np.array([5, 3, 3, 100, 42])
    folder = find_backbone("minilm")
    reference, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(
        graph.texts_of(nodes), padding=True, truncation=True, max_length=32, return_tensors="pt"
    )
    with torch.inference_mode():
        hidden = reference(**batch).last_hidden_state
    weights = batch["attention_mask"][:, :, None].float()
    expected = (hidden * weights).sum(1) / weights.sum(1)
    found = sentence_encoder("minilm", device="cpu").encode_nodes(graph, nodes)
    assert np.abs(found - expected.numpy()).max() < 1e-5


def test_a_folder_says_how_it_pools(tmp_path: Path) -> None:
    assert pooling_of(tmp_path) is None
    (tmp_path / "1_Pooling").mkdir()
    for key, name in {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_max_tokens": "max_tokens",
    }.items():
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({key: True}))
        assert pooling_of(tmp_path) == name


def test_a_pooling_that_is_not_followed_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a baseline, and by who takes the paper's [CLS] of a backbone that was made for the
    mean.
    """
    backbone = tmp_path / "backbone"
    shutil.copytree(find_backbone("minilm"), backbone)
    config = backbone / "1_Pooling" / "config.json"
    caplog.set_level(logging.INFO)
    GraphFormers.from_backbone(backbone, "plm", device="cpu", pooling="cls")
    assert not caplog.text
    GraphFormers.from_backbone(backbone, device="cpu")
    assert "trained with mean pooling; its [CLS] is used here" in caplog.text
    caplog.clear()
    GraphFormers.from_backbone(backbone, "max", device="cpu")  # said once
    assert not caplog.text
    config.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    sentence_encoder(backbone, device="cpu").encode_nodes(make_graph(), np.array([1, 2]))
    assert (
        "pooling max_tokens is not supported; the mean of the token vectors is used instead"
        in caplog.text
    )


def test_a_graph_without_the_nodes_of_questions_gives_nothing() -> None:
    graph: TextGraph = make_graph()
    encoder = sentence_encoder("minilm", device="cpu")
    assert encoder.encode_nodes(graph, np.zeros(0, dtype=np.int64)).shape == (0, 384)


def split_of_graph() -> LinkSplit:
    return split_links(make_graph(), valid=0.1, test=0.1, candidates=30)


def test_word_features_are_those_of_scikit_learn() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [*make_graph().texts.to_pylist(), "", "Ünïcode and CASE, twice twice"]
    expected = TfidfVectorizer(token_pattern=r"\w+").fit_transform(texts)
    found = tfidf_features(texts)
    # columns are in another order
    assert np.abs((found @ found.T - expected @ expected.T).toarray()).max() < 1e-5


def test_words_of_neighbours_are_their_mean() -> None:
    split = split_of_graph()
    features = tfidf_features(split.graph.texts.to_pylist())
    found = add_neighbor_means(features, split, 3).toarray()
    dense, around = features.toarray(), split.sampler(3).sample(np.arange(split.graph.num_nodes))
    for node in range(0, split.graph.num_nodes, 7):
        near = around.of(node)
        expected = dense[node] + (dense[near].mean(0) if len(near) else 0)
        assert np.abs(found[node] - expected / np.linalg.norm(expected)).max() < 1e-5


def test_rankings_by_links_are_those_of_networkx() -> None:
    import networkx

    split = split_of_graph()
    visible = networkx.Graph()
    visible.add_nodes_from(range(split.graph.num_nodes))
    coo = adjacency_matrix(split).tocoo()
    visible.add_edges_from(zip(coo.row.tolist(), coo.col.tolist(), strict=True))
    anchors, candidates = split.test.pairs[:, 0], split.test.candidates
    found = {
        name: scorer.listed(anchors, candidates) for name, scorer in baseline_scores(split).items()
    }
    for q, anchor in enumerate(anchors.tolist()):
        pairs = [(anchor, candidate) for candidate in candidates[q].tolist()]
        common = [len(list(networkx.common_neighbors(visible, a, b))) for a, b in pairs]
        adamic = [score for _, _, score in networkx.adamic_adar_index(visible, pairs)]
        assert found[TITLES["common"]][q].tolist() == common
        assert found[TITLES["adamic"]][q] == pytest.approx(adamic, abs=1e-5)
        assert found[TITLES["degree"]][q].tolist() == [visible.degree(b) for _, b in pairs]
    assert not any(visible.has_edge(int(a), int(b)) for a, b in split.test.pairs)


def test_sparse_rankings_of_all_nodes_are_those_of_lists_of_all_nodes() -> None:
    split = split_of_graph()
    everyone = np.arange(split.graph.num_nodes)
    for scorer in baseline_scores(split).values():
        full = rank(scorer, split.graph, split.test, "full")
        for q, (anchor, positive) in enumerate(split.test.pairs.tolist()):
            others = np.setdiff1d(everyone, [anchor, positive, *split.graph.neighbors_of(anchor)])
            asked = LinkQuestions(split.test.pairs[q : q + 1], np.array([[positive, *others]]))
            expected = rank_listed(scorer, asked)
            assert (full.ranks.better[q], full.ranks.tied[q]) == (
                expected.better[0],
                expected.tied[0],
            )
