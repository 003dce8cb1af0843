"""Peak memory and time of commands, all their processes together; prints JSON.

    python benchmarks/memory.py papers.graph --minutes 5 12       # default settings
    python benchmarks/memory.py a.graph b.graph --config minilm --commands train --set max_steps=4

--minutes are those given to train and to compare; without, both make two steps. For each graph,
every command runs in a process of its own. The reported peak is the largest sum, over the process
and its children, of proportional set sizes (PSS): pages that processes share count once. They
include pages of mapped files, which the system may drop at any time.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from graphformers import GraphFormers, TextGraph, split_links

ENCODE = """
import sys
from graphformers import GraphFormers
GraphFormers.from_pretrained(sys.argv[1]).encode_nodes(sys.argv[2])
"""
SHORT = ("max_steps=2", "max_valid=1000", "validate_start=false")


def process_tree(root: int) -> list[int]:
    """The numbers of a process and of all processes that it started."""
    found = [root]
    for number in found:
        for task in Path(f"/proc/{number}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except OSError:
                continue
    return found


def proportional_bytes(number: int) -> int:
    """The proportional set size of a process; 0 when it has ended."""
    try:
        rollup = Path(f"/proc/{number}/smaps_rollup").read_text()
    except OSError:
        return 0
    match = re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)
    return 1024 * int(match[1]) if match else 0


def measure(command: list[str], threads: int, output: Path) -> dict[str, object]:
    """Runs a command; returns its peak memory in GB, its seconds, and its last messages."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    started, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile("w+") as messages, output.open("w") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=messages, env=environment)
        while process.poll() is None:
            peak = max(peak, sum(map(proportional_bytes, process_tree(process.pid))))
            time.sleep(0.1)
        messages.seek(0)
        lines = messages.read().splitlines()
    result: dict[str, object] = {
        "peak_gb": round(peak / 1e9, 2),
        "seconds": round(time.perf_counter() - started, 1),
    }
    told = [line.strip() for line in lines if re.search("at a time|validations rank|steps", line)]
    result["messages"] = told[-6:]
    if process.returncode:
        result["failed"] = lines[-3:]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", nargs="+", type=Path, help="graph folders")
    parser.add_argument("--source", default="minilm", help="the backbone")
    parser.add_argument("--config", default="auto", help="the recipe")
    parser.add_argument("--minutes", nargs=2, help="minutes of train and of compare")
    parser.add_argument(
        "--commands", nargs="+", default=["dry-run", "train", "compare", "embed", "encode"]
    )
    parser.add_argument("--set", nargs="+", default=[], help="more settings of train and compare")
    parser.add_argument("--method", nargs="+", default=[], help="methods of compare")
    parser.add_argument("--printed", type=Path, help="a folder for what the commands print")
    parser.add_argument("--max-tokens", type=int, default=32, help="of embed and encode")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    short = () if arguments.minutes else SHORT
    settings = [word for each in (*short, *arguments.set) for word in ("--set", each)]
    limits = [["--minutes", each] for each in arguments.minutes or ()] or [[], []]
    program = [sys.executable, "-m", "graphformers"]
    recipe = ["--from", arguments.source, "--config", arguments.config, "--device", "cpu"]
    for place in arguments.graphs:
        graph = TextGraph.load(place)
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work)
            printed = arguments.printed or folder
            printed.mkdir(parents=True, exist_ok=True)
            split, model = folder / "papers.split", folder / "papers.model"
            split_links(graph).save(split)
            # embed and encode take as much whether the model is trained or not.
            kind = {"pooling": "mean", "num_neighbors": 20, "max_tokens": arguments.max_tokens}
            GraphFormers.from_backbone(arguments.source, **kind).save_pretrained(model)
            train = [
                *program,
                "train",
                str(split),
                *recipe,
                *settings,
                *limits[0],
                "-o",
                f"{folder / 'new.model'}",
            ]
            words = [*recipe, *settings, *limits[1], "-o", f"{folder / 'report'}"]
            methods = [word for each in arguments.method for word in ("--method", each)]
            compare = ["compare", str(split), *words, *methods, "--json"]
            commands = {
                "dry-run": [*train, "--dry-run"],
                "train": train,
                "compare": [*program, *compare],
                "embed": [*program, "embed", str(model), str(place), "-o", f"{folder / 'v'}"],
                "encode": [sys.executable, "-c", ENCODE, str(model), str(place)],
            }
            found: dict[str, object] = {"graph": place.name, "nodes": graph.num_nodes}
            for name in arguments.commands:
                output = printed / f"{place.stem}-{name}.out"
                found[name] = measure(commands[name], arguments.threads, output)
            print(json.dumps(found, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
