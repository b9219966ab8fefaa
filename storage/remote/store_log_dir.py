"""A prefix of a store, or one partition in it, as a log dir: a plain copy of one, or what Resnap or brokers shipped.

Which of these it is shows in its keys. Nothing but names, sizes, times and small objects is read.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storage.errors import UsageError
from storage.log.log_dir import open_log_dir_or_partition
from storage.log.survey import live_partition
from storage.remote.layouts import aiven, local_tiered
from storage.remote.layouts.aiven_log import copied_log_dir
from storage.remote.layouts.flat import parse_key
from storage.remote.layouts.flat_log import shipped_log_dir
from storage.remote.layouts.mirror import is_mirror_key, is_segment_name, mirrored_log_dir
from storage.remote.store_path import StorePath
from storage.remote.urls import is_store_url, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from storage.log.names import TopicPartition
    from storage.log.survey import LogDir
    from storage.remote.object_store import ObjectInfo
    from storage.source import Sources

_FLAT_DEPTH: Final = 4
"""Folders between the prefix of the layout ``flat`` and its segments."""
_AIVEN_DEPTH: Final = 2
"""The same of the layout ``aiven``."""


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
        depth = _depth(url, info.key, _FLAT_DEPTH, lambda key: parse_key(key) is not None)
        if depth is not None:
            root, rest = _above(url, depth)
            return shipped_log_dir(sources.store(root), _rekeyed(chain(seen, listed), rest), topics)
        depth = _depth(url, info.key, _AIVEN_DEPTH, _is_aiven_key)
        if depth is not None:
            root, rest = _above(url, depth)
            return copied_log_dir(sources.store(root), _rekeyed(chain(seen, listed), rest), topics)
        if path is None and is_mirror_key(info.key):
            return mirrored_log_dir(sources.store(url), chain(seen, listed), topics)
        if path is None and is_segment_name(info.key):
            live_partition(StorePath(url))
            root, rest = _above(url, 1)
            return mirrored_log_dir(sources.store(root), _rekeyed(chain(seen, listed), rest), topics)
        if path is not None and is_mirror_key(info.key):
            break
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


def _depth(url: str, key: str, most: int, is_of_layout: Callable[[str], bool]) -> int | None:
    """Return how many folders above ``url`` the layout begins that ``key`` is of; None if it is not."""
    above = _folders(url)
    for depth in range(min(most, len(above)) + 1):
        if is_of_layout("/".join([*above[len(above) - depth :], key])):
            return depth
    return None


def _is_aiven_key(key: str) -> bool:
    found = aiven.parse_key(key)
    return found is not None and not found.prefix


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
