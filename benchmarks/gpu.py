"""Measures all GPU figures that the README quotes; writes results/*_h200.json.

`make` runs on any machine and writes the inputs of all parts; `run` runs the parts on the GPU:

    python benchmarks/gpu.py make FOLDER --graphs arxiv9196 debian_src
    python benchmarks/gpu.py run FOLDER --commit HASH -o results --limit 570
    python benchmarks/gpu.py run FOLDER --commit HASH --part encode --part train -o results

FOLDER holds a tokenizer.json, the graphs as Parquet files, MiniLM's weights in float16, and the
results of the 2021 code on the same GPU as reference.jsonl (see train.py). Parts that are done at
this commit are skipped, and a part is started only if it ends within the limit; the same command
continues later. The graphs of millions of titles are generated while the tests run, which need
little CPU time.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# interval in seconds at which stacks are printed
STACKS = "45"
# options that generate the graphs that parts embed
MADE = (("--make", "300000", "1000000", "5000000"), ("--links", "64", "--make", "150000"))


@dataclass(frozen=True)
class Part:
    """A benchmark's command, and the file of results and the key to which its JSON is written."""

    file: str
    key: str
    words: tuple[str, ...]
    # the longest time it takes on an H200
    seconds: int

    def command(self, folder: Path) -> list[str]:
        return [
            sys.executable,
            *(str(folder / word[1:]) if word.startswith("@") else word for word in self.words),
        ]

    def shown(self) -> str:
        return " ".join(["python", *(word.removeprefix("@") for word in self.words)])


TOKENIZER = ("--tokenizer", "@tokenizer.json")
REFERENCE = ("--reference", "@reference.jsonl")
EMBED = ("benchmarks/embed.py", *TOKENIZER, "--folder", "@made", "--stacks", STACKS)
# Other tests import packages that a machine with a GPU may lack.
TESTS = tuple(f"tests/{part}/test_gpu.py" for part in ("model", "training", "embedding"))
# Tests run in several processes, since most of their time is compiling. pytest-benchmark, if
# installed, does not support this.
AT_ONCE = ("-n", "6", "-p", "no:benchmark") if importlib.util.find_spec("xdist") else ()
PARTS = {
    "tests": Part(
        "tests",
        "result",
        ("-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", *AT_ONCE, *TESTS),
        240,
    ),
    "encode": Part(
        "encode",
        "result",
        ("benchmarks/encode.py", "--texts", "@arxiv9196/nodes.parquet", *TOKENIZER),
        160,
    ),
    "train": Part(
        "train",
        "result",
        (
            "benchmarks/train.py",
            "@arxiv9196.split",
            "@debian_src.split",
            *TOKENIZER,
            *REFERENCE,
            "--warmup",
            "40",
        ),
        170,
    ),
    "million": Part("embed", "one million", EMBED, 180),
    "neighbours": Part(
        "embed",
        "with and without states",
        (
            *EMBED,
            "--nodes",
            "150000",
            "--links",
            "64",
            "--only",
            "--neighbours",
            "5",
            "20",
            "50",
            "--without",
            "10000",
        ),
        240,
    ),
    "five million": Part(
        "embed", "five million", (*EMBED, "--nodes", "5000000", "--only", "memory"), 150
    ),
    "ranking": Part("ranking", "result", ("benchmarks/ranking.py", "--anchors", "100000"), 90),
}


def make(folder: Path, graphs: Sequence[Path]) -> None:
    """Writes the inputs of all parts but the reference; they are small enough to be copied."""
    import torch
    from safetensors.torch import load_file, save_file

    from graphformers.model.backbones import find_backbone

    folder.mkdir(parents=True, exist_ok=True)
    backbone = find_backbone("minilm")
    shutil.copy(backbone / "tokenizer.json", folder)
    (folder / "minilm").mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "modules.json"):
        if (backbone / name).is_file():
            shutil.copy(backbone / name, folder / "minilm")
    weights = {
        name: tensor
        for name, tensor in load_file(backbone / "model.safetensors").items()
        if "pooler" not in name
    }
    half = {
        name: tensor.half() if tensor.dtype == torch.float32 else tensor
        for name, tensor in weights.items()
    }
    save_file(half, folder / "minilm" / "model.safetensors")
    for source in graphs:
        shutil.copytree(source, folder / source.name, dirs_exist_ok=True)


