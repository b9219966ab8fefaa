"""The notes that Resnap keeps in a store beside the segments of a topic, one object each.

    <key prefix, up to its last slash>.resnap/topic/<topic>/<topic id>.json
    .resnap/retained/<cluster id>/<topic>/<topic id>/<partition>.json

The first is the configuration of a shipped topic. Segments do not contain it, but restoring a cluster needs it: the
number of partitions, and the topic's own settings, without those inherited from its brokers. A file from an operator
has the same form, by topic: ``{"payments": {"partitions": 6, "config": {"retention.ms": "-1"}}}``.

The second is the offset up to which ``retain`` has deleted a partition, so that ``tier`` does not ship it again. A
broker with a longer retention than the store still has the segments that were deleted there; shipped again each night
they would leave a tombstone each night. This offset only increases. The note also has the last deleted segment: a topic
without an id may have been created again under its name, and nothing of that one was deleted.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from resnap.storage.errors import FormatError, ObjectNotFoundError, UsageError, in_file, parser_says
from resnap.storage.json_values import checked_json
from resnap.storage.log.names import MAX_PARTITION
from resnap.storage.stores.protocol import key_part
from resnap.storage.whole_file import read_whole
from resnap.tiering.controller.metadata.image import ConfigResource, ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.cluster.facts import TopicFacts
    from resnap.tiering.controller.metadata.image import MetadataImage

_T = TypeVar("_T")
_TOPIC: Final = "topic"
_RETAINED: Final = "retained"
_DAMAGED: Final = {
    _TOPIC: "give what the topic had with --topic-config FILE, or put an older version of the object back;"
    " `resnap tier` writes it again when it ships a segment of the topic",
    _RETAINED: "what `resnap retain` has deleted of the partition may be shipped again, by a broker that still has it;"
    " the next `resnap retain --delete` deletes that, and writes the note again",
}
_FORM: Final = '{"TOPIC": {"partitions": 6, "config": {"retention.ms": "-1"}}}, where each part is optional'


def _read(store: ObjectStore, key: str, name: str, parse: Callable[[Any], _T]) -> _T | None:
    """Return what ``parse`` makes of the note at ``key``, which is called ``name``; None if there is none.

    Releases up to 0.2 wrote it alone, unchecked. ``parse`` raises ValueError for what it does not take.

    Raises:
        FormatError: it is damaged, or is not ours.
        StoreError: the store failed.

    """
    with suppress(ObjectNotFoundError), in_file(f"{store.url}/{key}"):
        data, found = store.get(key), "something else"
        try:
            values = json.loads(data)
            if not isinstance(values, dict) or name not in values:
                return parse(values)
            if data == checked_json(1, name, values[name]):
                return parse(values[name])
        except (ValueError, RecursionError) as error:
            found = parser_says(error)
        what, hint = f"note {name!r}", _DAMAGED[name]
        raise FormatError(what, position=0, expected="what its checksum covers", found=found, hint=hint)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The configuration of a topic; unknown fields are None."""

    partitions: int | None = None
    """How many it has."""
    config: Mapping[str, str] | None = None
    """Its own settings."""

    def over(self, other: TopicSettings) -> TopicSettings:
        """Return this, with unknown fields from ``other``."""
        return TopicSettings(
            partitions=other.partitions if self.partitions is None else self.partitions,
            config=other.config if self.config is None else self.config,
        )


UNKNOWN: Final = TopicSettings()


def topic_key(topic: str, topic_id: str, key_prefix: str = "") -> str:
    """Return the key of a topic's settings."""
    folder, slash, _ = key_prefix.rpartition("/")
    return f"{folder}{slash}.resnap/{_TOPIC}/{key_part(topic)}/{key_part(topic_id)}.json"


def read_topic(store: ObjectStore, key: str) -> TopicSettings:
    """Return the content of the object at ``key``; all unknown if there is none.

    Raises:
        FormatError: it is damaged, or is not ours.
        StoreError: the store failed.

    """
    return _read(store, key, _TOPIC, _settings) or UNKNOWN


