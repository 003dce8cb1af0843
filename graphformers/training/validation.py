"""Validation: ranks the validation questions by the model in its present state."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch

from graphformers.arrays import Array, equal_parts
from graphformers.batching.tokens import TokenCache
from graphformers.evaluation.metrics import METRICS, rank_positives
from graphformers.evaluation.ranking import question_nodes
from graphformers.evaluation.scores import VectorScores
from graphformers.graph.textgraph import TextGraph
from graphformers.model.encoder import GraphFormers
from graphformers.splits.candidates import share_candidates
from graphformers.splits.split import LinkQuestions, LinkSplit
from graphformers.training.distributed import World
from graphformers.training.link_weight import LinkWeight, choose_weight, common_neighbors
from graphformers.training.settings import TrainConfig
from graphformers.training.stopping import InterruptedWork, StopSignal

Found = TypeVar("Found")

# Questions share candidates if this share of them can.
MOSTLY = 0.9
MEASURED = ("P@1", "NDCG", "MRR")
# Encoding is timed with more and more nodes, until so many seconds are spent or all are timed.
FIRST_TIMED_NODES = 32
TIMED_NODES = 1000
TIMED_SECONDS = 2.0


class Validation:
    """Ranks validation questions on clean text.

    Args:
        model: The model that is trained.
        split: The split with the validation questions.
        config: How many questions are ranked, spread evenly over those of the split, and among
            which candidates.
        tokens: The tokens of all texts.
        world: The processes; each encodes a part of the nodes.
        stop: The signals that interrupt a validation; by default none do.

    Attributes:
        link_weight: The weight of common neighbours in likely links that suits the model, by the
            last validation.
    """

    def __init__(
        self,
        model: GraphFormers,
        split: LinkSplit,
        config: TrainConfig,
        tokens: TokenCache,
        world: World,
        stop: StopSignal | None = None,
    ) -> None:
        self.model = model
        self.world = world
        self.stop = stop or StopSignal()
        self._split = split
        self._tokens = tokens
        self._sampler = split.sampler(model.config.num_neighbors)
        self._seconds_per_text: float | None = None
        self.link_weight = LinkWeight()
        self._all = evenly_spread(split.valid, config.max_valid)
        if config.valid_candidates == "shared":
            self._all = shared_questions(split.graph, self._all)
        self.limit(config.max_valid)

    def limit(self, max_questions: int) -> None:
        """Chooses the questions anew, at most so many."""
        self.questions = evenly_spread(self._all, max_questions)
        self.nodes = question_nodes(self.questions)
        self._common_QC: Array | None = None

    def measure(self) -> dict[str, float]:
        """Computes P@1, NDCG and MRR; they are the same on every process.

        Raises:
            InterruptedWork: A signal has arrived at any process.
        """
        edges = equal_parts(len(self.nodes), self.world.size)
        sizes = [b - a for a, b in pairwise(edges)]
        own = self.nodes[edges[self.world.rank] : edges[self.world.rank + 1]]
        encoded = self._interruptible(lambda: self._encode(own))
        vectors = torch.from_numpy(encoded).to(self.model.device)
        gathered = self.world.gather(vectors, sizes).cpu().numpy()
        scorer = VectorScores(gathered, self.nodes, cosine=self.model.is_cosine)
        questions = self.questions
        scores_QC = self._interruptible(
            lambda: scorer.listed(questions.pairs[:, 0], questions.candidates)
        )
        if self._common_QC is None:
            self._common_QC = self._interruptible(lambda: common_neighbors(self._split, questions))
        ranks = rank_positives(scores_QC)
        numbers = {name: float(METRICS[name](ranks).mean()) for name in MEASURED}
        weight = asdict(choose_weight(scores_QC, self._common_QC))
        # Rounding may differ between machines, but all processes must decide alike.
        shared = self.world.share_json({"numbers": numbers, "weight": weight})
        self.link_weight = LinkWeight(**shared["weight"])
        return dict(shared["numbers"])

    def estimate_seconds(self, questions: LinkQuestions | None = None) -> float:
        """The duration of ranking questions, extrapolated from some of their nodes.

        The estimate is the same on every process.

        Args:
            questions: The questions; by default those of the validation.
        """
        if self._seconds_per_text is None:
            self._seconds_per_text = self.world.largest(self._time_texts())
        nodes = self.nodes if questions is None else question_nodes(questions)
        return self._num_texts(nodes) * self._seconds_per_text / self.world.size

    def estimate_for(self, count: int) -> float:
        """The estimated duration of a validation with so many of the questions."""
        return self.estimate_seconds(evenly_spread(self.questions, count))

    def _time_texts(self) -> float:
        """The seconds of a text, from ever more nodes; the shortest of at least two times."""
        # not timed, because the first call compiles kernels and fills caches
        self._encode(self.nodes[:FIRST_TIMED_NODES])
        # Other processes on the machine only slow it down.
        shortest, spent, num_timed, count = math.inf, 0.0, 0, FIRST_TIMED_NODES
        while num_timed < 2 or (spent < TIMED_SECONDS and count <= TIMED_NODES):
            some = self.nodes[:: max(1, len(self.nodes) // count)]
            started = time.perf_counter()
            self._encode(some)
            seconds = time.perf_counter() - started
            shortest = min(shortest, seconds / self._num_texts(some))
            spent += seconds
            num_timed += 1
            count *= 4
        return shortest

    def _num_texts(self, nodes: Array) -> int:
        """The texts that are encoded for some nodes: their own, and those of their neighbours.

        Neighbours that several nodes share are encoded once, so the number grows more slowly than
        that of the nodes.
        """
        two_pass, neighborhood = self.model.two_pass(), self._sampler.sample(nodes)
        is_joint = two_pass.packer.inputs.joint
        neighbors = neighborhood.neighbors if is_joint else two_pass.needed(neighborhood)
        return len(nodes) + len(neighbors)

    def _encode(self, nodes: Array) -> Array:
        return self.model.encode_nodes(
            self._split.graph, nodes, sampler=self._sampler, tokens=self._tokens
        )

    def _interruptible(self, work: Callable[[], Found]) -> Found:
        """Does work until a signal arrives; then raises on all processes."""
        found: Found | None = None
        with self.stop.interrupting():
            self.stop.check()
            found = work()
        # Processes must agree before they exchange anything else.
        if self.world.any(found is None) or found is None:
            raise InterruptedWork
        return found


def shared_questions(graph: TextGraph, questions: LinkQuestions) -> LinkQuestions:
    """The questions with candidates that they share; as they are if that would drop many."""
    pairs, candidates = share_candidates(graph, questions.pairs, questions.candidates)
    if len(pairs) < MOSTLY * len(questions):
        return questions
    return LinkQuestions(pairs, candidates)


def evenly_spread(questions: LinkQuestions, count: int) -> LinkQuestions:
    """So many of the questions, spread evenly; all if there are not more."""
    total = len(questions)
    chosen = np.linspace(0, total - 1, min(total, count)).astype(np.int64)
    return LinkQuestions(questions.pairs[chosen], questions.candidates[chosen])
