"""Bodies in parts: side by side, within the slots, and nothing left of what failed."""

from __future__ import annotations

import hashlib
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ParamValidationError

from resnap.storage.errors import StoreError
from resnap.storage.stores.s3 import S3ObjectStore
from resnap.storage.stores.s3_upload import PART_BYTES, requests_for
from tests.cases import each

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest
    from mypy_boto3_s3 import S3Client

    from resnap.storage.stores.s3_settings import S3Settings

pytestmark = pytest.mark.s3
PATIENCE_S = 300


class Watch:
    """Holds back each request until as many are on their way as may be; how many that were at the most."""

    def __init__(self, expected: int) -> None:
        self.most_at_once = 0
        self._under_way = 0
        self._change = threading.Condition()
        self._expected = expected

    def begins(self, **_: object) -> None:
        with self._change:
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
            self._change.notify_all()
            assert self._change.wait_for(lambda: self.most_at_once >= self._expected, PATIENCE_S)

    def ends(self, **_: object) -> None:
        with self._change:
            self._under_way -= 1


@pytest.mark.slow
def test_parts_go_up_side_by_side_and_no_more_of_them_than_there_are_slots(
    s3_bucket: str, s3_settings: S3Settings
) -> None:
    most, bodies = 3, [bytes([number]) * (PART_BYTES * 2 + number) for number in range(2)]
    store = S3ObjectStore(s3_bucket, "", replace(s3_settings, parts_in_flight=most))
    watch = Watch(most)
    events = store._client.meta.events
    events.register("before-send.s3.UploadPart", watch.begins)
    events.register("after-call.s3.UploadPart", watch.ends)
    with ThreadPoolExecutor(len(bodies)) as threads:
        sent = [
            threads.submit(store.put_stream, f"{number}", partial(io.BytesIO, body), size_bytes=len(body))
            for number, body in enumerate(bodies)
        ]
    assert [one.result() for one in sent] == [None, None]
    assert watch.most_at_once == most
    assert [store.get(f"{number}") == body for number, body in enumerate(bodies)] == [True, True]


@each("size_bytes", [PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 1])
def test_a_body_takes_as_many_requests_as_are_said(size_bytes: int, s3_bucket: str, s3_settings: S3Settings) -> None:
    store, sent = S3ObjectStore(s3_bucket, "", s3_settings), []
    store._client.meta.events.register("before-send.s3", lambda request, **_: sent.append(request.method))
    store.put_stream("key", partial(io.BytesIO, bytes(size_bytes)), size_bytes=size_bytes)
    assert len(sent) == requests_for(size_bytes, PART_BYTES)


def test_a_part_that_fails_ends_the_upload_after_those_beside_it_and_nothing_is_left(
    s3_bucket: str, s3_settings: S3Settings, s3_client: S3Client
) -> None:
    store = S3ObjectStore(s3_bucket, "", replace(s3_settings, parts_in_flight=2))
    size_bytes = PART_BYTES * 3

    def refuse(request: AWSPreparedRequest, **_: object) -> None:
        if "partNumber=2" in request.url:
            raise ParamValidationError(report="refused")

    store._client.meta.events.register("before-send.s3.UploadPart", refuse)
    with pytest.raises(StoreError, match="refused"):
        store.put_stream("large", lambda: io.BytesIO(bytes(size_bytes)), size_bytes=size_bytes)
    assert "Uploads" not in s3_client.list_multipart_uploads(Bucket=s3_bucket)
    for key in ("one", "another", "third"):
        store.put_stream(key, lambda: io.BytesIO(b"x"), size_bytes=1)
    assert [entry.key for entry in store.list()] == ["another", "one", "third"], "and no slot is lost"


def test_an_upload_for_which_the_system_gives_no_threads_takes_no_slot_with_it(
    s3_bucket: str, s3_settings: S3Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3ObjectStore(s3_bucket, "", replace(s3_settings, parts_in_flight=2))

    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("resnap-part"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                store._upload("key").put([b"x"])
    put = partial(store.put_stream, "another", lambda: io.BytesIO(b"x"), size_bytes=1)
    puts = threading.Thread(target=put, daemon=True)
    puts.start()
    puts.join(PATIENCE_S)
    assert not puts.is_alive()


@pytest.mark.parametrize("modes", [{}, {"request_checksum_calculation": "when_required"}], ids=["checked", "unchecked"])
def test_over_plain_http_every_body_is_signed(s3_bucket: str, s3_settings: S3Settings, modes: dict[str, str]) -> None:
    store = S3ObjectStore(s3_bucket, "", replace(s3_settings, **modes))
    said: list[bytes] = []

    def note(request: AWSPreparedRequest, **_: object) -> None:
        said.append(request.headers["X-Amz-Content-SHA256"])

    store._client.meta.events.register("before-send.s3.PutObject", note)
    store.put("key", b"body")
    assert said == [hashlib.sha256(b"body").hexdigest().encode()]
