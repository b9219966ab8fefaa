"""Tests which promises of the protocol a store keeps: S3-compatible stores differ, and some answer 200 to anything.

What a store says of itself is ignored. A promise counts as kept only if a violation was refused *and* left nothing
behind: some stores refuse a request and have written the object all the same. A probe is necessary but not sufficient:
a store may keep a promise for one request and break it under load. So no guarantee depends on conditional writes, and
every object can be read back instead (``--verify-upload read-back``).
"""

from __future__ import annotations

import io
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ResnapError,
    StoreError,
    StoreFullError,
)
from resnap.storage.stores.protocol import ClaimRefusedError, CopyingStore, StoredBody, WireStore, length_of
from resnap.storage.stores.urls import split_object_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resnap.storage.stores.protocol import ObjectStore

PROBE_PREFIX: Final = ".resnap/probe"
BODY_BYTES: Final = 65_536
_PAGED_OBJECTS: Final = 5
_PAGE_KEYS: Final = 2
_CREATORS: Final = 8
_ROUNDS: Final = 8
"""The rounds of a race; one alone went well in half of all cases where two or more writers can win."""


class Check(StrEnum):
    """The outcome of an upload with a wrong checksum."""

    REFUSED = "refused"
    WRITTEN_ANYWAY = "refused, and written all the same"
    TAKEN = "taken"
    UNTRIED = "not tried: no checksums are sent to this store"


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadChecks:
    """Whether the store checks what it receives, for a single upload and for one in parts."""

    whole: Check
    in_parts: Check

    @property
    def count(self) -> bool:
        """Whether an accepted upload with our checksum is proof that the store has the bytes we sent."""
        return self.whole is self.in_parts is Check.REFUSED


class Condition(StrEnum):
    """The outcome of a conditional write or deletion: only if the key is free, or only of one version."""

    KEPT = "kept"
    IGNORED = "ignored"
    RACES = "kept by one writer, not among several at once"
    REFUSED = "refused"


def upload_checks(store: ObjectStore) -> UploadChecks:
    """Test whether ``store`` refuses bytes that do not match their checksum, and writes nothing.

    Raises:
        StoreError: the store failed.

    """
    if not isinstance(store, WireStore) or not store.sends_checksums:
        return UploadChecks(whole=Check.UNTRIED, in_parts=Check.UNTRIED)
    return UploadChecks(whole=_check(store, in_parts=False), in_parts=_check(store, in_parts=True))


def _check(store: WireStore, *, in_parts: bool) -> Check:
    body = secrets.token_bytes(BODY_BYTES)
    with throwaway(store) as key:
        try:
            store.put_claimed(key, body, crc32c=crc32c(body) ^ 1, in_parts=in_parts)
        except ClaimRefusedError:
            return Check.REFUSED if length_of(store, key) is None else Check.WRITTEN_ANYWAY
        return Check.TAKEN


def condition(store: ObjectStore) -> Condition:
    """Test writes that must succeed only if the key is free, by one writer and by several at once.

    Raises:
        StoreError: the store failed.

    """
    found = condition_of_one(store)
    return _race(store, _one_creates) if found is Condition.KEPT else found


def condition_of_one(store: ObjectStore) -> Condition:
    """Test a write that must succeed only if the key is free, by one writer alone.

    Raises:
        StoreError: the store failed.

    """
    with throwaway(store) as key:
        store.put(key, b"first")
        try:
            store.put(key, b"second", if_absent=True)
        except ObjectExistsError:
            return Condition.KEPT if store.get(key) == b"first" else Condition.IGNORED
        except StoreError as error:
            return _refusal(error, lambda: store.put(key, b"third"))
        return Condition.IGNORED


def replacement(store: ObjectStore) -> Condition:
    """Test writes that must replace one version only, by one writer and by several at once.

    Raises:
        StoreError: the store failed.

    """
    with throwaway(store) as key:
        store.put(key, b"first")
        first = store.head(key).etag
        try:
            with suppress(ObjectChangedError, ObjectExistsError):  # also after a lost answer, tried again
                store.replace(key, b"second", etag=first)
            if store.get(key) != b"second":
                return Condition.REFUSED
            with suppress(ObjectChangedError, ObjectExistsError):
                store.replace(key, b"third", etag=first)
                return Condition.IGNORED
            if store.get(key) != b"second":
                return Condition.IGNORED
        except StoreError as error:
            return _refusal(error, lambda: store.put(key, b"fourth"))
    return _race(store, _one_replaces)


