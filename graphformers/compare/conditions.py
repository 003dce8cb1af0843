"""Conditions under which trained models are scored: with other neighbours, fewer, or none.

The difference between conditions shows whether a model uses its neighbours.
"""

from dataclasses import dataclass

import numpy as np

from graphformers.arrays import Array, mix
from graphformers.compare.variants import Variant
from graphformers.graph.sampling import Neighborhood, NeighborSampler
from graphformers.splits.split import LinkSplit

# Files of finished runs and results.json contain these names. The first condition is the regular
# one.
OWN_NEIGHBORS = "asked"
SHUFFLED_NEIGHBORS = "shuffled neighbours"
NO_NEIGHBORS = "no neighbours"
_FEWER = "#N = "
# the entry of search by words among the ranks of a system; its questions are queries, not links
TEXT_SEARCH = "search by words"


def fewer_neighbors(count: int) -> str:
    """The condition with `count` neighbours per node."""
    return f"{_FEWER}{count}"


def conditions_of(variant: Variant, table: str | None, num_neighbors: int) -> list[str]:
    """The conditions under which a variant is scored.

    Args:
        variant: The variant. One that uses no neighbours has only the regular condition.
        table: The table of the paper to make. Table 3, "neighbours", adds smaller numbers.
        num_neighbors: The regular number of neighbours.
    """
    if not variant.reads_neighbors:
        return [OWN_NEIGHBORS]
    conditions = [OWN_NEIGHBORS, SHUFFLED_NEIGHBORS, NO_NEIGHBORS]
    if table == "neighbours" and not variant.is_modified:
        conditions += [fewer_neighbors(count) for count in range(1, num_neighbors)]
    return conditions


def sampler_of(condition: str, split: LinkSplit, num_neighbors: int) -> NeighborSampler:
    """The sampler of neighbours under a condition.

    Args:
        condition: One of `conditions_of`.
        split: The split; links that are held out are never sampled.
        num_neighbors: The regular number of neighbours.
    """
    own = split.sampler(num_neighbors)
    if condition == OWN_NEIGHBORS:
        return own
    if condition == NO_NEIGHBORS:
        return split.sampler(0)
    if condition == SHUFFLED_NEIGHBORS:
        return ShuffledSampler(own.indptr, own.indices, own.id_hashes, own.num_neighbors, own.seed)
    return split.sampler(int(condition.removeprefix(_FEWER)))


@dataclass(frozen=True)
class ShuffledSampler(NeighborSampler):
    """Gives every node the neighbours of another node.

    Models get as many neighbours as usual, but those are unrelated to the node.
    """

    def sample(
        self, centers: Array, *, epoch: int = 0, exclude: Array | None = None
    ) -> Neighborhood:
        # a cyclic permutation of all nodes, in the order of their hashes
        order = np.argsort(mix(self.seed, self.id_hashes), kind="stable")
        partner = np.empty_like(order)
        partner[order] = np.roll(order, 1)
        sampled = super().sample(partner[np.asarray(centers)], epoch=epoch)
        return Neighborhood(np.asarray(centers), sampled.indptr, sampled.neighbors)
