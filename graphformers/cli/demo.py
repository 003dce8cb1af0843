"""The demo command."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphformers.cli.options import AsJson, app

if TYPE_CHECKING:
    from graphformers.demo import Demo


@app.command("demo")
def demo_command(
    folder: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="The folder of all results."),
    ] = Path("demo"),
    seconds: Annotated[
        float, typer.Option(metavar="NUMBER", help="Training time of each of the two models.")
    ] = 90.0,
    as_json: AsJson = False,
) -> None:
    """Import, split, train, evaluate, embed and search a graph that every machine has.

    The graph is Python's standard library: its docstrings, and which object uses which.

    graphformers demo
    """
    from graphformers.demo import run_demo

    print_demo(run_demo(folder, seconds), as_json)


def print_demo(demo: "Demo", as_json: bool) -> None:
    """Prints the graph of the demo, the comparison, a search, and what to type next."""
    from graphformers.data.describe import describe_graph

    if as_json:
        print(json.dumps(demo.to_dict(), ensure_ascii=False, default=str))
        return
    print(describe_graph(demo.graph).as_table())
    print(
        "\nWhich docstring is linked to this one? The true one among its candidates, on links held "
        "out from training."
    )
    print(
        "Both models were trained for the same time; a step with neighbours takes longer than one "
        "without.\n"
    )
    demo.comparison.print()
    split = demo.split.artifact.path if demo.split.artifact else ""
    print(f"\nThe model is in {demo.model}: graphformers evaluate {demo.model} {split}\n")
    demo.found.as_table().print(gap=True)
