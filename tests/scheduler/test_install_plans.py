"""``resnap install --plan``: only what the plan names, and only while the plan is fresh."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

from tests.scheduler.installed import check_install, look

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scheduler.conftest import Resnap

JSON = ("--output", "json")


def test_of_what_is_staged_a_plan_has_only_that_installed_which_it_names(
    command: Resnap, broker_log: Path, staged: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "plan.json"
    assert command("plan", broker_log, "--save", kept, "--topic", "payments").code == 0
    plan = json.loads(kept.read_text())
    named = {f"{partition['topic']}-{partition['partition']}/{offset:020d}.snapshot"
             for partition in plan["partitions"] for offset in partition["boundaries"][1:]}  # fmt: skip
    for partition in plan["partitions"]:
        del partition["boundaries"][0]
    kept.write_text(json.dumps(plan))
    before = look(broker_log)
    assert command("install", staged, broker_log, "--plan", kept).code == 0
    assert check_install(broker_log, before, staged) == named


def test_what_a_plan_names_and_is_not_staged_is_named(
    command: Resnap, broker_log: Path, staged: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "plan.json"
    assert command("plan", broker_log, "--save", kept, "--topic", "payments").code == 0
    [planned] = [one["boundaries"] for one in json.loads(kept.read_text())["partitions"] if one["partition"] == 1]
    shutil.rmtree(staged / "payments-1")
    ran = command("install", staged, broker_log, "--plan", kept)
    assert ran.code == 3
    what = f"payments-1: {len(planned)} boundaries of the plan not installed, since nothing is staged in {staged}: "
    assert f"{what}{planned[0]}, " in ran.err


def test_a_plan_that_no_longer_fits_the_log_is_refused_before_anything_changes(
    command: Resnap, broker_log: Path, staged: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "plan.json"
    assert command("plan", broker_log, "--save", kept).code == 0
    os.utime(min((broker_log / "payments-0").glob("*.log")), (1, 1))
    before = look(broker_log)
    for flags in ((), ("--dry-run",)):
        ran = command("install", staged, broker_log, "--plan", kept, *flags, *JSON)
        assert (ran.code, ran.error["type"]) == (15, "StalePlanError")
        assert "payments-0" in ran.error["message"]
    assert look(broker_log) == before
    assert not staged.with_name("staged.undo").exists()
    assert command("install", staged, broker_log).code == 0
