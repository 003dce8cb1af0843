"""The paper's cascaded baselines (section 4.2): texts are encoded independently, then aggregated.

PLM is the centre's text vector. PLM+GAT is the attention-weighted sum of the text vectors of the
centre and its neighbours. PLM+Max, PLM+Mean and PLM+Att pool the neighbours, concatenate the
result with the centre's vector and transform both linearly. The pooled vector of a centre without
neighbours is zero.

Initial weights: GAT starts as the plain average of the neighbourhood, the others as the average of
the centre and the pooled neighbours.

Shapes: N nodes of a batch, B centres, K neighbours of a centre at most, M neighbours in all,
D hidden size.
"""

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from graphformers.batching.packing import (
    NeighborIndex,
    NetworkInputs,
    PackedBatch,
    PackedNeighborhoods,
)
from graphformers.model.config import ModelConfig
from graphformers.model.layers import TextEncoder
from graphformers.model.network import GraphAttention
from graphformers.model.registry import Network, TextNetwork, register_method


@register_method("plm")
class PlmNetwork(TextNetwork):
    """PLM: the language model without neighbours."""

    title = "PLM"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.text = TextEncoder(config)

    @classmethod
    def is_plain_without_neighbors(cls, config: ModelConfig) -> bool:
        return True

    def vectors(self, texts: PackedBatch) -> Tensor:
        return self.text.encode(texts).float()


class CascadedNetwork(Network):
    """A text encoder and one aggregation of text vectors; subclasses define `aggregate`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.text = TextEncoder(config)

    @classmethod
    def inputs(cls, config: ModelConfig) -> NetworkInputs:
        return NetworkInputs(num_states=1, centers_from_states=True)

    @abstractmethod
    def aggregate(self, center_BD: Tensor, neighbor_MD: Tensor, index: NeighborIndex) -> Tensor:
        """(B, D): vectors from the text vectors of centres and neighbours."""

    def neighbor_states(self, texts: PackedBatch) -> list[Tensor]:
        """The text vectors (N, D), as a list of one."""
        return [self.text.encode(texts)]

    def vectors_from_states(
        self, center_BD: Tensor, states: list[Tensor], index: NeighborIndex
    ) -> Tensor:
        return self.aggregate(center_BD, states[0], index).float()

    def center_vectors(
        self, centers: PackedBatch, states: list[Tensor], index: NeighborIndex
    ) -> Tensor:
        return self.vectors_from_states(self.text.encode(centers), states, index)

    def forward(self, batch: PackedNeighborhoods) -> Tensor:
        # One pass encodes centres and neighbours, which need the same computation.
        text_ND = self.text.encode(batch.nodes)
        center_BD, neighbor_MD = text_ND[: batch.num_centers], text_ND[batch.num_centers :]
        return self.vectors_from_states(center_BD, [neighbor_MD], batch.index)


@register_method("gat")
class GatNetwork(CascadedNetwork):
    """PLM+GAT: a graph attention over the text vectors."""

    title = "PLM+GAT"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.gat = GraphAttention(config)

    def aggregate(self, center_BD: Tensor, neighbor_MD: Tensor, index: NeighborIndex) -> Tensor:
        message_BD: Tensor = self.gat(center_BD, neighbor_MD, index)
        return message_BD


class PoolingNetwork(CascadedNetwork):
    """Pools the neighbours' text vectors; subclasses define `pool`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.combine = nn.Linear(2 * size, size)
        with torch.no_grad():
            self.combine.weight.copy_(torch.eye(size).repeat(1, 2) / 2)
            self.combine.bias.zero_()

    @abstractmethod
    def pool(self, center_BD: Tensor, neighbor_BKD: Tensor, exists_BK: Tensor) -> Tensor:
        """(B, D); zero for a centre without neighbours."""

    def aggregate(self, center_BD: Tensor, neighbor_MD: Tensor, index: NeighborIndex) -> Tensor:
        if not len(neighbor_MD):
            # No centre has a neighbour, but the index needs a row; its values are masked.
            neighbor_MD = torch.zeros_like(center_BD[:1])
        pooled_BD = self.pool(center_BD, neighbor_MD[index.rows_BK], index.exists_BK)
        combined_BD: Tensor = self.combine(torch.cat([center_BD, pooled_BD], -1))
        return combined_BD


@register_method("max")
class MaxNetwork(PoolingNetwork):
    """PLM+Max: the largest value in every dimension."""

    title = "PLM+Max"

    def pool(self, center_BD: Tensor, neighbor_BKD: Tensor, exists_BK: Tensor) -> Tensor:
        largest_BD = neighbor_BKD.masked_fill(~exists_BK[:, :, None], -math.inf).amax(1)
        return torch.where(exists_BK.any(1, keepdim=True), largest_BD, 0.0)


@register_method("mean")
class MeanNetwork(PoolingNetwork):
    """PLM+Mean: the average."""

    title = "PLM+Mean"

    def pool(self, center_BD: Tensor, neighbor_BKD: Tensor, exists_BK: Tensor) -> Tensor:
        weights_BK = exists_BK.to(neighbor_BKD.dtype)
        weights_BK = weights_BK / weights_BK.sum(1, keepdim=True).clamp(min=1)
        return (weights_BK[:, None] @ neighbor_BKD)[:, 0]


@register_method("att")
class AttNetwork(PoolingNetwork):
    """PLM+Att: an average weighted by attention of the centre to its neighbours."""

    title = "PLM+Att"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.attention = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        # Small weights give all neighbours the same weight at the start.
        nn.init.normal_(self.attention.weight, std=0.02)

    def pool(self, center_BD: Tensor, neighbor_BKD: Tensor, exists_BK: Tensor) -> Tensor:
        query_B1D = self.attention(center_BD)[:, None] / math.sqrt(center_BD.shape[-1])
        scores_BK = (query_B1D @ neighbor_BKD.transpose(1, 2))[:, 0]
        scores_BK = scores_BK.masked_fill(~exists_BK, torch.finfo(scores_BK.dtype).min)
        weights_BK = scores_BK.softmax(-1) * exists_BK
        pooled_B1D: Tensor = weights_BK[:, None] @ neighbor_BKD
        return pooled_B1D[:, 0]
