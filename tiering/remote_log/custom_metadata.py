"""What Aiven's plugin keeps with a segment in the brokers' ``__remote_log_metadata``, where it was asked to.

Tagged fields as in Kafka's protocol, ascending, at most 128 bytes by default. They are only read: without any, the
plugin finds a segment by its ids and the key prefix that it is set to.

Source: ``SegmentCustomMetadataSerde`` of the plugin; ``TaggedFields`` of Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass

from resnap.storage.errors import FormatError
from resnap.storage.messages.varint import read_unsigned_varint, read_varlong

_REMOTE_SIZE, _OBJECT_PREFIX, _OBJECT_KEY = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMetadata:
    """The fields of ``custom.metadata.fields.include``; None are those that are left out."""

    remote_size: int | None = None
    """Bytes of the three objects."""
    object_prefix: str | None = None
    object_key: str | None = None
    """Without prefix and suffix."""


def read_custom_metadata(data: bytes) -> CustomMetadata:
    """Return what ``data`` hold; fields that are not known are passed over.

    Raises:
        FormatError: cut short, too long, or tags that do not ascend.

    """
    found: dict[int, tuple[int, int]] = {}
    count, at = read_unsigned_varint(data, 0) if data else (0, 0)
    for _ in range(count):
        tag, start = read_unsigned_varint(data, at)
        size, start = read_unsigned_varint(data, start)
        if tag <= max(found, default=-1) or start + size > len(data):
            raise FormatError("custom metadata: field", position=at, expected="ascending tags, whole fields", found=tag)
        at = start + size
        found[tag] = (start, at)
    if at != len(data):
        raise FormatError("custom metadata", position=at, expected="their end", found=f"{len(data) - at} bytes more")
    return CustomMetadata(
        remote_size=_number(data, found.get(_REMOTE_SIZE)),
        object_prefix=_string(data, found.get(_OBJECT_PREFIX)),
        object_key=_string(data, found.get(_OBJECT_KEY)),
    )


def _number(data: bytes, place: tuple[int, int] | None) -> int | None:
    if place is None:
        return None
    value, end = read_varlong(data[: place[1]], place[0])
    _check_end(end, place)
    return value


def _string(data: bytes, place: tuple[int, int] | None) -> str | None:
    if place is None:
        return None
    length, start = read_unsigned_varint(data[: place[1]], place[0])
    _check_end(start + length - 1, place)
    try:
        return data[start : place[1]].decode()
    except UnicodeDecodeError:
        raise FormatError("custom metadata: text", position=start, expected="UTF-8", found="something else") from None


def _check_end(end: int, place: tuple[int, int]) -> None:
    if end != place[1]:
        raise FormatError(
            "custom metadata: length", position=place[0], expected=place[1] - place[0], found=end - place[0]
        )
