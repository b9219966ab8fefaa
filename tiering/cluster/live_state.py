"""Asks a running cluster for its state: the offsets of all groups, and what its metadata say.

Brokers tell neither SCRAM credentials nor passwords in the configuration.

Source: ``GroupCoordinatorService.partitionFor``; ``ListGroups``, ``OffsetFetch``, ``DescribeAcls``,
``DescribeClientQuotas``, ``DescribeConfigs``, ``DescribeQuorum`` of ``clients/src/main/resources/common/message``.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.errors import ClusterError
from resnap.storage.log.names import CLUSTER_METADATA_TOPIC, TopicPartition
from resnap.storage.messages.wire import uuid_text
from resnap.storage.words import first_of
from resnap.tiering.cluster.broker_settings import describe_client_quotas, hidden_topics
from resnap.tiering.cluster.client import error_name
from resnap.tiering.cluster.facts import topic_id_of
from resnap.tiering.cluster_state.group_offsets import OFFSETS_TOPIC, CommittedOffset, OffsetsPartition
from resnap.tiering.cluster_state.state import ClusterState, KnownMetadata, KnownTopic
from resnap.tiering.controller.metadata.image import ALL_BROKERS, ConfigResource, ResourceType
from resnap.tiering.controller.metadata.records import AccessControlEntryRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from resnap.tiering.cluster.client import Cluster

_ANY: Final = 1
"""In a filter of access control entries: of whatever type, operation or permission."""
_NO_AUTHORIZER: Final = 54
"""``SECURITY_DISABLED``."""
_OF: Final = {ResourceType.TOPIC: 1, ResourceType.BROKER: 2, ResourceType.CLIENT_METRICS: 7, ResourceType.GROUP: 8}
"""Where a setting comes from that was set for a resource of this type itself (``DescribeConfigsResponse``)."""
_OF_ALL_BROKERS: Final = 3
_RIGHTS: Final = (
    "the user of --command-config needs DESCRIBE and DESCRIBE_CONFIGS of the cluster, its topics and groups"
)
_AT_ONCE: Final = 500
"""Resources or groups in one request."""


def ask_cluster_state(cluster: Cluster, *, taken_ms: int) -> tuple[ClusterState, tuple[ClusterError, ...]]:
    """Return the state of a running cluster, without any secret, and what of it is not known.

    The latter is of partitions of ``__consumer_offsets`` without a leader, whose groups are missing in the state.

    Raises:
        ClusterError: it does not answer, refuses a request, or has no id.

    """
    cluster_id = cluster.cluster_id()
    if cluster_id is None:
        raise ClusterError("brokers give no cluster id, which names an export", hint="those of Apache Kafka give one")
    topics = cluster.describe_topics()
    if hidden := hidden_topics(cluster, [topic["name"] for topic in topics]):
        # Restored, such an export would leave out their settings, and what groups have read of them.
        names = first_of(sorted(hidden), 5)
        raise ClusterError(f"the user may not describe {names}: {hidden[min(hidden)]}", hint=_RIGHTS)
    # Before what is as of then: an object that is read later knows more.
    offset = _metadata_offset(cluster)
    partitions = next((topic["partitions"] for topic in topics if topic["name"] == OFFSETS_TOPIC), ())
    state = ClusterState(
        cluster_id=cluster_id,
        node_id=None,
        taken_ms=taken_ms,
        metadata=_metadata(cluster, offset, topics),
        offsets=_group_offsets(cluster, partitions),
    )
    lost = (partition["partition_index"] for partition in _led(partitions, led=False))
    faults = (ClusterError(f"{OFFSETS_TOPIC}-{number} has no leader: its groups are not exported") for number in lost)
    return state, tuple(faults)


def _metadata_offset(cluster: Cluster) -> int:
    """Return the offset of the last record of the metadata log; 0 of a cluster with ZooKeeper, which has none.

    The library's ``describe_metadata_quorum`` fails on the first versions of the response, of brokers before 3.9.
    """
    from kafka.errors import UnsupportedVersionError
    from kafka.protocol.admin import DescribeQuorumRequest as Request

    what = "cannot describe the metadata quorum"
    try:
        answer = cluster.ask(what, Request(topics=[(CLUSTER_METADATA_TOPIC, [(0,)])]))
    except ClusterError as error:
        if isinstance(error.__cause__, UnsupportedVersionError):
            return 0
        raise
    _check(what, answer.error_code)
    return int(answer.topics[0].partitions[0].high_watermark) - 1


def _group_offsets(cluster: Cluster, partitions: Collection[Mapping[str, Any]]) -> tuple[OffsetsPartition, ...]:
    """Return the committed offsets, and the names of share groups, by partition of ``__consumer_offsets``."""
    import kafka
    from kafka.admin import OffsetSpec

    found: dict[int, dict[str, dict[TopicPartition, CommittedOffset]]] = {
        partition["partition_index"]: {} for partition in _led(partitions)
    }
    with cluster.admin("cannot read the offsets of consumer groups") as admin:
        places = {kafka.TopicPartition(OFFSETS_TOPIC, number): number for number in found}
        ends = admin.list_partition_offsets(dict.fromkeys(places, OffsetSpec.LATEST)) if places else {}
        listed = {group["group_id"]: group for group in admin.list_groups()}
        share = sorted(name for name, group in listed.items() if group.get("group_type") == "share")
        for names in _chunks(sorted(listed.keys() - set(share))):
            for group, offsets in _offsets_of(admin, names):
                committed = {
                    TopicPartition(of.topic, of.partition): CommittedOffset(
                        offset.offset, -1 if offset.leader_epoch is None else offset.leader_epoch, offset.metadata or ""
                    )
                    for of, offset in offsets.items()
                    if offset.offset >= 0
                }
                if committed:
                    found.setdefault(offsets_partition(group, len(partitions)), {})[group] = committed
    return tuple(
        OffsetsPartition(
            partition=number,
            end_offset=ends[place].offset,
            groups=found[number],
            share_groups=tuple(name for name in share if offsets_partition(name, len(partitions)) == number),
        )
        for place, number in places.items()
    )


def _offsets_of(admin: Any, groups: list[str]) -> Iterator[tuple[str, Mapping[Any, Any]]]:  # noqa: ANN401 - the library's
    """Yield the offsets of each group; brokers before 3.0 answer for one group a request."""
    from kafka.errors import UnsupportedVersionError

    try:
        yield from admin.list_group_offsets(groups).items()
    except UnsupportedVersionError:
        for group in groups:
            yield from admin.list_group_offsets(group).items()


def offsets_partition(group: str, partitions: int) -> int:
    """Return which of the ``partitions`` of ``__consumer_offsets`` has the offsets of ``group``: by Java's hash."""
    code = 0
    units = group.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def _led(partitions: Iterable[Mapping[str, Any]], *, led: bool = True) -> Iterator[Mapping[str, Any]]:
    return (partition for partition in partitions if (partition["leader_id"] >= 0) is led)


