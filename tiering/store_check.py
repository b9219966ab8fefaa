"""The steps of verifying a store: its objects, its chains of segments, and its snapshots against a replay.

A large store is verified in groups of partitions, so that a run holds what is known of one group at a time. A partition
is never divided, and neither is a topic with segments that were shipped without its id beside others: which topic those
belong to is known from all of its segments. A store in several layouts is one group, since the segments of one layout
may be named by another.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Final, TypeAlias

from resnap.replay.staging import DISCARD
from resnap.storage.errors import (
    CancelledError,
    FormatError,
    LogDirError,
    ObjectNotFoundError,
    ResnapError,
    StoreAccessError,
    VerificationError,
)
from resnap.storage.layouts.lineage import Chain, chains_of
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.log.names import TopicPartition
from resnap.storage.sources.log_dirs import TieredPart, tiered_part
from resnap.storage.sources.registry import SHIPPED, TIERED
from resnap.storage.stores.keeping import Kept
from resnap.storage.stores.protocol import UNKNOWN
from resnap.storage.threads import Threads, side_by_side
from resnap.tiering.verifying.content_verification import NOT_READABLE
from resnap.tiering.verifying.verification import StoreReader, read_stored_at
from resnap.tiering.verifying.verification_journal import VerificationJournal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from resnap.replay.spark.task_pool import TaskPool
    from resnap.replay.watching import Progress
    from resnap.storage.layouts.manifest import ManifestFacts
    from resnap.storage.layouts.protocol import Tiered
    from resnap.storage.layouts.segments import Listing, StoredManifest
    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.planner import Planner
    from resnap.tiering.selection import Scope, SelectedPartition
    from resnap.tiering.verifying.verification import Contents, VerifiedSegment


_LET_READ: Final = "give the user who runs resnap read access, and verify again: nothing shows that it is damaged"
READ_AT_ONCE: Final = 4
"""Segments that one process reads back at once."""


class Mismatch(StrEnum):
    """What a store holds otherwise than it should, as it is counted."""

    SNAPSHOT = "snapshot"
    """A shipped snapshot is not what a replay gives."""
    OBJECT = "object"
    """An object is missing, or is not what was written."""
    GAP = "gap"
    """Nothing was shipped of some offsets."""
    OVERLAP = "overlap"
    """Two histories claim some offsets."""


@dataclass(slots=True, kw_only=True)
class StoreCheck:
    """One verification of a store; later steps use the results of earlier ones."""

    part: TieredPart
    """What is read."""
    scope: Scope
    """Selects the topics."""
    planner: Planner
    """Its rules are for all that manifests do not say."""
    sources: Sources
    """Open what is checked."""
    journal: VerificationJournal = field(default_factory=VerificationJournal)
    """The progress of an earlier one."""
    since_ms: int | None = None
    """Only segments that were shipped since then, by the store's clock, are read; None for all."""
    manifests: dict[str, ManifestFacts] = field(default_factory=dict)
    """All that could be read, by key."""
    asked_for: set[str] = field(default_factory=set)
    """Keys of those to verify, by this run or by the one that it continues."""
    sink: str = DISCARD
    """URL of where rebuilt snapshots go; if they are kept, those are made, too, that no broker could load."""
    aborted_in: Callable[[SelectedPartition], Mapping[str, Sequence[AbortedTxn]]] = lambda _: {}
    """Returns what is known to be aborted in segments of a partition, by their locators; called once for each."""
    unreadable: dict[str, TopicPartition] = field(default_factory=dict)
    """Locators of logs and snapshots that cannot be read: what is below and above each is compared by itself."""
    beside: StoreCheck | None = None
    """The check of the store in another layout, whose manifests may name what this one finds: it is judged there."""
    named_logs: set[str] = field(default_factory=set)
    """Keys of the logs that the manifests name."""
    not_asked_for: int = 0
    """Segments that are not to be verified, of which the manifests alone were read."""
    resumed: int = 0
    """How many of them an interrupted run has found all right."""
    unfit: dict[TopicPartition, set[str]] = field(default_factory=dict)
    """Locators of stored snapshots of a partition that are missing, damaged, or not what a replay gives."""
    unread_manifests: list[str] = field(default_factory=list)
    """Keys of manifests that may not be read."""
    with_problems: set[TopicPartition] = field(default_factory=set)
    """Partitions with a segment whose problem ``segments`` has reported: it is not reported for the partition, too."""
    _listing: Listing | None = None

    @property
    def listing(self) -> Listing:
        """The segments, as one listing shows them.

        Raises:
            StoreError: the store failed.

        """
        if self._listing is None:
            self._listing = self.part.layout.listing(self.part.store, self.scope.wants, self.part.within)
        return self._listing

    def list_again(self) -> None:
        """Make the next use of ``listing`` list the store again."""
        self._listing = None

    def segments(self, progress: Progress) -> Iterator[VerifiedSegment]:
        """Read back the objects of every segment, and yield the result of each, by key.

        Raises:
            ConfigurationError: a segment is encrypted, and its key is missing.
            StoreError: the store itself failed.

        """
        listing = self.listing
        since_ms = self.since_ms or 0
        self.asked_for = {key for key, info in listing.manifests.items() if info.modified_ms >= since_ms}
        judged_beside = self.judged_beside
        self.asked_for -= judged_beside
        to_read = {key for key in self.asked_for if not self.journal.has(listing.manifests[key])}
        self.resumed = len(self.asked_for) - len(to_read)
        progress.expect(len(to_read), sum(listing.sizes.get(key, 0) for key in to_read))
        with ExitStack() as stack:
            pool = stack.enter_context(self._executors(to_read)) if self.planner.engine.is_remote and to_read else None
            reader = StoreReader(
                store=self.part.store,
                listing=listing,
                sources=self.sources,
                read_elsewhere=None if pool is None else lambda found: pool.result(found, found.size_bytes),
                logs=self.named_logs,
            )
            ended = Event()

            def read(key: str) -> tuple[StoredManifest | str, Contents | None]:
                return reader.read(key, reads_objects=key in to_read, check_wanted=partial(_check_wanted, ended))

            def stop() -> None:
                ended.set()
                if pool is not None:
                    pool.close()

            at_once = READ_AT_ONCE if pool is None else pool.items_at_once
            threads = stack.enter_context(Threads(at_once, "resnap-verify"))
            reads = stack.enter_context(closing(side_by_side(read, listing.manifests, at_once, stop, threads)))
            for key, result in reads:
                verified = replace(
                    reader.judge(key, *result(), was_read=key in to_read), remedy=self.part.layout.remedy_when_verified
                )
                if verified.manifest is None and any(NOT_READABLE in problem for problem in verified.problems):
                    self.unread_manifests.append(key)
                elif verified.manifest is not None:
                    self.manifests[key] = verified.manifest
                    self.not_asked_for += key not in self.asked_for and key not in judged_beside
                    if verified.problems:
                        self.with_problems.add(verified.manifest.topic_partition)
                        self._note_unreadable(key, verified.manifest)
                if verified.was_read:
                    progress.expect(0, verified.size_bytes - listing.sizes.get(key, 0))  # of objects that are elsewhere
                    progress.advance(1, verified.size_bytes)
                    if not verified.problems:
                        self.journal.note(listing.manifests[key])
                yield verified

    def _executors(self, to_read: Collection[str]) -> AbstractContextManager[TaskPool[StoredManifest, Contents]]:
        """Return the executors on other machines that read segments back.

        Raises:
            UsageError: they cannot reach the store.

        """
        url = self.part.store.url
        self.planner.engine.check_reach([f"{url}/{min(to_read)}"], DISCARD)
        read = partial(read_stored_at, url, self.sources)
        return self.planner.engine.task_pool(lambda _: read, "reading segments back")

    @property
    def judged_beside(self) -> set[str]:
        """Keys in manifests of another layout of the store, verified before, or of a store below."""
        if self.beside is None:
            return set()
        named, is_key = self.beside.named_logs, self.part.layout.is_key
        return {key for key in self.listing.manifests if key in named or not is_key(key)}

    def beside_unread(self) -> set[TopicPartition]:
        """Return the partitions with segments in the folder of a manifest that may not be read; after ``segments``."""
        folder_of = self.listing.folder
        folders = {folder_of(key) for key in self.unread_manifests}
        there = (manifest for key, manifest in self.manifests.items() if folders and folder_of(key) in folders)
        return {manifest.topic_partition for manifest in there}

    def chains(self) -> list[Chain]:
        """Return the chains of all segments whose manifests could be read; after ``segments``.

        If there is another layout, only the chains of partitions with segments here, joined with the segments there.
        """
        judged = self.manifests.keys() - self.judged_beside
        here = {_log_of(self.manifests[key]) for key in judged}
        chains = chains_of(manifest for manifest in self.manifests.values() if _log_of(manifest) in here)
        return [replace(chain, layout=self.part.layout.name) for chain in chains]

    def joined(self) -> set[Log]:
        """Return the partitions with segments both here and in another layout: their chains join both."""
        if self.beside is None:
            return set()
        there = self.judged_beside & self.manifests.keys()
        return {_log_of(self.manifests[key]) for key in there} & {
            _log_of(self.manifests[key]) for key in self.manifests.keys() - there
        }

    def _note_unreadable(self, key: str, manifest: ManifestFacts) -> None:
        """Record the log and the snapshot of a faulty segment that cannot be read at all."""
        found = self.listing.read(key)
        for path in read_of(found, self.part.store.url):
            try:
                self.sources.read_range(path, 0, 1)
            except (FormatError, LogDirError, StoreAccessError):
                self.unreadable[path] = manifest.topic_partition
            except ObjectNotFoundError:
                pass  # its absence shows in the listing


