"""Compares a stored snapshot with a replay: which producers differ, and which may be missing for a known reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.replay.comparison import NO_PRODUCERS, Producers
from resnap.scheduler.clock import instant
from resnap.storage.layouts.manifest import SnapshotHow
from resnap.tiering.shipping.stored_rules import is_of_shorter_log

if TYPE_CHECKING:
    from resnap.replay.comparison import Comparison
    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import BoundaryResult
    from resnap.storage.layouts.manifest import SnapshotOrigin

MOST_SHOWN: Final = 5
"""Most producers that a message names."""
_BEYOND_WINDOW: Final = {SnapshotHow.BEYOND_WINDOW, SnapshotHow.KEPT}


def lacking(
    found: BoundaryResult, comparison: Comparison, plan: PartitionPlan, origin: SnapshotOrigin | None
) -> Producers:
    """Return the producers that a stored snapshot lacks, except those whose absence its origin explains.

    If it was made from a shorter log, doubts of that time are settled now. No broker has expired producers of a
    snapshot that Resnap made. Beyond the window it was made from evidence alone, so producers may be missing whose
    transaction was committed later.
    """
    lacks = comparison.missing if _is_brokers(origin) else Producers.join((comparison.missing, comparison.swept))
    excused = set()
    if origin is not None and not is_of_shorter_log(origin, found.known_from_offset):
        excused = set(lacks.named).intersection(one.producer_id for one in origin.left_out)
    if plan.is_beyond_window(found.boundary) and (origin is None or origin.how in _BEYOND_WINDOW):
        aborted = {txn.producer_id for txn in plan.evidence.aborted_across(found.boundary.offset)}
        excused |= set(lacks.named) - aborted
    # A producer that is not named cannot be excused.
    return Producers(lacks.total - len(excused), tuple(pid for pid in lacks.named if pid not in excused))


def differing(found: BoundaryResult, comparison: Comparison, origin: SnapshotOrigin | None) -> Producers:
    """Return the producers whose entries in a stored snapshot differ.

    A log without its beginning may not show that a broker had forgotten a producer in between: then the coordinator
    epoch is kept, which is harmless. So are the differences in snapshots that older brokers wrote. No broker has
    expired the entries of a snapshot that Resnap made.
    """
    harmless = NO_PRODUCERS
    if origin is None:
        harmless = comparison.older_rules
    elif is_of_shorter_log(origin, found.known_from_offset):
        harmless = comparison.coordinator_kept
    left = tuple(pid for pid in comparison.different.named if pid not in set(harmless.named))
    differs = Producers(comparison.different.total - harmless.total, left)
    return differs if _is_brokers(origin) else Producers.join((differs, comparison.batch_lost))


def _is_brokers(origin: SnapshotOrigin | None) -> bool:
    """Whether a broker has written a stored snapshot."""
    return origin is None or origin.how in {SnapshotHow.PROVEN, SnapshotHow.KEPT}


def rules_made_under(origin: SnapshotOrigin) -> str:
    """Return the rules of a stored snapshot as text."""
    at = "at its roll" if origin.as_of == "roll" or origin.as_of_ms is None else f"as of {instant(origin.as_of_ms)}"
    return f"producer.id.expiration.ms {origin.producer_id_expiration_ms}, {at}"


def named(producers: Producers) -> str:
    """Return the first of these producers by their ids, as text."""
    ids = producers.named[:MOST_SHOWN]
    more = producers.total - len(ids)
    return f"producers {', '.join(map(str, ids))}" + (f" and {more} more" if more else "")
