"""To and from the graph objects of other libraries, which are imported only when called."""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from graphformers.data.builder import build_graph
from graphformers.data.columns import ColumnNames, as_text, make_column
from graphformers.data.graph import TextGraph
from graphformers.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    import networkx
    import torch_geometric.data


def to_networkx(graph: TextGraph) -> "networkx.MultiDiGraph":
    """The directed, typed edges as a networkx graph: nodes are ids with `text` and the other columns, edges have a `type`."""
    result = _import("networkx", "a networkx graph").MultiDiGraph()
    result.add_nodes_from((row.pop("id"), row) for row in graph.nodes.to_pylist())
    ids = graph.ids.to_pylist()
    names = None if graph.edge_types is None else [graph.type_names[code] for code in graph.edge_types]
    for e, (source, target) in enumerate(graph.edges.T.tolist()):
        result.add_edge(ids[source], ids[target], **({} if names is None else {"type": names[e]}))
    return result


def from_networkx(graph: "networkx.Graph", text: str = "text", type: str = "type") -> TextGraph:
    """A graph from networkx: the node attribute `text` is the text, the edge attribute `type`, where there, the type.

    The other node attributes become columns; one that is called like ours, id or text, gets a _ behind its name.
    """
    if not graph.number_of_nodes():
        raise InputError("the networkx graph has no nodes, expected at least one with a text")
    texts, others = [], []
    for name, attributes in graph.nodes(data=True):
        if not (as_text(attributes.get(text)) or "").strip():
            raise InputError(f"networkx node {name!r}: no attribute {text!r} with a text; pass text=… with the attribute's name")
        texts.append(as_text(attributes[text]))
        others.append({str(key): value for key, value in attributes.items() if key != text})
    names = ColumnNames(key for attributes in others for key in attributes)
    columns = {kept: make_column([attributes.get(key) for attributes in others]) for key, kept in names.items()}
    nodes = pa.table({"id": [str(name) for name in graph.nodes], "text": texts} | columns)
    edges = [(str(u), str(v), data.get(type)) for u, v, data in graph.edges(data=True)]
    types = [as_text(edge[2]) for edge in edges] if any(edge[2] is not None for edge in edges) else None
    return build_graph(nodes, [edge[0] for edge in edges], [edge[1] for edge in edges], types)


def to_pyg(graph: TextGraph) -> "torch_geometric.data.Data":
    """A PyG `Data` with `edge_index` (both directions, no duplicates), `num_nodes`, and lists `id` and `text`."""
    data = _import("torch_geometric.data", "a PyG Data object")
    import torch

    sources = np.repeat(np.arange(graph.num_nodes), graph.degrees())
    edge_index = torch.from_numpy(np.stack([sources, graph.indices.astype(np.int64)]))
    return data.Data(edge_index=edge_index, num_nodes=graph.num_nodes, id=graph.ids.to_pylist(), text=graph.texts.to_pylist())


def from_pyg(data: "torch_geometric.data.Data", text: Sequence[str] | None = None) -> TextGraph:
    """A graph from a PyG `Data` with `edge_index` and one text per node: its own list `text`, or the one given.

    `id` names the nodes and `edge_type` the kinds of edges, where there; other attributes are left out.
    """
    if hasattr(data, "node_types"):
        raise InputError("a HeteroData given, expected a Data; its to_homogeneous() makes one")
    texts = text if text is not None else getattr(data, "text", None)
    if texts is None:
        raise InputError("this PyG Data has no attribute 'text'; pass text=[…] with one string per node")
    if len(texts) != data.num_nodes:
        raise InputError(f"{len(texts)} texts for the {data.num_nodes} nodes of this PyG Data, expected one each")
    given = getattr(data, "id", range(len(texts)))
    ids = [str(name) for name in (given.tolist() if hasattr(given, "tolist") else given)]
    if len(ids) != len(texts):
        raise InputError(f"{len(ids)} ids for the {len(texts)} nodes of this PyG Data, expected one each")
    edges = np.zeros((2, 0), dtype=np.int64) if data.edge_index is None else np.asarray(data.edge_index.cpu())
    wrong = edges[(edges < 0) | (edges >= len(ids))]
    if len(wrong):
        raise InputError(f"an edge of node {wrong[0]} in edge_index, expected 0 to {len(ids) - 1}")
    kinds = getattr(data, "edge_type", None)
    types = None if kinds is None else [str(kind) for kind in kinds.tolist()]
    sources, targets = ([ids[node] for node in row] for row in edges.tolist())
    return build_graph({"id": ids, "text": [as_text(each) for each in texts]}, sources, targets, types)


def _import(module: str, purpose: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(module.split(".")[0], purpose) from error
