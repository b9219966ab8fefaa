from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.replay.evidence import load_evidence, segment_spans
from resnap.replay.plan import plan_partition
from resnap.replay.rebuild import rebuild_locally
from resnap.replay.results import BoundaryOutcome, PartitionResult, blind_outcome
from resnap.replay.window import AsOf, ReplayRules
from resnap.storage.errors import FileGoneError, FormatError, LogDirError, StoreUnavailableError
from resnap.storage.log.log_dir import load_log_dir, load_partition_dir
from resnap.storage.log.names import TopicPartition, segment_name
from resnap.storage.log.partition_dir import Checkpoints
from resnap.storage.log.producer_snapshot import snapshot_bytes
from resnap.tiering.judging.broker_blockers import broker_blockers
from resnap.tiering.judging.eligibility import Candidates, after_replay, before_replay
from resnap.tiering.judging.inventory import take_inventory, take_partition_inventory
from resnap.tiering.judging.refusal import Reason, Refusal, refuse
from tests.builders import a_partition
from tests.fixture_sets import NAMES
from tests.replay.memory_sink import MemorySink
from tests.strategies import START_MS, DataEvent, MarkerEvent, PlainEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from resnap.storage.errors import ResnapError
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.tiering.judging.inventory import PartitionInventory
    from tests.fixture_sets import FixtureSet
    from tests.strategies import Event

PAYMENTS = TopicPartition("payments", 0)
FOUR_SEGMENTS = [[PlainEvent(records=10)]] * 4
"""Boundaries are 10, 20 and 30; the segment that begins at 30 is active."""
RULES = ReplayRules(as_of=AsOf(now_ms=START_MS), full=True)


def a_directory(
    log_dir: Path,
    segments: Iterable[Iterable[Event]] = FOUR_SEGMENTS,
    *,
    high_watermark: int | None = 40,
    log_start_offset: int | None = None,
    cleaner_offset: int | None = None,
) -> PartitionDir:
    path = a_partition(log_dir, segments)

    def of_this(offset: int | None) -> dict[TopicPartition, int]:
        return {} if offset is None else {PAYMENTS: offset}

    checkpoints = Checkpoints(
        high_watermarks=of_this(high_watermark),
        log_start_offsets=of_this(log_start_offset),
        cleaner_offsets=of_this(cleaner_offset),
    )
    return load_partition_dir(path, checkpoints=checkpoints)


def an_inventory(log_dir: Path, *args: Any, cleanup_policy: str | None = None, **options: Any) -> PartitionInventory:
    return take_partition_inventory(a_directory(log_dir, *args, **options), cleanup_policy=cleanup_policy)


def replayed(candidates: Candidates, wanted: Iterable[int] | None = None) -> PartitionResult:
    """Replay the whole partition, for all its boundaries where none are named."""
    partition = candidates.inventory.partition
    plan = plan_partition(
        partition.topic_partition,
        segment_spans(partition),
        partition.boundaries if wanted is None else wanted,
        RULES,
        evidence=load_evidence(partition),
        high_watermark=candidates.high_watermark,
        to_end=True,
    )
    (result,) = rebuild_locally([plan], MemorySink())
    return result


def judged(candidates: Candidates, wanted: Iterable[int] | None = None) -> Candidates:
    return after_replay(candidates, replayed(candidates, wanted))


def bases(segments: Iterable[Segment]) -> list[int]:
    return [segment.base_offset for segment in segments]


def reasons(refusals: Iterable[Refusal]) -> dict[int, Reason]:
    return {refusal.base_offset: refusal.reason for refusal in refusals}


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_comes_with_a_hint(reason: Reason, tmp_path: Path) -> None:
    segment = a_directory(tmp_path).segments[0]
    refusal = refuse(segment, reason, "why")
    assert refusal.hint
    assert (refusal.base_offset, refusal.next_base_offset, refusal.reason, refusal.detail) == (0, 10, reason, "why")


@pytest.mark.parametrize(
    ("high_watermark", "candidates", "stop"),
    [
        (None, [], (0, Reason.HW_UNKNOWN, "replication-offset-checkpoint does not list the partition")),
        (0, [], (0, Reason.ABOVE_HIGH_WATERMARK, "it ends at offset 10, the high watermark is 0")),
        (20, [0, 10], (20, Reason.ABOVE_HIGH_WATERMARK, "it ends at offset 30, the high watermark is 20")),
        (40, [0, 10, 20], None),
    ],
)
def test_a_closed_segment_may_end_at_the_high_watermark_but_not_beyond(
    high_watermark: int | None, candidates: list[int], stop: tuple[int, Reason, str] | None, tmp_path: Path
) -> None:
    found = before_replay(an_inventory(tmp_path, high_watermark=high_watermark))
    assert bases(found.segments) == candidates
    above = {base: stop[1] for base in (0, 10, 20) if stop and base not in candidates}
    assert reasons(found.refusals) == above | {30: Reason.ACTIVE_SEGMENT}
    assert (found.blocking and (found.blocking.base_offset, found.blocking.reason, found.blocking.detail)) == stop


