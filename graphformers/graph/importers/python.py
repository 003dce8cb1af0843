"""The docstrings of Python packages as a textual graph.

Nodes are modules, classes and functions with a docstring; the text is the docstring's first
paragraph. It does not include the name, from which most links could be predicted. Edges run from a
member to its module or class, from a function to those that it calls, and from a class to its
bases. Source files are parsed, never imported or run.
"""

import ast
import importlib.util
import inspect
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from graphformers.errors import InputError
from graphformers.graph.builder import GraphBuilder
from graphformers.graph.importers.records import Records
from graphformers.graph.importers.sources import Source
from graphformers.graph.settings import ImportSettings
from graphformers.progress import progress

NOT_LIBRARY = {
    "test",
    "tests",
    "idlelib",
    "turtledemo",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "_bundled",
    "__phello__",
}
# imports that are followed from a name to its definition
MAX_HOPS = 8

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Entry:
    """A module, class or function."""

    name: str
    path: Path
    line: int
    kind: str
    text: str | None
    parent: "Entry | None"
    calls: list[str] = field(default_factory=list)
    bases: list[str] = field(default_factory=list)


def read(files: Sequence[Source], builder: GraphBuilder, settings: ImportSettings) -> None:
    """Reads the standard library, or the installed packages named by the sources."""
    modules = [module for source in files for module in package_files(str(source.path))]
    if not files:
        modules = list(standard_library_files())
    library = Library()
    with progress("Parsing Python files", len(modules), "files") as task:
        for name, path in modules:
            library.add_module(name, path)
            task.advance()
    entries = (entry for entry in library.entries.values() if entry.text)
    for path, members in groupby(entries, key=lambda entry: entry.path):
        with Records(builder, path, ["kind"]) as records:
            for entry in members:
                records.add_node(entry.line, entry.name, entry.text, entry.kind)
                for target, type in library.links(entry):
                    records.add_edge(entry.line, entry.name, target, type)


def standard_library_files() -> Iterator[tuple[str, Path]]:
    """Yields (module name, file) of the standard library's sources, in order of name.

    Tests and programs are left out.
    """
    top = Path(sysconfig.get_paths()["stdlib"])
    for name in sorted(sys.stdlib_module_names - NOT_LIBRARY):
        yield from _files_below(name, top / name if (top / name).is_dir() else top / f"{name}.py")


def package_files(name: str) -> Iterator[tuple[str, Path]]:
    """Yields (module name, file) of the sources of an installed package."""
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise InputError(
            f"{name}: no installed Python package of that name with source files; expected a name "
            f"as in 'import {name}'"
        )
    origin = Path(spec.origin)
    yield from _files_below(name, origin.parent if spec.submodule_search_locations else origin)


def _files_below(name: str, place: Path) -> Iterator[tuple[str, Path]]:
    if place.is_file():
        yield name, place
    for file in sorted(place.rglob("*.py")):
        parts = file.relative_to(place).with_suffix("").parts
        if not NOT_LIBRARY & set(parts):
            yield ".".join((name, *(part for part in parts if part != "__init__"))), file


