"""The releases of the brokers that a run is for: from the running cluster, a setting, or the metadata log."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typing_extensions import TypedDict

from resnap.scheduler.output.records import row_of
from resnap.storage.errors import ClusterError, FormatError, LogDirError
from resnap.storage.kafka_release import EXPECTED_RELEASE, Release, parse_release, refined
from resnap.storage.log.producer_snapshot import entries_in, read_snapshot_array
from resnap.storage.sources.files import GONE
from resnap.tiering.cluster.broker_settings import describe_releases
from resnap.tiering.controller.metadata.cluster import ClusterMetadata, find_metadata_log
from resnap.tiering.controller.metadata.image import release_of_level
from resnap.tiering.judging.known_faults import (
    MOST_READABLE_ENTRIES,
    PAGE,
    Facts,
    excess_active_ms,
    may_meet,
    met_faults,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resnap.scheduler.settings.settings import Settings
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
        """``known`` where that is all brokers; else none, since those that are not known may be of any release."""
        return self.known if self.not_known is None else ()

    @property
    def faults(self) -> tuple[MetFault, ...]:
        """The known faults that any tiered topic may meet with these releases."""
        return met_faults(self.known, Facts())

    @property
    def not_checked(self) -> str | None:
        """``not_known`` as a sentence."""
        return None if self.not_known is None else f"Kafka's known faults are not checked: {self.not_known}."


def releases_of(settings: Settings, cluster: Cluster | None) -> BrokerReleases:
    """Return the brokers' releases: lines by the cluster, else by the metadata log, refined by ``--kafka-version``."""
    given = None if settings.kafka_version is None else parse_release(settings.kafka_version)
    lines = _of_cluster(cluster) if cluster is not None else _of_metadata_log(settings)
    known = refined(lines, given)
    if settings.kafka_version is not None and given is None:
        why = f"it is not known which release {settings.kafka_version} is built from: {EXPECTED_RELEASE}"
        return BrokerReleases(known, why)
    if given is None and (not lines or None in lines):
        return BrokerReleases(known, "the brokers' release is not known; give --kafka-version")
    return BrokerReleases(known, None)


def facts_of(partitions: Sequence[SelectedPartition], log_dirs: int, sources: Sources, expiration_ms: int) -> Facts:
    """Return what is known of the partitions of one topic; ``log_dirs`` is how many its broker has.

    A snapshot is read only if it has more producers than some releases read.
    """
    live = next((partition.live for partition in partitions), None)
    directories = [partition.inventory.partition for partition in partitions]
    newest = max(
        (one.snapshots[-1] for one in directories if one.snapshots), key=attrgetter("size_bytes"), default=None
    )
    entries = None if newest is None else entries_in(newest.size_bytes)
    expired_ms: int | None = None
    if newest is not None and entries is not None:
        expired_ms = excess_expired_ms(newest.path, entries, sources, expiration_ms)
    return Facts(
        retention_bytes=None if live is None else live.retention_bytes,
        partition_bytes=tuple(sum(segment.size_bytes for segment in directory.segments) for directory in directories),
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
    releases: Callable[[], Sequence[Release]],
    log_dirs: int,
    sources: Sources,
    expiration_ms: int,
) -> tuple[MetFault, ...]:
    """Return the known faults that one partition meets; ``releases`` are asked for only if it may meet one."""
    facts = replace(
        facts_of([selected], log_dirs, sources, expiration_ms), lacks_snapshots=bool(selected.inventory.lost)
    )
    return tuple(fault for fault in met_faults(releases(), facts) if fault.met) if may_meet(facts) else ()


class KnownFaultRow(TypedDict):
    """A known fault of Kafka's: which of the brokers' releases have it, or may, and what of the topic meets it."""

    fault: Annotated[str, "fault.name"]
    releases: list[str]
    isCertain: bool
    detail: str
    hint: str


def fault_rows_if(releases: BrokerReleases | None) -> list[KnownFaultRow] | None:
    """Return the known faults that any tiered topic may meet as rows; None where no broker's release is known."""
    if releases is None or not releases.known:
        return None
    return [row_of(KnownFaultRow, fault) for fault in releases.faults]


def faults_line(releases: BrokerReleases) -> str:
    """Return one line with the known faults that any tiered topic may meet with these releases."""
    if not releases.known:
        return str(releases.not_checked)
    names = [met.fault.name for met in releases.faults]
    of = ", ".join(map(str, releases.known))
    more = "" if releases.not_known is None else f" Not checked: {releases.not_known}."
    return f"Kafka's known faults in {of}, for any tiered topic: {', '.join(names) or 'none'} (see {PAGE}).{more}"


def destination_releases(version: str | None, log_dir: str, broker_id: int | None) -> tuple[Release, ...]:
    """Return the release of the broker of a log dir, by its version or the metadata log there; empty if not known."""
    image = ClusterMetadata(find_metadata_log([log_dir])).image()
    broker = None if image is None or broker_id is None else image.brokers.get(broker_id)
    line = None if broker is None else release_of_level(broker.newest_metadata_version)
    return refined([line], None if version is None else parse_release(version))


def kafka_configs(settings: Settings) -> str:
    """Return Kafka's tool for settings of topics, with the connection that this run has."""
    return shlex.join(["kafka-configs.sh", *connection_of(settings)])


def connection_of(settings: Settings) -> list[str]:
    """Return the flags of the connection that this run has; Kafka's tools and ours have the same."""
    words = ["--bootstrap-server", settings.bootstrap_server or "HOST:PORT"]
    return words if settings.command_config is None else [*words, "--command-config", str(settings.command_config)]


def _of_cluster(cluster: Cluster) -> list[Release | None]:
    try:
        return list(describe_releases(cluster).values())
    except ClusterError:
        return []


def _of_metadata_log(settings: Settings) -> list[Release | None]:
    image = None if settings.metadata is None else settings.metadata.image()
    return [] if image is None else [release_of_level(one.newest_metadata_version) for one in image.brokers.values()]
