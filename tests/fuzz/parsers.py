"""Every parser of bytes that may come from a damaged disk or an unknown client."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from resnap.scheduler.api.paging import decode_cursor as decoded_cursor
from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError, ResnapError
from resnap.storage.layouts.aiven.manifest import read_manifest as read_rsm_manifest
from resnap.storage.layouts.aiven.pieces import decode_sizes, original_piece
from resnap.storage.layouts.flat.keys import parse_key
from resnap.storage.layouts.manifest import read_manifest
from resnap.storage.layouts.segments import read_origin
from resnap.storage.log.checkpoints import read_leader_epochs, read_offset_checkpoint
from resnap.storage.log.indexes import read_offset_index, read_time_index, read_transaction_index
from resnap.storage.log.message_set import read_legacy_message
from resnap.storage.log.names import TopicPartition, parse_file_name, parse_partition_dir_name
from resnap.storage.log.partition_dir import PartitionDir, Segment
from resnap.storage.log.producer_snapshot import read_snapshot, read_snapshot_array
from resnap.storage.log.properties import read_meta_properties, read_partition_metadata, read_properties
from resnap.storage.log.record import KEY, read_control_record, read_records
from resnap.storage.log.record_batch import ATTRIBUTES_POSITION, CRC_POSITION, HEADER, LOG_OVERHEAD, read_header
from resnap.storage.messages.wire import read_unsigned_varint, read_varint, read_varlong
from resnap.tiering.controller.metadata.batches import decode_record, read_batches, read_control_message
from resnap.tiering.controller.producer_ids.allocation import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    read_body,
)
from resnap.tiering.controller.producer_ids.broker_ids import read_block_json
from resnap.tiering.installing.staging_area import read_fingerprint
from resnap.tiering.installing.undo import read_manifest as read_undo_manifest
from resnap.tiering.judging.planning import read_saved_plan
from resnap.tiering.quota.user_quotas import decode_quotas
from resnap.tiering.remote_log.records import decode_record as decode_remote_log_record
from resnap.tiering.remote_log.records import read_events
from resnap.tiering.remote_log.stored import read_custom_metadata
from resnap.tiering.run_cache.run_cache import VERSION as CACHE_VERSION
from resnap.tiering.run_cache.run_cache import decode_results
from resnap.tiering.shipping.lease import read_holder
from resnap.tiering.verifying.verification_journal import VerificationJournal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REFUSALS: Final[dict[str, tuple[type[Exception], ...]]] = {
    "memory": (ValueError, KeyError, TypeError, AttributeError),
    "quotas": (ValueError, KeyError, TypeError, AttributeError, RecursionError),
}
"""What a parser may raise besides the library's own errors: they show its caller that a file is not ours."""
LARGEST: Final = 4_096
"""Bytes of an example."""
HELD_PER_BYTE: Final = {"zstd-piece": 1 << 15}
"""How many bytes a parser may hold for each that it is given, where that is what the format is for."""
INIT_VERSIONS: Final = 6


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _memory(data: bytes) -> object:
    """Read a memory with this body, under a checksum that fits: one that does not ends all reading at once."""
    head = json.dumps({"version": CACHE_VERSION, "crc32c": crc32c(data)})
    return decode_results(head.encode() + b"\n" + data, Path("/nowhere"))


def fitting(data: bytes) -> bytes:
    """Return ``data`` as a batch at offset 0, with the length and the checksum that it would have to have."""
    if len(data) < HEADER.size:
        return data
    sized = bytes(8) + (len(data) - LOG_OVERHEAD).to_bytes(4, "big") + data[LOG_OVERHEAD:CRC_POSITION]
    return sized + crc32c(data[ATTRIBUTES_POSITION:]).to_bytes(4, "big") + data[ATTRIBUTES_POSITION:]


def _control(data: bytes) -> object:
    batch = fitting(data)
    return read_control_record(batch, read_header(batch))


def _records(data: bytes) -> object:
    return [
        (record, bytes(record.key or b""), bytes(record.value or b""))
        for record in read_records(data, read_header(data), what="record")
    ]


def _integers(data: bytes) -> object:
    ends = [read(data, 0)[1] for read in (read_varint, read_varlong, read_unsigned_varint)]
    return [read_varlong(data, end) for end in ends if end < len(data)]


