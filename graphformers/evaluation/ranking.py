"""Link prediction as the paper measures it: one true link among the saved candidates of each question."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from graphformers.data.arrays import Array
from graphformers.data.split import LinkQuestions, LinkSplit
from graphformers.errors import GraphFormersError
from graphformers.evaluation.metrics import Ranks, Score, rank_positives, summarize
from graphformers.model.encoding import GraphFormers

BLOCK_BYTES = 1 << 28  # of candidates' vectors at a time


@dataclass(frozen=True)
class Evaluation:
    """What a model scored on a set of questions."""

    scores: dict[str, Score]  # P@1, NDCG, MRR, hits@10
    num_questions: int
    num_candidates: int

    def table(self) -> dict[str, Any]:
        """As plain numbers, for JSON."""
        metrics = {name: {"value": score.value, "interval": [score.low, score.high]} for name, score in self.scores.items()}
        return {"questions": self.num_questions, "candidates": self.num_candidates, **metrics}

    def __str__(self) -> str:
        return "  ".join(f"{name} {score}" for name, score in self.scores.items())


def evaluate(model: GraphFormers, split: LinkSplit, questions: LinkQuestions | None = None) -> Evaluation:
    """Scores a model on a split's test questions, or on others of it: `evaluate(model, split, split.valid)`."""
    asked = split.test if questions is None else questions
    nodes = asked_nodes(asked)
    vectors = model.encode_nodes(split.graph, nodes, sampler=split.sampler(model.config.num_neighbors))
    return evaluate_vectors(vectors, nodes, asked, cosine=model.is_cosine)


def evaluate_vectors(vectors: Array, nodes: Array, questions: LinkQuestions, *, cosine: bool = False) -> Evaluation:
    """Scores the vectors of `nodes` (sorted row numbers that hold all that is asked), whoever made them."""
    ranks = rank_candidates(vectors, nodes, questions, cosine=cosine)
    return Evaluation(summarize(ranks), len(ranks), questions.candidates.shape[1])


def asked_nodes(questions: LinkQuestions) -> Array:
    """The distinct nodes that a set of questions is about, sorted."""
    return np.union1d(questions.pairs[:, 0], questions.candidates)


def rank_candidates(vectors: Array, nodes: Array, questions: LinkQuestions, *, cosine: bool = False) -> Ranks:
    """Where each positive stands among its candidates, by inner product in float32, or by cosine."""
    if len(vectors) != len(nodes):
        raise GraphFormersError(f"{len(vectors):,} vectors for {len(nodes):,} nodes, expected one each")
    known = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32))
    if cosine:
        known = F.normalize(known, dim=-1)
    anchors, candidates = np.searchsorted(nodes, questions.pairs[:, 0]), np.searchsorted(nodes, questions.candidates)
    size = max(1, BLOCK_BYTES // (4 * known.shape[1] * candidates.shape[1]))
    scores_QC = np.empty(candidates.shape, dtype=np.float32)
    for start in range(0, len(candidates), size):
        part = slice(start, start + size)
        anchor_Q1D, near_QCD = known[torch.from_numpy(anchors[part])][:, None], known[torch.from_numpy(candidates[part])]
        # a matrix product may round equal rows differently, by their place; what is tied must stay tied
        scores_QC[part] = near_QCD.mul_(anchor_Q1D).sum(-1).numpy()
    return rank_positives(scores_QC)
