"""The quota's metrics: under the KIP's names, and as series for a collector with few labels.

Kafka has a metric for each user. A series per principal would overload Prometheus, so there only users with a quota of
their own, which an operator has set, have a label, and all others together are ``other``.

Source: KIP-936, *New Broker Metrics*; ``Sanitizer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from resnap.tiering.quota.active_producers import Charges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.tiering.quota.active_producers import Entry
    from resnap.tiering.quota.quota_manager import ProducerIdQuotaManager

GROUP: Final = "ProducerIds"
MOST_USERS: Final = 1_000
"""Most users that have a label of their own; the further ones, by name, are among the others."""
OTHER: Final = "other"


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
    """Yield rate, tokens and, if a client was throttled lately, the average throttle time of each principal."""
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


def series(manager: ProducerIdQuotaManager) -> Iterator[Series]:
    """Yield the KIP's metrics, and counters, of each user with a quota of its own, and of all others together.

    For several users the rate is the sum, the tokens are the minimum, and the throttle time is the mean. The totals of
    the quota's memory follow.
    """
    rates = manager.rates
    own = sorted(rates.users)[:MOST_USERS]
    entries, charges, now_ms = manager.active.entries(), dict(manager.charges), manager.now_ms()
    for name in own:
        mine = [entries.pop(name)] if name in entries else []
        full = manager.config.burst(rates.users[name])
        yield from _of_user(_label(name), mine, charges.pop(name, Charges()), full, now_ms)
    rest = Charges()
    for one in charges.values():
        rest.ids, rest.throttled = rest.ids + one.ids, rest.throttled + one.throttled
        rest.throttled_ms += one.throttled_ms
    of_all = None if rates.default is None else manager.config.burst(rates.default)
    yield from _of_user(OTHER, list(entries.values()), rest, of_all, now_ms)
    population = manager.active.population()
    yield _gauge("principals", "Principals with active producer ids.", len(manager.active))
    yield _gauge("remembered", "Producer ids in all layers.", population.items)
    yield _gauge("memory_bytes", "Memory of all layers.", population.size_bytes)


def _label(name: str) -> str:
    """Return the label of a user, which never equals the label of all others."""
    return sanitized(name) if name != OTHER else f"%{ord(name[0]):X}{name[1:]}"


def _of_user(label: str, entries: list[Entry], charges: Charges, full: float | None, now_ms: int) -> Iterator[Series]:
    rates, tokens, throttle_ms, throttles = 0.0, [] if full is None else [full], 0.0, 0
    for entry in entries:
        with entry.lock:
            if entry.sensors is not None:
                rates += entry.sensors.rate_of_ids.rate(now_ms)
                tokens.append(entry.sensors.bucket.tokens(entry.sensors.rate, now_ms))
                throttle_ms += entry.sensors.throttle.total(now_ms)
                throttles += entry.sensors.throttle.events(now_ms)
    user = ("user", label)
    yield _gauge("rate", "New producer ids per hour.", rates, user)
    if tokens:
        yield _gauge("tokens", "Tokens left; below 0 new ids wait.", min(tokens), user)
    average_s = throttle_ms / throttles / 1000 if throttles else 0.0
    yield _gauge("throttle_time_seconds", "Average throttle time of the last minute.", average_s, user)
    yield _counter("new", "New producer ids that were charged.", charges.ids, user)
    yield _counter("throttled_answers", "Answers with a throttle time.", charges.throttled, user)
    yield _counter("throttled_seconds", "All throttle times together.", charges.throttled_ms / 1000, user)


def _gauge(name: str, text: str, value: float, *labels: tuple[str, str]) -> Series:
    return Series(f"resnap_producer_ids_{name}", "gauge", text, labels, value)


def _counter(name: str, text: str, value: float, *labels: tuple[str, str]) -> Series:
    return Series(f"resnap_producer_ids_{name}", "counter", text, labels, value)
