import threading
import time
from concurrent.futures import wait

import pytest

from graphformers.serve.batching import Batcher, BusyError


def test_everybody_gets_their_own_result_in_few_batches() -> None:
    sizes, gate = [], threading.Event()

    def double(jobs: list[int]) -> list[int | Exception]:
        gate.wait(10)
        sizes.append(len(jobs))
        return [ValueError(f"{job}") if job % 10 == 3 else 2 * job for job in jobs]

    batcher = Batcher("doubling", double, most=32)
    futures = [batcher.put(i) for i in range(100)]
    gate.set()
    wait(futures, 10)
    for i, future in enumerate(futures):
        if i % 10 == 3:
            assert str(future.exception()) == str(i)
        else:
            assert future.result() == 2 * i
    assert sum(sizes) == 100
    assert len(sizes) <= 5, "the first alone perhaps, then as many as may go together"
    batcher.close()


def test_an_error_of_the_work_reaches_all_and_the_thread_lives_on() -> None:
    def work(jobs: list[int]) -> list[int | Exception]:
        if 0 in jobs:
            raise ZeroDivisionError("nought")
        return list(jobs)

    batcher = Batcher("failing", work)
    with pytest.raises(ZeroDivisionError, match="nought"):
        batcher.put(0).result(10)
    assert batcher.put(1).result(10) == 1
    batcher.close()


def test_closing_finishes_what_was_accepted_and_takes_no_more() -> None:
    done = []

    def slow(jobs: list[int]) -> list[int | Exception]:
        time.sleep(0.05)
        done.extend(jobs)
        return list(jobs)

    batcher = Batcher("slow", slow, most=2)
    futures = [batcher.put(i) for i in range(6)]
    batcher.close()
    assert [future.result(0) for future in futures] == [*range(6)] == sorted(done)
    with pytest.raises(BusyError, match="stopping"):
        batcher.put(7)


def test_a_full_queue_refuses_and_who_left_is_dropped() -> None:
    gate, seen = threading.Event(), []

    def work(jobs: list[int]) -> list[int | Exception]:
        gate.wait(10)
        seen.extend(jobs)
        return list(jobs)

    batcher = Batcher("full", work, most=1, most_waiting=3)
    first = batcher.put(0)
    while batcher.num_waiting:  # until the thread has taken it
        time.sleep(0.001)
    others = [batcher.put(i) for i in (1, 2, 3)]
    with pytest.raises(BusyError, match="3 are waiting"):
        batcher.put(4)
    assert others[1].cancel()
    gate.set()
    assert (first.result(10), others[0].result(10), others[2].result(10)) == (0, 1, 3)
    batcher.close()
    assert seen == [0, 1, 3]


def test_patience_gathers_company() -> None:
    sizes = []
    batcher: Batcher[int, int] = Batcher("patient", lambda jobs: list(jobs), most=4, patience=5.0)
    batcher.sizes = sizes.append
    futures = [batcher.put(i) for i in range(4)]
    wait(futures, 4)
    assert all(future.done() for future in futures), "a full batch does not wait any longer"
    batcher.close()
    assert sizes == [4]
