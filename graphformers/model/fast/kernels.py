"""Checks whether the Triton kernels can be used on a device."""

import logging
from functools import cache
from importlib import import_module
from types import ModuleType

import torch

logger = logging.getLogger(__name__)


@cache
def usable_kernel(name: str, device: torch.device) -> ModuleType | None:
    """The module `graph_kernel` or `norm_kernel`; None if it does not give the correct result.

    Triton needs a GPU that it supports and a C compiler. No failure is an error, since networks
    work without the kernels.
    """
    if device.type != "cuda":
        return None
    try:
        module = import_module(f"graphformers.model.fast.{name}")
        return module if module.works_on(device) else None
    except Exception as error:
        logger.info("%s is not used on %s: %s", name, device, error)
        return None
