"""The releases of running brokers, as far as ApiVersions shows them, and the sizes of their replicas.

A broker names the levels of ``metadata.version`` that it supports; the newest shows its line of releases, and not the
patch release. Brokers before 3.3, and those whose levels are newer than the known ones, show nothing.

Source: ``ApiVersionsResponse``, ``BrokerFeatures``; ``DescribeLogDirsResponse``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.storage.errors import ClusterError
from resnap.tiering.controller.metadata.image import METADATA_VERSION, release_of_level

if TYPE_CHECKING:
    from resnap.storage.kafka_release import Release
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.cluster.client import Cluster

_CLIENT: Final = {"client_software_name": "resnap", "client_software_version": "1"}


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


def local_log_bytes(cluster: Cluster, of: TopicPartition, broker_id: int) -> int | None:
    """Return the size of a replica on a broker's disks; None where the broker does not say."""
    from kafka.protocol.admin.cluster import DescribeLogDirsRequest as Request

    topic = Request.DescribableLogDirTopic(topic=of.topic, partitions=[of.partition])
    try:
        answer = cluster.ask(f"{of}: cannot get the size of the log", Request(topics=[topic]), broker_id)
    except ClusterError:
        return None
    sizes = [
        one.partition_size
        for directory in answer.results
        for found in directory.topics
        for one in found.partitions
        if not one.is_future_key
    ]
    return max(sizes, default=None)
