"""Kafka's own known faults that meet tiered topics and producer state: one entry each, and which a release has.

An entry goes in once it was seen on a real broker, or in the classes or sources of the releases that it names. To add
one, add it to ``KNOWN_FAULTS``, its section to ``docs/kafka-faults.md``, and its case to the tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.storage.kafka_release import Release
from resnap.storage.words import instant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

MOST_READABLE_ENTRIES: Final = 1_000_000
"""With more producers than this in a snapshot, releases with ``SNAPSHOT_TOO_LARGE`` delete it."""
MANY_ENTRIES: Final = 800_000
"""From here on partitions are named before the limit is reached."""
PAGE: Final = "docs/kafka-faults.md"
_ANY_PATCH: Final = ".999"
NEWEST_PATCH: Final = {
    (3, 6): 2, (3, 7): 2, (3, 8): 1, (3, 9): 2, (4, 0): 2, (4, 1): 2, (4, 2): 2, (4, 3): 1, (4, 4): 0,
}  # fmt: skip
"""The newest patch release of each line with tiered storage that was examined."""
FIRST_WITH_TIERING: Final = min(NEWEST_PATCH)


class Severity(StrEnum):
    """What a fault that is met means for a verdict."""

    WARNING = "warning"
    """It is to be known."""
    BLOCKS = "blocks"
    """To go on as Resnap says would do harm."""


class Certainty(StrEnum):
    """Whether a release has a fault."""

    YES = "yes"
    MAYBE = "maybe"
    """Only some patch releases of its line have it, or the release is newer than those that were examined."""
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of a topic and its cluster on which Kafka's known faults depend; None where one is unknown.

    Attributes:
        retention_bytes: of the topic; -1 for no limit.
        log_bytes: of each of its partitions the size of the log, and of what of it is on a disk.
        log_dirs: the most log dirs that a broker has.
        entries: the most producers in the state of one partition.
        expired_ms: when so many of them will have expired that every release reads the state, if those stay silent.
        lacks_snapshots: whether a closed segment has no snapshot.

    """

    retention_bytes: int | None = None
    log_bytes: tuple[tuple[int, int], ...] | None = None
    log_dirs: int | None = None
    entries: int | None = None
    expired_ms: int | None = None
    lacks_snapshots: bool | None = None


@dataclass(frozen=True, slots=True)
class ReleaseRange:
    """Releases from ``first`` to ``last``, both included; ``last`` None for all that follow."""

    first: str
    last: str | None = None

    def has(self, release: Release) -> bool:
        """Return whether a release, with its patch release, is one of them."""
        return _number(self.first) <= release.number and (self.last is None or release.number <= _number(self.last))

    def __str__(self) -> str:
        if self.last is None or self.last.endswith(_ANY_PATCH):
            return f"{self.first} and later{'' if self.last is None else ' patch releases'}"
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFault:
    """A fault of Kafka's.

    Attributes:
        name: its code, which users and programs see, and which never changes.
        title: one line.
        releases: those that have it.
        expected: those that are said to have it, and were not examined.
        remedy: what to do.
        sources: reports and changes by name.
        severity: what it means for a verdict.
        meets: return what of the facts meets it; None for a fault that any tiered topic may meet.

    """

    name: str
    title: str
    releases: tuple[ReleaseRange, ...]
    remedy: str
    sources: tuple[str, ...] = ()
    expected: tuple[ReleaseRange, ...] = ()
    severity: Severity = Severity.WARNING
    meets: Callable[[Facts], str | None] | None = field(default=None, compare=False)

    @property
    def releases_text(self) -> str:
        """The releases that have it, in words."""
        known = ", ".join(map(str, self.releases))
        expected = ", ".join(map(str, self.expected))
        return "; ".join(filter(None, (known, expected and f"not examined, but expected: {expected}")))

    def is_in(self, release: Release) -> Certainty:
        """Return whether ``release`` has it; of a line without a patch release, whether all have."""
        newest = NEWEST_PATCH.get(release.line)
        if release.patch is None and newest is not None:
            found = {self._is_in(Release(*release.line, patch)) for patch in range(newest + 1)}
            is_expected = any(_number(span.first)[:2] == release.line for span in self.expected)
            return found.pop() if len(found) == 1 and not is_expected else Certainty.MAYBE
        return self._is_in(release)

    def _is_in(self, release: Release) -> Certainty:
        line = release.line if release.line in NEWEST_PATCH else max(NEWEST_PATCH)
        newest = Release(*line, NEWEST_PATCH[line])
        is_examined = release.number <= newest.number
        if is_examined and any(span.has(release) for span in self.releases):
            return Certainty.YES
        may_have = not is_examined and any(span.has(newest) for span in (*self.releases, *self.expected))
        return Certainty.MAYBE if may_have or any(span.has(release) for span in self.expected) else Certainty.NO


