"""Where a snapshot of the layout ``aiven`` comes from: what is written is read, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resnap.storage.errors import FormatError
from resnap.storage.json_values import checked_json
from resnap.storage.layouts.aiven.members import MANIFEST, AivenKey, origin_key, parse_key, segment_key_of_origin
from resnap.storage.layouts.manifest import origin_record
from resnap.storage.layouts.segments import read_origin, write_origin
from resnap.storage.log.producer_snapshot import LeftOut
from tests.storage.layouts.manifests import a_manifest

ORIGIN = replace(a_manifest().snapshot_origin, left_out=(LeftOut(producer_id=7, reason="unexplained-batch"),))
ID = "He9TUenRQJyi--dhGzsc4w"


def test_what_is_written_is_read() -> None:
    assert read_origin(write_origin(ORIGIN)) == ORIGIN


def test_a_flipped_bit_anywhere_changes_nothing_in_silence() -> None:
    data = write_origin(ORIGIN)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError, match="origin of a snapshot"):
            read_origin(bytes(flipped))


@pytest.mark.parametrize(
    "change",
    [
        {"how": "guessed"},
        {"asOfMs": "1"},
        {"entriesCount": None},
        {"producerIdExpirationMs": 1 << 64},
        {"leftOut": [{"producerId": 7}]},
    ],
)
def test_values_that_cannot_be_are_refused_though_the_checksum_is_right(change: dict[str, object]) -> None:
    record = origin_record(ORIGIN) | change
    with pytest.raises(FormatError, match="origin of a snapshot"):
        read_origin(checked_json(1, "snapshotOrigin", record))


@pytest.mark.parametrize("prefix", ["", "tiered/", "a/b.resnap/", "no-slash"])
def test_its_key_and_that_of_the_segment_give_each_other(prefix: str) -> None:
    key = f"{prefix}payments-{ID}/3/00000000000000000149-{ID}.{MANIFEST}"
    place = parse_key(key)
    assert isinstance(place, AivenKey)
    told = origin_key(key)
    assert told == f"{place.prefix}.resnap/origin/{key.removeprefix(place.prefix).removesuffix(MANIFEST)}json"
    assert segment_key_of_origin(told) == place
    assert parse_key(told) is None


@pytest.mark.parametrize(
    "key",
    [
        f".resnap/origin/payments-0/0/00000000000000000000-{ID}.json",
        f".resnap/origin/payments-{ID}/0/00000000000000000000-{ID}.log",
        f"x.resnap/origin/payments-{ID}/0/00000000000000000000-{ID}.json",
        f".resnap/lease/payments-{ID}/0/00000000000000000000-{ID}.json",
        f".resnap/origin/x/payments-{ID}/0/00000000000000000000-{ID}.json",
        f"payments-{ID}/0/00000000000000000000-{ID}.json",
    ],
)
def test_no_other_key_is_taken_for_one(key: str) -> None:
    assert segment_key_of_origin(key) is None
