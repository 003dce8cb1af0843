"""The demo: the whole walk on the graph of Python's standard library, which every machine has."""

import platform
import sys
from pathlib import Path

from graphformers.data.graph import TextGraph
from graphformers.data.readers import read_graph
from graphformers.data.settings import ImportSettings


def run_demo(folder: Path) -> TextGraph:
    """Builds the graph of the standard library in `folder`, or takes the one that an earlier run left there."""
    place = folder / f"python{platform.python_version()}.graph"
    if (place / "manifest.json").is_file():
        print(f"using {place}, made by an earlier run", file=sys.stderr)
        return TextGraph.load(place)
    print("reading the docstrings of Python's standard library …", file=sys.stderr)
    return read_graph([], settings=ImportSettings(format="python")).save(place)
