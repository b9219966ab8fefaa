"""What Kafka's own dump tool said of a metadata log, taken apart."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_BATCH = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) .* partitionLeaderEpoch: (\d+) .* isControl: (\w+) .* position: (\d+)"
    r" CreateTime: (\d+) size: (\d+) .* crc: (\d+) isvalid: true"
)
_RECORD = re.compile(r"\| offset: (\d+) CreateTime: (\d+) .*payload: (\{.*\})")


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedBatch:
    """One line of a batch."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    is_control: bool
    position: int
    timestamp: int
    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedRecord:
    """One line of a record that is not a control record."""

    offset: int
    timestamp: int
    payload: dict[str, Any]


def dumped_batches(text: str) -> Iterator[DumpedBatch]:
    for match in _BATCH.finditer(text):
        base, last, epoch, control, position, timestamp, size, crc = match.groups()
        yield DumpedBatch(
            base_offset=int(base),
            last_offset=int(last),
            leader_epoch=int(epoch),
            is_control=control == "true",
            position=int(position),
            timestamp=int(timestamp),
            size_bytes=int(size),
            crc=int(crc),
        )


def dumped_records(text: str) -> Iterator[DumpedRecord]:
    for offset, timestamp, payload in _RECORD.findall(text):
        yield DumpedRecord(offset=int(offset), timestamp=int(timestamp), payload=json.loads(payload))
