from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from resnap.scheduler.clock import Clock
from resnap.scheduler.settings.settings import Settings
from resnap.scheduler.verbs.doctor import DoctorFinding, Health, examine, probe_store
from resnap.storage.errors import StoreError
from resnap.storage.log.log_dir_lock import lock_holder
from resnap.storage.stores.local import LocalObjectStore
from resnap.storage.stores.memory import MemoryObjectStore
from tests.clocks import FixedClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.crc32c import Buffer
    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

HOLDS_THE_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+") as lock:
    fcntl.{call}
    print("held", flush=True)
    sys.stdin.read()
"""
RECORD_LOCK = "lockf(lock, fcntl.LOCK_EX)"
FLOCK = "flock(lock, fcntl.LOCK_EX)"


@contextmanager
def another_process_holding(path: Path, call: str) -> Iterator[int]:
    """Hold a lock as a broker does, until the context ends."""
    path.touch()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS_THE_LOCK.format(call=call), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield holder.pid


def findings(settings: Settings | None = None, **options: Any) -> list[DoctorFinding]:
    usual: dict[str, Any] = {"places": (), "store_url": None}
    clock = options.pop("clock", Clock())
    environment = options.pop("environment", dict(os.environ))
    return list(examine(settings or Settings(), environment, clock, **usual | options))


def the(found: list[DoctorFinding], check: str) -> DoctorFinding:
    [one] = [finding for finding in found if finding.check == check]
    return one


@pytest.fixture
def log_dir(fixture_set: Callable[[str], FixtureSet], writable_copy: Callable[[Path], Path]) -> Path:
    return writable_copy(fixture_set("kafka-2.7.2-no-producers").data)


def test_a_flock_is_not_what_a_broker_takes(tmp_path: Path) -> None:
    with another_process_holding(tmp_path / ".lock", FLOCK):
        assert lock_holder(tmp_path) is None


def test_a_log_dir_without_a_lock_file_is_free(tmp_path: Path) -> None:
    assert lock_holder(tmp_path) is None


def test_a_sound_machine_has_nothing_to_fail() -> None:
    found = findings(Settings(producer_id_expiration_ms=86_400_000, kafka_version="3.9.1"))
    assert [finding.check for finding in found] == [
        "python",
        "numpy",
        "numba",
        "pyspark",
        "java",
        "clock",
        "expiration",
        "kafka",
    ]
    assert {finding.health for finding in found} == {Health.OK}


def test_scans_without_machine_code_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resnap.scheduler.verbs.doctor.why_no_kernel", lambda: "ImportError: no such library")
    slow = next(finding for finding in findings() if finding.check == "numba")
    assert slow.health is Health.WARN
    assert "no such library" in slow.detail


def test_an_unknown_expiration_is_a_warning_that_names_the_setting() -> None:
    finding = the(findings(), "expiration")
    assert finding.health is Health.WARN
    assert "--producer-id-expiration-ms" in str(finding.remedy)


def test_faults_that_are_not_checked_are_no_good_news() -> None:
    finding = the(findings(), "kafka")
    assert (finding.health, "are not checked" in finding.detail) == (Health.WARN, True)
    assert "--bootstrap-server" in str(finding.remedy)


def test_a_version_whose_base_is_not_certain_is_a_warning() -> None:
    finding = the(findings(Settings(kafka_version="7.9.1-ce")), "kafka")
    assert finding.health is Health.WARN
    assert "it is not known which release 7.9.1-ce is built from: expected a release such as 3.9.1" in finding.detail
    assert the(findings(Settings(kafka_version="3.9.1-ccs")), "kafka").health is Health.OK


def test_faults_that_a_release_perhaps_has_are_not_said_to_be_in_it() -> None:
    said = the(findings(Settings(kafka_version="4.5.0")), "kafka").detail
    assert "perhaps state-lost-from-remote" in said
    assert "perhaps first-sequence-refused" in said
    assert "perhaps state-lost-from-remote" not in the(findings(Settings(kafka_version="4.4.0")), "kafka").detail


def test_java_that_does_not_run_fails_unless_spark_is_not_wanted(tmp_path: Path) -> None:
    environment = {"JAVA_HOME": str(tmp_path)}
    assert the(findings(environment=environment), "java").health is Health.FAIL
    assert the(findings(Settings(engine="local"), environment=environment), "java").health is Health.WARN


def test_a_clock_in_the_past_fails(log_dir: Path) -> None:
    found = findings(clock=FixedClock(86_400_000), places=[str(log_dir)])
    first, second = (finding for finding in found if finding.check == "clock")
    assert first.health is Health.FAIL
    assert "in the future" in second.detail


def test_a_running_broker_is_well_and_named(log_dir: Path) -> None:
    with another_process_holding(log_dir / ".lock", RECORD_LOCK) as process_id:
        finding = the(findings(places=[str(log_dir)]), "broker")
    assert finding.health is Health.OK
    assert f"process {process_id}" in finding.detail


def test_a_stopped_broker_must_have_stopped_in_order(log_dir: Path) -> None:
    marker = log_dir / ".kafka_cleanshutdown"
    marker.touch()
    assert the(findings(places=[str(log_dir)]), "broker").health is Health.OK
    marker.unlink()
    finding = the(findings(places=[str(log_dir)]), "broker")
    assert finding.health is Health.WARN
    assert "stop it once" in str(finding.remedy)


def test_what_cannot_be_read_fails_and_the_rest_is_still_examined(log_dir: Path, tmp_path: Path) -> None:
    (log_dir / "replication-offset-checkpoint").write_bytes(b"7\n")
    found = findings(places=[str(tmp_path / "nowhere"), str(log_dir)])
    details = [(finding.health, finding.detail) for finding in found if finding.check == "log dir"]
    assert [health for health, _ in details] == [Health.FAIL, Health.OK, Health.FAIL]
    assert "replication-offset-checkpoint" in details[2][1]


def test_a_good_store_keeps_its_promises_and_nothing_of_the_probe(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "store")
    found = list(probe_store(store, Clock()))
    assert [finding.check.removeprefix("store ") for finding in found] == [
        "write", "read", "ranges", "parts", "checksum", "checksum", "verification", "condition", "replace",
        "delete condition", "list", "uploads", "clock", "delete",
    ]  # fmt: skip
    assert {finding.health for finding in found} == {Health.OK}
    assert list(store.list()) == []


def test_a_store_that_ignores_conditions_is_a_warning() -> None:
    class Careless(MemoryObjectStore):
        def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:  # noqa: ARG002
            super().put(key, body)

    finding = the(list(probe_store(Careless("careless", ""), Clock())), "store condition")
    assert finding.health is Health.WARN


def test_a_store_that_replaces_any_version_is_a_warning() -> None:
    class Careless(MemoryObjectStore):
        def replace(self, key: str, body: Buffer, *, etag: str) -> None:  # noqa: ARG002
            super().put(key, body)

    finding = the(list(probe_store(Careless("careless", ""), Clock())), "store replace")
    assert (finding.health, "(If-Match) are ignored" in finding.detail) == (Health.WARN, True)


def test_a_store_that_deletes_any_version_is_a_warning() -> None:
    class Careless(MemoryObjectStore):
        def delete(self, key: str, *, etag: str | None = None) -> None:  # noqa: ARG002
            super().delete(key)

    finding = the(list(probe_store(Careless("careless", ""), Clock())), "store delete condition")
    assert (finding.health, "(If-Match) are ignored" in finding.detail) == (Health.WARN, True)


def test_a_store_that_gives_other_bytes_back_fails() -> None:
    class Lying(MemoryObjectStore):
        def get(self, key: str) -> bytes:
            body = super().get(key)
            return body[:-1] + bytes([body[-1] ^ 1])

    found = list(probe_store(Lying("lying", ""), Clock()))
    assert the(found, "store read").health is Health.FAIL


def test_a_store_whose_clock_is_off_is_a_warning() -> None:
    store = MemoryObjectStore("skewed", "")
    assert the(list(probe_store(store, FixedClock(0))), "store clock").health is Health.WARN


def test_a_store_that_refuses_ends_the_probe_and_is_left_clean() -> None:
    class Unlisted(MemoryObjectStore):
        def list(self, _: str = "") -> Iterator[Any]:
            raise StoreError("no listing for you", hint="ask for it")

    store = Unlisted("unlisted", "")
    found = list(probe_store(store, Clock()))
    assert (found[-1].health, found[-1].detail, found[-1].remedy) == (Health.FAIL, "no listing for you", "ask for it")
    assert list(MemoryObjectStore("unlisted", "").list()) == []


def test_a_url_of_no_store_fails() -> None:
    assert the(findings(store_url="ftp://x"), "store").health is Health.FAIL
    assert the(findings(store_url=f"file://{Path('/nowhere/at/all')}"), "store").health is Health.FAIL


def test_a_directory_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    found = the(findings(store_url=f"{tmp_path.as_uri()}/mistyped"), "store")
    assert (found.health, found.detail) == (
        Health.WARN,
        f"{tmp_path}/mistyped does not exist yet, so nothing was tested",
    )
    assert list(tmp_path.iterdir()) == []


def test_the_metadata_log_of_a_log_dir_counts_as_for_other_commands(
    command: Resnap, fixture_set: Callable[[str], FixtureSet]
) -> None:
    said = command("doctor", fixture_set("kafka-3.9.1-kraft").data, "--engine", "local").out
    assert "12 hours (metadata log" in said
    assert "Kafka's known faults in 3.9.x, for any tiered topic: state-lost-from-remote" in said


def test_the_next_step_has_the_flags_that_were_given(command: Resnap, broker_log: Path) -> None:
    said = command("doctor", broker_log, "--engine", "local", "--kafka-version", "3.9.1").out.splitlines()
    assert said[-1] == f"Next: `resnap check {broker_log} --kafka-version 3.9.1` says which topics can be tiered."
