"""Replaces objects of a store one after the other, so that an interrupted repair can always be undone.

Each object is replaced whole, on condition that it still has the version that was read, if the store supports that; and
is read back, since a store may report success and keep something else.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

from resnap.storage.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ResnapError,
    VerificationError,
)
from resnap.storage.stores.protocol import length_of
from resnap.tiering.repairing.originals import (
    DONE,
    RECORD,
    REPAIRED,
    Change,
    Digest,
    Version,
    current,
    read_record,
    write_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.layouts.segments import Rewritten
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.repairing.originals import Folder, Record


class NotUndoneError(VerificationError):
    """A repair cannot be undone."""


class SegmentGoneError(NotUndoneError):
    """Retention, or another process, has deleted the segment since."""


@dataclass(slots=True, kw_only=True)
class Versions:
    """The objects of a segment as first read; all later steps refer to these versions."""

    store: ObjectStore
    _read: dict[str, Version] = field(default_factory=dict)

    def of(self, key: str) -> Version:
        """Return the version at ``key``."""
        if key not in self._read:
            self._read[key] = current(self.store, key)
        return self._read[key]

    def body(self, key: str) -> bytes:
        """Return the object at ``key``.

        Raises:
            ObjectNotFoundError: there is none.

        """
        found = self.of(key).body
        if found is None:
            raise ObjectNotFoundError(f"{self.store.url}/{key}: no such object", key=key)
        return found


@dataclass(slots=True, kw_only=True)
class Replacer:
    """Replaces objects for one run."""

    store: ObjectStore
    run: str
    is_conditional: bool
    """Whether the store supports replacing one version only."""
    hold_lease: Callable[[], None] = lambda: None
    """Called before each step, and raises if another run is, or may be, at work on the partition."""
    _numbers: Iterator[int] = field(default_factory=count)
    _torn: set[str] = field(default_factory=set)
    """Keys of what has just come back as other bytes than were written: what lies there is not used."""

    def replace(self, record: Record, rewritten: Rewritten, versions: Versions) -> Record | None:
        """Write the objects in ``rewritten`` of a segment, and return what was replaced; None if nothing changes.

        ``record`` names the segment; its changes are filled in here.

        Raises:
            LockedError: another run is at work on the partition.
            ObjectChangedError, ObjectNotFoundError: an object was replaced or deleted since it was read.
            VerificationError: an object differs when read back.
            StoreError: the store refused or failed; the replaced objects are restored, now or by the next run.

        """
        writes = [one for one in rewritten.writes if versions.of(one[0]).body != one[1]]
        if not writes:
            return None
        if length_of(self.store, record.manifest_key) is None:
            raise ObjectNotFoundError(f"{record.manifest_key}: was deleted meanwhile", key=record.manifest_key)
        stays = [(key, body) for key in rewritten.replaced if (body := versions.of(key).body) is not None]
        changes = [Change(key, versions.of(key).digest, Digest.of(body)) for key, body in (*stays, *writes)]
        folder = f"{REPAIRED}/{self.run}/{next(self._numbers):08d}"
        record = replace(record, changes=tuple(changes))
        for number, change in enumerate(changes):
            if (original := versions.of(change.key).body) is not None:
                self._put(f"{folder}/{number}", original)
        self._put(f"{folder}/{RECORD}", write_record(record))
        try:
            for key, body in writes:
                self._write(key, body, versions.of(key))
        except ResnapError:
            with suppress(ResnapError):  # else the next run does it
                self.put_back(folder, record)
            self._torn.clear()  # later it may be in use
            raise
        self._put(f"{folder}/{DONE}", b"")
        return record

    def put_back(self, folder: str, record: Record) -> None:
        """Restore the originals in ``folder``, last change first, and delete the folder; restored ones are skipped.

        Raises:
            SegmentGoneError: the segment no longer exists.
            NotUndoneError: an object has changed since, or its original is missing; nothing was restored.
            LockedError: another run is at work on the partition.
            StoreError: the store refused or failed.

        """
        if length_of(self.store, record.manifest_key) is None:
            raise SegmentGoneError(f"{record.manifest_key} was deleted since: its segment is not restored")
        found = enumerate((change, current(self.store, change.key)) for change in record.changes)
        changed = [
            (number, change, now)
            for number, (change, now) in found
            if change.key in self._torn or _is_to_be_put_back(change, now, f"{folder}/{number}")
        ]
        back = [(change, now, self._original(folder, number, change)) for number, change, now in changed]
        stays = [one for one in back if one[0].old == one[0].new]
        # What an old manifest names comes before it.
        for change, now, original in (*stays, *(one for one in back[::-1] if one not in stays)):
            if original is not None:
                self._write(change.key, original, now)
            else:
                self.hold_lease()
                self.store.delete(change.key)
        self.forget(folder)

    def forget(self, folder: str) -> None:
        """Delete ``folder``, its record first."""
        for info in list(self.store.list(f"{folder}/")):
            self.hold_lease()
            self.store.delete(info.key)

    def undo(self, folder: Folder) -> Record:
        """Restore the originals in ``folder``, and return the record.

        Raises:
            FormatError: the record is damaged.
            NotUndoneError, LockedError, StoreError: as ``put_back``.

        """
        record = read_record(self.store, folder.path)
        self.put_back(folder.path, record)
        return record

    def _original(self, folder: str, number: int, change: Change) -> bytes | None:
        if change.old is None:
            return None
        try:
            body = self.store.get(f"{folder}/{number}")
        except ObjectNotFoundError as error:
            what = f"{change.key}: its original, {folder}/{number}, is gone: undo is no longer possible"
            raise NotUndoneError(what, hint="`resnap gc` deletes originals that are older than --older-than") from error
        if Digest.of(body) != change.old:
            raise NotUndoneError(f"{change.key}: its original, {folder}/{number}, is damaged")
        return body

    def _write(self, key: str, body: bytes, found: Version) -> None:
        """Write an object in place of the version ``found``."""
        self.hold_lease()
        try:
            if not self.is_conditional:
                self.store.put(key, body)
            elif found.etag is None:
                self.store.put(key, body, if_absent=True)
            else:
                self.store.replace(key, body, etag=found.etag)
        except (ObjectChangedError, ObjectExistsError):
            # After a lost answer our own second attempt finds our first.
            if current(self.store, key).body != body:
                raise
        self._read_back(key, body)

    def _put(self, key: str, body: bytes) -> None:
        self.hold_lease()
        self.store.put(key, body)
        self._read_back(key, body)

    def _read_back(self, key: str, body: bytes) -> None:
        if current(self.store, key).body != body:
            self._torn.add(key)
            raise VerificationError(f"{self.store.url}/{key}: the bytes read back differ from those written",
                                    hint="`resnap doctor URL` shows what this store keeps")  # fmt: skip


def _is_to_be_put_back(change: Change, now: Version, original: str) -> bool:
    """Whether an object must be restored; False if it is the original.

    Raises:
        NotUndoneError: it is neither the original nor the repaired object.

    """
    if now.digest == change.old:
        return False
    if now.digest == change.new or (now.digest is None and change.old == change.new):
        return True
    if now.digest is None:
        raise NotUndoneError(f"{change.key} is gone: retention, or another process, has deleted it")
    raise NotUndoneError(f"{change.key} has changed since: undo first what was repaired later",
                         hint=f"undo later runs first; the original lies in {original}")  # fmt: skip
