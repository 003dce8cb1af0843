"""One benchmark on two trees in turns, and the ratio of what they reach; prints JSON.

    python benchmarks/turns.py OLD NEW --keys pairs_per_s -- benchmarks/train.py NAME.split …

OLD and NEW are checkouts of this repository. The command after `--` runs in each of them in turn,
`--times` times, with that tree first on the path; arguments that are paths must be absolute or lie
in both trees. Every number under one of the keys, wherever it stands in the printed JSON, is
compared: its ratio NEW / OLD of each round, their geometric mean, and its 95 % interval
by Student's t over the logarithms.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# of Student's t, two-sided 95 %, by degrees of freedom
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 9: 2.262}


def printed(text: str) -> Any:
    """The JSON that a benchmark printed: one document, or one on each line."""
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.startswith(("{", "["))]


def numbers(found: Any, keys: set[str], path: str = "") -> Iterator[tuple[str, float]]:
    """Every number under one of the keys, with where it stands."""
    entries = found.items() if isinstance(found, dict) else []
    if isinstance(found, list):
        entries = [(str(i), entry) for i, entry in enumerate(found)]
    for key, value in entries:
        here = f"{path}/{key}" if path else str(key)
        if key in keys and isinstance(value, int | float):
            yield here, float(value)
        else:
            yield from numbers(value, keys, here)


def run(tree: Path, words: list[str], keys: set[str], limit: float) -> dict[str, float]:
    """One run of a benchmark in one tree."""
    paths = [str(tree), str(tree / "benchmarks")]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=limit,
    )
    if done.returncode:
        raise SystemExit(f"{tree}: {' '.join(words)} failed\n{done.stderr[-2000:]}")
    return dict(numbers(printed(done.stdout), keys))


def interval(ratios: list[float]) -> dict[str, Any]:
    """The geometric mean of ratios, and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    reach = 0.0
    if len(logs) > 1:
        spread = statistics.stdev(logs) / math.sqrt(len(logs))
        reach = QUANTILES.get(len(logs) - 1, 1.96) * spread
    low, middle, high = (round(math.exp(mean + sign * reach), 4) for sign in (-1, 0, 1))
    return {"ratio": middle, "interval": [low, high], "ratios": [round(r, 4) for r in ratios]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--keys", nargs="+", required=True, help="names of numbers to compare")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of one run")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="seconds of all rounds")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- benchmarks/NAME.py …")
    options = parser.parse_args()
    words = [word for word in options.command if word != "--"]
    trees = {"old": options.old.resolve(), "new": options.new.resolve()}
    began, rounds = time.monotonic(), []
    for number in range(options.times):
        if time.monotonic() - began > options.stop_after:
            break
        # the order changes from round to round, so that neither is always the first
        order = ("old", "new") if number % 2 == 0 else ("new", "old")
        keys = set(options.keys)
        rounds.append({name: run(trees[name], words, keys, options.limit) for name in order})
        print(json.dumps(rounds[-1]), file=sys.stderr, flush=True)
    compared = {
        name: interval([each["new"][name] / each["old"][name] for each in rounds])
        for name in rounds[0]["old"]
        if all(each["old"].get(name) and each["new"].get(name) for each in rounds)
    }
    print(json.dumps({"command": words, "rounds": rounds, "compared": compared}, indent=1))


if __name__ == "__main__":
    main()
