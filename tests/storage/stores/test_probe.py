"""The probe distinguishes stores that differ in one promise; what it says of real servers is in ``tests/stores``."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest

from resnap.scheduler.clock import Clock
from resnap.scheduler.verbs.doctor import Health, probe_store
from resnap.storage.crc32c import crc32c as crc32c_of
from resnap.storage.errors import (
    ObjectChangedError,
    ObjectExistsError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from resnap.storage.stores.local import LocalObjectStore
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.storage.stores.probe import (
    Check,
    Condition,
    condition,
    copy_problem,
    deletion,
    listing_problem,
    parts_problem,
    range_problem,
    replacement,
    store_clock_ms,
    upload_checks,
    uploads_problem,
)
from resnap.storage.stores.protocol import ClaimRefusedError, ObjectInfo, StoredBody, Unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.crc32c import Buffer


class Wired(MemoryObjectStore):
    """As strict as S3 is; what derives from it is less so, in one respect."""

    sends_checksums = True

    def __init__(self) -> None:
        super().__init__(f"probe-{uuid4()}", "")

    def put_claimed(self, key: str, body: bytes, *, crc32c: int, in_parts: bool) -> None:  # noqa: ARG002
        if crc32c_of(body) != crc32c:
            raise ClaimRefusedError("other bytes", key=key)
        self.put(key, body)

    def list(self, prefix: str = "", *, page_keys: int = 1000, after: str = "") -> Iterator[ObjectInfo]:  # noqa: ARG002
        return (info for info in super().list(prefix) if info.key > after)

    def begin(self, key: str) -> Unfinished:
        self.begun = Unfinished(key=key, begun_ms=0, handle="begun")
        return self.begun

    def unfinished(self) -> Iterator[Unfinished]:
        return iter([self.begun])


class Copies(Wired):
    """Copies as it should; what derives from it does so less, in one respect."""

    def copy(self, source: StoredBody, key: str, *, size_bytes: int, crc32c: int) -> None:
        self.check_version(source)
        self.put(key, self.made_of(self.get(source.key)))
        self.check(self.get(key), size_bytes, crc32c)

    def check_version(self, source: StoredBody) -> None:
        if self.head(source.key).etag != source.etag:
            raise ObjectChangedError("another version", key=source.key)

    def made_of(self, body: bytes) -> bytes:
        return body

    def check(self, body: bytes, size_bytes: int, crc32c: int) -> None:
        if (len(body), crc32c_of(body)) != (size_bytes, crc32c):
            raise StoreError("another checksum")

    def put_as_others(self, key: str, body: bytes) -> None:
        self.put(key, body)


class KeepsNoChecksumOfCopiesOfOthers(Copies):
    """As SeaweedFS: its copy has the checksum that the object has."""

    def __init__(self) -> None:
        super().__init__()
        self.of_others: set[str] = set()

    def put_as_others(self, key: str, body: bytes) -> None:
        self.of_others.add(key)
        self.put(key, body)

    def copy(self, source: StoredBody, key: str, *, size_bytes: int, crc32c: int) -> None:
        super().copy(source, key, size_bytes=size_bytes, crc32c=crc32c)
        if source.key in self.of_others:
            raise StoreError("ChecksumCRC32C nothing")


class CopiesAnyVersion(Copies):
    def check_version(self, source: StoredBody) -> None:
        """Take any."""


class CopiesNothing(Copies):
    def made_of(self, body: bytes) -> bytes:
        raise StoreError(f"501 not implemented, not for {len(body)} bytes either")


class CopiesOtherBytes(Copies):
    def made_of(self, body: bytes) -> bytes:
        return body[:-1] + bytes([body[-1] ^ 1])

    def check(self, body: bytes, size_bytes: int, crc32c: int) -> None:
        """Say what is expected, whatever was written."""


class CopiesPartly(Copies):
    def made_of(self, body: bytes) -> bytes:
        return body[: len(body) // 2]


class CopiesAndRefuses(Copies):
    def copy(self, source: StoredBody, key: str, *, size_bytes: int, crc32c: int) -> None:
        self.put(key, self.get(source.key))
        super().copy(source, key, size_bytes=size_bytes, crc32c=crc32c)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (Copies, None),
        (CopiesAnyVersion, "had been replaced"),
        (CopiesNothing, "501"),
        (CopiesOtherBytes, "other bytes"),
        (CopiesPartly, "another checksum"),
        (CopiesAndRefuses, "written all the same"),
    ],
)
def test_a_store_copies_only_if_it_was_seen_to_copy_the_bytes_of_the_version_asked_for(
    make: Callable[[], Copies], problem: str | None
) -> None:
    store = make()
    for of_others in (False, True):
        found = copy_problem(store, of_others=of_others)
        assert problem in str(found) if problem else found is None
    assert list(store.list()) == []


def test_a_store_that_copies_only_what_was_written_with_a_checksum_is_found() -> None:
    store = KeepsNoChecksumOfCopiesOfOthers()
    assert copy_problem(store) is None
    assert "CRC32C nothing" in str(copy_problem(store, of_others=True))
    [finding] = [finding for finding in probe_store(store, Clock()) if finding.check == "store copy"]
    assert (finding.health, "written with a CRC-32C" in str(finding.remedy)) == (Health.WARN, True)
    [finding] = [finding for finding in probe_store(Copies(), Clock()) if finding.check == "store copy"]
    assert finding.health is Health.OK


class TakesAnything(Wired):
    def put_claimed(self, key: str, body: bytes, *, crc32c: int, in_parts: bool) -> None:  # noqa: ARG002
        self.put(key, body)


class TakesAnythingInParts(Wired):
    def put_claimed(self, key: str, body: bytes, *, crc32c: int, in_parts: bool) -> None:
        super().put_claimed(key, body, crc32c=crc32c_of(body) if in_parts else crc32c, in_parts=in_parts)


class RefusesAndWrites(Wired):
    def put_claimed(self, key: str, body: bytes, *, crc32c: int, in_parts: bool) -> None:
        self.put(key, body)
        super().put_claimed(key, body, crc32c=crc32c, in_parts=in_parts)


class SendsNone(Wired):
    sends_checksums = False


@pytest.mark.parametrize(
    ("make", "whole", "in_parts"),
    [
        (Wired, Check.REFUSED, Check.REFUSED),
        (TakesAnything, Check.TAKEN, Check.TAKEN),
        (TakesAnythingInParts, Check.REFUSED, Check.TAKEN),
        (RefusesAndWrites, Check.WRITTEN_ANYWAY, Check.WRITTEN_ANYWAY),
        (SendsNone, Check.UNTRIED, Check.UNTRIED),
    ],
)
def test_the_stores_check_counts_only_where_it_refuses_and_writes_nothing(
    make: Callable[[], Wired], whole: Check, in_parts: Check
) -> None:
    store = make()
    found = upload_checks(store)
    assert (found.whole, found.in_parts) == (whole, in_parts)
    assert found.count is (make is Wired)
    assert list(store.list()) == []


def test_a_store_in_trouble_is_not_taken_for_one_that_refuses() -> None:
    class Busy(Wired):
        def put_claimed(self, key: str, body: bytes, *, crc32c: int, in_parts: bool) -> None:  # noqa: ARG002
            raise StoreUnavailableError("busy", key=key)

    with pytest.raises(StoreUnavailableError):
        upload_checks(Busy())


def test_a_directory_has_no_check_of_its_own_and_keeps_all_else(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "store")
    assert not upload_checks(store).count
    assert condition(store) is replacement(store) is deletion(store) is Condition.KEPT
    assert (range_problem(store), listing_problem(store), parts_problem(store)) == (None, None, None)
    assert store_clock_ms(store) > 0
    assert list(store.list()) == []


class IgnoresConditions(Wired):
    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:  # noqa: ARG002
        super().put(key, body)


class SaysNoAndWrites(Wired):
    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        super().put(key, body)
        if if_absent:
            raise ObjectExistsError("there", key=key)


class RefusesConditions(Wired):
    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        if if_absent:
            raise StoreError("501", key=key)
        super().put(key, body)


class LosesAnswers(Wired):
    """Does what it is asked for; the answer is lost, and the next attempt is refused."""

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        super().put(key, body, if_absent=if_absent)
        if if_absent:
            super().put(key, body, if_absent=True)

    def replace(self, key: str, body: Buffer, *, etag: str) -> None:
        super().replace(key, body, etag=etag)
        super().replace(key, body, etag=etag)


FAIR_ROUNDS: Final = 3


class RacesSeldom(Wired):
    """Lets more than one writer win in some rounds only, as it is a matter of moments there."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: set[str] = set()

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        self.keys.add(key)
        super().put(key, body, if_absent=if_absent and len(self.keys) <= FAIR_ROUNDS)

    def replace(self, key: str, body: Buffer, *, etag: str) -> None:
        if len(self.keys) <= FAIR_ROUNDS:
            super().replace(key, body, etag=etag)
        else:
            self.put(key, body)


