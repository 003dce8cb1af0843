"""What the recorder asks of graphformers, answered by the code as it is now.

A copy of adapter_89e3860.py that follows the names of the code. Whatever the code renames is
translated here: settings, weights, answers and commands keep their neutral names, those of commit
89e3860, in every recording.
"""

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import tokenizers
import torch

import graphformers.graph.interop
import graphformers.graph.readers
from graphformers.batching.packing import to_device
from graphformers.batching.tokens import Tokenizer, graph_tokens
from graphformers.cli import main
from graphformers.compare.comparison import compare
from graphformers.compare.conditions import TEXT_SEARCH
from graphformers.compare.settings import ComparisonSettings
from graphformers.compare.verdict import verdict
from graphformers.embedding import compaction
from graphformers.embedding import job as embedding_job
from graphformers.embedding import update as embedding_update
from graphformers.embedding.vectors import VectorStore, locked
from graphformers.evaluation.baselines import TITLES, baseline_scores, sentence_encoder
from graphformers.evaluation.metrics import METRICS, Ranks
from graphformers.evaluation.ranking import evaluate as evaluate_model
from graphformers.evaluation.ranking import in_batch, model_scores, rank, rank_listed
from graphformers.evaluation.significance import (
    paired_difference,
    paired_difference_over_seeds,
    summarize,
)
from graphformers.evaluation.slices import slices_of
from graphformers.graph.sampling import NeighborSampler
from graphformers.graph.textgraph import TextGraph
from graphformers.model import backbones
from graphformers.model.attention import attention_weights
from graphformers.model.config import ModelConfig
from graphformers.model.encoder import GraphFormers
from graphformers.retrieval.searcher import Searcher
from graphformers.serve.app import make_app
from graphformers.serve.engine import Engine
from graphformers.serve.settings import ServeSettings
from graphformers.splits.split import LinkQuestions, LinkSplit, split_links
from graphformers.training.batches import BatchKey, BatchMaker
from graphformers.training.checkpoint import TrainState
from graphformers.training.masking import MaskedTokens, SpanMasking
from graphformers.training.run import TrainingRun
from graphformers.training.settings import TrainConfig
from graphformers.training.trainer import Trainer

SETTINGS = {
    "popularity": "logq_correction",
    "leave_out": "mask_false_negatives",
    "graph_start": "graph_token_scale",
    "mask_share": "mask_ratio",
}


