"""An installation, or its undoing, that ends before its time: by a kill, an error of the disk, or a loss of power."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnap.replay.watching import Progress
from resnap.scheduler.cli import run
from resnap.scheduler.verbs.install_staged import Staging, install_staged
from resnap.storage.disk import Disk
from resnap.storage.errors import LogDirError, StalePlanError
from resnap.storage.stores.s3_settings import S3Settings
from resnap.tiering.installing.installation import Replace
from resnap.tiering.installing.undo import MANIFEST_FILE, read_undo
from resnap.tiering.selection import Scope
from tests.clocks import FixedClock
from tests.power import Luck, Power
from tests.scheduler.failing_disk import Killed, WatchedDisk, failing_at, kill_on_a_disk, killed_at
from tests.scheduler.files import EMPTY_SNAPSHOT, bases, file_at, fill, lost_boundaries
from tests.scheduler.installed import SET, check_install, copied, look, regenerate, staged_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.scheduler.verbs.install_staged import Installed
    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

PARTITION = "payments-1"


class Place:
    """A directory with everything in it: ``data``, ``staged``, and what undoes an installation."""

    def __init__(self, root: Path) -> None:
        self.root, self.data, self.staged, self.undo = root, root / "data", root / "staged", root / "undo"

    def install(self, disk: Disk | None = None, data: Path | None = None) -> Installed:
        """Install with everything that can be asked for."""
        request = Staging(
            staged=str(self.staged),
            scope=Scope(sources=(str(data or self.data),)),
            asked=frozenset(Replace),
            undo_dir=self.undo,
        )
        clock = FixedClock(1_700_000_000_000)
        return install_staged(request, clock=clock, s3=S3Settings(), progress=Progress(), disk=disk)

    def manifests(self) -> list[Path]:
        """Return what undoes the installations so far, the last one first."""
        return sorted(self.undo.glob(f"*/{MANIFEST_FILE}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)

    def take_back(self, disk: Disk | None = None) -> None:
        for manifest in self.manifests():
            read_undo(manifest, disk or Disk()).apply(lambda _: None)


@pytest.fixture(scope="module")
def original(fixture_set: Callable[[str], FixtureSet], tmp_path_factory: pytest.TempPathFactory) -> Place:
    """One partition that needs every kind of change: new files, a corrupt one, false-empty ones, one at the log end."""
    place = Place(tmp_path_factory.mktemp("original"))
    source = fixture_set(SET).data
    place.data.mkdir()
    for path in source.iterdir():
        if path.is_file():
            shutil.copy2(path, place.data)
    (place.data / ".lock").touch()
    partition = copied(source / PARTITION, place.data / PARTITION)
    for path in partition.glob("*.snapshot"):
        path.write_bytes(EMPTY_SNAPSHOT)
    regenerate(place.data, place.staged, "--boundaries", "all")
    file_at(partition, lost_boundaries(partition)[0], "snapshot").write_bytes(b"rubbish")
    return place


@pytest.fixture
def place(original: Place, quick: Path) -> Place:
    return Place(copied(original.root, quick / "place"))


def steps_of(original: Place, scratch: Path) -> int:
    disk = WatchedDisk()
    Place(copied(original.root, scratch)).install(disk)
    return disk.steps


def is_complete(place: Place) -> bool:
    there = {path.name: path.read_bytes() for path in (place.data / PARTITION).glob("*.snapshot")}
    return all(there.get(Path(name).name) == body for name, body in staged_in(place.staged).items())


def check_tail(place: Place) -> None:
    """Check that a broker never finds only old snapshots: the newest is at the last base, or at the log end."""
    partition = place.data / PARTITION
    assert max(bases(partition, "snapshot")) >= bases(partition)[-1]


@pytest.mark.slow
def test_a_kill_before_any_step_leaves_old_and_new_files_only_and_the_next_run_completes(
    original: Place, quick: Path
) -> None:
    steps = steps_of(original, quick / "count")
    assert steps > 60
    for step in range(steps):
        place = Place(copied(original.root, quick / f"killed-{step}"))
        before = look(place.data)
        with pytest.raises(Killed):
            place.install(killed_at(step))
        made = check_install(place.data, before, place.staged, killed=True)
        check_tail(place)
        assert not made or place.manifests()
        place.install()
        assert is_complete(place)
        place.take_back()
        assert look(place.data) == before
        shutil.rmtree(place.root)


@pytest.mark.slow
def test_an_undoing_killed_before_any_step_is_gone_on_with(original: Place, quick: Path) -> None:
    for step in range(200):
        place = Place(copied(original.root, quick / f"undone-{step}"))
        before = look(place.data)
        place.install()
        try:
            place.take_back(killed_at(step))
        except Killed:
            check_install(place.data, before, place.staged, killed=True)
            check_tail(place)
            place.take_back()
        assert look(place.data) == before
        shutil.rmtree(place.root)
        if step > 30 and step >= _undo_steps(original, quick / "count"):
            return
    raise AssertionError("an undoing never ended")


def _undo_steps(original: Place, scratch: Path) -> int:
    place, disk = Place(copied(original.root, scratch)), WatchedDisk()
    place.install()
    place.take_back(disk)
    shutil.rmtree(scratch)
    return disk.steps


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_a_disk_that_fails_at_any_step_is_reported_and_leaves_old_and_new_files_only(
    original: Place, quick: Path, number: int
) -> None:
    for step in range(0, steps_of(original, quick / "count"), 3):
        place = Place(copied(original.root, quick / f"failed-{step}"))
        before = look(place.data)
        try:
            report = place.install(failing_at(step, number))
        except LogDirError as error:
            told: object = error
            assert look(place.data) == before
        else:
            told = report.error
            made = check_install(place.data, before, place.staged, killed=True)
            counted = sum(len(partition.changes) for partition in report.partitions)
            assert counted <= len(made) + 1 + (not place.manifests())
        assert isinstance(told, LogDirError)
        assert os.strerror(number) in str(told)
        assert told.hint is not None
        check_tail(place)
        place.install()
        assert is_complete(place)
        place.take_back()
        assert look(place.data) == before
        shutil.rmtree(place.root)


def _watch_power(place: Place, forgets: str | None = None) -> None:
    """Install, and check after each step what a loss of power would leave, and at the end that all would be there."""
    old = {path.name: path.read_bytes() for path in (place.data / PARTITION).glob("*.snapshot")}
    new = {Path(name).name: body for name, body in staged_in(place.staged).items()}
    left = Place(place.root.with_name(f"{place.root.name}-left"))

    def check(power: Power) -> None:
        for luck in Luck:
            power.survivors(left.root, luck=luck)
            found = {path.name: path.read_bytes() for path in (left.data / PARTITION).glob("*.snapshot")}
            for name, body in found.items():
                assert body in (old.get(name), new.get(name)), f"{name} is neither old nor new"
            check_tail(left)
            if found != old:
                _check_kept(left, old)

    Power(place.root, check, forgets).watch(place.install, left.root)
    assert is_complete(left)
    log_end = max(map(int, (Path(name).stem for name in old)))
    assert not file_at(left.data / PARTITION, log_end, "snapshot").exists()


def _check_kept(left: Place, old: dict[str, bytes]) -> None:
    """Check that whatever was changed can be undone."""
    [manifest] = left.manifests()
    for change in read_undo(manifest, Disk()).manifest.changes:
        name = Path(change.place).name
        assert (change.old is None) == (name not in old)
        if change.old is not None:
            assert (manifest.parent / "aside" / change.place).read_bytes() == old[name]


@pytest.mark.slow
def test_a_loss_of_power_after_any_step_leaves_old_and_new_files_only(place: Place) -> None:
    _watch_power(place)


SYNCS = (
    "disk._write", "disk.write_file", "disk.remove_file", "disk.make_directories", "disk.make_new_directory",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", SYNCS)
def test_each_sync_is_needed(place: Place, forgotten: str) -> None:
    with pytest.raises((AssertionError, ValueError, FileNotFoundError)):
        _watch_power(place, forgotten)


def test_every_sync_of_the_code_is_among_those_that_are_shown_to_be_needed() -> None:
    source = (Path(__file__).parents[2] / "storage" / "disk.py").read_text()
    assert source.count("disk.sync(") + source.count("disk.sync_directory(") == len(SYNCS)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [50, pytest.param(500, marks=pytest.mark.heavy)])
def test_a_kill_at_any_instant_leaves_old_and_new_files_only(
    original: Place, place: Place, quick: Path, kills: int
) -> None:
    draw, before, states = random.Random(kills), look(place.data), set()
    steps = steps_of(original, quick / "count")
    for number in range(kills):
        kill_on_a_disk(place.take_back if number % 3 == 2 else place.install, draw, steps)
        made = check_install(place.data, before, place.staged, killed=True)
        check_tail(place)
        states.add(len(made))
        if number % 5 == 4:
            place.take_back()
            assert look(place.data) == before
            shutil.rmtree(place.undo, ignore_errors=True)
    place.install()
    assert is_complete(place)
    place.take_back()
    assert look(place.data) == before
    assert len(states) > 2, f"the kills came too early or too late: {states}"


def test_runs_at_two_log_dirs_at_the_same_moment_have_places_of_their_own(original: Place, quick: Path) -> None:
    """A loop over the log dirs of a broker, say, with what is kept for all of them in one place."""
    one, other = (Place(copied(original.root, quick / name)) for name in ("one", "other"))
    other.undo = one.undo
    before, reports = [look(place.data) for place in (one, other)], []

    def meanwhile() -> None:
        if not reports:
            reports.append(None)
            reports[0] = other.install()

    reports.append(one.install(WatchedDisk(2, meanwhile)))
    assert len({report.manifest for report in reports if report}) == 2
    assert all(is_complete(place) for place in (one, other))
    one.take_back()
    assert [look(place.data) for place in (one, other)] == before


def test_an_undoing_of_what_has_gone_touches_nothing(place: Place) -> None:
    place.install()
    shutil.rmtree(place.data / PARTITION)
    before = look(place.data)
    with pytest.raises(StalePlanError, match="no longer there"):
        place.take_back()
    assert look(place.data) == before


def test_a_run_that_is_interrupted_ends_with_130_and_leaves_whole_files(
    resnap: Resnap, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = look(place.data)

    renamed, rename = [], Disk.rename

    def interrupted(disk: Disk, path: Path, target: Path) -> None:
        renamed.append(target)
        if sum(one.is_relative_to(place.data) for one in renamed) > 2:
            raise KeyboardInterrupt
        rename(disk, path, target)

    monkeypatch.setattr(Disk, "rename", interrupted)
    monkeypatch.chdir(resnap.directory)
    code = run(["install", str(place.staged), str(place.data), "--replace", "corrupt", "--undo-dir", str(place.undo)])
    out, err = capsys.readouterr()
    assert (code, out, err.splitlines()[-1]) == (130, "", "interrupted")
    assert "what undoes it" in err
    assert len(check_install(place.data, before, place.staged)) == 2
    assert not list(place.data.rglob("*.tmp"))
    monkeypatch.undo()
    place.take_back()
    assert look(place.data) == before


def test_a_full_disk_is_reported_and_the_same_command_continues(command: Resnap, place: Place, tiny_disk: Path) -> None:
    data = copied(place.data, tiny_disk / "data")
    before = look(data)
    arguments = ("install", place.staged, data, "--replace", "corrupt", "--undo-dir", place.undo)
    fill(tiny_disk, leaving=4096)
    ran = command(*arguments, "--output", "json")
    assert ran.code in {1, 3}
    assert "No space left on device" in ran.error["message"]
    assert "free some space" in ran.error["hint"]
    told = {snapshot["outcome"] for snapshot in ran.document["partitions"][0]["snapshots"]}
    assert "not-reached" in told
    check_install(data, before, place.staged)
    assert not list(data.rglob("*.tmp"))
    (tiny_disk / "ballast").unlink()
    assert command(*arguments).code == 3  # false-empty ones stay: their replacement was not requested
    for manifest in place.manifests():
        assert command("install", "--undo", manifest).code == 0
    assert look(data) == before


def test_where_nothing_can_be_kept_nothing_is_changed(command: Resnap, place: Place, read_only_disk: Path) -> None:
    before = look(place.data)
    ran = command("install", place.staged, place.data, "--undo-dir", read_only_disk / "undo", "--output", "json")
    assert (ran.code, ran.out) == (1, "")
    assert "mount the file system for writing" in ran.error["hint"]
    assert look(place.data) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can become somebody else")
def test_a_user_who_may_not_write_is_refused_before_anything_is_changed(original: Place, open_folder: Path) -> None:
    place = Place(copied(original.root, open_folder / "place"))
    place.root.chmod(0o755)
    before = look(place.data)
    os.seteuid(65534)
    try:
        with pytest.raises(LogDirError) as caught:
            place.install()
    finally:
        os.seteuid(0)
    assert "run as the user that the broker runs as" in str(caught.value.hint)
    assert look(place.data) == before
