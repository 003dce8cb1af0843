"""Tables: every kind of file, and every kind of bad input with its file, its line and what was expected."""

import csv
import gzip
import json
import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphformers.data.tables as tables
from graphformers.data.graph import TextGraph
from graphformers.data.problems import Problems
from graphformers.data.readers import read_graph
from graphformers.data.settings import ImportSettings
from graphformers.data.tables import read_table
from graphformers.errors import GraphFormersError, InputError

NODES = [("p1", "Attention, is all", 2017), ("p2", 'A "quoted" title', 2018), ("p3", "Two\nlines", 2019), ("p4", "Ünïcode", 2020)]
EDGES = [("p1", "p2", "cites"), ("p2", "p3", "cites"), ("p3", "p1", "extends"), ("p3", "p3", "cites")]
SKIP = ImportSettings(skip_bad=True)


def write_tables(folder: Path, kind: str) -> tuple[Path, Path]:
    """The same graph as .csv, .tsv, .jsonl or .parquet, compressed where the name says so."""
    paths = folder / f"nodes.{kind}", folder / f"edges.{kind}"
    for path, names, rows in ((paths[0], ("id", "title", "year"), NODES), (paths[1], ("source", "target", "type"), EDGES)):
        if kind == "parquet":
            parquet.write_table(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path)
            continue
        with (
            gzip.open(path, "wt", encoding="utf-8", newline="")
            if kind.endswith("gz")
            else path.open("w", encoding="utf-8", newline="") as file
        ):
            if "jsonl" in kind:
                file.writelines(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
            else:
                writer = csv.writer(file, delimiter="\t" if "tsv" in kind else ",")
                writer.writerows([names, *rows])
    return paths


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "csv.gz", "tsv.gz", "jsonl.gz"])
def test_every_kind_of_table_gives_the_same_graph(tmp_path: Path, kind: str) -> None:
    graph = read_graph(*write_tables(tmp_path, kind))
    assert graph.ids.to_pylist() == ["p1", "p2", "p3", "p4"]
    assert graph.texts.to_pylist() == [title for _, title, _ in NODES]
    assert graph.column("year").to_pylist() == [2017, 2018, 2019, 2020]
    assert graph.num_pairs == 3
    assert graph.neighbors("p1") == ["p2", "p3"]
    assert graph.type_names == ("cites", "extends")
    assert graph.summary["self_loops"] == 1


