from __future__ import annotations

import base64
import io
import re
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import (
    ConfigurationError,
    ObjectExistsError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    TooLargeError,
    UnsupportedError,
    UploadGoneError,
    UsageError,
    VerificationError,
)
from resnap.storage.stores.protocol import delete_below
from resnap.storage.stores.s3 import S3ObjectStore
from resnap.storage.stores.s3_settings import S3Settings
from resnap.storage.stores.s3_upload import PART_BYTES
from resnap.storage.stores.urls import open_store
from tests.storage.stores.conftest import Answer, CannedServer
from tests.storage.stores.contract import ObjectStoreContract
from tests.stores.fault_proxy import Fault, Reply, proxying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mypy_boto3_s3 import S3Client

    from resnap.storage.stores.protocol import ObjectStore
    from tests.stores.fault_proxy import Call, FaultProxy

pytestmark = pytest.mark.s3


class TestS3ObjectStore(ObjectStoreContract):
    @pytest.fixture
    def store(self, s3_bucket: str, s3_settings: S3Settings) -> ObjectStore:
        self.settings = s3_settings
        return S3ObjectStore(s3_bucket, "some/prefix", s3_settings)

    def reopen(self, url: str) -> ObjectStore:
        return open_store(url, self.settings)

    @pytest.mark.slow
    def test_a_listing_runs_over_as_many_pages_as_there_are(self, store: ObjectStore) -> None:
        super().test_a_listing_runs_over_as_many_pages_as_there_are(store)


@pytest.fixture
def store(s3_bucket: str, s3_settings: S3Settings) -> S3ObjectStore:
    return S3ObjectStore(s3_bucket, "prefix", s3_settings)


def test_a_listing_runs_over_pages_of_a_few_keys(store: S3ObjectStore) -> None:
    keys = [f"many/{number}" for number in range(7)]
    for key in keys:
        store.put(key, b"")
    assert [entry.key for entry in store.list("many/", page_keys=3)] == keys
    assert [entry.key for entry in store.list("many/", page_keys=2, after="many/1")] == keys[2:]
    assert [entry.key for entry in store.list("many/", after="many/1x")] == keys[2:]
    assert list(store.list("many/", after=keys[-1])) == []


def test_objects_lie_below_the_prefix_and_neighbours_are_not_seen(
    store: S3ObjectStore, s3_bucket: str, s3_client: S3Client
) -> None:
    store.put("a/b", b"x")
    s3_client.put_object(Bucket=s3_bucket, Key="prefixed/a", Body=b"another's")
    s3_client.put_object(Bucket=s3_bucket, Key="prefix/", Body=b"")
    s3_client.put_object(Bucket=s3_bucket, Key="prefix/folder/", Body=b"")
    assert s3_client.get_object(Bucket=s3_bucket, Key="prefix/a/b")["Body"].read() == b"x"
    assert [entry.key for entry in store.list()] == ["a/b"]


def test_a_large_body_goes_up_in_parts_with_their_checksums(
    store: S3ObjectStore, s3_bucket: str, s3_client: S3Client
) -> None:
    size_bytes = PART_BYTES + 1
    store.put_stream("large", lambda: io.BytesIO(bytes(size_bytes)), size_bytes=size_bytes)
    found = s3_client.get_object(Bucket=s3_bucket, Key="prefix/large", ChecksumMode="ENABLED")
    found["Body"].close()
    assert found["ETag"].endswith('-2"')
    assert found["ChecksumType"] == "COMPOSITE"
    assert found["ChecksumCRC32C"]


