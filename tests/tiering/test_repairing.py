"""The replacing of stored objects, ended after each write, and in stores that lie, lock or lose, in every layout."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

import pytest

from resnap.storage.crc32c import crc32c
from resnap.storage.encryption import NO_KEYS
from resnap.storage.errors import ObjectChangedError, StoreAccessError, VerificationError
from resnap.storage.layouts.aiven.manifest import INDEX_NAMES
from resnap.storage.layouts.aiven.manifest import read_manifest as read_aiven
from resnap.storage.layouts.local_tiered import object_key as brokers_key
from resnap.storage.layouts.manifest import ObjectKind, SnapshotHow, SnapshotOrigin, read_manifest, write_manifest
from resnap.storage.log.checkpoints import LeaderEpoch
from resnap.storage.log.indexes import AbortedTxn, write_transaction_index
from resnap.storage.log.names import TopicPartition
from resnap.storage.sources.registry import layout_in
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.tiering.repairing.originals import REPAIRED, Folder, Replacements, folders_in, read_record
from resnap.tiering.repairing.replacing import NotUndoneError, Replacer, Versions
from tests.storage.layouts.manifests import a_manifest, an_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.storage.crc32c import Buffer
    from resnap.storage.layouts.segments import Rewritten
    from tests.fixture_sets import FixtureSet

TOPIC_ID: Final = "lZ6vvmajTWKDBUTV6SQAtQ"
SETS: Final = {"plugin": "kafka-3.9.1-aiven-plain", "brokers": "kafka-3.9.1-tiered"}
PARTS: Final = {
    ObjectKind.SNAPSHOT: b"a right snapshot",
    ObjectKind.TXN_INDEX: write_transaction_index([AbortedTxn(7, 1, 3, 4)]),
}
ORIGIN: Final = SnapshotOrigin(
    how=SnapshotHow.REGENERATED,
    as_of="roll",
    as_of_ms=1,
    window_start_offset=0,
    producer_id_expiration_ms=1,
    check_interval_ms=1,
    entries_count=1,
)
RECORD: Final = Replacements(manifest_key="m", lease="none/t/0", topic="t", partition=0, base_offset=0, changes=())


class Killed(BaseException):
    """What ends a process ends all it would have done."""


class Ending(MemoryObjectStore):
    """Takes ``left`` writes, the last of which is not acknowledged, and none after that."""

    left = 1_000_000

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        self._count()
        super().put(key, body, if_absent=if_absent)
        self._end()

    def replace(self, key: str, body: Buffer, *, etag: str) -> None:
        self._count()
        super().replace(key, body, etag=etag)
        self._end()

    def delete(self, key: str, *, etag: str | None = None) -> None:
        self._count()
        super().delete(key, etag=etag)
        self._end()

    def _count(self) -> None:
        if self.left <= 0:
            raise Killed
        self.left -= 1

    def _end(self) -> None:
        if self.left <= 0:
            raise Killed


def undo(replacer: Replacer, folder: Folder) -> None:
    replacer.put_back(folder.path, read_record(replacer.store, folder.path))


def contents(store: MemoryObjectStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list()}


@pytest.fixture(params=["flat", "local-tiered", *SETS])
def files(request: pytest.FixtureRequest, fixture_set: Callable[[str], FixtureSet]) -> dict[str, bytes]:
    """The objects of one segment that has a transaction index, in each layout."""
    if request.param in SETS:
        root = fixture_set(SETS[request.param]).remote
        log = min(path for path in root.rglob("*.log") if "payments" in str(path))
        beside = log.parent.glob(f"{log.stem}.*")
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(beside)}
    return manifested(request.param)


def manifested(layout: str) -> dict[str, bytes]:
    """Return a segment with a manifest of ours, its objects beside it or where brokers read them."""
    assert layout in {"flat", "local-tiered"}
    segment_id = UUID("6f8e0d8e-0000-5000-8000-000000000000")
    stem = f"none/payments/{TOPIC_ID}/0/{0:020d}-{segment_id}"
    brokers = partial(brokers_key, TopicPartition("payments", 0), TOPIC_ID, 0, segment_id)
    bodies = {
        brokers(kind) if layout == "local-tiered" else f"{stem}.{kind}": f"the old {kind}".encode()
        for kind in ObjectKind
    }
    objects = tuple(
        an_object(kind, key=key, size_bytes=len(body), sha256=sha256(body).hexdigest(), crc32c=crc32c(body))
        for kind, (key, body) in zip(ObjectKind, bodies.items(), strict=True)
    )
    manifest = a_manifest(
        cluster_id=None,
        topic="payments",
        topic_id=TOPIC_ID,
        partition=0,
        base_offset=0,
        leader_epochs=(LeaderEpoch(0, 0),),
        segment_id=segment_id,
        objects=objects,
    )
    return {**bodies, f"{stem}.manifest": write_manifest(manifest)}


class Case:
    """A store with one segment, and what it is to become."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.store = Ending(f"repairing-{uuid4().hex}")
        for key, body in files.items():
            self.store.put(key, body)
        self.layout = layout_in(self.store)
        listing = self.layout.listing(self.store, lambda _: True)
        (self.key,) = listing.manifests
        self.replacer = Replacer(store=self.store, run="run-1", is_conditional=True)

    def replacements(self, versions: Versions) -> Rewritten:
        return self.layout.replacements(versions.body, self.key, PARTS, ORIGIN, NO_KEYS)

    def replace(self) -> Replacements | None:
        versions = Versions(store=self.store)
        return self.replacer.replace(replace(RECORD, manifest_key=self.key), self.replacements(versions), versions)

    def put_back_unfinished(self) -> None:
        for folder in folders_in(self.store):
            if folder.is_unfinished:
                undo(self.replacer, folder)

    def segment(self) -> dict[str, bytes]:
        """Return all but what repairs keep."""
        return {key: body for key, body in contents(self.store).items() if not key.startswith(REPAIRED)}

    def read(self) -> dict[ObjectKind, bytes]:
        """Return what a reader of the manifest finds now."""
        if self.layout.name == "local-tiered":
            stem = self.key.removesuffix("log")
            return {kind: self.store.get(f"{stem}{kind}") for kind in PARTS}
        if self.layout.name == "flat":
            manifest = read_manifest(self.store.get(self.key))
            return {kind: self.store.get(entry.key) for kind in PARTS if (entry := manifest.object(kind))}
        aiven = read_aiven(self.store.get(self.key))
        indexes = self.store.get(self.key.replace(".rsm-manifest", ".indexes"))
        ranges = {kind: aiven.indexes[INDEX_NAMES[kind]] for kind in PARTS}
        return {kind: b"" if one is None else indexes[one.position :][: one.size] for kind, one in ranges.items()}


