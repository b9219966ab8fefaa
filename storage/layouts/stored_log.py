"""Builds log dir values from the segments that a layout finds in a store.

A layout knows the segments of each partition and how they follow one another. All of them are closed, and all shipped
segments are below the high watermark. A partition whose segments cannot be read as one log becomes a problem, so that
it does not hide the others.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.errors import ResnapError, UsageError, VerificationError
from resnap.storage.layouts.lineage import chain_of, is_one_lineage
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.log.log_dir import LogDir, PartitionProblem
from resnap.storage.log.partition_dir import PartitionDir, Segment, SnapshotFile
from resnap.storage.packed import pack_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resnap.storage.layouts.manifest import ManifestFacts
    from resnap.storage.log.log_dir import Incomplete
    from resnap.storage.log.names import StorePath, TopicPartition
    from resnap.storage.stores.protocol import ObjectInfo


class ManifestSegment(NamedTuple):
    """A segment as part of a log dir, with what its manifest says."""

    facts: ManifestFacts
    segment: Segment
    snapshot: SnapshotFile
    """At its end."""
    leader_epochs: str | None
    """The locator of the leader epochs up to its end; None if there are none."""


class ListedSegment(NamedTuple):
    """A segment that a layout has found: as it was read, or the reason why it cannot be read."""

    topic_partition: TopicPartition
    topic_id: str
    """As in keys."""
    base_offset: int
    path: StorePath
    """The locator of the partition."""
    segment: ManifestSegment | None
    error: ResnapError | None = None


def stored_log_dir(
    root: StorePath,
    found: Iterable[ListedSegment],
    chain: Callable[[TopicPartition, Sequence[ListedSegment]], Sequence[ManifestSegment]],
    *,
    topic_ids: Mapping[str, str] | None,
    url_of_one: str,
    incomplete: Iterable[Incomplete] = (),
) -> LogDir:
    """Return the log dir of the partitions of all ``found``.

    ``chain`` returns the segments of a partition that are read, in offset order, each beginning where the last ends; if
    it raises an error, the partition becomes a problem. So do partitions of several topics of one name, unless
    ``topic_ids`` selects one by name; ``url_of_one`` is the form of a URL that has one of these topics only. Segments
    that are ``incomplete`` are named as such. The log dir has the id of a broker only if all segments are of that one.

    Raises:
        UsageError: segments of several clusters.

    """
    found = list(found)
    known = [listed.segment.facts for listed in found if listed.segment is not None]
    clusters, brokers = ({of(log) for log in known} for of in (attrgetter("cluster_id"), attrgetter("broker_id")))
    if len(clusters) > 1:
        names = sorted(str(cluster) for cluster in clusters)
        hint = f"give the URL with the id of one, such as {root}/{next(name for name in names if name != 'None')}"
        raise UsageError(f"{root}: segments of several clusters: {', '.join(names)}", hint=hint)
    loaded: list[PartitionDir] = []
    problems: list[PartitionProblem] = []
    for topic_partition, of_partition, error in _one_of_each_name(found, topic_ids or {}, url_of_one):
        path = of_partition[0].path
        try:
            if error is not None:
                raise error
            loaded.append(_partition(path, topic_partition, chain(topic_partition, of_partition)))
        except ResnapError as problem:
            problems.append(PartitionProblem(path=path, error=problem, topic_partition=topic_partition))
    return LogDir(
        path=root,
        cluster_id=next(iter(clusters), None),
        broker_id=next(iter(brokers)) if len(brokers) == 1 else None,
        partitions=tuple(loaded),
        set_aside={},
        clean_shutdown=False,
        problems=tuple(problems),
        incomplete=tuple(incomplete),
        is_shipped=True,
    )


def _one_of_each_name(
    found: Iterable[ListedSegment], chosen: Mapping[str, str], url: str
) -> Iterator[tuple[TopicPartition, Sequence[ListedSegment], ResnapError | None]]:
    """Yield partitions with their segments: of several topics of a name those of the selected one, or an error."""
    partitions: dict[TopicPartition, dict[str, list[ListedSegment]]] = {}
    ids: dict[str, set[str]] = {}
    for listed in found:
        partitions.setdefault(listed.topic_partition, {}).setdefault(listed.topic_id, []).append(listed)
        ids.setdefault(listed.topic_partition.topic, set()).add(listed.topic_id)
    for topic_partition, by_id in sorted(partitions.items()):
        several, choice = sorted(ids[topic_partition.topic]), chosen.get(topic_partition.topic)
        if len(several) == 1 or choice in several:
            only = choice if choice in several else several[0]
            yield from ((topic_partition, segments, None) for key, segments in by_id.items() if key == only)
            continue
        none = "" if choice is None else f", and none of them is {choice}"
        error = VerificationError(
            f"{topic_partition}: segments of several topics of this name: {', '.join(several)}{none}",
            hint=f"give the URL of one: {url}; `resnap restore` takes --topic-id {topic_partition.topic}=ID, too",
        )
        yield topic_partition, next(iter(by_id.values())), error


def _partition(path: StorePath, topic_partition: TopicPartition, chain: Sequence[ManifestSegment]) -> PartitionDir:
    """Return a partition of the log dir, with the segments of ``chain``, at least one."""
    return PartitionDir(
        path=path,
        topic_partition=topic_partition,
        segments=pack_all((segment.segment for segment in chain), "base_offset"),
        snapshots=pack_all((segment.snapshot for segment in chain), "offset"),
        unfinished=(),
        deleted=0,
        # Those of the last segment have those of all before it.
        leader_epochs=chain[-1].leader_epochs,
        topic_id=next((segment.facts.topic_id for segment in chain if segment.facts.topic_id is not None), None),
        high_watermark=chain[-1].facts.next_base_offset,
        log_start_offset=chain[0].facts.base_offset,
        recovery_point=None,
        cleaner_offset=None,
    )


def closed_segment(of: ManifestFacts, path: str, log: ObjectInfo, sizes: Mapping[ObjectKind, int | None]) -> Segment:
    """Return the segment ``of`` as part of a log dir: its log at ``path``, in the object ``log``; ``sizes`` by file."""
    return Segment(
        base_offset=of.base_offset,
        next_base_offset=of.next_base_offset,
        path=path,
        size_bytes=sizes[ObjectKind.LOG] or 0,
        mtime_ns=log.modified_ms * 1_000_000,
        inode=0,
        index_bytes=sizes.get(ObjectKind.INDEX),
        timeindex_bytes=sizes.get(ObjectKind.TIME_INDEX),
        txnindex_bytes=sizes.get(ObjectKind.TXN_INDEX),
    )


def end_snapshot(of: ManifestFacts, path: str, info: ObjectInfo, size_bytes: int) -> SnapshotFile:
    """Return the snapshot at the end of the segment ``of``, stored in the object ``info``."""
    return SnapshotFile(
        offset=of.next_base_offset, path=path, size_bytes=size_bytes, mtime_ns=info.modified_ms * 1_000_000
    )


def all_read(found: Iterable[ListedSegment]) -> list[ManifestSegment]:
    """Return the segments of a partition; raises the error of the first one that cannot be read."""
    segments = []
    for listed in found:
        if listed.error is not None:
            raise listed.error
        segments += [] if listed.segment is None else [listed.segment]
    return segments


def whole_chain(topic_partition: TopicPartition, found: Iterable[ListedSegment], *, hint: str) -> list[ManifestSegment]:
    """Return the segments to read, in offset order: every offset exactly once.

    Of several that end at one offset the one made last is read.

    Raises:
        VerificationError: they are of two histories, or leave a gap, or overlap so that none of them begins where
            another ends.
        ResnapError: one of them cannot be read.

    """
    segments = {id(segment.facts): segment for segment in all_read(found)}
    made = sorted((segment.facts for segment in segments.values()), key=attrgetter("made"))
    ordered = sorted(made, key=attrgetter("base_offset", "next_base_offset"))
    _check_lineage(topic_partition, ordered, hint)
    chain = chain_of(made)
    reached = ordered[0].base_offset
    for manifest in chain:
        if manifest.base_offset != reached:
            break
        reached = manifest.next_base_offset
    if reached < max(manifest.next_base_offset for manifest in ordered):
        is_held = any(manifest.base_offset <= reached < manifest.next_base_offset for manifest in ordered)
        what = "overlap, and none of them continues the log" if is_held else "leave a gap"
        raise VerificationError(f"{topic_partition}: the segments {what} at offset {reached}", hint=hint)
    return [segments[id(manifest)] for manifest in chain]


def _check_lineage(topic_partition: TopicPartition, ordered: Sequence[ManifestFacts], hint: str) -> None:
    farthest = ordered[0]
    for manifest in ordered[1:]:
        if not is_one_lineage(farthest, manifest):
            raise VerificationError(
                f"{topic_partition}: the segments {farthest.offsets} and {manifest.offsets} overlap under different"
                " leader epochs",
                hint=hint,
            )
        farthest = max(farthest, manifest, key=attrgetter("next_base_offset"))
