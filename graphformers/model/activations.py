"""The size of what a network keeps between its forward and its backward pass.

Estimated from the contents of packed batches, so that batches can be divided before they are
computed. Counts are of numbers; their bytes depend on the precision.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphformers.batching.packing import (
    NeighborIndex,
    NetworkInputs,
    PackedBatch,
    PackedNeighborhoods,
)

if TYPE_CHECKING:
    from graphformers.model.config import ModelConfig


@dataclass(frozen=True)
class BatchSize:
    """The sizes of a packed batch that determine its memory.

    Attributes:
        slots: Places for tokens in all rows, padding included.
        center_slots: Those in the rows of centres.
        row_width: Places of a row.
        row_nodes: Nodes of a row, at most.
        nodes: Nodes whose texts are in the rows.
        group_states: Centres times the nodes of the largest group; 0 without centres.
        group_width: Nodes of the largest group.
        given_states: Neighbours whose states were computed before.
    """

    slots: int
    center_slots: int
    row_width: int
    row_nodes: int
    nodes: int
    group_states: int = 0
    group_width: int = 0
    given_states: int = 0

    @staticmethod
    def of_texts(texts: PackedBatch) -> "BatchSize":
        """The size of texts that are encoded independently."""
        rows, width = texts.tokens_RW.shape
        return BatchSize(rows * width, 0, width, texts.num_slots, texts.num_nodes)

    @staticmethod
    def of_neighborhoods(batch: PackedNeighborhoods) -> "BatchSize":
        """The size of centres that are encoded together with their neighbours."""
        rows, width = batch.nodes.tokens_RW.shape
        group = 1 + batch.index.rows_BK.shape[1]
        return BatchSize(
            rows * width,
            batch.center_rows * width,
            width,
            batch.nodes.num_slots,
            batch.nodes.num_nodes,
            batch.num_centers * group,
            group,
        )

    @staticmethod
    def of_centers(centers: PackedBatch, index: NeighborIndex, given_states: int) -> "BatchSize":
        """The size of centres whose neighbours' states are given."""
        rows, width = centers.tokens_RW.shape
        group = 1 + index.rows_BK.shape[1]
        return BatchSize(
            rows * width,
            rows * width,
            width,
            centers.num_slots,
            centers.num_nodes,
            centers.num_nodes * group,
            group,
            given_states,
        )


def transformer_numbers(config: "ModelConfig", inputs: NetworkInputs, size: BatchSize) -> int:
    """Numbers that Transformer layers and graph attentions keep, and the largest temporary ones."""
    hidden, layers = config.hidden_size, config.num_layers
    # queries, keys, values, the attended values, two sums before a norm and what follows each,
    # and the inner states of the MLP before and after its activation
    in_layer = 8 * hidden + 2 * config.intermediate_size
    if config.dropout:
        in_layer += 2 * hidden
    if config.attention_dropout:
        # No attention kernel drops weights on a CPU: they are written out.
        in_layer += 3 * config.num_heads * size.row_width
    # with relative positions a mask for each head, made of distances and biases
    mask = size.row_width * (2 * config.num_heads if config.relative_buckets else 1)
    if config.pooling == "mean":
        mask += size.row_nodes
    layer_slots = layers * size.slots
    steps = inputs.num_states
    if inputs.graph_tokens:
        # Neighbours stop before the last layer, and graph tokens are written into copies.
        layer_slots -= size.slots - size.center_slots
        in_layer += hidden if config.pooling == "mean" else 0
        steps, mask = layers - 1, 2 * mask
    # backward through a layer: gradients of its inner states
    temporary = 6 * hidden + 2 * config.intermediate_size
    groups = size.group_states * (2 * hidden + 4 * config.num_heads)
    if inputs.joint:
        groups += size.group_states * (2 * hidden + 2 * config.num_heads * size.group_width)
    nodes = 4 * (size.nodes + size.given_states) * hidden
    texts = layer_slots * in_layer + size.slots * (2 * hidden + mask + temporary)
    return texts + (steps * (groups + nodes) if size.group_states else 0)
