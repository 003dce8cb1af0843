"""Graphs from tables in memory, and conversion to and from networkx and PyTorch Geometric.

The libraries are imported only when they are needed.
"""

import importlib
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from graphformers.errors import InputError, MissingExtraError
from graphformers.graph.batches import MemoryTable, Table
from graphformers.graph.builder import NODE, GraphBuilder, text_array
from graphformers.graph.columns import ColumnNames, as_text, make_column, table_in_memory
from graphformers.graph.importers.tables import edge_batches, read_nodes
from graphformers.graph.problems import Problems, advise_skipping
from graphformers.graph.protocol import Graph
from graphformers.graph.settings import ImportSettings
from graphformers.graph.textgraph import TextGraph, loaded_graph
from graphformers.graph.times import TimeColumn, are_times

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


# an example for messages
EDGE = "{'source': 'p1', 'target': 'p2'}"


def build_graph(
    nodes: Any,
    edges: Any = None,
    *,
    columns: Mapping[str, str] | None = None,
    keep: Sequence[str] | None = None,
    list_separator: str = ";",
    skip_bad: bool = False,
    keep_empty: bool = False,
) -> TextGraph:
    """Makes a graph from tables in memory.

    A table is an Arrow table, a DataFrame of pandas or polars, a list of dicts, or a dict of lists.
    The columns of ids, texts, sources, targets and types are recognised by their names, as in
    files. Other columns of nodes are kept.

    Args:
        nodes: The table of nodes.
        edges: The table of edges, or pairs (source, target) or triples (source, target, type) of
            ids.
        columns: The column of each role whose name does not say so: id, text (several:
            "title,abstract"), links (ids that a node lists), src, dst, type, time. Times of
            edges are kept only if their column is named here; they are numbers or dates.
        keep: The node columns to keep besides id and text; by default all others.
        list_separator: Separates the ids in a column of links that holds texts.
        skip_bad: Leave out and count bad rows instead of stopping at the first.
        keep_empty: Keep nodes without a text, as empty texts, instead of treating them as bad rows.

    Returns:
        The graph.

    Raises:
        InputError: A column is missing, or a row is bad.
        GraphFormersError: There is no such role.

    Examples:
        >>> papers = [{"id": "p1", "title": "graphs"}, {"id": "p2", "title": "texts", "year": 1999}]
        >>> build_graph(papers, [("p1", "p2")])
        TextGraph(2 nodes, 1 linked pair)
        >>> cites = {"from": ["p1"], "to": ["p2"], "year": [1999]}
        >>> build_graph(papers, cites, columns={"time": "year"}).edge_times.tolist()
        [1999.0]
    """
    given = {"keep": keep, "list_separator": list_separator, "skip_bad": skip_bad}
    settings = ImportSettings.from_keywords(
        "build_graph", given | {"columns": columns or {}, "keep_empty": keep_empty}
    )
    for role, name in settings.columns.items():
        if role in ("user", "item"):
            raise InputError(
                f"columns={{{role!r}: {name!r}}} given, expected the roles id, text, links, "
                f"src, dst, type and time"
            )
        if role not in ("id", "text", "links") and edges is None:
            raise InputError(f"columns={{{role!r}: {name!r}}} given, but there are no edges")
    for given in (nodes, edges):
        if isinstance(given, str | Path):
            raise InputError(f"{str(given)!r} given, expected a table; read_graph reads files")
        if hasattr(given, "number_of_nodes") and not hasattr(given, "columns"):
            kind = type(given).__name__
            raise InputError(f"a {kind} given, expected a table; from_networkx takes such graphs")
    builder = GraphBuilder(Problems(strict=not skip_bad), keep_empty=keep_empty)
    with advise_skipping(), builder:
        # An empty list is a table without columns.
        table = table_in_memory(nodes, "nodes", NODE)
        tables: list[Table] = [MemoryTable(Path("nodes"), table)] if table.column_names else []
        read_nodes(tables, ColumnNames(), builder, settings, is_last=True)
        table = _edge_table(() if edges is None else edges)
        if table.column_names:
            times = TimeColumn() if "time" in settings.columns else None
            links = MemoryTable(Path("edges"), table)
            for batch in edge_batches(links, builder.problems, settings, times):
                builder.add_edges(batch)
        graph = builder.build()
    builder.problems.warn()
    read_as = settings.remembered()
    return replace(graph, summary=graph.summary | {"read_as": read_as}) if read_as else graph


