"""Compares settings of training on several graphs and seeds: link prediction and search by words.

    python benchmarks/settings.py run FOLDER -o results/settings --graphs arxiv9196 debian_src \\
        --variant minilm --variant auto --variant 'auto:text_query_weight=0' --seeds 42,43,44
    python benchmarks/settings.py table results/settings --variant auto --against minilm

`run` trains GraphFormers once for each graph, variant and seed, in as many processes at a time as
`--at-once` says, and writes the ranks of every question; runs that are there already are skipped.
FOLDER holds a folder with nodes.parquet and edges.parquet for each graph, and the backbone minilm.
A variant is a recipe, followed by settings; `untrained` is the backbone alone, compared by cosine.

Graphs whose name ends in `:names` test queries that share no word with the text: for wordnet30 the
lemmas of a synset, whose text is reduced to its gloss; for python the words of an object's
qualified name. Queries that share a word of three letters or more with the text are left out.

`table` prints JSON: for each metric and graph the mean of both variants, and their difference with
its interval over questions and seeds, on each graph and pooled over all.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from graphformers import GraphFormers, LinkSplit, TextGraph, Trainer, build_graph, split_links
from graphformers.evaluation.metrics import METRICS
from graphformers.evaluation.ranking import model_scores, rank
from graphformers.evaluation.significance import paired_difference_over_seeds
from graphformers.evaluation.text_search import (
    TextQueries,
    backbone_search,
    known_item_queries,
    search_by_vectors,
    word_search,
)
from graphformers.graph.readers import read_graph
from graphformers.graph.settings import ImportSettings
from graphformers.training.auto import auto_recipe
from graphformers.training.recipes import Recipe, merge_settings, parse_settings

UNTRAINED, NAMES = "untrained", ":names"
# metrics of a run: P@1 among the saved candidates, MRR among all nodes, MRR of search by words
MEASURED = ("P@1", "full MRR", "search MRR")
QUERIES = 2000


@dataclass(frozen=True)
class Job:
    """One run: a graph, a variant and a seed."""

    graph: str
    variant: str
    seed: int

    def place(self, output: Path) -> Path:
        name = re.sub(r"[^\w.=-]+", "_", f"{self.graph}-{self.variant}-{self.seed}")
        return output / f"{name}.npz"


def load_split(folder: Path, name: str) -> LinkSplit:
    """The split of a graph, made and stored on first use."""
    place = folder / f"{name.replace(':', '-')}.split"
    if not place.is_dir():
        graph = make_graph(folder, name).save(place.with_suffix(".graph"), force=True)
        split_links(graph).save(place)
    return LinkSplit.load(place)


def make_graph(folder: Path, name: str) -> TextGraph:
    base = name.removesuffix(NAMES)
    if base == "python":
        return read_graph([], settings=ImportSettings(format="python"))
    nodes, edges = (pq.read_table(folder / base / f"{kind}.parquet") for kind in ("nodes", "edges"))
    if name == base:
        return build_graph(nodes, {"source": edges["src"], "target": edges["dst"]})
    rows = [
        {"id": row["id"], "text": row["text"].partition(": ")[2] or row["text"]}
        for row in nodes.to_pylist()
    ]
    return build_graph(rows, {"source": edges["src"], "target": edges["dst"]})


def queries_of(folder: Path, name: str, graph: TextGraph) -> TextQueries:
    """Known-item queries, or names that share no word with the text."""
    if not name.endswith(NAMES):
        return known_item_queries(graph, QUERIES, candidates=graph.num_nodes)
    if name == f"python{NAMES}":
        named = [(" ".join(re.findall(r"[A-Za-z]+", id)), id) for id in graph.ids.to_pylist()]
    else:
        table = pq.read_table(folder / name.removesuffix(NAMES) / "nodes.parquet").to_pylist()
        named = [(row["text"].partition(": ")[0], row["id"]) for row in table]
    texts = dict(zip(graph.ids.to_pylist(), graph.texts.to_pylist(), strict=True))
    apart = [
        pair for pair in named if pair[0] and not long_words(pair[0]) & long_words(texts[pair[1]])
    ]
    hashes = graph.id_hashes[graph.nodes_of([id for _, id in apart])]
    chosen = np.argsort(hashes)[:QUERIES]
    return TextQueries.from_ids(graph, [apart[i] for i in chosen], candidates=graph.num_nodes)


def long_words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) > 2}


def make(folder: Path, job: Job, output: Path) -> None:
    """Trains and evaluates; writes the values of every question and query."""
    split = load_split(folder, job.graph)
    queries = queries_of(folder, job.graph, split.graph)
    backbone = folder / "minilm" if (folder / "minilm").is_dir() else Path("minilm")
    facts: dict[str, Any] = {"graph": job.graph, "variant": job.variant, "seed": job.seed}
    if job.variant == UNTRAINED:
        found = {UNTRAINED: backbone_search(backbone, split.graph, queries, 128)}
        found |= word_search(split.graph, queries)
        values = {title: METRICS["MRR"](ranks) for title, ranks in found.items()}
        np.savez(job.place(output), facts=json.dumps(facts), **values)
        return
    base, _, words = job.variant.partition(":")
    given = parse_settings([*words.split(",")] * bool(words) + [f"seed={job.seed}"])
    recipe = auto_recipe(split, backbone, None, given) if base == "auto" else Recipe.load(base)
    recipe = Recipe(merge_settings(recipe.settings, given))
    model = GraphFormers.from_backbone(backbone, seed=job.seed, **recipe.model_settings())
    started = time.perf_counter()
    trained = Trainer(model, split, recipe.train_config()).train()
    facts |= {"s": time.perf_counter() - started, "steps": trained.steps, "valid": trained.valid}
    scorer = model_scores(model, split, split.test, ("saved", "full"))
    by_protocol = {
        name: rank(scorer, split.graph, split.test, name).ranks for name in ("saved", "full")
    }
    vectors = scorer.vectors_of(np.arange(split.graph.num_nodes))
    search = search_by_vectors(model, split.graph, queries, vectors, cosine=model.is_cosine)
    values = {
        "P@1": METRICS["P@1"](by_protocol["saved"]),
        "full MRR": METRICS["MRR"](by_protocol["full"]),
        "search MRR": METRICS["MRR"](search),
    }
    np.savez(job.place(output), facts=json.dumps(facts), **values)


def run(folder: Path, jobs: list[Job], output: Path, at_once: int, limit: float) -> None:
    """Runs all jobs that are not done, each in its own process, until the limit."""
    output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    for graph in dict.fromkeys(job.graph for job in jobs):
        load_split(folder, graph)
    waiting = [job for job in jobs if not job.place(output).is_file()]
    running: list[tuple[Job, subprocess.Popen[bytes]]] = []
    while waiting or running:
        while waiting and len(running) < at_once and time.monotonic() - began < limit:
            job = waiting.pop(0)
            words = [job.graph, job.variant, str(job.seed)]
            command = [sys.executable, __file__, "one", str(folder), "-o", str(output), *words]
            log = job.place(output).with_suffix(".log").open("wb")
            running.append((job, subprocess.Popen(command, stdout=log, stderr=log)))
        time.sleep(0.2)
        for job, process in [pair for pair in running if pair[1].poll() is not None]:
            running.remove((job, process))
            facts = {"graph": job.graph, "variant": job.variant, "seed": job.seed}
            print(json.dumps(facts | {"rc": process.returncode}), flush=True)
        if waiting and not running and time.monotonic() - began >= limit:
            print(f"{len(waiting)} runs are left: run the same command again", flush=True)
            return


def read(output: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The facts and values of every run."""
    for file in sorted(output.glob("*.npz")):
        with np.load(file) as found:
            values = {name: found[name] for name in found.files if name != "facts"}
            yield json.loads(str(found["facts"])), values


