"""An installation that finds no room, may not write, is interrupted, or has another beside it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnap.replay.watching import Progress
from resnap.scheduler.cli import run
from resnap.storage.disk import Disk
from resnap.storage.errors import LogDirError, StalePlanError
from resnap.storage.stores.s3_settings import S3Settings
from resnap.tiering.install import InstallOrder, install
from resnap.tiering.installing.installation import Replace
from resnap.tiering.installing.undo import MANIFEST_FILE, read_undo
from resnap.tiering.selection import Scope
from tests.clocks import FixedClock
from tests.scheduler.failing_disk import WatchedDisk
from tests.scheduler.files import fill
from tests.scheduler.installed import check_install, copied, look, staged_in

if TYPE_CHECKING:
    from resnap.tiering.install import Installed
    from tests.scheduler.conftest import Resnap
    from tests.scheduler.scenes import Stage

pytestmark = pytest.mark.usefixtures("producers_stay")

PARTITION = "payments-1"


class Place:
    """A directory with everything in it: ``data``, ``staged``, and what undoes an installation."""

    def __init__(self, root: Path) -> None:
        self.root, self.data, self.staged, self.undo = root, root / "data", root / "staged", root / "undo"

    def install(self, disk: Disk | None = None) -> Installed:
        """Install with everything that can be asked for."""
        request = InstallOrder(
            staged=str(self.staged),
            scope=Scope(sources=(str(self.data),)),
            asked=frozenset(Replace),
            undo_dir=self.undo,
        )
        clock = FixedClock(1_700_000_000_000)
        return install(request, now_ms=clock.now_ms, s3=S3Settings(), progress=Progress(), disk=disk)

    def manifests(self) -> list[Path]:
        """Return what undoes the installations so far, the last one first."""
        return sorted(self.undo.glob(f"*/{MANIFEST_FILE}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)

    def take_back(self) -> None:
        for manifest in self.manifests():
            read_undo(manifest, Disk()).apply(lambda _: None)


@pytest.fixture
def place(stage: Stage, quick: Path) -> Place:
    return place_at(quick / "place", stage)


def place_at(root: Path, stage: Stage) -> Place:
    """Make one with a partition that needs every kind of change."""
    copied(stage.useless, root / "data")
    copied(stage.base / "staged", root / "staged")
    return Place(root)


def is_complete(place: Place) -> bool:
    there = {path.name: path.read_bytes() for path in (place.data / PARTITION).glob("*.snapshot")}
    return all(there.get(Path(name).name) == body for name, body in staged_in(place.staged).items())


def test_runs_at_two_log_dirs_at_the_same_moment_have_places_of_their_own(stage: Stage, quick: Path) -> None:
    """A loop over the log dirs of a broker, say, with what is kept for all of them in one place."""
    one, other = (place_at(quick / name, stage) for name in ("one", "other"))
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
    [row] = ran.document["partitions"]
    assert "not-reached" in {snapshot["outcome"] for snapshot in row["snapshots"]}
    assert row["installed"] + row["replaced"] == len(check_install(data, before, place.staged))
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
def test_a_user_who_may_not_write_is_refused_before_anything_is_changed(stage: Stage, open_folder: Path) -> None:
    place = place_at(open_folder / "place", stage)
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
