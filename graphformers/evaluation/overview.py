"""Evaluation of systems side by side: protocols, slices, and baselines without training."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphformers.errors import GraphFormersError
from graphformers.evaluation.baselines import baseline_scores, sentence_vectors
from graphformers.evaluation.external import external_scores
from graphformers.evaluation.metrics import METRICS, PRIMARY, headline_metrics
from graphformers.evaluation.ranking import (
    Evaluation,
    check_protocol,
    evaluations_table,
    model_scores,
    question_nodes,
    rank,
)
from graphformers.evaluation.scores import Scorer, VectorScores
from graphformers.evaluation.significance import Difference, paired_difference
from graphformers.evaluation.slices import slices_of
from graphformers.model.backbones import backbone_of
from graphformers.model.config import ModelConfig
from graphformers.model.encoder import GraphFormers
from graphformers.splits.split import LinkQuestions, LinkSplit
from graphformers.table import Table, tables_html

PROTOCOL_TITLES = {
    "saved": "Among the saved candidates:",
    "in-batch": "Among the positives of consecutive questions (as in the 2021 code):",
    "full": "Among all nodes, without known links:",
}


@dataclass(frozen=True)
class Overview:
    """Systems evaluated on the same questions. The first system is compared with all others.

    Attributes:
        evaluations: Scores by protocol and system.
        slices: Scores of the first system by the first protocol, by group and slice.
    """

    evaluations: dict[str, dict[str, Evaluation]]
    slices: dict[str, dict[str, Evaluation]]

    def differences(self) -> dict[str, Difference]:
        """P@1 of the first system minus that of each other one, by the first protocol."""
        systems = next(iter(self.evaluations.values()))
        values = {name: METRICS[PRIMARY](each.ranks) for name, each in systems.items()}
        first, *others = values
        return {name: paired_difference(values[first], values[name]) for name in others}

    def to_dict(self) -> dict[str, object]:
        """Plain numbers, for JSON."""
        protocols = {
            protocol: {name: evaluation.to_dict() for name, evaluation in systems.items()}
            for protocol, systems in self.evaluations.items()
        }
        slices = {
            group: {
                name: {"questions": each.num_questions}
                | {metric: score.value for metric, score in each.scores.items()}
                for name, each in names.items()
            }
            for group, names in self.slices.items()
        }
        differences = {name: each.to_dict() for name, each in self.differences().items()}
        return {"protocols": protocols, "slices": slices, "ahead": differences}

    def as_tables(self) -> list[Table]:
        """A table for each protocol, one of differences, and one for each group of slices."""
        several = len(self.evaluations) > 1
        tables = [
            evaluations_table(systems, PROTOCOL_TITLES[protocol] if several else "")
            for protocol, systems in self.evaluations.items()
        ]
        first = next(iter(next(iter(self.evaluations.values()))))
        differences = [(name, str(each)) for name, each in self.differences().items()]
        tables.append(Table([], differences, f"{PRIMARY} of {first} minus {PRIMARY} of"))
        columns = headline_metrics()
        for group, slices in self.slices.items():
            if len(slices) < 2:
                continue
            rows = []
            for name, each in slices.items():
                # The interval of one metric suffices to show how precise a slice is.
                cells = [
                    str(each.scores[metric])
                    if metric == PRIMARY
                    else f"{each.scores[metric].value:.4f}"
                    for metric in columns
                ]
                rows.append((name, f"{each.num_questions:,}", *cells))
            tables.append(Table([group, "questions", *columns], rows))
        return tables

    def print(self) -> None:
        """Prints all tables, separated by blank lines."""
        for number, table in enumerate(self.as_tables()):
            if number or table.title:
                print()
            table.print()

    def _repr_html_(self) -> str:
        return tables_html(self.as_tables())


def overview(
    systems: Mapping[str, Scorer],
    split: LinkSplit,
    questions: LinkQuestions,
    protocols: tuple[str, ...] = ("saved",),
) -> Overview:
    """Ranks questions by several systems and protocols.

    Args:
        systems: Scorers by name. The first one is compared with all others.
        split: The split of the questions.
        questions: The links to rank.
        protocols: How to rank them.
    """
    evaluations = {
        protocol: {
            name: rank(scorer, split.graph, questions, protocol) for name, scorer in systems.items()
        }
        for protocol in protocols
    }
    first = next(iter(next(iter(evaluations.values())).values()))
    slices = {
        group: {
            name: Evaluation.from_ranks(first.ranks[mask], first.num_candidates)
            for name, mask in names.items()
        }
        for group, names in slices_of(split, questions).items()
    }
    return Overview(evaluations, slices)


def evaluate_with_baselines(
    model: str | Path | None,
    split: LinkSplit,
    questions: LinkQuestions,
    *,
    protocols: tuple[str, ...] = ("saved",),
    vectors: Mapping[str, bool] | None = None,
    backbone: str | None = None,
    num_neighbors: int | None = None,
    device: str | None = None,
) -> Overview:
    """Evaluates a model and vectors from files next to rankings that need no training.

    Args:
        model: A model folder.
        split: The split of the questions.
        questions: The links to rank.
        protocols: How to rank them.
        vectors: Files of vectors, and whether to compare them by cosine.
        backbone: The backbone to evaluate untrained; by default that of the model.
        num_neighbors: Neighbours sampled per node; by default as in training.
        device: Where to compute; by default the best device.

    Raises:
        GraphFormersError: Neither a model nor vectors are given, or a file cannot be read.

    Example:
        >>> split = LinkSplit.load("papers.split")
        >>> evaluate_with_baselines("papers.model", split, split.test).print()
    """
    for protocol in protocols:
        check_protocol(protocol)
    nodes = None if "full" in protocols else question_nodes(questions)
    scored_nodes = np.arange(split.graph.num_nodes) if nodes is None else nodes
    systems: dict[str, Scorer] = {}
    max_tokens, trained_neighbors = ModelConfig.max_tokens, ModelConfig.num_neighbors
    if model is not None:
        loaded = GraphFormers.from_pretrained(model, device=device)
        max_tokens, trained_neighbors = loaded.config.max_tokens, loaded.config.num_neighbors
        sampler = None if num_neighbors is None else split.sampler(num_neighbors)
        systems[str(model)] = model_scores(loaded, split, questions, protocols, sampler)
        backbone = backbone or backbone_of(model)
    for file, cosine in (vectors or {}).items():
        systems[file] = external_scores(
            file, split.graph, scored_nodes, questions.pairs, cosine=cosine
        )
    if not systems:
        raise GraphFormersError("nothing to evaluate, expected a model folder or --vectors FILE")
    if backbone:
        texts = sentence_vectors(backbone, split.graph, scored_nodes, max_tokens, device)
        systems[f"{Path(backbone).name}, untrained"] = VectorScores(texts, nodes, cosine=True)
    count = trained_neighbors if num_neighbors is None else num_neighbors
    return overview(systems | baseline_scores(split, count), split, questions, protocols)
