"""Which objects of the layout ``flat`` no manifest names: what runs that were killed have left."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.errors import FormatError, ObjectNotFoundError, in_file
from resnap.storage.layouts.flat.keys import MANIFEST_EXTENSION, manifest_place, parse_key
from resnap.storage.layouts.manifest import TOMBSTONE, read_manifest
from resnap.storage.layouts.protocol import Unnamed
from resnap.storage.side_by_side import each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resnap.storage.layouts.flat.keys import FlatKey
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore


class _Names(NamedTuple):
    """What a manifest names, or why it cannot be read."""

    place: FlatKey
    keys: frozenset[str]
    error: FormatError | None = None


def unnamed_objects(store: ObjectStore, listed: Sequence[ObjectInfo]) -> Unnamed:
    """Return which of the objects ``listed`` no manifest among them names.

    A partition of which any manifest cannot be read is left alone: that one may name anything.
    """
    places = [place for info in listed if (place := manifest_place(info))]
    read = list(each(partial(_names, store), places, remote=True))
    named = frozenset().union(*(one.keys for one in read))
    closed = {partition_folder(one.place) for one in read if one.error is not None}
    return Unnamed(
        objects=tuple(info for info in listed if info.key not in named and _is_object(info.key, closed)),
        unreadable=tuple(one.error for one in read if one.error is not None),
    )


def partition_folder(place: FlatKey) -> str:
    """Return what the keys begin with that lie beside that of ``place``."""
    return f"{place.cluster}/{place.topic}/{place.topic_id}/{place.partition}/"


def _is_object(key: str, closed: set[str]) -> bool:
    place = parse_key(key)
    return place is not None and place.extension != MANIFEST_EXTENSION and partition_folder(place) not in closed


def _names(store: ObjectStore, place: FlatKey) -> _Names:
    try:
        body = store.get(place.key)
        if body == TOMBSTONE:
            return _Names(place, frozenset())
        with in_file(place.key):
            manifest = read_manifest(body)
    except ObjectNotFoundError:
        return _Names(place, frozenset())
    except FormatError as error:
        return _Names(place, frozenset(), error)
    return _Names(place, frozenset({place.key, *(entry.key for entry in manifest.objects)}))
