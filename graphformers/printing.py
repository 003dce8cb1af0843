"""What commands print: tables for people, JSON for programs."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphformers.data.describe import describe_graph
from graphformers.data.graph import TextGraph
from graphformers.data.split import LinkSplit
from graphformers.data.times import moment
from graphformers.progress import amount, clock

if TYPE_CHECKING:  # torch takes seconds to import
    from collections.abc import Sequence

    from graphformers.compare.comparison import Comparison
    from graphformers.demo import Demo, Searched
    from graphformers.embedding.update import UpdateReport
    from graphformers.embedding.vectors import VectorStore
    from graphformers.retrieval.searcher import Match
    from graphformers.train.trainer import TrainResult

LONG_SECONDS = 1800.0  # of training on a CPU, from which on there is advice
JOINERS = "\u200c\u200d"  # of letters, and of emoji that are one picture


def print_import(graph: TextGraph, output: Path, as_json: bool) -> None:
    summary = {"nodes": graph.num_nodes, "pairs": graph.num_pairs, "edges": graph.edges.shape[1]}
    if as_json:
        print(json.dumps({"output": str(output), **summary, **graph.summary}, ensure_ascii=False))
        return
    print(f"{output}: {graph.num_nodes:,} nodes, {graph.num_pairs:,} linked pairs")
    if not graph.num_pairs:
        print(
            "  warning: no two nodes are linked; a graph without links cannot be split or trained "
            "on",
            file=sys.stderr,
        )
    loops, count = graph.summary.get("self_loops", 0), graph.edges.shape[1]
    kinds = {
        "repeated or turned round": count - loops - graph.num_pairs,
        "from a node to itself": loops,
    }
    if found := [f"{what}: {number:,}" for what, number in kinds.items() if number]:
        print(f"  of {count:,} edges {', '.join(found)}")
    if columns := graph.summary.get("edge_columns_not_kept"):
        print(
            f"  not kept of the edges: {', '.join(columns)}; links have a type and a time "
            f"(--column time=NAME) at most"
        )
    for name, others in graph.summary.get("other_texts", {}).items():
        every = ",".join([name, *others])
        print(
            f"  the text is {name}, not {', '.join(others)}; --column text=NAME chooses, --column "
            f"text={every} takes all"
        )
    if empty := graph.summary.get("empty_texts"):
        print(f"  kept without a text: {empty:,} nodes")
    for what, number in graph.summary["left_aside"].items():
        print(f"  left aside, as is normal for this format: {number:,} {what}")
    for what, number in graph.summary["skipped"].items():
        print(f"  skipped: {number:,} × {what}")
    for example in graph.summary["skipped_examples"]:
        print(f"    {example}")


def print_graph(graph: TextGraph, as_json: bool) -> None:
    found = describe_graph(graph)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    facts: dict[str, Any] = {
        name: f"{found[name]:,}" for name in ("nodes", "pairs", "edges", "isolated", "mean_degree")
    }
    facts |= {what: f"{number:,}" for what, number in found["left_aside"].items()}
    facts |= {f"skipped: {what}": f"{number:,}" for what, number in found["skipped"].items()}
    if found["edge_columns_not_kept"]:
        facts["not kept of the edges"] = ", ".join(found["edge_columns_not_kept"])
    facts["node columns"] = (
        ", ".join(f"{name} ({type})" for name, type in found["columns"].items()) or "none"
    )
    types = sorted(found["edge_types"].items(), key=lambda item: -item[1])
    facts["edge types"] = (
        ", ".join(f"{name or 'untyped'} {count:,}" for name, count in types[:6])
        + (" …" if len(types) > 6 else "")
        or "none"
    )
    if found["edge_times"]:
        facts["edge times"] = " to ".join(map(moment, found["edge_times"]))
    print_rows([(name.replace("_", " "), value) for name, value in facts.items()])
    percents = list(found["degree_percentiles"])
    rows = [
        (name, *(f"{found[f'{name}_percentiles'][p]:,}" for p in percents))
        for name in ("degree", "words")
    ]
    print_rows(rows, ["percentile", *percents])
    for sample in found["samples"]:
        print(
            f"\n{shorten(sample['id'])}: {shorten(sample['text'])}  [{sample['degree']} neighbours]"
        )
        for neighbor in sample["neighbors"]:
            print(f"    {shorten(neighbor['id'])}: {shorten(neighbor['text'])}")


def print_split(split: LinkSplit, as_json: bool) -> None:
    table = split.table()
    facts = {
        "held_out": split.settings.held_out,
        "held_out_nodes": len(split.held_out_nodes),
        "candidates": split.test.candidates.shape[1],
        "seed": split.settings.seed,
        "graph": "" if split.graph.artifact is None else str(split.graph.artifact.path),
        "notes": list(split.notes),
    }
    if as_json:
        print(json.dumps({**table, **facts}, ensure_ascii=False))
        return
    print_rows([tuple(f"{value:,}" for value in table.values())], list(table))
    print("#N: neighbours per node that models may see, on average")
    print(
        f"held out: {split.settings.held_out}; {facts['candidates']} candidates per question; seed "
        f"{split.settings.seed}"
    )
    print(f"graph: {facts['graph']}")
    for note in split.notes:
        print(f"note: {note}")


def print_forecast(found: dict[str, Any], as_json: bool) -> None:
    """What a run would take."""
    if as_json:
        print(json.dumps(found))
        return
    memory = f"{found['memory_gib']:.1f} GiB" + (
        f", {found['gpu_memory_gib']:.1f} GiB on the GPU" if found["gpu_memory_gib"] else ""
    )
    rows = {
        "method": f"{found['method']}, {found['parameters']:,} parameters, on {found['device']}",
        "steps": (
            f"{found['steps_per_epoch']:,} an epoch of {found['pairs']:,} "
            f"pairs, {found['steps_at_most']:,} at most"
        ),
        "memory": f"{memory}; {found['checkpoint_gib']:.1f} GiB on disk",
        "a step": f"{found['seconds_per_step']:.3f} s",
        "a validation": f"{found['seconds_per_validation']:.0f} s",
        "time": (
            f"{clock(found['seconds_at_most'])} at most, measured on {found['steps_tried']} steps"
        ),
    }
    if found["device"] == "cpu" and found["seconds_at_most"] > LONG_SECONDS:
        own = found["settings"]
        advice = {
            "batch_size=64": own["batch_size"] > 64,
            "num_neighbors=5": own["num_neighbors"] > 5,
            "neighbor_gradients=false": own["neighbor_gradients"] and own["num_neighbors"] > 0,
            "max_steps=200": found["steps_at_most"] > 200,
        }
        rows["for less"] = (
            ", ".join(f"--set {words}" for words, is_less in advice.items() if is_less)
            or "max_steps, max_seconds"
        )
    print_rows(list(rows.items()))


def print_training(result: "TrainResult", output: Path, as_json: bool) -> None:
    """How a run went."""
    shown = ("stage", "epoch", "step", "loss", "P@1", "NDCG", "MRR", "pairs_per_second")
    history = [
        {name: entry[name] for name in shown}
        for entry in result.history
        if entry["kind"] == "validation"
    ]
    if as_json:
        summary = {
            "output": str(output),
            "valid_P@1": result.valid,
            "steps": result.steps,
            "seconds": round(result.seconds, 1),
        }
        print(json.dumps(summary | {"start_P@1": result.start, "history": history}))
        return
    rows = [
        tuple(
            f"{value:.4f}" if isinstance(value, float) else f"{value:,}" for value in entry.values()
        )
        for entry in history
    ]
    print_rows(rows, [name.replace("_per_", "/").replace("second", "s") for name in shown])
    before = "" if result.start is None else f" ({result.start:.4f} before training)"
    took = f"{result.steps:,} steps in {clock(result.seconds)}"
    print(f"\n{output}: the model of the best validation, P@1 {result.valid:.4f}{before}; {took}")


def print_embedding_forecast(found: dict[str, Any], as_json: bool) -> None:
    """What an embedding would take."""
    if as_json:
        print(json.dumps(found))
        return
    sizes = {kind: amount(1e9 * found[f"{kind}_gb"], "B") for kind in ("vectors", "states")}
    states = (
        "no states"
        if found["states"] == "none"
        else f"{sizes['states']} of states ({found['states']})"
    )
    rows = {
        "method": f"{found['method']}, {found['neighbors']} neighbours, on {found['device']}",
        "nodes": f"{found['nodes']:,} in {found['shards']:,} shards",
        "time": f"{clock(found['seconds'])}, measured on {found['nodes_tried']:,} nodes",
        "disk": f"{sizes['vectors']} of vectors, {states}",
    }
    print_rows(list(rows.items()))


def print_model(path: Path, as_json: bool) -> None:
    """What a model is, how it reads, and how it was trained."""
    from graphformers.embedding.states import model_fingerprint
    from graphformers.model.backbones import training_of
    from graphformers.model.encoder import GraphFormers

    model = GraphFormers.from_pretrained(path, device="cpu")
    config, training = model.config, training_of(path)
    facts: dict[str, Any] = {
        "kind": "model",
        "model": model_fingerprint(model)[:12],
        "method": config.method,
    }
    facts |= {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    names = ("num_layers", "hidden_size", "max_tokens", "num_neighbors", "pooling", "similarity")
    facts |= {name: getattr(config, name) for name in names}
    if as_json:
        trained = {name: training.get(name) for name in ("steps", "seconds", "valid")}
        print(json.dumps({"output": str(path), **facts, **trained}))
        return
    facts["trained"] = (
        f"{training['steps']:,} steps in {training['seconds']:.0f} s" if training else "no"
    )
    if valid := training.get("valid"):
        facts["valid P@1"] = f"{valid['P@1']:.4f}, at step {valid['step']:,}"
    print_rows(
        [
            (name.replace("_", " "), f"{value:,}" if isinstance(value, int) else value)
            for name, value in facts.items()
        ]
    )


def print_vectors(store: "VectorStore", as_json: bool) -> None:
    """What a folder of vectors holds."""
    from graphformers.embedding.compaction import most_bytes

    settings = store.settings
    facts = {
        "vectors": len(store),
        "size": store.size,
        "precision": store.precision,
        "similarity": settings["similarity"],
        "method": settings["method"],
        "neighbors": settings["num_neighbors"],
        "states": settings["states"]["key"]["precision"] if settings["states"] else None,
        "log_bytes": store.log.end,
        "compacted_at": most_bytes(store),
        "unfinished_bytes": store.log.unfinished,
        "model": store.key.model[:12],
    }
    if as_json:
        print(json.dumps({"output": str(store.path), **facts}))
        return
    kept = f"states in {facts['states']}" if facts["states"] else "no states"
    print(
        f"{store.path}: {len(store):,} vectors of {store.size} numbers, {store.precision}, {kept}"
    )
    print(
        f"by {facts['method']}, model {facts['model']}, {facts['neighbors']} neighbours, compared "
        f"by {facts['similarity']}"
    )
    if store.log.end:
        size, limit = (amount(number, "B") for number in (store.log.end, facts["compacted_at"]))
        print(
            f"{size} of changes in its log, which is compacted by itself at {limit}, or when many "
            f"vectors changed"
        )


def print_update(report: "UpdateReport", vectors: Path, as_json: bool) -> None:
    """What an update did."""
    found = vars(report) | {"forwards": report.forwards}
    if as_json:
        print(json.dumps({"output": str(vectors), **found}))
        return
    names = (
        "new_nodes",
        "changed_nodes",
        "removed_nodes",
        "new_links",
        "removed_links",
        "already_so",
    )
    done = ", ".join(f"{found[name]:,} {name.replace('_', ' ')}" for name in names if found[name])
    print(f"{vectors}: {done or 'nothing to change'}; {report.nodes:,} vectors now")
    print(
        f"{report.forwards:,} forwards in {report.seconds:.2f} s: {report.plain_forwards:,} texts "
        f"read on their own, "
        f"{report.center_forwards:,} nodes read with their neighbours"
    )
    if report.is_compacted:
        print("the changes were compacted into a new base")
    if report.linked_otherwise:
        one, other, kind = report.linked_otherwise[0]
        words = (
            f"{len(report.linked_otherwise):,} links, such as {one!r} – "
            f"{other!r}, which have no link of type {kind!r}"
        )
        print(f"to be removed, but linked otherwise: {words}")
    if report.not_there:
        print(
            f"to be removed, but not there: {len(report.not_there):,} ids, such as "
            f"{report.not_there[0]!r}"
        )
    if report.self_links:
        print(f"left out: {report.self_links:,} links from a node to itself")
    for what, number in report.skipped.items():
        print(f"skipped: {number:,} × {what}")
    for name in report.new_columns:
        print(f"a new column: {name!r}, which no node had before")
    if report.columns_not_kept:
        left, advice = (
            ", ".join(report.columns_not_kept),
            f"--keep {','.join(report.columns_not_kept)} keeps them",
        )
        print(f"not kept of the nodes: {left}, as when the graph was imported; {advice}")
    if report.edge_columns_not_kept:
        print(
            f"not kept of the edges: {', '.join(report.edge_columns_not_kept)}; links that an "
            f"update adds have a type at most"
        )


def print_comparison(found: "Comparison", as_json: bool) -> None:
    """The tables of a comparison, what they say, and where the report lies."""
    if as_json:
        print(found.numbers.read_text(encoding="utf-8"), end="")
        return
    for table in found.tables:
        print(f"{table.title}\n")
        print_rows([tuple(row) for row in table.rows], list(table.header))
        print()
    for line in found.results.words:
        print(f"- {line}")
    print(f"\n{found.report}: the report; numbers in {found.numbers.name}")


def print_demo(demo: "Demo", as_json: bool) -> None:
    """The graph of the demo, what was learnt on it, and what to type next."""
    if as_json:
        found = {
            "graph": describe_graph(demo.graph),
            "split": demo.split.table(),
            "test": demo.comparison.results.table(),
        }
        print(
            json.dumps(
                found | {"search": [match.table() for match in demo.found.matches]},
                ensure_ascii=False,
            )
        )
        return
    print_graph(demo.graph, as_json)
    print(
        "\nWhich docstring is linked to this one? The true one among its candidates, on links held "
        "out from training."
    )
    print(
        "Both models were trained for the same time; with neighbours to read, a step takes "
        "longer.\n"
    )
    print_comparison(demo.comparison, as_json)
    split = demo.split.artifact.path if demo.split.artifact else ""
    print(f"\nThe model is in {demo.model}: graphformers evaluate {demo.model} {split}")
    print_searched(demo.found)


def print_searched(found: "Searched") -> None:
    """What the demo's search found, and what to type next."""
    print(
        f"\nThe vectors of all docstrings are in {found.vectors}. A search for {found.query!r}:\n"
    )
    print_matches(found.matches, as_json=False)
    print(
        f"\nNext: make serve (a page to search in), or graphformers search {found.vectors} 'your "
        f"words'"
    )


