"""Faster GraphFormers with the same parameters as those of `graphformers.model.network`.

Centres and neighbours that are read from scratch go through the layers in one tensor, the centres'
rows first, so that each layer is launched once. Of the last layer only the centres' states are
computed, and of neighbours in the layer before only theirs. Masks are computed once for all layers.

Shapes: as in network.py, and C slots of a row, T tokens in one line.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from graphformers.batching.packing import NeighborIndex, PackedBatch, PackedNeighborhoods
from graphformers.model.fast.kernels import usable_kernel
from graphformers.model.fast.layers import (
    HALF,
    FastTextEncoder,
    Pooling,
    are_plain,
    fused_linear,
    run_layer,
)
from graphformers.model.layers import mask_graph_tokens
from graphformers.model.network import (
    BidirectionalNetwork,
    GraphAttention,
    GraphFormersNetwork,
    MutualGraphAttention,
    each_node,
    write_graph_tokens,
)


class FastGraphAttention(GraphAttention):
    """A graph attention in few products, which reads cached states without projecting them."""

    def project(self, states_ND: Tensor, group_BG: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not are_plain(self.query, self.key, self.value):
            return super().project(states_ND, group_BG)
        query_ND, key_BGD, value_BGD = project_once(self, states_ND, group_BG)
        return query_ND[group_BG[:, 0]], key_BGD, value_BGD

    def attend_cached(self, states_ND: Tensor, group_BG: Tensor, mask_BHG: Tensor) -> Tensor:
        """(B, D): the same as `attend`, for states that few centres read.

        q (W z) is (q W) z, and a sum of W z is W times the sum of z. So projections are paid for
        centres, not for neighbours. The keys' bias adds the same to all scores and is left out.
        Without dropout only.
        """
        if self.training or not are_plain(self.query, self.key, self.value):
            return self.attend(states_ND, group_BG, mask_BHG)
        (count, _), size, states_BGD = group_BG.shape, states_ND.shape[1], states_ND[group_BG]
        heads = (self.num_heads, size // self.num_heads)
        query_BHd = self.query(states_BGD[:, 0]).view(count, *heads) / math.sqrt(heads[1])
        asked_BHD = torch.einsum("bhd,hdD->bhD", query_BHd, self.key.weight.view(*heads, size))
        weights_BHG = (asked_BHD @ states_BGD.transpose(1, 2) + mask_BHG).softmax(-1)
        mixed_BHD = weights_BHG.to(states_BGD.dtype) @ states_BGD
        value_HdD, bias_Hd = self.value.weight.view(*heads, size), self.value.bias.view(*heads)
        return (torch.einsum("bhD,hdD->bhd", mixed_BHD, value_HdD) + bias_Hd).flatten(1)


class FastMutualGraphAttention(MutualGraphAttention):
    """A mutual graph attention in few products."""

    def project(self, states_ND: Tensor, group_BG: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not are_plain(self.query, self.key, self.value):
            return super().project(states_ND, group_BG)
        query_ND, key_BGD, value_BGD = project_once(self, states_ND, group_BG)
        return query_ND[group_BG], key_BGD, value_BGD


def project_once(
    gnn: GraphAttention, states_ND: Tensor, group_BG: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (N, D), and keys and values (B, G, D) of groups: one product, one gather of both."""
    size = states_ND.shape[-1]
    projected_ND = fused_linear(states_ND, gnn.query, gnn.key, gnn.value)
    key_BGD, value_BGD = projected_ND[:, size:][group_BG].chunk(2, -1)
    return projected_ND[:, :size], key_BGD, value_BGD


class Links(NamedTuple):
    """Which nodes make up each group, and which nodes get graph tokens."""

    group_BG: Tensor  # rows of the nodes' states: centres, then neighbours
    cls_N: Tensor  # where the nodes' [CLS] are among all tokens
    first_use_M: Tensor | None  # with neighbours' graph tokens: their places among the B * K


class Masks(NamedTuple):
    """What the layers of one forward pass share."""

    group_BG: Tensor
    tokens: Tensor  # of every layer but the first
    first: Tensor  # of the first layer, before which there is no graph token
    graph: list[Tensor]  # of each graph attention
    line_N: Tensor  # where the nodes' states are after the neighbours were cut to their [CLS]


