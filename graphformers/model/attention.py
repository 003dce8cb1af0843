"""Attention weights of a centre over its neighbours, for every layer and head.

Shapes: as in network.py; A graph attentions of a network, in the order in which they are computed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from graphformers.arrays import Array
from graphformers.batching.packing import NeighborIndex, to_device
from graphformers.batching.tokens import tokenize
from graphformers.graph.sampling import Neighborhood
from graphformers.model import fast
from graphformers.model.encoder import GraphFormers
from graphformers.model.network import GraphAttention
from graphformers.model.registry import Network


@dataclass(frozen=True)
class AttentionWeights:
    """Attention weights of a centre over the nodes of its group, the centre itself first.

    Attributes:
        weights_AHG: Float32; each sums to 1 over G.
        vector_D: Float32: the centre's vector, computed in the same forward pass.
    """

    weights_AHG: Array
    vector_D: Array

    def average(self) -> Array:
        """(G,): the mean over all layers and heads."""
        mean_G: Array = self.weights_AHG.mean((0, 1))
        return mean_G


def attention_weights(model: GraphFormers, text: str, neighbors: Sequence[str]) -> AttentionWeights:
    """The attention weights of a text over its neighbours' texts.

    Args:
        model: Any model. GAT is the only baseline with a graph attention, A = 1; others have A = 0.
        text: The centre's text.
        neighbors: The neighbours' texts, in the order of G.

    Returns:
        The weights, and the vector that `model.encode(text, neighbors)` returns.

    Examples:
        >>> attention_weights(model, "graph attention", ["attention", "graphs"]).average()
    """
    count = len(neighbors)
    tokens = tokenize([text, *neighbors], model.tokenizer)
    group = Neighborhood(np.array([0]), np.array([0, count]), np.arange(1, count + 1))
    with model.inference() as network:
        batch = to_device(model.packer().pack_neighborhoods(tokens, group), model.device)
        network = fast.plain(network)
        with recorded_weights(network) as recorded:
            vector_1D = network(batch)
    weights_AHG = np.zeros((0, model.config.num_heads, 1 + count), dtype=np.float32)
    if recorded:
        weights_AHG = torch.cat(recorded).float().cpu().numpy()[:, :, : 1 + count]
    return AttentionWeights(weights_AHG, vector_1D[0].cpu().numpy())


@contextmanager
def recorded_weights(network: Network) -> Iterator[list[Tensor]]:
    """Yields a list to which every call of a graph attention adds its weights (B, H, G)."""
    recorded: list[Tensor] = []

    def record(
        gnn: nn.Module, arguments: tuple[Tensor, Tensor, NeighborIndex], output: object
    ) -> None:
        assert isinstance(gnn, GraphAttention)
        center_BD, neighbor_MD, index = arguments
        states_ND = torch.cat([center_BD, neighbor_MD.to(center_BD.dtype)])
        # Methods of the base class, so that a mutual attention also returns the centre's weights.
        query_BD, key_BGD, _ = GraphAttention.project(gnn, states_ND, index.groups())
        weights_BGH = gnn.weights(query_BD, key_BGD, GraphAttention.mask(gnn, index))
        recorded.append(weights_BGH.transpose(1, 2))

    hooks = [
        module.register_forward_hook(record)
        for module in network.modules()
        if isinstance(module, GraphAttention)
    ]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()
