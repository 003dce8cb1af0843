"""A small recording of this tree is that of the baseline; and the comparison sees what differs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.compare import compare, difference, load, table

HERE = Path(__file__).resolve().parent
TOLERANCE = 1e-5  # other processors and versions of torch round otherwise


def record(output: Path, *words: str) -> dict[str, Any]:
    """Records the small part of this tree in a process of its own."""
    command = [sys.executable, str(HERE / "record.py"), "--tree", str(HERE.parents[1])]
    command += ["-o", str(output), "--parts", "small", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load(output)


def wrong(one: dict[str, Any], other: dict[str, Any], tolerance: float = TOLERANCE) -> list[str]:
    """What the comparison objects to."""
    groups = compare(one, other, tolerance)
    return [words for group in groups.values() for words in group.wrong]


def test_this_tree_computes_what_the_baseline_did(tmp_path: Path) -> None:
    groups = compare(load(HERE / "fixture"), record(tmp_path / "now"), TOLERANCE)
    assert not any(group.wrong for group in groups.values()), table(groups)


def test_one_weight_that_differs_is_noticed_everywhere(tmp_path: Path) -> None:
    perturbed = record(tmp_path / "perturbed", "--perturb", "0.001")
    found = {words.split(":")[0] for words in wrong(load(HERE / "fixture"), perturbed)}
    for part in ("training", "vectors", "server"):
        expected = {name for name in perturbed if name.startswith(f"small/{part}/")}
        numbers = ("/loss", "/norm", "/similar/body", "/embeddings/body")
        kept = {name for name in expected if part == "vectors" or name.endswith(numbers)}
        assert kept <= found, sorted(kept - found)
    assert not {name for name in found if name.startswith(("small/split/", "small/sampling/"))}


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (np.zeros(3), np.zeros(4), "float64(3,) and float64(4,)"),
        (np.zeros(3), np.zeros(3, np.float32), "float64(3,) and float32(3,)"),
        (np.array([1, 2]), np.array([1, 3]), "1 of 2 values differ"),
        (np.array([1.0]), np.array([np.nan]), "not finite on one side"),
        (np.zeros(1), 0.0, "an array on one side only"),
        ({"a": [1, 2]}, {"a": [1]}, "at .a: 2 and 1 entries"),
        ({"a": 1}, {"b": 1}, "'a' is missing in the second"),
        ({"a": [1]}, {"a": [1.0]}, "at .a[0]: 1 and 1.0"),
        ("one", "two", "'one' and 'two'"),
        (True, 1, "True and 1"),
        (1.0, float("nan"), "1.0 and nan"),
    ],
)
def test_what_is_no_matter_of_rounding_is_wrong_at_any_tolerance(
    one: Any, other: Any, words: str
) -> None:
    assert words in wrong({"a/b": one}, {"a/b": other}, tolerance=10.0)[0]


def test_numbers_may_differ_by_the_tolerance() -> None:
    one = {"a/x": np.array([1.0, np.nan]), "b/y": {"score": [0.5, None]}}
    other = {"a/x": np.array([1.5, np.nan]), "b/y": {"score": [0.75, None]}}
    assert wrong(one, other, 0.5) == []
    assert wrong(one, other, 0.4) == ["a/x: 0.5 apart"]
    assert len(wrong(one, other, 0.0)) == 2
    assert wrong(one, one, 0.0) == []
    found = difference(np.array([0.0]), np.array([-0.0]))
    assert found is not None
    assert found.largest == 0.0  # as numbers they are equal, to the bit they are not


def test_a_missing_entry_is_wrong() -> None:
    assert wrong({"a/x": 1}, {}) == ["a/x: missing in the second"]
    assert wrong({}, {"a/x": 1}) == ["a/x: missing in the first"]