def write_csv(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_several_files_per_side_and_named_columns(tmp_path: Path) -> None:
    one = write_csv(tmp_path / "one.csv", "key,heading,abstract\n1,First,About a\n2,Second,\n")
    two = write_csv(tmp_path / "two.csv", "key,heading,abstract\n3,Third,About c\n")
    a = write_csv(tmp_path / "a.csv", "who,whom\n1,2\n")
    b = write_csv(tmp_path / "b.csv", "who,whom\n2,3\n")
    chosen = ImportSettings(columns={"id": "key", "text": "heading,abstract", "src": "who", "dst": "whom"})
    graph = read_graph([one, two], [a, b], chosen)
    assert graph.texts.to_pylist() == ["First. About a", "Second", "Third. About c"]
    assert graph.num_pairs == 2
    assert graph.edge_types is None


def test_columns_are_kept_as_given(tmp_path: Path) -> None:
    text = "id,title,year,zip,score,note\na,x,1999,00123,1.5,\nb,y,,04000,2,hi\n"
    graph = read_graph(write_csv(tmp_path / "n.csv", text))
    assert graph.column("year").to_pylist() == [1999, None]
    assert graph.column("zip").to_pylist() == ["00123", "04000"]
    assert graph.column("score").to_pylist() == [1.5, 2.0]
    assert graph.column("note").to_pylist() == [None, "hi"]
    assert read_graph(tmp_path / "n.csv", settings=ImportSettings(keep=("year",))).column_names == ["year"]
    assert read_graph(tmp_path / "n.csv", settings=ImportSettings(keep=())).column_names == []


def test_a_column_that_one_file_lacks_is_null_there(tmp_path: Path) -> None:
    one, two = write_csv(tmp_path / "1.csv", "id,text,year\na,x,1999\n"), write_csv(tmp_path / "2.csv", "id,text\nb,y\n")
    assert read_graph([one, two]).column("year").to_pylist() == [1999, None]


def test_without_a_header(tmp_path: Path) -> None:
    nodes, edges = write_csv(tmp_path / "n.tsv", "a\tFirst\nb\tSecond\n"), write_csv(tmp_path / "e.tsv", "a\tb\n")
    chosen = ImportSettings(header=False, columns={"id": "1", "text": "2", "src": "1", "dst": "2"})
    graph = read_graph(nodes, edges, chosen)
    assert graph.texts.to_pylist() == ["First", "Second"]
    assert graph.num_pairs == 1


def test_quotes_can_be_plain_characters(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "n.tsv", 'id\ttext\na\t"Never closed\nb\tSecond\n')
    assert read_graph(path, settings=ImportSettings(quotes=False)).texts.to_pylist() == ['"Never closed', "Second"]


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    graph = read_graph(write_csv(tmp_path / "n.csv", b"\xef\xbb\xbfid,text\r\na,First\r\n"))
    assert graph.text("a") == "First"


BAD_NODES = {
    "malformed row": ("id,text\na,First\nb,Second,third\nc,Third\n", "3", "3 fields ('b,Second,third'), expected 2: id, text", 2),
    "duplicate id": (
        "id,text\na,First\nb,Second\na,Third\n",
        "4",
        "the id 'a' stands already at {path}:2, expected unique ids",
        2,
    ),
    "empty text": ("id,text\na,First\nb,  \nc,Third\n", "3", "the text of node 'b' is empty, expected some words", 2),
    "empty id": ("id,text\na,First\n,Second\n", "3", "the id is empty, expected a unique string", 1),
    "wrong encoding": (
        b"id,text\na,First\nb,S\xe9cond\nc,Third\n",
        "3",
        "byte 0xe9 at position 4 is not UTF-8, expected UTF-8 text",
        2,
    ),
}


@pytest.mark.parametrize("reason", BAD_NODES)
def test_bad_nodes_are_named_or_skipped(tmp_path: Path, reason: str) -> None:
    text, line, message, left = BAD_NODES[reason]
    path = write_csv(tmp_path / "nodes.csv", text)
    expected = f"{path}:{line}: {message.format(path=path)}"
    with pytest.raises(InputError, match=re.escape(expected)):
        read_graph(path)
    graph = read_graph(path, settings=SKIP)
    assert graph.num_nodes == left
    assert graph.summary["skipped"] == {reason: 1}
    assert graph.summary["skipped_examples"][0].startswith(expected)


def test_an_unknown_end_is_named_or_skipped(tmp_path: Path) -> None:
    nodes = write_csv(tmp_path / "n.csv", "id,text\na,First\nb,Second\n")
    edges = write_csv(tmp_path / "e.csv", "src,dst\na,b\na,nobody\nghost,b\n")
    with pytest.raises(InputError, match=re.escape(f"{edges}:3: an edge to 'nobody', expected the id of a node")):
        read_graph(nodes, edges)
    graph = read_graph(nodes, edges, SKIP)
    assert (graph.num_pairs, graph.summary["skipped"]) == (1, {"edge to an unknown node": 2})
    assert "'ghost'" in graph.summary["skipped_examples"][1]


def test_lines_are_right_after_quoted_line_ends_and_blank_lines(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "n.csv", 'id,text\na,"over\nthree\nlines"\n\nb,Second\nc,""\n')
    with pytest.raises(InputError, match=re.escape(f"{path}:7: the text of node 'c' is empty")):
        read_graph(path)


def test_a_missing_column_lists_what_is_there(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "n.csv", "number,words\n1,hello\n")
    with pytest.raises(
        InputError,
        match=r"no column for text \(looked for text or title or name\) among: number, words; name it with --column text=NAME",
    ):
        read_graph(path)
    with pytest.raises(InputError, match=r"no column for id \(looked for nr\) among: number; name it"):
        read_graph(path, settings=ImportSettings(columns={"text": "words", "id": "nr"}))


def test_an_unclosed_quote_is_found_where_it_opens(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "n.csv", 'id,text\na,First\nb,"Second\nc,Third\n')
    with pytest.raises(InputError, match=re.escape(f"{path}:3: a field opened with a quote here is never closed (--no-quotes")):
        read_graph(path)


def test_a_truncated_gzip_is_named_or_read_as_far_as_it_goes(tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = "".join(f"n{i},text {draw.getrandbits(200)}\n" for i in range(20_000))
    whole = gzip.compress(("id,text\n" + rows).encode())
    path = write_csv(tmp_path / "n.csv.gz", whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"n.csv.gz, after line \d+: the gzip stream is cut short or damaged"):
        read_graph(path)
    graph = read_graph(path, settings=SKIP)
    assert 5_000 < graph.num_nodes < 15_000
    assert graph.summary["skipped"].get("broken compression") == 1
    json_path = write_csv(tmp_path / "n.jsonl.gz", gzip.compress(b'{"id": "a", "text": "x"}\n')[:-12])
    with pytest.raises(InputError, match="the gzip stream is cut short"):
        read_graph(json_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("n.csv", b"", "empty file, expected a header and rows"),
        ("n.csv", b"\xff\xfei\x00d\x00", "UTF-16 text, expected UTF-8"),
        ("n.csv", b"id,id,text\n", "the column 'id' stands twice"),
        ("n.csv.gz", b"id,text\n", "the gzip stream is cut short or damaged"),
        ("n.parquet", b"PAR1 not really", "not a Parquet file or cut short"),
        ("n.xlsx", b"PK", "cannot tell the format from the name, expected .csv"),
        ("n.jsonl", b'{"id": "a", "text": "x"}\n{"id": \n', ":2: .*expected one JSON object per line"),
        ("n.jsonl", b'{"id": "a", "text": "x"}\n{"id": "b"}\n', ":2: no field 'text' in this record"),
        ("n.jsonl", b"[1, 2]\n", ":1: .*expected one JSON object per line"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_graph(write_csv(tmp_path / name, content))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_graph(tmp_path / "none.csv")
    with pytest.raises(InputError, match="a folder, expected a file"):
        read_graph(tmp_path)
    with pytest.raises(InputError, match="no nodes were read"):
        read_graph(write_csv(tmp_path / "n.csv", "id,text\n"))


def test_settings_are_checked() -> None:
    with pytest.raises(GraphFormersError, match="no format 'excel'; there are: tables, dblp"):
        ImportSettings(format="excel")
    with pytest.raises(GraphFormersError, match="no column role 'txt'; there are: id, text"):
        ImportSettings(columns={"txt": "a"})
    with pytest.raises(GraphFormersError, match="window 0"):
        ImportSettings(window=0)


def test_many_bad_rows_are_counted_and_some_listed(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "n.csv", "id,text\n" + "".join(f"n{i},{'' if i % 2 else 'word'}\n" for i in range(1000)))
    graph = read_graph(path, settings=SKIP)
    assert graph.num_nodes == 500
    assert graph.summary["skipped"] == {"empty text": 500}
    assert len(graph.summary["skipped_examples"]) == 20


def columns_of(path: Path, problems: Problems) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for batch in read_table(path, problems):
        rows += zip(*(column.to_pylist() for column in batch.columns.values()), strict=True)
    return rows


FIELD = st.text(st.sampled_from(list('ab ,"\n\r\té')), max_size=6)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=8))
def test_the_fast_and_the_careful_reader_agree(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    """What Python's csv module writes, both of our readers read alike."""
    path = tmp_path_factory.mktemp("agree") / "t.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("id", "text"), *rows])
    fast = columns_of(path, Problems(strict=True))
    table = tables.TextTable(path, header=True, quotes=True)
    task = tables.Progress("", None, "B")
    careful: list[tuple[str, ...]] = []
    for batch in tables._read_carefully(table, ["id", "text"], None, Problems(strict=True), task, 0):
        careful += zip(*(column.to_pylist() for column in batch.columns.values()), strict=True)
    assert fast == careful == rows


def test_a_bad_row_late_in_a_file_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast reader hands over to the careful one in the middle of the file: no row is lost, none read twice."""
    monkeypatch.setattr(tables, "BLOCK_BYTES", 4096)
    rows = [f"n{i},text {i}" for i in range(3000)]
    rows[2500] = "n2500,text,2500"
    path = write_csv(tmp_path / "n.csv", "id,text\n" + "\n".join(rows))
    with pytest.raises(InputError, match=re.escape(f"{path}:2502: 3 fields")):
        read_graph(path)
    graph: TextGraph = read_graph(path, settings=SKIP)
    assert graph.ids.to_pylist() == [f"n{i}" for i in range(3000) if i != 2500]
