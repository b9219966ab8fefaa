"""How a broker applies the quota to PRODUCE: after all other checks of a batch, before the append.

Batches that fail authorization, name an unknown topic or do not pass validation are not charged. Only client requests
are charged: followers get producer state by fetching, and the coordinator writes markers, neither through PRODUCE. The
producer id of a transactional producer counts like any other.

Clients from 2.7 on know error 89. Some clients with a PRODUCE version from before 2.8 are older, and would not retry
after this unknown error: they are admitted, and throttled.

Source: KIP-936, *Client Errors*; ``KafkaApis.handleProduceRequest``; KIP-219 (delivery of throttle times); KIP-599.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from resnap.tiering.quota.quota_manager import combined_throttle_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resnap.tiering.quota.quota_manager import ProducerIdQuotaManager

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
