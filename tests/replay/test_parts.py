from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resnap.replay.rebuild import (
    by_segment,
    fit,
    join_parts,
    part_bytes,
    plan_splits,
    rebuild_locally,
    scan_part,
    whole,
    whole_segment,
)
from resnap.replay.scan.splits import Reading
from resnap.storage.errors import FormatError
from resnap.storage.log.indexes import OFFSET_ENTRY
from tests.builders import a_partition
from tests.replay.memory_sink import MemorySink
from tests.replay.replaying import HOUR_MS, planned
from tests.replay.specification import NOTHING, join
from tests.strategies import (
    START_MS,
    DataEvent,
    Event,
    MarkerEvent,
    PlainEvent,
    histories,
)

if TYPE_CHECKING:
    from resnap.replay.plan import PartitionPlan
    from resnap.replay.scan.splits import Piece, SplitSummary

SILENCE_MS = 1_100
PLAINLY = Reading()
DENSE = {"index_interval_bytes": 1}


def a_plan(directory: Path, **options: object) -> PartitionPlan:
    return planned(directory, now_ms=START_MS + HOUR_MS, full=True, to_end=True, **options)


def scanned(plan: PartitionPlan, size: int) -> list[SplitSummary]:
    splits = plan_splits(plan, plan.runs[0], size)
    return [scan_part(split, SILENCE_MS, PLAINLY) for split in splits if split.segment_index == 0]


def in_one(pieces: list[Piece]) -> Piece:
    return reduce(lambda left, right: join(left, right, SILENCE_MS), pieces, NOTHING)


OF_TRANSACTIONS = ["producer_id", "txn_first_offset", "closed", "first_marker_offset", "first_sequence"]


def comparable(summary: SplitSummary) -> tuple[object, ...]:
    """Give what does not depend on how a segment was read: facts, the transactions at the high watermark, all."""
    pieces = list(summary.pieces)
    below = in_one([*takewhile(lambda piece: not (piece.above and len(piece.rows)), pieces)])
    everything = in_one(pieces)
    facts = replace(summary.facts, bytes_read=0, clock_since_event_ms=0)
    return (
        facts, below.rows[OF_TRANSACTIONS].tolist(), everything.rows.tolist(), everything.clock_ms,
        str(summary.error), summary.ends_segment,
    )  # fmt: skip


@settings(deadline=None)
@given(
    events=histories(max_events=30),
    size=st.sampled_from([1, 70, 200, 500]),
    mark=st.integers(0, 40),
    interval=st.sampled_from([0, 100, 300]),
)
def test_parts_of_any_size_are_together_what_the_whole_is(
    events: list[Event], size: int, mark: int, interval: int
) -> None:
    with TemporaryDirectory() as directory:
        partition = a_partition(Path(directory), [events, [PlainEvent()]], index_interval_bytes=interval)
        plan = a_plan(partition, high_watermark=mark)
        expected = scan_part(whole_segment(plan, 0), SILENCE_MS, PLAINLY)
        parts = scanned(plan, size)
        assert len(parts) == 1 or fit(parts)
        assert comparable(whole(parts, plan, PLAINLY)) == comparable(expected)


MIXED: list[Event] = [
    *(DataEvent(producer_id=pid, base_sequence=0, timestamp=START_MS + pid, transactional=True) for pid in range(20)),
    *(MarkerEvent(producer_id=pid, timestamp=START_MS + 50 + pid) for pid in range(0, 20, 3)),
]  # fmt: skip


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    return a_partition(tmp_path, [MIXED, [PlainEvent()]], index_interval_bytes=100)


def test_a_segment_is_really_cut(partition: Path) -> None:
    parts = scanned(a_plan(partition), 300)
    filled = [part for part in parts if part.start is not None]
    assert len(filled) >= 5
    assert sum(part.facts.batches for part in filled) == len(MIXED)
    assert [part.ends_segment for part in parts] == [False] * (len(parts) - 1) + [True]


def spoiled_index(partition: Path, how: str) -> None:
    index = partition / "00000000000000000000.index"
    content = bytearray(index.read_bytes())
    entries = [list(OFFSET_ENTRY.unpack_from(content, at)) for at in range(0, len(content), 8)]
    if how == "missing":
        index.unlink()
        return
    if how == "between batches":
        entries = [[offset, position + 13] for offset, position in entries]
    elif how == "falling":
        entries.reverse()
    elif how == "beyond":
        entries = [[offset, position + 1_000_000] for offset, position in entries]
    elif how == "zeros":
        entries = [[0, 0] for _ in entries]
    elif how == "padded":
        entries += [[0, 0]] * 3_000
    cut = 3 if how == "cut short" else 0
    content = bytearray(b"".join(OFFSET_ENTRY.pack(*entry) for entry in entries))
    index.write_bytes(content[: len(content) - cut])


@pytest.mark.parametrize("how", ["missing", "between batches", "falling", "beyond", "zeros", "padded", "cut short"])
def test_whatever_the_index_says_the_segment_is_read_right(how: str, partition: Path) -> None:
    plan = a_plan(partition)
    expected = comparable(scan_part(whole_segment(plan, 0), SILENCE_MS, PLAINLY))
    spoiled_index(partition, how)
    assert comparable(whole(scanned(plan, 300), plan, PLAINLY)) == expected


