"""Embeddings of text graphs, computed from a node's text and its neighbours' texts."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from graphformers.version import __version__ as __version__

if TYPE_CHECKING:
    from graphformers.batching.sampling import Neighborhood, NeighborSampler
    from graphformers.data.builder import build_graph
    from graphformers.data.exchange import from_networkx, from_pyg, to_networkx, to_pyg
    from graphformers.data.graph import TextGraph
    from graphformers.data.readers import read_graph
    from graphformers.data.settings import ImportSettings, SplitSettings
    from graphformers.embedding.job import embed
    from graphformers.embedding.settings import EmbedSettings
    from graphformers.embedding.update import UpdateReport, update
    from graphformers.embedding.vectors import VectorStore
    from graphformers.errors import GraphFormersError
    from graphformers.evaluation.ranking import Evaluation, evaluate
    from graphformers.model.config import ModelConfig
    from graphformers.model.encoder import GraphFormers
    from graphformers.retrieval.searcher import Match, Searcher, search
    from graphformers.splits.split import LinkSplit, split_links
    from graphformers.training.settings import TrainConfig
    from graphformers.training.trainer import Trainer


# where each public name lives; a module is imported when its name is first used, so that --help
# stays fast
_HOMES = {
    "EmbedSettings": "embedding.settings",
    "Evaluation": "evaluation.ranking",
    "GraphFormers": "model.encoder",
    "GraphFormersError": "errors",
    "ImportSettings": "data.settings",
    "LinkSplit": "splits.split",
    "Match": "retrieval.searcher",
    "ModelConfig": "model.config",
    "NeighborSampler": "batching.sampling",
    "Neighborhood": "batching.sampling",
    "Searcher": "retrieval.searcher",
    "SplitSettings": "data.settings",
    "TextGraph": "data.graph",
    "TrainConfig": "training.settings",
    "Trainer": "training.trainer",
    "UpdateReport": "embedding.update",
    "VectorStore": "embedding.vectors",
    "build_graph": "data.builder",
    "embed": "embedding.job",
    "evaluate": "evaluation.ranking",
    "from_networkx": "data.exchange",
    "from_pyg": "data.exchange",
    "read_graph": "data.readers",
    "search": "retrieval.searcher",
    "split_links": "splits.split",
    "to_networkx": "data.exchange",
    "to_pyg": "data.exchange",
    "update": "embedding.update",
}

__all__ = [
    "EmbedSettings",
    "Evaluation",
    "GraphFormers",
    "GraphFormersError",
    "ImportSettings",
    "LinkSplit",
    "Match",
    "ModelConfig",
    "NeighborSampler",
    "Neighborhood",
    "Searcher",
    "SplitSettings",
    "TextGraph",
    "TrainConfig",
    "Trainer",
    "UpdateReport",
    "VectorStore",
    "build_graph",
    "embed",
    "evaluate",
    "from_networkx",
    "from_pyg",
    "read_graph",
    "search",
    "split_links",
    "to_networkx",
    "to_pyg",
    "update",
]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'graphformers' has no attribute {name!r}")
    return getattr(import_module(f"graphformers.{_HOMES[name]}"), name)
