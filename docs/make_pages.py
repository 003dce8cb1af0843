"""Writes the pages of docs/ that are made from the code: commands, formats, the Python API.

A test fails when a page is out of date.
"""

import os
from collections.abc import Callable
from dataclasses import MISSING
from pathlib import Path

import click
import typer.main

import graphformers
from graphformers.cli import app
from graphformers.graph.formats import FORMATS, Format
from graphformers.graph.settings import ROLES, ImportSettings
from graphformers.model.config import ModelConfig
from graphformers.settings import SettingInfo, Settings, describe
from graphformers.training.settings import MODEL_SETTINGS, TrainConfig


def cli_page() -> str:
    """The whole page: every command with its help text, as a terminal of 100 columns shows it."""
    os.environ["COLUMNS"] = "100"
    root = typer.main.get_command(app)
    parts = ["# Command line\n\nMade from the help texts by `make docs`.\n"]
    context = click.Context(root, info_name="graphformers", terminal_width=100)
    parts.append(f"```text\n{root.get_help(context).rstrip()}\n```\n")
    for name, command in sorted(root.commands.items()):  # type: ignore[attr-defined]
        inner = click.Context(command, info_name=name, parent=context, terminal_width=100)
        parts.append(
            f"## graphformers {name}\n\n```text\n{command.get_help(inner).rstrip()}\n```\n"
        )
    return "\n".join([*parts, settings_page()])


def settings_page() -> str:
    """The settings of training, which recipes and --set may name."""
    entries = describe(TrainConfig)
    entries += [entry for entry in describe(ModelConfig) if entry.name in MODEL_SETTINGS]
    head = [
        "## Settings of training",
        "",
        "For recipes (`name = value`) and `--set name=value`.",
        "",
    ]
    return "\n".join([*head, *settings_table(entries)]) + "\n"


def settings_table(entries: list[SettingInfo]) -> list[str]:
    """The lines of a table of settings."""
    lines = [
        f"| `{entry.name}` | {_shown(entry.default)} | {entry.expected} | {entry.help} |"
        for entry in entries
    ]
    return ["| setting | default | values | what it does |", "|---|---|---|---|", *lines]


def _shown(default: object) -> str:
    if default is MISSING:
        return "required"
    return f'"{default}"' if isinstance(default, str) else repr(default)


def formats_page() -> str:
    """The files of every format."""
    head = """# Formats

Made from the table of formats (`graphformers/graph/formats.py`) by `make docs`.

The format of files is chosen by `--format NAME`, in Python by `read_graph(…, format="NAME")`. Text
files may be compressed (.gz .xz .bz2). `--skip-bad`, `--bad-rows`, `--keep-empty` and the limits
(`--max-row` and others) apply to every format; other options to those that list them.
[howto-import.md](howto-import.md) imports tables of many kinds, step by step;
[extending.md](extending.md#an-importer) adds a format."""
    formats = [_format(name, each) for name, each in FORMATS.items()]
    return "\n\n".join([head, *formats, _names_of_columns()]) + "\n"


def _names_of_columns() -> str:
    """The names by which columns of tables are recognised."""
    rows = [f"| {role} | {', '.join(names)} |" for role, names in ROLES.items() if names]
    head = """## Names of columns

The columns of tables are recognised by these names, in upper or lower case, the first ones before
the others. `--column ROLE=NAME` names other columns.

| role | names |
|---|---|"""
    return "\n".join([head, *rows])


def _format(name: str, format: Format) -> str:
    options = ", ".join(f"`{_option(setting)}`" for setting in format.settings)
    links = "counted and left out" if format.outside else "bad rows"
    return f"""## {name}

{format.about[0].upper()}{format.about[1:]}.

```text
{format.example}
```

- Options: {options or "none of its own"}.
- Links to nodes outside the data: {links}.
- Reader: `{format.reader}`."""


def _option(name: str) -> str:
    """A setting as it is written on the command line."""
    (entry,) = (entry for entry in describe(ImportSettings) if entry.name == name)
    return entry.option


# the sections of the page on Python, and the packages whose public names they list
SECTIONS = {
    "Graphs": ("graph",),
    "Splits": ("splits",),
    "Models": ("model",),
    "Training": ("training",),
    "Evaluation": ("evaluation",),
    "Embedding": ("embedding",),
    "Search": ("retrieval",),
    "Errors": ("errors",),
}


def python_page() -> str:
    """Directives for all public names, in whose place the site shows their docstrings."""
    homes = {name: getattr(graphformers, name).__module__ for name in graphformers.__all__}
    parts = [
        "# Python\n\nThe public names of `graphformers`, such as `from graphformers import embed`. "
        "Page made by `make docs`.\n"
    ]
    for title, packages in SECTIONS.items():
        names = sorted(name for name, home in homes.items() if home.split(".")[1] in packages)
        parts.append(f"## {title}\n")
        # classes first, as capital letters sort
        for name in names:
            parts.append(f"::: {homes.pop(name)}.{name}\n")
            found = getattr(graphformers, name)
            if isinstance(found, type) and issubclass(found, Settings):
                # The signature would show the declarations of all settings.
                options = ("show_signature: false", "members: false")
                parts[-1] += "    options:\n" + "".join(f"      {each}\n" for each in options)
                parts.append("\n".join(settings_table(describe(found))) + "\n")
    assert not homes, f"no section lists {', '.join(homes)}"
    return "\n".join(parts)


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "formats.md": formats_page,
    "python.md": python_page,
}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(__file__).parent / name).write_text(page(), encoding="utf-8")
