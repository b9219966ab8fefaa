from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError
from resnap.storage.log.record import (
    ABORT,
    COMMIT,
    KEY,
    LEADER_CHANGE,
    MARKER_VALUE,
    UNUSUAL,
    read_control_record,
    usual_marker_types,
    write_marker_batch,
    write_record,
)
from resnap.storage.log.record_batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, read_header, seal
from tests.storage.log import golden

MARKERS = st.builds(
    write_marker_batch,
    offset=st.integers(0, 2**63 - 1),
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    coordinator_epoch=st.integers(-1, 2**31 - 1),
    timestamp=st.integers(-1, 2**63 - 1),
    commit=st.booleans(),
    leader_epoch=st.integers(0, 2**31 - 1),
)
VOUCHED_FOR = [*range(8, 12), *range(16, 78)]
"""Neither offset nor leader epoch is covered by the checksum."""
RECORD = write_record(0, 0, KEY.pack(0, ABORT), MARKER_VALUE.pack(0, 11))


def types_in(*batches: bytes, cut: int = 0) -> list[int]:
    ends = np.cumsum([0, *map(len, batches)])
    block = b"".join(batches)
    return usual_marker_types(memoryview(block)[: len(block) - cut], ends[:-1].astype(np.int64)).tolist()


@given(st.lists(MARKERS, max_size=20))
def test_every_marker_that_a_broker_writes_is_known_by_its_type(batches: list[bytes]) -> None:
    found = [read_control_record(batch, read_header(batch)) for batch in batches]
    assert types_in(*batches) == [marker.type for marker in found if marker is not None]


def test_golden_markers_are_usual() -> None:
    assert types_in(golden.COMMIT_BATCH, golden.ABORT_BATCH) == [COMMIT, ABORT]


@pytest.mark.parametrize(
    "batch",
    [
        seal(golden.MARKER_HEADER._replace(attributes=TRANSACTIONAL | CONTROL | LOG_APPEND_TIME), RECORD),
        seal(golden.MARKER_HEADER._replace(records_count=2), RECORD),
        seal(golden.MARKER_HEADER, write_record(1, 0, KEY.pack(0, ABORT), MARKER_VALUE.pack(0, 11))),
        seal(golden.MARKER_HEADER, write_record(0, 0, KEY.pack(0, ABORT), MARKER_VALUE.pack(0, 11) + b"\0")),
        seal(golden.MARKER_HEADER, write_record(0, 0, KEY.pack(0, LEADER_CHANGE), MARKER_VALUE.pack(0, 11))),
        seal(golden.MARKER_HEADER._replace(records_count=0), b""),
    ],
    ids=["log append time", "two records", "timestamp delta", "longer value", "another type", "emptied"],
)
def test_whatever_is_not_as_usual_is_left_to_be_read(batch: bytes) -> None:
    assert types_in(golden.ABORT_BATCH, batch, golden.COMMIT_BATCH) == [ABORT, UNUSUAL, COMMIT]


def test_a_marker_that_goes_on_beyond_the_block_is_left_to_be_read() -> None:
    assert types_in(golden.COMMIT_BATCH, golden.ABORT_BATCH, cut=1) == [COMMIT, UNUSUAL]
    assert types_in(golden.ABORT_BATCH, cut=len(golden.ABORT_BATCH) - 1) == [UNUSUAL]


@given(MARKERS, st.sampled_from(VOUCHED_FOR), st.integers(1, 255))
def test_no_marker_with_a_flipped_bit_is_known(batch: bytes, position: int, flip: int) -> None:
    damaged = bytearray(batch)
    damaged[position] ^= flip
    assert types_in(bytes(damaged)) == [UNUSUAL]
    with pytest.raises(FormatError):
        read_control_record(bytes(damaged), read_header(bytes(damaged)))
