"""Index worker processes: search an HNSW graph outside the server's process.

usearch releases Python's lock while it searches, but takes it again after every query, for which it
waits while the server is busy. A child maps the same file, so it needs no memory of its own. It
receives vectors through a pipe, sends back node numbers, and ends when the pipe closes.

    question   width, count, rows, bytes of a number (int64 each), the rows (int8 or float32)
    answer     node numbers (int64), equally many for each row
"""

import logging
import signal
import subprocess
import sys
import weakref
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from graphformers.retrieval.near import NearGraph, Numbers, Searchable

logger = logging.getLogger(__name__)

# The child starts quickly without this import.
if TYPE_CHECKING:
    from graphformers.retrieval.index import OpenFile

HEAD_BYTES = 4 * 8


class Child:
    """A process that searches, and the pipe to it.

    It inherits the open file, not its path, where a compaction may have put another file.
    """

    def __init__(self, file: "OpenFile") -> None:
        self._pipe, there = Pipe()
        with there:
            handles = (file.handle, there.fileno())
            words = [sys.executable, "-m", __name__, str(file.path), str(handles[1])]
            self.process = subprocess.Popen(words, pass_fds=handles)

    def ask(self, rows: Numbers, count: int, width: int) -> Numbers:
        """The node numbers that the child finds."""
        head = np.array([width, count, len(rows), rows.itemsize], dtype=np.int64)
        self._pipe.send_bytes(head.tobytes() + rows.tobytes())
        return np.frombuffer(self._pipe.recv_bytes(), dtype=np.int64).reshape(len(rows), -1).copy()

    def end(self) -> None:
        """Closes the pipe, which ends the process, and waits for it."""
        self._pipe.close()
        self.process.wait()


class Walker:
    """An HNSW graph in other processes.

    Each child answers one question at a time; as many threads as there are children can search.

    Args:
        file: The open file of the index.
        own: The same HNSW graph in this process, for the time when all children are gone.
        num_processes: Number of children.
    """

    def __init__(self, file: "OpenFile", own: Searchable, num_processes: int = 1) -> None:
        self._own = own
        self.children = [Child(file) for _ in range(num_processes)]
        # Free children; None when all are gone.
        self._free: SimpleQueue[Child | None] = SimpleQueue()
        for child in self.children:
            self._free.put(child)
        # Ends the children with the last view that uses them.
        weakref.finalize(self, end, self.children)

    def search(self, rows: Numbers, count: int, width: int) -> Numbers:
        """Node numbers of the `count` nearest vectors of each row."""
        while (child := self._free.get()) is not None:
            try:
                found = child.ask(rows, count, width)
            # An answer that was read in part cannot be continued.
            except BaseException as error:
                self._lose(child)
                if not isinstance(error, OSError | EOFError):
                    raise
                # The child was killed; ask another one.
                continue
            self._free.put(child)
            return found
        self._free.put(None)
        return self._own.search(rows, count, width)

    def _lose(self, child: Child) -> None:
        child.process.kill()
        child.end()
        left = sum(other.process.poll() is None for other in self.children)
        logger.warning(
            f"a process that walks through the index is gone, {left} left; searches go on, more "
            f"slowly"
        )
        if not left:
            self._free.put(None)


def end(children: list[Child]) -> None:
    """Ends processes."""
    for child in children:
        child.end()


def main(file: str, handle: str) -> None:
    """Answers questions until the pipe closes."""
    from usearch.index import Index

    # Signals are meant for the parent, which may still need answers.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    view = Index.restore(file, view=True)
    assert view is not None, "the parent has opened the same file"
    graph, pipe = NearGraph(view, threads=1), Connection(int(handle))
    while True:
        try:
            content = pipe.recv_bytes()
        except EOFError:
            return
        width, count, rows, itemsize = np.frombuffer(content[:HEAD_BYTES], dtype=np.int64).tolist()
        kind = np.int8 if itemsize == 1 else np.float32
        vectors = np.frombuffer(content, dtype=kind, offset=HEAD_BYTES).reshape(rows, -1)
        pipe.send_bytes(graph.search(vectors, count, width).tobytes())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
