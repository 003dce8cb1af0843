"""The interface of networks, and the registries of methods and of layer parts.

A method is a name ("graphformers", "gat", …) with a network class. The rest of the package uses
the interface `Network`; no other module compares names of methods. A new method is a subclass of
`Network` under a new name::

    @register_method("first")
    class FirstNeighbor(CascadedNetwork):
        ...
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from graphformers.arrays import Array
from graphformers.batching.packing import (
    NeighborIndex,
    NetworkInputs,
    PackedBatch,
    PackedNeighborhoods,
)
from graphformers.errors import GraphFormersError, nearest
from graphformers.model.activations import BatchSize, transformer_numbers

if TYPE_CHECKING:
    from graphformers.model.config import ModelConfig


class Network(nn.Module):
    """A network from packed texts to vectors of nodes: GraphFormers or a baseline.

    Shapes: N nodes of a batch, B centres, K neighbours of a centre at most, M neighbours in all,
    D hidden size.
    """

    title: ClassVar[str]
    """The name of the method in tables; by default its registered name."""
    reads_neighbors: ClassVar[bool] = True
    """Whether the texts of neighbours change a vector."""
    has_transformer: ClassVar[bool] = True
    """Whether texts go through the backbone's Transformer layers."""
    learning_rate_factor: ClassVar[float] = 1.0
    """Factor of the learning rate, for networks that need larger steps than Transformers."""

    def __init__(self, config: "ModelConfig") -> None:
        super().__init__()
        self.config = config
        self.log_temperature: nn.Parameter | None = None
        if config.learn_temperature:
            # the log of a factor of the temperature that training starts with
            self.log_temperature = nn.Parameter(torch.zeros(()))

    @classmethod
    def variant(cls, config: "ModelConfig") -> type["Network"]:
        """The class that implements a configuration of this method."""
        return cls

    @classmethod
    @abstractmethod
    def inputs(cls, config: "ModelConfig") -> NetworkInputs:
        """The content that this network needs in its batches; it does not depend on weights."""

    @abstractmethod
    def neighbor_states(self, texts: PackedBatch) -> list[Tensor]:
        """The states of N texts as neighbours, encoded independently: tensors (N, D)."""

    @abstractmethod
    def center_vectors(
        self, centers: PackedBatch, states: list[Tensor], index: NeighborIndex
    ) -> Tensor:
        """(B, D) float32: vectors of centres, given the states (M, D) of their neighbours."""

    def vectors_from_states(
        self, center_BD: Tensor, states: list[Tensor], index: NeighborIndex
    ) -> Tensor:
        """(B, D) float32: like `center_vectors`, for networks with `centers_from_states`."""
        raise NotImplementedError

    def forward(self, batch: PackedNeighborhoods) -> Tensor:
        """(B, D) float32: vectors of centres, computed without cached states."""
        states = self.neighbor_states(batch.neighbors)
        return self.center_vectors(batch.centers, states, batch.index)

    def forward_with_loss(
        self, batch: PackedNeighborhoods, num_pairs: int
    ) -> tuple[Tensor, Tensor | None]:
        """Vectors, and an additional loss of the network, summed over the pairs, or None.

        The centres are the anchors of the pairs, their positives, and text queries, if any.
        """
        return self(batch), None

    @classmethod
    def is_plain_without_neighbors(cls, config: "ModelConfig") -> bool:
        """Whether the vector of a text without neighbours is that of its backbone alone."""
        return False

    def activations(self, size: BatchSize) -> int:
        """Numbers that a batch of this size keeps for the backward pass, estimated."""
        return transformer_numbers(self.config, self.inputs(self.config), size)

    def add_nodes(self, id_hashes: Array, seed: int) -> None:
        """Adds trainable node vectors, if the method has any; known nodes keep their vectors.

        Nodes are given by the hashes of their ids.
        """

    @classmethod
    def backbone_weights(cls, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A backbone's weights, renamed to those of this network."""
        return {f"text.{name}": tensor for name, tensor in weights.items()}

    def is_pretrained(self, name: str) -> bool:
        """Whether a parameter starts with weights of the backbone."""
        return name.startswith("text.") and name != "text.relative_bias.graph_token"

    def learns_faster(self, name: str) -> bool:
        """Whether a parameter learns `graph_factor` times as fast as the backbone."""
        return not self.is_pretrained(name)


class TextNetwork(Network):
    """A network that does not use neighbours; subclasses define `vectors`."""

    reads_neighbors = False

    @classmethod
    def inputs(cls, config: "ModelConfig") -> NetworkInputs:
        return NetworkInputs()

    @abstractmethod
    def vectors(self, texts: PackedBatch) -> Tensor:
        """(N, D) float32: vectors of nodes."""

    def neighbor_states(self, texts: PackedBatch) -> list[Tensor]:
        return []

    def center_vectors(
        self, centers: PackedBatch, states: list[Tensor], index: NeighborIndex
    ) -> Tensor:
        return self.vectors(centers)

    def forward(self, batch: PackedNeighborhoods) -> Tensor:
        return self.vectors(batch.centers)


AnyNetwork = TypeVar("AnyNetwork", bound=type[Network])
AnyPart = TypeVar("AnyPart", bound=Callable[..., nn.Module])
_METHODS: dict[str, type[Network]] = {}
# the kinds of layer parts, which are settings of `ModelConfig`
PART_KINDS = ("norm", "mlp", "layer", "positions", "attention_mask")
_PARTS: dict[str, dict[str, Callable[..., nn.Module]]] = {kind: {} for kind in PART_KINDS}


def register_method(name: str) -> Callable[[AnyNetwork], AnyNetwork]:
    """Class decorator: makes a network available as `method=name`."""

    def decorate(network: AnyNetwork) -> AnyNetwork:
        # An inherited title does not count: two methods must not have the same title.
        if "title" not in vars(network):
            network.title = name
        _METHODS[name] = network
        return network

    return decorate


def register_part(kind: str, name: str) -> Callable[[AnyPart], AnyPart]:
    """Decorator: makes a layer part available, such as `norm="rms_norm"`.

    Args:
        kind: The setting of `ModelConfig` that chooses the part: "norm", called with (size, eps);
            "mlp", "layer", "positions" or "attention_mask", called with the configuration.
        name: The value of that setting.
    """

    def decorate(part: AnyPart) -> AnyPart:
        _PARTS[kind][name] = part
        return part

    return decorate


def methods() -> tuple[str, ...]:
    """The names of all methods."""
    return tuple(_METHODS)


def method_class(name: str) -> type[Network]:
    """The network class of a method.

    Raises:
        GraphFormersError: There is no such method.
    """
    if name not in _METHODS:
        raise GraphFormersError(f"method={name!r} given, expected one of {', '.join(_METHODS)}")
    return _METHODS[name]


def network_class(config: "ModelConfig") -> type[Network]:
    """The network class that implements a configuration."""
    return method_class(config.method).variant(config)


def layer_part(kind: str, name: str) -> Callable[..., nn.Module]:
    """The constructor of a registered layer part.

    Raises:
        GraphFormersError: There is no such part.
    """
    if name not in _PARTS[kind]:
        raise GraphFormersError(f"{kind}={name!r} given; {nearest(name, _PARTS[kind])}")
    return _PARTS[kind][name]
