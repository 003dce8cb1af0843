"""The report in a real browser, without a network."""

import re
import subprocess
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

from graphformers.compare.comparison import compare
from graphformers.compare.report import render_report
from graphformers.compare.verdict import verdict
from graphformers.table import Table
from tests.browser import visit
from tests.compare.test_comparison import fake_results, folder, make_settings  # noqa: F401


@pytest.fixture(scope="module")
def report(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    place = tmp_path_factory.mktemp("report") / "report"
    compare(
        make_settings(folder, place, seeds=(1, 2)),
        methods=["plm", "max", "graphformers", "graphformers.one-stage"],
    )
    return place / "report.html"


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (400, True)])
def test_the_report_opens_without_a_network(report: Path, width: int, dark: bool) -> None:
    with visit(width, dark=dark) as found:
        found.page.context.set_offline(True)
        found.page.goto(report.as_uri())
        found.page.wait_for_selector("body[data-drawn=yes]")
        found.screenshot(f"report_{width}")
        figures = found.page.locator(".figure")
        # overall, both axes, conditions, curves, cost, and a group of slices at least
        assert figures.count() >= 6
        assert found.page.locator(".figure .main-svg").count() >= figures.count()
        assert "Conclusions" in found.page.inner_text("body")
        bars = found.page.locator("#overall .bars .point").count()
        assert bars == 4 + 6  # trained and untrained systems
        # four trained systems, TF-IDF and the untrained backbone; BM25 is a line
        assert found.page.locator("#axes .scatterlayer .point").count() == 6
        text = found.page.text_content("#axes") or ""
        for words in ("P@1 of link prediction", "MRR of search by words", "BM25"):
            assert words in text
        assert "Search by words: " in found.page.inner_text("body")
        overflow = found.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert overflow <= 0, "the page is wider than the window"
        assert found.complaints == []
        assert found.strangers == []


def test_the_script_of_the_report_is_valid(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    """Checked by the node that playwright brings, so that it runs where no browser is installed."""
    page = render_report(fake_results(folder, {"plm": [1.0] * 30}), "title", [], {}, [])
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[-1]
    assert "Plotly.react" in script
    (tmp_path / "script.js").write_text(script, encoding="utf-8")
    node, _ = compute_driver_executable()
    done = subprocess.run([node, "--check", tmp_path / "script.js"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_names_from_outside_are_shown_not_obeyed(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    evil = (
        "<img src=x "
        "onerror=\"document.title='obeyed'\"></script><script>document.title='obeyed'</script>"
    )
    results = fake_results(folder, {"plm": [1.0] * 15 + [0.0] * 15, "graphformers": [1.0] * 30})
    table = Table([evil], [[evil]], evil, bold=frozenset({(0, 0)}))
    page = render_report(results, evil, [*verdict(results), evil], {"backbone": evil}, [table])
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    with visit() as found:
        found.page.goto((tmp_path / "report.html").as_uri())
        found.page.wait_for_selector("body[data-drawn=yes]")
        assert found.page.title() == evil
        assert found.complaints == []
