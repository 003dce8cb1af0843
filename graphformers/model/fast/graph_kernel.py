"""The graph step, eqs. 1 and 2, as one Triton kernel, without cached states and gradients.

As separate operations (gather states, project, weight, write) it takes 13 µs before every layer of
BERT-base, mostly launch latency. This is significant for small batches: 32 centres with 5
neighbours take 1.5 ms in total. As one kernel it takes 8 µs. Queries, keys and values are kept in
float32 here; elsewhere they are rounded.

Triton comes with torch for the GPUs of NVIDIA and AMD. `kernels.usable_kernel` decides whether it
can be used.

Shapes: T tokens in one line, B centres, G nodes of a group, H heads, D hidden size.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphformers.model.compute import PRECISIONS
from graphformers.model.network import GraphAttention

# states that a program projects at a time, as many as a Hopper GPU multiplies in one instruction
ROWS = 64
# part of the hidden size that is multiplied at a time
STEP = 64
# the lowest compute capability with bfloat16 in the tensor cores
MIN_CAPABILITY = (8, 0)


@triton.jit(  # type: ignore[untyped-decorator, unused-ignore]
    do_not_specialize=["num_centers", "num_nodes"]
)
def _kernel(  # type: ignore[no-untyped-def]
    tokens_TD, rows_BG, target_B, mask_BHG,
    query_weight, key_weight, value_weight, query_bias, key_bias, value_bias,
    num_centers, num_nodes, scale,
    SIZE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    NODES: tl.constexpr, CENTERS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Computes one head of the messages to some centres.

    NODES is a power of two, at least as many as a group has.
    """
    head, first = tl.program_id(0), tl.program_id(1) * CENTERS
    row = tl.arange(0, CENTERS * NODES)
    center, node = first + row // NODES, row % NODES
    # Missing nodes are replaced by the centre: their values get no attention, but must not be NaN.
    present = tl.where(node < num_nodes, node, 0)
    place = tl.load(rows_BG + center * num_nodes + present, mask=center < num_centers, other=0)
    inner, step = tl.arange(0, WIDTH), tl.arange(0, STEP)
    state = tokens_TD + place[:, None] * SIZE + step[None, :]
    column = (head * WIDTH + inner)[None, :] * SIZE + step[:, None]
    query = tl.zeros((CENTERS * NODES, WIDTH), tl.float32)
    key = tl.zeros((CENTERS * NODES, WIDTH), tl.float32)
    value = tl.zeros((CENTERS * NODES, WIDTH), tl.float32)
    for start in range(0, SIZE, STEP):
        part = tl.load(state + start)
        query = tl.dot(part, tl.load(query_weight + column + start), query)
        key = tl.dot(part, tl.load(key_weight + column + start), key)
        value = tl.dot(part, tl.load(value_weight + column + start), value)
    query += tl.load(query_bias + head * WIDTH + inner).to(tl.float32)[None, :]
    key += tl.load(key_bias + head * WIDTH + inner).to(tl.float32)[None, :]
    value += tl.load(value_bias + head * WIDTH + inner).to(tl.float32)[None, :]
    # Only the centre attends: the first node of each group.
    own = tl.where((node == 0)[:, None], query, 0.0)
    own = tl.sum(tl.reshape(own, (CENTERS, NODES, WIDTH)), 1)
    score = tl.sum(own[:, None, :] * tl.reshape(key, (CENTERS, NODES, WIDTH)), 2) * scale
    centers, nodes = first + tl.arange(0, CENTERS), tl.arange(0, NODES)
    exists = (centers < num_centers)[:, None] & (nodes < num_nodes)[None, :]
    mask = mask_BHG + (centers[:, None] * HEADS + head) * num_nodes + nodes[None, :]
    mask = tl.load(mask, mask=exists, other=-float("inf"))
    score = tl.where((centers < num_centers)[:, None], score + mask.to(tl.float32), 0.0)
    share = tl.exp(score - tl.max(score, 1)[:, None])
    share = share / tl.sum(share, 1)[:, None]
    message = tl.sum(share[:, :, None] * tl.reshape(value, (CENTERS, NODES, WIDTH)), 1)
    target = tl.load(target_B + centers, mask=centers < num_centers, other=0)
    written = tokens_TD + target[:, None] * SIZE + head * WIDTH + inner[None, :]
    message = message.to(tokens_TD.dtype.element_ty)
    tl.store(written, message, mask=(centers < num_centers)[:, None])


