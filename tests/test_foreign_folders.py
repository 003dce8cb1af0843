"""Folders that somebody else made: nothing in them leads a reader or a writer out of them."""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphformers.artifact as artifact
import graphformers.graph.textgraph as textgraph
from graphformers.arrays import one_chunk
from graphformers.artifact import check_writable, open_artifact, write_artifact
from graphformers.batching.tokens import graph_tokens
from graphformers.compare.comparison import check_folder
from graphformers.compare.runs import load_ranks, save_ranks
from graphformers.embedding.job import embed
from graphformers.embedding.update import load_model, update
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.evaluation.metrics import Ranks
from graphformers.graph.readers import read_graph
from graphformers.graph.textgraph import TextGraph
from graphformers.model.backbones import save_pretrained, training_of
from graphformers.model.encoder import GraphFormers
from graphformers.records import checked, digest_of
from graphformers.splits.split import LinkSplit, split_links
from graphformers.training.checkpoint import RunFolder, TrainState
from tests import forked
from tests.embedding.conftest import EXACT, make_model, some_graph

Manifest = dict[str, Any]
SECRET = "nobody else's business"
OUTSIDE = [
    "/etc/passwd",
    "../secret.txt",
    "a/../../secret.txt",
    "..",
    ".",
    "",
    "a//b",
    "./a",
    "a/",
    "..\\secret.txt",
    "C:/secret.txt",
    "C:secret.txt",
    "a\0b",
    "a\nb",
]


def forge(folder: Path, change: Callable[[Manifest], object]) -> None:
    """Changes a manifest as somebody would who knows how its checksum is made."""
    place = folder / "manifest.json"
    manifest = json.loads(place.read_text())
    del manifest["manifest_sha256"]
    change(manifest)
    manifest["manifest_sha256"] = digest_of(manifest)
    place.write_text(json.dumps(manifest))


def claim(folder: Path, name: str, file: Path) -> None:
    """Has a manifest list a file under this name, with the right size and checksum."""
    entry = {"bytes": file.stat().st_size, "sha256": artifact.checksum(file)}
    forge(folder, lambda manifest: manifest["files"].update({name: entry}))


def write(path: Path, kind: str = "graph") -> None:
    with write_artifact(path, kind, 1) as draft:
        draft.path("data.txt").write_text("hello")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text(SECRET)
    return tmp_path / "secret.txt"


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_stay_inside(name: str, tmp_path: Path, secret: Path) -> None:
    write(tmp_path / "a.graph")
    claim(tmp_path / "a.graph", name, secret)
    with pytest.raises(ArtifactError, match="expected a name inside the folder") as raised:
        open_artifact(tmp_path / "a.graph", None, None)
    assert repr(name) in str(raised.value)


@pytest.mark.parametrize("name", ["manifest.json", ".verified.json"])
def test_a_manifest_does_not_list_itself(name: str, tmp_path: Path) -> None:
    """Whoever copies the files of a folder would copy these twice."""
    write(tmp_path / "a.graph")
    claim(tmp_path / "a.graph", name, tmp_path / "a.graph" / name)
    with pytest.raises(ArtifactError, match="expected all others"):
        open_artifact(tmp_path / "a.graph", None, None)


def test_a_checksum_of_a_file_elsewhere_is_not_confirmed(tmp_path: Path, secret: Path) -> None:
    some_graph().save(tmp_path / "a.graph")
    for name in (str(secret), "../secret.txt"):
        claim(tmp_path / "a.graph", name, secret)
        done = forked.run(forked.command, "info", "--verify", str(tmp_path / "a.graph"))
        assert done.returncode == 1
        assert "expected a name inside the folder" in done.stderr
        assert "Traceback" not in done.stderr


def test_embedding_a_foreign_graph_overwrites_nothing(tmp_path: Path) -> None:
    """Its files are put into the folder of vectors under the names that its manifest gives."""
    foreign, home = tmp_path / "foreign", tmp_path / "home"
    home.mkdir()
    some_graph().save(foreign / "a" / "b" / "papers.graph")
    (foreign / "Makefile").write_text("all: ; rm -rf ~")
    (home / "Makefile").write_text("all: ; make everything")
    claim(foreign / "a" / "b" / "papers.graph", "../../../Makefile", foreign / "Makefile")
    with pytest.raises(ArtifactError, match="expected a name inside the folder"):
        embed(make_model(), foreign / "a" / "b" / "papers.graph", home / "o.vectors", **EXACT)
    assert (home / "Makefile").read_text() == "all: ; make everything"
    assert [entry.name for entry in home.iterdir()] == ["Makefile"]