class Races(Wired):
    """Keeps the condition where the key has been taken for long, as one looks and then writes."""

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        if if_absent and self._prefix + key in self._bucket.objects and self.get(key) == b"first":
            raise ObjectExistsError("there", key=key)
        super().put(key, body)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (Wired, Condition.KEPT),
        (IgnoresConditions, Condition.IGNORED),
        (SaysNoAndWrites, Condition.IGNORED),
        (RefusesConditions, Condition.REFUSED),
        (Races, Condition.RACES),
        (RacesSeldom, Condition.RACES),
        (LosesAnswers, Condition.KEPT),
    ],
)
def test_conditions_are_tried_alone_and_by_several_at_once(make: Callable[[], Wired], found: Condition) -> None:
    assert condition(make()) is found


class IgnoresVersions(Wired):
    def replace(self, key: str, body: Buffer, *, etag: str) -> None:  # noqa: ARG002
        self.put(key, body)


class SaysNoAndReplaces(Wired):
    def replace(self, key: str, body: Buffer, *, etag: str) -> None:  # noqa: ARG002
        self.put(key, body)
        raise ObjectChangedError("changed", key=key)


class ReplacesNothing(Wired):
    def replace(self, key: str, body: Buffer, *, etag: str) -> None:  # noqa: ARG002
        raise ObjectChangedError("changed", key=key)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (Wired, Condition.KEPT),
        (IgnoresVersions, Condition.IGNORED),
        (SaysNoAndReplaces, Condition.IGNORED),
        (ReplacesNothing, Condition.REFUSED),
        (RacesSeldom, Condition.RACES),
        (LosesAnswers, Condition.KEPT),
    ],
)
def test_conditions_on_a_version_are_tried_alone_and_by_several_at_once(
    make: Callable[[], Wired], found: Condition
) -> None:
    assert replacement(make()) is found


