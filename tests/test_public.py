"""The public names are complete and documented, and the examples of their docstrings run."""

import ast
import dataclasses
import doctest
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import graphformers
from graphformers import GraphFormersError, errors
from tests.papers import write_folders, write_minilm, write_tables

ERRORS = {
    name
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, GraphFormersError)
}
SECTION = re.compile(
    r"^(Args|Attributes|Returns|Yields|Raises|Examples):\n((?:(?:    .*)?\n)+)", re.M
)


def test_every_public_name_is_there_and_documented() -> None:
    assert set(graphformers.__all__) == set(graphformers._HOMES)
    for name in graphformers.__all__:
        assert getattr(graphformers, name).__doc__, name
    assert graphformers.__all__ == sorted(graphformers.__all__)
    assert set(graphformers.__all__) <= set(dir(graphformers))  # what a prompt completes


def test_type_checkers_find_every_public_name_where_it_lives() -> None:
    tree = ast.parse(Path(graphformers.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    found = {
        alias.asname: node.module.removeprefix("graphformers.")
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    assert found == graphformers._HOMES


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'graphformers' has no attribute 'nonsense'"):
        graphformers.nonsense  # noqa: B018


def test_no_public_name_is_hidden_by_a_folder_of_ours() -> None:
    for name in graphformers.__all__:
        module = import_module(f"graphformers.{graphformers._HOMES[name]}")
        assert getattr(graphformers, name) is getattr(module, name)


@pytest.mark.parametrize("name", graphformers.__all__)
def test_the_documentation_of_a_public_name_is_complete(name: str) -> None:
    """Args are the arguments, results and errors are described, and there is an example."""
    public = getattr(graphformers, name)
    assert ">>> " in sections(public).get("Examples", ""), f"{name} has no example"
    problems = list(problems_of_class(public) if isinstance(public, type) else problems_of(public))
    assert not problems, "\n".join(problems)


def problems_of_class(public: type) -> Iterator[str]:
    """What the documentation of a class, its fields and its methods lacks."""
    found = sections(public)
    if dataclasses.is_dataclass(public):
        fields = [field.name for field in dataclasses.fields(public)]
        if listed(found.get("Attributes", "")) != fields:
            yield f"{public.__name__}: its Attributes are not {', '.join(fields)}"
    elif not issubclass(public, Exception):
        yield from problems_of(public.__init__, public)  # type: ignore[misc]
    for name, member in vars(public).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property | cached_property):
            getter = member.fget if isinstance(member, property) else member.func
            if not (getter and getter.__doc__):
                yield f"{public.__name__}.{name} has no docstring"
        elif isinstance(member, staticmethod | classmethod) or inspect.isfunction(member):
            yield from problems_of(getattr(member, "__func__", member))


def problems_of(function: Callable[..., Any], documented: object = None) -> Iterator[str]:
    """What the documentation of a function lacks; that of a constructor is the class's."""
    name, found = function.__qualname__, sections(documented or function)
    if not inspect.getdoc(documented or function):
        yield f"{name} has no docstring"
        return
    signature = inspect.signature(function)
    arguments = [argument for argument in signature.parameters if argument not in ("self", "cls")]
    if listed(found.get("Args", "")) != arguments:
        yield f"{name}: its Args are not {', '.join(arguments)}"
    returns = signature.return_annotation not in (None, "None", inspect.Signature.empty)
    if returns and not {"Returns", "Yields"} & found.keys():
        yield f"{name}: Returns is missing"
    if not returns and "Returns" in found:
        yield f"{name} returns nothing, but has Returns"
    raised = errors_of(inspect.unwrap(function))
    if raised and "Raises" not in found:
        yield f"{name}: Raises is missing, it raises {', '.join(sorted(raised))}"
    unknown = set(listed(found.get("Raises", ""))) - ERRORS
    if unknown:
        yield f"{name}: Raises names {', '.join(unknown)}, not an error of graphformers"


def sections(documented: object) -> dict[str, str]:
    """The sections of a docstring."""
    return dict(SECTION.findall((inspect.getdoc(documented) or "") + "\n"))


def listed(section: str) -> list[str]:
    """The names that a section explains."""
    return re.findall(r"^    \**(\w+):", section, re.MULTILINE)


@cache
def errors_of(function: Callable[..., Any]) -> frozenset[str]:
    """The errors of graphformers that a function raises, itself or through functions it calls.

    Calls of methods are not followed.
    """
    raised, seen, waiting = set(), set(), [function]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(current)))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = getattr(node.exc.func, "id", "")
                raised |= {name} & ERRORS
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called = inspect.unwrap(current).__globals__.get(node.func.id)
                module = getattr(called, "__module__", "") or ""
                if inspect.isfunction(called) and module.startswith("graphformers"):
                    waiting.append(inspect.unwrap(called))
    return frozenset(raised)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that examples name."""
    folder = tmp_path_factory.mktemp("papers")
    write_tables(folder)
    write_minilm(folder)
    write_folders(folder)
    return folder


@pytest.mark.parametrize("name", graphformers.__all__)
def test_the_examples_of_a_public_name_run(
    name: str, papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The examples of its docstring and of its methods, each with the names below at hand."""
    monkeypatch.chdir(papers)
    monkeypatch.syspath_prepend(papers)
    public = getattr(graphformers, name)
    names = {name: getattr(graphformers, name) for name in graphformers.__all__} | {
        "graph": graphformers.TextGraph.load("papers.graph"),
        "split": graphformers.LinkSplit.load("papers.split"),
        "model": graphformers.GraphFormers.from_pretrained("papers.model"),
        "store": graphformers.VectorStore.load("papers.vectors"),
    }
    runner = doctest.DocTestRunner(
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False
    )
    report: list[str] = []
    for test in doctest.DocTestFinder().find(public, name, globs=names):
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)
