"""ChunkSize: how many pairs of a batch are computed at a time, adapted to the memory."""

import logging

from graphformers.errors import GraphFormersError
from graphformers.training.batches import TrainBatch

logger = logging.getLogger(__name__)


class ChunkSize:
    """The number of pairs that this process computes at a time.

    It is halved when memory runs out. Small chunks take longer, and another process may have
    needed the memory for a while only, so after some steps twice as many pairs are tried. Each
    failed attempt doubles the number of steps until the next one.

    Args:
        limit: Pairs at a time at most; None for whole batches.
        retry_steps: Steps after which larger chunks are tried again.
        rank: The number of this process if there are several; messages name it.

    Attributes:
        current: The chunk size of the next batches; None for whole batches.
        used: The chunk size of the last step.
    """

    def __init__(self, limit: int | None, retry_steps: int = 64, rank: int | None = None) -> None:
        self.limit = limit
        self.retry_steps = retry_steps
        self.current = limit
        self.used = limit
        self._prefix = "" if rank is None else f"process {rank}: "
        self._wait = retry_steps
        self._waited = 0
        self._is_trying = False
        self._largest_batch = 0

    def allows(self, batch: TrainBatch) -> bool:
        """Whether the chunks of a batch are small enough; it may have been made earlier."""
        size = batch.key.chunk_size
        return self.current is None or (size is not None and size <= self.current)

    def shrink(self, batch: TrainBatch) -> int:
        """Halves the chunk size of a batch for which memory ran out.

        Returns:
            The new chunk size.

        Raises:
            GraphFormersError: Memory ran out for a single pair.
        """
        size = min(batch.key.chunk_size or len(batch.pairs), len(batch.pairs))
        if size <= 1:
            raise GraphFormersError(
                "the memory is too small even for one pair at a time; use a smaller max_tokens, "
                "num_neighbors or backbone"
            )
        self.current = -(-size // 2)
        if self._is_trying:
            self._wait *= 2
        self._waited, self._is_trying = 0, False
        return self.current

    def record(self, batch: TrainBatch) -> None:
        """Records that a step has succeeded; after enough steps, lets the next try more pairs."""
        before, self.used = self.used, batch.key.chunk_size
        if self.used != before:
            self._report(before)
        self._largest_batch = max(self._largest_batch, len(batch.pairs))
        tried = min(self.current or self._largest_batch, self._largest_batch)
        # A smaller batch, such as the last of an epoch, does not prove that the size fits.
        if self._is_trying and self.used == self.current and len(batch.pairs) >= tried:
            self._wait, self._is_trying = self.retry_steps, False
        if self.current is None or self.current == self.limit or self._is_trying:
            return
        self._waited += 1
        if self._waited >= self._wait:
            is_whole = 2 * self.current >= (self.limit or self._largest_batch)
            self.current = self.limit if is_whole else 2 * self.current
            self._waited, self._is_trying = 0, True

    def _report(self, before: int | None) -> None:
        if self.used is not None and (before is None or self.used < before):
            message = (
                f"out of memory: from now on {self.used} pairs of a batch are computed at a time, "
                f"which takes longer; more are tried again later"
            )
        else:
            message = (
                f"the memory again suffices for {self.used or 'all'} pairs of a batch at a time"
            )
        logger.warning(self._prefix + message)
