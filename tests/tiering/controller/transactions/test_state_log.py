"""Who holds a producer id, by ``__transaction_state`` in a log dir; real brokers' are in ``tests/kafka``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError, UsageError
from resnap.storage.log.names import TopicPartition
from resnap.tiering.controller.transactions.metadata import TransactionState
from resnap.tiering.controller.transactions.state_log import (
    PartitionsSchema,
    TransactionLogValue,
    decode_record,
    read_transaction_states,
)
from tests.logs.transaction_log import encode_record, step, write_raw_segment, write_segment

if TYPE_CHECKING:
    from pathlib import Path

PAYMENTS = TopicPartition("payments", 0)
LONGS = st.integers(-(2**63), 2**63 - 1)
SHORTS = st.integers(-(2**15), 2**15 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
TOPICS = st.lists(
    st.builds(PartitionsSchema, topic=st.text(max_size=20), partition_ids=st.lists(INTS, max_size=3).map(tuple)),
    max_size=3,
).map(tuple)
VALUES = st.builds(
    TransactionLogValue,
    producer_id=LONGS,
    producer_epoch=SHORTS,
    transaction_timeout_ms=INTS,
    transaction_status=st.integers(0, 7),
    transaction_partitions=st.none() | TOPICS,
    transaction_last_update_timestamp_ms=LONGS,
    transaction_start_timestamp_ms=LONGS,
)


@given(name=st.text(max_size=30), value=st.none() | VALUES, version=st.integers(0, 1))
def test_what_is_written_is_read(name: str, value: TransactionLogValue | None, version: int) -> None:
    key, data = encode_record(name, value, version)
    found = decode_record(key, data)
    assert (found.transactional_id, found.value, found.is_unknown) == (name, value, False)


@given(value=VALUES, version=st.integers(0, 1), cut=st.integers(1, 20))
def test_bytes_that_are_cut_or_too_many_are_refused(value: TransactionLogValue, version: int, cut: int) -> None:
    key, data = encode_record("id", value, version)
    assert data is not None
    for wrong in (data[:-cut], data + bytes(cut)):
        with pytest.raises(FormatError):
            decode_record(key, wrong)
    with pytest.raises(FormatError):
        decode_record(key[:-1], data)


def test_the_last_record_of_an_id_counts_over_compacted_segments_and_partitions(tmp_path: Path) -> None:
    done = TransactionState.COMPLETE_COMMIT
    write_segment(tmp_path, 0, [(3, "a", step(1)), (9, "b", step(2)), (10, "c", step(3))], version=0)
    write_segment(tmp_path, 40, [(41, "a", step(1, done)), (57, "b", None), (60, "c", step(3, previous_producer_id=4))])
    write_segment(tmp_path, 0, [(0, "d", step(5, TransactionState.ONGOING, PAYMENTS, next_producer_id=6))], number=7)
    states = read_transaction_states([tmp_path])
    assert {name: one.state for name, one in states.transactions.items()} == {
        "a": done, "c": TransactionState.ONGOING, "d": TransactionState.ONGOING,
    }  # fmt: skip
    named = {number: one.transactional_id for number, one in states.by_producer_id().items()}
    assert named == {1: "a", 3: "c", 4: "c", 5: "d", 6: "d"}
    assert states.transactions["d"].partitions == {PAYMENTS}


def test_versions_of_later_releases_are_counted_and_passed_over(tmp_path: Path) -> None:
    key, value = encode_record("a", step(1), 1)
    assert value is not None
    write_raw_segment(
        tmp_path, 0, [(0, key, value), (1, b"\0\1" + key[2:], value), (2, encode_record("b", None, 1)[0], b"\0\2new")]
    )
    states = read_transaction_states([tmp_path])
    assert (states.transactions.keys(), states.unknown) == ({"a"}, 2)


def test_a_log_dir_without_the_topic_says_nothing_and_damage_is_named(tmp_path: Path) -> None:
    assert read_transaction_states([tmp_path]).transactions == {}
    path = write_segment(tmp_path, 0, [(0, "a", step(1)), (1, "a", step(1))])
    write_segment(tmp_path, 2, [])
    path.write_bytes(path.read_bytes()[:-3] + b"xyz")
    with pytest.raises(FormatError, match=str(path)):
        read_transaction_states([tmp_path])
    write_segment(tmp_path / "other", 0, [])
    with pytest.raises(UsageError, match="__transaction_state-0 lies in"):
        read_transaction_states([tmp_path, tmp_path / "other"])
