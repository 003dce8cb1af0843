"""The verdict of a comparison: conclusions from its numbers, in sentences.

A paired test decides whether two systems differ. The valid questions decide which variant to
recommend, because choosing the best of several on the test questions would overestimate it.
"""

from graphformers.compare.conditions import NO_NEIGHBORS, SHUFFLED_NEIGHBORS
from graphformers.compare.results import Results, System, difference
from graphformers.compare.runs import UNTRAINED
from graphformers.evaluation.metrics import PRIMARY

# Differences with smaller p-values are significant.
SIGNIFICANT = 0.05
# Two values of P@1 are the same if the interval of their difference lies within this.
SAME = 0.01
# A variant that encodes this many times as fast is a cheaper alternative.
MUCH_FASTER = 1.2


def verdict(results: Results) -> list[str]:
    """One sentence for each question that a comparison can answer.

    Args:
        results: The results. A question is left out if the systems that it needs are missing.

    Example:
        >>> for line in verdict(results):
        ...     print("-", line)
        - The graph helps: P@1 of PLM 0.480, of GraphFormers 0.521 (+0.0410 [+0.0352, +0.0468], …
    """
    reader, text, best = results.best_reader(), results.text_only(), results.best()
    lines = _learning_warning(results)
    if reader and text:
        lines.append(_graph_effect(reader, text))
    if reader:
        lines += _neighbor_effects(reader)
    if best and len(results.trained) > 1:
        lines.append(_recommendation(results, best))
    lines += _two_stage_effects(results)
    if best:
        lines += _training_effect(results, best)
    if reader and text and results.is_one_device:
        lines.append(_cost(reader, text))
    return lines


def _learning_warning(results: Results) -> list[str]:
    """A warning if all methods are worse than the untrained backbone."""
    start = next((each for each in results.untrained if each.title.endswith(UNTRAINED)), None)
    if start is None or not results.trained:
        return []
    differences = [difference(each, start) for each in results.trained]
    if not all(each.value < 0 and each.p_value < SIGNIFICANT for each in differences):
        return []
    best = max(each.mean() for each in results.trained)
    return [
        f"Every method is worse than the untrained backbone: {PRIMARY} of {start.title} "
        f"{start.mean():.3f}, of the best method {best:.3f}. Train longer or change the settings "
        f"before you rely on the statements below."
    ]


def _graph_effect(reader: System, text: System) -> str:
    found = difference(reader, text)
    numbers = (
        f"{PRIMARY} of {text.title} {text.mean():.3f}, of {reader.title} {reader.mean():.3f} "
        f"({found}){_reservations(text, reader)}"
    )
    if found.p_value >= SIGNIFICANT:
        count = len(text.values())
        questions = "one question" if count == 1 else f"{count:,} questions"
        return (
            f"No significant difference on {questions}; whether the graph helps remains open: "
            f"{numbers}."
        )
    if found.value < 0:
        return f"The graph hurts: {numbers}."
    if not text.mean():
        return f"The graph helps: {numbers}."
    return (
        f"The graph helps: {numbers}; {100 * found.value / text.mean():.0f} % more links are "
        f"ranked first."
    )


def _reservations(one: System, other: System) -> str:
    """Other possible reasons for a difference: unequal numbers of steps, and single seeds."""
    reasons = []
    if one.steps != other.steps:
        reasons.append(f"{one.steps:,.0f} and {other.steps:,.0f} steps in the same time")
    if len(one.runs) == len(other.runs) == 1:
        reasons.append("one seed each: another seed may change this")
    return f" ({'; '.join(reasons)})" if reasons else ""


