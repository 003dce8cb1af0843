"""The graph aggregation as one GPU kernel, for texts read from scratch without gradients.

As separate steps (gather states, project them, weigh, write) it takes 13 µs before every layer of
BERT-base, mostly waiting for each other: much where 32 centres with 5 neighbours take a millisecond
and a half in all. Here it takes 8, and one launch.

Written in Triton, which comes with torch for NVIDIA's and AMD's GPUs. `modeling.py` asks whether it
can be used, and has another way where it cannot: Triton needs a GPU that it knows, and a C
compiler. Queries, keys and values stay in float32 here, elsewhere they are rounded.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 64  # states that a program projects at a time: what a Hopper GPU multiplies at once
STEP = 64  # of the hidden size


@triton.jit(do_not_specialize=["num_centers", "num_nodes"])  # type: ignore[untyped-decorator, unused-ignore]
def _kernel(  # type: ignore[no-untyped-def]
    tokens_TD, rows_BN, places_B, mask_BHN, weight, bias, num_centers, num_nodes, scale,
    SIZE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    NODES: tl.constexpr, CENTERS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One head of the graph tokens of some centres: NODES is a power of two, at least as many as a
    neighbourhood has.
    """
    head, first = tl.program_id(0), tl.program_id(1) * CENTERS
    row = tl.arange(0, CENTERS * NODES)
    center, node = first + row // NODES, row % NODES
    # where there is no node, the centre stands in: what is read there gets no attention, but must
    # be a number
    place = tl.load(
        rows_BN + center * num_nodes + tl.where(node < num_nodes, node, 0),
        mask=center < num_centers,
        other=0,
    )
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
    asking = tl.sum(
        tl.reshape(tl.where((node == 0)[:, None], query, 0.0), (CENTERS, NODES, WIDTH)), 1
    )
    score = tl.sum(asking[:, None, :] * tl.reshape(key, (CENTERS, NODES, WIDTH)), 2) * scale
    who, whom = first + tl.arange(0, CENTERS), tl.arange(0, NODES)
    is_open = (who < num_centers)[:, None] & (whom < num_nodes)[None, :]
    bias_and_mask = tl.load(
        mask_BHN + (who[:, None] * HEADS + head) * num_nodes + whom[None, :],
        mask=is_open,
        other=-float("inf"),
    )
    score = tl.where((who < num_centers)[:, None], score + bias_and_mask.to(tl.float32), 0.0)
    share = tl.exp(score - tl.max(score, 1)[:, None])
    share = share / tl.sum(share, 1)[:, None]
    token = tl.sum(share[:, :, None] * tl.reshape(value, (CENTERS, NODES, WIDTH)), 1)
    target = tl.load(places_B + who, mask=who < num_centers, other=0)
    whole = tokens_TD + target[:, None] * SIZE + head * WIDTH + inner[None, :]
    tl.store(whole, token.to(tokens_TD.dtype.element_ty), mask=(who < num_centers)[:, None])


def write_at_once(
    tokens_TD: Tensor,
    rows_BN: Tensor,
    places_B: Tensor,
    mask_BHN: Tensor,
    weight: Tensor,
    bias: Tensor,
    num_heads: int,
) -> None:
    """Eq. 1 for centres: reads states at `rows_BN` (the centre first), writes graph tokens at
    `places_B`, all in `tokens_TD`.

    `weight` and `bias` make queries, keys and values of states; the mask is added to the scores.
    """
    num_centers, num_nodes = rows_BN.shape
    size = tokens_TD.shape[1]
    nodes = triton.next_power_of_2(num_nodes)
    centers = max(ROWS // nodes, 1)
    shape = {
        "SIZE": size,
        "HEADS": num_heads,
        "WIDTH": size // num_heads,
        "NODES": nodes,
        "CENTERS": centers,
        "STEP": STEP,
    }
    grid = (num_heads, triton.cdiv(num_centers, centers))
    given = (
        tokens_TD,
        rows_BN,
        places_B,
        mask_BHN.contiguous(),
        weight,
        bias,
        num_centers,
        num_nodes,
    )
    with torch.cuda.device(tokens_TD.device):
        _kernel[grid](*given, 1 / math.sqrt(size // num_heads), **shape, num_warps=4, num_stages=4)


def fits(hidden_size: int, num_heads: int, num_nodes: int) -> bool:
    """Whether the kernel is made for these sizes."""
    return (
        hidden_size % STEP == 0 and hidden_size // num_heads in (16, 32, 64) and num_nodes <= ROWS
    )


def works_on(device: torch.device) -> bool:
    """Whether an example comes out right that needs as much of the GPU as any other: four heads of
    64, more than one step.
    """
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False  # no bfloat16 in its matrix units
    size, num_heads, generator = 4 * STEP, 4, torch.Generator().manual_seed(0)
    tokens_TD, weight, bias = (
        (torch.randn(*shape, generator=generator) * scale).to(device, torch.bfloat16)
        for shape, scale in (((4, size), 1.0), ((3 * size, size), 0.05), ((3 * size,), 0.5))
    )
    rows_BN, places_B = torch.tensor([[1, 2, 3]], device=device), torch.tensor([0], device=device)
    mask_BHN = torch.tensor([0.0, 0.5, -math.inf], device=device).bfloat16().expand(1, num_heads, 3)
    write_at_once(tokens_TD, rows_BN, places_B, mask_BHN, weight, bias, num_heads)
    query, key, value = (
        (tokens_TD[1:].float() @ weight.float().t() + bias.float())
        .view(3, 3, num_heads, -1)
        .unbind(1)
    )
    scores_NH = (query[0] * key).sum(-1) / math.sqrt(size // num_heads) + mask_BHN[0].t()
    expected = (scores_NH.softmax(0)[..., None] * value).sum(0).flatten()
    return bool((tokens_TD[0].float() - expected).abs().max() < 0.05)