def deletion(store: ObjectStore) -> Condition:
    """Test whether DELETE with ``If-Match`` deletes that version only, also while another writer replaces it.

    Raises:
        StoreError: the store failed.

    """
    with throwaway(store) as key:
        store.put(key, b"first")
        first = _listed_etag(store, key)
        store.put(key, b"second")
        try:
            with suppress(ObjectChangedError):
                store.delete(key, etag=first)
                return Condition.IGNORED
            if length_of(store, key) is None:
                return Condition.IGNORED
            with suppress(ObjectChangedError):
                store.delete(key, etag=_listed_etag(store, key))
            if length_of(store, key) is not None:
                return Condition.REFUSED
            return _race(store, _replaced_stays)
        except StoreError as error:  # also where no version can be replaced: nothing shows that another one stays
            return _refusal(error, lambda: store.delete(key))


def _listed_etag(store: ObjectStore, key: str) -> str:
    """Return the etag of an object in a listing, with which deletions are made conditional."""
    return next((info.etag for info in store.list(key) if info.key == key), "")


def _refusal(error: StoreError, act: Callable[[], None]) -> Condition:
    """Return that the store refuses the condition; raise if it would refuse to ``act`` without one, too."""
    if error.transient or isinstance(error, StoreFullError):
        raise error
    act()
    return Condition.REFUSED


def _race(store: ObjectStore, is_right: Callable[[ObjectStore, str], bool]) -> Condition:
    """Return whether each round of several at once ends right: stores that look and then write pass some."""
    for _ in range(_ROUNDS):
        with throwaway(store) as key:
            if not is_right(store, key):
                return Condition.RACES
    return Condition.KEPT


def _one_creates(store: ObjectStore, key: str) -> bool:
    """Let several writers try at once to create ``key``: exactly one must win."""
    return _one_wins(store, key, lambda body: store.put(key, body, if_absent=True))


def _one_replaces(store: ObjectStore, key: str) -> bool:
    """Let several writers try at once to replace one version: exactly one must win."""
    store.put(key, b"first")
    etag = store.head(key).etag
    return _one_wins(store, key, lambda body: store.replace(key, body, etag=etag))


def _one_wins(store: ObjectStore, key: str, write: Callable[[bytes], None]) -> bool:
    bodies = [b"%d" % number for number in range(_CREATORS)]
    won = _at_once([partial(write, body) for body in bodies])
    there = store.get(key)
    # Where an answer was lost, the writer that has won is refused at its next attempt, as all others are.
    return any(there == body and won in ([number], []) for number, body in enumerate(bodies))


def _replaced_stays(store: ObjectStore, key: str) -> bool:
    """Return whether a version stays that one writer puts in place of the version that several delete at once."""
    store.put(key, b"first")
    etag = _listed_etag(store, key)
    acts = [partial(store.delete, key, etag=etag)] * (_CREATORS - 1)
    won = _at_once([partial(store.replace, key, b"second", etag=etag), *acts])
    return 0 not in won or length_of(store, key) == len(b"second")


def _at_once(acts: Sequence[Callable[[], None]]) -> list[int]:
    """Do all ``acts`` at once, and return the numbers of those whose condition was met."""
    together = threading.Barrier(len(acts))

    def is_done(act: Callable[[], None]) -> bool:
        together.wait()
        try:
            act()
        except (ObjectExistsError, ObjectChangedError, ObjectNotFoundError):
            return False
        return True

    with ThreadPoolExecutor(len(acts)) as threads:
        return [number for number, done in enumerate(threads.map(is_done, acts)) if done]


def range_problem(store: ObjectStore) -> str | None:
    """Return what is wrong with reading ranges of an object; None if nothing is.

    Raises:
        StoreError: the store failed.

    """
    body = secrets.token_bytes(BODY_BYTES)
    third, half, past = BODY_BYTES // 3, BODY_BYTES // 2, BODY_BYTES + 10
    with throwaway(store) as key:
        store.put(key, body)
        for start, end in ((0, third), (third, half), (half, BODY_BYTES), (half, past), (past, past + 1)):
            try:
                found = store.get_range(key, start, end)
            except StoreError as error:
                return f"the range [{start}, {end}) of {BODY_BYTES} bytes: {error}"
            if found != body[start:end]:
                return f"the range [{start}, {end}) of {BODY_BYTES} bytes came back as {len(found)} other bytes"
        etag = store.head(key).etag
        store.put(key, bytes(BODY_BYTES))
        try:
            store.get_range(key, third, half, etag=etag)
        except ObjectChangedError:
            return None
    return "a range of an object that had been replaced was given as of the one before"


