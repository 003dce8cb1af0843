import multiprocessing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers.batching.packing import PackedNeighborhoods
from graphformers.batching.prefetch import FlatBatch
from graphformers.errors import GraphFormersError
from graphformers.training.batches import BatchKey, BatchMaker, CenterChunk, shuffled
from graphformers.training.chunks import ChunkSize
from graphformers.training.loader import Loader
from graphformers.training.settings import TrainConfig
from tests.training.conftest import make_model, make_split

SPLIT = make_split()


def make_maker(rank: int = 0, world: int = 1, **changes: object) -> BatchMaker:
    config = TrainConfig(**{"batch_size": 50, **changes})  # type: ignore[arg-type]
    return BatchMaker.of(make_model(), SPLIT, config, rank, world)


def make_loader(maker: BatchMaker, workers: int, chunk_size: int | None = None) -> Loader:
    return Loader(maker, ChunkSize(chunk_size), workers, torch.device("cpu"))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 100), st.integers(0, 5))
def test_an_order_is_a_permutation(total: int, seed: int, epoch: int) -> None:
    order = shuffled(np.arange(total), total, seed, epoch)
    assert np.array_equal(np.sort(order), np.arange(total))


def test_orders_differ_between_epochs_and_mix_well() -> None:
    one, other = (shuffled(np.arange(5000), 5000, 42, epoch) for epoch in (0, 1))
    assert (one == other).sum() < 20
    assert abs(np.corrcoef(one, np.arange(5000))[0, 1]) < 0.05
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.05


def test_every_pair_turns_up_once_an_epoch_in_either_direction() -> None:
    maker = make_maker()
    known = {tuple(sorted(pair)) for pair in SPLIT.train.tolist()}
    epochs = [
        np.concatenate([maker.pairs(epoch, number) for number in range(maker.num_batches)])
        for epoch in (0, 1)
    ]
    for pairs in epochs:
        assert len(pairs) == len(known)
        assert {tuple(sorted(pair)) for pair in pairs.tolist()} == known
    directed = [set(map(tuple, pairs.tolist())) for pairs in epochs]
    assert 0.3 < len(directed[0] & directed[1]) / len(known) < 0.7


@pytest.mark.parametrize("chunk_size", [None, 7])
def test_the_asked_link_is_never_among_the_neighbours(chunk_size: int | None) -> None:
    maker = make_maker()
    asked = {
        frozenset(pair) for pair in np.concatenate([SPLIT.valid.pairs, SPLIT.test.pairs]).tolist()
    }
    for number in range(maker.num_batches):
        pairs = maker.pairs(3, number)
        drawn = maker.neighborhood(pairs, 3)
        others = np.concatenate([pairs[:, 1], pairs[:, 0]])
        for i, center in enumerate(drawn.centers):
            assert others[i] not in drawn.of(i)
            assert not any(frozenset((int(center), int(near))) in asked for near in drawn.of(i))


def test_a_test_link_is_never_in_a_mask() -> None:
    """What is left out of the negatives comes from train links alone, or is the same node."""
    maker = make_maker(batch_size=200)
    asked = {
        frozenset(pair) for pair in np.concatenate([SPLIT.valid.pairs, SPLIT.test.pairs]).tolist()
    }
    batch = maker.make(BatchKey(0, 0, False))
    pairs = maker.pairs(0, 0)
    assert batch.false_negatives[0].shape[1] > 100
    for anchor, key in batch.false_negatives[0].T.tolist():
        ends = frozenset((int(pairs[anchor, 0]), int(pairs[key, 1])))
        assert ends not in asked or len(ends) == 1 or int(pairs[anchor, 1]) == int(pairs[key, 1])


def test_ranks_divide_a_batch() -> None:
    whole = make_maker().make(BatchKey(0, 0, False))
    parts = [make_maker(rank, 3).make(BatchKey(0, 0, False)) for rank in range(3)]
    assert torch.equal(torch.cat([part.pairs for part in parts]), whole.pairs)
    assert parts[0].sizes == parts[2].sizes == (16, 17, 17)
    assert [part.first for part in parts] == [0, 16, 33]
    alone = {(b, k) for b, k in whole.false_negatives[0].T.tolist()}
    shifted = {(b + part.first, k) for part in parts for b, k in part.false_negatives[0].T.tolist()}
    assert shifted == alone


def test_a_process_may_have_no_pairs() -> None:
    parts = [make_maker(rank, 4, batch_size=2).make(BatchKey(0, 0, False)) for rank in range(4)]
    assert [len(part.pairs) for part in parts] == [0, 1, 0, 1]
    assert parts[0].chunks == []


def test_no_pairs_and_constant_neighbours() -> None:
    batch = make_maker(0, 4, batch_size=2, neighbor_gradients=False).make(BatchKey(0, 0, False))
    assert (batch.chunks, batch.neighbors) == ([], [])


def test_an_epoch_left_early_does_not_disturb_the_next() -> None:
    maker = make_maker()
    loader = make_loader(maker, 2)
    next(loader.epoch(0))
    numbers = [batch.key for batch in loader.epoch(1)]
    assert numbers == [BatchKey(1, number, False) for number in range(maker.num_batches)]
    loader.close()