def test_files_in_folders_of_a_graph_are_put_there_too(tmp_path: Path) -> None:
    some_graph().save(tmp_path / "a.graph")
    (tmp_path / "a.graph" / "more").mkdir()
    (tmp_path / "a.graph" / "more" / "notes.txt").write_text("hello")
    claim(tmp_path / "a.graph", "more/notes.txt", tmp_path / "a.graph" / "more" / "notes.txt")
    embed(make_model(), tmp_path / "a.graph", tmp_path / "o.vectors", **EXACT)
    assert (
        tmp_path / "o.vectors" / "base-0001" / "graph" / "more" / "notes.txt"
    ).read_text() == "hello"


LINKS = {
    "a listed file": ("data.txt", "../secret.txt"),
    "by its whole name": ("data.txt", "{outside}/secret.txt"),
    "the manifest": ("manifest.json", "../manifest.json"),
    "what was verified": (".verified.json", "../secret.txt"),
    "a folder": ("tokens", ".."),
    "the folder itself": ("tokens", "."),
    "the edits": ("edits-0001.sqlite", "../secret.txt"),
    "a database that is not there": ("edits-0001.sqlite", "../new.sqlite"),
    "the index": ("index.usearch", "../secret.txt"),
    "deep inside": ("a/b/c", "../../../secret.txt"),
}


@pytest.mark.parametrize("case", LINKS)
def test_links_that_lead_out_are_not_followed(case: str, tmp_path: Path, secret: Path) -> None:
    name, target = LINKS[case]
    write(tmp_path / "a.graph")
    shutil.copy(tmp_path / "a.graph" / "manifest.json", tmp_path / "manifest.json")
    place = tmp_path / "a.graph" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(target.format(outside=tmp_path))
    with pytest.raises(ArtifactError, match="which leads out of the folder") as raised:
        open_artifact(tmp_path / "a.graph", None, None)
    assert f"holds the link {name!r}" in str(raised.value)
    assert SECRET not in str(raised.value)


def test_links_that_stay_inside_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "real.graph")
    (tmp_path / "real.graph" / "data.txt").rename(tmp_path / "real.graph" / "other.txt")
    (tmp_path / "real.graph" / "data.txt").symlink_to("other.txt")
    (tmp_path / "link.graph").symlink_to("real.graph")
    for name in ("real.graph", "link.graph"):
        found = open_artifact(tmp_path / name, "graph", 1)
        found.verify()
        assert found.file("data.txt").read_text() == "hello"


