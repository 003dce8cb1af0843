"""EditDatabase: what was acknowledged is read as it was written, or the folder is refused."""

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from graphformers.arrays import Array
from graphformers.embedding import database as database_module
from graphformers.embedding.copying import copy_store
from graphformers.embedding.database import (
    Commit,
    EditDatabase,
    EditRows,
    EditWriter,
    disk_type,
)
from graphformers.embedding.edit_input import read_edits
from graphformers.embedding.job import embed
from graphformers.embedding.update import Updater, update
from graphformers.embedding.vectors import VectorStore, locked
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.graph.edited import PairEdits, Record
from tests import forked
from tests.embedding.conftest import EXACT, flip, limited_files, make_model, some_graph

BASE = "base-0001"
SCHEMA = pa.schema([("year", pa.int64())])


def some_rows(number: int, size: int = 40) -> EditRows:
    """A node with a column, one without, two changed pairs, vectors and states."""
    batch = pa.record_batch([pa.array([1990 + number])], SCHEMA)
    data = batch.serialize().to_pybytes()
    link = (number, 60 + number, 1, "cites" if number % 2 else None)
    return EditRows(
        records={
            60 + number: Record(f"new {number}", f"té\0xt {number}", SCHEMA, data),
            number: Record(f"p{number}", "another", pa.schema([]), b""),
            30 + number: None,
        },
        pairs={
            (1, 60 + number): PairEdits(added=(link,)),
            (2, 3): PairEdits(True, ("", "é")),
        },
        vectors={60 + number: os.urandom(size), 5: os.urandom(size)},
        states={60 + number: os.urandom(3 * size), 5: os.urandom(3 * size)},
    )


def opened(folder: Path) -> EditDatabase:
    return EditDatabase(folder, BASE, "f" * 64)


def newest(rows: list[EditRows]) -> EditRows:
    """What counts in the end, states included."""
    whole = EditRows({}, {}, {}, {})
    for one in rows:
        for name in ("records", "pairs", "vectors", "states"):
            getattr(whole, name).update(getattr(one, name))
    return whole


def content(folder: Path) -> tuple[int, EditRows]:
    """The number of commits, and all that can be read."""
    database = opened(folder)
    commit, rows, states = database.read()
    found = database.states(list(states.values()))
    database.close()
    return commit.number, EditRows(
        rows.records, rows.pairs, rows.vectors, dict(zip(states, found, strict=True))
    )


def written(folder: Path, count: int, size: int = 40) -> list[EditRows]:
    """Some commits, closed."""
    folder.mkdir(exist_ok=True)
    rows = [some_rows(number, size) for number in range(count)]
    writer = opened(folder).writer(Commit())
    for each in rows:
        writer.commit(each)
    writer.close()
    return rows


def left_by_a_kill(folder: Path, place: Path, count: int) -> list[EditRows]:
    """A folder as a killed writer leaves it: with a WAL."""
    folder.mkdir()
    rows = [some_rows(number) for number in range(count)]
    child = os.fork()
    if child == 0:
        writer = opened(folder).writer(Commit())
        for each in rows:
            writer.commit(each)
        os._exit(0)
    os.waitpid(child, 0)
    shutil.copytree(folder, place)
    assert (place / "edits-0001.sqlite-wal").stat().st_size > 10_000
    return rows


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = written(tmp_path, 4)
    assert content(tmp_path) == (4, newest(rows))
    commit, _, _ = opened(tmp_path).read()
    assert commit.rows == {"schemas": 2, "nodes": 12, "pairs": 4, "vectors": 4, "states": 8}
    assert sorted(os.listdir(tmp_path)) == ["edits-0001.commits", "edits-0001.sqlite"]
    database = opened(tmp_path)
    database.read()
    writer = database.writer(commit)
    writer.commit(some_rows(4))  # with schemas that are known
    writer.close()
    assert content(tmp_path)[0] == 5
    assert opened(tmp_path).read()[0].rows["schemas"] == 2


