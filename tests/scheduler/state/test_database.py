"""The service's file: whole transactions, migrations, and plain words for what goes wrong with it."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.state import database
from resnap.scheduler.state.database import Database, StateError, insert_row
from resnap.scheduler.state.schema import MIGRATIONS
from resnap.storage.errors import DataError, LockedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Database]:
    found = Database(tmp_path / "state" / "service.db")
    yield found
    found.close()


def schedules(found: Database) -> list[str]:
    with found.read() as connection:
        return [row["name"] for row in connection.execute("SELECT name FROM schedules ORDER BY name")]


def test_what_was_committed_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    first = Database(tmp_path / "service.db")
    with first.write() as connection:
        insert_row(connection, "schedules", {"name": "hourly"})
    first.close()
    again = Database(tmp_path / "service.db")
    assert schedules(again) == ["hourly"]
    again.close()


def test_a_transaction_that_fails_leaves_nothing(opened: Database) -> None:
    with suppress(RuntimeError), opened.write() as connection:
        insert_row(connection, "schedules", {"name": "hourly"})
        raise RuntimeError
    assert schedules(opened) == []


def test_a_transaction_within_another_is_part_of_it(opened: Database) -> None:
    with suppress(RuntimeError), opened.write() as outer:
        insert_row(outer, "schedules", {"name": "hourly"})
        with opened.write() as inner:
            insert_row(inner, "schedules", {"name": "daily"})
        raise RuntimeError
    assert schedules(opened) == []


def test_readers_see_the_last_commit_while_a_transaction_is_open(opened: Database) -> None:
    seen: list[list[str]] = []
    with opened.write() as connection:
        insert_row(connection, "schedules", {"name": "hourly"})
        reader = threading.Thread(target=lambda: seen.append(schedules(opened)))
        reader.start()
        reader.join()
    assert seen == [[]]
    assert schedules(opened) == ["hourly"]


def test_a_reader_cannot_write(opened: Database) -> None:
    with pytest.raises(StateError), opened.read() as connection:
        connection.execute("DELETE FROM schedules")


def test_a_migration_that_fails_halfway_leaves_the_version_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Database(tmp_path / "service.db").close()
    broken = "CREATE TABLE more (id TEXT);\nCREATE TABLE more (id TEXT);\n"
    monkeypatch.setattr(database, "MIGRATIONS", (*MIGRATIONS, broken))
    with pytest.raises(StateError):
        Database(tmp_path / "service.db")
    monkeypatch.setattr(database, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE more (id TEXT);\n"))
    Database(tmp_path / "service.db").close()
    with sqlite3.connect(tmp_path / "service.db") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)


def test_what_older_versions_called_partitions_becomes_a_verdict_and_what_unblocks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(database, "MIGRATIONS", MIGRATIONS[:4])
        Database(tmp_path / "service.db").close()
    words = ("ready", "shipped", "prepared", "blocked", "unfit", "excluded")
    with sqlite3.connect(tmp_path / "service.db") as connection:
        for word in words:
            connection.execute(
                "INSERT INTO partitions (source, topic, partition, readiness, missing, row, scanned_ms)"
                " VALUES ('/a', ?, 0, ?, 0, '{}', 1)",
                (word, word),
            )
    opened = Database(tmp_path / "service.db")
    with opened.read() as connection:
        found = {
            row["topic"]: (row["verdict"], row["unblocked_by"])
            for row in connection.execute("SELECT * FROM partitions")
        }
    opened.close()
    assert found == {
        "ready": ("ready", None), "excluded": ("never", None), "shipped": ("blocked", "announce"),
        "prepared": ("blocked", "install"), "blocked": ("blocked", "rebuild"), "unfit": ("blocked", "other"),
    }  # fmt: skip


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    Database(tmp_path / "service.db").close()
    with sqlite3.connect(tmp_path / "service.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(DataError, match="newer Resnap") as caught:
        Database(tmp_path / "service.db")
    assert "--state-dir" in str(caught.value.hint)


def test_a_newer_service_beside_one_at_work_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = Database(tmp_path / "service.db", is_service=True)
    monkeypatch.setattr(database, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE more (id TEXT);\n"))
    for is_service, hint in ((True, "another --state-dir"), (False, "of an older version")):
        with pytest.raises(LockedError, match=f"process {os.getpid()}") as caught:
            Database(tmp_path / "service.db", is_service=is_service)
        assert hint in str(caught.value.hint)
    with at_work.read() as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
    at_work.close()
    Database(tmp_path / "service.db", is_service=True).close()


def test_a_command_of_the_same_version_works_beside_the_service(tmp_path: Path) -> None:
    at_work = Database(tmp_path / "service.db", is_service=True)
    beside = Database(tmp_path / "service.db")
    with beside.write() as connection:
        insert_row(connection, "schedules", {"name": "hourly"})
    assert schedules(at_work) == ["hourly"]
    beside.close()
    at_work.close()


def test_a_service_that_could_not_open_its_file_keeps_no_other_out(tmp_path: Path) -> None:
    (tmp_path / "service.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(DataError):
        Database(tmp_path / "service.db", is_service=True)
    (tmp_path / "service.db").unlink()
    Database(tmp_path / "service.db", is_service=True).close()


def damage(path: Path) -> None:
    """Overwrite the first bytes of the table of runs, where SQLite says which entries it has."""
    with sqlite3.connect(path) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'runs'").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 40)


def test_a_damaged_file_does_not_begin_a_service(tmp_path: Path) -> None:
    path = tmp_path / "service.db"
    Database(path).close()
    damage(path)
    with pytest.raises(DataError, match=r"service\.db is not a file of the service, or is damaged") as caught:
        Database(path, is_service=True)
    assert "move it aside" in str(caught.value.hint)
    path.rename(tmp_path / "aside")
    Database(path, is_service=True).close()


def test_damage_that_a_read_finds_makes_a_service_not_ready(tmp_path: Path) -> None:
    path = tmp_path / "service.db"
    Database(path).close()
    opened = Database(path, is_service=True)
    opened.probe()
    damage(path)
    with pytest.raises(DataError), opened.read() as connection:
        connection.execute("SELECT * FROM runs").fetchall()
    with pytest.raises(DataError, match="damaged"):
        opened.probe()
    opened.close()


def test_a_file_that_is_not_there_any_more_makes_a_service_not_ready_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "state" / "service.db"
    opened = Database(path, is_service=True)
    opened.probe()
    path.parent.rename(tmp_path / "away")
    with pytest.raises(StateError, match=r"service\.db: no such file"):
        opened.probe()
    (tmp_path / "away").rename(path.parent)
    opened.probe()
    opened.close()


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "service.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(DataError, match=r"service\.db is not a file of the service"):
        Database(tmp_path / "service.db")


def test_a_place_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(StateError, match="exists"):
        Database(tmp_path / "state" / "service.db")


def test_only_its_user_may_read_it(opened: Database) -> None:
    assert opened.path.stat().st_mode & 0o777 == 0o600


def test_the_audit_is_only_appended_to(opened: Database) -> None:
    entry = dict.fromkeys(("principal", "role", "action", "resource", "outcome", "detail"), "x")
    with opened.write() as connection:
        insert_row(connection, "audit", {"at_ms": 1, **entry})
    for statement in ("UPDATE audit SET principal = 'y'", "DELETE FROM audit"):
        with pytest.raises(sqlite3.IntegrityError, match="only appended"), opened.write() as connection:
            connection.execute(statement)


def test_who_refers_to_a_deleted_row_is_found_without_reading_the_table(opened: Database) -> None:
    """Without an index each deleted run reads all runs: of 10,000 that expire at once all writers wait for minutes."""
    query = """SELECT tables.name, reference."from" FROM sqlite_schema AS tables, pragma_foreign_key_list(tables.name)
               AS reference WHERE tables.type = 'table'"""
    with opened.read() as connection:
        references = [tuple(row) for row in connection.execute(query)]
        plans = {
            (table, column): connection.execute(
                f"EXPLAIN QUERY PLAN SELECT 1 FROM {table} WHERE {column} = ?",  # noqa: S608 - the schema's own names
                ("",),
            ).fetchone()["detail"]
            for table, column in references
        }
    assert ("runs", "retry_of") in references
    assert [reference for reference, plan in plans.items() if not plan.startswith("SEARCH")] == []
