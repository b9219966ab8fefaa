"""Logs that lie in an object store, through the commands."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from resnap.storage.layouts.manifest import read_manifest, write_manifest
from resnap.tiering.engine import Engine
from resnap.tiering.installing.staging_area import FINGERPRINT_FILE, read_fingerprint
from tests.cases import each, mostly_slow
from tests.scheduler.mirrors import mirror
from tests.scheduler.shipped import entries, files_of, manifests

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Bucket, Ran, Resnap

pytestmark = pytest.mark.s3

SETS = ("kafka-2.7.2-killed", "kafka-2.7.2-odd-timestamps", "kafka-2.7.2-then-3.9.1", "kafka-3.9.1-steady",
        "kafka-4.4.0-tiered")  # fmt: skip
"""What differs for a reader: padded indexes, time indexes, formats of batches, and where the log starts."""
LOCAL = ("--engine", "local", "--as-of", "roll", "--output", "json", "-q")


def without_snapshots(data: Path) -> None:
    for path in data.rglob("*.snapshot"):
        path.unlink()


@pytest.fixture
def payments(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    """A log dir with two small topics, to be changed and copied at will."""
    data = fixture_set("kafka-2.7.2").data
    chosen = shutil.copytree(data, tmp_path / "data", ignore=shutil.ignore_patterns("compacted-*", "legacy-*", "dash*"))
    return Path(chosen)


@pytest.fixture
def at(command: Resnap, bucket: Bucket) -> Callable[..., Ran]:
    """Run a command with what it takes to reach the bucket."""
    return lambda *arguments: command(*arguments, *bucket.flags, **bucket.variables)


@pytest.fixture
def s3_requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """What the server is asked from now on: method, path, and bytes of the range."""
    from moto.moto_server.werkzeug_app import MotoRequestHandler  # noqa: PLC0415 - as slow as the server

    heard: list[tuple[str, str, int]] = []

    def hear(handler: MotoRequestHandler, *_: object) -> None:
        first, _, last = handler.headers.get("Range", "bytes=0--1").removeprefix("bytes=").partition("-")
        heard.append((handler.command, urlsplit(handler.path).path, int(last) + 1 - int(first)))

    monkeypatch.setattr(MotoRequestHandler, "log_request", hear)
    return heard


@pytest.mark.parametrize("name", mostly_slow(SETS, "kafka-4.4.0-tiered"))
def test_a_copy_in_a_bucket_gives_the_snapshots_of_the_log_dir_byte_by_byte(
    name: str, command: Resnap, bucket: Bucket, tmp_path: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    data = shutil.copytree(fixture_set(name).data, tmp_path / "data")
    mirror(bucket.client, bucket.name, data, "logs/data")
    local = command("regenerate", data, "--boundaries", "all", "--into", tmp_path / "local", *LOCAL)
    remote = command(
        "regenerate", f"{bucket.url}/logs/data", "--boundaries", "all", "--into", tmp_path / "remote", *LOCAL,
        *bucket.flags, **bucket.variables,
    )  # fmt: skip
    told, expected = remote.document, local.document
    read, least = told["summary"].pop("bytesRead"), expected["summary"].pop("bytesRead")
    assert read >= least > 0  # of files the first reads are pages; a request for so little would not be worth it
    assert (remote.code, told) == (local.code, expected)
    assert files_of(tmp_path / "remote") == files_of(tmp_path / "local")


def test_a_file_url_stands_for_the_directory(command: Resnap, payments: Path, tmp_path: Path) -> None:
    by_path = command("regenerate", payments, "--boundaries", "all", "--into", tmp_path / "path", *LOCAL)
    by_url = command("regenerate", payments.as_uri(), "--boundaries", "all", "--into", tmp_path / "url", *LOCAL)
    assert (by_url.code, by_url.document) == (by_path.code, by_path.document) == (0, by_path.document)
    assert files_of(tmp_path / "url") == files_of(tmp_path / "path") != {}


@pytest.mark.slow
def test_snapshots_are_written_beside_the_segments_of_a_copy_and_good_ones_stay(
    at: Callable[..., Ran], bucket: Bucket, payments: Path
) -> None:
    kept = payments / "orders-0"
    for path in (payments / "payments-0").glob("*.snapshot"):
        path.unlink()
    mirror(bucket.client, bucket.name, payments, "logs")
    url, before = f"{bucket.url}/logs", bucket.objects()
    assert at("scan", url, "--output", "json", "-q").document["summary"]["lost"] > 0
    made = at("regenerate", url, "--into", url, *LOCAL)
    assert made.code == 0, made.err
    after = bucket.objects()
    assert {key: after[key] for key in before} == before
    added = {key.removeprefix("logs/") for key in after.keys() - before.keys() if key.endswith(".snapshot")}
    assert added == {
        f"{row['topic']}-{row['partition']}/{row['offset']:020d}.snapshot" for row in made.document["boundaries"]
    }
    assert at("scan", url, "--exit-code", "--output", "json", "-q").document["summary"]["lost"] == 0
    assert kept.exists()
    replaced = at("regenerate", url, "--into", url, "--boundaries", "all", *LOCAL)
    assert (replaced.code, "would be replaced" in replaced.err) == (2, True)
    assert bucket.objects() == after
    again = at("regenerate", url, "--into", url, *LOCAL)
    assert (again.code, again.document["summary"]["snapshots"]) == (0, 0)


def test_one_partition_of_a_copy_is_a_source_too(at: Callable[..., Ran], bucket: Bucket, payments: Path) -> None:
    mirror(bucket.client, bucket.name, payments, "logs")
    whole = at("scan", f"{bucket.url}/logs", "--topic", "orders", "--output", "json", "-q")
    lone = at("scan", f"{bucket.url}/logs/orders-0/", "--output", "json", "-q")
    assert (lone.code, lone.document) == (0, whole.document)
    assert [row["highWatermark"] is not None for row in lone.document["partitions"]] == [True]
    inside = at("regenerate", f"{bucket.url}/logs", "--into", f"{bucket.url}/logs/orders-0", *LOCAL)
    assert (inside.code, "is the folder of a partition" in inside.err) == (2, True)


def without_bytes_read(told: str) -> str:
    """Return an answer without what the first reads come to: of a file they are pages, of an object requests."""
    return re.sub(r'"bytesRead": [1-9][0-9]*', '"bytesRead": "some"', told)


@pytest.mark.slow
def test_scan_plan_explain_and_verify_report_the_same_of_a_copy(
    command: Resnap, at: Callable[..., Ran], bucket: Bucket, payments: Path, tmp_path: Path
) -> None:
    mirror(bucket.client, bucket.name, payments, "logs")
    url = f"{bucket.url}/logs"
    for arguments in (
        ("scan",),
        ("plan", "--as-of", "roll", "--boundaries", "all"),
        ("verify", "--engine", "local", "--as-of", "roll"),
    ):
        ours = command(*arguments, payments, "--output", "json", "-q")
        theirs = at(*arguments, url, "--output", "json", "-q")
        assert theirs.code == ours.code, theirs.err
        assert without_bytes_read(theirs.out.replace(url, str(payments))) == without_bytes_read(ours.out)
    ours = command("explain", payments, "payments-0", "552", "--output", "json", "-q")
    assert at("explain", url, "payments-0", "552", "--output", "json", "-q").document == ours.document
    at("regenerate", url, "--boundaries", "all", "--into", f"{bucket.url}/out", *LOCAL)
    checked = at("verify", url, "--snapshots", f"{bucket.url}/out", *LOCAL)
    assert checked.code == 0, checked.err
    saved = at("plan", url, "--boundaries", "all", "--save", tmp_path / "plan.json", "-q")
    assert saved.code == 0
    carried_out = at(
        "regenerate", "--plan", tmp_path / "plan.json", "--into", tmp_path / "planned", "--engine", "local"
    )
    assert carried_out.code == 0, carried_out.err
    assert at("doctor", url).out.count("segments, readable") == 1


def test_what_was_shipped_to_a_directory_gives_snapshots_that_can_be_installed(
    command: Resnap, payments: Path, tmp_path: Path
) -> None:
    store = (tmp_path / "store").as_uri()
    assert command("tier", payments, "--to", store, *LOCAL).code == 0
    assert command("regenerate", store, "--boundaries", "all", "--into", tmp_path / "again", *LOCAL).code == 0
    told = [read_fingerprint(path.read_bytes()) for path in (tmp_path / "again").rglob(FINGERPRINT_FILE)]
    assert told
    for fingerprint in told:
        assert len(fingerprint.segments) == len(fingerprint.snapshots) > 0


@pytest.mark.slow
def test_tier_ships_from_a_copy_what_it_ships_from_the_log_dir_and_that_is_a_source_again(
    at: Callable[..., Ran], bucket: Bucket, payments: Path, tmp_path: Path
) -> None:
    without_snapshots(payments)
    mirror(bucket.client, bucket.name, payments, "logs")
    store = f"{bucket.url}/shipped"
    local = at("tier", payments, "--to", (tmp_path / "local").as_uri(), *LOCAL)
    remote = at("tier", f"{bucket.url}/logs", "--to", store, *LOCAL)
    assert (local.code, remote.code) == (0, 0), remote.err
    objects = bucket.objects()
    shipped = {key.removeprefix("shipped/"): body for key, body in objects.items() if key.startswith("shipped/")}
    expected = files_of(tmp_path / "local")
    assert {key: body for key, body in shipped.items() if not key.endswith(".manifest")} == {
        key: body for key, body in expected.items() if not key.endswith(".manifest")
    }
    assert shipped.keys() == expected.keys()
    check_gives_its_own_snapshots_again(at, store, shipped, tmp_path / "again")
    check_only_manifests_count(at, bucket, sorted(key for key in objects if key.endswith(".manifest")))


def check_gives_its_own_snapshots_again(
    at: Callable[..., Ran], store: str, objects: dict[str, bytes], again: Path
) -> None:
    """Check that what was shipped is a source, as a whole and by partition, and that nothing is written into it."""
    shipped = {(one["topic"], one["partition"], one["nextBaseOffset"]): one for one in manifests(objects).values()}
    seen = at("scan", store, "--output", "json", "-q").document["summary"]
    assert (seen["boundaries"], seen["lost"]) == (len(shipped), 0)
    made = at("regenerate", store, "--boundaries", "all", "--into", again, *LOCAL)
    assert made.code == 0, made.err
    assert len(list(again.rglob("*.snapshot"))) == len(shipped)
    for (topic, partition, end), manifest in shipped.items():
        key = next(entry["key"] for entry in manifest["objects"] if entry["kind"] == "snapshot")
        found = (again / f"{topic}-{partition}" / f"{end:020d}.snapshot").read_bytes()
        assert entries(found) == entries(objects[key])
    inside = at("regenerate", store, "--boundaries", "all", "--into", store, *LOCAL)
    assert (inside.code, "manifests are never changed" in inside.err) == (2, True)
    folder = min(key for key in objects if key.endswith(".manifest")).rpartition("/")[0]
    lone = at("scan", f"{store}/{folder}", "--output", "json", "-q")
    assert (lone.code, len(lone.document["partitions"])) == (0, 1)


def check_only_manifests_count(at: Callable[..., Ran], bucket: Bucket, keys: list[str]) -> None:
    """Check that a segment without its manifest is not there, and that a gap is reported."""
    payments = [key for key in keys if "/payments/" in key]
    first = [key for key in payments if key.rpartition("/")[0] == payments[0].rpartition("/")[0]]
    bucket.client.delete_object(Bucket=bucket.name, Key=first[-1])
    found = at("scan", f"{bucket.url}/shipped", "--output", "json", "-q").document["summary"]
    assert (found["boundaries"], found["problems"]) == (len(keys) - 1, 0)
    bucket.client.delete_object(Bucket=bucket.name, Key=first[2])
    gap = at("scan", f"{bucket.url}/shipped", "--output", "json", "-q")
    assert (gap.code, "leave a gap" in gap.err, gap.document["summary"]["problems"]) == (3, True, 1)


@pytest.mark.parametrize("url", ["", "/nothing/here"])
def test_a_prefix_that_holds_no_log_is_a_usage_error(at: Callable[..., Ran], bucket: Bucket, url: str) -> None:
    ran = at("scan", f"{bucket.url}{url}")
    assert (ran.code, "neither a copy of a Kafka log dir" in ran.err) == (2, True)


def test_where_only_folders_in_front_are_missing_the_hint_names_the_url_with_them(
    at: Callable[..., Ran], bucket: Bucket, payments: Path, command: Resnap, fixture_set: Callable[[str], FixtureSet]
) -> None:
    mirror(bucket.client, bucket.name, payments, "logs/broker-1")
    remote = fixture_set("kafka-3.9.1-aiven-plain").remote.as_uri()
    for run, url, folder in ((at, bucket.url, "logs/broker-1"), (command, remote, "tiered")):
        refused = run("verify", url)
        assert (refused.code, f"hint: give {url}/{folder}, where they are" in refused.err) == (2, True), refused.err
        assert run("scan", f"{url}/{folder}").code == 0


def test_a_bucket_that_is_not_there_is_the_stores_fault(at: Callable[..., Ran]) -> None:
    ran = at("scan", "s3://no-such-bucket-here/logs")
    assert (ran.code, "bucket" in ran.err) == (12, True)


def test_a_segment_that_vanishes_ends_its_partition_and_no_other(
    at: Callable[..., Ran], bucket: Bucket, payments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror(bucket.client, bucket.name, payments, "logs")
    gone = sorted(key for key in bucket.objects() if "/payments-0/" in key and key.endswith(".log"))[1]
    replay = Engine.replay

    def delete_and_replay(self: Engine, *arguments: Any, **named: Any) -> Any:
        bucket.client.delete_object(Bucket=bucket.name, Key=gone)
        return replay(self, *arguments, **named)

    monkeypatch.setattr(Engine, "replay", delete_and_replay)
    ran = at("regenerate", f"{bucket.url}/logs", "--boundaries", "all", "--into", tmp_path / "out", *LOCAL)
    assert (ran.code, f"{gone}: no such object" in ran.err) == (3, True), ran.err
    made = {key.split("/")[0] for key in files_of(tmp_path / "out")}
    assert {"orders-0", "payments-1"} <= made


def test_a_replay_fetches_each_segment_once_and_asks_no_object_for_its_head_to_list_it(
    at: Callable[..., Ran], bucket: Bucket, payments: Path, s3_requests: list[tuple[str, str, int]]
) -> None:
    mirror(bucket.client, bucket.name, payments, "logs")
    s3_requests.clear()
    ran = at("scan", f"{bucket.url}/logs", "--output", "json", "-q")
    assert ran.code == 0
    assert not [request for request in s3_requests if request[0] == "HEAD" or request[1].endswith(".log")]
    s3_requests.clear()
    assert at("plan", f"{bucket.url}/logs", "--prove", *LOCAL).code == 0
    logs = {path.relative_to(payments): path.stat().st_size for path in payments.rglob("*.log")}
    fetched = [request for request in s3_requests if request[0] == "GET" and request[1].endswith(".log")]
    # Under `roll` the batch that a time index names is looked up, since it decides a T: one request, of 8 KiB at most.
    requests = Counter(key for _, key, _ in fetched)
    assert max(requests.values()) <= 2
    assert len(requests) <= len(logs)
    came = sum(min(size, logs[Path(*Path(key).parts[-2:])]) for _, key, size in fetched)
    assert came <= sum(logs.values()) + len(logs) * (8 << 10)


def test_verify_asks_for_each_object_of_a_small_segment_once(
    at: Callable[..., Ran], bucket: Bucket, payments: Path, s3_requests: list[tuple[str, str, int]]
) -> None:
    at("tier", payments, "--to", f"{bucket.url}/shipped", *LOCAL)
    shipped = {f"/{bucket.name}/{key}" for key in bucket.objects()}
    s3_requests.clear()
    ran = at("verify", f"{bucket.url}/shipped", "--output", "json", "-q", *LOCAL)
    snapshots = sum(key.endswith(".snapshot") for key in shipped)
    assert (ran.code, ran.document["summary"]["snapshotsReplayed"]) == (0, snapshots)
    assert Counter((verb, path) for verb, path, _ in s3_requests if path in shipped) == {
        ("GET", path): 1 for path in shipped
    }


@pytest.fixture
def manifests_asked(
    at: Callable[..., Ran], bucket: Bucket, payments: Path, s3_requests: list[tuple[str, str, int]], tmp_path: Path
) -> Callable[..., tuple[Ran, int, int]]:
    """Ship all, and give what ships again: it returns the run, how many manifests were read, and of how many."""
    tier = ("tier", payments, "--to", f"{bucket.url}/shipped", "--engine", "local", "--state-dir")
    at(*tier, tmp_path / "state")

    def again(*others: object, state: object = tmp_path / "state") -> tuple[Ran, int, int]:
        s3_requests.clear()
        ran = at(*tier, state, *others)
        read = [path for verb, path, _ in s3_requests if verb == "GET" and path.endswith(".manifest")]
        return ran, len(read), sum(key.endswith(".manifest") for key in bucket.objects())

    return again


def test_a_repeated_tier_reads_no_manifest_that_it_has_read_or_written_unless_it_is_to_keep_nothing(
    manifests_asked: Callable[..., tuple[Ran, int, int]], tmp_path: Path
) -> None:
    first, read, there = manifests_asked()
    assert (first.code, read) == (0, 0)
    assert manifests_asked()[1] == 0
    assert manifests_asked("--fresh")[1] == there > 0
    assert manifests_asked(state="none")[1] == there
    other = tmp_path / "other"
    assert manifests_asked("--dry-run", state=other)[1] == there
    assert manifests_asked(state=other)[1] == there, "a dry run keeps nothing"
    assert manifests_asked(state=other)[1] == 0


@each("repeated", [False, True])
def test_a_manifest_that_was_changed_is_read_again_by_a_repeated_tier(
    manifests_asked: Callable[..., tuple[Ran, int, int]], bucket: Bucket, *, repeated: bool
) -> None:
    if repeated:
        manifests_asked()
    key = next(key for key in bucket.objects() if key.endswith(".manifest"))
    body = bucket.client.get_object(Bucket=bucket.name, Key=key)["Body"].read()
    bucket.client.put_object(Bucket=bucket.name, Key=key, Body=body[:-2] + bytes([body[-2] ^ 1]) + body[-1:])
    ran, read, _ = manifests_asked()
    assert read == 1
    assert key.removeprefix("shipped/") in ran.err + ran.out
    bucket.client.put_object(Bucket=bucket.name, Key=key, Body=body)
    assert manifests_asked()[0].code == 0


def test_a_manifest_of_another_writer_is_read_in_place_of_the_one_that_was_written(
    manifests_asked: Callable[..., tuple[Ran, int, int]], bucket: Bucket
) -> None:
    key = next(key for key in bucket.objects() if key.endswith(".manifest"))
    body = bucket.client.get_object(Bucket=bucket.name, Key=key)["Body"].read()
    manifest = read_manifest(body)
    others = write_manifest(replace(manifest, created_at_ms=manifest.created_at_ms + 1))
    bucket.client.put_object(Bucket=bucket.name, Key=key, Body=others)
    assert manifests_asked()[1] == 1
    ran, read, _ = manifests_asked()
    assert (ran.code, read) == (0, 0)


def test_manifests_that_were_kept_and_are_damaged_are_read_again_with_a_warning(
    manifests_asked: Callable[..., tuple[Ran, int, int]], tmp_path: Path
) -> None:
    manifests_asked()
    for path in (tmp_path / "state").rglob("manifests.z"):
        path.write_bytes(b"garbage")
    ran, read, there = manifests_asked()
    assert (ran.code, read) == (0, there)
    assert "manifests.z: not what this version of resnap writes" in ran.err
    ran, read, _ = manifests_asked()
    assert (ran.code, read, "manifests.z" in ran.err) == (0, 0, False)


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_a_copy_and_puts_snapshots_beside_its_segments(
    command: Resnap,
    at: Callable[..., Ran],
    bucket: Bucket,
    payments: Path,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What segments are known by is asked of executors once for all partitions that were replayed at once."""
    each, asked = Engine.each, list[int]()

    def count(self: Engine, look: Any, items: Any) -> Any:
        asked.append(len(items))
        return each(self, look, items)

    monkeypatch.setattr(Engine, "each", count)
    without_snapshots(payments)
    mirror(bucket.client, bucket.name, payments, "logs")
    url = f"{bucket.url}/logs"
    local = command("regenerate", payments, "--into", tmp_path / "local", *LOCAL)
    by_partition = [number for number in asked if number]
    asked.clear()
    spark = at("regenerate", url, "--into", url, "--as-of", "roll", "--spark-master", "local[2]", "-q")
    assert [number for number in asked if number] == [sum(by_partition)]
    assert len(by_partition) > 1
    assert (local.code, spark.code) == (0, 0), spark.err
    made = {key.removeprefix("logs/"): body for key, body in bucket.objects().items() if key.endswith(".snapshot")}
    expected = files_of(tmp_path / "local")
    assert made == {name: body for name, body in expected.items() if name.endswith(".snapshot")} != {}


def test_of_a_url_without_a_name_that_is_said_wherever_it_stands(command: Resnap, broker_log: Path) -> None:
    """As where a shell's variable is not set."""
    for arguments in (
        ("scan", "s3://"),
        ("check", broker_log, "--remote", "s3://"),
        ("verify", "--store", "s3://", "--engine", "local"),
        ("restore", "s3://", "--into", broker_log),
    ):
        ran = command(*arguments)
        assert ran.code == 2, arguments
        assert "store URL 's3://': a name is missing after ://" in ran.err, arguments
