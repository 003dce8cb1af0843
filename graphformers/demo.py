"""The demo: every step from import to search, on the graph of Python's standard library."""

import logging
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graphformers.compare.comparison import Comparison, compare
from graphformers.compare.settings import ComparisonSettings
from graphformers.compare.variants import variant
from graphformers.data.describe import describe_graph
from graphformers.data.graph import TextGraph
from graphformers.data.readers import read_graph
from graphformers.data.settings import ImportSettings
from graphformers.embedding.job import embed
from graphformers.embedding.states import model_fingerprint
from graphformers.embedding.vectors import VectorStore
from graphformers.model.encoder import GraphFormers
from graphformers.retrieval.searcher import Matches, Searcher
from graphformers.splits.split import LinkSplit, split_links
from graphformers.table import Result, Table

logger = logging.getLogger(__name__)

# settings for one or two minutes of training on two cores
SETTINGS: dict[str, Any] = {
    "batch_size": 64,
    "similarity": "cosine",
    "temperature": 0.05,
    "learning_rate": 2e-4,
    "graph_factor": 10.0,
    "num_neighbors": 3,
    "pooling": "mean",
    "graph_token_scale": 4.0,
    "logq_correction": True,
    "warmup": 10,
    "decay": "linear",
    "max_norm": 1.0,
    # Drawing random numbers for dropout would take a third of the time on a CPU.
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "neighbor_gradients": False,
}
METHODS = ("plm.one-stage", "graphformers.one-stage")


@dataclass(frozen=True)
class DemoSearch(Result):
    """A search in the vectors of the demo.

    Attributes:
        vectors: The folder of vectors.
        query: The text of the search.
        matches: The nearest nodes.
    """

    vectors: Path
    query: str
    matches: Matches

    def as_table(self) -> Table:
        """The matches, followed by the next commands to try."""
        return replace(
            self.matches.as_table(),
            title=(
                f"The vectors of all docstrings are in {self.vectors}. Results for {self.query!r}:"
            ),
            notes=(
                "",
                f"Next: make serve (a page to search in), or graphformers search {self.vectors} "
                f"'your text'",
            ),
        )


@dataclass(frozen=True)
class Demo:
    """The results of the demo. Made by `run_demo`.

    Attributes:
        graph: The docstrings of the standard library and their links.
        split: The held-out links.
        comparison: Training and evaluation of two methods.
        model: The folder of the model that uses neighbours.
        found: A search in the vectors of that model.
    """

    graph: TextGraph
    split: LinkSplit
    comparison: Comparison
    model: Path
    found: DemoSearch

    def to_dict(self) -> dict[str, Any]:
        """Graph, split, evaluation and search, for JSON."""
        return {
            "graph": describe_graph(self.graph).to_dict(),
            "split": self.split.sizes(),
            "test": self.comparison.results.to_dict(),
            "search": self.found.matches.to_dict(),
        }

    def print(self) -> None:
        """Prints the graph, the comparison, the search, and the next commands to try."""
        print(describe_graph(self.graph).as_table())
        print(
            "\nTask: of several candidates, find the docstring that is linked to a given one. The "
            "links were held out from training."
        )
        print(
            "Both models were trained for the same number of steps; a step with neighbours takes "
            "longer than one without.\n"
        )
        self.comparison.print()
        split = self.split.artifact.path if self.split.artifact else ""
        print(f"\nThe model is in {self.model}: graphformers evaluate {self.model} {split}\n")
        self.found.as_table().print(gap=True)


def embed_and_search(
    model: Path, graph: TextGraph, folder: Path, query: str = "read a compressed file line by line"
) -> DemoSearch:
    """Embeds the graph, unless the folder has its vectors already, and searches for a sentence."""
    vectors, loaded = folder / "python.vectors", GraphFormers.from_pretrained(model)
    if not _exists(vectors) or VectorStore.load(vectors).key.model != model_fingerprint(loaded):
        logger.info(f"embedding {graph.num_nodes:,} docstrings with {model} …")
        embed(loaded, graph, vectors, force=True)
    return DemoSearch(vectors, query, Searcher(vectors, loaded).text(query, k=3))


def run_demo(
    folder: Path,
    steps: int,
    questions: int = 1000,
    candidates: int | None = None,
    search: Callable[[Path, TextGraph, Path], DemoSearch] = embed_and_search,
) -> Demo:
    """Imports and splits a graph, trains and compares two models, embeds and searches.

    Results of an earlier run in the same folder are reused.

    Args:
        folder: The folder of all results.
        steps: Training steps of each model.
        questions: Number of test questions.
        candidates: Candidates per question; by default as `split_links` chooses.
        search: Embeds the graph with a model and searches; called with the folder of the model,
            the graph and the folder of all results.
    """
    graph_folder = folder / f"python{platform.python_version()}.graph"
    if _exists(graph_folder):
        graph = TextGraph.load(graph_folder)
    else:
        logger.info("reading the docstrings of Python's standard library …")
        graph = read_graph([], settings=ImportSettings(format="python")).save(graph_folder)
    split_folder = folder / "python.split"
    if _exists(split_folder):
        split = LinkSplit.load(split_folder, graph)
    else:
        valid = max(questions // 5, 1)
        split = split_links(graph, valid=valid, test=questions, candidates=candidates)
        split = split.save(split_folder)
    count = split.test.candidates.shape[1]
    logger.info(f"{split}, {count} candidates per question")
    settings = ComparisonSettings(
        split, folder / "report", "minilm", SETTINGS | {"max_steps": steps}, force=True
    )
    found = compare(settings, methods=METHODS)
    model = settings.model_folder(variant(METHODS[1]), settings.seeds[0])
    return Demo(graph, split, found, model, search(model, graph, folder))


def _exists(folder: Path) -> bool:
    """Whether an earlier run made a folder; logs that it is used."""
    if not (folder / "manifest.json").is_file():
        return False
    logger.info(f"using {folder}, made by an earlier run")
    return True
