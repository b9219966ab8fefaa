"""The compiled scan gives what the plain one gives, bit for bit, and says the same of damage."""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.replay.kernel import hop
from resnap.replay.kernel.fold import MANY_SLOTS
from resnap.replay.producer_state import ProducerStates
from resnap.replay.scan import kernel_scan
from resnap.replay.scan.header_scan import ScanFacts, SegmentRange
from resnap.replay.scan.kernel_scan import kernel_pieces
from resnap.replay.scan.producer_fold import plain_pieces
from resnap.replay.scan.splits import Reading, Split
from resnap.storage.errors import FormatError
from resnap.storage.log.record import KEY, MARKER_VALUE
from resnap.storage.log.record_batch import (
    CONTROL,
    HEADER,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    RecordBatchHeader,
    read_header,
    seal,
)
from resnap.storage.messages.wire import write_varint
from resnap.storage.readers import BytesReader, FileReader
from tests.builders import a_batch, a_marker
from tests.cases import each, mostly_slow
from tests.examples import examples
from tests.fixture_sets import NAMES, unpack
from tests.replay.specification import entries_in, events_of, illegal_in
from tests.replay.strategies import EXPIRY
from tests.strategies import START_MS, encode_events, histories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from resnap.replay.scan.splits import Piece
    from resnap.storage.readers import RangeReader
    from tests.strategies import Event

SILENCE_MS = EXPIRY.certain_silence_ms
PLAIN = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
thorough = examples(150)
BLOCK_SIZES = (61, 100, 140, 4096)
WAYS = {
    "in blocks": (Reading(header_read_bytes=1 << 62), 1 << 62),
    "if cached": (Reading(header_read_bytes=1 << 62), 0),
    "by header": (Reading(header_read_bytes=0), 0),
    "as it comes": (Reading(), kernel_scan.CACHED_FROM_BYTES),
}
"""How a file is read, and the mean size from which headers are taken out of the page cache."""


class Found(NamedTuple):
    """All that a scan says, but for the bytes it asked for."""

    pieces: list[tuple[list[tuple[object, ...]], int, bool]]
    facts: ScanFacts | None
    error: tuple[str, int] | None


def a_split(
    size_bytes: int, *, base: int = 0, next_base: int | None = None, high_watermark: int | None = None,
    start: int = 0, end: int | None = None, verify_crc: bool = False,
) -> Split:  # fmt: skip
    stretch = SegmentRange(
        locator="<segment>", base_offset=base, next_base_offset=next_base, start=start, end=end, verify_crc=verify_crc
    )
    return Split(segment_index=0, part=0, range=stretch, size_bytes=size_bytes, high_watermark=high_watermark)


