"""The candidates of a ranking: one positive, and negatives that are not linked to the anchor."""

from dataclasses import dataclass

import numpy as np

from graphformers.arrays import Array, are_linked
from graphformers.errors import GraphFormersError
from graphformers.graph.textgraph import TextGraph
from graphformers.progress import progress

# questions at a time
BLOCK_SIZE = 16_384
# one positive and 299 negatives, as in the paper
DEFAULT_COUNT = 300
# Questions that allow too few negatives are left out, up to this share of all; if there are more of
# them, the lists of all questions become shorter.
MAX_LEFT_OUT = 0.05
# The same where they would cut all lists to less than half. It is larger because a hub may be the
# anchor of one in every (mean degree) questions.
MAX_LEFT_OUT_HUBS = 0.2


def draw_candidates(
    graph: TextGraph,
    pairs: Array,
    eligible: Array,
    count: int,
    seed: int,
    max_rounds: int = 20,
) -> Array:
    """Draws the candidates of questions: the positive, then distinct negatives.

    Negatives are uniform over `eligible`, the nodes that could be positives, so that having
    neighbours does not distinguish positives from negatives. A negative is never the anchor, a
    neighbour of the anchor in the whole graph, or a node with the positive's text. Forbidden
    negatives are drawn again up to `max_rounds` times, and then from a list of all allowed ones.

    Args:
        graph: The whole graph.
        pairs: (Q, 2) anchors and positives.
        eligible: Nodes that may be negatives.
        count: Candidates per question.
        seed: Seed of the draw.
        max_rounds: Draws before the list is made.

    Returns:
        (Q, count) int32.
    """
    result = np.empty((len(pairs), count), dtype=np.int32)
    with progress("Drawing candidates", len(pairs), "pairs") as task:
        for start in range(0, len(pairs), BLOCK_SIZE):
            block = pairs[start : start + BLOCK_SIZE]
            generator = np.random.Generator(np.random.PCG64([seed, start]))
            result[start : start + len(block), 0] = block[:, 1]
            result[start : start + len(block), 1:] = _draw_block(
                graph, block, eligible, count - 1, generator, max_rounds
            )
            task.advance(len(block))
    return result


