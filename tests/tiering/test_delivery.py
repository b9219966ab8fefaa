from __future__ import annotations

import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import CancelledError, ObjectChangedError, StoreError, VerificationError
from resnap.storage.layouts.segments import NewObject
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.storage.stores.protocol import StoredBody
from resnap.storage.stores.urls import split_object_url
from resnap.storage.threads import as_done, side_by_side
from resnap.storage.throttle import Throttle
from resnap.tiering.shipping.delivery import AbandonedError, Delivery
from tests.storage.stores.test_probe import Copies, CopiesAnyVersion, CopiesNothing, TakesAnything, Wired
from tests.tiering.stores import RecordingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore, Unfinished
    from resnap.tiering.shipping.delivery import Verification

BODY = bytes(range(256)) * 300


class Watched(RecordingStore):
    """Passes the probe's questions on, too."""

    @property
    def sends_checksums(self) -> bool:
        return self.inner.sends_checksums  # type: ignore[attr-defined, no-any-return]

    def put_claimed(self, key: str, body: bytes, *, crc32c: int, in_parts: bool) -> None:
        self.inner.put_claimed(key, body, crc32c=crc32c, in_parts=in_parts)  # type: ignore[attr-defined]

    def begin(self, key: str) -> Unfinished:  # noqa: ARG002
        raise AssertionError("asked by the doctor alone")


def deliver(delivery: Delivery, key: str = "key") -> None:
    delivery.deliver(NewObject(key, lambda: io.BytesIO(BODY), len(BODY), crc32c(BODY)))


@pytest.mark.parametrize(
    ("store", "verification", "reads"),
    [
        (Wired(), "auto", 0),
        (Wired(), "read-back", 1),
        (TakesAnything(), "auto", 1),
        (MemoryObjectStore(f"delivery-{uuid4()}"), "auto", 1),
    ],
    ids=["strict", "strict, but read back", "takes anything", "no wire"],
)
def test_an_object_is_read_back_unless_the_store_was_seen_to_check(
    store: ObjectStore, verification: Verification, reads: int
) -> None:
    watched = Watched(store) if isinstance(store, Wired) else RecordingStore(store)
    delivery = Delivery(store=watched, verification=verification)
    deliver(delivery)
    assert watched.calls.count(("read", "key")) == reads
    assert store.get("key") == BODY
    assert delivery.reads_back is bool(reads)


def test_the_store_is_asked_once_however_many_objects_go_there() -> None:
    watched = Watched(Wired())
    delivery = Delivery(store=watched)
    for number in range(5):
        deliver(delivery, f"key-{number}")
    assert [verb for verb, _ in watched.calls] == ["head"] * 2 + ["put"] * 5, "a look for each of two wrong claims"


class Lists(Wired):
    """Counts its listings; an object is written, and noted, while each of them is on its way."""

    def __init__(self, meanwhile: NewObject) -> None:
        super().__init__()
        self.listed: list[str] = []
        self.meanwhile, self.delivery = meanwhile, Delivery(store=self)

    def list(self, prefix: str = "", *, page_keys: int = 1000, after: str = "") -> Iterator[ObjectInfo]:
        self.listed.append(after)
        self.put(self.meanwhile.key, BODY)
        self.delivery.note_written([self.meanwhile])
        return super().list(prefix, page_keys=page_keys, after=after)


def test_one_listing_shows_what_was_written_before_it_once_and_nothing_that_was_written_later() -> None:
    first, second, later, elsewhere = (
        NewObject(key, lambda: io.BytesIO(BODY), len(BODY), crc32c(BODY))
        for key in ("p/1-a.log", "p/2-b.log", "p/3-c.log", "q/1-d.log")
    )
    store = Lists(later)
    delivery = store.delivery
    for one in (first, second, elsewhere):
        store.put(one.key, BODY)
        delivery.note_written([one])
    asked = [first, second, later, elsewhere, first]
    assert [list(delivery.missing([one])) for one in asked] == [[]] * len(asked)
    assert store.listed == ["p/1-a", "p/3-c", "q/1-d", "p/1-a"]


