"""Validation: ranks the validation questions by the model in its present state."""

import time
from itertools import pairwise

import numpy as np
import torch

from graphformers.batching.tokens import TokenCache
from graphformers.data.arrays import Array, equal_parts
from graphformers.evaluation.metrics import METRICS
from graphformers.evaluation.ranking import question_nodes, rank_listed
from graphformers.evaluation.scores import VectorScores
from graphformers.model.encoder import GraphFormers
from graphformers.splits.split import LinkQuestions, LinkSplit
from graphformers.training.distributed import World

MEASURED = ("P@1", "NDCG", "MRR")
TIMED_NODES = 1000


class Validation:
    """Ranks validation questions on clean text.

    Args:
        model: The model that is trained.
        split: The split with the validation questions.
        max_questions: Questions, at most; they are spread evenly over those of the split.
        tokens: The tokens of all texts.
        world: The processes; each encodes a part of the nodes.
    """

    def __init__(
        self,
        model: GraphFormers,
        split: LinkSplit,
        max_questions: int,
        tokens: TokenCache,
        world: World,
    ) -> None:
        count = len(split.valid)
        chosen = np.linspace(0, count - 1, min(count, max_questions)).astype(np.int64)
        self.questions = LinkQuestions(split.valid.pairs[chosen], split.valid.candidates[chosen])
        self.nodes = question_nodes(self.questions)
        self.model = model
        self.world = world
        self._graph = split.graph
        self._tokens = tokens
        self._sampler = split.sampler(model.config.num_neighbors)

    def measure(self) -> dict[str, float]:
        """Computes P@1, NDCG and MRR; they are the same on every process."""
        edges = equal_parts(len(self.nodes), self.world.size)
        sizes = [b - a for a, b in pairwise(edges)]
        own = self.nodes[edges[self.world.rank] : edges[self.world.rank + 1]]
        vectors = torch.from_numpy(self._encode(own)).to(self.model.device)
        gathered = self.world.gather(vectors, sizes).cpu().numpy()
        scores = VectorScores(gathered, self.nodes, cosine=self.model.is_cosine)
        ranks = rank_listed(scores, self.questions)
        # Rounding may differ between machines, but all processes must decide alike.
        return self.world.share_json(
            {name: float(METRICS[name](ranks).mean()) for name in MEASURED}
        )

    def estimate_seconds(self) -> float:
        """The duration of `measure`, extrapolated from some of the nodes."""
        some = self.nodes[:: max(1, len(self.nodes) // TIMED_NODES)]
        started = time.perf_counter()
        self._encode(some)
        seconds = time.perf_counter() - started
        return seconds * len(self.nodes) / len(some) / self.world.size

    def _encode(self, nodes: Array) -> Array:
        return self.model.encode_nodes(
            self._graph, nodes, sampler=self._sampler, tokens=self._tokens
        )
