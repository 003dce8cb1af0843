"""TrainBatch: what one process computes in one step. Every batch is a pure function of (settings,
epoch, number).

Pairs are walked through in an order drawn anew for each epoch, every unordered pair once; which end
is the anchor is drawn too. A batch of K pairs is divided among the processes in one piece each;
everybody knows all K pairs, so that only vectors travel.

Centres are the two ends of each pair, anchors first. Neighbours are drawn anew in each epoch, and
the other end of a pair is never among them: the link that is to be found gives nothing away.
"""

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from graphformers.batching.packing import (
    NeighborIndex,
    PackedBatch,
    PackedNeighborhoods,
    Packer,
    ragged_index,
)
from graphformers.batching.sampling import Neighborhood, NeighborSampler
from graphformers.batching.tokens import TokenCache, graph_tokens
from graphformers.data.arrays import Array, equal_parts, mix, ranges
from graphformers.model.encoder import GraphFormers
from graphformers.splits.split import LinkSplit
from graphformers.training.masking import MaskedTokens, SpanMasking
from graphformers.training.objective import no_negatives
from graphformers.training.settings import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class BatchKey:
    """Which batch, and in how large pieces it is computed."""

    epoch: int
    number: int
    is_masked: bool
    chunk_size: int | None = None

    def __str__(self) -> str:
        return f"batch {self.number} of epoch {self.epoch}"


@dataclass(frozen=True)
class CenterChunk:
    """Some centres, and where among the states of all neighbours of the step theirs are."""

    centers: PackedBatch
    needed_m: "Tensor"  # int64: which of the M neighbours this chunk needs
    index: NeighborIndex  # into those


@dataclass(frozen=True)
class Counts:
    """What a batch holds; counts of batches add up."""

    pairs: int = 0
    anchors: int = 0  # pairs of this process
    left_out: int = 0  # keys that are no negatives, over all anchors of this process
    negatives: int = 0  # keys that are
    neighbors: int = 0  # of all centres
    distinct: int = 0  # neighbours that were encoded
    tokens: int = 0  # of texts
    places: int = 0  # for tokens, in all rows

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            *(getattr(self, entry.name) + getattr(other, entry.name) for entry in fields(self))
        )


@dataclass(frozen=True)
class TrainBatch:
    """The part of one process. Its pairs are computed chunk by chunk.

    Either every chunk holds its own neighbours, or they are encoded first, once for all chunks,
    from `neighbors`.
    """

    key: BatchKey
    pairs: "Tensor"  # (B, 2) int64: anchors and positives of this process
    sizes: tuple[int, ...]  # pairs of each process
    first: int  # where this process's pairs begin among all
    bounds: tuple[int, ...]  # where chunks begin among this process's pairs, and their end
    chunks: list[PackedNeighborhoods | CenterChunk]
    neighbors: list[PackedBatch]
    left_out: "Tensor"  # (2, number) int64: (anchor, key) places that are no negatives
    left_out_anchors: "Tensor"  # the same for keys that look for their anchors
    # float32: how often the ends of all processes' pairs come, as logarithms; None where unused
    often_K2: "Tensor | None" = None
    counts: Counts = field(default_factory=Counts)