@pytest.mark.parametrize("checkpoint", [None, 0, 40])
def test_a_given_high_watermark_outweighs_the_checkpoint(checkpoint: int | None, tmp_path: Path) -> None:
    found = before_replay(an_inventory(tmp_path, high_watermark=checkpoint), high_watermark=10)
    assert (bases(found.segments), found.high_watermark) == ([0], 10)


@pytest.mark.parametrize(
    ("log_start_offset", "candidates"), [(0, [0, 10, 20]), (9, [0, 10, 20]), (10, [10, 20]), (25, [20]), (35, [])]
)
def test_a_segment_wholly_below_the_log_start_is_left_and_one_straddling_it_is_not(
    log_start_offset: int, candidates: list[int], tmp_path: Path
) -> None:
    found = before_replay(an_inventory(tmp_path, log_start_offset=log_start_offset))
    assert bases(found.segments) == candidates
    below = {base: Reason.BELOW_LOG_START for base in (0, 10, 20) if base not in candidates}
    assert reasons(found.refusals) == below | {30: Reason.ACTIVE_SEGMENT}
    assert found.blocking is None, "nothing waits for what retention deletes"


def test_the_cleaners_checkpoint_keeps_a_partition_back_unless_the_topic_is_known_to_be_otherwise(
    tmp_path: Path,
) -> None:
    compacted = before_replay(an_inventory(tmp_path / "unknown", cleaner_offset=20))
    assert compacted.blocking is not None
    assert (compacted.segments, compacted.blocking.reason) == ((), Reason.COMPACTED)
    assert "cleaner-offset-checkpoint" in compacted.blocking.detail
    known = before_replay(an_inventory(tmp_path / "known", cleaner_offset=20, cleanup_policy="delete"))
    assert bases(known.segments) == [0, 10, 20]


@pytest.mark.parametrize("suffix", ["log.swap", "index.cleaned"])
def test_a_change_under_way_keeps_a_partition_back(suffix: str, tmp_path: Path) -> None:
    directory = a_directory(tmp_path).path
    (directory / segment_name(0, suffix)).touch()
    partition = load_partition_dir(directory, checkpoints=Checkpoints(high_watermarks={PAYMENTS: 40}))
    found = before_replay(take_partition_inventory(partition))
    assert found.blocking is not None
    assert (found.segments, found.blocking.reason) == ((), Reason.DIRECTORY_BUSY)
    assert segment_name(0, suffix) in found.blocking.detail


