"""``RunCache``: the results of earlier runs that are still valid for a partition, and the files that keep them.

A look-up reads directory entries, and of the closed segments of the results the end of the offset index and the first
and last header. Spark's executors on other machines cannot read the state directory, so states of anchors are stored
and used only if this machine reads the segments. Everything else happens in the driver.

The state directory has one directory per partition. Its ``memory.json`` is a line with version and checksum, and a line
with the cached results; the states of anchors are beside it. Every file is written whole or not at all, and the last
writer wins, so two runs at once, or a kill at any moment, leave a complete file, if perhaps not the newest. A file of
another version, or a damaged one, is ignored, and written again.

Its ``manifests.z`` has the manifests that a store was found to hold of the partition, by etag and time, and those that
were written to it, by their MD5. One counts if its etag is its MD5, as in most stores: then the store need not be asked
for it while it lists the same.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from resnap.replay.anchor import begin_at_anchor
from resnap.replay.evidence import Evidence
from resnap.replay.plan import Coverage, PartitionPlan
from resnap.replay.scan.splits import Anchor, StateFile
from resnap.replay.staging import digest_of, snapshot_key
from resnap.storage.crc32c import crc32c
from resnap.storage.errors import LogDirError, StoreError
from resnap.storage.log.producer_snapshot import LeftOut, SnapshotDigest
from resnap.storage.packed import Compressed
from resnap.storage.stores.urls import open_store
from resnap.storage.whole_file import read_whole, write_whole
from resnap.tiering.judging.refusal import Reason, Refusal
from resnap.tiering.run_cache.results import (
    CachedBoundary,
    CachedRefusals,
    CachedResults,
    SegmentMark,
    cached_boundary,
    directory_key,
    mark_of,
    nearest_and_farther,
    rules_key,
    unchanged_up_to,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from resnap.replay.results import BoundaryResult, PartitionResult
    from resnap.replay.window import ReplayRules
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.s3_settings import S3Settings
    from resnap.tiering.judging.eligibility import Candidates
    from resnap.tiering.judging.inventory import PartitionInventory

T = TypeVar("T")
VERSION: Final = 10
"""Raised with the form, and whenever a replay decides, names or compares otherwise: else old results would stand."""
FILE: Final = "memory.json"
MANIFESTS: Final = "manifests.z"
MAX_BYTES: Final = 256 << 20
"""A larger file is not ours: that of 100,000 boundaries has some 50 MB."""
UNUSED_AFTER_S: Final = 86_400
"""After this long a state that no file names is not in use: the run that wrote it has ended, or was killed."""
_GARBLED: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError, zlib.error)


def _ignore(_: str) -> None:
    """Ignore a warning."""


@dataclass(slots=True)
class CacheFiles:
    """The files below ``root``; that some cannot be read, or written, is reported once, and they are ignored."""

    root: Path
    warn: Callable[[str], None] = _ignore
    read_only: bool = False
    """Whether nothing is written, as in a dry run."""
    _warned: set[str] = field(default_factory=set, init=False)
    """What was reported already: in a directory of another user it is so for each partition."""
    _loaded: dict[Path, CachedResults] = field(default_factory=dict, init=False)
    """One run uses the same results throughout, whatever other runs write."""

    def directory(self, partition: PartitionDir) -> Path:
        """Return the directory for the results of ``partition``, by the location of its files."""
        return self.root / hashlib.sha256(str(partition.path).encode()).hexdigest()[:32]

    def load(self, partition: PartitionDir) -> CachedResults:
        """Return the cached results of ``partition``; empty if there is no usable file or the topic is another one."""
        path = self.directory(partition) / FILE
        if path not in self._loaded:
            self._loaded[path] = self._read(path, partial(decode_results, directory=path.parent)) or CachedResults()
        results = self._loaded[path]
        return results if results.topic_id == partition.topic_id else CachedResults()

    def forget(self, partition: PartitionDir) -> None:
        """Hold the results of ``partition`` no longer: the caller does."""
        self._loaded.pop(self.directory(partition) / FILE, None)

    def manifests(self, partition: PartitionDir) -> dict[str, bytes]:
        """Return the manifests of ``partition`` that ``save_manifests`` was given; none if they are lost."""
        return self._read(self.directory(partition) / MANIFESTS, decode_manifests) or {}

    def _read(self, path: Path, decode: Callable[[bytes], T]) -> T | None:
        try:
            return decode(read_whole(path, MAX_BYTES))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn_once("unreadable", f"{path}: the results of earlier runs cannot be read: {error.strerror}")
        except _GARBLED as error:
            self.warn(f"{path}: not what this version of resnap writes ({error}); it is rebuilt")
        return None

    def save(self, partition: PartitionDir, results: CachedResults, *, before: CachedResults) -> None:
        """Store ``results``, and delete the states that ``before`` named and they no longer do."""
        self.forget(partition)
        if self._write(partition, FILE, *encode_results(results)):
            replaced = _states(before) - _states(results)
            _delete_others(self.directory(partition), named=_states(results), replaced=replaced)

    def save_manifests(self, partition: PartitionDir, manifests: dict[str, bytes]) -> None:
        """Store ``manifests``, by version, instead of those before."""
        self._write(partition, MANIFESTS, encode_manifests(manifests))

    def _write(self, partition: PartitionDir, name: str, *content: bytes) -> bool:
        if self.read_only:
            return False
        directory = self.directory(partition)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_whole(directory / name, content)
        except OSError as error:
            self._cannot_write(directory, error)
            return False
        return True

    def _cannot_write(self, directory: Path, error: OSError) -> None:
        self._warn_once(
            "unwritable",
            f"{directory}: cannot be written: {error.strerror}: the next run will read again what this one read;"
            " --state-dir names another place",
        )

    def _warn_once(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self.warn(text)


def _states(results: CachedResults) -> set[str]:
    return {Path(state.path).name for anchor in results.anchors for state in anchor.states}


def _delete_others(directory: Path, *, named: set[str], replaced: set[str]) -> None:
    """Delete states that were replaced, and those that nothing names, including half-written ones.

    Recent ones are kept, because a concurrent run may be writing them.
    """
    with suppress(OSError):
        now_s = (directory / FILE).stat().st_mtime
        for path in directory.iterdir():
            old = now_s - path.stat().st_mtime > UNUSED_AFTER_S
            if path.name in replaced or (old and path.name not in named | {FILE, MANIFESTS}):
                path.unlink()


def encode_results(results: CachedResults) -> tuple[bytes, bytes]:
    """Return ``results`` as the two lines of its file."""
    content = asdict(results)
    content["boundaries"] = [asdict(known) for known in results.boundaries.values()]
    for anchor in content["anchors"]:
        anchor["cut_through"] = sorted(anchor["cut_through"])
        for state in anchor["states"]:
            state["path"] = Path(state["path"]).name
    body = json.dumps(content, separators=(",", ":")).encode() + b"\n"
    head = json.dumps({"version": VERSION, "crc32c": crc32c(body)})
    return head.encode() + b"\n", body


def decode_results(data: bytes, directory: Path) -> CachedResults:
    """Return the results from the form that ``encode_results`` writes; their states are in ``directory``.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it has another form or version.

    """
    head, _, body = data.partition(b"\n")
    header = json.loads(head)
    if header["version"] != VERSION:
        raise ValueError(f"version {header['version']}")
    if header["crc32c"] != crc32c(body):
        raise ValueError("its checksum is wrong")
    content: dict[str, Any] = json.loads(body)
    known = [_boundary(boundary) for boundary in content["boundaries"]]
    refused = content["refused"]
    return CachedResults(
        rules=content["rules"],
        topic_id=content["topic_id"],
        marks=tuple(SegmentMark(*mark) for mark in content["marks"]),
        directory=content["directory"],
        boundaries={boundary.offset: boundary for boundary in known},
        shown=tuple(content["shown"]),
        anchors=tuple(_anchor(anchor, directory) for anchor in content["anchors"]),
        refused=None if refused is None else _refusals(refused),
    )


def encode_manifests(manifests: dict[str, bytes]) -> bytes:
    """Return the content of their file."""
    return zlib.compress(
        json.dumps({version: body.decode("latin-1") for version, body in manifests.items()}).encode(), 1
    )


def decode_manifests(data: bytes) -> dict[str, bytes]:
    """Return the manifests in the form that ``encode_manifests`` writes.

    Raises:
        zlib.error, ValueError, AttributeError: it has another form.

    """
    return {version: body.encode("latin-1") for version, body in json.loads(zlib.decompress(data)).items()}


def _boundary(values: dict[str, Any]) -> CachedBoundary:
    return CachedBoundary(**values | {
        "coverage": Coverage(values["coverage"]),
        "digest": SnapshotDigest(**values["digest"]),
        "left_out": tuple(LeftOut(pid, reason) for pid, reason in values["left_out"]),
    })  # fmt: skip


def _anchor(values: dict[str, Any], directory: Path) -> Anchor:
    states = (StateFile(**state | {"path": str(directory / state["path"])}) for state in values["states"])
    return Anchor(**values | {"cut_through": frozenset(values["cut_through"]), "states": tuple(states)})


def _refusals(values: dict[str, Any]) -> CachedRefusals:
    refusals = (Refusal(**refusal | {"reason": Reason(refusal["reason"])}) for refusal in values["refusals"])
    return CachedRefusals(**values | {"refusals": tuple(refusals)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPartition:
    """The valid cached results of one partition."""

    inventory: PartitionInventory
    directory: str
    """Digest of everything in the directory, taken before anything else was read."""
    found: tuple[CachedResults, CachedResults] | Compressed[tuple[CachedResults, CachedResults]]
    """The results that are valid, and those that were stored; compressed while they wait."""
    is_checked: bool = False
    """Whether the boundaries have been compared with the current evidence."""

    @property
    def partition(self) -> PartitionDir:
        """The partition."""
        return self.inventory.partition

    @property
    def results(self) -> CachedResults:
        """As far as it holds for the log and the rules of this run."""
        return self._found[0]

    @property
    def stored(self) -> CachedResults:
        """As it was found, for replacing it."""
        return self._found[1]

    @property
    def _found(self) -> tuple[CachedResults, CachedResults]:
        return self.found.value if isinstance(self.found, Compressed) else self.found

    def compressed(self) -> CachedPartition:
        """Return the same in a fifth of the memory."""
        return self if isinstance(self.found, Compressed) else replace(self, found=Compressed(self.found))

    @property
    def is_same_directory(self) -> bool:
        """Whether nothing at all has changed since the boundaries were made, including the small files."""
        return self.results.directory == self.directory

    def supported_by(self, evidence: Evidence, rules: ReplayRules) -> CachedPartition:
        """Return this without the boundaries that a run under ``rules``, now known, would make differently."""
        if self.is_same_directory:
            return replace(self, is_checked=True)
        log_start = self.partition.segments[0].base_offset if self.partition.segments else 0
        found = self.results.supported_by(evidence, rules, log_start), self.stored
        return replace(self, found=found, is_checked=True)

    def refused(self, candidates: Candidates, store: str) -> Candidates | None:
        """Return the final refusals of ``candidates`` if an earlier run has cached them and nothing has changed."""
        known = self.results.refused
        now = self.directory, store, candidates.high_watermark
        if known is None or (known.directory, known.store, known.high_watermark) != now:
            return None
        refused = {refusal.base_offset for refusal in known.refusals}
        if any(segment.base_offset not in refused for segment in candidates.segments):
            return None
        return replace(candidates.also_refusing(known.refusals), last_stable_offset=known.last_stable_offset)


def look_up(
    files: CacheFiles, inventory: PartitionInventory, rules: ReplayRules, sources: Sources, *, fresh: bool = False
) -> CachedPartition:
    """Return the results of a partition that are still valid under ``rules``; none if it is to begin ``fresh``."""
    partition = inventory.partition
    directory = directory_key(partition)
    stored = files.load(partition)
    known = CachedResults() if fresh else stored
    end = unchanged_up_to(partition.segments, known.marks, sources) if known.marks else None
    results = replace(known.below(end).under(rules), topic_id=partition.topic_id)
    return CachedPartition(inventory=inventory, directory=directory, found=(results, stored))


def with_result(
    cached: CachedPartition, result: PartitionResult | None, rules: ReplayRules, now_ms: int, sources: Sources
) -> CachedResults:
    """Return the results after a replay has returned ``result``."""
    results, partition = cached.results, cached.partition
    made = [
        known
        for boundary in (result.boundaries if result else ())
        if not _moves_on(boundary, rules) and (known := cached_boundary(boundary, now_ms))
    ]
    # The directory stored with them from now on must not include files that were not read.
    kept = results.boundaries if cached.is_checked or cached.is_same_directory else {}
    boundaries = dict(kept) | {known.offset: known for known in made}
    anchors = nearest_and_farther([*results.anchors, *(result.anchors if result else ())])
    return replace(
        results,
        rules=rules_key(rules),
        topic_id=partition.topic_id,
        marks=_marks(partition, results, sources) if boundaries or anchors else (),
        directory=cached.directory,
        boundaries=boundaries,
        anchors=anchors,
    )


def _moves_on(result: BoundaryResult, rules: ReplayRules) -> bool:
    """Whether, under ``roll``, this run's time bounded T, because clocks were ahead: a later run changes it."""
    return rules.as_of.roll and result.as_of_ms >= rules.as_of.now_ms


