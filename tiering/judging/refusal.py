"""The reasons why a segment is not shipped, as text for people and codes for programs.

Settings of a broker or a topic prevent tiering, too, whatever the log dirs hold. ``remote.storage.enable`` (``SWITCH``)
is not among them: it is to be turned on once there are no blockers.

Source: ``RemoteLogManagerConfig``; KIP-405, KIP-950.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from resnap.storage.log.partition_dir import Segment
    from resnap.tiering.cluster.facts import TopicFacts


SWITCH: Final = "remote.storage.enable"
SYSTEM: Final = "remote.log.storage.system.enable"
PLUGIN_CLASS: Final = "remote.log.storage.manager.class.name"
METADATA_CLASS: Final = "remote.log.metadata.manager.class.name"
METADATA_LISTENER: Final = "remote.log.metadata.manager.listener.name"
LOG_DIRS: Final = "log.dirs"
ASKED: Final = (SYSTEM, PLUGIN_CLASS, METADATA_CLASS, METADATA_LISTENER, LOG_DIRS)
"""The settings that are requested from brokers."""
_BY_TOPIC: Final = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"


class Reason(StrEnum):
    """Why a segment is not shipped; the values are codes that users and programs see, and never change."""

    ACTIVE_SEGMENT = "active-segment"
    """Brokers still write it; in the nature of a log, and blocks nothing."""
    BELOW_LOG_START = "below-log-start"
    """Retention or a deletion of records has passed it; in the nature of a log, and blocks nothing."""
    COMPACTED = "compacted"
    """An internal topic, or one that ``cleanup.policy`` or ``cleaner-offset-checkpoint`` says is compacted, or
    batches that only a cleaner leaves (delete horizon, missing offsets)."""
    DIRECTORY_BUSY = "directory-busy"
    """A cleaner's or splitter's unfinished files (``.swap``, ``.cleaned``) are in the directory."""
    HW_UNKNOWN = "hw-unknown"
    """Neither ``replication-offset-checkpoint`` nor ``--high-watermark`` says what is committed."""
    ABOVE_HIGH_WATERMARK = "above-high-watermark"
    """It ends above the high watermark."""
    ABOVE_LAST_STABLE_OFFSET = "above-last-stable-offset"
    """It ends above the first offset of the oldest transaction without a marker."""
    DAMAGED = "damaged"
    """This segment, or one that its snapshot depends on, is not what Kafka writes, or a log is gone or empty."""
    UNREADABLE = "unreadable"
    """It could not be read: permission, a disk that failed, too many open files, or the file has gone."""
    INVALID_TXN_STATE = "invalid-txn-state"
    """Below its end is input that Kafka refuses to load (``InvalidTxnStateException``)."""
    LEADER_EPOCHS_UNKNOWN = "leader-epochs-unknown"
    """Neither the checkpoint nor the batch headers have its leader epochs."""
    LEADER_EPOCHS_WRONG = "leader-epochs-wrong"
    """Its batches have other leader epochs than the checkpoint."""
    INDEX_UNUSABLE = "index-unusable"
    """Its transaction index is damaged, or the batches contradict an entry of it; other indexes are rebuilt."""
    INDEX_MISSING = "index-missing"
    """It has no offset index: a broker that starts deletes the snapshots above it; never a reason of ours."""
    STRAY = "stray"
    """A broker of KRaft takes the directory for a stray one when it starts: it is not a log of the cluster."""
    NO_START = "no-start"
    """A name that is none of Kafka's, or a file of another partition, ends the broker's start, or takes the log dir
    offline; never a reason of ours."""
    LINEAGE_CONFLICT = "lineage-conflict"
    """The store holds another history of its offsets, or the same one in pieces to which it cannot be joined."""
    SEGMENT_CHANGED = "segment-changed"
    """It is not what it was when the log dir was listed."""
    TOPIC_ID_UNKNOWN = "topic-id-unknown"
    """The layout has it in its keys."""
    TOPIC_NAME_TOO_LONG = "topic-name-too-long"
    """The layout has it in its keys as it is."""
    LOST_PRODUCER_STATE = "lost-producer-state"
    """The replica started from remote storage without producer state; with its remote part it can be shipped."""
    MISSING_SNAPSHOT = "missing-snapshot"
    """Stops a stock broker; never a reason of ours."""
    MISSING_OFFSETS = "missing-offsets"
    """Offsets are missing after it; a stock broker ships what is there, we refuse it as compacted."""
    UNUSABLE_SNAPSHOT = "unusable-snapshot"
    """A stock broker ships it as it is; never a reason of ours."""


class SettingReason(StrEnum):
    """What of the brokers or the topic prevents tiering; the values are codes that users see, and never change."""

    TIERING_DISABLED = "tiering-disabled"
    """``remote.log.storage.system.enable`` is not true on the broker."""
    PLUGIN_NOT_SET = "plugin-not-set"
    """Without a class of the plugin the broker does not start, without a listener for metadata it tiers nothing."""
    COPYING_PAUSED = "copying-paused"
    """``remote.log.copy.disable`` is true on the topic."""
    TOPIC_WITHOUT_ID = "topic-without-id"
    """The cluster gives the topic no id, as before 2.8."""
    RELEASE_WITHOUT_TIERING = "release-without-tiering"
    """A broker is older than 3.6, and has no tiered storage."""


class UnblockedBy(StrEnum):
    """What a blocked partition waits for."""

    REBUILD = "rebuild"
    """Snapshots are missing: `resnap regenerate` or `resnap tier` rebuilds them."""
    INSTALL = "install"
    """The missing snapshots are rebuilt, and are to be installed beside the segments."""
    ANNOUNCE = "announce"
    """What is missing is shipped to a store, of which brokers do not know yet."""
    RETENTION = "retention"
    """No broker can tier its oldest segments, and retention will delete them."""
    OTHER = "other"
    """What the next step says."""


_NOT_BLOCKING: Final = frozenset({Reason.ACTIVE_SEGMENT, Reason.BELOW_LOG_START})
"""In the nature of a log: nothing waits for these segments."""

FAULTS: Final = frozenset({
    Reason.DAMAGED, Reason.UNREADABLE, Reason.INVALID_TXN_STATE, Reason.INDEX_UNUSABLE, Reason.LOST_PRODUCER_STATE,
    Reason.LEADER_EPOCHS_WRONG,
})  # fmt: skip
"""No later run will ship the segment unless what is wrong is repaired: an error; other refusals are an answer."""

_ANOTHER_REPLICA: Final = "take the partition from the log dir of another replica"
_REBUILD: Final = (
    "`resnap tier` ships the segment with a rebuilt snapshot; "
    "`resnap regenerate` makes the file, to be put beside the segment while the broker is down"
)
HINTS: Final = {
    Reason.ACTIVE_SEGMENT: "nothing to do: it can be shipped once the broker has rolled it",
    Reason.BELOW_LOG_START: "nothing to do: it cannot be read any more",
    Reason.COMPACTED: "nothing to do: Kafka does not tier compacted topics; --exclude-topic excludes it",
    Reason.DIRECTORY_BUSY: "run again when the broker has finished; if it is stopped, start it once",
    Reason.HW_UNKNOWN: "give --high-watermark, or a log dir whose replication-offset-checkpoint lists the partition",
    Reason.ABOVE_HIGH_WATERMARK: "run again when the followers have caught up",
    Reason.ABOVE_LAST_STABLE_OFFSET: (
        "run again when the transaction has ended; `resnap explain LOG_DIR TOPIC-PARTITION OFFSET` names who holds it,"
        " whether its marker is missing here, and what ends one that hangs"
    ),
    Reason.DAMAGED: _ANOTHER_REPLICA,
    Reason.UNREADABLE: "give the user who runs resnap read access; if it has that, check the disk",
    Reason.INVALID_TXN_STATE: _ANOTHER_REPLICA,
    Reason.LEADER_EPOCHS_UNKNOWN: (
        "written before 0.11, or with an older message format: no broker can tier it, retention will delete it; "
        "where the beginning of the checkpoint is lost, take the partition from the log dir of another replica"
    ),
    Reason.LEADER_EPOCHS_WRONG: (
        "if the broker is stopped, start it once, which repairs its checkpoints after a crash;"
        " else take the partition from the log dir of another replica"
    ),
    # Never advise to delete an index: a broker that finds none deletes the snapshots above the segment.
    Reason.INDEX_UNUSABLE: _ANOTHER_REPLICA,
    Reason.INDEX_MISSING: (
        "start the broker and stop it once: it recovers the segment with its indexes, and deletes the snapshots above;"
        " then `resnap regenerate` and `resnap install` make these again"
    ),
    Reason.NO_START: (
        "before the broker starts, repair the file that no-start names: take the partition that it belongs to from the"
        " log dir of another replica, or move that partition's directory elsewhere"
    ),
    Reason.STRAY: "before the broker starts, put the right partition.metadata in its place, or the directory elsewhere",
    Reason.LINEAGE_CONFLICT: (
        "see `resnap verify URL`; continue with the log dir that shipped the other segments, or use another prefix"
    ),
    Reason.SEGMENT_CHANGED: "run again: the next run reads the current segment",
    Reason.TOPIC_ID_UNKNOWN: "give --metadata-log, or a log dir whose partitions have partition.metadata",
    Reason.TOPIC_NAME_TOO_LONG: "ship the topic with --layout flat, or let the brokers tier it",
    Reason.LOST_PRODUCER_STATE: (
        "keep it from leading, and stop its broker;"
        " `resnap regenerate LOG_DIR --remote URL --boundaries all --into DIR`, then"
        " `resnap install DIR LOG_DIR --replace false-partial --replace txnindex`"
    ),
    Reason.MISSING_SNAPSHOT: _REBUILD,
    Reason.MISSING_OFFSETS: f"if the topic was never compacted, {_ANOTHER_REPLICA}",
    Reason.UNUSABLE_SNAPSHOT: _REBUILD,
    SettingReason.TIERING_DISABLED: f"set {SYSTEM}=true in server.properties, and restart the broker",
    SettingReason.PLUGIN_NOT_SET: "set it in server.properties as the plugin's own text says, and restart the broker",
    SettingReason.COPYING_PAUSED: "set remote.log.copy.disable=false on the topic when its pause is over",
    SettingReason.TOPIC_WITHOUT_ID: "raise inter.broker.protocol.version to 2.8 or later",
    SettingReason.RELEASE_WITHOUT_TIERING: "upgrade the broker to 3.6 or later",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why tiering stops, at a segment or for all of a partition."""

    reason: str
    """The code of a ``Reason``, or another one in what earlier versions have kept."""
    detail: str
    """The fact, with its numbers."""
    hint: str
    """What the operator does next."""
    unblocked_by: UnblockedBy | None = UnblockedBy.OTHER
    """None where nothing does: Kafka never tiers it."""
    until_ms: int | None = None
    """When retention will have deleted the segment and those below; None where something else unblocks it, and where
    the retention is not known."""

    @property
    def text(self) -> str:
        """Reason, fact and next step as one line."""
        return f"{self.reason}: {self.detail}: {self.hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(Stop):
    """One segment that is not shipped."""

    base_offset: int
    next_base_offset: int | None
    """None for the active segment."""
    reason: Reason


