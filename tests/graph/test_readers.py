"""Tables: every kind of file, and every kind of bad input with its file, its line and what was
expected.
"""

import csv
import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import networkx
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from graphformers.cli import app
from graphformers.cli.command import UsageError
from graphformers.errors import GraphFormersError, InputError
from graphformers.graph.describe import describe_graph, describe_import
from graphformers.graph.importers import delimited
from graphformers.graph.importers import table_files as tables
from graphformers.graph.interop import build_graph
from graphformers.graph.readers import read_graph
from graphformers.graph.settings import ImportSettings
from graphformers.graph.textgraph import TextGraph
from graphformers.settings import naming_options

NODES = [
    ("p1", "Attention, is all", 2017),
    ("p2", 'A "quoted" title', 2018),
    ("p3", "Two\nlines", 2019),
    ("p4", "Ünïcode", 2020),
]
EDGES = [
    ("p1", "p2", "cites"),
    ("p2", "p3", "cites"),
    ("p3", "p1", "extends"),
    ("p3", "p3", "cites"),
]
SKIP = ImportSettings(skip_bad=True)


def write_tables(folder: Path, kind: str) -> tuple[Path, Path]:
    """The same graph as .csv, .tsv, .jsonl or .parquet, compressed where the name says so."""
    paths = folder / f"nodes.{kind}", folder / f"edges.{kind}"
    for path, names, rows in (
        (paths[0], ("id", "title", "year"), NODES),
        (paths[1], ("source", "target", "type"), EDGES),
    ):
        if kind == "parquet":
            parquet.write_table(
                pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path
            )
            continue
        with (
            gzip.open(path, "wt", encoding="utf-8", newline="")
            if kind.endswith("gz")
            else path.open("w", encoding="utf-8", newline="") as file
        ):
            if "jsonl" in kind:
                file.writelines(
                    json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows
                )
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
    chosen = ImportSettings(
        columns={"id": "key", "text": "heading,abstract", "src": "who", "dst": "whom"}
    )
    graph = read_graph([one, two], [a, b], settings=chosen)
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
    assert read_graph(tmp_path / "n.csv", settings=ImportSettings(keep=("year",))).column_names == [
        "year"
    ]
    assert read_graph(tmp_path / "n.csv", settings=ImportSettings(keep=())).column_names == []
    with pytest.raises(GraphFormersError, match=r"expected a list of columns: keep=\['year'\]"):
        ImportSettings(keep="year")  # type: ignore[arg-type]


def test_an_import_tells_what_becomes_of_edges(tmp_path: Path) -> None:
    nodes = write_csv(tmp_path / "nodes.csv", "id,text\na,one\nb,two\nc,three\n")
    edges = write_csv(
        tmp_path / "edges.csv", "src,dst,weight,type\na,b,1,x\na,b,2,x\nb,a,3,y\nc,c,4,x\nb,c,5,x\n"
    )
    graph = read_graph(nodes, edges)
    assert str(describe_import(graph).as_table()).splitlines() == [
        "3 nodes, 2 linked pairs",
        "  of 5 edges, 2 repeat or reverse others and 1 leads from a node to itself",
        "  edge columns that were not kept: weight "
        "(columns={'time': 'weight'} keeps weight as their time)",
    ]
    shown = str(describe_graph(graph.save(tmp_path / "a.graph")).as_table())
    assert "edge columns not kept  weight (columns={'time': 'weight'} keeps weight as" in shown
    untyped = build_graph([{"id": "a", "text": "one"}], {"u": [], "v": [], "year": [], "kind": []})
    assert (
        "year, kind (columns={'type': 'kind'} keeps kind as the type of links, "
        "columns={'time': 'year'} keeps year as their time)"
    ) in str(describe_graph(untyped).as_table())


def test_an_import_names_columns_of_numbers_that_are_text(tmp_path: Path) -> None:
    text = (
        "id,text,year,price,zip,code,note\na,x,1999,12.50,00123,1,1\nb,y,n/a,3,04000,2,many\n"
        "c,z,2001,4,05000,3,few\n"
    )
    graph = read_graph(write_csv(tmp_path / "n.csv", text))
    lines = str(describe_import(graph).as_table()).splitlines()[1:]
    assert lines == [
        f"  the column {name} is text because of values such as {value!r}; filters such as "
        f"{name}>=10 need numbers"
        for name, value in (("year", "n/a"), ("price", "12.50"), ("zip", "00123"))
    ]
    again = build_graph([{"id": "a", "text": "x", "year": "n/a"}, {"id": "b", "text": "y"}])
    assert "like_numbers" not in again.summary


def test_an_import_without_links_names_a_column_of_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "n.jsonl"
    path.write_text('{"id": "a", "text": "x", "refs": ["b"]}\n{"id": "b", "text": "y"}\n')
    command = ["import", str(path), "-o", str(tmp_path / "g")]
    with naming_options():
        app(command, standalone_mode=False)
    advice = "; if refs lists ids of nodes, --column links=refs links them\n"
    assert capsys.readouterr().err.endswith(advice)


def test_an_import_tells_which_column_it_took_for_the_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = write_csv(
        tmp_path / "nodes.csv", "id,abstract,Title,year\na,long,one,1990\nb,longer,two,1991\n"
    )
    edges = write_csv(tmp_path / "edges.csv", "src,dst\na,b\n")
    words = ["import", str(nodes), str(edges), "--force", "-o", str(tmp_path / "a.graph")]
    app(words, standalone_mode=False)
    told = (
        "the text of a node is its Title, not its abstract; --column text=abstract takes another "
        "column, --column text=Title,abstract all"
    )
    assert told in capsys.readouterr().out
    assert TextGraph.load(tmp_path / "a.graph").summary["other_texts"] == {"Title": ["abstract"]}
    for name in ("Title", "abstract", "Title,abstract"):
        app([*words, "--column", f"text={name}"], standalone_mode=False)
        assert "the text of a node" not in capsys.readouterr().out
    named = write_csv(tmp_path / "named.csv", "name,description\na,first\nb,second\n")
    assert "other_texts" not in read_graph(named).summary  # the name is the id


