"""torch.compile for networks, layer by layer.

All layers share one compiled graph for each kind of call (all tokens or [CLS] alone, with or
without gradients, a few numbers of neighbours), so that compiling takes seconds and any number of
rows is served.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from graphformers.batching.packing import NeighborIndex, PackedBatch, PackedNeighborhoods
from graphformers.model.fast.reading import AttentionMasks, GraphStep, NestedLayer
from graphformers.model.layers import TransformerLayer
from graphformers.model.network import GraphAttention

COMPILED = (AttentionMasks, NestedLayer, GraphStep, TransformerLayer, GraphAttention)
RECOMPILE_LIMIT = 32
Call = Callable[..., object]


def compile_layers(
    network: nn.Module, backend: str | Callable[..., object] = "inductor", *, trains: bool = False
) -> None:
    """Compiles the layers of a network, in place.

    Args:
        network: The network; its modules keep their weights.
        backend: What torch.compile compiles with.
        trains: Whether gradients will be computed.
    """
    dynamo = torch._dynamo.config
    dynamo.recompile_limit = max(dynamo.recompile_limit, RECOMPILE_LIMIT)
    # The compiler reports its own choices.
    warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")
    device = next(network.parameters()).device
    options: dict[str, Any] = {}
    if backend == "inductor" and device.type == "cuda" and not trains:
        # In the compiler's own processes, kernels for another number of neighbours took minutes
        # on an H200 with torch 2.11; in this process they take less than a second each.
        options = {"compile_threads": 1}
    cut_options = options
    if backend == "inductor" and torch.__version__ < "2.13":
        # Where the compiler joins the two reductions of a norm's gradient, it forgot brackets
        # around a sum of sizes.
        cut_options = options | {"triton.mix_order_reduction": False}
    for module in network.modules():
        if isinstance(module, COMPILED):
            call = torch.compile(module._call_impl, backend=backend, options=options or None)
            cut = call
            if cut_options != options:
                cut = torch.compile(module._call_impl, backend=backend, options=cut_options)
            module._compiled_call_impl = _with_dynamic_rows(call, cut)


def _with_dynamic_rows(call: Call, cut: Call) -> Call:
    """The call, with the first dimension of all tensors declared dynamic.

    Otherwise torch.compile would compile once more for another size. `cut` is called instead where
    the last argument chooses tokens: then the number of tokens is a sum.
    """

    def call_with_dynamic_rows(*arguments: object) -> object:
        _mark_dynamic(arguments)
        last = arguments[-1]
        is_cut = isinstance(last, Tensor) and not last.is_floating_point()
        return (cut if is_cut else call)(*arguments)

    return call_with_dynamic_rows


def _mark_dynamic(value: object) -> None:
    if isinstance(value, Tensor):
        # Most tensors were marked for the layer before.
        if not hasattr(value, "_dynamo_weak_dynamic_indices"):
            torch._dynamo.maybe_mark_dynamic(value, 0)
            # Static, or the next width would be compiled for any width.
            torch._dynamo.mark_static(value, list(range(1, value.dim())))
    elif isinstance(value, list | tuple):
        for entry in value:
            _mark_dynamic(entry)
    elif isinstance(value, PackedBatch | PackedNeighborhoods | NeighborIndex):
        _mark_dynamic(list(vars(value).values()))