def _metadata(cluster: Cluster, offset: int, topics: Collection[Mapping[str, Any]]) -> KnownMetadata:
    ids = {topic["name"]: topic_id_of(topic.get("topic_id")) for topic in topics}
    configs, left_out = _configs(cluster, [topic["name"] for topic in topics])
    with cluster.admin("cannot describe SCRAM credentials") as admin:
        described = admin.describe_user_scram_credentials()
    users = [(user, int(info["mechanism"])) for user, of in described.items() for info in of["credential_infos"]]
    return KnownMetadata(
        offset=offset,
        topics={
            topic["name"]: KnownTopic(topic_id=topic_id, partitions=len(topic["partitions"]))
            for topic in topics
            if (topic_id := ids[topic["name"]]) is not None
        },
        configs=configs,
        quotas=describe_client_quotas(cluster, _RIGHTS),
        access_control_entries=tuple(_access_control_entries(cluster)),
        secrets_left_out=left_out + len(users),
        scram_left_out=tuple(users),
    )


def _configs(cluster: Cluster, topics: Collection[str]) -> tuple[dict[ConfigResource, dict[str, str]], int]:
    """Return what was set for topics, brokers, groups and clients' metrics, and how many secrets brokers keep back."""
    from kafka.protocol.admin import DescribeConfigsRequest as Request

    found: dict[ConfigResource, dict[str, str]] = {}
    left_out = 0
    brokers = cluster.broker_ids()
    asked: list[tuple[list[ConfigResource], int | None]] = [
        ([ConfigResource(ResourceType.BROKER, str(broker_id))], broker_id) for broker_id in brokers
    ]
    others = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    others += [*_other_resources(cluster), ALL_BROKERS]
    asked += [(resources, None) for resources in _chunks(others)]
    for resources, broker_id in asked:
        what = "cannot describe the configuration"
        request = Request(resources=[(resource.type, resource.name, None) for resource in resources])
        for result in cluster.ask(what, request, broker_id).results:
            resource = ConfigResource(result.resource_type, result.resource_name)
            _check(f"{what} of {resource.name}", result.error_code)
            wanted = _OF_ALL_BROKERS if resource == ALL_BROKERS else _OF[ResourceType(resource.type)]
            own = [setting for setting in result.configs if setting.config_source == wanted]
            left_out += sum(setting.is_sensitive for setting in own)
            shown = {setting.name: setting.value for setting in own if setting.value is not None}
            if shown:
                found[resource] = shown
    return found, left_out


def _other_resources(cluster: Cluster) -> Iterator[ConfigResource]:
    """Yield the groups and clients' metrics with settings, where brokers list them (4.1; metrics alone from 3.7 on)."""
    from kafka.errors import UnsupportedVersionError

    with cluster.admin("cannot list what is configured") as admin, suppress(UnsupportedVersionError):
        listed = admin.list_config_resources()
        for kind in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
            yield from (ConfigResource(kind, name) for name in listed.get(kind.name.lower(), ()))


def _access_control_entries(cluster: Cluster) -> Iterator[AccessControlEntryRecord]:
    """Yield all entries, each with an id from what it says; none of a cluster without an authorizer."""
    from kafka.protocol.admin import DescribeAclsRequest as Request

    what = "cannot describe access control entries"
    request = Request(
        resource_type_filter=_ANY, resource_name_filter=None, pattern_type_filter=_ANY, principal_filter=None,
        host_filter=None, operation=_ANY, permission_type=_ANY,
    )  # fmt: skip
    answer = cluster.ask(what, request)
    if answer.error_code == _NO_AUTHORIZER:
        return
    _check(what, answer.error_code)
    for resource in answer.resources:
        for entry in resource.acls:
            said = {
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "pattern_type": resource.pattern_type,
                "principal": entry.principal,
                "host": entry.host,
                "operation": entry.operation,
                "permission_type": entry.permission_type,
            }
            digest = hashlib.sha256(repr(sorted(said.items())).encode()).digest()
            yield AccessControlEntryRecord(id=uuid_text(digest[:16]), **said)


def _check(what: str, error_code: int) -> None:
    if error_code:
        raise ClusterError(f"{what}: {error_name(error_code)}", hint=_RIGHTS)


def _chunks(items: list[Any]) -> Iterator[list[Any]]:
    return (items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE))
