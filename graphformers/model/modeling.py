"""GraphFormers: a Transformer with a small attention layer over nodes nested in every layer but the
first.

The whole network, to be read from top to bottom: settings, text embedding, Transformer layer, graph
attention, text encoder, and the GraphFormers of the paper (https://arxiv.org/abs/2105.02605,
section 3).

Shapes, as suffixes of tensor names:
    R rows, W tokens of a row, C slots of a row (nodes that share it), T tokens in one line
    B centres, K neighbours of a centre, N = 1 + K nodes of a neighbourhood (the centre first), M
      neighbours in all
    L layers, D hidden, H heads, d = D / H
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphformers.data.packing import PackedBatch, PackedNeighborhoods
from graphformers.errors import require, require_types

CLASSIC = ("tnve", "iftn")  # simple text encoders and vectors of nodes
READS_NEIGHBORS = ("graphformers", "gat", "max", "mean", "att")  # whose texts matter
METHODS = ("graphformers", "plm", "gat", "max", "mean", "att", *CLASSIC)
Links = tuple[Tensor, Tensor, Tensor | None]  # index_BN, cls_N, places_M
POOLINGS = ("cls", "mean")
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
    # of token distances, as in T5, MPNet and UniLM v2; 0 for backbones without
    relative_buckets: int = 0
    relative_distance: int = 128  # from which on all distances share a bucket
    dropout: float = 0.1  # of hidden states, in training
    attention_dropout: float = 0.1  # of attention weights, in training
    method: str = "graphformers"  # one of METHODS
    direction: str = "unidirectional"  # or "bidirectional": neighbours read their neighbourhood too
    share_gnn: bool = True  # one graph attention for all layers, or one for each
    # a learnable bias for centre-centre, centre-neighbour and neighbour-neighbour attention
    position_bias: bool = True
    max_tokens: int = 32  # texts are cut here, special tokens included
    num_neighbors: int = 5  # neighbours sampled for a node
    # or "cosine": how the model's vectors are compared, in training and after
    similarity: str = "dot"
    # what stands for a node: its [CLS] state, or "mean", the mean of its tokens' states
    pooling: str = "cls"
    # how loud graph tokens are at the start: times the average of the neighbourhood
    graph_start: float = 1.0

    def __post_init__(self) -> None:
        require_types(self)
        require(self, self.num_layers >= 1, "num_layers", "at least 1")
        require(self, self.num_neighbors >= 0, "num_neighbors", "0 or more")
        require(self, self.layer_norm_eps > 0, "layer_norm_eps", "a number above 0")
        require(
            self,
            self.relative_buckets == 0 or self.relative_buckets >= 4,
            "relative_buckets",
            "0 or at least 4",
        )
        require(self, self.method in METHODS, "method", f"one of {', '.join(METHODS)}")
        require(
            self,
            self.direction in ("unidirectional", "bidirectional"),
            "direction",
            "unidirectional or bidirectional",
        )
        require(self, self.similarity in ("dot", "cosine"), "similarity", "dot or cosine")
        require(self, 0 < self.graph_start < math.inf, "graph_start", "a number above 0")
        require(self, self.pooling in POOLINGS, "pooling", "cls or mean")
        for name in ("dropout", "attention_dropout"):
            require(self, 0 <= getattr(self, name) < 1, name, "0 to below 1")
        require(
            self, self.activation in ACTIVATIONS, "activation", f"one of {', '.join(ACTIVATIONS)}"
        )
        require(
            self,
            self.hidden_size % self.num_heads == 0,
            "hidden_size",
            f"a multiple of num_heads, {self.num_heads}",
        )
        require(
            self,
            2 < self.max_tokens <= self.max_positions,
            "max_tokens",
            f"3 to {self.max_positions}, what the backbone can read",
        )

    @property
    def is_classic(self) -> bool:
        """Whether words are read by a simple encoder, and nodes have vectors of their own
        (classic.py).
        """
        return self.method in CLASSIC

    @property
    def reads_neighbors(self) -> bool:
        """Whether the texts of neighbours matter."""
        return self.method in READS_NEIGHBORS


def working_dtype(tensor: Tensor) -> torch.dtype:
    """What hidden states are kept in: the tensor's own type, but under autocast its lower
    precision.

    (Autocast computes norms in float32 and would leave their results so, at twice the memory and
    traffic.)
    """
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


class TextEmbedding(nn.Module):
    """Words plus positions. (BERT's token type is constant here and was added to the positions when
    the weights were read.)
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_positions, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens_RW: Tensor, positions_RW: Tensor) -> Tensor:
        embedded_RWD = self.words(tokens_RW) + self.positions(positions_RW)
        result: Tensor = self.dropout(self.norm(embedded_RWD))
        return result.to(working_dtype(result))


