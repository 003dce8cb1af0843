"""What is recorded. Every part is a function of a recorder and of the adapter, and stands alone."""

import asyncio
import contextlib
import hashlib
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import samples

# left out of everything: times, versions, fingerprints, and sizes of files
CHANGING = {
    "seconds",
    "pairs_per_second",
    "nodes_per_second",
    "data_wait",
    "fullness",
    "uptime",
    "version",
    "versions",
    "device",
    "model",
    "fingerprint",
    "log_bytes",
    "edit_bytes",
    "compacted_at",
    "unfinished_bytes",
    "size_bytes",
}
SMALL = {
    "hidden_size": 16,
    "num_layers": 3,
    "num_heads": 2,
    "intermediate_size": 24,
    "max_positions": 40,
    "max_tokens": 10,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
METHODS = ("graphformers", "plm", "gat", "max", "mean", "att", "tnve", "iftn")


class Recorder:
    """Keeps arrays and JSON values by name."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.values: dict[str, Any] = {}
        # added to a column of the word vectors of every model, to see that it is noticed
        self.perturb = 0.0

    def put(self, name: str, value: Any) -> None:
        """Arrays as such, dicts entry by entry where they hold arrays, everything else as JSON."""
        assert name not in self.arrays, name
        assert name not in self.values, name
        if isinstance(value, np.ndarray):
            self.arrays[name] = value
        elif isinstance(value, dict) and has_arrays(value):
            for key, each in value.items():
                self.put(f"{name}/{key}", each)
        else:
            self.values[name] = json.loads(json.dumps(without(value, CHANGING), default=plain))


def without(value: Any, names: set[str]) -> Any:
    """JSON without some fields, wherever they stand."""
    if isinstance(value, dict):
        return {key: without(each, names) for key, each in value.items() if key not in names}
    return [without(each, names) for each in value] if isinstance(value, list | tuple) else value


def has_arrays(value: Any) -> bool:
    """Whether an array stands in a dict, or in one of its dicts."""
    if isinstance(value, dict):
        return any(has_arrays(each) for each in value.values())
    return isinstance(value, np.ndarray)


def plain(value: Any) -> Any:
    """Numbers of numpy as Python's own; other things, such as paths, as text."""
    return value.item() if isinstance(value, np.generic) else str(value)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="golden-") as place:
        yield Path(place)


def make_graph(adapter: Any) -> Any:
    nodes = samples.make_nodes()
    return adapter.build_graph(nodes, samples.make_links(nodes["id"]))


def make_model(
    recorder: Recorder, adapter: Any, scale: float, known: Any = None, **changes: Any
) -> Any:
    """A model whose weights come from their names; two of three nodes of `known` have vectors."""
    model = adapter.make_model(adapter.make_tokenizer(samples.tokenizer_json()), SMALL | changes)
    if known is not None:
        adapter.know_nodes(model, known, np.flatnonzero(np.arange(samples.NUM_NODES) % 3))
    weights = {
        name: samples.weight(name, found.shape, scale)
        for name, found in adapter.get_weights(model).items()
    }
    # of one column: a norm would take off what is added to a whole row
    weights[next(name for name in weights if name.endswith("words.weight"))][:, 0] += (
        recorder.perturb
    )
    adapter.set_weights(model, weights)
    return model


def nodes_of(count: int) -> np.ndarray:
    return np.arange(count)


# ---- splits


def splits(recorder: Recorder, adapter: Any) -> None:
    """The graph, splits, drawn neighbours, token ids, batches, graphs from foreign files."""
    graph = make_graph(adapter)
    recorder.put("splits/graph", adapter.graph_facts(graph))
    ways = {
        "links": {"valid": 60, "test": 60, "candidates": 20},
        "shares": {"valid": 0.05, "test": 0.1, "seed": 7},
        "latest": {"held_out": "latest-links", "valid": 40, "test": 40, "candidates": 10},
        "nodes": {"held_out": "nodes", "valid": 15, "test": 20, "candidates": 12},
        "few": {"valid": 30, "test": 30, "max_train": 200, "candidates": 5},
    }
    for name, settings in ways.items():
        recorder.put(f"splits/{name}", adapter.split_facts(adapter.make_split(graph, settings)))
    split = adapter.make_split(graph, ways["links"])
    everyone = nodes_of(samples.NUM_NODES)
    for source, title in ((graph, "graph"), (split, "split")):
        for count, seed, epoch in ((5, 42, 0), (5, 42, 3), (2, 1, 0), (0, 42, 0), (400, 42, 0)):
            drawn = adapter.sample(source, count, seed, everyone, epoch)
            recorder.put(f"sampling/{title}/{count}-{seed}-{epoch}/indptr", drawn[0])
            recorder.put(f"sampling/{title}/{count}-{seed}-{epoch}/neighbors", drawn[1])
    facts = adapter.graph_facts(graph)
    linked = np.flatnonzero(np.diff(facts["indptr"]))
    first = facts["indices"][facts["indptr"][linked]]
    drawn = adapter.sample(graph, 4, 42, linked, 1, first)
    recorder.put("sampling/without_one/indptr", drawn[0])
    recorder.put("sampling/without_one/neighbors", drawn[1])
    tokenizer = adapter.make_tokenizer(samples.tokenizer_json())
    for most in (4, 12, 40):
        ids = adapter.token_ids(graph, tokenizer, everyone, most)
        recorder.put(f"tokens/{most}/ids", ids[0])
        recorder.put(f"tokens/{most}/indptr", ids[1])
    for epoch, share in ((0, 0.15), (1, 0.15), (0, 0.5)):
        settings = {"mask_share": share, "seed": 42}
        ids = adapter.polluted_ids(graph, tokenizer, everyone, 12, settings, epoch)
        recorder.put(f"polluted/{epoch}-{share}", ids[0])
    for name, changes in {
        "graphformers": {},
        "bidirectional": {"direction": "bidirectional"},
        "max": {"method": "max"},
    }.items():
        model = make_model(recorder, adapter, 0.1, **changes)
        recorder.put(f"packed/{name}", adapter.packed_counts(model, graph, nodes_of(150)))
    _batches(recorder, adapter, split)
    _saved(recorder, adapter, graph, split)
    _imports(recorder, adapter)


