"""Bad rows that are left out: how many, which, and all of them in a file."""

import json
import os
from pathlib import Path

import pytest

from graphformers.cli import app
from graphformers.errors import GraphFormersError, InputError
from graphformers.graph.describe import describe_import
from graphformers.graph.interop import build_graph
from graphformers.graph.readers import read_graph
from graphformers.graph.settings import ImportSettings


def write_nodes(path: Path, good: int, bad: int) -> Path:
    rows = [f"{i},text {i}" for i in range(good)] + [f"bad{i}," for i in range(bad)]
    path.write_text("\n".join(["id,text", *rows]) + "\n")
    return path


def test_all_bad_rows_are_written(tmp_path: Path) -> None:
    nodes = write_nodes(tmp_path / "n.csv", 20, 22)
    (tmp_path / "e.csv").write_text("src,dst\n0,1\n1,lost\n2,3,4\n")
    file = tmp_path / "bad.jsonl"
    graph = read_graph(nodes, tmp_path / "e.csv", skip_bad=True, bad_rows=file)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 24
    assert rows[0] == {
        "file": str(nodes),
        "line": 22,
        "reason": "empty text",
        "detail": "the text of node 'bad0' is empty, expected some words",
    }
    assert {(Path(row["file"]).name, row["line"]) for row in rows[22:]} == {
        ("e.csv", 3),
        ("e.csv", 4),
    }
    lines = str(describe_import(graph).as_table()).splitlines()
    assert lines[-1] == "    … and 17 more; bad_rows='FILE.jsonl' writes all of them"
    assert sum(line.startswith(f"    {nodes}:") for line in lines) == 5


def test_the_report_names_the_file_of_bad_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    nodes = tmp_path / "n.csv"
    rows = [f"{i},Müller {i},2\n" for i in range(400)]
    nodes.write_text("id,text\n1,x\n" + "".join(rows), encoding="utf-8")
    file = tmp_path / "bad.jsonl"
    options = ["--skip-bad", "--bad-rows", str(file), "-o", str(tmp_path / "g")]
    app(["import", str(nodes), *options], standalone_mode=False)
    assert capsys.readouterr().out.endswith(f"    … and 395 more; {file} holds all of them\n")
    assert "Müller" in file.read_text(encoding="utf-8")
    assert "left out 400 of 401 rows (100 %)" in caplog.messages[-1]


def test_a_name_of_a_file_that_is_not_utf8_is_escaped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = write_nodes(tmp_path / os.fsdecode(b"M\xfcller.csv"), 1, 1)
    file = tmp_path / "bad.jsonl"
    read_graph(nodes, skip_bad=True, bad_rows=file)
    assert json.loads(file.read_text(encoding="utf-8"))["file"] == str(nodes)
    assert "M\\udcfcller.csv:3" in caplog.text
    caplog.text.encode()


def test_many_bad_rows_are_told_loudly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    few = write_nodes(tmp_path / "few.csv", 999, 1)
    read_graph(few, skip_bad=True)
    message = "left out 1 of 1,000 rows (0.1 %); the most common reason is empty text (1), such as "
    assert caplog.messages[-1].startswith(message)
    many = write_nodes(tmp_path / "many.csv", 75, 25)
    app(["import", str(many), "--skip-bad", "-o", str(tmp_path / "g")], standalone_mode=False)
    assert "… and 20 more; --bad-rows FILE.jsonl writes all of them" in capsys.readouterr().out
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert caplog.messages[-1] == (
        f"WARNING: left out 25 of 100 rows (25 %); the most common reason is empty text (25), such "
        f"as {many}:77: the text of node 'bad0' is empty, expected some words. So many bad rows "
        f"may mean that the data are read in the wrong way; --bad-rows FILE.jsonl writes all bad "
        f"rows to a file"
    )
    caplog.clear()
    read_graph(write_nodes(tmp_path / "none.csv", 10, 0), skip_bad=True)
    assert not caplog.messages
    build_graph([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}], skip_bad=True)
    message = "left out 1 of 2 rows (50 %); the most common reason is duplicate id"
    assert message in caplog.messages[-1]


def test_a_file_for_bad_rows_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(GraphFormersError, match=r"bad_rows='n.csv' given, expected a name that"):
        ImportSettings(skip_bad=True, bad_rows="n.csv")
    with pytest.raises(GraphFormersError, match=r"given without skip_bad=True, which leaves out"):
        ImportSettings(bad_rows="bad.jsonl")
    nodes = tmp_path / "n.jsonl"
    nodes.write_text('{"id": "a", "text": "x"}\n')
    with pytest.raises(InputError, match="an input, expected another file to write bad rows to"):
        read_graph(nodes, skip_bad=True, bad_rows=nodes)
    assert nodes.read_text()


def test_no_file_is_lost_to_bad_rows(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    rows = '{"id": "a", "text": "x"}\n{"id": "b", "text": ""}\n'
    (folder / "a.jsonl").write_text(rows)
    (folder / "linked.jsonl").symlink_to(tmp_path / "n.jsonl")
    (tmp_path / "n.jsonl").write_text('{"id": "c", "text": "x"}\n')
    for name in ("folder/a.jsonl", "n.jsonl"):
        with pytest.raises(InputError, match="an input, expected another file"):
            read_graph(folder, skip_bad=True, bad_rows=tmp_path / name, force=True)
    with pytest.raises(InputError, match=r"which is an input, .*the next import would read it"):
        read_graph(folder, skip_bad=True, bad_rows=folder / "bad.jsonl")
    assert (folder / "a.jsonl").read_text() == rows
    precious = tmp_path / "precious.jsonl"
    precious.write_text("precious\n")
    with pytest.raises(InputError, match=r"precious.jsonl: exists and does not hold bad rows of"):
        read_graph(folder, skip_bad=True, bad_rows=precious, force=True)
    assert precious.read_text() == "precious\n"


def test_a_file_of_bad_rows_is_replaced_as_a_whole(tmp_path: Path) -> None:
    nodes, file = write_nodes(tmp_path / "n.csv", 2, 1), tmp_path / "bad.jsonl"
    words = ["import", str(nodes), "--skip-bad", "--bad-rows", str(file)]
    words += ["-o", str(tmp_path / "g")]
    app(words, standalone_mode=False)
    written = file.read_text()
    assert json.loads(written)["reason"] == "empty text"
    (tmp_path / "g").rename(tmp_path / "other")
    with pytest.raises(InputError, match=r"exists already; choose .*, or --force replaces it"):
        app(words, standalone_mode=False)
    broken = tmp_path / "broken.csv"
    broken.write_text("id,words\n")
    with pytest.raises(InputError, match="no column for text"):
        read_graph(broken, skip_bad=True, bad_rows=file, force=True)
    assert file.read_text() == written
    write_nodes(nodes, 2, 0)
    app([*words, "--force"], standalone_mode=False)
    assert file.read_text() == ""
    read_graph(nodes, skip_bad=True, bad_rows=file, force=True)
    with pytest.raises(InputError, match="nowhere: no such folder"):
        read_graph(nodes, skip_bad=True, bad_rows=tmp_path / "nowhere/bad.jsonl")