def test_what_goes_wrong_in_a_worker_is_said() -> None:
    maker = make_maker(two_stage=False)  # which has nothing to mask with
    loader = make_loader(maker, 1)
    with pytest.raises(GraphFormersError, match="batch 0 of epoch 3 could not be made: Traceback"):
        next(loader.epoch(3, "masked"))
    (worker,) = multiprocessing.active_children()
    worker.kill()
    with pytest.raises(GraphFormersError, match="a worker process that makes batches has died"):
        list(loader.epoch(3))
    loader.close()


def test_chunks_share_their_neighbours() -> None:
    maker = make_maker()
    batch = maker.make(BatchKey(0, 0, False, chunk_size=20))
    assert batch.bounds == (0, 20, 40, 50)
    assert all(isinstance(chunk, CenterChunk) for chunk in batch.chunks)
    whole = maker.make(BatchKey(0, 0, False))
    assert isinstance(whole.chunks[0], PackedNeighborhoods)
    assert (
        sum(part.num_nodes for part in batch.neighbors)
        == whole.counts.encoded_neighbors
        == batch.counts.encoded_neighbors
    )
    assert whole.counts.encoded_neighbors < whole.counts.neighbors == batch.counts.neighbors


def test_neighbour_dropout_trains_every_number_of_neighbours() -> None:
    maker = make_maker(neighbor_dropout=0.5, batch_size=400)
    pairs = maker.pairs(0, 0)
    whole, thinned = (
        make_maker(batch_size=400).neighborhood(pairs, 0),
        maker.neighborhood(pairs, 0),
    )
    full, kept = np.diff(whole.indptr), np.diff(thinned.indptr)
    for i in range(len(pairs)):
        assert set(thinned.of(i).tolist()) <= set(whole.of(i).tolist())
    assert abs((kept < full)[full == 5].mean() - 0.5 * 5 / 6) < 0.06
    assert (kept == 0).any()
    assert set(kept[full == 5].tolist()) == {0, 1, 2, 3, 4, 5}


def test_masked_batches_have_the_same_shape_and_other_words() -> None:
    maker = make_maker()
    clean, masked = (maker.make(BatchKey(0, 0, flag)).chunks[0] for flag in (False, True))
    assert isinstance(clean, PackedNeighborhoods)
    assert isinstance(masked, PackedNeighborhoods)
    assert torch.equal(clean.nodes.slots_RW, masked.nodes.slots_RW)
    changed = (clean.nodes.tokens_RW != masked.nodes.tokens_RW).sum() / clean.nodes.num_tokens
    assert 0.05 < changed < 0.15


@pytest.mark.parametrize("workers", [0, 2])
def test_what_workers_make_is_what_is_made_here(workers: int) -> None:
    maker = make_maker(symmetric=True)
    loader = make_loader(maker, workers, chunk_size=20)
    for start in (3, 0):
        for number, batch in enumerate(loader.epoch(5, "masked", start=start)):
            expected = maker.make(BatchKey(5, start + number, True, 20))
            assert batch.key == expected.key
            assert torch.equal(batch.pairs, expected.pairs)
            assert torch.equal(batch.false_negatives[1], expected.false_negatives[1])
            for one, other in zip(batch.chunks, expected.chunks, strict=True):
                assert isinstance(one, CenterChunk)
                assert isinstance(other, CenterChunk)
                assert torch.equal(one.centers.tokens_RW, other.centers.tokens_RW)
                assert torch.equal(one.index.exists_BK, other.index.exists_BK)
            assert batch.counts == expected.counts
        assert number == maker.num_batches - 1 - start
    loader.close()


def test_a_flat_batch_keeps_every_tensor() -> None:
    batch = make_maker().make(BatchKey(0, 0, True))
    opened = FlatBatch.of(batch).to(torch.device("cpu"))
    first, other = batch.chunks[0], opened.chunks[0]
    assert isinstance(first, PackedNeighborhoods)
    assert isinstance(other, PackedNeighborhoods)
    for name in (
        "tokens_RW",
        "positions_RW",
        "slots_RW",
        "cls_RC",
        "is_graph_RW",
        "slot_N",
        "cls_N",
    ):
        assert torch.equal(getattr(first.nodes, name), getattr(other.nodes, name))
        assert getattr(first.nodes, name).dtype == getattr(other.nodes, name).dtype
    assert (first.num_centers, first.center_rows) == (other.num_centers, other.center_rows)


def test_a_share_of_the_clean_batches_may_be_masked() -> None:
    maker = make_maker(two_stage=False, masked_batches=0.3, batch_size=2)
    masked = [
        [batch.key.is_masked for batch in make_loader(maker, 0).epoch(epoch)] for epoch in (0, 1)
    ]
    shares = np.mean(masked, axis=1)
    assert np.all(np.abs(shares - 0.3) < 4 * np.sqrt(0.3 * 0.7 / maker.num_batches))
    assert masked[0] != masked[1]
    assert not any(batch.key.is_masked for batch in make_loader(make_maker(), 0).epoch(0))


def test_training_may_sample_fewer_neighbors() -> None:
    counts = [
        np.diff(maker.neighborhood(maker.pairs(0, 0), 0).indptr)
        for maker in (make_maker(), make_maker(train_neighbors=2), make_maker(train_neighbors=0))
    ]
    assert counts[0].max() == make_model().config.num_neighbors
    assert np.array_equal(counts[1], np.minimum(counts[0], 2))
    assert counts[2].max() == 0
