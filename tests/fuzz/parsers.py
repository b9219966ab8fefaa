"""Every parser of bytes that may come from a damaged disk or a stranger, with good files to begin mutating from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from replay.window import AsOf, ReplayRules
from storage.crc32c import crc32c
from storage.disk import FileDigest
from storage.errors import ResnapError
from storage.log.checkpoints import read_leader_epochs, read_offset_checkpoint
from storage.log.control_record import read_control_record
from storage.log.indexes import read_offset_index, read_time_index, read_transaction_index
from storage.log.message_set import read_legacy_message
from storage.log.names import TopicPartition, parse_file_name, parse_partition_dir_name
from storage.log.producer_snapshot import read_snapshot, read_snapshot_array
from storage.log.properties import read_meta_properties, read_partition_metadata, read_properties
from storage.log.record_batch import read_header
from storage.remote.layouts.aiven_manifest import read_manifest as read_rsm_manifest
from storage.remote.layouts.aiven_metadata import read_custom_metadata
from storage.remote.layouts.flat import parse_key
from storage.remote.manifest import read_manifest, write_manifest
from tests.storage.remote.manifests import a_manifest
from tests.tiering.remote_log.telling import copied
from tiering.controller.metadata.codec import decode_record, encode_record
from tiering.controller.metadata.records import TopicRecord
from tiering.installing.fingerprint import Fingerprint, SegmentPrint, StagedPrint, read_fingerprint, write_fingerprint
from tiering.installing.undo_manifest import Change, ShutdownMark, UndoManifest
from tiering.installing.undo_manifest import read_manifest as read_undo_manifest
from tiering.installing.undo_manifest import write_manifest as write_undo_manifest
from tiering.planning import SavedPlan, read_saved_plan, write_saved_plan
from tiering.remembered.memory import Memory
from tiering.remembered.memory_file import VERSION as MEMORY_VERSION
from tiering.remembered.memory_file import decoded, encoded
from tiering.remote_log.codec import decode_record as decode_remote_log_record
from tiering.remote_log.codec import encode_record as encode_remote_log_record

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

REFUSALS: Final[dict[str, tuple[type[Exception], ...]]] = {"memory": (ValueError, KeyError, TypeError, AttributeError)}
"""What a parser may raise besides the library's own errors: a memory that is none is told by these."""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _memory(data: bytes) -> object:
    """Read a memory with this body, under a checksum that fits: one that does not ends all reading at once."""
    head = json.dumps({"version": MEMORY_VERSION, "crc32c": crc32c(data)})
    return decoded(head.encode() + b"\n" + data, Path("/nowhere"))


