"""A loss of power at any step of a verb leaves nothing half-made under a name, and no sync of the code is idle."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.power import Luck, Power
from tests.scheduler.files import tree
from tests.scheduler.scenes import PARTITION, Scene

if TYPE_CHECKING:
    from tests.scheduler.scenes import Stage

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("producers_stay")]

PROJECT: Final = Path(__file__).parents[2]


def run_watched(scene: Scene, forgets: str | None = None) -> Power:
    """Run the verb, check after each step, and at the end for all that it reported as done."""
    left = scene.root.with_name("left")

    def look(power: Power) -> None:
        for luck in Luck:
            scene.check(power.survivors(left, luck=luck))

    def work() -> None:
        assert scene.run() == 0

    power = Power(scene.root, look, forgets, looks_at_names=scene.verb == "restore")
    power.watch(work, left)
    scene.check_end(left)  # or what was said to be done would be lost
    return power


SYNCS: Final = {
    "regenerate": {"producer_snapshot._write", "producer_snapshot.store_snapshot_arrays", "disk.make_directories",
                   "local._temporary_file", "local._write"},
    "tier": {"local._temporary_file", "local._write", "local._make_folder"},
    "install": {"disk._write", "disk.write_file", "disk.remove_file", "disk.make_directories",
                "disk.make_new_directory"},
    "undo": {"disk._write"},
    "restore": {"disk._write", "restorer._make_durable", "restorer._publish"},
}  # fmt: skip
FOR_OTHERS: Final = {"whole_file.sync_directory", "disk.sync", "disk.sync_directory"}
ELSEWHERE: Final = {
    "local._unlink": "test_a_deletion_is_durable_when_it_returns",
    "whole_file.write_whole": "test_a_run_cache_is_complete_or_not_there",
}


@pytest.mark.parametrize("verb", SYNCS)
def test_a_loss_of_power_at_any_step_leaves_nothing_half_made(stage: Stage, verb: str) -> None:
    scene = Scene(stage, verb)
    before = tree(scene.source)
    power = run_watched(scene)
    assert SYNCS[verb] <= power.synced
    assert tree(scene.source) == before


@pytest.mark.parametrize(("verb", "forgotten"), [(verb, one) for verb, found in SYNCS.items() for one in sorted(found)])
def test_each_sync_is_needed(stage: Stage, verb: str, forgotten: str) -> None:
    with pytest.raises((AssertionError, ValueError, LookupError, EOFError, FileNotFoundError)):
        run_watched(Scene(stage, verb), forgotten)


def test_a_log_dir_that_a_restore_makes_is_there_when_it_ends(stage: Stage) -> None:
    scene = Scene(stage, "restore")
    left = scene.root.with_name("left")
    shutil.rmtree(scene.data)
    Power(scene.root, lambda _: None).watch(scene.run, left)
    assert tree(left / "data" / PARTITION).keys() == tree(scene.data / PARTITION).keys()


def test_a_saved_plan_is_there_when_the_command_ends(stage: Stage) -> None:
    scene = Scene(stage, "plan")
    plan, left = scene.root / "plan.json", scene.root.with_name("left")
    Power(scene.root, lambda _: None).watch(scene.run, left)
    assert json.loads((left / plan.name).read_bytes()) == json.loads(plan.read_bytes())


def test_every_function_that_syncs_is_shown_to_need_it() -> None:
    found = set()
    for package in ("storage", "replay", "tiering/restoring"):
        for path in (PROJECT / package).rglob("*.py"):
            for function in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(function, ast.FunctionDef) and _syncs(function):
                    found.add(f"{path.stem}.{function.name}")
    assert found - FOR_OTHERS == set().union(*SYNCS.values(), ELSEWHERE)


def _syncs(function: ast.FunctionDef) -> bool:
    calls = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    return not {call.rpartition(".")[2] for call in calls}.isdisjoint({"fsync", "sync", "sync_directory"})


def test_a_deletion_is_durable_when_it_returns(stage: Stage) -> None:
    scene = Scene(stage, "retain")
    kept = {path: path.read_bytes() for path in scene.root.rglob("*") if path.is_file()}
    run_watched(scene)
    for path, body in kept.items():
        path.write_bytes(body)
    with pytest.raises(AssertionError):
        run_watched(scene, "local._unlink")


def test_a_run_cache_is_complete_or_not_there(stage: Stage) -> None:
    scene = Scene(stage, "remember")
    run_watched(scene)
    shutil.rmtree(scene.root / "state")
    with pytest.raises((AssertionError, ValueError)):
        run_watched(scene, "whole_file.write_whole")
