"""The quota of KIP-936: limits each principal's new producer ids, between the checks of a batch and its append.

An id that was seen lately costs nothing and is always admitted. A new id costs a token of its principal's bucket:

- *Strict* (default): first the check, then the record, then the memory. Over quota nothing of this happens, so that the
  same id, retried, is refused again until its time has come. (The KIP remembers first; what is refused would then
  pass as known.) As in Kafka a bucket that owes nothing admits a whole request, however much that takes.
- *Permissive*: everything passes and is remembered, and the answer says how long the client is to wait. For clients
  that do not know the error, and for the KIP's own order.

A request is charged as a whole: for its distinct new ids, all or none. Without a quota for a principal nothing is
stored or measured. Time, rates and everything else are arguments; ``Cleaner`` cleans up. A service calls ``admit`` or
``admit_request`` and translates the ``Admission`` into a response of its own protocol.

Metrics are under the KIP's names, and series for a collector with few labels. Kafka has a metric for each user. A
series per principal would overload Prometheus, so there only users with a quota of their own, which an operator has
set, have a label, and all others together are ``other``.

A broker applies the quota to PRODUCE after all other checks of a batch. Batches that fail authorization, name an
unknown topic or do not pass validation are not charged. Only client requests are charged: followers get producer state
by fetching, and the coordinator writes markers, neither through PRODUCE. The producer id of a transactional producer
counts like any other.

Clients from 2.7 on know error 89. Some clients with a PRODUCE version from before 2.8 are older, and would not retry
after this unknown error: they are admitted, and throttled.

Source: KIP-936, with *New Broker Metrics* and *Client Errors*; ``ControllerMutationQuotaManager`` (strict and
permissive, KIP-599), ``ClientQuotaManager``, ``Sanitizer``; ``KafkaApis.handleProduceRequest``; KIP-219 (delivery of
throttle times).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

import numpy as np

from resnap.storage.log.record_batch import NO_PRODUCER_ID
from resnap.tiering.quota.active_producers import ActiveProducers, Charges, Remembering, Sensors
from resnap.tiering.quota.client_quotas import UserRates, user_name
from resnap.tiering.quota.layers import UNSEEN, items_for
from resnap.tiering.quota.token_bucket import MAX_THROTTLE_MS, QuotaConfig, throttle_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    from resnap.tiering.quota.active_producers import Entry

GROUP: Final = "ProducerIds"
MOST_USERS: Final = 1_000
"""Most users that have a label of their own; the further ones, by name, are among the others."""
OTHER: Final = "other"


class ForwardClock:
    """A clock that never goes back, over readings of ``now_ms``; thread-safe.

    A reading below the last one shifts all later ones: setting the machine's clock back by an hour neither freezes
    quotas for an hour nor grants tokens twice.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._shift_ms = 0
        self._last_ms: int | None = None
        self._guard = threading.Lock()

    def __call__(self) -> int:
        """Return the time in milliseconds."""
        with self._guard:
            reading = self._now_ms() + self._shift_ms
            if self._last_ms is not None and reading < self._last_ms:
                self._shift_ms += self._last_ms - reading
                reading = self._last_ms
            self._last_ms = reading
            return reading


