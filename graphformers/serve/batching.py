"""Batcher: one thread that does the waiting work of many clients together.

A batch takes everything that waits when the thread is free, so that batches grow with the load and nobody waits for company; with
`patience` the first one waits that long for others, which pays where a batch costs hardly more than one.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


class BusyError(Exception):
    """So much is waiting already that more would only wait too long."""


class Batcher(Generic[Job, Result]):
    """Calls `work` with lists of jobs; it gives a result, or an exception, for each."""

    def __init__(
        self,
        name: str,
        work: Callable[[list[Job]], Sequence[Result | Exception]],
        *,
        most: int = 64,
        patience: float = 0.0,
        most_waiting: int = 4096,
    ) -> None:
        self.name, self._work = name, work
        self._most, self._patience, self._most_waiting = most, patience, most_waiting
        self._jobs: deque[tuple[Job, Future[Result]]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self.after: Callable[[int], None] = lambda size: None  # called in the thread when a batch is answered, with its size
        self.sizes: Callable[[int], None] = lambda size: None  # told the size of every batch
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        return len(self._jobs)

    def put(self, job: Job) -> "Future[Result]":
        """Queues a job. Once its result is being awaited by nobody, it is dropped, unless it has begun."""
        future: Future[Result] = Future()
        with self._changed:
            if self._is_closed or len(self._jobs) >= self._most_waiting:
                raise BusyError(f"{self.name}: {'stopping' if self._is_closed else f'{len(self._jobs):,} are waiting already'}")
            self._jobs.append((job, future))
            if len(self._jobs) in (1, self._most):
                self._changed.notify()
        return future

    async def do(self, job: Job) -> Result:
        """The job's result, for a coroutine."""
        return await asyncio.wrap_future(self.put(job))

    def close(self) -> None:
        """Finishes what was accepted, then ends the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            jobs = [job for job, _ in batch]
            try:
                results = self._work(jobs)
                assert len(results) == len(jobs), "work gives a result for each job"
            except BaseException as error:  # whatever it was, nobody may wait for ever
                results = [error if isinstance(error, Exception) else RuntimeError(repr(error))] * len(jobs)
            for (_, future), result in zip(batch, results, strict=True):
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
            self.sizes(len(batch))
            self.after(len(batch))

    def _next(self) -> list[tuple[Job, "Future[Result]"]]:
        """The next batch; empty when there will be none."""
        with self._changed:
            while True:
                while not self._jobs and not self._is_closed:
                    self._changed.wait()
                if not self._jobs:
                    return []
                until = time.monotonic() + self._patience
                while self._patience and len(self._jobs) < self._most and not self._is_closed:
                    left = until - time.monotonic()
                    if left <= 0:
                        break
                    self._changed.wait(left)
                taken = [self._jobs.popleft() for _ in range(min(self._most, len(self._jobs)))]
                batch = [(job, future) for job, future in taken if future.set_running_or_notify_cancel()]
                if batch:
                    return batch
