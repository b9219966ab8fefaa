from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from resnap.replay.comparison import MOST_NAMED, Comparison, Producers, SnapshotVerdict, compare
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE, ProducerEntry

if TYPE_CHECKING:
    from resnap.replay.kernel.summary import Array

NOW_MS = 1_700_000_000_000
EXPIRATION_MS = 1_000
ALIVE = ProducerEntry(7, 0, 9, 610, 4, NOW_MS - 10, 3, -1)
OPEN = ALIVE._replace(timestamp=NOW_MS - 10**9, current_txn_first_offset=600)


def judged(
    existing: list[ProducerEntry],
    rebuilt: list[ProducerEntry],
    *,
    written_ms: int = NOW_MS,
    seen: tuple[int, ...] | None = None,
    read_from: int = 0,
    begins: int = 0,
    lacks_records: bool = False,
) -> Comparison:
    met = [entry.producer_id for entry in rebuilt] if seen is None else seen
    return compare(
        array(existing),
        array(sorted(rebuilt)),
        kept_after_ms=NOW_MS - EXPIRATION_MS,
        written_ms=written_ms,
        expiration_ms=EXPIRATION_MS,
        seen=np.array(sorted(met), dtype=np.int64),
        read_from=read_from,
        begins=begins,
        lacks_records=lacks_records,
    )


def producers(*ids: int) -> Producers:
    return Producers(len(ids), ids)


def array(entries: list[ProducerEntry]) -> Array:
    return np.array([tuple(entry) for entry in entries], dtype=ENTRY_DTYPE)


def test_equal_entries_prove_a_snapshot_in_any_order() -> None:
    other = ALIVE._replace(producer_id=3)
    assert judged([ALIVE, other], [other, ALIVE]) == Comparison(verdict=SnapshotVerdict.PROVEN)


def test_nothing_proves_an_empty_snapshot() -> None:
    assert judged([], []).verdict is SnapshotVerdict.PROVEN


def test_an_empty_snapshot_is_false_if_a_producer_lives() -> None:
    assert judged([], [ALIVE]) == Comparison(verdict=SnapshotVerdict.FALSE_EMPTY, missing=producers(7))
    assert judged([], [OPEN]).verdict is SnapshotVerdict.FALSE_EMPTY


def test_a_snapshot_without_some_of_the_living_is_partial() -> None:
    other = ALIVE._replace(producer_id=3)
    assert judged([ALIVE], [ALIVE, other]) == Comparison(verdict=SnapshotVerdict.FALSE_PARTIAL, missing=producers(3))


@pytest.mark.parametrize(
    "field",
    ["producer_epoch", "last_sequence", "last_offset", "offset_delta", "timestamp", "current_txn_first_offset"],
)
def test_an_entry_that_differs_in_any_value_contradicts_the_log(field: str) -> None:
    other = ALIVE._replace(**{field: getattr(ALIVE, field) + 1})
    assert judged([other], [ALIVE]) == Comparison(verdict=SnapshotVerdict.DIFFERENT, different=producers(7))


def test_a_lost_coordinator_epoch_is_tolerated_and_reported() -> None:
    lost = ALIVE._replace(coordinator_epoch=-1)
    assert judged([lost], [ALIVE]) == Comparison(verdict=SnapshotVerdict.PROVEN, coordinator_lost=producers(7))


def test_a_coordinator_epoch_that_was_not_lost_is_distinguished_from_other_differences() -> None:
    forgotten = ALIVE._replace(coordinator_epoch=-1)
    expected = Comparison(verdict=SnapshotVerdict.DIFFERENT, different=producers(7), coordinator_kept=producers(7))
    assert judged([ALIVE], [forgotten]) == expected


def test_what_older_brokers_left_at_a_marker_differs_and_is_called_so() -> None:
    by_older = Comparison(verdict=SnapshotVerdict.DIFFERENT, different=producers(7), older_rules=producers(7))
    rebuilt = ALIVE._replace(offset_delta=4)
    before_2_4_1 = rebuilt._replace(timestamp=rebuilt.timestamp - 1)
    before_1_0 = rebuilt._replace(last_offset=rebuilt.last_offset + 9, offset_delta=0)
    for theirs in (before_2_4_1, before_1_0):
        assert judged([theirs], [rebuilt]) == by_older
    for other in (
        before_2_4_1._replace(last_sequence=99),
        before_2_4_1._replace(timestamp=rebuilt.timestamp + 1),
        before_1_0._replace(last_offset=rebuilt.last_offset - 1),
        before_1_0._replace(offset_delta=3),
    ):
        assert judged([other], [rebuilt]) == Comparison(verdict=SnapshotVerdict.DIFFERENT, different=producers(7))
    never_marked = rebuilt._replace(coordinator_epoch=-1)
    stale = never_marked._replace(timestamp=never_marked.timestamp - 1)
    assert judged([stale], [never_marked]).older_rules == producers()


def test_another_coordinator_epoch_is_not_tolerated() -> None:
    assert judged([ALIVE._replace(coordinator_epoch=2)], [ALIVE]).verdict is SnapshotVerdict.DIFFERENT