@dataclass(frozen=True, slots=True, kw_only=True)
class MetFault:
    """A fault that releases have, and what meets it."""

    fault: KnownFault
    releases: tuple[Release, ...]
    is_certain: bool
    """Whether one of the releases has it for certain."""
    met: str
    """What of the facts meets it; empty for one that any tiered topic may meet."""

    @property
    def detail(self) -> str:
        """The fault, the releases and the facts as one line."""
        has = "have" if len(self.releases) > 1 else "has"
        word = (
            f"{has} this fault of Kafka's"
            if self.is_certain
            else f"may have this fault of Kafka's (releases: {self.fault.releases_text})"
        )
        met = f": {self.met}" if self.met else ""
        return f"{', '.join(map(str, self.releases))} {word}: {self.fault.title}{met}"

    @property
    def hint(self) -> str:
        """What to do."""
        return f"{self.fault.remedy} (see {self.fault.name} in {PAGE})"


def met_faults(releases: Iterable[Release], facts: Facts) -> tuple[MetFault, ...]:
    """Return the faults that brokers of ``releases`` have or may have, and that the facts meet."""
    known = tuple(dict.fromkeys(releases))
    return tuple(chain.from_iterable(_met(fault, known, facts) for fault in KNOWN_FAULTS))


def may_meet(facts: Facts) -> bool:
    """Return whether the facts meet a fault of any release."""
    return any(fault.meets is not None and fault.meets(facts) is not None for fault in KNOWN_FAULTS)


def met_fault(name: str, releases: Iterable[Release], facts: Facts) -> MetFault | None:
    """Return what ``met_faults`` does of the fault ``name`` alone; None if it is not met."""
    return next((fault for fault in met_faults(releases, facts) if fault.fault.name == name), None)


def known_fault(name: str) -> KnownFault:
    """Return the fault with the code ``name``."""
    return next(fault for fault in KNOWN_FAULTS if fault.name == name)


_CENSUS: Final = "`resnap producer census` shows when they do"


def unreadable_snapshot(entries: int, releases: Sequence[Release], expired_ms: int | None = None) -> str | None:
    """Return what brokers of ``releases`` do to a snapshot of so many producers, and what helps; None if they read it.

    Without ``releases``, they are not known, and count as any. ``expired_ms`` is when so many will have expired that
    the others are read.
    """
    if entries <= MOST_READABLE_ENTRIES:
        return None
    met = met_fault(SNAPSHOT_TOO_LARGE, releases, Facts(entries=entries))
    if releases and met is None:
        return None
    limit = f"{entries:,} producers, and brokers of some releases delete a snapshot of more than"
    what = f"{limit} {MOST_READABLE_ENTRIES:,}; the release is not known" if met is None else met.detail
    too_many = f"{entries - MOST_READABLE_ENTRIES:,} of them must expire first (producer.id.expiration.ms;"
    when = f"if they are idle they will have by {instant(expired_ms)}" if expired_ms is not None else _CENSUS
    return f"{what}; {too_many} {when})"


def excess_active_ms(timestamps: npt.NDArray[np.int64]) -> int:
    """Return when the last of those producers was active that must expire until brokers read the state.

    ``timestamps`` are of more producers than brokers read.
    """
    excess = len(timestamps) - MOST_READABLE_ENTRIES
    return int(np.partition(timestamps, excess - 1)[excess - 1])


