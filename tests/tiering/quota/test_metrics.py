"""Metrics, violations, and a broker's answers (statements 32, 33, 41 and 42 of ``docs/quota.md``)."""

from __future__ import annotations

import pytest

from resnap.tiering.quota.quota_manager import (
    FIRST_STRICT_VERSION,
    GROUP,
    THROTTLING_QUOTA_EXCEEDED,
    KafkaMetric,
    Origin,
    ProduceRequest,
    ProducerIdQuotaManager,
    QuotaViolation,
    handle_produce,
    kafka_metrics,
    sanitized,
    series,
)
from tests.tiering.quota.quotas import ALICE, HOUR_MS, START_MS, Watch, charged, manager, sequential

ODD = "User:a b*c~"
UNKNOWN_TOPIC, AUTHORIZATION = 3, 29


def metrics(quota: ProducerIdQuotaManager) -> dict[str, float]:
    return {metric.name: metric.value for metric in kafka_metrics(quota)}


def test_s32_the_three_metrics_have_the_user_as_their_only_tag() -> None:
    quota = manager()
    quota.admit_request(ODD, sequential(551))
    assert {metric.name for metric in kafka_metrics(quota)} == {"rate", "tokens"}
    quota.admit(ODD, 1)
    found = list(kafka_metrics(quota))
    assert {metric.name for metric in found} == {"rate", "tokens", "throttle-time"}
    assert {(metric.group, metric.user) for metric in found} == {(GROUP, "a%20b%2Ac%7E")}
    assert KafkaMetric._fields == ("group", "name", "user", "value")


@pytest.mark.parametrize(
    ("name", "tag"),
    [("a b*c~", "a%20b%2Ac%7E"), ("A-z_0.9", "A-z_0.9"), ("ä+/=", "%C3%A4%2B%2F%3D"), ("CN=x,O=y", "CN%3Dx%2CO%3Dy")],
)
def test_s32_names_are_sanitized_as_kafka_does(name: str, tag: str) -> None:
    assert sanitized(name) == tag


def test_s32_tokens_are_below_zero_exactly_while_the_permissive_order_throttles() -> None:
    watch = Watch()
    quota = manager(watch=watch, permissive=True)
    quota.admit_request(ALICE, sequential(549))
    for one in range(10):
        answer = quota.admit(ALICE, one)
        assert (metrics(quota)["tokens"] < 0) == (answer.throttle_time_ms > 0)
    watch.at_ms += 9 * 72_000
    answer = quota.admit(ALICE, 999)
    assert (metrics(quota)["tokens"] < 0) == (answer.throttle_time_ms > 0)


def test_s32_the_average_of_throttle_times_knows_only_times_above_zero_and_forgets() -> None:
    watch = Watch()
    quota = manager(watch=watch, permissive=True)
    quota.admit_request(ALICE, sequential(550))
    assert "throttle-time" not in metrics(quota)
    assert [quota.admit(ALICE, one).throttle_time_ms for one in range(2)] == [72_000, 144_000]
    assert metrics(quota)["throttle-time"] == 108_000
    watch.at_ms += 60_000
    assert "throttle-time" not in metrics(quota)


def test_s32_the_rate_is_that_of_admitted_ids() -> None:
    watch = Watch()
    quota = manager(watch=watch)
    quota.admit_request(ALICE, sequential(500))
    watch.at_ms += HOUR_MS
    quota.admit_request(ALICE, sequential(560))
    assert metrics(quota)["rate"] == pytest.approx((500 + 560) / 10)


def test_series_of_many_principals_have_one_label() -> None:
    quota = manager(rate=0.1)
    for name in range(200):
        for one in range(2 + name):
            quota.admit(f"User:{name}", one)
    found = list(series(quota))
    assert {label for one in found for label in one.labels} == {("user", "other")}
    totals = {one.name: one.value for one in found}
    assert len(totals) == len(found)
    assert totals["resnap_producer_ids_principals"] == 200
    assert totals["resnap_producer_ids_new"] == sum(charged(quota, f"User:{n}") for n in range(200))
    assert totals["resnap_producer_ids_memory_bytes"] == quota.active.population().size_bytes > 0