@pytest.mark.parametrize("column", ["id", "text"])
@pytest.mark.parametrize("words", ["info {}", "split {} -o s.split"])
def test_texts_outside_of_their_file_are_not_read(column: str, words: str, tmp_path: Path) -> None:
    """Arrow reads wherever its offsets lead: at worst memory that is not there, a crash."""
    graph = some_graph().save(tmp_path / "a.graph")
    file = tmp_path / "a.graph" / "nodes.arrow"
    offsets = np.frombuffer(one_chunk(graph.table[column]).buffers()[1], dtype=np.int64)
    forged = offsets.copy()
    forged[len(forged) // 2 :] += 1 << 40
    file.write_bytes(file.read_bytes().replace(offsets.tobytes(), forged.tobytes()))
    claim(tmp_path / "a.graph", "nodes.arrow", file)
    done = forked.run(forked.command, *words.format(tmp_path / "a.graph").split())
    assert done.returncode == 1, done.stderr
    assert f"{file}: not a whole Arrow file" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_is_checked_once_in_each_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, calls = some_graph().save(tmp_path / "a.graph"), list[Path]()
    monkeypatch.setattr(textgraph, "check_table", lambda path, table: calls.append(path))
    file = tmp_path / "a.graph" / "nodes.arrow"
    for expected in ([], [file], [file]):
        TextGraph.load(tmp_path / "a.graph")
        assert calls == expected
        if not calls:
            shutil.copy(file, tmp_path / "copy")
            os.replace(tmp_path / "copy", file)
    assert TextGraph.load(tmp_path / "a.graph").table.equals(graph.table)


WRONG_ARRAYS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a neighbour too large": ("indices", lambda array: array + 60, "expected 0 to 59"),
    "a neighbour below 0": ("indices", lambda array: array - 1, "expected 0 to 59"),
    "an edge too large": ("edges", lambda array: array + 1, "expected 0 to 59"),
    "an edge without an end": ("edges", lambda array: array[:1], "1 rows, expected 2"),
    "a type too large": ("edge_types", lambda array: array + 1, "expected 0 to 1"),
    "too few types": ("edge_types", lambda array: array[1:], "119 rows, expected 120"),
    "rows that overlap": ("indptr", lambda array: np.sort(array)[::-1], "does not divide"),
    "rows beyond the end": ("indptr", lambda array: array * 2, "does not divide"),
    "too few hashes": ("id_hashes", lambda array: array[1:], "59 rows, expected 60"),
    "other numbers": ("indices", lambda array: array.astype("float32"), "holds float32"),
    "other bytes": ("indices", lambda array: array.astype(">i4"), "holds >i4"),
    "other dimensions": ("indices", lambda array: array[None], "in 2 dimensions, expected int32"),
    "objects": ("indices", lambda array: array.astype(object), "not a .npy file of numbers"),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_arrays_that_do_not_fit_each_other(case: str, tmp_path: Path) -> None:
    name, change, message = WRONG_ARRAYS[case]
    graph = some_graph().save(tmp_path / "a.graph")
    file = tmp_path / "a.graph" / f"{name}.npy"
    array = np.array(getattr(graph, name))
    file.unlink()
    np.save(file, change(array), allow_pickle=True)
    claim(tmp_path / "a.graph", f"{name}.npy", file)
    with pytest.raises(ArtifactError, match=rf"{name}\.npy: .*{message}"):
        TextGraph.load(tmp_path / "a.graph")


WRONG_LISTS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a candidate too large": ("test_candidates", lambda array: array + 60, "expected 0 to 59"),
    "too few candidates": ("valid_candidates", lambda array: array[1:], "not a list of candidates"),
    "no candidates": ("test_candidates", lambda array: array[:, :0], "not a list of candidates"),
    "a pair below 0": ("valid_pairs", lambda array: array - 60, "expected 0 to 59"),
    "three ends": ("train", lambda array: np.hstack([array, array[:, :1]]), "3 nodes in a row"),
    "rows of nodes": ("indptr", lambda array: array[1:], "does not divide"),
}


@pytest.mark.parametrize("case", WRONG_LISTS)
def test_questions_that_do_not_fit_their_graph(case: str, tmp_path: Path) -> None:
    name, change, message = WRONG_LISTS[case]
    split = split_links(some_graph().save(tmp_path / "g.graph"), valid=5, test=5, seed=1)
    split.save(tmp_path / "s.split")
    file = tmp_path / "s.split" / f"{name}.npy"
    array = np.load(file)
    file.unlink()
    np.save(file, change(array))
    claim(tmp_path / "s.split", f"{name}.npy", file)
    with pytest.raises(ArtifactError, match=rf"{name}\.npy: .*{message}"):
        LinkSplit.load(tmp_path / "s.split")


def test_how_well_a_model_was_trained_has_a_checksum(tmp_path: Path) -> None:
    """One bit would make the score that `info` prints another one."""
    valid, validation = {"P@1": 0.5, "step": 3}, {"stage": 1, "epoch": 1, "step": 3, "loss": 0.1}
    told = {"settings": {}, "improved": True, "steps": 3, "seconds": 1.0, "backbone": None}
    told |= {"valid": valid, "history": [validation | {"P@1": 0.5}]}
    save_pretrained(make_model(), tmp_path / "m.model", training=told)
    assert (
        "0.5000, at step 3" in forked.run(forked.command, "info", str(tmp_path / "m.model")).stdout
    )
    file = tmp_path / "m.model" / "training.json"
    file.write_text(file.read_text().replace("0.5", "0.7"))
    done = forked.run(forked.command, "info", str(tmp_path / "m.model"))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{file}: damaged, its checksum is not the one in manifest.json" in done.stderr
    file.unlink()
    file.write_text(json.dumps({**told, "valid": {"P@1": "high", "step": 3}}))
    claim(tmp_path / "m.model", "training.json", file)
    with pytest.raises(ArtifactError, match=r"valid.P@1 is 'high', expected a number"):
        training_of(tmp_path / "m.model")


