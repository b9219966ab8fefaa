"""A loss of power at any step of a verb leaves nothing half-made under a name, and no sync of the code is idle."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.power import Luck, Power
from tests.scheduler.files import tree
from tests.scheduler.scenes import SET, Scene, contents, one_partition

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet

pytestmark = pytest.mark.slow

PROJECT: Final = Path(__file__).parents[2]


@pytest.fixture
def log_dir(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    return one_partition(fixture_set(SET).data, tmp_path / "data")


def run_watched(scene: Scene, verb: str, forgets: str | None = None) -> Power:
    """Run the verb, check after each step, and at the end for all that it reported as done."""
    left = scene.root.with_name("left")

    def look(power: Power) -> None:
        for luck in Luck:
            scene.check(verb, power.survivors(left, luck=luck))

    def work() -> None:
        assert scene.run(verb) == 0

    power = Power(scene.root, look, forgets)
    power.watch(work, left)
    assert verb == "remember" or contents(left) == contents(scene.root), "what was said to be done would be lost"
    return power


@pytest.fixture
def scene(log_dir: Path, fixture_set: Callable[[str], FixtureSet], quick: Path) -> Scene:
    return Scene(log_dir, fixture_set(SET).expected, quick)


SYNCS: Final = {
    "regenerate": {"producer_snapshot._write", "producer_snapshot.store_snapshot_arrays", "disk.make_directories",
                   "local._temporary_file", "local._write"},
    "tier": {"local._temporary_file", "local._write", "local._make_folder"},
}  # fmt: skip
ELSEWHERE: Final = {
    "disk.sync": "test_install_crash.py",
    "disk.sync_directory": "test_install_crash.py",
    "local._unlink": "test_a_deletion_is_durable_when_it_returns",
    "whole_file.write_whole": "test_a_run_cache_is_complete_or_not_there",
}


@pytest.mark.parametrize("verb", SYNCS)
def test_a_loss_of_power_at_any_step_leaves_nothing_half_made(scene: Scene, verb: str) -> None:
    before = tree(scene.log_dir)
    power = run_watched(scene, verb)
    assert SYNCS[verb] <= power.synced
    assert tree(scene.log_dir) == before


@pytest.mark.parametrize(("verb", "forgotten"), [(verb, one) for verb, found in SYNCS.items() for one in sorted(found)])
def test_each_sync_is_needed(scene: Scene, verb: str, forgotten: str) -> None:
    with pytest.raises((AssertionError, ValueError, KeyError, EOFError)):
        run_watched(scene, verb, forgotten)


def test_every_function_that_syncs_is_shown_to_need_it() -> None:
    found = set()
    for package in ("storage", "replay"):
        for path in (PROJECT / package).rglob("*.py"):
            for function in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(function, ast.FunctionDef) and _syncs(function):
                    found.add(f"{path.stem}.{function.name}")
    assert found - {"whole_file.sync_directory"} == set().union(*SYNCS.values(), ELSEWHERE) - {"disk.make_directories"}


def _syncs(function: ast.FunctionDef) -> bool:
    calls = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    return not calls.isdisjoint({"os.fsync", "sync_directory"})


def test_a_deletion_is_durable_when_it_returns(scene: Scene) -> None:
    assert scene.run("tier") == 0
    kept = {path: path.read_bytes() for path in scene.root.rglob("*") if path.is_file()}
    run_watched(scene, "retain")
    for path, body in kept.items():
        path.write_bytes(body)
    with pytest.raises(AssertionError):
        run_watched(scene, "retain", "local._unlink")


def test_a_run_cache_is_complete_or_not_there(scene: Scene) -> None:
    run_watched(scene, "remember")
    shutil.rmtree(scene.root / "state")
    with pytest.raises((AssertionError, ValueError)):
        run_watched(scene, "remember", "whole_file.write_whole")
