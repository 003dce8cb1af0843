"""Slices: kinds of questions that are worth a number of their own.

A slice is a name and a mark for each question; slices of one group may overlap (a pair can be
linked in several ways).
"""

import numpy as np

from graphformers.data.arrays import Array, pair_keys, ranges
from graphformers.data.graph import TextGraph
from graphformers.data.split import LinkQuestions, LinkSplit
from graphformers.evaluation.baselines import link_matrix
from graphformers.evaluation.scores import SparseScores

DEGREES = (0, 1, 3, 6, 11, 21)  # where the groups of degrees begin
COMMON = (0, 1, 2, 6)  # alike, of neighbours that both ends have
MOST_TYPES = 12  # relation types with a slice of their own, the most asked ones

Slices = dict[str, dict[str, Array]]  # group -> name -> (Q,) bool


def slices_of(split: LinkSplit, questions: LinkQuestions) -> Slices:
    """The slices of some questions that hold any of them."""
    anchors = questions.pairs[:, 0].astype(np.int64)
    # what a model may see, before sampling
    degrees = split.indptr[anchors + 1] - split.indptr[anchors]
    # where there are none in common, what is pooled from neighbours says least about the link
    common = SparseScores(link_matrix(split)).listed(anchors, questions.pairs[:, 1:])[:, 0]
    found: Slices = {
        "neighbours of the anchor": grouped(degrees, DEGREES),
        "common neighbours": grouped(common, COMMON),
    }
    if split.graph.edge_types is not None and len(split.graph.type_names) > 1:
        found |= type_slices(split, questions.pairs)
    if len(split.held_out_nodes):
        unknown = np.isin(anchors, split.held_out_nodes)
        found["anchor"] = {"unknown in training": unknown, "known in training": ~unknown}
    return {
        group: {name: mark for name, mark in names.items() if mark.any()}
        for group, names in found.items()
    }


def grouped(counts: Array, begins: tuple[int, ...]) -> dict[str, Array]:
    """Marks of counts from one number to below the next, by names such as none, 3–5 and 21 or
    more.
    """
    found = {}
    for low, high in zip(begins, (*begins[1:], None), strict=True):
        name = (
            "none"
            if low == 0
            else f"{low} or more"
            if high is None
            else str(low)
            if high == low + 1
            else f"{low}–{high - 1}"
        )
        found[name] = (counts >= low) & (counts < (np.inf if high is None else high))
    return found


def _around(split: LinkSplit, nodes: Array) -> tuple[Array, Array]:
    """The visible neighbours of all nodes, flat: whose they are, as a place in `nodes`, and
    which.
    """
    degrees = split.indptr[nodes + 1] - split.indptr[nodes]
    return np.repeat(np.arange(len(nodes)), degrees), split.indices[
        ranges(split.indptr[nodes], degrees)
    ]


def type_slices(split: LinkSplit, pairs: Array) -> Slices:
    """By the relation that is asked, and by whether the anchor has a visible neighbour in the same
    relation.

    The paper explains by the latter why neighbours help less on Wiki.
    """
    graph, anchors = split.graph, pairs[:, 0].astype(np.int64)
    number, types = types_of(graph, pairs)
    count = len(graph.type_names)
    nodes, place = np.unique(anchors, return_inverse=True)  # a hub is the anchor of many questions
    whose, near = _around(split, nodes)
    near_number, near_types = types_of(graph, np.stack([nodes[whose], near], 1))
    shared = np.zeros(len(pairs), dtype=bool)
    shared[
        number[np.isin(place[number] * count + types, whose[near_number] * count + near_types)]
    ] = True
    frequent = np.argsort(-np.bincount(types, minlength=count), kind="stable")[:MOST_TYPES]
    by_type = {}
    for type in frequent:
        by_type[graph.type_names[type] or "untyped"] = np.isin(
            np.arange(len(pairs)), number[types == type]
        )
    rest = np.isin(np.arange(len(pairs)), number[~np.isin(types, frequent)])
    return {
        "relation asked": by_type | {"all others": rest},
        "neighbours in the relation asked": {"at least one": shared, "none": ~shared},
    }


def types_of(graph: TextGraph, pairs: Array) -> tuple[Array, Array]:
    """Every type in which each pair is linked, in either direction: the pair's number and the type,
    flat.
    """
    assert graph.edge_types is not None
    keys = pair_keys(graph.edges[0], graph.edges[1])
    order = np.argsort(keys, kind="stable")
    wanted = pair_keys(pairs[:, 0], pairs[:, 1])
    first, last = (np.searchsorted(keys, wanted, side, sorter=order) for side in ("left", "right"))
    places = order[ranges(first, last - first)]
    return np.repeat(np.arange(len(pairs)), last - first), graph.edge_types[places].astype(np.int64)
