"""A log dir and the remote part of its partitions as one log: remote segments below, the log dir's own above.

Where both have an offset, the log dir's segment is read. That both are one log is known by the first batch that both
must have, byte by byte, and by the leader epochs. Where batches differ under different leader epochs, one of two
histories was lost, as after an unclean election: the leader epochs of the log dir decide, as they do for a broker, and
the remote segments of the other history count for nothing, if they lie where the log dir has its own. Everything else
that does not fit makes the partition a problem, which names both places.

Source: ``RemoteLogManager.isRemoteSegmentWithinLeaderEpochs``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import ResnapError, UsageError, VerificationError, in_file
from resnap.storage.layouts.lineage import Piece, first_batch, shared_batch
from resnap.storage.log.checkpoints import epochs_in, read_leader_epochs
from resnap.storage.log.log_dir import PartitionProblem
from resnap.storage.sources.files import cut_locator
from resnap.storage.threads import each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources


_MOST_NAMED: Final = 5
_LOST_HISTORY: Final = "one of them is of a history that was lost, as after an unclean election: take another replica"


class Joining(NamedTuple):
    """What one store holds of several log dirs, listed once."""

    url: str
    stored: LogDir
    sources: Sources
    known: Callable[[PartitionDir, int, int], Sequence[str]]
    """Returns the segments that brokers know of between two offsets of a partition."""


def with_remote(log_dir: LogDir, joining: Joining) -> LogDir:
    """Return ``log_dir`` with its partitions joined with what a store holds of them.

    A partition that cannot be joined becomes a problem; so does what of the store cannot be read.

    Raises:
        UsageError: another cluster tiered to it.

    """
    stored, remote = joining.stored, joining.url
    if stored.cluster_id is not None and log_dir.cluster_id not in {None, stored.cluster_id}:
        raise UsageError(
            f"{remote} holds segments of the cluster {stored.cluster_id}, {log_dir.path} is of {log_dir.cluster_id}",
            hint="give the store of the cluster that the log dir is of",
        )
    remote_parts = {one.topic_partition: one for one in stored.partitions}

    def join(partition: PartitionDir) -> PartitionDir | PartitionProblem:
        try:
            return _join(partition, remote_parts.get(partition.topic_partition), joining)
        except ResnapError as error:
            return PartitionProblem(path=partition.path, error=error, topic_partition=partition.topic_partition)

    joined = list(each(join, log_dir.partitions, remote=True))
    problems = [one for one in joined if isinstance(one, PartitionProblem)]
    return replace(
        log_dir,
        partitions=tuple(one for one in joined if not isinstance(one, PartitionProblem)),
        problems=(*log_dir.problems, *problems),
        remote=remote,
    )


def _join(local: PartitionDir, remote: PartitionDir | None, joining: Joining) -> PartitionDir:
    """Return both parts as one log.

    Raises:
        VerificationError: they are not of one log, or offsets are missing between them.

    """
    if not local.segments:
        return local
    begins = local.segments[0].base_offset
    below = [] if remote is None else [one for one in remote.segments if one.base_offset < begins]
    reached = _end(below[-1]) if below else min(local.log_start_offset, begins)
    if remote is not None:
        _check_topic(local, remote)
        _check_same_log(local, remote, joining.sources)
    if reached < begins:
        known = joining.known(local, reached, begins)
        named = f"; brokers know the segments {', '.join(known[:_MOST_NAMED])} of them" if known else ""
        raise VerificationError(
            f"{local.path} begins at offset {begins}, and what {joining.url} holds of it ends at {reached}: the offsets"
            f" between are missing{named}",
            hint="give the store that the cluster tiers to, with its --key-prefix; what is lost there is in no replica",
        )
    if remote is None or not below:
        return local
    if reached > begins:
        below[-1] = _cut_off(below[-1], begins, joining.sources)
    return replace(
        local,
        segments=(*below, *local.segments),
        snapshots=(*(one for one in remote.snapshots if one.offset <= begins), *local.snapshots),
        local_from=begins,
    )


def _check_topic(local: PartitionDir, remote: PartitionDir) -> None:
    if None not in (local.topic_id, remote.topic_id) and local.topic_id != remote.topic_id:
        raise VerificationError(
            f"{remote.path} is of the topic with id {remote.topic_id}, {local.path} of {local.topic_id}",
            hint="the topic was deleted and created again, or the store is that of another cluster",
        )


def _check_same_log(local: PartitionDir, remote: PartitionDir, sources: Sources) -> None:
    """Refuse parts that differ below the log dir's own segments, or in bytes under the same leader epochs.

    Raises:
        VerificationError: they do.
        FormatError, LogDirError, StoreError: a file that would show it cannot be read.

    """
    begins = local.segments[0].base_offset
    ours, theirs = (_leader_epochs(one, sources) for one in (local, remote))
    lowest = max((epochs[0].start_offset for epochs in (ours, theirs) if epochs), default=begins)
    start = max(lowest, remote.segments[0].base_offset)
    if ours and theirs and start < begins and epochs_in(ours, start, begins) != epochs_in(theirs, start, begins):
        raise VerificationError(
            f"{local.path} and {remote.path} have different leader epochs between the offsets {start} and {begins}",
            hint=_LOST_HISTORY,
        )
    if remote.segments[0].base_offset < begins:
        below, above = epochs_in(theirs, begins - 1, begins), epochs_in(ours, begins, begins + 1)
        if below and above and below[-1].epoch > above[0].epoch:
            raise VerificationError(
                f"{local.path} begins at offset {begins} under leader epoch {above[0].epoch}, and what lies below it in"
                f" {remote.path} is of leader epoch {below[-1].epoch}, a later one",
                hint=_LOST_HISTORY,
            )
    shared = shared_batch(_pieces(local.segments, sources), _pieces(remote.segments, sources))
    if shared is None or shared.is_same:
        return
    at = [epochs_in(epochs, shared.offset, shared.offset + 1) for epochs in (ours, theirs)]
    if not all(at) or at[0] == at[1]:
        raise VerificationError(
            f"{local.path} and {remote.path} have different batches at offset {shared.offset}, and their leader epochs "
            "do not show which of them is right",
            hint="the store may be that of another cluster or topic of this name; else take another replica",
        )


def _leader_epochs(partition: PartitionDir, sources: Sources) -> tuple[LeaderEpoch, ...]:
    if partition.leader_epochs is None:
        return ()
    with in_file(partition.leader_epochs):
        return read_leader_epochs(sources.read(partition.leader_epochs))


def _pieces(segments: Sequence[Segment], sources: Sources) -> list[Piece]:
    return [_piece(segment, sources) for segment in segments]


def _piece(segment: Segment, sources: Sources) -> Piece:
    def opened(range_bytes: int) -> AbstractContextManager[RangeReader]:
        return replace(sources, range_bytes=range_bytes, ranges_in_flight=1).open(segment.path)

    return Piece(segment.base_offset, segment.next_base_offset, opened)


def _cut_off(segment: Segment, end: int, sources: Sources) -> Segment:
    """Return ``segment`` up to the offset ``end``, at which another one begins."""
    size, _ = first_batch(_piece(segment, sources), end)
    return replace(segment, path=cut_locator(segment.path, size), size_bytes=size, next_base_offset=end)


def _end(segment: Segment) -> int:
    if segment.next_base_offset is None:
        raise VerificationError(
            f"{segment.path} is the last segment of a copy of a log dir, and not of remote storage",
            hint="give what brokers or `resnap tier` have shipped",
        )
    return segment.next_base_offset