def _batches(recorder: Recorder, adapter: Any, split: Any) -> None:
    wanted = [(0, 0, False), (0, 1, True), (2, 0, False), (2, 5, True)]
    for name, changes in {
        "plain": {},
        "symmetric": {"symmetric": True, "popularity": True},
        "neighbor_dropout": {"neighbor_dropout": 0.5},
        "all_negatives": {"leave_out": False, "seed": 3},
    }.items():
        model = make_model(recorder, adapter, 0.1)
        found = adapter.training_batches(
            model, split, {"batch_size": 32, "workers": 0} | changes, wanted
        )
        for key, batch in zip(wanted, found, strict=True):
            recorder.put(f"batches/{name}/{key[0]}-{key[1]}", batch)


def _saved(recorder: Recorder, adapter: Any, graph: Any, split: Any) -> None:
    """What is read back from disk."""
    with folder() as place:
        saved = adapter.save_graph(graph, place / "a.graph")
        recorder.put("saved/graph", adapter.graph_facts(adapter.load_graph(place / "a.graph")))
        made = adapter.make_split(saved, {"valid": 60, "test": 60, "candidates": 20})
        adapter.save_split(made, place / "a.split")
        recorder.put("saved/split", adapter.split_facts(adapter.load_split(place / "a.split")))


def _imports(recorder: Recorder, adapter: Any) -> None:
    for name, (format, files, nodes, edges, settings) in samples.SOURCES.items():
        with folder() as place:
            for file, content in files.items():
                (place / file).write_text(content, encoding="utf-8")
            ends = [place / file for file in edges]
            graph = adapter.read_graph(format, [place / file for file in nodes], ends, settings)
        recorder.put(f"import/{name}", adapter.graph_facts(graph))
    with folder() as place:
        samples.write_tables(place)
        for name, settings in {
            "strict": {},
            "all": {"skip_bad": True},
            "empty": {"skip_bad": True, "keep_empty": True},
        }.items():
            try:
                facts = adapter.graph_facts(
                    adapter.read_graph("tables", [place / "bad.csv"], [], settings)
                )
                facts["summary"].pop("skipped_examples", None)
            except Exception as error:
                facts = {"refused": type(error).__name__}
            recorder.put(f"import/bad-{name}", facts)
        (place / "shapes").mkdir()
        for file, content in samples.PYTHON.items():
            (place / "shapes" / file).write_text(content, encoding="utf-8")
        sys.path.append(str(place))
        importlib.invalidate_caches()
        recorder.put(
            "import/python", adapter.graph_facts(adapter.read_graph("python", ["shapes"], [], {}))
        )
        sys.path.remove(str(place))


# ---- training

STEPS = {
    "batch_size": 32,
    "learning_rate": 1e-3,
    # gradients that are zero but for rounding (of the keys' biases) must not move weights
    "epsilon": 1e-4,
    "epochs": 100,
    "patience": 100,
    "max_steps": 40,
    "validate_steps": 10,
    "workers": 0,
}
# name: settings of the model, settings of the training
TRAININGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "graphformers": ({}, {}),
    "bidirectional": ({"direction": "bidirectional"}, {}),
    "own_gnn": ({"share_gnn": False, "position_bias": False}, {}),
    **{method: ({"method": method}, {}) for method in METHODS[1:]},
    "fixed_neighbors": ({}, {"neighbor_gradients": False}),
    "fixed_neighbors_max": ({"method": "max"}, {"neighbor_gradients": False}),
    "neighbor_dropout": ({}, {"neighbor_dropout": 0.5}),
    "cosine": (
        {"similarity": "cosine"},
        {"popularity": True, "symmetric": True, "temperature": 0.05},
    ),
    "chunks": ({}, {"chunk_size": 10}),
    "chunks_max": ({"method": "max"}, {"chunk_size": 10}),
    "chunks_bidirectional": ({"direction": "bidirectional"}, {"chunk_size": 10}),
    "pooling": ({"pooling": "mean"}, {}),
    "relative": ({"relative_buckets": 8}, {}),
    "dropout": ({"dropout": 0.1, "attention_dropout": 0.1}, {}),
    "dropout_chunks": (
        {"dropout": 0.1, "attention_dropout": 0.1},
        {"chunk_size": 12, "neighbor_gradients": False},
    ),
    "dropout_neighbors": ({"dropout": 0.1, "attention_dropout": 0.1}, {"chunk_size": 12}),
    "dropout_neighbors_max": ({"method": "max", "dropout": 0.1}, {"chunk_size": 12}),
    "dropout_tnve": ({"method": "tnve", "dropout": 0.1}, {"chunk_size": 12}),
    "schedule": (
        {},
        {
            "warmup": 0.25,
            "decay": "linear",
            "weight_decay": 0.01,
            "max_norm": 0.5,
            "graph_factor": 5.0,
            "beta1": 0.8,
            "beta2": 0.95,
            "first_share": 0.3,
        },
    ),
    "one_stage": (
        {"num_neighbors": 3},
        {"two_stage": False, "warmup": 5.0, "decay": "cosine", "leave_out": False, "seed": 7},
    ),
    "usual_epsilon": ({}, {"epsilon": 1e-8}),
    "no_neighbors": ({"num_neighbors": 0}, {"mask_share": 0.4}),
    "epochs": (
        {},
        {"max_steps": None, "validate_steps": None, "epochs": 1, "patience": 1, "max_valid": 25},
    ),
    "two_layers": ({"num_layers": 2, "pooling": "mean", "max_tokens": 6}, {}),
}