Log: TypeAlias = tuple[TopicPartition, str | None]
"""A partition that has something stored, with its topic's id."""


def _log_of(manifest: ManifestFacts) -> Log:
    return manifest.topic_partition, manifest.topic_id


def fault_of(problem: str, remedy: str) -> ResnapError:
    """Return the error for a ``problem`` of a segment that was read back, with what to do."""
    if NOT_READABLE in problem:
        return StoreAccessError(problem, hint=_LET_READ)
    return VerificationError(problem, hint=remedy)


def read_of(found: StoredManifest, store_url: str) -> set[str]:
    """Return the locators that a comparison reads for a segment: its log, its snapshot, and their objects."""
    read = {f"{store_url}/{part.key}" for part in found.objects if part.kind in {ObjectKind.LOG, ObjectKind.SNAPSHOT}}
    return read if found.files is None else read | {found.files.segment.path}


def chains_together(checks: Sequence[StoreCheck]) -> list[Chain]:
    """Return the chains of a store's segments in several layouts, each once."""
    joined: set[Log] = set()
    found: list[Chain] = []
    for check in reversed(checks):  # the first names what the others find, too
        found = [chain for chain in check.chains() if (chain.topic_partition, chain.topic_id) not in joined] + found
        joined |= check.joined()
    return found


