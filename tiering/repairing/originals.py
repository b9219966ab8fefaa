"""The originals that a repair has replaced, saved in the store so that they can be restored.

    .resnap/repaired/<run>/<number, 8 digits>/!record      what is replaced by what, in which order
    .resnap/repaired/<run>/<number, 8 digits>/<n>          the original of the n-th object, where there was one
    .resnap/repaired/<run>/<number, 8 digits>/done         all of it was replaced
    .resnap/repaired/<run>/<number, 8 digits>/undone       it is being put back, and whoever finds it goes on with it

Originals are written first, then the record, then the replacements, then ``done``. A record without ``done`` is from a
killed run: its replacements are undone before anything else is done to the segment. Names sort so that a deletion in
key order deletes the record first: without it the other objects are not used. While a record exists, nothing that it
names is garbage.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resnap.storage.disk import FileDigest
from resnap.storage.errors import FormatError, ObjectNotFoundError, in_file
from resnap.storage.json_values import checked_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

REPAIRED: Final = ".resnap/repaired"
RECORD: Final = "!record"
DONE: Final = "done"
UNDONE: Final = "undone"
_KEY = re.compile(
    rf"{re.escape(REPAIRED)}/(?P<run>[0-9A-Za-z-]+)/(?P<number>[0-9]{{8}})/(?P<name>!record|(?:un)?done|[0-9]+)"
)
_VERSION: Final = 1
_DAMAGED: Final = "record of a repair"


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """The replacement of one object; a manifest counts without a claim."""

    key: str
    old: FileDigest | None
    """None where there was none."""
    new: FileDigest
    """The same as ``old`` of an object that stays, and that nothing names any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacements:
    """The replacements in one segment."""

    manifest_key: str
    """What makes the segment visible."""
    lease: str
    """The name of its partition's lease."""
    topic: str
    partition: int
    base_offset: int
    changes: tuple[ObjectChange, ...]
    """In the order in which they are made."""


class Folder(NamedTuple):
    """The folder of a record and its objects, as one listing shows it."""

    path: str
    infos: tuple[ObjectInfo, ...]

    @property
    def names(self) -> frozenset[str]:
        """Names of all objects in it."""
        return frozenset(info.key.rpartition("/")[2] for info in self.infos)

    @property
    def run(self) -> str:
        """The run that made it."""
        return self.path.split("/")[-2]

    @property
    def is_unfinished(self) -> bool:
        """Whether a run was killed, or is still working."""
        return RECORD in self.names and (DONE not in self.names or UNDONE in self.names)


def folders(infos: Iterable[ObjectInfo]) -> list[Folder]:
    """Return the folders of records among ``infos``, which are in order of key."""
    found: dict[str, list[ObjectInfo]] = {}
    for info in infos:
        if _KEY.fullmatch(info.key):
            found.setdefault(info.key.rpartition("/")[0], []).append(info)
    return [Folder(path, tuple(inside)) for path, inside in found.items()]


def folders_in(store: ObjectStore, run: str | None = None) -> list[Folder]:
    """Return the folders of ``run``, or of all runs, in ``store``.

    Raises:
        StoreError: the store failed.

    """
    return folders(store.list(f"{REPAIRED}/" if run is None else f"{REPAIRED}/{run}/"))


def named_by_records(store: ObjectStore, found: Iterable[Folder]) -> frozenset[str]:
    """Return the keys that the records in ``found`` name; a damaged record can never be undone, and names nothing.

    Raises:
        StoreError: the store failed.

    """
    keys: set[str] = set()
    for folder in found:
        if RECORD in folder.names:
            with suppress(FormatError, ObjectNotFoundError):
                keys |= {change.key for change in read_record(store, folder.path).changes}
    return frozenset(keys)


def write_record(record: Replacements) -> bytes:
    """Return the object that holds ``record``."""
    return checked_json(_VERSION, "record", asdict(record))


def read_record(store: ObjectStore, folder: str) -> Replacements:
    """Return the record in ``folder``.

    Raises:
        FormatError: it is damaged, or has a later version; the hint says what to do.
        ObjectNotFoundError: there is none.
        StoreError: the store failed.

    """
    key = f"{folder}/{RECORD}"
    data = store.get(key)
    version = None
    try:
        values = json.loads(data)
        version = values["version"]
        fields = values["record"]
        if data == checked_json(_VERSION, "record", fields):
            return Replacements(**fields | {"changes": tuple(_change(change) for change in fields["changes"])})
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    with in_file(f"{store.url}/{key}"):
        if isinstance(version, int) and version > _VERSION:
            hint = "`resnap repair` of the release that wrote it finishes it"
            raise FormatError(
                "version of the record of a repair", position=0, expected=_VERSION, found=version, hint=hint
            )
        raise FormatError(
            _DAMAGED, position=0, expected="what its checksum covers", found="something else",
            hint="what its run has replaced cannot be put back by it, and is repaired like anything else; `resnap gc"
            f" {store.url} --delete` deletes it with its originals, once it is older than --older-than",
        )  # fmt: skip


def is_lost(store: ObjectStore, folder: Folder) -> bool:
    """Whether the record in ``folder`` is damaged, so that nothing will ever be put back by it.

    Raises:
        StoreError: the store failed.

    """
    try:
        read_record(store, folder.path)
    except FormatError as error:
        return error.what == _DAMAGED
    except ObjectNotFoundError:
        pass
    return False


def current(store: ObjectStore, key: str) -> Version:
    """Return the current object at ``key``.

    Raises:
        StoreError: the store failed.

    """
    try:
        info = store.head(key)
        return Version(store.get_range(key, 0, info.size_bytes, etag=info.etag), info.etag)
    except ObjectNotFoundError:
        return Version(None, None)


class Version(NamedTuple):
    """An object as it was read; both fields are None if there is none."""

    body: bytes | None
    etag: str | None

    @property
    def digest(self) -> FileDigest | None:
        """The digest of its bytes."""
        return None if self.body is None else FileDigest.of(self.body)


def runs(found: Iterable[Folder]) -> Iterator[str]:
    """Yield the runs of ``found``, each once."""
    yield from dict.fromkeys(folder.run for folder in found)


def _change(values: Any) -> ObjectChange:  # noqa: ANN401 - JSON
    old = None if values["old"] is None else FileDigest(**values["old"])
    return ObjectChange(values["key"], old, FileDigest(**values["new"]))
