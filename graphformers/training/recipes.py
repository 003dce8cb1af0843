"""Recipes: settings from .toml files and from the command line, the latter taking precedence.

A recipe holds settings of training and of models. A table such as [max] holds settings for one
method alone; on the command line they are written max.learning_rate=1e-4.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphformers.errors import GraphFormersError, nearest
from graphformers.files import write_whole
from graphformers.model.registry import methods
from graphformers.settings import SettingValue, has_type
from graphformers.table import Result, Table
from graphformers.training.settings import TrainConfig, divide_settings, known_settings

# the recipe that is made for a graph, a backbone and a device
AUTO = "auto"
RECIPES = Path(__file__).parents[1] / "recipes"


@dataclass(frozen=True)
class Recipe(Result):
    """Settings of training and of models, by name; `METHOD.NAME` for those of one method.

    Attributes:
        settings: The settings.
        reasons: Why they were chosen, if a recipe was made for a graph.

    Examples:
        >>> recipe = Recipe.load("minilm")
        >>> model = GraphFormers.from_backbone("minilm", **recipe.model_settings())
        >>> trainer = Trainer(model, "papers.split", recipe.train_config())
    """

    settings: Mapping[str, SettingValue]
    reasons: tuple[str, ...] = ()

    @staticmethod
    def load(given: str | Path) -> "Recipe":
        """Reads a recipe.

        Args:
            given: A .toml file, or the name of a built-in recipe such as "minilm".

        Returns:
            The recipe.

        Raises:
            GraphFormersError: There is no such recipe, or it names an unknown setting.

        Examples:
            >>> Recipe.load("minilm").settings["batch_size"]
            512
        """
        return Recipe(read_recipe(Path(given)))

    def train_config(self, method: str = "graphformers") -> TrainConfig:
        """The settings of training a method.

        Args:
            method: The method.

        Returns:
            The settings.

        Raises:
            GraphFormersError: A setting is out of bounds.

        Examples:
            >>> Recipe.load("minilm").train_config("max").learning_rate
            0.0008
        """
        return divide_settings(settings_for(method, self.settings))[0]

    def model_settings(self, method: str = "graphformers") -> dict[str, Any]:
        """The settings of a new model, for `GraphFormers.from_backbone`.

        Args:
            method: The method.

        Returns:
            Settings of `ModelConfig`, by name.

        Examples:
            >>> Recipe.load("minilm").model_settings()["num_neighbors"]
            20
        """
        return divide_settings(settings_for(method, self.settings))[1]

    def save(self, path: str | Path) -> None:
        """Writes the recipe as a .toml file, which `--config` and `load` read.

        Args:
            path: The file to write; one that exists is replaced.

        Examples:
            >>> auto_recipe("papers.split").save("papers.toml")
        """
        lines = [f"# {reason}" for reason in self.reasons]
        tables: dict[str, list[str]] = {"": []}
        # TOML has no word for None, the default of settings that allow it.
        given = {name: value for name, value in self.settings.items() if value is not None}
        for name, value in given.items():
            method, _, own = name.rpartition(".")
            tables.setdefault(method, []).append(f"{own} = {json.dumps(value)}")
        for method, entries in tables.items():
            lines += [*([f"\n[{method}]"] if method else []), *entries]
        write_whole(Path(path), "\n".join([*lines, ""]).encode())

    def to_dict(self) -> dict[str, object]:
        """Settings and reasons, for JSON.

        Returns:
            The settings by name, and the list of reasons.
        """
        return {"settings": dict(self.settings), "reasons": list(self.reasons)}

    def as_table(self) -> Table:
        """A row for each setting; the reasons are below.

        Returns:
            A table that prints on a terminal and shows in notebooks.
        """
        rows = [(name, json.dumps(value)) for name, value in self.settings.items()]
        return Table((), rows, notes=self.reasons)


def recipe_file(given: Path) -> Path:
    """The file of a recipe: the given file, or a built-in recipe by its name."""
    built_in = RECIPES / f"{given.name.removesuffix('.toml')}.toml"
    if given.is_file() or not built_in.is_file():
        return given
    return built_in


def read_recipe(given: Path) -> dict[str, SettingValue]:
    """The settings of a recipe.

    Args:
        given: A .toml file, or the name of a built-in recipe such as "minilm".

    Raises:
        GraphFormersError: There is no such recipe, or it names an unknown setting.
    """
    path = recipe_file(given)
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        names = sorted(file.stem for file in RECIPES.glob("*.toml"))
        raise GraphFormersError(
            f"{path}: {error.strerror}, expected a .toml file or a built-in recipe; "
            f"{nearest(path.stem, names)}"
        ) from error
    # Invalid TOML and UTF-8 are ValueErrors, numbers of thousands of digits, too.
    except (ValueError, RecursionError) as error:
        raise GraphFormersError(f"{path}: not a TOML file ({error})") from error
    settings: dict[str, SettingValue] = {}
    for name, value in found.items():
        if not isinstance(value, dict):
            settings[name] = _checked(name, value, str(path))
    for method, own in found.items():
        for name, value in own.items() if isinstance(own, dict) else ():
            settings[f"{method}.{name}"] = _checked(f"{method}.{name}", value, str(path))
    return settings


def parse_settings(words: list[str]) -> dict[str, SettingValue]:
    """Parses NAME=VALUE or METHOD.NAME=VALUE, as typed after --set.

    Values are TOML, but names such as linear need no quotes.
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
        except (ValueError, RecursionError):
            value = text
        if name.rpartition(".")[2] == "decay" and value is None:
            value = "none"
        found[name] = _checked(name, value, f"--set {word}")
    return found


def _checked(name: str, value: SettingValue, where: str) -> SettingValue:
    """The value, converted to the type of its setting.

    Raises:
        GraphFormersError: The name is unknown, or the value has another type. For an unknown name,
            the message gives the most similar known one.
    """
    known = known_settings()
    method, dot, own = name.rpartition(".")
    if dot and method not in methods():
        raise GraphFormersError(f"{where}: no method {method!r}; {nearest(method, methods())}")
    if own not in known:
        raise GraphFormersError(f"{where}: no setting {own!r}; {nearest(own, known)}")
    if not has_type(value, known[own]):
        raise GraphFormersError(f"{where}: {own}={value!r} given, expected {known[own]}")
    return float(value) if "float" in known[own] and isinstance(value, int) else value


def merge_settings(
    recipe: Mapping[str, SettingValue], given: Mapping[str, SettingValue]
) -> dict[str, SettingValue]:
    """Merges a recipe with single settings, which override its values for all methods."""
    kept = {name: value for name, value in recipe.items() if name.rpartition(".")[2] not in given}
    return kept | dict(given)


def settings_for(method: str, settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """The settings of one method: the general ones, overridden by those for this method."""
    prefix = f"{method}."
    own = {
        name.removeprefix(prefix): value
        for name, value in settings.items()
        if name.startswith(prefix)
    }
    return {name: value for name, value in settings.items() if "." not in name} | own
