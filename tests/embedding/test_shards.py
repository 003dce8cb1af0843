"""Rows in shards: taken in any order, by one thread or several."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphformers.embedding import shards
from graphformers.embedding.shards import ShardedRows

WHOLE = np.random.default_rng(0).normal(size=(23, 2, 3)).astype(np.float16)
ROWS = ShardedRows(tuple(WHOLE[start : start + 5] for start in range(0, 23, 5)), 5)


@given(st.lists(st.integers(0, 22), max_size=40), st.booleans())
def test_rows_come_in_the_order_asked_for(rows: list[int], is_sorted: bool) -> None:
    asked = np.array(sorted(rows) if is_sorted else rows, dtype=np.int64)
    assert np.array_equal(ROWS.take(asked), WHOLE[asked])


@given(st.lists(st.integers(0, 22), min_size=1, max_size=40))
def test_several_threads_write_where_they_are_told(rows: list[int]) -> None:
    asked, out = np.array(rows), np.full((len(rows), 2, 3), np.nan, dtype=np.float16)
    with ThreadPoolExecutor(3) as readers, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "PIECE", 2)
        assert ROWS.take(asked, out, readers) is out
    assert np.array_equal(out, WHOLE[asked])


def test_rows_that_are_not_there() -> None:
    with pytest.raises(IndexError, match="rows 3 to 23 asked for, there are 23"):
        ROWS.take(np.array([3, 23]))
