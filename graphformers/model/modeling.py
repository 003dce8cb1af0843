"""GraphFormers: a Transformer with a small attention layer over nodes nested in every layer but the first.

The whole network, to be read from top to bottom: settings, text embedding, Transformer layer, graph attention, text encoder, and
the GraphFormers of the paper (https://arxiv.org/abs/2105.02605, section 3).

Shapes, as suffixes of tensor names:
    R rows, W tokens of a row, C slots of a row (nodes that share it), S = W or W + C keys of a row
    B centres, K neighbours of a centre, N = 1 + K nodes of a neighbourhood (the centre first), M neighbours in all
    L layers, D hidden, H heads, d = D / H
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphformers.data.packing import PackedBatch, PackedNeighborhoods
from graphformers.errors import GraphFormersError

METHODS = ("graphformers", "plm", "gat", "max", "mean", "att")
ACTIVATIONS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


@dataclass(frozen=True)
class ModelConfig:
    """Everything that defines a network but its weights."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_positions: int  # sequences are at most this long, special tokens included
    pad_token: int = 0
    activation: str = "gelu"  # one of ACTIVATIONS
    layer_norm_eps: float = 1e-12
    relative_buckets: int = 0  # of token distances, as in T5, MPNet and UniLM v2; 0 for backbones without
    relative_distance: int = 128  # from which on all distances share a bucket
    dropout: float = 0.1  # of hidden states, in training
    attention_dropout: float = 0.1  # of attention weights, in training
    method: str = "graphformers"  # one of METHODS
    direction: str = "unidirectional"  # or "bidirectional": neighbours read their neighbourhood too
    share_gnn: bool = True  # one graph attention for all layers, or one for each
    position_bias: bool = True  # a learnable bias for centre-centre, centre-neighbour and neighbour-neighbour attention
    max_tokens: int = 32  # texts are cut here, special tokens included
    num_neighbors: int = 5  # neighbours sampled for a node

    def __post_init__(self) -> None:
        self._require(self.method in METHODS, "method", f"one of {', '.join(METHODS)}")
        self._require(self.direction in ("unidirectional", "bidirectional"), "direction", "unidirectional or bidirectional")
        self._require(self.activation in ACTIVATIONS, "activation", f"one of {', '.join(ACTIVATIONS)}")
        self._require(self.hidden_size % self.num_heads == 0, "hidden_size", f"a multiple of num_heads, {self.num_heads}")
        self._require(
            2 < self.max_tokens <= self.max_positions, "max_tokens", f"3 to {self.max_positions}, what the backbone can read"
        )

    def _require(self, holds: bool, name: str, expected: str) -> None:
        if not holds:
            raise GraphFormersError(f"{name}={getattr(self, name)!r} given, expected {expected}")


class TextEmbedding(nn.Module):
    """Words plus positions. (BERT's token type is constant here and was added to the positions when the weights were read.)"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_positions, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens_RW: Tensor, positions_RW: Tensor) -> Tensor:
        embedded_RWD = self.words(tokens_RW) + self.positions(positions_RW)
        result: Tensor = self.dropout(self.norm(embedded_RWD))
        return result


class RelativeBias(nn.Module):
    """A learnable bias per head for the distance between two tokens, and one from any token to the graph token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.distance = config.relative_distance
        self.tokens = nn.Embedding(config.relative_buckets, config.num_heads)
        self.graph_token = nn.Parameter(torch.zeros(config.num_heads))

    def forward(self, positions_RW: Tensor) -> Tensor:
        """(R, H, W, W): what is added to the score of query i and key j, by j - i."""
        width = positions_RW.shape[1]
        distances = torch.arange(1 - width, width, device=positions_RW.device)
        by_distance = self.tokens(distance_buckets(distances, self.tokens.num_embeddings, self.distance))
        offsets_RWW = positions_RW[:, None, :] - positions_RW[:, :, None] + (width - 1)
        bias: Tensor = by_distance[offsets_RWW].permute(0, 3, 1, 2)
        return bias


def distance_buckets(distances: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """T5's buckets: half for keys before the query, half for keys after; each half exact at first, then logarithmic."""
    half = num_buckets // 2
    exact = half // 2
    size = distances.abs()
    ratio = torch.log(size.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (half - exact)).long()).clamp(max=half - 1)
    return torch.where(size < exact, size, far) + half * (distances > 0)


