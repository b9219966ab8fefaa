"""Opens a prefix of a store as a log dir, and joins a log dir with what was tiered of it.

The keys show whether it is a plain copy or what was tiered there. Only names, sizes, times and small objects are read.

A log dir and the remote part of its partitions as one log: remote segments below, the log dir's own above.

Where both have an offset, the log dir's segment is read. That both are one log is known by the first batch that both
must have, byte by byte, and by the leader epochs. Where batches differ under different leader epochs, one of two
histories was lost, as after an unclean election: the leader epochs of the log dir decide, as they do for a broker, and
the remote segments of the other history count for nothing, if they are where the log dir has its own. Everything else
that does not fit makes the partition a problem, which names both places.

Source: ``RemoteLogManager.isRemoteSegmentWithinLeaderEpochs``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.disk import is_there
from resnap.storage.errors import ResnapError, UsageError, VerificationError, in_file
from resnap.storage.layouts.lineage import OpenableSegment, first_batch, shared_batch
from resnap.storage.log.checkpoints import epochs_in, read_leader_epochs
from resnap.storage.log.log_dir import NoLogDirError, PartitionProblem, live_partition, open_log_dir_or_partition
from resnap.storage.log.names import StorePath, is_segment_name
from resnap.storage.sources.files import cut_locator
from resnap.storage.sources.registry import READABLE, READABLE_BY_KEYS_ALONE, SHIPPED, TIERED, layout_in
from resnap.storage.stores.urls import check_form, is_store_url, local_path, without_slash
from resnap.storage.threads import each
from resnap.storage.words import first_of, is_utf8, some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from resnap.storage.layouts.mirror import Mirror
    from resnap.storage.layouts.protocol import Tiered
    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.log.log_dir import Incomplete, LogDir
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore


def open_source(
    source: str,
    sources: Sources,
    *,
    topics: Callable[[TopicPartition], bool] | None = None,
    topic_ids: Mapping[str, str] | None = None,
    counts: Callable[[str], bool] = lambda _: True,
) -> LogDir:
    """Return the log dir at ``source``, a path or the URL of a prefix, with the partitions that ``topics`` selects.

    One partition's directory, or its prefix, gives its parent log dir with that partition only. ``topic_ids`` selects
    one of several topics of one name that were shipped to a prefix. ``counts`` selects the keys of a store's objects
    that are read.

    Raises:
        UsageError: ``source`` does not exist, or is neither a log dir, nor a copy of one, nor a tiered log.
        LogDirError: the operating system does not let us read it.
        StoreError: the store failed.

    """
    if not is_store_url(source):
        whole = str(Path(source).absolute())
        if not is_utf8(whole):  # given by a variable, or by where the command is run
            hint = "rename the directory: results and URLs could not name it"
            raise UsageError(f"{whole!a} is not UTF-8, as all paths of brokers are", hint=hint)
        return open_log_dir_or_partition(Path(source), topics=topics)
    url = without_slash(source)
    path = local_path(url)
    listed = iter(sources.store(url).list())
    seen: list[ObjectInfo] = []

    def read_in(layout: Tiered | Mirror, depth: int) -> LogDir:
        root, within = _above(url, depth)
        found = (info for info in _with_relative_keys(chain(seen, listed), within) if counts(info.key))
        return layout.log_dir(sources.store(root), found, topics, within=within, topic_ids=topic_ids)

    for info in listed:
        seen.append(info)
        layout, depth = _layout_of(url, info.key)
        if layout is None:
            continue
        if layout.is_plain_copy and path is not None:
            break  # a directory like any other
        return read_in(layout, depth)
    for info in seen:
        layout, depth = _match(url, info.key, READABLE_BY_KEYS_ALONE)
        if layout is not None:
            return read_in(layout, depth)
    if path is not None and is_there(path):
        with suppress(NoLogDirError):
            return open_log_dir_or_partition(path, topics=topics)
    raise _no_log(url, seen)


def open_tiered(
    url: str,
    sources: Sources,
    *,
    topics: Callable[[TopicPartition], bool],
    topic_ids: Mapping[str, str],
    counts: Callable[[str], bool],
) -> LogDir:
    """Return the log dir of a store that must hold tiered segments; raises as ``open_source`` does.

    If Resnap and brokers tiered to one place in different layouts, each partition is read in the layout with its lowest
    start offset, and of equal ones in that with the highest end offset.
    """
    there: dict[str, Tiered] = {}

    def noted(key: str) -> bool:
        there.update((layout.name, layout) for layout in TIERED if layout.name not in there and layout.is_key(key))
        return counts(key)

    try:
        found = open_source(url, sources, topics=topics, topic_ids=topic_ids, counts=noted)
    except NoLogDirError as error:
        raise nothing_tiered(url) from error
    if not found.is_shipped or len(there) < 2:  # noqa: PLR2004 - one layout, or several
        return found
    store = sources.store(without_slash(url))
    return _longest_logs(
        [
            layout.log_dir(store, (info for info in store.list() if counts(info.key)), topics, topic_ids=topic_ids)
            for layout in there.values()
        ]
    )


def _longest_logs(parts: Sequence[LogDir]) -> LogDir:
    """Return a log dir with the longest log of each partition in ``parts``, at least one log dir."""
    longest: dict[TopicPartition, PartitionDir] = {}
    for log in sorted((partition for part in parts for partition in part.partitions), key=_extent):
        longest.setdefault(log.topic_partition, log)
    return replace(
        parts[0],
        cluster_id=next((part.cluster_id for part in parts if part.cluster_id is not None), None),
        broker_id=None,
        partitions=tuple(longest[name] for name in sorted(longest)),
        problems=tuple(one for part in parts for one in part.problems if one.topic_partition not in longest),
        incomplete=tuple(partition for part in parts for partition in part.incomplete),
    )


def _extent(partition: PartitionDir) -> tuple[int, int]:
    """Return the sort key of a log: the one that begins first comes first, and of several the longest one."""
    segments = partition.segments
    return segments[0].base_offset, -(segments[-1].next_base_offset or segments[-1].base_offset)


def nothing_tiered(url: str) -> UsageError:
    """Return the error for a store without any tiered segments.

    Raises:
        UsageError: it is none, but a path; the error says the URL.

    """
    check_form(url)
    hint = (
        "give the prefix that brokers tier to, or the URL that `resnap tier --to` was given; with the plugin of Aiven"
        " its key.prefix, too: --key-prefix PREFIX if the command has that flag, else as part of the URL"
    )
    return UsageError(f"{url} holds no tiered segment", hint=hint)


class TieredPart(NamedTuple):
    """The tiered segments of a store, or of a part of one."""

    layout: Tiered
    store: ObjectStore
    within: str
    """What the keys of that part begin with: nothing, if it is all."""


def tiered_part(url: str, sources: Sources) -> TieredPart:
    """Return the content of ``url`` in the layout of its first tiered segment; an empty store if there is none.

    Raises:
        StoreError: the store failed.

    """
    store, within = sources.store(without_slash(url)), ""
    layout, depth = _first_match(store, SHIPPED, READABLE_BY_KEYS_ALONE)
    if layout is not None:
        root, within = _above(store.url, depth)
        store = sources.store(root)
    return TieredPart(layout_in(store, within), store, within)


def layout_at(url: str, sources: Sources) -> Tiered | Mirror | None:
    """Return the layout in which ``open_source`` reads the content of ``url``; None if there is nothing of any.

    Raises:
        StoreError: the store failed.

    """
    return _first_match(sources.store(without_slash(url)), READABLE, READABLE_BY_KEYS_ALONE)[0]


def _first_match(store: ObjectStore, *groups: Iterable[Tiered | Mirror]) -> tuple[Tiered | Mirror | None, int]:
    """Return what ``_match`` says of the first object in a layout of the first of ``groups`` that has any."""
    matches = (_match(store.url, info.key, layouts) for layouts in groups for info in store.list())
    return next((match for match in matches if match[0] is not None), (None, 0))


def _layout_of(url: str, key: str) -> tuple[Tiered | Mirror | None, int]:
    """Return the layout of ``key`` below ``url``, and how many folders above ``url`` it begins.

    Raises:
        UsageError: a segment is directly below a prefix that is not named like a partition.

    """
    layout, depth = _match(url, key, READABLE)
    if layout is None and is_segment_name(key) and local_path(url) is None:
        live_partition(StorePath(url))
    return layout, depth


def _no_log(url: str, seen: Sequence[ObjectInfo]) -> NoLogDirError:
    """Return the error for ``url``, which says where they are if only folders in front of the keys are too many."""
    hint = "give the prefix right above the <topic>-<partition> folders, or what `resnap tier --to` was given"
    for folder in filter(None, (_begins_below(info.key) for info in seen[:_MOST_TRIED])):
        hint = f"give {url}/{folder}, where they are"
        break
    what = f"{url} holds neither a copy of a Kafka log dir nor segments that Resnap has shipped"
    return NoLogDirError(what, hint=hint)


def _begins_below(key: str) -> str | None:
    """Return the folder in which ``key`` would be one of a layout; None if it would in none."""
    parts = key.split("/")
    return next(
        (
            "/".join(parts[:depth])
            for depth in range(1, len(parts))
            for layout in (*READABLE, *READABLE_BY_KEYS_ALONE)
            if layout.is_key("/".join(parts[depth:]))
        ),
        None,
    )


def _match(url: str, key: str, layouts: Iterable[Tiered | Mirror]) -> tuple[Tiered | Mirror | None, int]:
    above = url.partition("://")[2].split("/")[1:]  # the folders of the URL, without its bucket
    for layout in layouts:
        for depth in range(min(layout.folders, len(above)) + 1):
            if layout.is_key("/".join([*above[len(above) - depth :], key])):
                return layout, depth
    return None, 0


def _above(url: str, depth: int) -> tuple[str, str]:
    """Return the URL ``depth`` folders above ``url``, and the folders between, each with a slash."""
    parts = url.split("/")
    return "/".join(parts[: len(parts) - depth]), "".join(f"{part}/" for part in parts[len(parts) - depth :])


def _with_relative_keys(listed: Iterable[ObjectInfo], folders: str) -> Iterator[ObjectInfo]:
    """Yield the objects with keys relative to the folder above ``folders``."""
    return (replace(info, key=f"{folders}{info.key}") for info in listed) if folders else iter(listed)


_MOST_NAMED: Final = 5
_MOST_TRIED: Final = 1000
"""Keys of which it is asked whether they would be of a layout, but for the folders above."""
_MOST_SEGMENTS_NAMED: Final = 20
_LOST_HISTORY: Final = "one of them is of a history that was lost, as after an unclean election: take another replica"


class Joining(NamedTuple):
    """What one store holds of several log dirs, listed once."""

    url: str
    stored: LogDir
    sources: Sources
    known: Callable[[PartitionDir, int, int], Sequence[str]]
    """Returns the segments that brokers know of between two offsets of a partition."""


def with_remote(log_dir: LogDir, joining: Joining) -> LogDir:
    """Return ``log_dir`` with its partitions joined with what a store holds of them.

    A partition that cannot be joined becomes a problem; so does what of the store cannot be read.

    Raises:
        UsageError: another cluster tiered to it.

    """
    stored, remote = joining.stored, joining.url
    if stored.cluster_id is not None and log_dir.cluster_id not in {None, stored.cluster_id}:
        raise UsageError(
            f"{remote} holds segments of the cluster {stored.cluster_id}, {log_dir.path} is of {log_dir.cluster_id}",
            hint="give the store of the cluster that the log dir is of",
        )
    remote_parts = {partition.topic_partition: partition for partition in stored.partitions}

    def join(partition: PartitionDir) -> PartitionDir | PartitionProblem:
        try:
            return _join(partition, remote_parts.get(partition.topic_partition), joining)
        except ResnapError as error:
            return PartitionProblem(path=partition.path, error=error, topic_partition=partition.topic_partition)

    joined = list(each(join, log_dir.partitions, remote=True))
    problems = [found for found in joined if isinstance(found, PartitionProblem)]
    return replace(
        log_dir,
        partitions=tuple(found for found in joined if not isinstance(found, PartitionProblem)),
        problems=(*log_dir.problems, *problems),
        remote=remote,
    )


def _join(local: PartitionDir, remote: PartitionDir | None, joining: Joining) -> PartitionDir:
    """Return both parts as one log.

    Raises:
        VerificationError: they are not of one log, or offsets are missing between them.

    """
    if not local.segments:
        return local
    begins = local.segments[0].base_offset
    below = [] if remote is None else [segment for segment in remote.segments if segment.base_offset < begins]
    reached = _end(below[-1]) if below else min(local.log_start_offset, begins)
    if remote is not None:
        if None not in (local.topic_id, remote.topic_id) and local.topic_id != remote.topic_id:
            raise VerificationError(
                f"{remote.path} is of the topic with id {remote.topic_id}, {local.path} of {local.topic_id}",
                hint="the topic was deleted and created again, or the store is that of another cluster",
            )
        _check_same_log(local, remote, joining.sources)
    if reached < begins:
        known = joining.known(local, reached, begins)
        named = f"; brokers know the segments {', '.join(known[:_MOST_NAMED])} of them" if known else ""
        raise VerificationError(
            f"{local.path} begins at offset {begins}, and what {joining.url} holds of it ends at {reached}: the offsets"
            f" between are missing{named}",
            hint="give the store that the cluster tiers to, with its --key-prefix; what is lost there is in no replica",
        )
    if remote is None or not below:
        return local
    if reached > begins:
        below[-1] = _cut_off(below[-1], begins, joining.sources)
    return replace(
        local,
        segments=(*below, *local.segments),
        snapshots=(*(snapshot for snapshot in remote.snapshots if snapshot.offset <= begins), *local.snapshots),
        local_from=begins,
    )


def _check_same_log(local: PartitionDir, remote: PartitionDir, sources: Sources) -> None:
    """Refuse parts that differ below the log dir's own segments, or in bytes under the same leader epochs.

    Raises:
        VerificationError: they do.
        FormatError, LogDirError, StoreError: a file that would show it cannot be read.

    """
    begins = local.segments[0].base_offset
    ours, theirs = (_leader_epochs(partition, sources) for partition in (local, remote))
    lowest = max((epochs[0].start_offset for epochs in (ours, theirs) if epochs), default=begins)
    start = max(lowest, remote.segments[0].base_offset)
    if ours and theirs and start < begins and epochs_in(ours, start, begins) != epochs_in(theirs, start, begins):
        raise VerificationError(
            f"{local.path} and {remote.path} have different leader epochs between the offsets {start} and {begins}",
            hint=_LOST_HISTORY,
        )
    if remote.segments[0].base_offset < begins:
        below, above = epochs_in(theirs, begins - 1, begins), epochs_in(ours, begins, begins + 1)
        if below and above and below[-1].epoch > above[0].epoch:
            raise VerificationError(
                f"{local.path} begins at offset {begins} under leader epoch {above[0].epoch}, and what lies below it in"
                f" {remote.path} is of leader epoch {below[-1].epoch}, a later one",
                hint=_LOST_HISTORY,
            )
    shared = shared_batch(_pieces(local.segments, sources), _pieces(remote.segments, sources))
    if shared is None or shared.is_same:
        return
    at = [epochs_in(epochs, shared.offset, shared.offset + 1) for epochs in (ours, theirs)]
    if not all(at) or at[0] == at[1]:
        raise VerificationError(
            f"{local.path} and {remote.path} have different batches at offset {shared.offset}, and their leader epochs "
            "do not show which of them is right",
            hint="the store may be that of another cluster or topic of this name; else take another replica",
        )


def _leader_epochs(partition: PartitionDir, sources: Sources) -> tuple[LeaderEpoch, ...]:
    if partition.leader_epochs is None:
        return ()
    with in_file(partition.leader_epochs):
        return read_leader_epochs(sources.read(partition.leader_epochs))


def _pieces(segments: Sequence[Segment], sources: Sources) -> list[OpenableSegment]:
    return [_piece(segment, sources) for segment in segments]


def _piece(segment: Segment, sources: Sources) -> OpenableSegment:
    def opened(range_bytes: int) -> AbstractContextManager[RangeReader]:
        return replace(sources, range_bytes=range_bytes, ranges_in_flight=1).open(segment.path)

    return OpenableSegment(segment.base_offset, segment.next_base_offset, opened)


def _cut_off(segment: Segment, end: int, sources: Sources) -> Segment:
    """Return ``segment`` up to the offset ``end``, at which another one begins."""
    size, _ = first_batch(_piece(segment, sources), end)
    return replace(segment, path=cut_locator(segment.path, size), size_bytes=size, next_base_offset=end)


def _end(segment: Segment) -> int:
    if segment.next_base_offset is None:
        raise VerificationError(
            f"{segment.path} is the last segment of a copy of a log dir, and not of remote storage",
            hint="give what brokers or `resnap tier` have shipped",
        )
    return segment.next_base_offset


def incomplete_warning(segments: Sequence[Incomplete], url: str) -> Iterator[str]:
    """Yield a warning if segments of the store at ``url`` lack objects, with the next step."""
    if segments:
        named = [f"{one.topic_partition} from offset {one.base_offset} ({one.missing_key})" for one in segments]
        yield (
            f"{some(len(segments), 'segment')} skipped, since an object is missing: a copy or a deletion did not "
            f"finish, or the object was lost: {first_of(named, _MOST_SEGMENTS_NAMED)}; `resnap remote status LOG_DIR"
            f" --store {url}` shows whether brokers know the segment;"
            " if they do, restore the object from another copy of the store"
        )
