"""A prefix of a store, or one partition in it, as a log dir: a plain copy of one, or what Resnap or brokers tiered.

Which of these it is shows in its keys. Nothing but names, sizes, times and small objects is read.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.errors import UsageError
from resnap.storage.log.log_dir import NoLogDirError, open_log_dir_or_partition
from resnap.storage.log.names import is_segment_name
from resnap.storage.log.store_path import StorePath
from resnap.storage.log.survey import live_partition
from resnap.storage.sources.registry import READABLE, READABLE_BY_KEYS_ALONE, SHIPPED, layout_in
from resnap.storage.stores.urls import is_store_url, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from resnap.storage.layouts.protocol import Stored, Tiered
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.survey import LogDir
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore


def open_source(
    source: str,
    sources: Sources,
    *,
    topics: Callable[[TopicPartition], bool] | None = None,
    topic_ids: Mapping[str, str] | None = None,
) -> LogDir:
    """Return the log dir at ``source``, a path or the URL of a prefix; of its partitions those that ``topics`` wants.

    One partition's directory, or its prefix, gives the log dir above with it alone. Of several topics of one name that
    were shipped to a prefix ``topic_ids`` chooses one, by name.

    Raises:
        UsageError: nothing there, or neither a log dir nor a copy of one nor what Resnap has shipped.
        LogDirError: the operating system does not let us read it.
        StoreError: the store failed.

    """
    if not is_store_url(source):
        return open_log_dir_or_partition(Path(source), topics=topics)
    url = source.rstrip("/")
    path = local_path(url)
    listed = iter(sources.store(url).list())
    seen: list[ObjectInfo] = []

    def read_in(layout: Stored, depth: int) -> LogDir:
        root, within = _above(url, depth)
        found = _rekeyed(chain(seen, listed), within)
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
    if path is not None:
        return open_log_dir_or_partition(path, topics=topics)
    raise NoLogDirError(
        f"{url} holds neither a copy of a Kafka log dir nor segments that Resnap has shipped",
        hint="give the prefix right above the <topic>-<partition> folders, or what `resnap tier --to` was given",
    )


def open_tiered(
    url: str,
    sources: Sources,
    *,
    topics: Callable[[TopicPartition], bool] | None = None,
    topic_ids: Mapping[str, str] | None = None,
) -> LogDir:
    """Return what ``open_source`` does of a store that is to hold what was tiered; raises as it does."""
    try:
        return open_source(url, sources, topics=topics, topic_ids=topic_ids)
    except NoLogDirError as error:
        raise nothing_tiered(url) from error


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
    store, within = sources.store(url.rstrip("/")), ""
    for layouts in (SHIPPED, READABLE_BY_KEYS_ALONE):
        found = (_match(store.url, info.key, layouts) for info in store.list())
        layout, depth = next((pair for pair in found if pair[0] is not None), (None, 0))
        if layout is not None:
            root, within = _above(store.url, depth)
            store = sources.store(root)
            break
    return TieredPart(layout_in(store, within), store, within)


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
