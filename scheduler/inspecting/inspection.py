"""Any one file of a log dir or a store, shown as what it is: recognised by its name, else by its content.

Names of fields are those of Kafka's own dump tool. Of a damaged file everything before the damage is shown, and then
the ``FormatError`` that says where and what.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from resnap.scheduler.answers.records import record
from resnap.scheduler.answers.rendering import Answer, Column, Row, human_bytes, plain_text
from resnap.scheduler.clock import instant
from resnap.scheduler.inspecting import aiven_inspection
from resnap.scheduler.inspecting.dump_log import dump_lines
from resnap.scheduler.inspecting.file_kinds import Kind, kind_by_content, kind_by_name
from resnap.scheduler.inspecting.inspected_file import InspectedFile, opened_file
from resnap.scheduler.inspecting.segment_inspection import SegmentInspection
from resnap.storage.errors import FormatError, UsageError, in_file
from resnap.storage.layouts.aiven.encryption import NO_KEYS, KeyRing
from resnap.storage.layouts.manifest import Manifest, read_manifest
from resnap.storage.log.checkpoints import read_leader_epochs, read_offset_checkpoint
from resnap.storage.log.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    TRANSACTION_ENTRY,
    check_offset_index,
    read_offset_index,
    read_time_index,
    read_transaction_index,
    trimmed_length,
)
from resnap.storage.log.producer_snapshot import (
    CRC_POSITION,
    ENTRY,
    NO_LAST_OFFSET,
    ProducerEntry,
    read_snapshot_array,
)
from resnap.storage.log.producer_snapshot import HEADER as SNAPSHOT_HEADER
from resnap.storage.log.properties import read_meta_properties, read_partition_metadata
from resnap.storage.log.record_batch import MAX_SEQUENCE
from resnap.storage.sources.files import Sources

if TYPE_CHECKING:
    import struct
    from collections.abc import Callable, Iterator, Sequence

    from resnap.storage.stores.s3_settings import S3Settings


def _show_time(value: object) -> str:
    """Return a timestamp for people; -1 means that there is none, and stays what it is."""
    return instant(value) if isinstance(value, int) and value >= 0 else plain_text(value)


_TIME: Final = Column(key="timestamp", show=_show_time)


@contextmanager
def inspected(
    file: str,
    *,
    s3: S3Settings,
    keys: KeyRing = NO_KEYS,
    kind: Kind | None = None,
    limit: int | None = None,
    verify_crc: bool = False,
    tells_validity: bool = False,
) -> Iterator[Answer]:
    """Open ``file``, a path or the URL of an object, and give what there is to say about it, at most ``limit`` rows.

    With ``tells_validity`` rows of a segment say ``isvalid``, and a wrong checksum is no damage.

    Raises:
        UsageError: no such file, or nothing tells what it is.
        FormatError: it is damaged; raised here, or by the rows of the answer when they come to the damage.
        LogDirError: it cannot be read.
        StoreError: likewise, of a store.

    """
    with opened_file(file, Sources(s3=s3, keys=keys), verify_crc=verify_crc) as opened, in_file(file):
        chosen = kind or kind_by_name(opened.name) or kind_by_content(opened.reader)
        if chosen is None:
            known = ", ".join(Kind)
            raise UsageError(f"{file}: neither name nor content tells what this is", hint=f"say it: --kind {known}")
        answer = _INSPECTORS[chosen](replace(opened, tells_validity=tells_validity))
        head = {"file": file, "kind": str(chosen), "sizeBytes": opened.reader.size_bytes, **answer.head}
        if limit is not None:
            head["limit"] = limit
        shown = replace(answer, head=head, rows=islice(answer.rows, limit))
        yield replace(shown, dump=lambda: dump_lines(shown, chosen))


def _inspect_segment(file: InspectedFile) -> Answer:
    # A snapshot of a metadata log is written like a segment, but its name says where it ends.
    base_offset = None if file.name.endswith(".checkpoint") else file.base_offset
    inspection = SegmentInspection(
        file.reader,
        base_offset=base_offset or 0,
        is_active=file.is_active,
        verify_crc=file.verify_crc,
        tells_validity=file.tells_validity,
    )
    numbers = ("position", "baseOffset", "lastOffset", "count", "producerId", "producerEpoch", "baseSequence",
               "lastSequence", "partitionLeaderEpoch")  # fmt: skip
    columns = (
        *(Column(key=key, right=True) for key in numbers),
        Column(key="maxTimestamp", show=_show_time),
        Column(key="size", right=True),
        Column(key="magic", right=True),
        Column(key="compresscodec"),
        Column(key="isTransactional"),
        Column(key="controlType"),
        Column(key="coordinatorEpoch", right=True),
    )
    return Answer(head=_given("baseOffset", base_offset), name="batches", kind="batch", rows=inspection.rows(),
                  columns=columns, tail=inspection.facts)  # fmt: skip


def _inspect_snapshot(file: InspectedFile) -> Answer:
    data = file.content()
    damage = _damage(read_snapshot_array, data)
    if damage is not None and damage.position < SNAPSHOT_HEADER.size and damage.position != CRC_POSITION:
        raise damage
    # A wrong checksum says nothing about where: all entries are shown before it is told.
    end = len(data) if damage is None or damage.position == CRC_POSITION else damage.position
    entries = map(ProducerEntry._make, _entries(ENTRY, data, SNAPSHOT_HEADER.size, end))
    version, crc, count = SNAPSHOT_HEADER.unpack_from(data)
    head = {**_given("offset", file.base_offset), "version": version, "crc": crc, "producers": count}
    numbers = ("producerId", "producerEpoch", "coordinatorEpoch", "currentTxnFirstOffset")
    columns = (
        *(Column(key=key, right=True) for key in numbers),
        Column(key="lastTimestamp", show=_show_time),
        *(Column(key=key, right=True) for key in ("firstSequence", "lastSequence", "lastOffset", "offsetDelta")),
    )
    return Answer(head=head, name="entries", kind="producer", columns=columns,
                  rows=_then(map(producer_row, entries), damage))  # fmt: skip


def producer_row(entry: ProducerEntry) -> dict[str, object]:
    """Return a snapshot's entry under Kafka's names; null where Kafka's own tool shows nothing."""
    has_data = entry.last_offset != NO_LAST_OFFSET
    return {
        "producerId": entry.producer_id,
        "producerEpoch": entry.producer_epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": entry.current_txn_first_offset if entry.has_open_transaction else None,
        "lastTimestamp": entry.timestamp,
        "firstSequence": (entry.last_sequence - entry.offset_delta) % (MAX_SEQUENCE + 1) if has_data else None,
        "lastSequence": entry.last_sequence if has_data else None,
        "lastOffset": entry.last_offset if has_data else None,
        "offsetDelta": entry.offset_delta if has_data else None,
    }