def test_a_column_that_one_file_lacks_is_null_there(tmp_path: Path) -> None:
    one, two = (
        write_csv(tmp_path / "1.csv", "id,text,year\na,x,1999\n"),
        write_csv(tmp_path / "2.csv", "id,text\nb,y\n"),
    )
    assert read_graph([one, two]).column("year").to_pylist() == [1999, None]


def test_without_a_header(tmp_path: Path) -> None:
    nodes, edges = (
        write_csv(tmp_path / "n.tsv", "a\tFirst\nb\tSecond\n"),
        write_csv(tmp_path / "e.tsv", "a\tb\n"),
    )
    chosen = ImportSettings(header=False, columns={"id": "1", "text": "2", "src": "1", "dst": "2"})
    graph = read_graph(nodes=nodes, edges=edges, settings=chosen)
    assert graph.texts.to_pylist() == ["First", "Second"]
    assert graph.num_pairs == 1


def test_quotes_can_be_plain_characters(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "n.tsv", 'id\ttext\na\t"Never closed\nb\tSecond\n')
    assert read_graph(path, settings=ImportSettings(quotes=False)).texts.to_pylist() == [
        '"Never closed',
        "Second",
    ]


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "\ufeffsep=;\r"])
def test_the_line_in_which_excel_names_its_separator(tmp_path: Path, first: str) -> None:
    nodes = write_csv(tmp_path / "nodes.csv", f"{first}\nid;text\na;one, two\nb;three\nc;\n")
    with pytest.raises(InputError, match=r"nodes.csv:5: "):
        read_graph(nodes)
    graph = read_graph(nodes, settings=SKIP)
    assert graph.texts.to_pylist() == ["one, two", "three"]
    bare = write_csv(tmp_path / "bare.csv", f"{first}\na;one\nb;two\n")
    settings = ImportSettings(header=False, columns={"id": "1", "text": "2"})
    assert read_graph(bare, settings=settings).ids.to_pylist() == ["a", "b"]


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    graph = read_graph(write_csv(tmp_path / "n.csv", b"\xef\xbb\xbfid,text\r\na,First\r\n"))
    assert graph.text("a") == "First"


def test_nodes_without_a_text_can_be_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = write_csv(tmp_path / "nodes.csv", "id,text\na,First\nb,  \nc,\nd,Fourth\n")
    edges = write_csv(tmp_path / "edges.csv", "src,dst\na,b\nb,c\nc,d\n")
    with pytest.raises(
        InputError,
        match=r"'b' is empty, expected some words \(skip_bad=True .*; keep_empty=True keeps them\)",
    ):
        read_graph(nodes, edges)
    graph = read_graph(nodes, edges, keep_empty=True)
    assert (graph.texts.to_pylist(), graph.num_pairs) == (["First", "", "", "Fourth"], 3)
    rows = [
        {"id": "a", "text": "First"},
        {"id": "b", "text": None},
        {"id": "c", "text": " "},
        {"id": "d", "text": "Fourth"},
    ]
    built = build_graph(rows, [("a", "b"), ("b", "c"), ("c", "d")], keep_empty=True)
    assert built.texts.to_pylist() == graph.texts.to_pylist()
    words = ["import", str(nodes), str(edges), "--keep-empty", "-o", str(tmp_path / "g.graph")]
    app(words, standalone_mode=False)
    assert "kept 2 nodes without a text" in capsys.readouterr().out
    assert TextGraph.load(tmp_path / "g.graph").text("c") == ""


BAD_NODES = {
    "malformed row": (
        "id,text\na,First\nb,Second,third\nc,Third\n",
        "3",
        "3 fields ('b,Second,third'), expected 2: id, text",
        2,
    ),
    "duplicate id": (
        "id,text\na,First\nb,Second\na,Third\n",
        "4",
        "the id 'a' is used already at {path}:2, expected unique ids",
        2,
    ),
    "empty text": (
        "id,text\na,First\nb,  \nc,Third\n",
        "3",
        "the text of node 'b' is empty, expected some words",
        2,
    ),
    "empty id": (
        "id,text\na,First\n,Second\n",
        "3",
        "the id is empty, expected a unique string",
        1,
    ),
    "wrong encoding": (
        b"id,text\na,First\nb,S\xe9cond\nc,Third\n",
        "3",
        "byte 0xe9 at position 4 is not UTF-8, expected UTF-8 text",
        2,
    ),
}


