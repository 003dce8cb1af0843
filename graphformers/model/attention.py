"""Which neighbours a node listened to: the weights of the graph attention, for every layer and
head.

The network itself is run, with its own weights; only its graph attentions are exchanged for ones
that also keep what they weigh.

Shapes as in modeling.py: B = 1 centre, N = 1 + K nodes of its neighbourhood (the centre first), H
heads.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphformers.data.arrays import Array
from graphformers.data.packing import to_device
from graphformers.data.sampling import Neighborhood
from graphformers.data.tokens import tokenize
from graphformers.model.encoding import GraphFormers
from graphformers.model.modeling import GraphAttention
from graphformers.model.passes import CenterBatch, read_centers


@dataclass(frozen=True)
class Attention:
    """How a centre weighed the nodes of its neighbourhood, itself first, wherever the model has a
    graph attention.
    """

    # float32; A graph attentions, in the order in which they happen; each sums to 1 over N
    weights_AHN: Array
    vector_D: Array  # float32: the centre's vector, computed on the way

    def average(self) -> Array:
        """(N,): over all layers and heads."""
        found: Array = self.weights_AHN.mean((0, 1))
        return found


class KeepingAttention(GraphAttention):
    """A graph attention that also keeps the weights of each neighbourhood's first node, its
    centre.
    """

    def __init__(self, original: GraphAttention, kept: list[Tensor]) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(original.__dict__)
        self._compiled_call_impl = None  # of the original, which keeps nothing
        self.kept = kept

    def forward(
        self, states_ND: Tensor, index_BN: Tensor, mask_BHNN: Tensor, is_known: bool = False
    ) -> Tensor:
        self.kept.append(center_weights(self, states_ND, index_BN, mask_BHNN))
        return super().forward(states_ND, index_BN, mask_BHNN, is_known)


def center_weights(
    attention: GraphAttention, states_ND: Tensor, index_BN: Tensor, mask_BHNN: Tensor
) -> Tensor:
    """(B, H, N) float32: what GraphAttention weighs the values of a neighbourhood with for the
    centre's graph token.
    """
    size, heads = states_ND.shape[-1], attention.num_heads
    projected_ND = attention.query_key_value(states_ND).float()
    query_BHd = projected_ND[index_BN[:, 0], :size].unflatten(-1, (heads, -1))
    key_BNHd = projected_ND[index_BN, size : 2 * size].unflatten(-1, (heads, -1))
    scores_BHN = (
        torch.einsum("bhd,bnhd->bhn", query_BHd, key_BNHd) / math.sqrt(size // heads)
        + mask_BHNN[:, :, 0]
    )
    return scores_BHN.softmax(-1)


def attention_of(model: GraphFormers, text: str, neighbors: Sequence[str]) -> Attention:
    """How the model weighs a text and its neighbours' texts, in the order given.

    Of the baselines only GAT has a graph attention, one; of the others, A is 0.
    """
    passes = model.passes()
    count = len(neighbors)
    tokens = tokenize([text, *neighbors], model.tokenizer)
    neighborhood = Neighborhood(np.array([0]), np.array([0, count]), np.arange(1, count + 1))
    known = passes.needed(neighborhood)
    states_NSD = model.read_texts(tokens, known)
    kept: list[Tensor] = []
    with model.reading() as network:
        batch = to_device(passes.pack_centers(tokens, neighborhood, known), model.device)
        states_MSD = states_NSD[batch.needed_M] if isinstance(batch, CenterBatch) else states_NSD
        vector = read_centers(_keeping(network, kept), batch, states_MSD)[0]
    none = np.zeros((0, model.config.num_heads, 1 + count), dtype=np.float32)
    weights = torch.cat(kept).cpu().numpy()[:, :, : 1 + count] if kept else none
    return Attention(weights, vector.cpu().numpy())


def _keeping(network: Any, kept: list[Tensor]) -> Any:
    """The network with its graph attentions exchanged; all else is shared, and the original is left
    as it is.
    """
    other = copy.copy(network)
    other._modules = dict(network._modules)
    if "gnn" in other._modules:
        other._modules["gnn"] = nn.ModuleList(KeepingAttention(gnn, kept) for gnn in network.gnn)
    if other._modules.get("gat") is not None:
        other._modules["gat"] = KeepingAttention(network.gat, kept)
    return other
