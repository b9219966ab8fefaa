"""What other programs import of the controller and the quota: the programs of the pages run, and load little."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from resnap.tiering import controller, quota

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from tests.fixture_sets import FixtureSet

DOCS: Final = Path(__file__).parents[2] / "docs"
NEVER: Final = ("numba", "pyspark", "boto3", "pandas", "pyarrow")
LINES: Final = 20
"""Of the program that a page begins with, at most."""


def programs_of(page: str) -> list[str]:
    """Return the Python programs of a page, which begins with one."""
    text = (DOCS / page).read_text(encoding="utf-8")
    assert text.split("\n", 2)[2].startswith("```python\n"), "a page of a library begins with a program"
    programs = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(programs[0].splitlines()) <= LINES
    return programs


def printed_by(program: str, where: Path) -> list[str]:
    """Return what a program prints that cannot import any of ``NEVER``."""
    without = f"import sys\nsys.modules.update(dict.fromkeys({NEVER!r}))\n"
    ran = subprocess.run(
        [sys.executable, "-c", without + program], cwd=where, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_the_program_that_reads_a_metadata_log_runs(fixture_set: Callable[[str], FixtureSet]) -> None:
    topic, expiration, *blocks = printed_by(programs_of("controller.md")[0], fixture_set("kafka-3.9.1-kraft").root)
    assert topic == "YMc4MP1-R6O2oJbmBbBiPg 21"
    assert "value_ms=43200000" in expiration
    assert [line.split()[0] for line in blocks] == ["20", "104"]


def test_the_program_that_gives_producer_ids_out_runs(tmp_path: Path) -> None:
    _, program, _ = programs_of("controller.md")
    assert [printed_by(program, tmp_path) for _ in range(2)] == [["0"], ["1000"]]
    assert (tmp_path / "__cluster_metadata-0" / "00000000000000000000.log").exists()


def test_the_program_that_asks_a_coordinator_runs(tmp_path: Path) -> None:
    assert printed_by(programs_of("controller.md")[2], tmp_path) == [
        "1", "CONCURRENT_TRANSACTIONS", "2", "batch failed; producer must abort its transaction, with its next epoch",
    ]  # fmt: skip


def test_the_program_that_asks_the_quota_runs_and_compiles_nothing(tmp_path: Path) -> None:
    (program,) = programs_of("quota.md")
    refused, *others = printed_by(program, tmp_path)
    # Of 551 ids hardly one in 100 runs has one that the filter, whose seed is secret, lets pass for free.
    assert refused in {f"{number} 72000 89" for number in range(551, 555)}
    assert others == ["True", "True", "True", "71999"]


def test_the_program_that_asks_a_leader_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    accepted, duplicate, gap = printed_by(program, tmp_path)
    assert (accepted, gap) == ("None", "OUT_OF_ORDER_SEQUENCE_NUMBER")
    assert "last_sequence=0, last_offset=0" in duplicate


@pytest.mark.parametrize("library", [controller, quota])
def test_public_names_are_there_and_are_what_their_modules_have(library: ModuleType) -> None:
    assert library.__all__ == sorted(
        library.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name)
    )
    for name in library.__all__:
        found = getattr(library, name)
        home = getattr(found, "__module__", library.__name__)
        assert home.startswith(("resnap.tiering.", "builtins")), name
        if home != library.__name__:
            assert getattr(import_module(home), name) is found


def test_private_names_are_not_attributes_of_the_package() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Folding'"):
        _ = controller.Folding
