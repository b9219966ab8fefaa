"""Every statement of ``docs/quota.md`` has a test, and no test is of a statement that is not there."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
TEXT = HERE.parents[2] / "docs" / "quota.md"


def test_every_statement_has_a_test_and_every_test_its_statement() -> None:
    text = TEXT.read_text(encoding="utf-8")
    stated = re.findall(r"^(\d+)\. ", text.split("## Statements that tests prove")[1], flags=re.MULTILINE)
    tested = {
        int(number) for file in HERE.glob("test_*.py") for number in re.findall(r"def test_s(\d\d)_", file.read_text())
    }
    assert [int(number) for number in stated] == list(range(1, 44))
    assert tested == set(range(1, 44))
