"""The quota of producer ids through HTTP: a principal that floods waits, its known work and all others do not."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.access.roles import Role
from resnap.scheduler.runs.configuration import Configuration
from resnap.scheduler.runs.run import RunState
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.app import create_app
from resnap.storage.disk import Disk
from resnap.storage.log.producer_snapshot import read_snapshot
from resnap.tiering.quota.user_quotas import QuotaFile
from tests.clocks import FixedClock
from tests.scheduler.api.serving import START_MS, client_of, listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import httpx

    from tests.fixture_sets import FixtureSet

FREE_AT_1 = 12
"""New ids that pass at one instant with a rate of 1: a burst of 11 windows, and one more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A service, and what one may ask of it."""

    services: Services
    client: httpx.Client
    log_dir: Path
    destination: Path

    def token(self, name: str) -> dict[str, str]:
        _, secret = self.services.access.tokens.create(name, Role.OPERATOR)
        return {"Authorization": f"Bearer {secret}"}

    def replay(self, token: dict[str, str], *partitions: str, **more: object) -> httpx.Response:
        body = {"kind": "regenerate", "sources": [str(self.log_dir)], "destination": str(self.destination)}
        return self.client.post("/v1/replays", json={**body, "partitions": partitions, **more}, headers=token)

    def limit(self, name: str | None, rate: float) -> None:
        QuotaFile(self.services.database.path.parent, Disk()).set_rate(name, rate)
        self.clock.advance(5_000)

    @property
    def clock(self) -> FixedClock:
        assert isinstance(self.services.clock, FixedClock)
        return self.services.clock

    def metrics(self) -> dict[str, float]:
        lines = self.client.get("/metrics").text.splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}

    def of_user(self, user: str) -> dict[str, float]:
        """Return the series that have this user as their only label, without what all names have in front."""
        label = f'{{user="{user}"}}'
        return {
            name.removeprefix("resnap_producer_ids_").removesuffix(label): value
            for name, value in self.metrics().items()
            if name.endswith(label)
        }


@contextmanager
def asked_of(log_dir: Path, directory: Path, **settings: object) -> Iterator[Asked]:
    flags = {
        "state_dir": str(directory / "state"), "log_dirs": (log_dir,), "engine": "local", "auth": "token",
        "allow_destinations": (str(directory),), "queue_size": 1_000, **settings,
    }  # fmt: skip
    services = Services(Configuration(flags=flags, environment={}, directory=directory), FixedClock(START_MS))
    with listening(create_app(services, "0")) as address, client_of(address) as client:
        yield Asked(services=services, client=client, log_dir=log_dir, destination=directory / "made")
    assert services.stop()


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Asked]:
    """A service that takes runs, and carries none out."""
    (tmp_path / "logs").mkdir()
    with asked_of(tmp_path / "logs", tmp_path) as found:
        yield found


def test_a_flooding_caller_is_throttled_and_admitted_after_that_time(idle: Asked) -> None:
    idle.limit(None, 1)
    flood, calm = idle.token("flood"), idle.token("calm")
    codes = [idle.replay(flood, f"orders-{number}").status_code for number in range(20)]
    assert codes == [202] * FREE_AT_1 + [429] * (20 - FREE_AT_1)
    refused = idle.replay(flood, "orders-20")
    problem = refused.json()
    assert (problem["code"], problem["status"], refused.headers["Content-Type"]) == (
        "quota-exceeded", 429, "application/problem+json",
    )  # fmt: skip
    assert "User:flood" in problem["detail"]
    wait_s = int(refused.headers["Retry-After"])
    assert idle.replay(flood, "orders-3").status_code == 202, "what was paid for costs nothing again"
    assert {idle.replay(calm, f"orders-{number}").status_code for number in range(FREE_AT_1)} == {202}
    idle.clock.advance(wait_s * 1000 - 1)
    assert idle.replay(flood, "orders-20").status_code == 429
    idle.clock.advance(2)
    assert idle.replay(flood, "orders-20").status_code == 202


def test_the_same_idempotency_key_is_answered_in_debt_too(idle: Asked) -> None:
    idle.limit("ci", 1)
    token = idle.token("ci")
    first = idle.replay({**token, "Idempotency-Key": "one"}, "orders-0").json()
    assert idle.replay(token, *(f"orders-{number}" for number in range(1, 20))).status_code == 202
    assert idle.replay({**token, "Idempotency-Key": "two"}, "orders-20").status_code == 429
    assert idle.replay({**token, "Idempotency-Key": "one"}, "orders-0").json() == first


def test_plans_and_dry_runs_cost_what_they_name(idle: Asked) -> None:
    idle.limit("ci", 1)
    token = idle.token("ci")
    assert idle.replay(token, *(f"orders-{number}" for number in range(20)), dryRun=True).status_code == 202
    plan = {"sources": [str(idle.log_dir)], "partitions": ["orders-20"]}
    assert idle.client.post("/v1/plans", json=plan, headers=token).status_code == 429


def test_a_flood_beside_many_principals_at_once_delays_no_other_caller(idle: Asked) -> None:
    idle.limit(None, 1)
    flood, others = idle.token("flood"), [idle.token(f"calm-{number}") for number in range(40)]

    def calm(token: dict[str, str]) -> list[int]:
        return [idle.replay(token, f"orders-{number % 2}").status_code for number in range(4)]

    with ThreadPoolExecutor(8) as threads:
        flooding = [threads.submit(idle.replay, flood, f"orders-{number}") for number in range(60)]
        assert list(threads.map(calm, others)) == [[202] * 4] * len(others)
    codes = [one.result().status_code for one in flooding]
    assert (codes.count(202), codes.count(429)) == (FREE_AT_1, 60 - FREE_AT_1)
    assert idle.metrics()["resnap_producer_ids_principals"] == 41
    assert idle.of_user("other")["throttled_answers_total"] == 60 - FREE_AT_1


def test_a_damaged_file_of_quotas_takes_nothing_down(idle: Asked) -> None:
    token = idle.token("ci")
    (idle.services.database.path.parent / "quotas.json").write_text("{")
    assert idle.replay(token, "orders-0").status_code == 202
    assert idle.client.get("/readyz").status_code == 200


@pytest.mark.parametrize(("kind", "form"), [("regenerate", "{}"), ("regenerate", "file://{}"), ("tier", "file://{}")])
def test_a_replay_costs_the_producer_ids_that_it_brings_to_life(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path, kind: str, form: str
) -> None:
    fixture = fixture_set("kafka-2.7.2")
    log_dir = shutil.copytree(fixture.data, tmp_path / "logs")
    producers = len(read_snapshot(max((fixture.expected / "payments-0").glob("*.snapshot")).read_bytes()))
    with asked_of(log_dir, tmp_path) as service:
        service.limit("ci", 100)
        service.services.worker.start()
        token = service.token("ci")
        body = {"kind": kind, "destination": form.format(service.destination), "window": {"asOf": "roll"}}
        left = []
        for more in ({"dryRun": True}, {}, {}):
            taken = service.replay(token, "payments-0", **body, **more)
            assert taken.status_code == 202, taken.text
            assert service.services.worker.wait(taken.json()["id"]) is RunState.SUCCEEDED
            left.append(service.of_user("ci")["tokens"])
    assert producers > 1
    assert left == [1_099, 1_099 - producers, 1_099 - producers]


def test_metrics_name_users_with_a_quota_of_their_own_and_all_others_together(idle: Asked) -> None:
    idle.limit("ci@team", 1)
    idle.limit("other", 7)
    idle.limit(None, 2)
    assert idle.of_user("ci%40team") == {}, "limits are read when somebody calls"
    ci, names = idle.token("ci@team"), [f"many-{number}" for number in range(30)]
    assert idle.replay(ci, *(f"orders-{number}" for number in range(12))).status_code == 202
    assert [idle.replay(ci, "orders-99").status_code for _ in range(2)] == [429, 429]
    for name in names:
        assert idle.replay(idle.token(name), "orders-0").status_code == 202
    found = idle.of_user("ci%40team")
    assert (found["tokens"], found["new_total"], found["throttled_answers_total"]) == (-1, 12, 2)
    assert (found["throttle_time_seconds"], found["throttled_seconds_total"]) == (3600, 7200)
    assert found["rate"] == pytest.approx(12 / 10)
    assert idle.of_user("%6Fther") == {
        "rate": 0, "tokens": 77, "throttle_time_seconds": 0, "new_total": 0, "throttled_answers_total": 0,
        "throttled_seconds_total": 0,
    }  # fmt: skip
    rest = idle.of_user("other")
    assert (rest["tokens"], rest["new_total"], rest["rate"]) == (21, 30, pytest.approx(3))
    users = {name.split('user="')[1] for name in idle.metrics() if 'user="' in name}
    assert len(users) == 3, "callers without a quota of their own have no label"


def test_counters_never_fall_when_users_are_forgotten_or_their_quota_goes(idle: Asked) -> None:
    idle.limit("ci", 100)
    idle.limit(None, 100)
    assert idle.replay(idle.token("ci"), "orders-0", "orders-1").status_code == 202
    assert idle.replay(idle.token("guest"), "orders-0").status_code == 202
    idle.clock.advance(1_000 * 3_600_000)
    idle.services.admission.manager.clean_up()
    assert not idle.services.admission.manager.active.entries()
    assert (idle.of_user("ci")["new_total"], idle.of_user("other")["new_total"]) == (2, 1)
    QuotaFile(idle.services.database.path.parent, Disk()).delete_rate("ci")
    idle.clock.advance(5_000)
    assert idle.replay(idle.token("late"), "orders-0").status_code == 202
    assert (idle.of_user("ci"), idle.of_user("other")["new_total"]) == ({}, 4)


def test_window_profile_and_error_rate_are_settings_of_the_service(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    settings = {
        "producer_id_quota_window_num": 3, "producer_id_quota_window_size_seconds": 7_200,
        "producer_id_quota_profile": "P-B", "producer_id_quota_false_positive_rate": 0.2,
        "producer_id_quota_cache_cleanup_scheduler_interval_ms": 20,
    }  # fmt: skip
    with asked_of(tmp_path / "logs", tmp_path, **settings) as asked:
        asked.limit("ci", 1)
        token = asked.token("ci")
        codes = [asked.replay(token, f"orders-{number}").status_code for number in range(9)]
        assert codes == [202] * 7 + [429] * 2, "a burst of 3 windows of 2 hours, and one more"
        asked.clock.advance(3 * 3_600_000 - 1)
        free = [asked.replay(token, f"orders-{number}").status_code for number in range(7)]
        assert (set(free), asked.of_user("ci")["new_total"]) == ({202}, 7), "P-B remembers for one and a half windows"
        manager = asked.services.admission.manager
        assert manager.active.remembering.false_positive_rate == 0.2
        asked.clock.advance(100 * 3_600_000)
        asked.services.start()
        deadline = time.monotonic() + 60
        while len(manager.active.entries()):
            assert time.monotonic() < deadline, "no clean-up runs"
            time.sleep(0.01)
