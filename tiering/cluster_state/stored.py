"""Reads the state of a cluster from a node's log dirs, and keeps states in a store.

There is one object for each moment and node, which is never overwritten:

    .resnap/cluster/<cluster id>/<moment>-<node id>.json
    .resnap/cluster/<cluster id>/<moment>-cluster.json

The second is what the running cluster itself has told. The moment is in UTC, so that keys are in the order of time.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FileGoneError, ObjectNotFoundError, ResnapError, UsageError, in_file
from resnap.storage.log.internal_topic import partitions_of
from resnap.storage.log.log_dir import load_log_dir, load_partition_dir
from resnap.storage.stores.protocol import key_part
from resnap.tiering.cluster_state.group_offsets import OFFSETS_TOPIC, read_group_offsets
from resnap.tiering.cluster_state.state import ClusterState, metadata_of, read_state
from resnap.tiering.controller.metadata.folding import load_current_image

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.stores.protocol import ObjectStore
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


FOLDER: Final = ".resnap/cluster/"
ASKED: Final = "cluster"
"""In the place of a node, if the running cluster was asked."""
_KEY: Final = re.compile(
    rf"{re.escape(FOLDER)}(?P<cluster>[^/]+)/(?P<moment>\d{{8}}T\d{{9}}Z)-(?P<node>\d+|{ASKED})\.json"
)


def state_key(state: ClusterState) -> str:
    """Return the key of ``state``."""
    at = datetime.fromtimestamp(state.taken_ms // 1000, UTC)
    moment = f"{at:%Y%m%dT%H%M%S}{state.taken_ms % 1000:03d}Z"
    return f"{FOLDER}{key_part(state.cluster_id)}/{moment}-{ASKED if state.node_id is None else state.node_id}.json"


def keep_state(store: ObjectStore, key: str, document: bytes) -> None:
    """Write the document of a state to its key.

    Raises:
        ObjectExistsError: there is one of this moment and node.
        StoreError: the store failed.

    """
    store.put(key, document, if_absent=True)


def delete_older(store: ObjectStore, newest: str, keep: int) -> int:
    """Delete the states of the node of ``newest`` but the last ``keep``, and return how many.

    Raises:
        StoreError: the store failed.

    """
    folder, _, name = newest.rpartition("/")
    node = name.rpartition("-")[2]
    keys = [info.key for info in store.list(f"{folder}/") if _KEY.fullmatch(info.key) and info.key.endswith(f"-{node}")]
    older = sorted(keys)[:-keep]
    for key in older:
        store.delete(key)
    return len(older)


def newest_states(store: ObjectStore, cluster_ids: Collection[str]) -> list[tuple[str, ClusterState]]:
    """Return the keys and content of the last state of each node of one of ``cluster_ids``; of any, if none is given.

    Raises:
        UsageError: there are some of several clusters.
        FormatError: one is damaged.
        StoreError: the store failed.

    """
    parts = {key_part(cluster_id) for cluster_id in cluster_ids}
    matches = [match for info in store.list(FOLDER) if (match := _KEY.fullmatch(info.key)) is not None]
    found = [match for match in matches if not parts or match["cluster"] in parts]
    clusters = sorted({match["cluster"] for match in found})
    if len(clusters) > 1:
        raise UsageError(
            f"{store.url} has states of the clusters {', '.join(clusters)}",
            hint=f"name one with --cluster-state, such as {found[-1][0]}",
        )
    newest = {match["node"]: match[0] for match in found}  # in the order of their moments
    return [(key, _read(store, key)) for key in newest.values()]


def named_state(store: ObjectStore, key: str) -> ClusterState:
    """Return the state under ``key``.

    Raises:
        UsageError: it is not the key of a state, or there is none.
        FormatError: it is damaged.
        StoreError: the store failed.

    """
    with suppress(ObjectNotFoundError):
        if _KEY.fullmatch(key):
            return _read(store, key)
    raise UsageError(
        f"--cluster-state {key}: {store.url} has no such state of a cluster",
        hint=f"give a key as `resnap export` prints it: {FOLDER}CLUSTER-ID/MOMENT-NODE-ID.json",
    )


def _read(store: ObjectStore, key: str) -> ClusterState:
    with in_file(f"{store.url}/{key}"):
        return read_state(store.get(key))