def _inspect_offset_index(file: InspectedFile) -> Answer:
    def check(data: bytes) -> None:
        entries = read_offset_index(data)
        if file.log_size is not None:
            check_offset_index(entries, file.log_size)

    def row(relative_offset: int, position: int) -> Row:
        return {**_absolute(file, relative_offset), "relativeOffset": relative_offset, "position": position}

    return _index_answer(file, OFFSET_ENTRY, check, row, ("offset", "relativeOffset", "position"))


def _inspect_time_index(file: InspectedFile) -> Answer:
    def row(timestamp: int, relative_offset: int) -> Row:
        return {"timestamp": timestamp, **_absolute(file, relative_offset), "relativeOffset": relative_offset}

    return _index_answer(file, TIME_ENTRY, read_time_index, row, ("timestamp", "offset", "relativeOffset"))


def _inspect_transaction_index(file: InspectedFile) -> Answer:
    def row(version: int, producer_id: int, first_offset: int, last_offset: int, last_stable_offset: int) -> Row:
        return {
            "version": version,
            "producerId": producer_id,
            "firstOffset": first_offset,
            "lastOffset": last_offset,
            "lastStableOffset": last_stable_offset,
        }

    keys = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
    return _index_answer(file, TRANSACTION_ENTRY, read_transaction_index, row, keys, padded=False)


