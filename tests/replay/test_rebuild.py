from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING

import pytest

from resnap.replay import results
from resnap.replay.comparison import SnapshotVerdict
from resnap.replay.plan import Coverage
from resnap.replay.results import BoundaryOutcome
from resnap.replay.scan.splits import Reading
from resnap.replay.window import Unexplained
from resnap.storage.errors import FormatError, LogDirError
from resnap.storage.log.log_dir import load_partition_dir
from resnap.storage.log.names import segment_name
from resnap.storage.log.producer_snapshot import LeftOut, ProducerEntry, snapshot_bytes
from tests.builders import a_partition
from tests.logs.log_writer import PartitionWriter
from tests.replay.replaying import DAY_MS, HOUR_MS, planned, replayed
from tests.strategies import START_MS, DataEvent, MarkerEvent, PlainEvent

if TYPE_CHECKING:
    from pathlib import Path

    from tests.strategies import Event


def hour(number: float) -> int:
    return START_MS + int(number * HOUR_MS)


def data(at: float, *, pid: int = 1, sequence: int = 0, transactional: bool = True, epoch: int = 0) -> DataEvent:
    return DataEvent(
        producer_id=pid, producer_epoch=epoch, base_sequence=sequence, timestamp=hour(at), transactional=transactional
    )


def marker(at: float, *, pid: int = 1, commit: bool = True) -> MarkerEvent:
    return MarkerEvent(producer_id=pid, timestamp=hour(at), commit=commit, coordinator_epoch=5)


def plain(at: float) -> PlainEvent:
    return PlainEvent(timestamp=hour(at))


