"""The candidates of a ranking: one positive and nodes that could have been it but are not linked to the anchor."""

import numpy as np

from graphformers.data.arrays import Array, are_linked
from graphformers.data.graph import TextGraph
from graphformers.errors import GraphFormersError
from graphformers.progress import progress

BLOCK = 16_384  # questions at a time
DEFAULT_COUNT = 300  # the paper's 1 + 299
SMALL_GRAPH = 3000  # eligible nodes below which the default count is checked against what every anchor allows
MOST_ROUNDS = 20  # of drawing again what was not allowed; what is left then is drawn from an explicit list


def draw_candidates(graph: TextGraph, pairs: Array, eligible: Array, count: int, seed: int) -> Array:
    """(Q, count) int32 candidates for (Q, 2) pairs of anchor and positive: the positive, then negatives without repetition.

    Negatives are uniform over `eligible`, the nodes that obey the same rule as positives do, so that having neighbours or not
    gives nothing away; never the anchor, a neighbour of it anywhere in the whole graph, or a node with the positive's text.
    """
    result = np.empty((len(pairs), count), dtype=np.int32)
    with progress("Drawing candidates", len(pairs), "pairs") as task:
        for start in range(0, len(pairs), BLOCK):
            block = pairs[start : start + BLOCK]
            generator = np.random.Generator(np.random.PCG64([seed, start]))
            result[start : start + len(block), 0] = block[:, 1]
            result[start : start + len(block), 1:] = _draw_block(graph, block, eligible, count - 1, generator)
            task.advance(len(block))
    return result


def default_count(graph: TextGraph, pairs: Array, eligible: Array) -> int:
    """300 candidates, or as many as every question of a small graph allows."""
    if len(eligible) > SMALL_GRAPH:
        return DEFAULT_COUNT
    possible = min(len(_allowed(graph, pair, eligible)) for pair in pairs)
    if possible == 0:
        raise GraphFormersError(
            "this graph is too small or too dense for a ranking: some question has no possible negative at all"
        )
    return min(DEFAULT_COUNT, possible + 1)


def _allowed(graph: TextGraph, pair: Array, eligible: Array) -> Array:
    """All possible negatives of one question."""
    anchor, positive = pair.tolist()
    others = eligible[graph.text_groups[eligible] != graph.text_groups[positive]]
    return np.setdiff1d(others, np.append(graph.neighbors_of(anchor), anchor))


def _draw_block(graph: TextGraph, pairs: Array, eligible: Array, count: int, generator: np.random.Generator) -> Array:
    negatives = eligible[generator.integers(0, len(eligible), (len(pairs), count))]
    todo = np.arange(len(pairs))
    for _ in range(MOST_ROUNDS):
        wrong = _not_allowed(graph, pairs[todo], negatives[todo])
        again = wrong.any(axis=1)
        todo, wrong = todo[again], wrong[again]
        if not len(todo):
            return negatives
        block = negatives[todo]
        block[wrong] = eligible[generator.integers(0, len(eligible), int(wrong.sum()))]
        negatives[todo] = block
    for row in todo[_not_allowed(graph, pairs[todo], negatives[todo]).any(axis=1)]:
        negatives[row] = _draw_from_list(graph, pairs[row], eligible, count, generator)
    return negatives


def _not_allowed(graph: TextGraph, pairs: Array, negatives: Array) -> Array:
    """(Q, C) marks negatives that are the anchor, linked to it, of the positive's text, or a repetition in their row."""
    anchors, positives = pairs[:, :1], pairs[:, 1:]
    wrong: Array = (negatives == anchors) | (graph.text_groups[negatives] == graph.text_groups[positives])
    wrong |= are_linked(graph.indptr, graph.indices, pairs[:, 0], negatives)
    order = np.argsort(negatives, axis=1, kind="stable")
    ordered = np.take_along_axis(negatives, order, axis=1)
    repeated = np.zeros_like(wrong)
    np.put_along_axis(repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    wrong |= repeated
    return wrong


def _draw_from_list(graph: TextGraph, pair: Array, eligible: Array, count: int, generator: np.random.Generator) -> Array:
    """For an anchor linked to most of the graph: the allowed negatives are listed and drawn from."""
    allowed = _allowed(graph, pair, eligible)
    if len(allowed) < count:
        name = graph.ids[int(pair[0])].as_py()
        advice = f"ask for at most {len(allowed) + 1:,} candidates" if len(allowed) else "hold out other links (another seed)"
        raise GraphFormersError(
            f"the node {name!r} leaves only {len(allowed):,} possible negatives, {count:,} were asked for; {advice} (a negative "
            "has neighbours, is not linked to the node and has another text than the positive)"
        )
    return generator.choice(allowed, count, replace=False)
