import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import graphformers.artifact as artifact
from graphformers.artifact import (
    Draft,
    check_parent,
    open_artifact,
    parent_entry,
    publish_artifact,
    write_artifact,
)
from graphformers.errors import ArtifactError
from graphformers.files import held


def write(path: Path, content: str = "hello", *, kind: str = "graph", force: bool = False) -> None:
    with write_artifact(path, kind, 1, force=force) as draft:
        draft.path("data.txt").write_text(content)
        draft.settings = {"seed": 1}
        draft.summary = {"nodes": len(content)}


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a.graph")
    found = open_artifact(tmp_path / "a.graph", "graph", 1)
    assert found.file("data.txt").read_text() == "hello"
    assert (found.settings, found.summary) == ({"seed": 1}, {"nodes": 5})
    found.verify()
    assert leftovers(tmp_path) == []


def test_the_fingerprint_is_that_of_the_content(tmp_path: Path) -> None:
    for name, content in (("a", "x"), ("b", "x"), ("c", "y")):
        write(tmp_path / name, content)
    a, b, c = (open_artifact(tmp_path / name, None, None).fingerprint for name in "abc")
    assert a == b != c


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        write_artifact(tmp_path / "a.graph", "graph", 1) as draft,
    ):
        draft.path("data.txt").write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_failed_replacement_leaves_the_old_one(tmp_path: Path) -> None:
    write(tmp_path / "a.graph", "old")
    with (
        pytest.raises(ZeroDivisionError),
        write_artifact(tmp_path / "a.graph", "graph", 1, force=True) as draft,
    ):
        draft.path("data.txt").write_text("half")
        raise ZeroDivisionError
    assert open_artifact(tmp_path / "a.graph", "graph", 1).file("data.txt").read_text() == "old"
    assert leftovers(tmp_path) == []


def test_nothing_is_replaced_without_force(tmp_path: Path) -> None:
    write(tmp_path / "a.graph", "old")
    with pytest.raises(ArtifactError, match="exists already; force=True replaces it"):
        write(tmp_path / "a.graph", "new")
    write(tmp_path / "a.graph", "new", force=True)
    assert open_artifact(tmp_path / "a.graph", "graph", 1).file("data.txt").read_text() == "new"


@pytest.mark.parametrize("place", [".", "..", "inner/.."])
def test_a_place_without_a_name_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder around it would have to be ours, too; and where we stand would be another folder
    afterwards.
    """
    (tmp_path / "some" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "some")
    with pytest.raises(
        ArtifactError, match="a folder that is there already, expected the name of one to be made"
    ):
        write(Path(place))
    assert [entry.name for entry in tmp_path.rglob("*")] == ["some", "inner"]


def test_what_is_not_ours_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match="not a graph of ours"):
        write(tmp_path / "thesis", force=True)
    write(tmp_path / "a.split", kind="split")
    with pytest.raises(ArtifactError, match="is a split, not a graph"):
        write(tmp_path / "a.split", force=True)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


def test_a_parent_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    """A lock on it must not create a file in its place."""
    place = tmp_path / "gone" / "also" / "a.graph"
    with pytest.raises(FileNotFoundError), held(place.parent, create=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    """Between the first check and the last rename somebody else may take the name."""
    for make in (
        lambda: (tmp_path / "a.graph").mkdir() or (tmp_path / "a.graph" / "thesis").write_text("x"),
        lambda: write(tmp_path / "b.graph", "x"),
    ):
        name = "a.graph" if not (tmp_path / "a.graph").exists() else "b.graph"
        with (
            pytest.raises(ArtifactError, match="exists"),
            write_artifact(tmp_path / name, "graph", 1) as draft,
        ):
            draft.path("data.txt").write_text("new")
            make()
    assert (tmp_path / "a.graph" / "thesis").read_text() == "x"
    assert open_artifact(tmp_path / "b.graph", "graph", 1).file("data.txt").read_text() == "x"
    assert leftovers(tmp_path) == []


def test_a_users_own_files_inside_are_not_thrown_away(tmp_path: Path) -> None:
    write(tmp_path / "a.graph")
    (tmp_path / "a.graph" / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=r"not part of the graph \(notes.txt\)"):
        write(tmp_path / "a.graph", "new", force=True)
    assert (tmp_path / "a.graph" / "notes.txt").read_text() == "mine"


def test_links_and_empty_folders_are_written_through(tmp_path: Path) -> None:
    write(tmp_path / "real.graph", "old")
    (tmp_path / "link.graph").symlink_to("real.graph")
    write(tmp_path / "link.graph", "new", force=True)
    assert (tmp_path / "link.graph").is_symlink()
    assert open_artifact(tmp_path / "real.graph", "graph", 1).file("data.txt").read_text() == "new"
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty")
    write(tmp_path / "odd[1].graph", "x")
    (tmp_path / ".odd[1].graph.draft-dead").mkdir()
    write(tmp_path / "odd[1].graph", "y", force=True)
    assert leftovers(tmp_path) == []


def test_a_link_to_itself_is_not_written(tmp_path: Path) -> None:
    """Python says something of its own where it follows one."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    for name in ("loop", "one"):
        with pytest.raises(ArtifactError, match="a link that leads back to itself"):
            write(tmp_path / name, force=True)
    assert sorted(os.listdir(tmp_path)) == ["loop", "one", "other"]


