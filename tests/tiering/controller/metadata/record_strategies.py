"""Any record of any type and version, made from the schemas themselves; and the real logs, opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from resnap.storage.messages.schema import FieldSchema, Struct, schema_of
from resnap.storage.messages.wire import Array, Identifier, Nullable, Number, Octets, Text, Wire, uuid_text
from resnap.tiering.controller.metadata.records import TYPES_BY_KEY, MetadataRecord, RecordType

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

INTEGER_BITS = {"b": 8, "h": 16, "i": 32, "q": 64}
PLAIN: dict[type, SearchStrategy[Any]] = {
    Text: st.text(max_size=20),
    Octets: st.binary(max_size=20),
    Identifier: st.binary(min_size=16, max_size=16).map(uuid_text),
}


def messages(message: type, version: int) -> SearchStrategy[Any]:
    """Any message of a version; what the version lacks has its default."""
    there = [field for field in schema_of(message) if field.is_in(version)]
    return st.builds(message, **{field.name: field_values(field, version) for field in there})


def field_values(field: FieldSchema, version: int) -> SearchStrategy[Any]:
    anything = values(field.wire, version)
    return anything if field.tag is None else st.just(field.default) | anything


def values(wire: Wire, version: int) -> SearchStrategy[Any]:
    match wire:
        case Number(layout):
            return numbers(layout.format[1:])
        case Array(item):
            return st.lists(values(item, version), max_size=3).map(tuple)
        case Nullable(inner):
            return st.none() | values(inner, version)
        case Struct(message):
            return messages(message, version)
        case _:
            return PLAIN[type(wire)]


def numbers(code: str) -> SearchStrategy[Any]:
    if code == "?":
        return st.booleans()
    if code == "d":
        return st.floats(allow_nan=False)
    if code == "H":
        return st.integers(0, 2**16 - 1)
    bits = INTEGER_BITS[code]
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@st.composite
def records_in_a_version(draw: st.DrawFn) -> tuple[MetadataRecord, int]:
    record_type: RecordType = draw(st.sampled_from(list(TYPES_BY_KEY.values())))
    version = draw(st.integers(0, record_type.newest_version))
    return draw(messages(record_type.message, version)), version


def newest_records() -> SearchStrategy[MetadataRecord]:
    return st.one_of([messages(one.message, one.newest_version) for one in TYPES_BY_KEY.values()])