def test_without_checksums_and_without_a_prefix_large_and_small_bodies_arrive(
    s3_bucket: str, s3_settings: S3Settings
) -> None:
    modes = {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}
    store = S3ObjectStore(s3_bucket, "", replace(s3_settings, **modes))
    body = bytes(range(256)) * (PART_BYTES // 256) + b"tail"
    store.put_stream("large", lambda: io.BytesIO(body), size_bytes=len(body), crc32c=crc32c(body))
    store.put("small", b"x", if_absent=True)
    assert store.get("large") == body
    assert [entry.key for entry in store.list()] == ["large", "small"]


def test_a_thousand_objects_are_deleted_by_one_request(s3_bucket: str, s3_settings: S3Settings) -> None:
    with proxying(s3_settings.endpoint_url or "") as proxy:
        store = S3ObjectStore(s3_bucket, "prefix", replace(s3_settings, endpoint_url=proxy.url))
        keys = [f"passing/{number}" for number in range(7)]
        for key in (*keys, "passed", "staying/0"):
            store.put(key, b"")
        proxy.calls.clear()
        delete_below(store, "passing/")
        assert [call.method for call in proxy.calls if call.method != "GET"] == ["POST"]
        assert [entry.key for entry in store.list()] == ["passed", "staying/0"]
        delete_below(store, "passing/")
        with pytest.raises(UsageError, match="object key"):
            store.delete_all(["staying/0", "not portable"])
        assert [entry.key for entry in store.list()] == ["passed", "staying/0"]


@pytest.mark.parametrize("status", [200, 400, 404, 500, 501])
def test_what_a_store_does_not_delete_together_is_deleted_one_by_one(
    s3_bucket: str, s3_settings: S3Settings, status: int
) -> None:
    fault = Fault(name="deletes nothing", harm=lambda _call, _serve: Reply(status=status))
    with proxying(s3_settings.endpoint_url or "") as proxy:
        proxy.set(fault, lambda call: call.method == "POST")
        store = S3ObjectStore(s3_bucket, "prefix", replace(s3_settings, endpoint_url=proxy.url))
        keys = [f"passing/{number}" for number in range(3)]
        for key in keys:
            store.put(key, b"")
        delete_below(store, "passing/")
        methods = [call.method for call in proxy.calls if call.method not in {"GET", "PUT"}]
        assert methods == ["POST", *["DELETE"] * 3]
        assert list(store.list()) == []


def test_a_failed_upload_is_aborted(store: S3ObjectStore, s3_bucket: str, s3_client: S3Client) -> None:
    size_bytes = PART_BYTES * 2
    with pytest.raises(VerificationError):
        store.put_stream("large", lambda: io.BytesIO(bytes(PART_BYTES + 5)), size_bytes=size_bytes)
    assert "Uploads" not in s3_client.list_multipart_uploads(Bucket=s3_bucket)
    assert list(store.list()) == []


def test_a_bucket_that_does_not_exist_is_said(s3_settings: S3Settings) -> None:
    store = S3ObjectStore("no-such-bucket", "prefix", s3_settings)
    for attempt in (
        lambda: store.put("key", b"x"),
        lambda: store.put("key", b"x", if_absent=True),
        lambda: store.put_stream("key", lambda: io.BytesIO(bytes(17 << 20)), size_bytes=17 << 20),
        lambda: store.get("key"),
        lambda: list(store.list()),
        lambda: store.delete("key"),
    ):
        with pytest.raises(StoreAccessError, match=r"s3://no-such-bucket/prefix.*no such bucket") as raised:
            attempt()
        assert "create it" in (raised.value.hint or "")
        assert raised.value.exit_code == 12


def test_an_endpoint_without_a_server_is_reported() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        settings = S3Settings(endpoint_url=endpoint, access_key_id="a", secret_access_key="b", max_attempts=1)
        store = S3ObjectStore("bucket", "", settings)
        for attempt in (lambda: store.put("key", b"x"), lambda: store.get("key"), lambda: list(store.list())):
            with pytest.raises(StoreUnavailableError) as raised:
                attempt()
            assert raised.value.transient
            assert endpoint in (raised.value.hint or "")


def test_missing_credentials_are_said(s3_endpoint: str) -> None:
    store = S3ObjectStore("bucket", "", S3Settings(endpoint_url=s3_endpoint))
    with pytest.raises(StoreAccessError, match="credentials") as raised:
        list(store.list())
    assert "AWS_ACCESS_KEY_ID" in (raised.value.hint or "")


@pytest.mark.parametrize(
    "settings",
    [
        S3Settings(endpoint_url="localhost:9000"),
        S3Settings(profile="not-configured"),
        S3Settings(access_key_id="without its secret"),
        S3Settings(region="no region"),
    ],
    ids=["endpoint without http", "profile", "half a key", "region"],
)
def test_settings_that_cannot_be_used_are_said_at_once(settings: S3Settings) -> None:
    with pytest.raises(ConfigurationError, match="s3: ") as raised:
        S3ObjectStore("bucket", "", settings)
    assert raised.value.exit_code == 10


def test_secrets_do_not_show_in_the_settings() -> None:
    shown = repr(S3Settings(access_key_id="AKIA", secret_access_key="hush", session_token="hush"))
    assert "AKIA" in shown
    assert "hush" not in shown


def test_the_environment_alone_is_enough(s3_endpoint: str, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    store = open_store(f"s3://{s3_bucket}")
    store.put("key", b"x")
    assert store.get("key") == b"x"


def test_a_profile_of_the_shared_files_is_enough(
    s3_endpoint: str, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "aws-config").write_text(
        f"[profile lab]\nendpoint_url = {s3_endpoint}\nregion = eu-central-1\ns3 =\n  addressing_style = path\n"
    )
    (tmp_path / "aws-credentials").write_text("[lab]\naws_access_key_id = a\naws_secret_access_key = b\n")
    store = open_store(f"s3://{s3_bucket}", S3Settings(profile="lab"))
    store.put("key", b"x")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert open_store(f"s3://{s3_bucket}").get("key") == b"x"


def settings_for(server: CannedServer, **others: object) -> S3Settings:
    fields: dict[str, object] = {
        "endpoint_url": server.url,
        "region": "us-east-1",
        "access_key_id": "a",
        "secret_access_key": "b",
        "max_attempts": 1,
    }
    return S3Settings(**(fields | others))  # type: ignore[arg-type]


def error_answer(status: int, code: str) -> Answer:
    return Answer(status=status, body=f"<Error><Code>{code}</Code><Message>said so</Message></Error>".encode())


def test_a_put_carries_checksum_and_condition(canned_server: CannedServer) -> None:
    canned_server.answers = [Answer(headers={"ETag": '"e"'})]
    store = S3ObjectStore("bucket", "", settings_for(canned_server))
    store.put("key", b"body", if_absent=True)
    store.put("key", b"body")
    conditional, plain = canned_server.requests
    assert (conditional.method, conditional.path, conditional.body) == ("PUT", "/bucket/key", b"body")
    assert base64.b64decode(conditional.headers["x-amz-checksum-crc32c"]) == crc32c(b"body").to_bytes(4, "big")
    assert conditional.headers["If-None-Match"] == "*"
    assert plain.headers["x-amz-checksum-crc32c"] == conditional.headers["x-amz-checksum-crc32c"]
    assert "If-None-Match" not in plain.headers


def test_no_checksum_is_sent_where_the_user_forbids_it(
    canned_server: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned_server.answers = [Answer(headers={"ETag": '"e"'})]
    S3ObjectStore("bucket", "", settings_for(canned_server, request_checksum_calculation="when_required")).put(
        "k", b"x"
    )
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    S3ObjectStore("bucket", "", settings_for(canned_server)).put("k", b"x")
    for request in canned_server.requests:
        assert not [name for name in request.headers if name.lower().startswith("x-amz-checksum")]


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (error_answer(503, "SlowDown"), StoreUnavailableError, "SlowDown"),
        (error_answer(500, "InternalError"), StoreUnavailableError, "InternalError"),
        (error_answer(429, "TooManyRequests"), StoreUnavailableError, "TooManyRequests"),
        (error_answer(400, "RequestTimeout"), StoreUnavailableError, "RequestTimeout"),
        (error_answer(409, "ConditionalRequestConflict"), StoreUnavailableError, "ConditionalRequestConflict"),
        (error_answer(400, "BadDigest"), StoreUnavailableError, "other bytes arrived"),
        (error_answer(412, "PreconditionFailed"), ObjectExistsError, "already"),
        (error_answer(507, "XMinioStorageFull"), StoreFullError, "XMinioStorageFull"),
        (error_answer(403, "AccessDenied"), StoreAccessError, "AccessDenied"),
        (error_answer(403, "SignatureDoesNotMatch"), StoreAccessError, "SignatureDoesNotMatch"),
        (error_answer(404, "XAdminUserNotFound"), StoreAccessError, "XAdminUserNotFound"),
        (error_answer(400, "ExpiredToken"), StoreAccessError, "ExpiredToken"),
        (error_answer(400, "AuthorizationHeaderMalformed"), StoreAccessError, "AuthorizationHeaderMalformed"),
        (error_answer(403, "RequestTimeTooSkewed"), StoreAccessError, "RequestTimeTooSkewed"),
        (error_answer(403, "SecondLevelDomainForbidden"), StoreAccessError, "SecondLevelDomainForbidden"),
        (error_answer(501, "NotImplemented"), UnsupportedError, "refused"),
        (error_answer(409, "ObjectParentIsFile"), StoreError, "refused"),
        (error_answer(400, "EntityTooLarge"), TooLargeError, "EntityTooLarge"),
        (Answer(status=413, body=b"<html>too large</html>"), TooLargeError, "413"),
        (Answer(status=502, body=b"<html>bad gateway</html>"), StoreUnavailableError, "502"),
        (Answer(body=b"", claimed_length=0), None, ""),
    ],
    ids=lambda value: value.body.decode()[13:40] if isinstance(value, Answer) else "",
)
def test_a_refused_put_says_whose_fault_it_is(
    canned_server: CannedServer, answer: Answer, error: type[StoreError] | None, said: str
) -> None:
    canned_server.answers = [answer]
    store = S3ObjectStore("bucket", "", settings_for(canned_server))
    if error is None:
        store.put("key", b"x", if_absent=True)
        return
    with pytest.raises(StoreError, match=said) as raised:
        store.put("key", b"x", if_absent=True)
    assert type(raised.value) is error
    assert raised.value.key == "key"
    assert raised.value.transient is (error is StoreUnavailableError)
    assert str(raised.value).startswith("s3://bucket/key: ")
    assert raised.value.hint or error is ObjectExistsError


def test_a_store_that_does_not_know_conditions_is_written_to_without(canned_server: CannedServer) -> None:
    canned_server.answers = [error_answer(501, "NotImplemented"), Answer(headers={"ETag": '"e"'})]
    store = S3ObjectStore("bucket", "", settings_for(canned_server))
    store.put("key", b"x", if_absent=True)
    store.put("other", b"x", if_absent=True)
    assert [request.headers["If-None-Match"] for request in canned_server.requests] == ["*", None, None]


def test_a_store_without_checksums_is_reported_with_the_settings_that_go_without(
    canned_server: CannedServer,
) -> None:
    canned_server.answers = [error_answer(501, "NotImplemented")]
    with pytest.raises(UnsupportedError) as raised:
        S3ObjectStore("bucket", "", settings_for(canned_server)).put("key", b"x", if_absent=True)
    for option in ("--s3-request-checksum-calculation", "--s3-response-checksum-validation"):
        assert f"{option} when_required" in (raised.value.hint or "")


def test_a_store_in_trouble_is_asked_again_and_not_for_ever(canned_server: CannedServer) -> None:
    canned_server.answers = [error_answer(503, "SlowDown"), Answer(headers={"ETag": '"e"'})]
    store = S3ObjectStore("bucket", "", settings_for(canned_server, max_attempts=2))
    store.put("key", b"x")
    assert len(canned_server.requests) == 2
    canned_server.answers = [error_answer(503, "SlowDown")]
    with pytest.raises(StoreUnavailableError):
        store.put("key", b"x")
    assert len(canned_server.requests) == 4


def test_a_body_cut_short_on_its_way_is_not_an_object(canned_server: CannedServer) -> None:
    canned_server.answers = [Answer(body=b"half", claimed_length=8)]
    store = S3ObjectStore("bucket", "", settings_for(canned_server))
    with pytest.raises(StoreUnavailableError):
        store.get("key")


def test_a_body_that_does_not_match_the_stores_checksum_is_not_an_object(canned_server: CannedServer) -> None:
    wrong = base64.b64encode(bytes(4)).decode()
    canned_server.answers = [Answer(body=b"body", headers={"x-amz-checksum-crc32c": wrong})]
    with pytest.raises(StoreUnavailableError) as raised:
        S3ObjectStore("bucket", "", settings_for(canned_server)).get("key")
    assert "response_checksum_validation=when_required" in (raised.value.hint or "")
    lenient = settings_for(canned_server, response_checksum_validation="when_required")
    assert S3ObjectStore("bucket", "", lenient).get("key") == b"body"


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=b"0123456789"),
        Answer(status=206, body=b"01234", headers={"Content-Range": "bytes 0-4/10"}),
        Answer(status=206, body=b"2345678", headers={"Content-Range": "bytes 2-8/10"}),
        Answer(status=206, body=b"234", headers={"Content-Range": "bytes 2-4/10"}),
        Answer(status=206, body=b"23456", headers={"Content-Range": "bytes=2-6"}),
    ],
    ids=["whole object", "from the start", "too far", "too short", "unreadable"],
)
def test_another_range_than_was_asked_for_is_refused(canned_server: CannedServer, answer: Answer) -> None:
    canned_server.answers = [answer]
    store = S3ObjectStore("bucket", "", settings_for(canned_server))
    with pytest.raises(StoreError, match=r"another range than \[2, 7\)"):
        store.get_range("key", 2, 7)