class TransformerLayer(nn.Module):
    """One post-norm Transformer layer; its attention may see graph tokens that only keys and values are made of."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.approximate = ACTIVATIONS[config.activation]
        self.attention_dropout = config.attention_dropout
        self.query_key_value = nn.Linear(size, 3 * size)
        self.attended = nn.Linear(size, size)
        self.attention_norm = nn.LayerNorm(size, config.layer_norm_eps)
        self.up = nn.Linear(size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, size)
        self.norm = nn.LayerNorm(size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, hidden_RWD: Tensor, mask_RHWS: Tensor, graph_RCD: Tensor | None = None, cls_RC: Tensor | None = None
    ) -> Tensor:
        """Eqs. 3 and 4. Q = H; K, V = H, with the graph tokens behind it where there are any.

        With `cls_RC` only these tokens are computed: queries and MLP for [CLS] alone, where nothing else is read afterwards.
        `mask_RHWS` then has a row for each of them.
        """
        size = hidden_RWD.shape[-1]
        weight, bias = self.query_key_value.weight, self.query_key_value.bias
        if cls_RC is None:
            residual, (query, key_value) = hidden_RWD, self.query_key_value(hidden_RWD).split([size, 2 * size], -1)
        else:
            residual = take_tokens(hidden_RWD, cls_RC)
            query = F.linear(residual, weight[:size], bias[:size])
            key_value = F.linear(hidden_RWD, weight[size:], bias[size:])
        if graph_RCD is not None:
            key_value = torch.cat([key_value, F.linear(graph_RCD, weight[size:], bias[size:])], 1)
        key, value = key_value.split(size, -1)
        dropout = self.attention_dropout if self.training else 0.0
        attended = attend(query, key, value, mask_RHWS, self.num_heads, dropout)
        hidden = self.attention_norm(residual + self.dropout(self.attended(attended)))
        result: Tensor = self.norm(hidden + self.dropout(self.down(F.gelu(self.up(hidden), approximate=self.approximate))))
        return result


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, num_heads: int, dropout: float) -> Tensor:
    """Multi-head scaled dot-product attention of (…, Q, D) over (…, S, D); the mask is added to the scores."""
    q, k, v = (x.view(*x.shape[:-1], num_heads, -1).transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout).transpose(1, 2).flatten(2)


def take_tokens(hidden_RWD: Tensor, cls_RC: Tensor) -> Tensor:
    """(R, C, D): the states of the tokens at `cls_RC`."""
    return hidden_RWD.gather(1, cls_RC[:, :, None].expand(-1, -1, hidden_RWD.shape[-1]))


class GraphAttention(nn.Module):
    """The GNN of eq. 1: multi-head attention over the [CLS] states of a neighbourhood, with a bias for who looks at whom."""

    CENTER_CENTER, CENTER_NEIGHBOR, NEIGHBOR_NEIGHBOR = 0, 1, 2

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        self.bias = nn.Parameter(torch.zeros(3, config.num_heads)) if config.position_bias else None
        self.start_as_average()

    def start_as_average(self) -> None:
        """V = identity, Q and K small: the graph token starts as the mean of the neighbourhood, which later layers can read."""
        for linear in (self.query, self.key, self.value):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        nn.init.eye_(self.value.weight)

    def forward(
        self, center_BD: Tensor, neighbor_MD: Tensor, index_BK: Tensor, open_BK: Tensor, *, everyone: bool = False
    ) -> Tensor:
        """(B, 1, D) graph tokens of the centres; with `everyone` (B, N, D), those of the neighbours too."""
        query_BND = self.query(center_BD)[:, None]
        if everyone:
            query_BND = torch.cat([query_BND, gather_rows(self.query(neighbor_MD), index_BK)], 1)
        key_BND, value_BND = (
            torch.cat([project(center_BD)[:, None], gather_rows(project(neighbor_MD), index_BK)], 1)
            for project in (self.key, self.value)
        )
        mask_BHNN = self._mask(open_BK, everyone).to(query_BND.dtype)
        return attend(query_BND, key_BND, value_BND, mask_BHNN, self.num_heads, self.dropout if self.training else 0.0)

    def _mask(self, open_BK: Tensor, everyone: bool) -> Tensor:
        """(B, H, 1 or N, N): the bias where there is a node to look at, -inf where there is none."""
        open_BN = F.pad(open_BK, (1, 0), value=True)
        nodes = open_BN.shape[1]
        is_neighbor = (torch.arange(nodes, device=open_BK.device) > 0).long()
        relation_NN = is_neighbor[: nodes if everyone else 1, None] + is_neighbor  # 0, 1 or 2
        bias = relation_NN.new_zeros(3, self.num_heads, dtype=self.query.weight.dtype) if self.bias is None else self.bias
        bias_HNN = bias[relation_NN].permute(2, 0, 1)
        return bias_HNN.masked_fill(~open_BN[:, None, None, :], -math.inf)


def gather_rows(rows_MD: Tensor, index_BK: Tensor) -> Tensor:
    """(B, K, D)."""
    return rows_MD[index_BK] if len(rows_MD) else rows_MD.new_zeros(*index_BK.shape, rows_MD.shape[-1])


class TextEncoder(nn.Module):
    """The language model: embedding and Transformer layers over packed rows."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = TextEmbedding(config)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_layers))
        self.relative_bias = RelativeBias(config) if config.relative_buckets else None

    def embed(self, batch: PackedBatch) -> Tensor:
        """(R, W, D)."""
        embedded: Tensor = self.embedding(batch.tokens_RW, batch.positions_RW)
        return embedded

    def mask(self, batch: PackedBatch, graph_rows: int = 0) -> Tensor:
        """(R, 1 or H, W, S): a token sees the tokens of its own node and, in the first `graph_rows`, its own graph token.

        S = W without any graph rows, else W + C. Padding sees padding, so that no row of the softmax is empty.
        """
        open_RWS = batch.slots_RW[:, :, None] == batch.slots_RW[:, None, :]
        if graph_rows:
            slots_C = torch.arange(batch.num_slots, device=batch.slots_RW.device)
            has_graph_R = torch.arange(len(batch.slots_RW), device=batch.slots_RW.device) < graph_rows
            open_RWC = (batch.slots_RW[:, :, None] == slots_C) & has_graph_R[:, None, None]
            open_RWS = torch.cat([open_RWS, open_RWC], -1)
        bias = self.embedding.norm.weight.new_zeros(1)
        if self.relative_bias is not None:
            bias = self.relative_bias(batch.positions_RW)
            if graph_rows:
                to_graph = self.relative_bias.graph_token[None, :, None, None].expand(*bias.shape[:3], batch.num_slots)
                bias = torch.cat([bias, to_graph.to(bias.dtype)], -1)
        return torch.where(open_RWS[:, None], bias, -math.inf)

    def states(self, batch: PackedBatch, num_layers: int) -> list[Tensor]:
        """The [CLS] states (num_nodes, D) after each of the first layers, of texts read on their own: eq. 5, g in N_x."""
        if num_layers == 0 or batch.num_nodes == 0:
            return [self.embedding.norm.weight.new_zeros(batch.num_nodes, self.config.hidden_size)] * num_layers
        hidden, mask = self.embed(batch), self.mask(batch)
        found = []
        for layer in self.layers[: num_layers - 1]:
            hidden = layer(hidden, mask)
            found.append(node_states(take_tokens(hidden, batch.cls_RC), batch))
        last_RCD = self.layers[num_layers - 1](hidden, take_mask(mask, batch.cls_RC), None, batch.cls_RC)
        return [*found, node_states(last_RCD, batch)]