def hourly(*events: Event, hours: int) -> list[list[Event]]:
    """Put ``events`` into segments of an hour each, after a plain batch that opens each of them."""
    segments: list[list[Event]] = [[plain(number)] for number in range(hours)]
    for event in events:
        segments[(event.timestamp - START_MS) // HOUR_MS].append(event)
    return segments


def bases(directory: Path) -> list[int]:
    return [segment.base_offset for segment in load_partition_dir(directory).segments]


FOUR_HOURS = hourly(
    data(0), marker(0.1), data(1, sequence=1), marker(1.1), data(2, sequence=2), data(3, pid=2, sequence=0), hours=5
)


def test_below_damage_everything_is_rebuilt_and_above_it_nothing(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, FOUR_HOURS)
    whole = replayed(planned(directory, now_ms=hour(5)))
    first, second, third, fourth, _ = bases(directory)
    damaged = directory / segment_name(third, "log")
    content = bytearray(damaged.read_bytes())
    content[16] = 9
    damaged.write_bytes(content)
    found = replayed(planned(directory, now_ms=hour(5)))
    outcomes = {made.offset: made.outcome for made in found.result.boundaries}
    assert [outcomes[offset] for offset in (second, third)] == [BoundaryOutcome.REBUILT] * 2
    assert [outcomes[offset] for offset in outcomes if offset > third] == [BoundaryOutcome.DAMAGED] * 2
    assert found.snapshots == {offset: whole.snapshots[offset] for offset in (second, third)}
    assert str(damaged) in str(found.at(fourth).reason)
    assert "byte 16" in str(found.at(fourth).reason)
    assert isinstance(found.result.error, FormatError)
    assert first == 0


@pytest.mark.parametrize("number", range(4))
def test_damage_anywhere_never_changes_a_boundary_below_it(number: int, tmp_path: Path) -> None:
    directory = a_partition(tmp_path, FOUR_HOURS)
    whole = replayed(planned(directory, now_ms=hour(5))).snapshots
    base = bases(directory)[number]
    path = directory / segment_name(base, "log")
    path.write_bytes(path.read_bytes()[:-1])
    found = replayed(planned(directory, now_ms=hour(5)))
    assert found.snapshots == {offset: entries for offset, entries in whole.items() if offset <= base}
    assert found.at(bases(directory)[-1]).outcome is BoundaryOutcome.DAMAGED


def test_a_segment_that_has_vanished_is_reported_by_name(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, FOUR_HOURS)
    plan = planned(directory, now_ms=hour(5))
    vanished = directory / segment_name(bases(directory)[1], "log")
    vanished.unlink()
    found = replayed(plan)
    assert [made.outcome for made in found.result.boundaries] == ["rebuilt", *["unreadable"] * 3]
    assert isinstance(found.result.error, LogDirError)
    assert found.result.boundaries[-1].reason == f"{vanished}: the file is gone"


def test_a_segment_that_was_replaced_meanwhile_is_not_called_damaged(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, FOUR_HOURS)
    plan = planned(directory, now_ms=hour(5))
    first, second = (directory / segment_name(base, "log") for base in bases(directory)[1:3])
    first.write_bytes(first.read_bytes() + second.read_bytes())  # as a cleaner joins segments
    second.unlink()
    found = replayed(plan)
    assert [made.outcome for made in found.result.boundaries] == ["rebuilt", *["unreadable"] * 3]
    assert found.result.boundaries[-1].reason == f"{first}: changed since the log directory was listed"


def test_a_directory_in_place_of_a_segment_is_an_error_of_ours(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, FOUR_HOURS)
    plan = planned(directory, now_ms=hour(5))
    segment = directory / segment_name(bases(directory)[1], "log")
    segment.unlink()
    segment.mkdir()
    assert isinstance(replayed(plan).result.error, LogDirError)


def test_an_error_with_its_place_survives_the_way_to_another_process(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, FOUR_HOURS)
    plan = planned(directory, now_ms=hour(5))
    (directory / segment_name(0, "log")).write_bytes(b"\1" * 100)
    result = replayed(plan).result
    assert result.error is not None
    restored = pickle.loads(pickle.dumps(result))  # noqa: S301 - our own
    assert str(restored.error) == str(result.error)
    assert type(restored.error) is type(result.error)
    assert restored.error.hint == result.error.hint


def test_boundaries_above_plain_data_in_an_open_transaction_are_refused_by_name(tmp_path: Path) -> None:
    directory = a_partition(
        tmp_path, hourly(data(0), data(1, sequence=1, transactional=False), marker(1.1), data(2, sequence=2), hours=4)
    )
    found = replayed(planned(directory, now_ms=hour(4)))
    assert [made.outcome for made in found.result.boundaries] == [
        BoundaryOutcome.REBUILT, BoundaryOutcome.ILLEGAL, BoundaryOutcome.ILLEGAL,
    ]  # fmt: skip
    assert found.result.boundaries[-1].reason == "non-transactional data inside an open transaction at offset 3"
    assert found.snapshots.keys() == {2}


def first_unstable(directory: Path, high_watermark: int | None, **options: object) -> int | None:
    plan = planned(directory, now_ms=hour(3), high_watermark=high_watermark, to_end=True, **options)
    return replayed(plan).result.first_unstable_offset


@pytest.mark.parametrize("wanted", [None, [], [3]], ids=["all boundaries", "none", "one"])
def test_the_first_unstable_offset_is_that_of_the_oldest_transaction_open_at_the_high_watermark(
    wanted: list[int] | None, tmp_path: Path
) -> None:
    directory = a_partition(
        tmp_path,
        [
            [plain(0), data(0.1, pid=1), data(0.2, pid=2)],
            [marker(1, pid=1), data(1.1, pid=3), marker(1.2, pid=2, commit=False)],
            [plain(2), marker(2.1, pid=3), plain(2.2)],
        ],
    )
    expected = {0: None, 1: None, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 4, 8: None, 9: None, 100: None}
    assert {mark: first_unstable(directory, mark, wanted=wanted) for mark in expected} == expected
    assert first_unstable(directory, None, wanted=wanted) is None


def test_the_first_unstable_offset_below_damage_is_known(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, [[data(0)], [plain(1)], [marker(2)], [plain(3)]])
    damaged = directory / segment_name(2, "log")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert first_unstable(directory, None) == 0


def hanging_for_days(tmp_path: Path, *, ended: bool = False) -> Path:
    """Write a transaction that begins on the first day and hangs; a snapshot of the end shows it."""
    days = [[plain(24 * day)] for day in range(10)]
    days[0].append(data(0.5, pid=7))
    if ended:
        days[9].append(marker(24 * 9 + 0.5, pid=7))
    directory = a_partition(tmp_path, days)
    shown = ProducerEntry(7, 0, 0, 1, 0, hour(0.5), -1, 1)
    (directory / segment_name(10, "snapshot")).write_bytes(snapshot_bytes([shown]))
    return directory


def test_a_transaction_that_hangs_from_long_before_the_window_is_known_from_a_snapshot(tmp_path: Path) -> None:
    directory = hanging_for_days(tmp_path)
    plan = planned(directory, now_ms=hour(24 * 9.5), to_end=True)
    assert plan.runs[-1].start > 1
    found = replayed(plan)
    assert found.result.first_unstable_offset == 1
    for offset, entries in found.snapshots.items():
        assert entries == {7: ProducerEntry(7, 0, 0, 1, 0, hour(0.5), -1, 1)}, offset


def test_a_hanging_transaction_that_ends_within_the_window_is_stable_then(tmp_path: Path) -> None:
    found = replayed(planned(hanging_for_days(tmp_path, ended=True), now_ms=hour(24 * 9.5), to_end=True))
    assert found.result.first_unstable_offset is None


def long_silent(tmp_path: Path, **options: object) -> Path:
    """Write a producer that is active on day 0 and then, with its transaction still open, at a boundary of day 6.

    Segments have the modification times that a broker leaves.
    """
    directory = a_partition(
        tmp_path,
        hourly(
            data(0), data(0.1, sequence=1), marker(0.2), data(120.5, sequence=2), data(121.1, sequence=3), hours=123
        ),
        **options,
    )
    for index, base in enumerate(bases(directory)):
        os.utime(directory / segment_name(base, "log"), ns=(hour(index) * 1_000_000,) * 2)
    return directory


def test_silence_that_only_clients_vouch_for_is_read_up_to_the_log_start(tmp_path: Path) -> None:
    directory = long_silent(tmp_path)
    for base in bases(directory):
        os.utime(directory / segment_name(base, "log"))  # as after a copy
    boundary = bases(directory)[122]
    made = replayed(planned(directory, now_ms=hour(123), wanted=[boundary])).at(boundary)
    assert (made.window_start_offset, made.left_out) == (0, ())


def test_a_transaction_with_stamps_of_long_ago_is_not_taken_for_silence(tmp_path: Path) -> None:
    long_ago = hour(-24 * 3650)
    directory = a_partition(
        tmp_path,
        [
            [PlainEvent(timestamp=hour(-60))],
            [DataEvent(producer_id=1, base_sequence=0, records=5, timestamp=long_ago, transactional=True)],
            [PlainEvent(timestamp=long_ago)],
            [MarkerEvent(producer_id=1, timestamp=hour(2))],
            [PlainEvent(timestamp=hour(20))],
            [PlainEvent(timestamp=hour(25))],
        ],
    )
    boundary = bases(directory)[4]
    windowed = replayed(planned(directory, now_ms=hour(25.9), wanted=[boundary]))
    assert windowed.snapshots == replayed(planned(directory, now_ms=hour(25.9), wanted=[boundary], full=True)).snapshots
    assert windowed.snapshots[boundary][1].last_sequence == 4


def test_a_window_is_made_longer_until_nothing_is_unexplained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = []
    reach_back = results.reach_back
    monkeypatch.setattr(results, "reach_back", lambda plan, ms: starts.append(ms) or reach_back(plan, ms))
    directory = long_silent(tmp_path)
    boundary = bases(directory)[122]
    found = replayed(planned(directory, now_ms=hour(123), wanted=[boundary]))
    assert starts == [hour(120.5)]
    made = found.at(boundary)
    assert made.left_out == ()
    # A day and 20 minutes of silence before the first batch have been read, no more.
    assert made.window_start_offset == bases(directory)[97]
    entry = found.snapshots[boundary][1]
    assert entry.current_txn_first_offset == bases(directory)[120] + 1
    assert entry.coordinator_epoch == -1


def test_what_was_made_stays_made_when_only_a_longer_window_meets_damage(tmp_path: Path) -> None:
    directory = long_silent(tmp_path)
    whole = replayed(planned(directory, now_ms=hour(123), full=True))
    plan = planned(directory, now_ms=hour(123))
    start = bases(directory)[plan.runs[-1].start - 1]
    damaged = directory / segment_name(start, "log")
    damaged.write_bytes(b"\1" * damaged.stat().st_size)
    found = replayed(plan)
    rebuilt = {made.offset for made in found.result.boundaries if made.outcome is BoundaryOutcome.REBUILT}
    assert found.snapshots.keys() == rebuilt
    assert found.at(bases(directory)[122]).outcome is BoundaryOutcome.DAMAGED
    assert found.at(bases(directory)[121]).outcome is BoundaryOutcome.DAMAGED
    assert isinstance(found.result.error, FormatError)
    within = [made for made in found.result.boundaries if made.coverage is Coverage.WINDOW]
    assert any(made.outcome is BoundaryOutcome.REBUILT for made in within)
    for made in within:
        if made.outcome is BoundaryOutcome.REBUILT:
            assert found.snapshots[made.offset] == whole.snapshots[made.offset]


def test_what_a_limit_leaves_unexplained_is_excluded_and_reported(tmp_path: Path) -> None:
    directory = long_silent(tmp_path)
    boundary = bases(directory)[122]
    found = replayed(planned(directory, now_ms=hour(123), wanted=[boundary], max_reach_back_ms=0))
    made = found.at(boundary)
    assert made.outcome is BoundaryOutcome.REBUILT
    assert made.left_out == (LeftOut(1, Unexplained.TRANSACTION),)
    assert found.snapshots[boundary] == {}


def test_a_marker_whose_data_lie_below_the_limit_makes_no_entry(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, hourly(data(90.3, sequence=4), marker(91.05), hours=100))
    wanted = bases(directory)[-1:]
    cut = {"now_ms": hour(115), "wanted": wanted}
    whole = replayed(planned(directory, **cut))
    assert whole.snapshots[wanted[0]][1].last_sequence == 4
    limited = replayed(planned(directory, **cut, max_reach_back_ms=0))
    assert limited.at(wanted[0]).left_out == (LeftOut(1, Unexplained.BATCH),)
    assert limited.snapshots[wanted[0]] == {}


def test_a_marker_without_data_in_the_whole_log_makes_an_entry_without_a_batch(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, [[marker(0)], [plain(1)]])
    entry = replayed(planned(directory, now_ms=hour(2))).snapshots[1][1]
    assert entry == ProducerEntry(1, 0, -1, -1, 0, hour(0), 5, -1)


def test_a_marker_whose_data_retention_has_deleted_makes_no_entry(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, [[marker(0)], [plain(1)]], first_offset=500)
    found = replayed(planned(directory, now_ms=hour(2)))
    assert found.at(501).left_out == (LeftOut(1, Unexplained.BATCH),)
    assert found.snapshots[501] == {}


def test_a_transaction_that_hung_for_days_before_it_was_aborted_is_read_from_its_beginning(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, hourly(data(1), data(1.1, sequence=1), marker(120, commit=False), hours=123))
    wanted = bases(directory)[-1:]
    cut = {"now_ms": hour(123), "wanted": wanted}
    entry = replayed(planned(directory, **cut)).snapshots[wanted[0]][1]
    assert (entry.last_sequence, entry.coordinator_epoch) == (1, 5)
    limited = replayed(planned(directory, **cut, max_reach_back_ms=HOUR_MS))
    assert limited.at(wanted[0]).left_out == (LeftOut(1, Unexplained.BATCH),)


def test_an_older_boundary_is_left_without_reading_where_evidence_names_no_producer(tmp_path: Path) -> None:
    found = replayed(planned(long_silent(tmp_path), now_ms=hour(123) + 2 * DAY_MS))
    idle = [made for made in found.result.boundaries if made.window_start_offset is None]
    assert len(idle) > 100
    assert {made.coverage for made in idle} == {Coverage.BEYOND_WINDOW}
    assert {made.entries for made in idle} == {0}


def test_as_of_roll_leaves_out_who_was_silent_when_the_segment_was_rolled(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, [[data(0), marker(0.1)], [plain(10)], [plain(30)], [plain(31)]])
    for offset, at in zip(bases(directory), (0.1, 10, 30, 31), strict=True):
        os.utime(directory / segment_name(offset, "log"), ns=(hour(at) * 1_000_000,) * 2)
    found = replayed(planned(directory, now_ms=hour(50), roll=True))
    assert [list(found.snapshots[offset]) for offset in bases(directory)[1:]] == [[1], [1], []]


def test_one_timestamp_ahead_makes_no_producer_expire_as_of_roll(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, [[data(0), marker(0.1)], [plain(240), plain(1)], [plain(2)]])
    for path in directory.glob("*.log"):
        os.utime(path, ns=(hour(1) * 1_000_000,) * 2)
    assert replayed(planned(directory, now_ms=hour(3), roll=True)).snapshots[4].keys() == {1}


def test_a_brokers_clock_that_was_ahead_makes_no_producer_expire_as_of_roll(tmp_path: Path) -> None:
    segments = [
        [data(0), marker(0.1)],
        [data(0.2, sequence=1), marker(240)],
        [data(0.3, pid=2), marker(240, pid=2), data(0.4, pid=2, sequence=1), marker(0.5, pid=2)],
        [plain(0.6)],
        [plain(0.7)],
    ]
    directory = a_partition(tmp_path, segments)
    for path in directory.glob("*.log"):
        os.utime(path, ns=(hour(1) * 1_000_000,) * 2)
    found = replayed(planned(directory, now_ms=hour(400), roll=True))
    assert [list(found.snapshots[offset]) for offset in bases(directory)[1:]] == [[1], [1], [1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("existing", "verdict"),
    [
        ([ProducerEntry(1, 0, 0, 0, 0, hour(0.1), 5, -1)], SnapshotVerdict.PROVEN),
        ([], SnapshotVerdict.FALSE_EMPTY),
        ([ProducerEntry(9, 0, 0, 0, 0, hour(0.1), 5, -1)], SnapshotVerdict.DIFFERENT),
        ([ProducerEntry(1, 0, 7, 0, 0, hour(0.1), 5, -1)], SnapshotVerdict.DIFFERENT),
    ],
    ids=lambda value: str(value) if isinstance(value, SnapshotVerdict) else "",
)
def test_a_snapshot_that_is_there_gets_a_verdict(
    existing: list[ProducerEntry], verdict: SnapshotVerdict, tmp_path: Path
) -> None:
    directory = a_partition(tmp_path, [[data(0), marker(0.1)], [plain(1)]])
    snapshot = directory / segment_name(2, "snapshot")
    snapshot.write_bytes(snapshot_bytes(existing))
    os.utime(snapshot, ns=(hour(1) * 1_000_000,) * 2)
    made = replayed(planned(directory, now_ms=hour(2), compared=True)).at(2)
    assert made.comparison is not None
    assert made.comparison.verdict is verdict


def test_a_snapshot_that_cannot_be_read_gets_no_verdict_and_is_rebuilt(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, [[data(0), marker(0.1)], [plain(1)]])
    (directory / segment_name(2, "snapshot")).write_bytes(b"")
    made = replayed(planned(directory, now_ms=hour(2), compared=True)).at(2)
    assert made.comparison is None
    assert made.entries == 1


def test_a_producer_excluded_here_does_not_make_a_snapshot_wrong_that_has_it(tmp_path: Path) -> None:
    directory = long_silent(tmp_path)
    boundary = bases(directory)[122]
    entry = replayed(planned(directory, now_ms=hour(123), wanted=[boundary], full=True)).snapshots[boundary][1]
    idle = entry._replace(current_txn_first_offset=-1)
    (directory / segment_name(boundary, "snapshot")).write_bytes(snapshot_bytes([idle]))
    limited = planned(directory, now_ms=hour(123), wanted=[boundary], max_reach_back_ms=0, compared=True)
    made = replayed(limited).at(boundary)
    assert made.left_out
    assert made.comparison is not None
    assert made.comparison.verdict is SnapshotVerdict.UNPROVEN
    assert made.comparison.unrecorded == (1, (1,))


def test_a_stale_open_transaction_in_a_snapshot_does_not_override_the_complete_log(tmp_path: Path) -> None:
    directory = a_partition(tmp_path, [[plain(0)], [plain(1)], [plain(2)]])
    stale = ProducerEntry(9, 0, 0, 0, 0, hour(0), -1, 0)
    (directory / segment_name(2, "snapshot")).write_bytes(snapshot_bytes([stale]))
    found = replayed(planned(directory, now_ms=hour(3), compared=True))
    assert found.snapshots == {1: {}, 2: {}}
    assert found.at(2).comparison is not None


def test_who_reads_the_headers_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = long_silent(tmp_path)
    whole = replayed(planned(directory, now_ms=hour(123), roll=True, to_end=True, high_watermark=124))
    monkeypatch.setattr("resnap.replay.scan.header_scan.BLOCK_BYTES", 100)
    small = replayed(
        planned(directory, now_ms=hour(123), roll=True, to_end=True, high_watermark=124), reading=Reading(kernel=False)
    )
    assert small.snapshots == whole.snapshots
    assert small.result.first_unstable_offset == whole.result.first_unstable_offset


def test_a_partition_with_one_segment_has_nothing_to_rebuild(tmp_path: Path) -> None:
    with PartitionWriter(tmp_path / "payments-0") as writer:
        writer.append_data(timestamps=hour(0))
    found = replayed(planned(tmp_path / "payments-0", now_ms=hour(1)))
    assert found.result.boundaries == ()
    assert found.result.segments_read == 0
