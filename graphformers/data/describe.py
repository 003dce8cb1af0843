"""What a person wants to know of a graph at first sight."""

from typing import Any

import numpy as np
import pyarrow.compute as pc

from graphformers.data.arrays import Array, mix
from graphformers.data.graph import TextGraph

PERCENTILES = (5, 25, 50, 75, 95, 99, 100)
MOST_SHOWN = 5


def describe_graph(graph: TextGraph) -> dict[str, Any]:
    """Counts, percentiles of degree and text length, what the import left out, and five sample
    nodes with neighbours.
    """
    degrees = graph.degrees()
    words = np.asarray(pc.count_substring_regex(graph.texts, r"\S+"))
    types = (
        None
        if graph.edge_types is None
        else np.bincount(graph.edge_types, minlength=len(graph.type_names))
    )
    return {
        "nodes": graph.num_nodes,
        "pairs": graph.num_pairs,
        "edges": graph.edges.shape[1],
        "isolated": int((degrees == 0).sum()),
        "mean_degree": round(float(degrees.mean()), 2),
        "degree_percentiles": _percentiles(degrees),
        "words_percentiles": _percentiles(words),
        "columns": {name: str(graph.nodes.schema.field(name).type) for name in graph.column_names},
        "edge_types": {}
        if types is None
        else dict(zip(graph.type_names, types.tolist(), strict=True)),
        "edge_times": _span(graph.edge_times),
        "self_loops": graph.summary.get("self_loops", 0),
        "left_aside": graph.summary.get("left_aside", {}),
        "edge_columns_not_kept": graph.summary.get("edge_columns_not_kept", []),
        "skipped": graph.summary.get("skipped", {}),
        "skipped_examples": graph.summary.get("skipped_examples", []),
        "samples": [_sample(graph, int(node)) for node in _sample_nodes(graph)],
    }


def _span(times: Array | None) -> list[float]:
    """The earliest and the latest of the times that are known."""
    known = np.zeros(0) if times is None else times[~np.isnan(times)]
    return [float(known.min()), float(known.max())] if len(known) else []


def _percentiles(values: Array) -> dict[str, int]:
    found = np.percentile(values, PERCENTILES, method="lower")
    return {str(percent): int(value) for percent, value in zip(PERCENTILES, found, strict=True)}


def _sample_nodes(graph: TextGraph) -> Array:
    """Five nodes with neighbours where there are any, always the same ones."""
    linked = np.flatnonzero(graph.degrees() > 0)
    nodes = linked if len(linked) else np.arange(graph.num_nodes)
    hashes = mix(0, graph.id_hashes[nodes])
    return nodes[np.argpartition(hashes, min(MOST_SHOWN, len(nodes)) - 1)[:MOST_SHOWN]]


def _sample(graph: TextGraph, node: int) -> dict[str, Any]:
    neighbors = graph.neighbors_of(node)
    shown = neighbors[:MOST_SHOWN]
    return {
        "id": graph.ids[node].as_py(),
        "text": graph.texts[node].as_py(),
        "degree": len(neighbors),
        "neighbors": [
            {"id": id, "text": text}
            for id, text in zip(graph.ids_of(shown), graph.texts_of(shown), strict=True)
        ],
    }
