"""Every checksum that machine code makes is the one that the library makes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from resnap.replay.kernel import checksum
from resnap.replay.kernel.checksum import STREAM_BYTES
from resnap.replay.kernel.machine import HAS_CRC32C
from resnap.storage.crc32c import crc32c

LENGTHS = (
    *range(70), 3 * STREAM_BYTES - 1, 3 * STREAM_BYTES, 3 * STREAM_BYTES + 9, 7 * STREAM_BYTES + 3, 100_001,
)  # fmt: skip
WAYS = [
    pytest.param(
        checksum.by_instruction, marks=pytest.mark.skipif(not HAS_CRC32C, reason="the processor has none"),
        id="by instruction",
    ),
    pytest.param(checksum.by_table, id="by table"),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_registers_are_those_of_crc_32c_at_every_length_and_alignment(way: object) -> None:
    data = np.frombuffer(random.Random(0).randbytes(LENGTHS[-1] + 8), dtype=np.uint8)
    for length in LENGTHS:
        for start in range(8):
            part = data[start : start + length].tobytes()
            for before in (0, 1, 0xFFFFFFFF, 0xDEADBEEF):
                register = way(data.ctypes.data + start, length, before ^ 0xFFFFFFFF)
                assert register ^ 0xFFFFFFFF == crc32c(part, before)
