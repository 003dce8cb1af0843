"""Budget: divides the minutes of a run between training, validations and saving."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from graphformers.errors import GraphFormersError
from graphformers.training.settings import TrainConfig

# the share of the time that all validations of a run may take
VALIDATION_SHARE = 0.1
# Beside the validation before the first step and those at the ends of the stages, there is time for
# so many, unless fewer than ENOUGH_QUESTIONS could then be ranked.
MORE_VALIDATIONS = 4
ENOUGH_QUESTIONS = 500
# With fewer questions, a validation does not tell good weights from bad ones.
FEWEST_QUESTIONS = 100
# measured times vary; what is named as the least must work
MARGIN = 1.2


@dataclass(frozen=True)
class Budget:
    """How a run with `minutes` spends its time; part of the state of the run.

    Attributes:
        questions: Questions of a validation; 0 before they were chosen.
        step_seconds: Seconds of a step, as measured before the first.
        save_seconds: Seconds of writing the model.
    """

    questions: int = 0
    step_seconds: float = 0.0
    save_seconds: float = 0.0


def plan_budget(
    config: TrainConfig,
    questions: int,
    setup: float,
    step: float,
    save: float,
    validation: Callable[[int], float],
) -> Budget:
    """Chooses how many questions are ranked, so that validations take at most a tenth of the time.

    Args:
        config: The settings of the run, with `minutes`.
        questions: The number of questions there are.
        setup: Seconds of the run so far.
        step: Seconds of a step.
        save: Seconds of writing the model.
        validation: Returns the seconds of a validation with so many questions.

    Raises:
        GraphFormersError: The minutes do not suffice for a step and a validation in each stage. The
            message names the least that do.
    """
    assert config.minutes is not None, "only a run with a budget is planned"
    stages = len(config.stages)
    validations = stages + int(config.validate_start)
    least_validation = validation(min(FEWEST_QUESTIONS, questions))
    least = max(
        validations * least_validation / VALIDATION_SHARE,
        (setup + stages * (step + save)) / (1 - VALIDATION_SHARE),
    )
    if 60 * config.minutes < least:
        raise GraphFormersError(
            f"minutes={config.minutes:g} given, expected at least {round_up(MARGIN * least / 60)}: "
            f"{setup:.1f} s until the first step, {step:.1f} s a step, {save:.1f} s to write the "
            f"model, {least_validation:.1f} s a validation, and the {validations} validations may "
            f"take a tenth of the time; fewer num_neighbors take less, and two_stage=false or "
            f"validate_start=false save a validation"
        )
    allowed = VALIDATION_SHARE * 60 * config.minutes
    found = most_questions(questions, allowed / (validations + MORE_VALIDATIONS), validation)
    if found < min(questions, ENOUGH_QUESTIONS):
        found = most_questions(questions, allowed / validations, validation)
        found = min(found, ENOUGH_QUESTIONS)
    return Budget(found, step, save)


def most_questions(count: int, seconds: float, validation: Callable[[int], float]) -> int:
    """The number of questions, of `count`, that a validation ranks within some seconds.

    It is at least FEWEST_QUESTIONS, and somewhat smaller than the largest possible number.
    """
    least = min(count, FEWEST_QUESTIONS)
    while count > least and (needed := validation(count)) > seconds:
        # Questions share nodes, so fewer of them take more than their share of the time.
        count = max(least, min(count - 1, int(count * seconds / needed)))
    return count


def round_up(minutes: float) -> str:
    """Minutes as text, rounded up to a tenth."""
    return f"{math.ceil(10 * minutes) / 10:g}"
