"""The command line as a user meets it: real processes, real files, a real kill."""

import inspect
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from graphformers import cli
from graphformers.artifact import open_artifact
from graphformers.cli.command import app, given
from graphformers.errors import GraphFormersError
from graphformers.graph.readers import read_graph
from graphformers.graph.settings import ImportSettings
from graphformers.graph.textgraph import TextGraph
from graphformers.serve.settings import ServeSettings

NODES = "id,title,year\n" + "".join(
    f"p{i},Paper about topic {i % 17} and {i},{1990 + i % 10}\n" for i in range(400)
)
EDGES = "source,target\n" + "".join(
    f"p{i},p{(i * step + 1) % 400}\n" for i in range(400) for step in (3, 7, 11)
)


def run(*words: str | Path, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "graphformers", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    (tmp_path / "papers.csv").write_text(NODES)
    (tmp_path / "citations.csv").write_text(EDGES)
    return tmp_path


def test_import_split_info(tables: Path) -> None:
    done = run("import", "citations.csv", "papers.csv", "-o", "papers.graph", cwd=tables)
    graph = TextGraph.load(tables / "papers.graph")
    repeated = f"  of 1,200 edges, {1200 - graph.num_pairs} repeat or reverse others"
    assert done.stdout.splitlines() == [
        f"papers.graph: 400 nodes, {graph.num_pairs:,} linked pairs",
        repeated,
    ]
    info = json.loads(run("info", "papers.graph", "--json", cwd=tables).stdout)
    assert (info["nodes"], info["pairs"], info["columns"]) == (
        400,
        graph.num_pairs,
        {"year": "int64"},
    )
    shown = run("info", "papers.graph", cwd=tables).stdout
    for words in ("nodes", "400", "isolated", "percentile", "degree", "words", "neighbours]"):
        assert words in shown
    run("split", "papers.graph", "-o", "papers.split", cwd=tables)
    table = json.loads(run("info", "papers.split", "--json", cwd=tables).stdout)
    assert [*table][:5] == ["#Item", "#N", "#Train", "#Valid", "#Test"]
    assert table["#Item"] == 400
    assert "#Train" in run("info", "papers.split", "--verify", cwd=tables).stdout
    run(
        "split",
        "papers.graph",
        "-o",
        "late.split",
        "--held-out",
        "year",
        "--test",
        "20",
        "--valid",
        "10",
        "--candidates",
        "50",
        cwd=tables,
    )


def test_errors_are_messages_with_the_right_exit_code(tables: Path) -> None:
    (tables / "bad.csv").write_text("id,title\na,First\na,Second\n")
    done = run("import", "bad.csv", "-o", "bad.graph", cwd=tables, code=1)
    expected = "error: bad.csv:3: the id 'a' is used already at bad.csv:2, expected unique ids"
    assert done.stderr == f"{expected} (--skip-bad leaves such rows out and counts them)\n"
    assert not (tables / "bad.graph").exists()
    assert not list(tables.glob(".*"))
    skipped = run("import", "bad.csv", "-o", "bad.graph", "--skip-bad", cwd=tables)
    assert "skipped 1 row: duplicate id" in skipped.stdout
    assert "bad.csv:3: the id 'a' is used already" in skipped.stdout
    assert open_artifact(tables / "bad.graph", "graph", 1).summary["skipped"] == {"duplicate id": 1}
    again = run("import", "bad.csv", "-o", "bad.graph", "--skip-bad", cwd=tables, code=1)
    assert again.stderr == "error: bad.graph: exists already; --force replaces it\n"
    assert "Traceback" not in done.stderr + again.stderr
    run("import", "papers.csv", cwd=tables, code=2)
    run("import", "papers.csv", "-o", "x.graph", "--column", "text", cwd=tables, code=2)
    run("nonsense", cwd=tables, code=2)
    missing = run("info", "nowhere.graph", cwd=tables, code=1)
    assert missing.stderr == "error: nowhere.graph: no such folder\n"


def test_a_flipped_byte_is_refused(tables: Path) -> None:
    run("import", "papers.csv", "citations.csv", "-o", "papers.graph", cwd=tables)
    file = tables / "papers.graph" / "indices.npy"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    done = run("info", "papers.graph", cwd=tables, code=1)
    assert "indices.npy: damaged, its checksum is not the one in manifest.json" in done.stderr


def test_help_needs_no_heavy_import() -> None:
    script = (
        "import sys, graphformers.cli; print([m for m in ('torch', 'pyarrow', "
        "'numpy', 'tokenizers') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("embed", "Precision of the vectors.  [default: float32; one of: float32, float16, int8]"),
        ("embed", "again.  [default: keep-states]"),
        ("embed", "by default as the model was trained.  [0 or more]"),
        ("serve", "--name HOST Host names"),
        ("serve", "passes requests on. Repeatable."),
        ("serve", "[default: 100, or any number on 127.0.0.1; 0 or more]"),
        ("import", "'' keeps none. Separated by commas. --header / --no-header Whether"),
        ("update", "'' keeps none. Separated by commas.  [default: as in the import]"),
    ],
)
def test_help_shows_default_and_bounds_of_a_setting(name: str, shown: str) -> None:
    help = CliRunner().invoke(cli.app, [name, "--help"]).output
    assert " ".join(shown.split()) in " ".join(help.split())


