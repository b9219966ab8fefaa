"""Repair and undo beside other runs at one segment: each is stopped or killed before each of its requests.

Others do all of their work meanwhile, and the request arrives afterwards, or never. No lease separates them here:
nothing may depend on it. Where a run goes on, it does so without knowing what happened.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import pytest

from resnap.storage.encryption import NO_KEYS
from resnap.storage.errors import ObjectNotFoundError, ResnapError
from resnap.storage.layouts.aiven.manifest import INDEX_NAMES
from resnap.storage.layouts.aiven.manifest import read_manifest as read_aiven
from resnap.storage.layouts.flat.keys import segment_of_manifest
from resnap.storage.layouts.manifest import ObjectKind, read_manifest, without_claim
from resnap.storage.sources.registry import layout_in, layout_named
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.storage.stores.protocol import check_etag
from resnap.tiering.garbage import collect, find_garbage
from resnap.tiering.repairing.originals import RECORD, Replacements, folders_in, read_record
from resnap.tiering.repairing.replacing import Replacer, SegmentGoneError, Versions
from resnap.tiering.retain import Limits, delete_beyond, retention_of
from resnap.tiering.shipping.delivery import Delivery
from resnap.tiering.shipping.segment_copy import copy_segment, publish
from tests.cases import mostly_slow
from tests.storage.layouts.manifests import stored
from tests.tiering.shipping import LATER_MS, UPGRADED, manifest_keys
from tests.tiering.stores import PassingStore
from tests.tiering.test_repairing import ORIGIN, PARTS
from tests.tiering.test_uploader import a_cargo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Literal

    from resnap.storage.crc32c import Buffer
    from resnap.storage.stores.protocol import BodyOpener, ObjectInfo, ObjectStore
    from tests.fixture_sets import FixtureSet
    from tests.tiering.test_uploader import Cargo


class Killed(BaseException):
    """What ends a process ends all it would have done."""


class HashedStore(MemoryObjectStore):
    """Its etags are those of S3: the same bytes have the same one."""

    def head(self, key: str) -> ObjectInfo:
        return _hashed(super().head(key), self.get(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix):
            with suppress(ObjectNotFoundError):
                yield _hashed(info, self.get(info.key))

    def get_range(self, key: str, start: int, end: int, *, etag: str | None = None) -> bytes:
        check_etag(key, key, expected=etag, found=self.head(key).etag)
        return super().get_range(key, start, end)

    def replace(self, key: str, body: Buffer, *, etag: str) -> None:
        check_etag(key, key, expected=etag, found=self.head(key).etag)
        super().replace(key, body, etag=super().head(key).etag)


def _hashed(info: ObjectInfo, body: bytes) -> ObjectInfo:
    from dataclasses import replace  # noqa: PLC0415

    return replace(info, etag=hashlib.md5(body, usedforsecurity=False).hexdigest())


@dataclass
class Stopping(PassingStore):
    """Before its request of this ``number`` takes effect, a run is stopped while ``meanwhile`` happens."""

    number: int
    how: Literal["late", "killed", "lost"]
    """The run goes on; or only this request arrives; or not even that."""
    meanwhile: Callable[[], None]
    counts_reads: bool
    requests: int = 0
    was_stopped: bool = field(default=False)
    is_dead: bool = field(default=False)
    at: str = ""

    def _before(self, what: str) -> None:
        if self.is_dead:
            raise Killed
        if not (self.counts_reads or what.startswith(("PUT", "DELETE"))):
            return
        self.requests += 1
        if self.requests == self.number:
            self.was_stopped, self.at = True, what
            self.meanwhile()
            if self.how == "lost":
                self.is_dead = True
                raise Killed

    def _after(self) -> None:
        if self.how == "killed" and self.requests == self.number:
            self.is_dead = True
            raise Killed

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        self._before(f"PUT {key}")
        super().put(key, body, if_absent=if_absent)
        self._after()

    def replace(self, key: str, body: Buffer, *, etag: str) -> None:
        self._before(f"PUT {key} over {etag}")
        super().replace(key, body, etag=etag)
        self._after()

    def put_stream(self, key: str, open_body: BodyOpener, **facts: Any) -> None:
        self._before(f"PUT {key}")
        super().put_stream(key, open_body, **facts)
        self._after()

    def delete(self, key: str, **facts: Any) -> None:
        self._before(f"DELETE {key}")
        self.inner.delete(key, **facts)
        self._after()

    @contextmanager
    def open(self, key: str, start: int = 0, end: int | None = None) -> Iterator[Iterator[bytes]]:
        self._before(f"GET {key}")
        with super().open(key, start, end) as chunks:
            yield chunks

    def get(self, key: str) -> bytes:
        self._before(f"GET {key}")
        return super().get(key)

    def get_range(self, key: str, start: int, end: int, *, etag: str | None = None) -> bytes:
        self._before(f"GET {key}")
        return super().get_range(key, start, end, etag=etag)

    def head(self, key: str) -> ObjectInfo:
        self._before(f"HEAD {key}")
        return super().head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._before(f"LIST {prefix}")
        return super().list(prefix)


class Scene:
    """One segment in a store, and what runs do at it, with their own code."""

    def __init__(self, layout: str, cargo: Cargo, files: dict[str, bytes], store: ObjectStore) -> None:
        self.store, self.cargo, self.name = store, cargo, layout
        self.runs = count()
        self.has_retained = self.has_collected = False
        for key, body in files.items():
            self.store.put(key, body)
        self.layout = layout_in(self.store)
        (self.key,) = self.layout.listing(self.store, lambda _: True).manifests
        self.before = self.segment()
        self.old = self.read()

    def do(self, store: ObjectStore, what: str) -> None:
        for one in what.split():
            with suppress(ResnapError):
                getattr(self, one)(store)

    def tier(self, store: ObjectStore) -> None:
        """Ship the segment, unless it is there; a run that is stopped has looked before any other began."""
        if self.name != "brokers" and (isinstance(store, Stopping) or not self.visible()):
            tier(store, self.name, self.cargo)

    def replacer(self, store: ObjectStore) -> Replacer:
        return Replacer(store=store, run=f"run-{next(self.runs):04d}", is_conditional=True)

    def repair(self, store: ObjectStore) -> None:
        """Take back what was not finished, and replace what is not right, as the job does."""
        replacer = self.replacer(store)
        for folder in folders_in(store):
            if folder.is_unfinished:
                self._put_back(replacer, store, folder.path)
        keys = [self.key] if self.name == "brokers" else list(self.layout.listing(store, lambda _: True).manifests)
        for key in keys:
            if self.parts(store, key) != PARTS:
                versions = Versions(store=store)
                rewritten = self.layout.replacements(versions.body, key, PARTS, ORIGIN, NO_KEYS)
                record = Replacements(manifest_key=key, lease="l", topic="t", partition=0, base_offset=0, changes=())
                replacer.replace(record, rewritten, versions)

    def undo(self, store: ObjectStore) -> None:
        replacer = self.replacer(store)
        for folder in reversed(folders_in(store)):
            if RECORD in folder.names:
                self._put_back(replacer, store, folder.path, forget=False)

    def _put_back(self, replacer: Replacer, store: ObjectStore, folder: str, *, forget: bool = True) -> None:
        try:
            replacer.put_back(folder, read_record(store, folder))
        except SegmentGoneError:
            if forget:
                replacer.forget(folder)

    def gc(self, store: ObjectStore) -> None:
        self.has_collected = True
        list(collect(store, find_garbage(store, older_than_ms=-60_000), now_ms=0))

    def retain(self, store: ObjectStore) -> None:
        if self.name != "flat":
            return
        self.has_retained = True
        found = [stored(read_manifest(store.get(key)), key) for key in manifest_keys(store)]
        for one in retention_of(found, Limits(age_ms=0), 2 * LATER_MS):
            delete_beyond(store, one, lambda _: None)

    def segment(self) -> dict[str, bytes]:
        """Return all objects but what repairs keep."""
        return {
            info.key: self.store.get(info.key) for info in self.store.list() if not info.key.startswith(".resnap/re")
        }

    def plain(self, segment: dict[str, bytes]) -> dict[str, bytes]:
        """Return what was there before the repair; a late write may leave objects that nothing names, and `gc` deletes.

        Where an object that is back has the etag of before, it may also write behind what manifests name of it.
        """
        before = {key: segment.get(key, b"") for key in self.before}
        if type(self.store) is MemoryObjectStore:
            return before
        said = {key: body for key, body in before.items() if not key.startswith(".resnap/origin/")}
        return {key: without_claim(body)[: len(self.before[key])] for key, body in said.items()}

    def read(self) -> dict[ObjectKind, bytes | None]:
        return self.parts(self.store, self.key)

    def parts(self, store: ObjectStore, key: str) -> dict[ObjectKind, bytes | None]:
        """Return what readers of a manifest find; None for what is not what it names."""
        if self.name == "brokers":
            stem = key.removesuffix("log")
            return {kind: store.get(f"{stem}{kind}") for kind in PARTS}
        if self.name == "aiven":
            manifest, indexes = read_aiven(store.get(key)), store.get(key.replace(".rsm-manifest", ".indexes"))
            ranges = {kind: manifest.indexes[INDEX_NAMES[kind]] for kind in PARTS}
            if manifest.indexes_end > len(indexes):
                return dict.fromkeys(PARTS)
            return {kind: b"" if one is None else indexes[one.position :][: one.size] for kind, one in ranges.items()}
        found: dict[ObjectKind, bytes | None] = {}
        for entry in read_manifest(store.get(key)).objects:
            try:
                body = store.get(entry.key)
            except ObjectNotFoundError:
                body = b""
            is_right = (len(body), hashlib.sha256(body).hexdigest()) == (entry.size_bytes, entry.sha256)
            found[entry.kind] = body if is_right else None
        is_whole = None not in found.values()
        return {kind: found.get(kind) if is_whole else None for kind in PARTS}

    def visible(self) -> list[str]:
        if self.name in {"brokers", "aiven"}:
            return [self.key]
        return [info.key for info in self.store.list() if segment_of_manifest(info)]

    def is_unfinished(self) -> bool:
        return any(one.is_unfinished for one in folders_in(self.store))

    def torn(self, *, is_in_place: bool = False) -> list[str]:
        """Say what names something that is not there, or is something else.

        Where brokers read, a run of ``tier`` that was stopped writes over what was repaired in place: the next repair
        sees to that, too, if ``is_in_place``.
        """
        problems = []
        for key in self.visible():
            found = self.parts(self.store, key)
            is_one = found in (self.old, PARTS)
            if self.name in {"brokers", "local-tiered"} and (self.is_unfinished() or is_in_place):
                continue  # each object is replaced by itself, and the next run sees to it
            if self.name == "brokers":
                is_one = all(found[kind] in {self.old[kind], PARTS[kind]} for kind in PARTS)
            if not is_one:
                problems.append(f"{key} is torn")
        return problems


class Schedule(NamedTuple):
    """What is done before, what is stopped, how it ends, and what is done meanwhile."""

    before: str
    stopped: str
    how: str
    meanwhile: str


def run(schedule: Schedule, make: Callable[[], Scene], *, reads: bool) -> Iterator[str]:
    """Stop the run before each of its requests in turn, of those that write or of all, and yield what is wrong then."""
    was_stopped, number = True, 0
    while was_stopped:
        number += 1
        scene = make()
        scene.do(scene.store, schedule.before)
        meanwhile = partial(scene.do, scene.store, schedule.meanwhile)
        stopping = Stopping(scene.store, number, schedule.how, meanwhile, reads)
        with suppress(Killed):
            scene.do(stopping, schedule.stopped)
        was_stopped = stopping.was_stopped
        yield from (
            f"{schedule}, stopped before {stopping.at}: {problem}" for problem in check(scene, schedule.stopped)
        )


def check(scene: Scene, stopped: str) -> Iterator[str]:
    """Yield what is wrong, then after another run of each verb."""
    is_in_place = stopped == "tier" and scene.name == "local-tiered"
    yield from scene.torn(is_in_place=is_in_place)
    if scene.has_retained:
        scene.do(scene.store, "tier")
    if not scene.visible():
        yield "nothing is left after tier"
        return
    yield from (f"after tier: {problem}" for problem in scene.torn(is_in_place=is_in_place))
    try:
        scene.repair(scene.store)
        yield from (f"{key} is not repaired" for key in scene.visible() if scene.parts(scene.store, key) != PARTS)
        if not (scene.has_collected or scene.has_retained):
            scene.undo(scene.store)
            yield from differences(scene)
    except ResnapError as error:
        yield repr(error)


def differences(scene: Scene) -> Iterator[str]:
    """Yield what is not as it was before the repair."""
    if scene.read() != scene.old:
        yield "not undone"
    before, after = scene.plain(scene.before), scene.plain(scene.segment())
    yield from (f"{key}: not undone to the byte" for key in {*before, *after} if before.get(key) != after.get(key))


QUICK: Final = ("repair", "undo", "gc", "undo repair", "retain")
MEANWHILE: Final = (*QUICK, "tier", "repair undo", "undo gc", "repair gc", "undo gc repair", "undo repair gc",
                    "repair undo repair", "retain tier", "undo retain tier repair")  # fmt: skip


def scenes(layout: str, fixture_set: Callable[[str], FixtureSet]) -> Callable[[ObjectStore], Scene]:
    """Return what puts a segment of ``layout`` into a store."""
    cargo = a_cargo(fixture_set(UPGRADED).data)
    if layout == "brokers":
        root = fixture_set("kafka-3.9.1-tiered").remote
        log = min(path for path in root.rglob("*.log") if "payments" in str(path))
        files = {path.relative_to(root).as_posix(): path.read_bytes() for path in log.parent.glob(f"{log.stem}.*")}
    else:
        made = MemoryObjectStore(f"repair-schedules-{uuid4()}")
        tier(made, layout, cargo)
        files = {info.key: made.get(info.key) for info in made.list()}
    return lambda store: Scene(layout, cargo, files, store)


def tier(store: ObjectStore, layout: Any, cargo: Cargo) -> None:
    delivery = Delivery(store=store)
    form = layout_named(layout)
    publish(delivery, form, copy_segment(delivery, form, cargo.order, cargo.segment, cargo.indexes))


STOPPED: Final = (("", "repair"), ("repair", "undo"), ("repair", "gc"), ("repair undo", "gc"), ("", "retain"),
                  ("repair", "retain"), ("repair", "tier"))  # fmt: skip
"""What is done before, and what is stopped."""
STORES: Final = (("flat", True), ("flat", False), ("aiven", True), ("aiven", False), ("local-tiered", False),
                 ("brokers", False))  # fmt: skip
"""Layouts, and whether etags depend on the bytes alone: objects that are replaced in place need other ones."""


@pytest.mark.parametrize("is_all", [False, pytest.param(True, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("how", mostly_slow(["late", "killed", "lost"], "killed"))
@pytest.mark.parametrize(("layout", "hashed"), mostly_slow(STORES, *STORES[::2]))
def test_nothing_is_torn_whoever_is_stopped_before_whichever_request(
    layout: str, hashed: bool, how: str, is_all: bool, fixture_set: Callable[[str], FixtureSet]
) -> None:
    put, store_of = scenes(layout, fixture_set), HashedStore if hashed else MemoryObjectStore

    def make() -> Scene:
        return put(store_of(f"repair-schedules-{uuid4()}"))

    problems = [
        problem
        for before, stopped in (STOPPED if is_all else STOPPED[:3])
        for meanwhile in (MEANWHILE if is_all else QUICK)
        if layout == "flat" or "retain" not in f"{stopped} {meanwhile}"
        for problem in run(Schedule(before, stopped, how, meanwhile), make, reads=is_all)
    ]
    assert not problems, "\n".join(problems[:100])