WRONG_TEXTS = [
    "[]",
    "5",
    "null",
    '"text"',
    "[" * 100_000,
    '{"a": ' + "9" * 5001 + "}",
    '{"\\ud800": 1}',
    "\xff",
]


@pytest.mark.parametrize("text", WRONG_TEXTS, ids=lambda text: text[:10])
def test_a_manifest_that_is_no_object(text: str, tmp_path: Path) -> None:
    write(tmp_path / "a.graph")
    (tmp_path / "a.graph" / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ArtifactError, match=r"manifest\.json: damaged"):
        open_artifact(tmp_path / "a.graph", None, None)


WRONG_ENTRIES: dict[str, Callable[[Manifest], object]] = {
    "files is a list": lambda manifest: manifest.update(files=["data.txt"]),
    "files is missing": lambda manifest: manifest.pop("files"),
    "kind is a list": lambda manifest: manifest.update(kind=[]),
    "format is a text": lambda manifest: manifest.update(format="1"),
    "settings is null": lambda manifest: manifest.update(settings=None),
    "summary is missing": lambda manifest: manifest.pop("summary"),
    "parents is a list": lambda manifest: manifest.update(parents=[]),
    "a parent is a text": lambda manifest: manifest.update(parents={"graph": "../a.graph"}),
    "a parent is empty": lambda manifest: manifest.update(parents={"graph": {}}),
    "a parent has no path": lambda manifest: manifest.update(parents={"a": {"fingerprint": ""}}),
    "a file is a text": lambda manifest: manifest["files"].update({"data.txt": "hello"}),
    "a file is empty": lambda manifest: manifest["files"].update({"data.txt": {}}),
    "a size is a text": lambda manifest: manifest["files"]["data.txt"].update(bytes="5"),
    "a size is a fraction": lambda manifest: manifest["files"]["data.txt"].update(bytes=5.0),
    "a size is a truth": lambda manifest: manifest["files"]["data.txt"].update(bytes=True),
    "a size is null": lambda manifest: manifest["files"]["data.txt"].update(bytes=None),
    "a size is negative": lambda manifest: manifest["files"]["data.txt"].update(bytes=-1),
    "a checksum is a number": lambda manifest: manifest["files"]["data.txt"].update(sha256=5),
}


@pytest.mark.parametrize("case", WRONG_ENTRIES)
def test_a_manifest_of_other_types(case: str, tmp_path: Path) -> None:
    write(tmp_path / "a.graph")
    forge(tmp_path / "a.graph", WRONG_ENTRIES[case])
    with pytest.raises(ArtifactError, match=r"manifest\.json: .* expected "):
        open_artifact(tmp_path / "a.graph", None, None)
    with pytest.raises(ArtifactError, match="it is not replaced"):
        check_writable(tmp_path / "a.graph", "graph", force=True)


