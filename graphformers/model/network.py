"""GraphFormers: a graph attention nested in every layer of a Transformer but the first.

Read beside Algorithm 1 of the paper (https://arxiv.org/abs/2105.02605, section 3), whose equation
numbers stand at the blocks. Several texts share a row of tokens; a text in the first B places of a
batch is a centre. A centre has one place more than tokens, in front of its [CLS]: there the graph
token is written before each layer, so that keys and values are made of [graph token; H].

Shapes, one letter each:
    R rows of tokens, W tokens of a row
    B centres, K neighbours of a centre at most, M neighbours in all, N = B + M nodes
    G = 1 + K nodes of a group: a centre, then its neighbours
    L layers, D hidden size, H attention heads, d = D / H
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphformers.batching.packing import (
    NeighborIndex,
    NetworkInputs,
    PackedBatch,
    PackedNeighborhoods,
)
from graphformers.model.config import ModelConfig
from graphformers.model.layers import TextEncoder, dot_product_attention, mask_graph_tokens
from graphformers.model.registry import Network, register_method


class GraphAttention(nn.Module):
    """Eq. 1: multi-head attention over the states of a centre and of its neighbours."""

    def __init__(self, config: ModelConfig, initial_scale: float = 1.0) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        # centre-centre, centre-neighbour in both directions, neighbour-neighbour
        self.bias = nn.Parameter(torch.zeros(3, self.num_heads)) if config.position_bias else None
        self.start_as_average(initial_scale)

    def start_as_average(self, scale: float) -> None:
        """Initial weights: the message is about `scale` times the mean state of the group.

        V is the identity, Q and K are small. Pretrained layers can read such a state at once.
        """
        size = self.query.in_features
        with torch.no_grad():
            query_key_value = torch.empty(3 * size, size).normal_(std=0.02)
            self.query.weight.copy_(query_key_value[:size])
            self.key.weight.copy_(query_key_value[size : 2 * size])
            nn.init.eye_(self.value.weight).mul_(scale)
            for projection in (self.query, self.key, self.value):
                projection.bias.zero_()

    def forward(self, center_BD: Tensor, neighbor_MD: Tensor, index: NeighborIndex) -> Tensor:
        """(B, D): the message to each centre."""
        states_ND = torch.cat([center_BD, neighbor_MD.to(center_BD.dtype)])
        return self.attend(states_ND, index.groups(), self.mask(index))

    def attend(self, states_ND: Tensor, group_BG: Tensor, mask_BHG: Tensor) -> Tensor:
        """(B, D): the same, given the states of all nodes, the groups as rows of them, the mask."""
        weights_BGH = self.weights(states_ND, group_BG, mask_BHG)
        return self.mix(weights_BGH, self.value(states_ND)[group_BG])

    def weights(self, states_ND: Tensor, group_BG: Tensor, mask_BHG: Tensor) -> Tensor:
        """(B, G, H), float32 at least: how much each centre attends to the nodes of its group."""
        query_BD, key_BGD = self.query(states_ND[: len(group_BG)]), self.key(states_ND)[group_BG]
        return self.weigh(query_BD, key_BGD, mask_BHG)

    def weigh(self, query_BD: Tensor, key_BGD: Tensor, mask_BHG: Tensor) -> Tensor:
        """(B, G, H): the softmax of eq. 1, over the nodes of each group."""
        query_B1Hd, key_BGHd = self.split_heads(query_BD[:, None]), self.split_heads(key_BGD)
        scores_BGH = (query_B1Hd * key_BGHd).sum(-1) / math.sqrt(query_B1Hd.shape[-1])
        return (scores_BGH + mask_BHG.transpose(1, 2)).softmax(1)

    def mix(self, weights_BGH: Tensor, value_BGD: Tensor) -> Tensor:
        """(B, D): the values of each group, weighted."""
        weights_BGH = F.dropout(weights_BGH, self.dropout, self.training)
        message_BHd = (weights_BGH[..., None] * self.split_heads(value_BGD)).sum(1)
        return message_BHd.flatten(1).to(value_BGD.dtype)

    def split_heads(self, x: Tensor) -> Tensor:
        """(..., H, d), float32 at least: sums over many neighbours need the precision."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return x.view(*x.shape[:-1], self.num_heads, x.shape[-1] // self.num_heads)

    def mask(self, index: NeighborIndex) -> Tensor:
        """(B, H, G): added to a centre's scores. The position bias; -inf for no neighbour."""
        return self._mask(index, relation_to_center=0)[:, :, 0]

    def _mask(self, index: NeighborIndex, relation_to_center: int) -> Tensor:
        """(B, H, 1, G): `mask` for a query that is the centre (0) or one of its neighbours (1)."""
        weight = self.query.weight
        zeros_3H = weight.new_zeros(3, self.num_heads)
        bias_3H = zeros_3H if self.bias is None else self.bias.to(weight.dtype)
        center, neighbor = bias_3H[relation_to_center], bias_3H[relation_to_center + 1]
        center_BH11 = center[:, None, None].expand(len(index.exists_BK), -1, 1, 1)
        exists_B11K = index.exists_BK[:, None, None]
        neighbor_BH1K = torch.where(exists_B11K, neighbor[:, None, None], -math.inf)
        return torch.cat([center_BH11, neighbor_BH1K], -1)


