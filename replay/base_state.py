"""The base of a run: the state of producers below the first offset that is read, as snapshots show it.

A log begins at offset 0. If the first available segment begins later, because retention or tiering has deleted those
below, or a window skips them, producers may be alive whose last batch is below. Their state at the first offset W
that is read is known from the snapshots at or above it:

- An entry of the snapshot at W is the state at W.
- So is an entry of the first snapshot M above W that has the producer, if its last batch and its transaction are below
  W, and no batch of the producer is in [W, M). While its transaction is open, or it has never had a marker, none can;
  for all others the run is read up to M, and shows it (``BaseFinding``): no entry says where its last marker is.
  An entry without a batch, which a transaction's marker leaves, may come entirely from the run; it counts only once the
  run has shown that it does not.

Of a transaction that began below W and goes on in the run any snapshot at or above W that shows it open says where it
began, and the coordinator epoch before it; the batch of the entry at W is not known then.

Such entries are rows of a summary like any others (``kernel.summary``), and precede those of the first segment: later
batches are composed onto them. A producer that is *missing* from a snapshot proves nothing.

Undecided producers are named, and not written: those in snapshots below W only, those that snapshots at or above W show
with different batches, and those with a marker between W and the snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from resnap.replay.evidence import NOTHING_SHOWN, SHOWN_DTYPE
from resnap.replay.kernel.summary import NONE, SUMMARY_DTYPE, BoolArray, IntArray

if TYPE_CHECKING:
    from collections.abc import Collection

    from resnap.replay.evidence import Evidence
    from resnap.replay.kernel.summary import Array


class Base(NamedTuple):
    """The known state of producers at the first offset of a run."""

    shown: Array
    """The entries that were there (``evidence.SHOWN_DTYPE``), by producer id."""
    undecided: Array
    """Entries of producers whose state at that offset is unknown."""
    without_batch: Array
    """Entries that were there if the run has no batch of their producers before they were seen."""
    begun: Array
    """Entries of which only the transaction existed: its producer continued it in the run."""

    @property
    def rows(self) -> Array:
        """The known state as a summary, by producer id."""
        rows = np.concatenate((_rows(self.shown), _rows(self.begun, knows_batch=False)))
        ordered: Array = rows[np.argsort(rows["producer_id"])]
        return ordered

    def to_be_read_up_to(self, read_from: int, kept_after_ms: int | None) -> int:
        """Return the offset up to which a run from ``read_from`` must read, to see every marker that matters."""
        shown = np.concatenate((self.shown[self._is_unsure(read_from)], self.without_batch))
        if kept_after_ms is not None:
            shown = shown[shown["timestamp"] > kept_after_ms]
        return int(shown["first_seen"].max()) if len(shown) else 0

    def _is_unsure(self, read_from: int) -> BoolArray:
        """Return for which entries a marker may be between the run's first offset and the snapshot."""
        idle = self.shown["current_txn_first_offset"] == NONE
        unsure: BoolArray = idle & (self.shown["coordinator_epoch"] != NONE) & (self.shown["first_seen"] > read_from)
        return unsure

    def untouched(self, state: Array) -> IntArray:
        """Return the producers in ``state`` that only snapshots show."""
        ids: IntArray = self.shown["producer_id"][_touched_at(self.shown, state) == NEVER].astype(np.int64)
        return ids

    def base_findings(self, state: Array, read_from: int, reached: int) -> list[BaseFinding]:
        """Return the producers whose state at ``read_from`` was not what the base assumed.

        ``state`` is that of the whole run, which was read up to the offset ``reached``.
        """
        shown, others = self.shown, self.without_batch
        touched = _touched_at(shown, state)
        moved = (touched < shown["first_seen"]) & (shown["first_seen"] > read_from)
        moved |= self._is_unsure(read_from) & (shown["first_seen"] > reached)
        later = _touched_at(others, state)
        unmoved = (later >= others["first_seen"]) & (others["first_seen"] <= reached)
        return [
            *_base_findings(shown[moved], touched[moved], was_there=False),
            *_base_findings(others[unmoved], later[unmoved], was_there=True),
        ]


class BaseFinding(NamedTuple):
    """What a run has shown about its base."""

    producer_id: int
    up_to: int
    """Offset of its first batch in the run; boundaries up to there must be made once more."""
    was_there: bool
    """Whether its entry was there after all; else it is not known what did."""
    kept_until_ms: int
    """Timestamp of the entry; the largest while its transaction is open."""


def _base_findings(shown: Array, touched: IntArray, *, was_there: bool) -> list[BaseFinding]:
    until = np.where(shown["current_txn_first_offset"] == NONE, shown["timestamp"], NEVER)
    of_each = zip(shown["producer_id"].tolist(), touched.tolist(), until.tolist(), strict=True)
    return [BaseFinding(producer_id, up_to, was_there, until_ms) for producer_id, up_to, until_ms in of_each]


