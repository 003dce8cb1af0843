"""Edges that wait for the nodes: in memory, and beyond a limit in a temporary file."""

import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from graphformers.files import full_disk
from graphformers.graph.batches import EdgeBatch
from graphformers.graph.columns import as_strings
from graphformers.graph.problems import Locate

SCHEMA = pa.schema(
    {
        "source": pa.large_string(),
        "target": pa.large_string(),
        "type": pa.large_string(),
        "time": pa.float64(),
    }
)


class EdgeSpool:
    """A queue of batches of edges.

    The file has no name, so that it is gone when the process ends in any way.

    Args:
        max_bytes: The bytes that are kept in memory.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._held: deque[EdgeBatch] = deque()
        self._file: BinaryIO | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None
        # of each batch in the file: its places, whether it has types and times, and `outside`
        self._stored: deque[tuple[Locate, bool, bool, bool]] = deque()

    def add(self, batch: EdgeBatch) -> None:
        """Adds a batch."""
        size = batch.sources.nbytes + batch.targets.nbytes
        if self._file is None and self._num_bytes + size <= self._max_bytes:
            self._num_bytes += size
            self._held.append(batch)
            return
        try:
            self._store(batch)
        except OSError as error:
            raise full_disk(error, Path(tempfile.gettempdir())) from error

    def take(self) -> Iterator[EdgeBatch]:
        """Yields and removes all batches, in the order in which they were added."""
        while self._held:
            yield self._held.popleft()
        self._num_bytes = 0
        if self._file is None or self._writer is None:
            return
        self._writer.close()
        self._file.seek(0)
        with self._file, pa.ipc.open_stream(self._file) as batches:
            for rows, stored in zip(batches, self._stored, strict=True):
                locate, has_types, has_times, outside = stored
                source, target, type, time = rows.columns
                yield EdgeBatch(
                    source,
                    target,
                    locate,
                    type if has_types else None,
                    np.asarray(time) if has_times else None,
                    outside,
                )
        self._stored.clear()
        self._file = self._writer = None

    def close(self) -> None:
        """Removes the file."""
        if self._file is not None:
            self._file.close()

    def _store(self, batch: EdgeBatch) -> None:
        if self._file is None or self._writer is None:
            self._file = tempfile.TemporaryFile(prefix="graphformers-")  # noqa: SIM115
            self._writer = pa.ipc.new_stream(self._file, SCHEMA)
        has_types, has_times = batch.types is not None, batch.times is not None
        columns = [
            as_strings(batch.sources),
            as_strings(batch.targets),
            as_strings(batch.types) if has_types else pa.nulls(len(batch), SCHEMA[2].type),
            pa.array(batch.times) if has_times else pa.nulls(len(batch), SCHEMA[3].type),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
        self._stored.append((batch.locate, has_types, has_times, batch.outside))
