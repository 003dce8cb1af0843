"""GraphFormers: a graph attention nested in every layer of a Transformer but the first.

Read beside Algorithm 1 of the paper (https://arxiv.org/abs/2105.02605, section 3), whose equation
numbers stand at the blocks: `BidirectionalNetwork.forward` is the algorithm as printed,
`GraphFormersNetwork`, the default, its simplification, eq. 5. The Transformer layer, eqs. 3 and 4,
is in layers.py.

Texts are packed into rows of tokens, those of centres first (batching/packing.py). In front of the
[CLS] of a centre, and in the bidirectional network of a neighbour, is one place more, for its graph
token: the message that the graph attention computes for it. It is written before each layer but the
first, so that keys and values are made of it and of the text's tokens. In the paper it is no query
(asymmetric attention, eq. 4). Here the layer computes a state for its place, too, but nothing reads
that state, and the next graph token replaces it.

Shapes, one letter each:
    R rows of tokens, W tokens of a row, T = R * W
    B centres, K neighbours of a centre at most
    M neighbours in all: a shared one counts once, in the bidirectional network once for each centre
    N nodes of a batch: B + M, or B or M where it holds centres or neighbours alone
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
from graphformers.model.layers import (
    TextEncoder,
    at_least_float32,
    dot_product_attention,
    mask_graph_tokens,
    mask_isolated,
    split_heads,
)
from graphformers.model.registry import Network, register_method


class GraphAttention(nn.Module):
    """Eq. 1: multi-head attention of centres over their own states and those of their neighbours.

    The states of all nodes are `states_ND`. Row b of `group_BG` says which of them are the group of
    centre b: its own, b, and those of its neighbours (`NeighborIndex.groups`). There is no
    projection after the attention, as in eq. 1.
    """

    bias: Tensor

    def __init__(self, config: ModelConfig, initial_scale: float = 1.0) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        # B of eq. 1: centre-centre, centre-neighbour in both directions, neighbour-neighbour
        bias_3H = torch.zeros(3, self.num_heads)
        if config.position_bias:
            self.bias = nn.Parameter(bias_3H)
        else:
            self.register_buffer("bias", bias_3H, persistent=False)
        # Q and K are small and V is the identity, so that the message starts as about
        # `initial_scale` times the mean state of the group: pretrained layers can read that. V is
        # drawn, too, so that a seed gives the parameters behind it the same weights as ever.
        for projection in (self.query, self.key, self.value):
            nn.init.normal_(projection.weight, std=0.02)
            nn.init.zeros_(projection.bias)
        with torch.no_grad():
            nn.init.eye_(self.value.weight).mul_(initial_scale)

    def forward(self, center_BD: Tensor, neighbor_MD: Tensor, index: NeighborIndex) -> Tensor:
        """(B, D): the message to each centre, ẑ_x. In `MutualGraphAttention` (B, G, D)."""
        # Cached states may be stored in another precision.
        states_ND = torch.cat([center_BD, neighbor_MD.to(center_BD.dtype)])
        return self.attend(states_ND, index.groups(), self.mask(index))

    def attend(self, states_ND: Tensor, group_BG: Tensor, mask_BHG: Tensor) -> Tensor:
        """(B, D): the messages. Faster networks (fast/) call this with masks computed before."""
        query_BD, key_BGD, value_BGD = self.project(states_ND, group_BG)
        weights_BGH = self.weights(query_BD, key_BGD, mask_BHG)
        weights_BGH = F.dropout(weights_BGH, self.dropout, self.training)
        value_BGHd = split_heads(at_least_float32(value_BGD), self.num_heads)
        message_BHd = (weights_BGH[..., None] * value_BGHd).sum(1)
        return message_BHd.flatten(1).to(value_BGD.dtype)

    def project(self, states_ND: Tensor, group_BG: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Q (B, D) of the centres; K and V (B, G, D) of their groups."""
        query_BD = self.query(states_ND[: len(group_BG)])
        return query_BD, self.key(states_ND)[group_BG], self.value(states_ND)[group_BG]

    def weights(self, query_BD: Tensor, key_BGD: Tensor, mask_BHG: Tensor) -> Tensor:
        """(B, G, H): the softmax of eq. 1, over the nodes of each group."""
        # The sums over many neighbours, in the softmax and after it, need float32.
        query_BHd, key_BGHd = (
            split_heads(at_least_float32(x), self.num_heads) for x in (query_BD, key_BGD)
        )
        # Written out, since attention kernels compute blocks of 64 queries, and here is one.
        scores_BGH = (query_BHd[:, None] * key_BGHd).sum(-1) / math.sqrt(query_BHd.shape[-1])
        return (scores_BGH + mask_BHG.transpose(1, 2)).softmax(1)

    def mask(self, index: NeighborIndex) -> Tensor:
        """(B, H, G), added to the scores: the bias; -inf where a centre has fewer neighbours."""
        return mask_missing(self.bias[0], self.bias[1], index.exists_BK)[:, :, 0]


