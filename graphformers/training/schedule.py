"""When to validate, when a stage is over, and which learning rate a step has: pure functions of the
settings and the state.
"""

import math
from dataclasses import dataclass

from graphformers.training.checkpoint import TrainState
from graphformers.training.settings import TrainConfig


@dataclass(frozen=True)
class Schedule:
    """The course of a run whose epochs have `num_batches` steps."""

    config: TrainConfig
    num_batches: int

    def limits(self, state: TrainState) -> tuple[int, float]:
        """The steps and seconds that the state's stage may take."""
        config = self.config
        steps, seconds = config.epochs * self.num_batches, math.inf
        is_last = state.stage == len(config.stages) - 1
        if config.max_steps is not None:
            left = config.max_steps - (state.step - state.stage_step)
            steps = min(
                steps, left if is_last else max(1, round(config.max_steps * config.first_share))
            )
        if config.max_seconds is not None:
            left_seconds = config.max_seconds - (state.seconds - state.stage_seconds)
            seconds = left_seconds if is_last else config.max_seconds * config.first_share
        return steps, seconds

    def most_steps(self) -> int:
        """Of the whole run."""
        most = self.config.epochs * self.num_batches * len(self.config.stages)
        return most if self.config.max_steps is None else min(most, self.config.max_steps)

    def why_over(self, state: TrainState) -> str:
        """Why the stage ends here; "" if it goes on."""
        steps, seconds = self.limits(state)
        if state.stage_seconds >= seconds:
            return "its time is used up"
        if state.stage_step >= steps:
            return (
                "all epochs done"
                if state.stage_epoch >= self.config.epochs
                else "its steps are used up"
            )
        return (
            f"{state.waited} validations without a better P@1"
            if state.waited >= self.config.patience
            else ""
        )

    def is_validation_due(self, state: TrainState) -> bool:
        """At the end of an epoch, or every `validate_steps`; and where the stage ends by its
        limits.
        """
        if not state.recent.steps:
            return False
        steps, seconds = self.limits(state)
        every = self.config.validate_steps
        regular = state.number == 0 if every is None else state.stage_step % every == 0
        return regular or state.stage_step >= steps or state.stage_seconds >= seconds

    def seconds_left(self, state: TrainState) -> float:
        """Of the stage, at most, at the pace of the steps so far."""
        steps, seconds = self.limits(state)
        pace = state.stage_seconds / max(state.stage_step, 1)
        return min((steps - state.stage_step) * pace, seconds - state.stage_seconds)

    def learning_rate(self, state: TrainState) -> float:
        """Of the next step: it rises in the warm-up, then falls to nothing at the stage's limit, or
        stays.
        """
        config, (steps, seconds) = self.config, self.limits(state)
        done = max(state.stage_step / steps, state.stage_seconds / seconds)
        if config.warmup >= 1 and state.stage_step < config.warmup:
            return config.learning_rate * (state.stage_step + 1) / (config.warmup + 1)
        share = config.warmup if config.warmup < 1 else config.warmup * done / state.stage_step
        if done < share:
            risen = max((state.stage_step + 1) / (math.floor(share * steps) + 1), done / share)
            return config.learning_rate * min(risen, 1.0)
        if config.decay == "none":
            return config.learning_rate
        left = max(1 - (done - share) / (1 - share), 0.0) if share < 1 else 1.0
        return config.learning_rate * (
            left if config.decay == "linear" else (1 - math.cos(math.pi * left)) / 2
        )
