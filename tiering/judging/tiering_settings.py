"""Settings of a broker or a topic that prevent tiering, whatever the log dirs hold.

``remote.storage.enable`` (``SWITCH``) is not among them: it is to be turned on once there are no blockers.

Source: ``RemoteLogManagerConfig``; KIP-405, KIP-950.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from resnap.tiering.judging.refusal import Stop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resnap.tiering.cluster.facts import TopicFacts

SWITCH: Final = "remote.storage.enable"
SYSTEM: Final = "remote.log.storage.system.enable"
PLUGIN_CLASS: Final = "remote.log.storage.manager.class.name"
METADATA_CLASS: Final = "remote.log.metadata.manager.class.name"
METADATA_LISTENER: Final = "remote.log.metadata.manager.listener.name"
LOG_DIRS: Final = "log.dirs"
ASKED: Final = (SYSTEM, PLUGIN_CLASS, METADATA_CLASS, METADATA_LISTENER, LOG_DIRS)
"""The settings that are requested from brokers."""
_BY_TOPIC: Final = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"


class SettingReason(StrEnum):
    """The setting that prevents tiering; the values are codes that users and programs see, and never change."""

    TIERING_DISABLED = "tiering-disabled"
    """``remote.log.storage.system.enable`` is not true on the broker."""
    PLUGIN_NOT_SET = "plugin-not-set"
    """Without a class of the plugin the broker does not start, without a listener for metadata it tiers nothing."""
    COPYING_PAUSED = "copying-paused"
    """``remote.log.copy.disable`` is true on the topic."""
    TOPIC_WITHOUT_ID = "topic-without-id"
    """The cluster gives the topic no id, as before 2.8."""


SETTING_HINTS: Final = {
    SettingReason.TIERING_DISABLED: f"set {SYSTEM}=true in server.properties, and restart the broker",
    SettingReason.PLUGIN_NOT_SET: "set it in server.properties as the plugin's own text says, and restart the broker",
    SettingReason.COPYING_PAUSED: "set remote.log.copy.disable=false on the topic when its pause is over",
    SettingReason.TOPIC_WITHOUT_ID: "raise inter.broker.protocol.version to 2.8 or later",
}


def broker_setting_blockers(settings: Mapping[str, str]) -> Iterator[Stop]:
    """Yield the settings of a broker that prevent all tiering; a missing setting is not set."""
    if settings.get(SYSTEM, "").strip().lower() != "true":
        said = settings.get(SYSTEM, "").strip() or "not set"
        yield _stop_for(SettingReason.TIERING_DISABLED, f"{SYSTEM} is {said}, where it must be true")
        return
    needed = [PLUGIN_CLASS]
    if (settings.get(METADATA_CLASS, "").strip() or _BY_TOPIC) == _BY_TOPIC:
        needed.append(METADATA_LISTENER)
    for name in needed:
        if not settings.get(name, "").strip():
            yield _stop_for(SettingReason.PLUGIN_NOT_SET, f"{name} is not set")


def topic_setting_blockers(topic: TopicFacts) -> Iterator[Stop]:
    """Yield the cluster's settings of a topic that prevent its leaders from tiering it."""
    if topic.topic_id is None:
        yield _stop_for(SettingReason.TOPIC_WITHOUT_ID, "the cluster gives the topic no id")
    if topic.is_tiered and topic.is_copying_paused:
        yield _stop_for(SettingReason.COPYING_PAUSED, "remote.log.copy.disable is true")


def _stop_for(reason: SettingReason, detail: str) -> Stop:
    return Stop(reason=reason, detail=detail, hint=SETTING_HINTS[reason])
