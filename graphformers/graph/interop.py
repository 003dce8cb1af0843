"""Conversion to and from graphs of networkx and PyTorch Geometric, imported only when called."""

import importlib
import math
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from graphformers.errors import InputError, MissingExtraError
from graphformers.graph.builder import build_graph
from graphformers.graph.columns import ColumnNames, as_text, make_column
from graphformers.graph.textgraph import TextGraph, loaded_graph
from graphformers.graph.times import are_times

if TYPE_CHECKING:
    import networkx
    import torch
    import torch_geometric.data

# attributes of a PyG `Data` that are not node columns
PYG_NAMES = (
    "edge_index",
    "edge_attr",
    "edge_weight",
    "edge_type",
    "edge_time",
    "type_names",
    "num_nodes",
)


def to_networkx(graph: TextGraph | str | Path) -> "networkx.MultiDiGraph":
    """Converts a graph to networkx, with its directed edges.

    Args:
        graph: A graph or its folder.

    Returns:
        A graph whose nodes are ids with `text` and the other columns. Edges have `type` and `time`
        where they are known.

    Raises:
        MissingExtraError: networkx is not installed.

    Example:
        >>> to_networkx("papers.graph").nodes["p7"]["text"]
        'graph node text 7'
    """
    graph = loaded_graph(graph)
    result = _import("networkx", "a networkx graph").MultiDiGraph()
    result.add_nodes_from((row.pop("id"), row) for row in graph.table.to_pylist())
    ids = graph.ids.to_pylist()
    for e, (source, target) in enumerate(graph.edges.T.tolist()):
        known: dict[str, object] = {}
        if graph.edge_types is not None:
            known["type"] = graph.type_names[graph.edge_types[e]]
        if graph.edge_times is not None and not math.isnan(graph.edge_times[e]):
            known["time"] = float(graph.edge_times[e])
        result.add_edge(ids[source], ids[target], **known)
    return result


def from_networkx(graph: "networkx.Graph", text: str = "text", type: str = "type") -> TextGraph:
    """Makes a graph from one of networkx.

    Node attributes other than the text become columns; one named `id` or `text` gets an underscore
    appended. Edge attributes other than the type and `time`, which must be a number or a date, are
    left out and listed in the graph's summary.

    Args:
        graph: The graph; its nodes become ids.
        text: The node attribute that holds the text.
        type: The edge attribute that holds the type of an edge, if there is one.

    Returns:
        The graph.

    Raises:
        InputError: There are no nodes, or a node has no text.

    Example:
        >>> import networkx
        >>> papers = networkx.DiGraph()
        >>> papers.add_node("p1", text="a study of graphs")
        >>> papers.add_node("p2", text="a study of texts", year=1999)
        >>> papers.add_edge("p1", "p2", type="cites")
        >>> from_networkx(papers)
        TextGraph(2 nodes, 1 linked pairs)
    """
    if not graph.number_of_nodes():
        raise InputError("the networkx graph has no nodes, expected at least one with a text")
    texts, others = [], []
    for name, attributes in graph.nodes(data=True):
        if not (as_text(attributes.get(text)) or "").strip():
            raise InputError(
                f"networkx node {name!r}: no attribute {text!r} with a text; pass text=… with the "
                f"attribute's name"
            )
        texts.append(as_text(attributes[text]))
        others.append({str(key): value for key, value in attributes.items() if key != text})
    names = ColumnNames(key for attributes in others for key in attributes)
    columns = {
        kept: make_column([attributes.get(key) for attributes in others])
        for key, kept in names.items()
    }
    nodes = pa.table({"id": [str(name) for name in graph.nodes], "text": texts} | columns)
    edges = list(graph.edges(data=True))
    types = [as_text(data.get(type)) for *_, data in edges]
    times = [data.get("time") for *_, data in edges]
    has_types = any(data.get(type) is not None for *_, data in edges)
    has_times = any(time is not None for time in times) and are_times(times)
    made = build_graph(
        nodes,
        [str(source) for source, *_ in edges],
        [str(target) for _, target, _ in edges],
        types if has_types else None,
        times if has_times else None,
    )
    read = {type, "time"} if has_times else {type}
    return _with_unread(made, {key for *_, data in edges for key in data} - read)


