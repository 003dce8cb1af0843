"""The paper's tables on real graphs: many runs of `graphformers compare` share one GPU.

    python benchmarks/tables.py arxiv.split debian.split:max_tokens=64 -o tables \\
        --table overall --table ablation --seeds 42,43,44
    python benchmarks/tables.py arxiv.split -o rates \\
        --sweep 3e-4,8e-4 --method gat --method plm --set max_steps=200

Every run is a separate process, `graphformers compare SPLIT --method NAME --seeds SEED …`; runs of
one split share a folder of the output. Finished runs are skipped, so the same command continues
after a limit. When all runs of a table are finished, `graphformers compare SPLIT --table NAME`
makes the table. The command, the time and the output of every run are in `runs.jsonl` and `logs/`.

--sweep trains each method with each learning rate, and writes the rates with the best validation
results as settings into `rates.json`; --rates reads them.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphformers.artifact import MANIFEST
from graphformers.batching.tokens import graph_tokens
from graphformers.compare.comparison import check_folder
from graphformers.compare.conditions import conditions_of
from graphformers.compare.runs import load_ranks, rank_untrained
from graphformers.compare.settings import ComparisonSettings
from graphformers.compare.variants import Variant, variants, variants_of
from graphformers.evaluation.text_search import known_item_queries
from graphformers.model.backbones import find_backbone, read_tokenizer
from graphformers.splits.split import LinkSplit
from graphformers.training.recipes import merge_settings, parse_settings, read_recipe

GRAPHFORMERS = [sys.executable, "-m", "graphformers"]
# seconds before the limit after which no run is started
SHORTEST = 20
# seconds that a run has for its last checkpoint
PATIENCE = 10


@dataclass(frozen=True)
class Job:
    """A process: its command, and the files of scores that it makes, with their conditions."""

    name: str
    command: list[str]
    makes: dict[Path, list[str]]
    # its duration relative to other jobs
    weight: float = 1.0

    @property
    def is_done(self) -> bool:
        return all(
            (place / MANIFEST).is_file() and set(conditions) <= set(load_ranks(place)[0])
            for place, conditions in self.makes.items()
        )


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


def compare_command(
    place: Place, chosen: argparse.Namespace, folder: Path, *words: str
) -> list[str]:
    settings = [
        *chosen.set,
        *place.settings,
        *(json.loads(chosen.rates.read_text())["chosen"] if chosen.rates else []),
    ]
    told = ["compare", str(place.split), "--from", chosen.source, "--config", chosen.config]
    return [
        *told,
        *(word for each in settings for word in ("--set", each)),
        "--no-keep-models",
        *words,
        "-o",
        str(folder),
    ]


def table_jobs(place: Place, chosen: argparse.Namespace) -> list[Job]:
    """All runs that the tables of one split need, the slow ones first, then by seed."""
    plan = plan_of(place, chosen, chosen.output / place.name)
    # These methods are also scored under the conditions of the table `neighbours`.
    both = variants_of("neighbours") if "neighbours" in chosen.table else []
    methods = [
        each.name for table in chosen.table if table != "neighbours" for each in variants_of(table)
    ]
    others = [each for each in variants([*methods, *chosen.method]) if each not in both]
    jobs = []
    for seed in map(int, chosen.seeds.split(",")):
        if both:
            command = compare_command(
                place, chosen, plan.folder, "--table", "neighbours", "--seeds", str(seed)
            )
            jobs.append(
                Job(
                    f"{place.name} neighbours {seed}",
                    command,
                    scores_of(plan, both, seed, "neighbours"),
                    2.0,
                )
            )
        for each in others:
            weight = (
                1.5
                if each.name == "graphformers.simplified"
                else 1.0
                if each.reads_neighbors
                else 0.3
            )
            command = compare_command(
                place, chosen, plan.folder, "--method", each.name, "--seeds", str(seed)
            )
            jobs.append(
                Job(
                    f"{place.name} {each.name} {seed}",
                    command,
                    scores_of(plan, [each], seed),
                    weight,
                )
            )
    return sorted(jobs, key=lambda job: -job.weight)


def sweep_jobs(place: Place, chosen: argparse.Namespace) -> list[Job]:
    jobs = []
    for rate in chosen.sweep:
        plan = plan_of(place, chosen, chosen.output / f"{place.name}-{rate}")
        for each in variants(chosen.method):
            words = (
                "--set",
                f"{each.name}.learning_rate={rate}",
                "--method",
                each.name,
                "--seeds",
                chosen.seeds,
            )
            made = [scores_of(plan, [each], int(seed)) for seed in chosen.seeds.split(",")]
            command = compare_command(place, chosen, plan.folder, *words)
            jobs.append(
                Job(
                    f"{place.name} {each.name} {rate}",
                    command,
                    {key: own[key] for own in made for key in own},
                )
            )
    return jobs


def plan_of(place: Place, chosen: argparse.Namespace, folder: Path) -> ComparisonSettings:
    settings = merge_settings(
        read_recipe(Path(chosen.config)), parse_settings([*chosen.set, *place.settings])
    )
    return ComparisonSettings(LinkSplit.load(place.split), folder, chosen.source, settings)


def scores_of(
    plan: ComparisonSettings, methods: Sequence[Variant], seed: int, table: str | None = None
) -> dict[Path, list[str]]:
    """The files to which a process writes the scores of methods, with their conditions."""
    most = plan.num_neighbors
    return {
        plan.model_folder(each, seed).with_suffix(".scores"): conditions_of(each, table, most)
        for each in methods
    }


def run_all(jobs: Sequence[Job], chosen: argparse.Namespace) -> None:
    """Runs unfinished jobs, `at_once` at a time, until the limit."""
    waiting = [job for job in jobs if not job.is_done]
    running: list[tuple[Job, subprocess.Popen[bytes], float]] = []
    logs = chosen.output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    while waiting or running:
        left = chosen.limit - (time.monotonic() - chosen.began)
        while waiting and len(running) < chosen.at_once and left > SHORTEST:
            job = waiting.pop(0)
            with (logs / re.sub(r"[^\w.=-]", "-", job.name)).open("ab") as log:
                process = subprocess.Popen(
                    [*GRAPHFORMERS, *job.command], stdout=log, stderr=subprocess.STDOUT
                )
            running.append((job, process, time.monotonic()))
        for entry in [each for each in running if each[1].poll() is not None]:
            running.remove(entry)
            _note(*entry, chosen)
        if left <= 0 or (waiting and not running and left <= SHORTEST):
            for _, process, _ in running:
                # A terminated run writes a checkpoint.
                process.terminate()
            for _, process, _ in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE)
                process.kill()
            print(
                f"time is up: {len(running)} runs broken off, {len(waiting)} not begun", flush=True
            )
            return
        time.sleep(0.2)


def _note(
    job: Job, process: subprocess.Popen[bytes], started: float, chosen: argparse.Namespace
) -> None:
    told = {"run": job.name, "s": round(time.monotonic() - started, 1), "rc": process.returncode}
    with (chosen.output / "runs.jsonl").open("a") as file:
        file.write(json.dumps({**told, "command": " ".join(["graphformers", *job.command])}) + "\n")
    print(json.dumps(told | {"at": round(time.monotonic() - chosen.began)}), flush=True)


def prepare(plan: ComparisonSettings) -> None:
    """Makes the tokens of a split and the rankings without training, which all runs share."""
    graph_tokens(plan.split.graph, read_tokenizer(find_backbone(plan.source)))
    check_folder(plan.folder)
    rank_untrained(plan, known_item_queries(plan.split.graph))


def best_rates(places: Sequence[Place], chosen: argparse.Namespace) -> dict[str, Any]:
    """The learning rate of each method with the best validation P@1, as settings; and all values.

    P@1 is averaged over splits and seeds.
    """
    found: dict[str, Any] = {"valid P@1": {}, "chosen": []}
    for name in chosen.method:
        values = {}
        for rate in chosen.sweep:
            folders = [chosen.output / f"{place.name}-{rate}" / "runs" for place in places]
            runs = [
                folder / f"{name}-{seed}.scores"
                for folder in folders
                for seed in chosen.seeds.split(",")
            ]
            valid = [load_ranks(run)[1]["valid"] for run in runs]
            values[rate] = round(sum(valid) / len(valid), 4)
        best = max(values, key=values.__getitem__)
        found["valid P@1"][name] = values
        found["chosen"].append(f"{name}.learning_rate={best}")
        if len(values) > 1 and best in (chosen.sweep[0], chosen.sweep[-1]):
            print(
                f"{name}: {best} is the last of the rates that were tried; a rate beyond it may be "
                f"better",
                flush=True,
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "splits",
        nargs="+",
        metavar="SPLIT[:NAME=VALUE…]",
        help="split folders, each with settings of its own",
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument(
        "--table", action="append", default=[], choices=("overall", "neighbours", "ablation")
    )
    parser.add_argument(
        "--method",
        action="append",
        default=[],
        help="a method beside those of the tables, or to sweep",
    )
    parser.add_argument(
        "--sweep",
        type=lambda text: text.split(","),
        help="learning rates to choose from, as in 3e-4,8e-4",
    )
    parser.add_argument("--rates", type=Path, help="rates.json of a sweep")
    parser.add_argument("--from", dest="source", default="minilm", metavar="BACKBONE")
    parser.add_argument("--config", default="minilm", metavar="RECIPE")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--seeds", default="42")
    parser.add_argument("--at-once", type=int, default=6, help="runs at a time")
    parser.add_argument(
        "--runs-only", action="store_true", help="run methods without making the tables"
    )
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds after which everything ends"
    )
    chosen = parser.parse_args()
    chosen.began = time.monotonic()
    # threads of each run
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    places = [Place.of(given) for given in chosen.splits]
    for place in places:
        for name in (
            [f"{place.name}-{rate}" for rate in chosen.sweep] if chosen.sweep else [place.name]
        ):
            prepare(plan_of(place, chosen, chosen.output / name))
    jobs = {
        place: sweep_jobs(place, chosen) if chosen.sweep else table_jobs(place, chosen)
        for place in places
    }
    run_all([job for own in jobs.values() for job in own], chosen)
    missing = {place: [job.name for job in own if not job.is_done] for place, own in jobs.items()}
    if chosen.sweep and not any(missing.values()):
        (chosen.output / "rates.json").write_text(json.dumps(best_rates(places, chosen), indent=1))
    for place in places if not (chosen.sweep or chosen.runs_only) else ():
        for table in chosen.table if not missing[place] else ():
            command = compare_command(
                place, chosen, chosen.output / place.name, "--table", table, "--seeds", chosen.seeds
            )
            print(" ".join(["graphformers", *command]), flush=True)
            subprocess.run([*GRAPHFORMERS, *command], check=True, stdout=subprocess.DEVNULL)
    names = [name for own in missing.values() for name in own]
    if names:
        sys.exit(
            f"not done: {', '.join(names)}; the same command goes on, {chosen.output / 'logs'} "
            f"tells what failed"
        )


if __name__ == "__main__":
    main()
