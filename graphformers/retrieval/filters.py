"""Filters on node columns, as typed: year>=1995, category=cs.LG, venue!=arXiv. All of them must hold."""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.data.arrays import Array
from graphformers.embedding.live import LiveGraph
from graphformers.errors import GraphFormersError, nearest

PATTERN = re.compile(r"\s*([^<>=!]+?)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*", re.DOTALL)
COMPARE = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def allowed_nodes(live: LiveGraph, filters: Sequence[str]) -> Array | None:
    """Marks by node number who passes all filters; None where there are none. A node without a value passes none."""
    found = None
    for filter in filters:
        mark = _one(live, filter)
        found = mark if found is None else found & mark
    return found


def _one(live: LiveGraph, filter: str) -> Array:
    parts = PATTERN.fullmatch(filter)
    if parts is None:
        raise GraphFormersError(f"the filter {filter!r} given, expected COLUMN=VALUE, or with !=, <, <=, > or >=")
    name, sign, text = parts.groups()
    columns = live.column_names()
    if name not in columns:
        raise GraphFormersError(f"the filter {filter!r}: no node column {name!r}; {nearest(name, columns)}")
    column = live.column(name)
    try:
        value = pa.scalar(text).cast(column.type)
    except pa.ArrowException as error:
        raise GraphFormersError(
            f"the filter {filter!r}: {text!r} is no {column.type}, which the column {name!r} holds"
        ) from error
    mark = COMPARE[sign](column, value)
    return np.asarray(pc.fill_null(mark, False), dtype=bool)
