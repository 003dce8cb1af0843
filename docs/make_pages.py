"""Writes docs/cli.md from the help texts of the command line and the settings classes, and
docs/formats.md from the table of formats.

A test fails when a page is out of date.
"""

import os
from collections.abc import Callable
from pathlib import Path

import click
import typer.main

from graphformers.cli import app
from graphformers.graph.formats import FORMATS, Format
from graphformers.graph.settings import ROLES, ImportSettings
from graphformers.model.config import ModelConfig
from graphformers.settings import describe
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
    lines = [
        f"| `{entry.name}` | {_shown(entry.default)} | {entry.expected} | {entry.help} |"
        for entry in entries
    ]
    head = [
        "## Settings of training",
        "",
        "For recipes (`name = value`) and `--set name=value`.",
        "",
        "| setting | default | values | what it does |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *lines]) + "\n"


def _shown(default: object) -> str:
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


PAGES: dict[str, Callable[[], str]] = {"cli.md": cli_page, "formats.md": formats_page}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(__file__).parent / name).write_text(page(), encoding="utf-8")
