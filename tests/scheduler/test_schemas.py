"""The JSON Schemas are those of the types that rows are declared with, and what commands print is as they say."""

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, NotRequired

import jsonschema_rs
import pytest
from typing_extensions import TypedDict

from resnap.scheduler.job.reports import Identity
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import Column
from resnap.storage.log.names import TopicPartition
from tests.cases import each
from tests.fixture_sets import FixtureSet
from tests.scheduler.conftest import Resnap
from tests.schemas import DOCUMENTS, FOLDER, check, schema, text
from tests.test_documentation import ROOT


class Shade(StrEnum):
    DARK = "dark"


class PartRow(TypedDict):
    """A part."""

    sizeBytes: Annotated[int, Column(title="SIZE", right=True)]
    shade: str


class WholeRow(Identity):
    """A whole."""

    first: PartRow | None
    others: list[PartRow]
    name: Annotated[str | None, "owner.name", Column(title="OWNER")]
    count: Annotated[int, lambda one: len(one.others), Column(title="PARTS"), Column(title="AGAIN")]
    more: NotRequired[int]
    size: NotRequired[Annotated[int | None, "owner.size_bytes"]]


def test_a_row_has_what_its_keys_name_in_their_types_and_its_columns() -> None:
    part = SimpleNamespace(size_bytes=3, shade=Shade.DARK)
    one = SimpleNamespace(topic_partition=TopicPartition("a", 1), first=None, others=(part,), owner=None)
    row = row_of(WholeRow, one)
    inner = {"sizeBytes": 3, "shade": "dark"}
    assert row == {"topic": "a", "partition": 1, "first": None, "others": [inner], "name": None, "count": 1}
    assert [*row] == ["topic", "partition", "first", "others", "name", "count"]
    assert type(row["others"][0]["shade"]) is str
    one.first, one.owner = part, SimpleNamespace(name="x")
    assert (row_of(WholeRow, one)["first"], row_of(WholeRow, one)["name"]) == (inner, "x")
    one.owner, one.more = SimpleNamespace(name="x", size_bytes=None), 1
    assert (row_of(WholeRow, one)["more"], row_of(WholeRow, one)["size"]) == (1, None)
    assert [(column.key, column.heading) for column in columns_of(WholeRow)] == [
        ("partition", "PARTITION"), ("name", "OWNER"), ("count", "PARTS"), ("count", "AGAIN"),
    ]  # fmt: skip
    assert [column.key for column in columns_of(WholeRow, "name", "partition")] == ["name", "partition"]
    with pytest.raises(AttributeError):
        row_of(WholeRow, part)


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
