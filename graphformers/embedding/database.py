"""EditDatabase: what was changed since a base was written, in SQLite.

    edits-0001.sqlite     the database, in WAL mode while somebody writes
    edits-0001.commits    the number of commits that were acknowledged

    store     format, base (the fingerprint of the base)
    commits   number; the last row of nodes, pairs, vectors, states and schemas; bytes; digest
    nodes     node, id, text, columns (Arrow IPC), schema; without an id, the node was removed
    pairs     data (JSON): the changed links of pairs of nodes
    vectors   nodes (row numbers as int64), data (of int8, the scale in front of each)
    states    node, data
    schemas   data (Arrow IPC): the columns of nodes

Rows are only appended, and the newest row of a node or a pair counts, so that a reader's version
stays whole while others follow; compaction leaves the superseded ones behind. A commit is one
transaction.

SQLite does not see flipped bits. So every row has a checksum, which is compared when the row is
read, and a commit has the number of rows in every table and the sum of their checksums: a row that
is lost or doubled is found, too. A WAL with a flipped bit ends there for SQLite, without an error.
So the number of acknowledged commits is written to a file of its own after every commit, and fewer
commits than that are an error. That file is not synchronised: after a power failure it may lag
behind the database, but it is never ahead.

One connection writes and makes checkpoints, under the lock of the folder: SQLite before 3.51.3 can
lose a WAL when several connections restart it. All others read only.
"""

import os
import shutil
import sqlite3
import tempfile
import threading
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa

from graphformers.errors import ArtifactError
from graphformers.files import full_disk, sweep_beside, sync, write_whole
from graphformers.graph.edited import PairEdits, Record

FORMAT = 1
# Tables of rows, in the order in which they are read, and their columns besides row and checksum.
TABLES = {
    "schemas": ("data",),
    "nodes": ("node", "id", "text", "schema", "columns"),
    "pairs": ("data",),
    "vectors": ("nodes", "data"),
    "states": ("node", "data"),
}
# Pairs and vectors in a row: reading many rows takes longer than reading large ones.
GROUP = 256
# Milliseconds that a writer waits for readers, before it lets the WAL grow on; and to begin.
PATIENCE, OPENING = 5_000, 60_000
# Size of the WAL above which it is restarted, waiting for readers if need be. Otherwise a reader is
# nearly always on its old part where many read, and it would never be restarted.
MOST_WAL = 32 << 20
# Codes of SQLite where a reader may not write the files that it shares with writers.
UNSHARED = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR)

Value = int | str | bytes | None
K = TypeVar("K")
V = TypeVar("V")
PAIRS = msgspec.json.Decoder(list[tuple[int, int, PairEdits]])


@dataclass(frozen=True)
class Commit:
    """The state of a database after a transaction.

    Attributes:
        number: Number of transactions until then.
        rows: The last row of every table.
        bytes: Size of the values of all rows.
        digest: Sum of the checksums of all rows.
    """

    number: int = 0
    rows: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(TABLES, 0))
    bytes: int = 0
    digest: int = 0


@dataclass(frozen=True)
class EditRows:
    """Rows of one transaction, or the newest rows of all.

    Attributes:
        records: New and changed nodes, None for removed ones.
        pairs: The changed links of pairs of nodes.
        vectors: The stored vectors of nodes.
        states: The layer states of nodes.
    """

    records: Mapping[int, Record | None] = field(default_factory=dict)
    pairs: Mapping[tuple[int, int], PairEdits] = field(default_factory=dict)
    vectors: Mapping[int, bytes] = field(default_factory=dict)
    states: Mapping[int, bytes] = field(default_factory=dict)


