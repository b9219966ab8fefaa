"""What real servers keep, what the doctor finds of it, and that nothing wrong ends under a manifest on any of them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.clock import Clock
from resnap.scheduler.verbs.doctor import Health, probe_store
from resnap.storage.errors import StoreAccessError, StoreError, VerificationError
from resnap.storage.layouts.flat.layout import Flat
from resnap.storage.layouts.manifest import TOMBSTONE
from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.stores.probe import Check, Condition, condition, deletion, range_problem, replacement, upload_checks
from resnap.storage.stores.s3 import S3ObjectStore
from resnap.storage.stores.s3_upload import PART_BYTES
from resnap.storage.stores.urls import open_store
from resnap.tiering.garbage import collect, find_garbage
from resnap.tiering.shipping.delivery import Delivery
from resnap.tiering.verifying.verification import StoreReader
from tests.storage.stores.contract import ObjectStoreContract
from tests.stores.servers import GARAGE, HONEST, LIARS, MINIO, RCLONE, RUSTFS, S3S_FS, SEAWEEDFS, STRICT, VERSITYGW
from tests.tiering.shipping import UPGRADED, manifest_keys, manifests, must_be_shipped, tier
from tests.tiering.stores import RecordingStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.storage.stores.protocol import ObjectStore, Unfinished
    from resnap.storage.stores.s3_settings import S3Settings
    from tests.fixture_sets import FixtureSet
    from tests.stores.servers import Kind, Server

    Servers = Callable[..., Server]

pytestmark = pytest.mark.stores
PAYMENTS = {"payments-0", "payments-1"}
KINDS = [pytest.param(kind, id=kind.name) for kind in (*HONEST, *LIARS)]
STRICT_KINDS = [pytest.param(kind, id=kind.name) for kind in STRICT]
HONEST_KINDS = [pytest.param(kind, id=kind.name) for kind in HONEST]


def a_store(server: Server, **settings: object) -> S3ObjectStore:
    return S3ObjectStore(server.new_bucket(), "some/prefix", server.settings(**settings))


class TestStrictStores(ObjectStoreContract):
    settings: S3Settings

    kind: Kind

    @pytest.fixture(params=STRICT_KINDS)
    def store(self, request: pytest.FixtureRequest, server_of: Servers) -> ObjectStore:
        self.kind = request.param
        server = server_of(self.kind)
        self.settings = server.settings()
        return a_store(server)

    def reopen(self, url: str) -> ObjectStore:
        return open_store(url, self.settings)

    def test_one_version_is_deleted_and_no_other(self, store: ObjectStore) -> None:
        if self.kind is MINIO:
            pytest.skip("MinIO deletes any version, as the probe finds")
        super().test_one_version_is_deleted_and_no_other(store)


@pytest.mark.parametrize(
    ("kind", "whole", "in_parts", "conditions"),
    [
        pytest.param(VERSITYGW, Check.REFUSED, Check.REFUSED, {Condition.KEPT}, id="versitygw"),
        pytest.param(MINIO, Check.REFUSED, Check.REFUSED, {Condition.KEPT}, id="minio"),
        pytest.param(RUSTFS, Check.REFUSED, Check.REFUSED, {Condition.KEPT}, id="rustfs"),
        pytest.param(SEAWEEDFS, Check.REFUSED, Check.REFUSED, {Condition.KEPT}, id="weed"),
        pytest.param(GARAGE, Check.REFUSED, Check.REFUSED, {Condition.IGNORED}, id="garage"),
        pytest.param(RCLONE, Check.TAKEN, Check.TAKEN, {Condition.IGNORED}, id="rclone"),
        pytest.param(S3S_FS, Check.WRITTEN_ANYWAY, Check.TAKEN, {Condition.KEPT, Condition.RACES}, id="s3s-fs"),
    ],
)
def test_the_probe_finds_what_each_server_keeps(
    server_of: Servers, kind: Kind, whole: Check, in_parts: Check, conditions: set[Condition]
) -> None:
    store = a_store(server_of(kind), max_attempts=2)
    found = upload_checks(store)
    assert (found.whole, found.in_parts) == (whole, in_parts)
    assert condition(store) in conditions
    assert kind is S3S_FS or replacement(store) in conditions, "what replaces one version is kept where creation is"
    assert (range_problem(store) is None) is (kind is not RCLONE)
    assert Delivery(store=store).reads_back is (kind in LIARS)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        pytest.param(VERSITYGW, Condition.KEPT, id="versitygw"),
        pytest.param(MINIO, Condition.IGNORED, id="minio"),
        pytest.param(RUSTFS, Condition.KEPT, id="rustfs"),
        pytest.param(SEAWEEDFS, Condition.KEPT, id="weed"),
        pytest.param(GARAGE, Condition.IGNORED, id="garage"),
        pytest.param(RCLONE, Condition.IGNORED, id="rclone"),
    ],
)
def test_the_probe_finds_whether_a_server_deletes_one_version_only(
    server_of: Servers, kind: Kind, found: Condition
) -> None:
    store = a_store(server_of(kind), max_attempts=2)
    assert deletion(store) is found
    assert list(store.list()) == []
    if found is Condition.KEPT:
        ObjectStoreContract().test_one_version_is_deleted_and_no_other(store)


@pytest.mark.parametrize("kind", STRICT_KINDS)
def test_the_doctor_has_nothing_to_say_against_a_strict_store(server_of: Servers, kind: Kind) -> None:
    store = a_store(server_of(kind))
    found = list(probe_store(store, Clock()))
    doubtful = [finding.check for finding in found if finding.health is not Health.OK]
    # MinIO deletes any version, lists the uploads to a key, and none below a prefix.
    assert doubtful == (["store delete condition", "store uploads"] if kind is MINIO else [])
    assert list(store.list()) == []


def shipped_whole(store: ObjectStore) -> list[tuple[int, int, int]]:
    """Make sure of every segment that a manifest names; return which there are."""
    reader = StoreReader(store=store, listing=Flat().listing(store, bool))
    for key in manifest_keys(store):
        assert reader.verify(key, reads_objects=True).problems == ()
    return sorted((one.partition, one.base_offset, one.next_base_offset) for one in manifests(store))


@pytest.mark.parametrize("kind", HONEST_KINDS)
def test_a_log_dir_is_shipped_whole_and_once(
    server_of: Servers, kind: Kind, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = fixture_set(UPGRADED).data
    store = a_store(server_of(kind))
    shipments = tier(data, store, tmp_path, only=PAYMENTS)
    assert [shipment.failures for shipment in shipments] == [[], []]
    partitions = [one for one in load_log_dir(data).partitions if str(one.topic_partition) in PAYMENTS]
    must = [(one.topic_partition.partition, *offsets) for one in partitions for offsets in must_be_shipped(one)]
    assert shipped_whole(store) == sorted(must)
    before = [store.head(info.key) for info in store.list()]
    tier(data, store, tmp_path, only=PAYMENTS)
    assert [store.head(info.key) for info in store.list()] == before, "what is there is not written again"


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in LIARS])
def test_on_a_store_with_wrong_responses_what_is_shipped_is_right_or_reported(
    server_of: Servers, kind: Kind, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    store = a_store(server_of(kind), response_checksum_validation="when_required", max_attempts=2)
    shipments = tier(fixture_set(UPGRADED).data, store, tmp_path, only=PAYMENTS)
    failures = [failure for shipment in shipments for failure in shipment.failures]
    assert all(isinstance(failure, StoreError | VerificationError) for failure in failures)
    assert len(shipped_whole(store)) == sum(len(shipment.shipped) for shipment in shipments)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_back_is_what_the_store_does_not_vouch_for(
    server_of: Servers, kind: Kind, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    watched = _Watched(a_store(server_of(kind), response_checksum_validation="when_required"))
    tier(fixture_set(UPGRADED).data, watched, tmp_path, only={"payments-0"})
    read = [key for verb, key in watched.calls if verb == "read" and not key.endswith(".manifest")]
    written = [key for key in watched.written if not key.endswith(".manifest") and not key.startswith(".resnap/")]
    assert sorted(read) == (sorted(written) if kind in LIARS else [])


@pytest.mark.parametrize("kind", STRICT_KINDS)
def test_over_tls_a_large_body_arrives_and_an_unknown_certificate_is_reported(
    server_of: Servers, kind: Kind, certificates: Path
) -> None:
    """Only over TLS would boto3 send checksums as trailers; ours are headers there, too."""
    server = server_of(kind, certificates)
    store = a_store(server)
    body = bytes(range(256)) * ((PART_BYTES >> 8) + 1)
    store.put_stream("large", lambda: io.BytesIO(body), size_bytes=len(body))
    store.put("small", b"x")
    assert store.get("large") == body
    assert upload_checks(store).count
    unverified = S3ObjectStore("bucket", "", server.settings(ca_bundle=None, max_attempts=1))
    with pytest.raises(StoreAccessError) as raised:
        unverified.get("large")
    assert "--s3-ca-bundle" in str(raised.value.hint)


@pytest.mark.parametrize("kind", HONEST_KINDS)
def test_wrong_credentials_are_reported_as_such(server_of: Servers, kind: Kind) -> None:
    server = server_of(kind)
    bucket = server.new_bucket()
    for wrong in ({"secret_access_key": "another"}, {"access_key_id": "nobody"}):
        with pytest.raises(StoreAccessError) as raised:
            S3ObjectStore(bucket, "", server.settings(**wrong)).put("key", b"x")
        assert raised.value.hint


@pytest.mark.parametrize("kind", [pytest.param(VERSITYGW, id="versitygw"), pytest.param(MINIO, id="minio")])
def test_garbage_is_found_and_deleted_and_nothing_else(
    server_of: Servers, kind: Kind, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    server = server_of(kind)
    store = a_store(server)
    tier(fixture_set(UPGRADED).data, store, tmp_path, only={"payments-0"})
    victim = manifests(store)[0]
    own = next(info.key for info in store.list() if str(victim.segment_id) in info.key and "manifest" in info.key)
    store.delete(own)
    bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
    begun = server.client().create_multipart_upload(Bucket=bucket, Key=f"{prefix}/{victim.objects[0].key}")
    kept = {info.key for info in store.list()} - {entry.key for entry in victim.objects}
    garbage = find_garbage(store, older_than_ms=0)
    assert {one.key for one in garbage.objects} == {entry.key for entry in victim.objects}
    listed = [begun["UploadId"]] if kind is VERSITYGW else []
    assert [one.handle for one in garbage.unfinished] == listed
    collected = list(collect(store, garbage, now_ms=0))
    assert [one.problem for one in collected] == [None] * (len(victim.objects) + len(listed))
    assert {info.key for info in store.list()} == kept | {own}
    assert store.get(own) == TOMBSTONE
    assert list(store.unfinished()) == []


class _Watched(RecordingStore):
    """Passes the probe's questions on, too."""

    @property
    def sends_checksums(self) -> bool:
        return True

    def put_claimed(self, key: str, body: bytes, *, crc32c: int, in_parts: bool) -> None:
        self.inner.put_claimed(key, body, crc32c=crc32c, in_parts=in_parts)  # type: ignore[attr-defined]

    def begin(self, key: str) -> Unfinished:  # noqa: ARG002
        raise AssertionError("asked by the doctor alone")
