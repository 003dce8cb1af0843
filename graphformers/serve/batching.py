"""Batcher: threads that process the waiting requests of many clients together.

A batch takes everything that waits when a thread becomes free, so batches grow with the load and no
request waits for others. With `patience`, the first one waits that long, which pays where a batch
costs hardly more than a single request.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)


Job = TypeVar("Job")
Result = TypeVar("Result")
# Of a thread that waits, or of an event loop.
AnyFuture = Future[Result] | asyncio.Future[Result]
Settled = tuple[AnyFuture[Result], Result | Exception]


class BusyError(Exception):
    """Too many jobs are waiting already."""


class Batcher(Generic[Job, Result]):
    """Calls `work` with lists of jobs, in threads.

    Args:
        name: Name of the threads, for messages.
        work: Returns a result or an exception for each job.
        most: Largest batch.
        patience: Seconds that the first job waits for others.
        most_waiting: Jobs that may wait; more raise BusyError.
        num_threads: Number of threads.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[list[Job]], Sequence[Result | Exception]],
        *,
        most: int = 64,
        patience: float = 0.0,
        most_waiting: int = 4096,
        num_threads: int = 1,
    ) -> None:
        self.name, self._work = name, work
        self._most, self._patience, self._most_waiting = most, patience, most_waiting
        self._jobs: deque[tuple[Job, AnyFuture[Result]]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        # Called with the size of every batch.
        self.sizes: Callable[[int], None] = lambda size: None
        # Called in the thread after every batch.
        self.after: Callable[[], None] = lambda: None
        self._threads = [
            threading.Thread(target=self._run, name=name, daemon=True) for _ in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_waiting(self) -> int:
        """Number of waiting jobs."""
        return len(self._jobs)

    def put(self, job: Job) -> "Future[Result]":
        """Queues a job. A cancelled future drops the job unless it has begun."""
        future: Future[Result] = Future()
        self._add(job, future)
        return future

    async def do(self, job: Job, seconds: float | None = None) -> Result:
        """The result of a job, for a coroutine.

        Raises:
            TimeoutError: If it takes longer than `seconds`.
            BusyError: If too many jobs are waiting.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._add(job, future)
        timer = (
            None
            if seconds is None
            else loop.call_later(seconds, _set_all, [(future, TimeoutError())])
        )
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Finishes all accepted jobs and ends the threads."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _add(self, job: Job, future: AnyFuture[Result]) -> None:
        with self._changed:
            if self._is_closed or len(self._jobs) >= self._most_waiting:
                waiting = f"{len(self._jobs):,} are waiting already"
                raise BusyError(f"{self.name}: {'stopping' if self._is_closed else waiting}")
            self._jobs.append((job, future))
            if len(self._jobs) in (1, self._most):
                self._changed.notify()

    def _run(self) -> None:
        while batch := self._next():
            jobs = [job for job, _ in batch]
            try:
                results = self._work(jobs)
                assert len(results) == len(jobs), "work gives a result for each job"
            # Whatever the error is, no client may wait forever.
            except BaseException as error:
                results = [
                    error if isinstance(error, Exception) else RuntimeError(repr(error))
                ] * len(jobs)
            _settle([(future, result) for (_, future), result in zip(batch, results, strict=True)])
            try:
                self.sizes(len(batch))
                self.after()
            except Exception as error:
                # The batch is answered; the thread must continue with the next one.
                logger.warning(f"{self.name}: {type(error).__name__}: {error}")

    def _next(self) -> list[tuple[Job, AnyFuture[Result]]]:
        """The next batch; empty after `close`."""
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
                if self._jobs:
                    self._changed.notify()
                batch = [(job, future) for job, future in taken if _is_wanted(future)]
                if batch:
                    return batch


def _is_wanted(future: AnyFuture[Result]) -> bool:
    return (
        future.set_running_or_notify_cancel() if isinstance(future, Future) else not future.done()
    )


def _settle(results: list[Settled[Result]]) -> None:
    """Delivers results; those of an event loop together, because waking it is expensive."""
    of_loops: dict[asyncio.AbstractEventLoop, list[Settled[Result]]] = {}
    for future, result in results:
        if isinstance(future, Future):
            _set_all([(future, result)])
        else:
            of_loops.setdefault(future.get_loop(), []).append((future, result))
    for loop, pairs in of_loops.items():
        loop.call_soon_threadsafe(_set_all, pairs)


def _set_all(pairs: Sequence[Settled[Result]]) -> None:
    for future, result in pairs:
        # An event loop gives up by itself.
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
