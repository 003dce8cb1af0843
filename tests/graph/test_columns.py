"""Node columns: one type for all chunks, nothing lost on the way to it."""

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphformers.graph.columns import join_column, make_column

VALUE = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.floats(-2, 2),
    st.just(2**70),
    st.just("x"),
    st.just([1]),
    st.booleans(),
)


def join(*chunks: pa.Array | None, plain: bool = False) -> pa.Array:
    return join_column(
        list(chunks),
        [1 if chunk is None else len(chunk) for chunk in chunks],
        [plain] * len(chunks),
    )


@given(values=st.lists(VALUE, max_size=8), cuts=st.lists(st.integers(0, 8), max_size=3))
def test_where_batches_end_changes_nothing(values: list[Any], cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    chunks = [make_column(values[a:b]) for a, b in pairwise(places)]
    assert join(*chunks).equals(join(make_column(values)))


@pytest.mark.parametrize(
    ("chunks", "type", "values"),
    [
        (([1], [2.5]), pa.float64(), [1.0, 2.5]),
        (([None, None], [1]), pa.int64(), [None, None, 1]),
        (([2**60 + 1], [2.5]), pa.large_string(), [str(2**60 + 1), "2.5"]),
        ((["a"], [1]), pa.large_string(), ["a", "1"]),
        (([{"a": 1}], ["x"]), pa.large_string(), ['{"a": 1}', "x"]),
        (([["a"]], [None]), pa.large_list(pa.large_string()), [["a"], None]),
        (([b"a"], [b"b"]), pa.large_binary(), [b"a", b"b"]),
        (([None], [None]), pa.large_string(), [None, None]),
        (([[1]], [["a"]]), pa.large_string(), ["[1]", '["a"]']),
    ],
)
def test_types_that_meet(
    chunks: tuple[list[Any], ...], type: pa.DataType, values: list[Any]
) -> None:
    column = join(*map(make_column, chunks))
    assert (column.type, column.to_pylist()) == (type, values)


def test_structs_of_different_fields_are_joined() -> None:
    column = join(pa.array([{"a": 1}]), pa.array([{"b": 2}]), None)
    assert column.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": 2}, None]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["1", "", "-20"], [1, None, -20]),
        (["1", "2.5"], [1.0, 2.5]),
        (["1.0", "2.5e-07", "0.5"], [1.0, 2.5e-07, 0.5]),
        (["9007199254740993"], [9007199254740993]),
        (["9007199254740993", "1.5"], None),
        (["12345678901234567890"], None),
        (["0.1234567890123456"], None),
        (["3.10", "3.9"], None),
        (["nan", "1.5"], None),
        (["inf"], None),
        (["1e999"], None),
        (["007"], None),
        (["+1"], None),
        (["", ""], [None, None]),
    ],
)
def test_numbers_are_told_from_text(given: list[str], read: list[Any] | None) -> None:
    """Text becomes a number only where the number says the same."""
    whole = join(pa.array(given, pa.large_string()), plain=True)
    assert whole.to_pylist() == (given if read is None else read)
    assert join(*(pa.array([value], pa.large_string()) for value in given), plain=True).equals(
        whole
    )


def test_guessed_numbers_beside_typed_ones() -> None:
    text, typed = pa.array(["3", ""], pa.large_string()), pa.array([1.5])
    assert join_column([text, typed], [2, 1], [True, False]).to_pylist() == [3.0, None, 1.5]
    dotted = pa.array(["1.0"], pa.large_string())
    assert join_column([dotted, pa.array(["x"])], [1, 1], [True, False]).to_pylist() == ["1.0", "x"]
