"""The Ansible role: it makes, waits, stops, installs, starts and checks, in this order; and what fails is undone.

The service and the installation are real. What is said of the cluster, and the broker, are scripts that write down when
they were called; ``tests/kafka/test_fleet.py`` runs the role with real brokers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import yaml

from tests.scheduler.api.whole import whole
from tests.scheduler.files import lost_boundaries
from tests.scheduler.installed import SET

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.api.whole import Whole

ANSIBLE: Final = Path(__file__).parent.parent.parent / "docs" / "deploy" / "ansible"
RESNAP: Final = Path(sys.executable).with_name("resnap")
PLAYBOOK: Final = Path(sys.executable).with_name("ansible-playbook")
pytestmark = pytest.mark.slow
STANDS_FOR_THE_CLUSTER: Final = """#!/bin/sh
case "$1 $2" in
"fleet gate")
  code=$(cat {root}/gate); echo 0 > {root}/gate
  echo "gate $code" >> {root}/calls; exit $code;;
"fleet status") echo status >> {root}/calls; echo '{{"topics": [{{"underReplicated": 0}}]}}'; exit 4;;
*) echo "$1" >> {root}/calls; exec {resnap} "$@";;
esac
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host with one broker."""

    root: Path
    data: Path
    service: Whole

    def play(self, book: str, **more: object) -> subprocess.CompletedProcess[str]:
        variables = {
            "resnap_broker_id": 1,
            "resnap_command": str(self.root / "resnap"),
            "resnap_service": self.service.address,
            "resnap_token_file": str(self.root / "token"),
            "resnap_log_dirs": [str(self.data)],
            "resnap_staged": str(self.root / "out" / "made"),
            "resnap_undo_dir": str(self.root / "undo"),
            "resnap_broker_stop": f"sh -c 'echo stop >> {self.root}/calls'",
            "resnap_broker_start": f"sh -c 'echo start >> {self.root}/calls'",
            "resnap_user": "",
            "resnap_delay": 1,
            "resnap_retries": 120,
        }
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        hosts = {"kafka_brokers": {"hosts": {"broker-1": {**local, **variables, **more}}}}
        (self.root / "hosts.yml").write_text(yaml.safe_dump(hosts))
        command = [PLAYBOOK, "-c", "local", "-i", self.root / "hosts.yml", ANSIBLE / book]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.root)

    def calls(self) -> list[str]:
        """Return what was called since the last call of this function."""
        said = (self.root / "calls").read_text().splitlines()
        (self.root / "calls").write_text("")
        return said


def test_snapshots_are_installed_undone_and_installed_again(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = shutil.copytree(fixture_set(SET).data, tmp_path / "data")
    (tmp_path / "calls").touch()
    (tmp_path / "resnap").write_text(STANDS_FOR_THE_CLUSTER.format(root=tmp_path, resnap=RESNAP))
    (tmp_path / "resnap").chmod(0o755)
    lost = lost_boundaries(data / "payments-0")
    assert lost
    with whole(tmp_path, data, auth="token") as service:
        (tmp_path / "token").write_text(service.secrets["operator"] + "\n")
        (tmp_path / "gate").write_text("4\n")
        host = Host(root=tmp_path, data=data, service=service)
        only = {"resnap_topics": ["payments"]}

        ran = host.play("install.yml", **only)
        assert ran.returncode == 0, ran.stdout
        assert host.calls() == ["gate 4", "gate 0", "stop", "install", "start", "status"]
        assert lost_boundaries(data / "payments-0") == []
        ran = host.play("install.yml", **only)
        assert (ran.returncode, host.calls()) == (0, []), ran.stdout

        ran = host.play("undo.yml", **only)
        assert ran.returncode == 0, ran.stdout
        assert host.calls() == ["gate 0", "stop", "install", "start", "status"]
        assert lost_boundaries(data / "payments-0") == lost

        (tmp_path / "elsewhere").mkdir()
        two = [str(data), str(tmp_path / "elsewhere")]
        ran = host.play("install.yml", resnap_log_dirs=two, **only)
        assert ran.returncode != 0
        assert host.calls() == ["gate 0", "stop", "install", "install", "install", "start"]
        assert lost_boundaries(data / "payments-0") == lost
        assert service.secrets["operator"] not in ran.stdout + ran.stderr
