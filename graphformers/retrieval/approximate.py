"""ApproximateIndex: what all approximate indexes have in common.

A kind of index finds candidates. This class leaves out hidden ones, asks for more while too few are
left, scores the candidates with the stored vectors, measures the recall, and keeps the index in the
store's folder:

    papers.vectors/index.NAME, index.NAME.json   the index, and what it was made of

Shapes as in index.py; M candidates of a query, or fewer.
"""

import copy
import errno
import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from graphformers.arrays import Array, unit_rows
from graphformers.artifact import open_artifact
from graphformers.embedding.vectors import KIND, VERSION, VectorStore
from graphformers.errors import ArtifactError
from graphformers.files import checksum, put_in_place, write_whole
from graphformers.records import read_sealed, sealed
from graphformers.retrieval.exact import ExactIndex, base_vectors
from graphformers.retrieval.hits import Hits, best_hits
from graphformers.retrieval.index import Hidden, is_exact_fast

logger = logging.getLogger(__name__)

# Times as many hits as wanted are scored again.
SURPLUS = 2
RECALL_QUERIES = 500


class DamagedIndexError(Exception):
    """The file of an index is not what it should be; the index is built again."""


@dataclass(frozen=True)
class IndexFacts:
    """What an index on disk was made of.

    Attributes:
        base: Fingerprint of the store's base.
        count: Number of vectors.
        recall: Recall@10 against exact search.
        checksum: Checksum of the file.
        settings: What the kind of index needs besides its file.
    """

    base: str
    count: int
    recall: float
    checksum: str
    settings: dict[str, Any]

    @staticmethod
    def read(file: Path) -> "IndexFacts":
        """The facts in a file.

        Raises:
            DamagedIndexError: The file holds anything else.
        """
        try:
            facts = read_sealed(file, IndexFacts)
        except ArtifactError as error:
            raise DamagedIndexError(str(error)) from error
        if not 0 <= facts.recall <= 1:
            raise DamagedIndexError("damaged")
        return facts


class OpenFile:
    """An open file, whatever replaces it on disk; closed with its last reference."""

    def __init__(self, path: Path) -> None:
        self.handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.handle)

    @property
    def path(self) -> Path:
        """A path under which this process and its children can open the file."""
        return Path(f"/dev/fd/{self.handle}")


