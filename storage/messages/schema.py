"""Message schemas as data: frozen dataclasses whose annotations give each field's type and versions.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ProducerIdsRecord:
        broker_id: Int32
        broker_epoch: Int64 = -1
        next_producer_id: Int64

defines a record completely: its fields in wire order, and their defaults in versions without them. Its reader and
writer are derived from that, once per class. Versions are flexible (KIP-482) from the first on, or from the
``ClassVar`` ``flexible_since`` on.

Where a message is the value of a log record, a *frame* comes first: its own version, type and version of the message.

Source: Kafka's message generator, ``MessageDataGenerator``; ``AbstractApiMessageSerde``, ``MetadataRecordSerde`` and
``RemoteLogMetadataSerde`` for the frame.
"""

from __future__ import annotations

import base64
import struct
import types
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from resnap.storage.messages.wire import (
    Array,
    Cursor,
    Identifier,
    Nullable,
    Number,
    Octets,
    Text,
    Wire,
    before_flexible,
    write_unsigned_varint,
)
from resnap.storage.words import camel_case

T = TypeVar("T")

FRAME_VERSION: Final = 1
"""0 was the preview of KRaft in 2.8, from which there is no upgrade."""
MAX_INT16: Final = 0x7FFF

Bool: TypeAlias = Annotated[bool, Number(struct.Struct(">?"))]
Int8: TypeAlias = Annotated[int, Number(struct.Struct(">b"))]
Int16: TypeAlias = Annotated[int, Number(struct.Struct(">h"))]
UInt16: TypeAlias = Annotated[int, Number(struct.Struct(">H"))]
Int32: TypeAlias = Annotated[int, Number(struct.Struct(">i"))]
Int64: TypeAlias = Annotated[int, Number(struct.Struct(">q"))]
Float64: TypeAlias = Annotated[float, Number(struct.Struct(">d"))]
String: TypeAlias = Annotated[str, Text()]
Bytes: TypeAlias = Annotated[bytes, Octets()]
Uuid: TypeAlias = Annotated[str, Identifier()]


@dataclass(frozen=True, slots=True)
class Since:
    """The first version that has the field, and the last one, where later ones lack it again."""

    version: int
    last: int = MAX_INT16


@dataclass(frozen=True, slots=True)
class Tag:
    """The field is tagged with this number, and written only if it differs from its default."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSchema:
    """One field of a message."""

    name: str
    wire: Wire
    since: int
    last: int
    tag: int | None
    default: object
    """``MISSING`` where there is none."""

    def is_in(self, version: int) -> bool:
        """Whether ``version`` has the field."""
        return self.since <= version <= self.last

    @property
    def json_name(self) -> str:
        """Kafka's own name of the field."""
        return camel_case(self.name)


class _FieldsOfVersion(NamedTuple):
    """The fields of one version of a message."""

    plain: list[FieldSchema]
    """The fields that always come, in order."""
    tagged: dict[int, FieldSchema]
    is_flexible: bool


_SCHEMAS: Final[dict[type, tuple[FieldSchema, ...]]] = {}
_LAYOUTS: Final[dict[tuple[type, int], _FieldsOfVersion]] = {}
"""What has been worked out so far, by class, and by class and version."""


@dataclass(frozen=True, slots=True)
class Struct:
    """A message, or a nested structure with fields of its own: instances of ``type``."""

    type: type

    def read(self, cursor: Cursor, version: int) -> object:
        """Return the next instance."""
        return read_message(self.type, cursor, version)

    def write(self, value: object, version: int) -> bytes:
        """Return the bytes of an instance."""
        return write_message(value, version)


def schema_of(message: type) -> tuple[FieldSchema, ...]:
    """Return the fields of the dataclass ``message``, in wire order."""
    known = _SCHEMAS.get(message)
    if known is None:
        hints = get_type_hints(message, include_extras=True)
        known = _SCHEMAS[message] = tuple(_field_schema(field, hints[field.name]) for field in fields(message))
    return known


def read_message(message: type[T], cursor: Cursor, version: int) -> T:
    """Return the next ``message`` of ``version``; fields that the version lacks have their defaults.

    Unknown tagged fields are skipped, and recorded in ``cursor``: they never change the meaning of other fields.

    Raises:
        FormatError: the bytes do not fit the schema.

    """
    plain, tagged, is_flexible = _layout(message, version)
    values = {field.name: field.wire.read(cursor, version) for field in plain}
    for _ in range(cursor.unsigned() if is_flexible else 0):
        tag, size = cursor.unsigned(), cursor.unsigned()
        with cursor.exactly(size, f"tagged field {tag} of {message.__name__}"):
            if tag in tagged:
                values[tagged[tag].name] = tagged[tag].wire.read(cursor, version)
            else:
                cursor.unknown_tags.append(tag)
                cursor.take(size, "tagged field")
    return message(**values)


