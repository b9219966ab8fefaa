"""Reads the state of a cluster from a node's log dirs, and from the metadata log that is in one or beside them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FileGoneError, ResnapError, UsageError
from resnap.storage.log.internal_topic import partitions_of
from resnap.storage.log.log_dir import load_log_dir, load_partition_dir
from resnap.tiering.cluster_state.group_offsets import OFFSETS_TOPIC, read_group_offsets
from resnap.tiering.cluster_state.state import ClusterState, metadata_of
from resnap.tiering.controller.metadata.folding import load_current_image

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.tiering.cluster_state.group_offsets import OffsetsPartition

_READ_ATTEMPTS: Final = 5
"""Compaction deletes segments of a partition once in minutes at most."""


def read_cluster_state(
    log_dirs: Sequence[Path], metadata_log: Path | None, *, taken_ms: int, is_secret: Callable[[str], bool] | None
) -> tuple[ClusterState, tuple[ResnapError, ...]]:
    """Return the state of the cluster that ``log_dirs`` are of, as far as their node knows it, and what is not read.

    The latter is of partitions of ``__consumer_offsets``, whose groups are missing in the state. ``is_secret`` says
    which settings are left out (``metadata_of``).

    Raises:
        UsageError: they are not the log dirs of one node.
        MetadataLogError, FormatError, LogDirError: the metadata log cannot be read.

    """
    listed = [load_log_dir(path, topics=lambda one: one.topic == OFFSETS_TOPIC) for path in log_dirs]
    cluster_id, node_id = _node(listed)
    offsets: list[OffsetsPartition] = []
    faults = [problem.error for log_dir in listed for problem in log_dir.problems]
    for partition in partitions_of(OFFSETS_TOPIC, listed).values():
        try:
            offsets.append(read_current_offsets(partition))
        except ResnapError as error:
            faults.append(error)
    metadata = None
    if metadata_log is not None:
        metadata = metadata_of(load_current_image(metadata_log), is_secret)
    state = ClusterState(
        cluster_id=cluster_id, node_id=node_id, taken_ms=taken_ms, metadata=metadata, offsets=tuple(offsets)
    )
    return state, tuple(faults)


def _node(log_dirs: Sequence[LogDir]) -> tuple[str, int]:
    """Return the cluster and the node that ``log_dirs`` are of."""
    nodes = {(log_dir.cluster_id, log_dir.broker_id) for log_dir in log_dirs}
    cluster_id, node_id = nodes.pop() if len(nodes) == 1 else (None, None)
    if cluster_id is None or node_id is None:
        raise UsageError(
            f"{', '.join(str(log_dir.path) for log_dir in log_dirs)}: the cluster and the node that they are of are not"
            " known, or not the same",
            hint="give the log dirs of one node, with their meta.properties",
        )
    return cluster_id, node_id


def read_current_offsets(partition: PartitionDir) -> OffsetsPartition:
    """Return the committed offsets of a partition, listing it again if compaction has deleted a segment.

    Raises as ``read_group_offsets`` does.
    """
    for _ in range(_READ_ATTEMPTS - 1):
        with suppress(FileGoneError):
            return read_group_offsets(partition)
        partition = load_partition_dir(Path(str(partition.path)))
    return read_group_offsets(partition)