@pytest.mark.parametrize("name", ["nodes.csv", "nodes.jsonl"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"PK\x03\x04\x14\x00\x06\x00",
            "(zip, as Excel's workbooks are), expected UTF-8 text; .* save it as CSV",
        ),
        (b"PAR1\x15\x04\x15\x80", "(Parquet), expected UTF-8 text; give it the suffix .parquet"),
    ],
)
def test_data_that_is_no_text_is_told_as_such(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        read_graph(tmp_path / name)


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
    with pytest.raises(
        InputError, match=re.escape(f"{edges}:3: an edge to 'nobody', expected the id of a node")
    ):
        read_graph(nodes, edges)
    graph = read_graph(nodes, edges, settings=SKIP)
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
        match=(
            r"no column for id \(looked for id or node or node_id\) and text \(looked for text or "
            r"title or name\) among: number, words; name them with "
            r"columns=\{'id': 'NAME', 'text': 'NAME'\}"
        ),
    ):
        read_graph(path)
    with pytest.raises(
        InputError, match=r"no column for id \(looked for nr\) among: number, words; name it"
    ):
        read_graph(path, settings=ImportSettings(columns={"text": "words", "id": "nr"}))
    path = write_csv(tmp_path / "m.csv", "Paper id,headline,Titel\n1,a,b\n")
    expected = r"name them with --column 'id=Paper id' --column text=Titel"
    with naming_options(), pytest.raises(InputError, match=expected):
        read_graph(path, columns={"id": "paper id", "text": "titel"})
    edges = write_csv(tmp_path / "e.csv", "quelle,ziel\n1,2\n")
    with pytest.raises(
        InputError, match=r"no column for src \(.*\) and dst \(.*\) and time \(looked for when\)"
    ):
        read_graph(nodes=path, edges=edges, columns={"time": "when", "id": "Paper id"})


def test_an_unclosed_quote_is_found_where_it_opens(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "n.csv", 'id,text\na,First\nb,"Second\nc,Third\n')
    with pytest.raises(
        InputError,
        match=re.escape(f"{path}:3: a field opened with a quote here is never closed (quotes="),
    ):
        read_graph(path)


