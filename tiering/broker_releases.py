"""The releases of the brokers that a run is for: from the running cluster, a setting, or the metadata log."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.errors import ClusterError, FormatError, LogDirError
from resnap.storage.kafka_release import EXPECTED_RELEASE, Release, parse_release, refined
from resnap.storage.log.producer_snapshot import entries_in, read_snapshot_array
from resnap.storage.sources.files import GONE
from resnap.tiering.cluster.broker_settings import describe_releases
from resnap.tiering.controller.metadata.cluster import ClusterMetadata, find_metadata_log
from resnap.tiering.controller.metadata.image import release_of_level
from resnap.tiering.judging.known_faults import (
    MOST_READABLE_ENTRIES,
    Facts,
    excess_active_ms,
    may_meet,
    met_faults,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.sources.files import Sources
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.judging.known_faults import MetFault
    from resnap.tiering.selection import SelectedPartition


class BrokerReleases(NamedTuple):
    """What is known of the brokers' releases."""

    known: tuple[Release, ...]
    not_known: str | None
    """Why faults of some brokers are not checked; None where all are."""

    @property
    def of_all(self) -> tuple[Release, ...]:
        """The releases of all brokers; empty if one of them is unknown."""
        return self.known if self.not_known is None else ()

    @property
    def faults(self) -> tuple[MetFault, ...]:
        """The known faults that any tiered topic may meet with these releases."""
        return met_faults(self.known, Facts())

    @property
    def not_checked(self) -> str | None:
        """``not_known`` as a sentence."""
        return None if self.not_known is None else f"Kafka's known faults are not checked: {self.not_known}."


def releases_of(version: str | None, metadata: ClusterMetadata | None, cluster: Cluster | None) -> BrokerReleases:
    """Return the brokers' releases: lines by the cluster, else by the metadata log, refined by ``--kafka-version``."""
    given = None if version is None else parse_release(version)
    lines = _of_cluster(cluster) if cluster is not None else _of_metadata_log(metadata)
    known = refined(lines, given)
    if version is not None and given is None:
        why = f"it is not known which release {version} is built from: {EXPECTED_RELEASE}"
        return BrokerReleases(known, why)
    if given is None and (not lines or None in lines):
        return BrokerReleases(known, "the brokers' release is not known; give --kafka-version")
    return BrokerReleases(known, None)


def facts_of(partitions: Sequence[SelectedPartition], log_dirs: int, sources: Sources, expiration_ms: int) -> Facts:
    """Return what is known of the partitions of one topic; ``log_dirs`` is how many its broker has.

    A snapshot is read only if it has more producers than some releases read. The size of a log is not known where a
    part of it is in remote storage that is not read.
    """
    directories = [partition.inventory.partition for partition in partitions]
    newest = max(
        (directory.snapshots[-1] for directory in directories if directory.snapshots),
        key=attrgetter("size_bytes"),
        default=None,
    )
    entries = None if newest is None else entries_in(newest.size_bytes)
    expired_ms: int | None = None
    if newest is not None and entries is not None:
        expired_ms = excess_expired_ms(newest.path, entries, sources, expiration_ms)
    return Facts(
        retention_bytes=next((partition.retention_bytes for partition in partitions), None),
        log_bytes=tuple(map(_log_bytes, directories)) if all(map(_is_whole, directories)) else None,
        log_dirs=log_dirs,
        entries=entries,
        expired_ms=expired_ms,
    )


def excess_expired_ms(snapshot: str, entries: int, sources: Sources, expiration_ms: int) -> int | None:
    """Return when so many producers of a snapshot will have expired that brokers read it, if they stay idle.

    None if brokers read it now, or if it cannot be read here.
    """
    if entries > MOST_READABLE_ENTRIES:
        with suppress(FormatError, LogDirError, *GONE):
            found = read_snapshot_array(sources.read(snapshot))
            if len(found) > MOST_READABLE_ENTRIES:
                return excess_active_ms(found["timestamp"]) + expiration_ms
    return None


def faults_of(
    selected: SelectedPartition,
    releases: Callable[[], BrokerReleases],
    log_dirs: int,
    sources: Sources,
    expiration_ms: int,
) -> tuple[MetFault, ...] | None:
    """Return Kafka's known faults that a partition meets; None if that depends on the brokers' unknown releases.

    ``releases`` is called only if the partition may meet a fault.
    """
    facts = replace(
        facts_of([selected], log_dirs, sources, expiration_ms), lacks_snapshots=bool(selected.inventory.lost)
    )
    if not may_meet(facts):
        return ()
    known = releases().known
    return tuple(fault for fault in met_faults(known, facts) if fault.met) if known else None


def _log_bytes(directory: PartitionDir) -> tuple[int, int]:
    """Return the size of a log, and of what of it is on a disk."""
    local = sum(segment.size_bytes for segment in directory.segments if directory.is_local(segment.base_offset))
    return sum(segment.size_bytes for segment in directory.segments), local


def _is_whole(directory: PartitionDir) -> bool:
    """Return whether the log is there from its start on."""
    return not directory.segments or directory.segments[0].base_offset <= directory.log_start_offset


def destination_releases(version: str | None, log_dir: str, broker_id: int | None) -> tuple[Release, ...]:
    """Return the release of the broker of a log dir, by its version or the metadata log there; empty if not known."""
    image = ClusterMetadata(find_metadata_log([log_dir])).image()
    broker = None if image is None or broker_id is None else image.brokers.get(broker_id)
    line = None if broker is None else release_of_level(broker.newest_metadata_version)
    return refined([line], None if version is None else parse_release(version))


def _of_cluster(cluster: Cluster) -> list[Release | None]:
    try:
        return list(describe_releases(cluster).values())
    except ClusterError:
        return []


def _of_metadata_log(metadata: ClusterMetadata | None) -> list[Release | None]:
    image = None if metadata is None else metadata.image()
    brokers = () if image is None else image.brokers.values()
    return [release_of_level(broker.newest_metadata_version) for broker in brokers]
