"""What a language model knows before any training: its own sentence vectors, pooled as its makers pool them."""

import json
from pathlib import Path

import numpy as np
import torch

from graphformers.data.arrays import Array
from graphformers.data.graph import TextGraph
from graphformers.data.packing import PackedBatch, to_device
from graphformers.data.tokens import graph_tokens
from graphformers.model.backbones import find_backbone
from graphformers.model.encoding import GraphFormers
from graphformers.progress import progress

BATCH = 512


def sentence_vectors(
    source: str | Path, graph: TextGraph, nodes: Array, max_tokens: int = 32, device: str | None = None
) -> Array:
    """(len(nodes), D) float32: the texts of some nodes, read by an untrained backbone; to be compared by cosine."""
    model = GraphFormers.from_backbone(source, "plm", device=device, max_tokens=max_tokens)
    pooling, tokens, packer = pooling_of(find_backbone(source)), graph_tokens(graph, model.tokenizer), model.packer()
    order = np.argsort(tokens.lengths(nodes, max_tokens), kind="stable")
    result = np.empty((len(nodes), model.config.hidden_size), dtype=np.float32)
    with progress("Reading texts", len(nodes), "texts") as task, torch.inference_mode():
        for start in range(0, len(nodes), BATCH):
            part = order[start : start + BATCH]
            batch = to_device(packer.pack(tokens, nodes[part]), model.device)
            result[part] = pool(model, batch, pooling).cpu().numpy()
            task.advance(len(part))
    return result


def pooling_of(folder: Path) -> str:
    """How a sentence-transformers folder pools its tokens: mean, max or cls; mean where it does not say."""
    file = folder / "1_Pooling" / "config.json"
    if file.is_file():
        told = json.loads(file.read_text(encoding="utf-8"))
        if told.get("pooling_mode_cls_token"):
            return "cls"
        if told.get("pooling_mode_max_tokens"):
            return "max"
    return "mean"


def pool(model: GraphFormers, batch: PackedBatch, pooling: str) -> torch.Tensor:
    """(num_nodes, D) float32: the tokens of the last layer brought together, text by text."""
    text = model.network.text
    hidden, mask = text.embed(batch), text.mask(batch)
    for layer in text.layers:
        hidden = layer(hidden, mask)
    flat = hidden.flatten(0, 1).float()
    if pooling == "cls":
        return flat[batch.cls_N]
    rows, slots = torch.arange(len(hidden), device=flat.device)[:, None], batch.num_slots
    owner = (rows * (slots + 1) + batch.slots_RW).flatten()  # padding has a slot of its own
    places = batch.places_N + batch.places_N // slots
    target = flat.new_zeros(len(hidden) * (slots + 1), flat.shape[1])
    how = "amax" if pooling == "max" else "mean"
    pooled = target.scatter_reduce(0, owner[:, None].expand_as(flat), flat, how, include_self=False)
    return pooled[places]
