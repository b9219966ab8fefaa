"""Checks the log dir to restore into: which cluster owns it, and which partitions fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from resnap.storage.disk import is_there, readable
from resnap.storage.errors import UsageError
from resnap.storage.log.checkpoints import read_offset_checkpoint
from resnap.storage.log.log_dir import CLEAN_SHUTDOWN, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, load_log_dir
from resnap.storage.log.partition_dir import read_small

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.restoring.restoration import Restoration

_OF_A_START: Final = (CLEAN_SHUTDOWN, HIGH_WATERMARKS, RECOVERY_POINTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The log dir to restore into, as it was found."""

    path: Path
    there: LogDir
    log_starts: Mapping[TopicPartition, int]
    """Those that were used before."""
    begins_cluster: bool
    """Whether it is of a new cluster, into which the logs of any other may come."""

    @classmethod
    def at(cls, path: Path, *, new_cluster: bool) -> Self:
        """Return the log dir at ``path``; with ``new_cluster`` it must belong to a new cluster.

        Raises:
            UsageError: it must belong to a new cluster, but was not formatted, or a broker was started on it.
            LogDirError: it cannot be read.

        """
        there = load_log_dir(path, topics=lambda _: False)
        with readable(path):
            log_starts = read_small(path / LOG_START_OFFSETS, read_offset_checkpoint) or {}
        if new_cluster and not there.is_kraft:
            raise UsageError(f"{path} is not a formatted log dir, so its cluster is not known",
                             hint="kafka-storage.sh format, with the id of the new cluster")  # fmt: skip
        if new_cluster and any(is_there(path / name) for name in _OF_A_START):
            raise UsageError(f"{path} is not the log dir of a new cluster: a broker was started on it",
                             hint="format an empty directory; without --brokers, --assignment and --new-cluster"
                             " `restore` works in the log dirs of the same cluster")  # fmt: skip
        return cls(path=path, there=there, log_starts=log_starts, begins_cluster=new_cluster)

    def check(self, one: Restoration) -> None:
        """Check that ``one`` may be restored here.

        Raises:
            UsageError: a broker would not serve it, or would damage it.

        """
        if not self.begins_cluster and None not in (one.cluster_id, self.there.cluster_id):
            self._refuse_other_cluster(one)
        if one.topic_id is None and self.there.is_kraft:
            raise without_topic_id(one)
        self._refuse_ended_below(one)

    def is_of_cluster_of(self, one: Restoration) -> bool:
        """Whether the log dir is known to be of the cluster that ``one`` was shipped from."""
        return one.cluster_id is not None and one.cluster_id == self.there.cluster_id

    def _refuse_other_cluster(self, one: Restoration) -> None:
        if one.cluster_id != self.there.cluster_id:
            raise UsageError(
                f"{one.topic_partition} is of cluster {one.cluster_id}, and {self.path} of {self.there.cluster_id}",
                hint="give a log dir of the same cluster, or a new directory; --brokers if a new cluster is to begin",
            )

    def _refuse_ended_below(self, one: Restoration) -> None:
        """Refuse a log that ends below the log dir's checkpointed log start: a starting broker would empty it."""
        log_start = self.log_starts.get(one.topic_partition)
        if log_start is not None and log_start > one.end_offset:
            raise UsageError(
                f"{one.topic_partition} ends at {one.end_offset}, below its log start {log_start} in"
                f" {self.path / LOG_START_OFFSETS}: a broker would delete all of it",
                hint="take the line of the partition out of that file, or restore into a new directory",
            )


def without_topic_id(one: Restoration) -> UsageError:
    """Return the error for a partition that a KRaft broker would set aside, and replace with an empty log.

    With ZooKeeper it gives the id itself. Source: ``LogManager.isStrayKraftReplica``; seen with 3.9.1 and 4.1.1.
    """
    topic = one.topic_partition.topic
    return UsageError(
        f"{one.topic_partition}: the id of its topic is not known, since it was not when the partition was shipped:"
        " without ZooKeeper a broker sets such a directory aside as stray, and begins an empty log",
        hint=f"give --topic-id {topic}=ID; `kafka-topics.sh --describe` and `resnap controller image` show it",
    )
