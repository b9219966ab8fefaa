"""The protocol of object stores: twelve methods, synchronous, safe to call from many threads.

A store is opened at a prefix, and its keys are relative to it. Every implementation promises:

- **Atomic**: an object appears whole or not at all, and is replaced whole; a reader never sees a part of one.
- **Durable**: when a write returns, the object is as safe as the store can make it. A write that raises may still have
  taken effect (a lost answer), except where it raises ``ObjectExistsError``.
- **Read after write**: a finished write is seen by every ``get``, ``head`` and ``list`` that starts later.
- **Ordered**: listings come in the order of the keys' bytes, however many pages they take.
- **Half-open**: a range is [start, end) in bytes, and is cut at the end of the object as a slice would be.

Writes accept only portable keys (``check_key``). Reads accept any key, since a bucket may hold objects of others.
File-backed stores cannot hold an object whose key is also the folder of another: do not create one.

Errors are those of ``storage.errors``. ``StoreError`` itself, ``StoreAccessError``, ``StoreFullError`` and
``StoreUnavailableError`` (the one that is transient) may come out of every method; the others are named where they
belong.

``key_part`` encodes any name as a part of a key that every store supports.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, TypeAlias, runtime_checkable

from resnap.storage.crc32c import Buffer
from resnap.storage.crc32c import crc32c as continue_crc32c
from resnap.storage.errors import ObjectChangedError, ObjectNotFoundError, StoreError, UsageError, VerificationError
from resnap.storage.log.names import parse_partition_dir_name

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from contextlib import AbstractContextManager

CHUNK_BYTES: Final = 1 << 20
"""What a streaming read holds at once, and usually yields."""
MAX_KEY_PART_BYTES: Final = 200
MAX_KEY_BYTES: Final = 900
"""S3 takes 1,024 with the store's prefix, of which this leaves room."""
BodyOpener: TypeAlias = Callable[[], BinaryIO]
"""Opens the body from its first byte, each time it is called; the caller closes what it gives."""
UNKNOWN: Final = "none"
_FRONT_BYTES: Final = 100
_PLAIN: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
_ESCAPES: Final = {byte: f"={byte:02X}" for byte in range(256) if byte not in _PLAIN}
_RESERVED: Final = frozenset({UNKNOWN, ".", ".."})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBody:
    """The body of a stored object; a store that has the object can copy it instead of receiving its bytes."""

    store_url: str
    key: str
    etag: str
    """The etag of the version that was read."""
    open_body: BodyOpener

    def __call__(self) -> BinaryIO:
        """Open it from its first byte."""
        return self.open_body()


