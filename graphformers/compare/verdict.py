"""The verdict of a comparison: conclusions from its numbers, in sentences.

`decide` makes all decisions once, from paired tests and intervals; `verdict` puts them into
sentences and decides nothing itself. The valid questions decide which variant is the best, because
choosing the best of several on the test questions would overestimate it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from graphformers.compare.conditions import NO_NEIGHBORS, SHUFFLED_NEIGHBORS, TEXT_SEARCH
from graphformers.compare.results import Results, System, difference, search_difference
from graphformers.evaluation.metrics import PRIMARY
from graphformers.evaluation.significance import Difference
from graphformers.evaluation.text_search import SEARCH_METRIC

# Differences with smaller p-values are significant.
SIGNIFICANT = 0.05
# Two values of a metric are the same if the interval of their difference lies within this.
SAME = 0.01
# A variant that encodes this many times as fast is a cheaper alternative.
MUCH_FASTER = 1.2


class Learning(Enum):
    """Whether the trained methods learned to predict links."""

    LEARNED = "a method is significantly better than the untrained backbone"
    NOTHING = "no method is significantly better than the untrained backbone"
    WORSE = "all methods are significantly worse than the untrained backbone"
    UNKNOWN = "the untrained backbone was not evaluated"


class Change(Enum):
    """The result of a test of a difference."""

    BETTER = "significantly better"
    WORSE = "significantly worse"
    SAME = "not significant, and the interval lies within SAME"
    OPEN = "not significant, and the interval is wider"


@dataclass(frozen=True)
class Effect:
    """The difference between two systems, and the result of its test.

    Attributes:
        system: The first system.
        other: The second one.
        difference: A metric of the first minus that of the second.
    """

    system: System
    other: System
    difference: Difference

    @property
    def change(self) -> Change:
        if self.difference.p_value < SIGNIFICANT and self.difference.value:
            return Change.BETTER if self.difference.value > 0 else Change.WORSE
        is_same = max(-self.difference.low, self.difference.high) <= SAME
        return Change.SAME if is_same else Change.OPEN


@dataclass(frozen=True)
class NeighborEffect:
    """The effect of other neighbours, or none, on a trained variant.

    Attributes:
        system: The variant.
        condition: SHUFFLED_NEIGHBORS or NO_NEIGHBORS.
        change: BETTER or WORSE than with each node's own neighbours, SAME or OPEN.
    """

    system: System
    condition: str
    change: Change


@dataclass(frozen=True)
class Decision:
    """What a comparison decides. Made once by `decide`, from tests and intervals.

    Attributes:
        learning: Whether anything was learned at link prediction.
        backbone: The untrained backbone; None if it was not evaluated.
        highest: The trained variant with the highest score on the test questions.
        best: The trained variant that is best on the valid questions.
        tied: All variants with its score on the valid questions, if there are several.
        recommended: The variant to choose: the best one. None if nothing was learned, if there is
            only one variant, if the valid questions do not decide, or if it is not significantly
            better than the best system without training.
        better: The variant with the highest score on the test questions, of those significantly
            better there than the best one.
        cheaper: The fastest of the variants that do not differ significantly from the best one, if
            it is much faster.
        baseline: The best variant against the best system without training.
        graph: The best variant with neighbours against the best variant of PLM.
        neighbors: What the best variant with neighbours does without its own neighbours.
        two_stages: Each variant trained in two stages against the same one trained in one.
        search: Search by words of each trained variant against the untrained backbone, the best
            variant first.
        bm25: BM25, if search by words was measured.
        is_single: Whether there is only one trained variant, so that there is nothing to choose.
        is_one_device: Whether the speeds of all variants can be compared.
    """

    learning: Learning
    backbone: System | None
    highest: System | None
    best: System | None
    tied: tuple[System, ...]
    recommended: System | None
    better: System | None
    cheaper: System | None
    baseline: Effect | None
    graph: Effect | None
    neighbors: tuple[NeighborEffect, ...]
    two_stages: tuple[Effect, ...]
    search: tuple[Effect, ...]
    bm25: System | None
    is_single: bool
    is_one_device: bool


def decide(results: Results) -> Decision:
    """Makes all decisions of a comparison.

    Args:
        results: The results. Decisions that need missing systems are None or empty.
    """
    trained, best = results.trained, results.best()
    reader, text = results.best_reader(), results.text_only()
    backbone = results.backbone
    learning = _learning(trained, backbone)
    effects = [
        Effect(best, each, difference(best, each))
        for each in trained
        if best is not None and each is not best
    ]
    better = [each.other for each in effects if each.change is Change.WORSE]
    cheaper = [
        each.other
        for each in effects
        if each.change in (Change.SAME, Change.OPEN)
        and each.other.nodes_per_second > MUCH_FASTER * each.system.nodes_per_second
        and results.is_one_device
    ]
    tied = tuple(each for each in trained if best is not None and each.valid == best.valid)
    strongest = max(results.untrained, key=lambda each: each.mean(), default=None)
    baseline = None
    if best is not None and strongest is not None:
        baseline = Effect(best, strongest, difference(best, strongest))
    is_recommended = (
        learning in (Learning.LEARNED, Learning.UNKNOWN)
        and len(trained) > 1
        and len(tied) == 1
        and (baseline is None or baseline.change is Change.BETTER)
    )
    one_stages = ((each, results.find(f"{each.name}.one-stage")) for each in trained)
    searched = [each for each in trained if each.can_search]
    return Decision(
        learning=learning,
        backbone=backbone,
        highest=max(trained, key=lambda each: each.mean(), default=None),
        best=best,
        tied=tied if len(tied) > 1 else (),
        recommended=best if is_recommended else None,
        better=max(better, key=lambda each: each.mean(), default=None),
        cheaper=max(cheaper, key=lambda each: each.nodes_per_second, default=None),
        baseline=baseline,
        graph=Effect(reader, text, difference(reader, text)) if reader and text else None,
        neighbors=_neighbor_effects(reader) if reader else (),
        two_stages=tuple(
            Effect(each, other, difference(each, other)) for each, other in one_stages if other
        ),
        search=tuple(
            Effect(each, backbone, search_difference(each, backbone))
            for each in sorted(searched, key=lambda each: each is not best)
            if backbone is not None and backbone.can_search
        ),
        bm25=next((each for each in results.search_only if each.title == "BM25"), None),
        is_single=len(trained) == 1,
        is_one_device=results.is_one_device,
    )


def _learning(trained: Sequence[System], backbone: System | None) -> Learning:
    if backbone is None or not trained:
        return Learning.UNKNOWN
    changes = {Effect(each, backbone, difference(each, backbone)).change for each in trained}
    if Change.BETTER in changes:
        return Learning.LEARNED
    return Learning.WORSE if changes == {Change.WORSE} else Learning.NOTHING


def _neighbor_effects(reader: System) -> tuple[NeighborEffect, ...]:
    """Compares scores with each node's own neighbours, neighbours of other nodes, and none.

    Scores are the same only if the interval of their difference lies within SAME, and if a
    significant difference is not visible in the numbers shown.
    """
    own, found = reader.mean(), []
    # If few links are found at all, a smaller difference counts.
    same = min(SAME, own / 10)
    # Rule of three: if none of n questions differs, up to 3 / n of all possible ones may differ.
    unseen = 3 / len(reader.values())
    for condition in (SHUFFLED_NEIGHBORS, NO_NEIGHBORS):
        if condition not in reader.ranks:
            continue
        tested, value = difference(reader, reader, condition), reader.mean(condition=condition)
        is_significant = tested.p_value < SIGNIFICANT
        is_visible = f"{value:.3f}" != f"{own:.3f}"
        if max(-tested.low, tested.high, unseen) <= same and not (is_significant and is_visible):
            change = Change.SAME
        elif not is_significant:
            change = Change.OPEN
        else:
            change = Change.WORSE if value < own else Change.BETTER
        found.append(NeighborEffect(reader, condition, change))
    return tuple(found)


def verdict(results: Results) -> list[str]:
    """One sentence for each question that a comparison can answer.

    Args:
        results: The results. A question is left out if the systems that it needs are missing.

    Examples:
        >>> for line in verdict(results):
        ...     print("-", line)
        - The graph helps: P@1 of PLM 0.480, of GraphFormers 0.521 (+0.0410 [+0.0352, +0.0468], …
    """
    return sentences(decide(results))


def sentences(decision: Decision) -> list[str]:
    """The sentences that state a decision."""
    lines = _learning_warning(decision)
    if decision.graph is not None:
        lines.append(_graph_effect(decision.graph))
    lines += [_neighbor_effect(each) for each in decision.neighbors]
    lines += _recommendation(decision)
    lines += _search_effects(decision)
    lines += [
        f"Training in two stages instead of one changes {PRIMARY} of {each.system.title} by "
        f"{each.difference}."
        for each in decision.two_stages
    ]
    if decision.baseline is not None:
        lines += _training_effect(decision.baseline)
    if decision.graph is not None and decision.is_one_device:
        lines.append(_cost(decision.graph.system, decision.graph.other))
    return lines


def _learning_warning(decision: Decision) -> list[str]:
    """A warning if no method is significantly better than the untrained backbone."""
    if decision.backbone is None or decision.highest is None:
        return []
    if decision.learning not in (Learning.NOTHING, Learning.WORSE):
        return []
    is_worse = decision.learning is Learning.WORSE
    relation = "Every method is worse" if is_worse else "No method is significantly better"
    return [
        f"{relation} than the untrained backbone: {PRIMARY} of {decision.backbone.title} "
        f"{decision.backbone.mean():.3f}, of the best method {decision.highest.mean():.3f}. No "
        f"method is recommended. Train longer or change the settings before you rely on the "
        f"statements below."
    ]


def _graph_effect(effect: Effect) -> str:
    reader, text = effect.system, effect.other
    numbers = (
        f"{PRIMARY} of {text.title} {text.mean():.3f}, of {reader.title} {reader.mean():.3f} "
        f"({effect.difference}){_reservations(text, reader)}"
    )
    if effect.change is Change.WORSE:
        return f"The graph hurts: {numbers}."
    if effect.change is not Change.BETTER:
        count = len(text.values())
        questions = "one question" if count == 1 else f"{count:,} questions"
        return (
            f"No significant difference on {questions}; whether the graph helps remains open: "
            f"{numbers}."
        )
    if not text.mean():
        return f"The graph helps: {numbers}."
    return (
        f"The graph helps: {numbers}; {100 * effect.difference.value / text.mean():.0f} % more "
        f"links are ranked first."
    )


def _reservations(one: System, other: System) -> str:
    """Other possible reasons for a difference: unequal numbers of steps, and single seeds."""
    reasons = []
    if one.steps != other.steps:
        reasons.append(f"{one.steps:,.0f} and {other.steps:,.0f} steps in the same time")
    if len(one.runs) == len(other.runs) == 1:
        reasons.append("one seed each: another seed may change this")
    return f" ({'; '.join(reasons)})" if reasons else ""


def _neighbor_effect(effect: NeighborEffect) -> str:
    reader = effect.system
    own, value = reader.mean(), reader.mean(condition=effect.condition)
    given, verb = {
        SHUFFLED_NEIGHBORS: ("neighbours of other nodes", "use"),
        NO_NEIGHBORS: ("no neighbours", "need"),
    }[effect.condition]
    if max(own, value) == 0:
        line = "ranks no link first, as with each node's own neighbours."
    elif effect.change is Change.SAME:
        line = (
            f"performs the same ({PRIMARY} {value:.3f}, with their own neighbours {own:.3f}): it "
            f"does not {verb} them."
        )
    elif effect.change is Change.OPEN:
        line = f"has {PRIMARY} {value:.3f} instead of {own:.3f}, which is not significant."
    else:
        verb = "falls" if effect.change is Change.WORSE else "rises"
        line = f"{verb} from {PRIMARY} {own:.3f} to {value:.3f}."
    return f"Given {given}, {reader.title} {line}"


def _recommendation(decision: Decision) -> list[str]:
    """The recommended variant, or why there is none, and alternatives to it.

    Alternatives are a variant that is significantly better on the test questions, and a cheaper one
    that does not differ significantly.
    """
    best = decision.best
    if best is None or decision.learning in (Learning.NOTHING, Learning.WORSE):
        return []
    if decision.tied:
        *others, last = (each.title for each in decision.tied)
        return [
            f"The valid questions do not decide which method to choose: {', '.join(others)} and "
            f"{last} have the same {PRIMARY} on them ({best.valid:.3f})."
        ]
    numbers = (
        f"the best on the valid questions ({PRIMARY} {best.valid:.3f}; {best.mean():.3f} on the "
        f"test questions)."
    )
    if decision.recommended is not None:
        line = f"Choose {best.title}: it is {numbers}"
    elif decision.is_single:
        return []
    else:
        line = f"Of the trained methods, {best.title} is {numbers}"
    if decision.better is not None:
        better = decision.better
        line += (
            f" {better.title} is better on the test questions ({better.mean():.3f}; "
            f"{better.valid:.3f} on the valid questions)."
        )
    if decision.cheaper is not None:
        cheaper = decision.cheaper
        times = cheaper.nodes_per_second / best.nodes_per_second
        line += (
            f" {cheaper.title} does not differ significantly from it ({cheaper.mean():.3f}) and "
            f"encodes {times:.1f} times as fast."
        )
    return [line]


def _search_effects(decision: Decision) -> list[str]:
    """What training did to search by words: one sentence for each kind of change."""
    lines = []
    for change, words in (
        (Change.WORSE, "Search by words became worse by training"),
        (Change.BETTER, "Search by words became better by training"),
        (Change.SAME, "Training did not cost search by words"),
        (
            Change.OPEN,
            "No significant change of search by words by training; whether it costs some remains "
            "open",
        ),
    ):
        effects = [each for each in decision.search if each.change is change]
        if not effects:
            continue
        first, *others = effects
        numbers = [
            f"{_search(first.other)} untrained",
            f"{_search(first.system)} with {first.system.title} ({first.difference})",
            *(f"{_search(each.system)} with {each.system.title}" for each in others),
        ]
        if change is Change.WORSE and decision.bm25 is not None:
            numbers.append(f"{_search(decision.bm25)} with {decision.bm25.title}")
        lines.append(f"{words}: {SEARCH_METRIC} {', '.join(numbers)}.")
    return lines


def _search(system: System) -> str:
    return f"{system.mean(SEARCH_METRIC, TEXT_SEARCH):.3f}"


def _training_effect(effect: Effect) -> list[str]:
    """Names the best system without training, unless the trained one is significantly better."""
    if effect.change is Change.BETTER:
        return []
    best, baseline = effect.system, effect.other
    is_worse = effect.change is Change.WORSE
    relation = "is better than" if is_worse else "does not differ significantly from"
    advice = ": train longer, or use it instead" if is_worse or best.mean() < 1 else ""
    return [
        f"Without training, {baseline.title} {relation} {best.title} ({PRIMARY} "
        f"{baseline.mean():.3f} and {best.mean():.3f}){advice}."
    ]


def _cost(reader: System, text: System) -> str:
    training = reader.seconds_per_step / max(text.seconds_per_step, 1e-9)
    encoding = text.nodes_per_second / reader.nodes_per_second
    return (
        f"Cost: a training step of {reader.title} takes {training:.1f} times as long as one of "
        f"{text.title}, encoding a node {encoding:.1f} times as long "
        f"({reader.nodes_per_second:,.0f} nodes/s on this machine)."
    )