def stop_for(reason: Reason | SettingReason, detail: str, *, hint: str | None = None) -> Stop:
    """Return why tiering stops, with the default hint of ``reason`` if none is given."""
    by = UnblockedBy.REBUILD if reason is Reason.MISSING_SNAPSHOT else UnblockedBy.OTHER
    return Stop(reason=reason, detail=detail, hint=hint or HINTS[reason], unblocked_by=by)


def refuse(segment: Segment, reason: Reason, detail: str, *, hint: str | None = None) -> Refusal:
    """Return the refusal of ``segment``, with the default hint of ``reason`` if none is given."""
    return refusal_of(segment, stop_for(reason, detail, hint=hint))


def refusal_of(segment: Segment, why: Stop) -> Refusal:
    """Return the refusal of ``segment`` for a reason that holds for it."""
    return Refusal(
        base_offset=segment.base_offset,
        next_base_offset=segment.next_base_offset,
        reason=Reason(why.reason),
        detail=why.detail,
        hint=why.hint,
        unblocked_by=why.unblocked_by,
        until_ms=why.until_ms,
    )


def first_blocking(refusals: Iterable[Refusal]) -> Refusal | None:
    """Return the first of ``refusals``, in offset order, that needs action; None if there is none."""
    return next((refusal for refusal in refusals if refusal.reason not in _NOT_BLOCKING), None)


def broker_setting_blockers(settings: Mapping[str, str]) -> Iterator[Stop]:
    """Yield the settings of a broker that prevent all tiering; a missing setting is not set."""
    if settings.get(SYSTEM, "").strip().lower() != "true":
        said = settings.get(SYSTEM, "").strip() or "not set"
        yield stop_for(SettingReason.TIERING_DISABLED, f"{SYSTEM} is {said}, where it must be true")
        return
    needed = [PLUGIN_CLASS]
    if (settings.get(METADATA_CLASS, "").strip() or _BY_TOPIC) == _BY_TOPIC:
        needed.append(METADATA_LISTENER)
    for name in needed:
        if not settings.get(name, "").strip():
            yield stop_for(SettingReason.PLUGIN_NOT_SET, f"{name} is not set")


def topic_setting_blockers(topic: TopicFacts) -> Iterator[Stop]:
    """Yield the cluster's settings of a topic that prevent its leaders from tiering it."""
    if topic.topic_id is None:
        yield stop_for(SettingReason.TOPIC_WITHOUT_ID, "the cluster gives the topic no id")
    if topic.is_tiered and topic.is_copying_paused:
        yield stop_for(SettingReason.COPYING_PAUSED, "remote.log.copy.disable is true")
