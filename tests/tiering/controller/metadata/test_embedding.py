"""The program in the text runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.fixture_sets import FixtureSet

TEXT = Path(__file__).parents[4] / "docs" / "controller.md"


def test_the_program_in_the_text_runs(
    fixture_set: Callable[[str], FixtureSet], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", TEXT.read_text(encoding="utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(fixture_set("kafka-3.9.1-kraft").root)
    exec(compile(program, str(TEXT), "exec"), {})  # noqa: S102 - our own text
    topic, expiration, *blocks = capsys.readouterr().out.splitlines()
    assert topic == "YMc4MP1-R6O2oJbmBbBiPg 21"
    assert "value_ms=43200000" in expiration
    assert [line.split()[0] for line in blocks] == ["20", "104"]
