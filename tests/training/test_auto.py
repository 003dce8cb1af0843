from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers.model.config import ModelConfig
from graphformers.training.auto import Facts, auto_recipe, choose_settings
from graphformers.training.trainer import make_trainer
from tests.training.conftest import make_model, make_split

TITLES = Facts(
    on_gpu=False,
    hidden_size=384,
    max_positions=512,
    pooling="mean",
    num_pairs=100_000,
    text_tokens=18,
    degree=12,
)


@settings(max_examples=200, deadline=None)
@given(
    st.booleans(),
    st.sampled_from([32, 384, 768, 1024]),
    st.integers(16, 8192),
    st.sampled_from(["cls", "mean"]),
    st.integers(2, 10**9),
    st.integers(2, 600),
    st.integers(1, 10**6),
)
def test_the_settings_are_valid_for_any_graph(
    on_gpu: bool,
    hidden_size: int,
    max_positions: int,
    pooling: str,
    num_pairs: int,
    text_tokens: int,
    degree: int,
) -> None:
    facts = Facts(on_gpu, hidden_size, max_positions, pooling, num_pairs, text_tokens, degree)
    recipe = choose_settings(facts)
    config, model = recipe.train_config(), recipe.model_settings()
    ModelConfig(
        vocab_size=100,
        hidden_size=hidden_size,
        num_layers=2,
        num_heads=2,
        intermediate_size=64,
        max_positions=max_positions,
        **model,
    )
    assert config.batch_size <= max(num_pairs, 2)
    assert config.max_steps is not None
    assert config.validate_steps is not None
    assert config.validate_steps <= config.max_steps
    # All steps fit into the epochs.
    assert config.epochs * -(-num_pairs // config.batch_size) >= config.max_steps / len(
        config.stages
    )
    assert len(recipe.reasons) == 6


def test_a_cpu_gets_smaller_steps_than_a_gpu() -> None:
    on_cpu, on_gpu = (choose_settings(replace(TITLES, on_gpu=each)) for each in (False, True))
    for name in ("batch_size", "train_neighbors", "learning_rate"):
        assert on_cpu.settings[name] < on_gpu.settings[name]  # type: ignore[operator]
    assert on_gpu.settings["neighbor_gradients"]
    assert not on_cpu.settings["neighbor_gradients"]


def test_the_learning_rate_follows_the_batch_and_the_backbone() -> None:
    def rate(**changes: object) -> float:
        facts = replace(TITLES, on_gpu=True, **changes)  # type: ignore[arg-type]
        return choose_settings(facts).train_config().learning_rate

    assert rate() == 6e-4
    assert rate(num_pairs=128 * 8) == pytest.approx(3e-4)
    assert rate(hidden_size=768) == pytest.approx(2.1e-4)


def test_small_graphs_are_trained_on_masked_text_first() -> None:
    small = replace(TITLES, on_gpu=True, num_pairs=10_000)
    assert choose_settings(small).train_config().two_stage
    assert not choose_settings(replace(TITLES, on_gpu=True)).train_config().two_stage


def test_no_more_neighbors_are_sampled_than_nodes_usually_have() -> None:
    sparse = replace(TITLES, on_gpu=True, degree=4)
    assert choose_settings(sparse).model_settings()["num_neighbors"] == 4


def test_settings_that_are_given_are_followed() -> None:
    given = {"batch_size": 16, "max_steps": 3000, "num_neighbors": 10}
    recipe = choose_settings(TITLES, given)
    config = recipe.train_config()
    assert (config.batch_size, config.max_steps) == (16, 3000)
    assert config.epochs * TITLES.num_pairs >= 3000 * 16
    assert config.learning_rate == pytest.approx(
        choose_settings(TITLES).settings["learning_rate"] / 2, rel=0.05
    )  # type: ignore[operator]
    assert config.train_neighbors == 3
    # Only what was chosen has a reason.
    assert [reason.partition(" ")[0] for reason in recipe.reasons] == ["texts", "learning", "parts"]


def test_a_time_limit_replaces_that_of_steps() -> None:
    many = replace(TITLES, num_pairs=10**6)
    timed, usual = (
        choose_settings(many, given) for given in ({"minutes": 30.0}, {"minutes": None})
    )
    assert usual.settings["max_steps"] == 400
    assert timed.settings["max_steps"] == 4 * 10**6 // 64
    assert timed.settings["validate_steps"] == usual.settings["validate_steps"] == 100
    assert "in the given minutes" in "".join(timed.reasons)


def test_a_trained_model_keeps_its_settings() -> None:
    fixed = {"similarity": "dot", "max_tokens": 24, "num_neighbors": 5, "pooling": "cls"}
    recipe = choose_settings(replace(TITLES, fixed=fixed))
    assert not fixed.keys() & recipe.settings.keys()
    assert recipe.settings["temperature"] == 1.0
    assert recipe.settings["train_neighbors"] == 3
    assert not any("cut at" in reason or "neighbours" in reason for reason in recipe.reasons[1:])


def test_neighbors_of_a_bidirectional_model_have_gradients(tmp_path: Path) -> None:
    split = make_split()
    model = make_model(direction="bidirectional", dropout=0.0)
    model.save_pretrained(tmp_path / "a.model")
    recipe = auto_recipe(split, tmp_path / "a.model", "cpu")
    assert recipe.settings["neighbor_gradients"]
    make_trainer(split, str(tmp_path / "a.model"), settings=recipe.settings, device="cpu")
    given = {"direction": "bidirectional"}
    assert choose_settings(TITLES, given).settings["neighbor_gradients"]
