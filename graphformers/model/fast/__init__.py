"""What makes networks faster and changes no result: `install` and, back again, `plain`.

The network files say what is computed; this package computes the same with the same parameters:

* `layers`: [CLS] alone where nothing else is read, fused products;
* `reading`: centres and neighbours in one pass, masks once for all layers, cached states without
  projections;
* `graph_kernel`, `norm_kernel`: Triton kernels for GPUs;
* `compilation`: torch.compile.

Tests compare every combination with the plain network.
"""

import copy
from typing import TypeVar

from torch import nn

from graphformers.model.compute import Compute
from graphformers.model.fast.compilation import compile_layers
from graphformers.model.fast.kernels import usable_kernel
from graphformers.model.fast.layers import FastAttention, FastLayer, FastMlp, FastTextEncoder
from graphformers.model.fast.reading import (
    FastBidirectional,
    FastGraphAttention,
    FastGraphFormers,
    FastMutualGraphAttention,
)
from graphformers.model.layers import Attention, Mlp, TextEncoder, TransformerLayer
from graphformers.model.network import (
    BidirectionalNetwork,
    GraphAttention,
    GraphFormersNetwork,
    MutualGraphAttention,
)
from graphformers.model.registry import Network

AnyModule = TypeVar("AnyModule", bound=nn.Module)

FASTER: dict[type[nn.Module], type[nn.Module]] = {
    GraphFormersNetwork: FastGraphFormers,
    BidirectionalNetwork: FastBidirectional,
    GraphAttention: FastGraphAttention,
    MutualGraphAttention: FastMutualGraphAttention,
    Attention: FastAttention,
    TextEncoder: FastTextEncoder,
    TransformerLayer: FastLayer,
    Mlp: FastMlp,
}
PLAIN = {fast: original for original, fast in FASTER.items()}


def install(network: Network) -> Network:
    """The same network, faster: it shares the parameters of the given one.

    Modules of other classes than those in FASTER stay as they are, for instance layer parts that
    other packages register. Such a part is used by the faster layers, too.
    """
    faster = _exchanged(network, FASTER)
    if isinstance(faster, FastGraphFormers):
        faster.add_steps()
    return faster


def plain(network: Network) -> Network:
    """The network that reads as the paper does; it shares the parameters of the given one."""
    return _exchanged(network, PLAIN)


def compile_network(network: Network, compute: Compute, *, trains: bool = False) -> None:
    """Compiles a network in place; one that trains on a GPU also gets the kernels for norms."""
    if trains:
        kernel = usable_kernel("norm_kernel", compute.device)
        for module in network.modules():
            if isinstance(module, FastLayer) and isinstance(module.mlp_norm, nn.LayerNorm):
                module.add_norm_kernel = None if kernel is None else kernel.fused_add_norm
    compile_layers(network, trains=trains)


def _exchanged(module: AnyModule, classes: dict[type[nn.Module], type[nn.Module]]) -> AnyModule:
    """A module of the class that stands for the given one's, with the same parameters."""
    result = copy.copy(module)
    result.__dict__ = dict(module.__dict__)
    result.__dict__["_compiled_call_impl"] = None
    object.__setattr__(result, "__class__", classes.get(type(module), type(module)))
    result._modules = {
        name: child if child is None else _exchanged(child, classes)
        for name, child in module._modules.items()
    }
    return result
