from __future__ import annotations

import pytest

from resnap.replay.scan.header_scan import ScanFacts, SegmentRange
from resnap.replay.scan.producer_fold import scan
from resnap.storage.errors import FormatError
from resnap.storage.readers import BytesReader
from tests.builders import a_batch
from tests.strategies import LegacyEvent, encode_event


def _read(data: bytes, *, verify_crc: bool, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> ScanFacts:
    monkeypatch.setattr("resnap.replay.scan.header_scan.BLOCK_BYTES", block_bytes)
    whole = SegmentRange(locator="0.log", base_offset=0, next_base_offset=None, verify_crc=verify_crc)
    facts = ScanFacts()
    for _ in scan(BytesReader(data), whole, facts):
        pass
    return facts


@pytest.mark.parametrize("block_bytes", [100, 4096, 1 << 20])
def test_a_flipped_payload_byte_is_found_only_when_asked_for(monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    good = a_batch(values=[bytes(500)] * 3)
    bad = bytearray(good)
    bad[-1] ^= 1
    _read(good, verify_crc=True, monkeypatch=monkeypatch, block_bytes=block_bytes)
    _read(bytes(bad), verify_crc=False, monkeypatch=monkeypatch, block_bytes=block_bytes)
    with pytest.raises(FormatError, match=r"0\.log: record batch checksum .* at byte 0"):
        _read(bytes(bad), verify_crc=True, monkeypatch=monkeypatch, block_bytes=block_bytes)


def test_a_flipped_byte_of_a_legacy_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    message = bytearray(encode_event(LegacyEvent(), 0))
    _read(bytes(message), verify_crc=True, monkeypatch=monkeypatch, block_bytes=4096)
    message[-1] ^= 1
    with pytest.raises(FormatError, match="message checksum"):
        _read(bytes(message), verify_crc=True, monkeypatch=monkeypatch, block_bytes=4096)
