"""What ``tier --dry-run`` says of requests, compared with those that the run sends."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

from resnap.scheduler.verbs.dry_tier import requests_of
from resnap.storage.log.log_dir import load_partition_dir
from resnap.storage.sources.registry import layout_named
from resnap.storage.stores.probe import Check, UploadChecks
from resnap.storage.stores.s3_upload import PART_BYTES, WHOLE_BYTES
from resnap.tiering.shipping.segment_copy import Uploading

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from botocore.httpsession import URLLib3Session

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Bucket, Resnap

HOW = ("--engine", "local", "--as-of", "roll")
ONCE = re.compile(r"/\.resnap/(probe|topic)/")
"""In keys of a run's probe, and of what is kept of each topic."""

pytestmark = pytest.mark.s3


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, no_aws_of_this_machine: None) -> Counter[str]:  # noqa: ARG001
    """Count the requests that go out, to a store whose checks of uploads count.

    Without what a run sends once, and without deletions, which cost nothing.
    """
    from botocore import httpsession  # noqa: PLC0415 - botocore takes a second to import

    found, send = Counter[str](), httpsession.URLLib3Session.send

    def counted(self: URLLib3Session, request: Any) -> Any:
        kind = "LIST" if "list-type=2" in request.url else request.method.replace("POST", "PUT")
        if kind != "DELETE" and not ONCE.search(unquote(request.url)):
            found[kind] += 1
        return send(self, request)

    checks = UploadChecks(whole=Check.REFUSED, in_parts=Check.REFUSED)
    monkeypatch.setattr("resnap.tiering.shipping.delivery.upload_checks", lambda _: checks)
    monkeypatch.setattr(httpsession.URLLib3Session, "send", counted)
    return found


@pytest.fixture
def log_dir(fixture_set: Callable[[str], FixtureSet], writable_copy: Callable[[Path], Path]) -> Path:
    """Three partitions of topics with ids; those of one have transaction indexes."""
    data = writable_copy(fixture_set("kafka-2.7.2").data)
    for name, last in (("orders-0", "Q"), ("payments-0", "g"), ("payments-1", "g")):
        (data / name / "partition.metadata").write_text(f"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAB{last}\n")
    assert len(list((data / "payments-0").glob("*.txnindex"))) > 5
    assert not list((data / "orders-0").glob("*.txnindex"))
    return data


@pytest.mark.parametrize(
    "flags",
    [
        ("--layout", "flat"),
        ("--layout", "flat", "--verify-upload", "read-back"),
        ("--layout", "local-tiered"),
        ("--layout", "aiven"),
    ],
)
def test_a_dry_run_says_how_many_requests_the_run_sends_and_what_they_cost(
    flags: tuple[str, ...],
    command: Resnap,
    log_dir: Path,
    bucket: Bucket,
    sent: Counter[str],
) -> None:
    topics = ("--topic", "orders", "--topic", "payments")
    one_by_one = ("--parallel", "1")  # else segments share a listing, of which the dry run counts one for each
    tier = ("tier", log_dir, *topics, "--to", bucket.url, *bucket.flags, *HOW, *one_by_one, *flags)
    told = command(*tier, "--dry-run", "--output", "json", **bucket.variables).document
    planning = Counter(sent)
    for_people = command(*tier, "--dry-run", **bucket.variables)
    sent.clear()
    shipped = command(*tier, "--output", "json", **bucket.variables).document["summary"]["shipped"]
    needed = sent - planning
    assert shipped == told["segmentsToShip"] > 10
    assert needed == {"PUT": told["putRequests"], "LIST": told["listRequests"], "GET": told["getRequests"]}
    assert told["headRequests"] == 0
    puts, gets = needed["PUT"] + needed["LIST"], needed["GET"]
    usd = (5 * puts + 0.4 * gets) / 1e6
    assert told["requestsUsd"] == round(usd, 4)
    line = f"That is about {puts} PUT and LIST and {gets} GET requests: less than 0.01 USD at Amazon S3's prices, "
    assert line in for_people.out
    assert f" {usd / shipped * 1e6:.0f} USD per million segments." in for_people.out


def test_nothing_is_said_of_requests_where_none_are_paid_for(command: Resnap, log_dir: Path, bucket: Bucket) -> None:
    to_bucket, to_disk = (bucket.url, *bucket.flags), (f"file://{log_dir}-store",)
    nothing, of_some = ("--topic", "compacted"), ("--topic", "orders")
    for topics, to, segments in ((nothing, to_bucket, 0), (of_some, to_disk, 2)):
        told = command(
            "tier", log_dir, *topics, "--to", *to, *HOW, "--dry-run", "--output", "json", **bucket.variables
        ).document
        assert told["segmentsToShip"] == segments
        assert not [name for name in told if name.startswith(("put", "requests"))]
        assert "USD" not in command("tier", log_dir, *topics, "--to", *to, *HOW, "--dry-run", **bucket.variables).out


def test_a_log_that_goes_up_in_parts_takes_a_request_for_each_and_two_more(log_dir: Path) -> None:
    segment = load_partition_dir(log_dir / "orders-0").segments[0]
    for layout, most in (("flat", WHOLE_BYTES), ("aiven", PART_BYTES)):
        uploading = Uploading(layout=layout_named(layout))
        small, whole, large = (
            requests_of([[replace(segment, size_bytes=size_bytes)]], uploading) for size_bytes in (1, most, 1 << 30)
        )
        assert small == whole
        assert large == small._replace(puts=small.puts + 64 + 2 - 1)
