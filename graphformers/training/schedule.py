"""Schedule: when to validate, when a stage ends, and the learning rate of each step."""

import math
from dataclasses import dataclass

from graphformers.training.checkpoint import TrainState
from graphformers.training.settings import TrainConfig


@dataclass(frozen=True)
class Schedule:
    """The course of a run, as functions of its settings and its state.

    Attributes:
        config: The settings.
        num_batches: Batches of an epoch.
    """

    config: TrainConfig
    num_batches: int

    def limits(self, state: TrainState) -> tuple[int, float]:
        """The maximum steps and seconds of the stage."""
        config = self.config
        steps, seconds = config.epochs * self.num_batches, math.inf
        is_last = state.stage == len(config.stages) - 1
        if config.max_steps is not None:
            share = max(1, round(config.max_steps * config.first_share))
            left = config.max_steps - (state.step - state.stage_step)
            steps = min(steps, left if is_last else share)
        if config.max_seconds is not None:
            seconds = config.max_seconds * config.first_share
            if is_last:
                seconds = config.max_seconds - (state.seconds - state.stage_seconds)
        return steps, seconds

    def max_steps(self) -> int:
        """The maximum steps of the whole run."""
        steps = self.config.epochs * self.num_batches * len(self.config.stages)
        return steps if self.config.max_steps is None else min(steps, self.config.max_steps)

    def end_reason(self, state: TrainState) -> str:
        """Why the stage ends now; empty if it continues."""
        steps, seconds = self.limits(state)
        if state.stage_seconds >= seconds:
            return "time limit reached"
        if state.stage_step >= steps:
            has_all_epochs = state.stage_epoch >= self.config.epochs
            return "all epochs done" if has_all_epochs else "step limit reached"
        if state.stale_validations >= self.config.patience:
            return f"{state.stale_validations} validations without a better P@1"
        return ""

    def is_validation_due(self, state: TrainState) -> bool:
        """Whether to validate: after an epoch or `validate_steps`, and at the end of the stage."""
        if not state.recent.steps:
            return False
        steps, seconds = self.limits(state)
        every = self.config.validate_steps
        is_regular = state.batch == 0 if every is None else state.stage_step % every == 0
        return is_regular or state.stage_step >= steps or state.stage_seconds >= seconds

    def seconds_left(self, state: TrainState) -> float:
        """Seconds until the stage ends at the latest, at the pace of its steps so far."""
        steps, seconds = self.limits(state)
        pace = state.stage_seconds / max(state.stage_step, 1)
        return min((steps - state.stage_step) * pace, seconds - state.stage_seconds)

    def learning_rate(self, state: TrainState) -> float:
        """The learning rate of the next step: it rises in the warm-up, then decays or stays."""
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
        if config.decay == "linear":
            return config.learning_rate * left
        return config.learning_rate * (1 - math.cos(math.pi * left)) / 2
