"""Small graphs that tests make themselves."""

import os

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # several test processes with several threads each wait for each other most of the time

import random
import string

import hypothesis
import pyarrow as pa
import pytest

from graphformers.graph.interop import build_graph
from graphformers.graph.textgraph import TextGraph

hypothesis.settings.register_profile("any pace", deadline=None)  # a busy machine is no error
hypothesis.settings.load_profile("any pace")


def make_graph(num_nodes: int = 200, num_edges: int = 800, seed: int = 0) -> TextGraph:
    """A random graph with some self-loops, duplicates and both directions, a year and a type."""
    draw = random.Random(seed)
    ids = [f"{draw.choice(string.ascii_lowercase)}{i}" for i in range(num_nodes)]
    texts = [
        " ".join(
            draw.choices(
                ["graph", "text", "node", "link", "vector", "model", "layer"], k=draw.randint(1, 9)
            )
        )
        for _ in ids
    ]
    # every tenth may share its text with others
    texts = [f"{text} {i}" if i % 10 else text for i, text in enumerate(texts)]
    ends = [(draw.choice(ids), draw.choice(ids)) for _ in range(num_edges)]
    years = [1990 + draw.randint(0, 9) for _ in ids]
    types = [draw.choice(["cites", "extends"]) for _ in ends]
    return build_graph(
        pa.table({"id": ids, "text": texts, "year": years}),
        {"source": [a for a, _ in ends], "target": [b for _, b in ends], "type": types},
    )


@pytest.fixture(scope="session")
def graph() -> TextGraph:
    return make_graph()
