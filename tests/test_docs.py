"""What the documents say is what the program does."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
from make_benchmarks import GRAPHS, result
from make_pages import PAGES

from graphformers.cli import app
from tests.papers import environment, write_minilm
from tests.step_modules import step_modules
from tests.training.conftest import make_model, make_split

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["benchmarks.md", "cli.md", "formats.md", "http.md", "python.md"])
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == PAGES[name](), f"docs/{name} is old: make docs"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for name in ("docs", "graphformers"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", "mkdocs.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "python.html").read_text()
    assert 'id="graphformers.splits.split.split_links"' in page
    # A browser loads nothing from elsewhere.
    assert not re.findall(r'(?:src|rel="stylesheet" href)="https?:', page)


def blocks(language: str, *pages: str) -> list[str]:
    text = "\n".join((ROOT / page).read_text() for page in pages)
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


# pages whose commands continue those of the ones before
STEPS = [
    "README.md",
    *(f"docs/howto-{name}.md" for name in ("train", "evaluate", "embed", "search")),
]


def test_the_commands_of_the_pages_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `graphformers …` line, in order, on files of the names that the pages use.

    In this process: a new one for each would spend most of the time on imports.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_papers(tmp_path)
    # A line that stands on several pages runs once.
    lines = dict.fromkeys("\n".join(blocks("sh", *STEPS)).splitlines())
    commands = [
        shlex.split(line, comments=True)[1:] for line in lines if line.startswith("graphformers ")
    ]
    assert commands
    for words in commands:
        if words[0] in ("train", "compare"):
            words += ["--set", "max_steps=2", "--set", "batch_size=8"]
        if words[0] == "train":
            # two steps may not improve the model
            words += ["--keep-start"]
        if words[0] == "compare":
            words += ["--method", "plm", "--method", "graphformers"]  # of six
        if words[0] == "serve":
            check_serving(words, tmp_path)
            continue
        app(words, standalone_mode=False)


def check_serving(words: list[str], folder: Path) -> None:
    """Starts the server on a free port and sends it what the page sends."""
    command = [sys.executable, "-m", "graphformers", *words[: words.index("--port")], "--port", "0"]
    server = subprocess.Popen(
        command, cwd=folder, env=environment(folder, ROOT), stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        address = server.stdout.readline().split()[-1].removeprefix("http://").rstrip("/")
        lines = [
            line
            for block in blocks("sh", *STEPS)
            for line in block.splitlines()
            if line.startswith("curl ")
        ]
        assert lines
        for line in lines:
            asked = shlex.split(line, comments=True)
            done = subprocess.run(
                [asked[0], "-sf", *(word.replace("localhost:8000", address) for word in asked[1:])]
            )
            assert done.returncode == 0, line
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0


@pytest.mark.parametrize("pages", [STEPS, ["docs/coming-from.md"]])
def test_the_python_of_pages_runs(tmp_path: Path, pages: list[str]) -> None:
    """Block after block, each without the names of the others; in one process, which imports
    once.
    """
    write_papers(tmp_path)
    script = (
        f"for code in {blocks('python', *pages)!r}: exec(compile(code, "
        f"{pages[0]!r}, 'exec'), {{'__name__': '__main__'}})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment(tmp_path, ROOT),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def write_papers(folder: Path) -> None:
    """The files that the pages name, and a small backbone under the name "minilm"."""
    write_minilm(folder)
    nodes = "".join(f"p{i},A study of topic {i},{1990 + i % 20}\n" for i in range(150))
    (folder / "papers.csv").write_text("id,title,year\n" + nodes)
    edges = "".join(f"p{i},p{(i * step + 1) % 150}\n" for i in range(150) for step in (3, 7, 11))
    (folder / "citations.csv").write_text("source,target\n" + edges)
    (folder / "new.csv").write_text("id,title\nq1,A study of a new topic\np5,Another title\n")
    (folder / "links.csv").write_text("source,target\nq1,p7\n")
    (folder / "gone.txt").write_text("p9\n")


def test_figures_of_the_readme_are_those_of_the_results() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    ratios = [
        row["times_reference"] for row in result("train_h200")["result"] if row["shape"] == "base"
    ]
    assert f"runs at {min(ratios):.1f} to {max(ratios):.1f} times" in readme
    for folder, name in GRAPHS.items():
        trained = result(f"tables/{folder}/overall")["trained"].values()
        values = {each["title"]: each["asked"]["P@1"]["value"] for each in trained}
        alone, ours = (f"{values.pop(name):.3f}"[1:] for name in ("PLM", "GraphFormers"))
        # TNVE and IFTN have node vectors and no Transformer.
        cascaded = max(value for name, value in values.items() if name.startswith("PLM"))
        assert f"| {name} | {alone} | {cascaded:.3f} | **{ours}** |".replace(" 0.", " .") in readme


def test_the_commands_of_other_pages_are_ours() -> None:
    """Their options, at least: they read files of other systems."""
    for line in "\n".join(blocks("sh", "docs/coming-from.md")).splitlines():
        _, name, *words = shlex.split(line, comments=True)
        command: Any = typer.main.get_command(app)
        known = {word for option in command.commands[name].params for word in option.opts}
        assert {word for word in words if word.startswith("-")} <= known, line


def test_contributing_is_short() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) < 40


def table(page: str, header: str) -> list[list[str]]:
    """The rows of the table of a page that has this header."""
    lines = (ROOT / page).read_text().splitlines()
    start = lines.index(header) + 2
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]]


def test_the_modules_of_a_step_are_those_of_the_architecture_page() -> None:
    rows = table("docs/architecture.md", "| module | in a step |")
    listed = [name.strip("`").replace("/", ".") for name, _ in rows]
    assert listed == list(step_modules(make_model(), make_split()))
    assert all(about.endswith(".") for _, about in rows)


def test_the_modules_of_an_import_are_those_of_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    listed = page.split("(`python -m tests.import_modules`): ")[1].split(".\n")[0]
    names = [name.strip("`").replace("/", ".") for name in re.split(r",\s+", listed)]
    # In a process of its own, where no command has installed a handler of the log.
    command = [sys.executable, "-m", "tests.import_modules"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert names == [line.split()[1] for line in done.stdout.splitlines()[:-1]]


def test_the_packages_of_the_architecture_page_are_those_that_lint_checks() -> None:
    """In the order of their imports."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    rows = table("docs/architecture.md", "| package | contains |")
    listed = [re.findall(r"`(\w+)`", names) for names, _ in rows]
    assert listed == [layer.split(" | ") for layer in layers]


TEXTS = ["README.md", "CONTRIBUTING.md", *(f"docs/{file.name}" for file in ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("page", TEXTS)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_modules_named_in_the_architecture_page_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+)`", text))
    assert named
    for name in named:
        place = ROOT / "graphformers" / name
        assert place.is_dir() or place.with_suffix(".py").is_file(), name


def test_the_architecture_page_is_short() -> None:
    assert len((ROOT / "docs" / "architecture.md").read_text().splitlines()) <= 250