def test_s33_a_violation_carries_metric_value_and_bound_and_the_answer_of_a_broker() -> None:
    quota = manager()
    quota.admit_request(ALICE, sequential(551))
    refused = quota.admit(ALICE, 1)
    assert refused.violation == QuotaViolation(
        principal="alice", value=-1.0, bound=50.0, throttle_time_ms=72_000, metric="tokens", error_code=89
    )
    assert refused.throttle_time_ms == 72_000


class Topic:
    """Represents the partitions that a broker leads: what it appended, and what it refuses for other reasons."""

    def __init__(self, refusals: dict[str, int] | None = None) -> None:
        self.refusals = refusals or {}
        self.appended: list[str] = []

    def validate(self, partition: str) -> int:
        return self.refusals.get(partition, 0)


def test_s33_a_refused_request_appends_nothing_and_says_89_and_how_long() -> None:
    quota, topic = manager(), Topic({"gone-0": UNKNOWN_TOPIC})
    quota.admit_request(ALICE, sequential(551))
    request = ProduceRequest(principal=ALICE, producer_ids={"a-0": 1, "a-1": 1, "gone-0": 2})
    answer = handle_produce(
        request, quota, validate=topic.validate, append=topic.appended.append, other_throttles_ms=(9,)
    )
    assert answer.errors == {
        "a-0": THROTTLING_QUOTA_EXCEEDED,
        "a-1": THROTTLING_QUOTA_EXCEEDED,
        "gone-0": UNKNOWN_TOPIC,
    }
    assert answer.throttle_time_ms == 72_000
    assert topic.appended == []


def test_s33_clients_that_may_not_know_the_error_are_admitted_and_throttled() -> None:
    quota, topic = manager(), Topic()
    quota.admit_request(ALICE, sequential(551))
    request = ProduceRequest(principal=ALICE, producer_ids={"a-0": 1}, version=FIRST_STRICT_VERSION - 1)
    answer = handle_produce(request, quota, validate=topic.validate, append=topic.appended.append)
    assert (dict(answer.errors), answer.throttle_time_ms) == ({"a-0": 0}, 144_000)
    assert topic.appended == ["a-0"]


@pytest.mark.parametrize("origin", [Origin.REPLICATION, Origin.COORDINATOR])
def test_s41_replication_and_markers_are_appended_without_being_asked_for(origin: Origin) -> None:
    quota, topic = manager(), Topic()
    request = ProduceRequest(principal=ALICE, producer_ids={"a-0": 1}, origin=origin)
    assert handle_produce(request, quota, validate=topic.validate, append=topic.appended.append).throttle_time_ms == 0
    assert topic.appended == ["a-0"]
    assert quota.active.entries() == {}


def test_s42_what_is_refused_for_another_reason_charges_nothing_and_the_quota_comes_before_the_append() -> None:
    quota, order = manager(), list[str]()
    refusals = {"secret-0": AUTHORIZATION, "gone-0": UNKNOWN_TOPIC, "bad-0": 87}

    def validate(partition: str) -> int:
        order.append(f"validate {partition}, charged {charged(quota)}")
        return refusals.get(partition, 0)

    def append(partition: str) -> None:
        order.append(f"append {partition}, charged {charged(quota)}")

    refused = ProduceRequest(principal=ALICE, producer_ids={"secret-0": 1, "gone-0": 2, "bad-0": 3})
    assert dict(handle_produce(refused, quota, validate=validate, append=append).errors) == refusals
    assert quota.active.entries() == {}
    assert not quota.active.has(ALICE, 1, START_MS)
    order.clear()
    mixed = ProduceRequest(principal=ALICE, producer_ids={"good-0": 5, "gone-0": 6, "good-1": 7})
    assert set(handle_produce(mixed, quota, validate=validate, append=append).errors.values()) == {0, UNKNOWN_TOPIC}
    assert [line for line in order if line.startswith("validate") and not line.endswith("charged 0")] == []
    assert [line for line in order if line.startswith("append")] == [
        "append good-0, charged 2",
        "append good-1, charged 2",
    ]
