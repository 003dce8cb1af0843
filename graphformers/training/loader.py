"""Loader: the batches of a training run, prefetched by worker processes."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from graphformers.batching.prefetch import FlatBatch, Prefetcher
from graphformers.training.batches import BatchKey, BatchMaker, TrainBatch
from graphformers.training.chunks import ChunkSize


class Loader:
    """Makes the batches of training and moves them to the device.

    Args:
        maker: Makes a batch from its key.
        chunks: The chunk size of the next batches.
        num_workers: Worker processes; with 0, batches are made in this process.
        device: The device that batches are moved to.
    """

    def __init__(
        self, maker: BatchMaker, chunks: ChunkSize, num_workers: int, device: torch.device
    ) -> None:
        self.maker = maker
        self.chunks = chunks
        self.device = device
        self._prefetcher = Prefetcher(maker.make, num_workers, device)

    def epoch(self, epoch: int, stage: str = "clean", start: int = 0) -> Iterator[TrainBatch]:
        """The batches of an epoch.

        Args:
            epoch: The number of the epoch, on which all random draws depend.
            stage: The stage, which decides whether texts are masked.
            start: The first batch.
        """
        # A generator, so that a key takes the chunk size current when its batch is requested.
        keys = (
            BatchKey(epoch, number, self.maker.is_masked(stage, epoch, number), self.chunks.current)
            for number in range(start, self.maker.num_batches)
        )
        for flat in self._prefetcher.batches(keys):
            batch = flat.to(self.device)
            # A batch may have been requested before memory ran out.
            yield batch if self.chunks.allows(batch) else self.in_chunks(batch, self.chunks.current)

    def in_chunks(self, batch: TrainBatch, chunk_size: int | None) -> TrainBatch:
        """The same batch in chunks of another size."""
        remade = self.maker.make(replace(batch.key, chunk_size=chunk_size))
        return FlatBatch.of(remade).to(self.device)

    def close(self) -> None:
        """Ends the worker processes."""
        self._prefetcher.close()