def read_whole(message: type[T], cursor: Cursor, version: int) -> T:
    """Return the ``message`` of ``version`` that takes all remaining bytes; raises as ``read_message`` does."""
    found = read_message(message, cursor, version)
    if cursor.remaining:
        raise cursor.wrong(f"end of {message.__name__}", "no more bytes", cursor.remaining)
    return found


def write_message(message: object, version: int) -> bytes:
    """Return the bytes of ``message`` in ``version``.

    Raises:
        ValueError: a field has a value that this version, or its type, cannot hold.

    """
    for field in schema_of(type(message)):
        if not field.is_in(version) and getattr(message, field.name) != field.default:
            raise ValueError(f"{type(message).__name__} of version {version} has no {field.json_name}")
    layout = _layout(type(message), version)
    plain = b"".join([field.wire.write(getattr(message, field.name), version) for field in layout.plain])
    if not layout.is_flexible:
        return plain
    news = {tag: field for tag, field in layout.tagged.items() if getattr(message, field.name) != field.default}
    tagged = [(tag, news[tag].wire.write(getattr(message, news[tag].name), version)) for tag in sorted(news)]
    framed = [write_unsigned_varint(tag) + write_unsigned_varint(len(data)) + data for tag, data in tagged]
    return plain + write_unsigned_varint(len(tagged)) + b"".join(framed)


def oldest_version(message: object) -> int:
    """Return the oldest version that can hold all of ``message``, so that most releases can read it."""
    fields_of = schema_of(type(message))
    return max(
        (field.since for field in fields_of if field.since and getattr(message, field.name) != field.default), default=0
    )


def message_json(message: object, version: int) -> dict[str, object]:
    """Return ``message`` as Kafka's tools show it: without fields that ``version`` lacks and default tagged fields."""
    shown: dict[str, object] = {}
    for field in schema_of(type(message)):
        value = getattr(message, field.name)
        if field.is_in(version) and (field.tag is None or value != field.default):
            shown[field.json_name] = _as_json(value, version)
    return shown


def _layout(message: type, version: int) -> _FieldsOfVersion:
    """Return the fields of ``version``."""
    known = _LAYOUTS.get((message, version))
    if known is None:
        is_flexible = version >= getattr(message, "flexible_since", 0)
        there = [field for field in schema_of(message) if field.is_in(version)]
        tagged = {field.tag: field for field in there if field.tag is not None}
        plain = [field for field in there if field.tag is None]
        if not is_flexible:
            plain = [replace(field, wire=before_flexible(field.wire)) for field in plain]
        known = _LAYOUTS[message, version] = _FieldsOfVersion(plain, tagged, is_flexible)
    return known


def _as_json(value: object, version: int) -> object:
    if isinstance(value, tuple):
        return [_as_json(item, version) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else message_json(value, version)


def _field_schema(field: Field[Any], hint: object) -> FieldSchema:
    marks = getattr(hint, "__metadata__", ())
    since = next((mark for mark in marks if isinstance(mark, Since)), Since(0))
    return FieldSchema(
        name=field.name,
        wire=_wire(hint),
        since=since.version,
        last=since.last,
        tag=next((mark.number for mark in marks if isinstance(mark, Tag)), None),
        default=MISSING if field.default is MISSING else field.default,
    )


def _wire(hint: Any) -> Wire:  # noqa: ANN401 - type hints have no type of their own
    """Return how a value of the annotated type ``hint`` is read and written."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        own = next((mark for mark in marks if not isinstance(mark, Since | Tag)), None)
        return _wire(inner) if own is None else own
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (part for part in get_args(hint) if part is not type(None))
        return Nullable(_wire(inner))
    if get_origin(hint) is tuple:
        return Array(_wire(get_args(hint)[0]))
    return Struct(hint)


class Frame(NamedTuple):
    """Type and version of the message that follows."""

    api_key: int
    version: int


def read_frame(cursor: Cursor, what: str) -> Frame:
    """Return the next frame; ``what`` names the record in a message.

    Raises:
        FormatError: another frame version, or a type or version of more than 16 bits.

    """
    start = cursor.position
    found = cursor.unsigned()
    if found != FRAME_VERSION:
        cursor.position = start
        raise cursor.wrong(f"{what} frame version", FRAME_VERSION, found)
    return Frame(_int16(cursor, f"{what} type"), _int16(cursor, f"{what} version"))


def write_frame(frame: Frame) -> bytes:
    """Return the bytes of ``frame``."""
    return b"".join(map(write_unsigned_varint, (FRAME_VERSION, *frame)))


def _int16(cursor: Cursor, what: str) -> int:
    value = cursor.unsigned()
    if value > MAX_INT16:
        raise cursor.wrong(what, f"at most {MAX_INT16}", value)
    return value
