"""JSON files are read as the types that they are declared to have."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from graphformers.errors import ArtifactError
from graphformers.records import checked, read_record, read_sealed, sealed
from graphformers.splits.settings import SplitSettings


class Point(TypedDict):
    x: float
    name: NotRequired[str | None]


@dataclass(frozen=True)
class Path2D:
    points: tuple[Point, ...]
    kind: Literal["open", "closed"] = "open"
    lengths: dict[str, int] = field(default_factory=dict)


def test_values_become_what_is_declared() -> None:
    value = {"points": [{"x": 1, "name": None, "more": [1]}], "lengths": {"a": 3}}
    found = checked("file", value, Path2D)
    assert found == Path2D(({"x": 1, "name": None, "more": [1]},), "open", {"a": 3})  # type: ignore[typeddict-unknown-key]
    assert checked("file", {"valid": 0.2, "seed": 3}, SplitSettings) == SplitSettings(0.2, seed=3)
    assert checked("file", [[1], []], list[list[int]]) == [[1], []]
    assert checked("file", None, object) is None


WRONG: dict[str, tuple[Any, Any, str]] = {
    "null": (None, Path2D, "damaged .None, expected an object"),
    "a number": (5, Path2D, "damaged .5, expected an object"),
    "a list": ([], Point, "damaged .*, expected an object"),
    "a missing entry": ({}, Point, "x is missing, expected a number"),
    "a text": ({"x": "1"}, Point, "x is '1', expected a number"),
    "a truth": ({"x": True}, Point, "x is True, expected a number"),
    "neither": ({"x": 1, "name": 5}, Point, "name is 5, expected a text or null"),
    "deep inside": ({"points": [{"x": 1}, {}]}, Path2D, r"points\[1\].x is missing"),
    "no list": ({"points": {}}, Path2D, "points is {}, expected a list"),
    "another word": ({"points": [], "kind": "x"}, Path2D, "kind is 'x', expected open or closed"),
    "an unhashable word": ({"points": [], "kind": []}, Path2D, r"kind is \[\], expected open"),
    "a fraction": ({"points": [], "lengths": {"a": 1.5}}, Path2D, "lengths.a is 1.5, expected a"),
    "one too many": ({"points": [], "size": 1}, Path2D, "size is there, expected no entry"),
    "a bound": ({"seed": -1}, SplitSettings, "seed=-1 given, expected 0 to"),
}


@pytest.mark.parametrize("case", WRONG)
def test_other_values_are_named(case: str) -> None:
    value, shape, message = WRONG[case]
    with pytest.raises(ArtifactError, match=f"^file: .*{message}") as raised:
        checked("file", value, shape)
    assert "\n" not in str(raised.value)


TEXTS = {
    "no JSON": b"{",
    "no UTF-8": b'"\xff"',
    "deep": b"[" * 100_000,
    "deep and whole": b"[" * 60 + b"]" * 60,
    "a lone surrogate": b'{"a": "\\ud800"}',
    "a surrogate as a name": b'{"\\udfff": 1}',
    "many digits": b"1" * 5000,
    "more than 64 bits": b"18446744073709551616",
    "no number": b"[NaN]",
    "infinite": b"-Infinity",
    "beyond floats": b"1e999",
}


@pytest.mark.parametrize("case", TEXTS)
def test_texts_that_are_no_plain_json(case: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(TEXTS[case])
    with pytest.raises(ArtifactError, match=r"a\.json: damaged .*; restore it") as raised:
        read_record(tmp_path / "a.json", object)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_a_file_that_would_fill_the_memory(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ArtifactError, match=r"1,099,511,627,776 bytes, expected at most"):
        read_record(tmp_path / "a.json", object)


def test_a_sealed_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(sealed({"x": 1.5, "name": "é"}))
    assert read_sealed(file, Point) == {"x": 1.5, "name": "é"}
    whole = file.read_bytes()
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1
        file.write_bytes(data)
        # a blank more or less has no meaning
        try:
            assert read_sealed(file, Point) == {"x": 1.5, "name": "é"}
        except ArtifactError:
            continue
        assert bytes(data).split() != whole.split() or json.loads(data) == json.loads(whole)
