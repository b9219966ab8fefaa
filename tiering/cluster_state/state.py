"""The state of a cluster at a moment: read from a node's log dirs, as a JSON document, and in a store.

The document holds what the records do not.

A document is what one node knows: of ``__consumer_offsets`` a broker has the partitions that it is a replica of. So
the state of a cluster is taken from the documents of all nodes (``merge_documents``): the metadata of the one that has
read most of the metadata log, of equal ones the one with more secrets, and each partition of committed offsets from the
one with its highest end offset. A running cluster tells all of it but secrets, in one document. It names the users with
SCRAM credentials: theirs are taken from other documents, so that a removed user does not come back.

Passwords in the configuration, and SCRAM credentials, are in a document only if that was asked for. Records have the
form that Kafka's tools give them. A CRC-32C covers it all: with a changed digit consumers would go on elsewhere.

In a store there is one object for each moment and node, which is never overwritten:

    .resnap/cluster/<cluster id>/<moment>-<node id>.json
    .resnap/cluster/<cluster id>/<moment>-cluster.json

The second is what the running cluster itself has told. The moment is in UTC, so that keys are in the order of time.
"""

from __future__ import annotations

import base64
import json
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from resnap.storage.errors import (
    FileGoneError,
    FormatError,
    ObjectNotFoundError,
    ResnapError,
    UsageError,
    in_file,
    parser_says,
)
from resnap.storage.json_values import json_checksum, typed
from resnap.storage.log.internal_topic import partitions_of
from resnap.storage.log.log_dir import load_log_dir, load_partition_dir
from resnap.storage.log.names import TopicPartition
from resnap.storage.messages.schema import message_json, schema_of
from resnap.storage.messages.wire import Octets
from resnap.storage.stores.protocol import key_part
from resnap.storage.words import first_of, some
from resnap.tiering.cluster_state.group_offsets import (
    OFFSETS_TOPIC,
    CommittedOffset,
    OffsetsPartition,
    read_group_offsets,
)
from resnap.tiering.controller.metadata.folding import load_image
from resnap.tiering.controller.metadata.image import ConfigResource
from resnap.tiering.controller.metadata.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    PartitionRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.cluster_state.group_offsets import GroupOffsets
    from resnap.tiering.controller.metadata.image import MetadataImage, QuotaEntity

_R = TypeVar("_R")
VERSION: Final = 1
_CHECKSUM: Final = "crc32c"
_OLDER: Final = "name an older one with --cluster-state; `resnap export` makes a new one, while the cluster is there"
RELIED_ON: Final = (
    TopicRecord, RemoveTopicRecord, PartitionRecord, ConfigRecord, ClientQuotaRecord, AccessControlEntryRecord,
    RemoveAccessControlEntryRecord, UserScramCredentialRecord, RemoveUserScramCredentialRecord,
)  # fmt: skip
"""Types of records of which none may be skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTopic:
    """A topic that the cluster has."""

    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMetadata:
    """What the metadata log says, as of ``offset``."""

    offset: int
    """The offset of the last record that was read; 0 if a cluster with ZooKeeper was asked."""
    topics: Mapping[str, KnownTopic]
    configs: Mapping[ConfigResource, Mapping[str, str]]
    quotas: Mapping[QuotaEntity, Mapping[str, float]]
    access_control_entries: tuple[AccessControlEntryRecord, ...]
    scram_credentials: tuple[UserScramCredentialRecord, ...] = ()
    secrets_left_out: int = 0
    """Credentials and passwords that are not in the document."""
    scram_left_out: tuple[tuple[str, int], ...] = ()
    """The user and the mechanism of each SCRAM credential that was left out; older documents do not have it."""
    scram_older: tuple[str, ...] = ()
    """Users whose credentials come from an older document; no document has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """What a node knows of its cluster, or all of them."""

    cluster_id: str
    node_id: int | None
    """None if the running cluster was asked."""
    taken_ms: int
    metadata: KnownMetadata | None
    """None if a node has no metadata log, as in a cluster with ZooKeeper."""
    offsets: tuple[OffsetsPartition, ...]
    """The offsets by partition of ``__consumer_offsets``."""

    @property
    def groups(self) -> GroupOffsets:
        """The committed offsets by group; a group is in one partition."""
        return {group: offsets for partition in self.offsets for group, offsets in partition.groups.items()}

    @property
    def share_groups(self) -> tuple[str, ...]:
        """The share groups, whose offsets are not kept."""
        return tuple(sorted(group for partition in self.offsets for group in partition.share_groups))

    @property
    def share_group_text(self) -> str:
        """In words, what is not kept of share groups, and of which."""
        groups = self.share_groups
        return f"the offsets of {some(len(groups), 'share group')} ({first_of(groups)})"


