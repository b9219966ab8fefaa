"""A store that is down for the whole of a scheduled run, in each of the ways in which stores are down."""

from __future__ import annotations

import re
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.scheduler.api.whole import FINAL
from tests.scheduler.daemon.process import configure, eventually, serving
from tests.scheduler.scenes import SET, one_partition
from tests.scheduler.shipped import Range, check_store, eligible
from tests.stores.fault_proxy import FaultProxy, error, proxying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import httpx
    from mypy_boto3_s3 import S3Client

    from tests.fixture_sets import FixtureSet

pytestmark = [pytest.mark.slow, pytest.mark.s3]
SCHEDULE: Final = """
s3.endpoint-url = "http://127.0.0.1:{port}"
s3.addressing-style = "path"
s3.region = "us-east-1"
s3.max-attempts = 1

[[schedules]]
name = "ship"
run = "tier"
every = "1s"
to = "s3://{bucket}/tiered"
settings = {{ as-of = "roll", parallel = 1 }}
"""
FAILED: Final = 'resnap_runs_total{kind="tier",state="failed"}'
UPLOADS_FAILED: Final = 'resnap_upload_failures_total{reason="StoreUnavailableError"}'
ALWAYS: Final = 1_000_000
VARIABLES: Final = {
    "AWS_ACCESS_KEY_ID": "testaccess",
    "AWS_SECRET_ACCESS_KEY": "testsecret123",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def a_port() -> Iterator[int]:
    """Reserve a port at which no process listens."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield int(keeper.getsockname()[1])


def next_run(client: httpx.Client) -> dict[str, Any]:
    """Return the next scheduled run that begins from now on, once it is over."""
    found = client.get("/v1/runs", params={"origin": "schedule:ship", "limit": 1}).json()["runs"]
    newest = found[0]["id"] if found else ""

    def first_later() -> dict[str, Any]:
        later = client.get("/v1/runs", params={"origin": "schedule:ship", "limit": 50}).json()["runs"]
        return next((run for run in reversed(later) if run["id"] > newest), {"state": "not yet"})

    return eventually(first_later, lambda run: run["state"] in FINAL)  # type: ignore[no-any-return]


def metric(client: httpx.Client, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", client.get("/metrics").text, flags=re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def fails_for(client: httpx.Client, bucket: str, said: str) -> None:
    """Check that the next run fails, why, and that every output reports it."""
    failed, counted = metric(client, FAILED), metric(client, UPLOADS_FAILED)
    run = next_run(client)
    assert run["state"] == "failed", run
    why = run["errors"][0]
    assert why["code"] == "StoreUnavailableError"
    assert f"s3://{bucket}/tiered" in why["message"]
    assert said in why["message"]
    assert why["hint"]
    # It is counted a moment after it is kept.
    eventually(lambda: metric(client, FAILED), lambda count: count > failed)
    assert metric(client, UPLOADS_FAILED) > counted
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["stores"]) == (200, "StoreUnavailableError")


def shipped(client: S3Client, bucket: str) -> set[Range]:
    listed = client.list_objects_v2(Bucket=bucket, Prefix="tiered/").get("Contents", [])
    objects = {one["Key"]: client.get_object(Bucket=bucket, Key=one["Key"])["Body"].read() for one in listed}
    return set(check_store({key.removeprefix("tiered/"): body for key, body in objects.items()}, strict=False))


def goes_down_at_the_second_manifest(proxy: FaultProxy) -> None:
    seen: list[str] = []

    def strikes(call: Any) -> bool:
        if call.method == "PUT" and ".manifest" in call.path:
            seen.append(call.path)
        return len(seen) > 1

    proxy.set(error(503, "SlowDown"), strikes, times=ALWAYS)


def test_a_scheduled_run_fails_while_the_store_is_down_and_the_next_completes_what_is_missing(
    tmp_path: Path, fixture_set: Callable[[str], FixtureSet], s3_endpoint: str, s3_client: S3Client, s3_bucket: str
) -> None:
    data = one_partition(fixture_set(SET).data, tmp_path / "data")
    with a_port() as port:
        configure(tmp_path, data, SCHEDULE.format(port=port, bucket=s3_bucket))
        with serving(tmp_path, variables=VARIABLES) as process, process.client() as client:
            fails_for(client, s3_bucket, "Could not connect")
            with proxying(s3_endpoint, port=port) as proxy:
                proxy.set(error(503, "ServiceUnavailable"), times=ALWAYS)
                fails_for(client, s3_bucket, "503")
                assert shipped(s3_client, s3_bucket) == set()
                goes_down_at_the_second_manifest(proxy)
                assert next_run(client)["state"] in {"failed", "partially_failed"}
                assert len(shipped(s3_client, s3_bucket)) == 1
            fails_for(client, s3_bucket, "Could not connect")
            with proxying(s3_endpoint, port=port):
                assert next_run(client)["state"] == "succeeded"
                assert shipped(s3_client, s3_bucket) == eligible(data)
                eventually(lambda: client.get("/readyz").json()["checks"]["stores"], lambda told: told == "ok")
                assert metric(client, 'resnap_schedule_last_success_timestamp_seconds{schedule="ship"}') > 0
                assert metric(client, 'resnap_scheduler_events_total{event="error"}') == 0
