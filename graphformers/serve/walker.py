"""Index worker processes: search an HNSW graph outside the server's process.

usearch holds Python's lock while it searches, which would stop everything else in the server. A
child maps the same file, so it needs no memory of its own. It receives vectors through a pipe,
sends back node numbers, and ends when the pipe closes.

    question   width, count, rows, numbers of a row, bytes of a number (int64 each), the rows (int8
               or float32)
    answer     rows, places of a row (int64 each), node numbers (int64), valid places of each row
               (int64)
"""

import logging
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

logger = logging.getLogger(__name__)


# The child starts quickly without this import.
if TYPE_CHECKING:
    from graphformers.retrieval.index import OpenFile

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Found:
    """Hits in usearch's form; one row for each query."""

    keys: Array
    counts: Array


class Walker:
    """An HNSW graph in other processes, with the interface of NearGraph.

    The children inherit the open file, not its path, where a compaction may have put another file.
    Each child answers one question at a time; as many threads as there are children can search.

    Args:
        file: The open file of the index.
        own: The same HNSW graph in this process, for the time when all children are gone.
        num_processes: Number of children.
    """

    def __init__(self, file: "OpenFile", own: Any, num_processes: int = 1) -> None:
        words, pipe = (
            [sys.executable, "-m", "graphformers.serve.walker", str(file.path)],
            subprocess.PIPE,
        )
        self._processes = [
            subprocess.Popen(words, stdin=pipe, stdout=pipe, bufsize=0, pass_fds=(file.handle,))
            for _ in range(num_processes)
        ]
        # Free children; None when all are gone.
        self._free: SimpleQueue[subprocess.Popen[bytes] | None] = SimpleQueue()
        for process in self._processes:
            self._free.put(process)
        self._own, self._num_gone, self._guard = own, 0, threading.Lock()
        # Ends the children with the last view that uses them.
        self._end = weakref.finalize(self, end, self._processes)

    def search(self, rows: Array, count: int, width: int) -> Any:
        """Node numbers of the `count` nearest vectors of each row."""
        while (process := self._free.get()) is not None:
            try:
                found = ask(process, rows, count, width)
            # An answer that was read in part cannot be continued.
            except BaseException as error:
                self._lose(process)
                if not isinstance(error, OSError | EOFError):
                    raise
                # The child was killed; ask another one.
                continue
            self._free.put(process)
            return found
        self._free.put(None)
        return self._own.search(rows, count, width)

    def _lose(self, process: "subprocess.Popen[bytes]") -> None:
        process.kill()
        end([process])
        with self._guard:
            self._num_gone += 1
            left = len(self._processes) - self._num_gone
        logger.warning(
            f"a process that walks through the index is gone, {left} left; searches go on, more "
            f"slowly"
        )
        if not left:
            self._free.put(None)


def ask(process: "subprocess.Popen[bytes]", rows: Array, count: int, width: int) -> Found:
    """Sends a question to a child and returns its answer."""
    about = np.array([width, count, *rows.shape, rows.itemsize], dtype=np.int64)
    write_all(process.stdin, about.tobytes() + rows.tobytes())
    shape = numbers(process.stdout, 2)
    keys = numbers(process.stdout, int(shape.prod())).reshape(shape)
    return Found(keys, numbers(process.stdout, int(shape[0])))


def end(processes: "list[subprocess.Popen[bytes]]") -> None:
    """Closes the pipes, which ends the processes, and waits for them."""
    for process in processes:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
    for process in processes:
        process.wait()


def write_all(pipe: Any, content: bytes) -> None:
    """Writes all bytes to a pipe."""
    view = memoryview(content)
    while view:
        view = view[pipe.write(view) :]


def read_all(pipe: Any, length: int) -> bytes:
    """Reads exactly `length` bytes.

    Raises:
        EOFError: If the other end is closed.
    """
    pieces = []
    while length:
        piece = pipe.read(length)
        if not piece:
            raise EOFError("the process that walks through the index is gone")
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def numbers(pipe: Any, count: int) -> Array:
    """Reads `count` int64 numbers from a pipe."""
    return np.frombuffer(read_all(pipe, 8 * count), dtype=np.int64)


def answer(graph: Any, rows: Array, count: int) -> bytes:
    """The answer to a question, as bytes."""
    found = graph.search(rows, count, threads=1)
    keys = np.atleast_2d(found.keys).astype(np.int64)
    counts = (
        np.full(1, keys.shape[1]) if len(rows) == 1 else np.asarray(found.counts, dtype=np.int64)
    )
    return (
        np.array(keys.shape, dtype=np.int64).tobytes()
        + keys.tobytes()
        + counts.astype(np.int64).tobytes()
    )


def main(file: str, source: BinaryIO, target: BinaryIO) -> None:
    """Answers questions until the pipe closes."""
    import signal

    from usearch.index import Index

    # Signals are meant for the parent, which may still need answers.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    graph: Any = Index.restore(file, view=True)
    while True:
        try:
            width, count, rows, size, item = numbers(source, 5).tolist()
            content = read_all(source, rows * size * item)
        except EOFError:
            return
        vectors = np.frombuffer(content, dtype=np.int8 if item == 1 else np.float32).reshape(
            rows, size
        )
        graph.expansion_search = width
        write_all(target, answer(graph, vectors, count))


if __name__ == "__main__":
    main(sys.argv[1], open(0, "rb", buffering=0), open(1, "wb", buffering=0))  # noqa: SIM115
