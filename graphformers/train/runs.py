"""A training run as a command gives it: a split, a backbone or a model to start from, a method and
settings.
"""

import math
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphformers.artifact import MANIFEST
from graphformers.data.split import LinkSplit
from graphformers.errors import GraphFormersError
from graphformers.model.backbones import backbone_of, own_random_numbers
from graphformers.model.encoder import GraphFormers
from graphformers.progress import progress
from graphformers.train.checkpoint import bytes_of_run
from graphformers.train.distributed import joined, own_device
from graphformers.train.optimizer import set_learning_rate
from graphformers.train.settings import divide_settings, settings_for
from graphformers.train.trainer import Trainer

TRIED_STEPS = 4
TRIED_SECONDS = 20.0  # after which two steps are enough
TRIED_NODES = 1000


def make_trainer(
    split: LinkSplit,
    source: str,
    output: Path | None = None,
    method: str | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> Trainer:
    """A trainer for a new model on a backbone, or for one of our model folders that is trained
    further.
    """
    device, backbone = own_device(device), source
    if (Path(source) / MANIFEST).is_file():
        model = GraphFormers.from_pretrained(source, device=device)
        if method not in (None, model.config.method):
            raise GraphFormersError(
                f"{source}: a {model.config.method} model, --method {method} given; start from a "
                f"backbone instead"
            )
        config, changes = divide_settings(settings_for(model.config.method, settings or {}))
        changes.pop("graph_start", None)  # the start is over
        differing = [
            name for name, value in changes.items() if getattr(model.config, name) != value
        ]
        if differing:
            raise GraphFormersError(
                f"{source}: {differing[0]}={getattr(model.config, differing[0])!r} is part of this "
                f"model and cannot be changed"
            )
        backbone = backbone_of(source) or ""
    else:
        method = method or "graphformers"
        config, changes = divide_settings(settings_for(method, settings or {}))
        model = GraphFormers.from_backbone(
            source, method, seed=config.seed, device=device, **changes
        )
    trainer = Trainer(model, split, config, output)
    trainer.backbone = (
        str(Path(backbone).resolve()) if Path(backbone).is_dir() else backbone or None
    )
    return trainer


def forecast(trainer: Trainer) -> dict[str, Any]:
    """What a run would take, from a few real steps that change nothing: parameters, steps, memory,
    seconds.
    """
    with joined(trainer.model.device) as trainer.world, own_random_numbers():
        trainer.set_up()
        try:
            return _measure(trainer)
        finally:
            trainer.clean_up()


def _measure(trainer: Trainer) -> dict[str, Any]:
    model, device, config = trainer.model, trainer.model.device, trainer.config
    set_learning_rate(trainer.optimizer, 0.0)
    seconds: list[float] = []
    model.train()
    count = min(TRIED_STEPS, trainer.schedule.num_batches)
    with progress("Trying", count, "steps") as task:
        while len(seconds) < count and (
            len(seconds) < 2 or trainer.world.size > 1 or sum(seconds) < TRIED_SECONDS
        ):
            started = time.perf_counter()
            trainer.stepper.run(trainer.next_batch(), seed=0)
            trainer.update_weights()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
            task.advance()
    per_step = float(np.median(seconds[1:] or seconds))
    steps = trainer.schedule.most_steps()
    if config.max_seconds is not None:
        steps = min(steps, math.ceil(config.max_seconds / per_step) + len(config.stages))
    validations = -(-steps // (config.validate_steps or trainer.schedule.num_batches)) + int(
        config.validate_start
    )
    per_validation = _seconds_of_validation(trainer)
    training = min(steps * per_step, config.max_seconds or math.inf)
    size = sum(parameter.numel() for parameter in model.network.parameters())
    return {
        "method": model.config.method,
        "device": str(device),
        "processes": trainer.world.size,
        "parameters": size,
        "pairs": len(trainer.split.train),
        "steps_per_epoch": trainer.schedule.num_batches,
        "steps_at_most": steps,
        "steps_tried": len(seconds),
        "seconds_per_step": per_step,
        "seconds_per_validation": per_validation,
        "seconds_at_most": training + validations * per_validation,
        "gpu_memory_gib": torch.cuda.max_memory_allocated() / 2**30
        if device.type == "cuda"
        else 0.0,
        "memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "checkpoint_gib": bytes_of_run(size) / 2**30,
        "settings": {
            "batch_size": config.batch_size,
            "num_neighbors": model.config.num_neighbors if model.network.reads_neighbors else 0,
            "neighbor_gradients": config.neighbor_gradients,
        },
    }


def _seconds_of_validation(trainer: Trainer) -> float:
    """By encoding some of the nodes that it asks about."""
    nodes, sampler = trainer.asked, trainer.split.sampler(trainer.model.config.num_neighbors)
    some = nodes[:: max(1, len(nodes) // TRIED_NODES)]
    started = time.perf_counter()
    trainer.model.encode_nodes(
        trainer.split.graph, some, sampler=sampler, tokens=trainer.maker.tokens
    )
    return (time.perf_counter() - started) * len(nodes) / len(some) / trainer.world.size