def training(recorder: Recorder, adapter: Any) -> None:
    """Losses, gradients, rates, validations and weights of short runs."""
    graph = make_graph(adapter)
    split = adapter.make_split(graph, {"valid": 60, "test": 60, "candidates": 20})
    for name, (changes, settings) in TRAININGS.items():
        # so large that neighbours, stages and chunks each matter
        scale = 0.1 if changes.get("method") in METHODS[6:] else 0.5
        model = make_model(recorder, adapter, scale, graph, **changes)
        put_training(
            recorder,
            f"training/{name}",
            adapter,
            model,
            adapter.train(model, split, STEPS | settings),
        )
        recorder.put(
            f"training/{name}/vectors", adapter.encode_nodes(model, graph, nodes_of(20), split)
        )
    with folder() as place:
        samples.write_backbone(place / "backbone")
        for method in METHODS:
            settings = {"max_tokens": 10, "num_neighbors": 4}
            model = adapter.from_backbone(place / "backbone", method, 42, settings)
            recorder.put(f"start/{method}/weights", adapter.get_weights(model))
            output = place / f"{method}.model"
            found = adapter.train(
                model, split, STEPS | {"max_steps": 8, "validate_steps": 4}, output
            )
            put_training(recorder, f"start/{method}", adapter, model, found)
            loaded = adapter.load_model(output)
            recorder.put(
                f"start/{method}/vectors", adapter.encode_nodes(loaded, graph, nodes_of(20))
            )


def put_training(
    recorder: Recorder, name: str, adapter: Any, model: Any, found: dict[str, Any]
) -> None:
    kept = adapter.get_weights(model)
    for kind, weights in (("last", found.pop("last")), ("kept", kept)):
        digest = hashlib.sha256()
        for each in sorted(weights):
            digest.update(each.encode() + weights[each].tobytes())
        recorder.put(f"{name}/{kind}", weights)
        recorder.put(f"{name}/{kind}_sha256", digest.hexdigest())
    for each in ("loss", "norm", "learning_rate", "stage", "epoch"):
        recorder.put(f"{name}/{each}", found.pop(each))
    recorder.put(f"{name}/told", found)


# ---- vectors

READINGS: dict[str, dict[str, Any]] = {
    **{method: {"method": method} for method in METHODS},
    **{
        f"{method}-neighbors-{count}": {"method": method, "num_neighbors": count}
        for method in METHODS[:6]
        for count in (0, 3, 7)
    },
    **{f"{method}-pooling": {"method": method, "pooling": "mean"} for method in METHODS[:6]},
    **{f"{method}-relative": {"method": method, "relative_buckets": 8} for method in METHODS[:6]},
    "bidirectional": {"direction": "bidirectional"},
    "bidirectional-own": {
        "direction": "bidirectional",
        "share_gnn": False,
        "position_bias": False,
    },
    "bidirectional-pooling": {
        "direction": "bidirectional",
        "pooling": "mean",
        "relative_buckets": 8,
        "num_neighbors": 7,
    },
    "own-gnn": {"share_gnn": False},
    "no-bias": {"position_bias": False},
    "gat-no-bias": {"method": "gat", "position_bias": False},
    "cosine": {"similarity": "cosine"},
    "short": {"max_tokens": 5},
    "long": {"max_tokens": 40},
    "one-layer": {"num_layers": 1},
    "two-layers": {"num_layers": 2},
    "tanh": {"activation": "gelu_new", "layer_norm_eps": 1e-5},
    "near-buckets": {"relative_buckets": 4, "relative_distance": 4},
}
BASE = {
    "hidden_size": 24,
    "num_layers": 4,
    "num_heads": 3,
    "intermediate_size": 40,
    "max_tokens": 12,
}


def vectors(recorder: Recorder, adapter: Any) -> None:
    """Vectors of nodes and texts for every method and variant."""
    graph = make_graph(adapter)
    for name, changes in READINGS.items():
        put_vectors(recorder, f"vectors/{name}", adapter, graph, BASE | changes)
    for family in samples.FAMILIES:
        with folder() as place:
            samples.write_backbone(place / "backbone", family)
            settings = {"max_tokens": 12, "num_neighbors": 4}
            model = adapter.convert(place / "backbone", settings)
        recorder.put(f"backbones/{family}/weights", adapter.get_weights(model))
        recorder.put(f"backbones/{family}/nodes", adapter.encode_nodes(model, graph, nodes_of(50)))


