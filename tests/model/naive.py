"""A second implementation of the paper, written from Algorithm 1 with loops: one node, one head,
one token at a time.

It shares nothing with the network but the names of its weights.
"""

import math

import torch
from torch import Tensor

from graphformers.model.config import ModelConfig

Weights = dict[str, Tensor]


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(weights: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps) * weights[f"{name}.weight"] + weights[
        f"{name}.bias"
    ]


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def embed(config: ModelConfig, weights: Weights, tokens: list[int]) -> Tensor:
    """H^0 of one text, (P, D)."""
    words = weights["text.embedding.words.weight"][tokens]
    positions = weights["text.embedding.positions.weight"][: len(tokens)]
    return layer_norm(weights, "text.embedding.norm", words + positions, config.layer_norm_eps)


def bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """The bucket of key position minus query position."""
    half = num_buckets // 2
    start = half if distance > 0 else 0
    size, exact = abs(distance), half // 2
    if size < exact:
        return start + size
    return start + min(
        half - 1,
        exact + int(math.log(size / exact) / math.log(max_distance / exact) * (half - exact)),
    )


def transformer_layer(
    config: ModelConfig, weights: Weights, i: int, hidden: Tensor, graph_token: Tensor | None
) -> Tensor:
    """TRM^i of one text: H (P, D), and the graph token (D,) in front of keys and values where there
    is one.
    """
    name, size, head = (
        f"text.layers.{i}",
        config.hidden_size,
        config.hidden_size // config.num_heads,
    )
    weight, bias = (
        torch.cat([weights[f"{name}.attention.{part}.{kind}"] for part in ("query", "key_value")])
        for kind in ("weight", "bias")
    )
    augmented = hidden if graph_token is None else torch.cat([graph_token[None], hidden])
    heads = []
    for h in range(config.num_heads):
        rows = slice(h * head, (h + 1) * head)
        query = hidden @ weight[:size][rows].T + bias[:size][rows]
        key = augmented @ weight[size : 2 * size][rows].T + bias[size : 2 * size][rows]
        value = augmented @ weight[2 * size :][rows].T + bias[2 * size :][rows]
        outputs = []
        for p in range(len(hidden)):
            scores = []
            for s in range(len(augmented)):
                score = query[p] @ key[s] / math.sqrt(head)
                if config.relative_buckets:
                    place = s if graph_token is None else s - 1
                    if place < 0:
                        score = score + weights["text.relative_bias.graph_token"][h]
                    else:
                        which = bucket(place - p, config.relative_buckets, config.relative_distance)
                        score = score + weights["text.relative_bias.tokens.weight"][which, h]
                scores.append(score)
            outputs.append(torch.softmax(torch.stack(scores), 0) @ value)
        heads.append(torch.stack(outputs))
    attended = linear(weights, f"{name}.attention.output", torch.cat(heads, -1))
    hidden = layer_norm(weights, f"{name}.attention_norm", hidden + attended, config.layer_norm_eps)
    inner = linear(weights, f"{name}.mlp.down", gelu(linear(weights, f"{name}.mlp.up", hidden)))
    return layer_norm(weights, f"{name}.mlp_norm", hidden + inner, config.layer_norm_eps)


def graph_attention(
    config: ModelConfig, weights: Weights, name: str, states: list[Tensor], who: int
) -> Tensor:
    """Eq. 1 for node `who` of a neighbourhood whose node 0 is the centre: ẑ (D,)."""
    head = config.hidden_size // config.num_heads
    result = []
    for h in range(config.num_heads):
        rows = slice(h * head, (h + 1) * head)
        scores = []
        for other, state in enumerate(states):
            score = (
                linear(weights, f"{name}.query", states[who])[rows]
                @ linear(weights, f"{name}.key", state)[rows]
                / math.sqrt(head)
            )
            if config.position_bias:
                relation = 0 if who == 0 and other == 0 else 1 if who == 0 or other == 0 else 2
                score = score + weights[f"{name}.bias"][relation, h]
            scores.append(score)
        values = torch.stack([linear(weights, f"{name}.value", state)[rows] for state in states])
        result.append(torch.softmax(torch.stack(scores), 0) @ values)
    return torch.cat(result)


def pooled(config: ModelConfig, hidden: Tensor) -> Tensor:
    """What stands for a text of states (P, D): its [CLS], or the mean of all tokens; (D,)."""
    return sum(hidden) / len(hidden) if config.pooling == "mean" else hidden[0]  # type: ignore[return-value]


def graphformers(config: ModelConfig, weights: Weights, texts: list[list[int]]) -> Tensor:
    """Algorithm 1 for one neighbourhood: texts[0] is the centre's; returns h_x (D,)."""
    hidden = [
        transformer_layer(config, weights, 0, embed(config, weights, tokens), None)
        for tokens in texts
    ]
    for layer in range(1, config.num_layers):
        states = [pooled(config, text) for text in hidden]
        name = f"gnn.{0 if config.share_gnn else layer - 1}"
        following = []
        for who, text in enumerate(hidden):
            sees_graph = who == 0 or config.direction == "bidirectional"
            if len(texts) == 1 and not config.isolated_graph_token:
                sees_graph = False
            token = graph_attention(config, weights, name, states, who) if sees_graph else None
            following.append(transformer_layer(config, weights, layer, text, token))
        hidden = following
    return pooled(config, hidden[0])


def plain(config: ModelConfig, weights: Weights, tokens: list[int]) -> Tensor:
    """A text read on its own: what stands for it after each layer, (L, D)."""
    hidden, found = embed(config, weights, tokens), []
    for layer in range(config.num_layers):
        hidden = transformer_layer(config, weights, layer, hidden, None)
        found.append(pooled(config, hidden))
    return torch.stack(found)


def cascaded(config: ModelConfig, weights: Weights, texts: list[list[int]]) -> Tensor:
    """PLM and its aggregators for one neighbourhood."""
    center, *around = (plain(config, weights, tokens)[-1] for tokens in texts)
    if config.method == "plm":
        return center
    if config.method == "gat":
        return graph_attention(config, weights, "gat", [center, *around], 0)
    pooled = torch.zeros_like(center)
    if around and config.method == "max":
        pooled = torch.stack(around).max(0).values
    elif around and config.method == "mean":
        pooled = sum(around) / len(around)  # type: ignore[assignment]
    elif around:
        query = weights["attention.weight"] @ center / math.sqrt(config.hidden_size)
        shares = torch.softmax(torch.stack([query @ other for other in around]), 0)
        pooled = sum(share * other for share, other in zip(shares, around, strict=True))  # type: ignore[assignment]
    return linear(weights, "combine", torch.cat([center, pooled]))
