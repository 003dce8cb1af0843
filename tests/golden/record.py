"""Records what a tree of graphformers computes.

Usage: python tests/golden/record.py --tree PATH -o OUT [--parts training,vectors]

Every part runs in a fresh process, on one thread, with the tree first on its path.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ADAPTERS = {"current": "adapter", "baseline": "adapter_89e3860"}
PARTS = ("splits", "training", "vectors", "store", "evaluation", "server", "cli")


def work(tree: Path, output: Path, part: str, adapter: str, perturb: float) -> None:
    """Records one part in this process."""
    # the script's own folder stays, behind the tree
    sys.path[:] = [str(tree), *(entry for entry in sys.path if entry != str(HERE)), str(HERE)]
    import torch

    import graphformers

    if Path(graphformers.__file__).resolve().parents[1] != tree:
        sys.exit(f"{tree}: holds no graphformers, {graphformers.__file__} would be recorded")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parts = importlib.import_module("parts")
    recorder = parts.Recorder()
    recorder.perturb = perturb
    parts.PARTS[part](recorder, importlib.import_module(ADAPTERS[adapter]))
    Path(f"{output}.json").write_text(json.dumps(recorder.values), encoding="utf-8")
    np.savez(Path(f"{output}.npz"), **recorder.arrays)


def record(tree: Path, output: Path, parts: list[str], adapter: str, perturb: float = 0.0) -> None:
    """Records the parts, each in a process of its own, and writes OUT.npz and OUT.json."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    # quiet and away from the network; bytecode of the recorded tree is left alone
    quiet = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
    arrays: dict[str, np.ndarray] = {}
    values: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="golden-") as place:
        for part in parts:
            started, own = time.monotonic(), Path(place) / part
            words = [str(tree.resolve()), "-o", str(own), "--parts", part, "--adapter", adapter]
            words += ["--perturb", str(perturb), "--here"]
            command = [sys.executable, str(HERE / "record.py"), "--tree", *words]
            environment = os.environ | threads | quiet
            done = subprocess.run(command, env=environment, cwd=place, check=False)
            if done.returncode:
                sys.exit(f"{part}: failed")
            with np.load(Path(f"{own}.npz"), allow_pickle=False) as found:
                arrays |= {name: found[name] for name in found.files}
            values |= json.loads(Path(f"{own}.json").read_text(encoding="utf-8"))
            print(f"{part}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(Path(f"{output}.npz"), **arrays)
    text = json.dumps(values, indent=0, sort_keys=True, ensure_ascii=False)
    Path(f"{output}.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, required=True, help="a checkout of graphformers")
    parser.add_argument("-o", "--output", type=Path, required=True, help="OUT.npz and OUT.json")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} and small")
    parser.add_argument("--adapter", choices=ADAPTERS, default="current")
    parser.add_argument(
        "--perturb", type=float, default=0.0, help="added to one weight of each word"
    )
    parser.add_argument("--here", action="store_true", help="one part, in this process")
    given = parser.parse_args()
    parts = given.parts.split(",")
    strange = [part for part in parts if part not in (*PARTS, "small")]
    if strange:
        parser.error(f"no part {strange[0]!r}; there are: {', '.join(PARTS)} and small")
    tree, output = given.tree.resolve(), given.output.resolve()
    if given.here:
        work(tree, output, parts[0], given.adapter, given.perturb)
    else:
        record(tree, output, parts, given.adapter, given.perturb)


if __name__ == "__main__":
    main()
