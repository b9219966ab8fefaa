from __future__ import annotations

import shutil
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError, UsageError
from resnap.storage.log.log_dir import load_partition_dir
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster_state.group_offsets import (
    OFFSETS_TOPIC,
    CommittedOffset,
    OffsetsPartition,
    decode_key,
    decode_share_group,
    decode_value,
    read_group_offsets,
)
from resnap.tiering.cluster_state.state import read_current_offsets
from tests.logs.offsets_log import OffsetsLog, key_of, value_of

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = TopicPartition("payments", 0), TopicPartition("payments", 1)
KEY: Final = key_of("billing", FIRST)
MEMBERS: Final = b"\0\2" + struct.pack(">h", 7) + b"billing"
"""The key of a record about the members of a group."""


def value(offset: int) -> bytes:
    return value_of(CommittedOffset(offset))


@dataclass
class Written:
    log: OffsetsLog
    directory: Path

    def read(self) -> OffsetsPartition:
        self.log.write(self.directory)
        return read_group_offsets(load_partition_dir(self.directory / f"{OFFSETS_TOPIC}-0"))

    def offset(self) -> int | None:
        groups = self.read().groups
        return groups["billing"][FIRST].offset if "billing" in groups else None


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(OffsetsLog(), tmp_path)


TEXT: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
INT64: Final = st.integers(-(2**63), 2**63 - 1)


@given(TEXT, TEXT, st.integers(0, 2**31 - 1), st.integers(0, 1))
def test_every_key_is_read_back(group: str, topic: str, partition: int, version: int) -> None:
    there = TopicPartition(topic, partition)
    assert decode_key(key_of(group, there, version)) == (group, there)


@given(st.builds(CommittedOffset, INT64, st.integers(-(2**31), 2**31 - 1), TEXT), st.integers(0, 4))
def test_every_version_of_a_value_is_read_back(committed: CommittedOffset, version: int) -> None:
    expected = committed if version >= 3 else committed._replace(leader_epoch=-1)
    assert decode_value(value_of(committed, version)) == expected


@given(st.binary(max_size=60))
def test_bytes_that_are_no_offset_are_refused(data: bytes) -> None:
    for decode in (decode_key, decode_value, decode_share_group):
        try:
            decode(data)
        except FormatError:
            continue


def test_a_version_of_a_later_release_is_refused_and_its_file_named(written: Written) -> None:
    written.log.records((KEY, b"\0\5" + bytes(20)))
    with pytest.raises(FormatError, match="version of a committed offset") as caught:
        written.read()
    assert str(caught.value.file).endswith(f"{0:020d}.log")


def test_the_values_of_brokers_are_read() -> None:
    key = bytes.fromhex("0001000762696c6c696e6700087061796d656e747300000000")
    of_3_9 = bytes.fromhex("0003000000000000000affffffff000568656c6c6f000001a21b7b8643")
    of_4_4 = bytes.fromhex(
        "0004000000000000000affffffff0668656c6c6f000001a21b7c702a0100108f81dd76d6e946968dda365c76bbb719"
    )  # with the topic's id in a tagged field
    assert decode_key(key) == ("billing", FIRST)
    assert decode_value(of_3_9) == decode_value(of_4_4) == CommittedOffset(10, metadata="hello")


@pytest.mark.parametrize("codec", [0, 1], ids=["none", "gzip"])
def test_the_last_commit_counts_whatever_compresses_it(written: Written, codec: int) -> None:
    other = key_of("billing", SECOND)
    written.log.records((KEY, value(1)), (other, value(5)), (MEMBERS, b"\0\3members"), codec=codec)
    written.log.records((KEY, value(2)), codec=codec)
    found = written.read()
    assert found.groups == {"billing": {FIRST: CommittedOffset(2), SECOND: CommittedOffset(5)}}
    assert (found.partition, found.end_offset) == (0, 4)


def test_share_groups_are_named_until_they_are_deleted(written: Written) -> None:
    """The records of a group whose member has left, as 4.4.0 wrote them."""
    member = bytes.fromhex("000a00077368617265727300164536") + b"mkhYuvQran9X3Vp8RClg"
    group, target = bytes.fromhex("000b000773686172657273"), bytes.fromhex("000c000773686172657273")
    written.log.records((member, b"\0\0"), (group, bytes.fromhex("00000000000258546fd355ebace300")), (KEY, value(1)))
    written.log.records((member, None), (group, bytes.fromhex("000000000003000000000000000000")), (target, b"\0\0"))
    found = written.read()
    assert (found.share_groups, list(found.groups)) == (("sharers",), ["billing"])
    written.log.records((group, None))
    assert written.read().share_groups == ()


Step = tuple[str, int]
STEPS: Final = st.lists(
    st.tuples(st.sampled_from(["plain", "remove", "in 7", "in 8", "commit 7", "abort 7", "commit 8"]), INT64),
    max_size=12,
)


@given(STEPS)
@example([("plain", 1), ("remove", 0)])
@example([("plain", 1), ("in 7", 2)])
@example([("plain", 1), ("in 7", 2), ("commit 8", 0)])
@example([("plain", 1), ("in 7", 2), ("commit 8", 0), ("commit 7", 0)])
@example([("in 7", 2), ("abort 7", 0), ("commit 7", 0)])
@example([("in 7", 2), ("plain", 1), ("commit 7", 0)])
@example([("in 7", 2), ("remove", 0), ("commit 7", 0)])
def test_any_log_amounts_to_what_a_coordinator_makes_of_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    log = OffsetsLog()
    coordinator: dict[str, tuple[int, int]] = {}
    for number, (step, offset) in enumerate(steps):
        word, _, producer = step.partition(" ")
        if step == "remove":
            log.records((KEY, None))
            coordinator = {}
        elif step == "plain":
            log.records((KEY, value(offset)))
            coordinator["stable"] = (number, offset)
        elif word == "in":
            log.records((KEY, value(offset)), producer=int(producer))
            coordinator[producer] = (number, offset)
        else:
            log.marker(int(producer), commit=word == "commit")
            ended = coordinator.pop(producer, None)
            if ended is not None and word == "commit":
                coordinator["stable"] = max(coordinator.get("stable", ended), ended)
    found = Written(log, tmp_path_factory.mktemp("log")).offset()
    assert found == (coordinator["stable"][1] if "stable" in coordinator else None)


def test_a_batch_that_a_broker_is_writing_waits(written: Written) -> None:
    written.log.records((KEY, value(1)))
    written.log.records((KEY, value(2)))
    del written.log.data[-5:]
    assert written.offset() == 1


def test_a_partition_is_listed_again_if_compaction_has_deleted_a_segment(written: Written) -> None:
    written.log.records((KEY, value(1)))
    old = written.log.write(written.directory)
    stale = load_partition_dir(old.parent)
    old.unlink()
    written.log.records((KEY, value(2)))
    written.log.write(written.directory, base_offset=1)
    assert read_current_offsets(stale).groups == {"billing": {FIRST: CommittedOffset(2)}}
    shutil.rmtree(old.parent)
    with pytest.raises(UsageError, match="does not exist"):
        read_current_offsets(stale)


def test_damage_is_named_with_its_file(written: Written) -> None:
    written.log.records((KEY, value(1)))
    written.log.data[-1] ^= 1
    with pytest.raises(FormatError, match="checksum") as caught:
        written.read()
    assert str(caught.value.file).endswith(f"{0:020d}.log")