def share_candidates(graph: TextGraph, pairs: Array, candidates: Array) -> tuple[Array, Array]:
    """Candidates that questions share, so that few nodes have to be encoded to rank them.

    The negatives of all questions are drawn from those of the first ones: a quarter more distinct
    nodes than a question needs, all of which could be positives. Questions that allow too few of
    them are left out.

    Args:
        graph: The whole graph.
        pairs: (Q, 2) anchors and positives.
        candidates: (Q, C) the saved candidates of the questions.

    Returns:
        The pairs that are kept, and their candidates, as many for each as before.
    """
    count = candidates.shape[1] - 1
    negatives = candidates[:, 1:].reshape(-1)
    _, first = np.unique(negatives, return_index=True)
    pool = np.sort(negatives[np.sort(first)[: count + max(count // 4, 2)]])
    kept = pairs[possible_negatives(graph, pairs, pool, count) >= count]
    return kept, draw_candidates(graph, kept, pool, count + 1, seed=0)


@dataclass(frozen=True, eq=False)
class DefaultLists:
    """The default length of candidate lists, and the questions that are left out to keep it.

    Attributes:
        count: Candidates per question.
        kept: The pairs of each set whose questions are kept.
        left_out: The other pairs.
        notes: Reasons, if questions are left out or lists are shorter than DEFAULT_COUNT.
    """

    count: int
    kept: list[Array]
    left_out: Array
    notes: list[str]


def default_lists(graph: TextGraph, sets: list[Array], eligible: Array) -> DefaultLists:
    """Chooses 300 candidates per question, or as many as the graph allows.

    `sets` are the pairs of valid and of test. A few questions that allow much fewer candidates than
    the others are left out.
    """
    pairs, wanted = np.concatenate(sets), DEFAULT_COUNT - 1
    possible = possible_negatives(graph, pairs, eligible, wanted)
    typical = int(np.median(possible))
    kept = np.ones(len(pairs), dtype=bool)
    parts = np.cumsum([len(part) for part in sets])[:-1]
    for required, share in ((wanted, MAX_LEFT_OUT), (max(typical // 2, 1), MAX_LEFT_OUT_HUBS)):
        enough = possible >= required
        if (~enough).mean() <= share and all(part.any() for part in np.split(enough, parts)):
            kept = enough
            break
    count = int(possible[kept].min()) + 1
    if count == 1:
        raise GraphFormersError(
            "this graph is too small or too dense for a ranking: a question has no possible "
            "negative"
        )
    notes = _left_out_notes(graph, pairs, possible, kept, eligible) + _length_notes(
        graph, pairs[kept], possible[kept], eligible
    )
    kept_pairs = [part[keep] for part, keep in zip(sets, np.split(kept, parts), strict=True)]
    return DefaultLists(count, kept_pairs, pairs[~kept], notes)


def _left_out_notes(
    graph: TextGraph, pairs: Array, possible: Array, kept: Array, eligible: Array
) -> list[str]:
    if kept.all():
        return []
    nodes, count = np.unique(pairs[~kept, 0]), int(possible[kept].min()) + 1
    example = np.flatnonzero(~kept)[np.argmin(possible[~kept])]
    others = f" ({len(nodes):,} nodes are anchors of such questions)" if len(nodes) > 1 else ""
    return [
        f"questions left out: {int((~kept).sum()):,} of {len(pairs):,}; {count} candidates need "
        f"{count - 1} negatives, and "
        f"{_cause_of_few(graph, pairs[example], eligible)} only {possible[example]:,}{others}"
    ]


def _cause_of_few(graph: TextGraph, pair: Array, eligible: Array) -> str:
    """Why a question has few possible negatives, as the beginning of a sentence.

    Either the anchor has many links, or many nodes share the text of the positive.
    """
    alike = int((graph.text_groups[eligible] == graph.text_groups[pair[1]]).sum())
    if alike > graph.degrees()[pair[0]]:
        return (
            f"{alike:,} nodes share the text of {graph.ids[int(pair[1])].as_py()!r}, which leaves"
        )
    return f"the node {graph.ids[int(pair[0])].as_py()!r} leaves"


def _length_notes(graph: TextGraph, pairs: Array, possible: Array, eligible: Array) -> list[str]:
    shortest = int(np.argmin(possible))
    count = int(possible[shortest]) + 1
    if count == DEFAULT_COUNT:
        return []
    why = "this graph is too small for more"
    # A larger list would be possible but for a node linked to most others, or a text of most nodes.
    if possible[shortest] < len(eligible) // 2:
        cause = _cause_of_few(graph, pairs[shortest], eligible)
        why = f"{cause} only {possible[shortest]:,} possible negatives of {len(eligible):,} nodes"
        short = int((possible < DEFAULT_COUNT - 1).sum())
        why += f"; {short:,} of {len(pairs):,} questions leave fewer than {DEFAULT_COUNT - 1}"
    return [f"{count} candidates per question instead of {DEFAULT_COUNT}: {why}"]


def possible_negatives(graph: TextGraph, pairs: Array, eligible: Array, limit: int) -> Array:
    """(Q,) int64: how many negatives each question allows, counted up to `limit`."""
    is_eligible = np.zeros(graph.num_nodes, dtype=bool)
    is_eligible[eligible] = True
    alike = np.bincount(graph.text_groups[eligible], minlength=int(graph.text_groups.max()) + 1)[
        graph.text_groups[pairs[:, 1]]
    ]
    # A lower bound: a neighbour may be ineligible, or have the positive's text.
    possible: Array = len(eligible) - alike - graph.degrees()[pairs[:, 0]] - 1
    unsure = np.flatnonzero(possible < limit)
    unsure = unsure[np.argsort(pairs[unsure, 0], kind="stable")]
    anchors, starts = np.unique(pairs[unsure, 0], return_index=True)
    for anchor, questions in zip(anchors.tolist(), np.split(unsure, starts)[1:], strict=True):
        near = np.append(graph.neighbors_of(anchor), anchor)
        near = np.sort(graph.text_groups[near[is_eligible[near]]])
        texts = graph.text_groups[pairs[questions, 1]]
        both = np.searchsorted(near, texts, "right") - np.searchsorted(near, texts, "left")
        possible[questions] = len(eligible) - alike[questions] - len(near) + both
    return np.minimum(possible, limit)


def allowed_negatives(graph: TextGraph, pair: Array, eligible: Array) -> Array:
    """All possible negatives of one question."""
    anchor, positive = pair.tolist()
    others = eligible[graph.text_groups[eligible] != graph.text_groups[positive]]
    return np.setdiff1d(others, np.append(graph.neighbors_of(anchor), anchor))


def _draw_block(
    graph: TextGraph,
    pairs: Array,
    eligible: Array,
    count: int,
    generator: np.random.Generator,
    max_rounds: int,
) -> Array:
    negatives = eligible[generator.integers(0, len(eligible), (len(pairs), count))]
    todo = np.arange(len(pairs))
    for _ in range(max_rounds):
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
    """(Q, C) bool: marks negatives that are not allowed.

    These are the anchor, nodes linked to it, nodes with the positive's text, and repetitions in a
    row.
    """
    anchors, positives = pairs[:, :1], pairs[:, 1:]
    wrong: Array = (negatives == anchors) | (
        graph.text_groups[negatives] == graph.text_groups[positives]
    )
    wrong |= are_linked(graph.indptr, graph.indices, pairs[:, 0], negatives)
    order = np.argsort(negatives, axis=1, kind="stable")
    ordered = np.take_along_axis(negatives, order, axis=1)
    repeated = np.zeros_like(wrong)
    np.put_along_axis(repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    wrong |= repeated
    return wrong


def _draw_from_list(
    graph: TextGraph, pair: Array, eligible: Array, count: int, generator: np.random.Generator
) -> Array:
    """Draws from the list of all possible negatives, for an anchor linked to most of the graph."""
    allowed = allowed_negatives(graph, pair, eligible)
    if len(allowed) < count:
        name = graph.ids[int(pair[0])].as_py()
        advice = (
            f"ask for at most {len(allowed) + 1:,} candidates"
            if len(allowed)
            else "hold out other links (another seed)"
        )
        raise GraphFormersError(
            f"the node {name!r} leaves only {len(allowed):,} possible negatives, {count:,} were "
            f"asked for; {advice} (a negative has neighbours, is not linked to the node and has "
            f"another text than the positive)"
        )
    return generator.choice(allowed, count, replace=False)
