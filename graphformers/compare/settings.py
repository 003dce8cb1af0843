"""Settings of a comparison, and the training settings of its runs."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from graphformers.artifact import MANIFEST
from graphformers.compare.variants import Variant
from graphformers.errors import GraphFormersError
from graphformers.files import checksum
from graphformers.model.backbones import find_backbone
from graphformers.model.config import ModelConfig
from graphformers.settings import Settings, SettingValue, setting, usage
from graphformers.splits.split import LinkSplit
from graphformers.training.recipes import merge_settings, settings_for
from graphformers.training.settings import (
    CHANGEABLE,
    MODEL_SETTINGS,
    TrainConfig,
    divide_settings,
)

# a number of validations that no run reaches
UNLIMITED = 10**6
# settings that the seeds and the names of the variants determine
OWN_SETTINGS = ("seed", "two_stage")
# settings that cannot differ between methods, because they define the budget
BUDGET = ("max_steps", "minutes", "epochs", "batch_size", "first_share")


@dataclass(frozen=True)
class ComparisonSettings(Settings):
    """Settings that all runs of a comparison share.

    Args:
        split: The split to train and evaluate on.
        folder: The folder of the report, and of runs/ with models and ranks.
        source: The backbone that every method starts from: a folder, minilm, or a name on the hub.
        settings: Training and model settings: `max_steps` for all methods, `max.learning_rate` for
            the method max only. `minutes` are those of the whole comparison.
        seeds: Every method is trained with each seed.
        device: Where to compute; by default the best device.
        force: Whether to repeat runs that were made with other settings.
        keep_models: Whether to keep models once they are scored.
        recipe: Settings of a recipe, which `settings` override. It may hold settings of methods
            that are not compared.

    Raises:
        GraphFormersError: Seeds repeat, the backbone is a trained model, or a setting contradicts
            equal conditions for all methods.

    Examples:
        >>> split = LinkSplit.load("papers.split")
        >>> ComparisonSettings(split, Path("report"), settings={"max_steps": 400}, seeds=(1, 2))
    """

    split: LinkSplit
    folder: Path
    source: str = setting("minilm", "The backbone that every method starts from.")
    settings: Mapping[str, SettingValue] | None = setting(None, "Training and model settings.")
    seeds: tuple[int, ...] = setting((42,), "Every method is trained with each seed.")
    device: str | None = setting(None, "Where to compute; by default the best device.")
    force: bool = setting(False, "Train runs again that were made with other settings.")
    keep_models: bool = setting(True, "Keep models once they are scored.")
    recipe: Mapping[str, SettingValue] | None = setting(None, "Settings of a recipe.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (Path(self.source) / MANIFEST).is_file():
            raise GraphFormersError(
                f"{self.source}: a trained model, expected a backbone: all methods of a comparison "
                f"start from the same one"
            )
        for name in self.given:
            method, _, own = name.rpartition(".")
            if own in OWN_SETTINGS:
                is_seed = own == "seed"
                advice = usage("seeds", (42, 43)) if is_seed else "methods such as max.one-stage"
                raise GraphFormersError(f"{name} cannot be set in a comparison; use {advice}")
            if method and own in BUDGET:
                raise GraphFormersError(
                    f"{name} given, but all methods have the same budget; set {own} instead"
                )
        # checks their type and bounds
        for seed in self.seeds:
            TrainConfig(minutes=self.minutes, seed=seed)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise GraphFormersError(
                f"seeds {', '.join(map(str, self.seeds)) or 'none'} given, expected different ones"
            )

    @property
    def given(self) -> Mapping[str, SettingValue]:
        """The training and model settings, those of the recipe included."""
        # A comparison sets the stages and the seed of its runs itself.
        recipe = {
            name: value
            for name, value in (self.recipe or {}).items()
            if name.rpartition(".")[2] not in OWN_SETTINGS
        }
        return merge_settings(recipe, self.settings or {})

    @property
    def minutes(self) -> float | None:
        """The minutes of the whole comparison, scoring included."""
        found: Any = self.given.get("minutes")
        minutes: float | None = found
        return minutes

    def with_plan(self, planned: Mapping[str, SettingValue]) -> "ComparisonSettings":
        """The same settings with the steps and validations that fit into the minutes."""
        return replace(self, settings={**(self.settings or {}), **planned})

    def model_folder(self, variant: Variant, seed: int) -> Path:
        """The model folder of a run."""
        return self.folder / "runs" / f"{variant.name}-{seed}.model"

    def run_settings(self, variant: Variant, seed: int) -> dict[str, SettingValue]:
        """The training and model settings of a run.

        The budget is the same for all runs: `max_steps`, or the steps of two stages of `epochs`.
        With `minutes` for the whole comparison, `compare` computes `max_steps` first. Early
        stopping is disabled, because it would change the budget.
        """
        settings: dict[str, SettingValue] = (
            settings_for(variant.method, self.given) | dict(variant.settings) | {"seed": seed}
        )
        # The starting weights do not take part in the choice of the best: what is compared is what
        # training makes of each method, also where it makes a model worse. The untrained backbone
        # is evaluated separately.
        settings.setdefault("validate_start", False)
        settings["minutes"] = None
        config, _ = divide_settings(settings)
        steps_per_epoch = max(1, -(-len(self.split.train) // config.batch_size))
        steps = config.max_steps or 2 * config.epochs * steps_per_epoch
        epochs = -(-steps // steps_per_epoch) + 1
        return settings | {"max_steps": steps, "epochs": epochs, "patience": UNLIMITED}

    def run_record(self, variant: Variant, seed: int) -> dict[str, SettingValue]:
        """Everything that the results of a run depend on.

        A model setting is None if the backbone determines it.
        """
        config, model = divide_settings(self.run_settings(variant, seed))
        training = {name: each for name, each in asdict(config).items() if name not in CHANGEABLE}
        own = {name: model.get(name) for name in MODEL_SETTINGS}
        # Not those of a run, but of the comparison, which determine its steps. They come first,
        # because a message about other settings names the first that differs.
        training["minutes"] = self.minutes
        first = {"method": variant.method, "minutes": self.minutes}
        return {**first, **self._shared_record, **training, **own}

    def baseline_record(self) -> dict[str, SettingValue]:
        """Everything that the ranks of untrained systems depend on."""
        return self._shared_record | {
            "max_tokens": self.max_tokens,
            "num_neighbors": self.num_neighbors,
        }

    @property
    def max_tokens(self) -> int:
        """Tokens at which texts are cut."""
        return int(self._model_settings().get("max_tokens", ModelConfig.max_tokens))

    @property
    def num_neighbors(self) -> int:
        """Neighbours per node, unless a method has its own number."""
        return int(self._model_settings().get("num_neighbors", ModelConfig.num_neighbors))

    def _model_settings(self) -> dict[str, Any]:
        return divide_settings(settings_for("graphformers", self.given))[1]

    @cached_property
    def _shared_record(self) -> dict[str, SettingValue]:
        # Contents are hashed, because a folder may change without changing its name.
        folder = find_backbone(self.source)
        digest = hashlib.sha256()
        for pattern in ("*.safetensors", "*.json", "vocab.txt", "1_Pooling/config.json"):
            for file in sorted(folder.glob(pattern)):
                digest.update(checksum(file).encode())
        return {"backbone": digest.hexdigest(), "split": self.split.fingerprint}
