from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.layouts.local_tiered.keys import LocalTieredKey, parse_key
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.log.names import MAX_OFFSET, MAX_PARTITION
from resnap.storage.messages.wire import uuid_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet

IDS = st.binary(min_size=16, max_size=16).map(uuid_text)
KEYS = st.builds(
    LocalTieredKey,
    topic=st.text("abAZ09._-", min_size=1, max_size=20),
    partition=st.integers(0, MAX_PARTITION),
    topic_id=IDS,
    base_offset=st.integers(0, MAX_OFFSET),
    segment_id=IDS,
    kind=st.sampled_from(ObjectKind),
)


@given(KEYS)
def test_a_key_is_taken_apart_into_what_it_was_made_of(key: LocalTieredKey) -> None:
    assert parse_key(key.key) == key
    assert parse_key(f"some/prefix/{key.key}") == key


def test_every_file_that_a_broker_left_has_a_key_of_this_layout(fixture_set: Callable[[str], FixtureSet]) -> None:
    remote = fixture_set("kafka-3.9.1-tiered").root / "remote"
    files = [path.relative_to(remote).as_posix() for path in remote.rglob("*") if path.is_file()]
    keys = [parse_key(name) for name in files]
    assert [key and key.key for key in keys] == files
    assert {key.kind for key in keys if key} == set(ObjectKind)


@pytest.mark.parametrize(
    "name",
    [
        "kafka-tiered-storage/payments-0/00000000000000000000.log",
        "payments-0-AAAAAAAAQACAAAAAAAAAAQ/00000000000000000000-AAAAAAAAQACAAAAAAAAAAQ.swap",
        "payments-0-AAAAAAAAQACAAAAAAAAAAQ/99999999999999999999-AAAAAAAAQACAAAAAAAAAAQ.log",
        "payments-01-AAAAAAAAQACAAAAAAAAAAQ/00000000000000000000-AAAAAAAAQACAAAAAAAAAAQ.log",
        "payments-9999999999-AAAAAAAAQACAAAAAAAAAAQ/00000000000000000000-AAAAAAAAQACAAAAAAAAAAQ.log",
    ],
)
def test_other_names_are_no_keys(name: str) -> None:
    assert parse_key(name) is None
