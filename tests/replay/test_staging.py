from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from resnap.replay.staging import DISCARD, DirectorySink, open_sink
from resnap.storage.errors import LogDirError
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE, load_snapshot
from tests.replay.memory_sink import MemorySink

if TYPE_CHECKING:
    from pathlib import Path

    from resnap.replay.kernel.summary import Array

PAYMENTS = TopicPartition("payments", 0)
KEY = "payments-0/00000000000000000042.snapshot"


def some_entries(count: int = 3) -> Array:
    entries = np.zeros(count, dtype=ENTRY_DTYPE)
    entries["producer_id"] = np.arange(count)
    return entries


def test_every_sink_gives_the_same_digest(tmp_path: Path) -> None:
    sinks = [DirectorySink(tmp_path), MemorySink(), open_sink(DISCARD), open_sink((tmp_path / "of url").as_uri())]
    assert len({sink.write(PAYMENTS, 42, some_entries()) for sink in sinks}) == 1
    assert (tmp_path / KEY).read_bytes() == (tmp_path / "of url" / KEY).read_bytes()


def test_what_stood_there_is_replaced(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path)
    sink.write(PAYMENTS, 42, some_entries(9))
    sink.write(PAYMENTS, 42, some_entries(2))
    assert list(load_snapshot(tmp_path / KEY)) == [0, 1]


def test_attempts_at_once_leave_one_whole_file_and_do_not_disturb_each_other(tmp_path: Path) -> None:
    sink, entries = DirectorySink(tmp_path), some_entries(20_000)
    with ThreadPoolExecutor(4) as attempts:
        digests = set(attempts.map(lambda _: sink.write(PAYMENTS, 42, entries), range(24)))
    assert len(digests) == 1
    assert len(load_snapshot(tmp_path / KEY)) == 20_000
    assert [path.name for path in (tmp_path / "payments-0").iterdir()] == ["00000000000000000042.snapshot"]


def test_a_destination_that_cannot_be_written_is_named_with_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "payments-0").touch()
    with pytest.raises(LogDirError) as caught:
        DirectorySink(tmp_path).write(PAYMENTS, 42, some_entries())
    assert str(caught.value).startswith(f"{tmp_path / 'payments-0'}: cannot be written")
    assert caught.value.hint


@pytest.mark.parametrize("url", [DISCARD, "memory://parts-of-one"])
def test_parts_without_a_place_to_wait_are_reported_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(LogDirError, match="no temporary directory") as caught:
        open_sink(url).write_parts(PAYMENTS, 42, [some_entries()], 3)
    assert "TMPDIR" in (caught.value.hint or "")


def test_parts_that_a_full_disk_does_not_hold_are_reported(monkeypatch: pytest.MonkeyPatch, tiny_disk: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tiny_disk))
    with pytest.raises(LogDirError, match="No space left") as caught:
        open_sink(DISCARD).write_parts(PAYMENTS, 42, [some_entries(50_000)], 50_000)
    assert caught.value.hint
    assert list(tiny_disk.iterdir()) == []
