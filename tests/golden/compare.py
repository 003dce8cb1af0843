"""Compares two recordings: python tests/golden/compare.py A B [--tolerance 0].

Numbers with a fraction may differ by the tolerance; everything else may not, and nothing may be
missing on either side.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SHOWN = 20  # differences that are listed


@dataclass
class Difference:
    """How an entry differs: by how much where it is numbers alone, else in words."""

    largest: float = 0.0
    words: str = ""


@dataclass
class Group:
    """The entries that share the first parts of their names."""

    entries: int = 0
    identical: int = 0
    largest: float = 0.0
    wrong: list[str] = field(default_factory=list)


def load(place: Path) -> dict[str, Any]:
    """The arrays and JSON values of a recording by name."""
    place = Path(str(place).removesuffix(".npz").removesuffix(".json"))
    with np.load(Path(f"{place}.npz"), allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files}
    return arrays | json.loads(Path(f"{place}.json").read_text(encoding="utf-8"))


def difference(one: Any, other: Any) -> Difference | None:
    """None where two entries are identical to the bit."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return _of_arrays(one, other)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return Difference(words="an array on one side only")
    found = list(_of_values(one, other, ""))
    if not found:
        return None
    words = [each.words for each in found if each.words]
    return Difference(max(each.largest for each in found), words[0] if words else "")


def _of_arrays(one: np.ndarray, other: np.ndarray) -> Difference | None:
    if one.dtype != other.dtype or one.shape != other.shape:
        return Difference(words=f"{one.dtype}{one.shape} and {other.dtype}{other.shape}")
    if one.tobytes() == other.tobytes():
        return None
    if one.dtype.kind != "f":
        return Difference(words=f"{int((one != other).sum())} of {one.size} values differ")
    with np.errstate(invalid="ignore"):
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    apart = np.where(same, 0.0, apart)
    if not np.isfinite(apart).all():
        return Difference(words="a number that is not finite on one side only")
    return Difference(float(apart.max()))


def _of_values(one: Any, other: Any, place: str) -> Iterator[Difference]:
    where = f"at {place}: " if place else ""
    if isinstance(one, float) and isinstance(other, float):
        if one != other and (one == one or other == other):
            apart = abs(one - other)
            is_number = apart < float("inf")
            words = "" if is_number else f"{where}{one} and {other}"
            yield Difference(apart if is_number else 0.0, words)
    elif type(one) is not type(other):
        yield Difference(words=f"{where}{_short(one)} and {_short(other)}")
    elif isinstance(one, dict):
        for name in sorted(one.keys() | other.keys()):
            if name not in one or name not in other:
                side = "second" if name in one else "first"
                yield Difference(words=f"{where}{name!r} is missing in the {side}")
            else:
                yield from _of_values(one[name], other[name], f"{place}.{name}")
    elif isinstance(one, list):
        if len(one) != len(other):
            yield Difference(words=f"{where}{len(one)} and {len(other)} entries")
        for i, (mine, theirs) in enumerate(zip(one, other, strict=False)):
            yield from _of_values(mine, theirs, f"{place}[{i}]")
    elif one != other:
        yield Difference(words=f"{where}{_short(one)} and {_short(other)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def compare(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> dict[str, Group]:
    """Groups by the first two parts of their names; `wrong` says what is beyond the tolerance."""
    groups: dict[str, Group] = {}
    for name in sorted(one.keys() | other.keys()):
        if tolerance > 0 and name.endswith("_sha256"):  # of numbers that are compared themselves
            continue
        group = groups.setdefault("/".join(name.split("/")[:2]), Group())
        group.entries += 1
        if name not in one or name not in other:
            group.wrong.append(f"{name}: missing in the {'second' if name in one else 'first'}")
            continue
        found = difference(one[name], other[name])
        if found is None:
            group.identical += 1
            continue
        group.largest = max(group.largest, found.largest)
        if found.words or found.largest > tolerance:
            group.wrong.append(f"{name}: {found.words or f'{found.largest:.3g} apart'}")
    return groups


def table(groups: dict[str, Group]) -> str:
    """A line for each group, then the first of what is wrong."""
    width = max(map(len, groups), default=5)
    lines = [f"{'group':<{width}}  entries  identical  largest difference  wrong"]
    for name, group in groups.items():
        largest = f"{group.largest:.3g}" if group.largest else "-"
        numbers = f"{group.entries:7}  {group.identical:9}  {largest:>18}"
        lines.append(f"{name:<{width}}  {numbers}  {len(group.wrong) or '-':>5}")
    wrong = [words for group in groups.values() for words in group.wrong]
    lines += ["", *wrong[:SHOWN]] if wrong else []
    if len(wrong) > SHOWN:
        lines.append(f"… and {len(wrong) - SHOWN} more")
    entries = sum(group.entries for group in groups.values())
    identical = sum(group.identical for group in groups.values())
    lines += ["", f"{entries} entries, {identical} identical to the bit, {len(wrong)} wrong"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("one", type=Path, metavar="A")
    parser.add_argument("other", type=Path, metavar="B")
    parser.add_argument("--tolerance", type=float, default=0.0, help="of numbers with a fraction")
    given = parser.parse_args()
    groups = compare(load(given.one), load(given.other), given.tolerance)
    print(table(groups))
    sys.exit(1 if not groups or any(group.wrong for group in groups.values()) else 0)


if __name__ == "__main__":
    main()
