"""TokenCache: the texts of a graph, tokenised once per tokenizer and stored in the graph's folder.

The cache stores the text's own tokens, up to MAX_STORED_TOKENS. Special tokens and truncation to
max_tokens are applied when reading, so that one cache serves every sequence length.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TypedDict

import numpy as np
import tokenizers

from graphformers.arrays import (
    Array,
    check_range,
    check_rows,
    load_array,
    ranges,
    save_array,
)
from graphformers.artifact import (
    Artifact,
    check_parent,
    open_artifact,
    parent_entry,
    write_artifact,
)
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.files import held
from graphformers.graph.textgraph import TextGraph
from graphformers.progress import progress
from graphformers.records import checked

KIND = "tokens"
VERSION = 1
# share of truncated texts from which on there is a warning
TRUNCATION_WARNING_SHARE = 0.05
MAX_STORED_TOKENS = 512
BATCH = 16_384
# what special tokens are called in files of tokenizers, by their roles in transformers
SPECIAL_NAMES = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


class TokenSettings(TypedDict):
    """What the manifest of a token cache says under `settings`, as far as it is used."""

    tokenizer: str


class Tokenizer:
    """A `tokenizers` tokenizer with its fingerprint and the special tokens that surround a text."""

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
        # The library raises plain exceptions.
        except Exception as error:
            raise GraphFormersError(f"{file}: not a tokenizer.json ({error})") from error

    @property
    def special_tokens(self) -> tuple[int, ...]:
        """Special tokens such as [CLS], [PAD] and [MASK].

        These are the tokens marked as special, those around texts, and those in SPECIAL_NAMES.
        """
        marked = {
            i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special
        }
        names = chain.from_iterable(SPECIAL_NAMES.values())
        named = {found for name in names if (found := self.find(name)) is not None}
        return tuple(sorted(marked | named | {*self.prefix, *self.suffix}))

    @cached_property
    def continues_word(self) -> Array:
        """(V,) bool: for each of V tokens, whether it continues the word of the token before it.

        WordPiece marks such tokens by "##"; other tokenizers mark the first token of a word, by "▁"
        or "Ġ". Without such marks every token counts as a word. In scripts without blanks between
        words these are rare, so that a whole sentence may count as one word.
        """
        vocabulary = self._tokenizer.get_vocab()
        result = np.zeros(self.vocab_size, dtype=bool)
        pieces = [number for token, number in vocabulary.items() if token.startswith("##")]
        starts = [number for token, number in vocabulary.items() if token[:1] in ("▁", "Ġ")]
        if len(starts) > len(pieces):
            result[:] = True
            result[[*starts, *self.special_tokens]] = False
        else:
            result[pieces] = True
        return result

    def find(self, *names: str) -> int | None:
        """The number of the first of these tokens that the vocabulary has; None without one."""
        return next(
            (found for name in names if (found := self._tokenizer.token_to_id(name)) is not None),
            None,
        )

    def special_names(self) -> dict[str, str]:
        """The names of special tokens by their roles, such as {"mask_token": "[MASK]"}."""
        return {
            role: next(name for name in names if self.find(name) is not None)
            for role, names in SPECIAL_NAMES.items()
            if self.find(*names) is not None
        }

    def to_json(self) -> str:
        """The content of a tokenizer.json."""
        return str(self._tokenizer.to_str())

    def encode(self, texts: list[str]) -> tuple[Array, Array]:
        """Tokenises texts, without special tokens and with at most MAX_STORED_TOKENS per text.

        Returns:
            The tokens of one text after the other, uint32, and the lengths, int64.
        """
        encoded = [
            encoding.ids[:MAX_STORED_TOKENS]
            for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        return np.fromiter(
            chain.from_iterable(encoded), dtype=np.uint32, count=int(lengths.sum())
        ), lengths

    def count(self, texts: list[str]) -> Array:
        """(len(texts),) the number of tokens of texts, special tokens included."""
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        extra = len(self.prefix) + len(self.suffix)
        return np.fromiter(map(len, encoded), dtype=np.int64, count=len(texts)) + extra


def _special_tokens(tokenizer: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens before and after a text, found by tokenising a probe text.

    The probe is the first of some short texts that has any tokens.
    """
    for probe in ("a", "1", "the", ".", "é", "中", *list(tokenizer.get_vocab())[:1000]):
        bare, full = (
            tokenizer.encode(probe, add_special_tokens=False).ids,
            tokenizer.encode(probe).ids,
        )
        for start in range(len(full) - len(bare) + 1) if bare else ():
            if full[start : start + len(bare)] == bare:
                return tuple(full[:start]), tuple(full[start + len(bare) :])
    raise GraphFormersError(
        "this tokenizer finds no tokens in any text; is it the right tokenizer.json?"
    )