THROTTLING_QUOTA_EXCEEDED: Final = 89
"""Kafka's error code; retriable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaViolation:
    """Why a principal is over quota: the content of ``QuotaViolationException``, and the broker's response."""

    principal: str
    """The name of the user, without the prefix of principals."""
    value: float
    """Tokens, fewer than 0."""
    bound: float
    """The rate."""
    throttle_time_ms: int
    metric: str = "tokens"
    error_code: int = THROTTLING_QUOTA_EXCEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The decision: whether to continue, and how long the client must wait before its next request."""

    admitted: bool = True
    charged: int = 0
    """New ids that were paid for."""
    throttle_time_ms: int = 0
    violation: QuotaViolation | None = None


SEEN: Final = Admission()
"""Everything was known, or nothing is limited."""


_PAID: Final = Admission(charged=1)


def combined_throttle_ms(*throttle_times_ms: int) -> int:
    """Return the throttle time of a response to which several quotas apply: the longest."""
    return max((0, *throttle_times_ms))


class ProducerIdQuotaManager:
    """The quota of all principals. Thread-safe."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        rates: UserRates | None = None,
        *,
        config: QuotaConfig | None = None,
        remembering: Remembering | None = None,
        permissive: bool = False,
        max_throttle_ms: int = MAX_THROTTLE_MS,
        warm_up_ms: int = 0,
    ) -> None:
        """Begin without any ids.

        Args:
            now_ms: the time in milliseconds; if it falls, it counts as standing still.
            rates: of users, and the default; replaced by ``update``.
            config: samples, window and unit of the rates.
            remembering: how ids are stored.
            permissive: the default mode of requests.
            max_throttle_ms: no throttle time is longer. One missing token at 50 an hour is 72 s, and a client's
                ``delivery.timeout.ms`` is 120 s.
            warm_up_ms: for this time after the start new ids are stored, and cost nothing: for a broker that has just
                become leader, to which all ids in use are new.

        Raises:
            ValueError: one of both times is below 0.

        """
        if max_throttle_ms < 0 or warm_up_ms < 0:
            raise ValueError(f"throttling for {max_throttle_ms} ms, warm-up of {warm_up_ms} ms: both must be 0 or more")
        self.config = config or QuotaConfig()
        self.rates = rates or UserRates()
        self.active = ActiveProducers(remembering or Remembering())
        self.charges: dict[str | None, Charges] = {None: Charges()}
        """What each user with a rate of its own was charged while it had one, and all others together as None.

        It only grows, unlike what is kept of principals, who may be forgotten.
        """
        self._counting = threading.Lock()
        self._now_ms = ForwardClock(now_ms)
        self._permissive = permissive
        self._max_throttle_ms = min(max_throttle_ms, MAX_THROTTLE_MS)
        self._charging_from_ms = self._now_ms() + warm_up_ms if warm_up_ms else None

    def now_ms(self) -> int:
        """Return the manager's time."""
        return self._now_ms()

    def update(self, rates: UserRates) -> None:
        """Set new rates: buckets keep their tokens, and fill at the new rate from their last use on."""
        if rates == self.rates:
            return
        self.rates = rates
        for principal, entry in self.active.entries().items():
            rate = rates.of(principal)
            with entry.lock:
                if rate is not None and entry.sensors is not None:
                    self._sensors(entry, rate, self._now_ms())

    def admit(self, principal: str, producer_id: int, *, permissive: bool | None = None) -> Admission:
        """Decide on one batch, or a request with one producer id; ``permissive`` overrides the manager's mode."""
        rate = self.rates.of(principal)
        if rate is None or producer_id <= NO_PRODUCER_ID:
            return SEEN
        entry = self.active.locked(principal, lambda: self._items(rate))
        try:
            now_ms = self._now_ms()
            layer = entry.layers.find(producer_id, now_ms)
            if layer != UNSEEN:
                entry.layers.refresh(producer_id, layer, now_ms)
                return SEEN
            admission = self._charge(entry, principal, rate, 1, now_ms, permissive=permissive)
            if admission.admitted:
                entry.layers.add(producer_id, now_ms)
            return admission
        finally:
            entry.lock.release()

    def admit_request(
        self, principal: str, producer_ids: npt.ArrayLike, *, permissive: bool | None = None
    ) -> Admission:
        """Decide on a request with any producer ids, including duplicates: all of it or none."""
        rate = self.rates.of(principal)
        ids = np.unique(np.asarray(producer_ids, dtype=np.int64))
        ids = ids[ids > NO_PRODUCER_ID]
        if rate is None or not len(ids):
            return SEEN
        entry = self.active.locked(principal, lambda: self._items(rate))
        try:
            now_ms = self._now_ms()
            found = entry.layers.find_many(ids, now_ms)
            new = ids[found == UNSEEN]
            admission = SEEN
            if len(new):
                admission = self._charge(entry, principal, rate, len(new), now_ms, permissive=permissive)
            if admission.admitted:
                entry.layers.refresh_many(ids, found, now_ms)
                entry.layers.add_many(new, now_ms)
            return admission
        finally:
            entry.lock.release()

    def clean_up(self) -> int:
        """Drop expired state; return how many principals were dropped."""
        now_ms = self._now_ms()

        def may_go(entry: Entry) -> bool:
            return entry.sensors is None or entry.sensors.may_go(entry.sensors.rate, now_ms)

        return self.active.clean_up(now_ms, may_go)

    def _charge(
        self, entry: Entry, principal: str, rate: float, ids: int, now_ms: int, *, permissive: bool | None
    ) -> Admission:
        """Charge new ids, or refuse without a charge, and count the decision."""
        admission = self._judge(entry, principal, rate, ids, now_ms, permissive=permissive)
        name = user_name(principal)
        with self._counting:
            charges = self.charges.setdefault(name if name in self.rates.users else None, Charges())
            charges.add(admission.charged, admission.throttle_time_ms)
        return admission

    def _judge(
        self, entry: Entry, principal: str, rate: float, ids: int, now_ms: int, *, permissive: bool | None
    ) -> Admission:
        if self._charging_from_ms is not None and now_ms < self._charging_from_ms:
            return SEEN
        sensors = self._sensors(entry, rate, now_ms)
        if self._permissive if permissive is None else permissive:
            tokens = sensors.record(ids, rate, now_ms)
            if tokens >= 0:
                return Admission(charged=ids)
            violation = self._violation(sensors, principal, tokens, rate, now_ms)
            return Admission(charged=ids, throttle_time_ms=violation.throttle_time_ms, violation=violation)
        tokens = sensors.bucket.tokens(rate, now_ms)
        if tokens < 0:
            violation = self._violation(sensors, principal, tokens, rate, now_ms)
            return Admission(admitted=False, throttle_time_ms=violation.throttle_time_ms, violation=violation)
        sensors.record(ids, rate, now_ms)
        return _PAID if ids == 1 else Admission(charged=ids)

    def _sensors(self, entry: Entry, rate: float, now_ms: int) -> Sensors:
        if entry.sensors is None:
            entry.sensors = Sensors(self.config, rate, now_ms)
        elif entry.sensors.rate != rate:
            entry.sensors.rate = rate
            entry.layers.expected_items = self._items(rate)
        return entry.sensors

    def _violation(self, sensors: Sensors, principal: str, tokens: float, rate: float, now_ms: int) -> QuotaViolation:
        wait_ms = min(throttle_ms(-tokens, rate, self.config.unit), self._max_throttle_ms)
        sensors.record_throttle(wait_ms, now_ms)
        return QuotaViolation(principal=user_name(principal), value=tokens, bound=rate, throttle_time_ms=wait_ms)

    def _items(self, rate: float) -> int:
        return items_for(self.config.burst(rate), rate / self.config.unit.value, self.active.remembering.cycle.span_ms)