_PORTABLE_PART = re.compile(r"[A-Za-z0-9!_.*'()=-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """A store's facts of an object, without its bytes."""

    key: str
    size_bytes: int
    modified_ms: int
    """When it was last written, by the store's own clock."""
    etag: str
    """Opaque: it differs when the object was replaced by other bytes. No proof of what the bytes are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A write that was begun and not completed; no reader sees it, but it takes space."""

    key: str
    """The key it was written for, as far as known."""
    begun_ms: int
    """When it was begun, by the store's own clock."""
    handle: str
    """What the store calls it."""


class ObjectStore(Protocol):
    """Named byte strings under one prefix; the module docstring has the promises of all methods."""

    @property
    def url(self) -> str:
        """The URL that opens the same store again, in this process or (save for ``memory://``) in another."""
        ...

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        """Write a small object, replacing an existing one.

        With ``if_absent`` of any number of concurrent writers one wins, on stores that keep the condition: some
        ignore it silently. After a lost answer the winner's own second attempt may find its first.

        Raises:
            ObjectExistsError: ``if_absent``, and the key is taken; the object there is untouched.
            UsageError: ``key`` is not portable.

        """
        ...

    def replace(self, key: str, body: Buffer, *, etag: str) -> None:
        """Write a small object in place of the version ``etag``, as ``head`` or ``list`` gave it.

        Of any number of concurrent writers one wins, on stores that keep the condition: some ignore it silently. After
        a lost answer the winner's own second attempt may find its first.

        Raises:
            ObjectChangedError: the object has another version, and is untouched.
            ObjectNotFoundError: there is no object.
            UsageError: ``key`` is not portable.

        """
        ...

    def put_stream(
        self, key: str, open_body: BodyOpener, *, size_bytes: int, crc32c: int | None = None, sha256: str | None = None
    ) -> None:
        """Write an object of any size in bounded memory, replacing an existing one.

        Args:
            key: where to.
            open_body: opens the body, which is read to its end, and again should the store lose what it got; what it
                raises passes through as it is.
            size_bytes: length of the body.
            crc32c: CRC-32C of the whole body, where the caller knows it.
            sha256: its SHA-256 in hexadecimal digits, likewise; given both, a store need not compute them.

        Raises:
            VerificationError: the body had another length or checksum; nothing was written.
            UsageError: ``key`` is not portable.

        """
        ...

    def get(self, key: str) -> bytes:
        """Return the whole object.

        Raises:
            ObjectNotFoundError: there is none.

        """
        ...

    def get_range(self, key: str, start: int, end: int, *, etag: str | None = None) -> bytes:
        """Return the bytes [``start``, ``end``), fewer or none where the object ends before.

        With ``etag``, as ``head`` or ``list`` gave it, they are of that version of the object: several ranges then make
        one whole.

        Raises:
            ObjectNotFoundError: there is no such object, even if the range is empty.
            ObjectChangedError: it is no longer the one of ``etag``.
            ValueError: not 0 <= ``start`` <= ``end``.

        """
        ...

    def open(self, key: str, start: int = 0, end: int | None = None) -> AbstractContextManager[Iterator[bytes]]:
        """Stream the bytes [``start``, ``end``), or to the end of the object, in bounded memory.

        Chunks are not empty, and their sizes mean nothing. All are of one version of the object.

        Raises:
            ObjectNotFoundError: there is none; raised on entering the context.
            StoreUnavailableError: also in the middle, when the store stops answering.
            ValueError: not 0 <= ``start`` <= ``end``.

        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Return the store's facts of an object.

        Raises:
            ObjectNotFoundError: there is none.

        """
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with ``prefix``, which need not end at a slash, in order of key.

        Objects written or deleted during the listing may be seen or not. Empty ``folder/`` markers that other tools
        leave are not objects.
        """
        ...

    def delete(self, key: str, *, etag: str | None = None) -> None:
        """Remove the object; it is not an error if there is none.

        With ``etag``, as ``head`` or ``list`` gave it, that version only, on stores that keep the condition: some
        ignore it silently.

        Raises:
            ObjectChangedError: the object has another version, and is untouched.
            UsageError: ``key`` is not portable, so Resnap did not write it.

        """
        ...

    def unfinished(self) -> Iterator[Unfinished]:
        """Yield the writes that were begun and not completed, here or by others; some may still be in progress."""
        ...

    def discard(self, unfinished: Unfinished) -> None:
        """Remove the data of an uncompleted write; it is not an error if it no longer exists."""
        ...


class ClaimRefusedError(StoreError):
    """The store found that bytes do not match the checksum that came with them."""


@runtime_checkable
class WireStore(ObjectStore, Protocol):
    """A store behind a network protocol, whose promises can be tested."""

    @property
    def sends_checksums(self) -> bool:
        """Whether each write carries the checksum of its bytes."""
        ...

    def put_claimed(self, key: str, body: bytes, *, crc32c: int, in_parts: bool) -> None:
        """Write ``body``, at once or as an upload in parts, with ``crc32c`` as its checksum, right or wrong.

        Raises:
            ClaimRefusedError: the store refused, as it must if the checksum is wrong.

        """
        ...

    def begin(self, key: str) -> Unfinished:
        """Begin an upload in parts that is never completed, only discarded."""
        ...

    def list(self, prefix: str = "", *, page_keys: int = ..., after: str = "") -> Iterator[ObjectInfo]:
        """List as ``ObjectStore.list`` does what follows the key ``after``, ``page_keys`` at a time."""
        ...


@runtime_checkable
class OpeningStore(ObjectStore, Protocol):
    """A store that gives the facts of an object together with its first bytes."""

    def first(self, key: str, length: int) -> tuple[ObjectInfo, bytes]:
        """Return what ``head`` does, and at most ``length`` bytes from the start, by a single attempt at one request.

        Raises:
            ObjectNotFoundError: there is none.
            StoreError: the store failed.

        """
        ...


@runtime_checkable
class CopyingStore(ObjectStore, Protocol):
    """A store that can copy an object that it holds."""

    def put_as_others(self, key: str, body: bytes) -> None:
        """Write a small object as other tools do: not with a CRC-32C, which is what a copy is compared with."""
        ...

    def copy(self, source: StoredBody, key: str, *, size_bytes: int, crc32c: int) -> None:
        """Copy ``source``, whole, to ``key``, and compare the store's facts of the copy with the expected ones.

        ``source`` is in a store of the same kind, with the same settings. No object in use may have ``key``: if this
        raises, ``key`` may hold anything.

        Raises:
            ObjectChangedError: ``source`` no longer has its etag; nothing was written.
            StoreError: the store cannot copy it, or reports another length or checksum of the copy, or none.
            UsageError: ``key`` is not portable.

        """
        ...


@runtime_checkable
class SweepingStore(ObjectStore, Protocol):
    """A store that removes many objects by one request."""

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove the objects of ``keys`` that exist, as ``delete`` would."""
        ...


def delete_below(store: ObjectStore, prefix: str) -> None:
    """Remove every object whose key starts with ``prefix``.

    Raises:
        StoreError: the store failed.

    """
    keys = [info.key for info in store.list(prefix)]
    if isinstance(store, SweepingStore):
        store.delete_all(keys)
    else:
        for key in keys:
            store.delete(key)


def listed_object(store: ObjectStore, key: str) -> ObjectInfo:
    """Return the facts of an object as a listing gives them, of which the time may be another one than ``head`` gives.

    rclone 1.75.1 lists when an object was written, and its HEAD gives when the request, or the upload in parts, began.

    Raises:
        ObjectNotFoundError: there is no object.
        StoreError: the store failed.

    """
    found = next(iter(store.list(key)), None)
    if found is None or found.key != key:  # what is longer comes later
        raise ObjectNotFoundError(f"{store.url}/{key} does not exist", key=key)
    return found


def length_of(store: ObjectStore, key: str) -> int | None:
    """Return the length of an object; None if it does not exist.

    Raises:
        StoreError: the store failed.

    """
    try:
        return store.head(key).size_bytes
    except ObjectNotFoundError:
        return None


def check_key(key: str) -> None:
    """Refuse keys that some store cannot hold, would rename, or would list differently.

    Portable is: ASCII letters and digits and ``!_.*'()=-``, in parts of at most 200 bytes between single slashes, none
    of them ``.`` or ``..``, at most 900 bytes in all. (Spaces, ``+``, ``%``, ``~`` and other characters are decoded,
    normalised or refused by one store or another.) The name of a partition's directory may be as long as Kafka lets it
    be: snapshots must be under it to stand beside the segments of a copy.

    Raises:
        UsageError: ``key`` is not portable.

    """
    for part in key.split("/"):
        problem = _part_problem(part)
        if problem:
            raise UsageError(f"object key {key!r}: {problem}")
    if len(key) > MAX_KEY_BYTES:
        raise UsageError(f"object key {key!r}: expected at most {MAX_KEY_BYTES} bytes, found {len(key)}")


def check_etag(where: str, key: str, *, expected: str | None, found: str) -> None:
    """Refuse a version of an object other than the expected one, if one is expected.

    Raises:
        ObjectChangedError: ``found`` is another etag.

    """
    if expected is not None and found != expected:
        raise object_changed_error(where, key)


def object_changed_error(where: str, key: str) -> ObjectChangedError:
    """Return the error for an object that was replaced."""
    return ObjectChangedError(f"{where}: the object was replaced while it was read", key=key,
                              hint="wait until the other writer has ended, and run again")  # fmt: skip


def check_order(where: str, last: str, key: str) -> str:
    """Return ``key``, which a listing gave after ``last``; a listing out of order may be stale, or repeat a page.

    Raises:
        StoreError: the listing goes back.

    """
    if key <= last:
        raise StoreError(f"{where}: a listing is out of order, {key!r} follows {last!r}",
                         hint="`resnap doctor URL` shows what this store keeps")  # fmt: skip
    return key


def check_range(start: int, end: int | None) -> None:
    """Refuse a range that is not half-open; ``end`` None is the end of the object.

    Raises:
        ValueError: not 0 <= ``start`` <= ``end``.

    """
    if start < 0 or (end is not None and end < start):
        raise ValueError(f"range [{start}, {end}): expected 0 <= start <= end")


def is_safe_path(path: str) -> bool:
    """Whether ``path`` stays below where it starts: relative, no empty part, no ``.`` or ``..``, no NUL."""
    return "\0" not in path and all(part not in {"", ".", ".."} for part in path.split("/"))


def can_be_below(prefix: str) -> bool:
    """Whether a listing of ``prefix`` can hold anything: its folders have names that stay below the root."""
    return all(part not in {"", ".", ".."} for part in prefix.split("/")[:-1])


def body_chunks(
    open_body: BodyOpener, *, size_bytes: int, crc32c: int | None, chunk_bytes: int, key: str
) -> Generator[bytes, None, None]:
    """Yield a body in chunks of exactly ``chunk_bytes``, the last one shorter, and check its length and checksum.

    Every ``put_stream`` reads through this, and completes its object only after the last chunk.

    Raises:
        VerificationError: fewer or more bytes than ``size_bytes``, or another checksum than ``crc32c``.

    """
    read_bytes, computed = 0, 0
    with open_body() as body:
        while chunk := _read_fully(body, chunk_bytes):
            read_bytes += len(chunk)
            computed = continue_crc32c(chunk, computed)
            if read_bytes > size_bytes:
                break
            yield chunk
    hint = "the file changed while it was read; run again: it is skipped while it changes"
    if read_bytes != size_bytes:
        found = "more" if read_bytes > size_bytes else read_bytes
        raise VerificationError(f"{key}: body of another length: expected {size_bytes} bytes, found {found}", hint=hint)
    if crc32c is not None and computed != crc32c:
        raise VerificationError(
            f"{key}: body with another CRC-32C: expected {crc32c:08x}, found {computed:08x}", hint=hint
        )


def _read_fully(body: BinaryIO, size_bytes: int) -> bytes:
    """Read ``size_bytes``, fewer only at the end: pipes and sockets give what they have."""
    chunk = body.read(size_bytes)
    while chunk and len(chunk) < size_bytes:
        more = body.read(size_bytes - len(chunk))
        if not more:
            break
        chunk += more
    return chunk


def _part_problem(part: str) -> str | None:
    if part in {"", ".", ".."}:
        return f"the part {part!r} between slashes: expected a name"
    if not _PORTABLE_PART.fullmatch(part):
        return f"the part {part!r}: expected only ASCII letters, digits and !_.*'()=-"
    if len(part) > MAX_KEY_PART_BYTES and parse_partition_dir_name(part) is None:
        return f"the part {part!r}: expected at most {MAX_KEY_PART_BYTES} bytes, found {len(part)}"
    return None


def key_part(name: str | None) -> str:
    """Return ``name`` as a part of a key, ``none`` for None; different names give different parts.

    Raises:
        ValueError: ``name`` is empty.

    """
    if name is None:
        return UNKNOWN
    if not name:
        raise ValueError("an empty name cannot be part of a key; a name that is not known is None")
    raw = name.encode()
    escaped = raw.decode("latin-1").translate(_ESCAPES)
    if name in _RESERVED:  # what would mean something else as a part of a key: its first letter is escaped, too
        escaped = f"={raw[0]:02X}{escaped[1:]}"
    return escaped if len(escaped) <= MAX_KEY_PART_BYTES else _shorten(escaped, raw)


def _shorten(escaped: str, raw: bytes) -> str:
    front = escaped[:_FRONT_BYTES]
    cut_escape = front.rfind("=", _FRONT_BYTES - 2)
    if cut_escape >= 0:
        front = front[:cut_escape]
    return f"{front}=sha256-{hashlib.sha256(raw).hexdigest()}"
