"""A graph whose links can be learnt from its texts, and small models to learn them."""

import random
from typing import Any

import pyarrow as pa
import torch

from graphformers.batching.tokens import Tokenizer
from graphformers.graph.interop import build_graph
from graphformers.graph.textgraph import TextGraph
from graphformers.model.config import ModelConfig
from graphformers.model.encoder import GraphFormers
from graphformers.splits.split import LinkSplit, split_links
from tests.batching.test_tokens import make_tokenizer

SMALL = {
    "hidden_size": 16,
    "num_layers": 3,
    "num_heads": 2,
    "intermediate_size": 24,
    "max_positions": 40,
    "max_tokens": 10,
}


def make_topics(num_nodes: int = 160, seed: int = 0) -> TextGraph:
    """Nodes of a topic share a number in their texts and are linked with each other."""
    draw = random.Random(seed)
    words = ["graph", "text", "node", "link", "vector", "model", "layer"]
    topics = [i % 16 for i in range(num_nodes)]
    texts = [
        f"{' '.join(draw.choices(words, k=3))} {topic // 4} {topic % 4} {i}"
        for i, topic in enumerate(topics)
    ]
    ends = [
        (a, b)
        for a in range(num_nodes)
        for b in range(a)
        if topics[a] == topics[b] and draw.random() < 0.6
    ]
    table = pa.table({"id": [f"n{i}" for i in range(num_nodes)], "text": texts})
    return build_graph(table, [(f"n{a}", f"n{b}") for a, b in ends])


def make_split(seed: int = 0) -> LinkSplit:
    return split_links(make_topics(seed=seed), valid=30, test=30, candidates=20)


def make_model(seed: int = 0, **changes: Any) -> GraphFormers:
    """A model as one would start it, but for random text weights; no dropout unless asked for."""
    tokenizer = Tokenizer(make_tokenizer("[MASK]"))
    settings = {
        "vocab_size": tokenizer.vocab_size,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        **SMALL,
        **changes,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GraphFormers(ModelConfig(**settings), tokenizer)
