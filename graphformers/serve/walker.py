"""Walks through the graph of near neighbours in a process of its own.

usearch keeps Python's lock while it walks, so a search would stop everything else the server does. The child maps the same file,
so it costs no memory; it is sent vectors through a pipe and sends back node numbers, and ends when the pipe does.

    question   count, rows, numbers of a row (int64 each), the rows (float32)
    answer     rows, places of a row (int64 each), node numbers (int64), how many of a row's places count (int64)
"""

import subprocess
import sys
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from graphformers.progress import say

if TYPE_CHECKING:  # the child should start quickly
    from graphformers.retrieval.index import OpenFile

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Found:
    """What a walk gives, as usearch says it; one row for each query, however many there are."""

    keys: Array
    counts: Array


class Turns:
    """A lock that is given in the order in which it was asked for; Python's own goes to whoever is quickest, again and again."""

    def __init__(self) -> None:
        self._guard, self._is_taken = threading.Lock(), False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._is_taken:
                self._is_taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait()

    def __exit__(self, *reason: object) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()  # handed on; nobody can come in between
            else:
                self._is_taken = False


class Walker:
    """A graph of near neighbours in another process: `search` as usearch has it. `own` is the same graph in this process.

    The child is given the open file, not its path, where a compaction may have put another one.
    """

    def __init__(self, file: "OpenFile", width: int, own: Any) -> None:
        words, pipe = [sys.executable, "-m", "graphformers.serve.walker", str(file.path), str(width)], subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, bufsize=0, pass_fds=(file.handle,))
        self._turns = Turns()  # several threads ask, one after the other
        self._own, self._is_alive = own, True
        self._end = weakref.finalize(self, end, self._process)  # when the last view that uses it is gone

    def search(self, rows: Array, count: int) -> Any:
        if self._is_alive:
            try:
                return self._ask(rows, count)
            except (OSError, EOFError):  # it was killed; it does without
                self._is_alive = False
                say("the process that walks through the index is gone; searches go on without it, more slowly")
        return self._own.search(rows, count)

    def _ask(self, rows: Array, count: int) -> Found:
        question = np.array([count, *rows.shape], dtype=np.int64).tobytes() + np.ascontiguousarray(rows, np.float32).tobytes()
        with self._turns:
            write_all(self._process.stdin, question)
            shape = numbers(self._process.stdout, 2)
            keys = numbers(self._process.stdout, int(shape.prod())).reshape(shape)
            return Found(keys, numbers(self._process.stdout, int(shape[0])))


def end(process: "subprocess.Popen[bytes]") -> None:
    """Closes the pipes, which ends the process."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


def write_all(pipe: Any, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[pipe.write(view) :]


def read_all(pipe: Any, length: int) -> bytes:
    """Exactly so many bytes; EOFError where the other end is gone."""
    pieces = []
    while length:
        piece = pipe.read(length)
        if not piece:
            raise EOFError("the process that walks through the index is gone")
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def numbers(pipe: Any, count: int) -> Array:
    return np.frombuffer(read_all(pipe, 8 * count), dtype=np.int64)


def answer(graph: Any, rows: Array, count: int) -> bytes:
    """A walk for each row, as bytes."""
    found = graph.search(rows, count, threads=1)
    keys = np.atleast_2d(found.keys).astype(np.int64)
    counts = np.full(1, keys.shape[1]) if len(rows) == 1 else np.asarray(found.counts, dtype=np.int64)
    return np.array(keys.shape, dtype=np.int64).tobytes() + keys.tobytes() + counts.astype(np.int64).tobytes()


def main(file: str, width: str, source: BinaryIO, target: BinaryIO) -> None:
    import signal

    from usearch.index import Index

    for signum in (signal.SIGINT, signal.SIGTERM):  # meant for the parent, which may still need answers
        signal.signal(signum, signal.SIG_IGN)
    graph: Any = Index.restore(file, view=True)
    graph.expansion_search = int(width)
    while True:
        try:
            count, rows, size = numbers(source, 3).tolist()
            vectors = np.frombuffer(read_all(source, 4 * rows * size), dtype=np.float32).reshape(rows, size)
        except EOFError:
            return
        write_all(target, answer(graph, vectors, count))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], open(0, "rb", buffering=0), open(1, "wb", buffering=0))  # noqa: SIM115
