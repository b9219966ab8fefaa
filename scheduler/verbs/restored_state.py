"""What `resnap restore --new-cluster` takes from the states that `resnap export` has written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from resnap.scheduler.job.reports import identity
from resnap.scheduler.verbs.planned import MOST_NAMED
from resnap.storage.log.names import TopicPartition
from resnap.storage.words import agreeing, first_of, instant, some
from resnap.tiering.cluster_state.group_offsets import SCRIPT, group_resets, write_resets
from resnap.tiering.cluster_state.state import merge_documents, named_state, newest_states
from resnap.tiering.controller.metadata.image import ConfigResource, ResourceType
from resnap.tiering.restoring.new_cluster import cluster_records, is_of_cluster
from resnap.tiering.shipping.stored_topics import UNKNOWN, TopicSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from resnap.storage.disk import Disk
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.cluster_state.group_offsets import GroupReset
    from resnap.tiering.cluster_state.state import ClusterState
    from resnap.tiering.controller.metadata.records import MetadataRecord
    from resnap.tiering.restoring.new_cluster import NewTopic
    from resnap.tiering.restoring.restoration import Restoration

NOT_EXPORTED: Final = (
    "the store has no state of the cluster (`resnap export`): the offsets of consumer groups, ACLs, quotas, users and"
    " the configuration of brokers are lost"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedState:
    """The state of the lost cluster, and the objects that it is from."""

    keys: tuple[str, ...]
    state: ClusterState

    def settings_of(self, topic: str, topic_id: str) -> TopicSettings:
        """Return the settings of a topic; unknown where the state has none of that id."""
        metadata = self.state.metadata
        known = None if metadata is None else metadata.topics.get(topic)
        if metadata is None or known is None or known.topic_id != topic_id:
            return UNKNOWN
        config = metadata.configs.get(ConfigResource(ResourceType.TOPIC, topic), {})
        return TopicSettings(partitions=known.partitions, config=config)

    def is_other(self, topic: NewTopic) -> bool:
        """Whether the state has another topic of that name: its offsets are of other records."""
        known = None if self.state.metadata is None else self.state.metadata.topics.get(topic.name)
        return known is not None and known.topic_id != topic.topic_id

    def records(self) -> list[MetadataRecord] | None:
        """Return the records of all but topics; None where the state has no metadata."""
        return None if self.state.metadata is None else cluster_records(self.state.metadata)


def exported_state(store: ObjectStore, key: str | None, restorations: Sequence[Restoration]) -> ExportedState | None:
    """Return the newest state of the cluster in ``store``, or the one under ``key``; None if there is none.

    Raises:
        UsageError: there are states of several clusters, and it is not known which one is restored; or none at ``key``.
        FormatError: one is damaged, or of a later release.
        StoreError: the store failed.

    """
    cluster_ids = {restoration.cluster_id for restoration in restorations if restoration.cluster_id is not None}
    found = newest_states(store, cluster_ids) if key is None else [(key, named_state(store, key))]
    if not found:
        return None
    return ExportedState(keys=tuple(name for name, _ in found), state=merge_documents([state for _, state in found]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredState:
    """What came of an exported state."""

    exported: ExportedState
    resets: tuple[GroupReset, ...]
    not_restored: tuple[str, ...]
    """Topics with committed offsets that are left out."""
    offsets_to: Path | None

    @classmethod
    def of(
        cls, exported: ExportedState, topics: Sequence[NewTopic], found: Sequence[Restoration], to: Path | None
    ) -> RestoredState:
        """Return the same for the topics of a new cluster, of which ``found`` has the log ends."""
        ends = {
            TopicPartition(topic.name, partition.partition): 0
            for topic in topics
            if not exported.is_other(topic)
            for partition in topic.partitions
        }
        ends |= {one.topic_partition: one.end_offset for one in found if one.topic_partition in ends}
        groups = exported.state.groups
        named = {partition.topic for offsets in groups.values() for partition in offsets if partition not in ends}
        return cls(
            exported=exported,
            resets=tuple(group_resets(groups, ends)),
            not_restored=tuple(sorted(named)),
            offsets_to=to,
        )

    def write(self, disk: Disk) -> None:
        """Write the files of the groups, if that was asked for; raises LogDirError where they cannot be."""
        if self.offsets_to is not None:
            write_resets(self.resets, self.offsets_to, disk)

    @property
    def row(self) -> dict[str, Any]:
        """The same as plain values."""
        state, metadata = self.exported.state, self.exported.state.metadata
        return {
            "objects": list(self.exported.keys),
            "taken": instant(state.taken_ms),
            "accessControlEntries": 0 if metadata is None else len(metadata.access_control_entries),
            "quotas": 0 if metadata is None else sum(map(len, metadata.quotas.values())),
            "scramCredentials": 0 if metadata is None else len(metadata.scram_credentials),
            "offsetsTo": None if self.offsets_to is None else str(self.offsets_to),
            "groups": [
                {
                    "group": reset.group,
                    "file": reset.file_name,
                    "offsets": len(reset.offsets),
                    "cut": [
                        {
                            **identity(cut.topic_partition),
                            "committedOffset": cut.committed,
                            "endOffset": cut.end,
                        }
                        for cut in reset.cut
                    ],
                }
                for reset in self.resets
            ],
            "offsetsLeftOut": list(self.not_restored),
        }

    def warnings(self) -> Iterator[str]:
        """Yield what of the lost cluster the new one does not have."""
        cut = [cut for reset in self.resets for cut in reset.cut]
        if cut:
            named = [f"{one.group} at {one.topic_partition} from {one.committed} to {one.end}" for one in cut]
            yield (
                f"{some(len(cut), 'committed offset')} {agreeing(len(cut))} above the end of what was restored, and"
                f" cut to it: {first_of(named, MOST_NAMED)}"
            )
        if self.not_restored:
            yield f"offsets in topics that were not restored are left out: {first_of(self.not_restored, MOST_NAMED)}"
        if self.resets and self.offsets_to is None:
            yield (
                f"the offsets of {some(len(self.resets), 'consumer group')} are known: with --offsets-to DIR they are"
                " written as files for kafka-consumer-groups.sh"
            )
        if self.exported.state.share_groups:
            yield (
                f"{share_groups(self.exported.state)} are not restored: they begin where their share.auto.offset.reset"
                " says"
            )
        yield from _left_out(self.exported.state)

    def text(self, would: str) -> Iterator[str]:
        """Yield what was done, in words, and what is next."""
        row = self.row
        moment = instant(self.exported.state.taken_ms)
        yield (
            f"As of {moment}: {some(row['accessControlEntries'], 'access control entry')},"
            f" {some(row['quotas'], 'quota')} and {some(row['scramCredentials'], 'credential')} {would}"
            "written there, too."
        )
        if self.resets and self.offsets_to is not None:
            yield (
                f"Offsets of {some(len(self.resets), 'consumer group')} {would}written to {self.offsets_to}: once the"
                f" cluster runs, and before consumers start: sh {self.offsets_to / SCRIPT} HOST:PORT"
            )


def share_groups(state: ClusterState) -> str:
    """Return in words what is not kept of share groups, and of which."""
    groups = state.share_groups
    return f"the offsets of {some(len(groups), 'share group')} ({first_of(groups, MOST_NAMED)})"


def _left_out(state: ClusterState) -> Iterator[str]:
    if state.metadata is None:
        yield "the state of the cluster has no metadata: ACLs, quotas and configuration are lost"
        return
    own = [
        f"{resource.name} ({', '.join(values)})"
        for resource, values in state.metadata.configs.items()
        if resource.type != ResourceType.TOPIC and not is_of_cluster(resource)
    ]
    if own:
        yield f"settings of single brokers are left out, which are of the lost machines: {first_of(own, MOST_NAMED)}"
    if state.metadata.scram_older:
        users = first_of(state.metadata.scram_older, MOST_NAMED)
        yield f"SCRAM credentials of {users} are of an older export: set those again that were changed since"
    if state.metadata.secrets_left_out:
        count = state.metadata.secrets_left_out
        secrets = f"{some(count, 'password or SCRAM credential')} {agreeing(count, 'was', 'were')}"
        yield f"{secrets} not exported (`resnap export --credentials`): set them again"