def _index_answer(
    file: InspectedFile,
    layout: struct.Struct,
    check: Callable[[bytes], object],
    row: Callable[..., Row],
    keys: Sequence[str],
    *,
    padded: bool = True,
) -> Answer:
    data = file.content()
    damage = _damage(check, data)
    used = trimmed_length(data, layout.size) if padded else len(data)
    end = used if damage is None else min(used, damage.position)
    columns = tuple(_TIME if key == "timestamp" else Column(key=key, right=True) for key in keys)
    head = {**_given("baseOffset", file.base_offset), "paddingBytes": len(data) - min(used, len(data))}
    rows = (row(*entry) for entry in _entries(layout, data, 0, end))
    return Answer(head=head, name="entries", kind="entry", rows=_then(rows, damage), columns=columns)


def _inspect_offset_checkpoint(file: InspectedFile) -> Answer:
    offsets = read_offset_checkpoint(file.content())
    rows = [{"topic": topic, "partition": partition, "offset": at} for (topic, partition), at in offsets.items()]
    columns = (Column(key="topic"), Column(key="partition", right=True), Column(key="offset", right=True))
    return Answer(name="partitions", kind="partition", rows=rows, columns=columns)


def _inspect_leader_epochs(file: InspectedFile) -> Answer:
    rows = [{"epoch": epoch, "startOffset": start} for epoch, start in read_leader_epochs(file.content())]
    columns = (Column(key="epoch", right=True), Column(key="startOffset", right=True))
    return Answer(name="epochs", kind="epoch", rows=rows, columns=columns)


def _inspect_partition_metadata(file: InspectedFile) -> Answer:
    metadata = read_partition_metadata(file.content())
    return Answer(head={"version": metadata.version, "topicId": metadata.topic_id})


def _inspect_meta_properties(file: InspectedFile) -> Answer:
    return Answer(head=record(read_meta_properties(file.content())))


def _inspect_manifest(file: InspectedFile) -> Answer:
    manifest: Manifest = read_manifest(file.content())
    head = record(manifest)
    head.pop("objects")
    rows = [record(entry) for entry in manifest.objects]
    columns = (
        Column(key="kind"),
        Column(key="sizeBytes", title="size", right=True, show=lambda size: human_bytes(int(str(size)))),
        Column(key="crc32c", right=True, show=lambda crc: f"{crc:08x}"),
        Column(key="key"),
    )
    return Answer(head=head, name="objects", kind="object", rows=rows, columns=columns)


_INSPECTORS: Final[dict[Kind, Callable[[InspectedFile], Answer]]] = {
    Kind.SEGMENT: _inspect_segment,
    Kind.OFFSET_INDEX: _inspect_offset_index,
    Kind.TIME_INDEX: _inspect_time_index,
    Kind.TRANSACTION_INDEX: _inspect_transaction_index,
    Kind.SNAPSHOT: _inspect_snapshot,
    Kind.OFFSET_CHECKPOINT: _inspect_offset_checkpoint,
    Kind.LEADER_EPOCHS: _inspect_leader_epochs,
    Kind.PARTITION_METADATA: _inspect_partition_metadata,
    Kind.META_PROPERTIES: _inspect_meta_properties,
    Kind.MANIFEST: _inspect_manifest,
    Kind.RSM_MANIFEST: aiven_inspection.inspect_manifest,
    Kind.RSM_INDEXES: aiven_inspection.inspect_indexes,
}


def _damage(check: Callable[[bytes], object], data: bytes) -> FormatError | None:
    try:
        check(data)
    except FormatError as error:
        return error
    return None


def _entries(layout: struct.Struct, data: bytes, start: int, end: int) -> Iterator[tuple[int, ...]]:
    """Yield the whole entries in [start, end)."""
    whole = max(end - start, 0) // layout.size * layout.size
    return layout.iter_unpack(memoryview(data)[start : start + whole])


def _then(rows: Iterator[Row], damage: FormatError | None) -> Iterator[Row]:
    yield from rows
    if damage is not None:
        raise damage


def _given(key: str, offset: int | None) -> dict[str, object]:
    return {} if offset is None else {key: offset}


def _absolute(file: InspectedFile, relative_offset: int) -> dict[str, object]:
    return {} if file.base_offset is None else {"offset": file.base_offset + relative_offset}
