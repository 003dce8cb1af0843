import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers import TextQueries, known_item_queries, text_search
from graphformers.cli import app
from graphformers.errors import GraphFormersError, UnknownIdError
from graphformers.evaluation import ranking
from graphformers.evaluation.baselines import bm25_search, sentence_encoder, tfidf_search
from graphformers.evaluation.metrics import METRICS
from graphformers.evaluation.overview import evaluate_with_baselines
from graphformers.evaluation.scores import ROUNDING, VectorScores
from graphformers.evaluation.text_search import backbone_search, rank_queries, word_search
from graphformers.graph.interop import build_graph
from graphformers.graph.textgraph import TextGraph
from graphformers.splits.split import split_links
from tests.conftest import make_graph
from tests.model.conftest import make_model

WORDS = ["graph", "Text", "node-link", "vector", "größe", "layer", "a_b", "x2"]


def graph_of(texts: dict[str, str]) -> TextGraph:
    ids = list(texts)
    table = pa.table({"id": ids, "text": [texts[id] for id in ids]})
    return build_graph(table, {"source": ids[:-1], "target": ids[1:]})


texts_by_id = st.dictionaries(
    st.text("abc123", min_size=1, max_size=4),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join),
    min_size=3,
    max_size=30,
)


def described(graph: TextGraph, queries: TextQueries) -> tuple[object, object]:
    """Queries with ids instead of row numbers."""
    candidates = graph.ids_of(queries.candidates_of(graph))
    return list(zip(graph.ids_of(queries.nodes), queries.texts, strict=True)), sorted(candidates)


@settings(max_examples=60)
@given(texts_by_id, st.randoms(use_true_random=False), st.integers(0, 5))
def test_queries_do_not_depend_on_the_order_of_rows(
    texts: dict[str, str], random: object, seed: int
) -> None:
    order = list(texts)
    random.shuffle(order)  # type: ignore[attr-defined]
    graph, shuffled = graph_of(texts), graph_of({id: texts[id] for id in order})
    for limit in (len(texts), len(texts) - 1):
        one, other = (
            known_item_queries(each, 2, candidates=limit, seed=seed) for each in (graph, shuffled)
        )
        assert described(graph, one) == described(shuffled, other)


@settings(max_examples=60)
@given(texts_by_id)
def test_a_query_is_half_of_the_words_in_their_order(texts: dict[str, str]) -> None:
    graph = graph_of(texts)
    queries = known_item_queries(graph, 100)
    words = {id: re.findall(r"\w+", text) for id, text in texts.items()}
    assert set(graph.ids_of(queries.nodes)) == {id for id, own in words.items() if len(own) >= 4}
    for id, text in zip(graph.ids_of(queries.nodes), queries.texts, strict=True):
        own, drawn = iter(words[id]), text.split(" ")
        assert len(drawn) == math.ceil(len(words[id]) / 2)
        assert all(word in own for word in drawn)  # a subsequence


def test_nodes_and_words_are_drawn_by_hash() -> None:
    """Other seeds draw others, and more queries begin with the same ones."""
    graph = make_graph()
    few, many = known_item_queries(graph, 20), known_item_queries(graph, 60)
    assert few.texts == many.texts[:20]
    other = known_item_queries(graph, 20, seed=1)
    assert few.nodes.tolist() != other.nodes.tolist()
    whole = known_item_queries(graph, 10**6)
    again = known_item_queries(graph, 10**6, seed=1)
    one, two = (dict(zip(each.nodes.tolist(), each.texts, strict=True)) for each in (whole, again))
    assert one.keys() == two.keys()
    assert sum(one[node] != two[node] for node in one) > len(one) / 2
    drawn = known_item_queries(graph, 20, candidates=50).candidates
    assert drawn is not None
    assert len(drawn) == 50
    assert set(few.nodes.tolist()) <= set(drawn.tolist())


def naive_bm25(texts: Sequence[str], query: str) -> list[float]:
    documents = [re.findall(r"\w+", text.lower()) for text in texts]
    # without any word there is nothing to divide by
    mean, scores = sum(map(len, documents)) / len(documents) or 1, []
    for document in documents:
        score = 0.0
        for word in re.findall(r"\w+", query.lower()):
            holding = sum(word in each for each in documents)
            idf = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
            tf = document.count(word)
            score += idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * len(document) / mean))
        scores.append(score)
    return scores


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), min_size=1, max_size=12),
    st.lists(st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=5).map(" ".join), min_size=1),
)
def test_bm25_is_that_of_a_naive_loop(texts: list[str], queries: list[str]) -> None:
    scorer = bm25_search(texts, queries)
    found = scorer.block(np.arange(len(queries)), 0, len(texts)).numpy()
    for q, query in enumerate(queries):
        assert found[q] == pytest.approx(naive_bm25(texts, query), rel=1e-5, abs=1e-6)