def current(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings under the names of the current code."""
    return {SETTINGS.get(name, name): value for name, value in settings.items()}


Facts = dict[str, Any]  # arrays, and what fits into JSON

# ---- graphs, splits, sampling, tokens


def make_tokenizer(text: str) -> Any:
    """From the content of a tokenizer.json."""
    return Tokenizer(tokenizers.Tokenizer.from_str(text))


def build_graph(nodes: dict[str, list[Any]], links: dict[str, list[Any]]) -> Any:
    """`nodes` has id, text and other columns; `links` has source, target, type and time."""
    return graphformers.graph.interop.build_graph(
        pa.table(nodes), links, columns={"time": "time"}, keep_empty=True
    )


def read_graph(
    format: str, nodes: list[Path] | list[str], edges: list[Path], settings: Facts
) -> Any:
    return graphformers.graph.readers.read_graph(
        nodes=nodes, edges=edges, format=format, **settings
    )


def save_graph(graph: Any, place: Path) -> Any:
    return graph.save(place)


def load_graph(place: Path) -> Any:
    return TextGraph.load(place)


def graph_facts(graph: Any) -> Facts:
    """Nodes, links in both forms, and what the import said."""
    return {
        "ids": graph.ids.to_pylist(),
        "texts": graph.texts.to_pylist(),
        "columns": {name: graph.column(name).to_pylist() for name in graph.column_names},
        "column_types": {name: str(graph.column(name).type) for name in graph.column_names},
        "hashes": np.asarray(graph.id_hashes),
        "indptr": np.asarray(graph.indptr),
        "indices": np.asarray(graph.indices),
        "edges": np.asarray(graph.edges),
        "types": None
        if graph.edge_types is None
        else [graph.type_names[i] for i in graph.edge_types],
        "times": None if graph.edge_times is None else np.asarray(graph.edge_times),
        "summary": graph.summary,
    }


def make_split(graph: Any, settings: Facts) -> Any:
    return split_links(graph, **settings)


def save_split(split: Any, place: Path) -> Any:
    return split.save(place)


def load_split(place: Path) -> Any:
    return LinkSplit.load(place)


def split_facts(split: Any) -> Facts:
    """What is trained on, what is asked among which candidates, and what models may see."""
    return {
        "train": np.asarray(split.train),
        "valid_pairs": np.asarray(split.valid.pairs),
        "valid_candidates": np.asarray(split.valid.candidates),
        "test_pairs": np.asarray(split.test.pairs),
        "test_candidates": np.asarray(split.test.candidates),
        "held_out_nodes": np.asarray(split.held_out_nodes),
        "indptr": np.asarray(split.indptr),
        "indices": np.asarray(split.indices),
        "notes": list(split.notes),
        "table": split.sizes(),
    }


def sample(
    source: Any,
    count: int,
    seed: int,
    nodes: np.ndarray,
    epoch: int = 0,
    exclude: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Where each node's neighbours begin, and they; `source` is a graph or a split."""
    found = _sampler(source, count, seed).sample(nodes, epoch=epoch, exclude=exclude)
    return found.indptr, found.neighbors


def _sampler(source: Any, count: int, seed: int) -> NeighborSampler:
    if isinstance(source, LinkSplit):
        return source.sampler(count, seed)
    return NeighborSampler(source.indptr, source.indices, source.id_hashes, count, seed)


def token_ids(
    graph: Any, tokenizer: Any, nodes: np.ndarray, max_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """The token ids of all nodes, one after the other, and where each begins."""
    return graph_tokens(graph, tokenizer).read(nodes, max_tokens)


def polluted_ids(
    graph: Any, tokenizer: Any, nodes: np.ndarray, max_tokens: int, settings: Facts, epoch: int
) -> tuple[np.ndarray, np.ndarray]:
    """The same as the first stage of training reads them; `settings` are mask_share and seed."""
    masking = SpanMasking.of(tokenizer, settings["mask_share"], settings["seed"])
    return MaskedTokens.of(graph_tokens(graph, tokenizer), masking, epoch).read(nodes, max_tokens)


# what is counted of batches, by its name at the baseline
COUNTS = {
    "false_negatives": "left_out",
    "encoded_neighbors": "distinct",
    "token_slots": "places",
    "neighbors_reused": "saved",
}


def packed_counts(model: Any, graph: Any, nodes: np.ndarray) -> Facts:
    """How many nodes, tokens and links a packed batch of centres and neighbours holds."""
    tokens = graph_tokens(graph, model.tokenizer)
    drawn = _sampler(graph, model.config.num_neighbors, 42).sample(nodes)
    batch = model.packer().pack_neighborhoods(tokens, drawn)
    return {
        "centers": batch.num_centers,
        "nodes": batch.nodes.num_nodes,
        "tokens": batch.nodes.num_tokens,
        "links": int(batch.index.exists_BK.sum()),
        "token_sum": int(
            (batch.nodes.tokens_RW * (batch.nodes.slots_RW < batch.nodes.num_slots)).sum()
        ),
        "graph_tokens": int(batch.nodes.is_graph_RW.sum()),
    }


def training_batches(
    model: Any, split: Any, settings: Facts, wanted: Sequence[tuple[int, int, bool]]
) -> list[Facts]:
    """The pairs, counts and excluded keys of batches: (epoch, number, whether polluted)."""
    maker = BatchMaker.of(model, split, TrainConfig(**current(settings)))
    found = []
    for key in wanted:
        batch = maker.make(BatchKey(*key))
        counts = {COUNTS.get(name, name): value for name, value in asdict(batch.counts).items()}
        del counts["places"]
        left_out = batch.false_negatives[0].numpy()
        found.append({"pairs": batch.pairs.numpy(), "left_out": left_out, "counts": counts})
    return found


# ---- models


def make_model(tokenizer: Any, settings: Facts) -> Any:
    """A model with new weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GraphFormers(
            ModelConfig(**{"vocab_size": tokenizer.vocab_size} | current(settings)), tokenizer
        ).eval()


def from_backbone(folder: Path, method: str, seed: int, settings: Facts) -> Any:
    return GraphFormers.from_backbone(folder, method, seed=seed, device="cpu", **current(settings))


def convert(folder: Path, settings: Facts) -> Any:
    """A model on whatever weights a folder holds, those of 2021 included."""
    with contextlib.redirect_stderr(io.StringIO()):
        return backbones.convert(folder, **current(settings)).cpu()


def save_model(model: Any, place: Path) -> None:
    model.save_pretrained(place)


def load_model(place: Path) -> Any:
    return GraphFormers.from_pretrained(place, device="cpu")


def know_nodes(model: Any, graph: Any, nodes: np.ndarray) -> None:
    """Gives some nodes vectors of their own, where the method has such."""
    model.add_nodes(graph.id_hashes[nodes])


# The neutral name joins what the current code keeps apart: query, key and value.
RENAMED = {
    ".attention.query.": (".query_key_value.", 0, 1),
    ".attention.key_value.": (".query_key_value.", 1, 3),
    ".attention.output.": (".attended.", 0, 0),
    ".mlp.up.": (".up.", 0, 0),
    ".mlp.down.": (".down.", 0, 0),
    ".mlp_norm.": (".norm.", 0, 0),
}
GRAPH = {
    ".query.": (".query_key_value.", 0, 1),
    ".key.": (".query_key_value.", 1, 2),
    ".value.": (".query_key_value.", 2, 3),
}


def neutral(name: str) -> tuple[str, int, int]:
    """The neutral name of a parameter, and which thirds of it the parameter is (0, 0: all)."""
    table = GRAPH if name.startswith(("gnn.", "gat.")) else RENAMED
    for ours, (theirs, first, last) in table.items():
        if ours in name and (table is GRAPH or name.startswith("text.layers.")):
            return name.replace(ours, theirs), first, last
    return name, 0, 0


def canonical_name(name: str, tensor: Any) -> str:
    """The neutral name of a parameter; pieces of one are for get_weights and set_weights."""
    return neutral(name)[0]


def get_weights(model: Any) -> dict[str, np.ndarray]:
    """Copies of all weights by their neutral names."""
    parts: dict[str, dict[int, np.ndarray]] = {}
    for name, tensor in model.network.named_parameters():
        theirs, first, _ = neutral(name)
        parts.setdefault(theirs, {})[first] = tensor.detach().cpu().numpy().copy()
    return {
        name: found[0] if len(found) == 1 else np.concatenate([found[i] for i in sorted(found)])
        for name, found in parts.items()
    }


def set_weights(model: Any, weights: dict[str, np.ndarray]) -> None:
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            theirs, first, last = neutral(name)
            whole = torch.from_numpy(weights[theirs])
            third = len(whole) // 3
            parameter.copy_(whole[first * third : last * third] if last else whole)


def encode(model: Any, texts: Any, neighbors: Any = None, normalize: bool = False) -> np.ndarray:
    return model.encode(texts, neighbors, normalize=normalize)


def encode_nodes(
    model: Any, graph: Any, nodes: np.ndarray, source: Any = None, count: int | None = None
) -> np.ndarray:
    """The vectors of nodes, with `count` neighbours drawn from `source`, a graph or a split."""
    sampler = (
        None
        if source is None
        else _sampler(source, model.config.num_neighbors if count is None else count, 42)
    )
    return model.encode_nodes(graph, nodes, sampler=sampler)


def text_states(model: Any, graph: Any, nodes: np.ndarray) -> np.ndarray | None:
    """(nodes, states, size): what neighbours contribute; None where nothing can be kept."""
    found = model.encode_states(graph_tokens(graph, model.tokenizer), nodes).cpu().numpy()
    return found if found.shape[1] else None


def encode_with_states(model: Any, graph: Any, nodes: np.ndarray) -> np.ndarray:
    """The vectors of nodes from the states of all nodes of the graph, computed before."""
    tokens = graph_tokens(graph, model.tokenizer)
    drawn = _sampler(graph, model.config.num_neighbors, 42).sample(nodes)
    everyone = np.arange(graph.num_nodes)
    return model.encode_centers(tokens, drawn, model.encode_states(tokens, everyone), everyone)


def encode_at_once(model: Any, graph: Any, nodes: np.ndarray) -> np.ndarray:
    """The vectors of nodes, read together with their neighbours in one pass, as in training."""
    tokens = graph_tokens(graph, model.tokenizer)
    drawn = _sampler(graph, model.config.num_neighbors, 42).sample(nodes)
    with model.inference() as network:
        return network(
            to_device(model.packer().pack_neighborhoods(tokens, drawn), model.device)
        ).numpy()


def similarity(model: Any, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return model.similarity(one, other)


def attention(model: Any, text: str, neighbors: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """What each graph attention weighs the nodes with, and the vector computed on the way."""
    found = attention_weights(model, text, neighbors)
    return found.weights_AHG, found.vector_D


# ---- training


class _WatchedRun(TrainingRun):
    """A run that tells the length of every gradient, and all weights after every step."""

    after_step: Callable[[float], None]

    def update_weights(self) -> Any:
        norm = super().update_weights()
        self.after_step(float(norm))
        return norm


class _Watched(Trainer):
    run_type = _WatchedRun


def _only_measure_start(state: TrainState, precision: float, mrr: float) -> None:
    """In the baseline, the starting weights take no part in the choice of the best."""
    state.start = precision


def train(model: Any, split: Any, settings: Facts, output: Path | None = None) -> Facts:
    """Trains to the end. The model holds the kept weights afterwards."""
    trainer = _Watched(model, split, TrainConfig(**current(settings)), output)
    norms: list[float] = []
    last: dict[str, np.ndarray] = {}

    def after_step(norm: float) -> None:
        norms.append(norm)
        last.update(get_weights(model))

    _WatchedRun.after_step = staticmethod(after_step)
    with (
        contextlib.redirect_stderr(io.StringIO()),
        mock.patch.object(TrainState, "add_start", _only_measure_start),
    ):
        result = trainer.train()
    steps = [entry for entry in result.history if entry["kind"] == "step"]
    told = (
        "step",
        "stage",
        "epoch",
        "loss",
        "P@1",
        "NDCG",
        "MRR",
        "negatives",
        "false_negatives",
        "neighbors_reused",
    )
    return {
        "loss": np.array([entry["loss"] for entry in steps]),
        "learning_rate": np.array([entry["learning_rate"] for entry in steps]),
        "stage": np.array([entry["stage"] for entry in steps]),
        "epoch": np.array([entry["epoch"] for entry in steps]),
        "norm": np.array(norms),
        "validations": [
            {COUNTS.get(name, name): entry[name] for name in told if name in entry}
            for entry in result.history
            if entry["kind"] in ("start", "validation")
        ],
        "valid": result.valid,
        "start": result.start,
        "steps": result.steps,
        "last": last,
    }


# ---- evaluation


def _ranks(ranks: Any) -> Facts:
    return {"better": np.asarray(ranks.better), "tied": np.asarray(ranks.tied)}


def _scores(found: dict[str, Any]) -> dict[str, list[float]]:
    return {name: [score.value, score.low, score.high] for name, score in found.items()}


def evaluate(model: Any, split: Any, protocol: str, asked: str = "test") -> Facts:
    """Scores with their intervals, and where each positive stands."""
    found = evaluate_model(model, split, getattr(split, asked), protocol=protocol)
    facts = {
        "scores": _scores(found.scores),
        "questions": found.num_questions,
        "candidates": found.num_candidates,
    }
    return facts | _ranks(found.ranks)


def listed_scores(model: Any, split: Any) -> np.ndarray:
    """(questions, candidates) of the test questions."""
    return model_scores(model, split, split.test).listed(
        split.test.pairs[:, 0], split.test.candidates
    )


def baselines(split: Any, num_neighbors: int) -> dict[str, Facts]:
    """Rankings that need no training, by the names degree, common, adamic, tfidf and tfidf_near."""
    found, asked = baseline_scores(split, num_neighbors), split.test
    scorers = {key: found[name.format(num_neighbors)] for key, name in TITLES.items()}
    return {
        key: {"scores": scorer.listed(asked.pairs[:, 0], asked.candidates)}
        | _ranks(rank_listed(scorer, asked))
        | {
            f"full_{name}": value
            for name, value in _ranks(rank(scorer, split.graph, asked, "full").ranks).items()
        }
        for key, scorer in scorers.items()
    }


def untrained_vectors(folder: Path, graph: Any, nodes: np.ndarray, max_tokens: int) -> np.ndarray:
    """What a backbone itself makes of texts."""
    with contextlib.redirect_stderr(io.StringIO()):
        return sentence_encoder(folder, max_tokens, "cpu").encode_nodes(graph, nodes)


def slices(split: Any) -> dict[str, dict[str, np.ndarray]]:
    """Marks of the test questions by group and name."""
    return slices_of(split, split.test)


def in_batch_candidates(pairs: np.ndarray, size: int) -> np.ndarray:
    return in_batch(pairs, size).candidates


def metrics(better: np.ndarray, tied: np.ndarray) -> Facts:
    """Every metric, question by question, and their means with intervals."""
    ranks = Ranks(better, tied)
    found = {f"of_{name}": metric(ranks) for name, metric in METRICS.items()}
    return found | {"scores": _scores(summarize(ranks))}


def difference(one: np.ndarray, other: np.ndarray) -> list[float]:
    """How far one is ahead, its interval and p-value: of (Q,) questions, or (S, Q) seeds."""
    compare_values = paired_difference if one.ndim == 1 else paired_difference_over_seeds
    found = compare_values(one, other)
    return [found.value, found.low, found.high, found.p_value]


def questions_of(pairs: np.ndarray, candidates: np.ndarray) -> Any:
    return LinkQuestions(pairs, candidates)


def compare_methods(
    split: Any,
    folder: Path,
    backbone: Path,
    settings: Facts,
    methods: list[str],
    seeds: tuple[int, ...],
) -> Facts:
    """The numbers of a comparison, and the ranks of each of its runs by method and condition."""
    given = ComparisonSettings(split, folder, str(backbone), current(settings), seeds, device="cpu")
    with contextlib.redirect_stderr(io.StringIO()):
        results = compare(given, methods=methods).results
    ranks: dict[str, Any] = {}
    for system in (*results.trained, *results.untrained):
        title = system.variant.name if system.variant else system.title
        # The baseline did not measure search by words.
        system.ranks.pop(TEXT_SEARCH, None)
        for condition, found in system.ranks.items():
            ranks |= {f"{title}/{condition}/{i}": _ranks(each) for i, each in enumerate(found)}
    table = results.to_dict()
    table.pop("search only")
    table["verdict"] = [
        line for line in verdict(results) if not line.startswith(("Choose ", "Cost: "))
    ]
    return {"table": table, "ranks": ranks}


# ---- stores of vectors


def embed(model: Any, graph: Any, place: Path, settings: Facts) -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        embedding_job.embed(model, graph, place, **settings)


def update(model: Any, place: Path, changes: Facts) -> Facts:
    """`changes` are nodes, links, removed ids and removed links; gives what was done."""
    given = {"nodes": "nodes", "links": "edges", "removed": "remove", "unlinked": "remove_edges"}
    with contextlib.redirect_stderr(io.StringIO()):
        report = embedding_update.update(
            place, model=model, **{given[name]: value for name, value in changes.items()}
        )
    return {name: value for name, value in asdict(report).items() if name != "seconds"}


def compact(place: Path) -> None:
    """Writes base and changes as a new base."""
    with locked(place), contextlib.redirect_stderr(io.StringIO()):
        compaction.compact(VectorStore.load(place))


def store_facts(place: Path) -> Facts:
    """Ids, vectors, states where they are kept, and the graph."""
    store = VectorStore.load(place)
    nodes = store.graph.nodes
    return {
        "ids": store.ids.to_pylist(),
        "vectors": store.vectors(store.ids.to_pylist()),
        "states": None if store.states is None else store.states_of(nodes),
        "texts": [store.text(id) for id in store.ids.to_pylist()],
        "graph": graph_facts(store.graph.freeze()),
        "about": {
            name: store.settings[name]
            for name in ("method", "similarity", "hidden_size", "num_neighbors", "precision")
        },
    }


def export(place: Path, file: Path) -> None:
    VectorStore.load(place).export(file)


def open_search(place: Path, model: Any, exact: bool | None, columns: Sequence[str] = ()) -> Any:
    with contextlib.redirect_stderr(io.StringIO()):
        index = None if exact is None else "exact" if exact else "usearch"
        return Searcher(place, model, index=index, columns=columns)


def search(
    searcher: Any,
    kind: str,
    query: Any,
    k: int,
    where: Sequence[str] = (),
    near: Sequence[str] = (),
) -> list[Facts]:
    """`kind` is text, similar, links or vector."""
    more = {"neighbors": near} if near else {}
    return [match.to_dict() for match in getattr(searcher, kind)(query, k, where=where, **more)]


# ---- server


def app(place: Path, settings: Facts) -> tuple[Any, Callable[[], None]]:
    """An ASGI app that is ready to answer, and what closes it."""
    made, state = make_app(ServeSettings(place, device="cpu", **settings))
    engine = Engine(state.settings)
    state.open(engine)
    return made, engine.close


def loading_app(place: Path) -> Any:
    """The same before anything is loaded."""
    return make_app(ServeSettings(place))[0]


def neutral_answer(name: str, body: Any) -> Any:
    """A JSON answer with its neutral names; `name` is that of the request in the recording."""
    if isinstance(body, dict):
        # The baseline does not say what scores are, and which texts are cut.
        return {key: body[key] for key in body if key not in ("measure", "truncated")}
    return body


# ---- command line

# options of the baseline, and what they are called now
OPTIONS = {"--exact": ["--index", "exact"]}


def command(words: Iterable[str]) -> tuple[int, str, str]:
    """Runs a command in this process: its exit code, what it printed, what it said."""
    before, printed, said, code = sys.argv, io.StringIO(), io.StringIO(), 0
    words = [new for word in words for new in OPTIONS.get(word, [word])]
    sys.argv = ["graphformers", *words]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.argv = before
    shown = printed.getvalue()
    if words[0] == "search" and "--json" in words and code == 0:
        shown = json.dumps(json.loads(shown)["matches"])
    return code, shown, said.getvalue()
