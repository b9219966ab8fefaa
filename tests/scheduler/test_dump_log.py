"""The form of Kafka's dump tool, against lines that the tool of 3.9.1 printed; tests/kafka/ has the tool itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.log.producer_snapshot import ProducerEntry, snapshot_bytes
from tests.scheduler.files import flip

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

FIRST: Final = "0" * 20
LINES: Final = {
    "payments-0/{}.log": (
        "Log starting offset: 0",
        (
            "baseOffset: 0 lastOffset: 0 count: 1 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1"
            " partitionLeaderEpoch: 0 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty"
            " position: 0 CreateTime: 1795225156110 size: 109 magic: 2 compresscodec: lz4 crc: 2121841163 isvalid: true"
        ),
    ),
    "legacy-0/{}.log": (
        "Log starting offset: 0",
        (
            "offset: 0 position: 0 NoTimestampType: -1 size: 177 magic: 0 compresscodec: none crc: 3730367816"
            " isvalid: true"
        ),
    ),
    "payments-0/{}.index": ("offset: 21 position: 1557", "offset: 28 position: 2680"),
    "payments-0/{}.timeindex": ("timestamp: 1795225156650 offset: 21", "timestamp: 1795225156958 offset: 28"),
    "payments-0/{}.txnindex": ("version: 0 producerId: 4 firstOffset: 30 lastOffset: 32 lastStableOffset: 33",),
}


@pytest.mark.parametrize("name", LINES)
def test_a_file_is_dumped_as_kafkas_tool_does(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], name: str
) -> None:
    path = fixture_set("kafka-2.7.2").data / name.format(FIRST)
    ran = command("inspect", path, "--output", "dump-log")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[: len(LINES[name]) + 1] == [f"Dumping {path}", *LINES[name]]


def test_entries_of_a_snapshot_with_and_without_a_batch_and_an_open_transaction(
    command: Resnap, tmp_path: Path
) -> None:
    path = tmp_path / f"{FIRST[:-1]}9.snapshot"
    path.write_bytes(
        snapshot_bytes(
            [ProducerEntry(4242, 3, 9, 610, 4, 1700000000123, 7, 555), ProducerEntry(5, 3, -1, -1, 0, 8, 7, -1)]
        )
    )
    ran = command("inspect", path, "--output", "dump-log")
    assert sorted(ran.out.split("\n")) == sorted([
        f"Dumping {path}",
        ("producerId: 4242 producerEpoch: 3 coordinatorEpoch: 7 currentTxnFirstOffset: OptionalLong[555]"
        " lastTimestamp: 1700000000123 firstSequence: 5 lastSequence: 9 lastOffset: 610 offsetDelta: 4"
        " timestamp: 1700000000123"),
        ("producerId: 5 producerEpoch: 3 coordinatorEpoch: 7 currentTxnFirstOffset: OptionalLong.empty"
        " lastTimestamp: 8 "),
        "",
    ])  # fmt: skip


def test_a_wrong_checksum_is_reported_and_the_dump_goes_on(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], writable_copy: Callable[[Path], Path]
) -> None:
    path = writable_copy(fixture_set("kafka-2.7.2").data / "payments-0" / f"{FIRST}.log")
    flip(path, 100)
    ran = command("inspect", path, "--output", "dump-log", "--limit", 3)
    assert ran.code == 0
    assert [line.rsplit(" ", 1)[1] for line in ran.out.splitlines()[2:]] == ["false", "true", "true"]


def test_what_kafkas_tool_does_not_know_is_refused(command: Resnap, fixture_set: Callable[[str], FixtureSet]) -> None:
    data = fixture_set("kafka-2.7.2").data
    ran = command("inspect", data / "replication-offset-checkpoint", "--output", "dump-log")
    assert (ran.code, "knows no offset-checkpoint" in ran.err) == (2, True)
    ran = command("scan", data, RESNAP_OUTPUT="dump-log")
    assert (ran.code, "only `resnap inspect` supports dump-log" in ran.err) == (2, True)
