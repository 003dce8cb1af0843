"""The demo."""

from pathlib import Path
from typing import Annotated

import typer

from graphformers.cli.options import AsJson, app


@app.command("demo")
def demo_command(
    folder: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="Where the demo puts its folders."),
    ] = Path("demo"),
    seconds: Annotated[
        float, typer.Option(metavar="NUMBER", help="How long each of the two models is trained.")
    ] = 90.0,
    as_json: AsJson = False,
) -> None:
    """The whole story on a graph that every machine has: Python's standard library.

    graphformers demo
    """
    from graphformers.demo import run_demo
    from graphformers.printing import print_demo

    print_demo(run_demo(folder, seconds), as_json)
