"""TrainConfig: what a training run is told. Defaults, then a recipe (.toml), then single settings,
the later one winning.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from graphformers.errors import GraphFormersError, fits, kind_of, nearest, require
from graphformers.model.config import ModelConfig
from graphformers.model.registry import methods
from graphformers.train.objective import ObjectiveSettings

DECAYS = ("none", "linear", "cosine")
MODEL_SETTINGS = (  # of ModelConfig: those that are not the backbone's own
    "dropout",
    "attention_dropout",
    "direction",
    "share_gnn",
    "position_bias",
    "max_tokens",
    "num_neighbors",
    "similarity",
    "pooling",
    "graph_start",
)


@dataclass(frozen=True)
class TrainConfig(ObjectiveSettings):
    """How a model is trained. The first part defines the result, the second only how it is
    reached.
    """

    two_stage: bool = True  # polluted text first, then clean text; false: clean text alone
    epochs: int = 10  # of each stage, at most
    # optimizer steps over both stages, at most; stage 1 may use first_share of them
    max_steps: int | None = None
    # of training over both stages, at most (such a run cannot be repeated to the bit)
    max_seconds: float | None = None
    first_share: float = 0.5  # of max_steps and max_seconds that stage 1 may use
    patience: int = 2  # validations without a better P@1 that end a stage
    validate_steps: int | None = None  # steps between validations; by default once an epoch
    max_valid: int = 10_000  # valid questions that a validation asks, at most

    # pairs of a step, over all processes: so many keys every anchor has to choose from
    batch_size: int = 240
    learning_rate: float = 1e-5  # of Adam, at its highest
    # times learning_rate for what the backbone does not have: graph attention, vectors of nodes
    graph_factor: float = 1.0
    # steps of each stage in which the learning rate rises: a share below 1, or a count
    warmup: float = 0.0
    decay: str = "none"  # of the learning rate over each stage: none, linear or cosine
    weight_decay: float = 0.0  # decoupled, not for biases and norms
    max_norm: float = 0.0  # gradients longer than this are shortened; 0 for never
    beta1: float = 0.9  # Adam's memory of gradients
    beta2: float = 0.999  # and of their squares
    epsilon: float = 1e-8  # Adam's guard against division by zero
    # whether neighbours learn from being neighbours; without, they cost a third
    neighbor_gradients: bool = True
    # share of centres that see only some of their neighbours, a random number from none up
    neighbor_dropout: float = 0.0
    mask_share: float = 0.15  # of a text's tokens that stage 1 pollutes
    seed: int = 42  # of everything random: new weights, orders, neighbours, pollution, dropout

    # pairs that are computed at a time; by default all, and fewer when memory runs out
    chunk_size: int | None = None
    # processes that sample and pack ahead; by default 1 on a CPU, up to 8 for a GPU
    workers: int | None = None
    compile: bool | None = None  # torch.compile; by default on a GPU
    checkpoint_minutes: float = 10.0  # between two checkpoints
    # whether it is validated before the first step, to tell what training has changed
    validate_start: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_limits()
        for name in ("learning_rate", "epsilon", "graph_factor"):
            require(self, getattr(self, name) > 0, name, "more than 0")
        for name in ("warmup", "weight_decay", "max_norm", "checkpoint_minutes", "seed"):
            require(self, getattr(self, name) >= 0, name, "0 or more")
        for name in ("beta1", "beta2"):
            require(self, 0 <= getattr(self, name) < 1, name, "0 to below 1")
        for name in ("first_share", "mask_share"):
            require(self, 0 < getattr(self, name) < 1, name, "a share between 0 and 1")
        require(self, 0 <= self.neighbor_dropout <= 1, "neighbor_dropout", "0 to 1")
        require(self, self.decay in DECAYS, "decay", f"one of {', '.join(DECAYS)}")

    def _check_limits(self) -> None:
        for name in ("epochs", "patience", "max_valid"):
            require(self, getattr(self, name) >= 1, name, "at least 1")
        for name in ("max_steps", "validate_steps", "chunk_size"):
            require(
                self, getattr(self, name) is None or getattr(self, name) >= 1, name, "at least 1"
            )
        require(
            self, self.max_seconds is None or self.max_seconds > 0, "max_seconds", "more than 0"
        )
        require(
            self,
            self.batch_size >= 2,
            "batch_size",
            "at least 2: the others of a batch are the negatives",
        )
        require(self, self.workers is None or self.workers >= 0, "workers", "0 or more")

    @property
    def stages(self) -> tuple[str, ...]:
        return ("polluted", "clean") if self.two_stage else ("clean",)


RECIPES = Path(__file__).parents[1] / "recipes"
# settings that may change when a run is continued
CHANGEABLE = ("chunk_size", "workers", "compile", "checkpoint_minutes", "validate_start")


def known_settings() -> dict[str, str]:
    """The names that recipes and --set may use, and the type of each."""
    model = [entry for entry in fields(ModelConfig) if entry.name in MODEL_SETTINGS]
    return {entry.name: kind_of(entry.type) for entry in (*fields(TrainConfig), *model)}


def filled(found: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """What an older version wrote of a run, with the defaults of settings that it did not know."""
    known = {
        entry.name: entry.default
        for entry in (*fields(ModelConfig), *fields(TrainConfig))
        if entry.default is not MISSING
    }
    return {
        name: known[name.removeprefix("model.")]
        for name in names
        if name.removeprefix("model.") in known
    } | dict(found)


def find_recipe(given: Path) -> Path:
    """A file, or one of ours by its name, with or without recipes/ and .toml around it."""
    own = RECIPES / f"{given.name.removesuffix('.toml')}.toml"
    if given.is_file() or not own.is_file():
        return given
    return own


def read_recipe(given: Path) -> dict[str, Any]:
    """The settings of a .toml file, or of a recipe of ours."""
    path = find_recipe(given)
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        there = ", ".join(sorted(file.stem for file in RECIPES.glob("*.toml")))
        raise GraphFormersError(
            f"{path}: {error.strerror}, expected a .toml file or one of ours: {there}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise GraphFormersError(f"{path}: not a TOML file ({error})") from error
    settings = {
        name: _check(name, value, str(path))
        for name, value in found.items()
        if not isinstance(value, dict)
    }
    for method, own in found.items():  # [max] holds what is for PLM+Max alone
        for name, value in own.items() if isinstance(own, dict) else ():
            settings[f"{method}.{name}"] = _check(f"{method}.{name}", value, str(path))
    return settings


def parse_settings(words: list[str]) -> dict[str, Any]:
    """NAME=VALUE as typed after --set; values are TOML, but names such as linear need no quotes.

    METHOD.NAME=VALUE is for one method alone.
    """
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise GraphFormersError(
                f"--set {word} given, expected NAME=VALUE such as learning_rate=1e-5"
            )
        try:
            value = None if text.lower() == "none" else tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        if name.rpartition(".")[2] == "decay" and value is None:
            value = "none"
        found[name] = _check(name, value, f"--set {word}")
    return found


def _check(name: str, value: Any, where: str) -> Any:
    """The value in its setting's type; an unknown name is an error that names the nearest known
    one.
    """
    known = known_settings()
    method, dot, own = name.rpartition(".")
    if dot and method not in methods():
        raise GraphFormersError(f"{where}: no method {method!r}; {nearest(method, methods())}")
    name = own
    if name not in known:
        raise GraphFormersError(f"{where}: no setting {name!r}; {nearest(name, known)}")
    if not fits(value, known[name]):
        raise GraphFormersError(f"{where}: {name}={value!r} given, expected {known[name]}")
    return float(value) if "float" in known[name] and isinstance(value, int) else value


def merge_settings(recipe: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe and single settings, which are stronger: also than what the recipe says for one
    method alone.
    """
    kept = {name: value for name, value in recipe.items() if name.rpartition(".")[2] not in given}
    return kept | dict(given)


def settings_for(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one method: those for all, then those under its own name, such as
    max.learning_rate.
    """
    own = {
        name.removeprefix(f"{method}."): value
        for name, value in settings.items()
        if name.startswith(f"{method}.")
    }
    return {name: value for name, value in settings.items() if "." not in name} | own


def divide_settings(settings: Mapping[str, Any]) -> tuple[TrainConfig, dict[str, Any]]:
    """The settings of the training, and those that change the model's configuration."""
    model = {name: value for name, value in settings.items() if name in MODEL_SETTINGS}
    return TrainConfig(
        **{name: value for name, value in settings.items() if name not in MODEL_SETTINGS}
    ), model
