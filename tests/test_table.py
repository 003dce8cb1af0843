import pytest

from graphformers.table import Table, tables_html

TABLE = Table(["a|b", "c"], [["1", "x | y"], ["2", "3"]], "T", ["n"], frozenset({(1, 1)}))


def test_a_table_prints_what_a_terminal_would_not_obey(capsys: pytest.CaptureFixture[str]) -> None:
    rows, header = [("a", "1 \x1b[31mred"), ("b\u200dc", "[bold]2")], ["name", "value"]
    Table([], rows).print()
    assert capsys.readouterr().out.split() == ["a", "1", "[31mred", "b\u200dc", "[bold]2"]
    Table(header, rows, "Title", ["a note", "another"]).print(gap=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Title", ""]
    assert lines[-2:] == ["a note", "another"]


def test_a_table_as_text() -> None:
    assert str(TABLE).splitlines() == ["T", "a|b  c", "1    x | y", "2    3", "n"]
    assert str(Table(["[bold]a"], [["[red]b"]])).split() == ["[bold]a", "[red]b"]
    assert str(Table([], [])) == ""


def test_a_table_as_markdown_and_json() -> None:
    assert TABLE.markdown().splitlines() == [
        "| a\\|b | c |",
        "|---|---|",
        "| 1 | x \\| y |",
        "| 2 | **3** |",
    ]
    rows = [["1", "x | y"], ["2", "3"]]
    assert TABLE.to_dict() == {"title": "T", "header": ["a|b", "c"], "rows": rows}


def test_html_is_escaped() -> None:
    evil = "<script>alert('1')</script>"
    shown = Table([evil], [[evil]], evil, [evil], frozenset({(0, 0)}))._repr_html_()
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") == 4
    assert "<td><b>&lt;script" in shown
    assert tables_html([TABLE, TABLE]).count("<table>") == 2
