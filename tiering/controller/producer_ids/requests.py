"""``AllocateProducerIds`` (key 67) and ``InitProducerId`` (key 22): request and response bodies, all versions.

The caller handles headers. An unknown error code is damage: its meaning could only be guessed.

Source: ``AllocateProducerIdsRequest.json``, ``InitProducerIdRequest.json`` and their responses; KIP-730, KIP-360.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final, TypeAlias, TypeVar

from resnap.storage.errors import FormatError
from resnap.storage.kafka_errors import KafkaError
from resnap.storage.messages.schema import Int16, Int32, Int64, Since, String, read_whole, write_message
from resnap.storage.messages.wire import Cursor

INIT_PRODUCER_ID: Final = 22
INIT_PRODUCER_ID_VERSIONS: Final = range(6)
"""2.4 has 0 to 2, 2.5 adds 3 (an expected id and epoch), 2.7 adds 4 (PRODUCER_FENCED), 3.8 adds 5 (KIP-890)."""
_FENCED_SINCE: Final = 4
_CODE_BYTES: Final = 2


class _ErrorCode:
    """Reads and writes an error code."""

    def read(self, cursor: Cursor, version: int) -> object:  # noqa: ARG002 - the same in all versions
        """Return the error that comes next."""
        code = int.from_bytes(cursor.take(_CODE_BYTES, "error code"), "big", signed=True)
        try:
            return KafkaError(code)
        except ValueError:
            raise FormatError("error code", position=cursor.position, expected="one of those that are known",
                              found=code, hint="the broker is newer than this library") from None  # fmt: skip

    def write(self, value: object, version: int) -> bytes:  # noqa: ARG002
        """Return the bytes of an error."""
        if not isinstance(value, KafkaError):
            raise TypeError(f"{value!r} is not a KafkaError")
        return value.to_bytes(_CODE_BYTES, "big", signed=True)


ErrorCode: TypeAlias = Annotated[KafkaError, _ErrorCode()]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsRequest:
    """A broker's request for a block."""

    versions: ClassVar[range] = range(1)
    broker_id: Int32
    broker_epoch: Int64 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsResponse:
    """A block, or an error and no block."""

    versions: ClassVar[range] = range(1)
    throttle_time_ms: Int32 = 0
    error_code: ErrorCode = KafkaError.NONE
    producer_id_start: Int64 = 0
    """First id of the block."""
    producer_id_len: Int32 = 0
    """How many ids there are in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    """A producer's request for an id, or for the next epoch of its id."""

    versions: ClassVar[range] = INIT_PRODUCER_ID_VERSIONS
    flexible_since: ClassVar[int] = 2
    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, Since(3)] = -1
    """The id it has; -1 for none."""
    producer_epoch: Annotated[Int16, Since(3)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    """An id and an epoch, or an error."""

    versions: ClassVar[range] = INIT_PRODUCER_ID_VERSIONS
    flexible_since: ClassVar[int] = 2
    throttle_time_ms: Int32 = 0
    error_code: ErrorCode = KafkaError.NONE
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1


_Body = TypeVar(
    "_Body", AllocateProducerIdsRequest, AllocateProducerIdsResponse, InitProducerIdRequest, InitProducerIdResponse
)


def write_body(message: _Body, version: int = 0) -> bytes:
    """Return the body of a request or response of ``version``, with an error that such clients know.

    Raises:
        ValueError: no such version, or a field that it does not have: below 3 no request expects a producer id.

    """
    _check_version(type(message), version)
    if isinstance(message, InitProducerIdResponse):
        message = replace(message, error_code=error_for_version(message.error_code, version))
    return write_message(message, version)


def read_body(message: type[_Body], body: bytes, version: int = 0) -> _Body:
    """Return the request or response of ``version``; FormatError for an invalid body, ValueError for its version."""
    _check_version(message, version)
    return read_whole(message, Cursor(body), version)


def error_for_version(error: KafkaError, version: int) -> KafkaError:
    """Return ``error`` as a client of this request version knows it: before 4, fencing was INVALID_PRODUCER_EPOCH."""
    if version < _FENCED_SINCE and error is KafkaError.PRODUCER_FENCED:
        return KafkaError.INVALID_PRODUCER_EPOCH
    return error


def _check_version(message: type[_Body], version: int) -> None:
    if version not in message.versions:
        raise ValueError(f"{message.__name__} has no version {version}")
