"""Filters on node columns, as typed: year>=1995, category=cs.LG, venue!=arXiv. All of them must hold."""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.data.arrays import Array
from graphformers.data.columns import is_text
from graphformers.embedding.live import LiveGraph
from graphformers.errors import GraphFormersError, nearest

PATTERN = re.compile(r"([^<>=!]+)(<=|>=|!=|==|=|<|>)(.*)", re.DOTALL)  # blanks are stripped after: in here they cost their cube
NUMBER = re.compile(r"[-+]?\d+([.,]\d+)*")
DATE = re.compile(r"\d{4}(-\d\d.*)?")
COMPARE = {
    "=": pc.equal,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def allowed_nodes(live: LiveGraph, filters: Sequence[str]) -> Array | None:
    """Marks by node number who passes all filters; None where there are none. A node without a value passes none."""
    found = None
    for filter in [filters] if isinstance(filters, str) else filters:
        mark = _one(live, filter)
        found = mark if found is None else found & mark
    return found


def _one(live: LiveGraph, filter: str) -> Array:
    parts = PATTERN.fullmatch(filter)
    if parts is None or not parts[1].strip():
        raise GraphFormersError(f"the filter {filter!r} given, expected COLUMN=VALUE, or with !=, <, <=, > or >=")
    name, sign, text = (part.strip() for part in parts.groups())
    columns = live.column_names()
    if name not in columns:
        raise GraphFormersError(f"the filter {filter!r}: no node column {name!r}; {nearest(name, columns)}")
    column = live.column(name)
    if pa.types.is_float16(column.type):  # which Arrow stores, but does not compare
        column = column.cast(pa.float32())
    try:
        value = pa.scalar(text).cast(column.type)
    except pa.ArrowException as error:
        raise GraphFormersError(
            f"the filter {filter!r}: {text!r} is no {column.type}, which the column {name!r} holds"
        ) from error
    if "<" in sign or ">" in sign:
        _check_order(column, text, f"the filter {filter!r}")
    try:
        mark = COMPARE[sign](column, value)
    except pa.ArrowException as error:
        raise GraphFormersError(f"the filter {filter!r}: the column holds {column.type}, which cannot be compared") from error
    return np.asarray(pc.fill_null(mark, False), dtype=bool)


def _check_order(column: pa.Array, text: str, where: str) -> None:
    """Refuses to compare a number with texts letter by letter: 9 would come after 17,33. Dates as in 2020-07-01 are in order."""
    if not is_text(column.type) or not NUMBER.fullmatch(text):
        return
    strange = next((value for value in column.drop_null()[:100].to_pylist() if not DATE.fullmatch(value)), None)
    if strange is not None:
        raise GraphFormersError(f"{where}: the column holds texts such as {strange!r}, which have no order of numbers")