def _touched_at(shown: Array, state: Array) -> IntArray:
    """Return for each producer in ``shown`` the offset of its first batch in ``state``; ``NEVER`` if it has none."""
    touched = np.full(len(shown), NEVER, dtype=np.int64)
    at = np.searchsorted(state["producer_id"], shown["producer_id"])
    inside = at < len(state)
    inside[inside] = state["producer_id"][at[inside]] == shown["producer_id"][inside]
    for name in _FIRST:
        first = state[name][at[inside]]
        touched[inside] = np.minimum(touched[inside], np.where(first == NONE, NEVER, first))
    return touched


NEVER: Final = int(np.iinfo(np.int64).max)
"""Later than every offset and every time."""
_FIRST: Final = ("first_marker_offset", "first_data_offset")
NO_BASE: Final = Base(NOTHING_SHOWN, NOTHING_SHOWN, NOTHING_SHOWN, NOTHING_SHOWN)


def base_of(evidence: Evidence, read_from: int, *, begins: int, unmoved: Collection[int] = ()) -> Base:
    """Return what ``evidence`` shows of producers at the offset ``read_from``, where a run begins.

    The first available segment begins at ``begins``; if more may be read, an open transaction that only older snapshots
    show is not a doubt. For the producers ``unmoved`` an earlier replay has shown that an entry without a batch does
    not come from the run.
    """
    if not read_from or not (len(evidence.below) or evidence.open):
        return NO_BASE
    opened = [(*seen.entry, seen.seen_at, seen.seen_at) for seen in evidence.open]
    shown = np.concatenate((evidence.below, np.array(opened, dtype=SHOWN_DTYPE))).astype(SHOWN_DTYPE)
    shown = shown[shown["current_txn_first_offset"] < read_from]
    goes_on = (shown["last_offset"] >= read_from) & (shown["last_seen"] >= read_from)
    begun = _first_of_each(shown[goes_on], shown["first_seen"][goes_on])
    shown = shown[shown["last_offset"] < read_from]
    later = shown[shown["last_seen"] >= read_from]
    earlier = evidence.below[evidence.below["last_seen"] < read_from]
    if read_from > begins:
        earlier = earlier[earlier["current_txn_first_offset"] == NONE]
    may_be_of_run = (later["last_offset"] == NONE) & (later["first_seen"] > read_from)
    may_be_of_run &= ~np.isin(later["producer_id"], list(unmoved))
    without_batch, later = (
        _first_of_each(later[may_be_of_run], later["first_seen"][may_be_of_run]),
        later[~may_be_of_run],
    )
    contradicted = _contradictory_producers(later)
    settled = _first_of_each(later, np.maximum(later["first_seen"], read_from))
    is_contradicted = np.isin(settled["producer_id"], contradicted)
    earlier = _first_of_each(earlier, -earlier["last_seen"])
    unknown = earlier[~np.isin(earlier["producer_id"], settled["producer_id"])]
    without_batch = without_batch[~np.isin(without_batch["producer_id"], settled["producer_id"])]
    known = settled[~is_contradicted]
    begun = begun[~np.isin(begun["producer_id"], settled["producer_id"])]
    return Base(known, np.concatenate((settled[is_contradicted], unknown)), without_batch, begun)


def _first_of_each(shown: Array, order: IntArray) -> Array:
    """Return the first entry of each producer by ``order``, by producer id."""
    ordered = shown[np.lexsort((shown["last_seen"], order, shown["producer_id"]))]
    first: Array = ordered[np.unique(ordered["producer_id"], return_index=True)[1]]
    return first


def _contradictory_producers(shown: Array) -> IntArray:
    """Return the producers that snapshots show with different last batches, with no batch possible in between."""
    batches = shown[shown["last_offset"] != NONE][["producer_id", "producer_epoch", "last_sequence", "last_offset"]]
    ids, count = np.unique(np.unique(batches)["producer_id"], return_counts=True)
    several: IntArray = ids[count > 1].astype(np.int64)
    return several


def _rows(shown: Array, *, knows_batch: bool = True) -> Array:
    """Return ``shown`` as a summary without unknowns, except for a last batch that is not known."""
    rows = np.zeros(len(shown), dtype=SUMMARY_DTYPE)
    for ours, theirs in ENTRY_FIELDS:
        rows[ours] = shown[theirs]
    for name in ("coordinator_known", "closed"):
        rows[name] = True
    rows["has_data"] = knows_batch
    rows["first_is_marker"] = rows["one_epoch"] = not knows_batch  # as a marker without its batch: in doubt until data
    for name in ("clock_since_ms", "first_clock_ms", "first_offset", *_FIRST, "illegal_if_open", "illegal_offset"):
        rows[name] = NONE
    rows["first_timestamp"] = shown["timestamp"]
    return rows


ENTRY_FIELDS: Final = (
    ("producer_id", "producer_id"),
    ("epoch", "producer_epoch"),
    ("last_sequence", "last_sequence"),
    ("last_offset", "last_offset"),
    ("offset_delta", "offset_delta"),
    ("timestamp", "timestamp"),
    ("coordinator_epoch", "coordinator_epoch"),
    ("txn_first_offset", "current_txn_first_offset"),
)
"""The fields of a summary row that make an entry, each with the entry's own."""