def put_vectors(
    recorder: Recorder, name: str, adapter: Any, graph: Any, changes: dict[str, Any]
) -> None:
    model = make_model(recorder, adapter, 0.2, graph, **changes)
    some, texts = nodes_of(200), samples.make_texts(30)
    around = [texts[i : i + i % 6] + texts[:1] * (i % 2) for i in range(20)]
    found = {
        "nodes": adapter.encode_nodes(model, graph, some),
        "nodes_of_two": adapter.encode_nodes(model, graph, some[::-7], graph, 2),
        "from_states": adapter.encode_with_states(model, graph, some),
        "at_once": adapter.encode_at_once(model, graph, some),
        "texts": adapter.encode(model, texts[:20], around),
        "alone": adapter.encode(model, texts[:20], normalize=True),
        "one": adapter.encode(model, texts[3], texts[4:9]),
        "empty": adapter.encode(model, ["", "naïve 漢字 x9"], [[""], []]),
    }
    states = adapter.text_states(model, graph, nodes_of(50))
    if states is not None:
        found["states"] = states
    weights, vector = adapter.attention(model, texts[3], texts[4:9])
    recorder.put(name, found | {"attention": weights, "attention_vector": vector})
    recorder.put(
        f"{name}/similarity", adapter.similarity(model, found["texts"][:3], found["nodes"][:9])
    )


# ---- store

STORES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # name: settings of the model, settings of the embedding
    "graphformers": ({}, {"states_precision": "float32"}),
    "half_states": ({"share_gnn": False}, {}),
    "int8": ({"similarity": "cosine"}, {"precision": "int8", "seed": 7}),
    "float16": ({"pooling": "mean"}, {"precision": "float16", "num_neighbors": 2}),
    "no_states": ({}, {"keep_states": False}),
    "memory": ({}, {"states": "memory", "states_precision": "float32"}),
    "bidirectional": ({"direction": "bidirectional"}, {}),
    "max": ({"method": "max"}, {"states_precision": "float32"}),
    "gat": ({"method": "gat"}, {}),
    "plm": ({"method": "plm"}, {}),
    "tnve": ({"method": "tnve"}, {}),
}


def update_steps(ids: list[str]) -> list[dict[str, Any]]:
    """Three updates: what is new, what is changed, what is gone; and then many at once."""
    draw = samples.Draw(5)
    many = [
        {"id": f"m{i}", "text": " ".join(samples.make_texts(3, seed=i)), "year": 2000 + i}
        for i in range(60)
    ]
    return [
        {
            "nodes": [
                {"id": "new/1", "text": "a graph of new nodes", "year": 2011},
                {"id": "new 2", "text": "another text", "venue": "West"},
                {"id": "new-3", "text": "nobody knows it"},
            ],
            "links": [
                ("new/1", ids[7], "cites"),
                (ids[3], "new/1", None),
                ("new 2", "new/1", "likes"),
                (ids[20], ids[21], "cites"),
                (ids[20], ids[21], "cites"),
                (ids[4], ids[4], None),
            ],
        },
        {
            "nodes": [
                {"id": ids[7], "text": "the hub says something else"},
                {"id": ids[8], "text": "changed", "year": 1970},
            ],
            "removed": [ids[9], ids[10], "nobody"],
            "unlinked": [(ids[20], ids[21]), (ids[7], ids[27]), ("new/1", ids[7], "extends")],
        },
        {
            "nodes": many,
            "links": [
                (f"m{i}", draw.one(ids[20:290]), draw.one(["cites", None]))
                for i in range(60)
                for _ in range(3)
            ],
            "removed": ["new 2"],
        },
    ]


def store(recorder: Recorder, adapter: Any) -> None:
    """An embedded graph, before and after updates: vectors, states, graph, searches."""
    graph = make_graph(adapter)
    ids = samples.make_nodes()["id"]
    for name, (changes, settings) in STORES.items():
        model = make_model(recorder, adapter, 0.2, graph, **BASE | changes)
        with folder() as place:
            adapter.save_model(model, place / "a.model")
            model = adapter.load_model(place / "a.model")
            saved = adapter.save_graph(graph, place / "a.graph")
            adapter.embed(model, saved, place / "a.vectors", {"shard_size": 64} | settings)
            put_store(recorder, f"store/{name}/0", adapter, place / "a.vectors", model)
            for number, given in enumerate(update_steps(ids), 1):
                report = adapter.update(model, place / "a.vectors", given)
                recorder.put(f"store/{name}/{number}/report", report)
                put_store(recorder, f"store/{name}/{number}", adapter, place / "a.vectors", model)
            adapter.compact(place / "a.vectors")
            put_store(recorder, f"store/{name}/compacted", adapter, place / "a.vectors", model)
            adapter.export(place / "a.vectors", place / "out.npy")
            recorder.put(f"store/{name}/exported", np.load(place / "out.npy"))