def _met(fault: KnownFault, releases: Iterable[Release], facts: Facts) -> Iterator[MetFault]:
    met = "" if fault.meets is None else fault.meets(facts)
    answers = {release: fault.is_in(release) for release in releases}
    having = tuple(release for release, answer in answers.items() if answer is not Certainty.NO)
    if met is not None and having:
        yield MetFault(fault=fault, releases=having, is_certain=Certainty.YES in answers.values(), met=met)


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _limited_by_size(facts: Facts) -> str | None:
    """A size limit that the local log, counted twice, exceeds; a limit that no size is known against counts."""
    limit = facts.retention_bytes
    if limit is None or limit < 0:
        return None
    if facts.log_bytes is None:
        return f"retention.bytes is {limit}"
    at_risk = [min(whole, whole + local - limit) for whole, local in facts.log_bytes if whole + local > limit]
    return f"retention.bytes is {limit}, and {sum(at_risk)} bytes are at risk" if at_risk else None


def _large_state(facts: Facts) -> str | None:
    if facts.entries is None or facts.entries <= MOST_READABLE_ENTRIES:
        return None
    what = f"a partition has {facts.entries:,} producers, and a snapshot is read up to {MOST_READABLE_ENTRIES:,}"
    if facts.expired_ms is None:
        return what
    excess = f"{facts.entries - MOST_READABLE_ENTRIES:,} of them must expire first"
    return (
        f"{what}: {excess} (producer.id.expiration.ms), and will have by {instant(facts.expired_ms)} if they are idle"
    )


def _several_disks(facts: Facts) -> str | None:
    return f"a broker has {facts.log_dirs} log dirs" if facts.log_dirs is not None and facts.log_dirs > 1 else None


def _failing_copies(facts: Facts) -> str | None:
    is_limited = facts.retention_bytes is not None and facts.retention_bytes >= 0
    return f"retention.bytes is {facts.retention_bytes}" if is_limited else None


SEGMENT_WITHOUT_SNAPSHOT: Final = "segment-without-snapshot"
STATE_LOST_FROM_REMOTE: Final = "state-lost-from-remote"
STATE_LOST_BY_DISK_MOVE: Final = "state-lost-by-disk-move"
SNAPSHOT_TOO_LARGE: Final = "snapshot-too-large"
LOCAL_LOG_COUNTED_TWICE: Final = "local-log-counted-twice"
COPY_NEVER_RESUMED: Final = "copy-never-resumed"
COMMIT_MARKER_MISSED: Final = "commit-marker-missed"
FIRST_SEQUENCE_REFUSED: Final = "first-sequence-refused"
OTHER_ERROR_FOR_STALE_EPOCH: Final = "other-error-for-stale-epoch"
FAILED_COPIES_COUNTED: Final = "failed-copies-counted"
LOCAL_START_NOT_UPDATED: Final = "local-start-not-updated"
METADATA_READ_TOO_LATE: Final = "metadata-read-too-late"
OVERLAPS_NEVER_DELETED: Final = "overlaps-never-deleted"