def table(output: Path, variant: str, against: str) -> dict[str, Any]:
    """Means and paired differences of two variants; `against` may be a system without training."""
    runs: dict[tuple[str, str], dict[str, list[Any]]] = {}
    for facts, values in read(output):
        for name, own in values.items():
            is_trained = facts["variant"] != UNTRAINED
            system, metric = (facts["variant"], name) if is_trained else (name, "search MRR")
            runs.setdefault((facts["graph"], system), {}).setdefault(metric, []).append(own)
    result: dict[str, Any] = {"variant": variant, "against": against}
    for metric in MEASURED:
        ones, others, rows = [], [], {}
        for graph in sorted({graph for graph, _ in runs}):
            pair = [runs.get((graph, system), {}).get(metric) for system in (variant, against)]
            if pair[0] is None or pair[1] is None:
                continue
            one, other = np.array(pair[0]), np.array(pair[1])
            rows[graph] = {
                "variant": float(one.mean()),
                "against": float(other.mean()),
                "seeds": [len(one), len(other)],
                "difference": paired_difference_over_seeds(one, other).to_dict(),
            }
            ones.append(one)
            others.append(other)
        if len({each.shape[0] for each in (*ones, *others)} - {1}) == 1:
            seeds = max(each.shape[0] for each in (*ones, *others))
            joined = [
                np.concatenate([np.broadcast_to(x, (seeds, x.shape[1])) for x in each], 1)
                for each in (ones, others)
            ]
            rows["pooled"] = paired_difference_over_seeds(*joined).to_dict()
        result[metric] = rows
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="trains and evaluates")
    running.add_argument("folder", type=Path)
    running.add_argument("-o", "--output", type=Path, required=True)
    running.add_argument("--graphs", nargs="+", required=True)
    running.add_argument("--variant", action="append", required=True)
    running.add_argument("--seeds", default="42")
    running.add_argument("--at-once", type=int, default=1, help="processes at a time")
    running.add_argument("--limit", type=float, default=float("inf"), help="start runs until then")
    one = commands.add_parser("one", help="one run, as `run` starts it")
    one.add_argument("folder", type=Path)
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument("job", nargs=3)
    showing = commands.add_parser("table", help="compares two variants")
    showing.add_argument("output", type=Path)
    showing.add_argument("--variant", required=True)
    showing.add_argument("--against", required=True)
    chosen = parser.parse_args()
    if chosen.command == "run":
        seeds = [int(seed) for seed in chosen.seeds.split(",")]
        # The first seed of all variants comes first, so that a part of the runs tells something.
        jobs = [
            Job(graph, variant, seed)
            for seed in seeds
            for variant in chosen.variant
            for graph in chosen.graphs
            if variant != UNTRAINED or seed == seeds[0]
        ]
        run(chosen.folder, jobs, chosen.output, chosen.at_once, chosen.limit)
    elif chosen.command == "one":
        graph, variant, seed = chosen.job
        make(chosen.folder, Job(graph, variant, int(seed)), chosen.output)
    else:
        print(json.dumps(table(chosen.output, chosen.variant, chosen.against), indent=1))


if __name__ == "__main__":
    main()