def test_tfidf_of_queries_is_that_of_scikit_learn() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = make_graph().texts.to_pylist()
    queries = ["graph node", "text text unknown", "unknown", "Vector 7"]
    vectorizer = TfidfVectorizer(token_pattern=r"\w+")
    expected = vectorizer.fit_transform(texts) @ vectorizer.transform(queries).T
    found = tfidf_search(texts, queries).block(np.arange(4), 0, len(texts)).numpy()
    assert np.abs(found - expected.toarray().T).max() < 1e-5


def naive_rank(scores: Sequence[float], own: int, texts: Sequence[str], near: float) -> list[int]:
    """How many candidates of another text are better, and how many are tied."""
    others = [score for i, score in enumerate(scores) if texts[i] != texts[own]]
    better = sum(score > scores[own] + near for score in others)
    return [better, sum(abs(score - scores[own]) <= near for score in others)]


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([200, 120]))
def test_ranks_are_those_of_a_naive_loop(seed: int, cosine: bool, limit: int) -> None:
    """Also with equal vectors, and with equal texts, which are not ranked."""
    graph = make_graph(seed=seed % 3)
    queries = known_item_queries(graph, 30, candidates=limit, seed=seed)
    candidates = queries.candidates_of(graph)
    draw = np.random.default_rng(seed)
    asked = draw.normal(size=(len(queries), 6)).astype(np.float32)
    vectors = draw.normal(size=(9, 6)).astype(np.float32)[draw.integers(0, 9, len(candidates))]
    vectors[::2] = draw.normal(size=vectors[::2].shape)
    found = rank_queries(VectorScores(vectors, cosine=cosine, anchors=asked), graph, queries)
    texts = graph.texts_of(candidates)
    for q, node in enumerate(queries.nodes.tolist()):
        own = candidates.tolist().index(node)
        length = np.linalg.norm(asked[q].astype(float))
        lengths = np.linalg.norm(vectors.astype(float), axis=1)
        scores = vectors.astype(float) @ asked[q] / (length * lengths if cosine else 1)
        near = ROUNDING * (1 if cosine else float(length * lengths[own]))
        expected = naive_rank(scores.tolist(), own, texts, near)
        assert [found.better[q], found.tied[q]] == expected


def test_blocks_do_not_change_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph()
    queries = known_item_queries(graph, 50)
    before = word_search(graph, queries)
    monkeypatch.setattr(ranking, "ANCHORS_PER_BLOCK", {"cpu": 7})
    monkeypatch.setattr(ranking, "SCORES_PER_BLOCK", {"cpu": 90})
    for name, ranks in word_search(graph, queries).items():
        assert ranks.better.tolist() == before[name].better.tolist()
        assert ranks.tied.tolist() == before[name].tied.tolist()


def test_words_find_texts_and_equal_texts_count_as_hits() -> None:
    texts = {str(i): f"alpha beta gamma delta{i} epsilon{i} zeta{i}" for i in range(20)}
    texts |= {"twin": texts["3"], "twins": texts["3"], "short": "alpha beta"}
    graph = graph_of(texts)
    queries = TextQueries.from_ids(graph, [("delta3 zeta3", "3"), ("DELTA5", "5")])
    for name, ranks in word_search(graph, queries).items():
        assert ranks.better.tolist() == [0, 0], name
        assert ranks.tied.tolist() == [0, 0], name
    # Without a common word all texts score 0: every order is equally likely.
    unknown = word_search(graph, TextQueries.from_ids(graph, [("unrelated", "short")]))["BM25"]
    assert (unknown.better.tolist(), unknown.tied.tolist()) == ([0], [22])


def test_models_are_ranked_as_they_serve() -> None:
    """Queries alone, nodes with their neighbours of the split, by the model's similarity."""
    split = split_links(make_graph(), valid=0.1, test=0.1)
    graph, model = split.graph, make_model()
    for limit in (200, 90):
        queries = known_item_queries(graph, 40, candidates=limit)
        candidates = queries.candidates_of(graph)
        sampler = split.sampler(model.config.num_neighbors)
        vectors = model.encode_nodes(graph, candidates, sampler=sampler)
        scores = model.similarity(model.encode(queries.texts), vectors)
        own = np.searchsorted(candidates, queries.nodes)
        same = np.equal.outer(graph.text_groups[queries.nodes], graph.text_groups[candidates])
        better = ((scores > scores[np.arange(40), own][:, None]) & ~same).sum(1)
        found = text_search(model, split, queries)
        assert np.abs(found.better - better).max() <= 1  # rounding
        alone = text_search(model, split, queries, sampler=split.sampler(0))
        assert alone.better.tolist() != found.better.tolist()

        encoder = sentence_encoder("minilm", device="cpu")
        plain = encoder.encode_nodes(graph, candidates), encoder.encode(queries.texts)
        expected = rank_queries(
            VectorScores(plain[0], cosine=True, anchors=plain[1]), graph, queries
        )
        untrained = backbone_search("minilm", graph, queries, device="cpu")
        assert untrained.better.tolist() == expected.better.tolist()


