"""Every promise names the tests that hold it, and these exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from tests.cases import each

ROOT: Final = Path(__file__).parent.parent
TEXT: Final = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
PROMISED, NOT_PROMISED = TEXT.split("## What it does not promise")
NAMED: Final = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PROMISED)


@each(("file", "name"), NAMED)
def test_a_test_that_holds_a_promise_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_bytes())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_promise_names_a_test() -> None:
    promises = re.split(r"^- ", PROMISED, flags=re.MULTILINE)[1:]
    assert promises
    assert [promise for promise in promises if "::" not in promise] == []
    assert len(NAMED) == PROMISED.count("::")
