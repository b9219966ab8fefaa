"""The bodies of ``AllocateProducerIds`` (key 67) and ``InitProducerId`` (key 22), requests and responses, all versions.

Headers are the caller's. An error code that nobody here knows is damage: what it asks for could only be guessed.

Source: ``AllocateProducerIdsRequest.json``, ``InitProducerIdRequest.json`` and their responses; KIP-730, KIP-360.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from resnap.storage.errors import FormatError
from resnap.storage.kafka_errors import KafkaError
from resnap.storage.messages.schema import Int16, Int32, Int64, read_message, write_message
from resnap.storage.messages.varint import write_unsigned_varint
from resnap.storage.messages.wire import Cursor

ALLOCATE_PRODUCER_IDS: Final = 67
INIT_PRODUCER_ID: Final = 22
ALLOCATE_PRODUCER_IDS_VERSIONS: Final = range(1)
INIT_PRODUCER_ID_VERSIONS: Final = range(6)
"""2.4 has 0 to 2, 2.5 adds 3 (an expected id and epoch), 2.7 adds 4 (PRODUCER_FENCED), 3.8 adds 5 (KIP-890)."""
_FLEXIBLE_SINCE: Final = 2
_EXPECTED_SINCE: Final = 3
_FENCED_SINCE: Final = 4
_LENGTH: Final = struct.Struct(">h")
_TIMEOUT: Final = struct.Struct(">i")
_EXPECTED: Final = struct.Struct(">qh")
_RESPONSE: Final = struct.Struct(">ihqh")
_NO_TAGS: Final = b"\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsRequest:
    """A broker asks for a block."""

    broker_id: Int32
    broker_epoch: Int64 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsResponse:
    """A block, or an error and no block."""

    throttle_time_ms: int = 0
    error_code: KafkaError = KafkaError.NONE
    producer_id_start: int = 0
    """First id of the block."""
    producer_id_len: int = 0
    """How many ids there are in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AllocateProducerIdsBody:
    throttle_time_ms: Int32
    error_code: Int16
    producer_id_start: Int64
    producer_id_len: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    """A producer asks for an id, or for the next epoch of the one it has."""

    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int = -1
    """The id it has, from version 3 on; -1 for none."""
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    """An id and an epoch, or an error."""

    throttle_time_ms: int = 0
    error_code: KafkaError = KafkaError.NONE
    producer_id: int = -1
    producer_epoch: int = -1


def write_allocate_request(request: AllocateProducerIdsRequest) -> bytes:
    """Return the body of a request; ValueError where a number does not fit."""
    return write_message(request, 0)


def read_allocate_request(body: bytes) -> AllocateProducerIdsRequest:
    """Return the request; FormatError where the body is none."""
    cursor = Cursor(body)
    request = read_message(AllocateProducerIdsRequest, cursor, 0)
    _check_end(cursor)
    return request


def write_allocate_response(response: AllocateProducerIdsResponse) -> bytes:
    """Return the body of a response; ValueError where a number does not fit."""
    body = _AllocateProducerIdsBody(
        throttle_time_ms=response.throttle_time_ms, error_code=response.error_code.value,
        producer_id_start=response.producer_id_start, producer_id_len=response.producer_id_len,
    )  # fmt: skip
    return write_message(body, 0)


def read_allocate_response(data: bytes) -> AllocateProducerIdsResponse:
    """Return the response; FormatError where the body is none."""
    cursor = Cursor(data)
    body = read_message(_AllocateProducerIdsBody, cursor, 0)
    _check_end(cursor)
    return AllocateProducerIdsResponse(
        throttle_time_ms=body.throttle_time_ms, error_code=_error(body.error_code, cursor),
        producer_id_start=body.producer_id_start, producer_id_len=body.producer_id_len,
    )  # fmt: skip


def write_init_request(request: InitProducerIdRequest, version: int) -> bytes:
    """Return the body of a request of ``version``.

    Raises:
        ValueError: no such version, or the request expects an id, which versions below 3 cannot say.

    """
    _check_version(version)
    expected = _EXPECTED.pack(request.producer_id, request.producer_epoch)
    if version < _EXPECTED_SINCE and expected != _EXPECTED.pack(-1, -1):
        raise ValueError(f"InitProducerId of version {version} has no producer id and epoch")
    parts = [_text_bytes(request.transactional_id, version), _TIMEOUT.pack(request.transaction_timeout_ms)]
    if version >= _EXPECTED_SINCE:
        parts.append(expected)
    return b"".join(parts) + (_NO_TAGS if version >= _FLEXIBLE_SINCE else b"")