@dataclass(frozen=True)
class BatchMaker:
    """Makes the batches of one process. Everything in it can be shared with worker processes."""

    split: LinkSplit
    tokens: TokenCache
    sampler: NeighborSampler
    packer: Packer
    masking: SpanMasking | None
    config: TrainConfig
    shares_neighbors: bool  # one encoding of a neighbour serves everybody
    rank: int = 0
    world: int = 1

    @staticmethod
    def of(
        model: GraphFormers, split: LinkSplit, config: TrainConfig, rank: int = 0, world: int = 1
    ) -> "BatchMaker":
        """The batches that a model is trained on."""
        reads_neighbors = model.network.reads_neighbors
        return BatchMaker(
            split,
            graph_tokens(split.graph, model.tokenizer),
            split.sampler(model.config.num_neighbors if reads_neighbors else 0, config.seed),
            # cuDNN plans attention anew for every number of rows, torch.compile layers for every
            # width
            model.packer(8, model.config.num_neighbors)
            if model.device.type == "cuda"
            else model.packer(),
            SpanMasking.of(model.tokenizer, config.mask_ratio, config.seed)
            if config.two_stage
            else None,
            config,
            model.packer().inputs.num_states > 0,
            rank,
            world,
        )

    @cached_property
    def num_batches(self) -> int:
        """Of one epoch."""
        return -(-len(self.split.train) // self.config.batch_size)

    @cached_property
    def _log_counts(self) -> Array:
        """(N,) float32: the logarithm of how many pairs of an epoch each node is an end of."""
        counts = np.bincount(self.split.train.reshape(-1), minlength=self.split.graph.num_nodes)
        return np.log(np.maximum(counts, 1)).astype(np.float32)

    def pairs(self, epoch: int, number: int) -> Array:
        """(K, 2) int64: anchors and positives of one batch, over all processes."""
        total, size = len(self.split.train), self.config.batch_size
        places = shuffled(
            np.arange(number * size, min((number + 1) * size, total)),
            total,
            self.config.seed,
            epoch,
        )
        pairs = self.split.train[places].astype(np.int64)
        hashes = self.split.graph.id_hashes[pairs]
        turned = mix(self.config.seed, epoch, 6, hashes[:, 0], hashes[:, 1]) & np.uint64(1) == 1
        return np.where(turned[:, None], pairs[:, ::-1], pairs)

    def make(self, key: BatchKey) -> TrainBatch:
        """One batch, sampled and packed."""
        pairs = self.pairs(key.epoch, key.number)
        edges = equal_parts(len(pairs), self.world)
        own, first = pairs[edges[self.rank] : edges[self.rank + 1]], edges[self.rank]
        size = key.chunk_size or max(len(own), 1)
        bounds = (*range(0, len(own), size), len(own))
        neighborhoods = [self._neighborhood(own[a:b], key.epoch) for a, b in pairwise(bounds)]
        tokens = self.tokens
        if key.is_masked:
            assert self.masking is not None, "the first stage needs a way to mask"
            tokens = MaskedTokens.of(tokens, self.masking, key.epoch)
        chunks, neighbors = self._pack(tokens, neighborhoods)
        left_out, left_out_anchors = self._left_out(pairs, own, first)
        batch = TrainBatch(
            key,
            torch.from_numpy(own),
            tuple(b - a for a, b in pairwise(edges)),
            first,
            bounds,
            chunks,
            neighbors,
            torch.from_numpy(left_out),
            torch.from_numpy(left_out_anchors),
            torch.from_numpy(self._log_counts[pairs]) if self.config.logq_correction else None,
        )
        return replace(batch, counts=_count(batch, neighborhoods))

    def _neighborhood(self, pairs: Array, epoch: int) -> Neighborhood:
        centers, others = pairs.T.reshape(-1), pairs[:, ::-1].T.reshape(-1)
        drawn = self.sampler.sample(centers, epoch=epoch, exclude=others)
        if not self.config.neighbor_dropout:
            return drawn
        hashes = self.split.graph.id_hashes
        lucky, share = (
            mix(self.config.seed, epoch, np.array([[7], [8]]), hashes[centers], hashes[others])
            / 2.0**64
        )
        counts = np.diff(drawn.indptr)
        # the first few: their order is random
        some = np.minimum((share * (counts + 1)).astype(np.int64), counts)
        kept = np.where(lucky < self.config.neighbor_dropout, some, counts)
        indptr = np.concatenate([[0], np.cumsum(kept)])
        return Neighborhood(drawn.centers, indptr, drawn.neighbors[ranges(drawn.indptr[:-1], kept)])

    def _pack(
        self, tokens: TokenCache, neighborhoods: list[Neighborhood]
    ) -> tuple[list[PackedNeighborhoods | CenterChunk], list[PackedBatch]]:
        if not neighborhoods:
            return [], []
        if not self.shares_neighbors or (
            len(neighborhoods) == 1 and self.config.neighbor_gradients
        ):
            return [self.packer.pack_neighborhoods(tokens, entry) for entry in neighborhoods], []
        distinct = np.unique(np.concatenate([entry.neighbors for entry in neighborhoods]))
        parts = np.array_split(distinct, len(neighborhoods))
        chunks: list[PackedNeighborhoods | CenterChunk] = []
        for entry in neighborhoods:
            needed, index = np.unique(
                np.searchsorted(distinct, entry.neighbors), return_inverse=True
            )
            rectangle = ragged_index(entry.indptr, index, self.packer.width_multiple)
            graph_tokens = self.packer.inputs.graph_tokens
            centers = self.packer.pack(tokens, entry.centers, graph_tokens=graph_tokens)
            links = NeighborIndex.from_numpy(*rectangle)
            chunks.append(CenterChunk(centers, torch.from_numpy(needed), links))
        return chunks, [self.packer.pack(tokens, part) for part in parts]

    def _left_out(self, pairs: Array, own: Array, first: int) -> tuple[Array, Array]:
        none = np.zeros((2, 0), dtype=np.int64)
        if not self.config.mask_false_negatives:
            return none, none
        rows = self.split.indptr, self.split.indices
        found = no_negatives(own[:, 0], pairs[:, 1], first, *rows)
        return found, no_negatives(
            own[:, 1], pairs[:, 0], first, *rows
        ) if self.config.symmetric else none


def _count(batch: TrainBatch, neighborhoods: list[Neighborhood]) -> Counts:
    packed = [*batch.neighbors]
    packed += [
        chunk.nodes if isinstance(chunk, PackedNeighborhoods) else chunk.centers
        for chunk in batch.chunks
    ]
    num_pairs, own, left_out = sum(batch.sizes), len(batch.pairs), batch.left_out.shape[1]
    return Counts(
        pairs=num_pairs,
        anchors=own,
        left_out=left_out,
        negatives=own * (num_pairs - 1) - left_out,
        neighbors=sum(len(entry.neighbors) for entry in neighborhoods),
        distinct=sum(nodes.num_nodes for nodes in packed) - 2 * own,
        tokens=sum(nodes.num_tokens for nodes in packed),
        places=sum(nodes.tokens_RW.numel() for nodes in packed),
    )


def shuffled(places: Array, total: int, seed: int, epoch: int) -> Array:
    """Where the given places of an epoch's random order point to: a permutation of `total` numbers
    that is never written down.

    A Feistel network permutes the numbers below the next power of four; what leaves the range is
    sent through again until it comes back in. So eight processes on forty million pairs do not hold
    eight shuffled lists.
    """
    half = max(1, ((total - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    result = places.astype(np.uint64)
    outside = np.ones(len(result), dtype=bool)
    while outside.any():
        left, right = result[outside] >> np.uint64(half), result[outside] & mask
        for turn in range(4):
            left, right = right, left ^ (mix(seed, epoch, 9, turn, right) & mask)
        result[outside] = left << np.uint64(half) | right
        outside[outside] = result[outside] >= total
    return result.astype(np.int64)