def store_checks(planner: Planner, store: ObjectStore, scope: Scope) -> list[StoreCheck]:
    """Return the verification of ``store``, one for each layout with objects there, that of its first segment first.

    ``scope`` selects the topics; ``store`` may be a part of one.

    Raises:
        StoreError: the store failed.

    """
    make = partial(StoreCheck, scope=scope, planner=planner, sources=planner.sources)
    return _of_layouts(tiered_groups(store.url, planner.sources)[0], make)


def store_groups(
    planner: Planner, store: ObjectStore, scope: Scope, journal: VerificationJournal, since_ms: int | None = None
) -> Iterator[list[StoreCheck]]:
    """Yield the result of ``store_checks`` group by group of the partitions that have segments.

    A run that only reads holds what is known of one group at a time, and reads small objects once. ``journal`` has the
    progress of an earlier one. Segments shipped before ``since_ms``, by the store's clock, are not read.

    Raises:
        StoreError: the store failed.

    """
    plain = planner.sources
    parts, groups = tiered_groups(store.url, plain)
    for folders in groups:
        sources = replace(plain, kept=Kept(folders=folders))
        make = partial(StoreCheck, scope=scope, planner=planner, sources=sources, journal=journal, since_ms=since_ms)
        checks = _of_layouts([part._replace(store=sources.store(part.store.url)) for part in parts], make)
        if any(check.listing.manifests or check.listing.incomplete for check in checks):
            yield checks


