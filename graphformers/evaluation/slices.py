"""Slices: sets of questions that are evaluated separately, such as anchors of one degree.

A slice is a name and a mask over the questions. Slices of a group may overlap, because a pair can
have links of several types.

Shapes: Q questions.
"""

import numpy as np

from graphformers.arrays import Array, pair_keys, ranges
from graphformers.evaluation.baselines import adjacency_matrix
from graphformers.evaluation.scores import SparseScores
from graphformers.graph.textgraph import TextGraph
from graphformers.splits.split import LinkQuestions, LinkSplit

# lower bounds of the slices by number of neighbours and by number of common neighbours
DEGREE_BOUNDS = (0, 1, 3, 6, 11, 21)
COMMON_BOUNDS = (0, 1, 2, 6)
# maximum number of link types with a slice of their own; all others share one slice
MAX_TYPE_SLICES = 12

Slices = dict[str, dict[str, Array]]
"""Masks (Q,) bool, by group and name of the slice."""


def slices_of(split: LinkSplit, questions: LinkQuestions) -> Slices:
    """Computes the slices of some questions. Empty slices are left out."""
    anchors = questions.pairs[:, 0].astype(np.int64)
    # links that models may see, before neighbours are sampled
    degrees = split.indptr[anchors + 1] - split.indptr[anchors]
    common = SparseScores(adjacency_matrix(split)).listed(anchors, questions.pairs[:, 1:])[:, 0]
    found: Slices = {
        "neighbours of the anchor": count_slices(degrees, DEGREE_BOUNDS),
        "common neighbours": count_slices(common, COMMON_BOUNDS),
    }
    if split.graph.edge_types is not None and len(split.graph.type_names) > 1:
        found |= type_slices(split, questions.pairs)
    if len(split.held_out_nodes):
        unknown = np.isin(anchors, split.held_out_nodes)
        found["anchor"] = {"unknown in training": unknown, "known in training": ~unknown}
    return {
        group: {name: mask for name, mask in names.items() if mask.any()}
        for group, names in found.items()
    }


def count_slices(counts: Array, bounds: tuple[int, ...]) -> dict[str, Array]:
    """Slices of counts between consecutive bounds, named none, 1–2 or 21 or more."""
    found = {}
    for low, high in zip(bounds, (*bounds[1:], None), strict=True):
        if low == 0:
            name = "none"
        elif high is None:
            name = f"{low} or more"
        else:
            name = str(low) if high == low + 1 else f"{low}–{high - 1}"
        found[name] = (counts >= low) & (counts < (np.inf if high is None else high))
    return found


def type_slices(split: LinkSplit, pairs: Array) -> Slices:
    """Slices by the type of the question's link.

    One group has a slice for each frequent type. The other divides questions by whether the anchor
    has a visible neighbour linked by the same type, by which the paper explains why neighbours help
    less on Wiki.
    """
    graph, anchors = split.graph, pairs[:, 0].astype(np.int64)
    count = len(graph.type_names)
    questions, types = types_of(graph, pairs)
    # the types of the anchors' visible links; an anchor may have many questions
    nodes, node_of_question = np.unique(anchors, return_inverse=True)
    degrees = split.indptr[nodes + 1] - split.indptr[nodes]
    owners = np.repeat(np.arange(len(nodes)), degrees)
    neighbors = split.indices[ranges(split.indptr[nodes], degrees)]
    links, neighbor_types = types_of(graph, np.stack([nodes[owners], neighbors], 1))
    # (node, type) as one number
    question_keys = node_of_question[questions] * count + types
    visible_keys = owners[links] * count + neighbor_types
    shared = np.zeros(len(pairs), dtype=bool)
    shared[questions[np.isin(question_keys, visible_keys)]] = True

    frequent = np.argsort(-np.bincount(types, minlength=count), kind="stable")[:MAX_TYPE_SLICES]
    everything = np.arange(len(pairs))
    by_type = {
        graph.type_names[type] or "untyped": np.isin(everything, questions[types == type])
        for type in frequent
    }
    by_type["all others"] = np.isin(everything, questions[~np.isin(types, frequent)])
    return {
        "relation asked": by_type,
        "neighbours in the relation asked": {"at least one": shared, "none": ~shared},
    }


def types_of(graph: TextGraph, pairs: Array) -> tuple[Array, Array]:
    """The types of all links of some pairs, in either direction.

    Returns:
        Two arrays with an entry for each link: the index of its pair, and its type.
    """
    assert graph.edge_types is not None
    keys = pair_keys(graph.edges[0], graph.edges[1])
    order = np.argsort(keys, kind="stable")
    wanted = pair_keys(pairs[:, 0], pairs[:, 1])
    first = np.searchsorted(keys, wanted, "left", sorter=order)
    last = np.searchsorted(keys, wanted, "right", sorter=order)
    edges = order[ranges(first, last - first)]
    return np.repeat(np.arange(len(pairs)), last - first), graph.edge_types[edges].astype(np.int64)
