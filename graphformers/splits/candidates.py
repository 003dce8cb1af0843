"""The candidates of a ranking: one positive, and negatives that are not linked to the anchor."""

from dataclasses import dataclass

import numpy as np

from graphformers.data.arrays import Array, are_linked
from graphformers.data.graph import TextGraph
from graphformers.errors import GraphFormersError
from graphformers.progress import progress

BLOCK = 16_384  # questions at a time
DEFAULT_COUNT = 300  # the paper's 1 + 299
# share of the questions that are left out rather than that all get shorter lists
FEW = 0.05
# the same for questions that would cut the lists to less than half: a hub is the anchor of 1 of
# every (mean degree) questions
SOME = 0.2


def draw_candidates(
    graph: TextGraph,
    pairs: Array,
    eligible: Array,
    count: int,
    seed: int,
    max_rounds: int = 20,
) -> Array:
    """(Q, count) int32 candidates for (Q, 2) pairs of anchor and positive: the positive, then
    negatives without repetition.

    Negatives are uniform over `eligible`, the nodes that could be positives, so that having
    neighbours does not tell them apart. Never the anchor, a neighbour of it in the whole graph, or
    a node with the positive's text. Forbidden negatives are drawn again, `max_rounds` times, and
    then drawn from an explicit list.
    """
    result = np.empty((len(pairs), count), dtype=np.int32)
    with progress("Drawing candidates", len(pairs), "pairs") as task:
        for start in range(0, len(pairs), BLOCK):
            block = pairs[start : start + BLOCK]
            generator = np.random.Generator(np.random.PCG64([seed, start]))
            result[start : start + len(block), 0] = block[:, 1]
            result[start : start + len(block), 1:] = _draw_block(
                graph, block, eligible, count - 1, generator, max_rounds
            )
            task.advance(len(block))
    return result


@dataclass(frozen=True, eq=False)
class DefaultLists:
    """The default length of the lists, and which questions are left out for it.

    Attributes:
        count: Candidates per question.
        asked: The questions of each set that are kept.
        left_out: The other questions.
        notes: Reasons, if questions are left out or lists are shorter than DEFAULT_COUNT.
    """

    count: int
    asked: list[Array]
    left_out: Array
    notes: list[str]


def default_lists(graph: TextGraph, asked: list[Array], eligible: Array) -> DefaultLists:
    """300 candidates, or as many as the graph allows. A few questions that allow much fewer than
    the others are left out.
    """
    pairs, wanted = np.concatenate(asked), DEFAULT_COUNT - 1
    possible = possible_negatives(graph, pairs, eligible, wanted)
    typical = int(np.median(possible))
    kept = np.ones(len(pairs), dtype=bool)
    parts = np.cumsum([len(part) for part in asked])[:-1]
    for least, most in ((wanted, FEW), (max(typical // 2, 1), SOME)):
        enough = possible >= least
        if (~enough).mean() <= most and all(part.any() for part in np.split(enough, parts)):
            kept = enough
            break
    count = int(possible[kept].min()) + 1
    if count == 1:
        raise GraphFormersError(
            "this graph is too small or too dense for a ranking: some question has no possible "
            "negative at all"
        )
    notes = _why_left_out(graph, pairs, possible, kept, eligible) + _why_short(
        graph, pairs[kept], possible[kept], eligible
    )
    kept_asked = [part[keep] for part, keep in zip(asked, np.split(kept, parts), strict=True)]
    return DefaultLists(count, kept_asked, pairs[~kept], notes)


def _why_left_out(
    graph: TextGraph, pairs: Array, possible: Array, kept: Array, eligible: Array
) -> list[str]:
    if kept.all():
        return []
    nodes, count = np.unique(pairs[~kept, 0]), int(possible[kept].min()) + 1
    example = np.flatnonzero(~kept)[np.argmin(possible[~kept])]
    others = f" ({len(nodes):,} nodes ask such questions)" if len(nodes) > 1 else ""
    return [
        f"questions left out: {int((~kept).sum()):,} of {len(pairs):,}; {count} candidates need "
        f"{count - 1} negatives, and "
        f"{_what_leaves_few(graph, pairs[example], eligible)} only {possible[example]:,}{others}"
    ]


def _what_leaves_few(graph: TextGraph, pair: Array, eligible: Array) -> str:
    """Why a question has few possible negatives: the anchor has many links, or many nodes share
    the text of the positive.
    """
    alike = int((graph.text_groups[eligible] == graph.text_groups[pair[1]]).sum())
    if alike > graph.degrees()[pair[0]]:
        return (
            f"{alike:,} nodes share the text of {graph.ids[int(pair[1])].as_py()!r}, which leaves"
        )
    return f"the node {graph.ids[int(pair[0])].as_py()!r} leaves"


def _why_short(graph: TextGraph, pairs: Array, possible: Array, eligible: Array) -> list[str]:
    shortest = int(np.argmin(possible))
    count = int(possible[shortest]) + 1
    if count == DEFAULT_COUNT:
        return []
    why = "this graph is too small for more"
    # it would not be, but for a node linked to most of it, or a text of most
    if possible[shortest] < len(eligible) // 2:
        cause = _what_leaves_few(graph, pairs[shortest], eligible)
        why = f"{cause} only {possible[shortest]:,} possible negatives of {len(eligible):,} nodes"
        short = int((possible < DEFAULT_COUNT - 1).sum())
        why += f"; {short:,} of {len(pairs):,} questions leave fewer than {DEFAULT_COUNT - 1}"
    return [f"{count} candidates per question instead of {DEFAULT_COUNT}: {why}"]


def possible_negatives(graph: TextGraph, pairs: Array, eligible: Array, most: int) -> Array:
    """(Q,) int64 how many negatives each question allows; `most` where it is that or more."""
    is_eligible = np.zeros(graph.num_nodes, dtype=bool)
    is_eligible[eligible] = True
    alike = np.bincount(graph.text_groups[eligible], minlength=int(graph.text_groups.max()) + 1)[
        graph.text_groups[pairs[:, 1]]
    ]
    possible: Array = len(eligible) - alike - graph.degrees()[pairs[:, 0]] - 1  # at least
    unsure = np.flatnonzero(possible < most)
    unsure = unsure[np.argsort(pairs[unsure, 0], kind="stable")]
    anchors, starts = np.unique(pairs[unsure, 0], return_index=True)
    for anchor, questions in zip(anchors.tolist(), np.split(unsure, starts)[1:], strict=True):
        near = np.append(graph.neighbors_of(anchor), anchor)
        near = np.sort(graph.text_groups[near[is_eligible[near]]])
        texts = graph.text_groups[pairs[questions, 1]]
        both = np.searchsorted(near, texts, "right") - np.searchsorted(near, texts, "left")
        possible[questions] = len(eligible) - alike[questions] - len(near) + both
    return np.minimum(possible, most)


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
    """(Q, C) marks negatives that are the anchor, linked to it, of the positive's text, or a
    repetition in their row.
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
    """Draws from a list of all possible negatives, for an anchor linked to most of the graph."""
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