def _of_layouts(parts: Sequence[TieredPart], make: Callable[..., StoreCheck]) -> list[StoreCheck]:
    checks: list[StoreCheck] = []
    for part in parts:
        checks.append(make(part=part, beside=checks[0] if checks else None))
    return checks


def _check_wanted(ended: Event) -> None:
    if ended.is_set():
        raise CancelledError("the run was ended while segments were read back")


GROUP_OBJECTS: Final = 140_000
"""At most, unless a partition has more: 20,000 segments with an object of every kind."""


def tiered_groups(url: str, sources: Sources) -> tuple[Sequence[TieredPart], Sequence[Sequence[str]]]:
    """Return ``tiered_part`` in each layout that has segments there, and its folders in groups.

    The part with Resnap's own manifests comes first. Folders are URLs with a slash at the end, ascending; one empty
    sequence if all is one group. The store is listed once. Brokers that tier to the same place as Resnap write no
    manifest of its own.

    Raises:
        StoreError: the store failed.

    """
    first = tiered_part(url, sources)
    others = [layout for layout in TIERED if layout.name != first.layout.name]
    found: dict[str, Tiered] = {}
    counts: dict[str, int] = {}
    for info in first.store.list(first.within):
        if first.layout in SHIPPED:
            found.update((one.name, one) for one in others if one.name not in found and one.is_key(info.key))
        if first.layout.is_key(info.key):
            folder = f"{info.key.rpartition('/')[0]}/"
            counts[folder] = counts.get(folder, 0) + 1
    parts = [first, *(first._replace(layout=layout) for layout in others if layout.name in found)]
    groups: list[Sequence[str]] = [()]
    if not found and sum(counts.values()) > GROUP_OBJECTS:
        groups = [[f"{first.store.url}/{folder}" for folder in group] for group in group_folders(counts, GROUP_OBJECTS)]
    return sorted(parts, key=lambda part: not part.layout.has_digests), groups


def group_folders(counts: Mapping[str, int], most: int) -> Iterator[Sequence[str]]:
    """Yield folders in groups that have at most ``most`` objects each, or one folder; ``counts`` are theirs."""
    whole = {_above(_above(folder)) for folder in counts if _above(folder).endswith(f"/{UNKNOWN}/")}
    units: dict[str, int] = {}
    for folder, count in counts.items():
        topic = _above(_above(folder))
        unit = topic if topic in whole else folder
        units[unit] = units.get(unit, 0) + count
    ordered, start, held = sorted(units), 0, 0
    for at, unit in enumerate(ordered):
        if start < at and held + units[unit] > most:
            yield _join_folders(ordered, start, at, whole)
            start, held = at, 0
        held += units[unit]
    yield _join_folders(ordered, start, len(ordered), whole)


def _join_folders(ordered: Sequence[str], start: int, end: int, whole: Collection[str]) -> Sequence[str]:
    """Return the folders [start, end), and in place of all folders of a topic id that of the id: one listing."""
    outside = (*ordered[start - 1 : start], *ordered[end : end + 1])
    found: dict[str, None] = {}
    for folder in ordered[start:end]:
        above = _above(folder)
        is_apart = folder in whole or not above or any(other.startswith(above) for other in outside)
        found[folder if is_apart else above] = None
    return list(found)


def _above(folder: str) -> str:
    """Return the folder that has ``folder``; empty at the root of the store."""
    return folder[: folder.rstrip("/").rfind("/") + 1]