def read_init_request(body: bytes, version: int) -> InitProducerIdRequest:
    """Return the request of ``version``; FormatError where the body is none, ValueError for no such version."""
    _check_version(version)
    cursor = Cursor(body)
    transactional_id = _read_text(cursor, version)
    (timeout,) = _TIMEOUT.unpack(cursor.take(_TIMEOUT.size, "transaction timeout"))
    producer_id, epoch = -1, -1
    if version >= _EXPECTED_SINCE:
        producer_id, epoch = _EXPECTED.unpack(cursor.take(_EXPECTED.size, "producer id and epoch"))
    _pass_tags(cursor, version)
    return InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout, producer_id=producer_id, producer_epoch=epoch
    )


def write_init_response(response: InitProducerIdResponse, version: int) -> bytes:
    """Return the body of a response of ``version``, with its error as such a version may carry it."""
    _check_version(version)
    error = error_for_version(response.error_code, version)
    body = _RESPONSE.pack(response.throttle_time_ms, error.value, response.producer_id, response.producer_epoch)
    return body + (_NO_TAGS if version >= _FLEXIBLE_SINCE else b"")


def read_init_response(body: bytes, version: int) -> InitProducerIdResponse:
    """Return the response of ``version``; FormatError where the body is none, ValueError for no such version."""
    _check_version(version)
    cursor = Cursor(body)
    throttle, code, producer_id, epoch = _RESPONSE.unpack(cursor.take(_RESPONSE.size, "InitProducerId response"))
    _pass_tags(cursor, version)
    return InitProducerIdResponse(
        throttle_time_ms=throttle, error_code=_error(code, cursor), producer_id=producer_id, producer_epoch=epoch
    )


def error_for_version(error: KafkaError, version: int) -> KafkaError:
    """Return ``error`` as a client of this request version knows it: before 4, fencing was INVALID_PRODUCER_EPOCH."""
    if version < _FENCED_SINCE and error is KafkaError.PRODUCER_FENCED:
        return KafkaError.INVALID_PRODUCER_EPOCH
    return error


def _text_bytes(text: str | None, version: int) -> bytes:
    data = b"" if text is None else text.encode()
    if version >= _FLEXIBLE_SINCE:
        return write_unsigned_varint(0 if text is None else len(data) + 1) + data
    return _LENGTH.pack(-1 if text is None else len(data)) + data


def _read_text(cursor: Cursor, version: int) -> str | None:
    if version >= _FLEXIBLE_SINCE:
        size = cursor.unsigned() - 1
    else:
        (size,) = _LENGTH.unpack(cursor.take(_LENGTH.size, "length of the transactional id"))
    if size == -1:
        return None
    try:
        return bytes(cursor.take(size, "transactional id")).decode()
    except UnicodeDecodeError:
        raise cursor.wrong("transactional id", "UTF-8", "other bytes") from None


def _pass_tags(cursor: Cursor, version: int) -> None:
    """Read past the tagged fields, of which none is known, to the end."""
    if version >= _FLEXIBLE_SINCE:
        for _ in range(cursor.unsigned()):
            cursor.unknown_tags.append(cursor.unsigned())
            cursor.take(cursor.unsigned(), "tagged field")
    _check_end(cursor)


def _check_end(cursor: Cursor) -> None:
    if cursor.remaining:
        raise cursor.wrong("end of the body", "nothing more", f"{cursor.remaining} bytes")


def _error(code: int, cursor: Cursor) -> KafkaError:
    try:
        return KafkaError(code)
    except ValueError:
        raise FormatError("error code", position=cursor.position, expected="one of those that are known", found=code,
                          hint="the broker is newer than this library") from None  # fmt: skip


def _check_version(version: int) -> None:
    if version not in INIT_PRODUCER_ID_VERSIONS:
        raise ValueError(f"InitProducerId has no version {version}")
