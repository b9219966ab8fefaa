"""The settings of running brokers, their releases, the sizes of their replicas, and client quotas.

To DescribeConfigs a broker returns the effective values, defaults included. Settings that its release does not have are
missing, and so are internal ones that were not set.

To ApiVersions it names the levels of ``metadata.version`` that it supports; the newest shows its line of releases, and
not the patch release. Brokers before 3.3, and those whose levels are newer than the known ones, show nothing.

Source: ``ConfigHelper``, ``DescribeConfigsResponse.ConfigSource``, ``ClientQuotaControlManager``;
``ApiVersionsResponse``, ``BrokerFeatures``; ``DescribeLogDirsResponse``.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.errors import ClusterError
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.client import error_name
from resnap.tiering.controller.expiration import Level
from resnap.tiering.controller.metadata.image import METADATA_VERSION, ResourceType, release_of_level

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from resnap.storage.kafka_release import Release
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.controller.metadata.image import QuotaEntity

_LEVELS: Final = {2: Level.BROKER, 3: Level.ALL_BROKERS, 4: Level.STATIC, 5: Level.DEFAULT}
"""The levels of the sources that a broker names."""
_HINT: Final = "grant the user DescribeConfigs on the Cluster resource, or give the brokers' values with flags"
_HINT_FOR_QUOTAS: Final = "grant the user DescribeConfigs on the Cluster resource"
_CLIENT: Final = {"client_software_name": "resnap", "client_software_version": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedBroker:
    """The current settings of one broker."""

    broker_id: int
    values: Mapping[str, str] = field(default_factory=dict)
    """In force, by name; without those that the broker does not have."""
    levels: Mapping[str, Level] = field(default_factory=dict)
    """Where each comes from."""
    error: str | None = None
    """Why it does not say, where it does not."""


def describe_brokers(cluster: Cluster, names: Collection[str]) -> list[DescribedBroker]:
    """Return the settings ``names`` of each running broker, by broker id.

    Raises:
        ClusterError: the cluster does not list its brokers.

    """
    return [_of_broker(cluster, broker_id, names) for broker_id in cluster.broker_ids()]


def describe_client_quotas(cluster: Cluster, hint: str = _HINT_FOR_QUOTAS) -> dict[QuotaEntity, dict[str, float]]:
    """Return all client quotas, key and value by entity; ``hint`` is what to do where they are refused.

    Raises:
        ClusterError: the cluster does not answer, is too old for the request (2.6 has it), or refuses it.

    """
    from kafka.protocol.admin.client_quotas import DescribeClientQuotasRequest as Request

    what = "cannot describe the quotas"
    answer = cluster.ask(what, Request(components=[], strict=False))
    if answer.error_code:
        raise ClusterError(f"{what}: {error_name(answer.error_code)}", hint=hint)
    return {
        tuple(sorted(((part.entity_type, part.entity_name) for part in entry.entity), key=itemgetter(0))): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries or ()
    }


def log_sizes(cluster: Cluster, broker_id: int, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the sizes of a broker's logs of ``partitions``, without those that are on their way to another disk.

    Raises:
        ClusterError: it does not answer, or refuses.

    """
    what = f"cannot get the log sizes of broker {broker_id}"
    answer = _describe_log_dirs(cluster, what, broker_id, partitions)
    refused = next((result.error_code for result in answer.results if result.error_code), answer.error_code or 0)
    if refused:
        raise ClusterError(f"{what}: {error_name(refused)}", hint="grant the user Describe on the Cluster resource")
    return _sizes(answer)


def local_log_bytes(cluster: Cluster, of: TopicPartition, broker_id: int) -> int | None:
    """Return the size of a replica on a broker's disks; None where the broker does not say."""
    with suppress(ClusterError):
        return _sizes(_describe_log_dirs(cluster, f"{of}: cannot get the size of the log", broker_id, [of])).get(of)
    return None


def hidden_topics(cluster: Cluster, listed: Collection[str]) -> dict[str, str]:
    """Return the topics beside those ``listed`` that the user may not describe, with the error, as log dirs have them.

    Brokers leave such topics out wherever they list topics, but list their logs to who may describe the cluster.
    Brokers that do not answer are passed over.

    Raises:
        ClusterError: the cluster does not list its brokers, or does not answer for a topic.

    """
    from kafka.protocol.admin.cluster import DescribeLogDirsRequest as Request

    found: set[str] = set()
    for broker_id in cluster.broker_ids():
        with suppress(ClusterError):
            answer = cluster.ask(f"cannot list the logs of broker {broker_id}", Request(topics=None), broker_id)
            found |= {topic.name for result in answer.results for topic in result.topics}
    return cluster.hidden(found - set(listed))


def _describe_log_dirs(cluster: Cluster, what: str, broker_id: int, partitions: Iterable[TopicPartition]) -> Any:  # noqa: ANN401
    from kafka.protocol.admin.cluster import DescribeLogDirsRequest as Request

    numbers: dict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        numbers[partition.topic].append(partition.partition)
    topics = [Request.DescribableLogDirTopic(topic=topic, partitions=found) for topic, found in numbers.items()]
    return cluster.ask(what, Request(topics=topics), broker_id)


def _sizes(answer: Any) -> dict[TopicPartition, int]:  # noqa: ANN401 - messages of the library
    return {
        TopicPartition(topic.name, partition.partition_index): partition.partition_size
        for result in answer.results
        for topic in result.topics
        for partition in topic.partitions
        if not partition.is_future_key
    }


def _of_broker(cluster: Cluster, broker_id: int, names: Collection[str]) -> DescribedBroker:
    from kafka.protocol.admin.configs import DescribeConfigsRequest as Request

    resource = Request.DescribeConfigsResource(
        resource_type=ResourceType.BROKER, resource_name=str(broker_id), configuration_keys=list(names)
    )
    try:
        answer = cluster.ask(
            f"broker {broker_id} does not report its settings", Request(resources=[resource]), broker_id
        )
    except ClusterError as error:
        return DescribedBroker(broker_id=broker_id, error=str(error))
    (result,) = answer.results
    if result.error_code:
        why = f"broker {broker_id} does not report its settings: {error_name(result.error_code)}; {_HINT}"
        return DescribedBroker(broker_id=broker_id, error=why)
    known = [config for config in result.configs if config.value is not None]
    return DescribedBroker(
        broker_id=broker_id,
        values={entry.name: entry.value for entry in known},
        levels={entry.name: _LEVELS.get(entry.config_source, Level.DEFAULT) for entry in known},
    )


def describe_releases(cluster: Cluster) -> dict[int, Release | None]:
    """Return the line of releases of each running broker, by broker id; None where it does not show.

    Raises:
        ClusterError: the cluster does not list its brokers.

    """
    return {broker_id: _release(cluster, broker_id) for broker_id in cluster.broker_ids()}


def _release(cluster: Cluster, broker_id: int) -> Release | None:
    from kafka.protocol.metadata.api_versions import ApiVersionsRequest as Request

    try:
        answer = cluster.ask(f"broker {broker_id} does not show its release", Request(**_CLIENT), broker_id)
    except ClusterError:
        return None
    levels = {feature.name: feature.max_version for feature in answer.supported_features or ()}
    return release_of_level(levels.get(METADATA_VERSION))
