"""Importing: pipes, folders and files in any order give the same graph; limits are kept."""

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from graphformers.errors import InputError
from graphformers.graph.batches import EdgeBatch, TableBatch
from graphformers.graph.builder import GraphBuilder
from graphformers.graph.importers.table_files import OPEN_TABLES, open_table
from graphformers.graph.problems import Problems
from graphformers.graph.readers import read_graph
from graphformers.graph.settings import ImportSettings
from graphformers.graph.textgraph import TextGraph
from tests.graph.test_readers import write_csv, write_tables

NUM_NODES = 300


def assert_equal(one: TextGraph, other: TextGraph) -> None:
    assert one.table.equals(other.table)
    assert one.type_names == other.type_names
    for name in ("indptr", "indices", "edges", "edge_types", "edge_times", "id_hashes"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def node_rows(start: int = 0, stop: int = NUM_NODES) -> list[str]:
    return [f"n{i},text {i},{1990 + i % 30}" for i in range(start, stop)]


def edge_rows(start: int = 0, stop: int = NUM_NODES) -> list[str]:
    return [f"n{i},n{(7 * i + 1) % NUM_NODES},{'ab'[i % 2]}" for i in range(start, stop)]


def write_rows(path: Path, header: str, rows: list[str]) -> Path:
    return write_csv(path, "\n".join([header, *rows]) + "\n")


def write_graph(folder: Path) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    return (
        write_rows(folder / "nodes.csv", "id,text,year", node_rows()),
        write_rows(folder / "links.csv", "src,dst,type", edge_rows()),
    )


# ---- pipes


def feed(path: Path, content: bytes) -> threading.Thread:
    """Writes into a named pipe, which waits for a reader, from a thread."""
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(content,), daemon=True)
    writer.start()
    return writer


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "tsv", "jsonl", "jsonl.gz", "parquet"])
def test_a_pipe_gives_the_graph_of_the_file(tmp_path: Path, kind: str) -> None:
    """The first bytes tell the kind, also of compressed data."""
    nodes, edges = write_tables(tmp_path, kind)
    expected = read_graph(nodes=nodes, edges=edges)
    pipes = tmp_path / "pipes"
    pipes.mkdir()
    # The links come first, and are kept until the nodes are read.
    writers = [
        feed(pipes / "links", edges.read_bytes()),
        feed(pipes / "nodes", nodes.read_bytes()),
    ]
    assert_equal(read_graph(pipes / "links", pipes / "nodes"), expected)
    for writer in writers:
        writer.join()


def test_a_broken_pipe_of_parquet_is_named(tmp_path: Path) -> None:
    nodes, _ = write_tables(tmp_path, "parquet")
    packed = gzip.compress(nodes.read_bytes())
    feed(tmp_path / "whole", packed).join(0)
    assert read_graph(tmp_path / "whole").num_nodes == 4
    feed(tmp_path / "cut", packed[:-50])
    with pytest.raises(InputError, match="cut: the gzip stream is cut short or damaged"):
        read_graph(tmp_path / "cut")


def test_one_program_may_write_several_pipes_one_after_the_other(tmp_path: Path) -> None:
    nodes, edges = write_graph(tmp_path / "files")
    # more than a pipe holds
    more = write_rows(tmp_path / "more.csv", "src,dst,type", 100 * edge_rows())
    expected = read_graph(nodes, more, edges)
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for path in paths:
        os.mkfifo(path)

    def write() -> None:
        for path, source in zip(paths, (more, edges, nodes), strict=True):
            path.write_bytes(source.read_bytes())

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert_equal(read_graph(paths), expected)
    writer.join()


