"""Settings that go with requests: on the wire as S3 has them, and accepted where a server knows them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.settings.store import customer_key, storage_class
from resnap.storage.errors import ConfigurationError, ObjectExistsError, StoreAccessError
from resnap.storage.stores.s3 import S3ObjectStore
from resnap.storage.stores.s3_settings import S3Settings
from resnap.storage.stores.s3_upload import PART_BYTES
from resnap.storage.stores.urls import open_store
from tests.storage.stores.conftest import Answer, CannedServer
from tests.storage.stores.test_s3 import error_answer, settings_for

if TYPE_CHECKING:
    from pathlib import Path

    from mypy_boto3_s3 import S3Client

pytestmark = pytest.mark.s3
KEY = bytes(range(32))


def test_encryption_class_and_tags_are_on_what_is_written(
    s3_bucket: str, s3_settings: S3Settings, s3_client: S3Client
) -> None:
    settings = replace(
        s3_settings,
        encryption="aws:kms",
        kms_key_id="alias/shipping",
        storage_class="STANDARD_IA",
        tags=(("team", "pay + ship"), ("tier", "kafka")),
    )
    store = S3ObjectStore(s3_bucket, "", settings)
    size_bytes = PART_BYTES + 1
    store.put_stream("large", lambda: io.BytesIO(bytes(size_bytes)), size_bytes=size_bytes)
    store.put_stream("segment", lambda: io.BytesIO(b"x"), size_bytes=1)
    store.put("manifest", b"x")
    for key, its_class in (("large", "STANDARD_IA"), ("segment", "STANDARD_IA"), ("manifest", None)):
        found = s3_client.head_object(Bucket=s3_bucket, Key=key)
        assert (found["ServerSideEncryption"], found["SSEKMSKeyId"]) == ("aws:kms", "alias/shipping")
        assert found.get("StorageClass") == its_class, "what is small and read often stays where it is"
        tags = s3_client.get_object_tagging(Bucket=s3_bucket, Key=key)["TagSet"]
        assert {tag["Key"]: tag["Value"] for tag in tags} == {"team": "pay + ship", "tier": "kafka"}
    assert store.get("segment") == b"x"


def test_a_customers_key_and_the_owner_go_with_every_request_that_knows_them(
    canned_server: CannedServer, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(KEY)
    canned_server.answers = [Answer(headers={"ETag": '"e"', "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"})]
    key = customer_key(tmp_path / "key")
    store = S3ObjectStore(
        "bucket", "", settings_for(canned_server, customer_key=key, expected_bucket_owner="123456789012")
    )
    store.put("key", b"x")
    store.get("key")
    store.head("key")
    store.delete("key")
    put, get, head, delete = canned_server.requests
    for request in (put, get, head):
        assert request.headers["x-amz-server-side-encryption-customer-algorithm"] == "AES256"
        assert base64.b64decode(request.headers["x-amz-server-side-encryption-customer-key"]) == KEY
        digest = hashlib.md5(KEY, usedforsecurity=False).digest()
        assert base64.b64decode(request.headers["x-amz-server-side-encryption-customer-key-MD5"]) == digest
    assert {request.headers["x-amz-expected-bucket-owner"] for request in (put, get, head, delete)} == {"123456789012"}
    assert "x-amz-server-side-encryption-customer-key" not in delete.headers


def test_only_before_a_large_body_is_the_store_asked_whether_it_takes_one(canned_server: CannedServer) -> None:
    canned_server.answers = [Answer()]
    store = S3ObjectStore("bucket", "", settings_for(canned_server))
    store.put("small", bytes(64 << 10))
    store.put("large", bytes((64 << 10) + 1))
    assert [request.headers.get("Expect") for request in canned_server.requests] == [None, "100-continue"]


def test_a_request_names_each_program_that_makes_it_once(canned_server: CannedServer) -> None:
    canned_server.answers = [Answer()]
    S3ObjectStore("bucket", "", settings_for(canned_server)).put("small", b"x")
    names = [word.partition("/")[0] for word in canned_server.requests[0].headers["User-Agent"].split()]
    assert (names[:2], names.count("Botocore"), len(names)) == (["resnap", "Boto3"], 1, len(set(names)))


def test_a_customers_key_is_read_raw_or_in_base64_and_never_shown(tmp_path: Path) -> None:
    raw, encoded, wrong = tmp_path / "raw", tmp_path / "encoded", tmp_path / "wrong"
    raw.write_bytes(KEY)
    encoded.write_bytes(base64.b64encode(KEY) + b"\n")
    wrong.write_bytes(b"too short")
    assert customer_key(None) is None
    for file in (raw, encoded):
        settings = S3Settings(customer_key=customer_key(file))
        assert settings.request_parameters()["SSECustomerKey"] == KEY
        assert repr(KEY) not in repr(settings)
    for file in (wrong, tmp_path / "absent"):
        with pytest.raises(ConfigurationError, match="--s3-sse-customer-key-file"):
            customer_key(file)


@pytest.mark.parametrize("name", ["GLACIER", "DEEP_ARCHIVE"])
def test_an_archive_class_is_refused_for_what_brokers_read(name: str) -> None:
    assert storage_class("GLACIER_IR") == "GLACIER_IR"
    with pytest.raises(ConfigurationError, match="cannot be read at once"):
        storage_class(name)


def test_a_versioned_bucket_with_object_lock_takes_and_gives(s3_settings: S3Settings, s3_client: S3Client) -> None:
    s3_client.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    s3_client.put_object_lock_configuration(
        Bucket="locked",
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}},
        },
    )
    store = S3ObjectStore("locked", "", s3_settings)
    store.put("key", b"first")
    with pytest.raises(ObjectExistsError):
        store.put("key", b"second", if_absent=True)
    store.put("key", b"third")
    assert store.get("key") == b"third"
    store.delete("key")
    assert list(store.list()) == []
    assert len(s3_client.list_object_versions(Bucket="locked")["Versions"]) == 2


def test_a_role_of_a_profile_is_enough(
    s3_endpoint: str, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "aws-config").write_text(
        "[profile shipper]\nrole_arn = arn:aws:iam::123456789012:role/shipper\nsource_profile = base\n"
        f"region = us-east-1\nendpoint_url = {s3_endpoint}\ns3 =\n  addressing_style = path\n"
        f"[profile base]\nregion = us-east-1\nendpoint_url = {s3_endpoint}\n"
    )
    (tmp_path / "aws-credentials").write_text("[base]\naws_access_key_id = a\naws_secret_access_key = b\n")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    store = open_store(f"s3://{s3_bucket}", S3Settings(profile="shipper"))
    store.put("key", b"x")
    assert store.get("key") == b"x"


def test_a_process_that_gives_credentials_is_enough(s3_endpoint: str, s3_bucket: str, tmp_path: Path) -> None:
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b"}))
    (tmp_path / "aws-config").write_text(
        f"[profile vault]\ncredential_process = cat {given}\nregion = us-east-1\nendpoint_url = {s3_endpoint}\n"
        "s3 =\n  addressing_style = path\n"
    )
    store = open_store(f"s3://{s3_bucket}", S3Settings(profile="vault"))
    store.put("key", b"x")
    assert store.get("key") == b"x"


def test_credentials_that_were_replaced_in_their_file_are_used_by_a_store_that_has_read_the_old_ones(
    canned_server: CannedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service keeps its stores open for months, and keys are replaced by those that manage them."""
    path = tmp_path / "aws-credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    path.write_text("[default]\naws_access_key_id = old\naws_secret_access_key = a\n")
    settings = settings_for(canned_server, access_key_id=None, secret_access_key=None, max_attempts=2)
    store = S3ObjectStore("bucket", "", settings)
    canned_server.answers = [Answer(body=b"x")]
    assert store.get("key") == b"x"
    canned_server.answers = [error_answer(403, "InvalidAccessKeyId")]
    with pytest.raises(StoreAccessError):
        store.get("key")
    assert len(canned_server.requests) == 2, "the same credentials are not tried again"
    path.write_text("[default]\naws_access_key_id = new\naws_secret_access_key = b\n")
    canned_server.answers = [error_answer(403, "InvalidAccessKeyId"), Answer(body=b"y")]
    assert store.get("key") == b"y"
    used = [request.headers["Authorization"].partition("Credential=")[2][:4] for request in canned_server.requests]
    assert used == ["old/", "old/", "old/", "new/"]
    path.unlink()
    canned_server.answers = [error_answer(403, "InvalidAccessKeyId")]
    with pytest.raises(StoreAccessError):
        store.get("key")
