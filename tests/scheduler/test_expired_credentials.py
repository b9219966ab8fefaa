"""Credentials that expire while a store is read: the store refused, which says nothing of what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.errors import StoreAccessError
from resnap.storage.stores.probe import Check, upload_checks
from resnap.storage.stores.s3 import S3ObjectStore
from resnap.storage.stores.s3_settings import S3Settings
from resnap.tiering.verifying import verification
from tests.stores.fault_proxy import error, proxying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Bucket, Resnap
    from tests.stores.fault_proxy import Call, FaultProxy

pytestmark = [pytest.mark.s3, pytest.mark.usefixtures("producers_stay")]

EXPIRED: Final = error(400, "ExpiredToken")
FOR_GOOD: Final = 1_000_000
LOCAL: Final = ("--engine", "local", "--output", "json", "-q")


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[FaultProxy]:
    with proxying(s3_endpoint) as made:
        yield made


def through(proxy: FaultProxy) -> tuple[str, ...]:
    return ("--s3-endpoint-url", proxy.url, "--s3-region", "us-east-1", "--s3-addressing-style", "path")


def is_read_by_a_replay(call: Call) -> bool:
    """Whole segments are read back before, and as whole objects."""
    return call.method == "GET" and call.path.endswith(".log") and call.headers.get("Range", "").startswith("bytes=0-")


def test_verify_calls_no_snapshot_different_that_the_store_did_not_let_it_compare(
    command: Resnap,
    bucket: Bucket,
    proxy: FaultProxy,
    fixture_set: Callable[[str], FixtureSet],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verification, "FIRST_BYTES", 0)  # what is small is read back for the replay, too
    data = fixture_set("kafka-2.7.2").data
    to = ("--topic", "orders", "--to", f"{bucket.url}/p")
    shipped = command("tier", data, *to, *through(proxy), *LOCAL, **bucket.variables)
    assert shipped.code == 0, shipped.err
    read = ("verify", "--store", f"{bucket.url}/p", *through(proxy), *LOCAL)
    proxy.set(EXPIRED, is_read_by_a_replay, times=FOR_GOOD)
    ran = command(*read, **bucket.variables)
    summary = ran.document["summary"]
    assert proxy.struck
    assert (ran.code, summary["different"], summary["snapshotsDifferent"]) == (12, 0, 0), ran.err
    assert "the credentials have expired: get new ones, and run again" in ran.err
    proxy.set(None)
    ran = command(*read, **bucket.variables)
    assert (ran.code, ran.document["summary"]["snapshotsReplayed"]) == (0, 2), ran.err


def test_restore_leaves_no_snapshot_out_that_the_store_did_not_let_it_compare(
    command: Resnap, bucket: Bucket, proxy: FaultProxy, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    remote = fixture_set("kafka-3.9.1-aiven-plain").remote
    for path in (path for path in remote.rglob("*") if path.is_file()):
        bucket.client.put_object(Bucket=bucket.name, Key=str(path.relative_to(remote)), Body=path.read_bytes())
    (tmp_path / "new").mkdir()
    restore = ("restore", f"{bucket.url}/tiered", "--into", tmp_path / "new", *through(proxy), "--output", "json", "-q")
    proxy.set(EXPIRED, is_read_by_a_replay, times=1)
    ran = command(*restore, **bucket.variables)
    assert proxy.struck
    assert (ran.code, list((tmp_path / "new").iterdir())) == (12, []), ran.err
    ran = command(*restore, **bucket.variables)
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("is_struck", ["uploadId=", ""], ids=["in parts", "whole"])
def test_a_probe_that_is_refused_for_another_reason_has_not_seen_a_wrong_checksum_refused(
    is_struck: str, bucket: Bucket, proxy: FaultProxy
) -> None:
    settings = S3Settings(endpoint_url=proxy.url, region="us-east-1", access_key_id="a", secret_access_key="b",
                          addressing_style="path")  # fmt: skip
    store = S3ObjectStore(bucket.name, "", settings)
    proxy.set(EXPIRED, lambda call: call.method == "PUT" and is_struck in call.path)
    with pytest.raises(StoreAccessError):
        upload_checks(store)
    proxy.set(error(400, "RequestTimeout"), lambda call: call.method == "PUT" and is_struck in call.path)
    found = upload_checks(store)
    assert (found.whole, found.in_parts, proxy.struck) == (Check.TAKEN, Check.TAKEN, 1)


def test_what_a_process_prints_that_gives_no_credentials_is_reported_in_one_line(
    command: Resnap, proxy: FaultProxy, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text("[default]\ncredential_process = sh -c 'echo the token service is down >&2; exit 3'\n")
    ran = command("verify", "--store", "s3://bucket/p", *through(proxy), AWS_CONFIG_FILE=str(config))
    assert ran.code == 10, ran.err
    assert "the token service is down\nhint: " in ran.err