def test_who_had_expired_when_the_snapshot_was_written_may_be_absent() -> None:
    assert judged([], [ALIVE], written_ms=ALIVE.timestamp + EXPIRATION_MS) == Comparison(
        verdict=SnapshotVerdict.PROVEN, swept=producers(7)
    )
    assert judged([], [ALIVE], written_ms=ALIVE.timestamp + EXPIRATION_MS - 1).verdict is SnapshotVerdict.FALSE_EMPTY


def test_an_open_transaction_is_never_swept() -> None:
    assert judged([], [OPEN], written_ms=NOW_MS + 10**9).verdict is SnapshotVerdict.FALSE_EMPTY


def test_an_extra_expired_entry_is_harmless() -> None:
    expired = ALIVE._replace(timestamp=NOW_MS - EXPIRATION_MS)
    assert judged([expired], [], seen=(7,)) == Comparison(verdict=SnapshotVerdict.PROVEN)


def test_a_living_entry_that_the_replay_has_met_and_does_not_have_contradicts_the_log() -> None:
    assert judged([ALIVE], [], seen=(7,)).different == producers(7)
    assert judged([OPEN], [], seen=(7,)).different == producers(7)


def test_a_living_entry_whose_records_are_gone_is_unrecorded() -> None:
    above = ALIVE.last_offset + 1
    unproven = Comparison(verdict=SnapshotVerdict.UNPROVEN, unrecorded=producers(7))
    assert judged([ALIVE], [], read_from=above, begins=above) == unproven
    # Nor do batches speak for one that was rebuilt from what snapshots show.
    assert judged([ALIVE], [ALIVE], seen=(), read_from=above, begins=above) == unproven


@pytest.mark.parametrize("entry", [ALIVE, OPEN], ids=["idle", "open"])
@pytest.mark.parametrize("read_from", [0, ALIVE.last_offset], ids=["the whole log", "from its batch on"])
def test_an_entry_that_no_batch_supports_contradicts_a_log_that_was_read(entry: ProducerEntry, read_from: int) -> None:
    found = judged([entry], [], read_from=read_from)
    assert (found.verdict, found.different) == (SnapshotVerdict.DIFFERENT, producers(7))


@pytest.mark.parametrize(
    "ahead",
    [
        {"producer_epoch": 1, "last_sequence": 0, "last_offset": 600},
        {"last_offset": 700, "last_sequence": 99},
        {"timestamp": ALIVE.timestamp + 1},
        {"coordinator_epoch": 4},
        {"last_offset": 700, "current_txn_first_offset": 690},
    ],
)
def test_where_batches_are_missing_an_entry_may_be_of_one_of_them(ahead: dict[str, int]) -> None:
    unproven = Comparison(verdict=SnapshotVerdict.UNPROVEN, unrecorded=producers(7))
    assert judged([ALIVE._replace(**ahead)], [ALIVE], lacks_records=True) == unproven
    behind = judged([ALIVE], [ALIVE._replace(**ahead)], lacks_records=True)
    assert (behind.verdict, behind.different) == (SnapshotVerdict.DIFFERENT, producers(7))
    assert judged([ALIVE], [], seen=(7,), lacks_records=True) == unproven


def test_where_batches_are_missing_one_may_have_been_the_first_of_a_transaction_or_its_marker() -> None:
    for theirs in (OPEN._replace(current_txn_first_offset=500), OPEN._replace(current_txn_first_offset=-1)):
        assert judged([theirs], [OPEN], lacks_records=True).verdict is SnapshotVerdict.UNPROVEN
        assert judged([OPEN], [theirs], lacks_records=True).verdict is SnapshotVerdict.DIFFERENT
    assert judged([], [OPEN], lacks_records=True).verdict is SnapshotVerdict.PROVEN
    assert judged([], [ALIVE], lacks_records=True).verdict is SnapshotVerdict.FALSE_EMPTY
    assert judged([ALIVE._replace(last_sequence=99)], [ALIVE], lacks_records=True).verdict is SnapshotVerdict.DIFFERENT


def test_of_an_id_that_comes_twice_the_later_entry_counts() -> None:
    assert judged([ALIVE._replace(last_sequence=1), ALIVE], [ALIVE]).verdict is SnapshotVerdict.PROVEN
    assert judged([ALIVE, ALIVE._replace(last_sequence=1)], [ALIVE]).verdict is SnapshotVerdict.DIFFERENT


def test_absent_ids_beyond_the_last_one_are_missing_too() -> None:
    entries = [ALIVE._replace(producer_id=pid) for pid in (1, 5, 9)]
    assert judged(entries[1:2], entries) == Comparison(verdict=SnapshotVerdict.FALSE_PARTIAL, missing=producers(1, 9))


def test_no_more_than_a_thousand_producers_are_named_and_all_are_counted() -> None:
    entries = [ALIVE._replace(producer_id=pid) for pid in range(3 * MOST_NAMED)]
    missing = judged([], entries).missing
    assert missing == Producers(3 * MOST_NAMED, tuple(range(MOST_NAMED)))
    rest = Producers.of(range(3 * MOST_NAMED, 3 * MOST_NAMED + 7))
    assert Producers.join([rest, missing]) == Producers(3 * MOST_NAMED + 7, tuple(range(MOST_NAMED)))
