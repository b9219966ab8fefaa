"""The quota of producer ids on callers: where limits come from, and whom a flood holds up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.access.admission import AdmissionControl
from resnap.scheduler.access.roles import QuotaExceededError
from resnap.storage.disk import Disk
from resnap.tiering.controller.metadata.records import ClientQuotaRecord, EntityData
from resnap.tiering.controller.metadata.writer import open_metadata_log
from resnap.tiering.quota.client_quotas import PRODUCER_IDS_RATE
from resnap.tiering.quota.quota_manager import series
from resnap.tiering.quota.user_quotas import QuotaFile

if TYPE_CHECKING:
    from pathlib import Path

    from tests.clocks import FixedClock

HOUR_MS = 3_600_000
FREE_AT_1 = 12
"""New ids that pass at one instant with a rate of 1: a burst of 11 windows, and one more."""


class Service:
    """An admission control, the file of its limits, and what it has complained of."""

    def __init__(self, directory: Path, clock: FixedClock, metadata_log: Path | None = None) -> None:
        self.file, self.clock = QuotaFile(directory, Disk()), clock
        self.complaints: list[str] = []
        self.admission = AdmissionControl(directory, metadata_log, clock, self.complaints.append)

    def passed(self, principal: str, count: int, *, first: int = 0) -> int:
        """Return how many of ``count`` calls, each about another thing, were let in."""
        return sum(self.is_let_in(principal, f"thing {number}") for number in range(first, first + count))

    def is_let_in(self, principal: str, *things: str) -> bool:
        try:
            self.admission.charge(principal, things)
        except QuotaExceededError:
            return False
        return True


@pytest.fixture
def service(tmp_path: Path, clock: FixedClock) -> Service:
    return Service(tmp_path / "state", clock)


def test_without_limits_no_caller_waits_nothing_is_kept_and_no_file_is_made(service: Service) -> None:
    assert service.passed("ci", 1_000) == 1_000
    assert len(service.admission.manager.active) == 0
    assert not service.file.path.parent.exists()
    assert service.complaints == []


def test_who_floods_waits_as_long_as_said_and_known_things_and_others_do_not(service: Service) -> None:
    service.file.set_rate(None, 1)
    assert service.passed("ci", 100) == FREE_AT_1
    with pytest.raises(QuotaExceededError, match="User:ci has activated") as refused:
        service.admission.charge("ci", ["another"])
    assert refused.value.retry_after_s == 3600
    assert refused.value.hint is not None
    assert "--user ci" in refused.value.hint
    assert service.passed("ci", FREE_AT_1) == FREE_AT_1
    assert service.passed("alice", FREE_AT_1) == FREE_AT_1
    service.clock.advance(HOUR_MS - 1)
    assert not service.is_let_in("ci", "another")
    service.clock.advance(2)
    assert service.is_let_in("ci", "another")


def test_what_a_replay_has_activated_leads_into_debt_and_costs_nothing_again(service: Service) -> None:
    service.file.set_rate("ci", 10)
    assert service.is_let_in("ci", "payments-0")
    service.admission.activated("ci", range(1_000, 1_150))
    service.admission.activated("ci", range(1_000, 1_150))
    assert service.is_let_in("ci", "payments-0")
    with pytest.raises(QuotaExceededError) as refused:
        service.admission.charge("ci", ["payments-1"])
    # 151 of a burst of 110 at 10 an hour.
    assert refused.value.retry_after_s == (151 - 110) * 360


def test_a_request_is_charged_as_a_whole_or_not_at_all(service: Service) -> None:
    service.file.set_rate("ci", 1)
    assert service.is_let_in("ci", *(f"partition {number}" for number in range(20)))
    assert not service.is_let_in("ci", "new", "partition 0")
    assert service.is_let_in("ci", "partition 0", "partition 19")
    assert not service.is_let_in("ci", "new")


def test_limits_are_read_live(service: Service) -> None:
    assert service.passed("ci", 100) == 100
    service.file.set_rate("ci", 1)
    service.clock.advance(5_000)
    assert service.passed("ci", 100, first=100) == FREE_AT_1
    service.file.delete_rate("ci")
    service.clock.advance(5_000)
    assert service.passed("ci", 100, first=200) == 100


def test_a_damaged_file_leaves_the_limits_as_they_were_and_is_complained_of_once(service: Service) -> None:
    service.file.set_rate("ci", 1)
    assert service.passed("ci", 100) == FREE_AT_1
    service.file.path.write_text("{")
    for _ in range(3):
        service.clock.advance(5_000)
        assert service.passed("ci", 10, first=100) == 0
    assert [text for text in service.complaints if "not a file of quotas" in text] == service.complaints
    assert len(service.complaints) == 1
    service.file.path.unlink()
    service.clock.advance(5_000)
    assert service.passed("ci", 10, first=100) == 10


def test_a_file_that_was_damaged_from_the_start_keeps_no_caller_out(service: Service) -> None:
    service.file.path.parent.mkdir()
    service.file.path.write_bytes(b"\x00\xff")
    assert service.passed("ci", 100) == 100
    assert len(service.complaints) == 1


def test_limits_of_a_cluster_count_below_those_set_here_and_follow_its_log(tmp_path: Path, clock: FixedClock) -> None:
    def quota(name: str, rate: float) -> ClientQuotaRecord:
        entity = (EntityData(entity_type="user", entity_name=name),)
        return ClientQuotaRecord(entity=entity, key=PRODUCER_IDS_RATE, value=rate, remove=False)

    log = tmp_path / "metadata"
    service = Service(tmp_path / "state", clock, log)
    assert service.passed("ci", 100) == 100
    assert "the quotas cannot be read" in service.complaints[0]
    with open_metadata_log(log / "__cluster_metadata-0", leader_id=1, timestamp=5) as writer:
        writer.append([quota("ci", 1), quota("alice", 1)], timestamp=6)
    service.file.set_rate("alice", 2)
    clock.advance(5_000)
    assert (service.passed("ci", 100, first=100), service.passed("alice", 100)) == (FREE_AT_1, 23)
    (log / "__cluster_metadata-0" / "00000000000000000000.log").write_bytes(b"x" * 200)
    clock.advance(5_000)
    assert service.passed("ci", 10, first=200) == 0
    assert any("quotas stay as of offset" in text for text in service.complaints)
    service.admission.watch(None)
    assert service.passed("ci", 100, first=300) == 100


def test_many_principals_at_once_each_get_what_is_theirs_while_one_floods(service: Service) -> None:
    service.file.set_rate(None, 1)
    names = [f"user {number}" for number in range(1_000)]

    def calm(name: str) -> int:
        return service.passed(name, 5) + service.passed(name, 5)

    with ThreadPoolExecutor(8) as threads:
        floods = [threads.submit(service.passed, "flood", 500, first=500 * number) for number in range(8)]
        assert set(threads.map(calm, names)) == {10}
    assert sum(one.result() for one in floods) == FREE_AT_1
    told = {one.name: one.value for one in series(service.admission.manager)}
    assert told["resnap_producer_ids_principals"] == 1_001
    assert told["resnap_producer_ids_new"] == 5_000 + FREE_AT_1
    assert told["resnap_producer_ids_throttled_answers"] == 8 * 500 - FREE_AT_1
    assert told["resnap_producer_ids_memory_bytes"] < 1_001 * 4_096
