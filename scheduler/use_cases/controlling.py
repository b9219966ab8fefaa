"""What a metadata log says, as answers: the image, the blocks of producer ids, the settings of brokers, the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.scheduler.answers.records import plain, record
from resnap.scheduler.answers.rendering import Answer, Column, Row, human_count
from resnap.scheduler.clock import instant
from resnap.scheduler.settings.layers import node_named
from resnap.scheduler.settings.values import shown, shown_as
from resnap.tiering.controller.expiration import SETTINGS, expiration_history, expiration_of
from resnap.tiering.controller.metadata.image import ResourceType, metadata_version_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from resnap.tiering.controller.audit import Audit, Finding
    from resnap.tiering.controller.expiration import Effective
    from resnap.tiering.controller.metadata.image import ConfigChange, MetadataImage, ProducerIdBlock

_RESOURCES: Final = {kind.value: kind.name.lower().replace("_", "-") for kind in ResourceType}


def image_answer(image: MetadataImage, *, whole: bool) -> Answer:
    """Return the topics and what they come to; all else with them, where ``whole`` is asked for."""
    rows = [
        {
            "topic": topic.name,
            "topicId": topic.topic_id,
            "createdOffset": topic.created_offset,
            "partitions": plain(topic.partitions),
        }
        for topic in image.topics.values()
    ]
    return Answer(
        head=_head(image) if whole else {},
        name="topics",
        kind="topic",
        rows=rows,
        columns=(
            Column(key="topic", title="TOPIC"),
            Column(key="topicId", title="TOPIC ID"),
            Column(key="partitions", title="PARTITIONS", right=True, show=_count),
            Column(key="createdOffset", title="CREATED AT", right=True),
        ),
        closing=lambda: _in_short(image),
    )


def producer_ids_answer(image: MetadataImage) -> Answer:
    """Return every block of producer ids that was ever given, as far back as the log tells."""
    return Answer(
        name="blocks",
        kind="block",
        rows=[_block_row(block) for block in image.producer_id_blocks],
        columns=(
            Column(key="firstProducerId", title="FIRST", right=True),
            Column(key="lastProducerId", title="LAST", right=True),
            Column(key="brokerId", title="BROKER", right=True),
            Column(key="brokerEpoch", title="BROKER EPOCH", right=True),
            Column(key="source", title="KNOWN FROM"),
            Column(key="at", title="AT"),
            Column(key="offset", title="OFFSET", right=True),
        ),
        tail=lambda: {"nextProducerId": image.next_producer_id, "notes": plain(image.notes)},
        closing=lambda: _about_blocks(image),
    )


def config_answer(image: MetadataImage, static: Mapping[str, str]) -> Answer:
    """Return what the settings come to on each broker, and who said so.

    ``static`` are ``server.properties``: they count for the broker that they name, and for all if they name none.
    """
    return Answer(
        name="settings",
        kind="setting",
        rows=list(_setting_rows(image, static)),
        columns=(
            Column(key="brokerId", title="BROKER", right=True),
            Column(key="name", title="SETTING"),
            Column(key="value", title="VALUE", right=True),
            Column(key="level", title="FROM"),
            Column(key="offset", title="OFFSET", right=True),
            Column(key="overruled", title="OVERRULES", show=_joined),
            Column(key="problems", title="PROBLEMS", show=_joined),
        ),
        tail=lambda: {"expirationHistory": _history(image, static)},
        closing=lambda: _about_settings(image, static),
    )


def audit_answer(audit: Audit) -> Answer:
    """Return the producer ids that were not allocated, or twice."""
    return Answer(
        name="findings",
        kind="finding",
        rows=[_finding_row(finding) for finding in audit.findings],
        columns=(
            Column(key="producerId", title="PRODUCER ID", right=True),
            Column(key="fault", title="FAULT"),
            Column(key="blocks", title="BLOCKS", show=_spans),
            Column(key="carriers", title="CARRIED BY", show=_carried),
        ),
        tail=lambda: {
            "producerIds": audit.producer_ids,
            "files": audit.files,
            "findings": len(audit.findings),
            "nextProducerId": audit.image.next_producer_id,
        },
        closing=lambda: _verdict(audit),
    )


def _head(image: MetadataImage) -> Row:
    level = image.metadata_version
    return {
        "offset": image.offset,
        "leaderEpoch": image.leader_epoch,
        "at": instant(image.timestamp),
        "metadataVersion": None if level is None else metadata_version_name(level),
        "features": dict(image.features),
        "zkMigrationState": image.zk_migration_state,
        "brokers": [record(broker) for broker in image.brokers.values()],
        "controllers": [record(controller) for controller in image.controllers.values()],
        "configs": [
            {"resourceType": _resource(resource.type), "resourceName": resource.name, "values": shown(values)}
            for resource, values in image.configs.items()
        ],
        "brokerConfigChanges": [_change_row(change) for change in image.broker_config_changes],
        "quotas": [{"entity": dict(entity), "values": dict(values)} for entity, values in image.quotas.items()],
        "producerIdBlocks": [_block_row(block) for block in image.producer_id_blocks],
        "nextProducerId": image.next_producer_id,
        "deletedTopics": plain(image.deleted_topics),
        "transactions": plain(image.transactions),
        "leftAside": dict(image.left_aside),
        "notes": plain(image.notes),
    }


def _change_row(change: ConfigChange) -> Row:
    return {**record(change), "value": shown_as(change.name, change.value)}


def _in_short(image: MetadataImage) -> Iterator[str]:
    level = image.metadata_version
    version = "unknown" if level is None else f"{level} ({metadata_version_name(level)})"
    yield ""
    yield f"As of offset {image.offset}, {instant(image.timestamp)}; metadata.version {version}."
    yield (
        f"{human_count(len(image.topics))} topics, {len(image.deleted_topics)} deleted; {len(image.brokers)} brokers;"
        f" {len(image.configs)} resources with settings, {len(image.quotas)} with quotas;"
        f" {len(image.transactions)} metadata transactions."
    )
    yield from _about_blocks(image)


def _about_blocks(image: MetadataImage) -> Iterator[str]:
    if image.next_producer_id is None:
        yield "No producer id was ever given out."
    else:
        blocks, above = human_count(len(image.producer_id_blocks)), human_count(image.next_producer_id)
        yield f"Producer ids below {above} were given out, in {blocks} blocks."
    for note in image.notes:
        yield f"Note: {note.text if note.offset is None else f'at offset {note.offset}, {note.text}'}."


def _block_row(block: ProducerIdBlock) -> Row:
    return {
        "firstProducerId": block.first_producer_id,
        "lastProducerId": block.next_producer_id - 1,
        "brokerId": block.broker_id,
        "brokerEpoch": block.broker_epoch,
        "source": block.source.value,
        "at": instant(block.timestamp),
        "offset": block.offset,
    }


def _setting_rows(image: MetadataImage, static: Mapping[str, str]) -> Iterator[Row]:
    for broker_id in _broker_ids(image):
        found = expiration_of(image, broker_id, _of_broker(static, broker_id))
        for setting in SETTINGS:
            yield _effective_row(broker_id, found.settings[setting.name])
    known = {setting.name for setting in SETTINGS}
    for resource, values in image.configs.items():
        if resource.type == ResourceType.BROKER:
            for name in sorted(values.keys() - known):
                yield {
                    "brokerId": int(resource.name) if resource.name.isdecimal() else None,
                    "name": name,
                    "value": shown_as(name, values[name]),
                    "level": "dynamic-broker" if resource.name else "dynamic-default",
                    "offset": None,
                    "overruled": [],
                    "problems": [],
                }


def _broker_ids(image: MetadataImage) -> list[int | None]:
    """Return the brokers that are registered, or have settings of their own; None, for any, where there are none."""
    named = {int(one.name) for one in image.configs if one.type == ResourceType.BROKER and one.name.isdecimal()}
    return [*sorted(named | image.brokers.keys())] or [None]


def _of_broker(static: Mapping[str, str], broker_id: int | None) -> Mapping[str, str]:
    owner = node_named(static)
    return static if broker_id is None or owner in (None, str(broker_id)) else {}


def _effective_row(broker_id: int | None, effective: Effective) -> Row:
    return {
        "brokerId": broker_id,
        "name": effective.name,
        "value": effective.value_ms,
        "level": effective.level.value,
        "offset": effective.offset,
        "overruled": list(effective.overruled),
        "problems": list(effective.problems),
    }


def _history(image: MetadataImage, static: Mapping[str, str]) -> list[Row]:
    return [
        {
            "brokerId": broker_id,
            "since": instant(period.since_ms) if period.since_ms else None,
            "expirationMs": period.expiration.value_ms,
            "level": period.expiration.level.value,
        }
        for broker_id in _broker_ids(image)
        for period in expiration_history(image, broker_id, _of_broker(static, broker_id))
    ]


def _about_settings(image: MetadataImage, static: Mapping[str, str]) -> Iterator[str]:
    yield ""
    owner, known = node_named(static), _broker_ids(image)
    if owner is not None and known != [None] and owner not in map(str, known):
        yield f"The server.properties are of node {owner}, which is no broker here: they count for none."
    for change in _history(image, static):
        if change["since"] is not None:
            who = "Any broker" if change["brokerId"] is None else f"Broker {change['brokerId']}"
            yield f"{who}: producers expire after {change['expirationMs']} ms since {change['since']}."


def _finding_row(finding: Finding) -> Row:
    return {
        "producerId": finding.producer_id,
        "fault": finding.fault.value,
        "blocks": [_block_row(block) for block in finding.blocks],
        "carriers": plain(finding.carriers),
    }


def _verdict(audit: Audit) -> Iterator[str]:
    looked = f"{human_count(audit.producer_ids)} producer ids in {human_count(audit.files)} snapshots and segments"
    yield ""
    if audit.findings:
        yield f"{len(audit.findings)} of {looked} are not in exactly one allocated block."
    else:
        yield f"Each of {looked} is in exactly one allocated block."
    yield from _about_blocks(audit.image)


def _resource(kind: int) -> str:
    return _RESOURCES.get(kind, str(kind))


def _count(value: object) -> str:
    return str(len(value)) if isinstance(value, list) else ""


def _joined(value: object) -> str:
    return "; ".join(map(str, value)) if isinstance(value, list) else ""


def _spans(value: object) -> str:
    blocks: Sequence[Row] = value if isinstance(value, list) else []
    return ", ".join(f"[{one['firstProducerId']}, {one['lastProducerId']}]" for one in blocks) or "none"


def _carried(value: object) -> str:
    carriers: Sequence[Row] = value if isinstance(value, list) else []
    first = carriers[0]
    offsets = first["baseOffsets"]
    at = f" at {', '.join(map(str, offsets))}" if isinstance(offsets, list) and offsets else ""
    more = f", and {len(carriers) - 1} more files" if len(carriers) > 1 else ""
    return f"{first['file']}{at}{more}"
