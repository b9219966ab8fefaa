"""Makes ``docs/schemas/`` of the types that rows are declared with: ``python -m tests.schemas``."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, NotRequired, Union, get_args, get_origin, get_type_hints

import jsonschema_rs
from typing_extensions import is_typeddict

from resnap.scheduler.fleet.status import FleetTopicRow
from resnap.scheduler.verbs import check as checking
from resnap.scheduler.verbs import fleet, planned, repair, replayed, replicas, scan, tier, verify

FOLDER: Final = Path(__file__).parent.parent / "docs" / "schemas"
DOCUMENTS: Final = {
    "scan": ("partitions", scan.ScanRow),
    "check": ("topics", checking.TopicRow),
    "plan": ("partitions", planned.PlanRow),
    "snapshots": ("boundaries", replayed.BoundaryRow),
    "tier": ("partitions", tier.ShipmentRow),
    "verify-store": ("segments", verify.VerifiedRow),
    "repair": ("partitions", repair.RepairRow),
    "replicas": ("replicas", replicas.ReplicaRow),
    "fleet-status": ("topics", FleetTopicRow),
    "fleet-gate": ("reasons", fleet.GateRow),
}
"""By file: what the rows are called in the document, and their type."""
_PLAIN: Final = {str: "string", int: "integer", bool: "boolean", NoneType: "null"}


def schema(name: str, *, is_closed: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of the answers of a command; a closed one refuses keys that are not declared."""
    rows, kind = DOCUMENTS[name]
    found: dict[str, Any] = {}
    row = _reference(kind, found, is_closed)
    title = str(kind.__doc__).removeprefix("One ")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A document with a row per {title}",
        "type": "object",
        "required": [rows],
        "properties": {rows: {"type": "array", "items": row}, "summary": {"type": "object"}},
        "$defs": dict(sorted(found.items())),
    }


def check(name: str, document: dict[str, Any]) -> None:
    """Raise ValidationError unless a document is as its schema says, and has no key besides."""
    jsonschema_rs.validator_for(schema(name, is_closed=True)).validate(document)


def check_row(kind: Any, row: dict[str, Any]) -> None:
    """Raise ValidationError unless a row is of this type, and has no key besides."""
    found: dict[str, Any] = {}
    shape = _reference(kind, found, is_closed=True)
    jsonschema_rs.validator_for({**shape, "$defs": found}).validate(row)


def _reference(kind: Any, found: dict[str, Any], is_closed: bool) -> dict[str, Any]:
    """Return what refers to a type, which is put into ``found`` with all that it needs."""
    if kind.__name__ not in found:
        found[kind.__name__] = {}
        notes = get_type_hints(kind, include_extras=True)
        properties = {key: _schema(value, found, is_closed) for key, value in get_type_hints(kind).items()}
        found[kind.__name__] = {
            "description": kind.__doc__,
            "type": "object",
            "required": [key for key, note in notes.items() if get_origin(note) is not NotRequired],
            "properties": properties,
            **({"additionalProperties": False} if is_closed else {}),
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _schema(kind: Any, found: dict[str, Any], is_closed: bool) -> dict[str, Any]:
    if is_typeddict(kind):
        return _reference(kind, found, is_closed)
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"type": "string", "enum": [one.value for one in kind]}
    arguments = get_args(kind)
    if get_origin(kind) in {Union, UnionType}:
        return {"anyOf": [_schema(argument, found, is_closed) for argument in arguments]}
    if get_origin(kind) is list:
        return {"type": "array", "items": _schema(arguments[0], found, is_closed)}
    assert get_origin(kind) is dict, kind
    return {"type": "object", "additionalProperties": _schema(arguments[1], found, is_closed)}


def text(name: str) -> str:
    """Return the file of a schema."""
    return json.dumps(schema(name), indent=2) + "\n"


if __name__ == "__main__":
    for one in DOCUMENTS:
        (FOLDER / f"{one}.schema.json").write_text(text(one), encoding="utf-8")
