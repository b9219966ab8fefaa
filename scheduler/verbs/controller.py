"""`resnap controller image|producer-ids|config|audit`: shows what a cluster's metadata log holds; never writes to it.

``audit`` checks that every producer id of a log dir is in exactly one allocated block.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typing_extensions import TypedDict

from resnap.scheduler.cli.failures import OK
from resnap.scheduler.cli.flags import METADATA, SERVER, STORE, TOPIC
from resnap.scheduler.job.contract import Context, Report, Reported, Request, Verb, View
from resnap.scheduler.job.wiring import metadata_log_of, scope_of, sources_of
from resnap.scheduler.output.records import columns_of, instant_of, plain, record, row_of
from resnap.scheduler.output.rendering import Column, Row
from resnap.scheduler.settings.layers import node_named, static_properties
from resnap.scheduler.settings.values import json_form, shown_as
from resnap.storage.errors import MetadataLogError, VerificationError
from resnap.storage.sources.log_dirs import open_source
from resnap.storage.words import exact_duration, human_count, instant, some
from resnap.tiering.controller.audit import Audit, audit
from resnap.tiering.controller.expiration import SETTINGS, expiration_history, expiration_of
from resnap.tiering.controller.metadata.cluster import find_metadata_log
from resnap.tiering.controller.metadata.folding import SETTINGS_TYPES, load_image
from resnap.tiering.controller.metadata.image import MetadataImage, ResourceType, metadata_version_name
from resnap.tiering.controller.metadata.log_files import list_metadata_log
from resnap.tiering.controller.metadata.records import ProducerIdsRecord
from resnap.tiering.selection import nothing_in

_RESOURCES: Final = {kind.value: kind.name.lower().replace("_", "-") for kind in ResourceType}


MetadataLog = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR",
        help="The directory __cluster_metadata-0, or the log dir that contains it; the default is --metadata-log.",
    ),
]


class ImageRequest(Request):
    """Show topics with their ids, and all else that the log amounts to: --output json has everything."""

    directory: MetadataLog = None


class ProducerIdsRequest(Request):
    """Show every block of producer ids: which broker got it, under which epoch, and when."""

    directory: MetadataLog = None


class ConfigRequest(Request):
    """Show what brokers use: each setting's value, who set it, and what that overrules."""

    directory: MetadataLog = None


def run(
    request: ImageRequest | ProducerIdsRequest | ConfigRequest,
    context: Context,
    report: Report,
    relying_on: Collection[type] = (),
) -> None:
    """Report the image, for which no record of ``relying_on`` must have been skipped.

    Raises:
        UsageError: there is no metadata log.
        MetadataVersionError: records that the answer relies on are of a version that is not known.
        ResnapError: the log cannot be read.

    """
    directory = metadata_log_of(context.settings, request.directory)
    report(Reported(what=load_image(directory).relying_on(*relying_on)))


class ImageTopicRow(TypedDict):
    """One topic of `resnap controller image`."""

    topic: Annotated[str, "name", Column(title="TOPIC")]
    topicId: Annotated[str, Column(title="TOPIC ID")]
    createdOffset: Annotated[int | None, Column(title="CREATED AT", right=True)]
    partitions: Annotated[
        Any,
        lambda topic: plain(topic.partitions),
        Column(title="PARTITIONS", right=True, show=lambda ids: str(len(ids))),
    ]


class BlockRow(TypedDict):
    """One block of producer ids."""

    firstProducerId: Annotated[int, Column(title="FIRST", right=True)]
    lastProducerId: Annotated[int, lambda block: block.next_producer_id - 1, Column(title="LAST", right=True)]
    brokerId: Annotated[int | None, Column(title="BROKER", right=True)]
    brokerEpoch: Annotated[int | None, Column(title="BROKER EPOCH", right=True)]
    source: Annotated[str, Column(title="KNOWN FROM")]
    at: Annotated[str, instant_of("timestamp"), Column(title="AT")]
    offset: Annotated[int | None, Column(title="OFFSET", right=True)]


class ImageView(View["Reported[MetadataImage]"]):
    """A row per topic; in JSON, all else before them."""

    kind = "topic"
    columns = columns_of(ImageTopicRow, "topic", "topicId", "partitions", "createdOffset")
    _image: MetadataImage

    def rows(self, result: Reported[MetadataImage]) -> Iterator[Row]:
        """Yield a row per topic."""
        self._image = result.what
        yield from (row_of(ImageTopicRow, topic) for topic in result.what.topics.values())

    def head(self) -> Row:
        """Return all but the topics."""
        return _head(self._image)

    def closing(self) -> Iterator[str]:
        """Yield the image in short."""
        image = self._image
        level = image.metadata_version
        version = "unknown" if level is None else f"{level} ({metadata_version_name(level)})"
        yield ""
        yield f"As of offset {image.offset}, {instant(image.timestamp)}; metadata.version {version}."
        yield (
            f"{some(len(image.topics), 'topic')}, {len(image.deleted_topics)} deleted;"
            f" {some(len(image.brokers), 'broker')}; {some(len(image.configs), 'resource')} with settings,"
            f" {len(image.quotas)} with quotas; {some(len(image.transactions), 'metadata transaction')}."
        )
        yield from about_blocks(image)