WRITE_MANY = """
import sys
from graphformers.artifact import write_artifact
for i in range(40):
    with write_artifact(sys.argv[1], "graph", 1, force=True) as draft:
        draft.path("data.txt").write_text(sys.argv[2] * 100)
"""


def test_many_writers_of_one_target_do_not_disturb_each_other(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE_MANY, str(tmp_path / "a.graph"), letter])
        for letter in "abc"
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    open_artifact(tmp_path / "a.graph", "graph", 1).verify()
    assert leftovers(tmp_path) == []


def test_verifying_reads_nested_artifacts(tmp_path: Path) -> None:
    write(tmp_path / "a.graph")
    write(tmp_path / "a.graph" / "tokens" / "t1", kind="tokens")
    open_artifact(tmp_path / "a.graph", "graph", 1).verify()
    (tmp_path / "a.graph" / "tokens" / "t1" / "data.txt").write_text("hellO")
    with pytest.raises(ArtifactError, match="damaged"):
        open_artifact(tmp_path / "a.graph", "graph", 1).verify()


def test_damage_is_found(tmp_path: Path) -> None:
    write(tmp_path / "a.graph", "hello")
    file = tmp_path / "a.graph" / "data.txt"
    file.write_text("hellO")  # the same size
    found = open_artifact(tmp_path / "a.graph", "graph", 1)
    with pytest.raises(ArtifactError, match=r"data.txt: damaged"):
        found.file("data.txt")
    with pytest.raises(ArtifactError, match=r"data.txt: damaged"):
        found.verify()
    file.write_text("hell")
    with pytest.raises(ArtifactError, match="has 4 bytes, expected 5"):
        open_artifact(tmp_path / "a.graph", "graph", 1)
    file.unlink()
    with pytest.raises(ArtifactError, match="is missing, expected 5"):
        open_artifact(tmp_path / "a.graph", "graph", 1)


def test_silent_damage_is_found_by_verify(tmp_path: Path) -> None:
    write(tmp_path / "a.graph", "hello")
    file = tmp_path / "a.graph" / "data.txt"
    before = file.stat()
    file.write_text("hellO")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ArtifactError, match="damaged"):
        open_artifact(tmp_path / "a.graph", "graph", 1).verify()


def test_an_edited_manifest_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.graph")
    place = tmp_path / "a.graph" / "manifest.json"
    manifest = json.loads(place.read_text())
    manifest["summary"]["nodes"] = 6
    place.write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="damaged or edited"):
        open_artifact(tmp_path / "a.graph", "graph", 1)
    place.write_text(place.read_text()[:40])
    with pytest.raises(ArtifactError, match=r"manifest.json: damaged"):
        open_artifact(tmp_path / "a.graph", "graph", 1)


def test_another_kind_or_format_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.graph")
    with pytest.raises(ArtifactError, match="a graph, expected a split"):
        open_artifact(tmp_path / "a.graph", "split", 1)
    with pytest.raises(ArtifactError, match="graph of format 1, this version reads format 2"):
        open_artifact(tmp_path / "a.graph", "graph", 2)
    with pytest.raises(ArtifactError, match="no such folder"):
        open_artifact(tmp_path / "b.graph", "graph", 1)
    with pytest.raises(ArtifactError, match="not one of our folders"):
        open_artifact(tmp_path, "graph", 1)


