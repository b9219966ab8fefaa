"""Good inputs for each parser, to begin mutating from, and the mutations."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from resnap.replay.window import AsOf, ReplayRules
from resnap.scheduler.api.paging import encode_cursor as encoded_cursor
from resnap.storage.disk import FileDigest
from resnap.storage.layouts.aiven.pieces import compress, encode_sizes
from resnap.storage.layouts.manifest import write_manifest
from resnap.storage.layouts.segments import write_origin
from resnap.storage.log.log_dir_lock import ShutdownMark
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.record import KEY, LEADER_CHANGE, SNAPSHOT_FOOTER, write_marker_batch
from resnap.storage.messages.schema import write_message
from resnap.storage.messages.wire import write_varint
from resnap.storage.processes import this_process
from resnap.tiering.controller.metadata.batches import LeaderChangeMessage, SnapshotFooterRecord, Voter, encode_record
from resnap.tiering.controller.metadata.records import TopicRecord
from resnap.tiering.controller.metadata.writer import control_batch
from resnap.tiering.controller.producer_ids.allocation import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducerIdsBlock,
    write_body,
)
from resnap.tiering.controller.producer_ids.broker_ids import block_json
from resnap.tiering.installing.staging_area import Fingerprint, SegmentPrint, StagedPrint, write_fingerprint
from resnap.tiering.installing.undo import FileChange, UndoManifest
from resnap.tiering.installing.undo import write_manifest as write_undo_manifest
from resnap.tiering.judging.planning import SavedPlan, write_saved_plan
from resnap.tiering.quota.client_quotas import ClientQuotas
from resnap.tiering.quota.user_quotas import encode_quotas
from resnap.tiering.remote_log.records import encode_record as encode_remote_log_record
from resnap.tiering.run_cache.results import CachedResults
from resnap.tiering.run_cache.run_cache import encode_results
from resnap.tiering.shipping.lease import Holder
from tests.fuzz.parsers import INIT_VERSIONS, LARGEST
from tests.logs.batch_builder import write_data_batch, write_legacy_message
from tests.storage.layouts.manifests import a_manifest
from tests.tiering.remote_log.written_records import copied

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from resnap.tiering.controller.metadata.batches import ControlMessage

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
}
_DIGEST: Final = FileDigest(size_bytes=10, sha256="ab" * 32)
_TOPIC: Final = TopicRecord(name="payments", topic_id="z5W3VT5QSCibauYNT3y0NQ")
_INIT: Final = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
_MESSAGES: Final[dict[int, ControlMessage]] = {
    LEADER_CHANGE: LeaderChangeMessage(
        version=1, leader_id=1, voters=(Voter(voter_id=1),), granting_voters=(Voter(voter_id=1),)
    ),
    SNAPSHOT_FOOTER: SnapshotFooterRecord(version=0),
}
_QUOTAS: Final = ClientQuotas({(("client-id", None), ("user", "alice")): {"producer_byte_rate": 1024.0}})
_ENDED: Final = [
    write_marker_batch(offset=0, producer_id=7, producer_epoch=1, coordinator_epoch=3, timestamp=9, commit=commit)
    for commit in (True, False)
]
_CLUSTER_BATCHES: Final = [
    control_batch(LEADER_CHANGE, _MESSAGES[LEADER_CHANGE], 0, 9, leader_epoch=1),
    write_data_batch(
        offset=0, values=[encode_record(_TOPIC), encode_record(_TOPIC)], timestamps=9,
    ),
]  # fmt: skip
_REMOTE_BATCHES: Final = [
    write_data_batch(
        offset=0, values=[encode_remote_log_record(record) for record in copied("a", 0, 9, {0: 0, 3: 5})], timestamps=9
    )
]
_EXAMPLE_BYTES: Final = {
    "control-record": _ENDED,
    "legacy-message": [
        write_legacy_message(offset=9, magic=magic, key=b"k", value=b"v", timestamp=9) for magic in (0, 1)
    ],
    "integers": [write_varint(value) * 2 for value in (0, -1, 300, -(1 << 31))],
    "records": [write_data_batch(offset=0, values=[b"one", b"two"], timestamps=[9, 10]), *_ENDED],
    "chunk-sizes": [encode_sizes(sizes) for sizes in ((), (9,), (900, 904, 5), (70_000, 90, 5))],
    "zstd-piece": [compress(data) for data in (b"", b"some bytes " * 40, bytes(300_000))],
    "control-message": [KEY.pack(0, kind) + write_message(one, one.version) for kind, one in _MESSAGES.items()],
    "metadata-log": [
        b"".join([_CLUSTER_BATCHES[0], write_data_batch(offset=1, values=[encode_record(_TOPIC)], timestamps=9)]),
        *_CLUSTER_BATCHES,
    ],
    "metadata-batch": _CLUSTER_BATCHES,
    "remote-log": _REMOTE_BATCHES,
    "remote-log-batch": _REMOTE_BATCHES,
    "allocate-request": [write_body(AllocateProducerIdsRequest(broker_id=1, broker_epoch=7))],
    "allocate-response": [write_body(AllocateProducerIdsResponse(producer_id_start=1_000, producer_id_len=1_000))],
    "init-request": [bytes([version]) + write_body(_INIT, version) for version in range(INIT_VERSIONS)],
    "init-response": [
        bytes([version]) + write_body(InitProducerIdResponse(producer_id=7, producer_epoch=1), version)
        for version in range(INIT_VERSIONS)
    ],
    "znode": [block_json(ProducerIdsBlock(broker_id=1, first=1_000))],
    "lease": [
        json.dumps(asdict(Holder(run="r", who="a on b", since_ms=9, process=this_process()))).encode(),
    ],
    "quotas": [encode_quotas(_QUOTAS)],
    "journal": [b'{"version": 1, "begunMs": 0}\n["none/payments/0/9.manifest", "abc"]\n'],
    "cursor": [encoded_cursor("payments", 0, "/data").encode()],
    "metadata-record": [encode_record(_TOPIC)],
    "remote-log-record": [encode_remote_log_record(record) for record in copied("a", 0, 9, {0: 0, 3: 5})],
    "fingerprint": [
        write_fingerprint(
            Fingerprint(
                segments=(SegmentPrint(base_offset=0, next_base_offset=9, size_bytes=99, digest="ab" * 32),),
                snapshots=(StagedPrint(offset=9, depends_from=0, size_bytes=10, sha256="cd" * 32, left_out=0),),
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
                changes=(FileChange(place=f"payments-0/{9:020d}.snapshot", old=None, new=_DIGEST),),
            )
        )
    ],
    "memory": [encode_results(CachedResults(rules="r", directory="d"))[1]],
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
    "snapshot-origin": [write_origin(a_manifest().snapshot_origin)],
    "custom-metadata": [bytes.fromhex("03 00 02 c801 01 03 03 702f 02 04 04 666f6f")],
    "file-name": [b"00000000000000000145.snapshot", b"00000000000000000145.log.deleted"],
    "directory-name": [b"payments-0", b"payments-0.0123456789abcdef0123456789abcdef-delete"],
    "object-key": [b"c/t/none/0/00000000000000000000-9347e368-7f13-58b2-a80e-cd487a8de498.log"],
}


def examples(name: str, data: Path) -> list[bytes]:
    """Return good inputs of a parser, from the log dir ``data`` of a real broker where there are any."""
    if name == "manifest":
        return [write_manifest(a_manifest())]
    if name in _EXAMPLE_BYTES:
        return _EXAMPLE_BYTES[name]
    found = (path.read_bytes()[:LARGEST] for path in sorted(data.rglob(_EXAMPLES[name])))
    return [body for body in found if body][:6]


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
