from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError
from resnap.storage.log.checkpoints import (
    LeaderEpoch,
    epochs_in,
    leader_epochs_up_to,
    read_leader_epochs,
    read_offset_checkpoint,
    write_leader_epochs,
    write_offset_checkpoint,
)
from resnap.storage.log.names import TopicPartition
from tests.cases import each

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet

EPOCHS = (LeaderEpoch(0, 0), LeaderEpoch(2, 15))

topic_partitions = st.builds(
    TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,30}", fullmatch=True), st.integers(0, 2**31 - 1)
)
ascending_epochs = st.builds(
    lambda epochs, starts: tuple(map(LeaderEpoch, sorted(epochs), sorted(starts))),
    st.sets(st.integers(0, 2**31 - 1), max_size=8),
    st.sets(st.integers(0, 2**63 - 1), max_size=8),
)


def offset_checkpoint(*entries: str, count: int | None = None) -> bytes:
    lines = ("0", str(len(entries) if count is None else count), *entries)
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.mark.parametrize("name", ["kafka-2.7.2", "kafka-3.9.1-kraft"])
def test_checkpoints_of_real_brokers_are_written_back_byte_for_byte(
    name: str, fixture_set: Callable[[str], FixtureSet]
) -> None:
    data = fixture_set(name).data
    offsets = (data / "replication-offset-checkpoint").read_bytes()
    epochs = [path.read_bytes() for path in data.glob("*/leader-epoch-checkpoint")]
    assert write_offset_checkpoint(read_offset_checkpoint(offsets)) == offsets
    assert epochs
    assert [write_leader_epochs(read_leader_epochs(text)) for text in epochs] == epochs


def test_an_offset_checkpoint_names_each_partition_with_its_offset(fixture_set: Callable[[str], FixtureSet]) -> None:
    text = (fixture_set("kafka-2.7.2").data / "replication-offset-checkpoint").read_bytes()
    offsets = read_offset_checkpoint(text)
    assert len(offsets) == 8
    assert offsets[TopicPartition("dash-ed.topic_1", 0)] == 1100
    assert offsets[TopicPartition("payments", 1)] == 978


@given(st.dictionaries(topic_partitions, st.integers(-(2**63), 2**63 - 1)))
def test_an_offset_checkpoint_round_trips(offsets: dict[TopicPartition, int]) -> None:
    assert read_offset_checkpoint(write_offset_checkpoint(offsets)) == offsets


@given(ascending_epochs)
def test_leader_epochs_round_trip(epochs: tuple[LeaderEpoch, ...]) -> None:
    assert read_leader_epochs(write_leader_epochs(epochs)) == epochs


@pytest.mark.parametrize("text", [b"", b"0", b"0\n", b"0\n0", b"0\n0\n"])
def test_a_file_without_entries_is_not_an_error(text: bytes) -> None:
    assert read_offset_checkpoint(text) == {}
    assert read_leader_epochs(text) == ()


def test_line_ends_and_spaces_may_be_of_any_kind_that_java_reads() -> None:
    text = b"0\r\n2\rtopicA\t0  1234 \r\ntopicA 1 +77"
    assert read_offset_checkpoint(text) == {TopicPartition("topicA", 0): 1234, TopicPartition("topicA", 1): 77}


def test_the_last_entry_of_a_partition_wins() -> None:
    assert read_offset_checkpoint(offset_checkpoint("a 0 1", "a 0 2")) == {TopicPartition("a", 0): 2}


@each(
    ("text", "position", "message"),
    [
        (b"1\n0\n", 0, "checkpoint version at byte 0: expected 0, found 1"),
        (b"\n0\n", 0, "checkpoint number at byte 0"),
        (b"zero\n0\n", 0, "found 'zero'"),
        (b"0\nmany\n", 2, "found 'many'"),
        (b"0\n 1\na 0 1\n", 2, "checkpoint number at byte 2"),
        (b"0\n" + b"9" * 5000, 2, "an integer of 32 bits"),
        (offset_checkpoint("a 0 1", count=2), 2, "checkpoint entry count at byte 2: expected 2 entries, found 1"),
        (offset_checkpoint("a 0 1", "b 0 1", count=1), 10, "checkpoint line after the last entry at byte 10"),
        (offset_checkpoint("a 0 1", count=-1), 5, "checkpoint line after the last entry at byte 5"),
        (
            offset_checkpoint("a 0 1", ""),
            10,
            "checkpoint entry at byte 10: expected topic, partition, offset, found ''",
        ),
        (offset_checkpoint("a 0 1", "a 1"), 10, "found 'a 1'"),
        (offset_checkpoint("a 0 1", "a 1 2 3"), 10, "found 'a 1 2 3'"),
        (offset_checkpoint(" a 0 1"), 4, "found ' a 0 1'"),
        (offset_checkpoint("a x 1"), 4, "an integer of 32 bits, found 'x'"),
        (offset_checkpoint("a 2147483648 1"), 4, "an integer of 32 bits"),
        (offset_checkpoint("a 0 1_0"), 4, "an integer of 64 bits, found '1_0'"),
        (offset_checkpoint("a 0 9223372036854775808"), 4, "an integer of 64 bits"),
        (b"0\n1\n\xff 0 1\n", 4, "a topic in UTF-8"),
    ],
)
def test_what_kafkas_reader_refuses_is_refused_with_the_place_of_the_line(
    text: bytes, position: int, message: str
) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read_offset_checkpoint(text)
    assert caught.value.position == position