class RelativeBias(nn.Module):
    """A learnable bias per head for the distance between two tokens, and one from any token to the
    graph token.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.distance = config.relative_distance
        self.tokens = nn.Embedding(config.relative_buckets, config.num_heads)
        self.graph_token = nn.Parameter(torch.zeros(config.num_heads))

    def forward(self, positions_RW: Tensor, is_graph_RW: Tensor) -> Tensor:
        """(R, H, W, W): what is added to the score of query i and key j, by j - i, or for a graph
        token at j.
        """
        width = positions_RW.shape[1]
        distances = torch.arange(1 - width, width, device=positions_RW.device)
        by_distance = self.tokens(
            distance_buckets(distances, self.tokens.num_embeddings, self.distance)
        )
        offsets_RWW = positions_RW[:, None, :] - positions_RW[:, :, None] + (width - 1)
        bias_RHWW = by_distance[offsets_RWW].permute(0, 3, 1, 2)
        return torch.where(
            is_graph_RW[:, None, None, :],
            self.graph_token[:, None, None].to(bias_RHWW.dtype),
            bias_RHWW,
        )


def distance_buckets(distances: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """T5's buckets: half for keys before the query, half for keys after; each half exact at first,
    then logarithmic.
    """
    half = num_buckets // 2
    exact = half // 2
    size = distances.abs()
    ratio = torch.log(size.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (half - exact)).long()).clamp(max=half - 1)
    return torch.where(size < exact, size, far) + half * (distances > 0)


class TransformerLayer(nn.Module):
    """One post-norm Transformer layer of a BERT-like model."""

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
        self.has_norm_kernels = False  # norms.py can be used; see `compile_network`

    def forward(
        self, hidden_RWD: Tensor, mask_RHWW: Tensor, cls_RC: Tensor | None = None
    ) -> Tensor:
        """Eqs. 3 and 4. With `cls_RC`, of the last rows nothing but these tokens is computed; see
        `_part`.
        """
        if cls_RC is not None:
            return self._part(hidden_RWD, mask_RHWW, cls_RC)
        query, key, value = self.query_key_value(hidden_RWD).chunk(3, -1)
        return self._finish(
            hidden_RWD,
            attend(query, key, value, mask_RHWW, self.num_heads, self._attention_dropout()),
        )

    def _attention_dropout(self) -> float:
        return self.attention_dropout if self.training else 0.0

    def _part(self, hidden_RWD: Tensor, mask_RHWW: Tensor, cls_rC: Tensor) -> Tensor:
        """Queries and MLP for [CLS] alone in the last r rows, where nothing else is read
        afterwards.

        (T, D), tokens in one line: all W of each row before those, then C of each of them.
        """
        size, whole = hidden_RWD.shape[-1], len(hidden_RWD) - len(cls_rC)
        weight, bias = self.query_key_value.weight, self.query_key_value.bias
        key, value = F.linear(hidden_RWD, weight[size:], bias[size:]).chunk(2, -1)
        asking = [
            (
                take_tokens(hidden_RWD[whole:], cls_rC),
                take_rows(mask_RHWW[whole:], cls_rC),
                slice(whole, None),
            )
        ]
        if whole:
            asking = [(hidden_RWD[:whole], mask_RHWW[:whole], slice(whole)), *asking]
        residual_TD = torch.cat([tokens.flatten(0, 1) for tokens, _, _ in asking])
        query_TD = F.linear(residual_TD, weight[:size], bias[:size])
        queries = torch.split(
            query_TD, [tokens.shape[0] * tokens.shape[1] for tokens, _, _ in asking]
        )
        attended = [
            attend(
                query.view_as(tokens),
                key[rows],
                value[rows],
                mask,
                self.num_heads,
                self._attention_dropout(),
            ).flatten(0, 1)
            for query, (tokens, mask, rows) in zip(queries, asking, strict=True)
        ]
        return self._finish(residual_TD, torch.cat(attended))

    def _finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """The rest of the layer, of tokens and what they attended to."""
        hidden = self._add_norm(self.attended(attended), residual, self.attention_norm)
        return self._add_norm(self.down(self._activated(hidden)), hidden, self.norm)

    def _add_norm(self, update: Tensor, residual: Tensor, norm: nn.LayerNorm) -> Tensor:
        if (
            self.has_norm_kernels
            and self.training
            and update.dtype == residual.dtype == torch.bfloat16
        ):
            seed = torch.randint(1 << 62, (1,), device=update.device)
            given = (update, residual, norm.weight, norm.bias, seed, self.dropout.p, norm.eps)
            result: Tensor = torch.ops.graphformers.add_norm(*given)[0]
            return result
        result = norm(residual + self.dropout(update))
        return result.to(residual.dtype)

    def _activated(self, hidden: Tensor) -> Tensor:
        """The MLP's inner states.

        In bfloat16 on a GPU, GELU is part of the product before it and costs next to nothing: in
        its tanh form, which differs from the other by 0.0005 at most, where rounding the inner
        state first differs by more. There is no gradient of it.
        """
        weight, bias = self.up.weight, self.up.bias
        is_fast = hidden.is_cuda and hidden.dtype == weight.dtype == torch.bfloat16
        if self.training or torch.is_grad_enabled() or not is_fast:
            return F.gelu(self.up(hidden), approximate=self.approximate)
        return torch._addmm_activation(bias, hidden.flatten(0, -2), weight.t(), use_gelu=True).view(
            *hidden.shape[:-1], -1
        )


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, num_heads: int, dropout: float
) -> Tensor:
    """Multi-head scaled dot-product attention of (…, Q, D) over (…, S, D); the mask is added to the
    scores.
    """
    q, k, v = (x.view(*x.shape[:-1], num_heads, -1).transpose(1, 2) for x in (query, key, value))
    return (
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        .transpose(1, 2)
        .flatten(2)
    )


def attend_once(
    query_BD: Tensor,
    key_BND: Tensor,
    value_BND: Tensor,
    mask_BHN: Tensor,
    num_heads: int,
    dropout: float,
) -> Tensor:
    """(B, D): the same for one query each, written out: attention kernels are made for many queries
    and keys.
    """
    precision = torch.promote_types(value_BND.dtype, torch.float32)
    split = (
        x.view(*x.shape[:-1], num_heads, -1).to(precision)
        for x in (query_BD[:, None], key_BND, value_BND)
    )
    query_B1Hd, key_BNHd, value_BNHd = split
    scores_BNH = (query_B1Hd * key_BNHd).sum(-1) / math.sqrt(
        query_B1Hd.shape[-1]
    ) + mask_BHN.transpose(1, 2)
    weights_BNH = F.dropout(scores_BNH.softmax(1), dropout)
    attended_BHd: Tensor = (weights_BNH[..., None] * value_BNHd).sum(1)
    return attended_BHd.flatten(1).to(value_BND.dtype)


def take_rows(mask_RHWW: Tensor, cls_RC: Tensor) -> Tensor:
    """(R, 1 or H, C, W): the rows of a mask that belong to the tokens at `cls_RC`."""
    return mask_RHWW.gather(
        2, cls_RC[:, None, :, None].expand(-1, mask_RHWW.shape[1], -1, mask_RHWW.shape[-1])
    )


def take_tokens(hidden_RWD: Tensor, cls_RC: Tensor) -> Tensor:
    """(R, C, D): the states of the tokens at `cls_RC`."""
    return hidden_RWD.gather(1, cls_RC[:, :, None].expand(-1, -1, hidden_RWD.shape[-1]))


class GraphAttention(nn.Module):
    """The GNN of eq. 1: multi-head attention over the states of a neighbourhood's nodes, with a
    bias for who looks at whom.
    """

    def __init__(self, config: ModelConfig, start: float = 1.0) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.query_key_value = nn.Linear(size, 3 * size)
        # centre-centre, centre-neighbour (either way), neighbour-neighbour
        self.bias = nn.Parameter(torch.zeros(3, config.num_heads)) if config.position_bias else None
        self.start_as_average(start)

    def start_as_average(self, times: float) -> None:
        """V = identity, Q and K small: the graph token starts as the mean of the neighbourhood,
        which later layers can read.

        Or as a multiple of it: an average is shorter than what it is an average of, and small keys
        get little attention.
        """
        nn.init.normal_(self.query_key_value.weight, std=0.02)
        nn.init.zeros_(self.query_key_value.bias)
        with torch.no_grad():
            nn.init.eye_(self.query_key_value.weight[-self.query_key_value.in_features :]).mul_(
                times
            )

    def forward(
        self, states_ND: Tensor, index_BN: Tensor, mask_BHNN: Tensor, is_known: bool = False
    ) -> Tensor:
        """(B, Q, D) graph tokens of the first Q nodes of each neighbourhood, as many as the mask
        has rows.

        `states_ND` are states of nodes, `index_BN` says which of them make up each neighbourhood,
        the centre first. Where neighbours are known from before, reading them is most of the work:
        then no keys and values are made of them.
        """
        if is_known and not self.training:
            return self._without_keys(states_ND[index_BN], mask_BHNN[:, :, 0])[:, None]
        size = states_ND.shape[-1]
        projected_ND = self.query_key_value(states_ND)
        query_ND, key_value_ND = projected_ND[:, :size], projected_ND[:, size:]
        key_BND, value_BND = key_value_ND[index_BN].chunk(2, -1)
        dropout = self.dropout if self.training else 0.0
        if mask_BHNN.shape[2] == 1:
            query_BD = query_ND[index_BN[:, 0]]
            return attend_once(
                query_BD, key_BND, value_BND, mask_BHNN[:, :, 0], self.num_heads, dropout
            )[:, None]
        query_BND = query_ND[index_BN[:, : mask_BHNN.shape[2]]]
        return attend(query_BND, key_BND, value_BND, mask_BHNN, self.num_heads, dropout)

    def _without_keys(self, state_BND: Tensor, mask_BHN: Tensor) -> Tensor:
        """(B, D): the same for the centres alone. q (W z) is (q W) z, and a sum of W z is W times
        the sum of z.

        So projections are paid for centres, not for neighbours. A bias of keys adds the same to all
        scores: it is left out.
        """
        count, size = len(state_BND), state_BND.shape[-1]
        weight_3HdD = self.query_key_value.weight.view(3, self.num_heads, -1, size)
        bias_3Hd = self.query_key_value.bias.view(3, self.num_heads, -1)
        query_BD = F.linear(state_BND[:, 0], weight_3HdD[0].flatten(0, 1), bias_3Hd[0].flatten())
        query_BHd = query_BD.view(count, self.num_heads, -1) / math.sqrt(size // self.num_heads)
        asked_BHD = torch.einsum("bhd,hdD->bhD", query_BHd, weight_3HdD[1])
        weights_BHN = (asked_BHD @ state_BND.transpose(1, 2) + mask_BHN).softmax(-1)
        mixed_BHD = weights_BHN.to(state_BND.dtype) @ state_BND
        return (torch.einsum("bhD,hdD->bhd", mixed_BHD, weight_3HdD[2]) + bias_3Hd[2]).flatten(1)

    def mask(self, open_BK: Tensor, num_queries: int) -> Tensor:
        """(B, H, num_queries, N): the position bias where there is a node to look at, -inf where
        there is none.
        """
        weight = self.query_key_value.weight
        bias_3H = (
            weight.new_zeros(3, self.num_heads) if self.bias is None else self.bias.to(weight.dtype)
        )
        center_BH1N = self._seen_by(bias_3H[:2], open_BK)
        if num_queries == 1:
            return center_BH1N
        return torch.cat(
            [center_BH1N, self._seen_by(bias_3H[1:], open_BK).expand(-1, -1, num_queries - 1, -1)],
            2,
        )

    def _seen_by(self, bias_2H: Tensor, open_BK: Tensor) -> Tensor:
        """(B, H, 1, N): the biases for looking at the centre, and at each of its neighbours."""
        near_BH1K = torch.where(open_BK[:, None, None], bias_2H[1, :, None, None], -math.inf)
        return torch.cat([bias_2H[0, :, None, None].expand(len(open_BK), -1, 1, 1), near_BH1K], -1)


def neighborhood_index(index_BK: Tensor, open_BK: Tensor) -> Tensor:
    """(B, N): the nodes of each neighbourhood among B centres followed by M neighbours; the centre
    where there is none.
    """
    own_B1 = torch.arange(len(index_BK), device=index_BK.device)[:, None]
    return torch.cat([own_B1, torch.where(open_BK, index_BK + len(index_BK), own_B1)], 1)


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

    def mask(self, batch: PackedBatch) -> Tensor:
        """(R, 1 or H, W, W): a token sees the tokens of its own node, its graph token included.

        -inf where it must not look, the relative position bias, if any, elsewhere. Padding sees
          padding, so that no row of the
        softmax is empty.
        """
        open_RWW = batch.slots_RW[:, :, None] == batch.slots_RW[:, None, :]
        bias = self.embedding.norm.weight.new_zeros(1)
        if self.relative_bias is not None:
            bias = self.relative_bias(batch.positions_RW, batch.is_graph_RW)
        return torch.where(open_RWW[:, None], bias.to(working_dtype(bias)), -math.inf)

    def states(self, batch: PackedBatch, num_layers: int, *, first: int = 1) -> list[Tensor]:
        """The states of nodes (num_nodes, D) after layers `first` to `num_layers`, texts read on
        their own: eq. 5, g in N_x.
        """
        if num_layers == 0 or batch.num_nodes == 0:
            return [
                self.embedding.norm.weight.new_zeros(batch.num_nodes, self.config.hidden_size)
            ] * (num_layers + 1 - first)
        hidden, mask, pool = self.embed(batch), self.mask(batch), self.pool(batch)
        full = num_layers - 1 if pool[1] is None else num_layers
        found = []
        for number, layer in enumerate(self.layers[:full], 1):
            hidden = layer(hidden, mask)
            if number >= first:
                found.append(node_states(hidden, *pool))
        if full == num_layers:
            return found
        last_TD = self.layers[num_layers - 1](hidden, mask, batch.cls_RC)
        return [*found, last_TD[batch.places_N]]

    def pool(self, batch: PackedBatch) -> tuple[Tensor, Tensor | None]:
        """How the states of nodes are taken from those of tokens, for `node_states`."""
        if self.config.pooling == "cls":
            return batch.cls_N, None
        own_RCW = slot_owners(batch) & ~batch.is_graph_RW[:, None]
        return batch.places_N, own_RCW.to(working_dtype(self.embedding.norm.weight))


def without_graph_tokens(mask_RHWW: Tensor, batch: PackedBatch) -> Tensor:
    """The mask of the first layer, before which nothing has been written in the places of graph
    tokens.
    """
    return mask_RHWW.masked_fill(batch.is_graph_RW[:, None, None, :], -math.inf)


def slot_owners(batch: PackedBatch) -> Tensor:
    """(R, C, W) bool: which words belong to the node in each slot."""
    slots_C = torch.arange(batch.num_slots, device=batch.slots_RW.device)
    return batch.slots_RW[:, None, :] == slots_C[:, None]


def node_states(hidden_RWD: Tensor, places_N: Tensor, own_RCW: Tensor | None = None) -> Tensor:
    """(num_nodes, D): the states at the nodes' places; with `own_RCW`, ones for the tokens of each
    slot, of their means.
    """
    if own_RCW is not None:  # divided last: a share of one in thirteen is no number of bfloat16
        hidden_RWD = own_RCW @ hidden_RWD / own_RCW.sum(-1, keepdim=True).clamp(min=1)
    return hidden_RWD.flatten(0, 1)[places_N]


def write_tokens(hidden_RWD: Tensor, tokens_ND: Tensor, places_N: Tensor) -> Tensor:
    """`hidden_RWD` with tokens written at the given places among its R * W; in place where no
    gradient is wanted.

    (There by row and column: through a flat view, torch.compile would make two copies of it.)
    """
    # under autocast they differ
    width, tokens_ND = hidden_RWD.shape[1], tokens_ND.to(hidden_RWD.dtype)
    if torch.is_grad_enabled():
        return hidden_RWD.flatten(0, 1).index_copy(0, places_N, tokens_ND).view_as(hidden_RWD)
    return hidden_RWD.index_put_((places_N // width, places_N % width), tokens_ND)


def write_graph_tokens(
    gnn: nn.Module,
    hidden_RWD: Tensor,
    own_ND: Tensor,
    near_MD: Tensor | None,
    mask: Tensor,
    links: Links,
) -> Tensor:
    """The graph aggregation, eq. 1, its results written in front of the centres' [CLS].

    `own_ND` are states of the batch, `near_MD` of nodes behind them that are known from before.
    `links` are index_BN, cls_N and, where neighbours get graph tokens too (bidirectional), their
    places_M among the B * K.
    """
    index_BN, cls_N, places_M = links
    states_ND = own_ND if near_MD is None else torch.cat([own_ND, near_MD.to(own_ND.dtype)])
    graph_BQD = gnn(states_ND, index_BN, mask, near_MD is not None)
    graph_ND = graph_BQD[:, 0]
    if places_M is not None:
        graph_ND = torch.cat([graph_ND, graph_BQD[:, 1:].flatten(0, 1)[places_M]])
    return write_tokens(hidden_RWD, graph_ND, cls_N[: len(graph_ND)] - 1)


class NestedLayer(nn.Module):
    """A graph aggregation and the Transformer layer that reads it, eqs. 1 to 4.

    It owns no weights; it is a module so that both can be compiled as one and called at the price
    of one.
    """

    def forward(
        self,
        gnn: nn.Module,
        layer: nn.Module,
        hidden_RWD: Tensor,
        masks: tuple[Tensor, Tensor],
        links: Links,
        pool: tuple[Tensor, Tensor | None],
        near_MD: Tensor | None,
        cls_RC: Tensor | None = None,
    ) -> Tensor:
        """`masks` are those of tokens and of nodes, `links` index_BN, cls_N and places_M; `near_MD`
        states known from before.

        `cls_RC` as in TransformerLayer: of some rows nothing but these tokens.
        """
        written_RWD = write_graph_tokens(
            gnn, hidden_RWD, node_states(hidden_RWD, *pool), near_MD, masks[1], links
        )
        result: Tensor = layer(written_RWD, masks[0], cls_RC)
        return result


class Places(NamedTuple):
    """Where a kernel finds the states of neighbourhoods, and where it writes graph tokens."""

    states_BN: Tensor  # among all tokens
    line_BN: Tensor  # in the line of tokens before the last layer (`TransformerLayer._part`)
    graph_B: Tensor  # in either


class Sight(nn.Module):
    """Who sees whom, made once for all layers.

    It owns no weights; it is a module so that its many small steps can be compiled as one.
    """

    def forward(
        self,
        text: TextEncoder,
        gnn: nn.ModuleList,
        batch: PackedNeighborhoods,
        everyone: bool,
        at_once: bool,
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor], Places | None]:
        """index_BN, the masks of tokens, of the first layer and of each graph attention; and
        places, if asked for.
        """
        index_BN = neighborhood_index(batch.index_BK, batch.open_BK)
        num_queries = index_BN.shape[1] if everyone else 1
        masks = [
            attention.mask(batch.open_BK, num_queries)
            for attention in gnn
            if isinstance(attention, GraphAttention)
        ]
        mask = text.mask(batch.nodes)
        cls_N = batch.nodes.cls_N
        places = (
            Places(cls_N[index_BN], batch.line_N[index_BN], cls_N[: len(index_BN)] - 1)
            if at_once
            else None
        )
        return index_BN, mask, without_graph_tokens(mask, batch.nodes), masks, places


class GraphFormersNetwork(nn.Module):
    """Algorithm 1: layer 0 reads texts on their own; before every later layer the nodes of a
    neighbourhood exchange states.

    The graph token has a place of its own in the row, in front of the node's [CLS], and is written
    anew before every layer. So keys and values are made of [graph token; H], as in the paper's
    asymmetric attention; the query that is made of it as well is read by nobody.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.text = TextEncoder(config)
        count = 1 if config.share_gnn else config.num_layers - 1
        self.gnn = nn.ModuleList(GraphAttention(config, config.graph_start) for _ in range(count))
        self.sight, self.nested = Sight(), NestedLayer()

    def neighbor_states(self, batch: PackedBatch) -> list[Tensor]:
        """z^1..z^{L-1} of nodes read on their own, (M, D) each: what neighbours contribute, whoever
        asks (unidirectional).
        """
        return self.text.states(batch, self.config.num_layers - 1)

    def center_vectors(
        self, batch: PackedBatch, states: list[Tensor], index_BK: Tensor, open_BK: Tensor
    ) -> Tensor:
        """(B, D) float32: centres read in the light of their neighbours' states, known from before
        (eq. 5, g = x).
        """
        nobody_M = index_BK.new_zeros(0)
        return self.forward(
            PackedNeighborhoods(
                batch, batch.num_nodes, len(batch.tokens_RW), index_BK, open_BK, nobody_M, nobody_M
            ),
            states,
        )

    def forward(self, batch: PackedNeighborhoods, near: list[Tensor] | None = None) -> Tensor:
        """(B, D) float32: the vectors of the centres; everything is read from scratch, but for
        states known from before.

        Centres and neighbours go through the layers side by side, in one tensor. Of the last layer
        nothing but the centres' states is read, and of neighbours in the layer before nothing but
        theirs. Where these are [CLS], no more is computed.
        """
        nodes, rows, last, layers = (
            batch.nodes,
            batch.center_rows,
            self.config.num_layers - 1,
            self.text.layers,
        )
        everyone = self.config.direction == "bidirectional" and near is None
        at_once = near is None and not everyone and self._can_write_at_once(batch)
        index_BN, mask, first_mask, masks, places = self.sight(
            self.text, self.gnn, batch, everyone, at_once
        )
        links, pool = (
            (index_BN, nodes.cls_N, batch.places_M if everyone else None),
            self.text.pool(nodes),
        )
        # (graph attention, mask) before each of the layers 1..L-1
        attentions = [*zip(self.gnn, masks, strict=True)] * (last if self.config.share_gnn else 1)
        known: Sequence[Tensor | None] = near or [None] * last
        is_cut = pool[1] is None and rows < len(nodes.tokens_RW)
        hidden = self.text.embed(nodes)
        for layer in range(last):
            cls_RC = nodes.cls_RC[rows:] if is_cut and layer == last - 1 else None
            if layer == 0:
                hidden = layers[layer](hidden, first_mask, cls_RC)
            elif places is not None:
                self._write_at_once(
                    hidden.view(-1, hidden.shape[-1]),
                    places.states_BN,
                    places.graph_B,
                    *attentions[layer - 1],
                )
                hidden = layers[layer](hidden, mask, cls_RC)
            else:
                gnn, graph_mask = attentions[layer - 1]
                hidden = self.nested(
                    gnn,
                    layers[layer],
                    hidden,
                    (mask, graph_mask),
                    links,
                    pool,
                    known[layer - 1],
                    cls_RC,
                )
        if places is not None and last > 0:
            states_BN, line_TD = (
                places.line_BN if is_cut else places.states_BN,
                hidden.view(-1, hidden.shape[-1]),
            )
            self._write_at_once(line_TD, states_BN, places.graph_B, *attentions[last - 1])
            hidden = self._center_tokens(line_TD, batch)
        elif last > 0:
            hidden, states_ND = (
                self._apart(hidden, batch) if is_cut else (hidden, node_states(hidden, *pool))
            )
            gnn, graph_mask = attentions[last - 1]
            hidden = write_graph_tokens(
                gnn, hidden, states_ND, known[last - 1], graph_mask, (*links[:2], None)
            )
        return self._last(hidden, mask if last > 0 else first_mask, batch, pool[1])

    def _can_write_at_once(self, batch: PackedNeighborhoods) -> bool:
        """Whether there is one kernel for a whole graph aggregation: on a GPU, in bfloat16, without
        gradients, of [CLS] states.

        It projects a neighbour for every centre that has it, so most must have few.
        """
        weight, (count, width) = self.text.embedding.norm.weight, batch.index_BK.shape
        if not weight.is_cuda or weight.dtype != torch.bfloat16 or self.config.pooling != "cls":
            return False
        if (
            self.training
            or torch.is_grad_enabled()
            or count * (1 + width) > 2 * batch.nodes.num_nodes
        ):
            return False
        kernels = kernels_on(weight.device)
        return kernels is not None and kernels.fits(
            self.config.hidden_size, self.config.num_heads, 1 + width
        )

    def _write_at_once(
        self,
        tokens_TD: Tensor,
        rows_BN: Tensor,
        places_B: Tensor,
        gnn: nn.Module,
        mask_BHQN: Tensor,
    ) -> None:
        projection: Any = gnn.query_key_value
        kernels_on(tokens_TD.device).write_at_once(
            tokens_TD,
            rows_BN,
            places_B,
            mask_BHQN[:, :, 0],
            projection.weight,
            projection.bias,
            self.config.num_heads,
        )

    def _center_tokens(self, line_TD: Tensor, batch: PackedNeighborhoods) -> Tensor:
        """(R, W, D): the tokens of the centres' rows, which come first in a line."""
        rows, width = batch.center_rows, batch.nodes.tokens_RW.shape[1]
        return line_TD[: rows * width].view(rows, width, -1)

    def _apart(self, line_TD: Tensor, batch: PackedNeighborhoods) -> tuple[Tensor, Tensor]:
        """The centres' tokens (R, W, D), and everyone's [CLS] states, of a layer computed for
        neighbours' [CLS] alone.
        """
        return self._center_tokens(line_TD, batch), line_TD[batch.line_N]

    def _last(
        self, hidden: Tensor, mask: Tensor, batch: PackedNeighborhoods, own_RCW: Tensor | None
    ) -> Tensor:
        """The last layer, of the centres alone."""
        rows, places_B, layer = (
            batch.center_rows,
            batch.nodes.places_N[: batch.num_centers],
            self.text.layers[-1],
        )
        if own_RCW is not None:
            return node_states(layer(hidden[:rows], mask[:rows]), places_B, own_RCW[:rows]).float()
        last_TD: Tensor = layer(hidden[:rows], mask[:rows], batch.nodes.cls_RC[:rows])
        return last_TD[places_B].float()


@cache
def kernels_on(device: torch.device, name: str = "kernels") -> Any:
    """A module of GPU kernels, kernels.py or norms.py; None where it does not work."""
    try:
        module = import_module(f"graphformers.model.{name}")
        return module if module.works_on(device) else None
    except Exception as error:
        # no Triton, no compiler, a GPU that it does not know: whatever it is, there is another way
        logging.getLogger(__name__).info("without %s.py: %s", name, error)
        return None
