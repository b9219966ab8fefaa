from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError
from resnap.storage.log.record import write_record
from resnap.storage.log.record_batch import HEADER, read_header, seal
from resnap.tiering.controller.metadata.batches import (
    MetadataBatch,
    SnapshotFooterRecord,
    TornTail,
    encode_record,
    read_batches,
)
from resnap.tiering.controller.metadata.records import FeatureLevelRecord, UnknownRecord
from resnap.tiering.controller.metadata.writer import control_batch
from tests.logs.batch_builder import write_data_batch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet

    Sets: TypeAlias = Callable[[str], FixtureSet]

EPOCH_FIELD = range(12, 16)
"""The one field that neither a checksum nor the neighbours vouch for, save that it never falls."""


@pytest.fixture(scope="module")
def log(fixture_set: Sets) -> bytes:
    """Two hundred batches would make the search slow: the first six, with eighteen records, do."""
    path = fixture_set("kafka-4.1.1-kraft").data / "__cluster_metadata-0" / f"{0:020d}.log"
    sixth = [part.position for part in read_batches(path, 0) if isinstance(part, MetadataBatch)][6]
    return path.read_bytes()[:sixth]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batches") / f"{0:020d}.log"


def read(place: Path, data: bytes, *, active: bool = False) -> list[MetadataBatch | TornTail]:
    place.write_bytes(data)
    return list(read_batches(place, 0, active=active))


@given(data=st.data())
def test_a_flipped_bit_is_damage_also_in_the_active_segment(data: st.DataObject, log: bytes, place: Path) -> None:
    whole = read(place, log)
    starts = [part.position for part in whole]
    position = data.draw(st.integers(0, starts[-1] - 1), label="below the last batch, whose end could be torn")
    start = max(one for one in starts if one <= position)
    flipped = bytearray(log)
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))
    if position - start in EPOCH_FIELD:
        assert len(read(place, flipped, active=True)) == len(whole)
        return
    with pytest.raises(FormatError) as caught:
        read(place, flipped, active=True)
    assert caught.value.file == str(place)
    assert start <= caught.value.position < start + HEADER.size or "cut short" in str(caught.value)


@given(data=st.data())
def test_a_torn_end_leaves_all_batches_before_it(data: st.DataObject, log: bytes, place: Path) -> None:
    whole = read(place, log)
    size = data.draw(st.integers(1, len(log) - 1))
    found = read(place, log[:size], active=True)
    kept = [part for part in whole if part.position + part.header.size_bytes <= size]
    assert found[: len(kept)] == kept
    end = kept[-1].position + kept[-1].header.size_bytes if kept else 0
    torn = [] if end == size else [TornTail(file=place, position=end, size_bytes=size - end)]
    assert found[len(kept) :] == torn


@pytest.mark.parametrize("size", [1, 60, 61, 5000])
def test_zeros_behind_the_last_batch_are_a_torn_end(size: int, log: bytes, place: Path) -> None:
    assert read(place, log + bytes(size), active=True)[-1] == TornTail(file=place, position=len(log), size_bytes=size)


@pytest.mark.parametrize("tail", [b"\1" * 5, b"\1" * 100, b"\0" * 30 + b"\1"])
def test_bytes_that_do_not_begin_the_next_batch_are_not_a_torn_end(tail: bytes, log: bytes, place: Path) -> None:
    with pytest.raises(FormatError, match=r"metadata batch(| length) at byte \d+: expected"):
        read(place, log + tail, active=True)


@pytest.mark.parametrize("tail", [b"\0" * 61, b"\0\0\0", "half a batch"])
def test_a_closed_file_has_no_torn_end(tail: bytes | str, log: bytes, place: Path) -> None:
    data = log[:-5] if isinstance(tail, str) else log + tail
    with pytest.raises(FormatError, match=r"metadata batch at byte \d+: expected all of its bytes"):
        read(place, data)


def batch(*values: bytes, offset: int = 0, compression: int = 0) -> bytes:
    return write_data_batch(offset=offset, values=values, timestamps=5, compression=compression)


def test_compressed_batches_are_refused(place: Path) -> None:
    value = encode_record(FeatureLevelRecord(name="x", feature_level=1))
    with pytest.raises(FormatError, match="compression of a batch of metadata records at byte 0: expected none, found"):
        read(place, batch(value, compression=1))


def test_a_batch_of_other_offsets_than_the_next_ones_is_refused(place: Path) -> None:
    value = encode_record(FeatureLevelRecord(name="x", feature_level=1))
    with pytest.raises(FormatError, match=r"base offset of a metadata batch at byte \d+: expected 1, found 2"):
        read(place, batch(value) + batch(value, offset=2))


def test_a_record_with_a_key_or_a_time_of_its_own_is_refused(place: Path) -> None:
    value = encode_record(FeatureLevelRecord(name="x", feature_level=1))
    header = read_header(batch(value))
    with pytest.raises(FormatError, match="expected no key, and the time of its batch, found a key"):
        read(place, seal(header, write_record(0, 0, b"k", value)))
    with pytest.raises(FormatError, match="found a time 7 ms later"):
        read(place, seal(header, write_record(7, 0, None, value)))


def test_records_that_do_not_fill_their_batch_are_refused(place: Path) -> None:
    value = encode_record(FeatureLevelRecord(name="x", feature_level=1))
    with pytest.raises(FormatError, match=r"batch of 1 metadata records at byte \d+: expected its end, found 2 more"):
        read(place, seal(read_header(batch(value)), write_record(0, 0, None, value) + b"\0\0"))


def test_a_control_record_that_is_younger_than_this_text_is_passed_over(place: Path) -> None:
    known = control_batch(4, SnapshotFooterRecord(version=0), 0, 5, leader_epoch=1)
    younger = control_batch(99, SnapshotFooterRecord(version=0), 1, 5, leader_epoch=1)
    found = [part.records[0].message for part in read(place, known + younger) if isinstance(part, MetadataBatch)]
    assert found == [SnapshotFooterRecord(version=0), UnknownRecord(api_key=99, version=0, size_bytes=3)]
