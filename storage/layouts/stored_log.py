"""Builds log dir values from the segments that a layout finds in a store.

A layout knows the segments of each partition and how they follow one another. All of them are closed, and all shipped
segments lie below the high watermark. A partition whose segments cannot be read as one log becomes a problem, so that
it does not hide the others.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from resnap.storage.errors import ResnapError, VerificationError
from resnap.storage.layouts.lineage import chain_of, is_one_lineage
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.log.partition_dir import PartitionDir, Segment, SnapshotFile
from resnap.storage.log.survey import LogDir, PartitionProblem
from resnap.storage.packed import packed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from resnap.storage.layouts.lineage import Link
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.store_path import StorePath
    from resnap.storage.log.survey import Incomplete
    from resnap.storage.stores.protocol import ObjectInfo

T = TypeVar("T")
L = TypeVar("L", bound="Link")


class ClosedSegment(NamedTuple):
    """A segment, and the snapshot at its end."""

    segment: Segment
    snapshot: SnapshotFile


def stored_log_dir(
    root: StorePath,
    found: Mapping[TopicPartition, Mapping[str, T]],
    path_of: Callable[[T, str], StorePath],
    load: Callable[[TopicPartition, str, T], PartitionDir],
    *,
    topic_ids: Mapping[str, str] | None,
    url_of_one: str,
    incomplete: Iterable[Incomplete] = (),
    cluster_id: str | None = None,
    broker_ids: Collection[int | None] = (),
) -> LogDir:
    """Return the log dir of the partitions that were ``found``, by topic id as in keys.

    ``path_of`` gives the path of each, ``load`` the partition; one that cannot be loaded becomes a problem. So do
    partitions of several topics of one name, unless ``topic_ids`` selects one by name; ``url_of_one`` is the form of a
    URL that has one of these topics only. Segments that are ``incomplete`` are named as such. ``broker_ids`` are those
    of the brokers whose segments these are; the log dir has one only if all have the same.
    """
    loaded: list[PartitionDir] = []
    problems: list[PartitionProblem] = []
    for topic_partition, topic_id, one, error in _one_of_each_name(found, topic_ids or {}, url_of_one):
        try:
            if error is not None:
                raise error
            loaded.append(load(topic_partition, topic_id, one))
        except ResnapError as problem:
            path = path_of(one, topic_id)
            problems.append(PartitionProblem(path=path, error=problem, topic_partition=topic_partition))
    return LogDir(
        path=root,
        cluster_id=cluster_id,
        broker_id=next(iter(broker_ids)) if len(broker_ids) == 1 else None,
        partitions=tuple(loaded),
        set_aside=(),
        clean_shutdown=False,
        problems=tuple(problems),
        incomplete=tuple(incomplete),
        is_shipped=True,
    )


def _one_of_each_name(
    found: Mapping[TopicPartition, Mapping[str, T]], chosen: Mapping[str, str], url: str
) -> Iterator[tuple[TopicPartition, str, T, ResnapError | None]]:
    """Yield partitions, topic ids and ``found``: of several topics of a name the selected one, or an error."""
    ids: dict[str, set[str]] = {}
    for topic_partition, by_id in found.items():
        ids.setdefault(topic_partition.topic, set()).update(by_id)
    for topic_partition, by_id in sorted(found.items()):
        several, choice = sorted(ids[topic_partition.topic]), chosen.get(topic_partition.topic)
        if len(several) == 1 or choice in several:
            only = choice if choice in several else several[0]
            yield from ((topic_partition, only, one, None) for key, one in by_id.items() if key == only)
            continue
        none = "" if choice is None else f", and none of them is {choice}"
        error = VerificationError(
            f"{topic_partition}: segments of several topics of this name: {', '.join(several)}{none}",
            hint=f"give the URL of one: {url}; `resnap restore` takes --topic-id {topic_partition.topic}=ID, too",
        )
        topic_id, one = next(iter(by_id.items()))
        yield topic_partition, topic_id, one, error


def stored_partition(
    path: StorePath,
    topic_partition: TopicPartition,
    chain: Sequence[ClosedSegment],
    *,
    leader_epochs: str | None,
    topic_id: str | None,
) -> PartitionDir:
    """Return the partition that ``chain`` makes: segments in offset order, each beginning where the last ends."""
    return PartitionDir(
        path=path,
        topic_partition=topic_partition,
        segments=packed((one.segment for one in chain), "base_offset"),
        snapshots=packed((one.snapshot for one in chain), "offset"),
        unfinished=(),
        deleted=0,
        leader_epochs=leader_epochs,
        topic_id=topic_id,
        high_watermark=chain[-1].segment.next_base_offset,
        log_start_offset=chain[0].segment.base_offset,
        recovery_point=None,
        cleaner_offset=None,
    )


def closed_segment(of: Link, path: str, log: ObjectInfo, sizes: Mapping[ObjectKind, int | None]) -> Segment:
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


def end_snapshot(of: Link, path: str, info: ObjectInfo, size_bytes: int) -> SnapshotFile:
    """Return the snapshot at the end of the segment ``of``, stored in the object ``info``."""
    return SnapshotFile(
        offset=of.next_base_offset, path=path, size_bytes=size_bytes, mtime_ns=info.modified_ms * 1_000_000
    )


def whole_chain(topic_partition: TopicPartition, made: Sequence[L], *, hint: str) -> list[L]:
    """Return the segments to read, in offset order: every offset exactly once.

    ``made`` are in the order in which they were made: of several that end at one offset the last one is read.

    Raises:
        VerificationError: they are of two histories, or leave a gap, or overlap so that none of them begins where
            another ends.

    """
    ordered = sorted(made, key=attrgetter("base_offset", "next_base_offset"))
    _check_lineage(topic_partition, ordered, hint)
    chain = chain_of(made)
    reached = ordered[0].base_offset
    for one in chain:
        if one.base_offset != reached:
            break
        reached = one.next_base_offset
    if reached < max(one.next_base_offset for one in ordered):
        is_held = any(one.base_offset <= reached < one.next_base_offset for one in ordered)
        what = "overlap, and none of them goes on" if is_held else "leave a gap"
        raise VerificationError(f"{topic_partition}: the segments {what} at offset {reached}", hint=hint)
    return chain


def _check_lineage(topic_partition: TopicPartition, ordered: Sequence[Link], hint: str) -> None:
    farthest = ordered[0]
    for one in ordered[1:]:
        if not is_one_lineage(farthest, one):
            raise VerificationError(
                f"{topic_partition}: the segments [{farthest.base_offset}, {farthest.next_base_offset}) and"
                f" [{one.base_offset}, {one.next_base_offset}) overlap under different leader epochs",
                hint=hint,
            )
        farthest = max(farthest, one, key=attrgetter("next_base_offset"))
