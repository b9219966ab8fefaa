"""A prefix of a store, or one partition in it, as a log dir: a plain copy of one, or what Resnap or brokers shipped.

Which of these it is shows in its keys. Nothing but names, sizes, times and small objects is read.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from storage.errors import UsageError
from storage.log.log_dir import open_log_dir_or_partition
from storage.log.survey import live_partition
from storage.remote.layouts import aiven, flat, local_tiered
from storage.remote.layouts.aiven_log import copied_log_dir
from storage.remote.layouts.flat_log import shipped_log_dir
from storage.remote.layouts.mirror import is_mirror_key, is_segment_name, mirrored_log_dir
from storage.remote.store_path import StorePath
from storage.remote.urls import is_store_url, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from storage.log.names import TopicPartition
    from storage.log.survey import LogDir
    from storage.remote.object_store import ObjectInfo, ObjectStore
    from storage.source import Sources


class _Layout(NamedTuple):
    """How a prefix may hold a log."""

    is_key: Callable[[str], bool]
    folders: int
    """How many folders there are between the prefix and the segments, of which a source may name some, too."""
    log_dir: Callable[[ObjectStore, Iterable[ObjectInfo], Callable[[TopicPartition], bool] | None], LogDir]


def _is_flat_key(key: str) -> bool:
    return flat.parse_key(key) is not None


def _is_aiven_key(key: str) -> bool:
    found = aiven.parse_key(key)
    return found is not None and not found.prefix


_MIRROR: Final = _Layout(is_mirror_key, 0, mirrored_log_dir)
_LAYOUTS: Final = (_Layout(_is_flat_key, 4, shipped_log_dir), _Layout(_is_aiven_key, 2, copied_log_dir), _MIRROR)


def open_source(source: str, sources: Sources, *, topics: Callable[[TopicPartition], bool] | None = None) -> LogDir:
    """Return the log dir at ``source``, a path or the URL of a prefix; of its partitions those that ``topics`` wants.

    One partition's directory, or its prefix, gives the log dir above with it alone.

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
            root, rest = _above(url, depth)
            return layout.log_dir(sources.store(root), _rekeyed(chain(seen, listed), rest), topics)
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


def _layout_of(url: str, key: str) -> tuple[_Layout | None, int]:
    """Return the layout that ``key`` below ``url`` is of, and how many folders above ``url`` it begins.

    Raises:
        UsageError: a segment right below a prefix of a store that is not named like a partition.

    """
    above = _folders(url)
    for layout in _LAYOUTS:
        for depth in range(min(layout.folders, len(above)) + 1):
            if layout.is_key("/".join([*above[len(above) - depth :], key])):
                return layout, depth
    if is_segment_name(key) and local_path(url) is None:
        live_partition(StorePath(url))
        return _MIRROR, 1
    return None, 0


def _folders(url: str) -> list[str]:
    """Return the folders of a URL, without its bucket."""
    return url.partition("://")[2].split("/")[1:]


def _above(url: str, depth: int) -> tuple[str, str]:
    """Return the URL that lies ``depth`` folders above ``url``, and the folders between."""
    parts = url.split("/")
    return "/".join(parts[: len(parts) - depth]), "/".join(parts[len(parts) - depth :])


def _rekeyed(listed: Iterable[ObjectInfo], folders: str) -> Iterator[ObjectInfo]:
    """Yield the objects as seen from above ``folders``."""
    return (replace(info, key=f"{folders}/{info.key}") for info in listed) if folders else iter(listed)