def metadata_of(image: MetadataImage, is_secret: Callable[[str], bool] | None) -> KnownMetadata:
    """Return what is kept of an image.

    ``is_secret`` says by the name of a setting whether its value is left out; so are credentials. None keeps all.

    Raises:
        MetadataVersionError: a record that belongs to it is of a version newer than this release.

    """
    image = image.relying_on(*RELIED_ON)
    shown = {
        resource: {name: value for name, value in values.items() if is_secret is None or not is_secret(name)}
        for resource, values in image.configs.items()
    }
    passwords = sum(len(values) for values in image.configs.values()) - sum(map(len, shown.values()))
    return KnownMetadata(
        offset=image.offset,
        topics={
            name: KnownTopic(topic_id=topic.topic_id, partitions=len(topic.partitions))
            for name, topic in image.topics.items()
        },
        configs={resource: values for resource, values in shown.items() if values},
        quotas=image.quotas,
        access_control_entries=image.access_control_entries,
        scram_credentials=image.scram_credentials if is_secret is None else (),
        secrets_left_out=0 if is_secret is None else passwords + len(image.scram_credentials),
        scram_left_out=() if is_secret is None else tuple(map(_user, image.scram_credentials)),
    )


def merge_documents(states: Sequence[ClusterState]) -> ClusterState:
    """Return the state of a cluster by the documents of its nodes, at least one."""
    newest = max(states, key=lambda state: state.taken_ms)
    metadata = [state.metadata for state in states if state.metadata is not None]
    partitions: dict[int, OffsetsPartition] = {}
    for state in sorted(states, key=lambda state: state.taken_ms):
        for partition in state.offsets:
            known = partitions.get(partition.partition)
            if known is None or known.end_offset <= partition.end_offset:
                partitions[partition.partition] = partition
    return replace(
        newest,
        metadata=_newest_metadata(metadata),
        offsets=tuple(partition for _, partition in sorted(partitions.items())),
    )


def _newest_metadata(known: Sequence[KnownMetadata]) -> KnownMetadata | None:
    """Return the newest metadata, with the credentials of its users that only other nodes have."""
    by_age = sorted(known, key=lambda one: (one.offset, -one.secrets_left_out))
    if not by_age:
        return None
    newest = by_age[-1]
    read = {_user(credential): credential for state in by_age for credential in state.scram_credentials}
    found = tuple(read[user] for user in newest.scram_left_out if user in read)
    return replace(
        newest,
        scram_credentials=newest.scram_credentials + found,
        secrets_left_out=newest.secrets_left_out - len(found),
        scram_left_out=tuple(user for user in newest.scram_left_out if user not in read),
        scram_older=tuple(dict.fromkeys(credential.name for credential in found)),
    )


def _user(credential: UserScramCredentialRecord) -> tuple[str, int]:
    return credential.name, credential.mechanism


def write_state(state: ClusterState) -> bytes:
    """Return the document of ``state``."""
    document: dict[str, object] = {
        "version": VERSION,
        "clusterId": state.cluster_id,
        "nodeId": state.node_id,
        "takenMs": state.taken_ms,
        "metadata": None if state.metadata is None else _metadata_json(state.metadata),
        "offsets": [
            {
                "partition": partition.partition,
                "endOffset": partition.end_offset,
                "groups": {group: _offsets_json(offsets) for group, offsets in partition.groups.items()},
                "shareGroups": list(partition.share_groups),
            }
            for partition in state.offsets
        ],
    }
    return _with_checksum(document)


def _with_checksum(document: Mapping[str, object]) -> bytes:
    return json.dumps({**document, _CHECKSUM: json_checksum(document)}, separators=(",", ":")).encode()


def _metadata_json(metadata: KnownMetadata) -> dict[str, object]:
    return {
        "offset": metadata.offset,
        "topics": {
            name: {"topicId": topic.topic_id, "partitions": topic.partitions} for name, topic in metadata.topics.items()
        },
        "configs": [
            {"type": resource.type, "name": resource.name, "values": dict(values)}
            for resource, values in metadata.configs.items()
        ],
        "quotas": [{"entity": list(entity), "values": dict(values)} for entity, values in metadata.quotas.items()],
        "accessControlEntries": [message_json(entry, 0) for entry in metadata.access_control_entries],
        "scramCredentials": [message_json(credential, 0) for credential in metadata.scram_credentials],
        "secretsLeftOut": metadata.secrets_left_out,
        "scramLeftOut": [list(user) for user in metadata.scram_left_out],
    }


