"""Rows in shards: taken in any order, by one thread or several."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphformers.artifact import open_artifact, write_artifact
from graphformers.embedding import shards
from graphformers.embedding.shards import ShardedRows, load_rows

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


def test_shards_stand_by_their_number(tmp_path: Path) -> None:
    names = ["vectors/99999.npy", "vectors/100000.npy"]
    with write_artifact(tmp_path / "many", "vectors", 1) as draft:
        for number, name in enumerate(names):
            draft.path(name).parent.mkdir(exist_ok=True)
            np.save(draft.path(name), np.full((1, 1), number))
    rows = load_rows(open_artifact(tmp_path / "many", "vectors", 1), "vectors", 1)
    assert rows.take(np.array([0, 1])).tolist() == [[0], [1]]