class DeletesAnyVersion(Wired):
    def delete(self, key: str, *, etag: str | None = None) -> None:  # noqa: ARG002
        super().delete(key)


class SaysNoAndDeletes(Wired):
    def delete(self, key: str, *, etag: str | None = None) -> None:
        super().delete(key)
        if etag is not None:
            raise ObjectChangedError("changed", key=key)


class DeletesNothing(Wired):
    def delete(self, key: str, *, etag: str | None = None) -> None:
        if etag is not None:
            raise ObjectChangedError("changed", key=key)
        super().delete(key)


class SaysYesAndDeletesNothing(Wired):
    def delete(self, key: str, *, etag: str | None = None) -> None:
        if etag is None:
            super().delete(key)


class DoesNotKnowThem(Wired):
    def delete(self, key: str, *, etag: str | None = None) -> None:
        if etag is not None:
            raise StoreError("501", key=key)
        super().delete(key)


class ListsOtherEtags(Wired):
    def list(self, prefix: str = "", *, page_keys: int = 1000, after: str = "") -> Iterator[ObjectInfo]:
        listed = super().list(prefix, page_keys=page_keys, after=after)
        return (replace(info, etag=f"{info.etag}-0") for info in listed)


class LooksAndThenDeletes(Wired):
    """Deletes what came between its look and its deletion, in some rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: set[str] = set()
        self.has_looked = threading.Event()
        self.has_replaced = threading.Event()

    def replace(self, key: str, body: Buffer, *, etag: str) -> None:
        self.keys.add(key)
        if len(self.keys) == FAIR_ROUNDS:
            assert self.has_looked.wait(30)
        super().replace(key, body, etag=etag)
        if len(self.keys) == FAIR_ROUNDS:
            self.has_replaced.set()

    def delete(self, key: str, *, etag: str | None = None) -> None:
        is_as_expected = etag is not None and self.head(key).etag == etag
        if is_as_expected and len(self.keys | {key}) == FAIR_ROUNDS:
            self.has_looked.set()
            assert self.has_replaced.wait(30)
            etag = None
        super().delete(key, etag=etag)


class LosesAnswersToDeletions(Wired):
    def delete(self, key: str, *, etag: str | None = None) -> None:
        super().delete(key, etag=etag)
        super().delete(key, etag=etag)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (Wired, Condition.KEPT),
        (DeletesAnyVersion, Condition.IGNORED),
        (SaysNoAndDeletes, Condition.IGNORED),
        (SaysYesAndDeletesNothing, Condition.IGNORED),
        (DeletesNothing, Condition.REFUSED),
        (DoesNotKnowThem, Condition.REFUSED),
        (ListsOtherEtags, Condition.REFUSED),
        (LooksAndThenDeletes, Condition.RACES),
        (LosesAnswersToDeletions, Condition.KEPT),
    ],
)
def test_conditions_of_deletions_are_tried_alone_and_beside_a_writer(
    make: Callable[[], Wired], found: Condition
) -> None:
    store = make()
    assert deletion(store) is found
    assert list(store.list()) == []


def test_a_store_that_deletes_nothing_any_more_is_not_taken_for_one_that_refuses_conditions() -> None:
    class Forbids(Wired):
        def delete(self, key: str, *, etag: str | None = None) -> None:  # noqa: ARG002
            raise StoreAccessError("forbidden", key=key)

    with pytest.raises(StoreAccessError):
        deletion(Forbids())


@pytest.mark.parametrize(("number", "error"), [(errno.EIO, StoreUnavailableError), (errno.ENOSPC, StoreFullError)])
def test_a_disk_that_fails_says_nothing_of_conditions(
    number: int, error: type[StoreError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, _: Path) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "hardlink_to", fail)
    with pytest.raises(error, match=os.strerror(number).lower()):
        condition(LocalObjectStore(tmp_path))


def test_a_store_that_takes_nothing_any_more_is_not_taken_for_one_that_refuses_conditions() -> None:
    class TurnsReadOnly(Wired):
        def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
            if if_absent or self._bucket.objects:
                raise StoreAccessError("read-only", key=key)
            super().put(key, body)

    with pytest.raises(StoreAccessError):
        condition(TurnsReadOnly())


def test_wrong_ranges_and_ranges_of_another_version_are_found() -> None:
    class Whole(Wired):
        def get_range(self, key: str, start: int, end: int, *, etag: str | None = None) -> bytes:  # noqa: ARG002
            return self.get(key)

    class AnyVersion(Wired):
        def get_range(self, key: str, start: int, end: int, *, etag: str | None = None) -> bytes:  # noqa: ARG002
            return super().get_range(key, start, end)

    assert range_problem(Wired()) is None
    assert "other bytes" in str(range_problem(Whole()))
    assert "replaced" in str(range_problem(AnyVersion()))


def test_listings_that_are_stale_or_end_after_a_page_are_found() -> None:
    class OnePage(Wired):
        def list(self, prefix: str = "", *, page_keys: int = 1000, after: str = "") -> Iterator[ObjectInfo]:
            return iter(list(super().list(prefix, after=after))[:page_keys])

    class Stale(Wired):
        def delete(self, key: str, *, etag: str | None = None) -> None:
            """Forget to."""

    assert listing_problem(Wired()) is None
    assert "2 are listed" in str(listing_problem(OnePage()))
    assert "deleted" in str(listing_problem(Stale()))


def test_uploads_in_parts_that_are_refused_or_come_back_different_are_found() -> None:
    class NoParts(Wired):
        def put_claimed(self, key: str, body: bytes, *, crc32c: int, in_parts: bool) -> None:  # noqa: ARG002
            raise ClaimRefusedError("not implemented", key=key)

    class OtherParts(Wired):
        def put_claimed(self, key: str, body: bytes, *, crc32c: int, in_parts: bool) -> None:  # noqa: ARG002
            self.put(key, body[:-1])

    assert parts_problem(Wired()) is None
    assert "refused" in str(parts_problem(NoParts()))
    assert "other bytes" in str(parts_problem(OtherParts()))


def test_uploads_that_are_begun_and_not_listed_are_found() -> None:
    class ListsNone(Wired):
        def unfinished(self) -> Iterator[Unfinished]:
            return iter(())

    class Refuses(Wired):
        def unfinished(self) -> Iterator[Unfinished]:
            raise StoreError("501")

    assert uploads_problem(Wired()) is None
    assert "not listed" in str(uploads_problem(ListsNone()))
    assert "501" in str(uploads_problem(Refuses()))