def test_a_truncated_gzip_is_named_or_read_as_far_as_it_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draw = random.Random(0)
    rows = "".join(f"n{i},text {draw.getrandbits(200)}\n" for i in range(20_000))
    whole = gzip.compress(("id,text\n" + rows).encode())
    path = write_csv(tmp_path / "n.csv.gz", whole[: len(whole) // 2])
    with pytest.raises(
        InputError,
        match=r"n.csv.gz, after line \d+: the gzip stream is cut short or damaged .*; fetch it "
        r"again, or skip_bad=True reads what is there$",
    ):
        read_graph(path)
    graph = read_graph(path, settings=SKIP)
    last = graph.num_nodes + 1
    warning = f"WARNING: {path}: everything after line {last:,} is missing: the gzip stream"
    assert any(message.startswith(warning) for message in caplog.messages)
    assert 5_000 < graph.num_nodes < 15_000
    assert graph.summary["skipped"].get("broken compression") == 1
    json_path = write_csv(
        tmp_path / "n.jsonl.gz", gzip.compress(b'{"id": "a", "text": "x"}\n')[:-12]
    )
    with pytest.raises(InputError, match="the gzip stream is cut short"):
        read_graph(json_path)


def test_a_column_stands_once_in_a_parquet_file(tmp_path: Path) -> None:
    columns = [pa.array(["a"]), pa.array(["First"]), pa.array([1]), pa.array([2])]
    parquet.write_table(
        pa.Table.from_arrays(columns, names=["id", "text", "year", "year"]), tmp_path / "n.parquet"
    )
    with pytest.raises(
        InputError,
        match=r"n.parquet: the column 'year' occurs twice in the file, expected each once",
    ):
        read_graph(tmp_path / "n.parquet")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("n.csv", b"", "empty file, expected a header and rows"),
        ("n.csv", b"\xff\xfei\x00d\x00", "UTF-16 text, expected UTF-8"),
        ("n.csv", b"id,id,text\n", "the column 'id' occurs twice"),
        ("n.csv.gz", b"id,text\n", "not gzip, in spite of its name, but text; rename it to n.csv"),
        ("n.csv.gz", b"\x1f\x8bid,text", "the gzip stream is cut short or damaged"),
        (
            "n.csv.bz2",
            b"id,text\n",
            "not bzip2, in spite of its name, but text; rename it to n.csv",
        ),
        ("n.csv.bz2", b"BZh91AY&SYid,text", "the bzip2 stream is cut short or damaged"),
        (
            "n.jsonl.bz2",
            b'{"id": 1}',
            "not bzip2, in spite of its name, but text; rename it to n.jsonl",
        ),
        ("n.jsonl.bz2", b"BZh91AY&SYid,text", "the bzip2 stream is cut short or damaged"),
        ("n.csv.xz", b"id,text\n", "not xz, in spite of its name, but text; rename it to n.csv"),
        ("n.csv.xz", b"\xfd7zXZ\x00id,text", "the xz stream is cut short or damaged"),
        ("n.CSV.GZ", b"<!DOCTYPE html>", "a web page, expected a file of data; download the file"),
        ("n.csv", b"\n<HTML><body>", "a web page, expected a file of data; download the file"),
        (
            "n.csv",
            b"version https://git-lfs.github.com/spec/v1\n",
            "a Git LFS pointer, .* git lfs pull",
        ),
        ("n.csv", b"\x89PNG\r\n\x1a\n" + bytes(9), r"n.csv:1: not text \(PNG\), expected"),
        ("n.csv", bytes(range(255, 0, -1)), "n.csv:1: not text, expected text in utf-8"),
        ("n.csv", b"\x07\x00\x01\x00\x02\x00" * 9, "n.csv:1: not text, expected text in utf-8"),
        (
            "n.csv",
            b"id,text\na," + b"x" * 60 + b"\xfe\x02\n",
            "not UTF-8, .*; if the file is text, encoding='NAME' names",
        ),
        ("n.csv", b"id,text\ra,First\r", "n.csv:1: a carriage return within a line"),
        (
            "n.csv",
            b'id,"text\na,First\n',
            "n.csv:1: a field opened with a quote here is never closed",
        ),
        ("n.parquet", b"PAR1 not really", "not a Parquet file or cut short"),
        ("n.parquet.gz", b"id,text", "not gzip, in spite of its name, but text; rename"),
        ("n.data", b"id,text\n", r"name, expected .*; rename it to end in .csv .* - < n.data; of"),
        ("n", b"id,text\n", "cannot tell the format from the name, .*format='NAME' names one of"),
        ("n.zip", b"PK", "cannot tell the format from the name, expected .*; unpack it"),
        ("n.json", b'[\n {"id": 1}]', r"a JSON array, expected one .*; jq -c '.\[\]' n.json > n-"),
        ("n.jsonl", b'[{"id": 1}]', "n.jsonl: a JSON array, expected one object per line; jq -c"),
        ("dblp.json", b'[\n{"id": 1}\n]', "a JSON array, .*and format='dblp' reads dblp.v12.json"),
        ("n.jsonl", b'{\n "id": 1\n}', r"a JSON object on several lines, .*jq -c \. n.jsonl > n-"),
        ("n.json", b"[1, 2]\n", ":1: .*expected one JSON object per line"),
        ("n.xlsx", b"PK", "cannot tell the format from the name, expected .csv"),
        (
            "n.graphml",
            b"<graphml/>",
            "networkx can read it and from_networkx convert it",
        ),
        (
            "n.jsonl",
            b'{"id": "a", "text": "x"}\n{"id": \n',
            ":2: .*expected one JSON object per line",
        ),
        (
            "n.jsonl",
            b'{"id": "a", "text": "x"}\n{"id": "b"}\n',
            ":2: no field 'text' in this record",
        ),
        ("n.jsonl", b"[1, 2]\n", ":1: .*expected one JSON object per line"),
        ("n.jsonl", b"\n\n", "no records, expected one JSON object per line"),
        (
            "n.jsonl",
            b'{"id": "a", "text": ["x"]}\n',
            r":1: the field 'text' is \['x'\], expected text or a number",
        ),
        (
            "n.jsonl",
            b'{"id": {"n": 1}, "text": "x"}\n',
            r":1: the field 'id' is \{'n': 1\}, expected text or a number",
        ),
        (
            "n.jsonl",
            b'{"id": "a", "text": ' + b"[" * 5000,
            ":1: .*expected one JSON object per line",
        ),
    ],
)
def test_files_that_are_something_else(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_graph(write_csv(tmp_path / name, content))


def test_kinds_of_files_by_other_names(tmp_path: Path) -> None:
    lines = write_csv(tmp_path / "n.json", '{"id": "a", "text": "x"}\n{"id": "b", "text": "y"}\n')
    assert read_graph(lines).ids.to_pylist() == ["a", "b"]
    packed = write_csv(tmp_path / "n.CSV.GZ", gzip.compress(b"id,text\na,x\n"))
    assert read_graph(packed).ids.to_pylist() == ["a"]
    parquet.write_table(pa.table({"id": ["a"], "text": ["x"]}), tmp_path / "n.parquet")
    content = gzip.compress((tmp_path / "n.parquet").read_bytes())
    assert read_graph(write_csv(tmp_path / "n.parquet.gz", content)).ids.to_pylist() == ["a"]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_graph(tmp_path / "none.csv")
    write_csv(tmp_path / "papers.csv", "id,text\na,x\n")
    with pytest.raises(InputError, match=r"paper.csv: no such file; did you mean .*/papers.csv\?$"):
        read_graph(tmp_path / "paper.csv")
    (tmp_path / "papers.csv").unlink()
    with pytest.raises(InputError, match="a folder, expected a file"):
        read_graph(tmp_path)
    with pytest.raises(InputError, match="no nodes were read"):
        read_graph(write_csv(tmp_path / "n.csv", "id,text\n"))


def test_names_of_inputs_that_are_no_paths() -> None:
    with pytest.raises(InputError, match="an empty name given, expected that of a file"):
        read_graph("")
    for url in ("http://a.org/n.csv", Path("https://a.org/n.csv"), "s3://bucket/n.csv"):
        with pytest.raises(InputError, match="a URL, expected a file; download it first"):
            read_graph(url)


def test_columns_of_edges_that_no_file_holds(tmp_path: Path) -> None:
    nodes = write_csv(tmp_path / "n.csv", "id,text,links\na,x,b\nb,y,\n")
    with pytest.raises(InputError, match=r"columns=\{'dst': 'links'\} given, but no file holds"):
        read_graph(nodes, columns={"dst": "links"})


def test_settings_are_checked() -> None:
    with pytest.raises(
        GraphFormersError, match="format='excel' given, expected one of: tables, dblp"
    ):
        ImportSettings(format="excel")
    with pytest.raises(GraphFormersError, match="no column role 'txt'; there are: id, text"):
        ImportSettings(columns={"txt": "a"})
    with pytest.raises(GraphFormersError, match="window=0 given, expected more than 0"):
        ImportSettings(format="sessions", window=0)


def test_many_bad_rows_are_counted_and_some_listed(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "n.csv",
        "id,text\n" + "".join(f"n{i},{'' if i % 2 else 'word'}\n" for i in range(1000)),
    )
    graph = read_graph(path, settings=SKIP)
    assert graph.num_nodes == 500
    assert graph.summary["skipped"] == {"empty text": 500}
    assert len(graph.summary["skipped_examples"]) == 5


def test_every_reason_has_its_examples_with_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 256)
    rows = [f"n{i},{'' if i % 3 == 1 else 'word'}" if i % 3 else f"x,word {i}" for i in range(300)]
    path = write_csv(tmp_path / "n.csv", "id,text\n" + "\n".join(rows))
    summary = read_graph(path, settings=SKIP).summary
    assert summary["skipped"] == {"empty text": 100, "duplicate id": 99}
    expected = [
        f"{path}:{3 + 3 * i}: the text of node 'n{3 * i + 1}' is empty, expected some words"
        for i in range(5)
    ]
    expected += [
        f"{path}:{5 + 3 * i}: the id 'x' is used already at {path}:2, expected unique ids"
        for i in range(5)
    ]
    assert summary["skipped_examples"] == expected


