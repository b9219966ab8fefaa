"""What a command loads: no more than it uses, since each line that is loaded makes every command begin later."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.builders import a_batch
from tests.cases import each

if TYPE_CHECKING:
    from tests.scheduler.conftest import Resnap

LOADED: Final = """
import json, sys
from resnap.scheduler.cli import run
run(sys.argv[1:])
own = {name: module.__file__ for name, module in sys.modules.items() if name.startswith("resnap") and module.__file__}
sys.stderr.write("\\n" + json.dumps(own))
"""
LIMITS: Final = {("version",): 6_000, ("token", "list"): 8_000, ("runs", "list"): 8_000}
"""By command: the most lines of the program; nothing of ``tiering`` is loaded."""


def loaded(resnap: Resnap, *command: object, most: int) -> set[str]:
    """Return the modules that a command loads, which have no more lines than ``most`` in all."""
    environment = resnap.environment({"RESNAP_STATE_DIR": str(resnap.directory)})
    call = [sys.executable, "-c", LOADED, *map(str, command)]
    ran = subprocess.run(call, cwd=resnap.directory, env=environment, capture_output=True, text=True, check=True)
    own: dict[str, str] = json.loads(ran.stderr.splitlines()[-1])
    assert sum(len(Path(file).read_text().splitlines()) for file in own.values()) <= most
    return {name.removeprefix("resnap.") for name in own}


def test_check_loads_nothing_that_replays_or_ships(resnap: Resnap, tmp_path: Path) -> None:
    (tmp_path / "payments-0").mkdir()
    (tmp_path / "payments-0" / f"{0:020}.log").write_bytes(a_batch())
    found = loaded(resnap, "check", tmp_path, most=32_000)
    assert found.isdisjoint({"tiering.tier", "tiering.engine", "tiering.planner", "replay.rebuild"})


@each("command", LIMITS)
def test_a_command_loads_what_it_uses(command: tuple[str, ...], resnap: Resnap) -> None:
    found = loaded(resnap, *command, most=LIMITS[command])
    assert not [name for name in found if name.startswith(("tiering.", "scheduler.verbs.", "scheduler.job.wiring"))]
