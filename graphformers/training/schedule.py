"""Schedule: when to validate, when a stage ends, and the learning rate of each step."""

import math
from dataclasses import dataclass

from graphformers.training.budget import VALIDATION_SHARE
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
        """The maximum steps of the stage, and the time of the run's clock at which it ends.

        The stages share the time from the first step on. The last one leaves time for its last
        step, a validation and saving.
        """
        config = self.config
        steps, end = config.epochs * self.num_batches, math.inf
        is_last = state.stage == len(config.stages) - 1
        if config.max_steps is not None:
            share = max(1, round(config.max_steps * config.first_share))
            left = config.max_steps - (state.step - state.stage_step)
            steps = min(steps, left if is_last else share)
        if config.minutes is not None:
            budget = state.budget
            last = state.validation_seconds + budget.step_seconds + budget.save_seconds
            end = 60 * config.minutes - last
            if not is_last:
                end = state.stage_clock + config.first_share * (end - state.stage_clock)
        return steps, end

    def max_steps(self) -> int:
        """The maximum steps of the whole run."""
        steps = self.config.epochs * self.num_batches * len(self.config.stages)
        return steps if self.config.max_steps is None else min(steps, self.config.max_steps)

    def end_reason(self, state: TrainState) -> str:
        """Why the stage ends now; empty if it continues."""
        steps, end = self.limits(state)
        # Every stage makes a step, also where a run is continued whose time is nearly over.
        if state.clock >= end and state.stage_step > 0:
            return "time limit reached"
        if state.stage_step >= steps:
            has_all_epochs = state.stage_epoch >= self.config.epochs
            return "all epochs done" if has_all_epochs else "step limit reached"
        if state.stale_validations >= self.config.patience:
            return f"{state.stale_validations} validations without a better P@1"
        return ""

    def is_validation_due(self, state: TrainState) -> bool:
        """Whether to validate: after an epoch or `validate_steps`, and at the end of the stage.

        With `minutes`, a validation that would take too large a share of the time is left out, but
        not the one at the end of the stage.
        """
        if not state.recent.steps:
            return False
        steps, end = self.limits(state)
        if state.stage_step >= steps or state.clock >= end:
            return True
        every = self.config.validate_steps
        is_regular = state.batch == 0 if every is None else state.stage_step % every == 0
        return is_regular and self._has_time_to_validate(state)

    def _has_time_to_validate(self, state: TrainState) -> bool:
        """Whether all validations, this one included, take at most their share of the time."""
        if self.config.minutes is None:
            return True
        seconds = 60 * self.config.minutes
        # those at the ends of this stage and of later ones
        reserved = (len(self.config.stages) - state.stage) * state.validation_seconds
        allowed = (VALIDATION_SHARE * seconds - reserved) * state.clock / seconds
        return state.validating_seconds + state.validation_seconds <= allowed

    def seconds_left(self, state: TrainState) -> float:
        """Seconds until the run ends at the latest, at the pace of its steps so far."""
        config = self.config
        later = config.stages[state.stage + 1 :]
        left = [self.limits(state)[0] - state.stage_step]
        left += [config.epochs * self.num_batches for _ in later]
        if config.max_steps is not None and len(left) > 1:
            left[1] = min(left[1], config.max_steps - state.step - left[0])
        pace = state.seconds / max(state.step, 1)
        every = config.validate_steps or self.num_batches
        validations = sum(-(-steps // every) for steps in left)
        seconds = sum(left) * pace + validations * state.validation_seconds
        if config.minutes is not None:
            seconds = min(seconds, 60 * config.minutes - state.clock)
        return seconds

    def learning_rate(self, state: TrainState) -> float:
        """The learning rate of the next step: it rises in the warm-up, then decays or stays."""
        config, (steps, end) = self.config, self.limits(state)
        # A run that is continued may have no time left.
        time_share = (state.clock - state.stage_clock) / max(end - state.stage_clock, 1e-9)
        done = min(max(state.stage_step / steps, time_share), 1.0)
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
