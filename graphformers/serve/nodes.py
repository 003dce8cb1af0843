"""What the endpoints tell of one node: its record, its neighbourhood, its attention weights."""

import numpy as np

from graphformers.model.attention import attention_weights
from graphformers.model.encoder import GraphFormers
from graphformers.serve.engine import View, neighbors_of


def describe(view: View, id: str, limit: int, start: int) -> dict[str, object]:
    """Text, columns and neighbours of a node."""
    node, graph = view.node(id), view.store.graph
    (text,) = graph.texts_of(np.array([node]))
    (columns,) = graph.values_of(np.array([node]), graph.names_of(node))
    return {"id": id, "text": text, "columns": columns} | neighbors_of(
        view, node, limit, start=start
    )


def ego(view: View, id: str, limit: int) -> dict[str, object]:
    """A node (the first), some of its neighbours, and the links among them all.

    Neighbours that the model reads with the node come first.
    """
    graph, settings = view.store.graph, view.store.settings
    node = view.node(id)
    row = graph.neighbors_of(node)
    drawn = graph.sample(np.array([node]), settings["num_neighbors"], settings["seed"]).of(0)
    others = row[~np.isin(row, drawn)]
    some = np.concatenate([[node], drawn, others]).astype(np.int64)[: 1 + limit]
    places = {int(other): place for place, other in enumerate(some)}
    links = [
        [place, places[other]]
        for one, place in places.items()
        for other in np.intersect1d(graph.neighbors_of(one), some).tolist()
        if place < places[other]
    ]
    told = zip(some.tolist(), graph.ids_of(some), graph.texts_of(some), strict=True)
    nodes = [
        {"id": other, "text": text, "num_neighbors": len(graph.neighbors_of(number))}
        for number, other, text in told
    ]
    return {"nodes": nodes, "links": links, "num_read": len(drawn), "num_neighbors": len(row)}


def attention(view: View, model: GraphFormers, id: str) -> dict[str, object]:
    """Attention weights of a node over itself (the first) and the neighbours that the model reads,
    for every graph attention and head.
    """
    graph, settings = view.store.graph, view.store.settings
    node = view.node(id)
    drawn = graph.sample(np.array([node]), settings["num_neighbors"], settings["seed"]).of(0)
    everyone = np.concatenate([[node], drawn]).astype(np.int64)
    ids, texts = graph.ids_of(everyone), graph.texts_of(everyone)
    found = attention_weights(model, texts[0], texts[1:])
    has_weights = len(found.weights_AHG) > 0
    return {
        "nodes": [{"id": other, "text": text} for other, text in zip(ids, texts, strict=True)],
        "average": found.average().tolist() if has_weights else [],
        "weights": found.weights_AHG.tolist(),
        "method": model.config.method,
    }
