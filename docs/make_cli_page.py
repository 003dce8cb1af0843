"""Writes docs/cli.md from the help texts of the command line and the settings classes.

A test fails when the page is out of date.
"""

import os
from pathlib import Path

import click
import typer.main

from graphformers.cli import app
from graphformers.model.config import ModelConfig
from graphformers.settings import describe
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


if __name__ == "__main__":
    PAGE.write_text(cli_page(), encoding="utf-8")