def with_refusals(results: CachedResults, eligibility: Candidates, *, store: str, now_ms: int) -> CachedResults:
    """Return ``results`` with the refusals of a partition, after everything eligible was shipped.

    Faults of files are not cached: whether they were repaired is checked each time. Nor are refusals because of the
    store's content.
    """
    read_again = {Reason.DAMAGED, Reason.UNREADABLE, Reason.SEGMENT_CHANGED}
    if any(refusal.reason in read_again for refusal in eligibility.refusals):
        return replace(results, refused=None)
    known = CachedRefusals(
        store=store,
        directory=results.directory,
        high_watermark=eligibility.high_watermark,
        made_ms=now_ms,
        refusals=tuple(refusal for refusal in eligibility.refusals if refusal.reason is not Reason.LINEAGE_CONFLICT),
        last_stable_offset=eligibility.last_stable_offset,
    )
    return replace(results, refused=known)


def _marks(partition: PartitionDir, results: CachedResults, sources: Sources) -> tuple[SegmentMark, ...]:
    """Return the marks of the closed segments, up to the first unreadable one; known ones are not read again."""
    known = {mark.base_offset: mark for mark in results.marks}
    marks = []
    for segment in partition.segments:
        mark = known.get(segment.base_offset) or mark_of(segment, sources)
        if mark is None:
            break
        marks.append(mark)
    return tuple(marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCache:
    """The cached results, as the runs of one command use them."""

    files: CacheFiles
    rules: ReplayRules
    sources: Sources
    s3: S3Settings
    now_ms: Callable[[], int]
    fresh: bool = False
    """Use nothing of earlier runs; what is found is kept all the same."""
    states: bool = True
    """Whether the readers of segments can read the files of states."""

    def look_up(self, inventory: PartitionInventory) -> CachedPartition:
        """Return the cached results of a partition that are still valid."""
        return look_up(self.files, inventory, self.rules, self.sources, fresh=self.fresh)

    def look_up_to_wait(self, inventory: PartitionInventory) -> CachedPartition:
        """Return the same for a run that looks all partitions up before it works on the first: compressed."""
        found = self.look_up(inventory).compressed()
        self.files.forget(inventory.partition)
        return found

    def manifests(self, partition: PartitionDir) -> dict[str, bytes]:
        """Return the manifests of a partition that earlier runs have seen or written, by version."""
        return {} if self.fresh else self.files.manifests(partition)

    def keep_manifests(self, partition: PartitionDir, seen: dict[str, bytes], *, before: dict[str, bytes]) -> None:
        """Keep the manifests of a partition that were ``seen`` in a store now."""
        if seen != before:
            self.files.save_manifests(partition, seen)

    def add_manifests(self, partition: PartitionDir, written: dict[str, bytes]) -> None:
        """Add the manifests that this run has ``written`` to those of the partition in the cache."""
        if written:
            self.files.save_manifests(partition, self.files.manifests(partition) | written)

    def still_valid(self, cached: CachedPartition, wanted: Iterable[int], url: str) -> tuple[CachedBoundary, ...]:
        """Return the boundaries whose snapshot below ``url`` is the one that an earlier run wrote."""
        known = cached.results.boundaries
        topic_partition = cached.partition.topic_partition
        return tuple(known[offset] for offset in wanted if offset in known and
                     self._is_intact(url, topic_partition, known[offset]))  # fmt: skip

    def _is_intact(self, url: str, topic_partition: TopicPartition, known: CachedBoundary) -> bool:
        try:
            body = open_store(url, self.s3).get(snapshot_key(topic_partition, known.offset))
        except (StoreError, LogDirError):
            return False
        return digest_of(body) == known.digest

    def begin(self, plan: PartitionPlan, cached: CachedPartition) -> PartitionPlan:
        """Let ``plan`` begin at the nearest cached state, and cache states for the next run."""
        if not self.states:
            return plan
        begun = begin_at_anchor(plan, cached.results.anchors)
        return replace(begun, keep_in=str(self.files.directory(cached.partition)))

    def keep(
        self,
        cached: CachedPartition,
        result: PartitionResult | None,
        refused: Candidates | None = None,
        store: str = "",
    ) -> None:
        """Cache the result of a replay, if one was needed; and what is ``refused``, where all else is in ``store``."""
        results = with_result(cached, result, self.rules, self.now_ms(), self.sources)
        if refused is not None:
            results = with_refusals(results, refused, store=store, now_ms=self.now_ms())
        if results != cached.stored:
            self.files.save(cached.partition, results, before=cached.stored)


def nothing_to_read(topic_partition: TopicPartition, rules: ReplayRules) -> PartitionPlan:
    """Return the plan of a partition for which everything is cached."""
    return PartitionPlan(
        topic_partition=topic_partition,
        segments=(),
        rules=rules,
        runs=(),
        idle=(),
        evidence=Evidence(),
        high_watermark=None,
    )