def put_store(recorder: Recorder, name: str, adapter: Any, place: Path, model: Any) -> None:
    found = adapter.store_facts(place)
    graph, states = found.pop("graph"), found.pop("states")
    if states is not None:
        recorder.put(f"{name}/states", states)
    recorder.put(
        f"{name}/graph",
        {
            each: graph[each]
            for each in ("ids", "texts", "columns", "indptr", "indices", "edges", "types")
        },
    )
    recorder.put(name, found)
    ids, some = found["ids"], found["vectors"][5] * 0.7 + found["vectors"][30] * 0.3
    for way, exact in (("exact", True), ("indexed", False)):
        searcher = adapter.open_search(place, model, exact, ["year", "venue"])
        asked = {
            "similar": ("similar", ids[20], 5, {}),
            "hub": ("similar", ids[7], 8, {"where": ["year>=1995", "venue~o"]}),
            "links": ("links", ids[7], 6, {}),
            "text": ("text", "graph of new nodes", 5, {"near": [ids[20], ids[31]]}),
            "words": ("text", "search index", 3, {"where": ["year in 1995,1996,1997"]}),
            "vector": ("vector", some, 7, {}),
        }
        for label, (kind, query, k, more) in asked.items():
            recorder.put(f"{name}/{way}/{label}", adapter.search(searcher, kind, query, k, **more))


# ---- evaluation


def evaluation(recorder: Recorder, adapter: Any) -> None:
    """Ranks, metrics, slices, baselines, paired tests, and a small comparison."""
    graph = make_graph(adapter)
    for held_out in ("links", "nodes"):
        split = adapter.make_split(
            graph,
            {"held_out": held_out, "valid": 40, "test": 40, "candidates": 20},
        )
        recorder.put(f"baselines/{held_out}", adapter.baselines(split, 5))
        recorder.put(f"slices/{held_out}", adapter.slices(split))
        for name, changes in {
            "graphformers": {},
            "cosine": {"similarity": "cosine", "method": "max"},
        }.items():
            model = make_model(recorder, adapter, 0.2, graph, **changes)
            for protocol in ("saved", "in-batch", "full"):
                for asked in ("test", "valid"):
                    found = adapter.evaluate(model, split, protocol, asked)
                    recorder.put(f"evaluate/{held_out}/{name}/{protocol}/{asked}", found)
            recorder.put(f"evaluate/{held_out}/{name}/scores", adapter.listed_scores(model, split))
    recorder.put(
        "evaluate/in_batch",
        adapter.in_batch_candidates(adapter.split_facts(split)["test_pairs"], 7),
    )
    draw = samples.Draw(9)
    for name, count, most in (("many", 500, 20), ("few", 5, 3), ("one", 1, 2), ("none", 30, 1)):
        better = np.array([draw.below(most) for _ in range(count)])
        tied = np.array([draw.below(3) if draw.chance(0.3) else 0 for _ in range(count)])
        recorder.put(f"metrics/{name}", adapter.metrics(better, tied))
    ranks = np.array([[draw.below(4) for _ in range(80)] for _ in range(6)])
    chances = 1 / (1 + ranks)
    recorder.put("paired/questions", adapter.difference(chances[0], chances[1]))
    recorder.put("paired/same", adapter.difference(chances[0], chances[0]))
    recorder.put("paired/seeds", adapter.difference(chances[:3], chances[3:]))
    recorder.put("paired/one_seed", adapter.difference(chances[:3] * 1.0, chances[3:4] * 0.5))
    _comparison(recorder, adapter, graph)


def _comparison(recorder: Recorder, adapter: Any, graph: Any) -> None:
    with folder() as place:
        samples.write_backbone(place / "backbone")
        saved = adapter.save_graph(graph, place / "a.graph")
        split = adapter.save_split(
            adapter.make_split(saved, {"valid": 40, "test": 40, "candidates": 20}),
            place / "a.split",
        )
        nodes = nodes_of(20)
        recorder.put(
            "baselines/untrained", adapter.untrained_vectors(place / "backbone", graph, nodes, 10)
        )
        settings = {
            "batch_size": 32,
            "learning_rate": 3e-3,
            "epsilon": 1e-4,
            "max_steps": 6,
            "workers": 0,
            "num_neighbors": 3,
            "max_tokens": 10,
            "max.learning_rate": 1e-3,
        }
        methods = ["plm", "max.one-stage", "graphformers", "graphformers.simplified"]
        found = adapter.compare_methods(
            split, place / "report", place / "backbone", settings, methods, (1, 2)
        )
        recorder.put("compare", found)


# ---- server

Request = tuple[str, str, str, Any]  # name, method, address, body