class AttentionMasks(nn.Module):
    """Computes `Masks`. It has no weights; as a module it is compiled as a whole."""

    def forward(
        self,
        text: FastTextEncoder,
        gnn: nn.ModuleList,
        nodes: PackedBatch,
        index: NeighborIndex,
        center_tokens_RW: Tensor,
    ) -> Masks:
        """`center_tokens_RW` are those of the centres' rows; they are given for their shape.

        (A number would be compiled in.)
        """
        graph = [each.mask(index) for each in gnn if isinstance(each, GraphAttention)]
        tokens, num_centers = text.mask(nodes), len(index.rows_BK)
        num_center_slots = len(center_tokens_RW) * nodes.num_slots
        behind_M = nodes.slot_N[num_centers:] - num_center_slots + center_tokens_RW.numel()
        line_N = torch.cat([nodes.cls_N[:num_centers], behind_M])
        return Masks(index.groups(), tokens, mask_graph_tokens(tokens, nodes), graph, line_N)


class GraphStep(nn.Module):
    """Eqs. 1 and 2: the messages, written in front of the nodes' [CLS].

    It has no weights; as a module it is compiled as a whole.
    """

    def forward(
        self,
        gnn: FastGraphAttention | FastMutualGraphAttention,
        hidden_RWD: Tensor,
        own_ND: Tensor,
        cached_MD: Tensor | None,
        mask: Tensor,
        links: Links,
    ) -> Tensor:
        """`own_ND` are states of this batch, `cached_MD` of neighbours that are not part of it."""
        if isinstance(gnn, FastMutualGraphAttention):
            graph_BGD = gnn.attend(own_ND, links.group_BG, mask)
            first_use_M = links.first_use_M
            graph_ND = graph_BGD[:, 0] if first_use_M is None else each_node(graph_BGD, first_use_M)
        elif cached_MD is None:
            graph_ND = gnn.attend(own_ND, links.group_BG, mask)
        else:
            states_ND = torch.cat([own_ND, cached_MD.to(own_ND.dtype)])
            graph_ND = gnn.attend_cached(states_ND, links.group_BG, mask)
        return write_tokens(hidden_RWD, graph_ND, links.cls_N)


