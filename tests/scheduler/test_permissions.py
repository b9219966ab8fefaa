"""Files and places without permission: a clear message, the right exit code, and everything else is still done."""

from __future__ import annotations

import os
import pickle
import pkgutil
import shutil
import sys
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.machinery import BuiltinImporter
from typing import TYPE_CHECKING

import numba
import numpy as np
import pytest

import resnap
from resnap.scheduler.cli import run
from tests.scheduler.files import bases, file_at, lost_boundaries
from tests.scheduler.installed import SET
from tests.scheduler.shipped import check_store, eligible, files_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

LOCAL = ("--engine", "local")
ROLL = ("--as-of", "roll", *LOCAL)


@pytest.fixture
def closed_log(open_folder: Path, broker_log: Path) -> Path:
    """A copy that every user can reach; a test may close parts of it."""
    data = shutil.copytree(broker_log, open_folder / "data")
    for path in (data, *data.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    return data


class Unprivileged:
    """Runs the command as a user without powers, in a process of its own.

    The process is forked from this one, whose modules are loaded, and loads no other: Python itself may be where
    only root may go.
    """

    def __init__(self, command: Resnap) -> None:
        self._command = command

    def __call__(self, *arguments: object) -> Ran:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.chdir(self._command.directory)  # where that user may return to
                if os.geteuid() == 0:
                    os.setuid(65534)
                sys.meta_path[:] = [BuiltinImporter]
                with open(writer, "wb") as answer:  # noqa: PTH123 - a descriptor
                    pickle.dump(self._command(*arguments), answer)
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader, "rb") as answer:  # noqa: PTH123
            ran = answer.read()
        os.waitpid(child, 0)
        return pickle.loads(ran)  # type: ignore[no-any-return]  # noqa: S301 - of our own child


