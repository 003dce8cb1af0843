"""The minutes of a run: what they are spent on, how few suffice, and what is left."""

import math
from typing import Any

import pytest

from graphformers.errors import GraphFormersError
from graphformers.progress import Progress
from graphformers.training.budget import (
    ENOUGH_QUESTIONS,
    FEWEST_QUESTIONS,
    VALIDATION_SHARE,
    Budget,
    plan_budget,
)
from graphformers.training.checkpoint import RecentSteps, TrainState
from graphformers.training.schedule import Schedule
from graphformers.training.settings import TrainConfig
from graphformers.training.trainer import Trainer
from tests.training.conftest import make_model, make_split


def plan(minutes: float, per_question: float, **changes: Any) -> Budget:
    config = TrainConfig(minutes=minutes, **changes)
    return plan_budget(config, 10_000, 10.0, 2.0, 1.0, lambda count: count * per_question)


def simulate(config: TrainConfig, step: float, validation: float, batches: int = 20) -> TrainState:
    """The state of a run at its end, whose steps and validations take so many seconds."""
    state = TrainState(budget=Budget(100, step, 1.0), validation_seconds=validation)
    schedule = Schedule(config, batches)

    def validate() -> None:
        state.clock += validation
        state.validating_seconds += validation

    state.clock = 10.0
    if config.validate_start:
        validate()
    state.stage_clock = state.clock
    while state.stage < len(config.stages):
        if schedule.is_validation_due(state):
            validate()
            state.add_validation(0.1 + state.step, 0.1)
            state.recent = RecentSteps()
        if schedule.end_reason(state):
            state.next_stage()
            continue
        assert 0 <= schedule.learning_rate(state) <= config.learning_rate
        state.next_batch(batches)
        state.clock += step
        state.seconds += step
        state.recent.steps += 1
        if state.stage < len(config.stages):
            assert schedule.seconds_left(state) <= 60 * (config.minutes or math.inf) - state.clock
    return state


@pytest.mark.parametrize("two_stage", [False, True])
@pytest.mark.parametrize("validation", [0.1, 5.0, 20.0])
@pytest.mark.parametrize("step", [0.05, 3.0])
def test_a_run_ends_in_time_and_validates_a_tenth_of_it(
    step: float, validation: float, two_stage: bool
) -> None:
    config = TrainConfig(
        minutes=10, two_stage=two_stage, epochs=10**6, patience=10**6, decay="linear"
    )
    state = simulate(config, step, validation)
    assert 600 * 0.98 - step < state.clock + 1.0 <= 600
    assert state.validating_seconds <= max(VALIDATION_SHARE * 600, 3 * validation) + 1e-6
    if validation < 1:
        assert state.validating_seconds >= min(state.epoch, 100) * validation


def test_the_stages_share_the_time_from_the_first_step_on() -> None:
    config = TrainConfig(minutes=10, first_share=0.25, epochs=10**6, patience=10**6)
    schedule = Schedule(config, 20)
    state = TrainState(clock=200.0, stage_clock=200.0)
    assert schedule.limits(state)[1] == 200 + 0.25 * 400
    state.next_stage()
    assert schedule.limits(state)[1] == 600


def test_every_stage_makes_a_step_where_no_time_is_left() -> None:
    schedule = Schedule(TrainConfig(minutes=1, decay="linear"), 20)
    late = TrainState(clock=100.0, stage_clock=50.0, step=7)
    assert not schedule.end_reason(late)
    assert schedule.learning_rate(late) == 0.0
    late.next_batch(20)
    late.recent.steps = 1
    assert schedule.is_validation_due(late)
    assert schedule.end_reason(late) == "time limit reached"


def test_the_countdown_is_of_both_stages_and_their_validations() -> None:
    state = TrainState(step=10, stage_step=10, seconds=20.0, validation_seconds=7.0)
    epochs = Schedule(TrainConfig(epochs=3), 10)
    assert epochs.seconds_left(state) == pytest.approx(2 * (20 + 30) + 7 * (2 + 3))
    steps = Schedule(TrainConfig(epochs=3, max_steps=30), 10)
    assert steps.seconds_left(state) == pytest.approx(2 * (5 + 15) + 7 * (1 + 2))
    state.clock = 50.0
    timed = Schedule(TrainConfig(epochs=3, minutes=1), 10)
    assert timed.seconds_left(state) == 10.0


def test_fewer_questions_where_validations_would_take_more_than_a_tenth() -> None:
    assert plan(30, per_question=0.001).questions == 10_000
    some = plan(30, per_question=0.01)
    # three validations and four more
    assert some.questions == pytest.approx(180 / 7 / 0.01, abs=2)
    assert some.questions > ENOUGH_QUESTIONS
    assert plan(30, per_question=0.06).questions == ENOUGH_QUESTIONS
    few = plan(30, per_question=0.3).questions
    assert few == pytest.approx(180 / 3 / 0.3, abs=2)
    assert FEWEST_QUESTIONS < few < ENOUGH_QUESTIONS
    assert plan(30, per_question=0.3, two_stage=False).questions > few


@pytest.mark.parametrize("changes", [{}, {"two_stage": False}, {"validate_start": False}])
@pytest.mark.parametrize("per_question", [0.0001, 0.03])
def test_what_is_named_as_the_least_works(changes: dict[str, Any], per_question: float) -> None:
    with pytest.raises(GraphFormersError) as refused:
        plan(0.2, per_question, **changes)
    words = str(refused.value)
    assert words.startswith("minutes=0.2 given, expected at least ")
    least = float(words.split("at least ")[1].split(":")[0])
    assert plan(least, per_question, **changes).questions > 0
    with pytest.raises(GraphFormersError):
        plan(least / 1.5, per_question, **changes)


def test_a_budget_that_is_too_small_is_refused_before_training() -> None:
    model = make_model()
    settings = TrainConfig(minutes=0.0005, batch_size=32, workers=0)
    with pytest.raises(GraphFormersError, match=r"minutes=0.0005 given, expected at least 0\.\d: "):
        Trainer(model, make_split(), settings).train()


def test_progress_shows_one_countdown() -> None:
    task = Progress("stage 1", 100, "pairs")
    task.done, task.note, task.seconds_left = 25, "best P@1 0.5000", 750.0
    assert task.line(5) == "25 %, 25 pairs, 5 pairs/s, 12:30 left, best P@1 0.5000"
