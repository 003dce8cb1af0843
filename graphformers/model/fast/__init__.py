"""Faster implementations of networks with the same parameters and results.

`install` replaces the layers and networks of `graphformers.model` by faster classes, `plain` undoes
it:

* `layers`: fused matrix products, and layers computed for [CLS] only if nothing else is used;
* `network`: centres and neighbours in one pass, masks computed once, attention to cached states
  without projecting them;
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
from graphformers.model.fast.network import (
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
PLAIN = {faster: original for original, faster in FASTER.items()}


def install(network: Network) -> Network:
    """Returns a faster network that shares the parameters of the given one.

    Modules of classes that are not in FASTER are kept, for instance layer parts that other packages
    register; the faster layers use them, too.
    """
    faster = _replace_classes(network, FASTER)
    if isinstance(faster, FastGraphFormers):
        faster.add_steps()
    return faster


def plain(network: Network) -> Network:
    """Returns the plain network, which shares the parameters of the given one."""
    return _replace_classes(network, PLAIN)


def compile_network(network: Network, compute: Compute, *, trains: bool = False) -> None:
    """Compiles a network in place; for training on a GPU, layers also use the kernel for norms."""
    if trains:
        kernel = usable_kernel("norm_kernel", compute.device)
        for module in network.modules():
            if isinstance(module, FastLayer) and isinstance(module.mlp_norm, nn.LayerNorm):
                module.add_norm_kernel = None if kernel is None else kernel.fused_add_norm
    compile_layers(network, trains=trains)


def _replace_classes(
    module: AnyModule, classes: dict[type[nn.Module], type[nn.Module]]
) -> AnyModule:
    """Copies a module and those in it with their classes replaced; parameters are shared."""
    result = copy.copy(module)
    result.__dict__ = dict(module.__dict__)
    result.__dict__["_compiled_call_impl"] = None
    object.__setattr__(result, "__class__", classes.get(type(module), type(module)))
    result._modules = {
        name: child if child is None else _replace_classes(child, classes)
        for name, child in module._modules.items()
    }
    return result
