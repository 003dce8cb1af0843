"""The paper's tables on real graphs: many runs of `graphformers compare`, several at a time on one GPU.

    python benchmarks/tables.py arxiv.split debian.split:max_tokens=64 --table overall --table ablation --seeds 42,43,44 -o tables
    python benchmarks/tables.py arxiv.split --sweep 3e-4,8e-4 --method gat --method plm --set max_steps=200 -o rates

Every run is a process of its own, `graphformers compare SPLIT --method NAME --seeds SEED …`; runs of one split share a folder of
the output. What is finished is not done again, so that the same command goes on where a limit ended it. When all runs of a table
are there, `graphformers compare SPLIT --table NAME` puts it together. The command of every run, its seconds and what it printed
are in `runs.jsonl` and `logs/`.

--sweep trains each method with each learning rate, one seed, and writes the rates that did best on the valid questions as
settings into `rates.json`; --rates reads them.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphformers.artifact import MANIFEST
from graphformers.compare.comparison import check_folder
from graphformers.compare.runs import Plan, load_ranks, untrained
from graphformers.compare.variants import TITLES, ablations
from graphformers.data.split import LinkSplit
from graphformers.data.tokens import Tokenizer, graph_tokens
from graphformers.model.backbones import find_backbone
from graphformers.model.modeling import ModelConfig
from graphformers.train.settings import merge_settings, parse_settings, read_recipe

GRAPHFORMERS = [sys.executable, "-m", "graphformers"]
SHORTEST = 20  # seconds: no run is begun with less left
PATIENCE = 10  # seconds that a run has for its last checkpoint


@dataclass
class Job:
    """One process: its command, and the scores that it will have made."""

    name: str
    command: list[str]
    makes: list[Path]
    conditions: int = 1  # under which each is scored
    weight: float = 1.0  # how long it takes beside others
    started: float = 0.0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def is_done(self) -> bool:
        return all((place / MANIFEST).is_file() and len(load_ranks(place)[0]) >= self.conditions for place in self.makes)


@dataclass(frozen=True)
class Place:
    """A split with the settings that are its own."""

    split: Path
    settings: tuple[str, ...]

    @staticmethod
    def of(given: str) -> "Place":
        path, *settings = given.split(":")
        return Place(Path(path), tuple(settings))

    @property
    def name(self) -> str:
        return self.split.name.removesuffix(".split")


def compare_command(place: Place, chosen: argparse.Namespace, folder: Path, *words: str) -> list[str]:
    settings = [*chosen.set, *place.settings, *(json.loads(chosen.rates.read_text())["chosen"] if chosen.rates else [])]
    told = ["compare", str(place.split), "--from", chosen.source, "--config", chosen.config]
    return [*told, *(word for each in settings for word in ("--set", each)), "--no-keep-models", *words, "-o", str(folder)]


def table_jobs(place: Place, chosen: argparse.Namespace) -> list[Job]:
    """All runs that the tables of one split need, seed by seed, the slow ones first."""
    folder = chosen.output / place.name
    methods: list[str] = list(TITLES) if "overall" in chosen.table else []
    methods += [each.name for each in ablations().values()] if "ablation" in chosen.table else []
    methods += chosen.method
    jobs = []
    for seed in chosen.seeds.split(","):
        left = list(dict.fromkeys(methods))
        if "neighbours" in chosen.table:  # scored under more conditions than the other tables ask for
            both = ("graphformers", "max")
            words = ("--table", "neighbours", "--seeds", seed)
            makes = [folder / "runs" / f"{name}-{seed}.scores" for name in both]
            command, scored = compare_command(place, chosen, folder, *words), 3 + _num_neighbors(place, chosen) - 1
            jobs.append(Job(f"{place.name} neighbours {seed}", command, makes, scored, 2.0))
            left = [name for name in left if name not in both]
        for name in left:
            words = ("--method", name, "--seeds", seed)
            makes = [folder / "runs" / f"{name}-{seed}.scores"]
            weight = 1.5 if name == "graphformers.simplified" else 0.3 if name in ("plm", "tnve", "iftn") else 1.0
            command = compare_command(place, chosen, folder, *words)
            jobs.append(Job(f"{place.name} {name} {seed}", command, makes, weight=weight))
    return sorted(jobs, key=lambda job: -job.weight)


def _num_neighbors(place: Place, chosen: argparse.Namespace) -> int:
    settings = merge_settings(read_recipe(Path(chosen.config)), parse_settings([*chosen.set, *place.settings]))
    return int(settings.get("num_neighbors", ModelConfig.num_neighbors))


def sweep_jobs(place: Place, chosen: argparse.Namespace) -> list[Job]:
    jobs = []
    for rate in chosen.sweep:
        folder = chosen.output / f"{place.name}-{rate}"
        for name in chosen.method:
            words = ("--set", f"{name}.learning_rate={rate}", "--method", name, "--seeds", chosen.seeds)
            makes = [folder / "runs" / f"{name}-{seed}.scores" for seed in chosen.seeds.split(",")]
            jobs.append(Job(f"{place.name} {name} {rate}", compare_command(place, chosen, folder, *words), makes))
    return jobs


def run_all(jobs: Sequence[Job], chosen: argparse.Namespace) -> bool:
    """Runs what is not done, `at_once` at a time, until the limit; whether all is done."""
    waiting = [job for job in jobs if not job.is_done]
    running: list[Job] = []
    logs = chosen.output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    while waiting or running:
        left = chosen.limit - (time.monotonic() - chosen.began)
        while waiting and len(running) < chosen.at_once and left > SHORTEST:
            job = waiting.pop(0)
            with (logs / re.sub(r"[^\w.=-]", "-", job.name)).open("ab") as log:
                job.process = subprocess.Popen([*GRAPHFORMERS, *job.command], stdout=log, stderr=subprocess.STDOUT)
            job.started = time.monotonic()
            running.append(job)
        for job in [each for each in running if each.process is not None and each.process.poll() is not None]:
            running.remove(job)
            _note(job, chosen)
        if left <= 0:
            for job in running:
                assert job.process is not None
                job.process.terminate()  # then it writes a checkpoint
            for job in running:
                assert job.process is not None
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.process.wait(PATIENCE)
                job.process.kill()
            print(f"time is up: {len(running)} runs broken off, {len(waiting)} not begun", flush=True)
            return False
        if not running and waiting and left <= SHORTEST:
            print(f"time is up: {len(waiting)} runs not begun", flush=True)
            return False
        time.sleep(0.2)
    return all(job.is_done for job in jobs)


def _note(job: Job, chosen: argparse.Namespace) -> None:
    assert job.process is not None
    told = {"run": job.name, "s": round(time.monotonic() - job.started, 1), "rc": job.process.returncode}
    with (chosen.output / "runs.jsonl").open("a") as file:
        file.write(json.dumps({**told, "command": " ".join(["graphformers", *job.command])}) + "\n")
    print(json.dumps(told | {"at": round(time.monotonic() - chosen.began)}), flush=True)


def prepare(place: Place, chosen: argparse.Namespace, folders: Sequence[Path]) -> None:
    """What all runs of a split share is made once: its tokens, and the rankings that need no training."""
    split = LinkSplit.load(place.split)
    graph_tokens(split.graph, Tokenizer.from_folder(find_backbone(chosen.source)))
    settings = merge_settings(read_recipe(Path(chosen.config)), parse_settings([*chosen.set, *place.settings]))
    for folder in folders:
        check_folder(folder)
        untrained(Plan(split, folder, chosen.source, settings))


def best_rates(places: Sequence[Place], chosen: argparse.Namespace) -> dict[str, Any]:
    """Of each method the rate with the best valid P@1, on average over splits and seeds, as settings; and all of them."""
    found: dict[str, Any] = {"valid P@1": {}, "chosen": []}
    for name in chosen.method:
        values = {}
        for rate in chosen.sweep:
            folders = [chosen.output / f"{place.name}-{rate}" / "runs" for place in places]
            runs = [folder / f"{name}-{seed}.scores" for folder in folders for seed in chosen.seeds.split(",")]
            valid = [load_ranks(run)[1]["valid"] for run in runs]
            values[rate] = round(sum(valid) / len(valid), 4)
        best = max(values, key=values.__getitem__)
        found["valid P@1"][name] = values
        found["chosen"].append(f"{name}.learning_rate={best}")
        if len(values) > 1 and best in (chosen.sweep[0], chosen.sweep[-1]):
            print(f"{name}: {best} is the last of the rates that were tried; a rate beyond it may be better", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("splits", nargs="+", metavar="SPLIT[:NAME=VALUE…]", help="split folders, each with settings of its own")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--table", action="append", default=[], choices=("overall", "neighbours", "ablation"))
    parser.add_argument("--method", action="append", default=[], help="a method beside those of the tables, or to sweep")
    parser.add_argument("--sweep", type=lambda text: text.split(","), help="learning rates to choose from, as in 3e-4,8e-4")
    parser.add_argument("--rates", type=Path, help="rates.json of a sweep")
    parser.add_argument("--from", dest="source", default="minilm", metavar="BACKBONE")
    parser.add_argument("--config", default="minilm", metavar="RECIPE")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--seeds", default="42")
    parser.add_argument("--at-once", type=int, default=6, help="runs at a time")
    parser.add_argument("--runs-only", action="store_true", help="leave putting the tables together to another time")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which everything ends")
    chosen = parser.parse_args()
    chosen.began = time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "2")  # of each run
    places = [Place.of(given) for given in chosen.splits]
    jobs = []
    for place in places:
        own = [f"{place.name}-{rate}" for rate in chosen.sweep] if chosen.sweep else [place.name]
        prepare(place, chosen, [chosen.output / name for name in own])
        jobs += sweep_jobs(place, chosen) if chosen.sweep else table_jobs(place, chosen)
    is_all = run_all(jobs, chosen)
    if chosen.sweep and is_all:
        (chosen.output / "rates.json").write_text(json.dumps(best_rates(places, chosen), indent=1))
    for place in places:
        for table in () if chosen.runs_only or chosen.sweep else chosen.table:
            words = ("--table", table, "--seeds", chosen.seeds)
            command = compare_command(place, chosen, chosen.output / place.name, *words)
            if all(job.is_done for job in jobs if job.name.startswith(f"{place.name} ")):
                print(" ".join(["graphformers", *command]), flush=True)
                subprocess.run([*GRAPHFORMERS, *command], check=True, stdout=subprocess.DEVNULL)
    missing = [job.name for job in jobs if not job.is_done]
    if missing:
        sys.exit(f"not done: {', '.join(missing)}; the same command goes on, {chosen.output / 'logs'} tells what failed")


if __name__ == "__main__":
    main()
