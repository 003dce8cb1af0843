import numpy as np
import pytest

from graphformers.batching.tokens import graph_tokens
from graphformers.evaluation.ranking import evaluate
from graphformers.splits.candidates import share_candidates
from graphformers.splits.split import LinkQuestions, split_links
from graphformers.training.distributed import World
from graphformers.training.settings import TrainConfig
from graphformers.training.validation import Validation, shared_questions
from tests.conftest import make_graph
from tests.training.conftest import make_model, make_split

SPLIT = make_split()


def make_validation(**changes: object) -> Validation:
    model = make_model().eval()
    tokens = graph_tokens(SPLIT.graph, model.tokenizer)
    return Validation(model, SPLIT, TrainConfig(**changes), tokens, World())  # type: ignore[arg-type]


@pytest.mark.parametrize("candidates", ["saved", "shared"])
def test_a_validation_ranks_as_an_evaluation_does(candidates: str) -> None:
    validation = make_validation(max_valid=20, valid_candidates=candidates)
    found = validation.measure()
    expected = evaluate(validation.model, SPLIT, validation.questions)
    for name, value in found.items():
        assert value == pytest.approx(expected.scores[name].value)


def test_shared_candidates_need_fewer_nodes() -> None:
    saved, shared = (make_validation(valid_candidates=each) for each in ("saved", "shared"))
    count = SPLIT.valid.candidates.shape[1]
    assert shared.questions.candidates.shape[1] == count
    assert len(np.unique(shared.questions.candidates[:, 1:])) <= 1.25 * (count - 1)
    assert len(shared.nodes) < len(saved.nodes)
    assert isinstance(saved.questions, LinkQuestions)
    assert np.array_equal(saved.questions.candidates, SPLIT.valid.candidates)


def test_questions_keep_their_candidates_where_few_could_share_them() -> None:
    """In a dense graph, most anchors are linked to many of the shared candidates."""
    graph = make_graph(100, 2500, seed=1)
    split = split_links(graph, valid=0.05, test=0.05)
    pairs, _ = share_candidates(graph, split.valid.pairs, split.valid.candidates)
    assert len(pairs) < 0.1 * len(split.valid)
    assert shared_questions(graph, split.valid) is split.valid