def write_messages(
    gnn: GraphAttention, tokens_TD: Tensor, rows_BG: Tensor, target_B: Tensor, mask_BHG: Tensor
) -> None:
    """Writes the messages of a graph attention into a line of tokens, in place.

    Args:
        gnn: The graph attention.
        tokens_TD: The states of all tokens.
        rows_BG: Rows of `tokens_TD` with the states of each group, the centre first.
        target_B: Rows of `tokens_TD` to which the messages are written.
        mask_BHG: Added to the scores.
    """
    num_centers, num_nodes = rows_BG.shape
    size, num_heads = tokens_TD.shape[1], gnn.num_heads
    nodes = triton.next_power_of_2(num_nodes)
    centers = max(ROWS // nodes, 1)
    width = size // num_heads
    sizes = {"SIZE": size, "HEADS": num_heads, "WIDTH": width, "STEP": STEP}
    sizes |= {"NODES": nodes, "CENTERS": centers}
    projections = gnn.query, gnn.key, gnn.value
    parameters = [p.weight for p in projections] + [p.bias for p in projections]
    tensors = tokens_TD, rows_BG, target_B, mask_BHG.contiguous(), *parameters
    grid = (num_heads, triton.cdiv(num_centers, centers))
    numbers = num_centers, num_nodes, 1 / math.sqrt(width)
    with torch.cuda.device(tokens_TD.device):
        _kernel[grid](*tensors, *numbers, **sizes, num_warps=4, num_stages=4)


def fits(hidden_size: int, num_heads: int, num_nodes: int) -> bool:
    """Whether the kernel supports these sizes."""
    widths = (16, 32, 64)
    return hidden_size % STEP == 0 and hidden_size // num_heads in widths and num_nodes <= ROWS


def works_on(device: torch.device) -> bool:
    """Whether the kernel computes an example correctly, of the largest supported head size."""
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return False
    size, num_heads = 4 * STEP, 4
    generator = torch.Generator().manual_seed(0)
    gnn = _Example(size, num_heads, generator).to(device, PRECISIONS["bfloat16"])
    tokens_TD = torch.randn(4, size, generator=generator).to(device, PRECISIONS["bfloat16"])
    rows_BG = torch.tensor([[1, 2, 3]], device=device)
    target_B = torch.tensor([0], device=device)
    mask_G = torch.tensor([0.0, 0.5, -math.inf], device=device).to(PRECISIONS["bfloat16"])
    mask_BHG = mask_G.expand(1, num_heads, 3)
    write_messages(gnn, tokens_TD, rows_BG, target_B, mask_BHG)  # type: ignore[arg-type]
    states_GD = tokens_TD[1:].float()
    query, key, value = (
        (states_GD @ p.weight.float().t() + p.bias.float()).view(3, num_heads, -1)
        for p in (gnn.query, gnn.key, gnn.value)
    )
    scores_GH = (query[0] * key).sum(-1) / math.sqrt(size // num_heads) + mask_BHG[0].t()
    expected = (scores_GH.softmax(0)[..., None] * value).sum(0).flatten()
    return bool((tokens_TD[0].float() - expected).abs().max() < 0.05)


class _Example(torch.nn.Module):
    """The part of a graph attention that the kernel uses, with random weights."""

    def __init__(self, size: int, num_heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value = (torch.nn.Linear(size, size) for _ in range(3))
        with torch.no_grad():
            for projection in (self.query, self.key, self.value):
                projection.weight.normal_(std=0.05, generator=generator)
                projection.bias.normal_(std=0.5, generator=generator)
