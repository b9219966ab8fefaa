"""The service's numbers: there from the start, moved by what happens, and no more than the configuration says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from resnap.scheduler.registry import KINDS
from resnap.scheduler.telemetry import metrics as module
from resnap.scheduler.telemetry.metrics import UPLOAD_FAILURES, Metrics, Watched
from resnap.storage import errors
from resnap.storage.version import resnap_revision, resnap_version
from resnap.tiering.quota.quota_manager import series
from tests.examples import examples
from tests.tiering.quota.quotas import ALICE, manager, sequential

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = ("c1", "/data/1")
WATCHED = Watched(sources=(SOURCE, ("c1", "/data/2")), schedules=("hourly",), queue_limit=20)
ROUTES = (("GET", "/v1/runs"), ("POST", "/v1/replays"), ("GET", "/v1/runs/{run}"))


def made() -> Metrics:
    found = Metrics(WATCHED, version="1.2.3", revision="abc")
    found.routes(ROUTES)
    return found


def samples(found: Metrics) -> dict[str, float]:
    """Return what a scrape would read, by name and labels as they are written, but for what is of the process."""
    text = found.render()[0].decode()
    lines = [line for line in text.splitlines() if not line.startswith(("#", "process_"))]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def value(found: Metrics, name: str, **labels: str) -> float | None:
    return found.registry.get_sample_value(name, labels)


def test_every_series_is_there_from_the_start_and_stays_the_same_when_things_happen() -> None:
    found = made()
    before = samples(found)
    used = use_all(found)
    assert samples(used).keys() == before.keys()
    beginnings = {"resnap_config_last_reload_success": 1.0, "resnap_queue_limit_runs": 20.0}
    beginnings['resnap_build_info{revision="abc",version="1.2.3"}'] = 1.0
    assert {name: number for name, number in before.items() if number} == beginnings


def use_all(found: Metrics) -> Metrics:
    found.scan_seen(SOURCE[1], segments=10, producers=7)
    found.segments_missing({SOURCE[1]: 3})
    found.last_scan_success.set(True)
    found.partitions.of("ready").set(4)
    found.partitions.of("blocked").set(2)
    found.snapshots("c1", "ok", 3)
    found.batches_replayed.inc(100)
    found.replay_bytes.inc(6100)
    found.upload_bytes.inc(7)
    found.upload_failures.of("StoreFullError").inc()
    found.verify_mismatches.of("object").inc(2)
    found.run_ended("tier", "succeeded", 61.0, 5_000, schedule="hourly")
    found.runs_orphaned.inc()
    found.queue_runs.of("waiting").set(2)
    found.queue_runs.of("running").set(1)
    found.scheduler_events.of("missed").inc()
    found.config_last_reload_success.set(False)
    found.http_request("/v1/runs/{run}", "GET", 404, 0.02)
    found.event_streams.set(150)
    return found


def test_each_call_moves_its_series() -> None:
    before, after = samples(made()), samples(use_all(made()))
    moved = {name: number for name, number in after.items() if number != before[name] and "_bucket" not in name}
    assert moved == {
        'resnap_segments_scanned_total{cluster="c1",log_dir="/data/1"}': 10,
        'resnap_segments_missing_snapshot{cluster="c1",log_dir="/data/1"}': 3,
        'resnap_partition_producers_max{cluster="c1",log_dir="/data/1"}': 7,
        "resnap_last_scan_success": 1,
        'resnap_partitions{verdict="ready"}': 4,
        'resnap_partitions{verdict="blocked"}': 2,
        'resnap_snapshots_written_total{cluster="c1",result="ok"}': 3,
        "resnap_batches_replayed_total": 100,
        "resnap_replay_bytes_total": 6100,
        "resnap_upload_bytes_total": 7,
        'resnap_upload_failures_total{reason="StoreFullError"}': 1,
        'resnap_verify_mismatches_total{kind="object"}': 2,
        'resnap_runs_total{kind="tier",state="succeeded"}': 1,
        'resnap_run_duration_seconds_count{kind="tier"}': 1,
        'resnap_run_duration_seconds_sum{kind="tier"}': 61,
        "resnap_last_success_timestamp_seconds": 5,
        'resnap_schedule_last_success_timestamp_seconds{schedule="hourly"}': 5,
        "resnap_runs_orphaned_total": 1,
        'resnap_queue_runs{state="waiting"}': 2,
        'resnap_queue_runs{state="running"}': 1,
        'resnap_scheduler_events_total{event="missed"}': 1,
        "resnap_config_last_reload_success": 0,
        'resnap_http_requests_total{method="GET",route="/v1/runs/{run}",status="4xx"}': 1,
        'resnap_http_request_duration_seconds_count{route="/v1/runs/{run}"}': 1,
        'resnap_http_request_duration_seconds_sum{route="/v1/runs/{run}"}': 0.02,
        "resnap_event_streams": 150,
    }


ANYTHING = st.text(max_size=8)


@examples(20)
@given(words=st.lists(ANYTHING, min_size=8, max_size=8), status=st.integers(200, 599))
def test_no_request_creates_series_by_what_it_asks_for(words: list[str], status: int) -> None:
    found = made()
    known = samples(found).keys()
    cluster, log_dir, result, reason, kind, state, event, route = words
    found.scan_seen(log_dir, segments=1, producers=0)
    found.segments_missing({log_dir: 1})
    found.snapshots(cluster, result, 1)
    found.upload_failures.of(reason).inc()
    found.verify_mismatches.of(kind).inc()
    found.run_ended(kind, state, 1.0, 1, schedule=event)
    found.scheduler_events.of(event).inc()
    found.http_request(route, "GET", status, 0.1)
    found.http_request("/v1/runs", reason, 200, 0.1)
    assert samples(found).keys() == known


def test_a_run_that_failed_does_not_move_the_time_of_the_last_success() -> None:
    found = made()
    found.succeeded(1_000, schedule="hourly")
    for state in ("failed", "partially_failed", "cancelled"):
        found.run_ended("tier", state, 1.0, 9_000, schedule="hourly")
    assert value(found, "resnap_last_success_timestamp_seconds") == 1
    assert value(found, "resnap_schedule_last_success_timestamp_seconds", schedule="hourly") == 1


def test_a_run_of_a_request_is_not_a_success_of_a_schedule() -> None:
    found = made()
    found.run_ended("tier", "succeeded", 1.0, 9_000)
    assert value(found, "resnap_last_success_timestamp_seconds") == 9
    assert value(found, "resnap_schedule_last_success_timestamp_seconds", schedule="hourly") == 0


def test_another_configuration_adds_series_and_takes_gauges_away() -> None:
    found = use_all(made())
    found.watch(Watched(sources=(SOURCE, ("c2", "/data/3")), schedules=("daily",), queue_limit=5))
    name = "resnap_segments_missing_snapshot"
    assert value(found, name, cluster="c1", log_dir="/data/1") == 3
    assert value(found, name, cluster="c2", log_dir="/data/3") == 0
    assert value(found, name, cluster="c1", log_dir="/data/2") is None
    assert value(found, "resnap_schedule_last_success_timestamp_seconds", schedule="hourly") is None
    assert value(found, "resnap_schedule_last_success_timestamp_seconds", schedule="daily") == 0
    assert value(found, "resnap_queue_limit_runs") == 5


def test_credentials_in_the_url_of_a_source_are_masked() -> None:
    found = Metrics(Watched(sources=(("c1", "s3://key:secret@bucket/logs"),)), version="1", revision="")
    found.segments_missing({"s3://key:secret@bucket/logs": 1})
    assert b"secret@" not in found.render()[0]
    assert value(found, "resnap_segments_missing_snapshot", cluster="c1", log_dir="s3://***@bucket/logs") == 1


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=0.0.4", "text/html"])
def test_who_does_not_ask_for_openmetrics_gets_prometheus_text(accept: str) -> None:
    body, content_type = made().render(accept)
    assert content_type.startswith("text/plain; version=0.0.4")
    assert {family.name for family in parse_text(body.decode())} >= {"resnap_build_info", "resnap_runs"}


def test_openmetrics_is_negotiated_and_can_be_parsed_strictly() -> None:
    prometheus = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    body, content_type = use_all(made()).render(prometheus)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family.type for family in parse_openmetrics(body.decode())}
    assert families["resnap_build"] == "info"
    assert families["resnap_run_duration_seconds"] == "histogram"


def test_the_quota_is_reported_with_its_totals_and_no_label_for_a_user_without_a_quota_of_its_own() -> None:
    found, quota = made(), manager()
    found.quota(lambda: series(quota))
    assert value(found, "resnap_producer_ids_principals") == 0
    for principal in (ALICE, "User:bob", "User:carol"):
        quota.admit_request(principal, sequential(5))
    assert value(found, "resnap_producer_ids_principals") == 3
    assert value(found, "resnap_producer_ids_new_total", user="other") == 15
    assert not [name for name in samples(found) if "alice" in name]


def test_nothing_goes_to_the_registry_that_all_of_a_process_share() -> None:
    from prometheus_client import REGISTRY  # noqa: PLC0415

    made()
    assert not [name for name in REGISTRY._names_to_collectors if name.startswith("resnap")]


def test_two_services_in_one_process_do_not_share_numbers() -> None:
    first, second = made(), made()
    first.runs_orphaned.inc()
    assert value(second, "resnap_runs_orphaned_total") == 0


def test_the_reasons_of_failed_uploads_are_codes_of_errors() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    stores = {kind.__name__ for kind in classes if issubclass(kind, errors.StoreError)} - {"StoreError"}
    assert set(UPLOAD_FAILURES) == stores | {"VerificationError"}


def test_the_values_of_labels_are_unique() -> None:
    for words in (tuple(KINDS), UPLOAD_FAILURES, module.RUN_STATES, module.SCHEDULER_EVENTS):
        assert len(set(words)) == len(words)
        assert module.OTHER not in words


@pytest.mark.parametrize(
    ("note", "told"),
    [
        ('{"url": "https://host/resnap.git", "vcs_info": {"vcs": "git", "commit_id": "a1b2c3"}}', "a1b2c3"),
        ('{"url": "file:///src/resnap", "dir_info": {"editable": true}}', "unknown"),
        (None, "unknown"),
    ],
)
def test_the_revision_is_that_of_the_installation(
    note: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "kafka_resnap-9.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: kafka-resnap\nVersion: 9\n")
    if note is not None:
        (installed / "direct_url.json").write_text(note)
    monkeypatch.syspath_prepend(tmp_path)
    assert (resnap_version.__wrapped__(), resnap_revision()) == ("9", told)
