"""The service's database file: SQLite with a write-ahead log, migrated when it is opened.

One connection writes, under a lock, in transactions that are whole or not there. A reader takes a connection out
of a pool, which sees the last commit and never waits for a writer; there are as many as read at once, however many
threads come and go. A commit is synced before it returns, so that what was answered is there after
``kill -9`` and after a loss of power.

A service takes the lock of the file's directory before it looks at the file, and keeps it: one that is started beside
it, of whatever version, changes nothing. A command beside it works with the file as it is.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from resnap.scheduler.output.records import plain
from resnap.scheduler.state.schema import MIGRATIONS
from resnap.storage.errors import DataError, LockedError, LogDirError, ResnapError
from resnap.storage.processes import at_work_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
V = TypeVar("V")
BUSY_TIMEOUT_S: Final = 10.0
"""How long a command beside the service (``resnap token``) waits for the other's commit."""
DATABASE_FILE: Final = "service.db"
UNREADABLE_ROW: Final = (
    "run the release of Resnap that wrote it, restore the file from a backup, or give another --state-dir"
)
"""What to do about one."""
_ONE_SERVICE: Final = "there is one service per state directory: stop that one, or give this one another --state-dir"
_OLDER_SERVICE: Final = (
    "that is a service of an older version: use the command of that version, or start the service of this one instead"
)
_SQLITE_DAMAGE: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
"""What the names of such errors begin with."""


class StateError(LogDirError):
    """The service's file cannot be read or written: no room, no permission, or not ours."""


class Database:
    """Connections to one file; ``close`` it at the end.

    Args:
        path: of the file, which is made if there is none.
        is_service: whether no other process may be the service of this file until it is closed.

    Raises:
        LockedError: another process is its service, and so it can be neither that nor migrated.
        DataError: it is not such a file, is damaged, or was left by a newer version.
        StateError: it cannot be opened or written.

    """

    def __init__(self, path: Path, *, is_service: bool = False) -> None:
        self.path = path
        self._is_service = is_service
        self._lock = ExitStack()
        self._guard = threading.RLock()
        self._once_kept: list[Callable[[], None]] = []
        self._readers: list[sqlite3.Connection] = []
        """Connections that are not in use."""
        self._readers_guard = threading.Lock()
        self._is_closed = self._is_new = False
        self._damage: DataError | None = None
        """What SQLite has found in the file since it was opened."""
        with ExitStack() as at_failure, self._translate_errors():
            at_failure.push(self._lock)
            at_failure.callback(self._remove_unused)
            self._writer = at_failure.enter_context(closing(self._open()))
            if is_service:
                self._check()
            self._migrate()
            at_failure.pop_all()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Give the connection that writes, within a transaction: all of it is kept, or nothing if an error passes.

        Raises:
            StateError: there is no room, or the file cannot be written; nothing was changed.

        """
        with self._guard, self._translate_errors():
            if self._writer.in_transaction:  # a caller's caller has begun: its commit is ours
                yield self._writer
                return
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                self._once_kept.clear()
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            due, self._once_kept = self._once_kept, []
            for call in due:
                call()

    def once_kept(self, call: Callable[[], None]) -> None:
        """Within a transaction: run ``call`` when it is kept, before another begins; not at all if it is not."""
        self._once_kept.append(call)

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Give a connection for reading; what it sees within one statement is one commit."""
        with self._translate_errors():
            connection = self._reader()
            try:
                yield connection
            finally:
                self._put_back(connection)

    def rows(self, query: str, values: Sequence[Any] = ()) -> Iterator[sqlite3.Row]:
        """Yield what a query gives, as of one commit."""
        with self.read() as connection:
            yield from connection.execute(query, values)

    def row(self, query: str, values: Sequence[Any] = ()) -> sqlite3.Row | None:
        """Return the first row of what a query gives; None if there is none."""
        return next(self.rows(query, values), None)

    def probe(self) -> None:
        """Make sure that it can be written, and that no read or write has found it damaged.

        Raises:
            DataError: it is damaged.
            StateError: it cannot be written, or is not there any more: what is written then is lost with the process.

        """
        if self._damage is not None:
            raise self._damage
        with self._translate_errors():
            self.path.stat()
        with self.write() as connection:
            connection.execute("UPDATE probe SET times = times + 1")

    def close(self) -> None:
        """Close every connection; the file is then one, without a write-ahead log beside it."""
        with self._guard, self._readers_guard:
            if not self._is_closed:
                self._is_closed = True
                for connection in (*self._readers, self._writer):
                    connection.close()
                self._lock.close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Say what an error of SQLite, or of the disk, means here."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise  # of a row, not of the file: for who inserted it
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorname", "").startswith(_SQLITE_DAMAGE):
                self._damage = self._damage_error(str(error))
                raise self._damage from error
            raise StateError(
                f"{self.path}: {error}", hint="check free space, permissions, and which other process has it open"
            ) from error
        except OSError as error:
            raise StateError(
                f"{self.path}: {(error.strerror or str(error)).lower()}",
                hint="give --state-dir a place that can be written",
            ) from error

    def _check(self) -> None:
        """Read every page of the file once, up to the first fault; a gigabyte takes seconds.

        Raises:
            DataError: it is damaged.

        """
        found = self._writer.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise self._damage_error(str(found).strip())

    def _damage_error(self, found: str) -> DataError:
        return DataError(
            f"{self.path} is not a file of the service, or is damaged: {found}",
            hint="move it aside: the service starts with an empty history; what was shipped is not touched",
        )

    def _reader(self) -> sqlite3.Connection:
        with self._readers_guard:
            if self._readers:
                return self._readers.pop()
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _put_back(self, connection: sqlite3.Connection) -> None:
        with self._readers_guard:
            if not self._is_closed:
                self._readers.append(connection)
                return
        connection.close()

    def _open(self) -> sqlite3.Connection:
        """Return the connection that writes, to a file that is made if there is none."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._is_service:
            self._lock.enter_context(_no_service_at(self.path.parent, _ONE_SERVICE))
        # It records who did what, so other users must not read it.
        with suppress(FileExistsError):
            self.path.touch(mode=0o600, exist_ok=False)
            self._is_new = True
        return self._connect()

    def _remove_unused(self) -> None:
        """Remove the file that was made, but could not be filled, unless another process uses it by now."""
        if not self._is_new:
            return
        with suppress(ResnapError, sqlite3.Error, OSError), ExitStack() as alone:
            if not self._is_service:
                alone.enter_context(_no_service_at(self.path.parent, _ONE_SERVICE))
            with closing(self._connect()) as connection:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # fails beside others, and needs no room itself
                is_empty = self._version(connection) == 0
            if is_empty:
                for suffix in ("", "-wal", "-shm"):
                    self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def _connect(self) -> sqlite3.Connection:
        return _open_connection(self.path)

    def _version(self, connection: sqlite3.Connection) -> int:
        """Return the version of the file's schema.

        Raises:
            DataError: it is newer than what is known.

        """
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version > len(MIGRATIONS):
            raise DataError(
                f"{self.path} was left by a newer Resnap: its version is {version}, known is {len(MIGRATIONS)}",
                hint="run the newer version again, or give the service another --state-dir",
            )
        return version

    def _migrate(self) -> None:
        """Bring the file to this version's schema, step by step, each whole or not at all."""
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = FULL")
        if self._version(self._writer) == len(MIGRATIONS):
            return
        with ExitStack() as alone:
            if not self._is_service:
                alone.enter_context(_no_service_at(self.path.parent, _OLDER_SERVICE))
            while (version := self._version(self._writer)) < len(MIGRATIONS):
                with self.write() as connection:
                    for statement in _statements(MIGRATIONS[version]):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {version + 1}")


