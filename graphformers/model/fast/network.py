"""Faster GraphFormers with the same parameters as those of `graphformers.model.network`.

Without cached states, centres and neighbours go through the layers in one tensor, the centres' rows
first, so that each layer is launched once. The last layer computes only the states of centres, and
the layer before it computes only [CLS] for neighbours. Masks are computed once for all layers.

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
from graphformers.model.layers import mask_graph_tokens, mask_isolated
from graphformers.model.network import (
    BidirectionalNetwork,
    GraphAttention,
    GraphFormersNetwork,
    MutualGraphAttention,
    each_node,
    write_graph_tokens,
)


class FastGraphAttention(GraphAttention):
    """A graph attention with fused products, which uses cached states without projecting them."""

    def project(self, states_ND: Tensor, group_BG: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not are_plain(self.query, self.key, self.value):
            return super().project(states_ND, group_BG)
        query_ND, key_BGD, value_BGD = project_once(self, states_ND, group_BG)
        return query_ND[group_BG[:, 0]], key_BGD, value_BGD

    def attend_cached(self, states_ND: Tensor, group_BG: Tensor, mask_BHG: Tensor) -> Tensor:
        """(B, D): like `attend`, for states that few centres share.

        Since q (W z) = (q W) z, and a sum of W z is W times the sum of z, only centres have to be
        projected. The keys' bias adds a constant to all scores and is left out. With dropout this
        is not possible.
        """
        if self.training or not are_plain(self.query, self.key, self.value):
            return self.attend(states_ND, group_BG, mask_BHG)
        (count, _), size, states_BGD = group_BG.shape, states_ND.shape[1], states_ND[group_BG]
        heads = (self.num_heads, size // self.num_heads)
        query_BHd = self.query(states_BGD[:, 0]).view(count, *heads) / math.sqrt(heads[1])
        query_BHD = torch.einsum("bhd,hdD->bhD", query_BHd, self.key.weight.view(*heads, size))
        weights_BHG = (query_BHD @ states_BGD.transpose(1, 2) + mask_BHG).softmax(-1)
        mixed_BHD = weights_BHG.to(states_BGD.dtype) @ states_BGD
        value_HdD, bias_Hd = self.value.weight.view(*heads, size), self.value.bias.view(*heads)
        return (torch.einsum("bhD,hdD->bhd", mixed_BHD, value_HdD) + bias_Hd).flatten(1)


class FastMutualGraphAttention(MutualGraphAttention):
    """A mutual graph attention with fused products."""

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
    """The nodes of each group, and the nodes that get graph tokens."""

    # rows of the nodes' states: centres, then neighbours
    group_BG: Tensor
    # positions of the nodes' [CLS] among all tokens
    cls_N: Tensor
    # if neighbours have graph tokens, their indices among the B * K
    first_use_M: Tensor | None


class Masks(NamedTuple):
    """Attention masks and index tensors that the layers of a forward pass share."""

    group_BG: Tensor
    # the mask of tokens in every layer but the first
    tokens: Tensor
    # the mask of tokens in the first layer, before which there is no graph token
    first: Tensor
    # the mask of each graph attention
    graph: list[Tensor]
    # rows of the nodes' states after the layer that computes only the [CLS] of neighbours
    line_N: Tensor


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
        """Returns the masks and index tensors of a batch.

        Only the shape of `center_tokens_RW`, the tokens of the centres' rows, is used. As an
        integer, the number of rows would be compiled in.
        """
        graph = [each.mask(index) for each in gnn if isinstance(each, GraphAttention)]
        tokens, num_centers = text.mask(nodes), len(index.rows_BK)
        num_center_slots = len(center_tokens_RW) * nodes.num_slots
        behind_M = nodes.slot_N[num_centers:] - num_center_slots + center_tokens_RW.numel()
        line_N = torch.cat([nodes.cls_N[:num_centers], behind_M])
        first = mask_graph_tokens(tokens, nodes)
        if not text.config.isolated_graph_token:
            tokens = mask_isolated(tokens, nodes, index.exists_BK)
        return Masks(index.groups(), tokens, first, graph, line_N)


class GraphStep(nn.Module):
    """Eqs. 1 and 2: computes the messages and writes them in front of the nodes' [CLS].

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
        """(R, W, D), from states of the batch and cached states of neighbours outside of it."""
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
    """Eqs. 1 to 4: a graph step and the Transformer layer after it, compiled as a whole."""

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
        """As `FastLayer.forward`; `masks` are those of tokens and of the graph attention."""
        own_ND = pooling.pool(hidden_RWD)
        hidden_RWD = self.graph_step(gnn, hidden_RWD, own_ND, cached_MD, masks[1], links)
        return run_layer(layer, hidden_RWD, masks[0], cls_rC)


