"""Requests and responses as they travel: they round-trip, and equal what Kafka's own classes write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError
from resnap.storage.kafka_errors import KafkaError
from resnap.tiering.controller.producer_ids.allocation import (
    INIT_PRODUCER_ID_VERSIONS,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    read_body,
    write_body,
)

INT16, INT32, INT64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))
ERRORS = st.sampled_from(KafkaError)
VERSIONS = st.sampled_from(INIT_PRODUCER_ID_VERSIONS)


@given(INT32, INT64)
def test_allocate_requests_round_trip(broker_id: int, epoch: int) -> None:
    request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
    assert read_body(AllocateProducerIdsRequest, write_body(request)) == request


@given(INT32, ERRORS, INT64, INT32)
def test_allocate_responses_round_trip(throttle: int, error: KafkaError, start: int, size: int) -> None:
    response = AllocateProducerIdsResponse(
        throttle_time_ms=throttle, error_code=error, producer_id_start=start, producer_id_len=size
    )
    assert read_body(AllocateProducerIdsResponse, write_body(response)) == response


@given(VERSIONS, st.none() | st.text(max_size=20), INT32, INT64, INT16)
def test_init_requests_round_trip(
    version: int, transactional_id: str | None, timeout: int, producer_id: int, epoch: int
) -> None:
    if version < 3:
        producer_id = epoch = -1
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout, producer_id=producer_id, producer_epoch=epoch
    )
    assert read_body(InitProducerIdRequest, write_body(request, version), version) == request


@given(VERSIONS, INT32, ERRORS, INT64, INT16)
def test_init_responses_round_trip(
    version: int, throttle: int, error: KafkaError, producer_id: int, epoch: int
) -> None:
    response = InitProducerIdResponse(
        throttle_time_ms=throttle, error_code=error, producer_id=producer_id, producer_epoch=epoch
    )
    read = read_body(InitProducerIdResponse, write_body(response, version), version)
    if version >= 4 or error is not KafkaError.PRODUCER_FENCED:
        assert read == response


def test_should_replace_producer_fenced_with_invalid_producer_epoch_in_init_producer_id_with_older_client() -> None:
    fenced = InitProducerIdResponse(error_code=KafkaError.PRODUCER_FENCED)
    told = [
        read_body(InitProducerIdResponse, write_body(fenced, version), version).error_code.value for version in range(6)
    ]
    assert told == [47, 47, 47, 47, 90, 90]


def test_bytes_are_those_of_the_protocol() -> None:
    assert write_body(AllocateProducerIdsRequest(broker_id=1, broker_epoch=2)).hex() == (
        "00000001" "0000000000000002" "00"
    )  # fmt: skip
    request = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    assert write_body(request, 1).hex() == "000274780000ea60"
    assert write_body(request, 2).hex() == "0374780000ea6000"
    assert write_body(request, 4).hex() == "0374780000ea60ffffffffffffffffffff00"


def test_invalid_versions_and_versions_that_lack_a_field_are_refused() -> None:
    with pytest.raises(ValueError, match="no version 6"):
        read_body(InitProducerIdRequest, b"", 6)
    with pytest.raises(ValueError, match="version 2 has no producerId"):
        write_body(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1, producer_id=5), 2)


def test_unknown_tags_are_passed_over() -> None:
    body = write_body(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1), 5)
    assert read_body(InitProducerIdRequest, body[:-1] + b"\x01\x07\x02\xaa\xbb", 5).transactional_id == "t"


def test_an_unknown_error_code_is_reported() -> None:
    body = write_body(InitProducerIdResponse(), 1)
    with pytest.raises(FormatError, match="error code"):
        read_body(InitProducerIdResponse, body[:4] + b"\x7f\xff" + body[6:], 1)
