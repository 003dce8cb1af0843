"""The weight of common neighbours in likely links, chosen by the validation questions.

The score of a likely link is the model's, plus a weight times the Adamic–Adar index of the pair. On
some graphs that finds more links, on others none: the weight is zero unless the mean reciprocal
rank of the validation questions is better with it, by more than chance explains.

Shapes: Q questions, C candidates of each.
"""

import math
from dataclasses import dataclass

import numpy as np

from graphformers.arrays import Array
from graphformers.evaluation.metrics import METRICS, rank_positives
from graphformers.graph.common_neighbors import MOST_NEIGHBORS, adamic_adar
from graphformers.splits.split import LinkQuestions, LinkSplit

# Weights that are tried, in standard deviations of the model's scores of a question.
GRID = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Standard errors by which the mean reciprocal rank must be better.
STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class LinkWeight:
    """A weight, and what it adds on the validation questions.

    Attributes:
        weight: The weight; 0 where common neighbours do not help.
        precision_alone: P@1 by the model's scores alone.
        precision: P@1 with the weight.
    """

    weight: float = 0.0
    precision_alone: float = 0.0
    precision: float = 0.0

    def __str__(self) -> str:
        if not self.weight:
            return (
                "likely links are ranked by the model's scores alone: common neighbours "
                "(Adamic–Adar) add nothing on the validation questions"
            )
        return (
            f"likely links are ranked by the model's scores + {self.weight:g} × Adamic–Adar "
            f"(common neighbours): valid P@1 {self.precision_alone:.4f} without, "
            f"{self.precision:.4f} with"
        )


def common_neighbors(split: LinkSplit, questions: LinkQuestions) -> Array:
    """(Q, C) float32: the Adamic–Adar index of anchors and candidates, by links models may see."""
    anchors, candidates_QC = questions.pairs[:, 0], questions.candidates
    counted = split.sampler(MOST_NEIGHBORS).sample(anchors)
    indptr, indices = split.indptr, split.indices
    result_QC = np.zeros(candidates_QC.shape, dtype=np.float32)
    for question, candidates_C in enumerate(candidates_QC):
        nodes, sums = adamic_adar(
            np.sort(counted.of(question)), lambda node: indices[indptr[node] : indptr[node + 1]]
        )
        if len(nodes):
            places_C = np.minimum(np.searchsorted(nodes, candidates_C), len(nodes) - 1)
            result_QC[question] = np.where(nodes[places_C] == candidates_C, sums[places_C], 0)
    return result_QC


def choose_weight(scores_QC: Array, common_QC: Array) -> LinkWeight:
    """The weight of a small grid with the best mean reciprocal rank.

    Args:
        scores_QC: The model's scores; those of the positives come first.
        common_QC: The Adamic–Adar index of the same pairs.
    """
    alone = rank_positives(scores_QC)
    alone_Q, precision = METRICS["MRR"](alone), float(METRICS["P@1"](alone).mean())
    chosen, best = LinkWeight(0.0, precision, precision), 0.0
    deviation = float(scores_QC.std(1).mean())
    for share in GRID if common_QC.any() else ():
        # As it is written into the model, in few digits.
        weight = float(f"{share * deviation:.3g}")
        ranks = rank_positives(scores_QC + np.float32(weight) * common_QC)
        gains_Q = METRICS["MRR"](ranks) - alone_Q
        gain = float(gains_Q.mean())
        error = float(gains_Q.std()) / math.sqrt(len(gains_Q))
        if gain > max(best, STANDARD_ERRORS * error):
            best = gain
            chosen = LinkWeight(weight, precision, float(METRICS["P@1"](ranks).mean()))
    return chosen