class KafkaMetric(NamedTuple):
    """A metric as Kafka names it; its only tag is ``user``, sanitized."""

    group: str
    name: str
    user: str
    value: float


class QuotaSeries(NamedTuple):
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


def series(manager: ProducerIdQuotaManager) -> Iterator[QuotaSeries]:
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
    for charge in charges.values():
        rest.ids, rest.throttled = rest.ids + charge.ids, rest.throttled + charge.throttled
        rest.throttled_ms += charge.throttled_ms
    of_all = None if rates.default is None else manager.config.burst(rates.default)
    yield from _of_user(OTHER, list(entries.values()), rest, of_all, now_ms)
    population = manager.active.population()
    yield _gauge("principals", "Principals with active producer ids.", len(manager.active))
    yield _gauge("remembered", "Producer ids in all layers.", population.items)
    yield _gauge("memory_bytes", "Memory of all layers.", population.size_bytes)


def _label(name: str) -> str:
    """Return the label of a user, which never equals the label of all others."""
    return sanitized(name) if name != OTHER else f"%{ord(name[0]):X}{name[1:]}"


def _of_user(
    label: str, entries: list[Entry], charges: Charges, full: float | None, now_ms: int
) -> Iterator[QuotaSeries]:
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


def _gauge(name: str, text: str, value: float, *labels: tuple[str, str]) -> QuotaSeries:
    return QuotaSeries(f"resnap_producer_ids_{name}", "gauge", text, labels, value)


def _counter(name: str, text: str, value: float, *labels: tuple[str, str]) -> QuotaSeries:
    return QuotaSeries(f"resnap_producer_ids_{name}", "counter", text, labels, value)


FIRST_STRICT_VERSION: Final = 9
"""First version of PRODUCE, since 2.8, whose clients know THROTTLING_QUOTA_EXCEEDED, which came with 2.7."""
NONE: Final = 0


class Origin(Enum):
    """The client that wants to append."""

    CLIENT = "client"
    REPLICATION = "replication"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    """The fields of a request that the quota needs."""

    principal: str
    producer_ids: Mapping[str, int]
    """Producer id of the batch for each partition; -1 for none."""
    origin: Origin = Origin.CLIENT
    version: int = FIRST_STRICT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceAnswer:
    """Kafka's error code by partition, and the throttle time."""

    errors: Mapping[str, int]
    throttle_time_ms: int = 0


def handle_produce(
    request: ProduceRequest,
    manager: ProducerIdQuotaManager,
    *,
    validate: Callable[[str], int],
    append: Callable[[str], None],
    other_throttles_ms: tuple[int, ...] = (),
) -> ProduceAnswer:
    """Append what may be appended, and return the response.

    Args:
        request: what was sent.
        manager: the quota.
        validate: called with each partition; returns Kafka's error code, 0 for none.
        append: called with each admitted partition.
        other_throttles_ms: throttle times of other quotas; the longest counts.

    """
    errors = {partition: validate(partition) for partition in request.producer_ids}
    good = [partition for partition, error in errors.items() if error == NONE]
    throttle_time_ms = 0
    if request.origin is Origin.CLIENT and good:
        ids = [request.producer_ids[partition] for partition in good]
        permissive = True if request.version < FIRST_STRICT_VERSION else None
        admission = manager.admit_request(request.principal, ids, permissive=permissive)
        throttle_time_ms = admission.throttle_time_ms
        if not admission.admitted and admission.violation is not None:
            errors |= dict.fromkeys(good, admission.violation.error_code)
            good = []
    for partition in good:
        append(partition)
    return ProduceAnswer(errors=errors, throttle_time_ms=combined_throttle_ms(throttle_time_ms, *other_throttles_ms))