def listing_problem(store: ObjectStore) -> str | None:
    """Return what is wrong with listings, with more than one page if the store allows it; None if nothing is.

    Raises:
        StoreError: the store failed.

    """
    with throwaway(store) as folder:
        keys = [f"{folder}/{number}" for number in range(_PAGED_OBJECTS)]
        try:
            for key in keys:
                store.put(key, b"x")
            found = _keys(store, f"{folder}/")
            if found != keys:
                return f"of {len(keys)} objects that were just written, {len(set(found) & set(keys))} are listed"
            store.delete(keys[0])
            return "an object that was deleted is still listed" if _keys(store, f"{folder}/") != keys[1:] else None
        finally:
            for key in keys:
                store.delete(key)


def _keys(store: ObjectStore, prefix: str) -> list[str]:
    pages = store.list(prefix, page_keys=_PAGE_KEYS) if isinstance(store, WireStore) else store.list(prefix)
    return [info.key for info in pages]


def parts_problem(store: ObjectStore) -> str | None:
    """Return what is wrong with uploads in parts; None if nothing is, or the store has none.

    Raises:
        StoreError: the store failed.

    """
    if not isinstance(store, WireStore):
        return None
    body = secrets.token_bytes(BODY_BYTES)
    with throwaway(store) as key:
        try:
            store.put_claimed(key, body, crc32c=crc32c(body), in_parts=True)
        except ClaimRefusedError as error:
            return f"an upload in parts is refused: {error}"
        return None if store.get(key) == body else "an upload in parts came back as other bytes"


def uploads_problem(store: ObjectStore) -> str | None:
    """Return why uncompleted uploads could not be found; None if they can, or the store has none.

    Raises:
        StoreError: the store failed.

    """
    if not isinstance(store, WireStore):
        return None
    with throwaway(store) as key:
        begun = store.begin(key)
        try:
            found = any(upload.handle == begun.handle for upload in store.unfinished())
        except StoreError as error:
            if error.transient:
                raise
            return f"unfinished uploads cannot be listed: {error}"
        finally:
            store.discard(begun)
        return None if found else "an upload that was begun is not listed among the unfinished ones"


def copy_problem(store: CopyingStore, *, of_others: bool = False) -> str | None:
    """Return why objects must be sent again instead of copied by the store; None if it copies them correctly.

    With ``of_others`` those that others have written, without a CRC-32C: some stores keep none of their copies.

    Raises:
        StoreError: the store failed.

    """
    body = secrets.token_bytes(BODY_BYTES)
    with throwaway(store) as key, throwaway(store) as copied:
        (store.put_as_others if of_others else store.put)(key, body)
        url, name = split_object_url(f"{store.url}/{key}")
        etag = store.head(key).etag
        source = StoredBody(store_url=url, key=name, etag=etag, open_body=lambda: io.BytesIO(body))
        try:
            store.copy(source, copied, size_bytes=len(body), crc32c=crc32c(body))
        except StoreError as error:
            if error.transient:
                raise
            return f"a copy went wrong: {error}"
        if store.get(copied) != body:
            return "a copy came back as other bytes"
        store.put(key, bytes(BODY_BYTES))
        try:
            store.copy(source, copied, size_bytes=len(body), crc32c=crc32c(body))
        except ObjectChangedError:
            return None if store.get(copied) == body else "a copy was refused, and written all the same"
        except StoreError as error:
            if error.transient:
                raise
    return "an object that had been replaced was copied as if it were the one before"


def store_clock_ms(store: ObjectStore) -> int:
    """Return the time of the store's own clock.

    Raises:
        StoreError: the store failed.

    """
    with throwaway(store) as key:
        store.put(key, b"")
        return store.head(key).modified_ms


@contextmanager
def throwaway(store: ObjectStore) -> Iterator[str]:
    """Yield an unused key, and delete its object at the end."""
    key = f"{PROBE_PREFIX}/{secrets.token_hex(16)}"
    try:
        yield key
    finally:
        with suppress(ResnapError):
            store.delete(key)
