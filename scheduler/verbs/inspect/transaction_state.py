"""Shows a segment of ``__transaction_state`` record by record: the state of each transactional id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.scheduler.job.reports import show_time
from resnap.scheduler.output.rendering import Answer, Column, Row, plain_text
from resnap.scheduler.verbs.inspect.segments import SegmentInspection
from resnap.storage.log.record import read_records
from resnap.storage.log.record_batch import check_crc, read_header
from resnap.tiering.controller.transactions.state_log import (
    TRANSACTION_TOPIC,
    StateRecord,
    decode_record,
    transaction_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.scheduler.verbs.inspect.opened_file import OpenedFile


def inspect_transaction_state(file: OpenedFile) -> Answer:
    """Return a row per record, in which a forgotten id has no state, and one of a later version nothing but that."""
    inspection = SegmentInspection(
        file.reader, base_offset=file.base_offset or 0, is_active=file.is_active, verify_crc=True
    )
    columns = (
        Column(key="offset", right=True),
        Column(key="transactionalId"),
        *(Column(key=key, right=True) for key in ("version", "producerId", "producerEpoch")),
        Column(key="state"),
        Column(key="startTimestamp", show=show_time),
        Column(key="lastUpdateTimestamp", show=show_time),
        Column(key="timeoutMs", right=True),
        Column(key="partitions", show=lambda found: " ".join(found) if isinstance(found, list) else plain_text(found)),
    )
    return Answer(name="records", kind="record", rows=_rows(file, inspection), columns=columns, tail=inspection.facts)


def _rows(file: OpenedFile, inspection: SegmentInspection) -> Iterator[Row]:
    for batch in inspection.rows():
        position, size = int(str(batch["position"])), int(str(batch["size"]))
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
    known = transaction_of(decoded.transactional_id, decoded.value)
    return {
        **row,
        "producerId": known.producer_id,
        "producerEpoch": known.producer_epoch,
        "previousProducerId": known.previous_producer_id,
        "nextProducerId": known.next_producer_id,
        "state": known.state.kafka_name,
        "startTimestamp": known.start_ms,
        "lastUpdateTimestamp": known.update_ms,
        "timeoutMs": known.timeout_ms,
        "partitions": sorted(map(str, known.partitions)),
    }