def plainly(reader: RangeReader, split: Split) -> Found:
    """Scan a batch at a time, so that of several damages the first one is reported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("resnap.replay.scan.header_scan.BLOCK_BYTES", HEADER.size)
        return _found(lambda facts: plain_pieces(reader, split, SILENCE_MS, facts, Reading().producers_per_task))


def by_kernel(
    reader: RangeReader, split: Split, *, block_bytes: int = kernel_scan.BLOCK_BYTES, way: str = "as it comes"
) -> Found:
    reading, cached_from = WAYS[way]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_scan, "BLOCK_BYTES", block_bytes)
        patch.setattr(kernel_scan, "STREAM_BLOCK_BYTES", block_bytes)
        patch.setattr(kernel_scan, "CACHED_FROM_BYTES", cached_from)
        return _found(lambda facts: kernel_pieces(reader, split, SILENCE_MS, facts, reading))


def _found(scan: Callable[[ScanFacts], Iterable[Piece]]) -> Found:
    facts = ScanFacts()
    try:
        pieces = list(scan(facts))
    except FormatError as error:
        return Found([], None, (str(error), error.position))
    facts.bytes_read = 0
    return Found([(piece.rows.tolist(), piece.clock_ms, piece.above) for piece in pieces], facts, None)


def both(data: bytes, split: Split, *, block_bytes: int = kernel_scan.BLOCK_BYTES) -> tuple[Found, Found]:
    return plainly(BytesReader(data), split), by_kernel(BytesReader(data), split, block_bytes=block_bytes)


def offsets_in(events: list[Event]) -> int:
    return sum(event.records for event in events)


@pytest.mark.parametrize("block_bytes", [*BLOCK_SIZES, kernel_scan.BLOCK_BYTES])
@thorough
@given(events=histories(legal=False), high_watermark=st.one_of(st.none(), st.integers(0, 60)))
def test_the_kernel_finds_what_the_plain_path_finds(
    block_bytes: int, events: list[Event], high_watermark: int | None
) -> None:
    data = encode_events(events)
    split = a_split(len(data), next_base=offsets_in(events) + 1, high_watermark=high_watermark)
    expected, found = both(data, split, block_bytes=block_bytes)
    assert found == expected


@thorough
@given(events=histories(legal=False, max_events=60, step_ms=3_000))
def test_the_kernel_finds_what_the_specification_says(events: list[Event]) -> None:
    data = encode_events(events)
    states = ProducerStates(EXPIRY)
    states.append(events_of(data))
    (piece,) = kernel_pieces(BytesReader(data), a_split(len(data)), SILENCE_MS, ScanFacts(), Reading())
    legal = {pid: entry for pid, entry in states.entries.items() if pid not in states.illegal}
    assert illegal_in(piece.rows) == states.illegal
    assert entries_in(piece.rows[piece.rows["illegal_offset"] == -1]) == legal


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verify_crc", [False, True], ids=["headers", "checksums"])
@examples(60)
@given(events=histories(legal=False, max_events=40), block_bytes=st.sampled_from(BLOCK_SIZES))
def test_a_file_is_read_as_memory_is_whatever_the_way(
    way: str, verify_crc: bool, tmp_path_factory: pytest.TempPathFactory, events: list[Event], block_bytes: int
) -> None:
    data = encode_events(events)
    path = tmp_path_factory.getbasetemp() / "read-as-memory.log"
    path.write_bytes(data)
    split = a_split(len(data), verify_crc=verify_crc)
    with FileReader(str(path)) as reader:
        assert by_kernel(reader, split, block_bytes=block_bytes, way=way) == plainly(BytesReader(data), split)


@pytest.mark.parametrize("base", [0, 2**31, 2**62])
@thorough
@given(events=histories(min_events=1), cut=st.integers(0, 30))
def test_a_part_of_a_segment_may_begin_and_end_at_any_batch(base: int, events: list[Event], cut: int) -> None:
    cut = min(cut, len(events))
    first, second = encode_events(events[:cut], first_offset=base), b""
    middle = base + offsets_in(events[:cut])
    second = encode_events(events[cut:], first_offset=middle)
    next_base = base + offsets_in(events) + 1
    lower = a_split(0, base=base, next_base=next_base, end=len(first))
    upper = a_split(0, base=middle, next_base=next_base, start=len(first), end=len(first + second))
    whole = a_split(0, base=base, next_base=next_base)
    for split in (lower, upper, whole):
        expected, found = both(first + second, split)
        assert found == expected


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a segment with more producers than have their slots fetched only when they are needed."""
    ids = [*range(MANY_SLOTS // 3)] * 2
    random.Random(1).shuffle(ids)
    path, offset = tmp_path_factory.mktemp("many") / "0.log", 0
    with path.open("wb") as file:
        for number, producer_id in enumerate(ids):
            records = 1 + number % 5 // 4 * 8
            file.write(
                a_batch(offset=offset, producer_id=producer_id, records=records)
                if number % 7
                else a_marker(offset=offset, producer_id=producer_id)
            )
            offset += records if number % 7 else 1
    return path


@pytest.mark.parametrize("block_bytes", [BLOCK_SIZES[-1], kernel_scan.BLOCK_BYTES])
def test_producers_whose_slots_are_fetched_in_advance_are_folded_alike(block_bytes: int, many: Path) -> None:
    data = many.read_bytes()
    split = a_split(len(data))
    expected = _found(
        lambda facts: plain_pieces(BytesReader(data), split, SILENCE_MS, facts, Reading().producers_per_task)
    )
    assert len(expected.pieces[0][0]) == MANY_SLOTS // 3, "a table has at least two slots for each"
    assert by_kernel(BytesReader(data), split, block_bytes=block_bytes) == expected
    with FileReader(str(many)) as reader:
        assert by_kernel(reader, split, block_bytes=block_bytes) == expected


def segments_of_fixtures(root: Path) -> Iterator[Path]:
    for name in NAMES:
        yield from sorted(unpack(name, root).data.glob("*-*/*.log"))


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return list(segments_of_fixtures(tmp_path_factory.mktemp("fixtures")))


@pytest.mark.parametrize("way", WAYS)
def test_every_segment_of_every_fixture_is_read_alike(way: str, segments: list[Path]) -> None:
    assert len(segments) > 100
    for path in segments:
        with FileReader(str(path)) as reader:
            split = a_split(reader.size_bytes, base=int(path.stem))
            assert by_kernel(reader, split, way=way) == _expected(path), path


@cache
def _expected(path: Path) -> Found:
    data = path.read_bytes()
    return plainly(BytesReader(data), a_split(len(data), base=int(path.stem)))


def flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def cut_off(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def insert_zeros(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at:at] = bytes(chance.randrange(1, 100))


def remove(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.randrange(1, 200)]


def append_zeros(data: bytearray, chance: random.Random) -> None:
    data += bytes(chance.randrange(1, 5_000))


DAMAGES = (flip, flip, flip, cut_off, insert_zeros, remove, append_zeros)


@pytest.mark.parametrize("seed", range(12))
def test_of_damaged_bytes_the_kernel_says_what_the_plain_path_says(seed: int, segments: list[Path]) -> None:
    chance = random.Random(seed)
    outcomes = set()
    for _ in range(60):
        path = chance.choice(segments)
        original = path.read_bytes()[: chance.choice((2_000, 20_000))]
        if not original:
            continue
        data = bytearray(original)
        for _ in range(chance.choice((1, 1, 2, 3))):
            chance.choice(DAMAGES)(data, chance)
            if not data:
                break
        split = a_split(
            len(data), base=int(path.stem), next_base=chance.choice((None, 2**40)), verify_crc=chance.random() < 0.3
        )
        block_bytes = chance.choice((61, 200, 4096, 1 << 18))
        expected, found = both(bytes(data), split, block_bytes=block_bytes)
        assert found == expected, (path, seed)
        outcomes.add(expected.error is None)
    assert outcomes == {True, False}


@pytest.mark.parametrize("bit", mostly_slow(range(8), 3))
def test_each_flipped_bit_of_a_small_segment_is_reported_alike(bit: int) -> None:
    data = b"".join((
        a_batch(offset=0, records=3, transactional=True),
        a_marker(offset=3),
        a_batch(offset=4, records=2, append_time=START_MS + 5, **PLAIN),
        a_marker(offset=6, producer_id=8, commit=False),
        a_batch(offset=7, producer_id=9, base_sequence=4),
    ))  # fmt: skip
    for byte in range(len(data)):
        damaged = data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1 :]
        for verify_crc in (False, True):
            expected, found = both(damaged, a_split(len(data), next_base=8, verify_crc=verify_crc))
            assert found == expected, byte


def a_control_batch(
    body: bytes, *, attributes: int = TRANSACTIONAL | CONTROL, records: int = 1, producer_id: int = 7,
    timestamp: int = START_MS,
) -> bytes:  # fmt: skip
    header = RecordBatchHeader(
        base_offset=0, batch_length=0, partition_leader_epoch=0, magic=2, crc=0, attributes=attributes,
        last_offset_delta=0, base_timestamp=timestamp, max_timestamp=START_MS, producer_id=producer_id,
        producer_epoch=0, base_sequence=-1, records_count=records,
    )  # fmt: skip
    return seal(header, body)


def a_record(
    *, delta: bytes = b"\0", key: bytes = KEY.pack(0, 1), value: bytes = MARKER_VALUE.pack(0, 5),
    headers: bytes = b"\0", length: int | None = None,
) -> bytes:  # fmt: skip
    fields = (write_varint(len(key)), key, write_varint(len(value)), value)
    body = b"".join((b"\0", delta, b"\0", *fields, headers))
    return write_varint(len(body) if length is None else length) + body


ODD_RECORDS = {
    "a commit": a_record(),
    "an abort": a_record(key=KEY.pack(0, 0)),
    "of a later version": a_record(key=KEY.pack(7, 1) + b"more", value=MARKER_VALUE.pack(3, 9) + b"more"),
    "of a negative version": a_record(key=KEY.pack(-1, 1)),
    "with a value of a negative version": a_record(value=MARKER_VALUE.pack(-1, 5)),
    "with a short key": a_record(key=b"\0\0\0"),
    "without a key": a_record(key=b""),
    "with a short value": a_record(value=b"\0\0\0\0\0"),
    "of a quorum": a_record(key=KEY.pack(0, 2), value=b""),
    "of an unknown type": a_record(key=KEY.pack(0, 99), value=b""),
    "with a header": a_record(headers=b"\2"),
    "with more bytes": a_record() + b"\0",
    "too short for its length": a_record(length=99),
    "of no length": a_record(length=0),
    "of a negative length": a_record(length=-1),
    "late": a_record(delta=write_varint(1_000_000)),
    "early": a_record(delta=write_varint(-1_000_000)),
    "later than time": a_record(delta=write_varint(2**63 - 1)),
    "earlier than time": a_record(delta=write_varint(-(2**63))),
    "with an endless number": a_record(delta=b"\xff" * 12),
    "with a number of 65 bits": a_record(delta=b"\xff" * 9 + b"\x02"),
    "with a number in too many bytes": a_record(delta=b"\x80" * 9 + b"\x00"),
    "with a key longer than itself": write_varint(6) + b"\0\0\0" + write_varint(1_000) + b"\0",
    "cut in a number": write_varint(4) + b"\0\0\0\xff",
    "with a null key": write_varint(6) + b"\0\0\0\1\1\0",
}


@each("producer_id", [7, -1])
@each("attributes", [0x30, 0x38, 0x20, 0x31, 0x70], ids=hex)
@each("records", [0, 1, 2, -1])
@each("name", ODD_RECORDS)
def test_a_control_record_is_understood_alike(name: str, records: int, attributes: int, producer_id: int) -> None:
    data = a_control_batch(ODD_RECORDS[name], attributes=attributes, records=records, producer_id=producer_id)
    expected, found = both(data + a_batch(offset=1), a_split(len(data), next_base=2))
    assert found == expected


@each("timestamp", [-(2**63), -5, -1, 0, 2**63 - 1])
@each("attributes", [CONTROL, CONTROL | LOG_APPEND_TIME], ids=hex)
def test_clocks_at_the_ends_of_time_are_understood_alike(timestamp: int, attributes: int) -> None:
    marker = a_control_batch(a_record(), attributes=attributes, timestamp=timestamp)
    data = marker + a_batch(offset=1, append_time=timestamp) + a_batch(offset=2, **PLAIN, append_time=timestamp)
    expected, found = both(data, a_split(len(data)))
    assert found == expected
    assert found.error is None


@pytest.mark.slow
def test_tables_grow_while_the_kernel_scans() -> None:
    data = b"".join(a_batch(offset=offset, producer_id=offset * 7919 % 5_003) for offset in range(5_000))
    clocks = b"".join(
        a_batch(offset=5_000 + number, producer_id=1, append_time=START_MS - number) for number in range(200)
    )
    expected, found = both(data + clocks, a_split(len(data)))
    assert found == expected
    assert len(found.pieces[0][0]) == 5_000


def test_leader_epochs_of_any_number_are_noted() -> None:
    data = b"".join(a_batch(offset=offset, leader_epoch=offset) for offset in range(500))
    expected, found = both(data, a_split(len(data)))
    assert found == expected
    assert found.facts is not None
    assert found.facts.leader_epochs == [(epoch, epoch) for epoch in range(500)]


def test_producer_ids_of_any_size_are_distinguished() -> None:
    ids = [0, 1, 2**31, 2**32, 2**62, 2**63 - 1]
    data = b"".join(a_batch(offset=offset, producer_id=producer_id) for offset, producer_id in enumerate(ids))
    expected, found = both(data, a_split(len(data)))
    assert found == expected
    assert [row[0] for row in found.pieces[0][0]] == ids


@pytest.mark.parametrize("size", [1_000_000, 300_000, 30_000])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verify_crc", [False, True], ids=["headers", "checksums"])
def test_large_batches_among_markers_are_read_alike(size: int, way: str, verify_crc: bool, tmp_path: Path) -> None:
    parts = []
    for number in range(8):
        values = [random.Random(number).randbytes(size)]
        parts += [a_batch(offset=2 * number, values=values, transactional=True), a_marker(offset=2 * number + 1)]
    data = b"".join(parts)
    path = tmp_path / "large.log"
    path.write_bytes(data)
    split = a_split(len(data), next_base=16, verify_crc=verify_crc)
    with FileReader(str(path)) as reader:
        assert by_kernel(reader, split, way=way) == plainly(BytesReader(data), split)
    damaged = bytearray(data)
    damaged[size // 2] ^= 1
    path.write_bytes(damaged)
    with FileReader(str(path)) as reader:
        found = by_kernel(reader, split, way=way)
    assert (found.error is not None) == verify_crc
    assert found == plainly(BytesReader(bytes(damaged)), split)


def bytes_read(data: bytes, way: str, path: Path) -> int:
    path.write_bytes(data)
    facts = ScanFacts()
    reading, _ = WAYS[way]
    with FileReader(str(path)) as reader:
        list(kernel_pieces(reader, a_split(len(data)), SILENCE_MS, facts, reading))
    return facts.bytes_read


def test_of_large_batches_headers_alone_are_read_and_of_small_ones_everything(tmp_path: Path) -> None:
    large = b"".join(a_batch(offset=offset, values=[bytes(500_000)]) for offset in range(40))
    small = b"".join(a_batch(offset=offset, values=[bytes(100)]) for offset in range(4_000))
    path = tmp_path / "x.log"
    assert bytes_read(large, "as it comes", path) == hop._FIRST_BYTES + 39 * hop._HEADER_READ_BYTES
    assert len(small) <= bytes_read(small, "as it comes", path) < 1.01 * len(small)
    mixed = small + b"".join(a_batch(offset=4_000 + n, values=[bytes(500_000)]) for n in range(40)) + b"".join(
        a_batch(offset=4_040 + n, values=[bytes(100)]) for n in range(4_000)
    )  # fmt: skip
    assert bytes_read(mixed, "as it comes", path) < 3 * len(small) + 10 * kernel_scan.BLOCK_BYTES


def test_a_marker_between_large_batches_comes_with_the_header_after_it(tmp_path: Path) -> None:
    pairs = [
        (a_batch(offset=n, values=[bytes(500_000)], transactional=True), a_marker(offset=n + 1)) for n in (0, 2, 4)
    ]
    assert {len(marker) for _, marker in pairs} == {hop._MARKER_BYTES}
    data = b"".join(data + marker for data, marker in pairs)
    expected = hop._FIRST_BYTES + 2 * hop._HEADER_READ_BYTES + hop._MARKER_BYTES
    assert bytes_read(data, "as it comes", tmp_path / "x.log") == expected


def test_a_file_that_has_shrunk_since_it_was_opened_is_reported_alike(tmp_path: Path) -> None:
    data = b"".join(a_batch(offset=offset) for offset in range(20))
    size = read_header(data).size_bytes
    path = tmp_path / "x.log"
    for next_base in (None, 20):
        found = {}
        for scan in (plainly, by_kernel):
            path.write_bytes(data)
            with FileReader(str(path)) as reader:
                path.write_bytes(data[: 7 * size + 5])
                found[scan] = scan(reader, a_split(len(data), next_base=next_base))
        assert found[plainly] == found[by_kernel]
        assert (found[plainly].error is None) == (next_base is None)