def test_what_is_not_finished_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.model.training").mkdir()
    with pytest.raises(
        ArtifactError,
        match=r"a\.model: not finished, the command .* goes on from .*a\.model\.training",
    ):
        open_artifact(tmp_path / "a.model", "model", 1)
    with pytest.raises(
        ArtifactError,
        match=r"a\.model\.training: kept by what makes .*a\.model.*; use that when it is",
    ):
        open_artifact(tmp_path / "a.model.training", "model", 1)
    write(tmp_path / "a.model", "a")
    with pytest.raises(ArtifactError, match=r"a\.model\.training: .*; use that$"):
        open_artifact(tmp_path / "a.model.training", "model", 1)


def test_mixing_names_both(tmp_path: Path) -> None:
    write(tmp_path / "a.graph", "a")
    write(tmp_path / "b.graph", "b")
    a, b = (open_artifact(tmp_path / name, "graph", 1) for name in ("a.graph", "b.graph"))
    with write_artifact(tmp_path / "s.split", "split", 1) as draft:
        draft.parents = {"graph": parent_entry(a, tmp_path / "s.split")}
    split = open_artifact(tmp_path / "s.split", "split", 1)
    check_parent(split, "graph", a)
    with pytest.raises(ArtifactError, match=r"s.split was made from another graph than .*b.graph"):
        check_parent(split, "graph", b)


def test_replacing_works_where_names_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(one: Path, other: Path) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(artifact, "_exchange", refuse)
    write(tmp_path / "a.graph", "old")
    write(tmp_path / "a.graph", "new", force=True)
    assert open_artifact(tmp_path / "a.graph", "graph", 1).file("data.txt").read_text() == "new"
    assert leftovers(tmp_path) == []
    # a kill after both renames, of a folder that was not yet removed
    (tmp_path / ".a.graph.previous").mkdir()
    (tmp_path / ".a.graph.previous" / "data.txt").write_text("very old")
    draft = Draft(tmp_path / "draft")
    draft.folder.mkdir()
    draft.path("data.txt").write_text("new")
    publish_artifact(draft, tmp_path / "a.graph", "graph", 1, force=True)
    assert leftovers(tmp_path) == []
    # a kill between its two renames
    os.rename(tmp_path / "a.graph", tmp_path / ".a.graph.previous")
    assert open_artifact(tmp_path / "a.graph", "graph", 1).file("data.txt").read_text() == "new"


def test_a_full_disk_is_said_and_keeps_the_old_one(tmp_path: Path) -> None:
    """A real limit on file size stands for the full disk: the write fails in the kernel, in the
    middle of a file.
    """
    write(tmp_path / "a.graph", "old")
    script = f"""
import resource, signal, numpy
from pathlib import Path
from graphformers.artifact import write_artifact
from graphformers.arrays import save_array
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with write_artifact({str(tmp_path / "a.graph")!r}, "graph", 1, force=True) as draft:
    save_array(draft.path("big.npy"), numpy.zeros(1_000_000))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "the disk is full; what was there before is unchanged" in done.stderr
    assert open_artifact(tmp_path / "a.graph", "graph", 1).file("data.txt").read_text() == "old"
    assert leftovers(tmp_path) == []


REPLACE_FOREVER = """
import sys
from graphformers.artifact import write_artifact
version = 0
while True:
    version += 1
    with write_artifact(sys.argv[1], "graph", 1, force=True) as draft:
        for name in "abcd":
            draft.path(name).write_text(str(version) * 1000)
    print(version, flush=True)
"""


def test_kill_while_replacing_leaves_a_whole_one(tmp_path: Path) -> None:
    """A process replaces an artifact without end and is killed at random moments: there is always a
    whole one.
    """
    target = tmp_path / "a.graph"
    draw = random.Random(1)
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", REPLACE_FOREVER, str(target)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(draw.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        found = open_artifact(target, "graph", 1)
        found.verify()
        assert len({found.file(name).read_text() for name in "abcd"}) == 1
    write(target, force=True)
    assert leftovers(tmp_path) == []  # the drafts of the dead were swept