def requests(ids: list[str]) -> list[Request]:
    """Every endpoint: what it gives, what it refuses, and what it gives after changes."""

    def at(id: str, rest: str = "") -> str:
        return f"/nodes/{quote(id, safe='')}{rest}"

    search, embeddings = "/search", "/v1/embeddings"
    reading: list[Request] = [
        ("health", "GET", "/health", None),
        ("ready", "GET", "/ready", None),
        ("info", "GET", "/info", None),
        ("node", "GET", at(ids[20]), None),
        ("node_strange", "GET", at(ids[0]), None),
        ("node_part", "GET", at(ids[7], "?limit=3&start=2"), None),
        ("similar", "GET", at(ids[20], "/similar"), None),
        (
            "similar_where",
            "GET",
            at(ids[7], "/similar?k=4&where=year%3E%3D1995&where=venue%3DNorth"),
            None,
        ),
        ("likely", "GET", at(ids[7], "/links?k=6"), None),
        ("ego", "GET", at(ids[20], "/ego"), None),
        ("ego_hub", "GET", at(ids[7], "/ego?limit=5"), None),
        ("attention", "GET", at(ids[20], "/attention"), None),
        ("attention_alone", "GET", at(ids[297], "/attention"), None),
        ("search_text", "POST", search, {"text": "graph of nodes", "k": 5}),
        (
            "search_company",
            "POST",
            search,
            {
                "text": "graph",
                "k": 3,
                "neighbors": [ids[20]],
                "neighbor_texts": ["layer"],
                "show_neighbors": 2,
            },
        ),
        (
            "search_id",
            "POST",
            search,
            {"id": ids[20], "k": 4, "columns": ["year", "venue"], "where": ["year<2005"]},
        ),
        ("search_links", "POST", search, {"id": ids[20], "k": 4, "links": True}),
        ("search_vector", "POST", search, {"vector": [0.1 * i for i in range(24)], "k": 3}),
        ("embeddings", "POST", embeddings, {"input": ["graph", "text node"], "model": "any"}),
        ("embeddings_long", "POST", embeddings, {"input": " ".join(samples.WORDS)}),
        ("embeddings_base64", "POST", embeddings, {"input": "graph", "encoding_format": "base64"}),
        (
            "embeddings_company",
            "POST",
            embeddings,
            {
                "input": ["graph", "text"],
                "neighbors": [[], [ids[3]]],
                "neighbor_texts": [["layer"], []],
            },
        ),
        ("map", "GET", "/map", None),
        ("places", "POST", "/map/places", {"ids": [ids[3], "nobody", ids[0]]}),
        ("page", "GET", "/", None),
        ("openapi", "GET", "/openapi.json", None),
        ("head", "HEAD", "/health", None),
    ]
    refused: list[Request] = [
        ("no_node", "GET", at("nobody"), None),
        ("no_node_similar", "GET", at("nobody", "/similar"), None),
        ("no_node_attention", "GET", at("nobody", "/attention"), None),
        ("bad_k", "GET", at(ids[20], "/similar?k=0"), None),
        ("bad_limit", "GET", at(ids[20], "?limit=-1"), None),
        ("bad_parameter", "GET", at(ids[20], "/similar?kk=2"), None),
        ("bad_filter", "GET", at(ids[20], "/similar?where=month%3E3"), None),
        ("bad_id", "GET", "/nodes/%FF", None),
        ("no_page", "GET", "/static/nothing.js", None),
        ("no_address", "GET", "/nowhere", None),
        ("wrong_method", "DELETE", "/info", None),
        ("two_questions", "POST", search, {"text": "graph", "id": ids[20]}),
        ("no_question", "POST", search, {}),
        ("strange_field", "POST", search, {"text": "graph", "q": 1}),
        ("wrong_type", "POST", search, {"text": "graph", "k": "5"}),
        ("wrong_size", "POST", search, {"vector": [1.0]}),
        ("no_column", "POST", search, {"text": "graph", "columns": ["month"]}),
        ("blank", "POST", search, {"text": " "}),
        ("no_json", "POST", search, b"{"),
        ("wrong_dimensions", "POST", embeddings, {"input": "graph", "dimensions": 3}),
        ("wrong_lists", "POST", embeddings, {"input": ["a", "b"], "neighbors": [[]]}),
        ("lost_link", "POST", "/edges", {"edges": [{"source": "nobody", "target": ids[1]}]}),
        ("no_link", "DELETE", f"/edges?source={ids[1]}&target={ids[299]}", None),
        ("no_node_to_delete", "DELETE", at("nobody"), None),
    ]
    new = {"text": "graph of links", "neighbors": ids[1:4], "columns": {"year": 2001, "pages": 3}}
    edges = [
        {"source": "new/1", "target": ids[5], "type": "cites"},
        {"source": ids[1], "target": "new/1"},
        {"source": ids[1], "target": ids[1]},
    ]
    writing: list[Request] = [
        ("put_new", "PUT", at("new/1"), new),
        ("put_again", "PUT", at("new/1"), new),
        ("put_changed", "PUT", at(ids[14]), {"text": "another text", "columns": {"year": 1990}}),
        ("put_bad", "PUT", at("new/1"), {"text": "graph", "columns": {"pages": "few"}}),
        ("add_links", "POST", "/edges", {"edges": edges}),
        ("added_node", "GET", at("new/1"), None),
        ("added_similar", "GET", at("new/1", "/similar?k=5"), None),
        (
            "added_search",
            "POST",
            search,
            {"text": "graph", "where": ["pages>=3"], "columns": ["pages"]},
        ),
        ("cut_type", "DELETE", f"/edges?source={ids[5]}&target=new%2F1&type=cites", None),
        ("cut_all", "DELETE", f"/edges?source={ids[1]}&target=new%2F1", None),
        ("delete", "DELETE", at(ids[9]), None),
        ("deleted", "GET", at(ids[9]), None),
        ("after_similar", "GET", at(ids[14], "/similar?k=6"), None),
        ("after_ego", "GET", at("new/1", "/ego"), None),
        ("after_attention", "GET", at("new/1", "/attention"), None),
        ("after_info", "GET", "/info", None),
        ("metrics", "GET", "/metrics", None),
    ]
    return [
        *((f"read/{name}", *rest) for name, *rest in reading),
        *((f"refuse/{name}", *rest) for name, *rest in refused),
        *((f"write/{name}", *rest) for name, *rest in writing),
    ]


