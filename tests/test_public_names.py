"""The public names of the package: those of docs/python.md, loaded one by one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import resnap

ROOT = Path(__file__).parent.parent


def test_the_public_names_are_those_of_the_documentation() -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    documented = dict(reversed(name.rsplit(".", 1)) for name in re.findall(r"^::: resnap\.(\S+)$", text, re.MULTILINE))
    assert {name: getattr(resnap, name).__module__ for name in resnap.__all__} == {
        name: f"resnap.{module}" for name, module in documented.items()
    }
    with pytest.raises(AttributeError, match="'nothing'"):
        resnap.nothing  # noqa: B018


def test_a_public_name_loads_neither_spark_nor_the_service() -> None:
    program = (
        "import sys; from resnap import load_snapshot, ProducerStateManager, ProducerIdAllocation; print(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.split(".")[0] for name in ran.stdout.split()} | set(ran.stdout.split())
    assert "resnap.storage.log.producer_snapshot" in loaded
    assert not loaded & {"pyspark", "fastapi", "resnap.scheduler"}
