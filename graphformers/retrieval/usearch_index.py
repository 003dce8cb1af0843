"""UsearchIndex: an HNSW graph of usearch over quantised vectors.

See quantization.py for how vectors are quantised. The file is mapped into memory and shared by all
processes.
"""

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from graphformers.arrays import Array
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import MissingExtraError
from graphformers.progress import progress
from graphformers.retrieval.approximate import (
    ApproximateIndex,
    DamagedIndexError,
    OpenFile,
    RecallTrial,
)
from graphformers.retrieval.exact import BLOCK, base_vectors
from graphformers.retrieval.hnsw import HnswGraph, Searchable
from graphformers.retrieval.index import has_usearch
from graphformers.retrieval.quantization import EXTRA, Quantization, quantized_queries
from graphformers.retrieval.usearch_file import DamagedFileError, check_file
from graphformers.settings import has_type

if TYPE_CHECKING:
    from usearch.index import Index as UsearchGraph

# Links of a node in the HNSW graph; with 16, vectors in tight clusters lose two hits in a hundred.
CONNECTIVITY, BUILD_WIDTH = 24, 160
# Search widths that are tried.
WIDTHS = (64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 512, 768, 1024, 1536, 2048)
# For queries that are no nodes: they may differ much from those by which the index is measured.
LEAST_WIDTH = 128
# Recall@10 for which a width is chosen when an index is built.
RECALL = 0.99
# Vectors that a single thread adds first: in an almost empty graph several would miss each other.
FIRST = 2_000


@dataclass(frozen=True)
class HnswSettings:
    """How vectors are quantised, and how widely the HNSW graph is searched.

    Attributes:
        precision: Type of numbers, i8 or f16.
        search_width: Search width (`ef`) for any query.
        node_width: Search width for vectors of nodes in the store, which are found more easily.
    """

    precision: str
    search_width: int
    node_width: int

    @staticmethod
    def of(values: Mapping[str, Any]) -> "HnswSettings":
        """The settings in the JSON beside an index.

        Raises:
            DamagedIndexError: They are anything else.
        """
        is_right = set(values) == {"precision", "search_width", "node_width"}
        if not is_right or values["precision"] not in ("i8", "f16"):
            raise DamagedIndexError("damaged settings")
        for name in ("search_width", "node_width"):
            if not has_type(values[name], "int") or not 1 <= values[name] <= WIDTHS[-1]:
                raise DamagedIndexError("damaged settings")
        return HnswSettings(**values)


class UsearchIndex(ApproximateIndex):
    """An HNSW graph over quantised vectors; its best hits are scored with the stored vectors.

    Args:
        store: The store.
        graph: The graph.
        settings: The settings of graph and search.
    """

    name: ClassVar[str] = "usearch"

    def __init__(self, store: VectorStore, graph: Searchable, settings: HnswSettings) -> None:
        super().__init__(store)
        self.graph, self.settings = graph, settings

    @classmethod
    def build(cls, store: VectorStore, trial: RecallTrial) -> "UsearchIndex":
        if not has_usearch():
            raise MissingExtraError("usearch", "the index usearch", "search")
        of_nodes = RecallTrial.of_nodes(store)
        quantization = Quantization.of(store, "i8")
        index, recall = cls._built(store, quantization, trial, of_nodes)
        # A few numbers are so large that eight bits hold nothing of the others.
        if recall < RECALL:
            quantization = replace(quantization, precision="f16")
            other, other_recall = cls._built(store, quantization, trial, of_nodes)
            index = other if other_recall > recall else index
        return index

    @classmethod
    def _built(
        cls, store: VectorStore, quantization: Quantization, trial: RecallTrial, nodes: RecallTrial
    ) -> "tuple[UsearchIndex, float]":
        """An index in memory with the smallest widths of enough recall, and its recall."""
        graph = _empty_graph(quantization.size, quantization.precision)
        with progress("Indexing", store.num_base, "vectors") as task:
            edges = sorted({0, *range(FIRST, store.num_base, BLOCK // 4), store.num_base})
            for start, end in pairwise(edges):
                rows = np.arange(start, end)
                vectors = quantization.vectors(base_vectors(store, rows))
                graph.add(rows, vectors, threads=0 if start else 1)
                task.advance(len(rows))
        settings = HnswSettings(quantization.precision, WIDTHS[0], WIDTHS[0])
        index = UsearchIndex(store, HnswGraph(graph), settings)
        width, recall = index.smallest_width(trial, LEAST_WIDTH)
        node_width = min(index.smallest_width(nodes, WIDTHS[0])[0], width)
        index.settings = replace(settings, search_width=width, node_width=node_width)
        return index, recall

    def smallest_width(self, trial: RecallTrial, least: int) -> tuple[int, float]:
        """The smallest search width for a recall@10 of RECALL, and its recall.

        Args:
            trial: Measures the recall.
            least: The smallest width that is tried.
        """
        recall = 0.0
        for width in (width for width in WIDTHS if width >= least):
            recall = trial.recall(self.with_width(width))
            if recall >= RECALL:
                break
        return width, recall

    def with_width(self, width: int) -> "UsearchIndex":
        """The same index with another search width."""
        other = copy.copy(self)
        other.settings = replace(self.settings, search_width=width)
        return other

    def through(self, graph: Searchable) -> "UsearchIndex":
        """The same index with its HNSW graph in another place, such as other processes."""
        other = copy.copy(self)
        other.graph = graph
        return other

    def candidates(self, queries_QD: Array, count: int, *, are_nodes: bool) -> Array:
        width = self.settings.node_width if are_nodes else self.settings.search_width
        queries = quantized_queries(queries_QD, self.settings.precision)
        return self.graph.search(queries, count, width)

    def write(self, file: Path) -> dict[str, Any]:
        assert isinstance(self.graph, HnswGraph), "a graph that was just built is in this process"
        self.graph.graph.save(str(file))
        return asdict(self.settings)

    @classmethod
    def read(
        cls, store: VectorStore, file: OpenFile, settings: Mapping[str, Any]
    ) -> "UsearchIndex":
        if not has_usearch():
            raise MissingExtraError("usearch", "the index usearch", "search")
        own, size = HnswSettings.of(settings), store.size + EXTRA
        try:
            check_file(
                file.path,
                count=store.num_base,
                size=size,
                precision=own.precision,
                connectivity=CONNECTIVITY,
            )
        except DamagedFileError as error:
            raise DamagedIndexError(f"not an index of these vectors ({error})") from error
        graph = _empty_graph(size, own.precision)
        graph.view(str(file.path))
        return UsearchIndex(store, HnswGraph(graph), own)


def _empty_graph(size: int, precision: str) -> "UsearchGraph":
    from usearch.index import Index as UsearchGraph

    return UsearchGraph(
        ndim=size,
        metric="ip",
        dtype=precision,
        connectivity=CONNECTIVITY,
        expansion_add=BUILD_WIDTH,
    )
