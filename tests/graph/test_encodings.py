"""Text files in other encodings than UTF-8."""

import gzip
from pathlib import Path

import pytest

from graphformers.errors import GraphFormersError, InputError
from graphformers.graph.importers.encodings import Converter
from graphformers.graph.readers import read_graph
from graphformers.graph.settings import ImportSettings
from graphformers.settings import naming_options

TEXT = 'id;title\r\n1;Café au lait\r\n2;"Straße\r\nund Weg"\r\n3;naïve\r\n'
TEXTS = ["Café au lait", "Straße\r\nund Weg", "naïve"]


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "encoding", ["cp1252", "latin-1", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_table_in_any_encoding(tmp_path: Path, encoding: str, pack: type[bytes]) -> None:
    suffix = ".csv" if pack is bytes else ".csv.gz"
    path = write(tmp_path / f"n{suffix}", pack(TEXT.encode(encoding)))
    assert read_graph(path, encoding=encoding).texts.to_pylist() == TEXTS


def test_an_encoding_is_not_that_of_later_files(tmp_path: Path) -> None:
    path = write(tmp_path / "n.csv", TEXT.encode("cp1252"))
    assert "read_as" not in read_graph(path, encoding="cp1252").summary
    with pytest.raises(GraphFormersError, match="but the format 'python' does not use it"):
        ImportSettings(format="python", encoding="cp1252")


def test_records_and_lines_of_other_encodings(tmp_path: Path) -> None:
    path = write(tmp_path / "n.jsonl", '{"id": "ä", "text": "日本語"}\n'.encode("gb18030"))
    graph = read_graph(path, encoding="gb18030")
    assert (graph.ids.to_pylist(), graph.texts.to_pylist()) == (["ä"], ["日本語"])
    path = write(tmp_path / "Packages", "Package: a\nDescription: Größe\n".encode("cp1252"))
    assert read_graph(path, format="debian", encoding="cp1252").texts.to_pylist() == ["Größe"]


def test_the_likely_encoding_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "n.csv", TEXT.encode("cp1252"))
    with pytest.raises(
        InputError,
        match=r"n.csv:2: byte 0xe9 at position 6 .*; as Windows-1252 it is .1;Café au lait.: if "
        r"that is right, give encoding='cp1252'",
    ):
        read_graph(path)
    with naming_options(), pytest.raises(InputError, match="give --encoding cp1252"):
        read_graph(path)
    for encoding in ("utf-16", "utf-16-be"):
        path = write(tmp_path / "n.csv", TEXT.encode(encoding))
        expected = f"{encoding.upper()} text, expected UTF-8; encoding='{encoding}' reads it"
        with pytest.raises(InputError, match=expected):
            read_graph(path)


def test_lines_that_are_not_of_the_encoding(tmp_path: Path) -> None:
    rows = b"id,text\n1,caf\xe9\n2,a\x81b\n3,fine\n"
    path = write(tmp_path / "n.csv", rows)
    with pytest.raises(
        InputError, match=r"n.csv:3: bytes at position 4 are not cp1252, expected text in cp1252"
    ):
        read_graph(path, encoding="cp1252")
    graph = read_graph(path, encoding="cp1252", skip_bad=True)
    assert graph.texts.to_pylist() == ["café", "fine"]
    assert graph.summary["skipped"] == {"wrong encoding": 1}


@pytest.mark.parametrize("name", ["klingon", "rot13", "base64", "punycode", ""])
def test_what_is_no_encoding(name: str) -> None:
    with pytest.raises(GraphFormersError, match="expected an encoding that Python knows"):
        ImportSettings(encoding=name)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_pieces_are_converted_as_the_whole(size: int) -> None:
    for encoding in ("utf-16", "shift_jis", "cp1252"):
        data = "a\u00e9b".encode("utf-16") if encoding == "utf-16" else "aé\x81".encode("latin-1")
        whole = Converter(encoding).convert(data, final=True)
        converter = Converter(encoding)
        pieces = [
            converter.convert(data[i : i + size], final=False) for i in range(0, len(data), size)
        ]
        assert b"".join([*pieces, converter.convert(b"", final=True)]) == whole


def test_an_encoding_that_not_all_files_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = "id,text\na,naïve\n"
    path = write(tmp_path / "n.csv", rows.encode())
    for encoding in ("utf-16", "utf-32"):
        expected = rf"n.csv: not {encoding} \(.*BOM\); the encoding holds for all files: convert"
        expected += rf" .*iconv -f {encoding} .*, and leave out encoding='{encoding}'$"
        with pytest.raises(InputError, match=expected):
            read_graph(path, encoding=encoding)
    assert not caplog.messages
    assert read_graph(path, encoding="cp1252").text("a") == "naÃ¯ve"
    warning = f"WARNING: {path}: read as cp1252, but the whole file is UTF-8, and its characters"
    (message,) = caplog.messages
    assert message.startswith(warning)
    caplog.clear()
    write(tmp_path / "marked.csv", rows.encode("utf-8-sig"))
    assert read_graph(tmp_path / "marked.csv", encoding="cp1252").text("a") == "naïve"
    write(tmp_path / "ascii.csv", b"id,text\na,b\n")
    read_graph(tmp_path / "ascii.csv", encoding="cp1252")
    read_graph(write(path, rows.encode("cp1252")), encoding="cp1252")
    assert not caplog.messages
    with pytest.raises(InputError, match=r"n.csv:1: UTF-16 text, expected cp1252; the encoding"):
        read_graph(write(path, rows.encode("utf-16")), encoding="cp1252")
