"""Kafka's error codes that concern producer ids: names, numbers, and which of them a client may retry.

Source: ``org.apache.kafka.common.protocol.Errors``; retriable are those whose exception extends ``RetriableException``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from resnap.storage.errors import ResnapError


class KafkaError(IntEnum):
    """A Kafka error code, as responses carry it."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    ILLEGAL_GENERATION = 22
    UNKNOWN_MEMBER_ID = 25
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    STALE_BROKER_EPOCH = 77
    FENCED_INSTANCE_ID = 82
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90
    BROKER_ID_NOT_REGISTERED = 102
    TRANSACTION_ABORTABLE = 120

    @property
    def is_retriable(self) -> bool:
        """Whether a client may send the same request again."""
        return self in _RETRIABLE


_RETRIABLE: Final = frozenset({
    KafkaError.CORRUPT_MESSAGE,
    KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
    KafkaError.NOT_LEADER_OR_FOLLOWER,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.NOT_CONTROLLER,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.KAFKA_STORAGE_ERROR,
})  # fmt: skip


class RefusedError(ResnapError):
    """The broker or controller would refuse the request with ``error``; nothing has changed."""

    def __init__(self, error: KafkaError, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{error.name} ({error.value}): {message}", hint=hint)
        self.error = error
        self.why = message
