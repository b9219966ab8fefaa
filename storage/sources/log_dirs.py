"""Opens a prefix of a store, or one partition in it, as a log dir: a plain copy, or what was tiered there.

The keys show which of these it is. Only names, sizes, times and small objects are read.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.disk import is_there
from resnap.storage.errors import UsageError
from resnap.storage.log.log_dir import NoLogDirError, live_partition, open_log_dir_or_partition
from resnap.storage.log.names import StorePath, is_segment_name
from resnap.storage.sources.registry import READABLE, READABLE_BY_KEYS_ALONE, SHIPPED, TIERED, layout_in
from resnap.storage.stores.urls import is_store_url, local_path, without_slash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resnap.storage.layouts.mirror import Mirror
    from resnap.storage.layouts.protocol import Tiered
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir
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
        return open_log_dir_or_partition(Path(source), topics=topics)
    url = without_slash(source)
    path = local_path(url)
    listed = iter(sources.store(url).list())
    seen: list[ObjectInfo] = []

    def read_in(layout: Tiered | Mirror, depth: int) -> LogDir:
        root, within = _above(url, depth)
        found = (info for info in _rekeyed(chain(seen, listed), within) if counts(info.key))
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
        return open_log_dir_or_partition(path, topics=topics)
    raise NoLogDirError(
        f"{url} holds neither a copy of a Kafka log dir nor segments that Resnap has shipped",
        hint="give the prefix right above the <topic>-<partition> folders, or what `resnap tier --to` was given",
    )


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
        there.update((one.name, one) for one in TIERED if one.name not in there and one.is_key(key))
        return counts(key)

    try:
        found = open_source(url, sources, topics=topics, topic_ids=topic_ids, counts=noted)
    except NoLogDirError as error:
        raise nothing_tiered(url) from error
    if not found.is_shipped or len(there) < 2:  # noqa: PLR2004 - one layout, or several
        return found
    store = sources.store(without_slash(url))
    return _united(
        [
            layout.log_dir(store, (info for info in store.list() if counts(info.key)), topics, topic_ids=topic_ids)
            for layout in there.values()
        ]
    )


def _united(parts: Sequence[LogDir]) -> LogDir:
    """Return the log dir that has the longest log of each partition in ``parts``, of which there is at least one."""
    longest: dict[TopicPartition, PartitionDir] = {}
    for one in sorted((one for part in parts for one in part.partitions), key=_extent):
        longest.setdefault(one.topic_partition, one)
    return replace(
        parts[0],
        cluster_id=next((part.cluster_id for part in parts if part.cluster_id is not None), None),
        broker_id=None,
        partitions=tuple(longest[name] for name in sorted(longest)),
        problems=tuple(one for part in parts for one in part.problems if one.topic_partition not in longest),
        incomplete=tuple(one for part in parts for one in part.incomplete),
    )


def _extent(partition: PartitionDir) -> tuple[int, int]:
    segments = partition.segments
    return segments[0].base_offset, -(segments[-1].next_base_offset or segments[-1].base_offset)


def nothing_tiered(url: str) -> UsageError:
    """Return the error for a store without any tiered segments."""
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
    for layouts in (SHIPPED, READABLE_BY_KEYS_ALONE):
        found = (_match(store.url, info.key, layouts) for info in store.list())
        layout, depth = next((pair for pair in found if pair[0] is not None), (None, 0))
        if layout is not None:
            root, within = _above(store.url, depth)
            store = sources.store(root)
            break
    return TieredPart(layout_in(store, within), store, within)


def tiered_parts(url: str, sources: Sources) -> list[TieredPart]:
    """Return ``tiered_part`` in each layout that has segments there, the one with Resnap's own manifests first.

    Brokers that tier to the same place write no such manifest.

    Raises:
        StoreError: the store failed.

    """
    first = tiered_part(url, sources)
    others = [layout for layout in TIERED if layout.name != first.layout.name]
    found: dict[str, Tiered] = {}
    for info in first.store.list(first.within) if first.layout in SHIPPED else ():
        found.update((one.name, one) for one in others if one.name not in found and one.is_key(info.key))
    parts = [first, *(first._replace(layout=one) for one in others if one.name in found)]
    return sorted(parts, key=lambda part: not part.layout.tells_digests)


def layout_at(url: str, sources: Sources) -> Tiered | Mirror | None:
    """Return the layout in which ``open_source`` reads the content of ``url``; None if there is nothing of any.

    Raises:
        StoreError: the store failed.

    """
    store = sources.store(without_slash(url))
    for layouts in (READABLE, READABLE_BY_KEYS_ALONE):
        found = (_match(store.url, info.key, layouts)[0] for info in store.list())
        layout = next((one for one in found if one is not None), None)
        if layout is not None:
            return layout
    return None


def _layout_of(url: str, key: str) -> tuple[Tiered | Mirror | None, int]:
    """Return the layout of ``key`` below ``url``, and how many folders above ``url`` it begins.

    Raises:
        UsageError: a segment lies directly below a prefix that is not named like a partition.

    """
    layout, depth = _match(url, key, READABLE)
    if layout is None and is_segment_name(key) and local_path(url) is None:
        live_partition(StorePath(url))
    return layout, depth


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


def _rekeyed(listed: Iterable[ObjectInfo], folders: str) -> Iterator[ObjectInfo]:
    """Yield the objects with keys relative to the folder above ``folders``."""
    return (replace(info, key=f"{folders}{info.key}") for info in listed) if folders else iter(listed)
