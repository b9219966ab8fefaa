"""What the quota tells of itself: under the KIP's names, and as series for a collector that cannot bear many labels.

Kafka has a metric per user, whoever that is. A series per principal is what breaks a Prometheus, so there the totals
have no label, and only some principals, the most throttled ones first, are told by name.

Source: KIP-936, *New Broker Metrics*; ``Sanitizer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.tiering.quota.active_producers import Entry
    from resnap.tiering.quota.quota_manager import ProducerIdQuotaManager

GROUP: Final = "ProducerIds"
MOST_PRINCIPALS: Final = 20


class KafkaMetric(NamedTuple):
    """A metric as Kafka names it; its only tag is ``user``, sanitized."""

    group: str
    name: str
    user: str
    value: float


class Series(NamedTuple):
    """One sample for a collector, whatever its exposition format; ``kind`` is counter or gauge."""

    name: str
    kind: str
    help: str
    labels: tuple[tuple[str, str], ...]
    value: float


def sanitized(principal: str) -> str:
    """Return a principal as Kafka writes it into a tag: all but letters, digits, dot, dash, underscore is encoded."""
    return quote(principal, safe="").replace("~", "%7E")


def kafka_metrics(manager: ProducerIdQuotaManager) -> Iterator[KafkaMetric]:
    """Yield rate, tokens and, where anybody had to wait lately, the average throttle time of each principal."""
    now_ms = manager.now_ms()
    for principal, entry in manager.active.entries().items():
        name = sanitized(principal)
        with entry.lock:
            sensors = entry.sensors
            if sensors is None:
                continue
            found = {
                "rate": sensors.rate_of_ids.rate(now_ms),
                "tokens": sensors.bucket.tokens(sensors.rate, now_ms),
                "throttle-time": sensors.throttle.average(now_ms),
            }
        for metric, value in found.items():
            if value is not None:
                yield KafkaMetric(GROUP, metric, name, value)


def series(manager: ProducerIdQuotaManager, most: int = MOST_PRINCIPALS) -> Iterator[Series]:
    """Yield totals, and tokens and throttled answers of the ``most`` principals that were throttled most often."""
    population = manager.active.population()
    entries = manager.active.entries()
    charged = sum(entry.sensors.charges.ids for entry in entries.values() if entry.sensors)
    throttled = sum(_throttled(entry) for entry in entries.values())
    gauge, prefix = "gauge", "resnap_producer_ids_"
    yield Series(prefix + "principals", gauge, "Principals with active producer ids.", (), len(manager.active))
    yield Series(prefix + "remembered", gauge, "Producer ids in all layers.", (), population.items)
    yield Series(prefix + "memory_bytes", gauge, "Memory of all layers.", (), population.size_bytes)
    yield Series(prefix + "charged", gauge, "New ids charged to the principals that are known.", (), charged)
    yield Series(prefix + "throttled", gauge, "Answers with a throttle time to them.", (), throttled)
    now_ms = manager.now_ms()
    for principal, entry in sorted(entries.items(), key=lambda item: (-_throttled(item[1]), item[0]))[:most]:
        with entry.lock:
            sensors = entry.sensors
            if sensors is None:
                continue
            tokens, count = sensors.bucket.tokens(sensors.rate, now_ms), sensors.charges.throttled
        label = (("principal", principal),)
        yield Series(prefix + "tokens", gauge, "Tokens left; below 0 new ids wait.", label, tokens)
        yield Series(prefix + "principal_throttled", gauge, "Answers with a throttle time.", label, count)


def _throttled(entry: Entry) -> int:
    return entry.sensors.charges.throttled if entry.sensors else 0
