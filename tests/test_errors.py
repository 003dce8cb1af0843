"""Settings of the wrong type: refused by name, where Python would say something of its own, or
nothing.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphformers.embedding.settings import Cluster, EmbedSettings
from graphformers.errors import GraphFormersError
from graphformers.graph.settings import ImportSettings
from graphformers.model.backbones import from_backbone
from graphformers.model.config import ModelConfig
from graphformers.retrieval.searcher import check_k
from graphformers.splits.settings import SplitSettings
from graphformers.training.settings import TrainConfig

SIZES = {
    "vocab_size": 9,
    "num_layers": 1,
    "num_heads": 1,
    "intermediate_size": 4,
    "max_positions": 40,
}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainConfig(batch_size="16"), "batch_size='16' given, expected int"),  # type: ignore[arg-type]
        (lambda: TrainConfig(batch_size=16.5), "batch_size=16.5 given, expected int"),  # type: ignore[arg-type]
        (lambda: TrainConfig(two_stage="false"), "two_stage='false' given, expected True or False"),  # type: ignore[arg-type]
        (lambda: TrainConfig(seed=True), "seed=True given, expected int"),
        (lambda: TrainConfig(max_steps="none"), r"max_steps='none' given, expected int \| None"),  # type: ignore[arg-type]
        (
            lambda: TrainConfig(temperature=float("nan")),
            "temperature=nan given, expected a finite number",
        ),
        (lambda: SplitSettings(valid="x"), "valid='x' given, expected float"),  # type: ignore[arg-type]
        (lambda: ImportSettings(skip_bad="no"), "skip_bad='no' given, expected True or False"),  # type: ignore[arg-type]
        (
            lambda: EmbedSettings(num_neighbors="5"),
            r"num_neighbors='5' given, expected int \| None",
        ),  # type: ignore[arg-type]
        (lambda: ModelConfig(hidden_size=8.0, **SIZES), "hidden_size=8.0 given, expected int"),  # type: ignore[arg-type]
        (lambda: check_k("2"), "k='2' given, expected 1 to 10,000"),  # type: ignore[arg-type]
    ],
)
def test_wrong_types_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphFormersError, match=message):
        make()


def test_numbers_of_numpy_and_whole_numbers_are_numbers() -> None:
    config = TrainConfig(batch_size=np.int64(16), learning_rate=1, warmup=np.float32(0.5))  # type: ignore[arg-type]
    assert (config.batch_size, config.learning_rate, config.warmup) == (16, 1, 0.5)
    check_k(np.int32(3))  # type: ignore[arg-type]


LIBRARY = Path(__file__).parent.parent / "graphformers"


def texts_of(file: Path) -> Iterator[tuple[int, str]]:
    """Line and text of the strings of a module that are neither docstrings nor `option=`."""
    tree = ast.parse(file.read_text())
    left_out = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) or (isinstance(node, ast.keyword) and node.arg == "option")
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in left_out:
            yield node.lineno, node.value


@pytest.mark.parametrize(
    "package", ["graph", "splits", "embedding", "model/language_model.py", "artifact.py"]
)
def test_messages_of_the_library_name_no_options(package: str) -> None:
    """They are called from Python, too: `Settings.usage` spells settings for either."""
    place = LIBRARY / package
    named = [
        f"{file}:{line}: {text}"
        for file in ([place] if place.is_file() else sorted(place.rglob("*.py")))
        for line, text in texts_of(file)
        if re.search(r"(^|[\s(])--[a-z]", text) and file.name != "formats.py"
    ]
    assert not named


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainConfig(workers=100_000), "workers=100000 given, expected 0 to 512"),
        (lambda: EmbedSettings(workers=100_000), "workers=100000 given, expected 0 to 512"),
        (lambda: Cluster(workers=100_000), "workers=100000 given, expected 1 to 10000"),
        (lambda: Cluster(threads=100_000), "threads=100000 given, expected 1 to 512"),
        (lambda: TrainConfig(seed=2**64), "expected 0 to 18446744073709551615"),
        (lambda: SplitSettings(seed=2**70), "expected 0 to 18446744073709551615"),
        (lambda: EmbedSettings(seed=2**64), "to 18446744073709551615"),
        (lambda: from_backbone("minilm", seed=2**64), "to 18446744073709551615"),
    ],
)
def test_settings_beyond_what_any_machine_has(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphFormersError, match=message):
        make()


def test_the_largest_seed_is_one() -> None:
    assert TrainConfig(seed=2**64 - 1).seed == SplitSettings(seed=2**64 - 1).seed == 2**64 - 1
