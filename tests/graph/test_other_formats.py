"""Importers of other packages, which are found by their entry points."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.papers import ROOT, environment

READER = '''
"""Papers, one per line: id, title and references, separated by "|"."""

from graphformers.graph.formats import Format
from graphformers.graph.importers.records import Records

FORMAT = Format("papers with references", "bars:read", settings=("columns",), outside=True)


def read(files, builder, settings):
    for source in files:
        with Records(builder, source.path) as records:
            for line, text in records.lines(settings):
                id, title, references = text.split("|")
                records.add_node(line, id, title)
                for reference in references.split():
                    records.add_edge(line, id, reference)
'''
PAPERS = "p1|Graphs of texts|p2 p9\np2|Texts of graphs|p3\np3|Nothing cited|\n"


def install(folder: Path, name: str, entry_points: str) -> None:
    """Writes the metadata of a package, as pip does."""
    info = folder / f"{name.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[graphformers.importers]\n{entry_points}")


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "graphformers", *words],
        cwd=folder,
        env=environment(folder, ROOT),
        capture_output=True,
        text=True,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an installed importer and a file for it."""
    (tmp_path / "bars.py").write_text(READER)
    install(tmp_path, "graphformers-bars", "bars = bars:FORMAT\n")
    (tmp_path / "papers.bars").write_text(PAPERS)
    return tmp_path


def test_an_importer_of_another_package(folder: Path) -> None:
    done = run(folder, "import", "papers.bars", "--format", "bars", "-o", "papers.graph")
    assert done.returncode == 0, done.stderr
    assert "3 nodes, 2 linked pairs" in done.stdout + done.stderr
    assert "edges to nodes outside the graph (1)" in done.stdout + done.stderr
    unused = run(folder, "import", "papers.bars", "--format", "bars", "--no-quotes", "-o", "x")
    assert "--no-quotes given, but the format 'bars' does not use it" in unused.stderr


def test_other_formats_are_listed(folder: Path) -> None:
    assert (
        "bars        of the package graphformers-bars 1.2" in run(folder, "import", "--help").stdout
    )
    unknown = run(folder, "import", "papers.bars", "--format", "bar", "-o", "x")
    assert unknown.returncode == 1
    assert "bars; did you mean 'bars'?" in unknown.stderr
    assert "one of dblp, wikidata5m" in run(folder, "import", "papers.bars", "-o", "x").stderr


@pytest.mark.parametrize(
    ("entry", "source", "problem"),
    [
        ("gone:FORMAT", "", "gone:FORMAT: ModuleNotFoundError: No module named 'gone'"),
        ("bad:FORMAT", "1/0", "bad:FORMAT: ZeroDivisionError"),
        ("bad:FORMAT", "def FORMAT(): pass", "bad:FORMAT is a function, expected a Format"),
        (
            "bad:FORMAT",
            "from graphformers.graph.formats import Format\nFORMAT = Format('x', 'bad:read')",
            "bad:read: AttributeError",
        ),
    ],
)
def test_a_broken_importer(folder: Path, entry: str, source: str, problem: str) -> None:
    """It is named when it is used, and does not matter otherwise."""
    (folder / "bad.py").write_text(source)
    install(folder, "some-tool", f"bad = {entry}\n")
    used = run(folder, "import", "papers.bars", "--format", "bad", "-o", "x")
    assert used.returncode == 1
    assert f"the format 'bad' of the package some-tool 1.2 cannot be used ({problem}" in used.stderr
    assert "Traceback" not in used.stderr
    help = run(folder, "import", "--help")
    assert "bad         of the package some-tool 1.2" in help.stdout
    done = run(folder, "import", "papers.bars", "--format", "bars", "-o", "papers.graph")
    assert done.returncode == 0, done.stderr


def test_two_importers_of_one_name(folder: Path) -> None:
    install(folder, "more-bars", "bars = bars:FORMAT\n")
    done = run(folder, "import", "papers.bars", "--format", "bars", "-o", "x")
    assert "offered by graphformers-bars 1.2 and more-bars 1.2, expected one" in done.stderr
