"""Rows of the JSON documents that several commands print, as types; those of one verb are beside its view.

``docs/schemas/`` and the rows in OpenAPI are generated from them, rows are made (``records.row_of``) and tables have
their columns (``records.columns_of``) by what their keys are annotated with. A key always exists, unless it is
``NotRequired``; keys may be added. A class with such keys needs a module without postponed annotations.
"""

from typing import Annotated, NotRequired

from typing_extensions import TypedDict  # the one that pydantic takes, for the description of the API

from resnap.scheduler.output.rendering import PARTITION, Column
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.judging.refusal import UnblockedBy


class Identity(TypedDict):
    """What names a partition."""

    topic: Annotated[str, "topic_partition.topic"]
    partition: Annotated[int, "topic_partition.partition", PARTITION]


class CostRow(TypedDict):
    """What a replay would read."""

    segments: int
    bytes: Annotated[int, "size_bytes"]


class SizesRow(TypedDict):
    """Bytes of closed segments, by what tiering would do with them; null where it is unknown what is remote."""

    tierableBytes: Annotated[int, "sizes.tierable"]
    blockedBytes: Annotated[int, "sizes.blocked"]
    shippedBytes: Annotated[int | None, "sizes.shipped"]
    freeableBytes: Annotated[int, "sizes.freeable"]


class RefusalRow(TypedDict):
    """Why a segment is not tiered, and what to do about it."""

    baseOffset: int
    nextBaseOffset: int | None
    reason: str
    detail: str
    hint: str
    unblockedBy: UnblockedBy
    untilMs: int | None


class KnownFaultRow(TypedDict):
    """A known fault of Kafka's: which of the brokers' releases have it, or may, and what of the topic meets it."""

    fault: Annotated[str, "fault.name"]
    releases: list[str]
    isCertain: bool
    detail: str
    hint: str


class BlockerRow(TypedDict):
    """What stops the tiering of a topic, or is to be known of it; null as partition where it is the whole topic."""

    partition: int | None
    reason: str | None
    detail: str
    hint: str
    unblockedBy: UnblockedBy | None
    untilMs: int | None
    baseOffset: NotRequired[int]
    nextBaseOffset: NotRequired[int | None]


class TopicRow(SizesRow):
    """One topic of `resnap check`."""

    topic: str
    verdict: Verdict
    partitions: int
    verdicts: dict[Verdict, int]
    remoteStorageEnable: bool | None
    blockers: list[BlockerRow]
    warnings: list[BlockerRow]
    unknown: list[str]
    notChecked: list[str]


class LeftOutRow(TypedDict):
    """A producer without an entry, because its past could not be read."""

    producerId: int
    reason: str


class BoundaryRow(Identity):
    """One snapshot of `resnap regenerate`, or of `resnap verify` and `resnap plan --prove`, which give a verdict."""

    offset: int
    outcome: str
    coverage: str
    asOfMs: int
    windowStartOffset: int | None
    knownFromOffset: int
    entries: int | None
    sha256: str | None
    leftOut: list[LeftOutRow]
    reason: str | None
    madeMs: NotRequired[int]
    anchor: NotRequired[int | None]
    verdict: NotRequired[str]
    missing: NotRequired[list[int]]
    missingCount: NotRequired[int]
    different: NotRequired[list[int]]
    differentCount: NotRequired[int]
    sweptByBroker: NotRequired[list[int]]
    sweptByBrokerCount: NotRequired[int]
    coordinatorEpochLost: NotRequired[list[int]]
    coordinatorEpochLostCount: NotRequired[int]
    lastBatchLost: NotRequired[list[int]]
    lastBatchLostCount: NotRequired[int]
    byOlderRules: NotRequired[list[int]]
    byOlderRulesCount: NotRequired[int]
    withoutRecords: NotRequired[list[int]]
    withoutRecordsCount: NotRequired[int]


class ShippedRow(TypedDict):
    """A segment that was shipped."""

    baseOffset: int
    nextBaseOffset: int
    bytes: Annotated[int, "size_bytes"]
    snapshot: str
    entries: int
    manifest: Annotated[str, "manifest_key"]


class ShipmentRow(Identity):
    """One partition of `resnap tier`."""

    shipped: list[ShippedRow]
    already: int
    lastStableOffset: Annotated[int | None, "eligibility.last_stable_offset"]
    refused: Annotated[list[RefusalRow], "eligibility.refusals"]
    blocking: Annotated[RefusalRow | None, "eligibility.blocking"]


class FleetBlockerRow(TypedDict):
    """What stops replicas of a topic: how many on which brokers, and the first of them."""

    reason: str
    replicas: int
    brokers: list[int]
    broker: Annotated[int, "broker_id"]
    partition: int
    detail: str
    hint: str


class FleetTopicRow(TypedDict):
    """One topic of `resnap fleet status`; what only the cluster can say is null where it has not."""

    topic: Annotated[str, Column(title="TOPIC")]
    verdict: Annotated[Verdict, Column(title="VERDICT", is_state=True)]
    partitions: Annotated[int, Column(title="PARTITIONS", right=True)]
    replicas: Annotated[int, lambda one: sum(one.verdicts.values()), Column(title="REPLICAS", right=True)]
    verdicts: Annotated[dict[Verdict, int], lambda one: dict(sorted(one.verdicts.items()))]
    missing: Annotated[int, Column(title="MISSING", right=True)]
    offline: int | None
    underReplicated: int | None
    blockedLeaders: int | None
    blockers: list[FleetBlockerRow]
    unknown: list[str]


class FleetBrokerRow(TypedDict):
    """A broker of the cluster: what its service has seen, or why nothing is known of it."""

    broker: Annotated[int, "broker_id"]
    replicas: Annotated[int | None, lambda one: sum(map(len, one.topics.values())) if one.error is None else None]
    scanned: str | None
    error: str | None


class SnapshotsRow(TypedDict):
    """A partition of a run that made snapshots."""

    boundaries: list[BoundaryRow]
    warnings: list[str]


class UnfitRow(TypedDict):
    """A partition of a run that verified a store, where snapshots are unfit."""

    unfitSnapshots: int


class CensusRow(Identity, TypedDict("_From", {"from": str})):
    """A partition of a run that counted producers."""

    producers: int
    expired: int
    transactional: int
    openTransactions: int
    oneBatch: int
    idPerMessage: bool
    heapBytes: int
    ages: dict[str, int]
    offset: int | None
    unreadBytes: int
    reason: str | None
    transactionalIds: NotRequired[dict[str, int]]
    principals: NotRequired[dict[str, int]]


class NotDoneRow(TypedDict):
    """A partition that a run could not read or did not reach; nothing where there is nothing to be said."""

    reason: NotRequired[str]