def run_import(*words: object, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "graphformers", "import", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=100,
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_standard_input_and_a_substituted_process(tmp_path: Path, name: str) -> None:
    nodes, edges = write_graph(tmp_path)
    command = f"{sys.executable} -m graphformers import {name} <(gzip -c {edges}) -o a.graph"
    done = subprocess.run(
        ["bash", "-c", f"cat {nodes} | {command}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert_equal(TextGraph.load(tmp_path / "a.graph"), read_graph(nodes, edges))


def test_problems_of_standard_input_have_lines(tmp_path: Path) -> None:
    done = run_import("-", "-o", "a.graph", cwd=tmp_path, input='id,text\na,"two\nlines"\nb,\n')
    assert done.returncode == 1
    assert "/dev/stdin:4: the text of node 'b' is empty" in done.stderr
    done = run_import("-", "-o", "a.graph", cwd=tmp_path, input="")
    assert "/dev/stdin: empty file, expected a header and rows" in done.stderr


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compression_is_recognised_by_the_first_bytes(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    nodes, edges = write_graph(tmp_path)
    expected = read_graph(nodes, edges)
    nodes.write_bytes(pack(b"\xef\xbb\xbf" + nodes.read_bytes()))
    assert_equal(read_graph(nodes, edges), expected)
    nodes.write_bytes(pack(nodes.read_bytes()))
    with pytest.raises(InputError, match=r"within a compressed file.*decompress it once"):
        read_graph(nodes, edges)


# ---- files in any order and number


def test_a_thousand_files_of_a_folder(tmp_path: Path) -> None:
    """There are more than may be open at a time, and links come before their nodes."""
    nodes, edges = write_graph(tmp_path / "whole")
    expected = read_graph(nodes, edges)
    folder = tmp_path / "parts"
    folder.mkdir()
    for i in range(500):
        part = slice(i * NUM_NODES // 500, (i + 1) * NUM_NODES // 500)
        write_rows(folder / f"a{i:03}.csv", "src,dst,type", edge_rows()[part])
        write_rows(folder / f"b{i:03}.csv", "id,text,year", node_rows()[part])
    (folder / "README").write_text("no table")
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({OPEN_TABLES} + 30,) * 2)
from graphformers import read_graph
read_graph({str(folder)!r}).save({str(tmp_path / "parts.graph")!r})
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)
    assert_equal(TextGraph.load(tmp_path / "parts.graph"), expected)
    assert_equal(read_graph(folder), expected)
    assert_equal(
        read_graph(nodes=sorted(folder.glob("b*")), edges=sorted(folder.glob("a*"))), expected
    )


def test_a_folder_without_tables(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a folder, expected a file, or a folder of tables"):
        read_graph(tmp_path)
    with pytest.raises(InputError, match="a folder, expected a file"):
        read_graph(tmp_path, format="dblp")
    write_graph(tmp_path / "inner")
    (tmp_path / ".hidden.csv").write_text("id,text\na,x\n")
    with pytest.raises(
        InputError, match=rf"folders within it are not read, name them: {tmp_path}/inner$"
    ):
        read_graph(tmp_path)
    read_graph(tmp_path / "inner").save(tmp_path / "a.graph")
    expected = (
        "a folder that graphformers wrote, expected .*; graphformers info .*a.graph describes"
    )
    with pytest.raises(InputError, match=expected):
        read_graph(tmp_path / "a.graph")


def test_a_file_of_a_folder_that_is_no_table(tmp_path: Path) -> None:
    write_graph(tmp_path)
    (tmp_path / "._nodes.csv").write_bytes(b"\0\1\2")
    assert read_graph(tmp_path).num_nodes
    (tmp_path / "empty.csv").touch()
    expected = "empty.csv: empty file, .*; to leave the file out, name the other files instead of"
    with pytest.raises(InputError, match=expected):
        read_graph(tmp_path)


def test_folders_within_a_folder_of_tables_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_graph(tmp_path)
    assert read_graph(tmp_path).num_nodes
    assert not caplog.messages
    write_graph(tmp_path / "2001")
    assert read_graph(tmp_path).num_nodes
    assert caplog.messages == [
        f"WARNING: {tmp_path}: folders within it are not read, name them: {tmp_path}/2001"
    ]


def edge_batch(start: int, *, types: bool, times: bool) -> EdgeBatch:
    ends = [f"n{i % NUM_NODES}" for i in range(start, start + 50)]
    return EdgeBatch(
        pa.array(ends, pa.string()),
        pa.array([*ends[1:], "nobody"], pa.large_string()),
        lambda i: (Path("links"), start + i),
        pa.array([f"t{i % 3}" for i in range(50)]) if types else None,
        np.where(np.arange(50) % 4 == 0, np.nan, np.arange(50.0)) if times else None,
    )


def test_edges_wait_in_memory_or_in_a_file() -> None:
    """Whether edges come before or after the nodes, and where they wait, changes nothing."""
    batches = [edge_batch(37 * i, types=i % 2 == 0, times=i % 3 == 0) for i in range(40)]
    ids = [f"n{i}" for i in range(NUM_NODES)]
    nodes = TableBatch(
        {"id": pa.array(ids), "text": pa.array(ids)}, lambda i: (Path("nodes"), i + 1)
    )
    graphs = []
    for spool_bytes, is_late in ((1 << 30, True), (1 << 30, False), (5000, False), (0, False)):
        with GraphBuilder(Problems(strict=False), spool_bytes=spool_bytes) as builder:
            if is_late:
                builder.add_nodes(nodes)
                builder.seal_nodes()
            for batch in batches:
                builder.add_edges(batch)
            if not is_late:
                builder.add_nodes(nodes)
            graphs.append(builder.build())
    assert graphs[0].summary["skipped"] == {"edge to an unknown node": 40}
    for graph in graphs[1:]:
        assert_equal(graph, graphs[0])
        assert graph.summary == graphs[0].summary


OPENS = """
import sys
from collections import Counter
opened = Counter()
names = sys.argv[1:]
def note(event, arguments):
    if event == "open" and str(arguments[0]) in names:
        opened[str(arguments[0])] += 1
sys.addaudithook(note)
from graphformers import read_graph
graph = read_graph(*names, skip_bad=True)
assert graph.summary["skipped"], "lines of bad rows were looked for"
print(*(opened[name] for name in names))
"""


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl"])
def test_every_file_is_opened_once(tmp_path: Path, kind: str) -> None:
    nodes, edges = write_tables(tmp_path, kind)
    bad = write_csv(tmp_path / "bad.csv", 'id,title\nx,"two\nlines"\n\ny,\nx,again\ny,"open\n')
    names = [str(path) for path in (edges, nodes, bad)]
    done = subprocess.run(
        [sys.executable, "-c", OPENS, *names], capture_output=True, text=True, timeout=100
    )
    assert done.stdout.split() == ["1", "1", "1"], done.stderr


@pytest.mark.parametrize("quoted", [True, False])
def test_lines_of_rows_between_line_feeds_and_blank_lines(tmp_path: Path, quoted: bool) -> None:
    """Every line that a message names is the one on which the row starts."""
    text, line, starts = "id,text\n", 2, []
    for i in range(20_000):
        row = f'n{i},"a\nb\r\nc"\n' if quoted and i % 7 == 0 else f"n{i},word\n"
        row += "\n" if i % 5 == 0 else "\r\n" if quoted and i % 11 == 0 else ""
        starts.append(line)
        text, line = text + row, line + row.count("\n")
    path = write_csv(tmp_path / "n.csv", text)
    with open_table(path, ImportSettings(), Problems(strict=True)) as table:
        found = [batch.locate(i) for batch in table.batches(None) for i in range(len(batch))]
    assert found == [(path, start) for start in starts]


# ---- limits


def bomb(name: str, folder: Path) -> Path:
    path = folder / name
    if name == "line.csv.gz":
        write_pieces(path, [b"id,text\n", *[b"a" * 1_000_000] * 1900])
    elif name == "rows.csv.gz":
        write_pieces(path, [b"id,text\n", *[b"a,b\n" * 250_000] * 1900])
    elif name == "quote.csv.gz":
        write_pieces(path, [b'id,text\na,"', *[b"words and words\n" * 62_500] * 1900])
    elif name == "line.jsonl.gz":
        write_pieces(path, [b'{"id": "', *[b"a" * 1_000_000] * 1900])
    elif name == "field.csv":
        path.write_bytes(b"id,text\na," + b"a" * 100_000_000 + b"\n")
    elif name == "columns.parquet":
        columns = {"id": ["a"], "text": ["b"]} | {f"c{i}": [1] for i in range(5000)}
        parquet.write_table(pa.table(columns), path)
    elif name.startswith("columns"):
        count = int(name.removeprefix("columns").removesuffix(".csv"))
        names, values = ",".join(f"c{i}" for i in range(count)), ",".join("1" * count)
        path.write_text(f"id,text,{names}\na,b,{values}\n")
    elif name == "names.jsonl":
        path.write_text(
            "".join(
                json.dumps({"id": f"{i}", "text": "x", **{f"c{i}_{j}": 1 for j in range(1000)}})
                + "\n"
                for i in range(1000)
            )
        )
    elif name == "fields.jsonl":
        path.write_text(
            "".join(
                json.dumps({"id": f"{i}", "text": "x", "m": {f"c{i}_{j}": 1 for j in range(100)}})
                + "\n"
                for i in range(3000)
            )
        )
    elif name == "deep.jsonl":
        path.write_text('{"id": "a", "text": "x", "v": ' + "[" * 500 + "]" * 500 + "}\n")
    elif name == "deeper.jsonl":
        path.write_text('{"id": "a", "text": "x", "v": ' + "[" * 5_000_000 + "]" * 5_000_000 + "}")
    return path


def write_pieces(path: Path, pieces: list[bytes]) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for piece in pieces:
            file.write(piece)


BOMBS = {
    "line.csv.gz": ("line.csv.gz:2: a row of more than 16.0 MB", "max_row="),
    "rows.csv.gz": ("holds more than 200 times its own size", "max_expansion="),
    "quote.csv.gz": ("quote.csv.gz:2: a row of more than 16.0 MB", "max_row="),
    "line.jsonl.gz": ("line.jsonl.gz:1: a row of more than 16.0 MB", "max_row="),
    "field.csv": ("field.csv:2: a row of more than 16.0 MB", "max_row="),
    "columns5000.csv": ("columns5000.csv:1: 5,002 columns, expected at most", "max_columns="),
    "columns100000.csv": ("100,002 columns, expected at most 2,000", "max_columns="),
    "names.jsonl": ("columns, expected at most 2,000", "max_columns="),
    "fields.jsonl": ("the objects in the column 'm' have more than 2,000", "max_columns="),
    "deep.jsonl": ("deep.jsonl:1: more than 32 levels of lists", "max_nesting="),
    "deeper.jsonl": ("deeper.jsonl:1: maximum recursion depth exceeded", "one JSON object"),
    "columns.parquet": ("5,002 columns, expected at most 2,000", "max_columns="),
}
REFUSED = """
import sys, time
from graphformers import read_graph
from graphformers.errors import GraphFormersError
started = time.process_time()
try:
    read_graph(sys.argv[1])
except GraphFormersError as error:
    print(error)
print(time.process_time() - started)
# The peak of ru_maxrss may be that of the process which started this one.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) * 1024)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_soon_and_in_little_memory(tmp_path: Path, name: str) -> None:
    path = bomb(name, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, path], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    message, seconds, memory = done.stdout.splitlines()
    assert BOMBS[name][0] in message
    assert BOMBS[name][1] in message
    assert float(seconds) < 5
    assert int(memory) < 500e6


@pytest.mark.parametrize("limit", [450, 500, 550, 600])
def test_an_import_without_enough_memory_ends_with_a_message(tmp_path: Path, limit: int) -> None:
    """Threads of Arrow ended the process by a signal."""
    path = tmp_path / "n.csv"
    row = "text of some words " * 5
    with path.open("w") as file:
        file.write("id,text\n")
        file.writelines(f"n{i},{row}\n" for i in range(1_500_000))
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, ({limit} << 20,) * 2)
{REFUSED}"""
    done = subprocess.run(
        [sys.executable, "-c", script, path],
        capture_output=True,
        text=True,
        timeout=100,
        # Buffers of many threads would not fit.
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "the memory does not suffice to read the files" in done.stdout


def test_limits_are_settings(tmp_path: Path) -> None:
    wide = bomb("columns3000.csv", tmp_path)
    assert len(read_graph(wide, max_columns=4000).column_names) == 3000
    deep = bomb("deep.jsonl", tmp_path)
    with pytest.raises(InputError, match="more than 40 levels"):
        read_graph(deep, max_nesting=40)
    long = write_csv(tmp_path / "n.csv", f"id,text\na,{'x' * 5000}\nb,y\n\nc,{'x' * 990}\nd,z\n")
    with pytest.raises(InputError, match=r"n.csv:2: a row of more than 1.0 kB.*max_row=0.002"):
        read_graph(long, max_row=0.001)
    graph = read_graph(long, max_row=0.001, skip_bad=True)
    assert graph.ids.to_pylist() == ["b", "c", "d"]
    assert graph.summary["skipped"] == {"malformed row": 1}
    assert read_graph(long).num_nodes == 4
    records = write_csv(
        tmp_path / "n.jsonl", f'{{"id": "a", "text": "{"x" * 5000}"}}\n{{"id": "b", "text": "y"}}\n'
    )
    with pytest.raises(InputError, match=r"n.jsonl:1: a row of more than 1.0 kB"):
        read_graph(records, max_row=0.001)
    assert read_graph(records, max_row=0.001, skip_bad=True).ids.to_pylist() == ["b"]
    packed = tmp_path / "p.csv.gz"
    packed.write_bytes(gzip.compress(b"id,text\n" + (b"a," + b"b" * 1000 + b"\n") * 20_000))
    with pytest.raises(InputError, match="more than 200 times its own size"):
        read_graph(packed)
    graph = read_graph(packed, max_expansion=2000, skip_bad=True)
    assert graph.summary["skipped"] == {"duplicate id": 19_999}