def write_tokens(hidden_RWD: Tensor, graph_ND: Tensor, cls_N: Tensor) -> Tensor:
    """Writes graph tokens, in place if no gradients are needed."""
    # If neighbours have no graph tokens, only those of the centres are written.
    cls_N = cls_N[: len(graph_ND)]
    if torch.is_grad_enabled():
        return write_graph_tokens(hidden_RWD, graph_ND, cls_N)
    # Indexed by row and column, since torch.compile makes two copies with a flat view.
    row_N, width = cls_N - 1, hidden_RWD.shape[1]
    return hidden_RWD.index_put_((row_N // width, row_N % width), graph_ND.to(hidden_RWD.dtype))


class FastGraphFormers(GraphFormersNetwork):
    """GraphFormers with as few kernel launches as possible."""

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
        batch = PackedNeighborhoods(centers, centers.num_nodes, rows, index, none_M)
        return self.forward(batch, states)

    def forward(self, batch: PackedNeighborhoods, cached: Sequence[Tensor] | None = None) -> Tensor:
        """(B, D) float32: vectors of the centres of a batch.

        Args:
            batch: Centres, and neighbours unless their states are cached.
            cached: Cached states (M, D) of the neighbours before each graph step, if any; then the
                batch holds centres only.
        """
        is_mutual = issubclass(self.attention, MutualGraphAttention)
        nodes, rows, width = batch.nodes, batch.center_rows, batch.nodes.tokens_RW.shape[1]
        layers, gnns, pooling = self.text.layers, self.gnns(), self.text.pooling(nodes)
        masks: Masks = self.masks(self.text, self.gnn, nodes, batch.index, nodes.tokens_RW[:rows])
        graph_masks = masks.graph * len(gnns) if len(masks.graph) == 1 else masks.graph
        links = Links(masks.group_BG, nodes.cls_N, batch.first_use_M if is_mutual else None)
        known: Sequence[Tensor | None] = cached or [None] * len(gnns)
        write = None if is_mutual or cached else self._graph_kernel(batch, masks.group_BG)
        # Unless states are means, only [CLS] is used of neighbours after their last layer.
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
        """(R, W, D): the tokens of the centres' rows, which come first in every layout."""
        size = hidden.shape[-1]
        return hidden.reshape(-1, size)[: rows * width].view(rows, width, size)

    def _graph_kernel(
        self, batch: PackedNeighborhoods, group_BG: Tensor
    ) -> Callable[[nn.Module, Tensor, Tensor, Tensor], None] | None:
        """The kernel of a whole graph step, if it can be used for this batch.

        It supports [CLS] states in bfloat16 on a GPU without gradients. It projects a neighbour
        once for each of its centres, so it is used only if few centres share neighbours.
        """
        weight, (count, width) = self.text.embedding.words.weight, batch.index.rows_BK.shape
        if not weight.is_cuda or weight.dtype != HALF or self.config.pooling != "cls":
            return None
        if self.training or torch.is_grad_enabled():
            return None
        if count * (1 + width) > 2 * batch.nodes.num_nodes:
            return None
        module = usable_kernel("graph_kernel", weight.device)
        sizes = self.config.hidden_size, self.config.num_heads, 1 + width
        if module is None or not module.fits(*sizes):
            return None
        target_B = batch.nodes.cls_N[:count] - 1

        def write(gnn: nn.Module, hidden: Tensor, row_N: Tensor, mask_BHG: Tensor) -> None:
            line_TD = hidden.view(-1, hidden.shape[-1])
            module.write_messages(gnn, line_TD, row_N[group_BG], target_B, mask_BHG)

        return write


class FastBidirectional(FastGraphFormers, BidirectionalNetwork):
    """Bidirectional GraphFormers with as few kernel launches as possible."""