def keep_topic(store: ObjectStore, key: str, settings: TopicSettings) -> None:
    """Write ``settings`` to ``key``, if they differ or it is damaged; fields unknown now keep their known values.

    Raises:
        StoreError: the store failed.

    """
    there = UNKNOWN
    with suppress(FormatError):
        there = read_topic(store, key)
    now = settings.over(there)
    if now != there:
        store.put(key, checked_json(1, _TOPIC, asdict(now)))


def topics_in_file(path: Path) -> dict[str, TopicSettings]:
    """Return the settings in the file at ``path``, by topic.

    Raises:
        UsageError: it cannot be read, or has another form.

    """
    try:
        content = json.loads(read_whole(path))
        return {topic: _settings(given) for topic, given in content.items()}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        what = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: no settings of topics: {what}", hint=f"expected is {_FORM}") from error


def _settings(given: Any) -> TopicSettings:  # noqa: ANN401 - whatever JSON holds
    if not isinstance(given, dict) or given.keys() - {"partitions", "config"}:
        raise ValueError(f"found {json.dumps(given)[:80]}")
    partitions, config = given.get("partitions"), given.get("config")
    if partitions is not None and (type(partitions) is not int or not 0 < partitions <= MAX_PARTITION):
        raise ValueError(f"found {partitions!r} partitions")
    if config is not None and not (isinstance(config, dict) and all(isinstance(text, str) for text in config.values())):
        raise ValueError("settings that are not text")
    return TopicSettings(partitions=partitions, config=config)


def by_cluster(facts: TopicFacts) -> TopicSettings:
    """Return the settings of a topic as the running cluster has them."""
    own = {name: value for name, value in facts.settings.items() if name in facts.own_settings}
    return TopicSettings(partitions=len(facts.partitions), config=own)


def by_metadata(topic: str, topic_id: str, image: MetadataImage | None) -> TopicSettings | None:
    """Return them as a metadata log has them; None where it does not have the topic."""
    known = None if image is None else image.topics.get(topic)
    if image is None or known is None or known.topic_id != topic_id:
        return None
    config = image.configs.get(ConfigResource(ResourceType.TOPIC, topic), {})
    return TopicSettings(partitions=len(known.partitions), config=dict(config))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionNote:
    """The record of retention for a partition."""

    log_start_offset: int
    """Everything below was deleted from the store."""
    last_base_offset: int
    """The base offset of the last segment that was deleted, which ended there."""
    last_log_bytes: int
    """Size of its log."""

    def is_of(self, segments: Sequence[Segment], topic_id: str | None) -> bool:
        """Whether it is about the log of ``segments``; if the key has an id, that decides."""
        last = (self.last_base_offset, self.log_start_offset, self.last_log_bytes)
        return topic_id is not None or last in {(s.base_offset, s.next_base_offset, s.size_bytes) for s in segments}


def retained_key(cluster_id: str | None, topic_partition: TopicPartition, topic_id: str | None) -> str:
    """Return the key of a partition's note, for a topic of exactly this id."""
    topic, partition = topic_partition
    return f".resnap/{_RETAINED}/{key_part(cluster_id)}/{key_part(topic)}/{key_part(topic_id)}/{partition}.json"


def retained_topics(store: ObjectStore) -> Iterator[str]:
    """Yield the topic of each note in the store, as its key has it."""
    for info in store.list(f".resnap/{_RETAINED}/"):
        yield info.key.split("/")[3]


def read_retained(store: ObjectStore, key: str) -> RetentionNote | None:
    """Return the note at ``key``; None if there is none.

    Raises:
        FormatError: it is damaged, or is not ours.
        StoreError: the store failed.

    """
    return _read(store, key, _RETAINED, _retained)


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
        store.put(key, checked_json(1, _RETAINED, asdict(retained)))