class MutualGraphAttention(GraphAttention):
    """Eq. 1 for every node of a group: neighbours attend to their centre and to each other, too."""

    def attend(self, states_ND: Tensor, group_BG: Tensor, mask_BHGG: Tensor) -> Tensor:
        """(B, G, D): the message to each node of a group, ẑ_g."""
        # Every node is a query here, which fills an attention kernel; kernels sum in float32, too.
        # Written out, the products of queries and keys would take G times the memory.
        projected = self.project(states_ND, group_BG)
        dropout = self.dropout if self.training else 0.0
        return dot_product_attention(*projected, mask_BHGG, self.num_heads, dropout)

    def project(self, states_ND: Tensor, group_BG: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V, each (B, G, D)."""
        query_ND, key_ND, value_ND = (x(states_ND) for x in (self.query, self.key, self.value))
        return query_ND[group_BG], key_ND[group_BG], value_ND[group_BG]

    def mask(self, index: NeighborIndex) -> Tensor:
        """(B, H, G, G): a row for every node of the group, the centre's first."""
        exists_BK = index.exists_BK
        center_BH1G = mask_missing(self.bias[0], self.bias[1], exists_BK)
        neighbor_BH1G = mask_missing(self.bias[1], self.bias[2], exists_BK)
        neighbor_BHKG = neighbor_BH1G.expand(-1, -1, exists_BK.shape[1], -1)
        return torch.cat([center_BH1G, neighbor_BHKG], 2)


def mask_missing(center_H: Tensor, neighbor_H: Tensor, exists_BK: Tensor) -> Tensor:
    """(B, H, 1, G): the biases towards a centre and its neighbours; -inf where there is none."""
    center_BH11 = center_H[:, None, None].expand(len(exists_BK), -1, 1, 1)
    neighbor_BH1K = torch.where(exists_BK[:, None, None], neighbor_H[:, None, None], -math.inf)
    return torch.cat([center_BH11, neighbor_BH1K], -1)


def each_node(message_BGD: Tensor, first_use_M: Tensor) -> Tensor:
    """(N, D): the message to each node, those to the centres first.

    `first_use_M` says where each neighbour is among the B * K places of neighbours. Groups share no
    neighbour here, so that its first use is its only one.
    """
    neighbor_MD = message_BGD[:, 1:].flatten(0, 1)[first_use_M]
    return torch.cat([message_BGD[:, 0], neighbor_MD])


def write_graph_tokens(hidden_RWD: Tensor, graph_ND: Tensor, cls_N: Tensor) -> Tensor:
    """Eq. 2: puts the graph token of each node into the place in front of its [CLS].

    `cls_N` says where the [CLS] of nodes are among the T tokens.
    """
    flat_TD = hidden_RWD.flatten(0, 1)
    return flat_TD.index_copy(0, cls_N - 1, graph_ND.to(flat_TD.dtype)).view_as(hidden_RWD)


@register_method("graphformers")
class GraphFormersNetwork(Network):
    """GraphFormers as in eq. 5: neighbours are read alone, so that their states can be cached.

    `forward` (in `Network`) computes both: the states of the neighbours, then the centres' vectors.
    """

    title = "GraphFormers"
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

    @classmethod
    def is_plain_without_neighbors(cls, config: ModelConfig) -> bool:
        return not config.isolated_graph_token

    def neighbor_states(self, texts: PackedBatch) -> list[Tensor]:
        """z^1 … z^(L-1), each (N, D). Eq. 5, g in N_x: neighbours are read alone."""
        # The last graph attention stands before layer L-1 and reads z^(L-1), the output of the
        # layer before. So neighbours never go through the last layer.
        return self.text.states(texts, self.config.num_layers - 1)

    def center_vectors(
        self, centers: PackedBatch, states: list[Tensor], index: NeighborIndex
    ) -> Tensor:
        """h_x, (B, D) float32. Eq. 5, g = x: centres read their neighbours' states."""
        hidden_RWD, mask_RHWW = self.text.embed(centers), self.text.mask(centers)
        # TRM^0 gets no graph token: before it, the state of [CLS] is the same for all texts.
        hidden_RWD = self.text.layers[0](hidden_RWD, mask_graph_tokens(mask_RHWW, centers))
        if not self.config.isolated_graph_token:
            mask_RHWW = mask_isolated(mask_RHWW, centers, index.exists_BK)
        for layer, gnn, neighbor_MD in zip(self.text.layers[1:], self.gnns(), states, strict=True):
            center_BD = self.text.pool(hidden_RWD, centers)  # z_x: [CLS], or the mean of tokens
            graph_BD = gnn(center_BD, neighbor_MD, index)  # ẑ_x, eq. 1
            hidden_RWD = write_graph_tokens(hidden_RWD, graph_BD, centers.cls_N)  # eq. 2
            hidden_RWD = layer(hidden_RWD, mask_RHWW)  # eqs. 3 and 4
        return self.text.pool(hidden_RWD, centers).float()

    def gnns(self) -> list[nn.Module]:
        """The graph attention before each of the layers 1 … L-1."""
        return list(self.gnn) * (self.config.num_layers - 1 if self.config.share_gnn else 1)


class BidirectionalNetwork(GraphFormersNetwork):
    """GraphFormers before the simplification ("- Simplified" in the paper's ablation studies).

    Neighbours get messages, too. A neighbour's states depend on the centre that asks, so they
    cannot be cached. A batch holds one copy of a neighbour for each group it belongs to.
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
        if not self.config.isolated_graph_token:
            mask_RHWW = mask_isolated(mask_RHWW, nodes, batch.index.exists_BK)
        for layer, gnn in zip(self.text.layers[1:], self.gnns(), strict=True):
            states_ND = self.text.pool(hidden_RWD, nodes)  # Z_G
            graph_BGD = gnn(states_ND[:count], states_ND[count:], batch.index)  # Ẑ_G, eq. 1
            graph_ND = each_node(graph_BGD, batch.first_use_M)
            hidden_RWD = write_graph_tokens(hidden_RWD, graph_ND, nodes.cls_N)  # eq. 2
            hidden_RWD = layer(hidden_RWD, mask_RHWW)  # eqs. 3 and 4
        return self.text.pool(hidden_RWD, nodes)[:count].float()
