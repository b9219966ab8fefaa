"""A broker's host: the README's line installs where sudo finds it, and the runbook is typed through sudo."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.kafka.runbook import blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet

ROOT = Path(__file__).parent.parent.parent
USER = "nobody"
"""Has the part of the broker's user: an account that every machine has."""

pytestmark = pytest.mark.slow


def test_the_runbook_installs_as_the_brokers_user_through_sudo(
    fixture_set: Callable[[str], FixtureSet], open_folder: Path
) -> None:
    if os.geteuid() != 0 or shutil.which("sudo") is None or shutil.which("unshare") is None:
        pytest.skip("NOT TESTED: becoming the broker's user needs root, sudo and unshare")
    if _minor("/usr/bin/python3") != list(sys.version_info[:2]):
        pytest.skip("NOT TESTED: the system's Python is of another release, and libraries are taken from this one's")
    open_folder.chmod(0o755)  # it is the broker's: root would be refused where everyone may write
    (open_folder / "tmp").mkdir()
    (open_folder / "tmp").chmod(0o1777)
    data = shutil.copytree(fixture_set("kafka-2.7.2").data, open_folder / "data")
    for path in (data, *data.rglob("*")):
        shutil.chown(path, USER)
    (typed,) = re.findall(
        r"^```\n(sudo python3 -m venv .*)\n```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE
    )
    section = blocks()
    lines = (
        *(line for line in section["3. Make the snapshots, while the broker runs"][0] if " regenerate " in line),
        *(line for line in section["4. Put them in, broker by broker"][0] if line.startswith("sudo")),
    )
    assert sum(line.startswith("sudo -u kafka resnap install") for line in lines) == 2
    own = {
        "/var/lib/kafka/data": str(data), "/var/tmp": f"{open_folder}/tmp", "sudo -u kafka": f"sudo -u {USER}",  # noqa: S108
        " --server-properties /etc/kafka/server.properties": "",
    }  # fmt: skip
    follow = "\n".join(lines)
    for written, typed_here in own.items():
        follow = follow.replace(written, typed_here)
    libraries = Path(np.__file__).parent.parent
    environment, install, link = typed.split(" && ")
    # Nothing outside changes: /opt and /usr/local/bin are this process's own, and the libraries are those of the tests.
    script = f"""
        mount -t tmpfs tmpfs /opt && mount -t tmpfs tmpfs /usr/local/bin
        mkdir /opt/libraries && mount --bind -o ro {libraries} /opt/libraries
        cd {ROOT}
        {environment}
        echo /opt/libraries > /opt/resnap/lib/python3.{sys.version_info[1]}/site-packages/libraries.pth
        {install}
        {link}
        cd {open_folder} && export RESNAP_ENGINE=local
        {follow}
    """
    ran = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-euxo", "pipefail", "-c", script],
        capture_output=True, text=True, check=False, timeout=900,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(open_folder)},
    )  # fmt: skip
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert "snapshots installed" in ran.stdout
    installed = [path for path in data.rglob("*.snapshot") if path.owner() == USER]
    assert len(installed) > 30


def _minor(python: str) -> list[int]:
    ran = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False
    )
    return [int(number) for number in ran.stdout.split()]
