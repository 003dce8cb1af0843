"""Evaluation of systems side by side: protocols, slices, and baselines without training."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from graphformers.arrays import Array
from graphformers.errors import GraphFormersError
from graphformers.evaluation.baselines import baseline_scores, sentence_encoder
from graphformers.evaluation.external import external_scores
from graphformers.evaluation.metrics import METRICS, PRIMARY, Ranks, headline_metrics
from graphformers.evaluation.ranking import (
    Evaluation,
    check_protocol,
    encode_nodes,
    evaluations_table,
    question_nodes,
    rank,
)
from graphformers.evaluation.scores import Scorer, VectorScores
from graphformers.evaluation.significance import Difference, paired_difference
from graphformers.evaluation.slices import slices_of
from graphformers.evaluation.text_search import (
    CANDIDATES,
    MIN_WORDS,
    QUERIES,
    SEARCH_METRIC,
    SEARCH_METRICS,
    TextQueries,
    known_item_queries,
    search_by_vectors,
    word_search,
)
from graphformers.graph.textgraph import TextGraph
from graphformers.model.backbones import backbone_of
from graphformers.model.config import ModelConfig
from graphformers.model.encoder import GraphFormers
from graphformers.splits.split import LinkQuestions, LinkSplit
from graphformers.table import Table, tables_html

logger = logging.getLogger(__name__)

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
        searches: Scores of search by words, by system; empty if it was not measured. The systems
            are those that can compare a text with nodes.
    """

    evaluations: dict[str, dict[str, Evaluation]]
    slices: dict[str, dict[str, Evaluation]]
    searches: dict[str, Evaluation] = field(default_factory=dict)

    def differences(self) -> dict[str, Difference]:
        """P@1 of the first system minus that of each other one, by the first protocol."""
        return _differences(next(iter(self.evaluations.values())), PRIMARY)

    def search_differences(self) -> dict[str, Difference]:
        """MRR of the first system minus that of each other one, in search by words."""
        return _differences(self.searches, SEARCH_METRIC)

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
        found: dict[str, object] = {
            "protocols": protocols,
            "slices": slices,
            "ahead": differences,
        }
        if self.searches:
            found["search by words"] = {
                "systems": {name: each.to_dict() for name, each in self.searches.items()},
                "ahead": {name: each.to_dict() for name, each in self.search_differences().items()},
            }
        return found

    def as_tables(self) -> list[Table]:
        """Tables of all protocols, of search by words, of differences, and of slices."""
        several = len(self.evaluations) > 1
        tables = [
            evaluations_table(systems, PROTOCOL_TITLES[protocol] if several else "")
            for protocol, systems in self.evaluations.items()
        ]
        first = next(iter(next(iter(self.evaluations.values()))))
        differences = [(name, str(each)) for name, each in self.differences().items()]
        tables.append(Table([], differences, f"{PRIMARY} of {first} minus {PRIMARY} of"))
        if self.searches:
            tables += self._search_tables()
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

    def _search_tables(self) -> list[Table]:
        """The scores of search by words, and differences to the first system."""
        first, *_ = self.searches
        rows = [
            (name, *(str(each.scores[metric]) for metric in SEARCH_METRICS))
            for name, each in self.searches.items()
        ]
        evaluation = self.searches[first]
        note = (
            f"{evaluation.num_questions:,} queries, each half of the words of a node's text, which "
            f"is searched among {evaluation.num_candidates:,} nodes; 95 % intervals"
        )
        title = "Search by words:"
        differences = [(name, str(each)) for name, each in self.search_differences().items()]
        metric = f"{SEARCH_METRIC} of search by words"
        return [
            Table(["", *SEARCH_METRICS], rows, title, [note]),
            Table([], differences, f"{metric} of {first} minus that of"),
        ]

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
    queries: TextQueries | int = QUERIES,
    device: str | None = None,
) -> Overview:
    """Evaluates a model and vectors from files next to rankings that need no training.

    If a model is given, search by words is measured, too, for the model, the untrained backbone,
    TF-IDF and BM25. Vectors from files are left out there, because they come without an encoder of
    queries.

    Args:
        model: A model folder.
        split: The split of the questions.
        questions: The links to rank.
        protocols: How to rank them.
        vectors: Files of vectors, and whether to compare them by cosine.
        backbone: The backbone to evaluate untrained; by default that of the model.
        num_neighbors: Neighbours sampled per node; by default as in training.
        queries: Queries of search by words, or how many to draw; 0 skips search by words.
        device: Where to compute; by default the best device.

    Raises:
        GraphFormersError: Neither a model nor vectors are given, or a file cannot be read.

    Examples:
        >>> split = LinkSplit.load("papers.split")
        >>> evaluate_with_baselines("papers.model", split, split.test).print()
    """
    for protocol in protocols:
        check_protocol(protocol)
    asked = _text_queries(split.graph, queries) if model is not None else None
    scored_nodes = (
        np.arange(split.graph.num_nodes) if "full" in protocols else question_nodes(questions)
    )
    # Vectors of the model serve links and searches, so that each node is encoded once.
    nodes = scored_nodes
    if asked is not None:
        nodes = np.union1d(nodes, asked.candidates_of(split.graph))
    covered = None if len(nodes) == split.graph.num_nodes else nodes
    systems: dict[str, Scorer] = {}
    searches: dict[str, Ranks] = {}
    max_tokens, trained_neighbors = ModelConfig.max_tokens, ModelConfig.num_neighbors

    def add(title: str, encoder: GraphFormers, encoded_ND: Array, cosine: bool) -> None:
        where = encoder.device if "full" in protocols else "cpu"
        systems[title] = VectorScores(encoded_ND, covered, cosine=cosine, device=where)
        if asked is not None:
            rows = np.searchsorted(nodes, asked.candidates_of(split.graph))
            searches[title] = search_by_vectors(
                encoder, split.graph, asked, encoded_ND[rows], cosine=cosine
            )

    if model is not None:
        loaded = GraphFormers.from_pretrained(model, device=device)
        max_tokens, trained_neighbors = loaded.config.max_tokens, loaded.config.num_neighbors
        sampler = None if num_neighbors is None else split.sampler(num_neighbors)
        add(str(model), loaded, encode_nodes(loaded, split, covered, sampler), loaded.is_cosine)
        backbone = backbone or backbone_of(model)
    for file, cosine in (vectors or {}).items():
        systems[file] = external_scores(
            file, split.graph, scored_nodes, questions.pairs, cosine=cosine
        )
    if not systems:
        raise GraphFormersError("nothing to evaluate, expected a model or a file of vectors")
    if backbone:
        encoder = sentence_encoder(backbone, max_tokens, device)
        encoded_ND = encoder.encode_nodes(split.graph, covered)
        add(f"{Path(backbone).name}, untrained", encoder, encoded_ND, True)
    count = trained_neighbors if num_neighbors is None else num_neighbors
    found = overview(systems | baseline_scores(split, count), split, questions, protocols)
    if asked is None:
        return found
    searches |= word_search(split.graph, asked)
    num_candidates = len(asked.candidates_of(split.graph))
    evaluated = {
        name: Evaluation.from_ranks(ranks, num_candidates) for name, ranks in searches.items()
    }
    return replace(found, searches=evaluated)


def _text_queries(graph: TextGraph, queries: TextQueries | int) -> TextQueries | None:
    """The queries of search by words; None if there are none."""
    if queries == 0:
        return None
    if isinstance(queries, TextQueries):
        found = queries
    else:
        found = known_item_queries(graph, queries, candidates=max(CANDIDATES, queries))
    if not len(found):
        logger.warning(
            f"search by words is not measured: no text has {MIN_WORDS} words, from which queries "
            f"are drawn"
        )
        return None
    return found


def _differences(systems: Mapping[str, Evaluation], metric: str) -> dict[str, Difference]:
    """A metric of the first system minus that of each other one."""
    values = {name: METRICS[metric](each.ranks) for name, each in systems.items()}
    first, *others = values
    return {name: paired_difference(values[first], values[name]) for name in others}
