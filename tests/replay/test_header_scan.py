from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from resnap.replay.kernel.summary import EVENT_DTYPE
from resnap.replay.producer_state import DataBatch
from resnap.replay.scan import header_scan
from resnap.replay.scan.header_scan import ScanFacts, SegmentRange, read_blocks
from resnap.replay.scan.producer_fold import scan
from resnap.storage.errors import FormatError
from resnap.storage.log.record import COMMIT
from resnap.storage.log.record_batch import CONTROL, MAGIC_V2, NO_PRODUCER_ID, RecordBatchHeader, read_header, seal
from resnap.storage.readers import BytesReader
from tests.builders import a_batch, a_marker
from tests.cases import each
from tests.examples import examples
from tests.replay.specification import columns, events_of
from tests.strategies import START_MS, LegacyEvent, PlainEvent, encode_events, histories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.replay.kernel.summary import Array
    from tests.strategies import Event

DEFAULT_BLOCK_BYTES = header_scan.BLOCK_BYTES
BLOCK_SIZES = (61, 100, 140, 4096, DEFAULT_BLOCK_BYTES)
thorough = examples(150)


def scanned(
    data: bytes, *, base: int = 0, next_base: int | None = None, block_bytes: int = DEFAULT_BLOCK_BYTES
) -> tuple[Array, ScanFacts]:
    """Return all events of one segment, and its facts."""
    facts = ScanFacts()
    segment = SegmentRange(locator="<segment>", base_offset=base, next_base_offset=next_base)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(header_scan, "BLOCK_BYTES", block_bytes)
        chunks = list(scan(BytesReader(data), segment, facts))
    return np.concatenate([np.zeros(0, dtype=EVENT_DTYPE), *chunks]), facts


def batch_positions(data: bytes) -> Iterator[int]:
    """Yield where the batches of ``data`` start, all of them of magic 2, and where the last one ends."""
    position = 0
    while position < len(data):
        yield position
        position += read_header(data, position).size_bytes
    yield position


def closed_segment() -> bytes:
    """Build a segment [0, 10) with an open and a closed transaction, a plain batch and an abort."""
    return b"".join((
        a_batch(offset=0, records=3, transactional=True),
        a_marker(offset=3),
        a_batch(offset=4, records=2, producer_id=-1, producer_epoch=-1, base_sequence=-1),
        a_batch(offset=6, producer_id=8, transactional=True),
        a_marker(offset=7, producer_id=8, commit=False),
        a_batch(offset=8, records=2, producer_id=9, base_sequence=4),
    ))  # fmt: skip


@pytest.mark.parametrize("block_bytes", BLOCK_SIZES)
@thorough
@given(events=histories(legal=False))
def test_a_scan_finds_what_the_codecs_find_batch_by_batch(block_bytes: int, events: list[Event]) -> None:
    data = encode_events(events)
    found, facts = scanned(data, next_base=sum(event.records for event in events) or 1, block_bytes=block_bytes)
    expected, clock_after_ms = columns(events_of(data))
    assert found.tolist() == expected.tolist()
    assert facts.clock_since_event_ms == clock_after_ms
    by_server = [event for event in events_of(data) if not isinstance(event, DataBatch) or event.append_time]
    clocks = [event.timestamp for event in by_server if event.timestamp >= 0]
    assert facts.server_clock_ms == [-1, *clocks][-1]
    assert facts.oldest_server_clock_ms == min(clocks, default=None)


@thorough
@given(events=histories(legal=False), first_offset=st.sampled_from((0, 1, 2**31, 2**62)))
def test_facts_describe_the_segment_as_a_whole(events: list[Event], first_offset: int) -> None:
    data = encode_events(events, first_offset=first_offset)
    _, facts = scanned(data, base=first_offset)
    timestamps = [e.timestamp for e in events if not isinstance(e, LegacyEvent) or e.magic]
    assert facts.end_position == len(data)
    assert facts.end_offset == first_offset + sum(event.records for event in events)
    assert facts.max_timestamp_ms == max([-1, *timestamps])
    assert facts.lacks_records == any(
        type(e).__name__ == "EmptyControlEvent" or getattr(e, "emptied", False) for e in events
    )
    if not any(isinstance(event, LegacyEvent) for event in events):
        assert facts.batches == len(events)