def test_a_listing_is_one_page_however_many_objects_of_others_are_between() -> None:
    class Counts(Wired):
        shown = 0

        def list(self, prefix: str = "", *, page_keys: int = 1000, after: str = "") -> Iterator[ObjectInfo]:
            for info in super().list(prefix, page_keys=page_keys, after=after):
                self.shown += 1
                yield info

    store = Counts()
    delivery = Delivery(store=store)
    ends = [NewObject(f"p/{number}-a.log", lambda: io.BytesIO(BODY), len(BODY), crc32c(BODY)) for number in (10, 99)]
    for number in range(10, 100):
        store.put(f"p/{number}-a.log", BODY)
    delivery.note_written(ends)
    assert [list(delivery.missing([one])) for one in ends] == [[], []]
    assert store.shown == 3, "a page of two, then the last one"


def test_what_a_listing_has_shown_long_ago_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Wired()
    delivery = Delivery(store=store)
    first, second = (NewObject(f"p/{n}-a.log", lambda: io.BytesIO(BODY), len(BODY), crc32c(BODY)) for n in (1, 2))
    for one in (first, second):
        delivery.deliver(one)
    delivery.note_written([first, second])
    now_s = time.monotonic()
    assert list(delivery.missing([first])) == []
    store.delete(second.key)
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 60)
    assert list(delivery.missing([second])) == [second.key]


def test_what_no_listing_shows_is_asked_for_by_itself() -> None:
    gone, other = (NewObject(f"p/1-a.{kind}", io.BytesIO, 1, 0) for kind in ("index", "log"))
    store = Watched(Wired())
    store.put(other.key, b"1")
    assert list(Delivery(store=store).missing([gone, other])) == [gone.key]
    store.put(gone.key, b"12")
    assert list(Delivery(store=store).missing([gone, other])) == [gone.key]
    assert [call for call in store.calls if call[0] == "head"] == [("head", gone.key)] * 2


def deliver_stored(delivery: Delivery, key: str = "copy", *, etag: str | None = None) -> None:
    """Deliver what the store holds at ``source`` already, as it was read there."""
    store = delivery.store
    store.put("source", BODY)
    url, name = split_object_url(f"{store.url}/source")
    opened = StoredBody(
        store_url=url, key=name, etag=etag or store.head("source").etag, open_body=lambda: io.BytesIO(BODY)
    )
    delivery.deliver(NewObject(key, opened, len(BODY), crc32c(BODY)))


