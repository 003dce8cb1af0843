"""The public names are complete and documented."""

from importlib import import_module

import pytest

import graphformers


def test_every_public_name_is_there_and_documented() -> None:
    assert set(graphformers.__all__) == set(graphformers._HOMES)
    for name in graphformers.__all__:
        assert getattr(graphformers, name).__doc__, name
    assert graphformers.__all__ == sorted(graphformers.__all__)
    assert set(graphformers.__all__) <= set(dir(graphformers))  # what a prompt completes


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'graphformers' has no attribute 'nonsense'"):
        graphformers.nonsense  # noqa: B018


def test_no_public_name_is_hidden_by_a_folder_of_ours() -> None:
    for name in graphformers.__all__:
        module = import_module(f"graphformers.{graphformers._HOMES[name]}")
        assert getattr(graphformers, name) is getattr(module, name)
