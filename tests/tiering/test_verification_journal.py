"""The journal of a verification: whatever is in its file costs reading only."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.stores.protocol import ObjectInfo
from resnap.tiering.verifying.verification_journal import KEPT_MS, VerificationJournal

if TYPE_CHECKING:
    import pytest

NOW_MS = 1_700_000_000_000
ONE = ObjectInfo(key="a/b.manifest", size_bytes=1, modified_ms=1, etag="x")


def opened(directory: Path, *, now_ms: int = NOW_MS, fresh: bool = False) -> VerificationJournal:
    return VerificationJournal.open(directory, "file:///s", now_ms=now_ms, fresh=fresh, warn=print)


def test_what_was_noted_is_known_to_the_next_run_until_the_end(tmp_path: Path) -> None:
    opened(tmp_path).note(ONE)
    again = opened(tmp_path, now_ms=NOW_MS + 5)
    assert (again.has(ONE), again.begun_ms) == (True, NOW_MS)
    again.end()
    assert not opened(tmp_path).has(ONE)


def test_it_is_of_one_store_one_version_of_a_manifest_and_some_days(tmp_path: Path) -> None:
    opened(tmp_path).note(ONE)
    other = VerificationJournal.open(tmp_path, "file:///t", now_ms=NOW_MS, fresh=False, warn=print)
    assert not other.has(ONE)
    assert not opened(tmp_path).has(ObjectInfo(key=ONE.key, size_bytes=1, modified_ms=1, etag="y"))
    assert not opened(tmp_path, now_ms=NOW_MS + KEPT_MS).has(ONE)


def test_after_a_clock_was_set_back_the_journal_begins_again(tmp_path: Path) -> None:
    opened(tmp_path).note(ONE)
    assert not opened(tmp_path, now_ms=NOW_MS - 1).has(ONE)


def test_fresh_forgets(tmp_path: Path) -> None:
    opened(tmp_path).note(ONE)
    assert not opened(tmp_path, fresh=True).has(ONE)
    assert not opened(tmp_path).has(ONE)


def test_where_nothing_can_be_kept_it_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    journal = opened(tmp_path / "file")
    journal.note(ONE)
    journal.end()
    assert capsys.readouterr().out.count("cannot be saved") == 1


def test_a_journal_that_cannot_be_removed_is_only_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = opened(tmp_path)
    [path] = tmp_path.iterdir()
    path.unlink()
    path.mkdir()
    journal.end()
    assert "--fresh reads everything again" in capsys.readouterr().out


@given(st.binary(max_size=200), st.booleans())
def test_garbage_counts_as_nothing(garbage: bytes, after_a_head: bool) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        opened(directory)
        [path] = directory.iterdir()
        path.write_bytes(path.read_bytes() * after_a_head + garbage)
        journal = opened(directory)
        assert not journal.has(ONE)
        journal.note(ONE)
        assert opened(directory).has(ONE) or garbage[-1:] not in {b"\n", b""}


def test_a_pipe_in_the_place_of_its_file_is_not_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    opened(tmp_path)
    (path,) = tmp_path.iterdir()
    path.unlink()
    os.mkfifo(path)
    journal = VerificationJournal.open(tmp_path, "file:///s", now_ms=NOW_MS, fresh=False, warn=said.append)
    journal.note(ONE)
    assert len(said) == 1
    assert str(path) in said[0]