def test_whatever_ends_it_each_reader_finds_old_or_new_and_the_next_run_does_the_rest(files: dict[str, bytes]) -> None:
    whole = Case(files)
    old = whole.read()
    before = whole.segment()
    assert whole.replace() is not None
    written = 1_000_000 - whole.store.left - len(files)
    assert whole.read() == PARTS
    assert whole.replace() is None, "a second run has nothing to do"
    assert written > 4
    for left in range(written):
        case = Case(files)
        case.store.left = left
        with pytest.raises(Killed):
            case.replace()
        found = case.read()
        assert all(found[kind] in {old.get(kind), PARTS[kind]} for kind in PARTS)
        if case.layout.name != "local-tiered" and "kafka-tiered-storage" not in str(list(files)):
            assert found in (old, PARTS), "never a mixture where one object makes all of it visible"
        for again in range(written):  # putting back may be ended, too
            case.store.left = again
            try:
                case.put_back_unfinished()
            except Killed:
                continue
            break
        case.store.left = 1_000_000
        case.put_back_unfinished()
        assert case.segment() == before or case.read() == PARTS
        case.replace()
        assert case.read() == PARTS


def test_undo_brings_every_byte_back_whatever_ends_it(files: dict[str, bytes]) -> None:
    for left in range(30):
        case = Case(files)
        before = contents(case.store)
        assert case.replace() is not None
        (folder,) = folders_in(case.store)
        case.store.left = left
        try:
            undo(case.replacer, folder)
        except Killed:
            case.store.left = 1_000_000
            for one in folders_in(case.store):
                if "!record" in one.names:
                    undo(case.replacer, one)
            assert case.segment() == before
            continue
        assert contents(case.store) == before
        return
    raise AssertionError("undo has no end")