def _neighbor_effects(reader: System) -> list[str]:
    """Compares scores with each node's own neighbours, neighbours of other nodes, and none.

    Scores are called the same only if the interval of their difference lies within SAME.
    """
    own, lines = reader.mean(), []
    # If few links are found at all, a smaller difference counts.
    same = min(SAME, own / 10)
    # Rule of three: if none of n questions differs, up to 3 / n of all possible ones may differ.
    unseen = 3 / len(reader.values())
    for condition, given, verb in (
        (SHUFFLED_NEIGHBORS, "neighbours of other nodes", "use"),
        (NO_NEIGHBORS, "no neighbours", "need"),
    ):
        if condition not in reader.ranks:
            continue
        found, value = difference(reader, reader, condition), reader.mean(condition=condition)
        is_significant = found.p_value < SIGNIFICANT
        is_visible = f"{value:.3f}" != f"{own:.3f}"
        is_same = max(-found.low, found.high, unseen) <= same
        if max(own, value) == 0:
            line = "ranks no link first, as with each node's own neighbours."
        elif is_same and not (is_significant and is_visible):
            line = (
                f"performs the same ({PRIMARY} {value:.3f}, with their own neighbours {own:.3f}): "
                f"it does not {verb} them."
            )
        elif not is_significant:
            line = f"has {PRIMARY} {value:.3f} instead of {own:.3f}, which is not significant."
        else:
            line = f"{'falls' if value < own else 'rises'} from {PRIMARY} {own:.3f} to {value:.3f}."
        lines.append(f"Given {given}, {reader.title} {line}")
    return lines


def _recommendation(results: Results, best: System) -> str:
    """Recommends the best variant on the valid questions, and names alternatives.

    Alternatives are a variant that is significantly better on the test questions, and a cheaper one
    that does not differ significantly.
    """
    tied = [each.title for each in results.trained if each.valid == best.valid]
    if len(tied) > 1:
        return (
            f"The valid questions do not decide which method to choose: {', '.join(tied[:-1])} "
            f"and {tied[-1]} have the same {PRIMARY} on them ({best.valid:.3f})."
        )
    differences = {
        each.title: difference(best, each) for each in results.trained if each is not best
    }
    better, cheaper = [], []
    for each in results.trained:
        found = differences.get(each.title)
        if found is None:
            continue
        if found.p_value < SIGNIFICANT and found.value < 0:
            better.append(each)
        is_faster = each.nodes_per_second > MUCH_FASTER * best.nodes_per_second
        if found.p_value >= SIGNIFICANT and is_faster and results.is_one_device:
            cheaper.append(each)
    line = (
        f"Choose {best.title}: it is the best on the valid questions ({PRIMARY} {best.valid:.3f}; "
        f"{best.mean():.3f} on the test questions)."
    )
    if better:
        first = max(better, key=lambda each: each.mean())
        line += (
            f" {first.title} is better on the test questions ({first.mean():.3f}; "
            f"{first.valid:.3f} on the valid questions)."
        )
    if cheaper:
        fast = max(cheaper, key=lambda each: each.nodes_per_second)
        times = fast.nodes_per_second / best.nodes_per_second
        line += (
            f" {fast.title} does not differ significantly from it ({fast.mean():.3f}) and encodes "
            f"{times:.1f} times as fast."
        )
    return line


def _two_stage_effects(results: Results) -> list[str]:
    """The effect of training in two stages, for each variant also trained in one."""
    lines = []
    for each in results.trained:
        one_stage = results.find(f"{each.name}.one-stage")
        if one_stage is not None:
            found = difference(each, one_stage)
            lines.append(
                f"Training in two stages instead of one changes {PRIMARY} of {each.title} by "
                f"{found}."
            )
    return lines


def _training_effect(results: Results, best: System) -> list[str]:
    """Names the best system without training, unless the trained one is significantly better."""
    baseline = max(results.untrained, key=lambda each: each.mean(), default=None)
    if baseline is None:
        return []
    found = difference(best, baseline)
    is_significant = found.p_value < SIGNIFICANT
    if found.value > 0 and is_significant:
        return []
    is_worse = found.value < 0 and is_significant
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
