"""``kafka_log`` with ``records``: what Kafka's own tool says of them is in ``tests/kafka/test_records.py``."""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan

from resnap.replay.spark.header_rows import read_header_rows, read_record_rows
from resnap.replay.spark.source import EVERYTHING, KafkaLogSource, Pruning, find_segments
from resnap.storage.errors import FormatError, UsageError
from resnap.storage.log.record_batch import LOG_APPEND_TIME, RecordBatchHeader, seal
from resnap.storage.messages.wire import write_varint
from tests.scheduler.files import flip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.fixture_sets import FixtureSet


def records_of(*paths: Path, by: Pruning = EVERYTHING) -> list[dict[str, Any]]:
    return [
        row for one in find_segments(paths, None, by) for batch in read_record_rows(one) for row in batch.to_pylist()
    ]


def test_each_batch_of_every_magic_and_codec_has_its_records(fixture_set: Callable[[str], FixtureSet]) -> None:
    data = fixture_set("kafka-2.7.2").data
    kinds = set()
    for topic in ("legacy-0", "payments-0", "orders-0"):
        rows = records_of(data / topic)
        of_batch = {where: list(found) for where, found in groupby(rows, itemgetter("segment", "position"))}
        heads = [
            row for one in find_segments([data / topic]) for batch in read_header_rows(one) for row in batch.to_pylist()
        ]
        for head in heads:
            found = of_batch.pop((head["segment"], head["position"]), [])
            offsets = [row["offset"] for row in found]
            if head["isControl"]:
                assert found == []
                continue
            kinds.add((head["magic"], head["compression"]))
            first = offsets[0] if head["baseOffset"] is None else head["baseOffset"]
            assert offsets == list(range(first, head["lastOffset"] + 1)), head
            assert max((row["timestamp"] for row in found), key=lambda at: at or -1) == head["maxTimestamp"]
        assert of_batch == {}
    old = {(magic, codec) for magic in (0, 1) for codec in ("none", "gzip", "snappy", "lz4")}
    assert kinds == old | {(2, codec) for codec in ("none", "gzip", "snappy", "lz4", "zstd")}


def record(key: bytes | None, value: bytes | None, *headers: tuple[bytes, bytes], delta: int) -> bytes:
    def field(data: bytes | None) -> bytes:
        return write_varint(-1) if data is None else write_varint(len(data)) + data

    body = b"\0" + write_varint(delta * 5) + write_varint(delta) + field(key) + field(value)
    body += write_varint(len(headers)) + b"".join(field(one) for header in headers for one in header)
    return write_varint(len(body)) + body


USUAL: Final = (
    record(b"k", b"value", delta=0),
    record(b"\xff\x00", None, delta=1),
    record(None, b"", (b"a", b"1"), (b"b", b"2"), delta=3),
)
"""A usual record, a tombstone, and one without key and with headers."""


def a_log(
    directory: Path, *, attributes: int = 0, records: Sequence[bytes] = USUAL, base_timestamp: int = 1000
) -> Path:
    """Write a segment of one batch."""
    header = RecordBatchHeader(
        base_offset=7, batch_length=0, partition_leader_epoch=0, magic=2, crc=0, attributes=attributes,
        last_offset_delta=3, base_timestamp=base_timestamp, max_timestamp=1015, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, records_count=len(records),
    )  # fmt: skip
    path = directory / "00000000000000000007.log"
    path.write_bytes(seal(header, b"".join(records)))
    return path


@given(
    records=st.lists(st.one_of(st.binary(max_size=30), st.sampled_from(USUAL)), max_size=4),
    attributes=st.integers(0, 7),
    base_timestamp=st.integers(-(1 << 63), (1 << 63) - 1),
)
@example(records=[record(b"", b"", delta=1)], attributes=0, base_timestamp=(1 << 63) - 1)
def test_any_records_below_a_right_checksum_give_rows_or_an_error_of_the_format(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], attributes: int, base_timestamp: int
) -> None:
    directory = tmp_path_factory.mktemp("any")
    path = a_log(directory, attributes=attributes, records=records, base_timestamp=base_timestamp)
    with suppress(FormatError):
        assert len(records_of(path)) == len(records)


def test_keys_sizes_and_headers_are_those_of_the_records(tmp_path: Path) -> None:
    common: dict[str, object] = {"topic": None, "partition": None, "segment": 7, "position": 0}
    rows = [
        common | {"offset": 7, "timestamp": 1000, "key": b"k", "valueSize": 5, "headersCount": 0},
        common | {"offset": 8, "timestamp": 1005, "key": b"\xff\x00", "valueSize": None, "headersCount": 0},
        common | {"offset": 10, "timestamp": 1015, "key": None, "valueSize": 0, "headersCount": 2},
    ]
    assert records_of(a_log(tmp_path)) == rows
    assert records_of(a_log(tmp_path, attributes=LOG_APPEND_TIME)) == [row | {"timestamp": 1015} for row in rows]


def test_damage_is_named_with_file_and_position(tmp_path: Path) -> None:
    path = a_log(tmp_path)
    flip(path, 70)
    with pytest.raises(FormatError, match=r"00000000000000000007\.log: record batch checksum"):
        records_of(path)
    with pytest.raises(FormatError, match=r"00000000000000000007\.log: compressed records at byte 0"):
        records_of(a_log(tmp_path, attributes=4))


def test_filters_of_offsets_and_times_leave_out_segments(fixture_set: Callable[[str], FixtureSet]) -> None:
    payments = fixture_set("kafka-2.7.2").data / "payments-0"
    rows = records_of(payments)
    wanted = rows[len(rows) // 2]
    found = records_of(payments, by=Pruning((EqualTo(("offset",), wanted["offset"]),)))
    assert wanted in found
    assert len({row["segment"] for row in found}) == 1
    newest = max(row["timestamp"] for row in rows)
    late = records_of(payments, by=Pruning((GreaterThan(("timestamp",), newest - 1),)))
    assert {row["offset"] for row in rows if row["timestamp"] == newest} <= {row["offset"] for row in late}
    assert len(late) < len(rows)


def test_the_option_is_true_or_false() -> None:
    assert "`key` binary" in KafkaLogSource({"path": "/a", "records": "True"}).schema()
    assert "`key`" not in KafkaLogSource({"path": "/a", "records": "false"}).schema()
    with pytest.raises(UsageError, match="the option records is 'yes'"):
        KafkaLogSource({"path": "/a", "records": "yes"}).schema()
