"""A prefix of a store, or one partition in it, as a log dir: a plain copy of one, or what Resnap or brokers tiered.

Which of these it is shows in its keys. Nothing but names, sizes, times and small objects is read.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.disk import is_there
from resnap.storage.errors import UsageError
from resnap.storage.log.log_dir import NoLogDirError, open_log_dir_or_partition
from resnap.storage.log.names import is_segment_name
from resnap.storage.log.store_path import StorePath
from resnap.storage.log.survey import live_partition
from resnap.storage.sources.registry import READABLE, READABLE_BY_KEYS_ALONE, SHIPPED, TIERED, layout_in
from resnap.storage.stores.urls import is_store_url, local_path, without_slash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resnap.storage.layouts.protocol import Stored, Tiered
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.survey import LogDir
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
    """Return the log dir at ``source``, a path or the URL of a prefix; of its partitions those that ``topics`` wants.

    One partition's directory, or its prefix, gives the log dir above with it alone. Of several topics of one name that
    were shipped to a prefix ``topic_ids`` chooses one, by name. Of a store's objects those are read whose keys
    ``counts`` takes.

    Raises:
        UsageError: nothing there, or neither a log dir nor a copy of one nor what Resnap has shipped.
        LogDirError: the operating system does not let us read it.
        StoreError: the store failed.

    """
    if not is_store_url(source):
        return open_log_dir_or_partition(Path(source), topics=topics)
    url = without_slash(source)
    path = local_path(url)
    listed = iter(sources.store(url).list())
    seen: list[ObjectInfo] = []

    def read_in(layout: Stored, depth: int) -> LogDir:
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
    """Return what ``open_source`` does of a store that is to hold what was tiered; raises as it does.

    Where Resnap and brokers have tiered to one place, in layouts of their own, each partition is read in the one in
    which it begins lowest, and then ends highest.
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
    """Return the log dir that has of each partition the longest of its logs in ``parts``; at least one."""
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
    """Return the error of a store without anything that was tiered."""
    hint = (
        "give the prefix that brokers tier to, or the URL that `resnap tier --to` was given; with the plugin of Aiven"
        " its key.prefix, too: --key-prefix PREFIX where there is the flag, else as part of the URL"
    )
    return UsageError(f"nothing that was tiered lies in {url}", hint=hint)


class TieredPart(NamedTuple):
    """What was tiered to a store, or to a part of one."""

    layout: Tiered
    store: ObjectStore
    within: str
    """What the keys of that part begin with: nothing, if it is all."""


def tiered_part(url: str, sources: Sources) -> TieredPart:
    """Return what ``url`` holds: the first segment that was tiered decides; where there is none, it is a store.

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
    """Return ``tiered_part`` in each layout in which something lies there, that of Resnap's own manifests first.

    Brokers that tier to where Resnap has shipped write no such manifest.

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


def _layout_of(url: str, key: str) -> tuple[Stored | None, int]:
    """Return the layout that ``key`` below ``url`` is of, and how many folders above ``url`` it begins.

    Raises:
        UsageError: a segment right below a prefix of a store that is not named like a partition.

    """
    layout, depth = _match(url, key, READABLE)
    if layout is None and is_segment_name(key) and local_path(url) is None:
        live_partition(StorePath(url))
    return layout, depth


def _match(url: str, key: str, layouts: Iterable[Stored]) -> tuple[Stored | None, int]:
    above = _folders(url)
    for layout in layouts:
        for depth in range(min(layout.folders, len(above)) + 1):
            if layout.is_key("/".join([*above[len(above) - depth :], key])):
                return layout, depth
    return None, 0


def _folders(url: str) -> list[str]:
    """Return the folders of a URL, without its bucket."""
    return url.partition("://")[2].split("/")[1:]


def _above(url: str, depth: int) -> tuple[str, str]:
    """Return the URL that lies ``depth`` folders above ``url``, and the folders between, each with a slash."""
    parts = url.split("/")
    return "/".join(parts[: len(parts) - depth]), "".join(f"{part}/" for part in parts[len(parts) - depth :])


def _rekeyed(listed: Iterable[ObjectInfo], folders: str) -> Iterator[ObjectInfo]:
    """Yield the objects as seen from above ``folders``."""
    return (replace(info, key=f"{folders}{info.key}") for info in listed) if folders else iter(listed)
