"""Compute: the device, the precision and the compilation of a network, chosen in one place."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from graphformers.errors import GraphFormersError

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DEVICE_PRECISION = {"cuda": "bfloat16"}


@dataclass(frozen=True)
class Compute:
    """Device, precision and compilation of a network.

    Attributes:
        device: Where weights and batches are.
        precision: The type of hidden states, one of PRECISIONS. Weights in training, scores and
            vectors are float32 in any case.
        compiled: Whether layers are compiled with torch.compile.
    """

    device: torch.device
    precision: str = "float32"
    compiled: bool = False

    @staticmethod
    def on(device: torch.device, *, compiled: bool = False) -> "Compute":
        """The fastest precision that suits a device."""
        return Compute(device, DEVICE_PRECISION.get(device.type, "float32"), compiled)

    @property
    def dtype(self) -> torch.dtype:
        """The precision as a type of torch."""
        return PRECISIONS[self.precision]

    def autocast(self) -> torch.autocast:
        """Returns a context in which float32 weights compute in this precision.

        Each call returns a new one: autocast caches cast weights, also those made without
        gradients.
        """
        return torch.autocast(self.device.type, self.dtype, enabled=self.precision != "float32")

    @contextmanager
    def repeatable(self) -> Iterator[None]:
        """A context in which a CPU adds gradients in a fixed order, so that runs are repeatable.

        By default threads add them in the order in which they finish. On a CPU the fixed order has
        no measurable cost; on other devices this context does nothing.
        """
        if self.device.type != "cpu":
            yield
            return
        was_on = torch.are_deterministic_algorithms_enabled()
        warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
        settings = torch.utils.deterministic
        filled = settings.fill_uninitialized_memory  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(True, warn_only=True)
        settings.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(was_on, warn_only=warned_only)
            settings.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def choose_device(name: str | None = None) -> torch.device:
    """The device of this name; by default a GPU if there is one.

    Raises:
        GraphFormersError: This machine has no such device.
    """
    try:
        device = torch.device(name or _best_device())
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        # torch's own message describes how it was built.
        available = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        if torch.backends.mps.is_available():
            available.append("mps")
        raise GraphFormersError(
            f"device={name!r} given, this machine has: {', '.join(available)}"
        ) from error
    return device


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