def test_info_without_a_folder_tells_what_is_installed() -> None:
    done = CliRunner().invoke(app, ["info", "--json"])
    found = json.loads(done.stdout)
    assert found["versions"]["torch"] == torch.__version__
    assert found["device"].startswith(("cpu: ", "cuda: ", "mps: "))
    assert set(found["backbones"]) == {"minilm"}
    table = CliRunner().invoke(app, ["info"]).stdout
    assert all(version in table for version in found["versions"].values() if version)


def test_types_of_options_are_the_same_wherever_typer_reads_them() -> None:
    """Versions of typer take the types from the signature or from the annotations."""
    assert len(app.registered_commands) > 10
    for entry in app.registered_commands:
        assert entry.callback is not None
        parameters = inspect.signature(entry.callback).parameters.values()
        assert entry.callback.__annotations__ == {own.name: own.annotation for own in parameters}


def test_options_are_read_into_settings() -> None:
    options = given(ImportSettings, "columns", "keep", "header", "quotes", "skip_bad")
    values: dict[str, Any] = {"columns": ["id=key", "text=a,b"], "keep": "year, venue"}
    values |= {"header": False, "quotes": None, "skip_bad": None, "another": 1}
    assert options.take(values) == {
        "columns": {"id": "key", "text": "a,b"},
        "keep": ("year", "venue"),
        "header": False,
    }
    assert values == {"another": 1}
    assert given(ImportSettings, "keep").take({"keep": ""}) == {"keep": ()}
    assert given(ServeSettings, "names").take({"names": ["a,b", "c"]}) == {"names": ("a,b", "c")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("import x.csv -o x.graph --column text", "--column text given, expected ROLE=NAME"),
        ("embed m g -o v --gpus-per-worker 1", "--gpus-per-worker needs --ray"),
        ("embed m g -o v --workers 3", "--workers needs --ray"),
        ("evaluate a b c", "a b c given, expected MODEL SPLIT, or SPLIT with --vectors"),
        ("evaluate a b --cosine", "--cosine given without --vectors"),
        ("compare a -o b --seeds 1,", "--seeds 1, given, expected different whole numbers"),
        ("search v words --id b", "TEXT and --id given, expected one of TEXT, --id, --links"),
        ("update v", "nothing to change; give --nodes, --edges, --remove or --remove-edges"),
    ],
)
def test_wrong_usage_is_explained(words: str, message: str) -> None:
    done = CliRunner().invoke(cli.app, words.split())
    assert done.exit_code == 2
    assert f"Error: {message}" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("split g -o s --candidates 1", "--candidates 1 given, expected at least 2"),
        ("serve v --port 70000", "--port 70000 given, expected 0 to 65535"),
        ("serve v --host 0.0.0.0 --rate -1", "--rate -1 given, expected 0 or more"),
        ("import x.csv -o x.graph --format excel", "--format excel given, expected one of: tables"),
    ],
)
def test_options_out_of_bounds_are_refused(words: str, message: str) -> None:
    with pytest.raises(GraphFormersError, match=message):
        cli.app(words.split(), standalone_mode=False)


