"""The demo: every step from import to search, on the graph of Python's standard library."""

import logging
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphformers.arrays import unit_rows
from graphformers.compare.comparison import Comparison, compare
from graphformers.compare.results import difference, search_difference
from graphformers.compare.settings import ComparisonSettings
from graphformers.compare.variants import variant
from graphformers.embedding.job import embed
from graphformers.embedding.states import model_fingerprint
from graphformers.embedding.vectors import VectorStore
from graphformers.evaluation.baselines import TITLES, sentence_encoder
from graphformers.evaluation.metrics import PRIMARY
from graphformers.evaluation.text_search import SEARCH_METRIC
from graphformers.graph.describe import describe_graph
from graphformers.graph.readers import read_graph
from graphformers.graph.settings import ImportSettings
from graphformers.graph.textgraph import TextGraph
from graphformers.model.backbones import find_backbone
from graphformers.model.encoder import GraphFormers
from graphformers.retrieval.searcher import Match, Matches, Searcher
from graphformers.splits.split import LinkSplit, split_links
from graphformers.table import Result, Table, shorten

logger = logging.getLogger(__name__)

BACKBONE = "minilm"
# settings for a few minutes of training on two cores
SETTINGS: dict[str, Any] = {
    "batch_size": 64,
    "similarity": "cosine",
    "temperature": 0.05,
    "learning_rate": 2e-4,
    "graph_factor": 10.0,
    "num_neighbors": 10,
    "train_neighbors": 3,
    "pooling": "mean",
    "graph_token_scale": 4.0,
    "isolated_graph_token": False,
    "text_query_weight": 0.5,
    "logq_correction": True,
    "warmup": 10,
    "decay": "linear",
    "max_norm": 1.0,
    # Drawing random numbers for dropout would take a third of the time on a CPU.
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "neighbor_gradients": False,
}
# A number of steps, not of seconds: a busy machine trains the same models, only later.
STEPS = 150
METHODS = ("plm.one-stage", "graphformers.one-stage")
# The first three headings of "Brief Tour of the Standard Library" in Python's tutorial, so that
# nobody chose them by their results.
QUERIES = ("Operating System Interface", "File Wildcards", "Command Line Arguments")
MATCHES = 3


@dataclass(frozen=True)
class DemoSearch(Result):
    """The same searches with the trained model and with its untrained backbone.

    Attributes:
        vectors: The folder of vectors of the trained model.
        with_graph: The nearest nodes by query, with the trained model.
        alone: The nearest nodes by query, with the untrained backbone, which encodes every text
            alone.
    """

    vectors: Path
    with_graph: dict[str, Matches]
    alone: dict[str, Matches]

    def to_dict(self) -> dict[str, Any]:
        """The matches of both by query, for JSON."""
        return {
            query: {"graphformers": found.to_dict(), BACKBONE: self.alone[query].to_dict()}
            for query, found in self.with_graph.items()
        }

    def as_table(self) -> Table:
        """The matches side by side, followed by the next commands to try."""
        rows = [
            (query if number == 0 else "", *(_shown(match) for match in pair))
            for query, found in self.with_graph.items()
            for number, pair in enumerate(zip(found, self.alone[query], strict=True))
        ]
        notes = (
            "",
            "GraphFormers encodes a docstring jointly with those of the objects that it uses or "
            "that use it; MiniLM encodes it alone.",
            f"Next: make serve (a page to search in), or graphformers search {self.vectors} 'your "
            f"text'",
        )
        title = (
            f"The vectors of all docstrings are in {self.vectors}. The best matches of searches:"
        )
        return Table(("search", "GraphFormers", "MiniLM, untrained"), rows, title, notes)


def _shown(match: Match) -> str:
    return f"{shorten(match.id, 32)}: {shorten(match.text, 40)}"


@dataclass(frozen=True)
class Demo:
    """The results of the demo. Made by `run_demo`.

    Attributes:
        graph: The docstrings of the standard library and their links.
        split: The held-out links.
        comparison: Training and evaluation of two methods.
        model: The folder of the model that uses neighbours.
        found: Searches in the vectors of that model.
    """

    graph: TextGraph
    split: LinkSplit
    comparison: Comparison
    model: Path
    found: DemoSearch

    def differences(self) -> Table:
        """GraphFormers minus the systems that it has to beat, with paired tests."""
        results = self.comparison.results
        own, text = (results.find(variant(name).name) for name in reversed(METHODS))
        assert own is not None, "the demo trains both"
        assert text is not None, "the demo trains both"
        adamic = next(each for each in results.untrained if each.title == TITLES["adamic"])
        rows = [
            (f"finding links, {PRIMARY}", each.title, str(difference(own, each)))
            for each in (adamic, text)
        ]
        if results.backbone is not None and own.can_search:
            found = str(search_difference(own, results.backbone))
            rows.append((f"search by words, {SEARCH_METRIC}", results.backbone.title, found))
        title = f"{own.title} minus the others, with 95 % intervals:"
        return Table(("", "other system", "difference"), rows, title)

    def to_dict(self) -> dict[str, Any]:
        """Graph, split, evaluation and searches, for JSON."""
        return {
            "graph": describe_graph(self.graph).to_dict(),
            "split": self.split.sizes(),
            "test": self.comparison.results.to_dict(),
            "differences": self.differences().to_dict(),
            "search": self.found.to_dict(),
        }

    def print(self) -> None:
        """Prints the graph, the comparison, the searches, and the next commands to try."""
        print(describe_graph(self.graph).as_table())
        print(
            "\nTask: of several candidates, find the docstring that is linked to a given one. The "
            "links were held out from training. Search by words: find a docstring by half of its "
            "words.\n"
        )
        self.comparison.print()
        print()
        self.differences().print(gap=True)
        split = self.split.artifact.path if self.split.artifact else ""
        print(f"\nThe model is in {self.model}: graphformers evaluate {self.model} {split}\n")
        self.found.as_table().print(gap=True)


