"""``kafka_log`` with ``records``: what Kafka's own tool says of them is in ``tests/kafka/test_records.py``."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan

from resnap.replay.spark.header_rows import DAMAGE, read_header_rows
from resnap.replay.spark.record_rows import _binary, _field_arrays, _fields, _parse_records, read_record_rows
from resnap.replay.spark.source import EVERYTHING, KafkaLogSource, Pruning, find_segments
from resnap.storage.errors import FormatError, UsageError
from resnap.storage.log.record import read_client_records
from resnap.storage.log.record_batch import (
    CONTROL,
    HEADER,
    LOG_APPEND_TIME,
    RecordBatchHeader,
    compression_name,
    read_header,
    seal,
)
from resnap.storage.messages.wire import write_varint
from resnap.storage.sources.files import PLAIN
from tests.builders import a_partition
from tests.fixture_sets import NAMES
from tests.logs.batch_builder import write_data_batch
from tests.logs.log_writer import PartitionWriter
from tests.scheduler.files import flip
from tests.storage.log.test_compression import compressed
from tests.strategies import DataEvent, Event, LegacyEvent, MarkerEvent, PlainEvent, histories

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from resnap.replay.spark.header_rows import LogSegment
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


def record(key: bytes | None, value: bytes | None, *headers: tuple[bytes, bytes | None], delta: int) -> bytes:
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


def append(writer: PartitionWriter, value: bytes, codec: int) -> None:
    """Append a batch of one record, compressed."""
    plain = write_data_batch(offset=writer.next_offset, values=[value], timestamps=1)
    header, records = read_header(plain), compressed(plain[HEADER.size :], compression_name(codec))
    writer.append_batch(seal(header._replace(attributes=header.attributes | codec), records))


KINDS: Final = (0, 0, 0, LOG_APPEND_TIME, CONTROL, 1, 2, 3, 4)
"""Attributes of batches; the last four are those of codecs."""


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


@given(
    batches=st.lists(
        st.tuples(
            st.sampled_from([0, 0, 0, LOG_APPEND_TIME, CONTROL, 1, 2, 3, 4]), st.integers(0, 3), st.integers(0, 5)
        ),
        min_size=1,
        max_size=12,
    ),
    start=st.integers(0, 30),
    damage=st.none() | st.tuples(st.integers(0, 10_000), st.integers(1, 255)),
    columns=st.sampled_from(
        [
            ("offset", "timestamp", "key", "value", "headers"),
            ("position", "committed"),
            ("offset",),
        ]
    ),
)
def test_batches_that_are_read_together_give_the_rows_of_each(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[int, int, int]],
    start: int,
    damage: tuple[int, int] | None,
    columns: tuple[str, ...],
) -> None:
    content, offset = bytearray(), 0
    for attributes, count, said in batches:
        header = RecordBatchHeader(
            base_offset=offset, batch_length=0, partition_leader_epoch=0, magic=2, crc=0, attributes=attributes,
            last_offset_delta=3, base_timestamp=1000, max_timestamp=1015, producer_id=-1, producer_epoch=-1,
            base_sequence=-1, records_count=count if said else 9,
        )  # fmt: skip
        codec = "none" if said == 1 else compression_name(attributes)
        content += seal(header, compressed(b"".join(USUAL[:count]), codec))
        offset += 4
    if damage is not None:
        content[damage[0] % len(content)] ^= damage[1]
    path = tmp_path_factory.mktemp("together") / f"{0:020d}.log"
    path.write_bytes(content)
    (segment,) = find_segments([path])

    def rows() -> list[dict[str, Any]]:
        late, names = replace(segment, log_start_offset=start), (*columns, DAMAGE.name)
        return [row for one in read_record_rows(late, PLAIN, names, skips_damage=True) for row in one.to_pylist()]

    with patch("resnap.replay.spark.record_rows.are_intact", return_value=False):
        each = rows()
    assert sorted(rows(), key=str) == sorted(each, key=str)


@pytest.mark.parametrize("codec", range(5))
def test_whole_batches_of_every_codec_are_read_together(codec: int, tmp_path: Path) -> None:
    values = [b"one", b"two" * 100, b"three"]
    with PartitionWriter(tmp_path / "payments-0") as writer:
        for value in values:
            append(writer, value, codec)
    with patch("resnap.replay.spark.record_rows._parse_records", side_effect=AssertionError):
        assert [row["value"] for row in records_of(tmp_path / "payments-0")] == values


def test_keys_sizes_and_headers_are_those_of_the_records(tmp_path: Path) -> None:
    common: dict[str, object] = {"topic": None, "partition": None, "segment": 7, "position": 0}
    common |= {"leaderEpoch": 0, "committed": True}
    pairs = [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}]
    rows = [
        common | {"offset": 7, "timestamp": 1000, "key": b"k", "valueSize": 5, "value": b"value"},
        common | {"offset": 8, "timestamp": 1005, "key": b"\xff\x00", "valueSize": None, "value": None},
        common | {"offset": 10, "timestamp": 1015, "key": None, "valueSize": 0, "value": b""},
    ]
    rows = [row | {"headersCount": len(own), "headers": own} for row, own in zip(rows, ([], [], pairs), strict=True)]
    assert records_of(a_log(tmp_path)) == rows
    assert records_of(a_log(tmp_path, attributes=LOG_APPEND_TIME)) == [row | {"timestamp": 1015} for row in rows]


def test_damage_is_named_with_file_and_position(tmp_path: Path) -> None:
    path = a_log(tmp_path)
    flip(path, 70)
    with pytest.raises(FormatError, match=r"00000000000000000007\.log: record batch checksum"):
        records_of(path)
    with pytest.raises(FormatError, match=r"00000000000000000007\.log: compressed records at byte 0"):
        records_of(a_log(tmp_path, attributes=4))


def expected_ends(events: Sequence[Event]) -> dict[int, bool | None]:
    """Return for the offset of each record what became of its transaction."""
    found: dict[int, bool | None] = {}
    waiting: dict[int, list[int]] = {}
    offset = 0
    for event in events:
        match event:
            case DataEvent(emptied=True):
                pass
            case DataEvent(transactional=True):
                waiting.setdefault(event.producer_id, []).extend(range(offset, offset + event.records))
            case MarkerEvent():
                found |= dict.fromkeys(waiting.pop(event.producer_id, ()), event.commit)
            case DataEvent() | PlainEvent() | LegacyEvent():
                found |= dict.fromkeys(range(offset, offset + event.records), True)
        offset += event.records
    return found | {one: None for offsets in waiting.values() for one in offsets}


@given(events=histories(legal=False), sizes=st.lists(st.integers(0, 6), max_size=8))
def test_records_are_committed_as_the_next_marker_of_their_producer_says_in_whatever_segment(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event], sizes: list[int]
) -> None:
    rest = iter(events)
    segments = [[*islice(rest, size)] for size in sizes]
    partition = a_partition(tmp_path_factory.mktemp("any"), [*segments, list(rest)])
    rows = records_of(partition)
    assert {row["offset"]: row["committed"] for row in rows} == expected_ends(events)
    assert len(rows) == len(expected_ends(events))


def test_a_marker_is_looked_for_until_all_that_is_open_has_ended(tmp_path: Path) -> None:
    one, two = (DataEvent(producer_id=number, transactional=True) for number in (1, 2))
    segments: list[list[Event]] = [
        [one, two],
        [MarkerEvent(producer_id=1, commit=False), one],
        [MarkerEvent(producer_id=1), MarkerEvent(producer_id=2)],
        [PlainEvent()],
    ]
    partition = a_partition(tmp_path, segments)
    assert [row["committed"] for row in records_of(partition)] == [False, True, True, True]
    flip(max(partition.glob("*.log")), 16)
    first = next(iter(find_segments([partition])))
    assert [row["committed"] for batch in read_record_rows(first) for row in batch.to_pylist()] == [False, True]


def test_what_a_gap_in_the_log_may_hide_is_open(tmp_path: Path) -> None:
    ended = [[DataEvent(producer_id=1, transactional=True)], [PlainEvent()], [MarkerEvent(producer_id=1)]]
    first, _, last = find_segments([a_partition(tmp_path, ended)])
    for log, committed in ((first.log, True), ([first.range, last.range], None)):
        (rows,) = read_record_rows(replace(first, log=log))
        assert rows["committed"].to_pylist() == [committed]


def test_damage_that_is_skipped_has_a_row_of_its_own(tmp_path: Path) -> None:
    def skipping(which: int, *columns: str) -> list[dict[str, Any]]:
        segment = find_segments([partition])[which]
        found = read_record_rows(segment, PLAIN, (*columns, DAMAGE.name), skips_damage=True)
        return [row for batch in found for row in batch.to_pylist()]

    data = DataEvent(producer_id=1, transactional=True)
    partition = a_partition(tmp_path, [[data, PlainEvent(), data, data], [PlainEvent(), MarkerEvent(producer_id=1)]])
    first, last = sorted(partition.glob("*.log"))
    flip(first, len(first.read_bytes()) // 2 - 1)  # in the second batch
    rows = skipping(0, "offset", "committed")
    assert [(row["offset"], row["committed"]) for row in rows] == [(0, True), (2, True), (3, True), (None, None)]
    assert f"{first}: record batch checksum" in rows[-1]["damage"]
    flip(last, len(last.read_bytes()) - 1)  # the marker
    rows = skipping(0, "offset", "committed")
    assert [(row["offset"], row["committed"]) for row in rows[:3]] == [(0, None), (2, None), (3, None)]
    assert [one in row["damage"] for one, row in zip((str(first), str(last)), rows[3:], strict=True)] == [True, True]
    content = bytearray(first.read_bytes())
    content[16] = 9  # its magic: where the next one begins is unknown
    first.write_bytes(content)
    (row,) = skipping(0, "offset", "position")
    assert (row["offset"], row["position"]) == (None, 16)
    assert "record batch magic" in row["damage"]
    with pytest.raises(FormatError, match="record batch magic"):
        records_of(partition)


def test_records_below_the_log_start_offset_are_left_out(fixture_set: Callable[[str], FixtureSet]) -> None:
    for topic in ("payments-0", "legacy-0"):
        for segment in find_segments([fixture_set("kafka-2.7.2").data / topic]):
            every = [row for batch in read_record_rows(segment) for row in batch.to_pylist()]
            if not every:
                continue
            start = every[len(every) // 2]["offset"]
            late = replace(segment, log_start_offset=start)
            assert [row for batch in read_record_rows(late) for row in batch.to_pylist()] == [
                row for row in every if row["offset"] >= start
            ]
            counted = sum(len(batch) for batch in read_record_rows(late, PLAIN, ("committed",)))
            assert counted == sum(row["offset"] >= start for row in every)


def test_columns_that_need_no_records_decompress_none(
    fixture_set: Callable[[str], FixtureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = find_segments([fixture_set("kafka-4.4.0-kraft").data / "payments-0"])
    columns = ("topic", "partition", "segment", "position", "leaderEpoch", "committed")
    every = [row for segment in segments for batch in read_record_rows(segment) for row in batch.to_pylist()]
    for name in ("decompress", "decompress_into"):
        monkeypatch.setattr(f"resnap.replay.spark.record_rows.{name}", None)
    found = [row for one in segments for batch in read_record_rows(one, PLAIN, columns) for row in batch.to_pylist()]
    assert found == [{name: row[name] for name in columns} for row in every]
    assert {row["committed"] for row in found} == {True, False, None}
    with pytest.raises(TypeError):
        list(read_record_rows(segments[0], PLAIN, ("valueSize",)))


OF_RECORDS: Final = (["key"], ["valueSize"], ["headersCount"], ["value"], ["headers"])
FROM_HEADERS: Final = ("segment", "position", "offset", "leaderEpoch", "committed")


def pruned(
    segment: LogSegment, columns: Sequence[str], *, as_if: Sequence[str] = (), skips_damage: bool = False
) -> list[dict[str, Any]]:
    """Return the rows with ``columns``, sorted, from a query that also has the columns ``as_if``."""
    names = (*columns, *as_if, *([DAMAGE.name] if skips_damage else ()))
    found = read_record_rows(segment, PLAIN, names, skips_damage=skips_damage)
    rows = [{name: row[name] for name in row if name not in as_if} for batch in found for row in batch.to_pylist()]
    return sorted(rows, key=str)


@pytest.mark.parametrize("name", NAMES)
def test_a_query_without_records_gives_the_rows_of_one_with_them(
    name: str, fixture_set: Callable[[str], FixtureSet]
) -> None:
    for segment in find_segments([fixture_set(name).data]):
        for columns in (FROM_HEADERS, (*FROM_HEADERS, "timestamp"), ("committed",)):
            assert pruned(segment, columns) == pruned(segment, columns, as_if=["value"])


def a_batch(
    *, attributes: int, base_offset: int = 0, span: int, deltas: Sequence[int], records: bytes | None = None
) -> bytes:
    """Return a batch of ``span`` offsets with records at ``deltas``, or what ``records`` claims to be these."""
    header = RecordBatchHeader(
        base_offset=base_offset, batch_length=0, partition_leader_epoch=3, magic=2, crc=0, attributes=attributes,
        last_offset_delta=span - 1, base_timestamp=1000, max_timestamp=1015, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, records_count=len(deltas),
    )  # fmt: skip
    if records is None:
        plain = b"".join(record(b"k", bytes(9), delta=delta) for delta in deltas)
        records = compressed(plain, compression_name(attributes))
    return seal(header, records)


@st.composite
def written_batches(draw: st.DrawFn) -> bytes:
    """Return a segment: batches of any codec and kind of time, of which a cleaner may have taken records."""
    content, offset = b"", 0
    for _ in range(draw(st.integers(1, 8))):
        kept = draw(st.lists(st.sampled_from([True, True, True, False]), min_size=1, max_size=5))
        attributes = draw(st.integers(0, 4)) | draw(st.sampled_from([0, 0, LOG_APPEND_TIME, CONTROL]))
        deltas = [delta for delta, is_kept in enumerate(kept) if is_kept]
        content += a_batch(attributes=attributes, base_offset=offset, span=len(kept), deltas=deltas)
        offset += len(kept) + draw(st.integers(0, 2))
    return content


@given(
    content=written_batches(),
    start=st.integers(0, 20),
    damage=st.none() | st.tuples(st.integers(0, 10_000), st.integers(1, 255)),
    columns=st.sampled_from([("offset",), ("timestamp",), FROM_HEADERS, ("offset", "timestamp"), ("committed",)]),
)
def test_any_query_without_records_gives_the_rows_of_one_with_them_and_finds_the_same_damage(
    tmp_path_factory: pytest.TempPathFactory,
    content: bytes,
    start: int,
    damage: tuple[int, int] | None,
    columns: tuple[str, ...],
) -> None:
    changed = bytearray(content)
    if damage is not None:
        changed[damage[0] % len(content)] ^= damage[1]
    path = tmp_path_factory.mktemp("any") / f"{0:020d}.log"
    path.write_bytes(changed)
    (segment,) = find_segments([path])
    late = replace(segment, log_start_offset=start)
    assert pruned(late, columns, skips_damage=True) == pruned(late, columns, as_if=["value"], skips_damage=True)


@pytest.mark.parametrize("codec", range(5))
def test_records_are_read_only_if_the_header_does_not_say_what_is_asked_for(codec: int, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"

    def asked(columns: Sequence[str], attributes: int = 0, *, deltas: Sequence[int] = range(4)) -> list[dict[str, Any]]:
        """Return the rows of a batch with a right checksum, whose records would fail whoever reads them."""
        path.write_bytes(a_batch(attributes=codec | attributes, span=4, deltas=deltas, records=b"\xff" * 60))
        (segment,) = find_segments([path])
        return pruned(segment, columns)

    same = {"segment": 0, "position": 0, "leaderEpoch": 3, "committed": True}
    assert asked(FROM_HEADERS) == [same | {"offset": offset} for offset in range(4)]
    assert asked(["offset", "timestamp"], LOG_APPEND_TIME) == [{"offset": n, "timestamp": 1015} for n in range(4)]
    assert asked(["committed"], deltas=[0, 3]) == [{"committed": True}] * 2
    for columns, deltas in ((["timestamp"], range(4)), (["offset"], [0, 3]), *((one, range(4)) for one in OF_RECORDS)):
        with pytest.raises(FormatError):
            asked(columns, deltas=deltas)


def test_no_more_rows_are_made_at_once_than_fit_whatever_a_header_says(tmp_path: Path) -> None:
    path, most = tmp_path / f"{0:020d}.log", 1 << 18
    many = [a_batch(attributes=4, base_offset=most * n, span=most, deltas=range(most), records=b"") for n in range(3)]
    path.write_bytes(b"".join(many))
    (segment,) = find_segments([path])
    pieces = [piece["offset"].to_numpy() for piece in read_record_rows(segment, PLAIN, ["offset"])]
    assert max(map(len, pieces)) <= 2 * most
    assert np.array_equal(np.concatenate(pieces), np.arange(3 * most))
    path.write_bytes(a_batch(attributes=4, span=1 << 31, deltas=range((1 << 31) - 1), records=b""))
    with pytest.raises(FormatError, match="variable-length integer cut short"):
        pruned(segment, ["committed"])


@given(
    records=st.lists(
        st.tuples(
            st.none() | st.binary(max_size=20),
            st.none() | st.binary(max_size=200),
            st.lists(st.tuples(st.binary(max_size=9), st.none() | st.binary(max_size=9)), max_size=3),
        ),
        max_size=5,
    ),
    damage=st.none() | st.tuples(st.integers(0, 10_000), st.integers(1, 255)),
)
def test_machine_code_reads_records_as_python_does(records: list[Any], damage: tuple[int, int] | None) -> None:
    content = bytearray(
        b"".join(record(key, value, *own, delta=number) for number, (key, value, own) in enumerate(records))
    )
    if damage is not None and content:
        content[damage[0] % len(content)] ^= damage[1]
    try:
        expected = [
            (one.timestamp_delta, one.offset_delta, one.key, one.value, own)
            for one, own in read_client_records(content, len(records))
        ]
    except FormatError:
        with pytest.raises(FormatError):
            _parse_records(content, len(records), 0)
        return
    parsed, packed = _parse_records(content, len(records), 0), _field_arrays(_fields(content, len(records), 0))
    assert np.array_equal(
        parsed.records[["timestamp_delta", "offset_delta"]], packed.records[["timestamp_delta", "offset_delta"]]
    )
    for name in ("key", "value"):
        for ours, python in ((parsed.records, packed.records), (parsed.headers, packed.headers)):
            assert _binary(ours[f"{name}_at"], ours[f"{name}_length"]) == _binary(
                python[f"{name}_at"], python[f"{name}_length"]
            )
    assert parsed.records["headers"].tolist() == [len(own) for *_, own in expected]
    keys = _binary(parsed.records["key_at"], parsed.records["key_length"])
    assert keys.to_pylist() == [None if key is None else bytes(key) for _, _, key, _, _ in expected]


@pytest.mark.parametrize("codec", [0, 4])
def test_rows_come_in_pieces_of_a_megabyte_or_of_one_batch(codec: int, tmp_path: Path) -> None:
    sizes = [*[300] * 9_000, 5 << 20, *[300] * 9_000]
    with PartitionWriter(tmp_path / "payments-0") as writer:
        for size in sizes:
            append(writer, bytes(size), codec)
    (segment,) = find_segments([tmp_path / "payments-0"])
    pieces = list(read_record_rows(segment))
    assert sum(map(len, pieces)) == len(sizes)
    assert sorted(piece["value"].nbytes for piece in pieces)[-2] < 2 << 20
    assert max(piece["value"].nbytes for piece in pieces) < 7 << 20


def test_keys_of_headers_are_text_as_javas_clients_show_it(tmp_path: Path) -> None:
    odd = record(b"k", b"v", ("\u20ac".encode(), b"1"), (b"\xff\xe2", None), delta=0)
    (row,) = records_of(a_log(tmp_path, records=[odd]))
    assert [(header["key"], header["value"]) for header in row["headers"]] == [("\u20ac", b"1"), ("\ufffd\ufffd", None)]


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