@dataclass(frozen=True)
class TokenCache:
    """The tokens of N texts, without special tokens.

    Those of node v are tokens[offsets[v]:offsets[v + 1]].

    Attributes:
        tokens: uint16 or uint32.
        offsets: (N + 1,) int64.
        prefix: Special tokens before every text.
        suffix: Special tokens after every text.
        id_hashes: (N,) uint64, if the texts belong to nodes of a graph.
    """

    tokens: Array
    offsets: Array
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    id_hashes: Array | None = None

    @property
    def num_texts(self) -> int:
        """N."""
        return len(self.offsets) - 1

    def lengths(self, nodes: Array, max_tokens: int) -> Array:
        """(len(nodes),) the number of tokens that `read` returns for each node."""
        extra = len(self.prefix) + len(self.suffix)
        lengths: Array = (
            np.minimum(self.offsets[nodes + 1] - self.offsets[nodes], max_tokens - extra) + extra
        )
        return lengths

    def truncated_share(self, max_tokens: int) -> float:
        """The share of texts that `read` truncates."""
        limit = max_tokens - len(self.prefix) - len(self.suffix)
        return float((np.diff(self.offsets) > limit).mean()) if len(self.offsets) > 1 else 0.0

    def read(self, nodes: Array, max_tokens: int) -> tuple[Array, Array]:
        """Returns the sequences of nodes, truncated to max_tokens, special tokens included.

        Returns:
            The tokens of one sequence after the other, int64, and their indptr, int64.
        """
        extra = len(self.prefix) + len(self.suffix)
        if not extra < max_tokens <= MAX_STORED_TOKENS + extra:
            raise GraphFormersError(
                f"max_tokens={max_tokens} given, expected between {extra + 1} and "
                f"{MAX_STORED_TOKENS + extra}"
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


def truncation_warning(tokens: TokenCache, max_tokens: int) -> str | None:
    """A warning if many texts are longer than `max_tokens`; None if few are."""
    share = tokens.truncated_share(max_tokens)
    return (
        f"{share:.0%} of the texts are longer than max_tokens={max_tokens} and cut there"
        if share >= TRUNCATION_WARNING_SHARE
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
    """The tokens of a graph, loaded from its folder or, if missing, computed and stored there.

    The folder is not used if it is read-only, or if it was replaced since the graph was loaded.
    """
    folder = (
        graph.artifact.path / "tokens" / tokenizer.fingerprint[:16] if graph.artifact else Path()
    )
    can_be_stored = graph.artifact is not None and (
        folder.is_dir() or os.access(graph.artifact.path, os.W_OK)
    )
    if graph.artifact is None or not can_be_stored or not _is_unchanged(graph.artifact):
        return replace(tokenize(graph.texts.to_pylist(), tokenizer), id_hashes=graph.id_hashes)
    if not folder.is_dir():
        # Other processes, such as those of torchrun, wait and then find the file.
        with held(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():
                _write_cache(folder, graph, tokenizer)
    artifact = open_artifact(folder, KIND, VERSION)
    check_parent(artifact, "graph", graph.artifact)
    found = checked(artifact.manifest, artifact.settings, TokenSettings, "settings")["tokenizer"]
    if found != tokenizer.fingerprint:
        raise ArtifactError(
            f"{folder}: tokens of the tokenizer {found[:12]}, expected "
            f"{tokenizer.fingerprint[:12]}; remove it"
        )

    def read() -> tuple[Array, Array]:
        return (
            load_array(folder / "tokens.npy", "unsignedinteger", 1),
            load_array(folder / "offsets.npy", "int64", 1),
        )

    def check(_: list[Path]) -> None:
        tokens, offsets = read()
        check_rows(folder / "offsets.npy", offsets, graph.num_nodes, len(tokens))
        check_range(folder / "tokens.npy", tokens, tokenizer.vocab_size)

    artifact.paths(("tokens.npy", "offsets.npy"), check)
    return TokenCache(*read(), tokenizer.prefix, tokenizer.suffix, graph.id_hashes)


def _is_unchanged(artifact: Artifact) -> bool:
    """Whether a graph's folder is still the one that was loaded, not replaced by another."""
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
        draft.settings = {"tokenizer": tokenizer.fingerprint, "most_tokens": MAX_STORED_TOKENS}
        draft.summary = {"texts": graph.num_nodes, "tokens": int(offsets[-1])}


def _encode_all(graph: TextGraph, tokenizer: Tokenizer) -> Iterator[tuple[Array, Array]]:
    with progress("Tokenising", graph.num_nodes, "texts") as task:
        for start in range(0, graph.num_nodes, BATCH):
            texts = graph.texts[start : start + BATCH].to_pylist()
            yield tokenizer.encode(texts)
            task.advance(len(texts))
