"""Estimates time and memory of a training run, from a few steps that change nothing."""

import logging
import math
import resource
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from graphformers.progress import amount, clock, progress
from graphformers.table import Result, Table
from graphformers.training.checkpoint import bytes_of_run
from graphformers.training.optimizer import set_learning_rate
from graphformers.training.run import TrainingRun
from graphformers.training.trainer import Trainer

logger = logging.getLogger(__name__)

# steps that are measured
MEASURED_STEPS = 4
# For longer runs on a CPU, the forecast names settings that take less time.
LONG_SECONDS = 1800.0


@dataclass(frozen=True)
class Forecast(Result):
    """The estimated cost of a training run.

    Attributes:
        method: The method.
        device: The device.
        processes: The processes of torchrun, or 1.
        parameters: Number of parameters.
        pairs: Pairs of an epoch.
        steps_per_epoch: Steps of an epoch.
        steps_at_most: Steps of the whole run, at most.
        steps_tried: Steps that were measured.
        seconds_per_step: Median of the measured steps.
        seconds_per_validation: Extrapolated from some of the nodes.
        seconds_at_most: Seconds of the whole run, at most.
        gpu_memory_gib: Peak GPU memory; 0 on a CPU.
        memory_gib: Peak memory of this process.
        estimated_gib: Memory of a step besides the weights, as estimated before the first step.
        available_gib: Memory that was available then.
        chunk_size: Pairs computed at a time; None for whole batches.
        checkpoint_gib: Disk space of an unfinished run.
        settings: The settings that determine the cost of a step.
    """

    method: str
    device: str
    processes: int
    parameters: int
    pairs: int
    steps_per_epoch: int
    steps_at_most: int
    steps_tried: int
    seconds_per_step: float
    seconds_per_validation: float
    seconds_at_most: float
    gpu_memory_gib: float
    memory_gib: float
    estimated_gib: float
    available_gib: float
    chunk_size: int | None
    checkpoint_gib: float
    settings: dict[str, Any]

    def to_dict(self) -> dict[str, object]:
        """The forecast, for JSON."""
        return asdict(self)

    def as_table(self) -> Table:
        """The forecast, for a terminal."""
        memory = gigabytes(self.memory_gib)
        if self.gpu_memory_gib:
            memory += f", {gigabytes(self.gpu_memory_gib)} on the GPU"
        estimated = f"{gigabytes(self.estimated_gib)} of {gigabytes(self.available_gib)} available"
        if self.chunk_size is not None:
            estimated += f", {self.chunk_size:,} pairs at a time"
        time_at_most = clock(self.seconds_at_most)
        rows = [
            ("method", f"{self.method}, {self.parameters:,} parameters, on {self.device}"),
            (
                "steps",
                f"{self.steps_per_epoch:,} an epoch of {self.pairs:,} pairs, "
                f"{self.steps_at_most:,} at most",
            ),
            ("a step needs", estimated),
            ("memory", f"{memory}; {gigabytes(self.checkpoint_gib)} on disk"),
            ("a step", f"{self.seconds_per_step:.3f} s"),
            ("a validation", f"{self.seconds_per_validation:.0f} s"),
            ("time", f"{time_at_most} at most, measured on {self.steps_tried} steps"),
        ]
        if self.device == "cpu" and self.seconds_at_most > LONG_SECONDS:
            rows.append(("faster with", self._advice()))
        return Table((), rows)

    def _advice(self) -> str:
        """Settings with which the run would take less time."""
        own = self.settings
        cheaper = {
            "batch_size=64": own["batch_size"] > 64,
            "train_neighbors=3": own["train_neighbors"] > 5,
            "neighbor_gradients=false": own["neighbor_gradients"] and own["train_neighbors"] > 0,
            "max_steps=200": self.steps_at_most > 200,
        }
        found = ", ".join(f"--set {words}" for words, is_cheaper in cheaper.items() if is_cheaper)
        return found or "--minutes, --set max_steps"


def gigabytes(gib: float) -> str:
    """GiB as messages give amounts, in units of 1,000 bytes."""
    return amount(gib * 2**30, "B")


def forecast(trainer: Trainer, *, max_seconds: float = 20.0) -> Forecast:
    """Estimates the cost of a run by trying a few steps.

    Args:
        trainer: The run. Its model is not changed.
        max_seconds: After so many seconds, no more than two steps are tried.

    Returns:
        Parameters, steps, memory and seconds.

    Raises:
        GraphFormersError: The minutes do not suffice, or the memory.

    Examples:
        >>> print(forecast(Trainer(model, split, TrainConfig(epochs=5))).as_table())
    """
    with trainer.start() as run:
        logger.info(run.memory.reason() or str(run.memory))
        return _measure(run, max_seconds)


def _measure(run: TrainingRun, max_seconds: float) -> Forecast:
    model, device, config = run.model, run.model.device, run.config
    # With minutes, this refuses too few, and chooses the questions of validations.
    run.plan()
    set_learning_rate(run.optimizer, 0.0)
    seconds: list[float] = []
    model.train()
    count = min(MEASURED_STEPS, run.schedule.num_batches)
    with progress("Trying", count, "steps") as task:
        while len(seconds) < count and (
            len(seconds) < 2 or run.world.size > 1 or sum(seconds) < max_seconds
        ):
            started = time.perf_counter()
            run.train_step.run(run.next_batch(), seed=0)
            run.update_weights()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
            task.advance()
    per_step = float(np.median(seconds[1:] or seconds))
    steps = run.schedule.max_steps()
    limit = math.inf if config.minutes is None else 60 * config.minutes
    if config.minutes is not None:
        steps = min(steps, math.ceil(limit / per_step) + len(config.stages))
    every = config.validate_steps or run.schedule.num_batches
    validations = -(-steps // every) + int(config.validate_start)
    per_validation = run.validation.estimate_seconds()
    size = sum(parameter.numel() for parameter in model.network.parameters())
    is_gpu = device.type == "cuda"
    return Forecast(
        method=model.config.method,
        device=str(device),
        processes=run.world.size,
        parameters=size,
        pairs=len(run.split.train),
        steps_per_epoch=run.schedule.num_batches,
        steps_at_most=steps,
        steps_tried=len(seconds),
        seconds_per_step=per_step,
        seconds_per_validation=per_validation,
        seconds_at_most=min(steps * per_step + validations * per_validation, limit),
        gpu_memory_gib=torch.cuda.max_memory_allocated() / 2**30 if is_gpu else 0.0,
        memory_gib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        estimated_gib=run.memory.step.total / 2**30,
        available_gib=run.memory.available / 2**30,
        chunk_size=run.memory.chunk_size,
        checkpoint_gib=bytes_of_run(size) / 2**30,
        settings={
            "batch_size": config.batch_size,
            "train_neighbors": run.loader.maker.sampler.num_neighbors,
            "neighbor_gradients": config.neighbor_gradients,
        },
    )
