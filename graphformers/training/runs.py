"""A training run as a command gives it: a split, a backbone or a model to start from, a method and
settings.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphformers.artifact import MANIFEST
from graphformers.errors import GraphFormersError
from graphformers.model.backbones import backbone_of
from graphformers.model.encoder import GraphFormers
from graphformers.splits.split import LinkSplit
from graphformers.training.distributed import own_device
from graphformers.training.recipes import settings_for
from graphformers.training.settings import divide_settings
from graphformers.training.trainer import Trainer


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
        changes.pop("graph_token_scale", None)  # the start is over
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
