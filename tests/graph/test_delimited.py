"""Delimited text: what two readers make of it is the same, and no row is lost between them."""

import bz2
import csv
import gzip
import random
import re
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers.errors import InputError
from graphformers.graph.importers import delimited
from graphformers.graph.importers.delimited import DelimitedTable
from graphformers.graph.importers.table_files import open_table
from graphformers.graph.problems import Problems
from graphformers.graph.readers import read_graph
from graphformers.graph.settings import ImportSettings
from graphformers.graph.textgraph import TextGraph
from tests.graph.test_readers import SKIP, write_csv


def columns_of(path: Path, problems: Problems) -> list[tuple[str, ...]]:
    return [row for _, row in rows_with_lines(path, problems)]


def rows_with_lines(path: Path, problems: Problems) -> list[tuple[int, tuple[str, ...]]]:
    """Every row and the line it is said to start on."""
    found = []
    with open_table(path, ImportSettings(), problems) as table:
        for batch in table.batches(None):
            rows = zip(*(column.to_pylist() for column in batch.columns.values()), strict=True)
            found += [(int(batch.locate(i)[1]), row) for i, row in enumerate(rows)]
    return found


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.one_of(st.tuples(st.text("a,\n;"), st.text("b,\n")), st.integers(1, 3))),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_rows_of_separators_alone_are_blank_lines(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str] | int],
    quoting: Literal[0, 1],
    end: str,
) -> None:
    path = tmp_path_factory.mktemp("empty") / "t.csv"
    expected, line = [], 2
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=quoting, lineterminator=end)
        writer.writerow(("id", "text"))
        for row in rows:
            if isinstance(row, int):
                file.write("," * row + end)
                line += 1
                continue
            writer.writerow(row)
            if any(row) or quoting == csv.QUOTE_ALL:
                expected.append((line, row))
            line += 1 + "".join(row).count("\n")
    fast = rows_with_lines(path, Problems(strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DelimitedTable, "_whole_rows", lambda *given, **options: (0, True))
        careful = rows_with_lines(path, Problems(strict=True))
    assert fast == careful == expected


def test_a_table_with_empty_rows_below_it(tmp_path: Path) -> None:
    nodes = write_csv(tmp_path / "n.csv", "id;title;;\r\na;First;;\r\nb;Second;;\r\n;;;\r\n;;;\r\n")
    edges = write_csv(tmp_path / "e.tsv", "source\ttarget\na\tb\n\t\n\t")
    graph = read_graph(nodes, edges)
    assert (graph.num_nodes, graph.num_pairs) == (2, 1)
    nodes = write_csv(tmp_path / "m.csv", "id;title;year\na;First;1\n;;2\n")
    with pytest.raises(InputError, match=r"m.csv:3: the id is empty"):
        read_graph(nodes, keep=[])


FIELD = st.text(st.sampled_from(list('ab ,"\n\r\té')), max_size=6)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=8))
def test_the_fast_and_the_careful_reader_agree(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    """What Python's csv module writes, both of our readers read alike."""
    path = tmp_path_factory.mktemp("agree") / "t.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("id", "text"), *rows])
    fast = columns_of(path, Problems(strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DelimitedTable, "_whole_rows", lambda *given, **options: (0, True))
        careful = columns_of(path, Problems(strict=True))
    assert fast == careful == rows


def test_a_bad_row_late_in_a_file_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast reader hands over to the careful one in the middle of the file: no row is lost, none
    read twice.
    """
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 4096)
    rows = [f"n{i},text {i}" for i in range(3000)]
    rows[2500] = "n2500,text,2500"
    path = write_csv(tmp_path / "n.csv", "id,text\n" + "\n".join(rows))
    with pytest.raises(InputError, match=re.escape(f"{path}:2502: 3 fields")):
        read_graph(path)
    graph: TextGraph = read_graph(path, settings=SKIP)
    assert graph.ids.to_pylist() == [f"n{i}" for i in range(3000) if i != 2500]


PIECE = st.sampled_from(
    ["a", "é", " ", ",", '"', '""', '"x"', ',"', '",', "\n", "\n", "a,b\n", "a,b\n", "\r\n", "\r"]
)


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(PIECE, max_size=40), block=st.integers(5, 60))
def test_how_a_file_is_cut_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], block: int
) -> None:
    """Any text at all: rows, lines, counts and messages are those of the careful reader over the
    whole file.
    """
    path = write_csv(tmp_path_factory.mktemp("cut") / "t.csv", "id,text\n" + "".join(pieces))
    whole, cut = Problems(strict=False), Problems(strict=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DelimitedTable, "_whole_rows", lambda *given, **options: (0, True))
        expected = rows_with_lines(path, whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "BLOCK_BYTES", block)
        assert rows_with_lines(path, cut) == expected
    assert cut.summary() == whole.summary()


def numbered(count: int, **changed: str) -> list[str]:
    return [changed.get(f"n{i}", f"n{i}\ttext {i}") for i in range(count)]


@pytest.mark.parametrize("closing", ['a 5" disk', 'the "big" one', '5"', None])
@pytest.mark.parametrize("block", [1 << 20, 2048])
def test_a_stray_quote_costs_its_own_line_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing: str | None, block: int
) -> None:
    """A quote that opens a field by mistake, and perhaps another much later that seems to close
    it.
    """
    monkeypatch.setattr(delimited, "BLOCK_BYTES", block)
    changed = {"n100": 'n100\t"Never closed'} | ({"n1100": f"n1100\t{closing}"} if closing else {})
    path = write_csv(tmp_path / "n.tsv", "id\ttext\n" + "\n".join(numbered(3000, **changed)))
    with pytest.raises(
        InputError, match=re.escape(f"{path}:102: a field opened with a quote here ")
    ):
        read_graph(path)
    graph = read_graph(path, settings=SKIP)
    assert graph.ids.to_pylist() == [f"n{i}" for i in range(3000) if i != 100]
    assert graph.summary["skipped"] == {"malformed row": 1}
    assert graph.text("n1100") == (closing or "text 1100")


def test_an_unclosed_quote_longer_than_any_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 1024)
    path = write_csv(
        tmp_path / "n.tsv", "id\ttext\n" + "\n".join(numbered(3000, n5='n5\t"a', n900='n900\t"b'))
    )
    graph = read_graph(path, skip_bad=True, max_row=0.003)
    assert graph.ids.to_pylist() == [f"n{i}" for i in range(3000) if i not in (5, 900)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('b,"x" y', "a field opened with a quote here has text after its closing quote"),
        ("b,x\rc,y", "a carriage return within a line"),
    ],
)
def test_what_readers_differ_on_is_reported(tmp_path: Path, row: str, message: str) -> None:
    path = write_csv(tmp_path / "n.csv", f"id,text\na,First\n{row}\nd,Last,bad\ne,Fifth\n")
    with pytest.raises(InputError, match=re.escape(f"{path}:3: {message}")):
        read_graph(path)
    graph = read_graph(path, settings=SKIP)
    assert graph.ids.to_pylist() == ["a", "e"]
    assert graph.summary["skipped"] == {"malformed row": 2}


def test_clean_files_go_through_the_fast_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quoted separators, quotes and line ends included; and quotes within unquoted fields."""
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 512)
    monkeypatch.setattr(delimited, "RowReader", lambda *given: None)
    rows = [(f"n{i}", ("plain", 'a "b", c', "two\r\nlines, here", "")[i % 4]) for i in range(400)]
    path = tmp_path / "n.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *rows])
    assert columns_of(path, Problems(strict=True)) == rows
    inner = write_csv(
        tmp_path / "i.tsv", "id\ttext\n" + "\n".join(numbered(400, n7='n7\ta 5" disk'))
    )
    assert columns_of(inner, Problems(strict=True))[7] == ("n7", 'a 5" disk')


def test_a_long_text_in_quotes_is_one_field(tmp_path: Path) -> None:
    text = "\n".join(f"line {i}, with {'commas, ' * (i % 3)}and more" for i in range(200))
    path = tmp_path / "n.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "text"), ("a", text), ("b", "Second")])
    assert columns_of(path, Problems(strict=True)) == [("a", text), ("b", "Second")]


@pytest.mark.parametrize("size", [200, 5000, 40_000])
def test_a_stream_cut_within_a_quoted_text_ends_before_it(tmp_path: Path, size: int) -> None:
    draw = random.Random(0)
    text = "".join(
        f'n{i},"{draw.getrandbits(99)}\nx,{draw.getrandbits(99)}\n"\n' for i in range(2000)
    )
    path = write_csv(tmp_path / "n.csv.gz", gzip.compress(f"id,text\n{text}".encode())[:size])
    graph = read_graph(path, settings=SKIP)
    assert graph.ids.to_pylist() == [f"n{i}" for i in range(graph.num_nodes)]
    assert graph.summary["skipped"] == {"broken compression": 1}
    assert (
        f"n.csv.gz, after line {1 + 3 * graph.num_nodes}: the gzip stream"
        in graph.summary["skipped_examples"][0]
    )


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_lines_are_found_in_compressed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: object
) -> None:
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 512)
    assert callable(pack)
    suffix = {gzip.compress: "gz", bz2.compress: "bz2"}[pack]  # type: ignore[index]
    text = "id\ttext\n" + "\n".join(numbered(3000, n5="n5\t", n2000="n2000\t"))
    path = write_csv(tmp_path / f"n.tsv.{suffix}", pack(b"\xef\xbb\xbf" + text.encode()))
    examples = read_graph(path, settings=SKIP).summary["skipped_examples"]
    assert [example.split(" ")[0] for example in examples] == [f"{path}:7:", f"{path}:2002:"]
