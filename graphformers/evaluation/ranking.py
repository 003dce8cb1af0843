"""Ranks the positives of questions among their candidates, by one of three protocols.

- "saved", of the paper: among the saved candidates of each question, usually 1 + 299.
- "in-batch", of the 2021 code: among the positives of 300 consecutive questions. No question is
  dropped; the last ones are ranked among the last 300 positives.
- "full": among all nodes of the graph, without the known links of the anchor.

Shapes: Q questions, C candidates per question, M nodes of a block.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from graphformers.arrays import Array, ranges
from graphformers.errors import GraphFormersError, nearest
from graphformers.evaluation.metrics import Ranks, rank_positives
from graphformers.evaluation.scores import Scorer, VectorScores
from graphformers.evaluation.significance import Score, summarize
from graphformers.graph.sampling import NeighborSampler
from graphformers.graph.textgraph import TextGraph
from graphformers.model.backbones import training_of
from graphformers.model.encoder import GraphFormers
from graphformers.progress import progress
from graphformers.splits.split import LinkQuestions, LinkSplit, loaded_split
from graphformers.table import Result, Table

logger = logging.getLogger(__name__)

PROTOCOLS = ("saved", "in-batch", "full")
# number of questions that the in-batch protocol ranks together
BATCH_SIZE = 300
# anchors and scores that the full protocol computes at a time, by device
ANCHORS_PER_BLOCK: Mapping[str, int] = {"cpu": 2048, "cuda": 8192}
SCORES_PER_BLOCK: Mapping[str, int] = {"cpu": 1 << 26, "cuda": 1 << 30}


@dataclass(frozen=True)
class Evaluation(Result):
    """The scores of a system on a set of questions.

    Attributes:
        scores: The mean of every metric with its 95 % interval.
        num_questions: Questions that were ranked.
        num_candidates: Candidates per question.
        ranks: The rank of each positive.

    Examples:
        >>> evaluation = evaluate("papers.model", "papers.split")
        >>> evaluation.scores["P@1"].value
        0...
    """

    scores: dict[str, Score]
    num_questions: int
    num_candidates: int
    ranks: Ranks = field(compare=False, repr=False)

    @staticmethod
    def from_ranks(ranks: Ranks, num_candidates: int) -> "Evaluation":
        """Computes every metric.

        Args:
            ranks: The rank of each positive.
            num_candidates: Candidates per question.

        Returns:
            The means, with intervals.

        Raises:
            GraphFormersError: There are no questions.
        """
        return Evaluation(summarize(ranks), len(ranks), num_candidates, ranks)

    def __str__(self) -> str:
        return "  ".join(f"{name} {score}" for name, score in self.scores.items())

    def to_dict(self) -> dict[str, object]:
        """Plain numbers, for JSON.

        Returns:
            The number of questions and candidates, and every metric with its interval.
        """
        metrics = {name: score.to_dict() for name, score in self.scores.items()}
        return {"questions": self.num_questions, "candidates": self.num_candidates, **metrics}

    def as_table(self) -> Table:
        """A row with every metric.

        Returns:
            A table that prints on a terminal and shows in notebooks.
        """
        return evaluations_table({"": self})


def evaluations_table(evaluations: Mapping[str, Evaluation], title: str = "") -> Table:
    """A table with a row for each system; all systems ranked the same questions."""
    first = next(iter(evaluations.values()))
    rows = [
        (name, *(str(score) for score in evaluation.scores.values()))
        for name, evaluation in evaluations.items()
    ]
    note = (
        f"{first.num_questions:,} questions, {first.num_candidates} candidates each; 95 % intervals"
    )
    return Table(["", *first.scores], rows, title, [note])


def evaluate(
    model: GraphFormers | str | Path,
    split: LinkSplit | str | Path,
    questions: LinkQuestions | None = None,
    *,
    protocol: str = "saved",
    sampler: NeighborSampler | None = None,
) -> Evaluation:
    """Scores a model on held-out links.

    Args:
        model: A model or its folder.
        split: A split or its folder.
        questions: The links to rank: by default the split's test questions.
        protocol: The candidates of each question: saved, in-batch or full.
        sampler: Samples the neighbours that nodes are encoded with; by default as in training, from
            the links that models may see.

    Returns:
        Means of all metrics with intervals, and the rank of each question's positive.

    Raises:
        GraphFormersError: The protocol is unknown, or a folder cannot be read.

    Examples:
        >>> print(evaluate("papers.model", "papers.split", protocol="full"))
        P@1 0... [0..., 0...]  NDCG 0... [0..., 0...]  ...
    """
    model = model if isinstance(model, GraphFormers) else GraphFormers.from_pretrained(model)
    split = loaded_split(split)
    questions = split.test if questions is None else questions
    scorer = model_scores(model, split, questions, (protocol,), sampler)
    return rank(scorer, split.graph, questions, protocol)


def model_scores(
    model: GraphFormers,
    split: LinkSplit,
    questions: LinkQuestions,
    protocols: tuple[str, ...] = ("saved",),
    sampler: NeighborSampler | None = None,
) -> VectorScores:
    """Encodes the nodes of some questions, or all nodes for the full protocol.

    Args:
        model: The model. A warning is logged if it was trained on another split.
        split: The split of the questions.
        questions: The links to rank.
        protocols: The protocols that the scores are for.
        sampler: As in `evaluate`.
    """
    nodes = None if "full" in protocols else question_nodes(questions)
    vectors = encode_nodes(model, split, nodes, sampler)
    # Only the full protocol computes enough products to justify copying vectors to the GPU.
    device = model.device if nodes is None else "cpu"
    return VectorScores(vectors, nodes, cosine=model.is_cosine, device=device)


def encode_nodes(
    model: GraphFormers,
    split: LinkSplit,
    nodes: Array | None = None,
    sampler: NeighborSampler | None = None,
) -> Array:
    """Vectors of nodes, computed with neighbours from the links that models may see.

    Args:
        model: The model. A warning is logged if it was trained on another split.
        split: The split.
        nodes: Row numbers of nodes; by default all.
        sampler: As in `evaluate`.
    """
    training = training_of(model.source) if model.source else None
    trained_on = training["settings"].get("split") if training else None
    if trained_on not in (None, split.fingerprint):
        logger.warning(
            f"{model.source}: trained on another split. If that is a split of the same graph, its "
            f"training links may include held-out links of this one, and the scores are too high"
        )
    sampler = sampler or split.sampler(model.config.num_neighbors)
    return model.encode_nodes(split.graph, nodes, sampler=sampler)


def question_nodes(questions: LinkQuestions) -> Array:
    """The distinct anchors and candidates of some questions, sorted."""
    return np.union1d(questions.pairs[:, 0], questions.candidates)


def check_protocol(protocol: str, known: Sequence[str] = PROTOCOLS) -> None:
    """Raises an error for an unknown protocol."""
    if protocol not in known:
        raise GraphFormersError(f"no protocol {protocol!r}; {nearest(protocol, known)}")


def rank(
    scorer: Scorer, graph: TextGraph, questions: LinkQuestions, protocol: str = "saved"
) -> Evaluation:
    """Ranks the positives of questions by one of the protocols.

    Raises:
        GraphFormersError: The protocol is unknown, or some scores are not finite.
    """
    check_protocol(protocol)
    if protocol == "full":
        return Evaluation.from_ranks(rank_all(scorer, graph, questions.pairs), graph.num_nodes)
    if protocol == "in-batch":
        questions = in_batch(questions.pairs)
    return Evaluation.from_ranks(rank_listed(scorer, questions), questions.candidates.shape[1])


def rank_listed(scorer: Scorer, questions: LinkQuestions) -> Ranks:
    """Ranks each positive among the candidates of its question."""
    return rank_positives(scorer.listed(questions.pairs[:, 0], questions.candidates))


def in_batch(pairs: Array, size: int = BATCH_SIZE) -> LinkQuestions:
    """Questions whose candidates are the positives of `size` consecutive questions.

    As in the 2021 code, a node may occur twice among the candidates, and a true link of the anchor
    may count as a negative.
    """
    size = min(size, len(pairs))
    questions = np.arange(len(pairs))
    starts = np.minimum(questions - questions % size, len(pairs) - size)
    # the question's own positive first
    candidates = (np.arange(size) + (questions - starts)[:, None]) % size + starts[:, None]
    return LinkQuestions(pairs, pairs[candidates, 1])


def rank_all(
    scorer: Scorer,
    graph: TextGraph,
    pairs: Array,
    *,
    anchors_per_block: int | None = None,
    scores_per_block: int | None = None,
) -> Ranks:
    """Ranks each positive among all nodes, without the anchor and its other links.

    Scores are computed and counted block by block, because all of them do not fit in memory.

    Args:
        scorer: Scores all nodes of the graph.
        graph: The graph; all its links are known links.
        pairs: (Q, 2) anchors and positives.
        anchors_per_block: Rows of a block; by default by device.
        scores_per_block: Scores of a block; by default by device.

    Raises:
        GraphFormersError: The scorer does not cover all nodes, or the score of a positive is not
            finite.
    """
    if scorer.num_nodes != graph.num_nodes:
        raise GraphFormersError(
            f"vectors of {scorer.num_nodes:,} nodes, full ranking needs all {graph.num_nodes:,} of "
            f"the graph"
        )
    return rank_rows(
        scorer,
        pairs,
        lambda part: _excluded(graph, part),
        anchors_per_block=anchors_per_block,
        scores_per_block=scores_per_block,
    )


def rank_rows(
    scorer: Scorer,
    pairs: Array,
    excluded: Callable[[Array], tuple[Array, Array]],
    *,
    anchors_per_block: int | None = None,
    scores_per_block: int | None = None,
) -> Ranks:
    """Ranks each positive among all nodes of a scorer but some, block by block.

    Args:
        scorer: Scores anchors against its nodes.
        pairs: (Q, 2) anchors and positives.
        excluded: The nodes that are not ranked for some of the pairs, the positive included: an
            array with the index of the pair, and one with the nodes, sorted by node.
        anchors_per_block: Rows of a block; by default by device.
        scores_per_block: Scores of a block; by default by device.

    Raises:
        GraphFormersError: The score of a positive is not finite.
    """
    device = scorer.device.type
    height = anchors_per_block or ANCHORS_PER_BLOCK.get(device, ANCHORS_PER_BLOCK["cpu"])
    scores = scores_per_block or SCORES_PER_BLOCK.get(device, SCORES_PER_BLOCK["cpu"])
    counted = [np.zeros((2, 0), dtype=np.int64)]
    with progress("Ranking", len(pairs) * scorer.num_nodes, "scores") as task:
        for start in range(0, len(pairs), height):
            part = pairs[start : start + height]
            width = max(1, min(scores // len(part), scorer.max_rows))
            counted.append(_rank_block(scorer, part, excluded(part), width, task.advance))
    better, tied = np.concatenate(counted, 1)
    return Ranks(better, tied)


def _rank_block(
    scorer: Scorer,
    pairs: Array,
    excluded: tuple[Array, Array],
    width: int,
    advance: Callable[[float], None],
) -> Array:
    """(2, Q): how many nodes score better, and how many are tied; `width` nodes at a time."""
    anchors, positives = pairs[:, 0], pairs[:, 1]
    rounding_Q1 = scorer.rounding(anchors, positives)[:, None]
    device = rounding_Q1.device
    positive_Q1 = torch.from_numpy(scorer.listed(anchors, positives[:, None])).to(device)
    if not bool((positive_Q1.isfinite() & rounding_Q1.isfinite()).all()):
        raise GraphFormersError("some scores of the positives are not finite (NaN or inf)")
    better_Q = torch.zeros(len(pairs), dtype=torch.int64, device=device)
    tied_Q = torch.zeros_like(better_Q)
    questions, nodes = excluded
    for start in range(0, scorer.num_nodes, width):
        stop = min(start + width, scorer.num_nodes)
        scores_QM = scorer.block(anchors, start, stop)
        first, last = np.searchsorted(nodes, [start, stop])
        cells = np.stack([questions[first:last], nodes[first:last] - start])
        rows, columns = torch.from_numpy(cells).to(scores_QM.device)
        scores_QM[rows, columns] = -torch.inf
        # Comparisons written as floats are summed six times as fast, and exactly below 2^24.
        marks_QM = torch.empty_like(scores_QM)
        at_least_Q = torch.ge(scores_QM, positive_Q1 - rounding_Q1, out=marks_QM).sum(1)
        above_Q = torch.gt(scores_QM, positive_Q1 + rounding_Q1, out=marks_QM).sum(1)
        better_Q += above_Q.long()
        tied_Q += (at_least_Q - above_Q).long()
        advance(float(len(pairs) * (stop - start)))
    return torch.stack([better_Q, tied_Q]).cpu().numpy()


def _excluded(graph: TextGraph, pairs: Array) -> tuple[Array, Array]:
    """The nodes that are not ranked, as arrays of questions and of nodes, sorted by node.

    These are the anchor, the positive itself and the known links of the anchor.
    """
    anchors = pairs[:, 0].astype(np.int64)
    degrees = graph.indptr[anchors + 1] - graph.indptr[anchors]
    known = graph.indices[ranges(graph.indptr[anchors], degrees)]
    own = np.arange(len(pairs))
    questions = np.concatenate([own, own, np.repeat(own, degrees)])
    nodes = np.concatenate([anchors, pairs[:, 1], known]).astype(np.int64)
    order = np.argsort(nodes, kind="stable")
    return questions[order], nodes[order]
