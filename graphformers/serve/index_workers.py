"""Index worker processes: search an HNSW graph outside the server's process.

usearch releases Python's lock while it searches, but takes it again after every query, for which it
waits while the server is busy. A worker maps the same file, so it needs no memory of its own. It
receives queries through a pipe, sends back node numbers, and ends when the pipe closes.

    query    width, count, rows, bytes of a number (int64 each), the rows (int8 or float32)
    answer   node numbers (int64), equally many for each row
"""

import json
import logging
import os
import signal
import subprocess
import sys
import weakref
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from graphformers.retrieval.hnsw import HnswGraph, Numbers, Searchable

logger = logging.getLogger(__name__)

# Workers start quickly without this import.
if TYPE_CHECKING:
    from graphformers.retrieval.approximate import OpenFile

HEAD_BYTES = 4 * 8
# Workers import from where this process imports, never from the current folder (-P), where a file
# of the user may be called numpy.py.
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    f"from {__name__} import main; main(*sys.argv[2:])"
)


class Worker:
    """A process that searches, and the pipe to it.

    It inherits the open file, not its path, where a compaction may have put another file.
    """

    def __init__(self, file: "OpenFile") -> None:
        self._pipe, there = Pipe()
        with there:
            handles = (file.handle, there.fileno())
            words = [json.dumps(_import_path()), str(file.path), str(handles[1])]
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", START, *words], pass_fds=handles
            )

    def search(self, rows: Numbers, count: int, width: int) -> Numbers:
        """The node numbers that the worker finds."""
        head = np.array([width, count, len(rows), rows.itemsize], dtype=np.int64)
        self._pipe.send_bytes(head.tobytes() + rows.tobytes())
        return np.frombuffer(self._pipe.recv_bytes(), dtype=np.int64).reshape(len(rows), -1).copy()

    def end(self) -> None:
        """Closes the pipe, which ends the process, and waits for it."""
        self._pipe.close()
        self.process.wait()


def _import_path() -> list[str]:
    """Where this process imports from, without the current folder, unless this package is there."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    kept = [place for place in sys.path if os.path.isabs(place) and not _is_current(place)]
    return kept if package in kept else [*kept, package]


def _is_current(place: str) -> bool:
    try:
        return os.path.samefile(place, ".")
    except OSError:
        return False


class IndexWorkers:
    """An HNSW graph in worker processes.

    Each worker answers one query at a time; as many threads as there are workers can search.

    Args:
        file: The open file of the index.
        own: The same HNSW graph in this process, for the time when all workers are gone.
        num_processes: Number of workers.
    """

    def __init__(self, file: "OpenFile", own: Searchable, num_processes: int = 1) -> None:
        self._own = own
        self.workers = [Worker(file) for _ in range(num_processes)]
        # Free workers; None when all are gone.
        self._free: SimpleQueue[Worker | None] = SimpleQueue()
        for worker in self.workers:
            self._free.put(worker)
        # Ends the workers with the last view that uses them.
        weakref.finalize(self, end, self.workers)

    def search(self, rows: Numbers, count: int, width: int) -> Numbers:
        """Node numbers of the `count` nearest vectors of each row."""
        while (worker := self._free.get()) is not None:
            try:
                found = worker.search(rows, count, width)
            # An answer that was read in part cannot be continued.
            except BaseException as error:
                self._lose(worker)
                if not isinstance(error, OSError | EOFError):
                    raise
                # The worker was killed; ask another one.
                continue
            self._free.put(worker)
            return found
        self._free.put(None)
        return self._own.search(rows, count, width)

    def _lose(self, worker: Worker) -> None:
        worker.process.kill()
        worker.end()
        left = sum(other.process.poll() is None for other in self.workers)
        logger.warning(f"an index worker process is gone, {left} left; searches go on, more slowly")
        if not left:
            self._free.put(None)


def end(workers: list[Worker]) -> None:
    """Ends processes."""
    for worker in workers:
        worker.end()


def main(file: str, handle: str) -> None:
    """Answers queries until the pipe closes."""
    from usearch.index import Index

    # Signals are meant for the parent, which may still need answers.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    view = Index.restore(file, view=True)
    assert view is not None, "the parent has opened the same file"
    graph, pipe = HnswGraph(view, threads=1), Connection(int(handle))
    while True:
        try:
            content = pipe.recv_bytes()
        except EOFError:
            return
        width, count, rows, itemsize = np.frombuffer(content[:HEAD_BYTES], dtype=np.int64).tolist()
        kind = np.int8 if itemsize == 1 else np.float32
        vectors = np.frombuffer(content, dtype=kind, offset=HEAD_BYTES).reshape(rows, -1)
        pipe.send_bytes(graph.search(vectors, count, width).tobytes())
