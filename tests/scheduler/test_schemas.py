"""The JSON Schemas are those of the types that rows are declared with, and what commands print is as they say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema_rs
import pytest

from tests.cases import each
from tests.schemas import DOCUMENTS, FOLDER, check, schema, text
from tests.test_documentation import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap


@each("name", list(DOCUMENTS))
def test_a_schema_is_what_the_declarations_make(name: str) -> None:
    assert (FOLDER / f"{name}.schema.json").read_text(encoding="utf-8") == text(name), "python -m tests.schemas"


def test_the_reference_of_outputs_names_each_schema_and_there_is_no_other() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == {f"{name}.schema.json" for name in DOCUMENTS}
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    assert [name for name in DOCUMENTS if f"schemas/{name}.schema.json" not in guide] == []


def test_what_commands_print_is_as_the_schemas_say_and_has_nothing_else(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data, local = fixture_set("kafka-2.7.2").data, ("--engine", "local", "--as-of", "roll")
    store, state = (tmp_path / "store").as_uri(), {"RESNAP_STATE_DIR": str(tmp_path / "state")}
    for name, arguments in (
        ("scan", ("scan", data)),
        ("check", ("check", data)),
        ("plan", ("plan", data)),
        ("snapshots", ("plan", data, "--prove", *local)),
        ("snapshots", ("regenerate", data, "--into", tmp_path / "staged", *local)),
        ("snapshots", ("regenerate", data, "--into", tmp_path / "staged", *local)),
        ("snapshots", ("verify", data, "--snapshots", tmp_path / "staged", *local)),
        ("tier", ("tier", data, "--to", store, *local)),
        ("verify-store", ("verify", "--store", store, "--engine", "local")),
    ):
        document = json.loads(command(*arguments, "--output", "json", **state).out)
        rows, _ = DOCUMENTS[name]
        assert document[rows], arguments
        check(name, document)


def test_a_schema_refuses_what_is_not_as_it_says() -> None:
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validator_for(schema("scan")).validate({"partitions": [{"topic": 1}]})
