"""norm(residual + dropout(update)), which ends both halves of a layer, as Triton kernels.

There is one kernel for the forward and one for the backward pass, for compiled training in bfloat16
on a GPU. torch.compile's own backward kernel reads tokens by rows, for their gradients, and sums
them by columns, for the gradients of the norm. It takes up to 1.9 ms for 140,000 tokens of
BERT-base on an H200. Here a program processes many rows and keeps the sums of its columns. That
takes 0.29 ms; reading and writing take 0.21 ms.

The dropout mask is a hash of (seed, row, column), which the backward pass computes again. The
operators are opaque to the compiler: with `torch.library.triton_op`, compiling a layer did not end
within two minutes.
"""

from functools import cache

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.library import custom_op

# programs that share the rows in the backward pass: eight for each multiprocessor of an H200
PROGRAMS = 1056


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _mixed(number):  # type: ignore[no-untyped-def]
    """A 32-bit hash of an unsigned 32-bit number."""
    number = (number ^ (number >> 16)) * 0x21F0AAAD
    number = (number ^ (number >> 15)) * 0x735A2D97
    return number ^ (number >> 15)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _is_kept(seed, row, column, threshold):  # type: ignore[no-untyped-def]
    """The dropout mask: whether the 31-bit hash of a position is at least the threshold."""
    given = tl.load(seed)
    key = _mixed(row.to(tl.uint32) ^ given.to(tl.uint32))
    key = _mixed(key ^ (given >> 32).to(tl.uint32))
    bits = _mixed(key[:, None] ^ column.to(tl.uint32)[None, :])
    return (bits >> 1).to(tl.int32) >= threshold


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator, unused-ignore]
def _forward(  # type: ignore[no-untyped-def]
    update, residual, weight, bias, seed, result, total, mean, scale, num_rows,
    threshold, keep_scale, eps,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Computes the result of some rows, and tensors for the backward pass.

    These are the sum before the norm, its mean, and 1 / its standard deviation.
    """
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    is_row, is_column = row < num_rows, column < SIZE
    is_there = is_row[:, None] & is_column[None, :]
    place = row[:, None].to(tl.int64) * SIZE + column[None, :]
    given = tl.load(update + place, mask=is_there, other=0.0).to(tl.float32)
    summed = tl.where(_is_kept(seed, row, column, threshold), given * keep_scale, 0.0)
    summed += tl.load(residual + place, mask=is_there, other=0.0).to(tl.float32)
    # The backward pass uses the rounded sum, so mean and deviation must be computed from it.
    rounded = summed.to(total.dtype.element_ty)
    tl.store(total + place, rounded, mask=is_there)
    summed = rounded.to(tl.float32)
    middle = tl.sum(tl.where(is_there, summed, 0.0), 1) / SIZE
    centered = tl.where(is_there, summed - middle[:, None], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(centered * centered, 1) / SIZE + eps)
    times = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    plus = tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    normed = centered * inverse[:, None] * times[None, :] + plus[None, :]
    tl.store(result + place, normed.to(result.dtype.element_ty), mask=is_there)
    tl.store(mean + row, middle, mask=is_row)
    tl.store(scale + row, inverse, mask=is_row)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator, unused-ignore]
def _backward(  # type: ignore[no-untyped-def]
    gradient, total, mean, scale, weight, seed, to_update, to_residual, to_weight, to_bias,
    num_rows, threshold, keep_scale,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Computes the gradients of every PROGRAMS-th block of rows.

    Also computes this program's part of the gradients of the norm's weight and bias.
    """
    program, column = tl.program_id(0), tl.arange(0, BLOCK)
    is_column = column < SIZE
    times = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    weight_sum = tl.zeros((BLOCK,), tl.float32)
    bias_sum = tl.zeros((BLOCK,), tl.float32)
    for first in range(program * ROWS, num_rows, PROGRAMS * ROWS):
        row = first + tl.arange(0, ROWS)
        is_row = row < num_rows
        is_there = is_row[:, None] & is_column[None, :]
        place = row[:, None].to(tl.int64) * SIZE + column[None, :]
        given = tl.load(gradient + place, mask=is_there, other=0.0).to(tl.float32)
        summed = tl.load(total + place, mask=is_there, other=0.0).to(tl.float32)
        middle = tl.load(mean + row, mask=is_row, other=0.0)
        inverse = tl.load(scale + row, mask=is_row, other=0.0)
        normed = tl.where(is_there, (summed - middle[:, None]) * inverse[:, None], 0.0)
        weight_sum += tl.sum(given * normed, 0)
        bias_sum += tl.sum(given, 0)
        scaled = given * times[None, :]
        along, level = tl.sum(scaled * normed, 1) / SIZE, tl.sum(scaled, 1) / SIZE
        found = (scaled - normed * along[:, None] - level[:, None]) * inverse[:, None]
        dropped = tl.where(_is_kept(seed, row, column, threshold), found * keep_scale, 0.0)
        tl.store(to_residual + place, found.to(to_residual.dtype.element_ty), mask=is_there)
        tl.store(to_update + place, dropped.to(to_update.dtype.element_ty), mask=is_there)
    tl.store(to_weight + program * SIZE + column, weight_sum, mask=is_column)
    tl.store(to_bias + program * SIZE + column, bias_sum, mask=is_column)


@cache
def _sizes(size: int, is_backward: bool) -> dict[str, int]:
    """The number of rows and of threads of a program.

    A row is divided between all threads, at least 8 numbers each, so that sums over rows stay
    within a thread. Twice the threads took up to five times as long.
    """
    block = triton.next_power_of_2(size)
    rows = max(1024 // block, 1) if is_backward else 2
    return {
        "SIZE": size,
        "BLOCK": block,
        "ROWS": min(rows, 8),
        "num_warps": min(max(block // 256, 1), 16),
    }


def _dropout_constants(dropout: float) -> tuple[int, float]:
    """The 31-bit threshold below which a position is dropped, and the scale of the others."""
    return round(dropout * 2**31), 1 / (1 - dropout)


@custom_op("graphformers::add_norm", mutates_args=())
def add_norm(
    update: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor,
    dropout: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """norm(residual + dropout(update)), and tensors for the backward pass.

    `seed` is a tensor with one integer of up to 63 bits.

    Returns:
        (…, D) the result; the sum before the norm; and of each row its mean and 1 / its standard
        deviation.
    """
    if (
        update.shape != residual.shape
        or weight.shape != bias.shape
        or weight.shape != update.shape[-1:]
    ):
        raise ValueError(
            f"{update.shape}, {residual.shape}, {weight.shape} and {bias.shape} do not match"
        )
    update, residual = update.contiguous(), residual.contiguous()
    found: tuple[Tensor, Tensor, Tensor, Tensor] = _shape_of_results(update, residual)
    rows, sizes = len(found[2]), _sizes(update.shape[-1], False)
    constants = _dropout_constants(dropout)
    given = (update, residual, weight, bias, seed, *found, rows, *constants, eps)
    with torch.cuda.device(update.device):
        _forward[(triton.cdiv(rows, sizes["ROWS"]),)](*given, **sizes)
    return found


@add_norm.register_fake
def _shape_of_results(
    update: Tensor, residual: Tensor, *others: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = update.numel() // update.shape[-1]
    result, total = (
        torch.empty(residual.shape, dtype=residual.dtype, device=residual.device) for _ in range(2)
    )
    mean, scale = (torch.empty(rows, dtype=torch.float32, device=residual.device) for _ in range(2))
    return result, total, mean, scale


@custom_op("graphformers::add_norm_backward", mutates_args=())
def add_norm_backward(
    gradient: Tensor,
    total: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    seed: Tensor,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of update and residual, and those of weight and bias in PROGRAMS parts."""
    gradient, sizes = gradient.contiguous(), _sizes(total.shape[-1], True)
    found: tuple[Tensor, Tensor, Tensor, Tensor] = _shape_of_gradients(gradient, total, mean)
    constants = _dropout_constants(dropout)
    given = (gradient, total, mean, scale, weight, seed, *found, len(mean), *constants)
    with torch.cuda.device(total.device):
        _backward[(PROGRAMS,)](*given, PROGRAMS=PROGRAMS, **sizes)
    return found


@add_norm_backward.register_fake
def _shape_of_gradients(
    gradient: Tensor, total: Tensor, mean: Tensor, *others: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    to_update, to_residual = torch.empty_like(total), torch.empty_like(total)
    to_weight, to_bias = (
        torch.empty(PROGRAMS, total.shape[-1], dtype=torch.float32, device=mean.device)
        for _ in range(2)
    )
    return to_update, to_residual, to_weight, to_bias


def _save_for_backward(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    _, _, weight, _, seed, dropout, _ = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*output[1:], weight, seed)
    ctx.dropout = dropout


def _backward_of_add_norm(ctx, gradient, *_):  # type: ignore[no-untyped-def]
    total, mean, scale, weight, seed = ctx.saved_tensors
    found = torch.ops.graphformers.add_norm_backward(
        gradient, total, mean, scale, weight, seed, ctx.dropout
    )
    to_update, to_residual, to_weight, to_bias = found
    return (
        to_update,
        to_residual,
        to_weight.sum(0).to(weight.dtype),
        to_bias.sum(0).to(weight.dtype),
        None,
        None,
        None,
    )


add_norm.register_autograd(_backward_of_add_norm, setup_context=_save_for_backward)


def works_on(device: torch.device) -> bool:
    """Whether an example is correct, forward and backward, and both passes drop the same values."""
    # Older GPUs do not support bfloat16.
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    generator, size = torch.Generator().manual_seed(0), 768
    seed = torch.tensor([1 << 40], device=device)
    with torch.inference_mode(False), torch.enable_grad():
        update, residual, result_gradient = (
            torch.randn(9, size, generator=generator).to(device, torch.bfloat16) for _ in range(3)
        )
        weight, bias = (torch.randn(size, generator=generator).to(device) for _ in range(2))
        given = [tensor.requires_grad_() for tensor in (update, residual, weight, bias)]
        found = add_norm(*given, seed, 0.0, 1e-6)[0]
        expected = F.layer_norm(update.float() + residual.float(), (size,), weight, bias, 1e-6)
        gradients = torch.autograd.grad(found, given, result_gradient)
        expected_gradients = torch.autograd.grad(expected, given, result_gradient.float())
        ones = torch.ones_like(update, requires_grad=True)
        dropped, total, _, _ = add_norm(
            ones, torch.zeros_like(update), weight, bias, seed, 0.5, 1e-6
        )
        (gradient,) = torch.autograd.grad(dropped, ones, result_gradient)
    kept_share = float((total > 0).float().mean())
    if not 0.45 < kept_share < 0.55 or bool((gradient[total == 0] != 0).any()):
        return False
    pairs = [(found, expected), *zip(gradients, expected_gradients, strict=True)]
    return all(bool((one - other).norm() < 0.02 * other.norm()) for one, other in pairs)


def fused_add_norm(update: Tensor, residual: Tensor, norm: nn.LayerNorm, dropout: float) -> Tensor:
    """norm(residual + dropout(update)) with a new seed for the dropout."""
    seed = torch.randint(1 << 62, (1,), device=update.device)
    arguments = update, residual, norm.weight, norm.bias, seed, dropout, norm.eps
    result: Tensor = torch.ops.graphformers.add_norm(*arguments)[0]
    return result