def embed_and_search(
    model: Path, graph: TextGraph, folder: Path, backbone: str | Path = BACKBONE
) -> DemoSearch:
    """Embeds the graph, unless the folder has its vectors already, and searches.

    Args:
        model: The folder of the trained model.
        graph: The graph.
        folder: The folder of all results.
        backbone: The untrained backbone that searches, too.
    """
    vectors, loaded = folder / "python.vectors", GraphFormers.from_pretrained(model)
    if not _exists(vectors) or VectorStore.load(vectors).key.model != model_fingerprint(loaded):
        logger.info(f"embedding {graph.num_nodes:,} docstrings with {model} …")
        embed(loaded, graph, vectors, force=True)
    searcher = Searcher(vectors, loaded)
    return DemoSearch(
        vectors,
        {query: searcher.text(query, k=MATCHES) for query in QUERIES},
        search_untrained(graph, backbone, loaded.config.max_tokens),
    )


def search_untrained(graph: TextGraph, backbone: str | Path, max_tokens: int) -> dict[str, Matches]:
    """The nearest nodes of each query by cosine of an untrained backbone's vectors."""
    encoder = sentence_encoder(backbone, max_tokens)
    scores_QN = unit_rows(encoder.encode(QUERIES)) @ unit_rows(encoder.encode_nodes(graph)).T
    found = {}
    for query, scores_N in zip(QUERIES, scores_QN, strict=True):
        best = np.argsort(-scores_N, kind="stable")[:MATCHES]
        rows = zip(graph.ids_of(best), scores_N[best].tolist(), graph.texts_of(best), strict=True)
        found[query] = Matches(Match(*row) for row in rows)
    return found


def run_demo(
    folder: Path,
    steps: int = STEPS,
    questions: int = 1000,
    candidates: int | None = None,
    packages: Sequence[str] = (),
    search: Callable[[Path, TextGraph, Path], DemoSearch] = embed_and_search,
) -> Demo:
    """Imports and splits a graph, trains and compares two models, embeds and searches.

    Results of an earlier run in the same folder are reused.

    Args:
        folder: The folder of all results.
        steps: Training steps of each model.
        questions: Number of test questions.
        candidates: Candidates per question; by default as `split_links` chooses.
        packages: Packages whose docstrings are read; by default the whole standard library.
        search: Embeds the graph with a model and searches; called with the folder of the model,
            the graph and the folder of all results.

    Raises:
        GraphFormersError: The backbone is not installed, or the folder holds other files.
    """
    # A missing backbone is an error before the first minute of work.
    find_backbone(BACKBONE)
    graph_folder = folder / f"python{platform.python_version()}.graph"
    if _exists(graph_folder):
        graph = TextGraph.load(graph_folder)
    else:
        logger.info("reading the docstrings of Python's standard library …")
        settings = ImportSettings(format="python")
        graph = read_graph(list(packages), settings=settings).save(graph_folder)
    split_folder = folder / "python.split"
    if _exists(split_folder):
        split = LinkSplit.load(split_folder, graph)
    else:
        valid = max(questions // 5, 1)
        split = split_links(graph, valid=valid, test=questions, candidates=candidates)
        split = split.save(split_folder)
    count = split.test.candidates.shape[1]
    logger.info(f"{split}, {count} candidates per question")
    comparison = ComparisonSettings(
        split, folder / "report", BACKBONE, SETTINGS | {"max_steps": steps}, force=True
    )
    found = compare(comparison, methods=METHODS)
    model = comparison.model_folder(variant(METHODS[1]), comparison.seeds[0])
    return Demo(graph, split, found, model, search(model, graph, folder))


def _exists(folder: Path) -> bool:
    """Whether an earlier run made a folder; logs that it is used."""
    if not (folder / "manifest.json").is_file():
        return False
    logger.info(f"using {folder}, made by an earlier run")
    return True