@given(high_watermark=st.none() | st.integers(0, 50), log_start_offset=st.integers(0, 50), data=st.data())
def test_every_segment_is_a_candidate_or_refused_once(
    high_watermark: int | None, log_start_offset: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    partition = replace(
        a_directory(tmp_path_factory.mktemp("log")),
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        cleaner_offset=data.draw(st.none() | st.just(5)),
        unfinished=data.draw(st.sampled_from([(), ("0.log.swap",)])),
    )
    found = before_replay(take_partition_inventory(partition))
    assert sorted([*bases(found.segments), *reasons(found.refusals)]) == [0, 10, 20, 30]
    assert len(found.segments) + len(found.refusals) == 4
    for segment in found.segments:
        assert segment.next_base_offset is not None
        assert high_watermark is not None
        assert log_start_offset < segment.next_base_offset <= high_watermark


@pytest.mark.parametrize("name", NAMES)
def test_every_segment_that_a_real_broker_left_is_eligible_or_refused_once(
    name: str, fixture_set: Callable[[str], FixtureSet]
) -> None:
    for inventory in take_inventory(load_log_dir(fixture_set(name).data)).partitions:
        found = judged(before_replay(inventory))
        there = bases(inventory.partition.segments)
        assert sorted([*bases(found.segments), *(refusal.base_offset for refusal in found.refusals)]) == there
        assert [refusal.base_offset for refusal in found.refusals] == sorted(reasons(found.refusals))
        if found.last_stable_offset is not None:
            assert all((segment.next_base_offset or 0) <= found.last_stable_offset for segment in found.segments)


def transactional(**overrides: Any) -> DataEvent:
    return DataEvent(**{"producer_id": 7, "records": 5, "transactional": True} | overrides)


OPEN_FROM_15 = [
    [PlainEvent(records=10)],
    [PlainEvent(records=5), transactional()],
    [PlainEvent(records=10)],
    [PlainEvent(records=5)],
]


ILLEGAL = [transactional(), transactional(transactional=False, base_sequence=5)]


@pytest.mark.parametrize(
    ("segments", "high_watermark", "shipped", "last_stable_offset", "stop"),
    [
        pytest.param(OPEN_FROM_15, 40, [0], 15, (
            Reason.ABOVE_LAST_STABLE_OFFSET, "it ends at offset 20, a transaction has been open since offset 15"
        ), id="open in a segment"),
        pytest.param(OPEN_FROM_15, None, [], None, (Reason.HW_UNKNOWN, ""), id="no high watermark known"),
        pytest.param([*OPEN_FROM_15[:-1], [MarkerEvent(producer_id=7)]], 31, [0, 10, 20], 31, None, id="ended"),
        pytest.param([*OPEN_FROM_15[:-1], [MarkerEvent(producer_id=7)]], 30, [0], 15, (
            Reason.ABOVE_LAST_STABLE_OFFSET, "offset 15"
        ), id="ended above the high watermark"),
        pytest.param([[PlainEvent(records=10)], [transactional(records=10)], [PlainEvent()]], 21, [0], 10, (
            Reason.ABOVE_LAST_STABLE_OFFSET, "it ends at offset 20"
        ), id="begun where a segment ends"),
        pytest.param([*FOUR_SEGMENTS[:3], [PlainEvent(), transactional()]], 31, [0, 10, 20], 31, None,
                     id="begun above the high watermark"),
        pytest.param([[PlainEvent(records=10)], ILLEGAL, [MarkerEvent(producer_id=7)], [PlainEvent()]], 22, [0], 22, (
            Reason.INVALID_TXN_STATE, "offset 15"
        ), id="what Kafka refuses"),
    ],
)  # fmt: skip
def test_transactions_keep_back_what_ends_above_their_begin(
    *, segments: list[list[Event]], high_watermark: int | None, shipped: list[int], last_stable_offset: int | None,
    stop: tuple[Reason, str] | None, tmp_path: Path,
) -> None:  # fmt: skip
    found = judged(before_replay(an_inventory(tmp_path, segments, high_watermark=high_watermark)))
    assert (bases(found.segments), found.last_stable_offset) == (shipped, last_stable_offset)
    *closed, active = bases(found.inventory.partition.segments)
    above = {base: stop[0] for base in closed if stop and base not in shipped}
    assert reasons(found.refusals) == above | {active: Reason.ACTIVE_SEGMENT}
    assert (found.blocking is None) == (stop is None)
    assert found.blocking is None or (stop is not None and stop[1] in found.blocking.detail)


def damaged(log_dir: Path) -> PartitionInventory:
    """Write four segments and spoil the magic of the batch in the second."""
    partition = a_directory(log_dir)
    with (partition.path / segment_name(10, "log")).open("r+b") as file:
        file.seek(16)
        file.write(b"\x63")
    return take_partition_inventory(partition)


@pytest.mark.parametrize("wanted", [None, (), (10,), (30,)])
def test_damage_keeps_back_its_segment_and_those_above_whatever_was_to_be_rebuilt(
    wanted: tuple[int, ...] | None, tmp_path: Path
) -> None:
    found = judged(before_replay(damaged(tmp_path)), wanted)
    assert bases(found.segments) == [0]
    assert reasons(found.refusals) == dict.fromkeys((10, 20), Reason.DAMAGED) | {30: Reason.ACTIVE_SEGMENT}
    assert found.blocking is not None
    assert segment_name(10, "log") in found.blocking.detail


def test_a_segment_that_could_not_be_opened_keeps_back_all_that_was_not_rebuilt(tmp_path: Path) -> None:
    candidates = before_replay(an_inventory(tmp_path))
    (tmp_path / "payments-0" / segment_name(10, "log")).unlink()
    found = judged(candidates, (10, 30))
    assert bases(found.segments) == [0]
    assert reasons(found.refusals) == dict.fromkeys((10, 20), Reason.UNREADABLE) | {30: Reason.ACTIVE_SEGMENT}
    assert {refusal.hint for refusal in found.refusals if refusal.reason is Reason.UNREADABLE} == {
        "retention may have deleted it since it was listed; run again"
    }


@pytest.mark.parametrize(
    "error",
    [LogDirError("denied"), FileGoneError("gone"), StoreUnavailableError("503"), FormatError("magic", position=16)],
)
def test_what_could_not_be_read_keeps_back_all_above_though_it_was_rebuilt(error: ResnapError, tmp_path: Path) -> None:
    """What is damaged is a gap of the log, and what is above is shipped; what was not read may hold anything."""
    candidates = before_replay(an_inventory(tmp_path))
    whole = replayed(candidates)
    outcome = blind_outcome(error)
    blind = [replace(boundary, outcome=outcome, reason=str(error)) for boundary in whole.boundaries[1:2]]
    found = after_replay(
        candidates, replace(whole, error=error, boundaries=(whole.boundaries[0], *blind, *whole.boundaries[2:]))
    )
    is_damage = isinstance(error, FormatError)
    reason = Reason.DAMAGED if is_damage else Reason.UNREADABLE
    assert bases(found.segments) == ([0, 20] if is_damage else [0])
    kept_back = {10} if is_damage else {10, 20}
    assert reasons(found.refusals) == dict.fromkeys(kept_back, reason) | {30: Reason.ACTIVE_SEGMENT}


def test_compaction_seen_in_batches_counts_whatever_the_topics_configuration_is_now(tmp_path: Path) -> None:
    segments = [[DataEvent(producer_id=7, records=10, emptied=True)], *FOUR_SEGMENTS[1:]]
    assumed = judged(before_replay(an_inventory(tmp_path, segments)))
    assert assumed.blocking is not None
    assert (assumed.segments, assumed.blocking.reason) == ((), Reason.COMPACTED)
    once = judged(before_replay(an_inventory(tmp_path, segments, cleanup_policy="delete")))
    assert once.blocking is not None
    assert (once.segments, once.blocking.reason) == ((), Reason.COMPACTED)
    assert "the topic was compacted once" in once.blocking.detail
    assert "resnap install" in once.blocking.hint


def test_what_bundling_finds_unfit_moves_over_and_the_first_reason_stays(tmp_path: Path) -> None:
    inventory = an_inventory(tmp_path, high_watermark=20)
    first, second, third, _ = inventory.partition.segments
    found = judged(before_replay(inventory))
    fewer = found.also_refusing(
        [refuse(third, Reason.INDEX_UNUSABLE, "late"), refuse(first, Reason.LEADER_EPOCHS_UNKNOWN, "none known")]
    )
    assert fewer.segments == (second,)
    assert reasons(fewer.refusals) == {
        0: Reason.LEADER_EPOCHS_UNKNOWN, 20: Reason.ABOVE_HIGH_WATERMARK, 30: Reason.ACTIVE_SEGMENT,
    }  # fmt: skip
    assert [refusal.base_offset for refusal in fewer.refusals] == [0, 20, 30]


def test_a_replay_of_another_partition_is_a_bug(tmp_path: Path) -> None:
    candidates = before_replay(an_inventory(tmp_path))
    other = replace(replayed(candidates), topic_partition=TopicPartition("orders", 0))
    with pytest.raises(AssertionError, match="orders-0"):
        after_replay(candidates, other)


def test_a_replay_that_has_not_said_its_last_word_is_a_bug(tmp_path: Path) -> None:
    candidates = before_replay(an_inventory(tmp_path))
    result = replayed(candidates)
    first, *others = result.boundaries
    unfinished = replace(result, boundaries=(replace(first, outcome=BoundaryOutcome.UNEXPLAINED), *others))
    with pytest.raises(AssertionError, match="offset 10"):
        after_replay(candidates, unfinished)


def with_snapshots(log_dir: Path, snapshots: dict[int, bytes], **options: Any) -> PartitionInventory:
    partition = a_directory(log_dir, **options)
    for offset, body in snapshots.items():
        (partition.path / segment_name(offset, "snapshot")).write_bytes(body)
    listed = load_partition_dir(partition.path)
    return take_partition_inventory(replace(partition, snapshots=listed.snapshots))


GOOD = snapshot_bytes([])


@pytest.mark.parametrize(
    ("there", "options", "stop"),
    [
        pytest.param((10, 20, 30), {}, None, id="none missing"),
        pytest.param((10, 30), {}, 10, id="a hole"),
        pytest.param((20, 30), {"log_start_offset": 10}, None, id="missing below the log start"),
        pytest.param((20, 30), {"log_start_offset": 9}, 0, id="missing where the log start lies"),
        pytest.param((10, 20), {"high_watermark": 20}, 20, id="missing above the high watermark"),
        pytest.param((10, 20), {"high_watermark": 30}, 20, id="missing at the high watermark"),
        pytest.param((10, 20), {"high_watermark": None}, 20, id="no high watermark known"),
    ],
)
def test_a_stock_broker_comes_to_try_all_that_lies_above_the_log_start(
    there: tuple[int, ...], options: dict[str, Any], stop: int | None, tmp_path: Path
) -> None:
    found = broker_blockers(with_snapshots(tmp_path, dict.fromkeys(there, GOOD), **options))
    assert (found.stop.base_offset if found.stop else None) == stop
    assert found.shipped_as_is == ()


def test_an_error_without_a_file_is_reported_unchanged(tmp_path: Path) -> None:
    candidates = before_replay(an_inventory(tmp_path))
    result = replace(replayed(candidates, ()), error=LogDirError("the disk is gone", hint="mount it"))
    found = after_replay(candidates, result)
    assert found.segments == ()
    assert found.blocking is not None
    assert (found.blocking.detail, found.blocking.hint) == ("the disk is gone", "mount it")
