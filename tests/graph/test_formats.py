"""Every format on a small file of its layout, its normal gaps and its bad rows."""

import inspect
import json
import lzma
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from graphformers.errors import InputError
from graphformers.graph.formats import FORMATS, Importer, load_importer
from graphformers.graph.importers.debian import dependencies
from graphformers.graph.importers.pairs import text_id
from graphformers.graph.importers.wikidata5m import first_sentence
from graphformers.graph.readers import read_graph
from graphformers.graph.settings import ImportSettings
from graphformers.graph.textgraph import TextGraph
from graphformers.settings import describe


def read(format: str, *paths: Path, **changes: object) -> TextGraph:
    return read_graph(list(paths), settings=ImportSettings(format=format, **changes))  # type: ignore[arg-type]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


DBLP = """[
{"id":1,"authors":[{"name":"A"}],"title":"First paper","year":2001,"references":[2,99],"indexed_abstract":{"IndexLength":2}}
,{"id":2,"title":"Second paper","year":2002}
,{"id":3,"title":"Third paper","year":2003,"references":[1,2]}
]"""  # noqa: E501


def test_dblp(tmp_path: Path) -> None:
    graph = read("dblp", write(tmp_path / "dblp.v12.json", DBLP))
    assert graph.texts.to_pylist() == ["First paper", "Second paper", "Third paper"]
    assert graph.neighbors("2") == ["1", "3"]
    assert graph.column("year").to_pylist() == [2001, 2002, 2003]
    assert graph.summary["left_aside"] == {"edges to nodes outside the graph": 1}


def test_dblp_bad_rows(tmp_path: Path) -> None:
    path = write(
        tmp_path / "dblp.json",
        DBLP.replace('"title":"Second paper"', '"title":""').replace('{"id":3', '{"id":3.5'),
    )
    with pytest.raises(InputError, match=re.escape(f"{path}:4: ") + ".*expected a record"):
        read("dblp", path)
    graph = read("dblp", path, skip_bad=True)
    assert graph.ids.to_pylist() == ["1"]
    assert graph.summary["skipped"] == {"malformed row": 1, "empty text": 1}


def test_dblp_years_of_any_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches without a year, and years that no column of numbers holds."""
    monkeypatch.setattr("graphformers.graph.importers.records.BATCH", 1)
    rows = [f'{{"id":{i},"title":"Paper {i}"' for i in range(3)]
    path = write(
        tmp_path / "dblp.json", rows[0] + "}\n" + rows[1] + ',"year":2001}\n' + rows[2] + "}"
    )
    assert read("dblp", path).column("year").to_pylist() == [None, 2001, None]
    path = write(tmp_path / "dblp.json", rows[0] + "}\n" + rows[1] + f',"year":{2**70}}}')
    assert read("dblp", path).column("year").to_pylist() == [None, str(2**70)]


def test_wikidata5m(tmp_path: Path) -> None:
    texts = write(
        tmp_path / "text.txt",
        "Q1\tDr. J. Smith is a cat. It sleeps.\nQ2\tA dog\twith a tab.\nQ3\tThe U.S. Navy is "
        "large. It floats.\n",
    )
    train = write(tmp_path / "train.txt", "Q1\tP31\tQ2\nQ2\tP31\tQ3\n")
    test = write(tmp_path / "test.txt", "Q3\tP17\tQ1\n")
    graph = read("wikidata5m", train, texts, test)
    assert graph.texts.to_pylist() == [
        "Dr. J. Smith is a cat.",
        "A dog\twith a tab.",
        "The U.S. Navy is large.",
    ]
    assert graph.num_pairs == 3
    assert graph.type_names == ("P31", "P17")
    bad = write(tmp_path / "bad.txt", "Q1\tP31\tQ2\nQ1\tP31\n")
    with pytest.raises(
        InputError,
        match=re.escape(f"{bad}:2: 2 fields ('Q1\\tP31'), expected head<TAB>relation<TAB>tail"),
    ):
        read("wikidata5m", texts, bad)
    late = write(tmp_path / "late.txt", "\nno tab at all\nQ1\tP31\tQ2\n")
    with pytest.raises(
        InputError,
        match=re.escape(f"{late}:2: 1 fields separated by tabs, expected 2 (id, text) or 3"),
    ):
        read("wikidata5m", texts, late)
    assert read("wikidata5m", texts, late, skip_bad=True).summary["skipped"] == {"malformed row": 1}
    unknown = write(tmp_path / "unknown.txt", "Q1\tP31\tQ77\n")
    with pytest.raises(InputError, match=r"unknown.txt:1: an edge to 'Q77'"):
        read("wikidata5m", texts, unknown)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("One. Two.", "One."),
        ("No end", "No end"),
        ("It has 3.5 million people. It is big.", "It has 3.5 million people."),
        ('He said "stop!" Then he left.', 'He said "stop!"'),
        ("J. R. R. Tolkien wrote books. He taught.", "J. R. R. Tolkien wrote books."),
        ("Born in St. Louis, Mo. in 1900. Died later.", "Born in St. Louis, Mo. in 1900."),
        ("What? Yes.", "What?"),
    ],
)
def test_first_sentence(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


AMAZON = """# Full information about Amazon Share the Love products
Total items: 4

