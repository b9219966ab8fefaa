"""What manifest, leader epochs and time index of a segment in the layout ``aiven`` say, against its batches."""

from __future__ import annotations

import shutil
import struct
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.scheduler import aiven_files
from tests.scheduler.files import file_at
from tests.scheduler.test_aiven_restore import restored

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

    Sets = Callable[[str], FixtureSet]

TWO_EPOCHS: Final = "kafka-3.9.1-aiven-heuristic"
"""Leader epoch 2 begins at offset 459, inside a segment of ``payments-0``."""
PLAIN: Final = "kafka-3.9.1-aiven-plain"
HOW: Final = ("--engine", "local", "--as-of", "roll", "--output", "json", "-q")
TIME: Final = struct.Struct(">qi")


def last(store: Path) -> Path:
    return aiven_files.manifests(store)[-1]


def checkpoint_begins_later(store: Path) -> Path:
    checkpoint = aiven_files.index(last(store), "leaderEpoch")
    aiven_files.put_index(last(store), "leaderEpoch", checkpoint.replace(b"2 459", b"2 469"))
    return last(store)


def checkpoint_has_another_epoch(store: Path) -> Path:
    checkpoint = aiven_files.index(last(store), "leaderEpoch")
    aiven_files.put_index(last(store), "leaderEpoch", checkpoint.replace(b"2 459", b"3 459"))
    return last(store)


def checkpoint_knows_one_epoch_more(store: Path) -> Path:
    aiven_files.put_index(last(store), "leaderEpoch", b"0\n3\n0 0\n1 200\n2 459\n")
    return last(store)


def manifest_says_another_epoch(store: Path) -> Path:
    said = aiven_files.read(last(store))
    epochs = said["remoteLogSegmentMetadata"]["segmentLeaderEpochs"]
    epochs["7"] = epochs.pop("2")
    aiven_files.write(last(store), said)
    return last(store)


def manifest_says_another_timestamp(store: Path) -> Path:
    said = aiven_files.read(last(store))
    said["remoteLogSegmentMetadata"]["maxTimestampMs"] += 1
    aiven_files.write(last(store), said)
    return last(store)


def an_entry_of_the_time_index_is_later(store: Path) -> Path:
    entries = bytearray(aiven_files.index(last(store), "timestamp"))
    timestamp, offset = TIME.unpack_from(entries, TIME.size)
    TIME.pack_into(entries, TIME.size, timestamp + 1, offset)
    aiven_files.put_index(last(store), "timestamp", bytes(entries))
    return last(store)


CHECKPOINTS: Final = [checkpoint_begins_later, checkpoint_has_another_epoch, checkpoint_knows_one_epoch_more]
MANIFESTS: Final = [manifest_says_another_epoch, manifest_says_another_timestamp]


@pytest.mark.parametrize("change", [*CHECKPOINTS, *MANIFESTS, an_entry_of_the_time_index_is_later])
def test_what_the_batches_contradict_is_named(
    change: Callable[[Path], Path], command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture = fixture_set(TWO_EPOCHS)
    store = shutil.copytree(fixture.remote, tmp_path / "store")
    changed = change(store)
    ran = command("verify", "--store", store.as_uri(), *HOW)
    wrong = [row["manifest"] for row in ran.document["segments"] if row["result"] == "different"]
    assert (ran.code, [changed.name in name for name in wrong]) == (13, [True]), ran.err
    back = restored(command, fixture, store, tmp_path / "new")
    is_written = change not in MANIFESTS  # what is restored does not depend on them
    assert (back.code, (tmp_path / "new" / "payments-0").exists()) == ((3, False) if is_written else (0, True)), (
        back.err
    )


def test_a_checkpoint_that_the_batches_contradict_is_not_shipped(
    command: Resnap, fixture_set: Sets, writable_copy: Any, tmp_path: Path
) -> None:
    log_dir = writable_copy(fixture_set(TWO_EPOCHS).data)
    checkpoint = log_dir / "payments-0" / "leader-epoch-checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes().replace(b"2 459", b"2 449"))
    ran = command("tier", log_dir, "--to", (tmp_path / "store").as_uri(), "--topic", "payments", *HOW)
    (refused,) = [one for one in ran.document["partitions"][0]["refused"] if one["reason"] == "leader-epochs-wrong"]
    assert ran.code == 3
    assert "a batch is of leader epoch 0, leader-epoch-checkpoint says 2" in refused["detail"]


def test_a_time_index_with_wrong_entries_is_rebuilt_for_a_store(
    command: Resnap, fixture_set: Sets, writable_copy: Any, tmp_path: Path
) -> None:
    log_dir = writable_copy(fixture_set(PLAIN).data)
    path = file_at(log_dir / "payments-0", 0, "timeindex")
    entries = bytearray(path.read_bytes())
    timestamp, offset = TIME.unpack_from(entries, TIME.size)
    TIME.pack_into(entries, TIME.size, timestamp + 1, offset)
    path.write_bytes(bytes(entries))
    ran = command("tier", log_dir, "--to", (tmp_path / "store").as_uri(), "--topic", "payments", *HOW)
    assert ran.code == 0, ran.err
    (shipped,) = [one for one in (tmp_path / "store").rglob(f"{0:020d}-*.timeindex") if one.parent.name == "0"]
    assert bytes(entries) != shipped.read_bytes()
    assert (timestamp + 1) not in [stamp for stamp, _ in TIME.iter_unpack(shipped.read_bytes())]
