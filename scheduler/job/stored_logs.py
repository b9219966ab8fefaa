"""Divides the segments of a store into logs without gaps, which are replayed one at a time.

The segments above a gap are a log that begins there. A source has one cluster, and one topic of a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from resnap.scheduler.job.sources import Scope
from resnap.storage.log.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from resnap.storage.layouts.manifest import ManifestFacts
    from resnap.storage.layouts.protocol import Listing


class StoredLog(NamedTuple):
    """Segments of one partition in a store, without a gap."""

    topic_partition: TopicPartition
    topic_id: str
    """As in keys."""
    keys: Sequence[str]
    """Of their manifests."""


class StoredLogs(NamedTuple):
    """Logs that are replayed together."""

    folder: str
    """In the store."""
    together: Sequence[StoredLog]

    def scope(self, store_url: str, manifests: Collection[str]) -> Scope:
        """Return the scope with only these logs; ``manifests`` are the keys of all in the store."""
        others = set(manifests).difference(*(log.keys for log in self.together))
        others |= {key.removeprefix(f"{self.folder}/") for key in others}
        topic_ids = {log.topic_partition.topic: log.topic_id for log in self.together}
        return Scope(
            sources=(f"{store_url}/{self.folder}".rstrip("/"),),
            topics=tuple(sorted(topic_ids)),
            topic_ids=topic_ids,
            counts=lambda key: key not in others,
        )


def stored_logs(
    found: Mapping[str, ManifestFacts], listing: Listing, asked_for: Collection[str]
) -> Iterator[StoredLogs]:
    """Yield the logs to replay for the selected segments of ``found``, by keys of manifests."""
    keys: dict[tuple[str, TopicPartition, str], list[str]] = {}
    ids: dict[tuple[str, str], set[str]] = {}
    for key, one in found.items():
        folder, topic_id = listing.source(key)
        keys.setdefault((folder, TopicPartition(one.topic, one.partition), topic_id), []).append(key)
        ids.setdefault((folder, one.topic), set()).add(topic_id)
    together: dict[tuple[str, int, int], list[StoredLog]] = {}
    for (folder, at, topic_id), of_partition in keys.items():
        number = sorted(ids[folder, at.topic]).index(topic_id)
        for depth, log in enumerate(_without_gaps(of_partition, found)):
            if any(key in asked_for for key in log):
                together.setdefault((folder, number, depth), []).append(StoredLog(at, topic_id, log))
    for (folder, _, _), logs in sorted(together.items()):
        yield StoredLogs(folder, logs)


def _without_gaps(keys: Sequence[str], found: Mapping[str, ManifestFacts]) -> list[list[str]]:
    """Return ``keys``, of segments of one partition, split at each gap."""
    logs: list[list[str]] = []
    reached = -1
    for key in sorted(keys, key=lambda key: found[key].base_offset):
        if found[key].base_offset > reached:
            logs.append([])
        logs[-1].append(key)
        reached = max(reached, found[key].next_base_offset)
    return logs