def test_a_range_past_the_end_is_what_is_there(canned_server: CannedServer) -> None:
    canned_server.answers = [Answer(status=206, body=b"89", headers={"Content-Range": "bytes 8-9/10"})]
    assert S3ObjectStore("bucket", "", settings_for(canned_server)).get_range("key", 8, 20) == b"89"
    assert canned_server.requests[0].headers["Range"] == "bytes=8-19"


def test_an_upload_that_is_gone_is_begun_again_once(canned_server: CannedServer) -> None:
    created = Answer(body=b"<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>")
    gone = error_answer(404, "NoSuchUpload")
    canned_server.answers = [created, gone, gone, created, gone]
    store = S3ObjectStore("bucket", "", settings_for(canned_server))
    with pytest.raises(UploadGoneError, match="NoSuchUpload") as raised:
        store.put_stream("key", lambda: io.BytesIO(bytes(17 << 20)), size_bytes=17 << 20)
    assert raised.value.transient
    assert [request.method for request in canned_server.requests] == ["POST", "PUT", "DELETE"] * 2


_OBJECT = "<Key>a</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified>"
_UPLOAD = "<Key>a</Key><UploadId>1</UploadId><Initiated>2026-01-01T00:00:00Z</Initiated>"


def page(kind: str, entry: str, *, truncated: str = "false") -> Answer:
    return Answer(body=f"<{kind}><IsTruncated>{truncated}</IsTruncated>{entry}</{kind}>".encode())


