"""Embeddings of text graphs, computed from a node's text and its neighbours' texts."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from graphformers.version import __version__ as __version__

if TYPE_CHECKING:
    from graphformers.embedding.job import embed as embed
    from graphformers.embedding.settings import EmbedSettings as EmbedSettings
    from graphformers.embedding.update import UpdateReport as UpdateReport
    from graphformers.embedding.update import update as update
    from graphformers.embedding.vectors import VectorStore as VectorStore
    from graphformers.errors import GraphFormersError as GraphFormersError
    from graphformers.evaluation.ranking import Evaluation as Evaluation
    from graphformers.evaluation.ranking import evaluate as evaluate
    from graphformers.evaluation.text_search import TextQueries as TextQueries
    from graphformers.evaluation.text_search import known_item_queries as known_item_queries
    from graphformers.evaluation.text_search import text_search as text_search
    from graphformers.graph.interop import build_graph as build_graph
    from graphformers.graph.interop import from_networkx as from_networkx
    from graphformers.graph.interop import from_pyg as from_pyg
    from graphformers.graph.interop import to_networkx as to_networkx
    from graphformers.graph.interop import to_pyg as to_pyg
    from graphformers.graph.readers import read_graph as read_graph
    from graphformers.graph.sampling import Neighborhood as Neighborhood
    from graphformers.graph.sampling import NeighborSampler as NeighborSampler
    from graphformers.graph.settings import ImportSettings as ImportSettings
    from graphformers.graph.textgraph import TextGraph as TextGraph
    from graphformers.model.config import ModelConfig as ModelConfig
    from graphformers.model.encoder import GraphFormers as GraphFormers
    from graphformers.retrieval.queries import Query as Query
    from graphformers.retrieval.searcher import Match as Match
    from graphformers.retrieval.searcher import Searcher as Searcher
    from graphformers.retrieval.searcher import search as search
    from graphformers.splits.settings import SplitSettings as SplitSettings
    from graphformers.splits.split import LinkSplit as LinkSplit
    from graphformers.splits.split import split_links as split_links
    from graphformers.training.auto import auto_recipe as auto_recipe
    from graphformers.training.recipes import Recipe as Recipe
    from graphformers.training.settings import TrainConfig as TrainConfig
    from graphformers.training.trainer import Trainer as Trainer


# where each public name lives; a module is imported when its name is first used, so that --help
# stays fast
_HOMES = {
    "EmbedSettings": "embedding.settings",
    "Evaluation": "evaluation.ranking",
    "GraphFormers": "model.encoder",
    "GraphFormersError": "errors",
    "ImportSettings": "graph.settings",
    "LinkSplit": "splits.split",
    "Match": "retrieval.searcher",
    "ModelConfig": "model.config",
    "NeighborSampler": "graph.sampling",
    "Neighborhood": "graph.sampling",
    "Query": "retrieval.queries",
    "Recipe": "training.recipes",
    "Searcher": "retrieval.searcher",
    "SplitSettings": "splits.settings",
    "TextGraph": "graph.textgraph",
    "TextQueries": "evaluation.text_search",
    "TrainConfig": "training.settings",
    "Trainer": "training.trainer",
    "UpdateReport": "embedding.update",
    "VectorStore": "embedding.vectors",
    "auto_recipe": "training.auto",
    "build_graph": "graph.interop",
    "embed": "embedding.job",
    "evaluate": "evaluation.ranking",
    "from_networkx": "graph.interop",
    "from_pyg": "graph.interop",
    "known_item_queries": "evaluation.text_search",
    "read_graph": "graph.readers",
    "search": "retrieval.searcher",
    "split_links": "splits.split",
    "text_search": "evaluation.text_search",
    "to_networkx": "graph.interop",
    "to_pyg": "graph.interop",
    "update": "embedding.update",
}

__all__ = list(_HOMES)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'graphformers' has no attribute {name!r}")
    return getattr(import_module(f"graphformers.{_HOMES[name]}"), name)
