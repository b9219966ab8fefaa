from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.replay.scan.header_scan import SegmentRange
from resnap.replay.scan.splits import Split, locate, position_at
from resnap.storage.log.indexes import OffsetIndexEntry, write_offset_index
from resnap.storage.readers import BytesReader
from resnap.storage.sources.files import Sources
from resnap.storage.stores.memory import MemoryObjectStore

if TYPE_CHECKING:
    from pathlib import Path

LOG_BYTES = 10_000_000


def an_index(positions: list[int], *, padding: int = 0) -> BytesReader:
    entries = [OffsetIndexEntry(number, position) for number, position in enumerate(positions, start=1)]
    return BytesReader(write_offset_index(entries) + bytes(8 * padding))


@given(
    positions=st.sets(st.integers(1, LOG_BYTES - 1), max_size=60).map(sorted),
    padding=st.sampled_from([0, 1, 5, 400]),
    target=st.integers(1, LOG_BYTES),
    block=st.sampled_from([1, 2, 3, 16, 1024]),
)
def test_the_first_position_at_or_after_the_target_is_found(
    positions: list[int], padding: int, target: int, block: int
) -> None:
    at = bisect_left(positions, target)
    expected = positions[at] if at < len(positions) else None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("resnap.replay.scan.splits.BLOCK_ENTRIES", block)
        assert position_at(an_index(positions, padding=padding), target, LOG_BYTES) == expected


@given(content=st.binary(max_size=400), target=st.integers(1, LOG_BYTES))
def test_whatever_the_bytes_a_position_lies_within_the_log_at_or_after_the_target(content: bytes, target: int) -> None:
    found = position_at(BytesReader(content), target, LOG_BYTES)
    assert found is None or target <= found < LOG_BYTES


class CountedReader(BytesReader):
    reads = 0

    def read(self, position: int, length: int) -> bytes:
        self.reads += 1
        return super().read(position, length)


def test_one_read_is_enough_where_entries_lie_evenly() -> None:
    positions = list(range(4_096, LOG_BYTES, 4_096))
    index = CountedReader(write_offset_index([OffsetIndexEntry(at, at) for at in positions]))
    for target in (1, LOG_BYTES // 3, LOG_BYTES - 5_000):
        index.reads = 0
        assert position_at(index, target, LOG_BYTES) == positions[bisect_left(positions, target)]
        assert index.reads == 1


@pytest.mark.slow
def test_little_is_asked_of_a_store_for_the_cuts_of_a_large_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    get_range = MemoryObjectStore.get_range

    def noted(store: MemoryObjectStore, key: str, start: int, end: int, **named: str | None) -> bytes:
        asked.append(end - start)
        return get_range(store, key, start, end, **named)

    monkeypatch.setattr(MemoryObjectStore, "get_range", noted)
    positions = [1_000 + at * at // 30_000 for at in range(1, 500_000)]
    index = write_offset_index([OffsetIndexEntry(at, position) for at, position in enumerate(positions, start=1)])
    store = Sources().store("memory://cuts")
    store.put("t-0/0.index", index)
    segment = SegmentRange(locator="memory://cuts/t-0/0.log", base_offset=0, next_base_offset=9)
    part = Split(
        segment_index=0, part=1, range=segment, size_bytes=50, segment_bytes=positions[-1] + 1,
        start_target=2_000_000, end_target=4_000_000, ends_segment=False,
    )  # fmt: skip
    found = locate(part, Sources())
    assert found is not None
    assert found.start == positions[bisect_left(positions, 2_000_000)]
    assert found.end == positions[bisect_left(positions, 4_000_000)]
    assert sum(asked) < len(index) // 10


def test_a_part_without_an_index_is_the_whole_if_it_is_the_first_and_else_empty(tmp_path: Path) -> None:
    segment = SegmentRange(locator=str(tmp_path / "0.log"), base_offset=0, next_base_offset=9)
    first, second = (
        Split(
            segment_index=0, part=part, range=segment, size_bytes=50, segment_bytes=100, start_target=start,
            end_target=end, ends_segment=end is None,
        )
        for part, start, end in ((0, 0, 50), (1, 50, None))
    )  # fmt: skip
    assert locate(first, Sources()) == segment
    assert locate(second, Sources()) is None