@pytest.mark.parametrize("at", [16, 700, 1_300, -1])
def test_damage_is_reported_at_its_position_as_without_cuts(at: int, partition: Path) -> None:
    log = partition / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    if at == -1:
        content = content[:-1]
    else:
        content[at : at + 80] = b"\xff" * 80
    log.write_bytes(content)
    plan = a_plan(partition)
    expected = scan_part(whole_segment(plan, 0), SILENCE_MS, PLAINLY)
    assert isinstance(expected.error, FormatError)
    assert comparable(whole(scanned(plan, 300), plan, PLAINLY)) == comparable(expected)


def test_offsets_that_fall_from_one_part_to_the_next_are_damage_as_they_are_within_one(tmp_path: Path) -> None:
    low = a_partition(tmp_path, [[PlainEvent(records=5)] * 10, [PlainEvent()]], name="low-0", **DENSE)
    high = a_partition(tmp_path, [[PlainEvent(records=5)] * 10], name="high-0", first_offset=20, **DENSE)
    name = "00000000000000000000.log"
    joint = (low / name).read_bytes() + (high / "00000000000000000020.log").read_bytes()
    at = len((low / name).read_bytes())
    (low / name).write_bytes(joint)
    (low / "00000000000000000000.index").write_bytes(OFFSET_ENTRY.pack(9, at))
    plan = a_plan(low)
    parts = scanned(plan, len(joint) // 2)
    assert [part.error for part in parts if part.part == 0] == [None]
    assert not fit(parts)
    assert "rising offsets" in str(whole(parts, plan, PLAINLY).error)


def test_offsets_missing_between_two_parts_are_seen(tmp_path: Path) -> None:
    one = a_partition(tmp_path, [[PlainEvent()] * 10, [PlainEvent()]], name="one-0", **DENSE)
    log, index = one / "00000000000000000000.log", one / "00000000000000000000.index"
    content, size = log.read_bytes(), log.stat().st_size // 10
    log.write_bytes(content[: 5 * size] + content[6 * size :])
    index.write_bytes(OFFSET_ENTRY.pack(6, 5 * size))
    plan = a_plan(one)
    parts = scanned(plan, 4 * size)
    assert not any(part.facts.lacks_records for part in parts)
    assert join_parts(parts).facts.lacks_records


def test_a_leader_epoch_counts_once_though_every_part_meets_it(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, [[PlainEvent()] * 30, [PlainEvent()]], leader_epoch=4, **DENSE)
    assert join_parts(scanned(a_plan(directory), 200)).facts.leader_epochs == [(4, 0)]


def test_cuts_are_made_only_where_there_is_something_to_gain() -> None:
    reading = Reading()
    assert part_bytes(reading, 100 << 30, slots=1) is None
    assert part_bytes(reading, 100 << 30, slots=2) == reading.split_bytes
    assert part_bytes(reading, 3 << 30, slots=4) == 256 << 20
    assert part_bytes(reading, 1 << 20, slots=64) == reading.least_part_bytes


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("high_watermark", [None, 3, 17, 24])
def test_threads_and_cuts_change_nothing(threads: int, high_watermark: int | None, tmp_path: Path) -> None:
    partition = a_partition(tmp_path, [MIXED, MIXED, [PlainEvent()], MIXED], index_interval_bytes=100)
    plan = a_plan(partition, high_watermark=high_watermark)
    expected, cut = MemorySink(), MemorySink()
    (before,) = rebuild_locally([plan], expected)
    (after,) = rebuild_locally([plan], cut, reading=Reading(threads=threads, least_part_bytes=200, split_bytes=200))
    assert replace(after, bytes_read=0) == replace(before, bytes_read=0)
    assert cut.snapshots.keys() == expected.snapshots.keys()
    assert all((cut.snapshots[key] == expected.snapshots[key]).all() for key in expected.snapshots)


def test_parts_are_grouped_by_segment(partition: Path) -> None:
    plan = a_plan(partition)
    parts = [scan_part(split, SILENCE_MS, PLAINLY) for split in plan_splits(plan, plan.runs[0], 300)]
    groups = list(by_segment(parts))
    assert [{part.segment_index for part in group} for group in groups] == [{0}, {1}]


@pytest.fixture(scope="module")
def many() -> list[Event]:
    return [
        event
        for turn in range(2)
        for pid in range(5_000)
        for event in (
            DataEvent(producer_id=pid, base_sequence=turn, timestamp=START_MS + pid, transactional=True),
            *([MarkerEvent(producer_id=pid, timestamp=START_MS + 50_000 + pid)] if pid % 3 == 0 else []),
        )
    ]


@pytest.mark.parametrize("kernel", [True, False], ids=["machine code", "plain"])
@pytest.mark.parametrize("high_watermark", [None, 4_000])
def test_of_more_producers_than_a_task_shall_hold_the_summary_comes_in_pieces(
    kernel: bool, high_watermark: int | None, many: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resnap.replay.scan.header_scan.BLOCK_BYTES", 20_000)
    plan = a_plan(a_partition(tmp_path, [many, [PlainEvent()]]), high_watermark=high_watermark)
    split = whole_segment(plan, 0)
    whole_, small = (
        scan_part(split, SILENCE_MS, Reading(kernel=kernel, producers_per_task=most)) for most in (1 << 30, 1_000)
    )
    pieces = list(small.pieces)
    assert len(list(whole_.pieces)) == (1 if high_watermark is None else 2)
    assert len(pieces) >= 8
    # An array that grows by doubling, or a block that comes at once, may be fuller than was asked for.
    assert max(len(piece.rows) for piece in pieces) <= 3_000
    assert comparable(small) == comparable(whole_)
