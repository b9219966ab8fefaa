from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.disk import Disk
from resnap.storage.errors import FormatError, LogDirError
from resnap.tiering.controller.metadata.batches import LeaderChangeMessage, MetadataBatch, TornTail
from resnap.tiering.controller.metadata.log_files import list_metadata_log, read_checkpoint, read_metadata_log
from resnap.tiering.controller.metadata.records import MetadataRecord, ProducerIdsRecord, TopicRecord
from resnap.tiering.controller.metadata.writer import open_metadata_log
from tests.examples import examples
from tests.logs.metadata_checkpoint import checkpoint_bytes
from tests.tiering.controller.metadata.record_strategies import newest_records

if TYPE_CHECKING:
    from pathlib import Path

NEXT_BLOCK = ProducerIdsRecord(broker_id=1, broker_epoch=6, next_producer_id=1000)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "__cluster_metadata-0"


def parts(directory: Path) -> list[MetadataBatch | TornTail]:
    return list(read_metadata_log(list_metadata_log(directory)))


def messages(directory: Path) -> list[object]:
    return [record.message for part in parts(directory) if isinstance(part, MetadataBatch) for record in part.records]


@examples(30)  # each waits for the disk a few times
@given(appended=st.lists(st.lists(newest_records(), min_size=1, max_size=4), max_size=4))
def test_what_was_appended_is_read_back(
    appended: list[list[MetadataRecord]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("log") / "__cluster_metadata-0"
    with open_metadata_log(directory, leader_id=1, timestamp=7, segment_bytes=400) as log:
        offsets = [log.append(records, timestamp=8) for records in appended]
    found = [part for part in parts(directory) if isinstance(part, MetadataBatch)][1:]
    assert [part.header.base_offset for part in found] == offsets
    assert [[record.message for record in part.records] for part in found] == appended


def test_each_opening_begins_a_leader_epoch(directory: Path) -> None:
    for epoch in (1, 2, 3):
        with open_metadata_log(directory, leader_id=epoch * 10, timestamp=5) as log:
            assert log.leader_epoch == epoch
            log.append([NEXT_BLOCK], timestamp=6)
    leaders = [one.leader_id for one in messages(directory) if isinstance(one, LeaderChangeMessage)]
    assert leaders == [10, 20, 30]
    assert [part.leader_epoch for part in parts(directory) if isinstance(part, MetadataBatch)] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("torn", [b"\0" * 100, b"\0\0\0", b"\0\0\0\0\0\0\0\2"])
def test_opening_cuts_a_torn_end_off(torn: bytes, directory: Path) -> None:
    with open_metadata_log(directory, leader_id=1, timestamp=5) as log:
        log.append([NEXT_BLOCK], timestamp=6)
    segment = next(directory.glob("*.log"))
    whole = segment.read_bytes()
    segment.write_bytes(whole + torn)
    assert parts(directory)[-1] == TornTail(file=segment, position=len(whole), size_bytes=len(torn))
    with open_metadata_log(directory, leader_id=1, timestamp=7) as log:
        assert log.append([NEXT_BLOCK], timestamp=8) == 3
    assert segment.read_bytes().startswith(whole)
    assert all(isinstance(part, MetadataBatch) for part in parts(directory))


def test_a_damaged_log_is_not_opened_and_not_changed(directory: Path) -> None:
    with open_metadata_log(directory, leader_id=1, timestamp=5) as log:
        log.append([NEXT_BLOCK], timestamp=6)
    segment = next(directory.glob("*.log"))
    damaged = bytearray(segment.read_bytes())
    damaged[80] ^= 1
    segment.write_bytes(damaged)
    with (
        pytest.raises(FormatError, match="checksum"),
        open_metadata_log(directory, leader_id=1, timestamp=7),
    ):
        pass
    assert segment.read_bytes() == damaged


class FullDisk(Disk):
    """Takes so many bytes, and no more."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, descriptor: int, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = data[: self.room]
        self.room -= len(taken)
        return super().write(descriptor, taken)


def test_after_a_failed_append_nothing_more_is_appended_until_the_log_is_opened_again(directory: Path) -> None:
    with open_metadata_log(directory, leader_id=1, timestamp=5, disk=FullDisk(91 + 50)) as log:
        with pytest.raises(LogDirError, match="No space left on device"):
            log.append([NEXT_BLOCK], timestamp=6)
        with pytest.raises(LogDirError, match="an earlier append has failed"):
            log.append([NEXT_BLOCK], timestamp=6)
    assert parts(directory)[-1] == TornTail(file=next(directory.glob("*.log")), position=91, size_bytes=50)
    with open_metadata_log(directory, leader_id=1, timestamp=7) as log:
        assert log.append([NEXT_BLOCK], timestamp=8) == 2


def test_a_batch_that_no_quorum_would_append_is_refused(directory: Path) -> None:
    big = TopicRecord(name="x" * 32_000, topic_id="YMc4MP1-R6O2oJbmBbBiPg")
    with open_metadata_log(directory, leader_id=1, timestamp=5) as log:
        with pytest.raises(ValueError, match=r"a batch of \d+ bytes; a quorum appends at most 8388608 at once"):
            log.append([big] * 300, timestamp=6)
        log.append([NEXT_BLOCK], timestamp=6)


APPENDER = """
import sys
from pathlib import Path
from resnap.tiering.controller.metadata.records import ProducerIdsRecord
from resnap.tiering.controller.metadata.writer import open_metadata_log

with open_metadata_log(Path(sys.argv[1]), leader_id=1, timestamp=5, segment_bytes=2000) as log:
    number = 0
    while True:
        number += 1
        log.append([ProducerIdsRecord(broker_id=1, next_producer_id=number * 1000)], timestamp=6)
        print(number, flush=True)
"""


def test_what_was_acknowledged_survives_a_kill(directory: Path) -> None:
    for _ in range(3):
        before = len(messages(directory)) if directory.exists() else 0
        with subprocess.Popen(
            [sys.executable, "-c", APPENDER, directory], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            acknowledged = [process.stdout.readline() for _ in range(50)]
            process.send_signal(signal.SIGKILL)
            acknowledged += process.stdout.readlines()
        there = [one.next_producer_id for one in messages(directory)[before:] if isinstance(one, ProducerIdsRecord)]
        assert there == [number * 1000 for number in range(1, len(there) + 1)]
        assert len(there) >= len([line for line in acknowledged if line.endswith("\n")]) >= 50


def test_a_checkpoint_holds_its_records(tmp_path: Path) -> None:
    path = tmp_path / f"{5:020d}-{1:010d}.checkpoint"
    path.write_bytes(checkpoint_bytes([NEXT_BLOCK], epoch=1, timestamp=9))
    found = [record.message for batch in read_checkpoint(path) for record in batch.records]
    assert found[1:-1] == [NEXT_BLOCK]
