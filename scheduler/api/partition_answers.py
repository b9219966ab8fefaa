"""The forms of answers about partitions: what scans saw of them, their boundaries, and what snapshots hold."""

from typing import Any, Self

from resnap.scheduler.api.answers import maybe_instant
from resnap.scheduler.api.bodies import Form
from resnap.scheduler.clock import instant
from resnap.scheduler.runs.readiness import Readiness
from resnap.scheduler.runs.sightings import SeenPartition, SeenSource


class PartitionAnswer(Form):
    """Whether tiering can be turned on for a partition, why not, and what to do."""

    source: str
    topic: str
    partition: int
    readiness: Readiness
    reason: str | None
    detail: str
    next_step: str
    missing: int
    scanned: str
    row: dict[str, Any] | None
    """What `resnap scan --output json` has of it; not in lists."""

    @classmethod
    def of(cls, seen: SeenPartition, *, row: bool) -> Self:
        """Return it as it is told."""
        return cls(
            source=seen.source,
            topic=seen.topic,
            partition=seen.partition,
            readiness=seen.judgement.readiness,
            reason=seen.judgement.reason,
            detail=seen.judgement.detail,
            next_step=seen.judgement.next_step,
            missing=seen.missing,
            scanned=instant(seen.scanned_ms),
            row=dict(seen.row) if row else None,
        )


class PartitionsAnswer(Form):
    """A page of partitions, and how many there are of each kind under the same filter."""

    partitions: list[PartitionAnswer]
    counts: dict[Readiness, int]
    next_cursor: str | None


class SourceAnswer(Form):
    """A source, and when it was looked at."""

    source: str
    scanned: str | None
    tried: str
    error: str | None

    @classmethod
    def of(cls, seen: SeenSource) -> Self:
        """Return it as it is told."""
        return cls(
            source=seen.source, scanned=maybe_instant(seen.scanned_ms), tried=instant(seen.tried_ms), error=seen.error
        )


class SourcesAnswer(Form):
    """Every source that was looked at."""

    sources: list[SourceAnswer]


class BoundaryAnswer(Form):
    """A boundary of a partition: which segment ends there, and what its snapshot is worth."""

    offset: int
    base_offset: int | None
    """Base offset of the segment that ends there."""
    size_bytes: int | None
    state: str
    detail: str | None
    made: bool
    """Whether a run has made a snapshot for it that is not beside the segments yet."""


class BoundariesAnswer(Form):
    """The boundaries of a partition, from the log start on."""

    source: str
    topic: str
    partition: int
    boundaries: list[BoundaryAnswer]
    next_cursor: str | None


class SnapshotAnswer(Form):
    """Entries of a producer snapshot under the names of Kafka's dump tool."""

    source: str
    topic: str
    partition: int
    offset: int
    file: str
    entries: list[dict[str, Any]]
    count: int
    next_cursor: str | None


class ChangedEntry(Form):
    """An entry that two snapshots both have, with different values."""

    producer_id: int
    before: dict[str, Any]
    after: dict[str, Any]


class DifferenceAnswer(Form):
    """What lies between two snapshots; at most as many of each list as asked for."""

    source: str
    topic: str
    partition: int
    from_offset: int
    to_offset: int
    added: list[dict[str, Any]]
    removed: list[dict[str, Any]]
    changed: list[ChangedEntry]
    same: int
    is_cut: bool
    """Whether there is more than is listed."""


class ExplanationAnswer(Form):
    """The batches that made the entries at an offset, a row per role."""

    batches: list[dict[str, Any]]
