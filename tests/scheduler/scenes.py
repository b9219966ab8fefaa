"""Verbs that write, each with a place of its own and what must hold there whatever ends it."""

from __future__ import annotations

import os
import shutil
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import pairwise
from typing import TYPE_CHECKING, Final
from uuid import UUID

from resnap.scheduler.cli import run
from resnap.tiering.installing.staging_area import FINGERPRINT_FILE, read_fingerprint
from resnap.tiering.run_cache.run_cache import FILE, decode_results
from tests.scheduler.shipped import check_store, entries, files_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet

SET: Final = "kafka-2.7.2-then-3.9.1"
LOCAL: Final = ("--engine", "local", "--threads", "1", "--as-of", "roll")
VERBS: Final = ("regenerate", "tier", "remember", "retain", "gc")
ON_WHAT_IS_SHIPPED: Final = frozenset({"retain", "gc", "verify"})
"""Verbs that begin with a store in which all is shipped."""
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
    shutil.copytree(source / "payments-1", data / "payments-1")
    return data


def contents(root: Path) -> dict[str, bytes]:
    """Return the files below ``root`` by their places."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


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


class Scene:
    """A log dir, what its brokers had written, and a place in which verbs work: ``root``."""

    def __init__(self, log_dir: Path, expected: Path, place: Path) -> None:
        self.log_dir, self.expected, self.root = log_dir, expected, place / "root"
        self.output = ""
        """What the last run said of itself and its errors."""
        self.segments = 0
        """How many must be whole under a manifest, whatever is deleted beside them."""
        self.root.mkdir(parents=True)

    def begin_with(self, shipped: Path, verb: str) -> None:
        """Begin with a copy of the store ``shipped``, for ``gc`` with what killed runs have left in it long ago."""
        store = self.root / "store"
        shutil.copytree(shipped, store)
        if verb == "gc":
            leave_garbage(store)
            self.segments = sum(1 for _ in store.rglob("*.manifest"))

    def run(self, verb: str) -> int:
        """Run the verb in this process; nothing is printed, and only the verbs that are for that write a cache."""
        os.environ["RESNAP_STATE_DIR"] = str(self.root / "state") if verb in REMEMBERING else "none"
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as err:
            code = run([str(argument) for argument in self._arguments(verb)])
        self.output = err.getvalue()
        return code

    def _arguments(self, verb: str) -> tuple[object, ...]:
        store = (self.root / "store").as_uri()
        staged, aside = self.root / "out" / "staged", self.root.with_name("aside")
        return {
            "regenerate": ("regenerate", self.log_dir, "--into", staged, *LOCAL),
            "tier": ("tier", self.log_dir, "--to", store, *LOCAL),
            "remember": ("regenerate", self.log_dir, "--into", aside, *LOCAL),
            "retain": ("retain", store, "--retention-bytes", "20KiB", "--delete"),
            "gc": ("gc", store, "--delete"),
            "verify": ("verify", "--store", store, *LOCAL),
        }[verb]

    def check(self, verb: str, left: Path) -> int:
        """Check what the verb has left in ``left``, at whatever instant; return how much there is of it."""
        if verb == "gc":
            return self._check_cleaned(left / "store")
        if verb in {"tier", "retain", "verify"}:
            there = sorted(check_store(files_of(left / "store"), strict=False))
            assert all(one.next_base_offset == other.base_offset for one, other in pairwise(there))
            return len(there)
        return self._check_memory(left) if verb == "remember" else self._check_snapshots(left)

    def _check_snapshots(self, left: Path) -> int:
        snapshots = list(left.rglob("*.snapshot"))
        for path in snapshots:
            theirs = self.expected / path.parent.name / path.name
            assert entries(path.read_bytes()) == entries(theirs.read_bytes())
        for path in left.rglob(FINGERPRINT_FILE):
            known = {snapshot.offset for snapshot in read_fingerprint(path.read_bytes()).snapshots}
            assert known <= {int(snapshot.stem) for snapshot in path.parent.glob("*.snapshot")}
        return len(snapshots)

    def _check_cleaned(self, store: Path) -> int:
        """Check that all that is named is there, and what is strange; return how much is left that was old."""
        objects = files_of(store)
        assert len(check_store(objects, strict=False)) == self.segments
        assert all(objects[key] == b"an unknown object" for key in UNKNOWN_OBJECTS)
        return sum((store / key).stat().st_mtime == LONG_AGO_S for key in objects)

    def _check_memory(self, left: Path) -> int:
        memories = [decode_results(path.read_bytes(), path.parent) for path in left.rglob(FILE)]
        return len(memories)


def scenes(fixture: FixtureSet, base: Path) -> Callable[[str], Scene]:
    """Return what gives, again and again, a new place below ``base`` in which a verb is to be run."""
    log_dir, shipped, place = one_partition(fixture.data, base / "data"), base / "shipped", base / "place"

    def made(verb: str) -> Scene:
        shutil.rmtree(place, ignore_errors=True)
        scene = Scene(log_dir, fixture.expected, place)
        if verb in ON_WHAT_IS_SHIPPED:
            if not shipped.exists():
                assert scene.run("tier") == 0
                shutil.move(scene.root / "store", shipped)
            scene.begin_with(shipped, verb)
        return scene

    return made
