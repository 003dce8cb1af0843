"""Faster layers with the same parameters as those of `graphformers.model.layers`.

Shapes: R rows, W tokens of a row, C slots of a row, N nodes, T tokens in one line, D hidden size.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphformers.batching.packing import PackedBatch, PackedNeighborhoods
from graphformers.model.compute import PRECISIONS
from graphformers.model.layers import (
    Attention,
    Mlp,
    TextEncoder,
    TransformerLayer,
    pool_mean,
    token_owners,
    working_dtype,
)

HALF = PRECISIONS["bfloat16"]
AddNormKernel = Callable[[Tensor, Tensor, nn.LayerNorm, float], Tensor]


def fused_linear(x: Tensor, *projections: nn.Linear) -> Tensor:
    """Several projections of the same states as one matrix product, side by side."""
    weight = torch.cat([projection.weight for projection in projections])
    return F.linear(x, weight, torch.cat([projection.bias for projection in projections]))


def are_plain(*projections: nn.Module) -> bool:
    """Whether projections are plain linear layers, not quantised ones for example."""
    return all(type(projection) is nn.Linear for projection in projections)


class FastAttention(Attention):
    """Attention that computes queries, keys and values as one product, if gradients are needed.

    Its backward pass is then one product, too. Without gradients this would not be faster.
    """

    def forward(self, queries_RQD: Tensor, keys_RSD: Tensor, mask_RHQS: Tensor) -> Tensor:
        is_self = queries_RQD is keys_RSD and torch.is_grad_enabled()
        if not is_self or not are_plain(self.query, self.key_value):
            return super().forward(queries_RQD, keys_RSD, mask_RHQS)
        query, key, value = fused_linear(queries_RQD, self.query, self.key_value).chunk(3, -1)
        attended: Tensor = self.output(self.mix(query, key, value, mask_RHQS))
        return attended


class FastMlp(Mlp):
    """The MLP with GELU as part of the matrix product before it.

    It is used in bfloat16 on a GPU, where the GELU then has almost no cost. The fused product uses
    GELU's tanh form, which differs from the exact one by at most 0.0005, less than the rounding of
    the inner state, and has no gradient.
    """

    def forward(self, hidden: Tensor) -> Tensor:
        weight, bias = self.up.weight, self.up.bias
        is_half = hidden.is_cuda and hidden.dtype == weight.dtype == HALF
        if self.training or torch.is_grad_enabled() or not is_half or not are_plain(self.up):
            return super().forward(hidden)
        flat = torch._addmm_activation(bias, hidden.flatten(0, -2), weight.t(), use_gelu=True)
        result: Tensor = self.down(flat.view(*hidden.shape[:-1], -1))
        return result


class FastLayer(TransformerLayer):
    """A layer that can compute only the [CLS] of some rows.

    In training in bfloat16 on a GPU, `add_norm_kernel` computes residual, dropout and norm in one.
    """

    add_norm_kernel: AddNormKernel | None = None

    def forward(
        self, hidden_RWD: Tensor, mask_RHWW: Tensor, cls_rC: Tensor | None = None
    ) -> Tensor:
        """(R, W, D); with `cls_rC`, only these tokens are computed in the last r rows.

        The result is then (T, D): all tokens of the other rows, followed by C of each of these.
        """
        if cls_rC is None:
            return super().forward(hidden_RWD, mask_RHWW)
        whole = len(hidden_RWD) - len(cls_rC)
        key, value = self.attention.key_value(hidden_RWD).chunk(2, -1)
        queries = [
            (
                take_tokens(hidden_RWD[whole:], cls_rC),
                take_mask_rows(mask_RHWW[whole:], cls_rC),
                slice(whole, None),
            )
        ]
        if whole:
            queries = [(hidden_RWD[:whole], mask_RHWW[:whole], slice(whole)), *queries]
        residual_TD = torch.cat([tokens.flatten(0, 1) for tokens, _, _ in queries])
        sizes = [tokens.shape[0] * tokens.shape[1] for tokens, _, _ in queries]
        projected = torch.split(self.attention.query(residual_TD), sizes)
        attended_TD = torch.cat(
            [
                self.attention.mix(query.view_as(tokens), key[rows], value[rows], mask).flatten(
                    0, 1
                )
                for query, (tokens, mask, rows) in zip(projected, queries, strict=True)
            ]
        )
        return self.finish(residual_TD, self.attention.output(attended_TD))

    def add_norm(self, update: Tensor, residual: Tensor, norm: nn.Module) -> Tensor:
        kernel = self.add_norm_kernel
        if kernel is not None and self.training and update.dtype == residual.dtype == HALF:
            assert isinstance(norm, nn.LayerNorm)
            return kernel(update, residual, norm, self.dropout.p)
        return super().add_norm(update, residual, norm)


def run_layer(
    layer: nn.Module, hidden_RWD: Tensor, mask_RHWW: Tensor, cls_rC: Tensor | None
) -> Tensor:
    """The states after a layer of any class, with `cls_rC` in a line as from `FastLayer`."""
    if isinstance(layer, FastLayer):
        result: Tensor = layer(hidden_RWD, mask_RHWW, cls_rC)
        return result
    hidden_RWD = layer(hidden_RWD, mask_RHWW)
    if cls_rC is None:
        return hidden_RWD
    whole = len(hidden_RWD) - len(cls_rC)
    last_rCD = take_tokens(hidden_RWD[whole:], cls_rC)
    return torch.cat([hidden_RWD[:whole].flatten(0, 1), last_rCD.flatten(0, 1)])


class Pooling(NamedTuple):
    """Index tensors to pool the states of nodes from those of tokens, computed once per pass."""

    # indices of all tokens; with `own_RCW`, of all slots
    row_N: Tensor
    # for mean pooling, the tokens of the node in each slot
    own_RCW: Tensor | None

    def of_centers(self, batch: PackedNeighborhoods) -> "Pooling":
        """The pooling of only the centres of a batch."""
        own_RCW = None if self.own_RCW is None else self.own_RCW[: batch.center_rows]
        return Pooling(self.row_N[: batch.num_centers], own_RCW)

    def pool(self, hidden_RWD: Tensor) -> Tensor:
        """(N, D): the states of nodes."""
        if self.own_RCW is not None:
            return pool_mean(hidden_RWD, self.own_RCW, self.row_N)
        return hidden_RWD.flatten(0, 1)[self.row_N]


class FastTextEncoder(TextEncoder):
    """A text encoder that computes only [CLS] in a layer whose other states are not used."""

    def pooling(self, texts: PackedBatch) -> Pooling:
        """The pooling of these texts."""
        if self.config.pooling == "cls":
            return Pooling(texts.cls_N, None)
        dtype = working_dtype(self.embedding.words.weight)
        return Pooling(texts.slot_N, token_owners(texts, dtype))

    def states(self, texts: PackedBatch, num_layers: int) -> list[Tensor]:
        return self._states(texts, num_layers, first=1)

    def encode(self, texts: PackedBatch) -> Tensor:
        return self._states(texts, len(self.layers), first=len(self.layers))[0]

    def _states(self, texts: PackedBatch, num_layers: int, first: int) -> list[Tensor]:
        """The states after layers `first` to `num_layers`, counted from 1."""
        if num_layers == 0 or texts.num_nodes == 0:
            weight = self.embedding.words.weight
            empty = weight.new_zeros(texts.num_nodes, self.config.hidden_size)
            return [empty] * (num_layers + 1 - first)
        hidden, mask, pooling = self.embed(texts), self.mask(texts), self.pooling(texts)
        states = []
        for number, layer in enumerate(self.layers[: num_layers - 1], 1):
            hidden = layer(hidden, mask)
            if number >= first:
                states.append(pooling.pool(hidden))
        last = self.layers[num_layers - 1]
        return [*states, self.last_states(last, hidden, mask, texts, pooling)]

    def last_states(
        self,
        layer: nn.Module,
        hidden_RWD: Tensor,
        mask_RHWW: Tensor,
        texts: PackedBatch,
        pooling: Pooling,
    ) -> Tensor:
        """(N, D): the states of nodes after a layer whose other states are not used."""
        if pooling.own_RCW is not None:
            return pooling.pool(layer(hidden_RWD, mask_RHWW))
        return run_layer(layer, hidden_RWD, mask_RHWW, texts.cls_RC)[texts.slot_N]


def take_tokens(hidden_RWD: Tensor, cls_RC: Tensor) -> Tensor:
    """(R, C, D): the states of the tokens at `cls_RC`."""
    return hidden_RWD.gather(1, cls_RC[:, :, None].expand(-1, -1, hidden_RWD.shape[-1]))


def take_mask_rows(mask_RHWW: Tensor, cls_RC: Tensor) -> Tensor:
    """(R, 1 or H, C, W): the rows of a mask for the tokens at `cls_RC`."""
    index = cls_RC[:, None, :, None].expand(-1, mask_RHWW.shape[1], -1, mask_RHWW.shape[-1])
    return mask_RHWW.gather(2, index)
