"""TrainConfig: the settings of a training run."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphformers.model.config import ModelConfig
from graphformers.settings import (
    MOST_PROCESSES,
    MOST_SEED,
    SettingValue,
    setting,
    type_name,
)
from graphformers.training.objective import ObjectiveSettings

if TYPE_CHECKING:
    from graphformers.splits.split import LinkSplit

# settings of ModelConfig that a run may choose; the backbone determines the others
MODEL_SETTINGS = (
    "dropout",
    "attention_dropout",
    "direction",
    "share_gnn",
    "position_bias",
    "max_tokens",
    "num_neighbors",
    "similarity",
    "pooling",
    "graph_token_scale",
    "isolated_graph_token",
    "learn_temperature",
)
# settings that may change when a run is continued, because they do not change its result
CHANGEABLE = (
    "chunk_size",
    "chunk_retry_steps",
    "workers",
    "compile",
    "checkpoint_minutes",
)


@dataclass(frozen=True)
class TrainConfig(ObjectiveSettings):
    """Settings of a training run.

    The settings from `chunk_size` on do not change the result of a run; all others do.

    Examples:
        >>> config = TrainConfig(epochs=5, batch_size=512, learning_rate=3e-4)
    """

    two_stage: bool = setting(
        True, "Train on masked text first, then on clean text; false: on clean text only."
    )
    epochs: int = setting(10, "Epochs of each stage, at most.", at_least=1)
    max_steps: int | None = setting(
        None,
        "Optimizer steps over both stages, at most; the first stage may use first_share of them.",
        at_least=1,
    )
    minutes: float | None = setting(
        None,
        "Minutes of the whole run by the clock, compiling and validations included; such a run "
        "cannot be repeated to the bit.",
        above=0,
    )
    first_share: float = setting(
        0.5, "Share of max_steps and minutes for the first stage.", above=0, below=1
    )
    patience: int = setting(
        2, "Validations without a better P@1 after which a stage ends.", at_least=1
    )
    validate_steps: int | None = setting(
        None, "Steps between validations; by default one validation an epoch.", at_least=1
    )
    max_valid: int = setting(10_000, "Validation questions, at most.", at_least=1)
    valid_candidates: str = setting(
        "saved",
        "Candidates of validation questions: those saved with each question, or the same negatives "
        "for all questions, so that few nodes have to be encoded.",
        choices=("saved", "shared"),
    )
    validate_start: bool = setting(
        True,
        "Validate before the first step; the starting weights are kept if no later ones are "
        "better.",
    )

    batch_size: int = setting(
        240,
        "Pairs of a step, over all processes; positives of other pairs serve as negatives.",
        at_least=2,
    )
    learning_rate: float = setting(1e-5, "Peak learning rate of Adam.", above=0)
    graph_factor: float = setting(
        1.0,
        "Factor of the learning rate for parameters that the backbone does not have.",
        above=0,
    )
    warmup: float = setting(
        0.0, "Warm-up steps of each stage: a share below 1, or a count.", at_least=0
    )
    decay: str = setting(
        "none", "Decay of the learning rate over each stage.", choices=("none", "linear", "cosine")
    )
    weight_decay: float = setting(
        0.0, "Decoupled weight decay, not for biases and norms.", at_least=0
    )
    max_norm: float = setting(0.0, "Gradients are clipped to this norm; 0: never.", at_least=0)
    beta1: float = setting(0.9, "Adam's decay rate of the mean gradient.", at_least=0, below=1)
    beta2: float = setting(0.999, "Adam's decay rate of the mean square.", at_least=0, below=1)
    epsilon: float = setting(1e-8, "Adam's epsilon.", above=0)
    neighbor_gradients: bool = setting(
        True,
        "Whether gradients flow through neighbours; without, encoding them takes a third of the "
        "time.",
    )
    train_neighbors: int | None = setting(
        None,
        "Neighbours sampled for a node in training; by default as many as after it, num_neighbors.",
        at_least=0,
    )
    neighbor_dropout: float = setting(
        0.0,
        "Share of centres that use only a random number of their sampled neighbours.",
        at_least=0,
        at_most=1,
    )
    mask_ratio: float = setting(
        0.15, "Share of a text's tokens that are masked where a batch is.", above=0, below=1
    )
    masked_batches: float = setting(
        0.0,
        "Share of the batches of the last stage that are masked, too, as regularisation.",
        at_least=0,
        at_most=1,
    )
    seed: int = setting(
        42,
        "Seed of new weights, the order of pairs, neighbours, masking and dropout.",
        at_least=0,
        at_most=MOST_SEED,
    )

    chunk_size: int | None = setting(
        None,
        "Pairs computed at a time, at most; by default as many as fit into memory.",
        at_least=1,
    )
    chunk_retry_steps: int = setting(
        64, "Steps after which larger chunks are tried again when memory ran out.", at_least=1
    )
    workers: int | None = setting(
        None,
        "Processes that make batches; by default 1 on a CPU, up to 8 for a GPU.",
        at_least=0,
        at_most=MOST_PROCESSES,
    )
    compile: bool | None = setting(None, "Compile the layers; by default on a GPU.")
    checkpoint_minutes: float = setting(10.0, "Minutes between checkpoints.", at_least=0)

    @staticmethod
    def auto(
        split: "LinkSplit | str | Path", source: str | Path = "minilm", device: str | None = None
    ) -> "TrainConfig":
        """The training settings of `auto_recipe`, which also has those of a new model.

        Args:
            split: The split to train on, or its folder.
            source: The backbone, or a trained model.
            device: Where to train; by default the fastest device.

        Returns:
            Settings that suit the graph, the backbone and the device.

        Raises:
            GraphFormersError: There is no such split, backbone or device.

        Examples:
            >>> TrainConfig.auto("papers.split").decay
            'linear'
        """
        # Imported here, since auto imports this module.
        from graphformers.training.auto import auto_recipe

        return auto_recipe(split, source, device).train_config()

    @property
    def stages(self) -> tuple[str, ...]:
        """The texts that each stage of a run trains on: masked or clean."""
        return ("masked", "clean") if self.two_stage else ("clean",)


def known_settings() -> dict[str, str]:
    """The settings that recipes and --set may name, with their types."""
    model = [entry for entry in fields(ModelConfig) if entry.name in MODEL_SETTINGS]
    return {entry.name: type_name(entry.type) for entry in (*fields(TrainConfig), *model)}


def divide_settings(
    settings: Mapping[str, SettingValue],
) -> tuple[TrainConfig, dict[str, Any]]:
    """Divides settings into those of the training and those of the model."""
    model = {name: value for name, value in settings.items() if name in MODEL_SETTINGS}
    training: dict[str, Any] = {
        name: value for name, value in settings.items() if name not in MODEL_SETTINGS
    }
    return TrainConfig(**training), model
