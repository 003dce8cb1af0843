"""Training batches: pairs, their sampled neighbours and tokens, for one process and one step.

A batch is a function of the settings, the epoch and its number alone. Every epoch visits each
unordered pair once, in a new order, and draws again which end is the anchor. The pairs of a batch
are divided among the processes in consecutive parts. Every process knows all pairs of the batch, so
that processes exchange only vectors.

Centres are the two ends of each pair, anchors first. Their neighbours are sampled again in each
epoch. The other end of the pair is excluded, so that the input does not reveal the link.
"""

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from graphformers.arrays import Array, equal_parts, mix, ranges, uniform
from graphformers.batching.packing import (
    NeighborIndex,
    PackedBatch,
    PackedNeighborhoods,
    Packer,
)
from graphformers.batching.tokens import TokenCache, graph_tokens
from graphformers.graph.sampling import Neighborhood, NeighborSampler
from graphformers.model.encoder import GraphFormers
from graphformers.splits.split import LinkSplit
from graphformers.training.masking import MaskedTokens, SpanMasking
from graphformers.training.objective import find_false_negatives
from graphformers.training.queries import draw_queries
from graphformers.training.settings import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

# numbers that enter the hashes, so that random draws of different kinds are independent
DRAW_DIRECTION, DRAW_DROPOUT, DRAW_KEPT, DRAW_ORDER, DRAW_MASKED = 6, 7, 8, 9, 10


@dataclass(frozen=True)
class BatchKey:
    """Identifies a batch, and says in chunks of how many pairs it is computed."""

    epoch: int
    number: int
    is_masked: bool
    chunk_size: int | None = None

    def __str__(self) -> str:
        return f"batch {self.number} of epoch {self.epoch}"


@dataclass(frozen=True)
class CenterChunk:
    """The centres of a chunk, and which of the neighbours shared by all chunks it reads.

    Attributes:
        centers: The texts of the centres.
        needed_m: int64: the m of the M shared neighbours that this chunk reads.
        index: The neighbours of each centre, as indices into `needed_m`.
    """

    centers: PackedBatch
    needed_m: "Tensor"
    index: NeighborIndex


@dataclass(frozen=True)
class BatchCounts:
    """What a batch contains; the counts of several batches can be added.

    Attributes:
        pairs: Pairs of all processes.
        anchors: Pairs of this process.
        false_negatives: Keys masked as false negatives, over all anchors of this process.
        negatives: The other keys besides the positives.
        neighbors: Neighbours of all centres.
        encoded_neighbors: Neighbours that are encoded; one that centres share is encoded once.
        tokens: Tokens of all texts.
        token_slots: Places for tokens in all rows, padding included.
    """

    pairs: int = 0
    anchors: int = 0
    false_negatives: int = 0
    negatives: int = 0
    neighbors: int = 0
    encoded_neighbors: int = 0
    tokens: int = 0
    token_slots: int = 0

    def __add__(self, other: "BatchCounts") -> "BatchCounts":
        return BatchCounts(
            *(getattr(self, entry.name) + getattr(other, entry.name) for entry in fields(self))
        )


@dataclass(frozen=True)
class TrainBatch:
    """The part of a batch that one process computes, chunk by chunk.

    Either every chunk holds its own neighbours, or those of all chunks are in `neighbors`, to be
    encoded once.

    Attributes:
        key: Identifies the batch.
        pairs: (B, 2) int64: anchors and positives of this process.
        sizes: Pairs of each process.
        first: Where the pairs of this process start among all.
        bounds: Where chunks start among the pairs of this process, and where the last one ends.
        chunks: The centres of the pairs.
        neighbors: Neighbours that all chunks share, in as many parts as there are chunks.
        false_negatives: For anchors as queries, and for positives as queries: (2, number) int64,
            indices of queries and of their false negatives among the keys.
        log_frequency_K2: (K, 2) float32: the log of how often each end of all processes' pairs
            occurs in the training pairs; None where the objective does not use it.
        query_duplicates: For text queries as queries and all ends as keys, anchors before
            positives: (2, number) int64, indices of queries and of other keys that are the node
            asked for, too; None without text queries.
        counts: What the batch contains.
    """

    key: BatchKey
    pairs: "Tensor"
    sizes: tuple[int, ...]
    first: int
    bounds: tuple[int, ...]
    chunks: list[PackedNeighborhoods | CenterChunk]
    neighbors: list[PackedBatch]
    false_negatives: "tuple[Tensor, Tensor]"
    log_frequency_K2: "Tensor | None" = None
    query_duplicates: "Tensor | None" = None
    counts: BatchCounts = field(default_factory=BatchCounts)

    @property
    def own(self) -> slice:
        """The pairs of this process among those of all."""
        return slice(self.first, self.first + len(self.pairs))

    @property
    def num_sides(self) -> int:
        """Texts of a pair that are encoded: both ends, and a text query if there is one."""
        return 2 if self.query_duplicates is None else 3


