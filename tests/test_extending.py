"""The examples of docs/extending.md work in a copy of the package."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.papers import ROOT, environment, write_folders, write_minilm, write_tables

PAGE = (ROOT / "docs" / "extending.md").read_text()
SECTIONS = {part.partition("\n")[0]: part.partition("\n")[2] for part in PAGE.split("\n## ")[1:]}
RECIPES = [name for name, text in SECTIONS.items() if "New file" in text]
NEW_FILE = re.compile(r"New file `([^`]+)`:\n\n```python\n(.*?)```\n", re.DOTALL)
NEW_LINE = re.compile(r"New line in `([^`]+)`:\n\n```python\n(.*?)```\n", re.DOTALL)
BLOCK = re.compile(r"```(python|sh)\n(.*?)```\n", re.DOTALL)

# runs blocks of Python and commands after each other in a fresh process
RUNNER = """
import sys
from graphformers.cli import app
for kind, code in {steps!r}:
    if kind == "python":
        exec(compile(code, "extending.md", "exec"), {{"__name__": "__main__"}})
    else:
        app(code, standalone_mode=False)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the page names."""
    folder = tmp_path_factory.mktemp("extending")
    write_tables(folder)
    write_minilm(folder)
    write_folders(folder)
    (folder / "papers.txt").write_text("p1 | Graphs of texts | p2 p9\np2 | Texts of graphs |\n")
    return folder


def copy_of_package(folder: Path) -> Path:
    """A copy of the package, to be changed."""
    leave_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "graphformers", folder / "graphformers", ignore=leave_out)
    return folder


def steps_of(text: str) -> list[tuple[str, str | list[str]]]:
    """The commands and blocks of Python of a section, in their order on the page."""
    steps: list[tuple[str, str | list[str]]] = []
    for kind, code in BLOCK.findall(text):
        if kind == "python":
            steps.append((kind, code))
        for line in code.splitlines() if kind == "sh" else ():
            words = shlex.split(line)[1:]
            small = ["--set", "max_steps=2", "--set", "batch_size=8", "--keep-start"]
            small = small if "train" in words else []
            steps.append((kind, words + small))
    return steps


def run(steps: list[tuple[str, str | list[str]]], folder: Path, *path: Path) -> str:
    """What the steps print."""
    command = [sys.executable, "-c", RUNNER.format(steps=steps)]
    done = subprocess.run(
        command, cwd=folder, env=environment(*path, folder), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("section", RECIPES)
def test_an_example_is_one_file_and_one_line(section: str, folder: Path, tmp_path: Path) -> None:
    text = SECTIONS[section]
    package = copy_of_package(tmp_path)
    ((name, code),) = NEW_FILE.findall(text)
    assert not (package / name).exists()
    (package / name).write_text(code)
    ((changed, line),) = NEW_LINE.findall(text)
    assert line.count("\n") == 1
    with (package / changed).open("a") as file:
        file.write(line)
    steps = steps_of(NEW_LINE.sub("", NEW_FILE.sub("", text)))
    assert {kind for kind, _ in steps} == {"python", "sh"}
    printed = run(steps, folder, package)
    printed_by = {"An endpoint": "{'ids': [", "An importer": "['p2']", "An index": "lists "}
    assert printed_by.get(section, "P@1") in printed
    if section == "A metric":
        assert "hits@3" in printed


def test_a_module_outside_the_package_registers_a_method(folder: Path, tmp_path: Path) -> None:
    ((_, code),) = NEW_FILE.findall(SECTIONS["An aggregator"])
    (tmp_path / "gated.py").write_text(code)
    compared = """
import gated
from graphformers.compare.variants import variant, variants_of
assert variant("gated.one-stage").title == "PLM+Gated (one stage)"
assert variants_of("overall")[-1].title == "PLM+Gated"
"""
    steps = steps_of(SECTIONS["Without changing the package"])
    run([*steps, ("python", compared)], folder, tmp_path, ROOT)


def test_the_page_has_an_example_of_every_kind() -> None:
    kinds = ["An aggregator", "A metric", "A layer part", "An endpoint", "An importer", "An index"]
    assert kinds == RECIPES