def server(recorder: Recorder, adapter: Any) -> None:
    """The answers of every endpoint, for two models; with tokens, and before it is ready."""
    graph = make_graph(adapter)
    ids = samples.make_nodes()["id"]
    for name, changes in {
        "graphformers": {},
        "max": {"method": "max", "similarity": "cosine"},
    }.items():
        with folder() as place:
            put_vectors_folder(recorder, adapter, graph, place, BASE | changes)
            ask(recorder, adapter, f"server/{name}", place / "a.vectors", {}, requests(ids))
            found = adapter.store_facts(place / "a.vectors")
            recorder.put(
                f"server/{name}/after", {each: found[each] for each in ("ids", "vectors", "texts")}
            )
    with folder() as place:
        put_vectors_folder(recorder, adapter, graph, place, BASE)
        tokens = {
            "read_token": "a-secret-of-more-than-16",
            "write_token": "another-of-more-than-16",
        }
        few = [("ready", "GET", "/ready", None), ("info", "GET", "/info", None)]
        few += [("delete", "DELETE", "/nodes/n1", None)]
        ask(recorder, adapter, "server/no_token", place / "a.vectors", tokens, few)
        for kind, token in tokens.items():
            ask(recorder, adapter, f"server/{kind}", place / "a.vectors", tokens, few, token)
        asyncio.run(
            _ask(
                recorder, adapter, "server/loading", adapter.loading_app(place / "a.vectors"), few
            ),
        )


def put_vectors_folder(
    recorder: Recorder, adapter: Any, graph: Any, place: Path, changes: dict[str, Any]
) -> None:
    """A model and the vectors of the graph, as folders."""
    model = make_model(recorder, adapter, 0.2, **changes)
    adapter.save_model(model, place / "a.model")
    saved = adapter.save_graph(graph, place / "a.graph")
    adapter.embed(
        adapter.load_model(place / "a.model"),
        saved,
        place / "a.vectors",
        {"states_precision": "float32"},
    )


def ask(
    recorder: Recorder,
    adapter: Any,
    name: str,
    place: Path,
    settings: dict[str, Any],
    asked: list[Request],
    token: str | None = None,
) -> None:
    app, close = adapter.app(place, settings)
    try:
        asyncio.run(_ask(recorder, adapter, name, app, asked, token))
    finally:
        close()


async def _ask(
    recorder: Recorder,
    adapter: Any,
    name: str,
    app: Any,
    asked: list[Request],
    token: str | None = None,
) -> None:
    import httpx

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    client = httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", headers=headers, timeout=60
    )
    async with client:
        for label, method, address, body in asked:
            more: dict[str, Any] = {} if body is None else {"json": body}
            if isinstance(body, bytes):
                more = {"content": body, "headers": {"Content-Type": "application/json"}}
            answer = await client.request(method, address, **more)
            until = time.monotonic() + 30
            while answer.status_code == 202 and time.monotonic() < until:
                await asyncio.sleep(0.02)
                answer = await client.request(method, address, **more)
            put_answer(recorder, adapter, f"{name}/{label}", answer)


def put_answer(recorder: Recorder, adapter: Any, name: str, answer: Any) -> None:
    kind = answer.headers.get("content-type", "").split(";")[0]
    recorder.put(f"{name}/status", [answer.status_code, kind])
    label = name.rpartition("/")[2]
    if label == "metrics":
        lines = answer.text.splitlines()
        recorder.put(
            f"{name}/names",
            sorted({line.split()[2] for line in lines if line.startswith("# TYPE")}),
        )
    elif kind == "application/json" and answer.content:
        body = adapter.neutral_answer(label, answer.json())
        if label == "openapi":
            body = {path: sorted(methods) for path, methods in body["paths"].items()}
        if answer.status_code >= 400:  # words apart: they may be improved on purpose
            recorder.put(f"{name}/words", body["error"].pop("message"))
        recorder.put(f"{name}/body", body)


# ---- command line


