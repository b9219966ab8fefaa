"""Verbs that read or write, each with a place of its own and what must hold there whatever ends it."""

from __future__ import annotations

import os
import shutil
from contextlib import redirect_stderr, redirect_stdout
from functools import cached_property
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from resnap.scheduler.cli import run
from resnap.storage.disk import Disk
from resnap.storage.layouts import SegmentForm
from resnap.storage.layouts.aiven.layout import Aiven
from resnap.storage.stores.local import LocalObjectStore
from resnap.tiering.installing.installation import Replace
from resnap.tiering.installing.staging_area import FINGERPRINT_FILE, read_fingerprint
from resnap.tiering.installing.undo import MANIFEST_FILE, read_undo
from resnap.tiering.run_cache.run_cache import FILE, decode_results
from resnap.tiering.shipping.lease import LEASE_PREFIX
from resnap.tiering.verifying.verification import StoreReader
from tests.fixture_sets import copied_tree
from tests.scheduler.files import EMPTY_SNAPSHOT, bases, file_at, lost_boundaries
from tests.scheduler.installed import check_install, copied, look, regenerate, staged_in
from tests.scheduler.shipped import check_store, check_whole, entries, files_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet

SET: Final = "kafka-2.7.2-then-3.9.1"
LOCAL: Final = ("--engine", "local", "--threads", "1", "--as-of", "roll")
PARTITION: Final = "payments-1"
VERBS: Final = ("regenerate", "tier", "tier-aiven", "remember", "retain", "gc", "install", "undo", "restore")
"""Those that write."""
OFTENER: Final = {"install": 10, "undo": 10, "restore": 2}
"""How many times as often those are stopped that change the log dir of a broker."""
REMEMBERING: Final = frozenset({"remember", "verify"})
UNKNOWN_OBJECTS: Final = ("notes.txt", "none/payments/none/1/somebodys.log", ".resnap/probe/not-of-a-probe")
"""Objects that are old and that no manifest names, in no form of ours."""
LONG_AGO_S: Final = 1_500_000_000


def one_partition(source: Path, data: Path) -> Path:
    """Copy a log dir with one partition of it, a few segments long."""
    data.mkdir()
    for path in source.iterdir():
        if path.is_file():
            shutil.copy2(path, data)
    copied_tree(source / PARTITION, data / PARTITION)
    return data


