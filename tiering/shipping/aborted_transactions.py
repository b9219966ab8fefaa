"""Checks the transaction index of a segment against its batches, entry by entry.

The index names each transaction whose abort marker is in the segment: its first offset, and the last stable offset
after the marker. Both may be in segments below, so the input has the transactions that are open at the segment's base
offset, and the output those that are open at its end: segments are judged one after the other. If reading does not
begin with the log, earlier transactions are unknown; an entry that depends on them is undecided, not wrong.

- An aborted transaction without a batch needs no entry: brokers before 2.8 list one with the marker's offset.
- The last stable offset is the first offset of the oldest transaction of another producer, else the one after the
  marker. A follower appends several batches at once: if no other transaction is open, it may already know the next one,
  and writes its first offset; old brokers do so even if it is of the same producer. So does a replica that is moved to
  another disk. A marker without a transaction in between is none, but to brokers before 2.8.

Source: ``ProducerStateManager.lastStableOffset`` and ``completeTxn``, ``LogSegment.updateTxnIndex``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.log.indexes import AbortedTxn
from resnap.storage.log.producer_snapshot import NO_OPEN_TRANSACTION, read_snapshot_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


class InheritedTransactions(NamedTuple):
    """The transactions that are open at an offset."""

    first_offsets: Mapping[int, int]
    """First offsets by producer id."""
    known_from: int
    """All that began at this offset or later are among them; of those that began below perhaps some."""
    settled: frozenset[int] = frozenset()
    """Producers that have had a marker since, so that nothing of theirs has begun below; none if that is offset 0."""


def open_in(snapshot: bytes) -> dict[int, int]:
    """Return the first offsets of the open transactions in a producer snapshot, by producer id.

    Raises:
        FormatError: it is damaged.

    """
    entries = read_snapshot_array(snapshot)
    shown = entries[entries["current_txn_first_offset"] != NO_OPEN_TRANSACTION]
    return dict(zip(shown["producer_id"].tolist(), shown["current_txn_first_offset"].tolist(), strict=True))


class _Marker(NamedTuple):
    """A marker that ends a transaction, with what its segment shows."""

    producer_id: int
    offset: int
    is_abort: bool
    first_offset: int | None
    """The offset of the transaction's first batch in the segment; None if it has none there."""
    is_settled: bool
    """Whether an earlier marker of the producer in the segment has ended what had begun below."""
    others_from: int | None
    """First offset of the oldest transaction of another producer that began in the segment, and is open."""


class Findings(NamedTuple):
    """The findings in the files of a segment, as sentences; those in an index alone are without a subject."""

    problems: tuple[str, ...]
    undecided: tuple[str, ...]
    """What may be wrong or right, since what it depends on was not read."""