def test_a_killed_writer_loses_nothing(tmp_path: Path) -> None:
    rows = left_by_a_kill(tmp_path / "a", tmp_path / "b", 5)
    assert content(tmp_path / "b") == (5, newest(rows))
    database = opened(tmp_path / "b")
    commit, _, _ = database.read()
    writer = database.writer(commit)
    writer.commit(some_rows(5))
    writer.close()
    assert content(tmp_path / "b")[0] == 6


@pytest.mark.parametrize("is_open", [False, True])
def test_a_flipped_bit_is_refused_or_changes_nothing(is_open: bool, tmp_path: Path) -> None:
    if is_open:
        left_by_a_kill(tmp_path / "a", tmp_path / "b", 6)
    else:
        written(tmp_path / "b", 6)
    place, expected, refused = tmp_path / "b", content(tmp_path / "b"), 0
    for file in sorted(place.iterdir()):
        whole = file.read_bytes()
        step = max(1, len(whole) // 150)
        for offset in range(0, len(whole), step):
            shutil.rmtree(tmp_path / "c", ignore_errors=True)
            shutil.copytree(place, tmp_path / "c")
            flip(tmp_path / "c" / file.name, offset)
            try:
                found = content(tmp_path / "c")
            except ArtifactError:
                refused += 1
                continue
            assert found == expected, f"{file.name} at {offset}"
    assert refused > 40


def test_missing_commits_are_refused(tmp_path: Path) -> None:
    """Wherever a WAL ends, and without one; SQLite itself says nothing."""
    left_by_a_kill(tmp_path / "a", tmp_path / "b", 5)
    wal = tmp_path / "b" / "edits-0001.sqlite-wal"
    whole = wal.read_bytes()
    for length in (*range(0, len(whole) - 4200, 3001), len(whole) // 2):
        shutil.rmtree(tmp_path / "c", ignore_errors=True)
        shutil.copytree(tmp_path / "b", tmp_path / "c")
        (tmp_path / "c" / wal.name).write_bytes(whole[:length])
        with pytest.raises(ArtifactError, match=r"damaged, 5 commits were acknowledged, and . can"):
            content(tmp_path / "c")
        database = opened(tmp_path / "c")
        with pytest.raises(ArtifactError, match="damaged"):
            database.read()
    for name, words in {
        "edits-0001.sqlite": "it is missing, with 5 commits",
        "edits-0001.commits": "edits-0001.commits beside it is missing",
    }.items():
        shutil.rmtree(tmp_path / "c")
        shutil.copytree(tmp_path / "b", tmp_path / "c")
        (tmp_path / "c" / name).unlink()
        with pytest.raises(ArtifactError, match=words):
            content(tmp_path / "c")


def test_more_commits_than_were_acknowledged_are_kept(tmp_path: Path) -> None:
    """As a kill or a power failure leaves them."""
    rows = written(tmp_path, 3)
    database = opened(tmp_path)
    database.count_path.write_bytes(database.count(1))
    assert content(tmp_path) == (3, newest(rows))


def test_a_row_that_is_lost_or_doubled_is_found(tmp_path: Path) -> None:
    """Each row of these matches its checksum."""
    written(tmp_path / "a", 4)
    for statement in (
        "DELETE FROM nodes WHERE row = 12",
        "DELETE FROM vectors WHERE row = 3",
        "DELETE FROM states WHERE row = 2",
        "DELETE FROM commits WHERE number = 4",
        "DELETE FROM commits",
        "DELETE FROM store",
        "INSERT INTO store SELECT * FROM store",
        "UPDATE vectors SET nodes = x'0700000000000000' WHERE row = 2",
        "UPDATE states SET node = 7 WHERE row = 2",
        "UPDATE vectors SET row = 9 WHERE row = 4",
        "INSERT INTO pairs SELECT 5, checksum, data FROM pairs WHERE row = 1",
        "UPDATE nodes SET text = NULL WHERE row = 1",
        "UPDATE nodes SET schema = 9 WHERE row = 1",
        "UPDATE commits SET digest = digest + 1",
        "CREATE TABLE more (row)",
        "CREATE TRIGGER t AFTER INSERT ON nodes BEGIN DELETE FROM nodes; END",
        "DROP TABLE states",
        "PRAGMA writable_schema = ON",
    ):
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        connection = sqlite3.connect(tmp_path / "b" / "edits-0001.sqlite")
        connection.execute(statement)
        connection.commit()
        connection.close()
        if "writable_schema" in statement:
            assert content(tmp_path / "b")[0] == 4
            continue
        with pytest.raises(ArtifactError, match="damaged"):
            content(tmp_path / "b")


def test_edits_of_another_base_are_refused(tmp_path: Path) -> None:
    written(tmp_path, 1)
    with pytest.raises(ArtifactError, match="beside it does not match its checksum"):
        EditDatabase(tmp_path, BASE, "e" * 64).read()
    other = EditDatabase(tmp_path, BASE, "e" * 64)
    other.count_path.write_bytes(other.count(1))
    with pytest.raises(ArtifactError, match="it holds the changes of another base"):
        other.read()


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    rows = written(tmp_path, 2)
    database = opened(tmp_path)
    commit, _, _ = database.read()
    with limited_files(database.path.stat().st_size + 500):
        writer = database.writer(commit)
        for _ in range(2):
            with pytest.raises(ArtifactError, match="full disk; what was there before is unchang"):
                writer.commit(some_rows(2, 100_000))
    assert content(tmp_path) == (2, newest(rows))
    writer.commit(some_rows(2))
    writer.close()
    assert content(tmp_path)[0] == 3
    with pytest.raises(ArtifactError, match="open the folder again"):
        writer.commit(some_rows(3))


def test_a_database_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    with limited_files(1000), pytest.raises(ArtifactError, match="full disk"):
        opened(tmp_path).writer(Commit())
    assert content(tmp_path) == (0, EditRows())
    written(tmp_path, 1)
    assert sorted(os.listdir(tmp_path)) == ["edits-0001.commits", "edits-0001.sqlite"]


def test_files_that_were_exchanged_are_not_written_to(tmp_path: Path) -> None:
    written(tmp_path, 1)
    for name in ("edits-0001.sqlite", "edits-0001.commits"):
        database = opened(tmp_path)
        writer = database.writer(database.read()[0])
        (tmp_path / name).rename(tmp_path / "away")
        with pytest.raises(ArtifactError, match="was removed or replaced while it was in use"):
            writer.commit(some_rows(1))
        (tmp_path / "away").rename(tmp_path / name)
        writer.commit(some_rows(1))
        writer.close()


def test_busy_readers_do_not_let_the_wal_grow(tmp_path: Path) -> None:
    """Without a restart that waits for them, somebody always reads its old part."""
    written(tmp_path, 1, 100)
    database = opened(tmp_path)
    writer = EditWriter(database, database.read()[0], most_wal=100_000)
    is_over, errors = threading.Event(), []

    def read() -> None:
        while not is_over.is_set():
            try:
                opened(tmp_path).read()
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    largest = 0
    try:
        for number in range(60):
            writer.commit(some_rows(number, 2000))
            largest = max(largest, (tmp_path / "edits-0001.sqlite-wal").stat().st_size)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    writer.close()
    assert not errors
    assert largest < 3_000_000
    assert content(tmp_path)[0] == 61


def test_a_reader_that_does_not_end_delays_few_commits(tmp_path: Path) -> None:
    written(tmp_path, 1, 100)
    database = opened(tmp_path)
    writer = EditWriter(database, database.read()[0], most_wal=10_000)
    writer.commit(some_rows(1))
    stuck = sqlite3.connect(database.path)
    stuck.execute("BEGIN")
    stuck.execute("SELECT count(*) FROM nodes").fetchone()
    assert writer._connection is not None
    writer._connection.execute("PRAGMA busy_timeout = 300")
    started = time.perf_counter()
    for number in range(2, 40):
        writer.commit(some_rows(number, 1000))
    assert time.perf_counter() - started < 38 * 0.3
    stuck.close()
    writer.commit(some_rows(50, 200_000))
    assert (tmp_path / "edits-0001.sqlite-wal").stat().st_size < 20_000
    writer.close()
    assert content(tmp_path)[0] == 41


def test_a_network_disk_is_refused_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    line = f"36 35 {os.major(device)}:{os.minor(device)} / /mnt rw - nfs4 server:/x rw\n"
    mounts.write_text(f"1 2 0:999999 / / rw - ext4 /dev/x rw\n{line}")
    assert disk_type(tmp_path, mounts) == "nfs4"
    assert disk_type(tmp_path, tmp_path / "nothing") == ""
    monkeypatch.setattr(database_module, "disk_type", lambda folder: disk_type(folder, mounts))
    with pytest.raises(ArtifactError, match=r"lies on a network disk \(nfs4\)"):
        opened(tmp_path).writer(Commit())
    assert content(tmp_path)[0] == 0


READ = """
import sys
from pathlib import Path
from graphformers.embedding.database import EditDatabase
database = EditDatabase(Path(sys.argv[1]), "base-0001", "f" * 64)
commit, rows, states = database.read()
print(commit.number, len(database.states(list(states.values()))))
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
@pytest.mark.parametrize("is_open", [False, True])
def test_a_folder_that_cannot_be_written_to_is_read(is_open: bool, tmp_path: Path) -> None:
    """Also where a killed writer left commits in a WAL, which cannot be read there."""
    place = tmp_path / "b"
    if is_open:
        left_by_a_kill(tmp_path / "a", place, 3)
        (place / "edits-0001.sqlite-shm").unlink()
    else:
        written(place, 3)
    before = sorted(os.listdir(place))
    place.chmod(0o555)
    # Root may write anywhere, unless it has lost that right.
    words = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    done = subprocess.run(
        [*words, sys.executable, "-c", READ, str(place)], capture_output=True, text=True
    )
    place.chmod(0o755)
    assert (done.stdout, done.returncode) == ("3 4\n", 0), done.stderr
    assert sorted(os.listdir(place)) == before


def test_a_copy_while_it_is_written_is_whole(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    written(tmp_path, 1, 100)
    database, is_over, counts = opened(tmp_path), threading.Event(), []
    writer = database.writer(database.read()[0])

    def write() -> None:
        number = 0
        while not is_over.is_set():
            writer.commit(some_rows(number % 30, 3000))
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(8):
            opened(tmp_path).copy_to(tmp_path / "copy")
            counts.append(content(tmp_path / "copy")[0])
            for file in (tmp_path / "copy").iterdir():
                file.unlink()
    finally:
        is_over.set()
        thread.join()
    writer.close()
    assert counts == sorted(counts)
    assert counts[0] >= 1


def facts(store: VectorStore) -> tuple[list[str], Array, Array, list[list[int]]]:
    nodes = store.graph.nodes
    near = [store.graph.neighbors_of(node).tolist() for node in nodes.tolist()]
    return store.ids.to_pylist(), np.asarray(store), store.states_of(nodes), near


def test_a_store_that_was_loaded_never_changes(tmp_path: Path) -> None:
    """Neither by edits of others, nor by their compaction; a loaded store is the version that the
    writer has, whoever reads it.
    """
    model = make_model()
    path = embed(model, some_graph(), tmp_path / "v", **EXACT).path
    ids = some_graph().ids.to_pylist()
    kept: list[tuple[VectorStore, Any]] = []
    with locked(path) as lock:
        updater = Updater(VectorStore.load(path), model, lock)
        for i in range(6):
            given = {"nodes": {f"new {i}": f"graph {i}", ids[i]: f"text {i}"}}
            given |= {"edges": [(f"new {i}", ids[2 * i], "cites"), (ids[i], ids[i + 9])]}
            given |= {"remove": [ids[20 + i]], "remove_edges": [(ids[30 + i], ids[31 + i])]}
            updater.apply(read_edits(updater.store.graph, **given))  # type: ignore[arg-type]
            if i == 3:
                updater.compact()
            loaded = VectorStore.load(path)
            for store in (updater.store, loaded):
                kept.append((store, facts(store)))
            for one, other in zip(kept[-1][1], kept[-2][1], strict=True):
                np.testing.assert_equal(one, other)
            graphs = [store.graph.freeze() for store in (updater.store, loaded)]
            assert graphs[0].table.equals(graphs[1].table)
            assert np.array_equal(graphs[0].edges, graphs[1].edges)
            assert graphs[0].type_names == graphs[1].type_names
        for store, before in kept:
            for one, other in zip(facts(store), before, strict=True):
                np.testing.assert_equal(one, other)
        updater.close()
    del kept, store, loaded
    update(path, nodes={"last": "graph"}, model=model)
    assert sorted(name for name in os.listdir(path) if name[0] != ".") == [
        "base-0002",
        "edits-0002.commits",
        "edits-0002.sqlite",
        "manifest.json",
    ]


def test_a_store_in_use_is_copied(tmp_path: Path) -> None:
    """Base, edits and index; its parents are where they were."""
    model = make_model()
    model.save_pretrained(tmp_path / "m.model")
    store = embed(tmp_path / "m.model", some_graph(), tmp_path / "v", **EXACT)
    with locked(store.path) as lock:
        updater = Updater(store, model, lock)
        updater.apply(read_edits(updater.store.graph, nodes={"new": "graph"}, remove=["n3"]))
        (store.path / "index.usearch.json").write_text("an index")
        copy = copy_store(store.path, tmp_path / "in" / "copy")
        for one, other in zip(facts(copy), facts(updater.store), strict=True):
            np.testing.assert_equal(one, other)
        updater.close()
    assert (copy.path / "index.usearch.json").read_text() == "an index"
    with pytest.raises(ArtifactError, match="exists already"):
        copy_store(store.path, copy.path)
    assert update(copy.path, nodes={"newer": "text"}).nodes == len(copy) + 1
    done = forked.run(forked.command, "copy", str(store.path), str(copy.path), "--force")
    assert done.returncode == 0, done.stderr
    assert len(VectorStore.load(copy.path)) == len(VectorStore.load(store.path))
    flip(store.path / "base-0001" / "vectors" / "00001.npy", 300)
    with pytest.raises(ArtifactError, match="damaged"):
        copy_store(store.path, tmp_path / "other")
    assert not (tmp_path / "other").exists()


COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "info": lambda place: ["info", str(place)],
    "verify": lambda place: ["info", "--verify", str(place)],
    "export": lambda place: ["export", str(place), "-o", str(place.parent / "out.npy")],
    "search": lambda place: ["search", str(place), "graph"],
    "copy": lambda place: ["copy", str(place), str(place.parent / "copy.vectors")],
}


def test_every_command_refuses_damaged_edits(tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "some.model")
    store = embed(tmp_path / "some.model", some_graph(), tmp_path / "v", **EXACT)
    for i in range(3):
        update(store, nodes={f"new {i}": "graph"}, model=model)
    whole = (store.path / "edits-0001.sqlite").read_bytes()
    place = whole.index(b"new 1")
    flip(store.path / "edits-0001.sqlite", place)
    for words in COMMANDS.values():
        done = forked.run(forked.command, *words(store.path))
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert "row 2 of nodes does not match its checksum" in done.stderr
        assert "Traceback" not in done.stderr
    with pytest.raises(GraphFormersError, match="does not match its checksum"):
        update(store, nodes={"newer": "graph"}, model=model)