class EditDatabase:
    """The edits of one base.

    Args:
        folder: The folder of vectors.
        base: The name of the base in it.
        fingerprint: The fingerprint of the base.
    """

    def __init__(self, folder: Path, base: str, fingerprint: str) -> None:
        name = base.replace("base", "edits", 1)
        self.path, self.count_path = folder / f"{name}.sqlite", folder / f"{name}.commits"
        self._base = fingerprint
        # In the order of their rows.
        self.schemas: list[pa.Schema] = []
        self._reading = threading.Lock()
        self._reader: sqlite3.Connection | None = None

    def read(self) -> tuple[Commit, EditRows, dict[int, int]]:
        """Reads all rows in one transaction; each is compared with its checksum.

        Returns:
            The last commit, the newest rows without states, and the rows of states by node.

        Raises:
            ArtifactError: The database is damaged, or lacks commits.
        """
        expected = self._acknowledged()
        if not self.path.exists():
            if expected:
                raise self._damaged(f"it is missing, with {expected:,} commits")
            return Commit(), EditRows(), {}
        with self._refuse_damage(), closing(self._connected()) as connection:
            connection.execute("BEGIN")
            return self._read_all(connection, expected)

    def _read_all(
        self, connection: sqlite3.Connection, expected: int
    ) -> tuple[Commit, EditRows, dict[int, int]]:
        connection.execute("PRAGMA trusted_schema = OFF")
        tables = connection.execute("SELECT sql FROM sqlite_schema").fetchall()
        if sorted(tables) != sorted((statement,) for statement in _schema()):
            raise self._damaged(f"its tables are not those of format {FORMAT}")
        found = connection.execute("SELECT format, base, checksum FROM store").fetchall()
        if len(found) != 1 or checksum("store", *found[0][:2]) != found[0][2]:
            raise self._damaged("the row that names its base does not match its checksum")
        if found[0][:2] != (FORMAT, self._base):
            raise self._damaged("it holds the changes of another base, or is of another format")
        last = self._last_commit(connection)
        if last.number < expected:
            raise self._damaged(
                f"{expected:,} commits were acknowledged, and {last.number:,} can be read"
            )
        digest = 0
        records: dict[int, Record | None] = {}
        pairs: dict[tuple[int, int], PairEdits] = {}
        vectors: dict[int, bytes] = {}
        states: dict[int, int] = {}
        self.schemas = []
        for table, names in TABLES.items():
            columns = ", ".join(names if table != "states" else names[:1])
            rows = connection.execute(f"SELECT row, checksum, {columns} FROM {table} ORDER BY row")
            count = 0
            row: int
            stated: int
            for row, stated, *values in rows:
                count += 1
                digest += stated
                # States are compared when they are used.
                if row != count or (table != "states" and checksum(table, row, *values) != stated):
                    raise self._damaged(f"row {row} of {table} does not match its checksum")
                if table == "vectors":
                    vectors |= _unpacked(*values)
                elif table == "states":
                    states[values[0]] = row
                elif table == "nodes":
                    node, id, text, schema, data = values
                    records[node] = (
                        None if id is None else Record(id, text, self.schemas[schema - 1], data)
                    )
                elif table == "pairs":
                    pairs |= {(one, other): edits for one, other, edits in PAIRS.decode(values[0])}
                else:
                    self.schemas.append(pa.ipc.read_schema(pa.py_buffer(values[0])))
            if count != last.rows[table]:
                raise self._damaged(f"{table} has {count:,} rows, expected {last.rows[table]:,}")
        if _folded(digest) != last.digest:
            raise self._damaged("rows do not add up to the checksum of the last commit")
        return last, EditRows(records, pairs, vectors), states

    def _last_commit(self, connection: sqlite3.Connection) -> Commit:
        names = ("number", *TABLES, "bytes", "digest")
        found = connection.execute(
            f"SELECT {', '.join(names)}, checksum FROM commits ORDER BY number DESC LIMIT 1"
        ).fetchone()
        if found is None:
            return Commit()
        if checksum("commits", *found[:-1]) != found[-1]:
            raise self._damaged(f"commit {found[0]} does not match its checksum")
        told = dict(zip(names, found, strict=False))
        return Commit(
            told["number"], {name: told[name] for name in TABLES}, told["bytes"], told["digest"]
        )

    def states(self, rows: Sequence[int]) -> list[bytes]:
        """The data of rows of states, each compared with its checksum."""
        if not rows:
            return []
        with self._reading, self._refuse_damage():
            connection, found = self._open_reader(), []
            for row in rows:
                told = connection.execute(
                    "SELECT row, checksum, node, data FROM states WHERE row = ?", (row,)
                ).fetchone()
                if told is None or checksum("states", told[0], *told[2:]) != told[1]:
                    raise self._damaged(f"row {row} of states does not match its checksum")
                found.append(told[3])
            return found

    def close(self) -> None:
        """Closes the connection that reads states; it is opened again when it is needed."""
        with self._reading:
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    def verify(self) -> None:
        """Compares every row with its checksum, those of states included."""
        _, _, states = self.read()
        for row in states.values():
            self.states([row])

    def writer(self, last: Commit) -> "EditWriter":
        """The connection that writes. The caller holds the lock of the folder.

        Args:
            last: The commit that the caller knows, the last one.
        """
        return EditWriter(self, last)

    def copy_to(self, folder: Path) -> None:
        """Copies the database as it is now, while others use it.

        Args:
            folder: Another folder of vectors, with the same base.
        """
        if not self.path.exists():
            return
        copy_path = folder / self.path.name
        with (
            self._refuse_damage(),
            closing(self._connected()) as connection,
            closing(_connect(copy_path, "rwc")) as copy,
        ):
            connection.backup(copy)
            number = self._last_commit(copy).number
        write_whole(folder / self.count_path.name, self.count(number))
        sync(folder / self.path.name)

    def count(self, number: int) -> bytes:
        """The content of the file with the number of acknowledged commits."""
        text = f"{number:020d}\n"
        return f"{text}{zlib.crc32(f'{self._base} {text}'.encode()):08x}\n".encode()

    def _acknowledged(self) -> int:
        """The number of commits that were acknowledged, at least."""
        try:
            told = self.count_path.read_bytes()
        except FileNotFoundError:
            if self.path.exists():
                raise self._damaged(f"{self.count_path.name} beside it is missing") from None
            return 0
        with suppress(ValueError):
            number = int(told[:20])
            if told == self.count(number):
                return number
        raise self._damaged(f"{self.count_path.name} beside it does not match its checksum")

    def _open_reader(self) -> sqlite3.Connection:
        if self._reader is None:
            self._reader = self._connected()
            # Closing twice does nothing.
            weakref.finalize(self, self._reader.close)
        return self._reader

    def _connected(self) -> sqlite3.Connection:
        """A connection that reads.

        Where the files that SQLite shares between processes cannot be made, as on a read-only
        mount, nobody writes; then the database is read alone or, with a WAL that a killed writer
        left, from a temporary copy.
        """
        connection = _connect(self.path, "ro")
        try:
            connection.execute("SELECT format FROM store").fetchall()
            return connection
        except sqlite3.OperationalError as error:
            connection.close()
            if error.sqlite_errorcode & 0xFF not in UNSHARED:
                raise
        wal = self.path.with_name(f"{self.path.name}-wal")
        if not wal.exists() or not wal.stat().st_size:
            return _connect(self.path, "ro&immutable=1")
        copies = tempfile.TemporaryDirectory(prefix="graphformers-")
        weakref.finalize(self, copies.cleanup)
        for file in (self.path, wal):
            shutil.copyfile(file, Path(copies.name) / file.name)
        return _connect(Path(copies.name) / self.path.name, "rw")

    @contextmanager
    def _refuse_damage(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                raise _busy(self.path) from error
            raise self._damaged(f"SQLite says: {error}") from error
        except (ValueError, TypeError, ArithmeticError, LookupError, pa.ArrowException) as error:
            raise self._damaged(f"a row cannot be read: {error}") from error

    def _damaged(self, reason: str) -> ArtifactError:
        return ArtifactError(
            f"{self.path}: damaged, {reason}; restore {self.path.name}* and "
            f"{self.count_path.name} from a copy, or remove them to go back to the vectors without "
            f"the changes they hold"
        )


class EditWriter:
    """Writes the edits of a base; made by `EditDatabase.writer`."""

    def __init__(self, database: EditDatabase, last: Commit, most_wal: int = MOST_WAL) -> None:
        self.database, self.last = database, last
        # Size of the WAL above which it is restarted, and above which that is tried next.
        self.most_wal = self._next_restart = most_wal
        refuse_network(database.path.parent)
        sweep_beside(database.count_path)
        if not database.path.exists():
            self._create()
        # SQLite writes to what a link leads to.
        for file in database.path.parent.glob(f"{database.path.stem}.*"):
            if file.is_symlink():
                raise ArtifactError(f"{file}: a link, expected a file; put the file itself there")
        connection = _connect(database.path, "rw")
        try:
            # Processes that open the store may be reading all of it.
            connection.execute(f"PRAGMA busy_timeout = {OPENING}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA busy_timeout = {PATIENCE}")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("SELECT count(*) FROM store").fetchone()
        except sqlite3.Error as error:
            connection.close()
            raise self._refused(error) from error
        self._connection: sqlite3.Connection | None = connection
        self._count = os.open(database.count_path, os.O_RDWR)
        self._places = [_identity(database.path), _identity(database.count_path)]
        self._schemas = {schema: row for row, schema in enumerate(database.schemas, 1)}
        self._closing = weakref.finalize(self, _close_all, connection, self._count)

    def _create(self) -> None:
        """Makes an empty database, which gets its name when it is whole."""
        database = self.database
        beside = database.path.with_name(f".{database.path.name}")
        for suffix in ("", "-journal", "-wal", "-shm"):
            beside.with_name(beside.name + suffix).unlink(missing_ok=True)
        try:
            with closing(_connect(beside, "rwc")) as connection:
                for statement in _schema():
                    connection.execute(statement)
                own = (FORMAT, database._base)
                connection.execute(
                    "INSERT INTO store VALUES (?, ?, ?)", (*own, checksum("store", *own))
                )
            sync(beside)
            write_whole(database.count_path, database.count(0))
            os.rename(beside, database.path)
            sync(database.path.parent)
        except sqlite3.Error as error:
            raise self._refused(error) from error
        except OSError as error:
            raise full_disk(error, database.path) from error

    def commit(self, edits: EditRows) -> tuple[Commit, dict[int, int]]:
        """Appends rows as one transaction; when this returns they are on disk.

        Returns:
            The commit, and the rows of its states by node.

        Raises:
            ArtifactError: Nothing was written: the disk is full, or the files are not those that
                were opened.
        """
        connection, database = self._connection, self.database
        if connection is None:
            raise ArtifactError(f"{database.path}: a commit failed; open the folder again")
        if self._places != [_identity(database.path), _identity(database.count_path)]:
            raise ArtifactError(
                f"{database.path}: was removed or replaced while it was in use; restore it, "
                f"nothing more is written"
            )
        schemas = self._schemas.copy()
        rows = _rows_of(edits, schemas)
        last = self.last
        states = {node: last.rows["states"] + i for i, node in enumerate(edits.states, 1)}
        counts, size, digest = dict(last.rows), last.bytes, last.digest
        try:
            connection.execute("BEGIN IMMEDIATE")
            for table, listed in rows.items():
                first, marks = counts[table] + 1, ", ".join("?" * (2 + len(TABLES[table])))
                checks = [checksum(table, row, *values) for row, values in enumerate(listed, first)]
                connection.executemany(
                    f"INSERT INTO {table} VALUES ({marks})",
                    [
                        (row, check, *values)
                        for row, (check, values) in enumerate(
                            zip(checks, listed, strict=True), first
                        )
                    ],
                )
                counts[table] += len(listed)
                digest += sum(checks)
                size += sum(map(_size, listed))
            new = Commit(last.number + 1, counts, size, _folded(digest))
            told = (new.number, *(counts[name] for name in TABLES), new.bytes, new.digest)
            marks = ", ".join("?" * (len(told) + 1))
            connection.execute(
                f"INSERT INTO commits VALUES ({marks})", (*told, checksum("commits", *told))
            )
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise self._refused(error) from error
        self.last, self._schemas = new, schemas
        try:
            os.pwrite(self._count, database.count(new.number), 0)
        except OSError:
            # The commit is there, but nobody may rely on it.
            self.close()
            raise
        self._restart_wal(connection)
        return new, states

    def _restart_wal(self, connection: sqlite3.Connection) -> None:
        """Restarts a large WAL. SQLite does so itself only where no reader is on its old part."""
        wal = self.database.path.with_name(f"{self.database.path.name}-wal")
        with suppress(FileNotFoundError, sqlite3.Error):
            if wal.stat().st_size > self._next_restart:
                is_busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                # A reader that does not end: the next commits must not wait for it, too.
                self._next_restart = 2 * self._next_restart if is_busy else self.most_wal

    def close(self) -> None:
        """Moves all commits from the WAL into the database. Afterwards nothing can be written.

        Where nobody reads at the moment, the database leaves WAL mode: it is one plain file then,
        which is read on a read-only mount, too.
        """
        if self._connection is not None:
            self.database.close()
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self._connection.execute("PRAGMA busy_timeout = 0")
                self._connection.execute("PRAGMA journal_mode = DELETE")
            self._closing()
            self._connection = None

    def _refused(self, error: sqlite3.Error) -> ArtifactError:
        place, code = self.database.path, getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            words = (
                "the disk is full" if code == sqlite3.SQLITE_FULL else f"{error}, or a full disk"
            )
            return ArtifactError(f"{place}: {words}; what was there before is unchanged")
        if code == sqlite3.SQLITE_BUSY:
            return _busy(place)
        return ArtifactError(f"{place}: cannot be written, SQLite says: {error}")


def _busy(place: Path) -> ArtifactError:
    return ArtifactError(f"{place}: is locked by another program; try again later")


def checksum(table: str, *values: Value) -> int:
    """The checksum of a row: CRC-32 of the table's name and all values with their types."""
    blobs: list[bytes] = []
    plain: list[object] = []
    for value in values:
        if isinstance(value, bytes):
            blobs.append(value)
            plain.append((len(value),))
        else:
            plain.append(value)
    found = zlib.crc32(repr((table, plain)).encode("utf-8", "surrogatepass"))
    for blob in blobs:
        found = zlib.crc32(blob, found)
    return found


def remove_edits(folder: Path, base: str) -> None:
    """Removes the edits of a base that another one replaced."""
    name = base.replace("base", "edits", 1)
    for file in folder.glob(f"{name}.*"):
        file.unlink(missing_ok=True)


# Types of network disks, where SQLite's locks and shared memory do not work.
NETWORK = ("nfs", "cifs", "smb", "afs", "ceph", "lustre", "gpfs", "beegfs", "fuse.sshfs")


def refuse_network(folder: Path) -> None:
    """Raises an error if a folder lies on a network disk."""
    kind = disk_type(folder)
    if kind.startswith(NETWORK):
        raise ArtifactError(
            f"{folder}: lies on a network disk ({kind}), where SQLite cannot lock files safely; "
            f"copy the folder to a disk of this machine to change it"
        )


def disk_type(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system of a folder, such as ext4; empty where it is unknown."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in mounts.read_text(errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            if fields.split()[2] == number:
                return rest.split()[0]
    return ""


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    place = quote(os.fsencode(os.path.abspath(path)))
    return sqlite3.connect(
        f"file:{place}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=PATIENCE / 1000,
    )


def _close_all(connection: sqlite3.Connection, handle: int) -> None:
    connection.close()
    with suppress(OSError):
        os.close(handle)


def _schema() -> list[str]:
    integers = " INTEGER NOT NULL, ".join(TABLES)
    return [
        "CREATE TABLE store (format INTEGER, base TEXT, checksum INTEGER)",
        f"CREATE TABLE commits (number INTEGER PRIMARY KEY, {integers} INTEGER NOT NULL, "
        f"bytes INTEGER NOT NULL, digest INTEGER NOT NULL, checksum INTEGER NOT NULL)",
        *(
            f"CREATE TABLE {table} (row INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, "
            f"{', '.join(names)})"
            for table, names in TABLES.items()
        ),
    ]


def _rows_of(edits: EditRows, schemas: dict[pa.Schema, int]) -> dict[str, list[tuple[Value, ...]]]:
    """The values of all rows by table. New schemas get numbers in `schemas`."""
    before = len(schemas)
    nodes: list[tuple[Value, ...]] = []
    for node, record in edits.records.items():
        if record is None:
            nodes.append((node, None, None, None, None))
            continue
        schema = schemas.setdefault(record.schema, len(schemas) + 1)
        nodes.append((node, record.id, record.text, schema, record.data))
    added = [schema for schema, row in schemas.items() if row > before]
    return {
        "schemas": [(schema.serialize().to_pybytes(),) for schema in added],
        "nodes": nodes,
        "pairs": [
            (msgspec.json.encode([(*pair, links) for pair, links in part]).decode(),)
            for part in _groups(edits.pairs)
        ],
        "vectors": [
            (
                np.array([node for node, _ in part], dtype="<i8").tobytes(),
                b"".join(data for _, data in part),
            )
            for part in _groups(edits.vectors)
        ],
        "states": list(edits.states.items()),
    }


def _groups(entries: Mapping[K, V]) -> Iterator[list[tuple[K, V]]]:
    """Entries in the groups that a row holds."""
    items = list(entries.items())
    for start in range(0, len(items), GROUP):
        yield items[start : start + GROUP]


def _unpacked(nodes: bytes, data: bytes) -> dict[int, bytes]:
    """The vectors of nodes in a row."""
    numbers = np.frombuffer(nodes, dtype="<i8").tolist()
    size = len(data) // len(numbers)
    if size * len(numbers) != len(data):
        raise ValueError("vectors of several sizes")
    return {node: data[i * size : (i + 1) * size] for i, node in enumerate(numbers)}


def _size(values: tuple[Value, ...]) -> int:
    return sum(len(value) if isinstance(value, bytes | str) else 8 for value in values)


def _folded(digest: int) -> int:
    """A sum of checksums as a number that SQLite holds."""
    return digest % (1 << 62)


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file stands at a path."""
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None
