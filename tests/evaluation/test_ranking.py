import numpy as np
import pytest
import torch

from graphformers.data.split import LinkQuestions, split_links
from graphformers.errors import GraphFormersError
from graphformers.evaluation import ranking
from graphformers.evaluation.ranking import asked_nodes, evaluate, evaluate_vectors, rank_candidates
from tests.conftest import make_graph
from tests.model.conftest import make_model


def naive_ranks(vectors: np.ndarray, nodes: np.ndarray, asked: LinkQuestions, cosine: bool) -> list[int]:  # type: ignore[type-arg]
    place = {int(node): i for i, node in enumerate(nodes)}
    found = []
    for (anchor, _), candidates in zip(asked.pairs, asked.candidates, strict=True):
        scores = []
        for candidate in candidates:
            a, b = vectors[place[int(anchor)]].astype(float), vectors[place[int(candidate)]].astype(float)
            scores.append(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) if cosine else 1))
        found.append(sum(score > scores[0] for score in scores[1:]))
    return found


@pytest.mark.parametrize("cosine", [False, True])
def test_ranks_are_those_of_a_naive_loop(cosine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    split = split_links(make_graph(), valid=0.1, test=0.1)
    nodes = asked_nodes(split.test)
    vectors = np.random.default_rng(0).normal(size=(len(nodes), 12)).astype(np.float32)
    monkeypatch.setattr(ranking, "BLOCK_BYTES", 4 * 12 * split.test.candidates.shape[1] * 3)  # three questions at a time
    found = rank_candidates(vectors, nodes, split.test, cosine=cosine)
    assert found.better.tolist() == naive_ranks(vectors, nodes, split.test, cosine)
    assert found.tied.max() == 0


def test_equal_vectors_are_tied_wherever_they_stand() -> None:
    split = split_links(make_graph(), valid=0.1, test=0.1)
    nodes = asked_nodes(split.test)
    one = torch.randn(37, generator=torch.Generator().manual_seed(0)).numpy()
    found = evaluate_vectors(np.tile(one, (len(nodes), 1)), nodes, split.test)
    assert found.scores["P@1"].value == pytest.approx(1 / found.num_candidates, rel=1e-9)


def test_a_model_is_evaluated_with_the_neighbours_it_may_see() -> None:
    split, model = split_links(make_graph(), valid=0.1, test=0.1), make_model()
    found = evaluate(model, split)
    vectors = model.encode_nodes(split.graph, sampler=split.sampler(model.config.num_neighbors))
    assert found == evaluate_vectors(vectors, np.arange(split.graph.num_nodes), split.test)
    assert evaluate(model, split, split.valid).num_questions == len(split.valid)
    table = found.table()
    assert table["questions"] == len(split.test)
    assert table["P@1"]["interval"][0] <= table["P@1"]["value"] <= table["P@1"]["interval"][1]
    assert str(found).startswith("P@1 0.")


def test_vectors_must_fit_the_nodes() -> None:
    split = split_links(make_graph(), valid=0.1, test=0.1)
    with pytest.raises(GraphFormersError, match="3 vectors for"):
        rank_candidates(np.zeros((3, 4), dtype=np.float32), asked_nodes(split.test), split.test)