Id:   0
ASIN: 0771044445
  discontinued product

Id:   1
ASIN: 0827229534
  title: Patterns of Preaching: A Sermon Sampler
  group: Book
  salesrank: 396585
  similar: 2  0738700797  156101074X
  categories: 1
   |Books[283155]|Subjects[1000]
  reviews: total: 1  downloaded: 1  avg rating: 5
    2000-7-28  cutomer: A2JW67OY8U6HHK  rating: 5  votes:  10  helpful:   9

Id:   2
ASIN: 0738700797
  title: Candlemas: Feast of Flames
  group: Book
  salesrank: 168596
  similar: 0
"""


def test_amazon(tmp_path: Path) -> None:
    graph = read("amazon", write(tmp_path / "amazon-meta.txt", AMAZON))
    assert graph.texts.to_pylist() == [
        "Patterns of Preaching: A Sermon Sampler",
        "Candlemas: Feast of Flames",
    ]
    assert graph.neighbors("0738700797") == ["0827229534"]
    assert graph.summary["left_aside"] == {
        "discontinued products": 1,
        "edges to nodes outside the graph": 1,
    }
    bad = write(tmp_path / "bad.txt", AMAZON.replace("  title: Candlemas: Feast of Flames\n", ""))
    with pytest.raises(
        InputError, match=re.escape(f"{bad}:19: the text of node '0738700797' is empty")
    ):
        read("amazon", bad)


DEBIAN = """Package: zsh
Version: 1
Depends: libc6 (>= 2.15), zsh-common (= 1) | zsh-data:any [amd64] <!nocheck>
Suggests: zsh-doc
Description: shell with lots of features
 Zsh is a UNIX command interpreter.
 .
 It has everything.
Section: shells

Package: zsh-common
Description: architecture independent files for Zsh

Package: zsh
Version: 2
Description: another version
"""


def test_debian(tmp_path: Path) -> None:
    path = tmp_path / "Packages.xz"
    path.write_bytes(lzma.compress(DEBIAN.encode()))
    graph = read("debian", path)
    assert graph.ids.to_pylist() == ["zsh", "zsh-common"]
    assert (
        graph.text("zsh")
        == "shell with lots of features Zsh is a UNIX command interpreter.  It has everything."
    )
    assert graph.neighbors("zsh") == ["zsh-common"]
    assert graph.summary["left_aside"] == {
        "further versions of a package": 1,
        "edges to nodes outside the graph": 3,
    }
    bad = write(tmp_path / "Packages", DEBIAN + "\nno colon here\n")
    with pytest.raises(
        InputError, match=re.escape(f"{bad}:18: 'no colon here', expected 'Field: value'")
    ):
        read("debian", bad)
    cut = tmp_path / "cut.xz"
    cut.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="the xz stream is cut short"):
        read("debian", cut)


def test_dependency_fields() -> None:
    assert dependencies("a (>= 1), b:any | c, a, d [i386] <cross>") == ["a", "b", "c", "d"]
    assert dependencies("") == []


def test_pairs(tmp_path: Path) -> None:
    path = write(
        tmp_path / "train.tsv", "cats|'|dogs|'||'|mice\tdogs|'|cats\n\nbirds|'|\tcats\n \n"
    )
    graph = read("pairs", path)
    assert graph.texts.to_pylist() == ["cats", "dogs", "mice", "birds"]
    assert sorted(graph.texts_of(graph.neighbors_of(0))) == ["birds", "dogs", "mice"]
    assert graph.num_pairs == 3
    assert dict(zip(graph.type_names, np.bincount(graph.edge_types), strict=True)) == {
        "pair": 2,
        "neighbor": 3,
    }
    assert graph.node(text_id("mice")) == 2
    bad = write(tmp_path / "bad.tsv", "cats\n")
    with pytest.raises(
        InputError,
        match=re.escape(f"{bad}:1: 1 sides ('cats'), expected two sides separated by a tab"),
    ):
        read("pairs", bad)
    empty = write(tmp_path / "empty.tsv", "cats|'|dogs\t|'|mice\n")
    with pytest.raises(InputError, match=r"empty.tsv:1: one of the two texts is empty"):
        read("pairs", empty)


PACKAGE = {
    "__init__.py": '"""A package of shapes."""\nfrom .round import Circle\nfrom .tools import *\n',
    "round.py": '''"""Round things.