def test_the_standard_library_is_large_enough_to_learn_from() -> None:
    graph = read_graph([], settings=ImportSettings(format="python"))
    assert 6_000 < graph.num_nodes < 9_000
    assert 10_000 < graph.num_pairs < 15_000


def test_demo_trains_on_the_standard_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The whole demo, on some packages, with few questions and steps; its last step is tested in
    test_demo.py.
    """
    from graphformers.cli.output import show_result
    from graphformers.demo import DemoSearch, run_demo

    def search(model: Path, graph: TextGraph, folder: Path) -> DemoSearch:
        return DemoSearch(folder / "v", {}, {})

    small: Any = {"questions": 10, "candidates": 10, "packages": ["email", "http", "unittest"]}
    demo = run_demo(tmp_path / "demo", steps=5, search=search, **small)
    show_result(demo, as_json=True)
    info = json.loads(capsys.readouterr().out)
    assert 300 < info["graph"]["nodes"] < 1_500
    assert {"member of", "calls", "inherits"} == set(info["graph"]["edge_types"])
    assert list(info["test"]["trained"]) == ["plm.one-stage", "graphformers.one-stage"]
    assert "minilm, untrained" in info["test"]["untrained"]
    assert set(info["test"]["trained"]["graphformers.one-stage"]) >= {
        "asked",
        "shuffled neighbours",
        "no neighbours",
        "runs",
    }
    caplog.clear()
    again = run_demo(tmp_path / "demo", steps=5, search=search)
    assert again.comparison.results.to_dict() == demo.comparison.results.to_dict()
    show_result(again, as_json=False)
    shown = capsys.readouterr()
    assert caplog.text.count("made by an earlier run") == 2
    assert "training" not in caplog.text + shown.err
    assert "neighbours]" in shown.out
    assert "the graph helps" in shown.out.lower()  # or that it cannot be told
    assert f"graphformers evaluate {demo.model} {tmp_path}/demo/python.split" in shown.out
    assert (tmp_path / "demo" / "report" / "report.html").is_file()
    assert "Next: make serve" in shown.out


def test_a_pipe_that_closes_early_is_no_traceback(tables: Path) -> None:
    run("import", "papers.csv", "citations.csv", "-o", "papers.graph", cwd=tables)
    done = subprocess.run(
        f"{sys.executable} -m graphformers info papers.graph | head -1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=tables,
    )
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def large_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    (folder / "papers.csv").write_text(
        "id,title\n" + "".join(f"p{i},Paper about topic {i}\n" for i in range(150_000))
    )
    (folder / "citations.csv").write_text(
        "src,dst\n" + "".join(f"p{i},p{i * 7919 % 150_000}\n" for i in range(150_000))
    )
    return folder


def kill_import(folder: Path, delay: float, *words: str) -> bool:
    """Starts an import of the large tables and kills it with SIGKILL after `delay` seconds; whether
    it was still running.
    """
    command = [
        sys.executable,
        "-m",
        "graphformers",
        "import",
        "papers.csv",
        "citations.csv",
        *words,
    ]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(delay)
    running = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    return running


def time_of_import(folder: Path) -> float:
    started = time.monotonic()
    run("import", "papers.csv", "citations.csv", "-o", "timing.graph", "--force", cwd=folder)
    return time.monotonic() - started


def test_kill_during_import_leaves_none_or_a_whole_one(large_tables: Path) -> None:
    draw, whole = random.Random(2), time_of_import(large_tables)
    killed = 0
    for i in range(10):
        was_killed = kill_import(
            large_tables, draw.uniform(0.3, 1.0) * whole, "-o", f"killed{i}.graph"
        )
        # the machine may be quicker now
        killed, whole = killed + was_killed, whole if was_killed else 0.8 * whole
        place = large_tables / f"killed{i}.graph"
        if os.path.lexists(place):
            open_artifact(place, "graph", 1).verify()
            assert TextGraph.load(place).num_nodes == 150_000
    assert killed > 0


def test_kill_during_replacement_leaves_the_old_or_the_new_one(large_tables: Path) -> None:
    (large_tables / "small.csv").write_text("id,title\na,First\n")
    small = read_graph(large_tables / "small.csv")
    draw, whole = random.Random(3), time_of_import(large_tables)
    killed = 0
    for _ in range(10):
        small.save(large_tables / "replaced.graph", force=True)
        was_killed = kill_import(
            large_tables, draw.uniform(0.6, 1.0) * whole, "-o", "replaced.graph", "--force"
        )
        killed, whole = killed + was_killed, whole if was_killed else 0.8 * whole
        open_artifact(large_tables / "replaced.graph", "graph", 1).verify()
        assert TextGraph.load(large_tables / "replaced.graph").num_nodes in (1, 150_000)
    assert killed > 0
    run("import", "small.csv", "-o", "replaced.graph", "--force", cwd=large_tables)
    assert not list(large_tables.glob(".replaced.graph.*"))


def test_interrupt_says_so(large_tables: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "graphformers",
        "import",
        "papers.csv",
        "citations.csv",
        "-o",
        "interrupted.graph",
    ]
    process = subprocess.Popen(
        command, cwd=large_tables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    draft: list[Path] = []
    while not draft and process.poll() is None:  # until it has begun to write
        draft = list(large_tables.glob(".interrupted.graph.draft-*"))
    process.send_signal(signal.SIGINT)
    _, message = process.communicate()
    assert (process.returncode, message) == (
        130,
        "interrupted; no incomplete output was left behind\n",
    )
    assert not list(large_tables.glob("*interrupted.graph*"))


def test_what_cannot_be_written_is_said_first(tables: Path) -> None:
    (tables / "file").write_text("")
    for place, message in (
        ("file/x.graph", "is not a folder"),
        ("x" * 300, "a name of 300 characters"),
    ):
        assert message in run("import", "missing.csv", "-o", place, cwd=tables, code=1).stderr
    assert (
        "a file, expected one of our folders"
        in run("info", "papers.csv", cwd=tables, code=1).stderr
    )
    if os.geteuid() != 0:
        (tables / "locked").mkdir(mode=0o555)
        assert (
            "no permission in"
            in run("import", "papers.csv", "-o", "locked/x.graph", cwd=tables, code=1).stderr
        )


def test_texts_cannot_command_the_terminal(tables: Path) -> None:
    (tables / "odd.csv").write_text(
        "id,title,[/bold]\na,\x1b[31mred\x1b[0m [/nonsense],1\nb,\U0001f469\u200d\U0001f4bb,2\n"
    )
    (tables / "links.csv").write_text("src,dst\na,b\n")
    run("import", "odd.csv", "links.csv", "-o", "odd.graph", cwd=tables)
    shown = run("info", "odd.graph", cwd=tables).stdout
    assert "\x1b" not in shown
    assert "[/bold]" in shown
    assert "\U0001f469\u200d\U0001f4bb" in shown  # one picture


def test_arguments_that_are_no_text(tables: Path) -> None:
    command = [sys.executable, "-m", "graphformers", "info", b"v\xff"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tables)
    assert (done.returncode, done.stderr) == (
        1,
        "error: 'v\\udcff' given, expected text in UTF-8\n",
    )


def test_messages_of_the_library_go_to_stderr_once(capsys: pytest.CaptureFixture[str]) -> None:
    cli.show_messages()
    cli.show_messages()
    logging.getLogger("graphformers.some.module").info("some message")
    assert capsys.readouterr().err == "some message\n"


def test_the_library_installs_no_handler() -> None:
    words = (
        "import logging; from graphformers.progress import be_silent; "
        "import graphformers.splits.split; logger = logging.getLogger('graphformers'); "
        "print(logger.handlers, logger.level); be_silent(); "
        "print(logging.getLogger('graphformers.graph').isEnabledFor(logging.INFO))"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout == "[] 0\nFalse\n"


def test_a_full_gpu_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(error: Exception) -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["graphformers"])
    monkeypatch.setattr(cli, "app", lambda: fail(torch.OutOfMemoryError("CUDA out of memory.")))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "error: the GPU is out of memory; end other processes that use it, or compute with "
        "--device cpu. CUDA out of memory.\n"
    )
    monkeypatch.setattr(cli, "app", lambda: fail(RuntimeError("something else")))
    with pytest.raises(RuntimeError, match="something else"):
        cli.main()
