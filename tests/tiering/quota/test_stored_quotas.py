"""Quotas that are stored: in a file here, and in a cluster's metadata log."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.disk import Disk
from resnap.storage.errors import ConfigurationError, ResnapError, UsageError
from resnap.tiering.controller.metadata.records import ClientQuotaRecord, EntityData
from resnap.tiering.controller.metadata.writer import open_metadata_log
from resnap.tiering.quota.client_quotas import (
    PRODUCER_IDS_RATE,
    ClientQuotas,
    QuotaChange,
    QuotaRequestError,
    UserRates,
    entity_of,
    user,
)
from resnap.tiering.quota.quota_manager import SEEN
from resnap.tiering.quota.user_quotas import NAME, MetadataQuotas, QuotaFile, decode_quotas, encode_quotas
from tests.tiering.quota.quotas import manager, steady

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RATE = PRODUCER_IDS_RATE
ODD = 'CN=a, O="b" ~*\u2028ä\x01'


def changes(name: str | None, value: float | None) -> dict[tuple[tuple[str, str | None], ...], list[QuotaChange]]:
    return {user(name): [QuotaChange(RATE, value)]}


def test_what_is_set_is_there_for_the_next_one_and_what_is_deleted_is_not(tmp_path: Path) -> None:
    file = QuotaFile(tmp_path / "state", Disk())
    assert file.load() == ClientQuotas()
    assert len(file.alter({**changes(ODD, 5.5), **changes(None, 7.0)})) == 2
    assert file.alter(changes(ODD, 5.5)) == []
    again = QuotaFile(tmp_path / "state", Disk())
    assert again.load().rates() == UserRates({ODD: 5.5}, 7.0)
    again.alter(changes(ODD, None))
    assert file.load().rates() == UserRates({}, 7.0)
    assert [path.name for path in (tmp_path / "state").glob("*.tmp")] == []


def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    file = QuotaFile(tmp_path, Disk())
    file.alter(changes("alice", 5.0))
    before = file.path.read_bytes()
    with pytest.raises(QuotaRequestError):
        file.alter({**changes("bob", 1.0), **changes("alice", 0.0)})
    assert file.path.read_bytes() == before


def test_requests_at_once_are_all_carried_out(tmp_path: Path) -> None:
    def work(number: int) -> None:
        QuotaFile(tmp_path, Disk()).alter(changes(f"user {number}", 1.0 + number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(QuotaFile(tmp_path, Disk()).load().entities) == 16


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b'{"version": 2, "quotas": []}', b'{"version": 1}', b"\xff", b"[" * 100_000,
     b'{"version": 1, "quotas": [{"entity": {"user": "a"}, "values": {"producer_ids_rate": 0}}]}',
     b'{"version": 1, "quotas": [{"entity": {"group": "a"}, "values": {}}]}',
     b'{"version": 1, "quotas": [{"entity": {"user": 5}, "values": {"producer_ids_rate": 1}}]}',
     b'{"version": 1, "quotas": [{"entity": {"user": "a"}, "values": {"producer_ids_rate": "5"}}]}',
     b'{"version": 1, "quotas": [{"entity": {"user": "a"}, "values": {"producer_ids_rate": Infinity}}]}',
     b'{"version": 1, "quotas": [{"entity": {"user": "a"}, "values": {"producer_byte_rate": 1e999}}]}',
     b'{"version": 1, "quotas": [%s, %s]}' % ((b'{"entity": {"user": "a"}, "values": {"producer_ids_rate": 5}}',) * 2)],
)  # fmt: skip
def test_a_file_of_something_else_is_an_error_and_stays_as_it_is(content: bytes, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(content)
    file = QuotaFile(tmp_path, Disk())
    for attempt in (file.load, lambda: file.alter(changes("a", 1.0))):
        with pytest.raises(ConfigurationError, match="not a file of quotas"):
            attempt()
    assert (tmp_path / NAME).read_bytes() == content


@steady
@given(st.dictionaries(st.none() | st.text(min_size=1), st.floats(1e-9, 9e18), max_size=8))
def test_quotas_round_trip_through_the_file(rates: dict[str | None, float]) -> None:
    quotas = ClientQuotas({user(name): {RATE: rate} for name, rate in rates.items()})
    assert decode_quotas(encode_quotas(quotas)) == quotas
    assert json.loads(encode_quotas(quotas))["version"] == 1


def quota(name: str | None, value: float, *, remove: bool = False, key: str = RATE) -> ClientQuotaRecord:
    entity = (EntityData(entity_type="user", entity_name=name),)
    return ClientQuotaRecord(entity=entity, key=key, value=value, remove=remove)


def append(directory: Path, records: Sequence[ClientQuotaRecord]) -> None:
    with open_metadata_log(directory, leader_id=1, timestamp=5) as log:
        log.append(records, timestamp=6)


def test_s29_rates_follow_the_metadata_log_while_it_grows(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    append(directory, [quota("alice", 5.0), quota(None, 7.0), quota("bob", 1e6, key="producer_byte_rate")])
    cluster = MetadataQuotas(tmp_path)
    assert cluster.rates == UserRates({"alice": 5.0}, 7.0)
    assert cluster.quotas.entities[user("bob")] == {"producer_byte_rate": 1e6}
    assert not cluster.refresh()
    limited = manager(rates=cluster.rates)
    assert limited.admit("alice", 1).charged == 1
    append(directory, [quota("alice", 0.0, remove=True), quota(None, 0.0, remove=True), quota(ODD, 2.0)])
    assert cluster.refresh()
    assert cluster.rates == UserRates({ODD: 2.0})
    limited.update(cluster.rates)
    assert limited.admit("alice", 2) is SEEN


def test_s28_invalid_records_of_a_metadata_log_are_reported_and_skipped(tmp_path: Path) -> None:
    told: list[str] = []
    client = (EntityData(entity_type="user", entity_name="a"), EntityData(entity_type="client-id", entity_name=None))
    append(
        tmp_path / "__cluster_metadata-0",
        [quota("alice", -5.0), quota("bob", 0.0), ClientQuotaRecord(entity=client, key=RATE, value=1.0, remove=False)],
    )
    cluster = MetadataQuotas(tmp_path, told.append)
    assert cluster.rates == UserRates({"bob": 0.0})
    assert len(told) == 2
    assert entity_of([("user", "a"), ("client-id", None)]) in cluster.quotas.entities


def test_a_metadata_log_that_is_damaged_later_leaves_the_quotas_as_they_were(tmp_path: Path) -> None:
    told: list[str] = []
    directory = tmp_path / "__cluster_metadata-0"
    append(directory, [quota("alice", 5.0)])
    cluster = MetadataQuotas(tmp_path, told.append)
    append(directory, [quota("alice", 9.0)])
    segment = next(directory.glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[100] ^= 0xFF
    segment.write_bytes(data)
    assert not cluster.refresh()
    assert cluster.rates == UserRates({"alice": 5.0})
    assert "stay as of offset" in told[0]
    with pytest.raises(ResnapError):
        MetadataQuotas(tmp_path)
    with pytest.raises(UsageError):
        MetadataQuotas(tmp_path / "nothing")


@pytest.mark.parametrize("name", [NAME, "quotas.lock"])
def test_a_pipe_in_the_place_of_a_file_is_an_error_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ResnapError, match=name):
        QuotaFile(tmp_path, Disk()).set_rate("alice", 1)
