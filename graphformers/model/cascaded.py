"""The paper's cascaded baselines (section 4.2): texts are encoded on their own, then aggregated
once.

PLM is the centre's text vector alone. PLM+GAT is the attention-weighted sum of all text vectors of
the neighbourhood. PLM+Max, PLM+Mean and PLM+Att pool the neighbours, put the result beside the
centre's vector and transform both linearly.

Each starts as carefully as GraphFormers does: GAT as the plain average of the neighbourhood, the
others as the average of the centre and the pooled neighbours. An empty neighbourhood pools to zero.

Shapes as in modeling.py.
"""

import math

import torch
from torch import Tensor, nn

from graphformers.data.packing import PackedBatch, PackedNeighborhoods
from graphformers.model.modeling import GraphAttention, ModelConfig, TextEncoder, neighborhood_index


class CascadedNetwork(nn.Module):
    """A text encoder and one aggregation of text vectors."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.text = TextEncoder(config)
        self.gat = GraphAttention(config) if config.method == "gat" else None
        self.combine = None
        self.attention = None
        if config.method in ("max", "mean", "att"):
            self.combine = nn.Linear(2 * config.hidden_size, config.hidden_size)
            with torch.no_grad():
                self.combine.weight.copy_(torch.eye(config.hidden_size).repeat(1, 2) / 2)
                self.combine.bias.zero_()
        if config.method == "att":
            self.attention = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
            # small: all neighbours weigh the same at the start
            nn.init.normal_(self.attention.weight, std=0.02)

    def forward(self, batch: PackedNeighborhoods) -> Tensor:
        """(B, D) float32: the vectors of the centres."""
        if self.config.method == "plm":
            return self.neighbor_states(batch.centers)[0].float()
        text_ND = self.neighbor_states(batch.nodes)[0]
        return self.aggregate(
            text_ND[: batch.num_centers],
            text_ND[batch.num_centers :],
            batch.index_BK,
            batch.open_BK,
        )

    def center_vectors(
        self, batch: PackedBatch, states: list[Tensor], index_BK: Tensor, open_BK: Tensor
    ) -> Tensor:
        """(B, D) float32: centres aggregated with their neighbours' text vectors, known from
        before.
        """
        return self.aggregate(self.neighbor_states(batch)[0], states[0], index_BK, open_BK)

    def neighbor_states(self, batch: PackedBatch) -> list[Tensor]:
        """The text vectors (M, D) of nodes read on their own, as a list of one: of the last
        layer.
        """
        return self.text.states(batch, self.config.num_layers, first=self.config.num_layers)

    def aggregate(
        self, center_BD: Tensor, neighbor_MD: Tensor, index_BK: Tensor, open_BK: Tensor
    ) -> Tensor:
        """(B, D) float32 from text vectors."""
        if self.gat is not None:
            states_ND, index_BN = (
                torch.cat([center_BD, neighbor_MD]),
                neighborhood_index(index_BK, open_BK),
            )
            graph_B1D: Tensor = self.gat(states_ND, index_BN, self.gat.mask(open_BK, 1))
            return graph_B1D[:, 0].float()
        if self.combine is None:
            return center_BD.float()
        if not len(neighbor_MD):
            # nobody has a neighbour; what the index points to is never read
            neighbor_MD = torch.zeros_like(center_BD[:1])
        pooled_BD = self._pool(center_BD, neighbor_MD[index_BK], open_BK)
        combined: Tensor = self.combine(torch.cat([center_BD, pooled_BD], -1))
        return combined.float()

    def _pool(self, center_BD: Tensor, neighbor_BKD: Tensor, open_BK: Tensor) -> Tensor:
        """(B, D); zero for a centre without neighbours."""
        closed_BK1 = ~open_BK[:, :, None]
        if self.config.method == "max":
            highest = neighbor_BKD.masked_fill(closed_BK1, -math.inf).amax(1)
            return torch.where(open_BK.any(1, keepdim=True), highest, 0.0)
        weights_BK = open_BK.to(neighbor_BKD.dtype)
        if self.attention is not None:
            query_B1D = self.attention(center_BD)[:, None] / math.sqrt(center_BD.shape[-1])
            scores_BK = (query_B1D @ neighbor_BKD.transpose(1, 2))[:, 0]
            scores_BK = scores_BK.masked_fill(~open_BK, torch.finfo(scores_BK.dtype).min)
            weights_BK = scores_BK.softmax(-1) * open_BK
        else:
            weights_BK = weights_BK / weights_BK.sum(1, keepdim=True).clamp(min=1)
        return (weights_BK[:, None] @ neighbor_BKD)[:, 0]
