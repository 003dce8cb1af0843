"""The graph aggregation as one GPU kernel, for texts read from scratch without gradients.

As separate steps (gather states, project them, weigh, write) it takes 13 µs before every layer of BERT-base, mostly waiting for
each other: much where 32 centres with 5 neighbours take a millisecond and a half in all. Here it takes 8, and one launch.

Written in Triton, which comes with torch for NVIDIA's and AMD's GPUs. `modeling.py` asks whether it can be used, and has
another way where it cannot: Triton needs a GPU that it knows, and a C compiler. Queries, keys and values stay in float32 here,
elsewhere they are rounded.
"""

import math
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 64  # states that a program projects at a time: what a Hopper GPU multiplies at once
STEP = 64  # of the hidden size


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _kernel(  # type: ignore[no-untyped-def]
    tokens_TD, rows_BN, places_B, mask_BHN, weight, bias, num_centers, num_nodes, scale,
    SIZE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, NODES: tl.constexpr, CENTERS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One head of the graph tokens of some centres: NODES is a power of two, at least as many as a neighbourhood has."""
    head, first = tl.program_id(0), tl.program_id(1) * CENTERS
    row = tl.arange(0, CENTERS * NODES)
    center, node = first + row // NODES, row % NODES
    is_there = (center < num_centers) & (node < num_nodes)
    place = tl.load(rows_BN + center * num_nodes + node, mask=is_there, other=0)
    inner, step = tl.arange(0, WIDTH), tl.arange(0, STEP)
    state = tokens_TD + place[:, None] * SIZE + step[None, :]
    column = weight + (head * WIDTH + inner)[None, :] * SIZE + step[:, None]
    query = tl.zeros((CENTERS * NODES, WIDTH), tl.float32)
    key = tl.zeros((CENTERS * NODES, WIDTH), tl.float32)
    value = tl.zeros((CENTERS * NODES, WIDTH), tl.float32)
    for start in range(0, SIZE, STEP):
        read = tl.load(state + start)
        query = tl.dot(read, tl.load(column + start), query)
        key = tl.dot(read, tl.load(column + SIZE * SIZE + start), key)
        value = tl.dot(read, tl.load(column + 2 * SIZE * SIZE + start), value)
    query += tl.load(bias + head * WIDTH + inner).to(tl.float32)[None, :]
    key += tl.load(bias + SIZE + head * WIDTH + inner).to(tl.float32)[None, :]
    value += tl.load(bias + 2 * SIZE + head * WIDTH + inner).to(tl.float32)[None, :]
    # only the centre asks: the first node of each neighbourhood
    asking = tl.sum(tl.reshape(tl.where((node == 0)[:, None], query, 0.0), (CENTERS, NODES, WIDTH)), 1)
    score = tl.sum(asking[:, None, :] * tl.reshape(key, (CENTERS, NODES, WIDTH)), 2) * scale
    who, whom = first + tl.arange(0, CENTERS), tl.arange(0, NODES)
    is_open = (who < num_centers)[:, None] & (whom < num_nodes)[None, :]
    bias_and_mask = tl.load(
        mask_BHN + (who[:, None] * HEADS + head) * num_nodes + whom[None, :], mask=is_open, other=-float("inf")
    )
    score = tl.where((who < num_centers)[:, None], score + bias_and_mask.to(tl.float32), 0.0)
    share = tl.exp(score - tl.max(score, 1)[:, None])
    share = share / tl.sum(share, 1)[:, None]
    token = tl.sum(share[:, :, None] * tl.reshape(value, (CENTERS, NODES, WIDTH)), 1)
    target = tl.load(places_B + who, mask=who < num_centers, other=0)
    whole = tokens_TD + target[:, None] * SIZE + head * WIDTH + inner[None, :]
    tl.store(whole, token.to(tokens_TD.dtype.element_ty), mask=(who < num_centers)[:, None])


def write_at_once(
    tokens_TD: Tensor, rows_BN: Tensor, places_B: Tensor, mask_BHN: Tensor, weight: Tensor, bias: Tensor, num_heads: int
) -> None:
    """Eq. 1 for centres: reads states at `rows_BN` (the centre first), writes graph tokens at `places_B`, all in `tokens_TD`.

    `weight` and `bias` make queries, keys and values of states; the mask is added to the scores.
    """
    num_centers, num_nodes = rows_BN.shape
    size = tokens_TD.shape[1]
    nodes = triton.next_power_of_2(num_nodes)
    centers = max(ROWS // nodes, 1)
    shape = {"SIZE": size, "HEADS": num_heads, "WIDTH": size // num_heads, "NODES": nodes, "CENTERS": centers, "STEP": STEP}
    grid = (num_heads, triton.cdiv(num_centers, centers))
    given = (tokens_TD, rows_BN, places_B, mask_BHN.contiguous(), weight, bias, num_centers, num_nodes)
    with torch.cuda.device(tokens_TD.device):
        _kernel[grid](*given, 1 / math.sqrt(size // num_heads), **shape, num_warps=4, num_stages=4)


def fits(hidden_size: int, num_heads: int, num_nodes: int) -> bool:
    """Whether the kernel is made for these sizes."""
    width = hidden_size // num_heads
    return hidden_size % STEP == 0 and width in (16, 32, 64) and num_nodes <= ROWS


@cache
def works_on(device: torch.device) -> bool:
    """Whether a small example comes out right."""
    tokens_TD = torch.randn(4, STEP, device=device).bfloat16()
    weight, bias = torch.eye(STEP, device=device).bfloat16().repeat(3, 1), torch.zeros(3 * STEP, device=device).bfloat16()
    rows_BN, places_B = torch.tensor([[1, 2]], device=device), torch.tensor([0], device=device)
    write_at_once(tokens_TD, rows_BN, places_B, torch.zeros(1, 1, 2, device=device).bfloat16(), weight, bias, 1)
    own, other = tokens_TD[1:3].float()
    share = torch.stack([own @ own, own @ other]).div(math.sqrt(STEP)).softmax(0)
    return bool((tokens_TD[0].float() - share[0] * own - share[1] * other).abs().max() < 0.05)