def cli(recorder: Recorder, adapter: Any) -> None:
    """What the commands print as JSON, and how they end."""
    with folder() as place, contextlib.chdir(place):
        samples.write_tables(place)
        samples.write_backbone(place / "backbone")
        sets = ["batch_size=32", "learning_rate=3e-3", "epsilon=1e-4", "max_steps=6", "workers=0"]
        sets += ["num_neighbors=3", "max_tokens=10", "validate_steps=3", "pooling=mean"]
        given = [word for each in sets for word in ("--set", each)]
        # an empty recipe: the settings that are not given have their defaults
        Path("empty.toml").write_text("")
        given += ["--config", "empty.toml"]
        train = ["train", "a.split", "--from", "backbone", "--device", "cpu", *given]
        commands = {
            "import": ["import", "papers.csv", "links.csv", "-o", "a.graph", "--keep-empty"],
            "info_graph": ["info", "a.graph"],
            "split": ["split", "a.graph", "-o", "a.split", "--valid", "40", "--test", "40"],
            "info_split": ["info", "a.split"],
            "train": [*train, "-o", "a.model"],
            "train_max": [*train, "--method", "max", "-o", "max.model"],
            "info_model": ["info", "a.model"],
            "evaluate": ["evaluate", "a.model", "a.split", "--protocol", "all", "--device", "cpu"],
            "embed": ["embed", "a.model", "a.graph", "-o", "a.vectors", "--device", "cpu"],
            "evaluate_vectors": ["evaluate", "a.split", "--vectors", "a.vectors", "--cosine"],
            "search": [
                "search",
                "a.vectors",
                "graph of nodes",
                "--neighbors",
                "n7,n20",
                "-k",
                "4",
                "--device",
                "cpu",
            ],
            "search_id": [
                "search",
                "a.vectors",
                "--id",
                "n20",
                "--where",
                "year>=1995",
                "--show",
                "year,venue",
            ],
            "update": [
                "update",
                "a.vectors",
                "--nodes",
                "new.csv",
                "--edges",
                "new_links.csv",
                "--remove",
                "gone.txt",
            ],
            "search_links": ["search", "a.vectors", "--links", "q1", "-k", "3", "--exact"],
            "info_vectors": ["info", "a.vectors"],
            "convert": ["convert", "backbone", "-o", "plm.model", "--method", "plm"],
        }
        for name, words in commands.items():
            put_command(
                recorder,
                adapter,
                f"cli/{name}",
                [*words, *([] if name == "convert" else ["--json"])],
            )
        put_command(recorder, adapter, "cli/export", ["export", "a.vectors", "-o", "out.npy"])
        recorder.put("cli/exported", np.load("out.npy"))
        recorder.put(
            "cli/exported_ids", Path("out.ids.txt").read_text(encoding="utf-8").splitlines()
        )
        refused = {
            "exists": ["import", "papers.csv", "-o", "a.graph"],
            "bad_rows": ["import", "bad.csv", "-o", "bad.graph"],
            "no_file": ["import", "nothing.csv", "-o", "b.graph"],
            "no_setting": [*train, "-o", "b.model", "--set", "learning_rat=1"],
            "wrong_kind": ["embed", "a.graph", "a.graph", "-o", "b.vectors"],
            "no_node": ["search", "a.vectors", "--id", "nobody"],
            "misuse": ["search", "a.vectors"],
            "no_command": ["serach"],
        }
        for name, words in refused.items():
            put_command(recorder, adapter, f"cli/refuse/{name}", words)


def put_command(recorder: Recorder, adapter: Any, name: str, words: list[str]) -> None:
    code, *told = adapter.command(words)
    printed, said = (text.replace(str(Path.cwd()), ".") for text in told)
    recorder.put(f"{name}/code", code)
    if "--json" in words and code == 0:
        recorder.put(f"{name}/printed", json.loads(printed))
    elif "/refuse/" in name:  # as it is told: words may be improved on purpose
        recorder.put(f"{name}/words", said.strip().splitlines()[-1:])
    else:
        recorder.put(f"{name}/printed", printed.splitlines())


# ---- a small part of everything, for the test


def small(recorder: Recorder, adapter: Any) -> None:
    """Losses of four trainings, vectors of 20 nodes for every method, answers of a server."""
    graph = make_graph(adapter)
    split = adapter.make_split(graph, {"valid": 20, "test": 20, "candidates": 10})
    facts = adapter.split_facts(split)
    recorder.put(
        "small/split", {name: facts[name] for name in ("train", "valid_pairs", "test_candidates")}
    )
    drawn = adapter.sample(split, 5, 42, nodes_of(60), 1)
    recorder.put("small/sampling/indptr", drawn[0])
    recorder.put("small/sampling/neighbors", drawn[1])
    for name in ("graphformers", "bidirectional", "cosine", "tnve"):
        changes, settings = TRAININGS[name]
        scale = 0.1 if name == "tnve" else 0.3
        model = make_model(recorder, adapter, scale, graph, **changes)
        few = {"max_steps": 10, "validate_steps": 5}
        found = adapter.train(model, split, STEPS | settings | few)
        kept = ("loss", "norm", "learning_rate")
        recorder.put(f"small/training/{name}", {each: found[each] for each in kept})
    for name in (
        *METHODS,
        "bidirectional",
        "own-gnn",
        "graphformers-pooling",
        "graphformers-relative",
    ):
        model = make_model(recorder, adapter, 0.2, graph, **BASE | READINGS[name])
        recorder.put(f"small/vectors/{name}", adapter.encode_nodes(model, graph, nodes_of(20)))
    with folder() as place:
        put_vectors_folder(recorder, adapter, graph, place, BASE)
        asked = ("read/node", "read/similar", "read/ego", "read/search_id", "read/embeddings")
        asked += (
            "read/attention",
            "refuse/no_node",
            "refuse/bad_k",
            "write/put_new",
            "write/added_node",
        )
        ids = samples.make_nodes()["id"]
        some = [each for each in requests(ids) if each[0] in asked]
        ask(recorder, adapter, "small/server", place / "a.vectors", {}, some)
    for name in [name for name in recorder.values if name.endswith("/words")]:
        del recorder.values[name]


PARTS: dict[str, Callable[[Recorder, Any], None]] = {
    "splits": splits,
    "training": training,
    "vectors": vectors,
    "store": store,
    "evaluation": evaluation,
    "server": server,
    "cli": cli,
    "small": small,
}