def write_records(path: Path, *records: object) -> Path:
    return write_csv(path, "".join(json.dumps(record) + "\n" for record in records))


def test_json_records_may_differ_in_what_is_not_asked_for(tmp_path: Path) -> None:
    nodes = write_records(
        tmp_path / "n.jsonl",
        {"id": "a", "text": "First"},
        *({"id": f"n{i}", "text": "word"} for i in range(tables.RECORDS_AHEAD)),
        {"id": 2**70, "text": "Huge", "late": 2**70},
    )
    edges = write_records(
        tmp_path / "e.jsonl",
        {"src": "a", "dst": "n1"},
        {"src": "n1", "dst": str(2**70), "type": "cites"},
    )
    graph = read_graph(nodes, edges)
    assert graph.column("late").to_pylist()[-2:] == [None, str(2**70)]
    assert graph.type_names == ("", "cites")
    assert read_graph(nodes, settings=ImportSettings(keep=("late",))).column_names == ["late"]
    assert read_graph(nodes, settings=ImportSettings(keep=())).column_names == []
    with pytest.raises(InputError, match=r"keep=\['lat'\]: no node file has a column of that name"):
        read_graph(nodes, settings=ImportSettings(keep=("lat",)))


def test_json_texts_of_which_one_is_there(tmp_path: Path) -> None:
    path = write_records(tmp_path / "n.jsonl", {"id": 1, "a": "x"}, {"id": 2, "b": "y"}, {"id": 3})
    chosen = ImportSettings(columns={"text": "a,b"}, skip_bad=True)
    graph = read_graph(path, settings=chosen)
    assert graph.texts.to_pylist() == ["x", "y"]
    assert graph.summary["skipped"] == {"empty text": 1}


def test_a_bad_first_record_is_skipped_like_any_other(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "n.jsonl", '{"id": \n{"id": "a", "text": ["x"]}\n{"id": "b", "text": "Second"}\n'
    )
    graph = read_graph(path, settings=SKIP)
    assert graph.ids.to_pylist() == ["b"]
    assert graph.summary["skipped"] == {"malformed row": 2}
    assert f"{path}:2: the field 'text' is ['x']" in graph.summary["skipped_examples"][1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"id": "b", ', "expected one JSON object per line"),
        (
            '{"id": "b", "text": "x", "score": NaN}',
            "NaN given, which JSON does not support, expected null for a missing number",
        ),
        (
            '{"id": "b", "text": "x", "score": [-Infinity]}',
            "-Infinity given, which JSON does not support, expected null",
        ),
        ('{"id": "NaN", "text": ', "expected one JSON object per line"),
    ],
)
def test_bad_records_are_told_with_what_to_do(tmp_path: Path, line: str, reason: str) -> None:
    nodes = write_csv(tmp_path / "n.jsonl", '{"id": "a", "text": "x"}\n' + line + "\n")
    for read, advice in (
        (lambda: read_graph(nodes), "skip_bad=True"),
        (
            lambda: app(["import", str(nodes), "-o", str(tmp_path / "g")], standalone_mode=False),
            "--skip-bad",
        ),
    ):
        with pytest.raises(
            InputError,
            match=rf"n\.jsonl:2: .*{re.escape(reason)}.* \({advice} leaves such rows out",
        ):
            read()
    assert read_graph(nodes, settings=SKIP).ids.to_pylist() == ["a"]


