"""Warns of partitions with almost as many producers as brokers read, and of snapshots that brokers would delete.

Every replay and every restore passes here, whatever it is for, so no verb makes or approves such a snapshot silently.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from resnap.scheduler.job.wiring import cluster_of
from resnap.storage.errors import ResnapError
from resnap.storage.sources.files import PLAIN
from resnap.tiering.broker_releases import excess_expired_ms, releases_of
from resnap.tiering.judging.known_faults import (
    MANY_ENTRIES,
    MOST_READABLE_ENTRIES,
    PAGE,
    SNAPSHOT_TOO_LARGE,
    known_fault,
    unreadable_snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.scheduler.settings.settings import Settings
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.sources.files import Sources
    from resnap.tiering.broker_releases import BrokerReleases


@dataclass
class LargeStates:
    """Judges numbers of producers by the releases of the brokers that will load the snapshots."""

    settings: Settings
    warn: Callable[[str], None]
    sources: Sources = PLAIN
    """Reads the snapshots."""
    _said: set[TopicPartition] = field(default_factory=set)

    def look(self, topic_partition: TopicPartition, offset: int, entries: int, path: str | None = None) -> None:
        """Warn, once for each partition, where the snapshot at ``offset``, which may be at ``path``, has many."""
        if entries < MANY_ENTRIES or topic_partition in self._said:
            return
        self._said.add(topic_partition)
        self.warn(self.judged(f"{topic_partition}: the snapshot at {offset}", entries, path))

    def judged(self, snapshot: str, entries: int, path: str | None = None) -> str:
        """Return what brokers do to a snapshot of many producers, and until when, if it is at ``path``."""
        expiration_ms = self.settings.expiration_ms
        until_ms = None if path is None else excess_expired_ms(path, entries, self.sources, expiration_ms)
        unreadable = unreadable_snapshot(entries, self.releases.of_all, until_ms)
        if unreadable is not None:
            return f"{snapshot} would be deleted by a broker that loads it: {unreadable} (see {PAGE})"
        from_here = "" if entries > MOST_READABLE_ENTRIES else f"at more than {MOST_READABLE_ENTRIES:,}, "
        brokers = " and ".join(map(str, known_fault(SNAPSHOT_TOO_LARGE).releases))
        what = f"{from_here}brokers of {brokers} delete the snapshot and lose the state (see {PAGE})"
        return f"{snapshot} has {entries:,} producers: {what}"

    @cached_property
    def releases(self) -> BrokerReleases:
        """The releases of the brokers; asked for only once."""
        settings = self.settings
        with suppress(ResnapError), cluster_of(settings) as cluster:
            return releases_of(settings.kafka_version, settings.metadata, cluster)
        return releases_of(settings.kafka_version, settings.metadata, None)