def test_a_graph_of_short_texts_has_no_queries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = graph_of({f"n{i}": f"short text {i}" for i in range(60)})
    queries = known_item_queries(graph)
    assert len(queries) == 0
    assert all(len(ranks) == 0 for ranks in word_search(graph, queries).values())
    split = split_links(graph, valid=5, test=5, candidates=4)
    with pytest.raises(GraphFormersError, match="no text of the graph has 4 words"):
        text_search(make_model(), split)
    make_model().save_pretrained(tmp_path / "g.model")
    found = evaluate_with_baselines(tmp_path / "g.model", split, split.test, device="cpu")
    assert found.searches == {}
    assert "search by words is not measured: no text has 4 words" in caplog.text
    assert "search by words" not in found.to_dict()


def test_wrong_queries_are_errors() -> None:
    graph = make_graph()
    with pytest.raises(GraphFormersError, match="0 queries given, expected 1 or more"):
        known_item_queries(graph, 0)
    with pytest.raises(GraphFormersError, match="3 candidates given, expected at least the 20"):
        known_item_queries(graph, 20, candidates=3)
    with pytest.raises(GraphFormersError, match="2 queries and 1 nodes given"):
        TextQueries(np.array([1]), ["one", "two"])
    with pytest.raises(GraphFormersError, match="not among the candidates"):
        TextQueries(np.array([1]), ["one"], np.array([0, 2]))
    with pytest.raises(UnknownIdError, match="no node with the id 'nobody'"):
        TextQueries.from_ids(graph, [("one", "nobody")])
    with pytest.raises(GraphFormersError, match="scores of 3 nodes given, expected one for each"):
        vectors = np.eye(3, dtype=np.float32)
        rank_queries(
            VectorScores(vectors, anchors=vectors[:1]), graph, TextQueries(np.array([1]), ["one"])
        )
    with pytest.raises(GraphFormersError, match=r"anchors of shape \(2,\) given"):
        VectorScores(np.eye(3, dtype=np.float32), anchors=np.ones((1, 2), dtype=np.float32))


def test_evaluate_shows_search_by_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split_links(make_graph().save(tmp_path / "g.graph"), valid=0.1, test=0.1).save(
        tmp_path / "g.split"
    )
    make_model().save_pretrained(tmp_path / "g.model")
    own, place = str(tmp_path / "g.model"), str(tmp_path / "g.split")
    words = ["evaluate", own, place, "--device", "cpu", "--backbone", "minilm"]
    app([*words, "--queries", "50"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "Search by words:" in shown
    assert "50 queries, each half of the words of a node's text, which is searched among 200" in (
        shown
    )
    assert f"MRR of search by words of {own} minus that of" in shown

    app([*words, "--queries", "50", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)["search by words"]
    systems = found["systems"]
    assert list(systems) == [own, "minilm, untrained", "TF-IDF", "BM25"]
    assert list(found["ahead"]) == ["minilm, untrained", "TF-IDF", "BM25"]
    split = split_links(make_graph(), valid=0.1, test=0.1)
    queries = known_item_queries(split.graph, 50)
    expected = {
        own: text_search(make_model(), split, queries),
        "minilm, untrained": backbone_search("minilm", split.graph, queries, device="cpu"),
        **word_search(split.graph, queries),
    }
    for name, ranks in expected.items():
        mean = float(METRICS["MRR"](ranks).mean())
        assert systems[name]["MRR"]["value"] == pytest.approx(mean, abs=1e-6)
        assert systems[name]["questions"] == 50
        assert systems[name]["candidates"] == 200
    ahead = METRICS["MRR"](expected[own]).mean() - METRICS["MRR"](expected["BM25"]).mean()
    assert found["ahead"]["BM25"]["value"] == pytest.approx(ahead, abs=1e-6)

    app([*words, "--queries", "0", "--json"], standalone_mode=False)
    assert "search by words" not in json.loads(capsys.readouterr().out)


def test_words_of_a_text_are_counted_once_each() -> None:
    """Counts of repeated words, without regard to case."""
    scorer = bm25_search(["One one two", ""], ["ONE"])
    assert Counter(scorer.candidates.toarray().astype(bool).sum(1).tolist()) == Counter([2, 0])
