"""A prefix of a store, or one partition in it, as a log dir: a plain copy of one, or what Resnap or brokers shipped.

Which of these it is shows in its keys. Nothing but names, sizes, times and small objects is read.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import UsageError
from resnap.storage.layouts.aiven import keys as aiven
from resnap.storage.layouts.aiven.log import copied_log_dir
from resnap.storage.layouts.flat import keys as flat
from resnap.storage.layouts.flat.log import shipped_log_dir
from resnap.storage.layouts.flat.topics import listing_prefix
from resnap.storage.layouts.local_tiered import keys as local_tiered
from resnap.storage.layouts.mirror import is_mirror_key, is_segment_name, mirrored_log_dir
from resnap.storage.log.log_dir import open_log_dir_or_partition
from resnap.storage.log.store_path import StorePath
from resnap.storage.log.survey import live_partition
from resnap.storage.stores.urls import is_store_url, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.survey import LogDir
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore


class _Layout(NamedTuple):
    """How a prefix may hold a log."""

    is_key: Callable[[str], bool]
    folders: int
    """How many folders there are between the prefix and the segments, of which a source may name some, too."""


def _is_flat_key(key: str) -> bool:
    return flat.parse_key(key) is not None


def _is_aiven_key(key: str) -> bool:
    found = aiven.parse_key(key)
    return found is not None and not found.prefix


_FLAT: Final = _Layout(_is_flat_key, 4)
_AIVEN: Final = _Layout(_is_aiven_key, 2)
_MIRROR: Final = _Layout(is_mirror_key, 0)


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
        LogDirError: the operating system does not let us look.
        StoreError: the store failed.

    """
    if not is_store_url(source):
        return open_log_dir_or_partition(Path(source), topics=topics)
    url = source.rstrip("/")
    path = local_path(url)
    listed = iter(sources.store(url).list())
    seen: list[ObjectInfo] = []
    for info in listed:
        seen.append(info)
        layout, depth = _layout_of(url, info.key)
        if layout is _MIRROR and path is not None:
            break  # a directory like any other
        if layout is not None:
            root, within = _above(url, depth)
            store, found = sources.store(root), _rekeyed(chain(seen, listed), within)
            if layout is _FLAT:
                found = found if listing_prefix(within) == within else store.list(listing_prefix(within))
                return shipped_log_dir(store, found, topics, within=within, topic_ids=topic_ids)
            if layout is _AIVEN:
                return copied_log_dir(store, found, topics, topic_ids=topic_ids)
            return mirrored_log_dir(store, found, topics)
    if any(local_tiered.parse_key(info.key) is not None for info in seen):
        raise UsageError(
            f"{url} holds what brokers tiered by LocalTieredStorage, where nothing tells of a segment as a whole",
            hint="`resnap remote status --store URL` holds it against what brokers believe, and `resnap inspect` opens"
            " each file",
        )
    if path is not None:
        return open_log_dir_or_partition(path, topics=topics)
    raise UsageError(
        f"{url} holds neither a copy of a Kafka log dir nor segments that Resnap has shipped",
        hint="give the prefix right above the <topic>-<partition> folders, or what `resnap tier --to` was given",
    )


def shipped_part(url: str, sources: Sources) -> tuple[ObjectStore, str]:
    """Return the store that ``url`` is a part of, and what the keys of that part begin with: nothing, if it is all.

    The first segment that was shipped tells; where there is none, ``url`` is taken for a store.

    Raises:
        StoreError: the store failed.

    """
    store = sources.store(url.rstrip("/"))
    for info in store.list():
        layout, depth = _match(store.url, info.key, (_FLAT, _AIVEN))
        if layout is not None and depth:
            root, within = _above(store.url, depth)
            return sources.store(root), within
        if layout is not None:
            break
    return store, ""


def _layout_of(url: str, key: str) -> tuple[_Layout | None, int]:
    """Return the layout that ``key`` below ``url`` is of, and how many folders above ``url`` it begins.

    Raises:
        UsageError: a segment right below a prefix of a store that is not named like a partition.

    """
    layout, depth = _match(url, key, (_FLAT, _AIVEN, _MIRROR))
    if layout is not None:
        return layout, depth
    if is_segment_name(key) and local_path(url) is None:
        live_partition(StorePath(url))
        return _MIRROR, 1
    return None, 0


def _match(url: str, key: str, layouts: Iterable[_Layout]) -> tuple[_Layout | None, int]:
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