@pytest.mark.parametrize(
    ("make", "problem"), [(Copies, None), (CopiesAnyVersion, "replaced"), (CopiesNothing, "501"), (Wired, None)]
)
def test_what_the_store_holds_it_copies_if_it_was_seen_to_do_that_rightly(
    make: Callable[[], Wired], problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, said, sent = make(), list[str](), list[str]()
    whole = store.put_stream
    monkeypatch.setattr(store, "put_stream", lambda key, *rest, **more: (sent.append(key), whole(key, *rest, **more)))
    delivery = Delivery(store=store, warn=said.append)
    for number in range(3):
        deliver_stored(delivery, f"copy-{number}")
        assert store.get(f"copy-{number}") == BODY
    assert sent == ([] if make is Copies else ["copy-0", "copy-1", "copy-2"])
    assert len(said) == (problem is not None)
    assert all(str(problem) in text for text in said)


def test_a_copy_that_goes_wrong_later_is_sent_and_so_are_all_that_follow() -> None:
    class Tires(Copies):
        left = 3  # two of the probe, and one more

        def made_of(self, body: bytes) -> bytes:
            self.left -= 1
            return body if self.left >= 0 else b""

    store, said = Tires(), list[str]()
    delivery = Delivery(store=store, warn=said.append)
    for number in range(4):
        deliver_stored(delivery, f"copy-{number}")
        assert store.get(f"copy-{number}") == BODY
    assert len(said) == 1


def test_another_version_than_was_read_is_not_delivered() -> None:
    delivery = Delivery(store=Copies())
    with pytest.raises(ObjectChangedError):
        deliver_stored(delivery, etag="another")
    assert [info.key for info in delivery.store.list()] == ["source"]


def test_different_bytes_read_back_are_reported_whether_or_not_the_store_verifies(memory_store: ObjectStore) -> None:
    delivery = Delivery(store=memory_store)
    with pytest.raises(VerificationError, match="CRC-32C"):
        delivery.deliver(NewObject("key", lambda: io.BytesIO(BODY), len(BODY), crc32c(BODY) ^ 1))
    assert list(memory_store.list()) == []


def test_bytes_sent_and_read_back_count_against_the_limit(memory_store: ObjectStore) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> bool:
        waits.append(seconds)
        return True

    # A clock that stands still: who is last waits for all bytes, those sent and those read back.
    throttle = Throttle(bytes_per_s=2 * len(BODY), sleep=sleep, clock_s=lambda: 0.0)
    deliver(Delivery(store=memory_store, throttle=throttle))
    assert max(waits) == pytest.approx(1.0)


def test_an_ended_run_lets_go_of_what_is_on_its_way(memory_store: ObjectStore) -> None:
    delivery = Delivery(store=memory_store)
    delivery.stop()
    with pytest.raises(AbandonedError):
        deliver(delivery)
    assert list(memory_store.list()) == []


def test_what_is_stopped_apart_leaves_the_rest_alone_and_ends_with_the_whole(memory_store: ObjectStore) -> None:
    whole = Delivery(store=memory_store)
    parts = [whole.part(), whole.part()]
    parts[0].stop()
    with pytest.raises(AbandonedError):
        deliver(parts[0])
    deliver(parts[1])
    whole.stop()
    for one in (whole, parts[1]):
        with pytest.raises(AbandonedError):
            deliver(one)


@pytest.fixture
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_results_come_in_order_and_no_more_is_begun_than_was_asked_for(threads: Executor) -> None:
    begun: list[int] = []
    gates = [threading.Event() for _ in range(6)]

    def work(number: int) -> int:
        begun.append(number)
        assert gates[number].wait(60)
        return number * 10

    for gate in gates[1:]:
        gate.set()
    found = side_by_side(work, range(6), 3, lambda: pytest.fail("stopped"), threads)
    first, result = next(found)
    assert set(begun) <= {0, 1, 2}
    gates[0].set()
    assert (first, result()) == (0, 0)
    assert [(number, result()) for number, result in found] == [(1, 10), (2, 20), (3, 30), (4, 40), (5, 50)]


def test_a_caller_that_ends_early_stops_what_is_in_progress(threads: Executor) -> None:
    stopped = threading.Event()
    found = side_by_side(lambda _: stopped.wait(60), range(100), 2, stopped.set, threads)
    next(found)
    found.close()
    assert stopped.is_set()


@dataclass
class Gated:
    """Work that ends when its gate is opened, or all of it is stopped."""

    gates: list[threading.Event] = field(default_factory=lambda: [threading.Event() for _ in range(6)])
    begun: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    is_stopped: bool = False

    def __call__(self, number: int) -> int:
        self.begun.append(number)
        assert self.gates[number].wait(60)
        if self.is_stopped:
            raise AbandonedError("stopped")
        self.ended.append(number)
        return number * 10

    def stop(self) -> None:
        self.is_stopped = True
        for gate in self.gates:
            gate.set()


def test_what_is_done_first_comes_first_and_makes_room_for_the_next() -> None:
    work = Gated()
    found = as_done(work, range(6), 2, lambda: pytest.fail("stopped"))
    for number in (1, 2, 3):
        work.gates[number].set()
        item, result = next(found)
        assert (item, result()) == (number, number * 10)
    assert set(work.begun) == {0, 1, 2, 3}
    for gate in work.gates:
        gate.set()
    assert sorted(item for item, _ in found) == [0, 4, 5]


def test_an_error_of_the_items_comes_after_all_that_was_begun_before() -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise StoreError("no more")

    found = as_done(lambda number: number * 10, items(), 2, lambda: pytest.fail("stopped"))
    assert sorted(next(found)[1]() for _ in range(3)) == [0, 10, 20]
    with pytest.raises(StoreError, match="no more"):
        next(found)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, CancelledError])
def test_an_interrupt_stops_what_is_under_way_and_still_gives_what_is_done(interrupt: type[BaseException]) -> None:
    work = Gated()

    def items() -> Iterator[int]:
        yield from range(2)
        work.gates[1].set()
        while len(work.begun) < 2 or 1 not in work.ended:
            time.sleep(0.01)
        raise interrupt("enough")

    found = as_done(work, items(), 3, work.stop)
    item, result = next(found)
    assert (item, result()) == (1, 10)
    with pytest.raises(interrupt):
        next(found)
    assert work.is_stopped


def test_a_caller_that_ends_early_stops_what_has_not_begun() -> None:
    work = Gated()
    found = as_done(work, range(6), 3, work.stop)
    threading.Timer(0.2, work.gates[0].set).start()
    next(found)
    found.close()
    assert work.is_stopped
    assert set(work.begun) <= {0, 1, 2, 3}