@pytest.fixture(scope="module")
def all_loaded(fixture_set: Callable[[str], FixtureSet], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have all loaded that commands load, by a process that may read it."""
    for module in pkgutil.walk_packages(resnap.__path__, "resnap."):
        import_module(module.name)
    numba.njit(lambda numbers: numbers.copy())(np.ones(1))  # which loads what compiles
    os.environ["RESNAP_STATE_DIR"] = "none"
    data, into = str(fixture_set(SET).data), tmp_path_factory.mktemp("loaded")
    for arguments in (["plan"], ["regenerate", "--into", str(into / "out")], ["tier", "--to", f"file://{into}/store"]):
        assert run((*arguments, data, *ROLL)) == 0
    assert run(("runs", "list", "--state-dir", str(into))) == 2, "no service has run there"


@pytest.fixture
def unprivileged(all_loaded: None, command: Resnap, closed_log: Path) -> Unprivileged:  # noqa: ARG001
    return Unprivileged(replace(command, directory=closed_log.parent))  # type: ignore[type-var]


def test_a_partition_without_permission_is_reported_and_the_others_are_done(
    unprivileged: Unprivileged, closed_log: Path
) -> None:
    out, store = closed_log.parent / "out", closed_log.parent / "store"
    with _closed(closed_log / "payments-1"):
        for arguments in (
            ["scan", closed_log],
            ["plan", closed_log, *LOCAL],
            ["regenerate", closed_log, *ROLL, "--into", out],
            ["tier", closed_log, *ROLL, "--to", store.as_uri()],
        ):
            ran = unprivileged(*arguments, "--output", "json")
            assert ran.code == 3, (arguments, ran.err)
            assert ran.error["type"] == "LogDirError"
            assert str(closed_log / "payments-1") in ran.error["message"]
            assert "run as the user that the broker runs as" in ran.error["hint"]
        assert unprivileged("scan", closed_log, "--topic", "orders").code == 0
    assert not (out / "payments-1").exists()
    assert bases(out / "payments-0", "snapshot") == lost_boundaries(closed_log / "payments-0")
    assert check_store(files_of(store)) == {one for one in eligible(closed_log) if one[:2] != ("payments", 1)}


@pytest.mark.parametrize("suffix", ["log", "snapshot", "txnindex"])
def test_a_file_without_permission_is_reported_and_the_others_are_done(
    unprivileged: Unprivileged, closed_log: Path, suffix: str
) -> None:
    partition = closed_log / "payments-1"
    offset = next(base for base in bases(partition)[1:] if file_at(partition, base, suffix).exists())
    store = closed_log.parent / "store"
    with _closed(file_at(partition, offset, suffix)) as path:
        ran = unprivileged("tier", closed_log, *ROLL, "--to", store.as_uri(), "--output", "json")
    assert ran.code == 3
    assert str(path) in ran.error["message"]
    assert ran.error["hint"]
    # What was on its way above an index that cannot be read waits for the next run, and nothing names it.
    shipped = check_store(files_of(store), strict=suffix != "txnindex")
    assert {one for one in eligible(closed_log) if one[:2] != ("payments", 1)} <= shipped < eligible(closed_log)


def test_a_segment_that_only_the_fingerprint_needs_is_reported_and_all_snapshots_are_made(
    unprivileged: Unprivileged, closed_log: Path
) -> None:
    """Its batches are older than any producer may be, so no replay reads them."""
    partition, out = closed_log / "payments-0", closed_log.parent / "out"
    again = ("regenerate", closed_log, *LOCAL, "--topic", "payments", "--into", out)
    with _closed(file_at(partition, bases(partition)[1], "log")) as path:
        ran = unprivileged(*again, "--output", "json")
        assert (ran.code, str(path) in ran.error["message"]) == (3, True), ran.err
        for name in ("payments-0", "payments-1"):
            assert bases(out / name, "snapshot") == lost_boundaries(closed_log / name)
            assert (out / name / "fingerprint.json").exists()
    refused = unprivileged("install", out, closed_log, "--dry-run")
    assert "stale" in refused.out, "what it was made from is not known"
    assert unprivileged(*again).code == 0
    assert "stale" not in unprivileged("install", out, closed_log, "--dry-run").out


def test_a_segment_that_cannot_be_read_keeps_nothing_from_being_installed_elsewhere(
    unprivileged: Unprivileged, closed_log: Path
) -> None:
    out, partition = closed_log.parent / "out", closed_log / "payments-0"
    assert unprivileged("regenerate", closed_log, *LOCAL, "--topic", "payments", "--into", out).code == 0
    with _closed(file_at(partition, bases(partition)[1], "log")) as path:
        ran = unprivileged("install", out, closed_log, "--dry-run", "--output", "json")
    assert (ran.code, str(path) in ran.error["message"]) == (3, True), ran.err
    [row] = ran.document["partitions"]
    assert (row["partition"], row["installed"]) == (1, len(lost_boundaries(closed_log / "payments-1")))


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_what_follows_from_the_log_need_not_be_readable(
    unprivileged: Unprivileged, closed_log: Path, suffix: str
) -> None:
    store = closed_log.parent / "store"
    with _closed(file_at(closed_log / "payments-1", bases(closed_log / "payments-1")[1], suffix)):
        assert unprivileged("tier", closed_log, *ROLL, "--to", store.as_uri()).code == 0
    assert check_store(files_of(store)) == eligible(closed_log)


def test_a_log_dir_without_permission_is_reported(unprivileged: Unprivileged, closed_log: Path) -> None:
    with _closed(closed_log):
        ran = unprivileged("scan", closed_log)
    assert (ran.code, ran.out) == (1, "")
    assert str(closed_log) in ran.err
    assert "hint: run as the user that the broker runs as" in ran.err


def test_a_destination_without_permission_is_reported(unprivileged: Unprivileged, closed_log: Path) -> None:
    (closed_log.parent / "out").mkdir()
    with _closed(closed_log.parent / "out") as out:
        made = unprivileged("regenerate", closed_log, *ROLL, "--into", out / "x")
        shipped = unprivileged("tier", closed_log, *ROLL, "--to", f"{out.as_uri()}/x")
    assert (made.code, shipped.code) == (1, 12)
    for ran in (made, shipped):
        assert f"{out}/x" in ran.err
        assert "permission denied" in ran.err.lower()
        assert "hint: " in ran.err


def test_stored_objects_without_permission_are_named_and_the_others_are_verified(
    unprivileged: Unprivileged, closed_log: Path
) -> None:
    store = closed_log.parent / "tiered"
    assert unprivileged("tier", closed_log, *ROLL, "--topic", "payments", "--to", store.as_uri()).code == 0
    manifests = sorted(store.rglob("*.manifest"))
    arguments = ("verify", "--store", store.as_uri(), *ROLL, "--output", "json", "--fresh")
    for closed in (manifests[1].with_suffix(".log"), manifests[1].with_suffix(".snapshot"), manifests[1]):
        with _closed(closed):
            ran = unprivileged(*arguments)
        summary = ran.document["summary"]
        assert (ran.code, summary["different"], summary["segments"]) == (12, 1, len(manifests))
        assert "nothing was shipped" not in ran.err, "it may be the segment that cannot be read"
        assert summary["snapshotsReplayed"] == len(manifests) - 1
        assert f"{closed.relative_to(store)}: cannot be read: " in ran.err
        assert "give the user who runs resnap read access, and verify again" in ran.err
    assert unprivileged(*arguments).code == 0


@contextmanager
def _closed(path: Path) -> Iterator[Path]:
    """Deny ``path`` to every user but root, and open it to all afterwards."""
    path.chmod(0)
    try:
        yield path
    finally:
        path.chmod(0o777)


@pytest.mark.parametrize("command_line", ["regenerate --into", "tier --to"])
def test_a_place_that_may_not_be_written_is_refused_before_a_segment_is_read(
    unprivileged: Unprivileged, closed_log: Path, command_line: str
) -> None:
    (name, flag), place = command_line.split(), closed_log.parent / "shut"
    place.mkdir(mode=0o555)
    segment = file_at(closed_log / "payments-0", bases(closed_log / "payments-0")[0], "log")
    with _closed(segment):
        for inside in ("", "/x"):
            ran = unprivileged(name, closed_log, *ROLL, flag, f"file://{place}{inside}")
            assert ran.code == (12 if name == "tier" else 2)
            assert str(place) in ran.err
            assert str(segment) not in ran.err
    assert list(place.iterdir()) == []


def test_a_state_directory_of_another_user_costs_the_run_cache_and_nothing_else(
    unprivileged: Unprivileged, closed_log: Path
) -> None:
    """As the default one with ``runuser -u kafka``, which leaves HOME=/root."""
    home, out = closed_log.parent / "home", closed_log.parent / "out"
    home.mkdir()
    state = ("--state-dir", home / ".local/state/resnap")
    with _closed(home):
        ran = unprivileged("regenerate", closed_log, *ROLL, "--into", out, *state)
        listed = unprivileged("runs", "list", *state)
    assert ran.code == 0, ran.err
    assert ran.err.count("the results of earlier runs cannot be read: Permission denied") == 1
    assert ran.err.count("--state-dir names another place") == 1
    assert bases(out / "payments-1", "snapshot") == lost_boundaries(closed_log / "payments-1")
    assert (listed.code, "service.db: cannot be read: Permission denied" in listed.err) == (1, True), listed.err


def test_a_place_in_a_directory_of_another_user_is_refused_by_its_own_name(
    unprivileged: Unprivileged, closed_log: Path
) -> None:
    closed, store = closed_log.parent / "closed", closed_log.parent / "tiered"
    closed.mkdir()
    assert unprivileged("tier", closed_log, *ROLL, "--topic", "payments", "--to", store.as_uri()).code == 0
    with _closed(closed):
        made = unprivileged("regenerate", closed_log, *ROLL, "--into", closed / "out")
        restored = unprivileged("restore", store.as_uri(), "--into", "closed/out")
        shown = unprivileged("inspect", "closed/0.snapshot")
    for ran, where in ((made, closed / "out"), (restored, "closed/out")):
        assert (ran.code, f"error: {where}: cannot be read: Permission denied" in ran.err) == (1, True), ran.err
    assert "error: no permission to read closed/0.snapshot\n" in shown.err
