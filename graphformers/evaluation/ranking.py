"""Link prediction: where the true link stands among others. Three protocols:

- "saved" (the paper's): among the saved candidates of each question, 1 + 299 as a rule;
- "in-batch" (the 2021 code's): among the positives of 300 consecutive questions; nothing is
  dropped, the last questions are asked
  among the last 300;
- "full": among all nodes of the graph, known links of the anchor left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphformers.data.arrays import Array, ranges
from graphformers.data.graph import TextGraph
from graphformers.data.sampling import NeighborSampler
from graphformers.data.split import LinkQuestions, LinkSplit, loaded_split
from graphformers.errors import GraphFormersError, nearest
from graphformers.evaluation.metrics import Ranks, rank_positives
from graphformers.evaluation.scores import Scorer, VectorScores
from graphformers.evaluation.significance import Score, summarize
from graphformers.model.backbones import training_of
from graphformers.model.encoding import GraphFormers
from graphformers.progress import progress, say

PROTOCOLS = ("saved", "in-batch", "full")
BATCH = 300  # questions that the in-batch protocol puts together
SCORES_AT_ONCE = {"cpu": 1 << 26, "cuda": 1 << 30}  # of the full protocol
ANCHORS_AT_ONCE = {"cpu": 2048, "cuda": 8192}


@dataclass(frozen=True)
class Evaluation:
    """What a model scored on a set of questions."""

    scores: dict[str, Score]  # P@1, NDCG, MRR, hits@10
    num_questions: int
    num_candidates: int
    ranks: Ranks = field(compare=False, repr=False)

    @staticmethod
    def of(ranks: Ranks, num_candidates: int) -> "Evaluation":
        return Evaluation(summarize(ranks), len(ranks), num_candidates, ranks)

    def table(self) -> dict[str, Any]:
        """As plain numbers, for JSON."""
        metrics = {
            name: {"value": score.value, "interval": [score.low, score.high]}
            for name, score in self.scores.items()
        }
        return {"questions": self.num_questions, "candidates": self.num_candidates, **metrics}

    def __str__(self) -> str:
        return "  ".join(f"{name} {score}" for name, score in self.scores.items())


def evaluate(
    model: GraphFormers | str | Path,
    split: LinkSplit | str | Path,
    questions: LinkQuestions | None = None,
    *,
    protocol: str = "saved",
    sampler: NeighborSampler | None = None,
) -> Evaluation:
    """Scores a model on a split's test questions, or on others of it: `evaluate(model, split,
    split.valid)`.

    `model` and `split` may be folders. Nodes are read with the neighbours that the model may see,
    or with those that another sampler draws.
    """
    model = model if isinstance(model, GraphFormers) else GraphFormers.from_pretrained(model)
    split = loaded_split(split)
    asked = split.test if questions is None else questions
    return rank(
        model_scores(model, split, asked, (protocol,), sampler), split.graph, asked, protocol
    )


def model_scores(
    model: GraphFormers,
    split: LinkSplit,
    questions: LinkQuestions,
    protocols: tuple[str, ...] = ("saved",),
    sampler: NeighborSampler | None = None,
) -> VectorScores:
    """A model's vectors of the nodes that the questions ask about, of all nodes for the full
    protocol.
    """
    learnt_from = (
        training_of(model.source).get("settings", {}).get("split") if model.source else None
    )
    if learnt_from not in (None, split.fingerprint):
        say(
            f"{model.source}: was trained on another split than this one. If that was one of the "
            f"same graph, it may have learnt "
            "from links that are asked for here, and its scores would be too good"
        )
    nodes = None if "full" in protocols else asked_nodes(questions)
    sampler = sampler or split.sampler(model.config.num_neighbors)
    vectors = model.encode_nodes(split.graph, nodes, sampler=sampler)
    return VectorScores(
        vectors, nodes, cosine=model.is_cosine, device=model.device if nodes is None else "cpu"
    )


def asked_nodes(questions: LinkQuestions) -> Array:
    """The distinct nodes that a set of questions is about, sorted."""
    return np.union1d(questions.pairs[:, 0], questions.candidates)


def check_protocol(protocol: str, known: Sequence[str] = PROTOCOLS) -> None:
    if protocol not in known:
        raise GraphFormersError(f"no protocol {protocol!r}; {nearest(protocol, known)}")


def rank(
    scorer: Scorer, graph: TextGraph, questions: LinkQuestions, protocol: str = "saved"
) -> Evaluation:
    """Ranks the positives of some questions under one of the PROTOCOLS."""
    check_protocol(protocol)
    if protocol == "full":
        return Evaluation.of(rank_all(scorer, graph, questions.pairs), graph.num_nodes)
    asked = in_batch(questions.pairs) if protocol == "in-batch" else questions
    return Evaluation.of(rank_listed(scorer, asked), asked.candidates.shape[1])


def rank_listed(scorer: Scorer, questions: LinkQuestions) -> Ranks:
    """Where each positive stands among its candidates."""
    return rank_positives(scorer.listed(questions.pairs[:, 0], questions.candidates))


def in_batch(pairs: Array, size: int = BATCH) -> LinkQuestions:
    """The same questions, each asked among the positives of its batch of consecutive ones.

    As in the 2021 code, a batch may hold a node twice or a true link of the anchor as a negative.
    The last questions that do not fill a batch are asked among the last `size` positives.
    """
    size = min(size, len(pairs))
    own = np.arange(len(pairs))
    starts = np.minimum(own - own % size, len(pairs) - size)
    others = (np.arange(size) + (own - starts)[:, None]) % size + starts[:, None]  # its own first
    return LinkQuestions(pairs, pairs[others, 1])


def rank_all(scorer: Scorer, graph: TextGraph, pairs: Array) -> Ranks:
    """Where each positive stands among all nodes but the anchor and what is linked to it anywhere
    in the graph.

    The scores of some anchors against a block of nodes are computed at a time, counted and
    forgotten.
    """
    if scorer.num_nodes != graph.num_nodes:
        raise GraphFormersError(
            f"vectors of {scorer.num_nodes:,} nodes, full ranking needs all {graph.num_nodes:,} of "
            f"the graph"
        )
    counted = []
    with progress("Ranking", len(pairs) * graph.num_nodes, "scores") as task:
        device = getattr(scorer, "device", torch.device("cpu")).type
        anchors, scores = (
            sizes.get(device, sizes["cpu"]) for sizes in (ANCHORS_AT_ONCE, SCORES_AT_ONCE)
        )
        for start in range(0, len(pairs), anchors):
            part = pairs[start : start + anchors]
            width = max(1, min(scores // len(part), scorer.most_rows))
            counted.append(_rank_against_all(scorer, graph, part, width, task.advance))
    better, tied = np.concatenate(counted, 1) if counted else np.zeros((2, 0), dtype=np.int64)
    return Ranks(better, tied)


def _rank_against_all(
    scorer: Scorer, graph: TextGraph, pairs: Array, width: int, advance: Callable[[float], None]
) -> Array:
    """(2, Q): how many nodes are better, how many tied. `width` nodes are scored at a time."""
    anchors, positives = pairs[:, 0], pairs[:, 1]
    rounding_Q1 = scorer.rounding(anchors, positives)[:, None]
    positive_Q1 = torch.from_numpy(scorer.listed(anchors, positives[:, None])).to(
        rounding_Q1.device
    )
    if not bool((positive_Q1.isfinite() & rounding_Q1.isfinite()).all()):
        raise GraphFormersError("some scores of the links asked for are not finite (NaN or inf)")
    better, tied = (
        torch.zeros(len(pairs), dtype=torch.int64, device=rounding_Q1.device) for _ in range(2)
    )
    questions, nodes = _left_out(graph, pairs)
    for start in range(0, graph.num_nodes, width):
        stop = min(start + width, graph.num_nodes)
        scores_QM = scorer.block(anchors, start, stop)
        first, last = np.searchsorted(nodes, [start, stop])
        places = torch.from_numpy(np.stack([questions[first:last], nodes[first:last] - start])).to(
            scores_QM.device
        )
        scores_QM[places[0], places[1]] = -torch.inf
        # as floats they are summed six times as fast, and exactly below 2^24
        marks_QM = torch.empty_like(scores_QM)
        at_least = torch.ge(scores_QM, positive_Q1 - rounding_Q1, out=marks_QM).sum(1)
        above = torch.gt(scores_QM, positive_Q1 + rounding_Q1, out=marks_QM).sum(1)
        better += above.long()
        tied += (at_least - above).long()
        advance(float(len(pairs) * (stop - start)))
    return torch.stack([better, tied]).cpu().numpy()


def _left_out(graph: TextGraph, pairs: Array) -> tuple[Array, Array]:
    """(question, node) that are not counted: the anchor, the positive itself, known links of the
    anchor; sorted by node.
    """
    anchors = pairs[:, 0].astype(np.int64)
    degrees = graph.indptr[anchors + 1] - graph.indptr[anchors]
    known = graph.indices[ranges(graph.indptr[anchors], degrees)]
    own = np.arange(len(pairs))
    questions = np.concatenate([own, own, np.repeat(own, degrees)])
    nodes = np.concatenate([anchors, pairs[:, 1], known]).astype(np.int64)
    order = np.argsort(nodes, kind="stable")
    return questions[order], nodes[order]