def make_splits(folder: Path) -> None:
    """Makes graphs and splits of all tables.

    They are not made by `make`: making them takes seconds, and they are five times as large.
    """
    from graphformers import read_graph, split_links

    for nodes in folder.glob("*/nodes.parquet"):
        place = nodes.parent.with_suffix(".split")
        if not place.is_dir() and nodes.parent.name != "made":
            graph = read_graph(nodes, nodes.with_name("edges.parquet")).save(
                place.with_suffix(".graph"), force=True
            )
            split_links(graph).save(place)


def run(folder: Path, chosen: argparse.Namespace) -> list[str]:
    """Runs the chosen parts one after the other; returns those that are not done."""
    import torch

    # The path is made absolute, since the parts run in the repository.
    began, folder = time.monotonic(), folder.resolve()
    os.environ["PYTHONPATH"] = str(HERE.parent)
    make_splits(folder)
    chosen.output.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    machine = f"{device}, {os.cpu_count()} CPU cores, torch {torch.__version__}"
    missing = [
        name
        for name in chosen.part or PARTS
        if not is_done(chosen.output, PARTS[name], chosen.commit)
    ]
    making: list[subprocess.Popen[bytes]] = []
    for name in list(missing):
        part = PARTS[name]
        if chosen.limit - (time.monotonic() - began) < part.seconds:
            print(f"{name}: no time left", flush=True)
            continue
        if name == "tests" and {"million", "five million", "neighbours"} & set(missing):
            making = [
                subprocess.Popen([*PARTS["million"].command(folder), *words], cwd=HERE.parent)
                for words in MADE
            ]
        elif name != "tests":
            for process in making:
                process.wait()
        # A cache of its own for the tests: measured parts must not use kernels that were tuned for
        # small tensors while other processes ran.
        apart = (
            {"TORCHINDUCTOR_CACHE_DIR": str(folder / "made" / "cache")} if name == "tests" else {}
        )
        started = time.monotonic()
        with (chosen.output / f"{name.replace(' ', '-')}.log").open("w") as log:
            settings: dict[str, Any] = {"cwd": HERE.parent, "env": os.environ | apart, "text": True}
            done = subprocess.run(
                part.command(folder), stdout=subprocess.PIPE, stderr=log, **settings
            )
            log.write(done.stdout)
        taken = time.monotonic() - started
        print(json.dumps({"part": name, "s": round(taken, 1), "rc": done.returncode}), flush=True)
        if done.returncode == 0:
            missing.remove(name)
            keep(chosen.output, part, done.stdout, {"machine": machine, "commit": chosen.commit})
    return missing


def place_of(output: Path, part: Part) -> Path:
    return output / f"{part.file}_h200.json"


def kept(output: Path, part: Part) -> dict[str, Any]:
    """The content of a part's file; empty if there is none."""
    place = place_of(output, part)
    return dict(json.loads(place.read_text())) if place.is_file() else {}


def is_done(output: Path, part: Part, commit: str) -> bool:
    found = kept(output, part)
    return found.get("measured at", {}).get(part.key) == commit and part.key in found


def keep(output: Path, part: Part, printed: str, made: dict[str, str]) -> None:
    """Adds the output of a part to its file, which may hold results of other parts."""
    found = kept(output, part)
    found["commands"] = found.get("commands", {}) | {part.key: part.shown()}
    found["machine"] = made["machine"]
    found["measured at"] = found.get("measured at", {}) | {part.key: made["commit"]}
    found[part.key] = parsed(printed)
    place_of(output, part).write_text(json.dumps(found, indent=1) + "\n")


def parsed(printed: str) -> Any:
    """Parses output as one JSON value or one per line; otherwise returns its last line."""
    try:
        return json.loads(printed)
    except json.JSONDecodeError:
        lines = printed.splitlines()
        return [json.loads(line) for line in lines] if lines[0].startswith("{") else lines[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="writes the inputs of all parts")
    making.add_argument("folder", type=Path)
    making.add_argument(
        "--graphs",
        type=Path,
        nargs="+",
        required=True,
        help="folders with nodes.parquet and edges.parquet",
    )
    running = commands.add_parser("run", help="runs parts and writes their results")
    running.add_argument("folder", type=Path)
    running.add_argument(
        "--part",
        action="append",
        choices=list(PARTS),
        help="by default all that are not done at this commit",
    )
    running.add_argument("--commit", required=True, help="the commit that is measured")
    running.add_argument("-o", "--output", type=Path, required=True)
    running.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds within which everything ends"
    )
    chosen = parser.parse_args()
    if chosen.command == "make":
        make(chosen.folder, chosen.graphs)
        return
    missing = run(chosen.folder, chosen)
    if missing:
        sys.exit(f"not done: {', '.join(missing)}; run the same command to continue")


if __name__ == "__main__":
    main()
