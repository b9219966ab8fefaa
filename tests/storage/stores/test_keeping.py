from __future__ import annotations

import os
import pickle
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from resnap.storage.errors import ObjectChangedError, ObjectNotFoundError, StoreUnavailableError
from resnap.storage.sources.files import Sources
from resnap.storage.stores import keeping
from resnap.storage.stores.keeping import KEPT_BYTES, MOST_BYTES, KeepingStore, Kept
from resnap.storage.stores.memory import MemoryObjectStore
from tests.cases import each
from tests.tiering.stores import PassingStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

BODY = bytes(range(200))


@dataclass
class OpeningStore(PassingStore):
    """Gives an object with its facts, as S3 does, and counts what it is asked for."""

    asked: Counter[str] = field(default_factory=Counter)
    fails: bool = False

    def first(self, key: str, length: int) -> tuple[ObjectInfo, bytes]:
        self.asked["first"] += 1
        if self.fails:
            raise StoreUnavailableError("down", key=key)
        return self.inner.head(key), self.inner.get_range(key, 0, length)

    def get(self, key: str) -> bytes:
        self.asked["get"] += 1
        return super().get(key)

    def get_range(self, key: str, start: int, end: int, *, etag: str | None = None) -> bytes:
        self.asked["get_range"] += 1
        return super().get_range(key, start, end, etag=etag)

    def head(self, key: str) -> ObjectInfo:
        self.asked["head"] += 1
        return super().head(key)


@pytest.fixture
def inner() -> OpeningStore:
    store = OpeningStore(MemoryObjectStore(f"keeping-{os.urandom(8).hex()}"))
    store.put("key", BODY)
    return store


def opened(store: ObjectStore, end: int | None) -> bytes:
    with store.open("key", 0, end) as chunks:
        return b"".join(chunks)


READS: dict[str, Callable[[ObjectStore], bytes]] = {
    "get": lambda store: store.get("key"),
    "open": lambda store: opened(store, len(BODY) + 1),
    "first": lambda store: cast("KeepingStore", store).first("key", 1000)[1],
}


@each("read", READS.values())
def test_what_came_whole_is_not_asked_for_again_however_it_is_read(
    read: Callable[[ObjectStore], bytes], inner: OpeningStore
) -> None:
    inner.asked.clear()
    store = KeepingStore(inner, Kept())
    assert read(store) == BODY
    assert [one(store) for one in READS.values()] == [BODY] * len(READS)
    info = inner.inner.head("key")
    assert (store.head("key"), store.first("key", 7), store.get_range("key", 3, 9, etag=info.etag)) == (
        info, (info, BODY[:7]), BODY[3:9],
    )  # fmt: skip
    assert opened(store, 5) == BODY[:5]
    assert inner.asked == {"first": 1}


def test_another_version_than_the_one_that_is_kept_is_refused(inner: OpeningStore) -> None:
    store = KeepingStore(inner, Kept())
    store.get("key")
    with pytest.raises(ObjectChangedError):
        store.get_range("key", 0, 1, etag="another")


def test_what_a_listing_shows_to_be_replaced_is_read_again(inner: OpeningStore) -> None:
    kept = Kept()
    store = KeepingStore(inner, kept)
    store.get("key")
    inner.put("key", BODY[::-1])
    assert [info.key for info in store.list()] == ["key"]
    assert (store.get("key"), kept.left_bytes) == (BODY[::-1], KEPT_BYTES - len(BODY) - (1 << 10))


def test_stores_at_two_prefixes_share_what_was_read(inner: OpeningStore) -> None:
    inner.put("folder/key", BODY)
    kept = Kept()
    KeepingStore(inner, kept).get("folder/key")
    below = OpeningStore(MemoryObjectStore(inner.url.removeprefix("memory://"), "folder"))
    assert KeepingStore(below, kept).get("key") == BODY
    assert not below.asked


def test_a_large_object_is_not_kept_and_streamed(inner: OpeningStore) -> None:
    large = bytes(MOST_BYTES + 1)
    inner.put("key", large)
    kept = Kept()
    store = KeepingStore(inner, kept)
    assert (store.get("key"), opened(store, None), opened(store, len(large) + 1)) == (large, large, large)
    assert (opened(store, 9), kept.objects) == (large[:9], {})


def test_beyond_the_budget_nothing_is_kept(inner: OpeningStore) -> None:
    kept = Kept(left_bytes=len(BODY) + keeping._OF_AN_ENTRY)
    store = KeepingStore(inner, kept)
    inner.put("more", b"x")
    assert [store.get(key) for key in ("key", "more", "more", "key")] == [BODY, b"x", b"x", BODY]
    assert (kept.left_bytes, inner.asked["first"]) == (0, 3)


def test_where_the_first_attempt_fails_the_store_is_asked_as_without_keeping(inner: OpeningStore) -> None:
    inner.fails = True
    store = KeepingStore(inner, Kept())
    assert (store.get("key"), opened(store, 300)) == (BODY, BODY)
    assert inner.asked["get"] == 1


def test_what_is_not_there_is_not_found(inner: OpeningStore) -> None:
    store = KeepingStore(inner, Kept())
    for read in (lambda: store.get("none"), lambda: store.head("none"), lambda: store.open("none", 0, 9).__enter__()):
        with pytest.raises(ObjectNotFoundError):
            read()


def test_what_is_kept_does_not_travel() -> None:
    sources = Sources(kept=Kept(objects={}))
    sent = pickle.loads(pickle.dumps(sources))  # noqa: S301 - as executors receive it
    assert (sent, sent.kept) == (sources, None)