@pytest.mark.parametrize("missing", ["Key", "Size", "LastModified"])
def test_a_listing_that_leaves_something_out_is_an_error_of_the_store(
    canned_server: CannedServer, missing: str
) -> None:
    entry = re.sub(f"<{missing}>.*</{missing}>", "", _OBJECT)
    canned_server.answers = [page("ListBucketResult", f"<Contents>{entry}</Contents>")]
    with pytest.raises(StoreError, match=f"answers without {missing}") as raised:
        list(S3ObjectStore("bucket", "", settings_for(canned_server)).list())
    assert raised.value.hint


@pytest.mark.parametrize("missing", ["Key", "UploadId", "Initiated", "NextKeyMarker"])
def test_a_listing_of_uploads_that_leaves_something_out_is_an_error_of_the_store(
    canned_server: CannedServer, missing: str
) -> None:
    entry = re.sub(f"<{missing}>.*</{missing}>", "", _UPLOAD)
    canned_server.answers = [page("ListMultipartUploadsResult", f"<Upload>{entry}</Upload>", truncated="true")]
    with pytest.raises(StoreError, match=f"answers without {missing}"):
        list(S3ObjectStore("bucket", "", settings_for(canned_server)).unfinished())


@pytest.mark.parametrize("verb", ["list", "unfinished"])
@pytest.mark.parametrize(
    "body", [b"<html><body><p>Sign in</p></body></html>", b"<ListBucketResult/>", b"", b"<p>hello"]
)
def test_a_response_that_is_not_a_listing_is_not_taken_for_an_empty_one(
    canned_server: CannedServer, verb: str, body: bytes
) -> None:
    """As proxies and portals give it, with 200."""
    canned_server.answers = [Answer(body=body, headers={"Content-Type": "text/html"})]
    settings = settings_for(canned_server, max_attempts=1)
    with pytest.raises(StoreError):
        list(getattr(S3ObjectStore("bucket", "", settings), verb)())