More about them.
"""
from .base import Shape


class Circle(Shape):
    """A round shape."""

    def area(self):
        """How much
        it covers."""
        return self.square() * 3

    def square(self):
        """The radius, squared."""

    def silent(self):
        return area(self)
''',
    "base.py": '''"""What all shapes share."""


class Shape:
    """Anything with an outline."""
''',
    "tools.py": '''"""Tools for shapes."""

import shapes


def measure(shape):
    """Measures a shape."""
    return shapes.Circle().area()


async def wait():
    """Waits for a shape."""
    return measure(1)
''',
    "broken.py": "def oops(:\n",
    "tests/test_shapes.py": '"""Not part of the library."""\n',
}


def test_python_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in PACKAGE.items():
        place = tmp_path / "shapes" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    graph = read_graph(["shapes"], settings=ImportSettings(format="python"))
    assert graph.text("shapes.round") == "Round things."
    assert graph.text("shapes.round.Circle.area") == "How much it covers."
    assert "shapes" not in sys.modules
    ids = graph.ids.to_pylist()
    edges = {
        (ids[a], graph.type_names[t], ids[b])
        for (a, b), t in zip(graph.edges.T.tolist(), graph.edge_types, strict=True)
    }
    assert edges == {
        ("shapes.base", "member of", "shapes"),
        ("shapes.round", "member of", "shapes"),
        ("shapes.tools", "member of", "shapes"),
        ("shapes.base.Shape", "member of", "shapes.base"),
        ("shapes.round.Circle", "member of", "shapes.round"),
        ("shapes.round.Circle", "inherits", "shapes.base.Shape"),
        ("shapes.round.Circle.area", "member of", "shapes.round.Circle"),
        ("shapes.round.Circle.area", "calls", "shapes.round.Circle.square"),
        ("shapes.round.Circle.square", "member of", "shapes.round.Circle"),
        ("shapes.tools.measure", "member of", "shapes.tools"),
        ("shapes.tools.measure", "calls", "shapes.round.Circle"),
        ("shapes.tools.wait", "member of", "shapes.tools"),
        ("shapes.tools.wait", "calls", "shapes.tools.measure"),
    }
    with pytest.raises(InputError, match="no installed Python package of that name"):
        read_graph(["no_such_package"], settings=ImportSettings(format="python"))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_an_importer_and_an_example(name: str) -> None:
    parameters = list(inspect.signature(load_importer(name)).parameters)
    assert parameters == list(inspect.signature(Importer.__call__).parameters)[1:]
    assert FORMATS[name].example
    known = {entry.name for entry in describe(ImportSettings)}
    assert set(FORMATS[name].settings) <= known


def test_every_format_is_documented_in_help() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "graphformers", "import", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in FORMATS:
        assert f"\n  {name}  " in shown


def make_dblp(path: Path, count: int) -> int:
    """A file of the DBLP layout whose every reference points inside; returns how many distinct
    links there are.
    """
    draw = np.random.default_rng(1)
    references = draw.integers(0, count, (count, 3))
    with path.open("w") as file:
        file.write("[\n")
        for i in range(count):
            record = {
                "id": i,
                "title": f"Paper number {i}",
                "references": references[i].tolist(),
                "fos": [{"name": "x", "w": 0.1}],
            }
            file.write(("," if i else "") + json.dumps(record) + "\n")
        file.write("]")
    pairs = {
        (min(i, r), max(i, r)) for i, row in enumerate(references.tolist()) for r in row if i != r
    }
    return len(pairs)


def test_a_hundred_thousand_dblp_records(tmp_path: Path) -> None:
    pairs = make_dblp(tmp_path / "dblp.json", 100_000)
    graph = read("dblp", tmp_path / "dblp.json")
    assert (graph.num_nodes, graph.num_pairs) == (100_000, pairs)
    assert graph.summary["left_aside"] == {}


def test_a_hundred_thousand_wikidata_entities(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    ends = draw.integers(0, 100_000, (200_000, 2))
    texts = write(
        tmp_path / "text.txt",
        "".join(f"Q{i}\tEntity {i} is a thing. More.\n" for i in range(100_000)),
    )
    triples = write(
        tmp_path / "triples.txt", "".join(f"Q{a}\tP{a % 7}\tQ{b}\n" for a, b in ends.tolist())
    )
    graph = read("wikidata5m", texts, triples)
    expected = {(min(a, b), max(a, b)) for a, b in ends.tolist() if a != b}
    assert (graph.num_nodes, graph.num_pairs, graph.edges.shape[1]) == (
        100_000,
        len(expected),
        200_000,
    )
    assert graph.text("Q5") == "Entity 5 is a thing."
