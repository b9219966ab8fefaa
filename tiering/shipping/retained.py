"""The offset up to which ``retain`` has deleted a partition from a store, so that ``tier`` does not ship it again.

A broker with a longer retention than the store still has the segments that were deleted there; shipped again each night
they would leave a tombstone each night. So ``retain`` records the log start in the store, in an object of its own, and
this offset only increases. It also records the last deleted segment: a topic without an id may have been created again
under its name, and nothing of that one was deleted.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.errors import FormatError, ObjectNotFoundError, in_file
from resnap.storage.json_values import checked_json, read_note
from resnap.storage.stores.protocol import key_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.stores.protocol import ObjectStore

RETAINED_PREFIX: Final = ".resnap/retained"
_NOTE: Final = "retained"
_DAMAGED: Final = (
    "what `resnap retain` has deleted of the partition may be shipped again, by a broker that still has it; the next"
    " `resnap retain --delete` deletes that, and writes the note again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionNote:
    """The record of retention for a partition."""

    log_start_offset: int
    """Everything below was deleted from the store."""
    last_base_offset: int
    """Of the last segment that was deleted, which ended there."""
    last_log_bytes: int
    """Size of its log."""

    def is_of(self, segments: Sequence[Segment], topic_id: str | None) -> bool:
        """Whether it is about the log of ``segments``; if the key has an id, that decides."""
        last = (self.last_base_offset, self.log_start_offset, self.last_log_bytes)
        return topic_id is not None or last in {(s.base_offset, s.next_base_offset, s.size_bytes) for s in segments}


def retained_key(cluster_id: str | None, topic_partition: TopicPartition, topic_id: str | None) -> str:
    """Return the key of a partition's note, for a topic of exactly this id."""
    topic, partition = topic_partition
    return f"{RETAINED_PREFIX}/{key_part(cluster_id)}/{key_part(topic)}/{key_part(topic_id)}/{partition}.json"


def retained_topics(store: ObjectStore) -> Iterator[str]:
    """Yield the topic of each note in the store, as its key has it."""
    for info in store.list(f"{RETAINED_PREFIX}/"):
        yield info.key.split("/")[3]


def read_retained(store: ObjectStore, key: str) -> RetentionNote | None:
    """Return the note at ``key``; None if there is none.

    Raises:
        FormatError: it is damaged, or is not ours.
        StoreError: the store failed.

    """
    with suppress(ObjectNotFoundError), in_file(f"{store.url}/{key}"):
        return read_note(store.get(key), _NOTE, _retained, hint=_DAMAGED)
    return None


def _retained(given: Any) -> RetentionNote:  # noqa: ANN401 - whatever JSON holds
    match given:
        case {"log_start_offset": int(start), "last_base_offset": int(base), "last_log_bytes": int(log_bytes)}:
            return RetentionNote(log_start_offset=start, last_base_offset=base, last_log_bytes=log_bytes)
    raise ValueError(f"found {json.dumps(given)[:80]}")


def write_retained(store: ObjectStore, key: str, retained: RetentionNote) -> None:
    """Write the note to ``key``, unless the existing one has a higher offset and is not damaged.

    Raises:
        StoreError: the store failed.

    """
    there = None
    with suppress(FormatError):
        there = read_retained(store, key)
    if there is None or there.log_start_offset < retained.log_start_offset:
        store.put(key, checked_json(1, _NOTE, asdict(retained)))
