"""Lists the modules that one import executes, with the number of functions called in each.

    python -m tests.import_modules

The list stands in docs/architecture.md; tests/test_docs.py compares the two.

A table of nodes and one of links, with a malformed row each, are read by `read_graph`.
"""

import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType

from graphformers import read_graph
from tests.step_modules import count_by_module


def import_modules(folder: Path) -> dict[str, int]:
    """The modules of the package that `read_graph` executes.

    Args:
        folder: Receives the two tables.

    Returns:
        The number of distinct functions and methods called, by the name of the module.
    """
    (folder / "papers.csv").write_text('id,title,year\na,"First, one",1999\nb,Second,2000\nc,d\n')
    (folder / "citations.csv").write_text("source,target,type\nb,a,cites\na,b\n")
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called.add(frame.f_code)

    sys.setprofile(note)
    try:
        graph = read_graph(folder, skip_bad=True)
    finally:
        sys.setprofile(None)
    assert graph.num_pairs == 1
    return count_by_module(called)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        found = import_modules(Path(name))
    for name, count in found.items():
        print(f"{count:4} {name}")
    print(f"{sum(found.values())} functions in {len(found)} modules")