class MutualGraphAttention(GraphAttention):
    """Eq. 1 for every node of a group: neighbours attend to their centre and to each other, too."""

    def forward(self, center_BD: Tensor, neighbor_MD: Tensor, index: NeighborIndex) -> Tensor:
        """(B, G, D): the message to each node of a group."""
        states_ND = torch.cat([center_BD, neighbor_MD])
        return self.messages(states_ND, index.groups(), self.mutual_mask(index))

    def messages(self, states_ND: Tensor, group_BG: Tensor, mask_BHGG: Tensor) -> Tensor:
        """(B, G, D): the same, given the states of all nodes, the groups as rows, the mask."""
        query_BGD, key_BGD, value_BGD = (
            projection(states_ND)[group_BG] for projection in (self.query, self.key, self.value)
        )
        return self.mix_all(query_BGD, key_BGD, value_BGD, mask_BHGG)

    def mix_all(
        self, query_BGD: Tensor, key_BGD: Tensor, value_BGD: Tensor, mask_BHGG: Tensor
    ) -> Tensor:
        """(B, G, D): the values of each group, weighted for each of its nodes."""
        dropout = self.dropout if self.training else 0.0
        return dot_product_attention(
            query_BGD, key_BGD, value_BGD, mask_BHGG, self.num_heads, dropout
        )

    def mutual_mask(self, index: NeighborIndex) -> Tensor:
        """(B, H, G, G): `mask` with a row for every node of the group."""
        num_neighbors = index.exists_BK.shape[1]
        center_BH1G, neighbor_BH1G = self._mask(index, 0), self._mask(index, 1)
        return torch.cat([center_BH1G, neighbor_BH1G.expand(-1, -1, num_neighbors, -1)], 2)


def write_graph_tokens(hidden_RWD: Tensor, graph_BD: Tensor, cls_N: Tensor) -> Tensor:
    """Eq. 2: [graph token; H] of the first B nodes, the token in front of the node's [CLS]."""
    graph_BD = graph_BD.to(hidden_RWD.dtype)
    flat_TD = hidden_RWD.flatten(0, 1).index_copy(0, cls_N[: len(graph_BD)] - 1, graph_BD)
    return flat_TD.view_as(hidden_RWD)


@register_method("graphformers")
class GraphFormersNetwork(Network):
    """GraphFormers as in eq. 5: neighbours are read alone, so that their states can be cached."""

    attention: type[GraphAttention] = GraphAttention

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.text = TextEncoder(config)
        count = 1 if config.share_gnn else config.num_layers - 1
        self.gnn = nn.ModuleList(
            self.attention(config, config.graph_token_scale) for _ in range(count)
        )

    @classmethod
    def variant(cls, config: ModelConfig) -> type[Network]:
        return BidirectionalNetwork if config.direction == "bidirectional" else GraphFormersNetwork

    @classmethod
    def inputs(cls, config: ModelConfig) -> NetworkInputs:
        return NetworkInputs(num_states=config.num_layers - 1, graph_tokens=True)

    def neighbor_states(self, texts: PackedBatch) -> list[Tensor]:
        """z^1 … z^(L-1), each (N, D). Eq. 5, g in N_x: neighbours are read alone."""
        return self.text.states(texts, self.config.num_layers - 1)

    def center_vectors(
        self, centers: PackedBatch, states: list[Tensor], index: NeighborIndex
    ) -> Tensor:
        """h_x, (B, D) float32. Eq. 5, g = x: centres read their neighbours' states."""
        hidden_RWD, mask_RHWW = self.text.embed(centers), self.text.mask(centers)
        hidden_RWD = self.text.layers[0](hidden_RWD, mask_graph_tokens(mask_RHWW, centers))
        for layer, gnn, neighbor_MD in zip(self.text.layers[1:], self.gnns(), states, strict=True):
            center_BD = self.text.pool(hidden_RWD, centers)  # z_x
            graph_BD = gnn(center_BD, neighbor_MD, index)  # ẑ_x, eq. 1
            hidden_RWD = write_graph_tokens(hidden_RWD, graph_BD, centers.cls_N)  # eq. 2
            hidden_RWD = layer(hidden_RWD, mask_RHWW)  # eqs. 3 and 4
        return self.text.pool(hidden_RWD, centers).float()

    def gnns(self) -> list[nn.Module]:
        """The graph attention before each of the layers 1 … L-1."""
        return list(self.gnn) * (self.config.num_layers - 1 if self.config.share_gnn else 1)


class BidirectionalNetwork(GraphFormersNetwork):
    """GraphFormers before the simplification (`-Simplified`): neighbours get messages, too.

    A neighbour's states depend on the centre that asks, so they cannot be cached. A batch holds one
    copy of a neighbour for each group it belongs to.
    """

    attention = MutualGraphAttention

    @classmethod
    def inputs(cls, config: ModelConfig) -> NetworkInputs:
        return NetworkInputs(joint=True, graph_tokens=True)

    def neighbor_states(self, texts: PackedBatch) -> list[Tensor]:
        raise NotImplementedError("neighbours of a bidirectional model depend on their centre")

    def forward(self, batch: PackedNeighborhoods) -> Tensor:
        """h_x, (B, D) float32. Algorithm 1: g runs over the centre and its neighbours."""
        nodes, count = batch.nodes, batch.num_centers
        hidden_RWD, mask_RHWW = self.text.embed(nodes), self.text.mask(nodes)
        hidden_RWD = self.text.layers[0](hidden_RWD, mask_graph_tokens(mask_RHWW, nodes))
        for layer, gnn in zip(self.text.layers[1:], self.gnns(), strict=True):
            states_ND = self.text.pool(hidden_RWD, nodes)
            graph_BGD = gnn(states_ND[:count], states_ND[count:], batch.index)
            hidden_RWD = write_graph_tokens(hidden_RWD, batch.each_node(graph_BGD), nodes.cls_N)
            hidden_RWD = layer(hidden_RWD, mask_RHWW)
        return self.text.pool(hidden_RWD, nodes)[:count].float()
