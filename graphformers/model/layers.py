"""The Transformer layers of a backbone, made of exchangeable parts.

What families of backbones differ in is registered under names (`register_part`): norms, MLPs, whole
layers (where norms stand, how tokens attend), position embeddings and attention masks. Another
family adds parts instead of changing this file.

Shapes: R rows, W tokens of a row, C slots of a row (nodes that share it), N nodes of a batch,
Q queries, S keys, D hidden size, H heads, d = D / H.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphformers.batching.packing import PackedBatch
from graphformers.model.config import ACTIVATIONS, ModelConfig
from graphformers.model.registry import layer_part, register_part


def working_dtype(tensor: Tensor) -> torch.dtype:
    """The type of hidden states: that of the tensor, under autocast its lower precision.

    Autocast computes norms in float32; keeping their results in float32 would double memory and
    memory traffic.
    """
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in its own type where that is more precise."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class Embedding(nn.Module):
    """Word and position embeddings.

    BERT's token type is constant here; it is added to the positions when weights are loaded.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = layer_part("positions", config.positions)(config)
        self.norm = layer_part("norm", config.norm)(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens_RW: Tensor, positions_RW: Tensor) -> Tensor:
        embedded_RWD = self.words(tokens_RW) + self.positions(positions_RW)
        hidden_RWD: Tensor = self.dropout(self.norm(embedded_RWD))
        return hidden_RWD.to(working_dtype(hidden_RWD))


@register_part("positions", "learned")
def learned_positions(config: ModelConfig) -> nn.Module:
    """A learned vector for each position: (R, W) positions to (R, W, D)."""
    return nn.Embedding(config.max_positions, config.hidden_size)


class RelativeBias(nn.Module):
    """A learnable bias per head for the distance of two tokens, and one for the graph token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.distance = config.relative_distance
        self.tokens = nn.Embedding(config.relative_buckets, config.num_heads)
        self.graph_token = nn.Parameter(torch.zeros(config.num_heads))

    def forward(self, positions_RW: Tensor, is_graph_RW: Tensor) -> Tensor:
        """(R, H, W, W): added to the score of query i and key j."""
        width = positions_RW.shape[1]
        distances = torch.arange(1 - width, width, device=positions_RW.device)
        buckets = distance_buckets(distances, self.tokens.num_embeddings, self.distance)
        offsets_RWW = positions_RW[:, None, :] - positions_RW[:, :, None] + (width - 1)
        bias_RHWW = self.tokens(buckets)[offsets_RWW].permute(0, 3, 1, 2)
        graph_bias = self.graph_token[:, None, None].to(bias_RHWW.dtype)
        return torch.where(is_graph_RW[:, None, None, :], graph_bias, bias_RHWW)


def distance_buckets(distances: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """T5's buckets: half for keys before the query, half for keys after it.

    In each half, small distances have a bucket each; larger ones share logarithmic buckets.
    """
    half = num_buckets // 2
    exact = half // 2
    size = distances.abs()
    ratio = torch.log(size.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (half - exact)).long()).clamp(max=half - 1)
    return torch.where(size < exact, size, far) + half * (distances > 0)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(..., H, d)."""
    return x.view(*x.shape[:-1], num_heads, x.shape[-1] // num_heads)


def dot_product_attention(
    query_RQD: Tensor,
    key_RSD: Tensor,
    value_RSD: Tensor,
    mask_RHQS: Tensor,
    num_heads: int,
    dropout: float,
) -> Tensor:
    """(R, Q, D): multi-head scaled dot-product attention; the mask is added to the scores."""
    q, k, v = (split_heads(x, num_heads).transpose(1, 2) for x in (query_RQD, key_RSD, value_RSD))
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_RHQS, dropout_p=dropout)
    return attended.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Multi-head attention of some tokens over others: eq. 4."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.query = nn.Linear(size, size)
        self.key_value = nn.Linear(size, 2 * size)
        self.output = nn.Linear(size, size)

    def forward(self, queries_RQD: Tensor, keys_RSD: Tensor, mask_RHQS: Tensor) -> Tensor:
        key_RSD, value_RSD = self.key_value(keys_RSD).chunk(2, -1)
        attended_RQD: Tensor = self.output(
            self.mix(self.query(queries_RQD), key_RSD, value_RSD, mask_RHQS)
        )
        return attended_RQD

    def mix(
        self, query_RQD: Tensor, key_RSD: Tensor, value_RSD: Tensor, mask_RHQS: Tensor
    ) -> Tensor:
        """(R, Q, D): the values weighted by attention, before the output projection."""
        dropout = self.dropout if self.training else 0.0
        return dot_product_attention(
            query_RQD, key_RSD, value_RSD, mask_RHQS, self.num_heads, dropout
        )


register_part("norm", "layer_norm")(nn.LayerNorm)