def print_matches(found: "Sequence[Match]", as_json: bool) -> None:
    """What a search found, one line each."""
    if as_json:
        # bytes, say, are no JSON
        print(json.dumps([match.table() for match in found], ensure_ascii=False, default=str))
        return
    if not found:
        print("nothing found")
        return
    rows = []
    for match in found:
        own = ["" if value is None else shorten(str(value), 40) for value in match.columns.values()]
        rows.append((f"{match.score:.3f}", shorten(match.id, 40), *own, shorten(match.text)))
    print_rows(rows, ["score", "id", *found[0].columns, "text"])


def print_rows(rows: list[tuple[str, ...]], header: list[str] | None = None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        *(header or ["", ""]), show_header=header is not None, box=None, padding=(0, 2, 0, 0)
    )
    for row in rows:
        table.add_row(*(Text(_plain(cell)) for cell in row))
    # a narrow terminal breaks lines better than cells
    Console(soft_wrap=True, highlight=False, width=1000).print(table)


def _plain(text: str) -> str:
    """Without control characters: a text may hold anything, the terminal should not obey it.
    Joiners are part of words.
    """
    return "".join(letter if letter.isprintable() or letter in JOINERS else " " for letter in text)


def shorten(text: str, width: int = 100) -> str:
    text = _plain(text)
    return text if len(text) <= width else text[: width - 1] + "…"
