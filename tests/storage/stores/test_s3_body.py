"""Bodies that go up at once while they are read: their end is held back until all of them was right."""

from __future__ import annotations

import io
from dataclasses import replace
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
from botocore.auth import UNSIGNED_PAYLOAD, S3SigV4Auth
from botocore.awsrequest import AWSRequest, AWSResponse, HeadersDict
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ConnectionClosedError
from hypothesis import given
from hypothesis import strategies as st
from urllib3 import HTTPResponse

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import StoreUnavailableError, TooLargeError, VerificationError
from resnap.storage.stores.protocol import CHUNK_BYTES
from resnap.storage.stores.s3 import S3ObjectStore
from resnap.storage.stores.s3_body import S3Body, _Signer
from resnap.storage.stores.s3_settings import S3Settings
from resnap.storage.stores.s3_upload import PART_BYTES, WHOLE_BYTES
from tests.cases import each

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest
    from mypy_boto3_s3 import S3Client

LARGE = bytes(range(256)) * (PART_BYTES // 256) + b"tail"


def body_of(data: bytes, *, said: bytes | None = None) -> S3Body:
    """Return the body ``data``, of which is said what is true of ``said``."""
    said = data if said is None else said
    return S3Body(
        lambda: io.BytesIO(data), size_bytes=len(said), crc32c=crc32c(said), sha256=sha256(said).hexdigest(), key="key"
    )


@given(
    length=st.integers(0, 3 * CHUNK_BYTES), sizes=st.lists(st.integers(1, 2 * CHUNK_BYTES) | st.just(-1), min_size=1)
)
def test_what_is_read_in_any_pieces_is_the_body_and_so_it_is_from_the_start_again(
    length: int, sizes: list[int]
) -> None:
    data = bytes(range(251)) * (length // 251) + bytes(length % 251)
    with body_of(data) as body:
        assert len(body) == len(data)
        front = [body.read(size) for size in sizes]
        assert all(len(piece) <= size for piece, size in zip(front, sizes, strict=True) if size > 0)
        assert body.tell() == sum(map(len, front))
        rest = iter(lambda: body.read(1 << 17), b"")
        assert b"".join([*front, *rest]) == data
        body.seek(0)
        assert b"".join(iter(lambda: body.read(1 << 17), b"")) == data


@each("length", [1, CHUNK_BYTES, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 1])
@each("harm", ["flipped", "shorter", "longer"])
def test_of_a_body_that_is_not_what_was_said_the_end_never_comes(length: int, harm: str) -> None:
    said = bytes(length)
    found = {"flipped": b"\1" + said[1:], "shorter": said[:-1], "longer": said + b"x"}[harm]
    with body_of(found, said=said) as body:
        with pytest.raises(VerificationError, match="another") as raised:
            list(iter(lambda: body.read(1 << 17), b""))
        assert body.error is raised.value
        assert body.tell() < length


def test_it_goes_nowhere_but_to_its_start() -> None:
    with body_of(b"body") as body, pytest.raises(io.UnsupportedOperation, match="the start"):
        body.seek(0, io.SEEK_END)


@each("data", [b"", b"body", io.BytesIO(b"body")])
@each("url", ["http://127.0.0.1:9/bucket/key", "https://127.0.0.1:9/bucket/key"])
@each("asked", [None, True, False])
def test_what_is_signed_of_a_body_is_what_botocore_signs(
    data: bytes | io.BytesIO, url: str, asked: bool | None
) -> None:
    who = Credentials("id", "secret")
    request = AWSRequest("PUT", url, {"x-amz-checksum-crc32c": "AAAAAA=="}, data)
    request.context["checksum"] = {"request_algorithm": {"in": "header", "name": "x-amz-checksum-crc32c"}}
    request.context["has_streaming_input"] = True
    request.context["client_config"] = Config(s3={} if asked is None else {"payload_signing_enabled": asked})
    expected = S3SigV4Auth(who, "s3", "us-east-1").payload(request)
    assert _Signer(who, "s3", "us-east-1").payload(request) == expected
    is_unsigned = asked is False or (asked is None and url.startswith("https"))
    assert (expected == UNSIGNED_PAYLOAD) == is_unsigned


@pytest.mark.s3
def test_all_requests_are_signed_here_and_tell_nothing_of_attempts(s3_bucket: str, s3_settings: S3Settings) -> None:
    store = S3ObjectStore(s3_bucket, "", s3_settings)
    signers: list[object] = []
    told: list[str] = []
    store._client.meta.events.register(
        "before-send.s3", lambda request, **_: told.extend(name for name in request.headers if "amz-sdk-" in name)
    )
    store._client.meta.events.register_last("choose-signer.s3", lambda **_: signers.append(_))
    store.put("key", b"body")
    assert store.get("key") == b"body"
    assert [info.key for info in store.list()] == ["key"]
    store.delete_all(["key"])
    assert not signers, "botocore asks on only where nobody has chosen"
    assert set(told) <= {"x-amz-sdk-checksum-algorithm"}


@pytest.mark.s3
@pytest.mark.parametrize("modes", [{}, {"request_checksum_calculation": "when_required"}], ids=["checked", "unchecked"])
def test_a_body_of_known_digests_is_opened_once_and_goes_up_at_once_signed(
    s3_bucket: str, s3_settings: S3Settings, s3_client: S3Client, modes: dict[str, str]
) -> None:
    """A digest that is not of the body shows that the body was not read for it: moto accepts every signature."""
    store = S3ObjectStore(s3_bucket, "", replace(s3_settings, **modes))
    opened: list[io.BytesIO] = []
    signed: list[bytes] = []
    digest = sha256(b"another").hexdigest()

    def open_body() -> io.BytesIO:
        opened.append(io.BytesIO(LARGE))
        return opened[-1]

    def note(request: AWSPreparedRequest, **_: object) -> None:
        signed.append(request.headers["X-Amz-Content-SHA256"])

    store._client.meta.events.register("before-send.s3.PutObject", note)
    store.put_stream("large", open_body, size_bytes=len(LARGE), crc32c=crc32c(LARGE), sha256=digest)
    assert signed == [digest.encode()]
    assert [body.closed for body in opened] == [True]
    assert store.get("large") == LARGE
    assert "-" not in s3_client.head_object(Bucket=s3_bucket, Key="large")["ETag"]


@pytest.mark.s3
def test_a_body_is_sent_in_the_pieces_in_which_it_is_read(s3_bucket: str, s3_settings: S3Settings) -> None:
    store = S3ObjectStore(s3_bucket, "", s3_settings)
    sent: list[bytes] = []

    def note(request: Any, **_: object) -> None:
        sent.extend(request.body)
        request.body.seek(0)

    store._client.meta.events.register("before-send.s3.PutObject", note)
    digests = {"crc32c": crc32c(LARGE), "sha256": sha256(LARGE).hexdigest()}
    store.put_stream("large", lambda: io.BytesIO(LARGE), size_bytes=len(LARGE), **digests)  # type: ignore[arg-type]
    assert {len(piece) for piece in sent[:-1]} == {CHUNK_BYTES}
    assert b"".join(sent) == store.get("large") == LARGE


@pytest.mark.slow
@pytest.mark.s3
def test_over_plain_http_a_large_body_goes_up_at_once_and_in_parts_if_that_breaks(
    s3_bucket: str, s3_settings: S3Settings, s3_client: S3Client
) -> None:
    store = S3ObjectStore(s3_bucket, "", replace(s3_settings, max_attempts=1))
    body = bytes(WHOLE_BYTES + 1)
    digests = {"crc32c": crc32c(body), "sha256": sha256(body).hexdigest()}

    def put(key: str) -> str:
        store.put_stream(key, lambda: io.BytesIO(body), size_bytes=len(body), **digests)  # type: ignore[arg-type]
        return s3_client.head_object(Bucket=s3_bucket, Key=key)["ETag"]

    def break_off(**_: object) -> None:
        raise ConnectionClosedError(endpoint_url="http://store")

    assert "-" not in put("at-once")
    store._client.meta.events.register("before-send.s3.PutObject", break_off)
    assert put("in-parts").endswith('-9"')


@pytest.mark.s3
@pytest.mark.parametrize(("status", "body"), [(413, b"<html>too large</html>"), (400, b"EntityTooLarge")])
def test_what_a_store_does_not_take_at_once_goes_up_in_parts(
    s3_bucket: str, s3_settings: S3Settings, s3_client: S3Client, status: int, body: bytes
) -> None:
    store = S3ObjectStore(s3_bucket, "", replace(s3_settings, max_attempts=1))
    xml = body if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else b"<Error><Code>%s</Code></Error>" % body

    def refuse(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        return AWSResponse(request.url, status, HeadersDict(), HTTPResponse(io.BytesIO(xml), preload_content=False))

    store._client.meta.events.register("before-send.s3.PutObject", refuse)
    digests = {"crc32c": crc32c(LARGE), "sha256": sha256(LARGE).hexdigest()}
    store.put_stream("large", lambda: io.BytesIO(LARGE), size_bytes=len(LARGE), **digests)  # type: ignore[arg-type]
    assert store.get("large") == LARGE
    assert s3_client.head_object(Bucket=s3_bucket, Key="large")["ETag"].endswith('-2"')
    with pytest.raises(TooLargeError, match="small: the store refused") as raised:
        store.put("small", b"x")
    assert "client_max_body_size" in (raised.value.hint or "")


@pytest.mark.s3
def test_what_reading_a_large_body_raises_comes_out_as_it_is(s3_bucket: str, s3_settings: S3Settings) -> None:
    store = S3ObjectStore(s3_bucket, "", s3_settings)
    opened = 0

    def open_body() -> io.BytesIO:
        nonlocal opened
        opened += 1
        return io.BytesIO(b"shorter")

    with pytest.raises(VerificationError, match="another"):
        store.put_stream("large", open_body, size_bytes=WHOLE_BYTES + 1, crc32c=0, sha256="0" * 64)
    assert opened == 1


def test_over_tls_where_no_body_is_hashed_a_large_one_goes_up_in_parts() -> None:
    nobody = S3Settings(endpoint_url="https://127.0.0.1:9", region="us-east-1", access_key_id="id",
                        secret_access_key="secret", max_attempts=1)  # fmt: skip
    store = S3ObjectStore("bucket", "", nobody)
    asked: list[str] = []
    store._client.meta.events.register("before-parameter-build.s3", lambda model, **_: asked.append(model.name))
    with pytest.raises(StoreUnavailableError):
        store.put_stream("large", io.BytesIO, size_bytes=WHOLE_BYTES + 1, crc32c=0, sha256="0" * 64)
    assert asked == ["CreateMultipartUpload"]