def test_parquet_texts_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "n.parquet"
    texts = pa.array([b"First", b"S\xe9cond", b"Third"], pa.binary())
    note = pa.Array.from_buffers(
        pa.string(), 3, pa.array([b"x", b"y", b"\xff"], pa.binary()).buffers()
    )
    parquet.write_table(
        pa.table({"id": [1, 2, 3], "text": texts, "note": note, "raw": texts}), path
    )
    with pytest.raises(
        InputError,
        match=re.escape(f"{path}, row 2: the column 'text': byte 0xe9 at position 2 is not UTF-8"),
    ):
        read_graph(path)
    graph = read_graph(path, settings=SKIP)
    assert (graph.ids.to_pylist(), graph.texts.to_pylist()) == (["1"], ["First"])
    assert graph.summary["skipped"] == {"wrong encoding": 2}
    assert graph.column("raw").to_pylist() == [b"First"]
    parquet.write_table(pa.table({"id": [1], "text": [["a", "list"]]}), path)
    with pytest.raises(
        InputError, match=r"the column 'text' holds values of type list.*expected text or numbers"
    ):
        read_graph(path)


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "n.parquet"
    names = [f"n{i}" for i in range(20_000)]
    parquet.write_table(pa.table({"id": names, "text": names}), path)
    whole = path.read_bytes()
    for place in range(100, len(whole) // 2, len(whole) // 40):
        path.write_bytes(whole[:place] + b"\xff" * 64 + whole[place + 64 :])
        try:
            read_graph(path, settings=SKIP)
        except InputError as error:
            assert str(path) in str(error)  # noqa: PT017


def test_tables_of_several_kinds_and_types(tmp_path: Path) -> None:
    """A column's type is that of all files together; nothing that differs between them stops an
    import.
    """
    parquet.write_table(
        pa.table({"id": ["a"], "text": ["x"], "year": [2000], "tags": [["t"]]}),
        tmp_path / "1.parquet",
    )
    parquet.write_table(
        pa.table({"id": ["b"], "text": ["y"], "year": [2000.5], "tags": [[1]]}),
        tmp_path / "2.parquet",
    )
    write_csv(tmp_path / "3.csv", "id,text,year,tags\n")
    write_csv(tmp_path / "4.csv", "id,text,year,tags\nd,z,1999,none\n")
    graph = read_graph(sorted(tmp_path.iterdir()))
    assert graph.column("year").to_pylist() == [2000.0, 2000.5, 1999.0]
    assert graph.column("tags").to_pylist() == ['["t"]', "[1]", "none"]
    assert read_graph([tmp_path / "1.parquet", tmp_path / "3.csv"]).column("year").to_pylist() == [
        2000
    ]


def test_names_that_clash_with_ours_or_each_other(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "n.csv", "key,title,id,id_,text\na,First,1,2,3\n")
    graph = read_graph(path, settings=ImportSettings(columns={"id": "key", "text": "title"}))
    kept = {name: graph.column(name).to_pylist() for name in graph.column_names}
    assert kept == {"id__": [1], "id_": [2], "text_": [3]}


def test_a_kept_column_that_is_nowhere_is_an_error(tmp_path: Path) -> None:
    one, two = (
        write_csv(tmp_path / "1.csv", "id,text,year\na,x,1999\n"),
        write_csv(tmp_path / "2.csv", "id,text\nb,y\n"),
    )
    with pytest.raises(
        InputError,
        match=r"keep=\['yaer'\]: no node file has a column of that name, the nearest is 'year' ",
    ):
        read_graph([one, two], settings=ImportSettings(keep=("yaer",)))
    assert read_graph([one, two], settings=ImportSettings(keep=("year",))).column(
        "year"
    ).to_pylist() == [1999, None]


def test_semicolons_and_tabs_are_seen_in_the_header(tmp_path: Path) -> None:
    nodes = write_csv(
        tmp_path / "n.csv", "id;title;year\r\na;First, with a comma;2001\r\nb;Second;2002\r\n"
    )
    edges = write_csv(tmp_path / "e.csv", "source\ttarget\na\tb\n")
    graph = read_graph(nodes, edges)
    assert graph.texts.to_pylist() == ["First, with a comma", "Second"]
    assert graph.num_pairs == 1


def test_an_unknown_source_says_what_ids_look_like(tmp_path: Path) -> None:
    nodes = write_csv(tmp_path / "n.csv", "id,text\n001,First\n002,Second\n")
    edges = write_csv(tmp_path / "e.csv", "src,dst\n1,002\n")
    with pytest.raises(
        InputError, match=r"e.csv:2: an edge from '1', expected the id of a node such as '001'"
    ):
        read_graph(nodes, edges)


@pytest.mark.parametrize(
    ("id", "given"), [("1", "1.0"), ("001", "1"), ("P1", " p1"), ("7", "07"), ("1.5", "1.50")]
)
def test_ids_that_nearly_match_are_named(tmp_path: Path, id: str, given: str) -> None:
    nodes = write_csv(tmp_path / "n.csv", f"id,text\nother,Zero\n{id},First\n")
    edges = write_csv(tmp_path / "e.csv", f"src,dst\n{given},{id}\n")
    near = "other" if id == "1.5" else id
    equal = "; ids must be equal in every character" if near == id else ""
    with pytest.raises(InputError) as error:
        read_graph(nodes, edges)
    assert (
        f"e.csv:2: an edge from {given!r}, expected the id of a node such as {near!r}{equal} ("
    ) in str(error.value)


def test_an_edge_between_texts_is_named(tmp_path: Path) -> None:
    nodes = write_csv(tmp_path / "n.csv", "id,text\n1,First\n2,Second\n")
    edges = write_csv(tmp_path / "e.csv", "src,dst\nSecond,First\n")
    expected = r"an edge from 'Second', expected .* such as '1'; 'Second' is the text of '2' \("
    with pytest.raises(InputError, match=expected):
        read_graph(nodes, edges)


def test_files_without_a_header_may_start_with_equal_values(tmp_path: Path) -> None:
    nodes = write_csv(tmp_path / "n.csv", "a,a\nb,Second\n")
    edges = write_csv(tmp_path / "e.csv", "a,a\na,b\n")
    columns = {"id": "1", "text": "2", "src": "1", "dst": "2"}
    graph = read_graph(nodes=nodes, edges=edges, header=False, columns=columns)
    assert graph.texts.to_pylist() == ["a", "Second"]
    assert graph.neighbors("b") == ["a"]


def test_columns_without_a_name_are_called_by_their_numbers(tmp_path: Path) -> None:
    indexed = write_csv(tmp_path / "n.csv", ",title\na,First\nb,Second\n")
    with pytest.raises(
        InputError, match=r"among: 1, title; name it with columns={'id': '1'} \(a column without"
    ):
        read_graph(indexed)
    assert read_graph(indexed, columns={"id": "1"}).ids.to_pylist() == ["a", "b"]
    numbered = write_csv(tmp_path / "m.csv", "id,,1,\na,First,2,3\n,x,y,z\n")
    graph = read_graph(numbered, columns={"text": "2"}, skip_bad=True)
    assert (graph.texts.to_pylist(), graph.column_names) == (["First"], ["1", "4"])
    taken = write_csv(tmp_path / "t.csv", ",0,1\na,First,2\n")
    assert read_graph(taken, columns={"id": "1_", "text": "0"}).column_names == ["1"]
    twice = write_csv(tmp_path / "d.csv", "id,title,title\na,b,c\n")
    with pytest.raises(InputError, match=r"d.csv:1: the column 'title' occurs .*; rename one"):
        read_graph(twice)


def test_missing_columns_say_what_a_file_may_be(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "data.csv", "p1,Graphs of texts\np2,Texts of graphs\n")
    with pytest.raises(InputError) as error:
        read_graph(data)
    advice = "; or, if the first line is data, header=False, columns={'id': '1', 'text': '2'} "
    assert f"{advice}(of links: columns={{'src': '1', 'dst': '2'}})" in str(error.value)
    with pytest.raises(InputError, match=r"name them with columns={'id': '1', 'text': '2'}"):
        read_graph(data, header=False)
    links = write_csv(tmp_path / "links.csv", "source,target\np1,p2\n")
    with pytest.raises(InputError, match=r"; if its rows are links, edges='.*links.csv'"):
        read_graph(nodes=links)
    nodes = write_csv(tmp_path / "nodes.csv", "id,title\np1,x\n")
    with pytest.raises(InputError, match=r"; is it a table of nodes\? nodes='.*nodes.csv'"):
        read_graph(edges=nodes)
    with pytest.raises(InputError, match=r"^edges: no column for dst .* columns={'dst': 'NAME'}$"):
        build_graph({"id": [1], "text": ["x"]}, {"source": [1]})
    cites = write_csv(tmp_path / "cites.csv", "id,cites\np1,p2\n")
    with pytest.raises(InputError, match=r"cites.csv:1.*links, columns={'src': 'id', 'dst': 'ci"):
        read_graph(nodes, cites)
    with pytest.raises(InputError, match=r"id, title; name it with columns={'text': 'title'}$"):
        read_graph(nodes, columns={"text": "titel"})
    with pytest.raises(InputError, match=r"with columns={'src': 'id', 'dst': 'cites'}$"):
        read_graph(nodes=nodes, edges=cites)
    exported = tmp_path / "g.json"
    exported.write_text('{"nodes": [{"id": 1}], "edges": []}')
    with pytest.raises(InputError, match=r"networkx.node_link_graph reads its JSON, and from_netw"):
        read_graph(exported)
    again = write_csv(tmp_path / "again.csv", "1,Graphs,1\n2,Texts,2\n")
    with pytest.raises(InputError, match=r"'1' occurs twice.*first line is data, header=False$"):
        read_graph(again)
    report = write_csv(tmp_path / "report.csv", "Exported today\n\nid;title\np1;x\n")
    with pytest.raises(InputError, match=r"; lines before the header must be removed$"):
        read_graph(report)


def test_a_misspelt_column_of_links_is_found_in_its_file(tmp_path: Path) -> None:
    nodes = write_csv(tmp_path / "papers.csv", "nr,title\np1,x\np2,y\n")
    links = write_csv(tmp_path / "citations.csv", "nr,zitierte_nr\np1,p2\n")
    named = {"id": "nr", "src": "nr"}
    with pytest.raises(
        InputError,
        match=r"citations.csv:1: no column for dst \(looked for zitiert_nr\) among: nr, zitierte_nr"
        r"; name it with columns={'dst': 'zitierte_nr'}$",
    ):
        read_graph(nodes, links, columns=named | {"dst": "zitiert_nr"})
    assert read_graph(nodes, links, columns=named | {"dst": "zitierte_nr"}).num_pairs == 1
    with pytest.raises(InputError, match="given, but no file holds edges"):
        read_graph(nodes, columns=named | {"dst": "cited"})


def test_every_input_counts_once(tmp_path: Path) -> None:
    both = write_csv(tmp_path / "b.csv", "id,title,source,target\na,A,a,b\nb,B,b,a\n")
    assert read_graph(both, nodes=both).column_names == ["source", "target"]
    graph = read_graph(nodes=both, edges=both)
    assert (graph.num_nodes, graph.edges.shape[1]) == (2, 2)
    nodes, edges = write_tables(tmp_path, "csv")
    again = tmp_path / ".." / tmp_path.name / "edges.csv"
    with pytest.raises(InputError, match=r"edges.csv: given twice, expected each input once"):
        read_graph(nodes, edges, again)


def test_lines_with_another_separator_say_so(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "n.csv", "id,text\na;First\n")
    with pytest.raises(InputError, match=r"n.csv:2: 1 field \('a;First'\), .* is ';' the separat"):
        read_graph(path)


def test_quotes_that_are_not_doubled_cost_their_line(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "n.csv", 'id,text\na,"First\nstill open, "x"\nb,Second\n')
    with pytest.raises(InputError, match=r"n.csv:2: .* double the quotes within a field \(") as one:
        read_graph(path)
    assert "reading goes on" not in str(one.value)
    (example,) = read_graph(path, settings=SKIP).summary["skipped_examples"]
    assert example.endswith("; reading goes on at the next line")


def test_roles_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    nodes = str(write_csv(tmp_path / "n.csv", "id,text\na,First\n"))
    with pytest.raises(InputError, match=r"columns={'user': 'x'} given, but tables of nodes and"):
        read_graph(nodes, columns={"user": "x"})
    out = ["-o", str(tmp_path / "g")]
    with pytest.raises(UsageError, match=r"--column id=b given, but 'id' is named already$"):
        app(["import", nodes, "--column", "id=a", "--column", "id=b", *out], standalone_mode=False)
    both = ["--column", "text=title", "--column", "text=body"]
    with pytest.raises(UsageError, match=r"; --column text=title,body names both$"):
        app(["import", nodes, *both, *out], standalone_mode=False)
    with pytest.raises(UsageError, match="no files given, expected at least one: graphformers im"):
        app(["import", *out], standalone_mode=False)


def test_years_are_reported_as_numbers(tmp_path: Path) -> None:
    nodes = write_csv(tmp_path / "n.csv", "id,text\na,First\nb,Second\n")
    edges = write_csv(tmp_path / "e.csv", "src,dst,year\na,b,2019\nb,a,2021\n")
    graph = read_graph(nodes, edges, columns={"time": "year"})
    report = str(describe_import(graph).as_table())
    assert "the times of links are numbers (2019 to 2021), kept as they are" in report


def test_files_that_hold_only_edges_or_both_are_said(tmp_path: Path) -> None:
    edges = write_csv(tmp_path / "e.csv", "source,target\na,b\n")
    with pytest.raises(InputError, match=r"edges by the columns, and there is no table of nodes"):
        read_graph(edges)
    both = write_csv(tmp_path / "b.csv", "id,title,source,target\na,A,x,y\n")
    with pytest.raises(InputError, match=r"both nodes and edges by its columns"):
        read_graph(both)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, [("a", "first"), ("b", "second")]),
        ({"id": "name"}, [("a", "first"), ("b", "second")]),
        ({"id": "name", "text": "name"}, [("a", "a"), ("b", "b")]),
        ({"id": "description"}, [("first", "a"), ("second", "b")]),
        ({"text": "description"}, [("a", "first"), ("b", "second")]),
    ],
)
def test_a_name_may_be_the_id_or_the_text(
    columns: dict[str, str], expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "n.csv").write_text("name,description\na,first\nb,second\n")
    graph = read_graph(tmp_path / "n.csv", settings=ImportSettings(columns=columns))
    assert list(zip(graph.ids.to_pylist(), graph.texts.to_pylist(), strict=True)) == expected