def _offsets_json(offsets: Mapping[TopicPartition, CommittedOffset]) -> list[object]:
    return [
        [partition.topic, partition.partition, committed.offset, committed.leader_epoch, committed.metadata]
        for partition, committed in offsets.items()
    ]


def read_state(document: bytes) -> ClusterState:
    """Return the state in a document.

    Raises:
        FormatError: it has another form, is damaged, or has a version newer than this release.

    """
    try:
        found = json.loads(document)
        version = typed(int, found["version"])
        found.pop(_CHECKSUM, None)
        if version == VERSION and document == _with_checksum(found):  # JSON has more than one spelling of a value
            return _state(found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError("state of a cluster", position=0, expected="a document of `resnap export`",
                          found=parser_says(error), hint=_OLDER) from error  # fmt: skip
    if version != VERSION:
        raise FormatError("version of the state of a cluster", position=0, expected=VERSION, found=version)
    raise FormatError("state of a cluster", position=0, expected="what its checksum covers", found="something else",
                      hint=_OLDER)  # fmt: skip


def _state(found: Mapping[str, Any]) -> ClusterState:
    metadata = found["metadata"]
    return ClusterState(
        cluster_id=typed(str, found["clusterId"]),
        node_id=None if found["nodeId"] is None else typed(int, found["nodeId"]),
        taken_ms=typed(int, found["takenMs"]),
        metadata=None if metadata is None else _metadata(metadata),
        offsets=tuple(
            OffsetsPartition(
                partition=typed(int, partition["partition"]),
                end_offset=typed(int, partition["endOffset"]),
                groups={group: dict(map(_offset, offsets)) for group, offsets in partition["groups"].items()},
                share_groups=tuple(typed(str, group) for group in partition.get("shareGroups", ())),
            )
            for partition in found["offsets"]
        ),
    )


def _offset(values: Sequence[Any]) -> tuple[TopicPartition, CommittedOffset]:
    topic, partition, offset, leader_epoch, metadata = values
    return TopicPartition(typed(str, topic), typed(int, partition)), CommittedOffset(
        typed(int, offset), typed(int, leader_epoch), typed(str, metadata)
    )


def _metadata(found: Mapping[str, Any]) -> KnownMetadata:
    return KnownMetadata(
        offset=typed(int, found["offset"]),
        topics={
            name: KnownTopic(topic_id=typed(str, topic["topicId"]), partitions=typed(int, topic["partitions"]))
            for name, topic in found["topics"].items()
        },
        configs={
            ConfigResource(typed(int, resource["type"]), typed(str, resource["name"])): {
                name: typed(str, value) for name, value in resource["values"].items()
            }
            for resource in found["configs"]
        },
        quotas={
            tuple((typed(str, kind), name) for kind, name in quota["entity"]): {
                key: typed(float, value) for key, value in quota["values"].items()
            }
            for quota in found["quotas"]
        },
        access_control_entries=tuple(_record(AccessControlEntryRecord, one) for one in found["accessControlEntries"]),
        scram_credentials=tuple(_record(UserScramCredentialRecord, entry) for entry in found["scramCredentials"]),
        secrets_left_out=typed(int, found["secretsLeftOut"]),
        scram_left_out=tuple(
            (typed(str, user), typed(int, mechanism)) for user, mechanism in found.get("scramLeftOut", ())
        ),
    )


def _record(kind: type[_R], found: Mapping[str, Any]) -> _R:
    """Return a record that ``message_json`` has shown."""
    values = {field.name: (field.wire, found[field.json_name]) for field in schema_of(kind)}
    return kind(**{
        name: base64.b64decode(value, validate=True) if isinstance(wire, Octets) else value
        for name, (wire, value) in values.items()
    })  # fmt: skip


_READ_ATTEMPTS: Final = 5
"""Compaction deletes segments of a partition once in minutes at most."""


def read_cluster_state(
    log_dirs: Sequence[Path], metadata_log: Path | None, *, taken_ms: int, is_secret: Callable[[str], bool] | None
) -> tuple[ClusterState, tuple[ResnapError, ...]]:
    """Return the cluster's state as the node of ``log_dirs`` knows it, and the errors of what was not read.

    The errors are of partitions of ``__consumer_offsets``, whose groups are missing in the state. ``is_secret`` says
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
        metadata = metadata_of(load_image(metadata_log, is_current=True), is_secret)
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
