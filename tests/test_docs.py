"""What the documents say is what the program does."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from graphformers.cli import app
from tests.papers import environment, write_minilm
from tests.step_modules import step_modules
from tests.training.conftest import make_model, make_split

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["cli.md", "formats.md", "python.md"])
def test_a_generated_page_is_up_to_date(name: str) -> None:
    spec = importlib.util.spec_from_file_location("make_pages", ROOT / "docs" / "make_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / name).read_text() == module.PAGES[name](), (
        f"docs/{name} has drifted: make docs"
    )


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


def blocks(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `graphformers …` line of the README, in order, on files of the names it uses.

    In this process: a new one for each would spend most of the time on imports.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_papers(tmp_path)
    lines = [line for block in blocks("sh") for line in block.splitlines()]
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
    """Starts the server on a free port and sends it what the README sends."""
    command = [sys.executable, "-m", "graphformers", *words[: words.index("--port")], "--port", "0"]
    server = subprocess.Popen(
        command, cwd=folder, env=environment(folder, ROOT), stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        address = server.stdout.readline().split()[-1].removeprefix("http://").rstrip("/")
        lines = [
            line
            for block in blocks("sh")
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


@pytest.mark.parametrize("page", ["README.md", "docs/coming-from.md"])
def test_the_python_of_a_page_runs(tmp_path: Path, page: str) -> None:
    """Block after block, each without the names of the others; in one process, which imports
    once.
    """
    write_papers(tmp_path)
    script = (
        f"for code in {blocks('python', page)!r}: exec(compile(code, "
        f"{page!r}, 'exec'), {{'__name__': '__main__'}})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment(tmp_path, ROOT),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


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


def figures() -> Iterator[str]:
    """Sentences and rows of tables of the README, with the figures that results/ holds."""

    def result(name: str) -> Any:
        return json.loads((ROOT / "results" / f"{name}.json").read_text())

    encode = result("encode_h200")["result"]
    padding = encode["padding"]
    ceiling = (
        f" ({encode['packed_share_of_ceiling']:.0%} of a measured {encode['ceiling_tflops']:.0f})"
    ).replace("%", " %")
    for words, name, more in (
        ("packed", "packed", ceiling),
        ("padded to the longest of the batch", "padded", ""),
        ("sorted by length, then padded", "sorted", ""),
    ):
        yield (
            f"| {words} | {padding[name]['nodes_per_s']:,.0f} | "
            f"{padding[name]['useful_tflops']:.0f}{more} |"
        )
    rows = {row["neighbours"]: row for row in encode["table_5"]}
    for title, name in (("GraphFormers", "graphformers"), ("PLM+Max", "max")):
        yield (
            f"| {title} | "
            + " | ".join(f"{rows[count][f'{name}_graph_ms']:.3g}" for count in (5, 50, 200))
            + " |"
        )
    cpu = result("encode_cpu")["result"]
    times = [cpu["padding"][f"packed_over_{name}"] for name in ("padded", "sorted")]
    share = f"{100 * cpu['packed_share_of_ceiling']:.0f} % of the measured ceiling"
    yield f"packed rows {times[0]:.1f} × padded ones, {times[1]:.1f} × sorted ones, {share}"
    (five,) = cpu["table_5"]
    yield f"GraphFormers takes {five['graphformers_ms']:.0f} ms, PLM+Max {five['max_ms']:.0f}"
    trained = result("train_h200")
    train = {(row["graph"][:5], row["shape"]): row for row in trained["result"]}
    for graph, words in (
        ("arxiv", "arXiv titles, 16 tokens"),
        ("debia", "Debian descriptions, 46 tokens"),
    ):
        ours = train[graph, "base"]
        theirs = ours["reference"]
        pace = (
            f"{ours['pairs_per_s']:,.0f} | {ours['peak_gib']:.1f} "
            f"GiB | {theirs['pairs_per_s']:,.0f}"
        )
        yield (
            f"| {words} | {pace} | {theirs['peak_gib']:.1f} GiB | {ours['times_reference']:.1f} × |"
        )
    yield (
        f"MiniLM, batches of 512, arXiv titles: "
        f"{train['arxiv', 'small']['pairs_per_s']:,.0f} pairs/s"
    )
    usual, launched = (row["pairs_per_s"] for row in trained["launched by C++"].values())
    yield f"({launched:,.0f} instead of {usual:,.0f} pairs/s)"
    embedded = result("embed_h200")
    for words, part, variant in (
        ("1 million titles, states on the GPU", "one million", "memory"),
        ("1 million titles, states also written to disk (17 GB)", "one million", "written"),
        ("1 million titles, states on disk alone, read back from there", "one million", "disk"),
        ("5 million titles, the size of the paper's DBLP, in one go", "five million", "memory"),
    ):
        row = embedded[part][variant]
        yield f"| {words} | {row['nodes_per_s']:,.0f} | {100 * row['share_of_ceiling']:.0f} % |"
    saved = [row["times_faster"] for row in embedded["with and without states"]["neighbours"]]
    yield f"{saved[0]:.1f} × with 5 neighbours"
    yield f"{saved[1]:.1f} × with 20, {saved[2]:.0f} × with 50"
    grown = result("embed_update")["result"]
    yield (
        f"{grown['update_forwards']} forwards instead of "
        f"{grown['full_forwards']:,}, {grown['update_s']:.1f} s"
    )
    beside = result("embed_cpu")["result"]
    yield f"{beside['sentence_transformers_nodes_per_s']:.0f} texts/s theirs"
    yield (
        f"{beside['plain_states_nodes_per_s']:.0f} ours without, "
        f"{beside['graph_vectors_nodes_per_s']:.0f} with five neighbours"
    )
    seeds = result("arxiv9196_seeds")["runs"][0]
    means = {name: f"{value:.3f}".lstrip("0") for name, value in seeds["mean"].items()}
    yield (
        f"in {means['graphformers']} of the test questions, PLM+Max "
        f"with as many steps in {means['max']}"
    )
    few, many = result("search")["result"]
    yield f"recall@10 is {recall(few)} queries/s"
    yield f"{recall(many)} queries/s, from an index of {many['index_gb']:.2f} GB"
    ranked = result("ranking")["result"]
    yield (
        f"among five million nodes takes {ranked['ranking_s']:.0f} s "
        f"and {ranked['own_memory_gib']:.1f} GiB"
    )
    yield f"100,000 anchors take {result('ranking_h200')['result']['ranking_s']:.0f} s"
    served = result("serve")["result"]
    answers = served["id"]["answers"]["id"]
    yield f"search by id {answers['requests_per_second']:,.0f} a second"
    yield f"99 % within {answers['p99_ms']:.0f} ms"
    scale = result("graph_scale")["result"]
    yield (
        f"| import from CSV ({scale['files_gb']:.1f} GB) | {scale['import_s']:.0f} "
        f"s, {scale['import_peak_gb']:.1f} GB peak |"
    )


def recall(found: Any) -> str:
    row = next(row for row in found["widths"] if row["width"] == found["chosen_width"])
    return f"{row['recall@10']:.3f} at {row['queries_per_s_one_by_one']:,.0f}".lstrip("0")


def test_figures_of_the_readme_are_those_of_the_results() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    missing = [words for words in figures() if words not in readme]
    assert not missing


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("arXiv 1991–96", "arxiv9196"),
        ("WordNet 3.0", "wordnet30"),
        ("Debian's packages", "debian_src"),
        ("Freebase, FB15k-237", "fb15k237"),
    ],
)
def test_the_paper_table_of_the_readme_is_that_of_the_results(name: str, folder: str) -> None:
    trained = json.loads((ROOT / "results" / "tables" / folder / "overall.json").read_text())[
        "trained"
    ].values()
    values = {each["title"]: each["asked"]["P@1"]["value"] for each in trained}
    readme = (ROOT / "README.md").read_text()
    (titles,), (row,) = (
        re.findall(r"\| P@1 \| (.*) \|", readme),
        re.findall(rf"\| {re.escape(name)} \| (.*) \|", readme),
    )
    for title, quoted in zip(titles.split(" | "), row.replace("*", "").split(" | "), strict=True):
        assert f"{values[title]:.3f}".lstrip("0") == quoted, title


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


PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{file.name}" for file in ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("page", PAGES)
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
