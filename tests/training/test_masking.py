import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers.arrays import hash_strings
from graphformers.errors import GraphFormersError
from graphformers.training.masking import SpanMasking

CLS, SEP, PAD, MASK, FIRST, VOCAB = 1, 2, 0, 3, 4, 1000
MASKING = SpanMasking(mask_token=MASK, vocab_size=VOCAB, special_tokens=(PAD, CLS, SEP, MASK))


def make_texts(
    count: int, seed: int = 0, longest: int = 40
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    draw = np.random.default_rng(seed)
    rows = [
        [CLS, *draw.integers(FIRST, VOCAB, draw.integers(0, longest)), SEP] for _ in range(count)
    ]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return (
        np.concatenate(rows).astype(np.int64),
        indptr,
        hash_strings([f"n{i}" for i in range(count)]),
    )


def test_the_statistics_are_the_papers() -> None:
    """15 % covered; of those 80 % masked, 10 % random, 10 % kept, on average over many texts."""
    flat, indptr, hashes = make_texts(20_000)
    found = MASKING.apply(flat, indptr, hashes, epoch=0)
    ordinary = flat >= FIRST
    masked, random = found == MASK, (found != flat) & (found != MASK)
    total = ordinary.sum()
    assert abs(masked.sum() / total - 0.15 * 0.8) < 0.001
    assert abs(random.sum() / total - 0.15 * 0.1) < 0.0005
    assert not (found != flat)[~ordinary].any()
    assert found[random].min() >= FIRST
    counts = np.bincount(found[random], minlength=VOCAB)[FIRST:]
    expected = random.sum() / (VOCAB - FIRST)
    assert abs(counts - expected).max() < 7 * np.sqrt(expected)


def test_spans_are_geometric_and_clipped() -> None:
    lengths = np.concatenate(
        [MASKING._lengths(make_texts(20_000)[2], 0, turn) for turn in range(5)]
    )
    assert (lengths.min(), lengths.max()) == (1, 10)
    for length in range(1, 10):
        assert abs((lengths == length).mean() - 0.2 * 0.8 ** (length - 1)) < 0.006
    assert abs((lengths == 10).mean() - 0.8**9) < 0.006  # Geo(0.2) clipped at 10


def test_covered_tokens_lie_in_runs() -> None:
    """Of long texts: covered places have covered neighbours far more often than 15 % of the
    time.
    """
    flat, indptr, hashes = make_texts(2_000, longest=400)
    always = SpanMasking(MASK, VOCAB, (PAD, CLS, SEP, MASK))
    covered = always.apply(flat, indptr, hashes, 1) == MASK
    after = covered[1:][covered[:-1]].mean()
    assert after > 0.4


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 30), st.integers(0, 5))
def test_masking_depends_on_seed_epoch_and_node_alone(seed: int, count: int, epoch: int) -> None:
    flat, indptr, hashes = make_texts(count, seed)
    masking = SpanMasking(MASK, VOCAB, (PAD, CLS, SEP, MASK), seed=seed)
    together = masking.apply(flat, indptr, hashes, epoch)
    order = np.random.default_rng(seed).permutation(count)
    for i in order:
        alone = flat[indptr[i] : indptr[i + 1]]
        found = masking.apply(alone, np.array([0, len(alone)]), hashes[i : i + 1], epoch)
        assert np.array_equal(found, together[indptr[i] : indptr[i + 1]])


def test_epochs_and_seeds_differ() -> None:
    flat, indptr, hashes = make_texts(200)
    first = MASKING.apply(flat, indptr, hashes, 0)
    assert np.array_equal(first, MASKING.apply(flat, indptr, hashes, 0))
    assert not np.array_equal(first, MASKING.apply(flat, indptr, hashes, 1))
    other = SpanMasking(MASK, VOCAB, (PAD, CLS, SEP, MASK), seed=43)
    assert not np.array_equal(first, other.apply(flat, indptr, hashes, 0))


def test_short_and_empty_texts() -> None:
    """A text of one word is covered in 15 % of the epochs; one without words never."""
    flat = np.array([CLS, 7, SEP, CLS, SEP])
    indptr, hashes = np.array([0, 3, 5]), hash_strings(["one", "none"])
    hits = sum(MASKING.apply(flat, indptr, hashes, epoch)[1] == MASK for epoch in range(4000))
    assert abs(hits / 4000 - 0.12) < 0.03
    assert MASKING.apply(np.zeros(0, np.int64), np.array([0]), hashes[:0], 0).tolist() == []


def test_settings_are_checked() -> None:
    for wrong in (
        {"share": 0},
        {"share": 1.5},
        {"max_length": 0},
        {"stop": 0},
        {"special_tokens": tuple(range(VOCAB))},
    ):
        with pytest.raises(GraphFormersError, match="expected"):
            SpanMasking(
                **{"mask_token": MASK, "vocab_size": VOCAB, "special_tokens": (PAD,), **wrong}
            )  # type: ignore[arg-type]
