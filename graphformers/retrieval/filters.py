"""Filters on node columns, as typed: year>=1995, category=cs.LG, venue!=arXiv, title~graph,
category in cs.LG,cs.CL.

All of them must hold. `~` looks for letters anywhere in a text, large or small; `in` takes one of
several values, none of which has a comma.
"""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.arrays import Array
from graphformers.errors import GraphFormersError, nearest
from graphformers.graph.columns import is_text
from graphformers.graph.protocol import Graph

SIGN = re.compile(r"\s*(<=|>=|!=|==|=~|~=|=|<|>|~)(.*)|\s+(in)\s(.*)", re.DOTALL)  # behind a column
UNKNOWN = re.compile(r"(.*?)(?:[<>=!~]|\sin\s)", re.DOTALL)  # what seems to be meant as one
EXPECTED = "COLUMN=VALUE, or with !=, <, <=, >, >= or ~ (contains), or COLUMN in VALUE,VALUE"
NUMBER = re.compile(r"[-+]?\d+([.,]\d+)*")
DATE = re.compile(r"\d{4}(-\d\d.*)?")
CONTAINS = ("~", "=~", "~=")
COMPARE = {
    "=": pc.equal,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def allowed_nodes(graph: Graph, filters: Sequence[str]) -> Array | None:
    """Marks by node number who passes all filters; None where there are none. A node without a
    value passes none.
    """
    found = None
    for filter in [filters] if isinstance(filters, str) else filters:
        mark = _one(graph, filter)
        found = mark if found is None else found & mark
    return found


def check_columns(wanted: Sequence[str], known: Sequence[str]) -> None:
    for name in wanted:
        if name not in known:
            raise GraphFormersError(f"no node column {name!r}; {nearest(name, known)}")


def _one(graph: Graph, filter: str) -> Array:
    where = f"the filter {filter!r}"
    name, sign, text = _parts(filter, graph.column_names)
    column = graph.column(name)
    if pa.types.is_float16(column.type):  # which Arrow stores, but does not compare
        column = column.cast(pa.float32())
    try:
        mark = (
            _contains(column, text, where)
            if sign in CONTAINS
            else _compare(column, name, sign, text, where)
        )
    except pa.ArrowException as error:
        raise GraphFormersError(
            f"{where}: the column holds {column.type}, which cannot be compared"
        ) from error
    if pa.types.is_floating(column.type):  # what is no number is no value, as where it is shown
        mark = pc.and_kleene(mark, pc.invert(pc.is_nan(column)))
    return np.asarray(pc.fill_null(mark, False), dtype=bool)


def _parts(filter: str, columns: Sequence[str]) -> tuple[str, str, str]:
    """Column, sign and value. Names and values may hold signs too: the longest column that fits is
    meant.
    """
    given = filter.strip()
    for name in sorted(columns, key=len, reverse=True):
        found = SIGN.fullmatch(given, len(name)) if given.startswith(name) else None
        if found is not None:
            return name, found[1] or found[3], (found[2] or found[4] or "").strip()
    meant = UNKNOWN.match(given)
    if meant is None or not meant[1].strip():
        raise GraphFormersError(f"the filter {filter!r} given, expected {EXPECTED}")
    name = meant[1].strip()
    raise GraphFormersError(
        f"the filter {filter!r}: no node column {name!r}; {nearest(name, columns)}"
    )


def _compare(column: pa.Array, name: str, sign: str, text: str, where: str) -> pa.Array:
    given = [part.strip() for part in text.split(",")] if sign == "in" else [text]
    if sign == "in" and "" in given:
        raise GraphFormersError(
            f"{where}: a value is empty, expected values with commas between them"
        )
    values = pa.concat_arrays([_value(part, column.type, name, where) for part in given])
    if sign == "in":
        return pc.is_in(column, value_set=values)
    if "<" in sign or ">" in sign:
        _check_order(column, text, where)
    return COMPARE[sign](column, values[0])


def _value(text: str, kind: pa.DataType, name: str, where: str) -> pa.Array:
    """(1,) what is typed, as the column has it."""
    try:
        return pa.array([text]).cast(kind)
    except pa.ArrowException as error:
        raise GraphFormersError(
            f"{where}: {text!r} is no {kind}, which the column {name!r} holds"
        ) from error


def _contains(column: pa.Array, text: str, where: str) -> pa.Array:
    if not is_text(column.type):
        raise GraphFormersError(
            f"{where}: the column holds {column.type}, ~ looks for letters in texts"
        )
    if not text:
        raise GraphFormersError(f"{where}: nothing to look for behind ~")
    return pc.match_substring(column, text, ignore_case=True)


def _check_order(column: pa.Array, text: str, where: str) -> None:
    """Refuses to compare a number with texts letter by letter: 9 would come after 17,33. Dates as
    in 2020-07-01 are in order.
    """
    if not is_text(column.type) or not NUMBER.fullmatch(text):
        return
    strange = next(
        (value for value in column.drop_null()[:100].to_pylist() if not DATE.fullmatch(value)), None
    )
    if strange is not None:
        raise GraphFormersError(
            f"{where}: the column holds texts such as {strange!r}, which have no order of numbers"
        )