def contents(root: Path) -> dict[str, bytes]:
    """Return the files below ``root`` by their places."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def _with_useless_snapshots(log_dir: Path, data: Path) -> Path:
    """Copy a log dir of which every snapshot has to be replaced, but for those that are to be made."""
    copied(log_dir, data)
    for path in (data / PARTITION).glob("*.snapshot"):
        path.write_bytes(EMPTY_SNAPSHOT)
    return data


def leave_garbage(store: Path) -> None:
    """Leave in ``store`` what killed runs leave, and unknown objects; all of it is old."""
    for manifest in sorted(store.rglob("*.manifest"))[-2:]:
        manifest.unlink()
    folder = min(store.rglob("*.log")).parent
    staged = store / ".staging" / str(UUID(int=1)) / "payments-1" / "00000000000000000042.snapshot"
    probe = store / ".resnap" / "probe" / f"{1:032x}"
    garbage = {folder / f".resnap-{0:032x}~": b"half", staged: b"staged", probe: b"probe"}
    for path, body in (garbage | {store / key: b"an unknown object" for key in UNKNOWN_OBJECTS}).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    for path in store.rglob("*"):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))


def _snapshots(files: dict[str, bytes]) -> dict[str, bytes]:
    return {place: body for place, body in files.items() if place.endswith(".snapshot")}


class Stage:
    """What scenes begin with, each part made when the first one asks for it."""

    def __init__(self, fixture: FixtureSet, base: Path) -> None:
        self.base, self.expected = base, fixture.expected
        self.log_dir = one_partition(fixture.data, base / "data")

    @cached_property
    def shipped(self) -> Path:
        """A store with all of the log dir in it."""
        scene = Scene(self, "tier")
        assert scene.run() == 0, scene.output
        return Path(shutil.move(scene.root / "store", self.base / "shipped"))

    @cached_property
    def useless(self) -> Path:
        """A log dir that needs every kind of change: new files, a corrupt one, false-empty ones, one at the log end."""
        data = _with_useless_snapshots(self.log_dir, self.base / "useless")
        (data / ".lock").touch()
        with redirect_stdout(StringIO()):
            regenerate(data, self.base / "staged", "--boundaries", "all")
        file_at(data / PARTITION, lost_boundaries(data / PARTITION)[0], "snapshot").write_bytes(b"rubbish")
        return data


class Scene:
    """A place in which a verb works, ``root``, and what must hold there; a new one takes the place of the last."""

    def __init__(self, stage: Stage, verb: str) -> None:
        self.stage, self.verb, self.source = stage, verb, stage.shipped if verb == "restore" else stage.log_dir
        """``source`` is what it reads and lies outside of ``root``."""
        useless = stage.useless if verb in {"install", "undo"} else None
        shipped = stage.shipped if verb in {"retain", "gc", "verify"} else None
        place = stage.base / "place"
        self.root, self.data, self.staged, self.store = (
            place / "root", place / "root" / "data", stage.base / "staged", place / "root" / "store",
        )  # fmt: skip
        self.output = ""
        """What the last run said of itself and its errors."""
        self.segments = 0
        """How many must be whole under a manifest, whatever is deleted beside them."""
        shutil.rmtree(place, ignore_errors=True)
        self.root.mkdir(parents=True)
        if shipped is not None:
            copied_tree(shipped, self.store)
        if verb == "gc":
            leave_garbage(self.store)
            self.segments = sum(1 for _ in self.store.rglob("*.manifest"))
        if verb == "restore":
            copied(stage.log_dir, self.data)
            shutil.rmtree(self.data / PARTITION)
        if useless is not None:
            copied(useless, self.data)
        self.before, self.old = (look(self.data), contents(self.data)) if useless is not None else ({}, {})
        if verb == "undo":
            assert self._do("install") == 0, self.output

    def run(self) -> int:
        """Run the verb in this process; nothing is printed, and only the verbs that are for that write a cache."""
        self.output = ""
        os.environ["RESNAP_STATE_DIR"] = str(self.root / "state") if self.verb in REMEMBERING else "none"
        return self._undo() if self.verb == "undo" else self._do(self.verb)

    def _undo(self) -> int:
        return max(self._call("install", "--undo", manifest) for manifest in self._manifests(self.root))

    def _do(self, verb: str) -> int:
        store, local = self.store.as_uri(), LOCAL
        useless = (flag for replaced in Replace for flag in ("--replace", replaced))
        staged, aside = self.root / "out" / "staged", self.root.with_name("aside")
        arguments: dict[str, tuple[object, ...]] = {
            "scan": ("scan", self.source),
            "plan": ("plan", self.source, "--save", self.root / "plan.json"),
            "regenerate": ("regenerate", self.source, "--into", staged, *local),
            "tier": ("tier", self.source, "--to", store, *local),
            "tier-aiven": (
                "tier",
                self.source,
                "--to",
                store,
                *local,
                "--layout",
                "aiven",
                "--chunk-compression",
                "zstd",
            ),
            "remember": ("regenerate", self.source, "--into", aside, *local),
            "retain": ("retain", store, "--retention-bytes", "20KiB", "--delete"),
            "gc": ("gc", store, "--delete"),
            "verify": ("verify", "--store", store, *local),
            "install": ("install", self.staged, self.data, "--undo-dir", self.root / "undo", *useless),
            "restore": ("restore", self.source.as_uri(), "--into", self.data),
        }
        return self._call(*arguments[verb])

    def _call(self, *arguments: object) -> int:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as err:
            code = run([str(argument) for argument in arguments])
        self.output += err.getvalue()
        return code

    def _manifests(self, root: Path) -> list[Path]:
        """Return what undoes the installations so far, the last one first."""
        found = (root / "undo").glob(f"*/{MANIFEST_FILE}")
        return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)

    def check(self, left: Path | None = None) -> object:
        """Check what the verb has left, or a loss of power in ``left``, at whatever instant; return what there is."""
        checks: dict[str, Callable[[Path], object]] = {
            "gc": self._check_cleaned, "tier-aiven": self._check_aiven, "remember": self._check_memory,
            "install": self._check_installed, "undo": self._check_installed, "restore": self._check_restored,
            "regenerate": self._check_snapshots,
        }  # fmt: skip
        if left is None and self.before:
            check_install(self.data, self.before, self.staged, killed=True)
        return checks.get(self.verb, self._check_chain)(left or self.root)

    def check_end(self, left: Path | None = None) -> None:
        """Check that nothing is lacking once the verb has come to its end."""
        root = left or self.root
        if self.verb == "restore":
            assert check_whole(self.source, root / "data") == {PARTITION}
        elif self.verb == "undo":
            assert _snapshots(contents(root / "data")) == _snapshots(self.old)
        elif self.verb == "install":
            there = contents(root / "data")
            assert {place: there.get(place) for place in staged_in(self.staged)} == staged_in(self.staged)
            assert max(bases(root / "data" / PARTITION, "snapshot")) == bases(root / "data" / PARTITION)[-1]
        elif self.verb != "remember":
            assert contents(root) == contents(self.root)

    def check_undone(self) -> None:
        """Check that a log dir becomes what it was, with all times and owners."""
        if self.verb in {"install", "undo"}:
            assert self._undo() == 0, self.output
            assert look(self.data) == self.before

    def _check_installed(self, root: Path) -> tuple[str, ...]:
        """Check that files are old or new, that a broker finds no old snapshots alone, and that all can be undone."""
        there, new, partition = contents(root / "data"), staged_in(self.staged), root / "data" / PARTITION
        for place, body in there.items():
            if not place.endswith((".snapshot.tmp", ".lock", ".lock.tmp")):
                assert body in (self.old.get(place), new.get(place)), f"{place} is neither old nor new"
        assert all(place.endswith((".snapshot", ".lock")) for place in self.old.keys() - there.keys())
        assert max(bases(partition, "snapshot")) >= bases(partition)[-1]
        changed = sorted(place for place in _snapshots(self.old | new) if there.get(place) != self.old.get(place))
        kept = {
            change.place: (change.old is not None, manifest.parent / "aside" / change.place)
            for manifest in self._manifests(root)
            for change in read_undo(manifest, Disk()).manifest.changes
        }
        for place in () if self.verb == "undo" else changed:
            was_there, aside = kept[place]
            assert was_there == (place in self.old)
            assert not was_there or aside.read_bytes() == self.old[place]
        return tuple(changed)

    def _check_chain(self, left: Path) -> int:
        """Check that nothing is lacking within what is stored; return how many segments that is."""
        there = sorted(check_store(files_of(left / "store"), strict=False))
        assert all(one.next_base_offset == other.base_offset for one, other in pairwise(there))
        return len(there)

    def _check_aiven(self, left: Path) -> object:
        """Check that a broker could read whatever has a manifest; return all but leases (of manifests, the key)."""
        store = LocalObjectStore(left / "store")
        listing = Aiven(SegmentForm()).listing(store, bool)
        reader = StoreReader(store=store, listing=listing)
        assert [key for key in listing.manifests if reader.verify(key, reads_objects=True).problems] == []
        keys = [info.key for info in store.list("") if not info.key.startswith(f"{LEASE_PREFIX}/")]
        return tuple((key, b"" if key in listing.manifests else store.get(key)) for key in keys)

    def _check_restored(self, left: Path) -> object:
        return tuple(check_whole(self.source, left / "data", killed=True))

    def _check_snapshots(self, left: Path) -> int:
        snapshots = list(left.rglob("*.snapshot"))
        for path in snapshots:
            theirs = self.stage.expected / path.parent.name / path.name
            assert entries(path.read_bytes()) == entries(theirs.read_bytes())
        for path in left.rglob(FINGERPRINT_FILE):
            known = {snapshot.offset for snapshot in read_fingerprint(path.read_bytes()).snapshots}
            assert known <= {int(snapshot.stem) for snapshot in path.parent.glob("*.snapshot")}
        return len(snapshots)

    def _check_cleaned(self, left: Path) -> int:
        """Check that all that is named is there, and what is strange; return how much is left that was old."""
        objects, store = files_of(left / "store"), left / "store"
        assert len(check_store(objects, strict=False)) == self.segments
        assert all(objects[key] == b"an unknown object" for key in UNKNOWN_OBJECTS)
        return sum((store / key).stat().st_mtime == LONG_AGO_S for key in objects)

    def _check_memory(self, left: Path) -> int:
        memories = [decode_results(path.read_bytes(), path.parent) for path in left.rglob(FILE)]
        return len(memories)
