"""Which topic segments are of that were shipped before its id was known, where the store has others of that name.

A topic that was deleted and created again has the name of the old one, another id, and offsets that begin again at 0.
Its segments lie apart by the id in their keys. What lies under ``none`` has none: a batch that both must have
shows which topic it belongs to. Where there is no such batch it is of the only topic that is left; where more are
left, or none, it stands alone.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FormatError, ObjectNotFoundError
from resnap.storage.layouts.flat.keys import MANIFEST_EXTENSION, parse_key
from resnap.storage.layouts.manifest import ObjectKind, read_manifest
from resnap.storage.layouts.same_log import shared_batch, stored_piece
from resnap.storage.stores.key_part import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from resnap.storage.layouts.flat.keys import FlatKey
    from resnap.storage.layouts.same_log import Piece, SharedBatch
    from resnap.storage.stores.protocol import ObjectStore

_TOPIC_FOLDERS: Final = 2
"""From a store down to a topic, whatever its id."""


@dataclass(frozen=True, slots=True)
class TopicIds:
    """Which topics the segments of a store are of, ids as keys have them."""

    unknown: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """By cluster and topic: whose the segments are that were shipped without a topic id; ``none`` if of no other."""

    def of(self, key: FlatKey) -> str:
        """Return the id of the topic that the segment of ``key`` is of, as in keys."""
        return self.unknown.get((key.cluster, key.topic), UNKNOWN) if key.topic_id == UNKNOWN else key.topic_id

    def folder(self, key: FlatKey) -> str:
        """Return the folder of the partition that the segment of ``key`` is of; not always the one it lies in."""
        return f"{key.cluster}/{key.topic}/{self.of(key)}/{key.partition}/"


def listing_prefix(within: str) -> str:
    """Return what the keys begin with that say what belongs into ``within``, some folders with a slash after each.

    What belongs to a topic may lie under ``none``, and whose that is only all topics of the name say.
    """
    folders = within.split("/")
    is_of_one_id = len(folders) > _TOPIC_FOLDERS + 1 and folders[_TOPIC_FOLDERS] != UNKNOWN
    return "".join(f"{folder}/" for folder in folders[:_TOPIC_FOLDERS]) if is_of_one_id else within


def topic_ids_of(store: ObjectStore, keys: Iterable[str]) -> TopicIds:
    """Return whose the segments are whose manifests are among ``keys``.

    Of a topic with one id alone nothing is read unless it has segments without one.

    Raises:
        StoreError: the store failed.

    """
    places = [place for key in keys if (place := parse_key(key)) and place.extension == MANIFEST_EXTENSION]
    places.sort(key=_topic)
    unknown: dict[tuple[str, str], str] = {}
    for topic, group in groupby(places, key=_topic):
        by_id: dict[str, list[FlatKey]] = {}
        for place in group:
            by_id.setdefault(place.topic_id, []).append(place)
        if UNKNOWN in by_id and len(by_id) > 1:
            unknown[topic] = _owner(store, by_id)
    return TopicIds(unknown)


def _topic(place: FlatKey) -> tuple[str, str]:
    return place.cluster, place.topic


def _owner(store: ObjectStore, by_id: Mapping[str, Sequence[FlatKey]]) -> str:
    """Return the id of the topic that the segments without one are of."""
    possible = []
    for topic_id in sorted(by_id.keys() - {UNKNOWN}):
        is_same = _is_same(store, by_id[UNKNOWN], by_id[topic_id])
        if is_same:
            return topic_id
        if is_same is None:
            possible.append(topic_id)
    return possible[0] if len(possible) == 1 else UNKNOWN


def _is_same(store: ObjectStore, ours: Sequence[FlatKey], theirs: Sequence[FlatKey]) -> bool | None:
    """Return whether both are of one topic, by the first partition with a batch of both; None if there is none."""
    for partition in sorted({one.partition for one in ours} & {one.partition for one in theirs}):
        here, there = (
            sorted((one for one in side if one.partition == partition), key=attrgetter("base_offset"))
            for side in (ours, theirs)
        )
        shared = _shared(store, here, there)
        if shared is not None:
            return shared.is_same
    return None


def _shared(store: ObjectStore, here: Sequence[FlatKey], there: Sequence[FlatKey]) -> SharedBatch | None:
    """Compare at the first offset of both, by four manifests; all are read only where those do not settle it."""
    ends = [piece.next_base_offset or 0 for side in (here, there) for piece in _pieces(store, side[-1:])]
    first = max(here[0].base_offset, there[0].base_offset)
    if len(ends) == len((here, there)) and min(ends) <= first:
        return None
    near = [[one for one in side if one.base_offset <= first][-1:] for side in (here, there)]
    return _compared(store, *near) or _compared(store, here, there)


def _compared(store: ObjectStore, here: Sequence[FlatKey], there: Sequence[FlatKey]) -> SharedBatch | None:
    return shared_batch(_pieces(store, here), _pieces(store, there))


def _pieces(store: ObjectStore, places: Iterable[FlatKey]) -> list[Piece]:
    """Return the segments at ``places`` whose manifests can be read."""
    pieces = []
    for place in places:
        with suppress(FormatError, ObjectNotFoundError):  # reading the partition reports it
            manifest = read_manifest(store.get(place.key))
            key = next(entry.key for entry in manifest.objects if entry.kind is ObjectKind.LOG)
            pieces.append(stored_piece(store, key, manifest.base_offset, manifest.next_base_offset))
    return pieces