@dataclass(slots=True)
class SegmentTransactions:
    """The transactions of one segment; filled while its batches are read in order."""

    markers: list[_Marker] = field(default_factory=list)
    """The markers that abort, and of each producer the first one."""
    open: dict[int, int] = field(default_factory=dict)
    """First offsets of what has begun and not ended, by producer id, ascending."""
    _ended: set[int] = field(default_factory=set)
    """Producers that have had a marker."""
    _begun_after: dict[int, list[int]] = field(default_factory=dict)
    """Next transactions by the offset of an abort marker at which no other was open, to brokers from 2.8 on."""
    _begun_after_to_old: dict[int, list[int]] = field(default_factory=dict)
    """The same to brokers before 2.8, to which a marker without a transaction begins one."""
    _waiting: dict[int, list[int]] = field(default_factory=dict)
    """The markers without a transaction, by producer, while no transaction of another one has begun."""
    _waiting_old: dict[int, list[int]] = field(default_factory=dict)
    """The same to brokers before 2.8."""
    _waiting_oldest: dict[int, list[int]] = field(default_factory=dict)
    """The same to brokers before 2.2.1, to which one of the same producer counts, too."""

    def begin(self, producer_id: int, offset: int) -> None:
        """Add a transactional batch at ``offset``."""
        if producer_id not in self.open:
            self.open[producer_id] = offset
            _note_begun(self._begun_after, self._waiting, producer_id, offset)
            self._note_begun_to_old(producer_id, offset)

    def end(self, producer_id: int, offset: int, *, is_abort: bool) -> None:
        """Add a marker at ``offset``."""
        first = self.open.pop(producer_id, None)
        if first is None:
            self._note_begun_to_old(producer_id, offset)  # it begins and ends here
        is_settled = producer_id in self._ended
        if is_abort or not is_settled:
            others = next(iter(self.open.values()), None)
            self.markers.append(_Marker(producer_id, offset, is_abort, first, is_settled, others))
            if is_abort and others is None:
                for waiting in (self._waiting, self._waiting_old, self._waiting_oldest):
                    waiting.setdefault(producer_id, []).append(offset)
        self._ended.add(producer_id)

    def _note_begun_to_old(self, producer_id: int, offset: int) -> None:
        _note_begun(self._begun_after_to_old, self._waiting_old, producer_id, offset)
        _note_begun(self._begun_after_to_old, self._waiting_oldest, None, offset)

    def after(self, before: InheritedTransactions) -> InheritedTransactions:
        """Return the transactions that are open at the end of the segment."""
        still = {pid: first for pid, first in before.first_offsets.items() if pid not in self._ended}
        settled = before.settled | self._ended if before.known_from else before.settled
        return InheritedTransactions({**self.open, **still}, before.known_from, settled)

    def judge(self, entries: Iterable[AbortedTxn], before: InheritedTransactions) -> Findings:
        """Compare the index with the batches; ``before`` are the transactions open at the base offset."""
        listed = {entry.last_offset: entry for entry in entries}
        problems: list[str] = []
        undecided: list[str] = []
        for known in self._aborted(before):
            found = known.judge(listed.pop(known.marker.offset, None))
            problems += found.problems
            undecided += found.undecided
        problems += (f"names a transaction of producer {entry.producer_id} that no marker at offset {entry.last_offset}"
                     " has aborted" for entry in listed.values())  # fmt: skip
        return Findings(tuple(problems), tuple(undecided))

    def entries(self, before: InheritedTransactions) -> list[AbortedTxn]:
        """Return the index of the segment, if all transactions open ``before`` it are known."""
        return [entry for known in self._aborted(before) if (entry := known.entry()) is not None]

    def corrected(self, there: Iterable[AbortedTxn], before: InheritedTransactions) -> list[AbortedTxn]:
        """Return the index ``there`` with the entries that the batches contradict replaced.

        Transactions that began below the log are unknown. So transactions begin with their first batch in the log, and
        the last stable offset is below the log: a broker that collects aborted transactions stops at an entry whose
        last stable offset is above the offsets it serves (``TransactionIndex.collectAbortedTxns``).
        """
        listed = {entry.last_offset: entry for entry in there}
        found = []
        for known in self._aborted(before):
            entry = listed.get(known.marker.offset)
            if known.judge(entry).problems:
                entry = known.entry()
                entry = entry and entry._replace(
                    last_stable_offset=min(entry.last_stable_offset, before.known_from - 1)
                )
            if entry is not None:
                found.append(entry)
        return found

    def _aborted(self, before: InheritedTransactions) -> Iterator[_Known]:
        """Yield the known facts of each aborted transaction, as ``judge`` needs them."""
        inherited = dict(before.first_offsets)
        for marker in self.markers:
            below = inherited.pop(marker.producer_id, None)
            if marker.is_abort:
                is_settled = marker.is_settled or marker.producer_id in before.settled
                others = [*inherited.values(), *([] if marker.others_from is None else [marker.others_from])]
                yield _Known(
                    marker._replace(is_settled=is_settled),
                    below,
                    before.known_from,
                    min(others, default=None),
                    self._begun_after.get(marker.offset, []),
                    self._begun_after_to_old.get(marker.offset, []),
                )


