"""torch.compile for networks, layer by layer.

All layers share one compiled graph for each kind of call (all tokens or [CLS] only, with or without
gradients, a few numbers of neighbours), so that compiling takes seconds. The number of rows is
dynamic.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from graphformers.batching.packing import NeighborIndex, PackedBatch, PackedNeighborhoods
from graphformers.model.fast.network import AttentionMasks, GraphStep, NestedLayer
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
        backend: The backend of torch.compile.
        trains: Whether gradients will be computed.
    """
    dynamo = torch._dynamo.config
    dynamo.recompile_limit = max(dynamo.recompile_limit, RECOMPILE_LIMIT)
    # The compiler warns about its own decisions.
    warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")
    device = next(network.parameters()).device
    options: dict[str, Any] = {}
    if backend == "inductor" and device.type == "cuda" and not trains:
        # In the compiler's own processes, kernels for another number of neighbours took minutes
        # on an H200 with torch 2.11; in this process they take less than a second each.
        options = {"compile_threads": 1}
    cut_options = options
    if backend == "inductor" and torch.__version__ < "2.13":
        # Fusing the two reductions of a norm's gradient made invalid code in older versions, which
        # lacked brackets around a sum of sizes.
        cut_options = options | {"triton.mix_order_reduction": False}
    for module in network.modules():
        if isinstance(module, COMPILED):
            call = torch.compile(module._call_impl, backend=backend, options=options or None)
            cut = call
            if cut_options != options:
                cut = torch.compile(module._call_impl, backend=backend, options=cut_options)
            module._compiled_call_impl = _with_dynamic_rows(call, cut)


def _with_dynamic_rows(call: Call, cut: Call) -> Call:
    """Wraps a call to declare the first dimension of all its tensors dynamic.

    Otherwise torch.compile would compile again for another size. `cut` is called if the last
    argument selects tokens: then the number of tokens is a sum.
    """

    def call_with_dynamic_rows(*arguments: object) -> object:
        _mark_dynamic(arguments)
        last = arguments[-1]
        is_cut = isinstance(last, Tensor) and not last.is_floating_point()
        return (cut if is_cut else call)(*arguments)

    return call_with_dynamic_rows


def _mark_dynamic(value: object) -> None:
    if isinstance(value, Tensor):
        # Most tensors are already marked by the previous layer.
        if not hasattr(value, "_dynamo_weak_dynamic_indices"):
            torch._dynamo.maybe_mark_dynamic(value, 0)
            # Without this, a second width would make torch.compile treat the width as dynamic.
            torch._dynamo.mark_static(value, list(range(1, value.dim())))
    elif isinstance(value, list | tuple):
        for entry in value:
            _mark_dynamic(entry)
    elif isinstance(value, PackedBatch | PackedNeighborhoods | NeighborIndex):
        _mark_dynamic(list(vars(value).values()))
