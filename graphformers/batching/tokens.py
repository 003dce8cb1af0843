"""TokenCache: every text of a graph tokenised once per tokenizer, as one ragged memory map inside
the graph's folder.

Stored are the text's own tokens, up to MOST_TOKENS. The special tokens around them and the cut at
max_tokens are applied when reading, so that one cache serves every sequence length.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import tokenizers

from graphformers.artifact import (
    Artifact,
    check_parent,
    open_artifact,
    parent_entry,
    write_artifact,
)
from graphformers.data.arrays import Array, load_array, ranges, save_array
from graphformers.data.graph import TextGraph
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.progress import progress

KIND = "tokens"
VERSION = 1
MANY_CUT = 0.05  # the share of texts that are cut from which on there is a warning
MOST_TOKENS = 512
BATCH = 16_384
USUAL_NAMES = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "<pad>",
    "<unk>",
    "<s>",
    "</s>",
    "<mask>",
)


class Tokenizer:
    """A `tokenizers` tokenizer with its fingerprint and the special tokens it puts around a
    text.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.vocab_size = 1 + max(tokenizer.get_vocab().values())
        self.fingerprint = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
        self.prefix, self.suffix = _special_tokens(tokenizer)

    @staticmethod
    def from_file(file: Path) -> "Tokenizer":
        """Reads a tokenizer.json."""
        try:
            return Tokenizer(tokenizers.Tokenizer.from_file(str(file)))
        except GraphFormersError:
            raise
        except Exception as error:  # the library raises plain exceptions
            raise GraphFormersError(f"{file}: not a tokenizer.json ({error})") from error

    @property
    def special_tokens(self) -> tuple[int, ...]:
        """[CLS], [PAD], [MASK] and their like: those marked as such, those put around texts, and
        those with the usual names.
        """
        marked = {
            i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special
        }
        named = {found for name in USUAL_NAMES if (found := self.find(name)) is not None}
        return tuple(sorted(marked | named | {*self.prefix, *self.suffix}))

    def find(self, *names: str) -> int | None:
        """The number of the first of these tokens that there is."""
        return next(
            (found for name in names if (found := self._tokenizer.token_to_id(name)) is not None),
            None,
        )

    def to_json(self) -> str:
        """The content of a tokenizer.json."""
        return str(self._tokenizer.to_str())

    def encode(self, texts: list[str]) -> tuple[Array, Array]:
        """Tokens without special ones, at most MOST_TOKENS a text: (flat tokens uint32, lengths
        int64).
        """
        encoded = [
            encoding.ids[:MOST_TOKENS]
            for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        return np.fromiter(
            chain.from_iterable(encoded), dtype=np.uint32, count=int(lengths.sum())
        ), lengths


def _special_tokens(tokenizer: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the tokenizer puts before and after a text, seen on the first probe that it has tokens
    for.
    """
    for probe in ("a", "1", "the", ".", "é", "中", *list(tokenizer.get_vocab())[:1000]):
        bare, dressed = (
            tokenizer.encode(probe, add_special_tokens=False).ids,
            tokenizer.encode(probe).ids,
        )
        for start in range(len(dressed) - len(bare) + 1) if bare else ():
            if dressed[start : start + len(bare)] == bare:
                return tuple(dressed[:start]), tuple(dressed[start + len(bare) :])
    raise GraphFormersError(
        "this tokenizer finds no tokens in any text; is it the right tokenizer.json?"
    )


@dataclass(frozen=True)
class TokenCache:
    """The tokens of N texts: those of node v are tokens[offsets[v]:offsets[v + 1]], without special
    tokens.
    """

    tokens: Array  # uint16 or uint32
    offsets: Array  # (N + 1,) int64
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    id_hashes: Array | None = None  # (N,) uint64, where the texts belong to nodes of a graph

    def lengths(self, nodes: Array, max_tokens: int) -> Array:
        """(len(nodes),) how many tokens `read` gives each node."""
        extra = len(self.prefix) + len(self.suffix)
        lengths: Array = (
            np.minimum(self.offsets[nodes + 1] - self.offsets[nodes], max_tokens - extra) + extra
        )
        return lengths

    def cut_share(self, max_tokens: int) -> float:
        """The share of texts that `read` cuts."""
        room = max_tokens - len(self.prefix) - len(self.suffix)
        return float((np.diff(self.offsets) > room).mean()) if len(self.offsets) > 1 else 0.0

    def read(self, nodes: Array, max_tokens: int) -> tuple[Array, Array]:
        """Sequences for the model, special tokens included and cut at max_tokens: (flat tokens
        int64, indptr int64).
        """
        extra = len(self.prefix) + len(self.suffix)
        if not extra < max_tokens <= MOST_TOKENS + extra:
            raise GraphFormersError(
                f"max_tokens={max_tokens} given, expected between {extra + 1} and "
                f"{MOST_TOKENS + extra}"
            )
        lengths = self.lengths(nodes, max_tokens)
        indptr = np.zeros(len(nodes) + 1, dtype=np.int64)
        np.cumsum(lengths, out=indptr[1:])
        flat = np.empty(indptr[-1], dtype=np.int64)
        inner = lengths - extra
        flat[ranges(indptr[:-1] + len(self.prefix), inner)] = self.tokens[
            ranges(self.offsets[nodes], inner)
        ]
        for i, token in enumerate(self.prefix):
            flat[indptr[:-1] + i] = token
        for i, token in enumerate(reversed(self.suffix)):
            flat[indptr[1:] - 1 - i] = token
        return flat, indptr


def cut_words(tokens: TokenCache, max_tokens: int) -> str | None:
    """A warning if many texts are longer than a model reads; None if few are."""
    share = tokens.cut_share(max_tokens)
    return (
        f"{share:.0%} of the texts are longer than max_tokens={max_tokens} and cut there"
        if share >= MANY_CUT
        else None
    )


def tokenize(texts: list[str], tokenizer: Tokenizer) -> TokenCache:
    """Tokens of a few texts, in memory."""
    parts = [tokenizer.encode(texts[i : i + BATCH]) for i in range(0, max(len(texts), 1), BATCH)]
    tokens, lengths = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    return TokenCache(
        tokens, np.concatenate([[0], np.cumsum(lengths)]), tokenizer.prefix, tokenizer.suffix
    )


def graph_tokens(graph: TextGraph, tokenizer: Tokenizer) -> TokenCache:
    """The tokens of a whole graph: from its folder when they are there, otherwise made and kept
    there.
    """
    folder = (
        graph.artifact.path / "tokens" / tokenizer.fingerprint[:16] if graph.artifact else Path()
    )
    can_be_kept = graph.artifact is not None and (
        folder.is_dir() or os.access(graph.artifact.path, os.W_OK)
    )
    if graph.artifact is None or not can_be_kept or not _still_stands(graph.artifact):
        return replace(tokenize(graph.texts.to_pylist(), tokenizer), id_hashes=graph.id_hashes)
    if not folder.is_dir():
        _write_cache(folder, graph, tokenizer)
    artifact = open_artifact(folder, KIND, VERSION)
    check_parent(artifact, "graph", graph.artifact)
    if artifact.settings["tokenizer"] != tokenizer.fingerprint:
        found = artifact.settings["tokenizer"]
        raise ArtifactError(
            f"{folder}: tokens of the tokenizer {found[:12]}, expected "
            f"{tokenizer.fingerprint[:12]}; remove it"
        )
    arrays = load_array(artifact.file("tokens.npy")), load_array(artifact.file("offsets.npy"))
    return TokenCache(*arrays, tokenizer.prefix, tokenizer.suffix, graph.id_hashes)


def _still_stands(artifact: Artifact) -> bool:
    """Whether a graph's folder holds what was loaded from it; another may have been put in its
    place.
    """
    try:
        return open_artifact(artifact.path, artifact.kind, None).fingerprint == artifact.fingerprint
    except ArtifactError:
        return False


def _write_cache(folder: Path, graph: TextGraph, tokenizer: Tokenizer) -> None:
    assert graph.artifact is not None
    small = tokenizer.vocab_size <= 1 << 16
    parts = [
        (tokens.astype(np.uint16 if small else np.uint32), lengths)
        for tokens, lengths in _encode_all(graph, tokenizer)
    ]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([lengths for _, lengths in parts]))])
    with write_artifact(folder, KIND, VERSION, force=True) as draft:
        save_array(draft.path("tokens.npy"), np.concatenate([tokens for tokens, _ in parts]))
        save_array(draft.path("offsets.npy"), offsets)
        draft.parents = {"graph": parent_entry(graph.artifact, folder)}
        draft.settings = {"tokenizer": tokenizer.fingerprint, "most_tokens": MOST_TOKENS}
        draft.summary = {"texts": graph.num_nodes, "tokens": int(offsets[-1])}


def _encode_all(graph: TextGraph, tokenizer: Tokenizer) -> Iterator[tuple[Array, Array]]:
    with progress("Tokenising", graph.num_nodes, "texts") as task:
        for start in range(0, graph.num_nodes, BATCH):
            texts = graph.texts[start : start + BATCH].to_pylist()
            yield tokenizer.encode(texts)
            task.advance(len(texts))
