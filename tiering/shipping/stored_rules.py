"""Compares the rules and the log that a shipped snapshot was made from with those of the current run.

Shipped segments are not changed, whatever the rules of a later run. That is correct if the later run would keep fewer
producers, as each nightly run does: its T is later. It is wrong if it would keep more, by a longer expiration or an
earlier T: then the snapshot may lack producers, and the run reports it. The same holds for a snapshot from a replica
whose log began later than the local one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.replay.plan import earliest_read, segment_at, window_begin
from resnap.replay.producer_state import Expiry
from resnap.replay.window import AsOf, Unexplained
from resnap.storage.layouts.manifest import SnapshotHow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resnap.replay.window import ReplayRules, SegmentSpan
    from resnap.storage.layouts.manifest import SnapshotOrigin
    from resnap.storage.log.partition_dir import PartitionDir


class ExplicitRules(NamedTuple):
    """Which rules of a run were set explicitly, and which are defaults."""

    expiry: bool = False
    """Whether a flag gives the expiration, which overrides a manifest."""
    as_of: bool = False
    """Whether a flag gives the time as of which is judged, which overrides a manifest."""
    is_expiry_assumed: bool = False
    """Whether the expiration is not given anywhere."""


RULES_ALONE: Final = ExplicitRules()
"""No flag is given."""


def made_under(origin: SnapshotOrigin, rules: ReplayRules) -> ReplayRules:
    """Return the rules of a snapshot; ``rules`` fill in what its origin does not record."""
    roll = origin.as_of == "roll"
    now_ms = rules.as_of.now_ms if roll or origin.as_of_ms is None else origin.as_of_ms
    expiry = Expiry(origin.producer_id_expiration_ms, origin.check_interval_ms)
    return replace(rules, as_of=AsOf(now_ms=now_ms, roll=roll), expiry=expiry, max_reach_back_ms=None)


def is_narrower(origin: SnapshotOrigin, rules: ReplayRules) -> bool:
    """Whether a snapshot may lack a producer that ``rules`` keep.

    The T of a roll is known only after a replay: it is before the T of any run, and equal for two runs under ``roll``.
    """
    made = made_under(origin, rules)
    if rules.as_of.roll:
        return not made.as_of.roll or made.kept_after_ms(0) > rules.kept_after_ms(0)
    made_ms = rules.as_of.now_ms if origin.as_of_ms is None else origin.as_of_ms
    return made.kept_after_ms(made_ms) > rules.kept_after_ms(rules.as_of.now_ms)


def first_offset(partition: PartitionDir) -> int:
    """Return the base offset of the first segment."""
    return partition.segments[0].base_offset if partition.segments else 0


def is_of_shorter_log(origin: SnapshotOrigin, first: int) -> bool:
    """Whether a snapshot may lack a producer of a log that begins at ``first``: it was made from less of the log."""
    return origin.known_from_offset is not None and origin.known_from_offset > first


def is_from_less(
    origin: SnapshotOrigin, rules: ReplayRules, end: int, segments: Callable[[], Sequence[SegmentSpan]], first: int
) -> bool:
    """Whether a snapshot was made from less of a log, which begins at ``first`` here, than is read under ``rules``.

    Where these limit reading, a transaction that hangs from below the window is looked for no more than it was then.
    """
    if is_cut_short(origin, rules, end, segments):
        return True
    is_limited = rules.max_reach_back_ms is not None and not rules.full
    return is_of_shorter_log(origin, first) and not (
        is_limited
        and not is_of_shorter_log(origin, earliest_read(segments(), end, replace(rules, max_reach_back_ms=0)))
    )


def is_cut_short(
    origin: SnapshotOrigin, rules: ReplayRules, end: int, segments: Callable[[], Sequence[SegmentSpan]]
) -> bool:
    """Whether a snapshot excludes producers whose past was not read, and ``rules`` let reading begin earlier.

    ``--max-reach-back`` alone excludes them above the first offset of the log: without it a window is read on from,
    down to there. So the limit need not be known: what counts is where reading began.

    Args:
        origin: of the snapshot.
        rules: of the run that judges it.
        end: the boundary of the snapshot.
        segments: gives those of the log that the run reads; called only if it must be.

    """
    start = origin.window_start_offset
    if origin.how is SnapshotHow.BEYOND_WINDOW or not start:
        return False
    if {producer.reason for producer in origin.left_out}.isdisjoint({Unexplained.BATCH, Unexplained.TRANSACTION}):
        return False
    spans = segments()
    window = window_begin(spans, made_under(origin, rules))
    # A broker's own that was kept beyond the window was compared with evidence alone, whatever the limit.
    is_within = origin.how is not SnapshotHow.KEPT or segment_at(spans, end - 1) >= window
    return is_within and earliest_read(spans, end, rules) < start


def judged_under(origin: SnapshotOrigin, rules: ReplayRules, asked: ExplicitRules) -> ReplayRules:
    """Return the rules with which a stored snapshot is compared.

    These are the rules it was made under, except those set by a flag; without a flag, this run's rules if they keep
    more.
    """
    made = made_under(origin, rules)
    if asked.expiry or asked.as_of:
        expiry = rules.expiry if asked.expiry else made.expiry
        return replace(made, expiry=expiry, as_of=rules.as_of if asked.as_of else made.as_of)
    now = replace(rules, max_reach_back_ms=None, expiry=made.expiry if asked.is_expiry_assumed else rules.expiry)
    return now if is_narrower(origin, now) else made