@pytest.mark.parametrize("text", ["5", "[1]", '"text"'])
def test_notes_of_what_was_verified_that_are_no_notes(text: str, tmp_path: Path) -> None:
    write(tmp_path / "a.graph")
    (tmp_path / "a.graph" / ".verified.json").write_text(text)
    assert open_artifact(tmp_path / "a.graph", None, None).file("data.txt").read_text() == "hello"


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A folder of every kind."""
    graph = some_graph().save(tmp_path / "g.graph")
    split_links(graph, valid=5, test=5, seed=1).save(tmp_path / "s.split")
    make_model().save_pretrained(tmp_path / "m.model")
    embed(tmp_path / "m.model", graph, tmp_path / "v.vectors", **EXACT)
    write(tmp_path / "r.model.training" / "checkpoint", "checkpoint")
    write(tmp_path / "r.scores", "scores")
    return tmp_path


READERS: dict[str, Callable[[Path], object]] = {
    "g.graph": TextGraph.load,
    "s.split": LinkSplit.load,
    "m.model": GraphFormers.from_pretrained,
    "v.vectors": VectorStore.load,
    "v.vectors/base-0001/graph": TextGraph.load,
    "r.model.training/checkpoint": lambda path: RunFolder(
        path.parent.with_suffix("")
    ).initial_weights(""),
    "r.scores": load_ranks,
}


def test_every_reader_refuses_them(folders: Path, secret: Path) -> None:
    for name, load in READERS.items():
        kept = (folders / name / "manifest.json").read_bytes()
        claim(folders / name, os.path.relpath(secret, folders / name), secret)
        with pytest.raises(ArtifactError, match="expected a name inside the folder"):
            load(folders / name)
        (folders / name / "manifest.json").write_bytes(kept)
        (folders / name / "link").symlink_to(secret)
        with pytest.raises(ArtifactError, match="which leads out of the folder"):
            load(folders / name)
        (folders / name / "link").unlink()


def test_tokens_are_not_written_elsewhere(folders: Path) -> None:
    graph = TextGraph.load(folders / "g.graph")
    (folders / "elsewhere").mkdir()
    shutil.rmtree(folders / "g.graph" / "tokens", ignore_errors=True)
    (folders / "g.graph" / "tokens").symlink_to("../elsewhere")
    with pytest.raises(ArtifactError, match="which leads out of the folder"):
        TextGraph.load(folders / "g.graph")
    graph_tokens(graph, make_model().tokenizer)
    assert list((folders / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("suffix", ["sqlite", "sqlite-wal", "sqlite-shm", "commits"])
def test_edits_elsewhere_are_not_written(suffix: str, folders: Path, secret: Path) -> None:
    """Nor into other files of the folder."""
    place, manifest = folders / "v.vectors", (folders / "v.vectors" / "manifest.json").read_bytes()
    (place / f"edits-0001.{suffix}").symlink_to(secret)
    with pytest.raises(ArtifactError, match="which leads out of the folder"):
        update(place, nodes={"new": "a text"})
    (place / f"edits-0001.{suffix}").unlink()
    update(place, nodes={"new": "a text"})
    (place / f"edits-0001.{suffix}").unlink(missing_ok=True)
    (place / f"edits-0001.{suffix}").symlink_to("manifest.json")
    with pytest.raises(ArtifactError, match=r"sqlite: damaged|a link, expected a file"):
        update(place, nodes={"newer": "a text"})
    assert secret.read_text() == SECRET
    assert (place / "manifest.json").read_bytes() == manifest


def move_model(path: str, manifest: Manifest) -> None:
    manifest["parents"]["model"]["path"] = path


def test_a_model_may_lie_anywhere(folders: Path, tmp_path: Path) -> None:
    """It is named by a path, relative or absolute; opening it is all that is done with it."""
    (tmp_path / "away").mkdir()
    (folders / "m.model").rename(tmp_path / "away" / "m.model")
    for path in ("../away/m.model", str(tmp_path / "away" / "m.model")):
        forge(folders / "v.vectors", partial(move_model, path))
        assert load_model(VectorStore.load(folders / "v.vectors")).config == make_model().config
    forge(folders / "v.vectors", lambda manifest: manifest["parents"].pop("model"))
    with pytest.raises(ArtifactError, match="does not say which model it was made from"):
        load_model(VectorStore.load(folders / "v.vectors"))
    forge(folders / "s.split", lambda manifest: manifest["parents"]["graph"].update(path="a\0b"))
    with pytest.raises(ArtifactError, match="expected a path"):
        LinkSplit.load(folders / "s.split")


def test_an_unfinished_embedding_does_not_lead_elsewhere(folders: Path, tmp_path: Path) -> None:
    """Going on sweeps away hidden files, which a home has, too."""
    home, work = tmp_path / "home", tmp_path / "o.vectors.embedding"
    home.mkdir()
    (home / ".profile").write_text(SECRET)
    for name in ("notes", "folder", "dropped", "folder/base-0001/vectors"):
        shutil.rmtree(work, ignore_errors=True)
        (work / name).parent.mkdir(parents=True)
        (work / "plan.json").write_text("{}")
        (work / name).symlink_to(home)
        with pytest.raises(GraphFormersError, match="which leads out of the folder"):
            embed(folders / "m.model", folders / "g.graph", tmp_path / "o.vectors", **EXACT)
        assert [entry.name for entry in home.iterdir()] == [".profile"]
        assert (work / name).is_symlink()


@pytest.mark.parametrize("text", ["[]", "5", '{"key": [1]}', '{"key": 5}'])
def test_a_plan_that_is_no_plan(text: str, folders: Path, tmp_path: Path) -> None:
    work = tmp_path / "o.vectors.embedding"
    (work / "notes").mkdir(parents=True)
    (work / "notes" / "vectors-00000.npy.json").write_text("5")
    (work / "plan.json").write_text(text)
    with pytest.raises(GraphFormersError, match="force=True"):
        embed(folders / "m.model", folders / "g.graph", tmp_path / "o.vectors", **EXACT)
    embed(folders / "m.model", folders / "g.graph", tmp_path / "o.vectors", force=True, **EXACT)


def test_a_run_does_not_lead_elsewhere(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "r.model.training").mkdir()
    for name in ("history.new", "best-000420", "checkpoint", "tensorboard", ".lock"):
        (tmp_path / "r.model.training" / name).symlink_to(secret)
        with pytest.raises(ArtifactError, match="which leads out of the folder"):
            RunFolder(tmp_path / "r.model")
        (tmp_path / "r.model.training" / name).unlink()


@pytest.mark.parametrize("best", ["../../secret", 1.5, None, True])
def test_the_best_model_of_a_run_has_a_number(best: Any, tmp_path: Path) -> None:
    values = {**vars(TrainState()), "recent": {"counts": {}}, "budget": {}, "link_weight": {}}
    assert checked("a checkpoint", values, TrainState).best_step == -1
    with pytest.raises(ArtifactError, match=r"best_step .* expected a whole number"):
        checked("a checkpoint", values | {"best_step": best}, TrainState)


def test_a_comparison_does_not_lead_elsewhere(tmp_path: Path, secret: Path) -> None:
    folder = tmp_path / "report"
    folder.mkdir()
    check_folder(folder)
    (folder / "tables.md").symlink_to(secret)
    with pytest.raises(ArtifactError, match="which leads out of the folder"):
        check_folder(folder)
    done = forked.run(forked.command, "info", str(folder))
    assert (done.returncode, done.stdout) == (1, "")
    assert "which leads out of the folder" in done.stderr


@pytest.mark.parametrize("text", ["5", "[]", "{"])
def test_how_a_model_was_trained_is_an_object(text: str, folders: Path) -> None:
    (folders / "m.model" / "training.json").write_text(text)
    assert training_of(folders / "m.model") is None  # the manifest does not list it
    claim(folders / "m.model", "training.json", folders / "m.model" / "training.json")
    with pytest.raises(ArtifactError, match=r"training\.json: damaged"):
        training_of(folders / "m.model")


def test_ranks_are_read_as_written(tmp_path: Path) -> None:
    ranks = Ranks(*(some_graph().indices[:4].astype("int64") for _ in range(2)))
    save_ranks(tmp_path / "r.scores", {"../../secret": ranks})
    found, _ = load_ranks(tmp_path / "r.scores")
    assert list(found) == ["../../secret"]
    assert found["../../secret"].better.tolist() == ranks.better.tolist()


@pytest.mark.parametrize("name", ["ids.txt", "ids.csv"])
def test_a_list_of_ids_that_would_fill_the_memory(name: str, folders: Path, tmp_path: Path) -> None:
    """It is refused before it is read."""
    with (tmp_path / name).open("wb") as file:
        file.write(b"id\nn1\n")
        file.truncate(1 << 42)
    with pytest.raises(GraphFormersError, match=r"4398.05 GB of ids take about .* several updates"):
        update(folders / "v.vectors", remove=tmp_path / name)


def test_an_output_that_is_a_link_to_itself(folders: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ArtifactError, match="a link that leads back to itself"):
        embed(folders / "m.model", folders / "g.graph", tmp_path / "loop", **EXACT)
    with pytest.raises(GraphFormersError, match=r"loop: no such file"):
        read_graph(tmp_path / "loop")