def test_a_reader_with_the_old_manifest_finds_what_it_names(files: dict[str, bytes]) -> None:
    case = Case(files)
    if "kafka-tiered-storage" in str(list(files)):
        return  # each object is replaced whole, where brokers read it
    manifest = case.store.get(case.key)
    old = case.read()
    assert case.replace() is not None
    case.store.put(case.key, manifest)
    assert case.read() == old


def test_the_log_of_a_segment_is_not_read_to_repair_it_and_to_undo_that(
    files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(files)
    read: list[str] = []
    get_range = case.store.get_range

    def noted(key: str, start: int, end: int, *, etag: str | None = None) -> bytes:
        read.append(key)
        return get_range(key, start, end, etag=etag)

    monkeypatch.setattr(case.store, "get_range", noted)
    assert case.replace() is not None
    (folder,) = folders_in(case.store)
    undo(case.replacer, folder)
    assert read, "what is replaced must be read"
    assert not [key for key in read if key.endswith(".log")], "it may have a gibibyte"


def test_what_changed_since_it_was_read_is_left_alone(files: dict[str, bytes]) -> None:
    case = Case(files)
    versions = Versions(store=case.store)
    rewritten = case.replacements(versions)
    key = rewritten.writes[-1][0]
    versions.of(key)
    case.store.put(key, b"somebody else's")
    with pytest.raises(ObjectChangedError):
        case.replacer.replace(replace(RECORD, manifest_key=case.key), rewritten, versions)
    assert case.store.get(key) == b"somebody else's"


def test_a_store_that_keeps_other_bytes_is_noticed_and_all_is_put_back(
    files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(files)
    before = case.segment()
    last = case.replacements(Versions(store=case.store)).writes[-1][0]
    honest = Ending.replace

    def lying(store: Ending, key: str, body: Buffer, *, etag: str) -> None:
        honest(store, key, bytes(body)[:-1] + b"?" if key == last else body, etag=etag)

    with monkeypatch.context() as patched:
        patched.setattr(Ending, "replace", lying)
        with pytest.raises(VerificationError, match="the bytes read back differ"):
            case.replace()
    with pytest.raises(NotUndoneError, match="has changed since"):
        case.put_back_unfinished()
    assert case.segment().keys() >= before.keys()


def test_what_is_locked_ends_the_repair_of_that_segment_and_leaves_it_as_it_was(
    files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(files)
    before = case.segment()
    last, honest = case.replacements(Versions(store=case.store)).writes[-1][0], Ending.replace

    def locked(store: Ending, key: str, body: Buffer, *, etag: str) -> None:
        if key == last:
            raise StoreAccessError("AccessDenied: the object is locked by retention", key=key)
        honest(store, key, body, etag=etag)

    monkeypatch.setattr(Ending, "replace", locked)
    with pytest.raises(StoreAccessError):
        case.replace()
    assert contents(case.store) == before


def test_undo_says_what_has_changed_or_gone_since_and_puts_nothing_back(files: dict[str, bytes]) -> None:
    case = Case(files)
    assert case.replace() is not None
    (folder,) = folders_in(case.store)
    done = contents(case.store)
    for number in range(5):
        case.store.delete(f"{folder.path}/{number}")
    with pytest.raises(NotUndoneError, match="undo is no longer possible"):
        undo(case.replacer, folder)
    assert case.segment().items() <= done.items()
    case.store.delete(case.key)
    with pytest.raises(NotUndoneError, match="was deleted since"):
        undo(case.replacer, folder)
    assert case.key not in contents(case.store)
