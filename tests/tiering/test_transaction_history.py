"""Transaction indexes of real brokers against the batches, and what can be said where reading begins midway."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.log.indexes import AbortedTxn
from resnap.storage.log.log_dir import load_log_dir
from resnap.tiering.shipping.aborted_transactions import InheritedTransactions, SegmentTransactions
from resnap.tiering.shipping.segment_indexes import IndexUnusableError, TransactionHistory, load_indexes
from tests.examples import examples
from tests.fixture_sets import ARCHIVED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from tests.fixture_sets import FixtureSet

    Sets = Callable[[str], FixtureSet]

LOG_START = InheritedTransactions({}, 0)


def closed(partition: PartitionDir) -> list[Segment]:
    return [segment for segment in partition.segments if not segment.is_active]


@pytest.mark.parametrize("name", ARCHIVED)
def test_every_entry_that_a_broker_wrote_is_what_the_batches_say(name: str, fixture_set: Sets) -> None:
    for partition in load_log_dir(fixture_set(name).data).partitions:
        history = TransactionHistory()
        for segment in closed(partition):
            indexes = load_indexes(segment)
            assert history.check(segment, indexes.seen.transactions, indexes.aborted) == ()


def begun_below(fixture_set: Sets) -> tuple[PartitionDir, Segment, AbortedTxn]:
    """Return a segment and an entry of a transaction that began in one below; there is a snapshot between them."""
    for partition in load_log_dir(fixture_set("kafka-3.9.1-aiven-zstd").data).partitions:
        bases = {snapshot.offset for snapshot in partition.snapshots}
        for segment in closed(partition):
            for entry in load_indexes(segment).aborted:
                if entry.first_offset < segment.base_offset and segment.base_offset in bases:
                    return partition, segment, entry
    raise AssertionError("there is none")


def test_where_reading_begins_midway_a_snapshot_shows_what_is_lacking(fixture_set: Sets) -> None:
    partition, segment, entry = begun_below(fixture_set)
    indexes = load_indexes(segment)
    lacking = tuple(one for one in indexes.aborted if one != entry)
    with pytest.raises(IndexUnusableError, match=f"lacks the transaction of producer {entry.producer_id}"):
        TransactionHistory.of(partition, TransactionHistory().sources).check(
            segment, indexes.seen.transactions, lacking
        )
    undecided = TransactionHistory().check(segment, indexes.seen.transactions, indexes.aborted)
    assert any("was not read" in text for text in undecided)


def test_a_marker_without_a_batch_may_have_ended_what_was_not_read() -> None:
    batches = SegmentTransactions()
    batches.end(7, 20, is_abort=True)
    found = batches.judge((), InheritedTransactions({}, 15))
    assert (found.problems, "may lack" in found.undecided[0]) == ((), True)
    assert batches.judge(aborted_alone(14, 21), InheritedTransactions({}, 15)).problems == ()
    assert "lacks" in batches.judge((), InheritedTransactions({7: 3}, 15)).problems[0]
    assert batches.judge((), InheritedTransactions({}, 15, frozenset({7}))) == ((), ())
    assert batches.after(InheritedTransactions({}, 15)).settled == {7}


def aborted_alone(first_offset: int, last_stable_offset: int) -> tuple[AbortedTxn, ...]:
    return (AbortedTxn(7, first_offset, 20, last_stable_offset),)


def test_a_follower_may_know_of_the_transaction_that_begins_next() -> None:
    batches = SegmentTransactions()
    batches.begin(7, 10)
    batches.end(7, 20, is_abort=True)
    batches.begin(7, 22)
    batches.end(7, 23, is_abort=False)
    batches.begin(7, 24)
    batches.begin(8, 25)
    batches.begin(9, 26)
    for written in (21, 22, 25):
        assert batches.judge(aborted_alone(10, written), LOG_START).problems == ()
    for written in (20, 23, 24, 26):
        assert "says last stable offset" in batches.judge(aborted_alone(10, written), LOG_START).problems[0]


def test_a_marker_without_a_transaction_hides_none_that_begins_next() -> None:
    batches = SegmentTransactions()
    batches.begin(7, 10)
    batches.end(7, 20, is_abort=True)
    batches.end(8, 22, is_abort=True)
    batches.end(9, 23, is_abort=True)
    batches.begin(7, 24)
    batches.begin(8, 25)
    batches.end(8, 26, is_abort=False)
    batches.begin(9, 27)
    for written in (21, 22, 25):  # seen with 3.9.1: 25, in a replica that was moved to another disk
        assert batches.judge(aborted_alone(10, written), LOG_START).problems == (), written
    for written in (20, 23, 24, 26, 27):
        assert "says last stable offset" in batches.judge(aborted_alone(10, written), LOG_START).problems[0], written


@pytest.mark.parametrize("begins", [True, False])
def test_what_the_same_producer_does_hides_no_marker_without_a_transaction(begins: bool) -> None:
    batches = SegmentTransactions()
    batches.begin(7, 10)
    batches.end(7, 20, is_abort=True)
    if begins:
        batches.begin(7, 21)
    else:
        batches.end(7, 21, is_abort=False)
    batches.end(8, 22, is_abort=True)
    batches.begin(9, 23)
    for written in (21, 22, 23):  # 22: brokers from 2.2.1 to 2.7
        assert batches.judge(aborted_alone(10, written), LOG_START).problems == (), written
    assert "says last stable offset" in batches.judge(aborted_alone(10, 24), LOG_START).problems[0]


class Written(NamedTuple):
    """A transactional batch, or a marker."""

    producer_id: int
    is_marker: bool = False
    is_abort: bool = False


@dataclass(frozen=True)
class Rule:
    """How brokers of some releases find the last stable offset after a marker."""

    skips_own: bool
    """Whether transactions of the marker's producer do not count: from 2.2.1 on."""
    lists_empty: bool
    """Whether a marker without a transaction begins one: before 2.8."""

    def index(self, log: Sequence[Written], appends: Iterable[tuple[int, int]]) -> Iterator[AbortedTxn]:
        """Yield the entries of a log whose offsets are appended from one to another: all begin, and then all end."""
        begun: dict[int, int] = {}
        ongoing: dict[int, int] = {}
        for start, stop in appends:
            ended = []
            for offset, one in enumerate(log[start:stop], start):
                if not one.is_marker and one.producer_id not in begun:
                    begun[one.producer_id] = offset
                    ongoing[offset] = one.producer_id
                elif one.is_marker and (self.lists_empty or one.producer_id in begun):
                    first = begun.pop(one.producer_id, offset)
                    ongoing[first] = one.producer_id
                    ended.append((offset, first, one))
            for offset, first, one in ended:
                counted = (at for at, whose in ongoing.items() if not (self.skips_own and whose == one.producer_id))
                stable = min((at for at in counted if at != first), default=offset + 1)
                del ongoing[first]
                if one.is_abort:
                    yield AbortedTxn(one.producer_id, first, offset, stable)


