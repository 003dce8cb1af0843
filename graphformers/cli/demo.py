"""The demo command."""

from pathlib import Path

from graphformers.cli.command import command, option
from graphformers.cli.options import AS_JSON
from graphformers.cli.output import show_result


@command("demo")
def demo_command(
    folder: Path = option(Path("demo"), "-o, --output FOLDER", "The folder of all results."),
    steps: int = option(150, "--steps NUMBER", "Training steps of each of the two models."),
    as_json: bool = AS_JSON,
) -> None:
    """Run every step, from import to search, on Python's docstrings.

    Nodes are the objects of the standard library, with their docstrings as texts; links say which
    object uses which.

    graphformers demo
    """
    from graphformers.demo import run_demo

    show_result(run_demo(folder, steps), as_json)