class DatabaseView(Database):
    """The file of a service as it is, which may be in use; read, and never changed.

    Raises:
        DataError: it is not such a file, is damaged, or was left by another version.
        StateError: it is not there, or cannot be read.

    """

    def _open(self) -> sqlite3.Connection:
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        return _open_connection(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)

    def _migrate(self) -> None:
        version = self._version(self._writer)
        if version < len(MIGRATIONS):
            raise DataError(
                f"{self.path} was left by an older Resnap: its version is {version}, known is {len(MIGRATIONS)}",
                hint="start the service of this version once, which brings the file up to date",
            )


@contextmanager
def _no_service_at(directory: Path, hint: str) -> Iterator[None]:
    try:
        with at_work_on(directory):
            yield
    except LockedError as error:
        raise LockedError(str(error), hint=hint) from error


def _open_connection(address: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(
        address, uri=uri, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    connection.row_factory = sqlite3.Row
    # Damaged text is a fault of its row, not of the statement.
    connection.text_factory = lambda data: data.decode(errors="replace")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def insert_row(connection: sqlite3.Connection, table: str, values: Mapping[str, object]) -> None:
    """Insert a row into ``table``, a name of ours, with ``values`` by column; what SQLite has no type for as JSON."""
    values = {name: value if _is_plain(value) else json.dumps(plain(value)) for name, value in values.items()}
    columns, marks = ", ".join(values), ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(values.values()))  # noqa: S608


def columns_of(value: DataclassInstance) -> dict[str, object]:
    """Return the fields of a value by name, for ``insert_row``."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int)


def from_row(kind: type[T], row: sqlite3.Row, /, **given: object) -> T:
    """Return the value that a row stands for: each of its fields is the column of that name, unless it is ``given``."""
    columns = {field.name: row[field.name] for field in fields(kind) if field.name not in given}
    return kind(**columns, **given)


def read_column(row: sqlite3.Row, column: str, read: Callable[[Any], V] = json.loads) -> V:
    """Return what ``read`` makes of a column.

    Raises:
        DataError: it is not what was written, though SQLite sees no damage, or of a release that knows more.

    """
    try:
        return read(row[column])
    except (ValueError, KeyError, TypeError) as error:
        first = row.keys()[0]
        raise DataError(
            f"{DATABASE_FILE} in the state directory: {column} of a row cannot be read ({first} {row[0]}): {error}",
            hint=UNREADABLE_ROW,
        ) from error


def _statements(script: str) -> Iterator[str]:
    """Yield the statements of a script; ``executescript`` would commit what it is to be part of."""
    found = ""
    for line in script.splitlines(keepends=True):
        found += line
        if sqlite3.complete_statement(found):
            yield found
            found = ""