class Library:
    """Parsed modules: their entries, and the definitions of imported names."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        # from "module.name" to the origin of an imported name
        self._aliases: dict[str, str] = {}
        # from a module to those imported by "from … import *"
        self._stars: dict[str, list[str]] = {}

    def add_module(self, name: str, path: Path) -> None:
        try:
            with warnings.catch_warnings():
                # The sources may contain invalid escapes.
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            # Some packages contain templates and deliberately invalid files.
            return
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        parent = self.entries.get(name.rpartition(".")[0])
        module = self._add(Entry(name, path, 1, "module", first_paragraph(tree), parent))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._add_import(node, name, package)
        self._add_members(tree.body, module, name)

    def _add(self, entry: Entry) -> Entry:
        return self.entries.setdefault(entry.name, entry)

    def _add_members(self, body: list[ast.stmt], parent: Entry, module: str) -> None:
        for node in body:
            if isinstance(node, Definition):
                kind = "class" if isinstance(node, ast.ClassDef) else "function"
                name, text = f"{parent.name}.{node.name}", first_paragraph(node)
                entry = self._add(Entry(name, parent.path, node.lineno, kind, text, parent))
                if isinstance(node, ast.ClassDef):
                    bases = filter(None, map(_dotted, node.bases))
                    entry.bases += [f"{module}.{base}" for base in bases]
                    self._add_members(node.body, entry, module)
                elif entry.text:
                    entry.calls += _calls(node, parent, module)
            elif isinstance(node, ast.If | ast.Try):
                # definitions that depend on the platform or on installed packages
                handlers = node.handlers if isinstance(node, ast.Try) else []
                for branch in (node.body, node.orelse, *(handler.body for handler in handlers)):
                    self._add_members(branch, parent, module)

    def _add_import(self, node: ast.Import | ast.ImportFrom, module: str, package: str) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                # "import a.b" defines the name a
                target = alias.name if alias.asname else alias.name.split(".")[0]
                self._aliases.setdefault(f"{module}.{alias.asname or target}", target)
            return
        parents = package.split(".")
        above = parents[: len(parents) - (node.level - 1)] if node.level else []
        origin = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            if alias.name == "*":
                self._stars.setdefault(module, []).append(origin)
            else:
                name = f"{module}.{alias.asname or alias.name}"
                self._aliases.setdefault(name, f"{origin}.{alias.name}")

    def find(self, name: str) -> Entry | None:
        """The entry of a dotted name, found by following imports to the definition."""
        for _ in range(MAX_HOPS):
            if name in self.entries:
                return self.entries[name]
            follow = self._follow(name)
            if follow is None:
                return None
            name = follow
        return None

    def _follow(self, name: str) -> str | None:
        """Replaces the longest imported prefix of a name by its origin: one step of `find`."""
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            prefix, rest = ".".join(parts[:end]), parts[end:]
            if prefix in self._aliases and self._aliases[prefix] != prefix:
                return ".".join([self._aliases[prefix], *rest])
            for origin in self._stars.get(prefix, []) if rest else []:
                if f"{origin}.{rest[0]}" in self.entries:
                    return ".".join([origin, *rest])
        return None

    def links(self, entry: Entry) -> Iterator[tuple[str, str]]:
        """Yields (target, type) of every edge that leaves an entry, each once."""
        found = [(entry.parent, "member of")]
        found += [(self.find(name), "inherits") for name in entry.bases]
        found += [(self.find(name), "calls") for name in entry.calls]
        yield from dict.fromkeys(
            (target.name, type)
            for target, type in found
            if target and target.text and target is not entry
        )


def first_paragraph(node: ast.Module | Definition) -> str | None:
    """The first paragraph of a docstring on one line; None if it has no words."""
    docstring = ast.get_docstring(node, clean=False)
    if not docstring:
        return None
    paragraph = re.split(r"\n\s*\n", inspect.cleandoc(docstring).strip(), maxsplit=1)[0]
    text = " ".join(paragraph.split())
    return text if re.search(r"[A-Za-z]{2}", text) else None


def _dotted(node: ast.expr) -> str | None:
    """The name in an expression such as a.b.c; None for other expressions."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _calls(
    function: ast.FunctionDef | ast.AsyncFunctionDef, parent: Entry, module: str
) -> list[str]:
    """The dotted names that a function calls, prefixed by its module.

    Calls of methods of self and cls are prefixed by the class.
    """
    names = []
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and (name := _dotted(node.func)):
            first, _, rest = name.partition(".")
            if first in ("self", "cls") and parent.kind == "class" and rest:
                names.append(f"{parent.name}.{rest}")
            else:
                names.append(f"{module}.{name}")
    return names