@each("block_bytes", range(61, 161))
def test_a_marker_is_found_whole_wherever_a_block_ends(block_bytes: int) -> None:
    data = closed_segment()
    assert scanned(data, next_base=10, block_bytes=block_bytes)[0].tolist() == columns(events_of(data))[0].tolist()


def test_payloads_larger_than_a_block_are_hopped_over() -> None:
    data = a_batch(values=[bytes(3_000_000)]) + a_marker(offset=1) + a_batch(offset=2, values=[bytes(2_000_000)])
    found, facts = scanned(data, next_base=3)
    assert found["offset"].tolist() == [0, 1, 2]
    assert facts.bytes_read < len(data)


@pytest.mark.parametrize("block_bytes", BLOCK_SIZES)
def test_legacy_messages_of_both_magics_are_read_among_batches(block_bytes: int) -> None:
    events = [
        LegacyEvent(magic=0, records=2), LegacyEvent(magic=1, records=3, compressed=True),
        PlainEvent(records=2), LegacyEvent(magic=0, records=2, compressed=True),
    ]  # fmt: skip
    data = encode_events(events) + a_batch(offset=9)
    found, facts = scanned(data, next_base=10, block_bytes=block_bytes)
    assert found["offset"].tolist() == [9]
    assert facts.end_offset == 10
    assert facts.batches == 2 + 1 + 1 + 1 + 1


def test_headers_are_read_with_their_positions() -> None:
    data = closed_segment()
    segment = SegmentRange(locator="<segment>", base_offset=0, next_base_offset=10)
    blocks = list(read_blocks(BytesReader(data), segment, ScanFacts()))
    assert np.concatenate([block.positions + block.at for block in blocks]).tolist() == [*batch_positions(data)][:-1]
    assert np.concatenate([block.headers for block in blocks])["base_offset"].tolist() == [0, 3, 4, 6, 7, 8]


def test_each_leader_epoch_is_noted_where_it_begins() -> None:
    epochs = (4, 4, 6, 5, 6, 9)
    data = b"".join(a_batch(offset=offset, leader_epoch=epoch) for offset, epoch in enumerate(epochs))
    for block_bytes in BLOCK_SIZES:
        assert scanned(data, block_bytes=block_bytes)[1].leader_epochs == [(4, 0), (6, 2), (9, 5)]


@each("tail", [b"\0" * 17, b"\0" * 18, b"\0" * 5_000], ids=len)
@each("block_bytes", BLOCK_SIZES)
def test_the_zeros_of_a_preallocated_active_segment_are_its_end(tail: bytes, block_bytes: int) -> None:
    data = closed_segment()
    found, facts = scanned(data + tail, block_bytes=block_bytes)
    assert found["offset"].tolist() == [0, 3, 6, 7, 8]
    assert facts.end_position == len(data)


def test_an_empty_segment_has_no_events() -> None:
    found, facts = scanned(b"", base=5)
    assert not len(found)
    assert (facts.end_offset, facts.server_clock_ms) == (5, -1)


@pytest.mark.parametrize("block_bytes", BLOCK_SIZES)
def test_an_active_segment_that_is_cut_anywhere_ends_with_its_last_whole_batch(block_bytes: int) -> None:
    data = closed_segment()
    ends = [*batch_positions(data)]
    for size in range(len(data) + 1):
        _, facts = scanned(data[:size], block_bytes=block_bytes)
        assert facts.end_position == max(end for end in ends if end <= size)


def test_a_closed_segment_that_is_cut_within_a_batch_is_damaged_there() -> None:
    data = closed_segment()
    ends = [*batch_positions(data)]
    for size in set(range(len(data))) - set(ends):
        with pytest.raises(FormatError) as caught:
            scanned(data[:size], next_base=10)
        assert caught.value.position == max(end for end in ends if end <= size)
        assert caught.value.file == "<segment>"