@register_part("mlp", "plain")
class Mlp(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.approximate = ACTIVATIONS[config.activation]
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        inner = F.gelu(self.up(hidden), approximate=self.approximate)
        result: Tensor = self.down(inner)
        return result


@register_part("layer", "post_norm")
class TransformerLayer(nn.Module):
    """A post-norm Transformer layer: eqs. 3 and 4."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        make_norm = layer_part("norm", config.norm)
        self.attention = Attention(config)
        self.attention_norm = make_norm(config.hidden_size, config.layer_norm_eps)
        self.mlp = layer_part("mlp", config.mlp)(config)
        self.mlp_norm = make_norm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_RWD: Tensor, mask_RHWW: Tensor) -> Tensor:
        return self.finish(hidden_RWD, self.attention(hidden_RWD, hidden_RWD, mask_RHWW))

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """The rest of the layer, once tokens have attended."""
        hidden = self.add_norm(attended, residual, self.attention_norm)
        return self.add_norm(self.mlp(hidden), hidden, self.mlp_norm)

    def add_norm(self, update: Tensor, residual: Tensor, norm: nn.Module) -> Tensor:
        """The residual connection, and the norm behind it."""
        result: Tensor = norm(residual + self.dropout(update))
        return result.to(residual.dtype)


@register_part("attention_mask", "own_text")
class OwnTextMask(nn.Module):
    """Tokens attend to all tokens of their own text, the graph token included.

    Padding attends to padding, so that no row of the softmax is empty.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()

    def forward(self, texts: PackedBatch) -> Tensor:
        """(R, W, W): whether the query i attends to the key j."""
        return texts.slots_RW[:, :, None] == texts.slots_RW[:, None, :]


class TextEncoder(nn.Module):
    """A backbone: embedding and Transformer layers over packed rows."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList(
            layer_part("layer", config.layer)(config) for _ in range(config.num_layers)
        )
        self.attention_mask = layer_part("attention_mask", config.attention_mask)(config)
        self.relative_bias = RelativeBias(config) if config.relative_buckets else None

    def embed(self, texts: PackedBatch) -> Tensor:
        """(R, W, D): the states before the first layer."""
        embedded: Tensor = self.embedding(texts.tokens_RW, texts.positions_RW)
        return embedded

    def mask(self, texts: PackedBatch) -> Tensor:
        """(R, 1 or H, W, W): -inf where a token does not attend, else the bias of its distance."""
        attends_RWW = self.attention_mask(texts)
        bias = self.embedding.words.weight.new_zeros(1)
        if self.relative_bias is not None:
            bias = self.relative_bias(texts.positions_RW, texts.is_graph_RW)
        return torch.where(attends_RWW[:, None], bias.to(working_dtype(bias)), -math.inf)

    def pool(self, hidden_RWD: Tensor, texts: PackedBatch) -> Tensor:
        """(N, D): the states of nodes, each its [CLS] or the mean of its tokens."""
        if self.config.pooling == "cls":
            return hidden_RWD.flatten(0, 1)[texts.cls_N]
        return pool_mean(hidden_RWD, token_owners(texts, hidden_RWD.dtype), texts.slot_N)

    def states(self, texts: PackedBatch, num_layers: int) -> list[Tensor]:
        """The states (N, D) of nodes after each of the first layers, without neighbours."""
        hidden_RWD, mask_RHWW = self.embed(texts), self.mask(texts)
        states = []
        for layer in self.layers[:num_layers]:
            hidden_RWD = layer(hidden_RWD, mask_RHWW)
            states.append(self.pool(hidden_RWD, texts))
        return states

    def encode(self, texts: PackedBatch) -> Tensor:
        """(N, D): the states of nodes after the last layer, without neighbours."""
        return self.states(texts, len(self.layers))[-1]


def mask_graph_tokens(mask_RHWW: Tensor, texts: PackedBatch) -> Tensor:
    """The mask for a layer before which no graph tokens were written."""
    return mask_RHWW.masked_fill(texts.is_graph_RW[:, None, None, :], -math.inf)


def mask_isolated(mask_RHWW: Tensor, centers: PackedBatch, exists_BK: Tensor) -> Tensor:
    """The mask for layers in which centres without neighbours have no graph token."""
    is_isolated_B = ~exists_BK.any(1)
    none_T = torch.zeros_like(centers.is_graph_RW).flatten()
    places_B = centers.cls_N[: len(is_isolated_B)] - 1
    is_hidden_T = none_T.index_copy(0, places_B, is_isolated_B)
    is_hidden_R11W = is_hidden_T.view(len(mask_RHWW), 1, 1, -1)
    return mask_RHWW.masked_fill(is_hidden_R11W, -math.inf)


def token_owners(texts: PackedBatch, dtype: torch.dtype) -> Tensor:
    """(R, C, W): 1 for the text tokens of the node in each slot, 0 elsewhere."""
    slots_C = torch.arange(texts.num_slots, device=texts.slots_RW.device)
    own_RCW = (texts.slots_RW[:, None, :] == slots_C[:, None]) & ~texts.is_graph_RW[:, None]
    return own_RCW.to(dtype)


def pool_mean(hidden_RWD: Tensor, own_RCW: Tensor, slot_N: Tensor) -> Tensor:
    """(N, D): the mean state of the tokens in each node's slot."""
    # The sum is divided last, since bfloat16 cannot represent a fraction such as 1/13.
    mean_RCD = own_RCW @ hidden_RWD / own_RCW.sum(-1, keepdim=True).clamp(min=1)
    return mean_RCD.flatten(0, 1)[slot_N]
