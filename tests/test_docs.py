"""What the documents say is what the program does."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from graphformers.cli import app

ROOT = Path(__file__).parent.parent


def test_the_cli_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_cli_page", ROOT / "docs" / "make_cli_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "cli.md").read_text() == module.cli_page(), "docs/cli.md has drifted: make docs"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `graphformers …` line of the README, in order, on files of the names it uses.

    In this process: a new one for each would spend most of the time on imports.
    """
    monkeypatch.chdir(tmp_path)
    write_papers(tmp_path)
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("graphformers ")]
    assert commands
    for words in commands:
        if words[0] in ("train", "compare"):
            words += ["--set", "max_steps=2", "--set", "batch_size=8"]
        if words[0] == "compare":
            words += ["--method", "plm", "--method", "graphformers"]  # of six
        if words[0] == "serve":
            check_serving(words, tmp_path)
            continue
        app(words, standalone_mode=False)


def check_serving(words: list[str], folder: Path) -> None:
    """Starts the server on a free port and sends it what the README sends."""
    command = [sys.executable, "-m", "graphformers", *words[: words.index("--port")], "--port", "0"]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        address = server.stdout.readline().split()[-1].removeprefix("http://").rstrip("/")
        lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("curl ")]
        assert lines
        for line in lines:
            asked = shlex.split(line, comments=True)
            done = subprocess.run([asked[0], "-sf", *(word.replace("localhost:8000", address) for word in asked[1:])])
            assert done.returncode == 0, line
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    """Block after block, each without the names of the others; in one process, which imports once."""
    write_papers(tmp_path)
    script = f"for code in {blocks('python')!r}: exec(compile(code, 'README.md', 'exec'), {{'__name__': '__main__'}})"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def write_papers(folder: Path) -> None:
    """Few enough for a real backbone to read them in seconds."""
    nodes = "".join(f"p{i},A study of topic {i},{1990 + i % 20}\n" for i in range(150))
    (folder / "papers.csv").write_text("id,title,year\n" + nodes)
    edges = "".join(f"p{i},p{(i * step + 1) % 150}\n" for i in range(150) for step in (3, 7, 11))
    (folder / "citations.csv").write_text("source,target\n" + edges)
    (folder / "new.csv").write_text("id,title\nq1,A study of a new topic\np5,Another title\n")
    (folder / "links.csv").write_text("source,target\nq1,p7\n")
    (folder / "gone.txt").write_text("p9\n")


def test_contributing_is_short() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) < 40
