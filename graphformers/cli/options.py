"""The app, options that several commands share, and helpers for options."""

from pathlib import Path
from typing import Annotated

import typer

from graphformers.embedding.settings import EmbedSettings
from graphformers.settings import Settings, describe
from graphformers.version import __version__


def setting_help(settings: type[Settings], name: str, more: str = "") -> str:
    """The help text of an option that is a setting: the description on its field.

    Args:
        settings: The class that declares the setting.
        name: The name of the setting.
        more: What holds for the option alone, such as "Repeatable.".
    """
    help = next(entry.help for entry in describe(settings) if entry.name == name)
    return f"{help} {more}".rstrip()


app = typer.Typer(
    name="graphformers",
    help="Embeddings of text graphs, computed from a node's text and its neighbours' texts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder to write.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        help="cpu, cuda, cuda:1 or mps; by default the fastest available.",
    ),
]
Recipe = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="RECIPE", help="A built-in recipe such as minilm, or a .toml file."
    ),
]
Vectors = Annotated[Path, typer.Argument(metavar="VECTORS", help="A folder of vectors.")]
MovedModel = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="The model folder, if it is no longer where it was when the vectors were made.",
    ),
]
Neighbors = Annotated[
    int | None,
    typer.Option(
        "--neighbors",
        metavar="NUMBER",
        help=setting_help(EmbedSettings, "num_neighbors"),
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"graphformers {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


def listed(text: str) -> list[str]:
    """The parts of a list separated by commas, stripped; empty parts are dropped."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_column(word: str) -> tuple[str, str]:
    """The role and the column name of an argument of --column, ROLE=NAME."""
    role, equals, name = word.partition("=")
    if not equals or not name:
        raise typer.BadParameter(
            f"{word!r} given, expected ROLE=NAME such as text=title", param_hint="--column"
        )
    return role, name
