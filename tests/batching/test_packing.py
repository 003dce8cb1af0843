"""Rows are as wide as texts want, and full, whatever they may hold at most."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers.batching.packing import NetworkInputs, PackedBatch, Packer
from graphformers.batching.tokens import TokenCache
from graphformers.graph.sampling import Neighborhood

NESTED = NetworkInputs(graph_tokens=True)


def made(lengths: list[int]) -> TokenCache:
    """Texts of so many tokens, each of its own; [CLS] is 1, [SEP] 2."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return TokenCache(np.arange(10, 10 + offsets[-1]).astype(np.uint32), offsets, (1,), (2,))


def texts_in(batch: PackedBatch) -> list[list[int]]:
    """What stands in the batch, node by node."""
    found = []
    for place in batch.slot_N.tolist():
        row, slot = divmod(place, batch.num_slots)
        own = (batch.slots_RW[row] == slot) & ~batch.is_graph_RW[row]
        found.append(batch.tokens_RW[row][own].tolist())
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=60),
    st.sampled_from([8, 32, 127, 128, 200, 300, 512]),
    st.booleans(),
)
def test_every_text_is_there_once_in_one_piece(
    lengths: list[int], max_tokens: int, nested: bool
) -> None:
    cache = made(lengths)
    batch = Packer(max_tokens, 0, NetworkInputs(graph_tokens=nested)).pack(
        cache, np.arange(len(lengths)), are_centers=True
    )
    expected = [
        [1, *cache.tokens[a : min(b, a + max_tokens - 2)].tolist(), 2]
        for a, b in zip(cache.offsets, cache.offsets[1:], strict=False)
    ]
    assert texts_in(batch) == expected
    assert batch.positions_RW.max() < max_tokens
    width = batch.tokens_RW.shape[1]
    longest = max(map(len, expected)) + nested
    assert longest <= width
    assert width == 128 or width < 2 * longest


@pytest.mark.parametrize("max_tokens", [32, 128, 512])
@pytest.mark.parametrize("length", [1, 3, 12, 20])
def test_rows_are_full_whatever_texts_may_hold(max_tokens: int, length: int) -> None:
    batch = Packer(max_tokens, 0, NESTED).pack(made([length] * 1000), np.arange(1000))
    assert batch.tokens_RW.shape[1] == 128
    assert batch.fullness() > 0.7


def test_one_long_text_among_short_ones_leaves_rows_full() -> None:
    lengths = [500, *[8] * 2000]
    batch = Packer(512, 0, NESTED).pack(made(lengths), np.arange(len(lengths)))
    assert batch.tokens_RW.shape[1] == 512
    assert batch.fullness() > 0.9


@pytest.mark.parametrize("distinct", [True, False])
def test_centres_and_neighbours_share_one_kind_of_rows(distinct: bool) -> None:
    """Short centres, one long neighbour."""
    cache = made([1, 1, 1, 290, 2])
    drawn = Neighborhood(np.array([0, 1]), np.array([0, 2, 3]), np.array([3, 4, 3]))
    inputs = NetworkInputs(joint=not distinct, graph_tokens=True)
    packed = Packer(300, 0, inputs).pack_neighborhoods(cache, drawn)
    assert packed.nodes.tokens_RW.shape[1] == 256 + 48  # as wide as max_tokens and a graph token
    centers, others = texts_in(packed.nodes)[:2], texts_in(packed.nodes)[2:]
    assert list(map(len, centers)) == [3, 3]
    assert list(map(len, others)) == ([292, 4] if distinct else [292, 4, 292])