class NestedLayer(nn.Module):
    """Eqs. 1 to 4: a graph step and the Transformer layer behind it, compiled as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.graph_step = GraphStep()

    def forward(
        self,
        gnn: FastGraphAttention | FastMutualGraphAttention,
        layer: nn.Module,
        hidden_RWD: Tensor,
        cached_MD: Tensor | None,
        masks: tuple[Tensor, Tensor],
        links: Links,
        pooling: Pooling,
        cls_rC: Tensor | None = None,
    ) -> Tensor:
        """`masks` are those of tokens and of the graph attention; `cls_rC` as in `FastLayer`."""
        own_ND = pooling.pool(hidden_RWD)
        hidden_RWD = self.graph_step(gnn, hidden_RWD, own_ND, cached_MD, masks[1], links)
        return run_layer(layer, hidden_RWD, masks[0], cls_rC)


def write_tokens(hidden_RWD: Tensor, graph_ND: Tensor, cls_N: Tensor) -> Tensor:
    """`write_graph_tokens`, in place without gradients."""
    # those of the centres, where neighbours have none
    cls_N = cls_N[: len(graph_ND)]
    if torch.is_grad_enabled():
        return write_graph_tokens(hidden_RWD, graph_ND, cls_N)
    # By row and column: through a flat view, torch.compile would make two copies.
    row_N, width = cls_N - 1, hidden_RWD.shape[1]
    return hidden_RWD.index_put_((row_N // width, row_N % width), graph_ND.to(hidden_RWD.dtype))


class FastGraphFormers(GraphFormersNetwork):
    """GraphFormers, everything in as few launches as possible."""

    text: FastTextEncoder
    masks: AttentionMasks
    nested: NestedLayer

    def add_steps(self) -> None:
        """Adds the modules without weights that are compiled as a whole."""
        self.masks, self.nested = AttentionMasks(), NestedLayer()

    def center_vectors(
        self, centers: PackedBatch, states: list[Tensor], index: NeighborIndex
    ) -> Tensor:
        rows, none_M = len(centers.tokens_RW), centers.slot_N[:0]
        alone = PackedNeighborhoods(centers, centers.num_nodes, rows, index, none_M)
        return self.forward(alone, states)

    def forward(self, batch: PackedNeighborhoods, cached: Sequence[Tensor] | None = None) -> Tensor:
        """(B, D) float32: vectors of the centres of a batch.

        Args:
            batch: Centres, and the neighbours that are read from scratch.
            cached: States (M, D) of the neighbours before each graph step, if they are known; then
                the batch holds centres only.
        """
        is_mutual = issubclass(self.attention, MutualGraphAttention)
        nodes, rows, width = batch.nodes, batch.center_rows, batch.nodes.tokens_RW.shape[1]
        layers, gnns, pooling = self.text.layers, self.gnns(), self.text.pooling(nodes)
        masks: Masks = self.masks(self.text, self.gnn, nodes, batch.index, nodes.tokens_RW[:rows])
        graph_masks = masks.graph * len(gnns) if len(masks.graph) == 1 else masks.graph
        links = Links(masks.group_BG, nodes.cls_N, batch.first_use_M if is_mutual else None)
        known: Sequence[Tensor | None] = cached or [None] * len(gnns)
        write = None if is_mutual or cached else self._graph_kernel(batch, masks.group_BG)
        # Of neighbours' rows only [CLS] is read after their last layer, unless states are means.
        is_cut = pooling.own_RCW is None and rows < len(nodes.tokens_RW)
        row_N = masks.line_N if is_cut else nodes.cls_N

        hidden, token_mask = self.text.embed(nodes), masks.first
        for i, layer in enumerate(layers[:-1]):
            cls_rC = nodes.cls_RC[rows:] if is_cut and i == len(layers) - 2 else None
            if i == 0:
                hidden = run_layer(layer, hidden, token_mask, cls_rC)
            elif write is not None:
                write(gnns[i - 1], hidden, nodes.cls_N, graph_masks[i - 1])
                hidden = run_layer(layer, hidden, token_mask, cls_rC)
            else:
                both = token_mask, graph_masks[i - 1]
                hidden = self.nested(
                    gnns[i - 1], layer, hidden, known[i - 1], both, links, pooling, cls_rC
                )
            token_mask = masks.tokens
        if write is not None and gnns:
            write(gnns[-1], hidden, row_N, graph_masks[-1])
            hidden = self._center_tokens(hidden, rows, width)
        elif gnns:
            own_ND = hidden[row_N] if is_cut else pooling.pool(hidden)
            hidden = self._center_tokens(hidden, rows, width) if is_cut else hidden
            links = links._replace(first_use_M=None)
            step = self.nested.graph_step
            hidden = step(gnns[-1], hidden, own_ND, known[-1], graph_masks[-1], links)
        centers = batch.centers
        hidden, token_mask = hidden[:rows], token_mask[:rows]
        pooling = pooling.of_centers(batch)
        return self.text.last_states(layers[-1], hidden, token_mask, centers, pooling).float()

    @staticmethod
    def _center_tokens(hidden: Tensor, rows: int, width: int) -> Tensor:
        """(R, W, D): the tokens of the centres' rows, which come first in rows and in a line."""
        size = hidden.shape[-1]
        return hidden.reshape(-1, size)[: rows * width].view(rows, width, size)

    def _graph_kernel(
        self, batch: PackedNeighborhoods, group_BG: Tensor
    ) -> Callable[[nn.Module, Tensor, Tensor, Tensor], None] | None:
        """One kernel for a whole graph step, where there is one for this batch.

        It serves [CLS] states in bfloat16 on a GPU without gradients. It projects a neighbour once
        for every centre that has it, so most neighbours must have few.
        """
        weight, (count, most) = self.text.embedding.words.weight, batch.index.rows_BK.shape
        if not weight.is_cuda or weight.dtype != HALF or self.config.pooling != "cls":
            return None
        if self.training or torch.is_grad_enabled():
            return None
        if count * (1 + most) > 2 * batch.nodes.num_nodes:
            return None
        module = usable_kernel("graph_kernel", weight.device)
        sizes = self.config.hidden_size, self.config.num_heads, 1 + most
        if module is None or not module.fits(*sizes):
            return None
        target_B = batch.nodes.cls_N[:count] - 1

        def write(gnn: nn.Module, hidden: Tensor, row_N: Tensor, mask_BHG: Tensor) -> None:
            line_TD = hidden.view(-1, hidden.shape[-1])
            module.write_messages(gnn, line_TD, row_N[group_BG], target_B, mask_BHG)

        return write


class FastBidirectional(FastGraphFormers, BidirectionalNetwork):
    """Bidirectional GraphFormers, everything in as few launches as possible."""
