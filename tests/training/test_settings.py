"""Recipes: ours by name, anybody's by file."""

from pathlib import Path

import pytest

from graphformers.errors import GraphFormersError
from graphformers.training.recipes import RECIPES, Recipe, parse_settings, read_recipe
from graphformers.training.settings import TrainConfig


@pytest.mark.parametrize("name", sorted(file.stem for file in RECIPES.glob("*.toml")))
def test_ours_are_found_by_name_wherever_one_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = read_recipe(Path(name))
    assert (
        found == read_recipe(Path(f"recipes/{name}.toml")) == read_recipe(RECIPES / f"{name}.toml")
    )
    assert TrainConfig(
        learning_rate=found["learning_rate"], batch_size=found["batch_size"]
    ).two_stage


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("minilm.toml").write_text("batch_size = 7\n")
    assert read_recipe(Path("minilm.toml")) == {"batch_size": 7}
    assert read_recipe(Path("minilm"))["batch_size"] == 512


def test_none_is_a_decay_of_one_method_as_well() -> None:
    assert parse_settings(["decay=none", "max.decay=none", "max_steps=none"]) == {
        "decay": "none",
        "max.decay": "none",
        "max_steps": None,
    }


def test_a_recipe_is_written_as_it_is_read(tmp_path: Path) -> None:
    recipe = Recipe.load("minilm")
    recipe.save(tmp_path / "own.toml")
    assert Recipe.load(tmp_path / "own.toml") == recipe
    assert recipe.train_config("max").learning_rate == 8e-4
    assert recipe.train_config().learning_rate == 6e-4
    assert recipe.model_settings()["num_neighbors"] == 20


WRONG_TOML = {
    "digits": b"seed = " + b"9" * 5000,
    "deep": b"seed = " + b"[" * 5000 + b"]" * 5000,
    "bytes": b"\xff",
    "text": b"seed",
}


@pytest.mark.parametrize("case", WRONG_TOML)
def test_a_recipe_that_is_no_toml(case: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(WRONG_TOML[case])
    with pytest.raises(GraphFormersError, match=r"a\.toml: not a TOML file"):
        read_recipe(tmp_path / "a.toml")


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000 + "]" * 5000])
def test_a_setting_that_is_no_number_is_a_text(value: str) -> None:
    with pytest.raises(GraphFormersError, match="expected"):
        parse_settings([f"seed={value}"])