KNOWN_FAULTS: Final = (
    KnownFault(
        name=SEGMENT_WITHOUT_SNAPSHOT,
        title="nothing of a partition is tiered from its first segment without a producer snapshot on",
        releases=(ReleaseRange("3.6.0", "4.4.0"),),
        remedy="make the snapshots with `resnap regenerate` and put them in with `resnap install`",
        sources=("KAFKA-15195", "KIP-952", "KIP-1026"),
        severity=Severity.BLOCKS,
        meets=lambda facts: "closed segments have no snapshot" if facts.lacks_snapshots else None,
    ),
    KnownFault(
        name=STATE_LOST_FROM_REMOTE,
        title="a replica that starts from remote storage deletes the producer snapshot that it has fetched",
        releases=(ReleaseRange("3.6.0", "4.4.0"),),
        remedy="run `resnap replicas` after every such start, before an election, and heal what it names",
        sources=("apache/kafka#14242 (comment of 2023-10-25)", "apache/kafka#14652 (comment of 2023-11-01)"),
    ),
    KnownFault(
        name=STATE_LOST_BY_DISK_MOVE,
        title="a move of a tiered replica between two disks of one broker loses its producer state at once",
        releases=(ReleaseRange("3.9.0", "4.4.0"),),
        remedy="move no replica whose producers are unexpired below the local log start:"
        " `resnap check LOG_DIR --before-move TOPIC` names them; after a move, run `resnap replicas --remote URL`",
        sources=("apache/kafka#14242", "apache/kafka#14652", "KAFKA-20770 touches the path"),
        meets=_several_disks,
    ),
    KnownFault(
        name=SNAPSHOT_TOO_LARGE,
        title=f"a producer snapshot of more than {MOST_READABLE_ENTRIES:,} producers cannot be read, and is deleted",
        releases=(ReleaseRange("4.2.2", "4.2.2"), ReleaseRange("4.4.0", "4.4.0")),
        expected=tuple(
            ReleaseRange(f"{line}.{patch}", f"{line}{_ANY_PATCH}")
            for line, patch in (("3.9", 3), ("4.0", 3), ("4.1", 3), ("4.3", 2))
        ),
        remedy="lower producer.id.expiration.ms until fewer producers are unexpired, and stop the clients that make"
        " them",
        sources=("CVE-2026-111108",),
        severity=Severity.BLOCKS,
        meets=_large_state,
    ),
    KnownFault(
        name=LOCAL_LOG_COUNTED_TWICE,
        title="size retention counts the local log twice on a leader that has copied nothing since its election",
        releases=(ReleaseRange("3.6.0", "4.3.1"),),
        remedy="set retention.bytes=-1 while copying is paused, and before brokers restart or leaders change;"
        " or upgrade to 4.4.0",
        sources=("KAFKA-20732", "apache/kafka#22661"),
        meets=_limited_by_size,
    ),
    KnownFault(
        name=COPY_NEVER_RESUMED,
        title="a copy task that ends by an Error, or hangs in the plugin, never copies its partition again",
        releases=(ReleaseRange("3.6.0", "4.4.0"),),
        remedy="watch the age of the oldest closed segment that is not in remote storage, and restart the broker",
        sources=("Aiven-Open/tiered-storage-for-apache-kafka#820", "#481", "#562"),
    ),
    KnownFault(
        name=COMMIT_MARKER_MISSED,
        title="a replica that was down misses a COMMIT marker that the leader has compacted away",
        releases=(),
        expected=(ReleaseRange("3.9.0"),),
        remedy="compare the replicas, and take the partition from one that has the marker; do not abort",
        sources=("Redpanda's report of 2026-06-25", "KAFKA-20716"),
    ),
    KnownFault(
        name=FIRST_SEQUENCE_REFUSED,
        title="a first batch whose sequence is not 0 is refused where the log never had a record",
        releases=(),
        expected=(ReleaseRange("4.5.0"),),
        remedy="none is needed up to 4.4",
        sources=("KAFKA-15591", "apache/kafka#23234"),
    ),
    KnownFault(
        name=OTHER_ERROR_FOR_STALE_EPOCH,
        title="a stale producer epoch is answered INVALID_PRODUCER_EPOCH (47) before INVALID_TXN_STATE (48)",
        releases=(ReleaseRange("3.9.1", "4.4.0"),),
        remedy="nothing is to be done",
        sources=("KAFKA-19690", "apache/kafka#20534"),
    ),
    KnownFault(
        name=FAILED_COPIES_COUNTED,
        title="size retention counts segments whose copies failed",
        releases=(ReleaseRange("3.6.0", "3.8.0"),),
        remedy="upgrade to 3.8.1 or later, or set retention.bytes=-1 until copies succeed",
        sources=("KAFKA-17062", "apache/kafka#16959"),
        meets=_failing_copies,
    ),
    KnownFault(
        name=LOCAL_START_NOT_UPDATED,
        title="a replica that starts from remote storage keeps its old local log start offset",
        releases=(ReleaseRange("3.6.0", "3.6.2"),),
        remedy="upgrade to 3.7 or later",
        sources=("KAFKA-15695", "apache/kafka#14649"),
    ),
    KnownFault(
        name=METADATA_READ_TOO_LATE,
        title="a broker that gets a tiered partition reads its remote metadata from too late an offset",
        releases=(ReleaseRange("3.6.0", "3.7.0"),),
        remedy="upgrade to 3.7.1 or later, or restart the broker",
        sources=("KAFKA-16105", "apache/kafka#15165"),
    ),
    KnownFault(
        name=OVERLAPS_NEVER_DELETED,
        title="remote segments that overlap others are never deleted",
        releases=(ReleaseRange("3.6.0", "3.7.0"),),
        remedy="upgrade to 3.7.1 or later, or raise the log start with kafka-delete-records.sh",
        sources=("KAFKA-16511", "apache/kafka#15817"),
    ),
)
"""All known faults."""
