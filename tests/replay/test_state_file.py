from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from resnap.replay.kernel.summary import SUMMARY_DTYPE
from resnap.replay.scan.splits import read_state, write_state
from resnap.storage.errors import FormatError, LogDirError

if TYPE_CHECKING:
    from pathlib import Path

    from resnap.replay.kernel.summary import Array


def rows(count: int) -> Array:
    state = np.zeros(count, dtype=SUMMARY_DTYPE)
    state["producer_id"] = np.arange(count)
    state["timestamp"] = np.arange(count) * 7
    return state


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_what_was_written_is_read(tmp_path: Path, count: int) -> None:
    kept = write_state(str(tmp_path / "new" / "folder"), "1.state", rows(count))
    assert kept is not None
    assert kept.rows == count
    assert np.array_equal(read_state(kept), rows(count))


def test_equal_states_are_one_file_and_others_are_others(tmp_path: Path) -> None:
    one, again, other = (write_state(str(tmp_path), "1.state", rows(count)) for count in (5, 5, 6))
    assert one == again
    assert other is not None
    assert len(list(tmp_path.iterdir())) == 2


def test_what_memory_held_between_the_fields_is_not_part_of_a_state(tmp_path: Path) -> None:
    clean, dirty = rows(5), np.frombuffer(bytearray(b"\xa5" * rows(5).nbytes), dtype=SUMMARY_DTYPE)
    for name in SUMMARY_DTYPE.names or ():
        dirty[name] = clean[name]
    assert dirty.tobytes() != clean.tobytes()
    assert write_state(str(tmp_path), "1.state", dirty) == write_state(str(tmp_path), "1.state", clean)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("position", [0, 9, 13, 17, 30, -1])
def test_a_changed_byte_is_found(tmp_path: Path, position: int) -> None:
    kept = write_state(str(tmp_path), "1.state", rows(3))
    assert kept is not None
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read_state(kept)
    assert str(path) in str(caught.value)


def test_a_file_cut_short_is_found_and_so_is_one_that_is_gone(tmp_path: Path) -> None:
    kept = write_state(str(tmp_path), "1.state", rows(3))
    assert kept is not None
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError):
        read_state(kept)
    path.unlink()
    with pytest.raises(LogDirError):
        read_state(kept)


def test_where_there_is_no_room_nothing_is_kept_and_nothing_left_behind(tiny_disk: Path) -> None:
    assert write_state(str(tiny_disk), "1.state", rows(20_000)) is None
    assert list(tiny_disk.iterdir()) == []


def test_on_a_read_only_disk_nothing_is_kept(read_only_disk: Path) -> None:
    assert write_state(str(read_only_disk / "states"), "1.state", rows(3)) is None
