"""The batches of an epoch, made ahead by worker processes."""

from collections.abc import Iterator

import torch

from graphformers.batching.prefetch import Parcel, Workers
from graphformers.training.batches import BatchKey, BatchMaker


class Loader(Workers):
    """Makes the batches of training."""

    def __init__(self, maker: BatchMaker, workers: int, device: torch.device) -> None:
        super().__init__(maker.make, workers, device)
        self.maker = maker
        self.chunk_size: int | None = None  # of the batches that are ordered from now on

    def epoch(self, epoch: int, *, is_masked: bool, start: int = 0) -> Iterator[Parcel]:
        """The parcels of an epoch, from batch `start` on."""
        numbers = range(start, self.maker.num_batches)
        return self.parcels(
            BatchKey(epoch, number, is_masked, self.chunk_size) for number in numbers
        )
