"""Replaces objects of a store one after the other, so that an interrupted repair can always be undone.

Each object is replaced whole, on condition that it still has the version that was read, if the store supports that; and
is read back, since a store may report success and keep something else.

A run may be stopped or killed before any request, and the request may come late, when another run has done all of its
work. So whoever changes a segment, to repair it or to put it back, first takes its manifest by a claim
(``storage.layouts.manifest``), and then makes sure that the record is still there and valid. Only then it touches
objects, and at the end it replaces its claim by the manifest. A claimed manifest is taken only to put back what its
record names. New objects have keys or bytes that no other attempt has. So of what comes late, a claim says what the
manifest says, a manifest is refused, and an object is one that nothing names.

Where brokers tiered without a manifest there is nothing to claim: each object stands for itself. What is put back is
written again even where it is unchanged, so that it has a new version, and a late write to it is refused.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.disk import FileDigest
from resnap.storage.errors import (
    LockedError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ResnapError,
    StoreAccessError,
    VerificationError,
)
from resnap.storage.layouts.manifest import TOMBSTONE, claim_of, is_manifest, without_claim
from resnap.tiering.repairing.originals import (
    DONE,
    RECORD,
    REPAIRED,
    UNDONE,
    ObjectChange,
    Version,
    current,
    folders_in,
    named_by_records,
    write_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.layouts.segments import Rewritten
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.repairing.originals import Replacements


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


class _Original(NamedTuple):
    """An object that is put back, as it is now and as it was."""

    change: ObjectChange
    now: Version
    body: bytes | None
    """None where there was none."""


class _Claimed(NamedTuple):
    """A claimed manifest, and what it is to be."""

    key: str
    body: bytes
    held: Version
    """The claim."""


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
    """Keys of what has just come back as other bytes than were written: what is there is not used."""

    def replace(self, record: Replacements, rewritten: Rewritten, versions: Versions) -> Replacements | None:
        """Write the objects in ``rewritten`` of a segment, and return what was replaced; None if nothing changes.

        ``record`` names the segment; its changes are filled in here.

        Raises:
            LockedError: another run is at work on the partition.
            ObjectChangedError, ObjectNotFoundError: an object was replaced or deleted since it was read.
            VerificationError: an object differs when read back.
            StoreError: the store refused or failed; the replaced objects are restored, now or by the next run.

        """
        writes = [pair for pair in rewritten.writes if versions.of(pair[0]).body != pair[1]]
        if not writes:
            return None
        key = record.manifest_key
        stays = [(key, body) for key in rewritten.replaced if (body := versions.of(key).body) is not None]
        found = {key: versions.of(key).body for key, _ in (*stays, *writes)}
        if (manifest := found.get(key)) is not None:
            found[key] = without_claim(manifest)
        changes = [
            ObjectChange(key, Version(found[key], None).digest, FileDigest.of(body)) for key, body in (*stays, *writes)
        ]
        folder = f"{REPAIRED}/{self.run}/{next(self._numbers):08d}"
        record = replace(record, changes=tuple(changes))
        self._check_free(record, versions)
        for number, change in enumerate(changes):
            if (original := found[change.key]) is not None:
                self._put(f"{folder}/{number}", original)
        self._put(f"{folder}/{RECORD}", write_record(record))
        claim = None if manifest is None else claim_of(manifest)
        try:
            held = self._take(folder, record, claim, versions)
            for write_key, body in writes:
                self._write(write_key, body, held if write_key == key else versions.of(write_key))
        except ResnapError:
            with suppress(ResnapError):  # else the next run does it
                now = self._makes_visible(record)
                if key in self._torn or claim in {None, now.body}:
                    self.put_back(folder, record)
                elif now == versions.of(key):
                    self.forget(folder)
            self._torn.clear()  # later it may be in use
            raise
        self._put(f"{folder}/{DONE}", b"")
        return record

    def _makes_visible(self, record: Replacements) -> Version:
        """Return what makes a segment visible; without its bytes where they stay, since that can be a whole log."""
        if any(change.key == record.manifest_key for change in record.changes):
            return current(self.store, record.manifest_key)
        try:
            return Version(b"", self.store.head(record.manifest_key).etag)
        except ObjectNotFoundError:
            return Version(None, None)

    def _check_free(self, record: Replacements, versions: Versions) -> None:
        """Check that the segment exists, and no run is changing it; a claim that no record explains has come late."""
        key = record.manifest_key
        found = self._makes_visible(record)
        if _is_gone(found):
            raise ObjectNotFoundError(f"{key}: was deleted meanwhile", key=key)
        manifest = (versions.of(key).body or b"") if found.body else b""
        if without_claim(manifest) != manifest:
            unfinished = [folder for folder in folders_in(self.store) if folder.is_unfinished]
            if key in named_by_records(self.store, unfinished):
                raise _taken_error(key)

    def _take(self, folder: str, record: Replacements, claim: bytes | None, versions: Versions) -> Version:
        """Claim the manifest if ``claim`` is given, and check that no other run has changed ``folder``."""
        key = record.manifest_key
        held = Version(None, None) if claim is None else self._write(key, claim, versions.of(key))
        if self._names(folder) != _replaceable_names(record):
            if claim is not None:
                self._write(key, without_claim(claim), held)
            raise _taken_error(key)
        return held

    def put_back(self, folder: str, record: Replacements) -> None:
        """Restore the originals in ``folder``, last change first, and delete the folder.

        Raises:
            SegmentGoneError: the segment no longer exists.
            NotUndoneError: an object has changed since, or its original is missing; nothing was restored.
            LockedError: another run is at work on the partition.
            StoreError: the store refused or failed.

        """
        key = record.manifest_key
        found = self._makes_visible(record)
        if _is_gone(found):
            raise SegmentGoneError(f"{key} was deleted since: its segment is not restored")
        number = next((number for number, change in enumerate(record.changes) if change.key == key), None)
        names = self._names(folder)
        try:
            if not (names & {DONE, UNDONE} or names >= _replaceable_names(record)):
                self.forget(folder)  # nothing was replaced after it
            elif number is None:
                self._restore(folder, self._to_restore(folder, record))
            elif (manifest := self._manifest(folder, number, record.changes[number], found)) is None:
                self.forget(folder)
            else:
                self._restore_claimed(folder, record, manifest, found)
        except (ObjectChangedError, ObjectExistsError) as error:
            raise _taken_error(key) from error

    def _restore_claimed(self, folder: str, record: Replacements, manifest: bytes, found: Version) -> None:
        key = record.manifest_key
        held = self._write(key, claim_of(manifest), found)
        try:
            if RECORD not in self._names(folder):
                raise _taken_error(key)
            back = self._to_restore(folder, record)
            number, change = next(numbered for numbered in enumerate(record.changes) if numbered[1].key == key)
            is_old = FileDigest.of(manifest) == change.old
            original = manifest if is_old else self._original(folder, number, change) or b""
        except ResnapError:
            self._write(key, manifest, held)
            raise
        self._restore(folder, back, _Claimed(key, original, held))

    def _manifest(self, folder: str, number: int, change: ObjectChange, found: Version) -> bytes | None:
        """Return the manifest that is there, or must be; None if what ``folder`` records was never done, or is undone.

        Raises:
            NotUndoneError: it is neither the original nor the repaired one.

        """
        manifest = without_claim(found.body or b"")
        if FileDigest.of(manifest) in {change.old, change.new}:
            return manifest
        if not is_manifest(manifest) and change.key in self._torn:
            return self._original(folder, number, change)
        names = self._names(folder)
        if is_manifest(manifest) and (DONE not in names or UNDONE in names):
            return None
        raise _changed_error(change, f"{folder}/{number}")

    def _to_restore(self, folder: str, record: Replacements) -> list[_Original]:
        """Return the objects to write, without the manifest: also those that are unchanged, and could yet be changed.

        Raises:
            NotUndoneError: one is neither the original nor the repaired object, or its original is missing.

        """
        back = []
        for number, change in enumerate(record.changes):
            now = current(self.store, change.key)
            if change.key == record.manifest_key:
                continue
            if change.key in self._torn or _is_to_be_put_back(change, now, f"{folder}/{number}"):
                back.append(_Original(change, now, self._original(folder, number, change)))
            elif now.body is not None and change.old != change.new:
                back.append(_Original(change, now, now.body))
        return back

    def _restore(self, folder: str, back: list[_Original], manifest: _Claimed | None = None) -> None:
        """Write all of ``back``, and the manifest before what only the repaired one names."""
        self._put(f"{folder}/{UNDONE}", b"")
        stays = [original for original in back if original.change.old == original.change.new]
        for original in stays:
            self._restore_object(original)
        if manifest is not None:
            manifest = manifest._replace(held=self._write(manifest.key, claim_of(manifest.body), manifest.held))
        for original in back[::-1]:
            if original not in stays:
                self._restore_object(original)
        if manifest is not None:
            self._write(manifest.key, manifest.body, manifest.held)
        self.forget(folder)

    def _restore_object(self, one: _Original) -> None:
        if one.body is not None and one.body == one.now.body:
            with suppress(StoreAccessError):  # locked: no late request changes it either
                self._write(one.change.key, one.body, one.now)
        elif one.body is not None:
            self._write(one.change.key, one.body, one.now)
        else:
            self.hold_lease()
            self.store.delete(one.change.key)

    def drop(self, folder: str, record: Replacements) -> None:
        """Delete ``folder``, after whatever may be putting its originals back was kept from it.

        Raises:
            LockedError: another run is at work on the partition.
            StoreError: the store refused or failed.

        """
        key = record.manifest_key
        found = self._makes_visible(record)
        manifest = without_claim(found.body or b"")
        if _is_gone(found) or key not in {change.key for change in record.changes} or not is_manifest(manifest):
            self.forget(folder)
            return
        try:
            held = self._write(key, claim_of(manifest), found)
            self.forget(folder)
            self._write(key, manifest, held)
        except (ObjectChangedError, ObjectExistsError) as error:
            raise _taken_error(key) from error

    def forget(self, folder: str) -> None:
        """Delete ``folder``, its record first."""
        for info in list(self.store.list(f"{folder}/")):
            self.hold_lease()
            self.store.delete(info.key)

    def _names(self, folder: str) -> frozenset[str]:
        return frozenset(info.key.rpartition("/")[2] for info in self.store.list(f"{folder}/"))

    def _original(self, folder: str, number: int, change: ObjectChange) -> bytes | None:
        if change.old is None:
            return None
        try:
            body = self.store.get(f"{folder}/{number}")
        except ObjectNotFoundError as error:
            what = f"{change.key}: its original, {folder}/{number}, is gone: undo is no longer possible"
            raise NotUndoneError(what, hint="`resnap gc` deletes originals that are older than --older-than") from error
        if FileDigest.of(body) != change.old:
            raise NotUndoneError(f"{change.key}: its original, {folder}/{number}, is damaged")
        return body

    def _write(self, key: str, body: bytes, found: Version) -> Version:
        """Write an object in place of the version ``found``, and return the new one."""
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
        return self._read_back(key, body)

    def _put(self, key: str, body: bytes) -> None:
        self.hold_lease()
        self.store.put(key, body)
        self._read_back(key, body)

    def _read_back(self, key: str, body: bytes) -> Version:
        found = current(self.store, key)
        if found.body != body:
            self._torn.add(key)
            raise VerificationError(f"{self.store.url}/{key}: the bytes read back differ from those written",
                                    hint="`resnap doctor URL` shows what this store keeps")  # fmt: skip
        return found


def _is_gone(manifest: Version) -> bool:
    """Whether a segment was deleted: a tombstone is all that `retain` leaves of it."""
    return manifest.body is None or manifest.body == TOMBSTONE


def _replaceable_names(record: Replacements) -> frozenset[str]:
    """Return the names in a folder whose replacements may begin."""
    return frozenset({RECORD, *(str(number) for number, change in enumerate(record.changes) if change.old is not None)})


def _taken_error(key: str) -> LockedError:
    return LockedError(f"{key}: another run replaces objects of the segment",
                       hint="run again once it is done: what a killed run has left is put back first")  # fmt: skip


def _is_to_be_put_back(change: ObjectChange, now: Version, original: str) -> bool:
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
    raise _changed_error(change, original)


def _changed_error(change: ObjectChange, original: str) -> NotUndoneError:
    return NotUndoneError(f"{change.key} has changed since: undo first what was repaired later",
                          hint=f"undo later runs first; the original lies in {original}")  # fmt: skip
