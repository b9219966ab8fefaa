"""Bytes that Kafka's own classes wrote (the storage and clients modules of the 4.2 line), field by field.

``PARTITION`` is a whole partition from Kafka's storage engine: index interval 64 bytes, closed segments 0 and 7, log
end 12. Producer 50 is transactional (offsets 0-4 and 7-9, aborted at 10), 7 and 8 are idempotent (5-6 and 11).
"""

from __future__ import annotations

from typing import Final

from resnap.storage.log.indexes import AbortedTxn, OffsetIndexEntry, TimeIndexEntry
from resnap.storage.log.message_set import LegacyMessage
from resnap.storage.log.producer_snapshot import ProducerEntry
from resnap.storage.log.record import ControlRecord
from resnap.storage.log.record_batch import RecordBatchHeader

NOON: Final = 1_700_000_000_000
"""The base of every timestamp here, in milliseconds."""


def unhex(text: str) -> bytes:
    return bytes.fromhex("".join(text.split()))


EMPTY_SNAPSHOT: Final = unhex("0001 48674bc7 00000000")
ONE_ENTRY_SNAPSHOT: Final = unhex("""
    0001059722d400000001
    00000000000010920003000000090000000000000262000000040000018bcfe5687b00000007000000000000022b
""")
ONE_ENTRY: Final = ProducerEntry(
    producer_id=4242,
    producer_epoch=3,
    last_sequence=9,
    last_offset=610,
    offset_delta=4,
    timestamp=NOON + 123,
    coordinator_epoch=7,
    current_txn_first_offset=555,
)
MARKER_ONLY_SNAPSHOT: Final = unhex("""
    0001ecbc041700000001
    0000000000001092 0003 ffffffff ffffffffffffffff 00000000 0000018bcfe5687b 00000007 ffffffffffffffff
""")
MARKER_ONLY_ENTRY: Final = ProducerEntry(4242, 3, -1, -1, 0, NOON + 123, 7, -1)

TRANSACTIONAL_BATCH: Final = unhex("""
    0000000000000064000000420000000702c95971cf0010000000010000018bcfe568000000018bcfe5680500000000000010920003
    000000090000000210000000026b0276000e000a0201027700
""")
TRANSACTIONAL_HEADER: Final = RecordBatchHeader(
    base_offset=100,
    batch_length=66,
    partition_leader_epoch=7,
    magic=2,
    crc=0xC95971CF,
    attributes=0x10,
    last_offset_delta=1,
    base_timestamp=NOON,
    max_timestamp=NOON + 5,
    producer_id=4242,
    producer_epoch=3,
    base_sequence=9,
    records_count=2,
)
COMMIT_BATCH: Final = unhex("""
    0000000000000066000000420000000702b642459d0030000000000000018bcfe568090000018bcfe5680900000000000010920003
    ffffffff000000012000000008000000010c00000000000b00
""")
ABORT_BATCH: Final = unhex("""
    0000000000000066000000420000000702427c93d50030000000000000018bcfe568090000018bcfe5680900000000000010920003
    ffffffff000000012000000008000000000c00000000000b00
""")
MARKER_HEADER: Final = RecordBatchHeader(
    102, 66, 7, 2, 0xB642459D, 0x30, 0, NOON + 9, NOON + 9, 4242, 3, -1, 1
)  # fmt: skip
"""Of ``COMMIT_BATCH``; that of ``ABORT_BATCH`` has another CRC."""
ABORT_CRC: Final = 0x427C93D5
COMPACTED_BATCH: Final = unhex("""
    00000000000000640000003100000007027b38398a000000000004ffffffffffffffff0000018bcfe5680000000000000010920003
    0000000900000000
""")
COMPACTED_HEADER: Final = RecordBatchHeader(100, 49, 7, 2, 0x7B38398A, 0, 4, -1, NOON, 4242, 3, 9, 0)

V1_MESSAGE: Final = unhex("00000000000000320000001839268c3301000000018bcfe56800000000016b0000000176")
V1_HEADER: Final = LegacyMessage(offset=50, size=24, crc=0x39268C33, magic=1, attributes=0, timestamp=NOON)
V0_MESSAGE: Final = unhex("0000000000000032000000101fecd70a0000000000016b0000000176")
V0_HEADER: Final = LegacyMessage(offset=50, size=16, crc=0x1FECD70A, magic=0, attributes=0, timestamp=-1)