@dataclass(frozen=True)
class BatchMaker:
    """Makes the batches of one process; its worker processes use copies of it.

    Attributes:
        split: The pairs, and the links that models may see.
        tokens: The tokens of all texts.
        sampler: Samples neighbours.
        packer: Packs texts into rows.
        masking: Masks texts; None if no stage trains on masked text.
        config: The settings of the run.
        shares_neighbors: Whether a neighbour has the same states for all centres, so that chunks
            can share them.
        continues_word: `Tokenizer.continues_word`, for text queries.
        rank: The number of this process.
        num_processes: The number of processes.
    """

    split: LinkSplit
    tokens: TokenCache
    sampler: NeighborSampler
    packer: Packer
    masking: SpanMasking | None
    config: TrainConfig
    shares_neighbors: bool
    continues_word: Array
    rank: int = 0
    num_processes: int = 1

    @classmethod
    def of(
        cls,
        model: GraphFormers,
        split: LinkSplit,
        config: TrainConfig,
        rank: int = 0,
        num_processes: int = 1,
    ) -> "BatchMaker":
        """A maker of batches for the training of a model."""
        most = model.config.num_neighbors
        if config.train_neighbors is not None:
            most = config.train_neighbors
        packer = model.packer()
        if model.device.type == "cuda":
            # Few distinct shapes, because cuDNN plans attention for every number of rows, and
            # torch.compile compiles layers for every number of neighbours.
            packer = model.packer(8, most)
        num_neighbors = most if model.network.reads_neighbors else 0
        masking = None
        if config.two_stage or config.masked_batches:
            masking = SpanMasking.of(model.tokenizer, config.mask_ratio, config.seed)
        return cls(
            split,
            graph_tokens(split.graph, model.tokenizer),
            split.sampler(num_neighbors, config.seed),
            packer,
            masking,
            config,
            packer.inputs.num_states > 0,
            model.tokenizer.continues_word,
            rank,
            num_processes,
        )

    @cached_property
    def num_batches(self) -> int:
        """The number of batches of an epoch."""
        return -(-len(self.split.train) // self.config.batch_size)

    @cached_property
    def log_frequency(self) -> Array:
        """(N,) float32: for each of N nodes, the log of the number of its training pairs."""
        counts = np.bincount(self.split.train.reshape(-1), minlength=self.split.graph.num_nodes)
        return np.log(np.maximum(counts, 1)).astype(np.float32)

    def is_masked(self, stage: str, epoch: int, number: int) -> bool:
        """Whether a batch is made of masked text."""
        if stage == "masked":
            return True
        drawn = uniform(mix(self.config.seed, epoch, DRAW_MASKED, number))
        return bool(drawn < self.config.masked_batches)

    def pairs(self, epoch: int, number: int) -> Array:
        """(K, 2) int64: anchors and positives of one batch, over all processes."""
        total, size, seed = len(self.split.train), self.config.batch_size, self.config.seed
        numbers = np.arange(number * size, min((number + 1) * size, total))
        pairs = self.split.train[shuffled(numbers, total, seed, epoch)].astype(np.int64)
        hashes = self.split.graph.id_hashes[pairs]
        drawn = mix(seed, epoch, DRAW_DIRECTION, hashes[:, 0], hashes[:, 1])
        is_turned = drawn & np.uint64(1) == 1
        return np.where(is_turned[:, None], pairs[:, ::-1], pairs)

    def make(self, key: BatchKey) -> TrainBatch:
        """One batch, sampled and packed."""
        pairs = self.pairs(key.epoch, key.number)
        edges = equal_parts(len(pairs), self.num_processes)
        first = edges[self.rank]
        own = pairs[first : edges[self.rank + 1]]
        size = key.chunk_size or max(len(own), 1)
        bounds = (*range(0, len(own), size), len(own))
        neighborhoods = [self.neighborhood(own[a:b], key.epoch) for a, b in pairwise(bounds)]
        tokens = self.tokens
        if key.is_masked:
            assert self.masking is not None, "a run with a masked stage has a masking"
            tokens = MaskedTokens.of(tokens, self.masking, key.epoch)
        queries = [self._queries(own[a:b, 0], key.epoch) for a, b in pairwise(bounds)]
        chunks, neighbors = self._pack(tokens, neighborhoods, queries)
        uses_frequency = self.config.logq_correction
        batch = TrainBatch(
            key,
            torch.from_numpy(own),
            tuple(b - a for a, b in pairwise(edges)),
            first,
            bounds,
            chunks,
            neighbors,
            self._false_negatives(pairs, own, first),
            torch.from_numpy(self.log_frequency[pairs]) if uses_frequency else None,
            self._query_duplicates(pairs, own, first),
        )
        return replace(batch, counts=_count(batch, neighborhoods))

    def neighborhood(self, pairs: Array, epoch: int) -> Neighborhood:
        """The neighbours of both ends of pairs, anchors first."""
        centers, others = pairs.T.reshape(-1), pairs[:, ::-1].T.reshape(-1)
        drawn = self.sampler.sample(centers, epoch=epoch, exclude=others)
        if not self.config.neighbor_dropout:
            return drawn
        hashes = self.split.graph.id_hashes
        kinds = np.array([[DRAW_DROPOUT], [DRAW_KEPT]])
        chance, share = (
            mix(self.config.seed, epoch, kinds, hashes[centers], hashes[others]) / 2.0**64
        )
        counts = np.diff(drawn.indptr)
        # Keeping the first ones is a random choice, because neighbours are in random order.
        some = np.minimum((share * (counts + 1)).astype(np.int64), counts)
        kept = np.where(chance < self.config.neighbor_dropout, some, counts)
        indptr = np.concatenate([[0], np.cumsum(kept)])
        return Neighborhood(drawn.centers, indptr, drawn.neighbors[ranges(drawn.indptr[:-1], kept)])

    def _queries(self, anchors: Array, epoch: int) -> TokenCache | None:
        """The text queries for some anchors; None if the objective has none."""
        if not self.config.text_query_weight:
            return None
        seed, max_tokens = self.config.seed, self.packer.max_tokens
        return draw_queries(self.tokens, anchors, max_tokens, self.continues_word, seed, epoch)

    def _pack(
        self,
        tokens: TokenCache,
        neighborhoods: list[Neighborhood],
        queries: list[TokenCache | None],
    ) -> tuple[list[PackedNeighborhoods | CenterChunk], list[PackedBatch]]:
        """Packs the chunks with their queries, and the neighbours that they share."""
        if not neighborhoods:
            return [], []
        # A single chunk shares nothing. If no gradients flow through neighbours, they are encoded
        # separately all the same, because that needs no autograd graph.
        is_one_pass = len(neighborhoods) == 1 and self.config.neighbor_gradients
        if is_one_pass or not self.shares_neighbors:
            parts = zip(neighborhoods, queries, strict=True)
            return [self.packer.pack_neighborhoods(tokens, *part) for part in parts], []
        distinct = np.unique(np.concatenate([entry.neighbors for entry in neighborhoods]))
        chunks: list[PackedNeighborhoods | CenterChunk] = []
        for entry, texts in zip(neighborhoods, queries, strict=True):
            needed, rows = np.unique(
                np.searchsorted(distinct, entry.neighbors), return_inverse=True
            )
            centers = self.packer.pack_centers(tokens, entry.centers, texts)
            index = self.packer.neighbor_index(entry, rows, 0 if texts is None else texts.num_texts)
            chunks.append(CenterChunk(centers, torch.from_numpy(needed), index))
        shared = np.array_split(distinct, len(neighborhoods))
        return chunks, [self.packer.pack(tokens, part) for part in shared]

    def _false_negatives(self, pairs: Array, own: Array, first: int) -> "tuple[Tensor, Tensor]":
        found = []
        for query, is_used in ((0, True), (1, self.config.symmetric)):
            indices = np.zeros((2, 0), dtype=np.int64)
            if is_used and self.config.mask_false_negatives:
                rows = self.split.indptr, self.split.indices
                indices = find_false_negatives(own[:, query], pairs[:, 1 - query], first, *rows)
            found.append(torch.from_numpy(indices))
        return found[0], found[1]

    def _query_duplicates(self, pairs: Array, own: Array, first: int) -> "Tensor | None":
        if not self.config.text_query_weight:
            return None
        # In a graph without links, only the anchor itself is found among the keys.
        no_links = np.zeros(self.split.graph.num_nodes + 1, dtype=np.int64), own[:0, 0]
        keys = pairs.T.reshape(-1)
        return torch.from_numpy(find_false_negatives(own[:, 0], keys, first, *no_links))


def _count(batch: TrainBatch, neighborhoods: list[Neighborhood]) -> BatchCounts:
    packed = [*batch.neighbors]
    packed += [
        chunk.nodes if isinstance(chunk, PackedNeighborhoods) else chunk.centers
        for chunk in batch.chunks
    ]
    num_pairs, own = sum(batch.sizes), len(batch.pairs)
    false_negatives = batch.false_negatives[0].shape[1]
    return BatchCounts(
        pairs=num_pairs,
        anchors=own,
        false_negatives=false_negatives,
        negatives=own * (num_pairs - 1) - false_negatives,
        neighbors=sum(len(entry.neighbors) for entry in neighborhoods),
        encoded_neighbors=sum(nodes.num_nodes for nodes in packed) - batch.num_sides * own,
        tokens=sum(nodes.num_tokens for nodes in packed),
        token_slots=sum(nodes.tokens_RW.numel() for nodes in packed),
    )


def shuffled(numbers: Array, total: int, seed: int, epoch: int) -> Array:
    """Applies a random permutation of 0 … total - 1 to some numbers, without storing it.

    A Feistel network permutes the numbers below the next power of four. A result outside the range
    is permuted again until it is inside. So no process has to hold a shuffled list of all pairs.
    """
    half = max(1, ((total - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    result = numbers.astype(np.uint64)
    outside = np.ones(len(result), dtype=bool)
    while outside.any():
        left, right = result[outside] >> np.uint64(half), result[outside] & mask
        for i in range(4):
            left, right = right, left ^ (mix(seed, epoch, DRAW_ORDER, i, right) & mask)
        result[outside] = left << np.uint64(half) | right
        outside[outside] = result[outside] >= total
    return result.astype(np.int64)