class ProducerIdsView(View["Reported[MetadataImage]"]):
    """A row per block of producer ids that was ever allocated, as far back as the log goes."""

    kind = "block"
    columns = columns_of(BlockRow)
    _image: MetadataImage

    def rows(self, result: Reported[MetadataImage]) -> Iterator[Row]:
        """Yield a row per block."""
        self._image = result.what
        return (row_of(BlockRow, block) for block in result.what.producer_id_blocks)

    def totals(self) -> Row:
        """Return what the next block begins with, and what is not certain."""
        return {"nextProducerId": self._image.next_producer_id, "notes": plain(self._image.notes)}

    def closing(self) -> Iterator[str]:
        """Yield the same in words."""
        return about_blocks(self._image)


class SettingRow(TypedDict):
    """One setting of a broker."""

    name: Annotated[str, Column(title="SETTING")]
    value: Annotated[int, "value_ms", Column(title="VALUE", right=True)]
    level: Annotated[str, Column(title="FROM")]
    offset: Annotated[int | None, Column(title="OFFSET", right=True)]
    overruled: Annotated[list[str], Column(title="OVERRULES", show="; ".join)]
    problems: Annotated[list[str], Column(title="PROBLEMS", show="; ".join)]


class ConfigView(View["Reported[MetadataImage]"]):
    """A row per broker and setting.

    ``static`` are ``server.properties``: they count for the broker that they name, and for all if they name none.
    """

    kind = "setting"
    columns = (Column(key="brokerId", title="BROKER", right=True), *columns_of(SettingRow))
    _image: MetadataImage

    def __init__(self, static: Mapping[str, str]) -> None:
        self._static = static

    def rows(self, result: Reported[MetadataImage]) -> Iterator[Row]:
        """Yield the effective settings of each broker, and then all others that are set for brokers."""
        self._image = result.what
        return _setting_rows(result.what, self._static)

    def totals(self) -> Row:
        """Return since when producers expire after how long."""
        return {"expirationHistory": _history(self._image, self._static)}

    def closing(self) -> Iterator[str]:
        """Yield the same in words."""
        image, static = self._image, self._static
        yield ""
        owner, known = node_named(static), _broker_ids(image)
        if owner is not None and known != [None] and owner not in map(str, known):
            yield f"The server.properties are of node {owner}, which is not a broker here: they are not used."
        for change in _history(image, static):
            if change["since"] is not None:
                who = "Any broker" if change["brokerId"] is None else f"Broker {change['brokerId']}"
                yield f"{who}: producers expire after {exact_duration(change['expirationMs'])} since {change['since']}."


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
            {
                "resourceType": _RESOURCES.get(resource.type, str(resource.type)),
                "resourceName": resource.name,
                "values": json_form(values),
            }
            for resource, values in image.configs.items()
        ],
        "brokerConfigChanges": [
            {**record(change), "value": shown_as(change.name, change.value)} for change in image.broker_config_changes
        ],
        "quotas": [{"entity": dict(entity), "values": dict(values)} for entity, values in image.quotas.items()],
        "accessControlEntries": [record(entry) for entry in image.access_control_entries],
        "scramUsers": [
            {"name": credential.name, "mechanism": credential.mechanism} for credential in image.scram_credentials
        ],
        "producerIdBlocks": [row_of(BlockRow, block) for block in image.producer_id_blocks],
        "nextProducerId": image.next_producer_id,
        "deletedTopics": plain(image.deleted_topics),
        "transactions": plain(image.transactions),
        "leftAside": dict(image.left_aside),
        "notes": plain(image.notes),
    }


def about_blocks(image: MetadataImage) -> Iterator[str]:
    """Yield how many producer ids were allocated, and what is not certain about it."""
    if image.next_producer_id is None:
        yield "No producer id was ever allocated."
    else:
        blocks, above = some(len(image.producer_id_blocks), "block"), human_count(image.next_producer_id)
        yield f"Producer ids below {above} were allocated, in {blocks}."
    for note in image.notes:
        yield f"Note: {note.text if note.offset is None else f'at offset {note.offset}, {note.text}'}."


def _setting_rows(image: MetadataImage, static: Mapping[str, str]) -> Iterator[Row]:
    for broker_id in _broker_ids(image):
        found = expiration_of(image, broker_id, _of_broker(static, broker_id))
        for setting in SETTINGS:
            yield {"brokerId": broker_id, **row_of(SettingRow, found.settings[setting.name])}
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


