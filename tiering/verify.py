"""Verifies a store: ``verify`` has the steps, one after the other, from reading it back to comparing its snapshots."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from resnap.storage.layouts.lineage import Chain
from resnap.storage.log.names import TopicPartition
from resnap.storage.words import human_count
from resnap.tiering.store_check import chains_together
from resnap.tiering.stored_snapshots import SnapshotCheck, compared_snapshots
from resnap.tiering.verifying.verification import VerifiedSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from resnap.replay.watching import Progress
    from resnap.tiering.store_check import StoreCheck
    from resnap.tiering.verifying.verification_journal import VerificationJournal


class Unfit(NamedTuple):
    """A partition of whose stored snapshots some are missing, damaged, or not what a replay gives."""

    topic_partition: TopicPartition
    snapshots: int


VerifyRow: TypeAlias = VerifiedSegment | Chain | SnapshotCheck | Unfit
"""What is reported: segments, then what they are together, then snapshots, and the partitions with unfit ones."""


def verify(
    groups: Iterable[Sequence[StoreCheck]],
    journal: VerificationJournal,
    progress: Callable[..., AbstractContextManager[Sequence[Progress]]],
    warn: Callable[[str], None],
    report: Callable[[VerifyRow], None],
) -> None:
    """Verify a store, one group of partitions after the other; ``report`` is called with each finding at once.

    Of each group there is a check for each layout. What is known of one is not held when the next is verified.

    Raises:
        ConfigurationError: a segment is encrypted, and its key is not at hand.
        StoreError: the store failed.
        UsageError: executors cannot reach the store.
        ResnapError: the replay failed.

    """
    with progress("verify", "replay") as (reading, replaying):
        gone = sum(_verify_group(checks, reading, replaying, report) for checks in groups)
    if gone:
        warn(
            "segments that are gone from the beginning of their logs, each with all its objects, as the brokers'"
            f" own retention leaves them: {human_count(gone)}; their manifests may be deleted"
        )
    # What was read need not be read again by a run that continues this one: it is complete.
    journal.end()


def _verify_group(
    checks: Sequence[StoreCheck], reading: Progress, replaying: Progress, report: Callable[[VerifyRow], None]
) -> int:
    """Verify some partitions of a store, and return how many of their segments are gone; raises as ``verify`` does."""
    gone = 0
    # Read each segment back: its manifest, and the objects that it names, by their digests or their content.
    for check in checks:
        for segment in check.segments(reading):
            gone += segment.is_retained_away
            report(segment)
    # Chain the segments of each partition: some offsets may lack, and two histories may claim others.
    unread = {at for check in checks for at in check.beside_unread()}
    for chain in chains_together(checks):
        report(replace(chain, is_beside_unread=chain.topic_partition in unread))
    # Compare each snapshot with a replay of the stored segments, under the rules that it was made under.
    for check in checks:
        for snapshot in compared_snapshots(check, replaying):
            report(snapshot)
    # Count the unfit snapshots of each partition, over all layouts.
    unfit = Counter[TopicPartition]()
    for check in checks:
        unfit.update({at: len(found) for at, found in check.unfit.items()})
    for topic_partition, count in sorted(unfit.items()):
        report(Unfit(topic_partition, count))
    return gone
