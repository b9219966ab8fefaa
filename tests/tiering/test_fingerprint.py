from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.log.log_dir import load_partition_dir
from resnap.tiering.installing.staging_area import (
    Fingerprint,
    SegmentPrint,
    StagedPrint,
    Staleness,
    join_fingerprints,
    print_segment,
    read_fingerprint,
    write_fingerprint,
)
from tests.scheduler.files import flip

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet

BASES = (0, 10, 20, 30, 40, 50)


def a_segment(base_offset: int, **other: object) -> SegmentPrint:
    usual = SegmentPrint(base_offset=base_offset, next_base_offset=base_offset + 10, size_bytes=99, digest="aa")
    return replace(usual, **other)  # type: ignore[arg-type]


def a_snapshot(offset: int, depends_from: int = 0) -> StagedPrint:
    return StagedPrint(offset=offset, depends_from=depends_from, size_bytes=10, sha256=f"{offset:x}", left_out=0)


SEGMENTS = tuple(map(a_segment, BASES))
MADE = Fingerprint(segments=SEGMENTS, snapshots=(a_snapshot(20), a_snapshot(40, 20), a_snapshot(60, 40)))

offsets = st.integers(0, 2**63 - 1)
words = st.text(max_size=8)
prints = st.builds(SegmentPrint, base_offset=offsets, next_base_offset=offsets, size_bytes=offsets, digest=words)
staged = st.builds(
    StagedPrint, offset=offsets, depends_from=offsets, size_bytes=offsets, sha256=words, left_out=offsets
)


def stale(present: tuple[SegmentPrint, ...], first: int = 0) -> dict[int, int]:
    """Return by offset the segment for which a snapshot is stale."""
    judge = Staleness(MADE, present, first)
    return {s.offset: changed for s in MADE.snapshots if (changed := judge.of(s)) is not None}


@given(
    st.lists(prints, max_size=6, unique_by=lambda s: s.base_offset),
    st.lists(staged, max_size=6, unique_by=lambda s: s.offset),
)
def test_what_is_written_is_read_again(segments: list[SegmentPrint], snapshots: list[StagedPrint]) -> None:
    fingerprint = Fingerprint(
        segments=tuple(sorted(segments, key=lambda s: s.base_offset)),
        snapshots=tuple(sorted(snapshots, key=lambda s: s.offset)),
    )
    assert read_fingerprint(write_fingerprint(fingerprint)) == fingerprint


def test_only_what_depends_on_a_changed_segment_is_stale() -> None:
    for changed in (a_segment(20, digest="bb"), a_segment(20, size_bytes=98), a_segment(20, next_base_offset=25)):
        present = tuple(changed if s.base_offset == 20 else s for s in SEGMENTS)
        assert stale(present) == {40: 20}


def test_a_segment_that_is_gone_from_the_middle_or_came_into_it_makes_stale() -> None:
    assert stale(tuple(s for s in SEGMENTS if s.base_offset != 50)) == {60: 50}
    assert stale((*SEGMENTS, a_segment(45, next_base_offset=50))) == {60: 45}


def test_joining_keeps_what_is_neither_made_again_nor_contradicted() -> None:
    later = Fingerprint(segments=(a_segment(0, digest="new"), a_segment(10)), snapshots=(a_snapshot(10),))
    whole = join_fingerprints(MADE, later)
    assert [snapshot.offset for snapshot in whole.snapshots] == [10, 40, 60]
    assert whole.segments == (a_segment(0, digest="new"), *SEGMENTS[1:])
    assert join_fingerprints(None, later) == later
    assert join_fingerprints(MADE, MADE) == MADE


def test_one_is_found_by_its_offset() -> None:
    assert MADE.at(40) == a_snapshot(40, 20)
    assert (MADE.at(41), MADE.at(0), MADE.at(99)) == (None, None, None)


def test_a_copy_of_a_segment_has_the_same_print_and_a_byte_at_either_end_counts(
    fixture_set: Callable[[str], FixtureSet], writable_copy: Callable[[Path], Path]
) -> None:
    original = fixture_set("kafka-2.7.2").data / "payments-0"
    copy = writable_copy(original)
    first = print_segment(load_partition_dir(original).segments[0])
    assert first is not None
    log = copy / "00000000000000000000.log"
    log.touch()
    assert print_segment(load_partition_dir(copy).segments[0]) == first
    for position in (0, 60, log.stat().st_size - 1):
        flip(log, position)
        assert print_segment(load_partition_dir(copy).segments[0]) != first
        flip(log, position)


def test_a_segment_that_is_gone_or_no_longer_as_it_was_listed_has_no_print(
    fixture_set: Callable[[str], FixtureSet], writable_copy: Callable[[Path], Path]
) -> None:
    partition = writable_copy(fixture_set("kafka-2.7.2").data / "payments-0")
    segments = load_partition_dir(partition).segments
    with (partition / "00000000000000000000.log").open("ab") as log:
        log.write(b"x")
    assert print_segment(segments[0]) is None
    (partition / "00000000000000000000.log").unlink()
    assert print_segment(segments[0]) is None
