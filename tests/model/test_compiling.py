"""torch.compile, as far as it goes without a compiler: what it traces computes the same, and other
sizes are not traced again.
"""

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from graphformers.batching.tokens import tokenize
from graphformers.graph.sampling import Neighborhood
from graphformers.model.fast.compilation import compile_layers
from tests.model.conftest import make_model, make_texts


@pytest.mark.parametrize(
    ("changes", "graphs"),
    [
        # masks; layer 0, a nested layer, one with [CLS] alone of neighbours; the last graph
        # attention, the last layer
        ({}, 6),
        ({"direction": "bidirectional"}, 6),
        ({"pooling": "mean"}, 4),  # all tokens are computed in every layer
        ({"method": "max"}, 2),
        ({"method": "gat"}, 3),
        ({"method": "plm", "pooling": "mean"}, 1),
    ],
)
def test_all_sizes_share_their_graphs(changes: dict[str, str], graphs: int) -> None:
    torch._dynamo.reset()
    model, compiled, counter = make_model(**changes), make_model(**changes), CompileCounter()
    compile_layers(compiled.network, counter)
    tokens, draw, first = tokenize(make_texts(400), model.tokenizer), np.random.default_rng(0), 0
    for centers, near in ((300, 3), (37, 2), (180, 3)):  # fewer neighbours make no narrower batch
        neighborhood = Neighborhood(
            np.arange(centers), np.arange(centers + 1) * near, draw.integers(0, 400, near * centers)
        )
        batch = model.packer(width_multiple=3).pack_neighborhoods(tokens, neighborhood)
        with torch.no_grad():
            expected, found = model.network(batch), compiled.network(batch)
        assert (found - expected).abs().max() < 1e-5
        assert counter.frame_count <= graphs
        first = first or counter.frame_count
        assert counter.frame_count == first


def test_every_width_has_graphs_of_its_own() -> None:
    """Not one for all widths: that is slower, and takes some compilers minutes."""
    torch._dynamo.reset()
    model, counter, counts = make_model(), CompileCounter(), []
    compile_layers(model.network, counter)
    tokens = tokenize(make_texts(60), model.tokenizer)
    for near in (2, 4, 6):
        neighborhood = Neighborhood(np.arange(20), np.arange(21) * near, np.arange(20 * near) % 60)
        with torch.no_grad():
            model.network(model.packer().pack_neighborhoods(tokens, neighborhood))
        counts.append(counter.frame_count)
    assert counts[1] - counts[0] == counts[2] - counts[1] > 0
