"""What a store holds already is not sent to it: real servers copy by themselves, and what goes wrong is found."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.cli import run
from resnap.storage.stores.probe import copy_problem
from resnap.storage.stores.s3 import S3ObjectStore
from tests.scheduler.mirrors import mirror
from tests.stores.fault_proxy import Call, Fault, Reply, error, proxying
from tests.stores.servers import HONEST, RCLONE, SEAWEEDFS, VERSITYGW
from tests.tiering.shipping import UPGRADED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mypy_boto3_s3 import S3Client

    from tests.fixture_sets import FixtureSet
    from tests.stores.fault_proxy import FaultProxy
    from tests.stores.servers import Server

pytestmark = pytest.mark.stores
ON_THE_STORE = [pytest.param(kind, id=kind.name) for kind in HONEST if kind is not SEAWEEDFS]
"""SeaweedFS keeps no CRC-32C of its copy of an object that was written without one."""
LOGS = re.compile(r"/shipped/.*\.log$")


class Shop:
    """A server behind a proxy, and a bucket in it with a copy of a log dir."""

    def __init__(self, server: Server, proxy: FaultProxy, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proxy, self.bucket = proxy, server.new_bucket()
        self.client: S3Client = server.client()
        # rclone fails at times where several objects of a new folder are written at once
        mirror(server.client(attempts=5), self.bucket, data, "logs/data")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.kind.access)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.kind.secret)
        self.store = S3ObjectStore(self.bucket, "shipped", server.settings())
        self.flags = (
            "--s3-endpoint-url", proxy.url, "--s3-region", "us-east-1", "--s3-addressing-style", "path",
            "--s3-response-checksum-validation", "when_required",
        )  # fmt: skip

    def __call__(self, verb: str, *arguments: str) -> int:
        """Run a command on the store; ``tier`` ships the payments of the copy into it."""
        place = f"s3://{self.bucket}/shipped"
        if verb == "tier":
            where = (f"s3://{self.bucket}/logs/data", "--to", place, "--topic", "payments", "--as-of", "roll")
            return run([verb, *where, "--engine", "local", *self.flags, *arguments])
        return run([verb, "--store", place, *self.flags, *arguments])

    def logs_sent(self) -> tuple[int, int]:
        """Return how many logs were sent, and how many the store was asked to copy."""
        puts = [call for call in self.proxy.calls if call.method == "PUT" and LOGS.search(call.path.partition("?")[0])]
        copies = [call for call in puts if "x-amz-copy-source" in {name.lower() for name in call.headers}]
        return len(puts) - len(copies), len(copies)

    def logs(self) -> set[bytes]:
        """Return the bytes of each log that was shipped."""
        return {self.store.get(info.key) for info in self.store.list() if info.key.endswith(".log")}


@pytest.fixture
def shop(
    request: pytest.FixtureRequest,
    server_of: Callable[..., Server],
    fixture_set: Callable[[str], FixtureSet],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shop]:
    server = server_of(request.param)
    with proxying(server.url) as proxy:
        yield Shop(server, proxy, fixture_set(UPGRADED).data, monkeypatch)


def is_copy(call: Call) -> bool:
    """Pick the copies of logs; not those of the probe."""
    return call.method == "PUT" and bool(LOGS.search(call.path)) and "x-amz-copy-source" in map(str.lower, call.headers)


@pytest.mark.parametrize("shop", ON_THE_STORE, indirect=True)
def test_a_log_that_lies_in_the_store_is_copied_there_and_not_sent(
    shop: Shop, fixture_set: Callable[[str], FixtureSet], capsys: pytest.CaptureFixture[str]
) -> None:
    assert copy_problem(shop.store) is copy_problem(shop.store, of_others=True) is None
    assert shop("tier") == 0
    sent, copied = shop.logs_sent()
    assert (sent, copied) == (0, len(shop.logs()))
    assert copied > 1
    logs = {path.read_bytes() for path in fixture_set(UPGRADED).data.glob("payments-*/*.log")}
    assert shop.logs() <= logs
    assert shop("verify") == 0
    assert "once more" not in capsys.readouterr().err


@pytest.mark.parametrize("shop", [pytest.param(RCLONE, id="rclone")], indirect=True)
def test_a_store_that_does_not_copy_the_version_that_was_read_is_sent_the_bytes(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "replaced" in str(copy_problem(shop.store))
    assert shop("tier") == 0
    sent, copied = shop.logs_sent()
    assert (sent, copied) == (len(shop.logs()), 0)
    assert capsys.readouterr().err.count("once more") == 1
    assert shop("verify") == 0


@pytest.mark.parametrize("shop", [pytest.param(SEAWEEDFS, id="weed")], indirect=True)
def test_a_copy_without_a_checksum_is_not_relied_on(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    assert copy_problem(shop.store) is None
    assert "ChecksumCRC32C nothing" in str(copy_problem(shop.store, of_others=True))
    assert shop("tier") == 0
    assert shop.logs_sent()[0] == len(shop.logs())
    told = capsys.readouterr().err
    assert (told.count("once more"), "ChecksumCRC32C nothing" in told) == (1, True)
    assert shop("verify") == 0


@pytest.mark.parametrize("shop", [pytest.param(VERSITYGW, id="versitygw")], indirect=True)
def test_a_copy_of_other_bytes_is_found_by_its_checksum_and_the_log_is_sent(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut(call: Call, server: Callable[[Call], Reply]) -> Reply:
        reply = server(call)
        bucket, _, key = call.path.lstrip("/").partition("/")
        whole = shop.client.get_object(Bucket=bucket, Key=key)["Body"].read()
        shop.client.put_object(Bucket=bucket, Key=key, Body=whole[:-1] + b"?", ChecksumAlgorithm="CRC32C")
        return reply

    shop.proxy.set(Fault(name="other bytes", harm=cut), is_copy, times=99)
    assert shop("tier", "--parallel", "1") == 0
    assert shop.logs_sent() == (len(shop.logs()), 1)
    assert "ChecksumCRC32C" in capsys.readouterr().err
    assert shop("verify") == 0


@pytest.mark.parametrize("shop", [pytest.param(VERSITYGW, id="versitygw")], indirect=True)
def test_a_store_that_does_not_let_us_copy_is_sent_the_log(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.proxy.set(error(403, "AccessDenied"), is_copy, times=99)
    assert shop("tier", "--parallel", "1") == 0
    assert shop.logs_sent() == (len(shop.logs()), 1)
    assert capsys.readouterr().err.count("once more") == 1
    assert shop("verify") == 0


@pytest.mark.parametrize("shop", [pytest.param(VERSITYGW, id="versitygw")], indirect=True)
def test_a_segment_that_was_replaced_since_it_was_read_is_not_shipped(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    def replace(call: Call, server: Callable[[Call], Reply]) -> Reply:
        source = next(value for name, value in call.headers.items() if name.lower() == "x-amz-copy-source")
        bucket, _, key = source.lstrip("/").partition("/")
        shop.client.put_object(Bucket=bucket, Key=key, Body=b"another log")
        return server(call)

    shop.proxy.set(Fault(name="replaced", harm=replace), is_copy, times=1)
    assert shop("tier", "--partition", "payments-0", "--parallel", "1") == 0
    assert "segment-changed" in capsys.readouterr().out
    assert b"another log" not in shop.logs()
    assert not any(info.key.endswith(".manifest") for info in shop.store.list())
