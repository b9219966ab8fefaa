from __future__ import annotations

from typing import Final

import pytest

from resnap.storage.errors import FormatError
from resnap.tiering.remote_log.stored import CustomMetadata, read_custom_metadata

# What the plugin wrote for a segment of three objects of 678, 76 and 687 bytes, asked for all its fields.
CUSTOM_METADATA_OF_THE_PLUGIN: Final = (
    bytes.fromhex("03 00 02 c216 01 08 08") + b"tiered/" + bytes.fromhex("02 49 49")
    + b"one-5RNveczLSxiXSO5PtHCXeg/0/00000000000000000000-HZETdFIqTISOgntbSPAOyg"
)  # fmt: skip


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            CUSTOM_METADATA_OF_THE_PLUGIN,
            CustomMetadata(
                remote_size=678 + 76 + 687,
                object_prefix="tiered/",
                object_key="one-5RNveczLSxiXSO5PtHCXeg/0/00000000000000000000-HZETdFIqTISOgntbSPAOyg",
            ),
        ),
        (bytes.fromhex("02 00 02 c801 02 04 04") + b"foo", CustomMetadata(remote_size=100, object_key="foo")),
        (bytes.fromhex("01 01 01 01"), CustomMetadata(object_prefix="")),
        (bytes.fromhex("02 00 01 01 07 02 abcd"), CustomMetadata(remote_size=-1)),
        (b"", CustomMetadata()),
    ],
)
def test_custom_metadata_are_tagged_fields(data: bytes, told: CustomMetadata) -> None:
    assert read_custom_metadata(data) == told
    for end in range(1, len(data)):
        with pytest.raises(FormatError):
            read_custom_metadata(data[:end])
