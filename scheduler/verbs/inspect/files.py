"""Shows each kind of file: facts about the whole file, and a row per entry.

Field names are those of Kafka's own dump tool. For a damaged file everything before the damage is shown, and then the
``FormatError`` with its place and cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from typing_extensions import TypedDict

from resnap.scheduler.job.reports import producer_row, show_time
from resnap.scheduler.output.records import columns_of, record, row_of
from resnap.scheduler.output.rendering import Answer, Column, Row
from resnap.scheduler.verbs.inspect.opened_file import Kind
from resnap.scheduler.verbs.inspect.segments import SegmentInspection
from resnap.storage.errors import FormatError, UsageError, in_file
from resnap.storage.layouts.aiven.manifest import INDEX_NAMES, segment_record
from resnap.storage.layouts.aiven.manifest import read_manifest as read_rsm_manifest
from resnap.storage.layouts.aiven.members import INDEXES, Member
from resnap.storage.layouts.aiven.members import MANIFEST as RSM_MANIFEST
from resnap.storage.layouts.aiven.opening import stored_segment
from resnap.storage.layouts.manifest import read_manifest
from resnap.storage.log.checkpoints import read_leader_epochs, read_offset_checkpoint, read_quorum_state
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
from resnap.storage.log.producer_snapshot import CRC_POSITION, ENTRY, ProducerEntry, read_snapshot_array
from resnap.storage.log.producer_snapshot import HEADER as SNAPSHOT_HEADER
from resnap.storage.log.properties import read_meta_properties, read_partition_metadata
from resnap.storage.log.record import read_records
from resnap.storage.log.record_batch import check_crc, read_header
from resnap.storage.words import human_bytes
from resnap.tiering.controller.transactions.state_log import (
    TRANSACTION_TOPIC,
    StateRecord,
    decode_record,
    transaction_of,
    transactional_ids,
)

if TYPE_CHECKING:
    import struct
    from collections.abc import Callable, Iterator, Sequence, Sized

    from resnap.scheduler.verbs.inspect.opened_file import OpenedFile
    from resnap.storage.layouts.aiven.manifest import AivenManifest


def _words(names: list[str] | None) -> str:
    return " ".join(names or ())


class TransactionRow(TypedDict):
    """A transaction as one of its records has it."""

    producerId: Annotated[int, Column(right=True)]
    producerEpoch: Annotated[int, Column(right=True)]
    previousProducerId: int
    nextProducerId: int
    state: Annotated[str, "state.kafka_name", Column()]
    startTimestamp: Annotated[int, "start_ms", Column(show=show_time)]
    lastUpdateTimestamp: Annotated[int, "update_ms", Column(show=show_time)]
    timeoutMs: Annotated[int, Column(right=True)]
    partitions: Annotated[list[str], lambda known: sorted(map(str, known.partitions)), Column(show=_words)]


def inspect_transaction_state(file: OpenedFile) -> Answer:
    """Return a row per record, in which a forgotten id has no state, and one of a later version nothing but that."""
    inspection = SegmentInspection(
        file.reader, base_offset=file.base_offset or 0, is_active=file.is_active, verify_crc=True
    )
    columns = (
        Column(key="offset", right=True),
        Column(key="transactionalId"),
        Column(key="version", right=True),
        *columns_of(TransactionRow),
    )
    return Answer(kind="record", rows=_rows(file, inspection), columns=columns, tail=inspection.facts)


def _rows(file: OpenedFile, inspection: SegmentInspection) -> Iterator[Row]:
    for batch in inspection.rows():
        position, size = batch["position"], batch["size"]
        data = file.reader.read(position, size)
        header = read_header(data, at=position)
        check_crc(data, at=position)
        if header.is_control:
            continue
        for one in read_records(data, header, what=f"{TRANSACTION_TOPIC} record", at=position):
            decoded = decode_record(
                one.key, one.value, key_at=position + one.key_position, value_at=position + one.value_position
            )
            yield {"offset": header.base_offset + one.offset_delta, **_row(decoded)}


def _row(decoded: StateRecord) -> Row:
    row = {
        "transactionalId": decoded.transactional_id,
        "version": decoded.version,
        "isUnknown": decoded.is_unknown,
    }
    if decoded.value is None or decoded.transactional_id is None:
        return row
    return {**row, **row_of(TransactionRow, transaction_of(decoded.transactional_id, decoded.value))}


_TIME: Final = Column(key="timestamp", show=show_time)


SEGMENT_COLUMNS: Final = (
    Column(key="baseOffset", title="OFFSET", right=True),
    Column(key="lastOffset", title="TO", right=True, extra=True),
    Column(key="count", title="RECORDS", right=True),
    Column(key="producerId", title="PRODUCER", right=True),
    Column(key="producerEpoch", title="EPOCH", right=True, extra=True),
    Column(key="maxTimestamp", title="TIME", show=show_time),
    Column(key="controlType", title="CONTROL"),
    Column(key="isTransactional", title="TRANSACTIONAL", extra=True),
    Column(key="baseSequence", title="SEQUENCE", right=True, extra=True),
    Column(key="lastSequence", title="TO SEQUENCE", right=True, extra=True),
    Column(key="compresscodec", title="CODEC", extra=True),
    Column(key="size", title="SIZE", right=True, extra=True),
    Column(key="position", title="POSITION", right=True, extra=True),
    Column(key="partitionLeaderEpoch", title="LEADER EPOCH", right=True, extra=True),
    Column(key="coordinatorEpoch", title="COORDINATOR EPOCH", right=True, extra=True),
    Column(key="magic", title="MAGIC", right=True, extra=True),
)


def _inspect_segment(file: OpenedFile) -> Answer:
    # A snapshot of a metadata log is written like a segment, but its name says where it ends.
    base_offset = None if file.name.endswith(".checkpoint") else file.base_offset
    inspection = SegmentInspection(
        file.reader,
        base_offset=base_offset or 0,
        is_active=file.is_active,
        verify_crc=file.verify_crc,
        shows_validity=file.shows_validity,
    )
    return Answer(head=_if_given("baseOffset", base_offset), kind="batch", rows=inspection.rows(),
                  columns=SEGMENT_COLUMNS, tail=inspection.facts)  # fmt: skip


ENTRY_COLUMNS: Final = (
    Column(key="producerId", title="PRODUCER", right=True),
    Column(key="producerEpoch", title="EPOCH", right=True),
    Column(key="lastOffset", title="LAST OFFSET", right=True),
    Column(key="currentTxnFirstOffset", title="OPEN SINCE", right=True),
    Column(key="lastTimestamp", title="TIME", show=show_time),
    Column(key="lastSequence", title="LAST SEQUENCE", right=True, extra=True),
    Column(key="firstSequence", title="FIRST SEQUENCE", right=True, extra=True),
    Column(key="offsetDelta", title="OFFSET DELTA", right=True, extra=True),
    Column(key="coordinatorEpoch", title="COORDINATOR EPOCH", right=True, extra=True),
)


def _inspect_snapshot(file: OpenedFile) -> Answer:
    data = file.content()
    damage = _damage(read_snapshot_array, data)
    # A wrong checksum says nothing about where: all entries are shown before it is reported.
    is_checksum = damage is not None and damage.position == CRC_POSITION and len(data) >= SNAPSHOT_HEADER.size
    if damage is not None and damage.position < SNAPSHOT_HEADER.size and not is_checksum:
        raise damage
    end = len(data) if damage is None or is_checksum else damage.position
    entries = map(ProducerEntry._make, _entries(ENTRY, data, SNAPSHOT_HEADER.size, end))
    names = {} if file.log_dir is None else transactional_ids(file.log_dir)
    rows = (
        {**producer_row(one), **({"transactionalId": names.get(one.producer_id)} if names else {})} for one in entries
    )
    version, crc, count = SNAPSHOT_HEADER.unpack_from(data)
    owner = (Column(key="transactionalId", title="TRANSACTIONAL ID"),) if names else ()
    head = {**_if_given("offset", file.base_offset), "version": version, "crc": crc, "producers": count}
    return Answer(head=head, name="entries", kind="producer", columns=(*ENTRY_COLUMNS, *owner),
                  rows=_then(rows, damage))  # fmt: skip


def _inspect_offset_index(file: OpenedFile) -> Answer:
    def check(data: bytes) -> None:
        entries = read_offset_index(data)
        if file.log_size is not None:
            check_offset_index(entries, file.log_size)

    def row(relative_offset: int, position: int) -> Row:
        return {**_absolute(file, relative_offset), "relativeOffset": relative_offset, "position": position}

    return _index_answer(file, OFFSET_ENTRY, check, row, ("offset", "relativeOffset", "position"))


def _inspect_time_index(file: OpenedFile) -> Answer:
    def row(timestamp: int, relative_offset: int) -> Row:
        return {"timestamp": timestamp, **_absolute(file, relative_offset), "relativeOffset": relative_offset}

    return _index_answer(file, TIME_ENTRY, read_time_index, row, ("timestamp", "offset", "relativeOffset"))


def _inspect_transaction_index(file: OpenedFile) -> Answer:
    keys = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")

    def row(*entry: int) -> Row:
        return dict(zip(keys, entry, strict=True))

    return _index_answer(file, TRANSACTION_ENTRY, read_transaction_index, row, keys, padded=False)


def _index_answer(
    file: OpenedFile,
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
    head = {**_if_given("baseOffset", file.base_offset), "paddingBytes": len(data) - min(used, len(data))}
    rows = (row(*entry) for entry in _entries(layout, data, 0, end))
    return Answer(head=head, kind="entry", rows=_then(rows, damage), columns=columns)


def _inspect_offset_checkpoint(file: OpenedFile) -> Answer:
    offsets = read_offset_checkpoint(file.content())
    rows = [{"topic": topic, "partition": partition, "offset": at} for (topic, partition), at in offsets.items()]
    columns = (Column(key="topic"), Column(key="partition", right=True), Column(key="offset", right=True))
    return Answer(kind="partition", rows=rows, columns=columns)


def _inspect_leader_epochs(file: OpenedFile) -> Answer:
    rows = [{"epoch": epoch, "startOffset": start} for epoch, start in read_leader_epochs(file.content())]
    columns = (Column(key="epoch", right=True), Column(key="startOffset", right=True))
    return Answer(name="epochs", kind="epoch", rows=rows, columns=columns)


def _inspect_partition_metadata(file: OpenedFile) -> Answer:
    metadata = read_partition_metadata(file.content())
    return Answer(head={"version": metadata.version, "topicId": metadata.topic_id})


def _inspect_meta_properties(file: OpenedFile) -> Answer:
    return Answer(head=record(read_meta_properties(file.content())))


def _inspect_quorum_state(file: OpenedFile) -> Answer:
    head, voters = read_quorum_state(file.content())
    columns = (Column(key="voterId", right=True),)
    rows = [{"voterId": voter} for voter in voters]
    return Answer(head=head, name="currentVoters", kind="voter", rows=rows, columns=columns)


def _inspect_manifest(file: OpenedFile) -> Answer:
    manifest = read_manifest(file.content())
    head = record(manifest)
    head.pop("objects")
    rows = [record(entry) for entry in manifest.objects]
    columns = (
        Column(key="kind"),
        Column(key="sizeBytes", title="size", right=True, show=human_bytes),
        Column(key="crc32c", right=True, show=lambda crc: f"{crc:08x}"),
        Column(key="key"),
    )
    return Answer(head=head, kind="object", rows=rows, columns=columns)


_INDEX_READERS: Final[dict[str, Callable[[bytes], Sized]]] = {
    "index": read_offset_index,
    "timeindex": read_time_index,
    "snapshot": read_snapshot_array,
    "leader-epoch-checkpoint": read_leader_epochs,
    "txnindex": read_transaction_index,
}


def _inspect_rsm_manifest(file: OpenedFile) -> Answer:
    """Show a manifest: the segment and its chunks, and where each index is."""
    manifest = read_rsm_manifest(file.content())
    rows = [{"index": name, **part._asdict()} for name, part in manifest.indexes.items() if part is not None]
    columns = (Column(key="index"), Column(key="position", right=True), Column(key="size", right=True))
    return Answer(head=_rsm_head(manifest), kind="index", rows=rows, columns=columns)


def _inspect_rsm_indexes(file: OpenedFile) -> Answer:
    """Show which indexes an object holds; its manifest, which is beside it, says where each begins.

    Raises:
        UsageError: its name does not say of which segment it is.

    """
    if file.stem is None:
        what = "without its manifest beside it one index cannot be distinguished from another"
        raise UsageError(f"{file.reader.locator}: {what}", hint=f"give it where it lies, beside the .{RSM_MANIFEST}")
    columns = (
        Column(key="index"),
        Column(key="position", right=True),
        Column(key="storedBytes", right=True, show=human_bytes),
        Column(key="bytes", right=True),
        Column(key="entries", right=True),
        Column(key="file"),
    )
    return Answer(kind="index", rows=_index_rows(file, file.stem), columns=columns)


def _rsm_head(manifest: AivenManifest) -> dict[str, object]:
    chunks = manifest.chunks
    head: dict[str, object] = {
        "chunks": len(chunks.stored),
        "originalChunkSize": chunks.chunk_size,
        "originalFileSize": chunks.file_size,
        "storedFileSize": chunks.stored_size,
        "compression": manifest.compression,
        # The encrypted data key is of no use to the reader.
        "encryptionKeyPair": None if manifest.encryption is None else manifest.encryption.key_id,
    }
    segment = manifest.segment
    if segment is None:
        return {**head, "remoteLogSegmentMetadata": None}
    fields = segment_record(segment)
    del fields["remoteLogSegmentId"]
    head |= {"topic": segment.topic, "partition": segment.partition}
    return {**head, "topicId": segment.topic_id, "id": segment.segment_id, **fields}


def _index_rows(file: OpenedFile, stem: str) -> Iterator[Row]:
    segment = stored_segment(file.sources, stem)
    for suffix, name in INDEX_NAMES.items():
        place = segment.index_range(suffix)
        if place is None:
            continue
        member = Member(stem, suffix)
        with in_file(f"{stem}.{INDEXES}"):
            content = segment.index(file.reader.read(place.position, place.size), place)
        with in_file(member.locator):
            entries: Any = _INDEX_READERS[suffix](content) if content else ()
        yield {
            "index": name,
            "position": place.position,
            "storedBytes": place.size,
            "bytes": len(content),
            "entries": len(entries),
            "file": member.locator,
        }


INSPECTORS: Final[dict[Kind, Callable[[OpenedFile], Answer]]] = {
    Kind.SEGMENT: _inspect_segment,
    Kind.OFFSET_INDEX: _inspect_offset_index,
    Kind.TIME_INDEX: _inspect_time_index,
    Kind.TRANSACTION_INDEX: _inspect_transaction_index,
    Kind.SNAPSHOT: _inspect_snapshot,
    Kind.OFFSET_CHECKPOINT: _inspect_offset_checkpoint,
    Kind.LEADER_EPOCHS: _inspect_leader_epochs,
    Kind.PARTITION_METADATA: _inspect_partition_metadata,
    Kind.META_PROPERTIES: _inspect_meta_properties,
    Kind.QUORUM_STATE: _inspect_quorum_state,
    Kind.MANIFEST: _inspect_manifest,
    Kind.RSM_MANIFEST: _inspect_rsm_manifest,
    Kind.RSM_INDEXES: _inspect_rsm_indexes,
    Kind.TRANSACTION_STATE: inspect_transaction_state,
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


def _if_given(key: str, offset: int | None) -> dict[str, object]:
    return {} if offset is None else {key: offset}


def _absolute(file: OpenedFile, relative_offset: int) -> dict[str, object]:
    return {} if file.base_offset is None else {"offset": file.base_offset + relative_offset}