def _control(data: bytes) -> object:
    return read_control_record(data, read_header(data))


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
    "custom-metadata": read_custom_metadata,
    "fingerprint": read_fingerprint,
    "undo-manifest": read_undo_manifest,
    "memory": _memory,
    "saved-plan": lambda data: read_saved_plan(_text(data)),
    "file-name": lambda data: parse_file_name(_text(data)),
    "directory-name": lambda data: parse_partition_dir_name(_text(data)),
    "object-key": lambda data: parse_key(_text(data)),
}
_EXAMPLES: Final = {
    "snapshot": "*.snapshot",
    "snapshot-array": "*.snapshot",
    "offset-checkpoint": "replication-offset-checkpoint",
    "leader-epochs": "leader-epoch-checkpoint",
    "properties": "meta.properties",
    "meta-properties": "meta.properties",
    "partition-metadata": "partition.metadata",
    "offset-index": "*.index",
    "time-index": "*.timeindex",
    "transaction-index": "*.txnindex",
    "batch-header": "*.log",
    "control-record": "*.log",
    "legacy-message": "*.log",
}
_DIGEST: Final = FileDigest(size_bytes=10, sha256="ab" * 32)
_EXAMPLE_BYTES: Final = {
    "metadata-record": [encode_record(TopicRecord(name="payments", topic_id="z5W3VT5QSCibauYNT3y0NQ"))],
    "remote-log-record": [encode_remote_log_record(record) for record in copied("a", 0, 9, {0: 0, 3: 5})],
    "fingerprint": [
        write_fingerprint(
            Fingerprint(
                segments=(SegmentPrint(base_offset=0, next_base_offset=9, size_bytes=99, digest="ab" * 32),),
                snapshots=(StagedPrint(offset=9, rests_from=0, size_bytes=10, sha256="cd" * 32, left_out=0),),
            )
        )
    ],
    "undo-manifest": [
        write_undo_manifest(
            UndoManifest(
                log_dir="/data",
                made_at_ms=1,
                shutdown=ShutdownMark(digest=_DIGEST, mtime_ns=1),
                folder_times_ns={"payments-0": 1},
                changes=(Change(place=f"payments-0/{9:020d}.snapshot", old=None, new=_DIGEST),),
            )
        )
    ],
    "memory": [encoded(Memory(rules="r", directory="d"))[1]],
    "saved-plan": [
        write_saved_plan(
            SavedPlan(
                sources=("/data",),
                rules=ReplayRules(as_of=AsOf(now_ms=1)),
                boundaries={TopicPartition("payments", 0): (9,)},
                fingerprints={TopicPartition("payments", 0): "ab"},
            )
        ).encode()
    ],
    "rsm-manifest": [
        (
            b'{"version":"1","chunkIndex":{"type":"fixed","originalChunkSize":4096,"originalFileSize":10000,'
            b'"transformedChunkSize":4096,"finalTransformedChunkSize":1808},"segmentIndexes":{"offset":{"position":0,'
            b'"size":16},"timestamp":{"position":16,"size":24},"producerSnapshot":{"position":40,"size":10},"leaderEpoch":'
            b'{"position":50,"size":8},"transaction":null},"compression":false}'
        ),
        (
            b'{"version":"1","chunkIndex":{"type":"variable","originalChunkSize":4096,"originalFileSize":16229,'
            b'"transformedChunks":"KLUv/SATmQAAAAAABAAAC3QCACkBWwAAAAAKOw=="},"segmentIndexes":{"offset":{"position":0,'
            b'"size":80},"timestamp":{"position":80,"size":132},"producerSnapshot":{"position":212,"size":378},"leaderEpoch"'
            b':{"position":590,"size":8},"transaction":{"position":598,"size":102}},"compression":true}'
        ),
    ],
    "custom-metadata": [bytes.fromhex("03 00 02 c801 01 03 03 702f 02 04 04 666f6f")],
    "file-name": [b"00000000000000000145.snapshot", b"00000000000000000145.log.deleted"],
    "directory-name": [b"payments-0", b"payments-0.0123456789abcdef0123456789abcdef-delete"],
    "object-key": [b"c/t/none/0/00000000000000000000-9347e368-7f13-58b2-a80e-cd487a8de498.log"],
}
LARGEST: Final = 4_096


def examples(name: str, data: Path) -> list[bytes]:
    """Return good inputs of a parser, from the log dir ``data`` of a real broker where there are any."""
    if name == "manifest":
        return [write_manifest(a_manifest())]
    if name in _EXAMPLE_BYTES:
        return _EXAMPLE_BYTES[name]
    found = (path.read_bytes()[:LARGEST] for path in sorted(data.rglob(_EXAMPLES[name])))
    return [body for body in found if body][:6]


def try_one(name: str, data: bytes) -> bool:
    """Parse ``data``; return whether it was taken. Anything but the library's own errors passes through."""
    try:
        PARSERS[name](data)
    except (ResnapError, *REFUSALS.get(name, ())):
        return False
    return True


def mutated(good: bytes, draw: random.Random) -> bytes:
    """Return ``good`` after a few changes: bits, bytes, lengths that say much, cuts, repetitions."""
    data = bytearray(good)
    for _ in range(draw.randint(1, 4)):
        at, kind = draw.randrange(len(data) + 1), draw.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[at : at + 1] = draw.randbytes(draw.randint(0, 3))
        elif kind == 2:
            data[at : at + 4] = draw.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0"))
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            data[at:at] = data[at : at + draw.randint(1, 64)]
        else:
            data[at:at] = draw.choice((b"9" * 30, b"[" * 50, b"\n", b"\\", b'"', b"{", b"-1", b"1e999"))
    return bytes(data[: 4 * LARGEST])
