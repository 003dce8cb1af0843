"""Recovery when a GPU runs out of memory: batches are computed in smaller pieces."""

import logging
from collections.abc import Callable
from itertools import pairwise

import torch

from graphformers.data.arrays import equal_parts
from graphformers.errors import GraphFormersError

logger = logging.getLogger(__name__)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that a GPU has no memory left.

    torch has an error type for this, but the libraries that it calls raise plain RuntimeErrors.
    """
    messages = ("out of memory", "STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(part in str(error) for part in messages)


class SuppressOutOfMemory:
    """Ends a `with` block early, without an error, when a GPU has no memory left."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return error is not None and is_out_of_memory(error)


class BatchSplitter:
    """Computes batches in pieces that fit into a GPU's memory.

    Batches are whole at first. When one does not fit, it and all later ones are divided into twice
    as many pieces. The results differ at most by rounding.
    """

    def __init__(self) -> None:
        self.num_pieces = 1

    def run(self, part: slice, compute: Callable[[slice], None]) -> None:
        """Calls `compute` with the items of a batch, all of them or some at a time.

        Raises:
            GraphFormersError: The memory is too small for a single item.
        """
        size = part.stop - part.start
        before = self.num_pieces
        while True:
            count = max(1, min(self.num_pieces, size))
            edges = [part.start + edge for edge in equal_parts(size, count)]
            try:
                for start, stop in pairwise(edges):
                    compute(slice(start, stop))
                break
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if self.num_pieces >= size:
                    raise GraphFormersError(
                        "the GPU's memory is too small even for one node at a time, "
                        f"or other processes use it ({error})"
                    ) from error
            self.num_pieces *= 2
            torch.cuda.empty_cache()
        if self.num_pieces > before:
            logger.warning(
                "out of GPU memory: batches are computed in %d pieces, which takes longer",
                self.num_pieces,
            )