def _note_begun(
    begun_after: dict[int, list[int]], waiting: dict[int, list[int]], producer_id: int | None, offset: int
) -> None:
    """Note what begins at ``offset`` for all ``waiting`` markers but those of the producer."""
    for other in [producer for producer in waiting if producer != producer_id]:
        for marker in waiting.pop(other):
            begun_after.setdefault(marker, []).append(offset)


class _Known(NamedTuple):
    """The known facts of an aborted transaction."""

    marker: _Marker
    below: int | None
    """Its first offset, if it began below the segment, and that is known."""
    known_from: int
    others_from: int | None
    """First offset of the oldest transaction of another producer that is open."""
    begun_after: Sequence[int]
    begun_after_to_old: Sequence[int]
    """What may have begun next, where no other one is open; see ``SegmentTransactions``."""

    def judge(self, entry: AbortedTxn | None) -> Findings:
        """Compare the entry of its marker, None if there is none, with the known facts."""
        what = f"the transaction of producer {self.marker.producer_id} that the marker at offset {self.marker.offset}"
        if entry is None:
            if self._first is not None:
                return Findings((f"lacks {what} aborted",), ())
            unknown = f"may lack {what} aborted, if it began below offset {self.known_from}"
            return Findings((), (unknown,) if self._may_begin_below else ())
        if entry.producer_id != self.marker.producer_id:
            return Findings((f"says producer {entry.producer_id} of {what} aborted",), ())
        found = [*self._first_offset(entry), *self._last_stable_offset(entry)]
        problems = tuple(f"says {said} of {what} aborted, the batches say {known}"
                         for said, known in found if known is not None)  # fmt: skip
        undecided = tuple(f"says {said} of {what} aborted, and what lies below offset {self.known_from} was not read"
                          for said, known in found if known is None)  # fmt: skip
        return Findings(problems, undecided)

    def entry(self) -> AbortedTxn | None:
        """Return its index entry; None if none of its batches is known."""
        if self._first is None:
            return None
        return AbortedTxn(self.marker.producer_id, self._first, self.marker.offset, self.last_stable_offsets[0])

    @property
    def _first(self) -> int | None:
        return self.marker.first_offset if self.below is None else self.below

    @property
    def last_stable_offsets(self) -> tuple[int, ...]:
        """The values that a broker may write, the most likely first."""
        if self.others_from is not None:
            return (self.others_from,)
        # Only brokers before 2.8 have an entry of a marker without a transaction.
        is_of_old = self._first is None and not self._may_begin_below
        return (self.marker.offset + 1, *self.begun_after_to_old, *(() if is_of_old else self.begun_after))

    @property
    def _may_begin_below(self) -> bool:
        """Whether it may have begun below the offsets that were read."""
        return self.known_from > 0 and self.below is None and not self.marker.is_settled

    def _first_offset(self, entry: AbortedTxn) -> Iterator[tuple[str, str | None]]:
        """Yield what is wrong in the entry, and the right value; None if that is unknown."""
        expected = self.marker.offset if self._first is None else self._first
        if entry.first_offset != expected:
            is_unread = self._may_begin_below and entry.first_offset < self.known_from
            right = "none" if self._first is None else str(self._first)
            yield f"first offset {entry.first_offset}", None if is_unread else right

    def _last_stable_offset(self, entry: AbortedTxn) -> Iterator[tuple[str, str | None]]:
        """Yield the same for the last stable offset."""
        if entry.last_stable_offset not in self.last_stable_offsets:
            is_unread = entry.last_stable_offset < self.known_from
            said = f"last stable offset {entry.last_stable_offset}"
            yield said, None if is_unread else str(self.last_stable_offsets[0])