def _edge_table(edges: Any) -> pa.Table:
    """Edges as a table with named columns."""
    if hasattr(edges, "__arrow_c_stream__") or isinstance(edges, Mapping):
        return table_in_memory(edges, "edges", EDGE)
    # Arrays of numpy and torch have `tolist`.
    found = edges.tolist() if hasattr(edges, "tolist") else edges
    if not isinstance(found, Iterable):
        raise InputError(f"edges={edges!r} given, expected a table, or pairs (source, target)")
    rows = list(found)
    if any(isinstance(row, Mapping) for row in rows):
        return table_in_memory(rows, "edges", EDGE)
    for row in rows:
        if not isinstance(row, list | tuple) or len(row) not in (2, 3):
            raise InputError(
                f"the edge {row!r} given, expected (source, target), (source, target, type), or a "
                f"dict such as {EDGE}"
            )
    columns = {"source": [row[0] for row in rows], "target": [row[1] for row in rows]}
    if any(len(row) == 3 for row in rows):
        columns["type"] = [row[2] if len(row) == 3 else None for row in rows]
    return pa.table({name: text_array(values) for name, values in columns.items()})


def to_networkx(graph: Graph | str | Path) -> "networkx.MultiDiGraph":
    """Converts a graph to networkx, with its directed edges.

    Args:
        graph: A graph or its folder.

    Returns:
        A graph whose nodes are ids with `text` and the other columns. Edges have `type` and `time`
        where they are known.

    Raises:
        MissingExtraError: networkx is not installed.

    Examples:
        >>> papers = to_networkx("papers.graph")
        >>> papers.nodes["p7"].get("text")
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


def from_networkx(
    graph: "networkx.Graph",
    text: str | Sequence[str] | Mapping[Any, str] = "text",
    type: str = "type",
    *,
    keep_empty: bool = False,
) -> TextGraph:
    """Makes a graph from one of networkx.

    Node attributes other than the text become columns; one named `id` or `text` gets an underscore
    appended. Edge attributes other than the type and `time`, which must be a number or a date, are
    left out and listed in the graph's summary.

    Args:
        graph: The graph; its nodes become ids.
        text: The node attribute that holds the text; or the texts: a list, or a dict by node.
        type: The edge attribute that holds the type of an edge, if there is one.
        keep_empty: Keep nodes without a text, such as those that only edges name, as empty texts,
            instead of raising an error.

    Returns:
        The graph.

    Raises:
        InputError: There are no nodes, a node has no text, or two nodes have the same id.

    Examples:
        >>> import networkx
        >>> papers = networkx.DiGraph()
        >>> papers.add_node("p1", title="a study of graphs")
        >>> papers.add_node("p2", title="a study of texts", year=1999)
        >>> papers.add_edge("p1", "p2", type="cites")
        >>> from_networkx(papers, text="title")
        TextGraph(2 nodes, 1 linked pair)
        >>> papers.add_edge("p1", "p3")
        >>> from_networkx(papers, text="title", keep_empty=True)
        TextGraph(3 nodes, 2 linked pairs)
    """
    if not hasattr(graph, "number_of_nodes"):
        raise InputError(f"{graph!r} given, expected a graph of networkx")
    if not graph.number_of_nodes():
        raise InputError("the networkx graph has no nodes, expected at least one with a text")
    nodes: dict[str, object] = {}
    for node in graph.nodes:
        other = nodes.setdefault(str(node), node)
        if other is not node:
            raise InputError(
                f"the networkx nodes {other!r} and {node!r} have the same id as text; "
                f"networkx.relabel_nodes gives them different ones"
            )
    attributes = [dict(found) for _, found in graph.nodes(data=True)]
    if isinstance(text, str):
        texts = [found.pop(text, None) for found in attributes]
        for name, value in zip(graph.nodes, texts, strict=True):
            is_nested = isinstance(value, list | tuple | dict)
            if is_nested or not (keep_empty or (as_text(value) or "").strip()):
                has = ", ".join(map(repr, graph.nodes[name])) or "none"
                found = f", but {value!r}" if text in graph.nodes[name] else ""
                advice = "" if is_nested else "; keep_empty=True keeps nodes without a text"
                raise InputError(
                    f"the networkx node {name!r} has no attribute {text!r} with a text{found}; its "
                    f"attributes: {has}; pass text=… with the name of an attribute, or with texts"
                    f"{advice}"
                )
    elif isinstance(text, Mapping):
        missing = [name for name in graph.nodes if name not in text]
        if missing and not keep_empty:
            raise InputError(
                f"text={{…}} given without a text for the node {missing[0]!r}; keep_empty=True "
                f"keeps nodes without a text"
            )
        texts = [text.get(name) for name in graph.nodes]
    else:
        texts = _one_each(text, graph.number_of_nodes(), "this networkx graph")
    others = [{str(key): value for key, value in found.items()} for found in attributes]
    columns = {
        name: [found.get(name) for found in others]
        for name in dict.fromkeys(key for found in others for key in found)
    }
    edges = list(graph.edges(data=True))
    links: dict[str, list[object]] = {
        "source": [str(source) for source, *_ in edges],
        "target": [str(target) for _, target, _ in edges],
    }
    if any(data.get(type) is not None for *_, data in edges):
        links["type"] = [as_text(data.get(type)) for *_, data in edges]
    times = [data.get("time") for *_, data in edges]
    has_times = any(time is not None for time in times) and are_times(times)
    if has_times:
        links["time"] = times
    made = _from_lists(list(nodes), texts, columns, links, keep_empty)
    read = {type, "time"} if has_times else {type}
    return _with_unread(made, {key for *_, data in edges for key in data} - read)


def to_pyg(graph: Graph | str | Path, *, directed: bool = False) -> "torch_geometric.data.Data":
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

    Examples:
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


def from_pyg(
    data: "torch_geometric.data.Data",
    text: str | Sequence[str] = "text",
    *,
    keep_empty: bool = False,
) -> TextGraph:
    """Makes a graph from a `Data` object of PyTorch Geometric.

    `id` names the nodes, `edge_type` the types of edges (by `type_names`, if there is that list)
    and `edge_time` their times. Attributes with one value for each node become columns; others,
    such as a matrix of features, are left out.

    Args:
        data: The object, with `edge_index`.
        text: The attribute that holds the texts, or a text for each node.
        keep_empty: Keep nodes with an empty text instead of raising an error.

    Returns:
        The graph.

    Raises:
        InputError: Texts are missing, or an edge or an id does not fit the number of nodes.

    Examples:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
        >>> from_pyg(data, text=["a study of graphs", "a study of texts"])
        TextGraph(2 nodes, 1 linked pair)
    """
    if hasattr(data, "node_types"):
        raise InputError("a HeteroData given, expected a Data; its to_homogeneous() makes one")
    texts = getattr(data, text, None) if isinstance(text, str) else text
    if texts is None:
        raise InputError(
            f"this PyG Data has no attribute {text!r}; pass text=… with the name of the attribute, "
            f"or with a list of texts"
        )
    texts = _one_each(texts, data.num_nodes, "this PyG Data")
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
    links: dict[str, list[object]] = {
        name: [ids[node] for node in row]
        for name, row in zip(("source", "target"), edges.tolist(), strict=True)
    }
    kinds, names = getattr(data, "edge_type", None), getattr(data, "type_names", None)
    if kinds is not None:
        links["type"] = [str(kind if names is None else names[kind]) for kind in kinds.tolist()]
    times = getattr(data, "edge_time", None)
    if times is not None:
        links["time"] = times.tolist()
    made = _from_lists(ids, texts, _node_columns(data, text), links, keep_empty)
    unread = ("edge_attr", "edge_weight")
    return _with_unread(made, {name for name in unread if getattr(data, name, None) is not None})


def _one_each(texts: Sequence[object], count: int, what: str) -> list[object]:
    """The texts that were given for the nodes of a graph."""
    if not isinstance(texts, Iterable) or not hasattr(texts, "__len__"):
        raise InputError(
            f"text={texts!r} given, expected the name of an attribute, or a list of texts"
        )
    if len(texts) != count:
        raise InputError(
            f"text={type(texts).__name__} of {len(texts)} texts for the {count} nodes of {what}, "
            f"expected one each"
        )
    return list(texts)


def _from_lists(
    ids: list[str],
    texts: list[object],
    columns: Mapping[str, Sequence[object]],
    links: Mapping[str, Sequence[object]],
    keep_empty: bool,
) -> TextGraph:
    """Makes a graph of lists, whose columns have the names that users gave them."""
    names = ColumnNames(columns)
    words = [as_text(text) for text in texts]
    # The advice of `build_graph` on such rows names options that callers do not have.
    empty = [id for id, text in zip(ids, words, strict=True) if not (text or "").strip()]
    if empty and not keep_empty:
        raise InputError(
            f"the text of node {empty[0]!r} is empty, expected some words; keep_empty=True keeps "
            f"nodes without a text"
        )
    nodes = pa.table(
        {"id": ids, "text": pa.array(words, pa.large_string())}
        | {names[name]: make_column(values) for name, values in columns.items()}
    )
    roles = {role: role for role in ("text", "time") if role == "text" or role in links}
    return build_graph(nodes, links, columns=roles, keep_empty=keep_empty)


def _with_unread(graph: TextGraph, names: Set[str]) -> TextGraph:
    """The graph with attributes of edges that were not kept listed in its summary."""
    unread = {"edge_columns_not_kept": sorted(map(str, names))}
    return replace(graph, summary=graph.summary | unread)


def _node_columns(
    data: "torch_geometric.data.Data", text: str | Sequence[str]
) -> dict[str, Sequence[object]]:
    """The attributes of a PyG `Data` with one value for each node: lists and 1-D tensors."""
    taken = (*PYG_NAMES, "id", text if isinstance(text, str) else "text")
    found = {}
    for name, value in data.to_dict().items():
        is_flat = isinstance(value, list) or getattr(value, "ndim", 0) == 1
        if name not in taken and is_flat and len(value) == data.num_nodes:
            found[name] = value.tolist() if hasattr(value, "tolist") else value
    return found


def _import(module: str, purpose: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(module.split(".")[0], purpose) from error
