"""Finds the topic of segments that were shipped before its id was known, if the store has several of that name.

A topic that was deleted and created again has the old name, another id, and offsets that begin again at 0. The id in
their keys separates its segments from the old ones. Segments under ``none`` have no id: a batch that both logs must
have shows which topic they belong to. Without such a batch they belong to the only remaining topic; if several remain,
or none, they are a topic of their own.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FormatError, ObjectNotFoundError
from resnap.storage.layouts.flat.keys import MANIFEST_EXTENSION, parse_key
from resnap.storage.layouts.lineage import shared_batch, stored_piece
from resnap.storage.layouts.manifest import read_manifest
from resnap.storage.stores.protocol import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from resnap.storage.layouts.flat.keys import FlatKey
    from resnap.storage.layouts.lineage import Piece, SharedBatch
    from resnap.storage.stores.protocol import ObjectStore

_TOPIC_FOLDERS: Final = 2
"""From a store down to a topic, whatever its id."""


@dataclass(frozen=True, slots=True)
class TopicIds:
    """The topic of each segment in a store, with ids as in keys."""

    unknown: Mapping[tuple[str, str], str]
    """By cluster and topic: whose the segments are that were shipped without a topic id; ``none`` if of no other."""

    def of(self, key: FlatKey) -> str:
        """Return the topic id, as in keys, of the segment of ``key``."""
        return self.unknown.get((key.cluster, key.topic), UNKNOWN) if key.topic_id == UNKNOWN else key.topic_id

    def folder(self, key: FlatKey) -> str:
        """Return the folder of the partition that the segment of ``key`` belongs to; its key may be in another."""
        return f"{key.cluster}/{key.topic}/{self.of(key)}/{key.partition}/"


def listing_prefix(within: str) -> str:
    """Return the key prefix that covers all segments belonging to ``within``, folders with a slash after each.

    Segments of a topic may be under ``none``, and finding their topic takes all topics of the name.
    """
    folders = within.split("/")
    is_of_one_id = len(folders) > _TOPIC_FOLDERS + 1 and folders[_TOPIC_FOLDERS] != UNKNOWN
    return "".join(f"{folder}/" for folder in folders[:_TOPIC_FOLDERS]) if is_of_one_id else within


def topic_ids_of(store: ObjectStore, keys: Iterable[str]) -> TopicIds:
    """Return the topic of each segment whose manifest is in ``keys``.

    Nothing is read for a topic with a single id, unless it has segments without an id.

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
    """Return the id of the topic that owns the segments without an id."""
    possible = []
    for topic_id in sorted(by_id.keys() - {UNKNOWN}):
        is_same = _is_same(store, by_id[UNKNOWN], by_id[topic_id])
        if is_same:
            return topic_id
        if is_same is None:
            possible.append(topic_id)
    return possible[0] if len(possible) == 1 else UNKNOWN


def _is_same(store: ObjectStore, ours: Sequence[FlatKey], theirs: Sequence[FlatKey]) -> bool | None:
    """Return whether both belong to one topic, by the first partition with a batch of both; None if there is none."""
    for partition in sorted({key.partition for key in ours} & {key.partition for key in theirs}):
        here, there = (
            sorted((key for key in side if key.partition == partition), key=attrgetter("base_offset"))
            for side in (ours, theirs)
        )
        shared = _first_shared(store, here, there)
        if shared is not None:
            return shared.is_same
    return None


def _first_shared(store: ObjectStore, here: Sequence[FlatKey], there: Sequence[FlatKey]) -> SharedBatch | None:
    """Compare at the first offset of both, by four manifests; all are read only where those do not settle it."""
    ends = [piece.next_base_offset or 0 for side in (here, there) for piece in _pieces(store, side[-1:])]
    first = max(here[0].base_offset, there[0].base_offset)
    if len(ends) == len((here, there)) and min(ends) <= first:
        return None
    near = [[key for key in side if key.base_offset <= first][-1:] for side in (here, there)]
    return _compare_all(store, *near) or _compare_all(store, here, there)


def _compare_all(store: ObjectStore, here: Sequence[FlatKey], there: Sequence[FlatKey]) -> SharedBatch | None:
    return shared_batch(_pieces(store, here), _pieces(store, there))


def _pieces(store: ObjectStore, places: Iterable[FlatKey]) -> list[Piece]:
    """Return the segments at ``places`` whose manifests can be read."""
    pieces = []
    for place in places:
        with suppress(FormatError, ObjectNotFoundError):  # reading the partition reports it
            manifest = read_manifest(store.get(place.key))
            pieces.append(stored_piece(store, manifest.log.key, manifest.base_offset, manifest.next_base_offset))
    return pieces