@each("size", range(1, 40))
def test_zeros_after_the_last_batch_of_a_closed_segment_are_damage(size: int) -> None:
    data = closed_segment()
    with pytest.raises(FormatError) as caught:
        scanned(data + bytes(size), next_base=10)
    assert caught.value.position == len(data)


UNPROTECTED = [*range(12), 16]
"""Bytes of a header that no checksum covers and that lead through the log: base offset, length, magic."""


@each("bit", range(8))
def test_a_flipped_bit_in_offset_length_or_magic_of_any_batch_is_damage(bit: int) -> None:
    data = closed_segment()
    for start in [*batch_positions(data)][:-1]:
        for byte in UNPROTECTED:
            with pytest.raises(FormatError):
                scanned(flipped(data, start + byte, bit), next_base=10)


def test_a_flipped_bit_anywhere_in_a_marker_is_damage_or_changes_nothing() -> None:
    data = closed_segment()
    starts = [*batch_positions(data)]
    expected = scanned(data, next_base=10)[0].tolist()
    for start, end in ((starts[1], starts[2]), (starts[4], starts[5])):
        for byte in range(start, end):
            for bit in range(8):
                leader_epoch = 12 <= byte - start < 16
                if leader_epoch:
                    assert scanned(flipped(data, byte, bit), next_base=10)[0].tolist() == expected
                else:
                    with pytest.raises(FormatError):
                        scanned(flipped(data, byte, bit), next_base=10)


def test_a_flipped_bit_anywhere_raises_nothing_but_a_format_error() -> None:
    data = closed_segment()
    for byte in range(len(data)):
        for bit in range(8):
            for next_base in (10, None):
                scan_or_format_error(flipped(data, byte, bit), next_base, DEFAULT_BLOCK_BYTES)


@thorough
@given(data=st.binary(max_size=400), next_base=st.sampled_from((None, 3)), block_bytes=st.sampled_from(BLOCK_SIZES))
@example(data=struct.pack(">qiibIh", 0, 2**31 - 1, 0, 2, 0, 0), next_base=None, block_bytes=61)
@example(data=struct.pack(">qiibIh", -1, -(2**31), 0, 2, 0, 0), next_base=None, block_bytes=61)
def test_any_bytes_raise_nothing_but_a_format_error(data: bytes, next_base: int | None, block_bytes: int) -> None:
    scan_or_format_error(data, next_base, block_bytes)


def test_a_length_that_claims_gigabytes_is_refused() -> None:
    good, bad = a_batch(), a_batch(offset=1)
    data = good + bad[:8] + struct.pack(">i", 2**31 - 1) + bad[12:] + a_batch(offset=2) * 1_000
    with pytest.raises(FormatError) as caught:
        scanned(data, next_base=3)
    assert caught.value.position == len(good)
    assert scanned(data)[1].bytes_read <= 2 * len(data)


@pytest.mark.parametrize(
    ("first", "second"), [(0, 0), (5, 4), (0, 9)], ids=["twice the same", "falling", "beyond the next segment"]
)
def test_offsets_that_do_not_rise_within_the_segment_are_damage(first: int, second: int) -> None:
    data = a_batch(offset=first) + a_batch(offset=second)
    with pytest.raises(FormatError, match="rising offsets") as caught:
        scanned(data, next_base=9)
    assert caught.value.position == len(a_batch())


def test_an_offset_below_the_segment_is_damage() -> None:
    with pytest.raises(FormatError, match="at least 7"):
        scanned(a_batch(offset=6), base=7)


def test_data_of_a_producer_without_a_sequence_is_damage() -> None:
    with pytest.raises(FormatError, match="base sequence"):
        scanned(a_batch(base_sequence=-1))


def test_a_control_record_that_ends_no_transaction_is_damage_where_a_producer_wrote_it() -> None:
    marker = a_marker()
    header = read_header(marker)
    leader_change = seal(header, marker[61:].replace(struct.pack(">hh", 0, COMMIT), struct.pack(">hh", 0, 2)))
    with pytest.raises(FormatError, match="control record type"):
        scanned(leader_change)


