from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from resnap.storage.errors import StoreUnavailableError
from resnap.storage.stores.s3 import S3ObjectStore
from resnap.storage.stores.s3_settings import S3Settings
from tests.storage.stores.conftest import CONTINUE, Answer, CannedServer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.s3

BODY = b"0123456789"
WHOLE = Answer(
    status=206,
    headers={
        "Content-Range": f"bytes 0-9/{len(BODY)}",
        "ETag": '"781e5e245d69b566979b86e28d23f2c7"',
        "Last-Modified": "Sun, 22 Nov 2026 10:00:00 GMT",
    },
    body=BODY,
)


def once_asked(server: CannedServer) -> S3ObjectStore:
    settings = S3Settings(
        endpoint_url=server.url, access_key_id="a", secret_access_key="b", addressing_style="path", max_attempts=1
    )
    return S3ObjectStore("bucket", "", settings)


def opened(store: S3ObjectStore) -> bytes:
    with store.open("key") as chunks:
        return b"".join(chunks)


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.get("key"),
        lambda store: store.get_range("key", 0, 10),
        lambda store: store.head("key"),
        lambda store: store.first("key", 10),
        opened,
    ],
    ids=["get", "get_range", "head", "first", "open"],
)
def test_an_answer_that_ends_within_its_head_did_not_come(
    canned_server: CannedServer, read: Callable[[S3ObjectStore], object]
) -> None:
    """At whichever byte: what came of it may look like an answer of another length, time or version."""
    store = once_asked(canned_server)
    canned_server.answers = [WHOLE]
    whole = read(store)
    head_bytes = 0
    while True:
        canned_server.answers = [replace(WHOLE, head_bytes=head_bytes)]
        try:
            found = read(store)
        except StoreUnavailableError:
            head_bytes += 1
        else:
            break
    assert found == whole
    assert head_bytes > len(str(WHOLE.headers))


@pytest.mark.parametrize("instead", [b"SSH-2.0-OpenSSH_9.2\r\n", b"<html>no store</html>\n", b"HTTP/9.1 abc\r\n\r\n"])
def test_what_answers_in_another_protocol_is_a_store_that_cannot_be_reached(
    canned_server: CannedServer, instead: bytes
) -> None:
    """As behind a wrong port."""
    canned_server.answers = [Answer(instead=instead)]
    with pytest.raises(StoreUnavailableError) as refused:
        once_asked(canned_server).get("key")
    assert "closed before we received a valid response" in str(refused.value)


def test_a_connection_that_ends_where_a_body_is_asked_for_ends_the_request(canned_server: CannedServer) -> None:
    """And not never: whoever writes waits for it."""
    store = once_asked(canned_server)
    canned_server.answers = [Answer()]
    for size in range(len(CONTINUE)):
        canned_server.continue_bytes = size
        with pytest.raises(StoreUnavailableError):
            store.put("key", bytes(1 << 17))
    assert canned_server.requests == []
    canned_server.continue_bytes = None
    store.put("key", bytes(1 << 17))
    [asked] = canned_server.requests
    assert len(asked.body) == 1 << 17