def test_a_number_that_is_none_is_no_id(tmp_path: Path) -> None:
    parquet.write_table(
        pa.table({"id": [1.0, float("nan")], "text": ["a", "b"]}), tmp_path / "n.parquet"
    )
    with pytest.raises(GraphFormersError, match=r"empty|missing"):
        read_graph(tmp_path / "n.parquet")


def test_what_a_format_does_not_ask_for_is_refused() -> None:
    for changes in (
        {"columns": {"text": "abstract"}},
        {"keep": ()},
        {"header": False},
        {"window": 5.0},
    ):
        with pytest.raises(GraphFormersError, match="but the format 'dblp' does not use it"):
            ImportSettings(format="dblp", **changes)  # type: ignore[arg-type]
    with pytest.raises(
        GraphFormersError, match="min_count=3 given, but the format 'tables' does not use it"
    ):
        ImportSettings(min_count=3)
    assert ImportSettings(format="sessions", min_count=3, columns={"user": "who"}).min_count == 3


def test_a_column_of_the_text_may_be_kept_as_well(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id,title,year\na,one,1990\nb,two,1991\n")
    (tmp_path / "e.csv").write_text("source_id,target_id\na,b\n")
    graph = read_graph(
        [tmp_path / "n.csv"], tmp_path / "e.csv", columns={"text": "title,year"}, keep=("year",)
    )
    assert graph.text("a") == "one. 1990"
    assert graph.column("year").to_pylist() == [1990, 1991]
    assert graph.neighbors("a") == ["b"]


def test_tables_in_memory_are_for_build_graph() -> None:
    with pytest.raises(
        InputError,
        match="a Table given, expected the names of files; build_graph takes data in memory",
    ):
        read_graph(pa.table({"id": ["a"], "text": ["b"]}))


def test_files_are_told_apart_by_their_columns_in_any_order(tmp_path: Path) -> None:
    nodes, edges = write_tables(tmp_path, "csv")
    expected = read_graph(nodes=nodes, edges=edges)
    for given in ([nodes, edges], [edges, nodes], [[str(edges), nodes]], [[nodes], [edges]]):
        graph = read_graph(*given)
        assert graph.table.equals(expected.table)
        assert (graph.edges == expected.edges).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colums": {"id": "i"}}, "read_graph has no option 'colums'; did you mean 'columns'"),
        ({"columns": None}, "columns=None given, expected a dict of names"),
        ({"columns": "id=i"}, "expected a dict of names"),
        ({"columns": {"text": ["a", "b"]}}, "expected a dict of names"),
        ({"columns": {"id": 0}}, "expected a dict of names"),
        ({"keep": 5}, "expected a list of columns"),
        ({"columns": ["id", "text"]}, "expected a dict of names"),
        ({"columns": {"words": "text"}}, "did you mean columns={'text': 'words'}"),
        ({"keep": "year"}, r"columns: keep=\['year'\]"),
        ({"keep": "year, venue"}, r"columns: keep=\['year', 'venue'\]"),
        ({"keep": ["weight"]}, "no node file has a column of that name; there are: id"),
        ({"format": "csv"}, "expected one of: tables, .*; did you mean 'tables'"),
    ],
)
def test_wrong_keywords_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,one\n")
    with pytest.raises(GraphFormersError, match=message):
        read_graph(tmp_path / "a.csv", **changes)
    with pytest.raises(GraphFormersError, match="expected a dict of names"):
        build_graph([{"id": 1, "text": "one"}], columns=["id", "text"])  # type: ignore[arg-type]


def test_what_is_no_name_of_a_file_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "a.csv"
    place.write_text("id,text\n1,one\n")
    with place.open() as file:
        for given in (file, 5, None, {"id": ["1"]}, [file]):
            with pytest.raises(InputError, match="expected the names of files; build_graph"):
                read_graph(given)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="in memory, and '-' stands for standard input"):
            read_graph(file)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^a Graph given, .*, from_networkx a graph of networkx"):
        read_graph(networkx.Graph([(1, 2)]))
    with pytest.raises(InputError, match=r"^an int given"):
        read_graph(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"/dev/stdin: given twice, expected each input once"):
        read_graph(nodes="-", edges="-")
