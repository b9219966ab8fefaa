"""The configuration of shipped topics: one object per topic, beside the leases.

    <key prefix, up to its last slash>.resnap/topic/<topic>/<topic id>.json

Segments do not contain it, but restoring a cluster needs it: the number of partitions, and the topic's own settings,
without those inherited from its brokers. A file from an operator has the same form, by topic: ``{"payments":
{"partitions": 6, "config": {"retention.ms": "-1"}}}``.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.errors import FormatError, ObjectNotFoundError, UsageError, in_file
from resnap.storage.json_values import checked_json, read_note
from resnap.storage.log.names import MAX_PARTITION
from resnap.storage.stores.protocol import key_part
from resnap.storage.whole_file import read_whole
from resnap.tiering.controller.metadata.image import ConfigResource, ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.cluster.facts import TopicFacts
    from resnap.tiering.controller.metadata.image import MetadataImage

_FOLDER: Final = ".resnap/topic"
_NOTE: Final = "topic"
_DAMAGED: Final = (
    "give what the topic had with --topic-config FILE, or put an older version of the object back; `resnap tier` writes"
    " it again when it ships a segment of the topic"
)
_FORM: Final = '{"TOPIC": {"partitions": 6, "config": {"retention.ms": "-1"}}}, where each part is optional'


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
    return f"{folder}{slash}{_FOLDER}/{key_part(topic)}/{key_part(topic_id)}.json"


def read_topic(store: ObjectStore, key: str) -> TopicSettings:
    """Return the content of the object at ``key``; all unknown if there is none.

    Raises:
        FormatError: it is damaged, or is not ours.
        StoreError: the store failed.

    """
    with suppress(ObjectNotFoundError), in_file(f"{store.url}/{key}"):
        return read_note(store.get(key), _NOTE, _settings, hint=_DAMAGED)
    return UNKNOWN


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
        store.put(key, checked_json(1, _NOTE, asdict(now)))


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
    if config is not None and not (isinstance(config, dict) and all(isinstance(one, str) for one in config.values())):
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