def to_pyg(graph: TextGraph | str | Path, *, directed: bool = False) -> "torch_geometric.data.Data":
    """Converts a graph to a `Data` object of PyTorch Geometric.

    Args:
        graph: A graph or its folder.
        directed: Whether `edge_index` holds the directed edges as they were read, with their types
            (`edge_type`, numbers into the list `type_names`) and times (`edge_time`); by default it
            holds both directions of every linked pair once, which models use.

    Returns:
        A `Data` with `edge_index`, `num_nodes`, the lists `id` and `text`, and the other columns;
        columns of numbers are tensors.

    Raises:
        MissingExtraError: PyTorch Geometric is not installed.

    Example:
        >>> to_pyg("papers.graph").num_nodes
        80
    """
    data = _import("torch_geometric.data", "a PyG Data object")
    import torch

    graph = loaded_graph(graph)
    sources = np.repeat(np.arange(graph.num_nodes), graph.degrees())
    edges = graph.edges if directed else np.stack([sources, graph.indices])
    found: dict[str, object] = {"id": graph.ids.to_pylist(), "text": graph.texts.to_pylist()}
    for name, kept in ColumnNames(graph.column_names, PYG_NAMES).items():
        found[kept] = _as_tensor(graph.column(name))
    if directed and graph.edge_types is not None:
        found["edge_type"] = torch.from_numpy(graph.edge_types.astype(np.int64))
        found["type_names"] = list(graph.type_names)
    if directed and graph.edge_times is not None:
        found["edge_time"] = torch.from_numpy(np.array(graph.edge_times))
    edge_index = torch.from_numpy(edges.astype(np.int64))
    return data.Data(edge_index=edge_index, num_nodes=graph.num_nodes, **found)


def _as_tensor(column: pa.Array) -> "torch.Tensor | list[object]":
    """A tensor for numbers and booleans without missing values, otherwise a list."""
    import torch

    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not is_number or column.null_count:
        return list(column.to_pylist())
    values: torch.Tensor = torch.tensor(column.to_numpy(zero_copy_only=False))
    return values


def from_pyg(data: "torch_geometric.data.Data", text: Sequence[str] | None = None) -> TextGraph:
    """Makes a graph from a `Data` object of PyTorch Geometric.

    `id` names the nodes, `edge_type` the types of edges (by `type_names`, if there is that list)
    and `edge_time` their times. Attributes with one value for each node become columns; others,
    such as a matrix of features, are left out.

    Args:
        data: The object, with `edge_index`.
        text: A text for each node; by default the attribute `text`.

    Returns:
        The graph.

    Raises:
        InputError: Texts are missing, or an edge or an id does not fit the number of nodes.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
        >>> from_pyg(data, text=["a study of graphs", "a study of texts"])
        TextGraph(2 nodes, 1 linked pairs)
    """
    if hasattr(data, "node_types"):
        raise InputError("a HeteroData given, expected a Data; its to_homogeneous() makes one")
    texts = text if text is not None else getattr(data, "text", None)
    if texts is None:
        raise InputError(
            "this PyG Data has no attribute 'text'; pass text=[…] with one string per node"
        )
    if len(texts) != data.num_nodes:
        raise InputError(
            f"{len(texts)} texts for the {data.num_nodes} nodes of this PyG Data, expected one each"
        )
    given = getattr(data, "id", range(len(texts)))
    ids = [str(name) for name in (given.tolist() if hasattr(given, "tolist") else given)]
    if len(ids) != len(texts):
        raise InputError(
            f"{len(ids)} ids for the {len(texts)} nodes of this PyG Data, expected one each"
        )
    edges = np.zeros((2, 0), dtype=np.int64)
    if data.edge_index is not None:
        edges = np.asarray(data.edge_index.cpu())
    wrong = edges[(edges < 0) | (edges >= len(ids))]
    if len(wrong):
        raise InputError(f"an edge of node {wrong[0]} in edge_index, expected 0 to {len(ids) - 1}")
    kinds = getattr(data, "edge_type", None)
    names = getattr(data, "type_names", None)
    types = None
    if kinds is not None:
        types = [str(kind if names is None else names[kind]) for kind in kinds.tolist()]
    sources, targets = ([ids[node] for node in row] for row in edges.tolist())
    nodes = pa.table({"id": ids, "text": [as_text(each) for each in texts], **_node_columns(data)})
    times = getattr(data, "edge_time", None)
    made = build_graph(nodes, sources, targets, types, None if times is None else times.tolist())
    unread = ("edge_attr", "edge_weight")
    return _with_unread(made, {name for name in unread if getattr(data, name, None) is not None})


def _with_unread(graph: TextGraph, names: Set[str]) -> TextGraph:
    """The graph with attributes of edges that were not kept listed in its summary."""
    unread = {"edge_columns_not_kept": sorted(map(str, names))}
    return replace(graph, summary=graph.summary | unread)


def _node_columns(data: "torch_geometric.data.Data") -> dict[str, pa.Array]:
    """The attributes of a PyG `Data` with one value for each node: lists and 1-D tensors."""
    found = {}
    for name, value in data.to_dict().items():
        is_flat = isinstance(value, list) or getattr(value, "ndim", 0) == 1
        if name not in (*PYG_NAMES, "id", "text") and is_flat and len(value) == data.num_nodes:
            found[name] = make_column(value.tolist() if hasattr(value, "tolist") else value)
    return {kept: found[name] for name, kept in ColumnNames(found).items()}


def _import(module: str, purpose: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(module.split(".")[0], purpose) from error
