"""Span masking of texts for the first stage of training (section 3.3 and appendix A.1).

Span lengths are geometric, Geo(0.2), clipped at 10; spans are drawn until 15 % of a text's tokens
are covered. Of the covered tokens, 80 % are replaced by [MASK], 10 % by a random token, and 10 %
are kept. Special tokens are never covered and never drawn.

The masking of a text is a function of (seed, epoch, node's id) alone: it is the same in every batch
and on every machine within an epoch, and changes from epoch to epoch.
"""

from dataclasses import dataclass, field

import numpy as np

from graphformers.arrays import Array, mix, ranges, uniform
from graphformers.batching.tokens import TokenCache, Tokenizer
from graphformers.errors import GraphFormersError


@dataclass(frozen=True)
class SpanMasking:
    """Replaces spans of tokens by [MASK] or random tokens.

    Attributes:
        mask_token: The id of [MASK].
        vocab_size: The number of token ids.
        special_tokens: Ids that are never covered and never drawn.
        share: The share of a text's tokens to cover.
        stop: The probability that a span ends after a token.
        max_length: Tokens of a span, at most.
        seed: The seed of all draws.
    """

    mask_token: int
    vocab_size: int
    special_tokens: tuple[int, ...]
    share: float = 0.15
    stop: float = 0.2
    max_length: int = 10
    seed: int = 42

    def __post_init__(self) -> None:
        if not 0 < self.share < 1 or not 0 < self.stop <= 1 or self.max_length < 1:
            raise GraphFormersError(
                f"share={self.share}, stop={self.stop}, max_length={self.max_length} given, "
                f"expected 0 < share < 1, 0 < stop <= 1 and max_length >= 1"
            )
        if len(set(self.special_tokens)) >= self.vocab_size:
            raise GraphFormersError(
                f"all {self.vocab_size} tokens are special, expected others to draw from"
            )

    @staticmethod
    def of(tokenizer: Tokenizer, share: float, seed: int) -> "SpanMasking":
        """Masking with the special tokens of a tokenizer."""
        mask = tokenizer.find("[MASK]", "<mask>")
        if mask is None:
            raise GraphFormersError(
                "this tokenizer has no [MASK] token, so texts cannot be masked; set "
                "two_stage=false to train on clean text only"
            )
        return SpanMasking(
            mask, tokenizer.vocab_size, tokenizer.special_tokens, share=share, seed=seed
        )

    def apply(self, flat: Array, indptr: Array, id_hashes: Array, epoch: int) -> Array:
        """Returns a masked copy of texts.

        Spans start at the tokens of a text in random order, as in the paper's algorithm. All texts
        are processed together, one span of each at a time, until enough tokens are covered.

        Args:
            flat: The tokens of all texts, one after the other.
            indptr: Where each text starts, and where the last one ends.
            id_hashes: The hashes of the ids of the nodes.
            epoch: The epoch.
        """
        ordinary = ~np.isin(flat, self.special_tokens)
        owner = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        wanted = self._wanted(
            np.bincount(owner[ordinary], minlength=len(indptr) - 1), id_hashes, epoch
        )
        covered = np.zeros(len(flat), dtype=bool)
        starts = self._starts(ordinary, owner, id_hashes, epoch)
        for turn in range(int(np.diff(starts.indptr).max(initial=0))):
            done = np.bincount(owner[covered], minlength=len(wanted))
            todo = np.flatnonzero((done < wanted) & (np.diff(starts.indptr) > turn))
            if not len(todo):
                break
            first = starts.places[starts.indptr[todo] + turn]
            length = np.minimum(
                self._lengths(id_hashes[todo], epoch, turn), indptr[todo + 1] - first
            )
            span, text = ranges(first, length), np.repeat(todo, length)
            is_new = ordinary[span] & ~covered[span]
            span, text = span[is_new], text[is_new]
            # A span covers no more tokens than are still wanted.
            rank = np.arange(len(span)) - np.searchsorted(text, text)
            covered[span[rank < (wanted - done)[text]]] = True
        return self._replace(flat, covered, owner, id_hashes, epoch)

    def _wanted(self, lengths: Array, id_hashes: Array, epoch: int) -> Array:
        """How many tokens to cover: `share` of a text, rounded up or down at random."""
        exact = self.share * lengths
        is_up = uniform(mix(self.seed, epoch, 1, id_hashes)) < exact % 1
        return (np.floor(exact) + is_up).astype(np.int64)

    def _starts(self, ordinary: Array, owner: Array, id_hashes: Array, epoch: int) -> "_Starts":
        """The places of the ordinary tokens of each text, in random order."""
        places = np.flatnonzero(ordinary)
        within = places - np.searchsorted(owner, owner[places])
        hashes = mix(self.seed, epoch, 2, id_hashes[owner[places]], within.astype(np.uint64))
        order = np.lexsort((hashes, owner[places]))
        counts = np.bincount(owner[places], minlength=len(id_hashes))
        return _Starts(np.concatenate([[0], np.cumsum(counts)]), places[order])

    def _lengths(self, id_hashes: Array, epoch: int, turn: int) -> Array:
        """Geometric lengths, clipped at `max_length`."""
        chance = uniform(mix(self.seed, epoch, 3, turn, id_hashes))
        drawn = np.ones(len(chance))
        if self.stop < 1:
            drawn = np.ceil(np.log1p(-chance) / np.log1p(-self.stop))
        return np.clip(drawn, 1, self.max_length).astype(np.int64)

    def _replace(
        self, flat: Array, covered: Array, owner: Array, id_hashes: Array, epoch: int
    ) -> Array:
        places = np.flatnonzero(covered)
        within = (places - np.searchsorted(owner, owner[places])).astype(np.uint64)
        hashes = mix(self.seed, epoch, 4, id_hashes[owner[places]], within)
        choice = uniform(hashes)
        allowed = np.setdiff1d(np.arange(self.vocab_size), self.special_tokens)
        drawn = allowed[(uniform(mix(hashes, 5)) * len(allowed)).astype(np.int64)]
        result = flat.copy()
        result[places] = np.where(
            choice < 0.8, self.mask_token, np.where(choice < 0.9, drawn, flat[places])
        )
        return result


@dataclass(frozen=True)
class MaskedTokens(TokenCache):
    """The tokens of a graph, masked as in one epoch."""

    masking: SpanMasking = field(kw_only=True)
    epoch: int = field(kw_only=True)

    @staticmethod
    def of(tokens: TokenCache, masking: SpanMasking, epoch: int) -> "MaskedTokens":
        """The masked view of a token cache."""
        return MaskedTokens(**vars(tokens), masking=masking, epoch=epoch)

    def read(self, nodes: Array, max_tokens: int) -> tuple[Array, Array]:
        """As `TokenCache.read`, with masked tokens."""
        flat, indptr = super().read(nodes, max_tokens)
        assert self.id_hashes is not None, "masking draws from hashes of ids"
        return self.masking.apply(flat, indptr, self.id_hashes[nodes], self.epoch), indptr


@dataclass(frozen=True)
class _Starts:
    indptr: Array
    places: Array