RULES = (Rule(False, True), Rule(True, True), Rule(True, False))
LOGS = st.lists(st.builds(Written, st.integers(7, 9), st.booleans(), st.booleans()), max_size=7)


def all_appends(size: int) -> Iterator[list[tuple[int, int]]]:
    """Yield each way in which a log can be appended, several batches at once."""
    for count in range(size):
        for cuts in combinations(range(1, size), count):
            yield list(pairwise((0, *cuts, size)))


@examples(500)
@given(LOGS)
def test_right_is_what_a_broker_of_any_release_writes_and_nothing_else(log: list[Written]) -> None:
    batches = SegmentTransactions()
    for offset, one in enumerate(log):
        if one.is_marker:
            batches.end(one.producer_id, offset, is_abort=one.is_abort)
        else:
            batches.begin(one.producer_id, offset)
    right = {tuple(rule.index(log, appends)) for rule in RULES for appends in all_appends(len(log))}
    assert [found for index in right if (found := batches.judge(index, LOG_START)) != ((), ())] == []
    possible = {entry for index in right for entry in index}
    for entry in possible:
        others = [other for other in next(index for index in right if entry in index) if other != entry]
        for stable in range(len(log) + 2):
            wrong = entry._replace(last_stable_offset=stable)
            assert (batches.judge((*others, wrong), LOG_START).problems == ()) == (wrong in possible), wrong


def test_what_was_open_below_keeps_the_last_stable_offset_down() -> None:
    batches = SegmentTransactions()
    batches.begin(7, 10)
    batches.end(7, 20, is_abort=True)
    before = InheritedTransactions({9: 4}, 0)
    assert batches.judge(aborted_alone(10, 4), before).problems == ()
    assert "says last stable offset 21" in batches.judge(aborted_alone(10, 21), before).problems[0]
    assert batches.after(before) == InheritedTransactions({9: 4}, 0)


def test_a_transaction_without_a_batch_may_be_listed_or_not() -> None:
    batches = SegmentTransactions()
    batches.end(7, 20, is_abort=True)
    assert batches.judge((), LOG_START) == batches.judge(aborted_alone(20, 21), LOG_START) == ((), ())
    assert "says first offset 19" in batches.judge(aborted_alone(19, 21), LOG_START).problems[0]
