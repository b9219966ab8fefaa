"""Each of Kafka's own tests that concern us has one here, or a reason in the text why not."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

from tests.cases import each
from tests.tiering.controller.kafkas_own_tests import NOT_HERE, OWN_TESTS

ROOT: Final = Path(__file__).parents[3]
TEXT: Final = (ROOT / "docs" / "controller.md").read_text(encoding="utf-8")
ALL: Final = [(kind, name) for kind, own in OWN_TESTS.items() for name in own.names.split()]


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_bytes())
    return frozenset(plain(node.name) for node in tree.body if isinstance(node, ast.FunctionDef))


def plain(name: str) -> str:
    """Return a name without what spellings differ in."""
    return name.replace("_", "").lower().removeprefix("test")


@each(("kind", "name"), ALL, ids=[name for _, name in ALL])
def test_what_kafka_asks_is_asked_here_or_the_text_says_why_not(kind: str, name: str) -> None:
    is_here = any(plain(name) in names_in(file) for file in OWN_TESTS[kind].files)
    assert is_here is not (name in NOT_HERE)
    assert (f"`{name}`" in TEXT) is (name in NOT_HERE)


def test_the_text_says_how_many_there_are() -> None:
    assert f"{len(ALL)} of Kafka's own tests" in TEXT
    assert len(set(ALL)) == len(ALL)