def _control_message(data: bytes) -> object:
    return read_control_message(memoryview(data)[: KEY.size], memoryview(data)[KEY.size :])


@contextmanager
def _file(data: bytes) -> Iterator[Path]:
    """Give a file with these bytes, in memory, to what reads no other way."""
    descriptor = os.memfd_create("fuzz")
    try:
        os.write(descriptor, data)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _metadata_log(data: bytes) -> object:
    with _file(data) as path:
        return list(read_batches(path, 0, active=True))


def _remote_log(data: bytes) -> object:
    """Read a closed segment of the topic of remote log metadata."""
    with _file(data) as path:
        segment = Segment(
            base_offset=0, next_base_offset=1, path=str(path), size_bytes=len(data), mtime_ns=0, inode=0,
            index_bytes=None, timeindex_bytes=None, txnindex_bytes=None,
        )  # fmt: skip
        partition = PartitionDir(
            path=path.parent, topic_partition=TopicPartition("__remote_log_metadata", 0), segments=(segment,),
            snapshots=(), unfinished=(), deleted=0, leader_epochs=None, topic_id=None, high_watermark=None,
            log_start_offset=0, recovery_point=None, cleaner_offset=None,
        )  # fmt: skip
        return list(read_events(partition))


def _journal(data: bytes) -> object:
    with _file(data) as path:
        journal = VerificationJournal(path=path)
        return journal._recall(0), journal.verified


def _init_request(data: bytes) -> object:
    return read_body(InitProducerIdRequest, data[1:], data[0] % INIT_VERSIONS) if data else None


def _init_response(data: bytes) -> object:
    return read_body(InitProducerIdResponse, data[1:], data[0] % INIT_VERSIONS) if data else None


def _lease(data: bytes) -> object:
    holder = read_holder(data)
    return holder.description, holder.process.is_dead


PARSERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "snapshot": read_snapshot,
    "snapshot-array": read_snapshot_array,
    "offset-checkpoint": read_offset_checkpoint,
    "leader-epochs": read_leader_epochs,
    "properties": read_properties,
    "meta-properties": read_meta_properties,
    "partition-metadata": read_partition_metadata,
    "offset-index": read_offset_index,
    "time-index": read_time_index,
    "transaction-index": read_transaction_index,
    "batch-header": read_header,
    "control-record": _control,
    "legacy-message": read_legacy_message,
    "metadata-record": decode_record,
    "remote-log-record": decode_remote_log_record,
    "manifest": read_manifest,
    "rsm-manifest": read_rsm_manifest,
    "snapshot-origin": read_origin,
    "custom-metadata": read_custom_metadata,
    "fingerprint": read_fingerprint,
    "undo-manifest": read_undo_manifest,
    "memory": _memory,
    "saved-plan": lambda data: read_saved_plan(_text(data)),
    "file-name": lambda data: parse_file_name(_text(data)),
    "directory-name": lambda data: parse_partition_dir_name(_text(data)),
    "object-key": lambda data: parse_key(_text(data)),
    "integers": _integers,
    "records": _records,
    "chunk-sizes": decode_sizes,
    "zstd-piece": lambda data: original_piece(data, None, is_compressed=True, cipher=None),
    "control-message": _control_message,
    "metadata-log": _metadata_log,
    "metadata-batch": lambda data: _metadata_log(fitting(data)),
    "remote-log": _remote_log,
    "remote-log-batch": lambda data: _remote_log(fitting(data)),
    "allocate-request": partial(read_body, AllocateProducerIdsRequest),
    "allocate-response": partial(read_body, AllocateProducerIdsResponse),
    "init-request": _init_request,
    "init-response": _init_response,
    "znode": read_block_json,
    "lease": _lease,
    "quotas": decode_quotas,
    "journal": _journal,
    "cursor": lambda data: decoded_cursor(_text(data), str, int, str),
}
NEVER_REFUSE: Final = {"file-name", "directory-name", "object-key", "lease", "journal"}
"""Parsers that return a value for what is not of their form."""


def try_one(name: str, data: bytes) -> bool:
    """Parse ``data``; return whether it was taken. Anything but the library's own errors passes through."""
    try:
        PARSERS[name](data)
    except FormatError as error:
        position = error.position
    except (ResnapError, *REFUSALS.get(name, ())):
        return False
    else:
        return True
    assert 0 <= position <= len(data), "a position that the data does not have"
    return False