def node_states(states_RCD: Tensor, batch: PackedBatch) -> Tensor:
    """(num_nodes, D), in the order in which the nodes were given."""
    return states_RCD.flatten(0, 1)[batch.places_N]


def into_slots(states_ND: Tensor, places_N: Tensor, cls_RC: Tensor) -> Tensor:
    """(R, C, D): states of nodes put into their slots; empty slots are zero."""
    flat = states_ND.new_zeros(cls_RC.numel(), states_ND.shape[-1])
    return flat.index_copy(0, places_N, states_ND).view(*cls_RC.shape, -1)


def take_mask(mask_RHWS: Tensor, cls_RC: Tensor) -> Tensor:
    """(R, 1 or H, C, S): the rows of the mask that belong to the tokens at `cls_RC`."""
    index = cls_RC[:, None, :, None].expand(-1, mask_RHWS.shape[1], -1, mask_RHWS.shape[-1])
    return mask_RHWS.gather(2, index)


class GraphFormersNetwork(nn.Module):
    """Algorithm 1: layer 0 reads texts on their own; before every later layer the nodes of a neighbourhood exchange states."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.text = TextEncoder(config)
        self.gnn = nn.ModuleList(GraphAttention(config) for _ in range(1 if config.share_gnn else config.num_layers - 1))

    def graph_attention(self, layer: int) -> GraphAttention:
        """The graph aggregation that precedes Transformer layer 1..L-1."""
        found = self.gnn[0 if self.config.share_gnn else layer - 1]
        assert isinstance(found, GraphAttention)
        return found

    def forward(self, batch: PackedNeighborhoods) -> Tensor:
        """(B, D) float32: the vectors of the centres, everything read from scratch.

        Centres and neighbours go through the layers side by side, in one tensor. Of the last layer only the centres' [CLS] is
        read, of the one before only the neighbours' [CLS]: nothing else is computed there.
        """
        nodes, rows, last = batch.nodes, batch.center_rows, self.config.num_layers - 1
        everyone = self.config.direction == "bidirectional"
        mask = self.text.mask(nodes, len(nodes.tokens_RW) if everyone else rows)
        width = nodes.tokens_RW.shape[1]
        hidden, states = self.text.embed(nodes), None
        for layer in range(last + 1):
            graph_RCD = None if layer == 0 else self._graph_tokens(layer, hidden, states, batch, everyone and layer < last)
            masked = mask if layer > 0 else mask[..., :width]
            if layer < last - 1:
                hidden = self.text.layers[layer](hidden, masked, graph_RCD)
            elif layer == last - 1:
                states = self._neighbor_cls(layer, hidden, masked, graph_RCD, batch)
                hidden = self.text.layers[layer](hidden[:rows], masked[:rows], _first(graph_RCD, rows))
            else:
                cls_RC = nodes.cls_RC[:rows]
                hidden = self.text.layers[layer](hidden[:rows], take_mask(masked[:rows], cls_RC), _first(graph_RCD, rows), cls_RC)
        return hidden.flatten(0, 1)[nodes.places_N[: batch.num_centers]].float()

    def _graph_tokens(
        self, layer: int, hidden: Tensor, states: Tensor | None, batch: PackedNeighborhoods, everyone: bool
    ) -> Tensor:
        """(R, C, D): graph tokens in the slots of their nodes, from the [CLS] states before a layer.

        `states` (M, D) are those of the neighbours when `hidden` no longer has them.
        """
        nodes, centers = batch.nodes, batch.num_centers
        rows = nodes.cls_RC[: len(hidden)]
        cls_ND = take_tokens(hidden, rows).flatten(0, 1)[nodes.places_N if states is None else nodes.places_N[:centers]]
        neighbor_MD = cls_ND[centers:] if states is None else states
        graph_BND = self.graph_attention(layer)(cls_ND[:centers], neighbor_MD, batch.index_BK, batch.open_BK, everyone=everyone)
        graph_ND, places = graph_BND[:, 0], nodes.places_N[:centers]
        if everyone:
            graph_ND = torch.cat([graph_ND, graph_BND[:, 1:].flatten(0, 1)[batch.places_M]])
            places = nodes.places_N
        return into_slots(graph_ND, places, rows)

    def _neighbor_cls(self, layer: int, hidden: Tensor, mask: Tensor, graph: Tensor | None, batch: PackedNeighborhoods) -> Tensor:
        """(M, D): the neighbours' [CLS] after the last layer they take part in."""
        nodes, rows = batch.nodes, batch.center_rows
        cls_RC = nodes.cls_RC[rows:]
        states_RCD = self.text.layers[layer](
            hidden[rows:], take_mask(mask[rows:], cls_RC), None if graph is None else graph[rows:], cls_RC
        )
        places = nodes.places_N[batch.num_centers :] - nodes.cls_RC[:rows].numel()
        states: Tensor = states_RCD.flatten(0, 1)[places]
        return states

    def neighbor_states(self, batch: PackedBatch) -> list[Tensor]:
        """z^1..z^{L-1} of nodes read on their own, (M, D) each: what neighbours contribute, whoever asks (unidirectional)."""
        return self.text.states(batch, self.config.num_layers - 1)

    def center_vectors(self, batch: PackedBatch, states: list[Tensor], index_BK: Tensor, open_BK: Tensor) -> Tensor:
        """(B, D) float32: centres read in the light of their neighbours' states, known from before (eq. 5, g = x)."""
        mask, last = self.text.mask(batch, len(batch.tokens_RW)), self.config.num_layers - 1
        width = batch.tokens_RW.shape[1]
        hidden = self.text.embed(batch)
        for layer in range(last + 1):
            graph_RCD, masked = None, mask[..., :width]
            if layer > 0:
                center_BD = node_states(take_tokens(hidden, batch.cls_RC), batch)
                graph_BD = self.graph_attention(layer)(center_BD, states[layer - 1].to(center_BD.dtype), index_BK, open_BK)[:, 0]
                graph_RCD, masked = into_slots(graph_BD, batch.places_N, batch.cls_RC), mask
            cls_RC = batch.cls_RC if layer == last else None
            hidden = self.text.layers[layer](hidden, masked if cls_RC is None else take_mask(masked, cls_RC), graph_RCD, cls_RC)
        return node_states(hidden, batch).float()


def _first(graph_RCD: Tensor | None, rows: int) -> Tensor | None:
    return None if graph_RCD is None else graph_RCD[:rows]
