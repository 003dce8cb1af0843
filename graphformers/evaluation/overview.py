"""Overview: systems on the same questions, under every protocol asked for, in every slice, beside
what costs nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphformers.data.split import LinkQuestions, LinkSplit
from graphformers.errors import GraphFormersError
from graphformers.evaluation.baselines import baseline_scores, sentence_vectors
from graphformers.evaluation.external import external_scores
from graphformers.evaluation.metrics import METRICS, PRIMARY, Ranks
from graphformers.evaluation.ranking import (
    Evaluation,
    asked_nodes,
    check_protocol,
    model_scores,
    rank,
)
from graphformers.evaluation.scores import Scorer, VectorScores
from graphformers.evaluation.significance import (
    Difference,
    Score,
    paired_difference,
    summarize,
)
from graphformers.evaluation.slices import slices_of
from graphformers.model.backbones import backbone_of
from graphformers.model.encoding import GraphFormers
from graphformers.model.modeling import ModelConfig

# group -> slice -> number of questions, metrics
SliceScores = dict[str, dict[str, tuple[int, dict[str, Score]]]]


@dataclass(frozen=True)
class Overview:
    """Evaluations by protocol and system; the first system is the one in question."""

    evaluations: dict[str, dict[str, Evaluation]]
    slices: SliceScores  # of the first system, under the first protocol

    def differences(self) -> dict[str, Difference]:
        """By how much the first system's P@1 is ahead of each other one's, under the first
        protocol.
        """
        systems = next(iter(self.evaluations.values()))
        ranks = {name: METRICS[PRIMARY](evaluation.ranks) for name, evaluation in systems.items()}
        first = next(iter(ranks))
        return {
            name: paired_difference(ranks[first], values)
            for name, values in ranks.items()
            if name != first
        }

    def table(self) -> dict[str, Any]:
        """As plain numbers, for JSON."""
        protocols = {
            protocol: {name: evaluation.table() for name, evaluation in systems.items()}
            for protocol, systems in self.evaluations.items()
        }
        slices = {
            group: {
                name: {"questions": count}
                | {metric: score.value for metric, score in scores.items()}
                for name, (count, scores) in names.items()
            }
            for group, names in self.slices.items()
        }
        return {
            "protocols": protocols,
            "slices": slices,
            "ahead": {k: vars(v) for k, v in self.differences().items()},
        }


def overview(
    systems: Mapping[str, Scorer],
    split: LinkSplit,
    questions: LinkQuestions,
    protocols: tuple[str, ...] = ("saved",),
) -> Overview:
    """Ranks the questions by every system under every protocol."""
    evaluations = {
        protocol: {
            name: rank(scorer, split.graph, questions, protocol) for name, scorer in systems.items()
        }
        for protocol in protocols
    }
    first = next(iter(next(iter(evaluations.values())).values()))
    return Overview(evaluations, slice_scores(first.ranks, split, questions))


def slice_scores(ranks: Ranks, split: LinkSplit, questions: LinkQuestions) -> SliceScores:
    """Every metric in every slice."""
    return {
        group: {name: (int(mark.sum()), summarize(ranks[mark])) for name, mark in names.items()}
        for group, names in slices_of(split, questions).items()
    }


def evaluate_beside_baselines(
    model: Path | None,
    split: LinkSplit,
    questions: LinkQuestions,
    *,
    protocols: tuple[str, ...] = ("saved",),
    vectors: Mapping[str, bool] | None = None,
    backbone: str | None = None,
    num_neighbors: int | None = None,
    device: str | None = None,
) -> Overview:
    """A model folder and files of vectors (and whether each is compared by cosine), beside all that
    needs no training.

    `backbone` is shown untrained; by default the one that the model was trained from, where it says
    so. `num_neighbors` of a node are read, by default as many as in training.
    """
    for protocol in protocols:
        check_protocol(protocol)
    nodes = None if "full" in protocols else asked_nodes(questions)
    systems: dict[str, Scorer] = {}
    sampler = None if num_neighbors is None else split.sampler(num_neighbors)
    max_tokens, usual = ModelConfig.max_tokens, ModelConfig.num_neighbors
    if model is not None:
        loaded = GraphFormers.from_pretrained(model, device=device)
        max_tokens, usual = loaded.config.max_tokens, loaded.config.num_neighbors
        systems[str(model)] = model_scores(loaded, split, questions, protocols, sampler)
        backbone = backbone or backbone_of(model)
    everyone = np.arange(split.graph.num_nodes) if nodes is None else nodes
    for file, cosine in (vectors or {}).items():
        systems[file] = external_scores(file, split.graph, everyone, questions.pairs, cosine=cosine)
    if not systems:
        raise GraphFormersError("nothing to evaluate, expected a model folder or --vectors FILE")
    if backbone:
        own = sentence_vectors(backbone, split.graph, everyone, max_tokens, device)
        systems[f"{Path(backbone).name}, untrained"] = VectorScores(own, nodes, cosine=True)
    around = usual if num_neighbors is None else num_neighbors
    return overview(systems | baseline_scores(split, around), split, questions, protocols)