@pytest.mark.parametrize("entry", ["-1 0", "0 -1", "0", "0 0 0", "x 0"])
def test_a_malformed_leader_epoch_is_refused_with_the_place_of_its_line(entry: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_leader_epochs(offset_checkpoint("0 0", entry))
    assert caught.value.position == 8


def test_a_damaged_line_is_shown_short_and_printable() -> None:
    with pytest.raises(FormatError) as caught:
        read_offset_checkpoint(b"0\n1\n\x1b\xff" + b"x" * 100_000)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("written", "held"),
    [
        (["0 0", "0 7"], [(0, 0)]),
        (["0 0", "1 7", "1 5"], [(0, 0), (1, 5)]),
        (["3 0", "1 10"], [(1, 10)]),
        (["0 0", "2 30", "3 40", "4 20"], [(0, 0), (4, 20)]),
        (["5 9", "6 9"], [(6, 9)]),
    ],
)
def test_a_later_leader_epoch_replaces_those_that_contradict_it(
    written: list[str], held: list[tuple[int, int]]
) -> None:
    assert read_leader_epochs(offset_checkpoint(*written)) == tuple(LeaderEpoch(*entry) for entry in held)


def test_the_bytes_shipped_for_a_segment_are_those_that_kafka_ships() -> None:
    shipped = write_leader_epochs(leader_epochs_up_to((*EPOCHS, LeaderEpoch(4, 20)), 20))
    assert shipped == bytes.fromhex("300a320a3020300a322031350a")


def test_what_is_shipped_keeps_all_history_before_the_segment() -> None:
    assert leader_epochs_up_to(EPOCHS, 16) == EPOCHS
    assert leader_epochs_up_to(EPOCHS, 15) == EPOCHS[:1]
    assert leader_epochs_up_to(EPOCHS, 0) == ()


@pytest.mark.parametrize(
    ("base", "end", "inside"),
    [
        (0, 10, [(0, 0)]),
        (10, 20, [(0, 10), (2, 15)]),
        (15, 20, [(2, 15)]),
        (17, 20, [(2, 17)]),
        (10, 15, [(0, 10)]),
        (10, 16, [(0, 10), (2, 15)]),
    ],
)
def test_the_epochs_of_a_segment_begin_at_its_base(base: int, end: int, inside: list[tuple[int, int]]) -> None:
    assert epochs_in(EPOCHS, base, end) == tuple(LeaderEpoch(*entry) for entry in inside)


def test_a_segment_that_begins_before_the_first_epoch_keeps_where_that_starts() -> None:
    later = (LeaderEpoch(3, 330), LeaderEpoch(4, 400))
    assert epochs_in(later, 300, 350) == (LeaderEpoch(3, 330),)
    assert epochs_in(later, 0, 300) == ()


@given(ascending_epochs, st.integers(0, 2**63 - 1), st.integers(1, 1000))
def test_every_offset_of_a_segment_has_the_same_epoch_in_both_lists(
    epochs: tuple[LeaderEpoch, ...], base: int, length: int
) -> None:
    def epoch_of(entries: tuple[LeaderEpoch, ...], offset: int) -> int | None:
        return max((entry.epoch for entry in entries if entry.start_offset <= offset), default=None)

    inside = epochs_in(epochs, base, base + length)
    assert all(base <= entry.start_offset < base + length for entry in inside)
    for offset in (base, base + length // 2, base + length - 1):
        assert epoch_of(inside, offset) == epoch_of(epochs, offset)