@pytest.mark.parametrize("code", ["InternalError", "InvalidPart"])
def test_an_upload_whose_completion_is_answered_with_200_and_an_error_has_failed(
    canned_server: CannedServer, code: str
) -> None:
    created = Answer(body=b"<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>")
    sent = Answer(headers={"ETag": '"e"'})
    failed = Answer(body=f"<Error><Code>{code}</Code><Message>late</Message></Error>".encode())
    canned_server.answers = [created, sent, sent, failed]
    store = S3ObjectStore("bucket", "", settings_for(canned_server, max_attempts=1))
    with pytest.raises(StoreError, match=code):
        store.put_stream("key", lambda: io.BytesIO(bytes(17 << 20)), size_bytes=17 << 20)
    assert canned_server.requests[-1].method == "DELETE", "it is aborted"


def _is_listing(call: Call) -> bool:
    return call.method == "GET" and "list-type=2" in call.path


def _ended_early(call: Call, server: Callable[[Call], Reply]) -> Reply:
    """Give two keys, and call that all there are."""
    reply = server(replace(call, path=call.path.replace("max-keys=1000", "max-keys=2")))
    body = re.sub(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"", reply.body)
    return replace(reply, body=body.replace(b"<IsTruncated>true", b"<IsTruncated>false"))