PARTITION: Final = {
    "00000000000000000000.log": unhex("""
        000000000000000000000068000000000234a806a60010000000040000018bcfe568000000018bcfe5680400000000000000320000
        000000000000000514000000046b300476300014000202046b310476310014000404046b320476320014000606046b330476330014
        000808046b34047634000000000000000005000000470000000002a356831c0000000000010000018bcfe5680a0000018bcfe5680b
        00000000000000070000000000000000000214000000046b300476300014000202046b3104763100
    """),
    "00000000000000000000.index": unhex("0000000600000074"),
    "00000000000000000000.timeindex": unhex("0000018bcfe5680b00000006"),
    "00000000000000000007.log": unhex("""
        000000000000000700000052000000000251d6e89a0010000000020000018bcfe568140000018bcfe5681600000000000000320000
        000000050000000314000000046b300476300014000202046b310476310014000404046b3204763200000000000000000a00000042
        0000000002ed9d57720030000000000000018bcfe568190000018bcfe5681900000000000000320000ffffffff0000000120000000
        08000000000c00000000000300000000000000000b0000003c0000000002e16998080000000000000000018bcfe5681e0000018bcf
        e5681e00000000000000080000000000000000000114000000046b3004763000
    """),
    "00000000000000000007.index": unhex("000000030000005e00000004000000ac"),
    "00000000000000000007.timeindex": unhex("0000018bcfe56819000000030000018bcfe5681e00000004"),
    "00000000000000000007.txnindex": unhex(
        "000000000000000000320000000000000000000000000000000a000000000000000b"
    ),
    "00000000000000000007.snapshot": unhex("""
        0001a44c2e7400000002
        00000000000000320000000000040000000000000004000000040000018bcfe56804ffffffff0000000000000000
        00000000000000070000000000010000000000000006000000010000018bcfe5680bffffffffffffffffffffffff
    """),
    "00000000000000000012.snapshot": unhex("""
        00016a7aa54700000003
        00000000000000320000000000070000000000000009000000020000018bcfe5681900000003ffffffffffffffff
        00000000000000070000000000010000000000000006000000010000018bcfe5680bffffffffffffffffffffffff
        0000000000000008000000000000000000000000000b000000000000018bcfe5681effffffffffffffffffffffff
    """),
    "leader-epoch-checkpoint": b"0\n1\n0 0\n",
    "partition.metadata": b"version: 0\ntopic_id: AAAAAAAAAAEAAAAAAAAAAg",
}  # fmt: skip
"""The files of the partition's directory."""

PARTITION_HEADERS: Final = {
    "00000000000000000000.log": [
        RecordBatchHeader(0, 104, 0, 2, 0x34A806A6, 0x10, 4, NOON, NOON + 4, 50, 0, 0, 5),
        RecordBatchHeader(5, 71, 0, 2, 0xA356831C, 0, 1, NOON + 10, NOON + 11, 7, 0, 0, 2),
    ],
    "00000000000000000007.log": [
        RecordBatchHeader(7, 82, 0, 2, 0x51D6E89A, 0x10, 2, NOON + 20, NOON + 22, 50, 0, 5, 3),
        RecordBatchHeader(10, 66, 0, 2, 0xED9D5772, 0x30, 0, NOON + 25, NOON + 25, 50, 0, -1, 1),
        RecordBatchHeader(11, 60, 0, 2, 0xE1699808, 0, 0, NOON + 30, NOON + 30, 8, 0, 0, 1),
    ],
}
PARTITION_MARKER: Final = ControlRecord(type=0, coordinator_epoch=3, timestamp=NOON + 25)
PARTITION_OFFSET_INDEXES: Final = {
    "00000000000000000000.index": [OffsetIndexEntry(6, 116)],
    "00000000000000000007.index": [OffsetIndexEntry(3, 94), OffsetIndexEntry(4, 172)],
}
PARTITION_TIME_INDEXES: Final = {
    "00000000000000000000.timeindex": [TimeIndexEntry(NOON + 11, 6)],
    "00000000000000000007.timeindex": [TimeIndexEntry(NOON + 25, 3), TimeIndexEntry(NOON + 30, 4)],
}
PARTITION_ABORTED: Final = [AbortedTxn(producer_id=50, first_offset=0, last_offset=10, last_stable_offset=11)]
PARTITION_SNAPSHOTS: Final = {
    "00000000000000000007.snapshot": [
        ProducerEntry(50, 0, 4, 4, 4, NOON + 4, -1, 0),
        ProducerEntry(7, 0, 1, 6, 1, NOON + 11, -1, -1),
    ],
    "00000000000000000012.snapshot": [
        ProducerEntry(50, 0, 7, 9, 2, NOON + 25, 3, -1),
        ProducerEntry(7, 0, 1, 6, 1, NOON + 11, -1, -1),
        ProducerEntry(8, 0, 0, 11, 0, NOON + 30, -1, -1),
    ],
}
"""In the order of the files."""
