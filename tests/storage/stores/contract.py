"""What every store must do, as tests; a store's own test file gives the ``store`` fixture and inherits them."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    UsageError,
    VerificationError,
)
from resnap.storage.stores.urls import open_store

if TYPE_CHECKING:
    from resnap.storage.stores.protocol import ObjectStore

ALL_BYTES = bytes(range(256))

PORTABLE_KEYS = [
    "a",
    "my.topic_with-dash-0/00000000000000000000.log",
    "none/__consumer_offsets/none/0/00000000000000000000-6f8e0d8e-0000-5000-8000-000000000000.leader-epoch-checkpoint",
    "deep/er/and/deep/er/key",
    ".hidden/..name/...",
    "part!_.*'()=-/=2E",
    "x" * 200 + "/" + "y" * 200,
]


def sha256_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


OTHER_KEYS = {
    "empty": "",
    "leading slash": "/a",
    "trailing slash": "a/",
    "double slash": "a//b",
    "dot": "a/./b",
    "dot dot": "a/../b",
    "space": "a b",
    "plus": "a+b",
    "percent": "a%20b",
    "tilde": "a~b",
    "backslash": "a\\b",
    "colon": "a:b",
    "control": "a\nb",
    "nul": "a\0b",
    "unicode": "ä",
    "part too long": "x" * 201,
    "key too long": "/".join(["x" * 100] * 10),
}


class ObjectStoreContract:
    """Inherit, and give a fixture ``store``: an empty store opened at a prefix."""

    def test_what_was_put_is_got_byte_for_byte(self, store: ObjectStore) -> None:
        store.put("all", ALL_BYTES)
        store.put("empty", b"")
        store.put("buffer", memoryview(bytearray(ALL_BYTES))[1:-1])
        assert store.get("all") == ALL_BYTES
        assert store.get("empty") == b""
        assert store.get("buffer") == ALL_BYTES[1:-1]

    def test_a_second_put_replaces_the_first(self, store: ObjectStore) -> None:
        store.put("key", b"first, and longer")
        before = store.head("key")
        store.put("key", b"second")
        assert store.get("key") == b"second"
        assert store.head("key").size_bytes == 6
        assert store.head("key").etag != before.etag

    def test_put_if_absent_writes_a_free_key(self, store: ObjectStore) -> None:
        store.put("key", ALL_BYTES, if_absent=True)
        assert store.get("key") == ALL_BYTES

    def test_put_if_absent_leaves_a_taken_key_alone(self, store: ObjectStore) -> None:
        store.put("key", b"first")
        with pytest.raises(ObjectExistsError) as raised:
            store.put("key", b"second", if_absent=True)
        assert raised.value.key == "key"
        assert store.get("key") == b"first"
        assert [entry.key for entry in store.list()] == ["key"]

    def test_of_eight_concurrent_creators_one_wins(self, store: ObjectStore) -> None:
        start = threading.Barrier(8)

        def create(number: int) -> bool:
            start.wait()
            try:
                store.put("race", b"%d" % number * 1000, if_absent=True)
            except ObjectExistsError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(create, range(8)))
        assert won.count(True) == 1
        assert store.get("race") == b"%d" % won.index(True) * 1000

    def test_one_version_is_replaced_and_no_other(self, store: ObjectStore) -> None:
        store.put("key", b"first")
        first = store.head("key").etag
        store.replace("key", b"second", etag=first)
        assert store.get("key") == b"second"
        with pytest.raises(ObjectChangedError) as raised:
            store.replace("key", b"third", etag=first)
        assert (raised.value.key, store.get("key")) == ("key", b"second")
        store.delete("key")
        with pytest.raises(ObjectNotFoundError):
            store.replace("key", b"fourth", etag=first)
        assert list(store.list()) == []

    def test_of_eight_who_replace_one_version_one_wins(self, store: ObjectStore) -> None:
        store.put("race", b"first")
        start, etag = threading.Barrier(8), store.head("race").etag

        def replace(number: int) -> bool:
            start.wait()
            try:
                store.replace("race", b"%d" % number * 1000, etag=etag)
            except ObjectChangedError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(replace, range(8)))
        assert won.count(True) == 1
        assert store.get("race") == b"%d" % won.index(True) * 1000

    def test_an_object_that_is_not_there_is_not_found(self, store: ObjectStore) -> None:
        store.put("there/too", b"x")
        for key in ("absent", "there", "the", "there/to", "there/too/below"):
            with pytest.raises(ObjectNotFoundError) as raised:
                store.get(key)
            assert raised.value.key == key
            with pytest.raises(ObjectNotFoundError):
                store.head(key)
            with pytest.raises(ObjectNotFoundError), store.open(key):
                pass
            for start, end in ((0, 0), (0, 1), (5, 5)):
                with pytest.raises(ObjectNotFoundError):
                    store.get_range(key, start, end)

    @pytest.mark.parametrize(
        ("start", "end"),
        [(0, 256), (0, 1), (255, 256), (17, 99), (0, 0), (100, 100), (256, 256), (200, 300), (256, 300), (1000, 2000),
         (0, 2**62)],
    )  # fmt: skip
    def test_a_range_is_half_open_and_cut_at_the_end_of_the_object(
        self, store: ObjectStore, start: int, end: int
    ) -> None:
        store.put("key", ALL_BYTES)
        assert store.get_range("key", start, end) == ALL_BYTES[start:end]
        with store.open("key", start, end) as chunks:
            assert b"".join(chunks) == ALL_BYTES[start:end]

    def test_every_range_of_an_empty_object_is_empty(self, store: ObjectStore) -> None:
        store.put("key", b"")
        assert [store.get_range("key", *span) for span in ((0, 0), (0, 1), (3, 9))] == [b"", b"", b""]

    def test_a_range_of_the_version_that_was_seen_is_given_and_of_another_refused(self, store: ObjectStore) -> None:
        store.put("key", ALL_BYTES)
        seen = store.head("key").etag
        assert store.get_range("key", 3, 9, etag=seen) == ALL_BYTES[3:9]
        assert store.get_range("key", 3, 3, etag=seen) == b""
        store.put("key", ALL_BYTES[::-1])
        for span in ((3, 9), (3, 3), (0, 256)):
            with pytest.raises(ObjectChangedError, match="replaced while it was read") as raised:
                store.get_range("key", *span, etag=seen)
            assert raised.value.key == "key"
        store.delete("key")
        with pytest.raises(ObjectNotFoundError):
            store.get_range("key", 3, 9, etag=seen)

    @pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4), (-5, -1)])
    def test_an_invalid_range_is_refused(self, store: ObjectStore, start: int, end: int) -> None:
        store.put("key", ALL_BYTES)
        with pytest.raises(ValueError, match="range"):
            store.get_range("key", start, end)
        with pytest.raises(ValueError, match="range"), store.open("key", start, end):
            pass

    def test_a_large_object_streams_both_ways(self, store: ObjectStore) -> None:
        body = os.urandom(1 << 20) * 20 + b"tail"
        store.put_stream("large", lambda: io.BytesIO(body), size_bytes=len(body), crc32c=crc32c(body))
        assert store.head("large").size_bytes == len(body)
        with store.open("large") as chunks:
            pieces = list(chunks)
        assert b"".join(pieces) == body
        assert max(map(len, pieces)) <= 4 << 20
        assert min(map(len, pieces)) > 0
        with store.open("large", 17 << 20) as chunks:
            assert b"".join(chunks) == body[17 << 20 :]
        assert store.get_range("large", (16 << 20) - 3, (16 << 20) + 3) == body[(16 << 20) - 3 : (16 << 20) + 3]

    def test_a_reader_may_stop_in_the_middle(self, store: ObjectStore) -> None:
        body = os.urandom(3 << 20)
        store.put("key", body)
        with store.open("key") as chunks:
            front = next(chunks)
        assert front
        assert body.startswith(front)
        assert store.get("key") == body

    def test_an_error_of_the_reader_passes_through_unchanged(self, store: ObjectStore) -> None:
        store.put("key", ALL_BYTES)
        with pytest.raises(OSError, match="the reader's own"), store.open("key"):
            raise OSError("the reader's own")

    def test_small_and_empty_bodies_stream_too(self, store: ObjectStore) -> None:
        for body in (b"", b"x", ALL_BYTES):
            store.put_stream("key", lambda body=body: io.BytesIO(body), size_bytes=len(body), crc32c=crc32c(body))
            assert store.get("key") == body

    def test_a_body_is_opened_once_and_closed(self, store: ObjectStore) -> None:
        opened: list[io.BytesIO] = []

        def open_body() -> io.BytesIO:
            opened.append(io.BytesIO(ALL_BYTES))
            return opened[-1]

        store.put_stream("key", open_body, size_bytes=256)
        assert [body.closed for body in opened] == [True]

    def test_a_body_that_trickles_arrives_whole(self, store: ObjectStore) -> None:
        class Trickle(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                return super().read(min(size or 0, 7) if size != -1 else 7)

        store.put_stream("key", lambda: Trickle(ALL_BYTES), size_bytes=256, crc32c=crc32c(ALL_BYTES))
        assert store.get("key") == ALL_BYTES

    @pytest.mark.parametrize("size_bytes", [255, 257, 17 << 20])
    def test_a_body_of_another_length_writes_nothing(self, store: ObjectStore, size_bytes: int) -> None:
        with pytest.raises(VerificationError, match="another length"):
            store.put_stream("key", lambda: io.BytesIO(ALL_BYTES), size_bytes=size_bytes)
        assert list(store.list()) == []

    @pytest.mark.parametrize(("megabytes", "knows_sha256"), [(1, False), (17, False), (17, True)])
    def test_a_body_with_another_checksum_replaces_nothing(
        self, store: ObjectStore, megabytes: int, knows_sha256: bool
    ) -> None:
        store.put("key", b"before")
        body = bytes(megabytes << 20)
        sha256 = sha256_of(body) if knows_sha256 else None
        with pytest.raises(VerificationError, match="another CRC-32C"):
            store.put_stream(
                "key", lambda: io.BytesIO(body), size_bytes=len(body), crc32c=crc32c(body) ^ 1, sha256=sha256
            )
        assert store.get("key") == b"before"
        assert [entry.key for entry in store.list()] == ["key"]

    @pytest.mark.parametrize("found_bytes", [(17 << 20) - 1, (17 << 20) + 1])
    def test_a_body_of_known_digests_and_another_length_replaces_nothing(
        self, store: ObjectStore, found_bytes: int
    ) -> None:
        store.put("key", b"before")
        said, found = bytes(17 << 20), bytes(found_bytes)
        with pytest.raises(VerificationError, match="another length"):
            store.put_stream(
                "key", lambda: io.BytesIO(found), size_bytes=len(said), crc32c=crc32c(said), sha256=sha256_of(said)
            )
        assert store.get("key") == b"before"

    def test_a_body_of_known_digests_streams_too(self, store: ObjectStore) -> None:
        body = os.urandom(1 << 20) * 20 + b"tail"
        store.put_stream(
            "k", lambda: io.BytesIO(body), size_bytes=len(body), crc32c=crc32c(body), sha256=sha256_of(body)
        )
        assert store.get("k") == body

    def test_a_body_that_grows_past_its_length_is_not_read_on(self, store: ObjectStore) -> None:
        class Endless(io.RawIOBase):
            total = 0

            def read(self, size: int = -1) -> bytes:
                self.total += size
                return bytes(size)

        endless = Endless()
        with pytest.raises(VerificationError, match="found more"):
            store.put_stream("key", lambda: endless, size_bytes=17 << 20)  # type: ignore[arg-type, return-value]
        assert endless.total < 64 << 20
        assert list(store.list()) == []

    def test_an_error_of_the_body_passes_through_and_writes_nothing(self, store: ObjectStore) -> None:
        class Failing(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                if self.tell() > 16 << 20:
                    raise OSError(5, "the source's own")
                return super().read(size)

        def refuse() -> io.BytesIO:
            raise FileNotFoundError(2, "the source is gone")

        body = bytes(40 << 20)
        for known in ({}, {"crc32c": crc32c(body), "sha256": sha256_of(body)}):
            with pytest.raises(OSError, match="the source's own"):
                store.put_stream("key", lambda: Failing(body), size_bytes=len(body), **known)  # type: ignore[arg-type]
            with pytest.raises(FileNotFoundError, match="the source is gone"):
                store.put_stream("key", refuse, size_bytes=len(body), **known)  # type: ignore[arg-type]
        assert list(store.list()) == []

    def test_head_returns_size_time_and_etag(self, store: ObjectStore) -> None:
        store.put("folder/key", ALL_BYTES)
        found = store.head("folder/key")
        assert (found.key, found.size_bytes) == ("folder/key", 256)
        assert found.etag
        assert found.modified_ms > 1_700_000_000_000
        assert list(store.list("folder/")) == [found]

    def test_a_listing_is_in_order_of_key_and_only_below_the_prefix(self, store: ObjectStore) -> None:
        keys = ["a-b", "a/b", "a/b-c/d", "a/b.c", "a/c", "a.b", "aa", "b/a", "B", "a0", "a=b/c"]
        for key in keys:
            store.put(key, b"")
        assert [entry.key for entry in store.list()] == sorted(keys)
        for prefix in (
            "a",
            "a/",
            "a/b",
            "a/b-",
            "a/b-c/",
            "b",
            "b/",
            "B/",
            "c",
            "a/b-c/d",
            "a/b-c/d/",
            "a-",
            "/",
            "a//",
        ):
            assert [entry.key for entry in store.list(prefix)] == sorted(k for k in keys if k.startswith(prefix))

    def test_a_listing_runs_over_as_many_pages_as_there_are(self, store: ObjectStore) -> None:
        keys = [f"many/{number:05d}" for number in range(1001)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, b""), keys))
        assert [entry.key for entry in store.list("many/")] == keys

    def test_the_listing_of_an_empty_store_is_empty(self, store: ObjectStore) -> None:
        assert list(store.list()) == []
        assert list(store.list("some/where/")) == []

    def test_deleting_removes_and_may_be_repeated(self, store: ObjectStore) -> None:
        store.put("a/b", b"x")
        store.put("a/c", b"y")
        store.delete("a/b")
        store.delete("a/b")
        store.delete("never/was")
        store.delete("a")
        assert [entry.key for entry in store.list()] == ["a/c"]
        store.put("a/b", b"again", if_absent=True)
        assert store.get("a/b") == b"again"

    def test_one_version_is_deleted_and_no_other(self, store: ObjectStore) -> None:
        store.put("a/b", b"first")
        first = store.head("a/b").etag
        store.put("a/b", b"second")
        with pytest.raises(ObjectChangedError) as raised:
            store.delete("a/b", etag=first)
        assert (raised.value.key, store.get("a/b")) == ("a/b", b"second")
        (second,) = (entry.etag for entry in store.list())
        for key in ("a/b", "a/b", "never/was", "a"):
            store.delete(key, etag=second)
        assert list(store.list()) == []

    @pytest.mark.parametrize("key", PORTABLE_KEYS)
    def test_a_portable_key_is_kept_and_listed_exactly(self, store: ObjectStore, key: str) -> None:
        store.put(key, b"x")
        store.put_stream(key, lambda: io.BytesIO(b"xy"), size_bytes=2)
        assert store.get(key) == b"xy"
        assert [entry.key for entry in store.list()] == [key]
        store.delete(key)
        assert list(store.list()) == []

    @pytest.mark.parametrize("key", OTHER_KEYS.values(), ids=OTHER_KEYS.keys())
    def test_a_key_that_is_not_portable_is_never_written_or_deleted(self, store: ObjectStore, key: str) -> None:
        with pytest.raises(UsageError, match="object key"):
            store.put(key, b"x")
        with pytest.raises(UsageError, match="object key"):
            store.put_stream(key, lambda: io.BytesIO(b"x"), size_bytes=1)
        with pytest.raises(UsageError, match="object key"):
            store.delete(key)
        assert list(store.list()) == []

    def test_a_key_does_not_lead_out_of_the_store(self, store: ObjectStore) -> None:
        store.put("inside", b"x")
        for key in ("../inside", "a/../inside", "./inside"):
            with pytest.raises(ObjectNotFoundError):
                store.get(key)
        assert list(store.list("../")) == []

    def test_the_url_opens_the_same_store_again(self, store: ObjectStore) -> None:
        store.put("key", b"x")
        again = self.reopen(store.url)
        assert again.url == store.url
        assert again.get("key") == b"x"

    def reopen(self, url: str) -> ObjectStore:
        return open_store(url)