class ApproximateIndex(ABC):
    """An index that finds most of the nearest vectors, and is built once for each base.

    A kind of index defines `name`, `build`, `candidates`, `write` and `read`.

    Args:
        store: The store.
    """

    name: ClassVar[str]

    def __init__(self, store: VectorStore) -> None:
        self.store, self.recall = store, 0.0
        # The file that the index was read from, if any.
        self.file: OpenFile | None = None
        self._exact = ExactIndex(store, is_kept=False)
        # The numbers of the indexed vectors in a compacted store, -1 for those that changed; None
        # for the same.
        self._numbers: Array | None = None

    @classmethod
    @abstractmethod
    def build(cls, store: VectorStore, trial: "RecallTrial") -> Self:
        """Builds the index of a store's base in memory.

        Args:
            store: The store; `base_blocks` reads its vectors.
            trial: Measures the recall of an index, for kinds that choose settings by it.
        """

    @abstractmethod
    def candidates(self, queries_QD: Array, count: int, *, are_nodes: bool) -> Array:
        """(Q, count) the numbers of vectors that are probably the nearest, -1 for none.

        Args:
            queries_QD: The query vectors.
            count: Number of candidates for each.
            are_nodes: Whether the queries are vectors of the store.
        """

    @abstractmethod
    def write(self, file: Path) -> dict[str, Any]:
        """Writes the index to a file.

        Args:
            file: The file.

        Returns:
            What `read` needs besides the file, for JSON.
        """

    @classmethod
    @abstractmethod
    def read(cls, store: VectorStore, file: OpenFile, settings: Mapping[str, Any]) -> Self:
        """The index in a file that `write` wrote. Its checksum is right, but anybody can make one.

        Args:
            store: The store.
            file: The file.
            settings: What `write` returned.

        Raises:
            DamagedIndexError: The file or the settings are not what `write` makes.
        """

    @classmethod
    def open(cls, store: VectorStore) -> Self:
        found = cls.load(store)
        return cls.make(store) if found is None else found

    @classmethod
    def load(cls, store: VectorStore) -> Self | None:
        """The index from disk; None if there is none, it belongs to another base, or is damaged."""
        place, about = cls._files(store)
        try:
            facts, file = IndexFacts.read(about), OpenFile(place)
            if (facts.base, facts.count) != (store.artifact.fingerprint, store.num_base):
                return None
            if checksum(file.path) != facts.checksum:
                raise DamagedIndexError("damaged, its checksum does not match")
            # Exactly this file: a compaction may replace it at any moment.
            found = cls.read(store, file, facts.settings)
        except OSError:
            return None
        except DamagedIndexError as error:
            logger.warning(f"{place}: {error}; it is made again")
            return None
        found.file, found.recall = file, facts.recall
        return found

    @classmethod
    def make(cls, store: VectorStore) -> Self:
        """Builds the index of a store's base, measures its recall, and saves it beside the
        vectors.
        """
        trial = RecallTrial.of(store)
        index = cls.build(store, trial)
        index.recall = trial.recall(index)
        logger.info(f"index of {store.num_base:,} vectors: recall@10 {index.recall:.3f}")
        place, about = cls._files(store)
        base = store.artifact.fingerprint
        try:
            if open_artifact(store.path, KIND, VERSION).fingerprint != base:
                # Another base replaced this one, with an index of its own.
                return index
            with put_in_place(place) as draft:
                settings = index.write(draft)
                digest = checksum(draft)
            facts = IndexFacts(base, store.num_base, index.recall, digest, settings)
            write_whole(about, sealed(asdict(facts)))
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            logger.info(
                f"{store.path}: the index cannot be kept there ({error.strerror}); it will be "
                f"built again the next time"
            )
        return index

    @classmethod
    def _files(cls, store: VectorStore) -> tuple[Path, Path]:
        return store.path / f"index.{cls.name}", store.path / f"index.{cls.name}.json"

    def renumbered(self, store: VectorStore, numbers: Array) -> Self:
        mine = np.arange(self.store.num_base) if self._numbers is None else self._numbers
        other = copy.copy(self)
        other.store, other._exact = store, ExactIndex(store, is_kept=False)
        other._numbers = np.where(mine >= 0, numbers[mine], -1)
        return other

    def search(self, queries_QD: Array, k: int, hidden: Hidden, *, are_nodes: bool = False) -> Hits:
        """The `k` best candidates by the stored vectors; four times as many candidates while too
        few of them are visible.
        """
        wanted, enough = SURPLUS * k, min(k + k // 2, hidden.num_visible)
        is_filtered = 2 * hidden.num_visible < self.store.num_base
        # Where few are visible, exact search is faster, and candidates might miss some.
        if is_filtered and is_exact_fast(hidden.num_visible):
            return self._exact.search(queries_QD, k, hidden)
        while wanted <= self.store.num_base // 4:
            found_QM = self.candidates(queries_QD, wanted, are_nodes=are_nodes)
            if self._numbers is not None:
                found_QM = np.where(found_QM >= 0, self._numbers[found_QM], -1)
            found_QM[(found_QM >= 0) & hidden.mask_N[found_QM]] = -1
            if ((found_QM >= 0).sum(1) >= enough).all():
                return self._scored(queries_QD, found_QM, k)
            wanted *= 4
        return self._exact.search(queries_QD, k, hidden)

    def _scored(self, queries_QD: Array, found_QM: Array, k: int) -> Hits:
        """The `k` best candidates by the stored vectors; -1 stands for none."""
        distinct, places = np.unique(found_QM, return_inverse=True)
        vectors = base_vectors(self.store, distinct[distinct >= 0])
        if len(distinct) and distinct[0] < 0:
            vectors = np.concatenate([np.zeros((1, self.store.size), dtype=np.float32), vectors])
        scores_QM = np.einsum("qd,qmd->qm", queries_QD, vectors[places.reshape(found_QM.shape)])
        scores_QM[found_QM < 0] = -np.inf
        missing = max(k - found_QM.shape[1], 0)
        if missing:
            found_QM = np.pad(found_QM, ((0, 0), (0, missing)), constant_values=-1)
            scores_QM = np.pad(scores_QM, ((0, 0), (0, missing)), constant_values=-np.inf)
        return best_hits(found_QM, scores_QM.astype(np.float32), k)


@dataclass(frozen=True)
class RecallTrial:
    """Queries by which the recall of an index is measured. Ties count as hits.

    Attributes:
        queries_QD: The queries.
        own_Q: Nodes to leave out; -1 for none.
        worst_Q: Score of the last true hit.
        count: Number of true hits.
    """

    queries_QD: Array
    own_Q: Array
    worst_Q: Array
    count: int

    @staticmethod
    def of(store: VectorStore) -> "RecallTrial":
        """Random points between pairs of vectors of the store."""
        draw = np.random.default_rng(0)
        ends = draw.integers(0, store.num_base, (2, RECALL_QUERIES))
        share = draw.uniform(0, 0.5, (RECALL_QUERIES, 1)).astype(np.float32)
        queries = (1 - share) * store.base_vectors(ends[0]) + share * store.base_vectors(ends[1])
        queries = unit_rows(queries) if store.is_cosine else queries
        return RecallTrial._of_queries(store, queries, np.full(len(queries), -1))

    @staticmethod
    def of_nodes(store: VectorStore) -> "RecallTrial":
        """Vectors of the store; each leaves itself out."""
        nodes = np.random.default_rng(1).choice(
            store.num_base, min(store.num_base, RECALL_QUERIES), replace=False
        )
        return RecallTrial._of_queries(store, base_vectors(store, nodes), nodes)

    @staticmethod
    def _of_queries(store: VectorStore, queries_QD: Array, own_Q: Array) -> "RecallTrial":
        exact = ExactIndex(store, is_kept=False)
        best = exact.search(queries_QD, min(11, store.num_base), _all_visible(store))
        # The node itself comes first and is skipped.
        scores = np.where(best.nodes_QK == own_Q[:, None], np.inf, best.scores_QK)
        is_own = int((own_Q >= 0).any())
        count = min(10, store.num_base - is_own)
        worst_Q = -np.sort(-scores, axis=1)[:, max(is_own + count - 1, 0)]
        return RecallTrial(queries_QD, own_Q, worst_Q, count)

    def recall(self, index: ApproximateIndex) -> float:
        """The share of the true hits, or equally near ones, that an index finds."""
        if not self.count:
            return 1.0
        k = min(11, index.store.num_base)
        found = index.search(self.queries_QD, k, _all_visible(index.store))
        enough = self.worst_Q - 1e-5 * np.abs(self.worst_Q)
        is_right = (
            (found.scores_QK >= enough[:, None])
            & (found.nodes_QK != self.own_Q[:, None])
            & (found.nodes_QK >= 0)
        )
        num_found = float(np.minimum(is_right.sum(1), self.count).sum())
        return num_found / (self.count * len(self.own_Q))


def _all_visible(store: VectorStore) -> Hidden:
    return Hidden.of(np.zeros(store.num_base, dtype=bool))