def test_a_control_record_of_the_quorum_is_passed_over() -> None:
    marker = a_marker()
    header = read_header(marker)._replace(producer_id=NO_PRODUCER_ID, attributes=CONTROL)
    leader_change = seal(header, marker[61:].replace(struct.pack(">hh", 0, COMMIT), struct.pack(">hh", 0, 2)))
    found, facts = scanned(leader_change)
    assert not len(found)
    assert facts.end_offset == 1
    assert facts.server_clock_ms == -1


def test_a_sequence_wraps_after_the_largest() -> None:
    found, _ = scanned(a_batch(records=4, base_sequence=2**31 - 2))
    assert found["last_sequence"].tolist() == [1]


def test_a_part_of_a_segment_must_end_where_a_batch_ends() -> None:
    data = closed_segment()
    starts = [*batch_positions(data)]
    reader = BytesReader(data)
    part = SegmentRange(locator="<segment>", base_offset=3, next_base_offset=10, start=starts[1], end=starts[3])
    assert np.concatenate(list(scan(reader, part, ScanFacts())))["offset"].tolist() == [3]
    torn = SegmentRange(locator="<segment>", base_offset=3, next_base_offset=10, start=starts[1], end=starts[3] + 1)
    with pytest.raises(FormatError, match="end of its split"):
        list(scan(reader, torn, ScanFacts()))


def test_a_part_of_a_segment_that_has_become_shorter_is_damage() -> None:
    data = closed_segment()
    starts = [*batch_positions(data)]
    part = SegmentRange(locator="<segment>", base_offset=0, next_base_offset=10, start=0, end=starts[3])
    with pytest.raises(FormatError, match="end of its split"):
        list(scan(BytesReader(data[: starts[2]]), part, ScanFacts()))


def test_a_delete_horizon_shows_that_a_cleaner_was_here() -> None:
    header = read_header(a_batch())
    assert header.magic == MAGIC_V2
    horizon: RecordBatchHeader = header._replace(attributes=0x40)
    assert scanned(seal(horizon, a_batch()[61:]))[1].lacks_records
    assert not scanned(a_batch())[1].lacks_records


@pytest.mark.parametrize(
    ("data", "next_base"),
    [
        (a_batch() + a_batch(offset=2), 3),
        (a_batch(offset=1) + a_batch(offset=2), 3),
        (a_batch() + a_batch(offset=1), 3),
        (b"", 3),
    ],
    ids=["in the middle", "at the start", "at the end", "everywhere"],
)
def test_offsets_without_a_batch_show_that_a_cleaner_was_here(data: bytes, next_base: int) -> None:
    for block_bytes in BLOCK_SIZES:
        assert scanned(data, next_base=next_base, block_bytes=block_bytes)[1].lacks_records
    assert not scanned(a_batch(records=3), next_base=3)[1].lacks_records


def test_where_a_wrapper_of_messages_begins_is_unknown_and_no_gap() -> None:
    data = a_batch() + encode_events([LegacyEvent(records=4, compressed=True)], first_offset=1) + a_batch(offset=5)
    assert not scanned(data, next_base=6)[1].lacks_records


@pytest.mark.parametrize("append_time", [None, START_MS + 5])
def test_only_the_brokers_clock_is_a_server_clock(append_time: int | None) -> None:
    found, facts = scanned(a_batch(append_time=append_time))
    expected = -1 if append_time is None else append_time
    assert found["clock_ms"].tolist() == [expected]
    assert facts.server_clock_ms == expected


def flipped(data: bytes, byte: int, bit: int) -> bytes:
    return data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1 :]


def scan_or_format_error(data: bytes, next_base: int | None, block_bytes: int) -> None:
    caught: FormatError | None = None
    try:
        scanned(data, next_base=next_base, block_bytes=block_bytes)
    except FormatError as error:
        caught = error
    assert caught is None or (caught.file == "<segment>" and 0 <= caught.position <= len(data))
