"""The JSON documents that commands print for programs, as types: ``docs/schemas/`` is generated from them.

A key always exists, unless it is ``NotRequired``; keys may be added. The functions that make rows return these types,
or a test checks their results against the schema (``tests/schemas.py``).
"""

from typing import NotRequired

from typing_extensions import TypedDict  # the one that pydantic takes, for the description of the API

from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.judging.refusal import UnblockedBy


class Identity(TypedDict):
    """What names a partition."""

    topic: str
    partition: int


class CostRow(TypedDict):
    """What a replay would read."""

    segments: int
    bytes: int


class SizesRow(TypedDict):
    """Bytes of closed segments, by what tiering would do with them; null where it is unknown what is remote."""

    tierableBytes: int
    blockedBytes: int
    shippedBytes: int | None
    freeableBytes: int


class RefusalRow(TypedDict):
    """Why a segment is not tiered, and what to do about it."""

    baseOffset: int
    nextBaseOffset: int | None
    reason: str
    detail: str
    hint: str
    unblockedBy: UnblockedBy
    untilMs: int | None


class LostBoundary(TypedDict):
    """A boundary without a usable snapshot."""

    offset: int
    state: str
    detail: str | None


class LostStateRow(TypedDict):
    """What shows that a replica has lost its producer state."""

    offset: int
    reason: str
    isProven: bool
    producers: list[int]
    producersCount: int
    detail: str
    hint: str


class LiveRow(TypedDict):
    """What the running cluster says of a partition."""

    leader: int | None
    logStartOffset: int | None
    localStartOffset: int | None
    highWatermark: int | None
    lastStableOffset: int | None
    remoteStorageEnable: bool
    remoteLogCopyDisable: bool


class KnownFaultRow(TypedDict):
    """A known fault of Kafka's: which of the brokers' releases have it, or may, and what of the topic meets it."""

    fault: str
    releases: list[str]
    isCertain: bool
    detail: str
    hint: str


class WaitingRow(TypedDict):
    """Closed segments of a tiered topic that are not in remote storage; the oldest was closed at `sinceMs`."""

    offset: int
    sinceMs: int
    segments: int
    bytes: int


class ScanRow(Identity, SizesRow):
    """One partition of `resnap scan`."""

    path: str
    topicId: str | None
    segments: int
    bytes: int
    verdict: Verdict
    logStartOffset: int
    highWatermark: int | None
    live: LiveRow | None
    boundaries: int
    lost: int
    states: dict[str, int]
    lostBoundaries: list[LostBoundary]
    strays: list[int]
    compaction: str
    compactionOrigin: str
    replayNow: CostRow
    replayRoll: CostRow
    blocking: RefusalRow | None
    brokerStops: RefusalRow | None
    lostProducerState: LostStateRow | None
    waiting: WaitingRow | None
    brokerShipsUnread: list[RefusalRow]
    knownFaults: list[KnownFaultRow]


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


class PlannedBoundary(TypedDict):
    """A boundary for which a snapshot would be made."""

    offset: int
    coverage: str


class RunRow(TypedDict):
    """A stretch of segments that would be read."""

    baseOffset: int
    nextBaseOffset: int | None
    segments: int
    anchor: int | None


class PlanRow(Identity):
    """One partition of `resnap plan`."""

    boundaries: list[PlannedBoundary]
    knownFromOffset: int
    snapshots: int
    read: CostRow
    runs: list[RunRow]
    segments: int


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
    bytes: int
    snapshot: str
    entries: int
    manifest: str


class ShipmentRow(Identity):
    """One partition of `resnap tier`."""

    shipped: list[ShippedRow]
    already: int
    lastStableOffset: int | None
    refused: list[RefusalRow]
    blocking: RefusalRow | None


class VerifiedRow(TypedDict):
    """One segment of `resnap verify URL`."""

    manifest: str
    topic: str | None
    partition: int | None
    baseOffset: int | None
    nextBaseOffset: int | None
    bytes: int
    result: str
    problems: list[str]
    undecided: list[str]


class ReplicaProducerRow(TypedDict):
    """What a broker says of a producer."""

    producerId: int
    producerEpoch: int
    lastSequence: int
    lastTimestamp: int
    coordinatorEpoch: int
    currentTransactionStartOffset: int


class LostProducerRow(TypedDict):
    """What a replica lacks of a producer: what another replica knows, and what is there; null for nothing."""

    losses: list[str]
    known: ReplicaProducerRow
    found: ReplicaProducerRow | None


class ReplicaRow(Identity):
    """One replica of `resnap replicas` that is not as it should be."""

    brokerId: int | None
    leader: int | None
    leads: bool
    state: str
    lostProducers: int
    lostEpochs: int
    lostSequences: int
    lostCoordinatorEpochs: int
    lostTransactions: int
    reason: str | None
    replayedTo: int | None
    producers: list[LostProducerRow]


class IndexRepairRow(TypedDict):
    """What was wrong with a transaction index."""

    problems: list[str]
    lacks: int


class RepairedRow(TypedDict):
    """A segment whose snapshot or transaction index is replaced."""

    baseOffset: int
    nextBaseOffset: int
    snapshot: str | None
    lacks: int
    differs: int
    entries: int | None
    transactionIndex: IndexRepairRow | None
    manifest: str


class RepairRow(Identity):
    """One partition of `resnap repair`."""

    topicId: str | None
    segments: int
    read: CostRow
    repaired: list[RepairedRow]
    notRepaired: int
    reasons: list[str]


class FleetBlockerRow(TypedDict):
    """What stops replicas of a topic: how many on which brokers, and the first of them."""

    reason: str
    replicas: int
    brokers: list[int]
    broker: int
    partition: int
    detail: str
    hint: str


class FleetTopicRow(TypedDict):
    """One topic of `resnap fleet status`; what only the cluster can say is null where it has not."""

    topic: str
    verdict: Verdict
    partitions: int
    replicas: int
    verdicts: dict[Verdict, int]
    missing: int
    offline: int | None
    underReplicated: int | None
    blockedLeaders: int | None
    blockers: list[FleetBlockerRow]
    unknown: list[str]


class FleetBrokerRow(TypedDict):
    """A broker of the cluster: what its service has seen, or why nothing is known of it."""

    broker: int
    replicas: int | None
    scanned: str | None
    error: str | None


class GateRow(TypedDict):
    """One reason of `resnap fleet gate` against stopping a broker."""

    reason: str
    detail: str
    hint: str


class SnapshotsRow(TypedDict):
    """A partition of a run that made snapshots."""

    boundaries: list[BoundaryRow]
    warnings: list[str]


class UnfitRow(TypedDict):
    """A partition of a run that verified a store, where snapshots are unfit."""

    unfitSnapshots: int


class ReplicasRow(TypedDict):
    """A partition of a run that compared replicas."""

    reason: str
    replicas: list[ReplicaRow]


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
