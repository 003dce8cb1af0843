"""Arguments and options that several commands share."""

from pathlib import Path

import typer

from graphformers.cli.command import app, argument, option
from graphformers.version import __version__

GRAPH = argument(..., "GRAPH", "A graph folder.")
SPLIT = argument(..., "SPLIT", "A split folder.")
VECTORS = argument(..., "VECTORS", "A folder of vectors.")
OUTPUT = option(..., "-o, --output FOLDER", "The folder to write.")
FORCE = option(False, "--force", "Replace the output if it exists.")
AS_JSON = option(False, "--json", "Print JSON instead of tables.")
DEVICE = option(
    None, "--device NAME", "cpu, cuda, cuda:1 or mps; by default the fastest available."
)
MOVED_MODEL = option(
    None,
    "--model MODEL",
    "The model folder, if it is no longer where it was when the vectors were made.",
)
RECIPE = option(
    Path("auto"),
    "--config RECIPE",
    "auto: settings chosen from graph, backbone and device; minilm, or the paper's dblp, wiki and "
    "product; or a .toml file.",
)
SET = option(
    None,
    "--set NAME=VALUE...",
    "A single setting, which overrides the recipe; max.learning_rate=1e-4 sets it for the method "
    "max only. docs/cli.md lists all settings.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"graphformers {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass
