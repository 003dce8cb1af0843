"""Writes docs/cli.md from the help texts of the command line and the settings classes.

A test fails when the page is out of date.
"""

import inspect
import os
import re
from dataclasses import MISSING
from pathlib import Path

import click
import typer.main

from graphformers.cli import app
from graphformers.model.config import ModelConfig
from graphformers.settings import Settings, describe
from graphformers.training.objective import ObjectiveSettings
from graphformers.training.settings import MODEL_SETTINGS, TrainConfig

PAGE = Path(__file__).parent / "cli.md"


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
    rows = [row for owner in (TrainConfig, ObjectiveSettings) for row in settings_of(owner)]
    rows += [row for row in settings_of(ModelConfig) if row[0] in MODEL_SETTINGS]
    lines = [f"| `{name}` | {default} | {comment} |" for name, default, comment in rows]
    head = [
        "## Settings of training",
        "",
        "For recipes (`name = value`) and `--set name=value`.",
        "",
    ]
    return (
        "\n".join([*head, "| setting | default | what it does |", "|---|---|---|", *lines]) + "\n"
    )


def settings_of(owner: type) -> list[tuple[str, str, str]]:
    """Name, default and description of every field that has a default."""
    if issubclass(owner, Settings):
        found = [entry for entry in describe(owner) if entry.default is not MISSING]
        return [(entry.name, _shown(entry.default), entry.help) for entry in found]
    pattern = r"^    (\w+): [\w |]+ = ([^#\n]+?)(?:  # (.*))?$"
    return [
        (name, default.strip(), comment)
        for name, default, comment in re.findall(pattern, inspect.getsource(owner), re.MULTILINE)
    ]


def _shown(default: object) -> str:
    return f'"{default}"' if isinstance(default, str) else repr(default)


if __name__ == "__main__":
    PAGE.write_text(cli_page(), encoding="utf-8")
