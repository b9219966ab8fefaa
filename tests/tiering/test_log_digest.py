from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.crc32c import crc32c
from resnap.storage.readers import BytesReader
from resnap.tiering.shipping.segment_pass import DigestingReader

LOG = bytes(range(256)) * 17
reads = st.lists(st.tuples(st.integers(0, len(LOG) + 9), st.integers(0, len(LOG))), max_size=12)


@dataclass
class Counting(BytesReader):
    """Counts how often each byte is read."""

    data: bytes
    locator: str = "log"
    seen: list[int] = field(default_factory=lambda: [0] * len(LOG))

    def __post_init__(self) -> None:
        super().__init__(self.data)

    def read(self, position: int, length: int) -> bytes:
        found = super().read(position, length)
        for i in range(position, position + len(found)):
            self.seen[i] += 1
        return found


@given(asked=reads)
def test_whatever_is_read_in_between_the_digests_are_those_of_the_whole_in_order(asked: list[tuple[int, int]]) -> None:
    log = DigestingReader(BytesReader(LOG))
    for position, length in asked:
        assert log.read(position, length) == LOG[position : position + length]
        assert (log.crc32c, log.sha256) == digests(LOG[: log.digested_bytes])
    log.finish()
    assert log.digested_bytes == log.size_bytes == len(LOG)
    assert (log.crc32c, log.sha256) == digests(LOG)


def test_a_scan_in_order_reads_each_byte_once() -> None:
    counting = Counting(LOG)
    log = DigestingReader(counting)
    for position in range(0, len(LOG), 100):
        log.read(position, 60)
    log.finish()
    assert set(counting.seen) == {1}


def digests(data: bytes) -> tuple[int, str]:
    return crc32c(data), hashlib.sha256(data).hexdigest()