@pytest.fixture
def proxied(s3_bucket: str, s3_settings: S3Settings) -> Iterator[tuple[S3ObjectStore, FaultProxy]]:
    """A store of three objects behind a proxy."""
    with proxying(str(s3_settings.endpoint_url)) as proxy:
        store = S3ObjectStore(s3_bucket, "prefix", replace(s3_settings, endpoint_url=proxy.url))
        for number in range(3):
            store.put(f"many/{number}", b"")
        yield store, proxy


def test_a_listing_that_ends_early_without_saying_so_is_an_error(proxied: tuple[S3ObjectStore, FaultProxy]) -> None:
    store, proxy = proxied
    proxy.set(Fault(name="ends early", harm=_ended_early), _is_listing, times=10**9)
    with pytest.raises(StoreError, match="its listing ends at 'prefix/many/1'") as raised:
        list(store.list())
    assert "update the server" in str(raised.value.hint)


def test_a_complete_listing_costs_one_request_more_and_an_empty_one_none(
    proxied: tuple[S3ObjectStore, FaultProxy],
) -> None:
    store, proxy = proxied
    proxy.set(None)
    assert len(list(store.list())) == 3
    assert list(map(_is_listing, proxy.calls)) == [True, True]
    assert list(store.list("nothing/")) == []
    assert len(proxy.calls) == 3


def test_an_object_written_while_a_listing_ends_makes_it_no_shorter(proxied: tuple[S3ObjectStore, FaultProxy]) -> None:
    store, proxy = proxied

    def written_first(call: Call, server: Callable[[Call], Reply]) -> Reply:
        proxy.fault = None
        store.put("many/3", b"")
        return server(call)

    proxy.set(Fault(name="another writer", harm=written_first), lambda call: "start-after" in call.path)
    assert [info.key for info in store.list()] == [f"many/{number}" for number in range(4)]