def _history(image: MetadataImage, static: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "brokerId": broker_id,
            "since": instant(since_ms) if since_ms else None,
            "expirationMs": expiration.value_ms,
            "level": expiration.level.value,
        }
        for broker_id in _broker_ids(image)
        for since_ms, expiration in expiration_history(image, broker_id, _of_broker(static, broker_id))
    ]


IMAGE = Verb(
    takes=(METADATA, SERVER),
    request=ImageRequest,
    run=run,
    view=lambda *_: ImageView(),
)
PRODUCER_IDS = Verb(
    takes=(METADATA, SERVER),
    request=ProducerIdsRequest,
    run=partial(run, relying_on=(ProducerIdsRecord,)),
    view=lambda *_: ProducerIdsView(),
)
CONFIG = Verb(
    takes=(METADATA, SERVER),
    request=ConfigRequest,
    run=partial(run, relying_on=SETTINGS_TYPES),
    view=lambda _, context: ConfigView(
        {} if context.settings.server_properties is None else static_properties(context.settings.server_properties)
    ),
)


class AuditRequest(Request):
    """Check that every producer id in snapshots and segments is in exactly one block that was allocated."""

    log_dir: Annotated[str, typer.Argument(metavar="LOG_DIR", help="A log dir, or the URL of a copy of one.")]


def run_audit(request: AuditRequest, context: Context, report: Report) -> None:
    """Report the audit, by the metadata log in the log dir or that the settings name.

    Raises:
        UsageError: there is no log dir, nothing in scope in it, or no metadata log.
        MetadataLogError: nothing says which producer ids were allocated last.
        ResnapError: either cannot be read.

    """
    settings = context.settings
    scope = scope_of(settings, [request.log_dir])
    sources = sources_of(settings)
    beside = None if settings.metadata_log else find_metadata_log([request.log_dir])
    directory = metadata_log_of(settings, beside)
    log_dir = open_source(request.log_dir, sources, topics=lambda partition: scope.wants(partition.topic))
    if not log_dir.partitions and not log_dir.problems:
        raise nothing_in(scope)
    if not list_metadata_log(directory).segments:
        raise MetadataLogError(
            f"{directory} has no .log: which producer ids were allocated since its checkpoint is not known",
            hint="give a whole copy of the directory __cluster_metadata-0 of a controller, or of a broker",
        )
    found = audit(log_dir, partial(load_image, directory), sources)
    report(Reported(what=found, faults=found.problems, partly_done=bool(found.problems)))


def _spans(blocks: list[BlockRow]) -> str:
    return ", ".join(f"[{block['firstProducerId']}, {block['lastProducerId']}]" for block in blocks) or "none"


def _carried(carriers: list[dict[str, Any]]) -> str:
    first = carriers[0]
    at = f" at {', '.join(map(str, first['baseOffsets']))}" if first["baseOffsets"] else ""
    more = f", and {some(len(carriers) - 1, 'more file')}" if len(carriers) > 1 else ""
    return f"{first['file']}{at}{more}"


class FindingRow(TypedDict):
    """A producer id that was not allocated, or twice."""

    producerId: Annotated[int, Column(title="PRODUCER ID", right=True)]
    fault: Annotated[str, Column(title="FAULT")]
    blocks: Annotated[list[BlockRow], Column(title="BLOCKS", show=_spans)]
    carriers: Annotated[Any, lambda finding: plain(finding.carriers), Column(title="CARRIED BY", show=_carried)]


class AuditView(View["Reported[Audit]"]):
    """A row per producer id that was not allocated, or twice."""

    kind = "finding"
    columns = columns_of(FindingRow)
    audit: Audit
    exit_code = OK

    def rows(self, result: Reported[Audit]) -> Iterator[Row]:
        """Yield a row per finding."""
        self.audit = result.what
        self.exit_code = VerificationError.exit_code if result.what.findings else OK
        yield from (row_of(FindingRow, finding) for finding in result.what.findings)

    def totals(self) -> Row:
        """Return how much was read, and how much of it is wrong."""
        return {
            "producerIds": self.audit.producer_ids,
            "files": self.audit.files,
            "findings": len(self.audit.findings),
            "nextProducerId": self.audit.image.next_producer_id,
        }

    def closing(self) -> Iterator[str]:
        """Yield the same in words."""
        carriers = "1 file" if self.audit.files == 1 else f"{human_count(self.audit.files)} snapshots and segments"
        read = f"{some(self.audit.producer_ids, 'producer id')} in {carriers}"
        yield ""
        if self.audit.findings:
            yield f"{len(self.audit.findings)} of {read} are not in exactly one allocated block."
        else:
            yield f"Each of {read} is in exactly one allocated block."
        yield from about_blocks(self.audit.image)


AUDIT = Verb(
    takes=(TOPIC, METADATA, SERVER, STORE),
    request=AuditRequest,
    run=run_audit,
    view=lambda *_: AuditView(),
)
