"""KIP-936 as a library: a quota on the new producer ids of each principal.

These are the public names. Neither they nor what they do load numba, pyspark or boto3, and nothing is compiled.
"""

from resnap.tiering.quota.active_producers import ActiveProducers, Cleaner, Population, Remembering
from resnap.tiering.quota.client_quotas import PRODUCER_IDS_RATE, ClientQuotas, QuotaChange, UserRates, user
from resnap.tiering.quota.layers import ExactStore, LifeCycle, life_cycle
from resnap.tiering.quota.quota_manager import (
    Admission,
    KafkaMetric,
    Origin,
    ProduceAnswer,
    ProduceRequest,
    ProducerIdQuotaManager,
    QuotaViolation,
    combined_throttle_ms,
    handle_produce,
    kafka_metrics,
)
from resnap.tiering.quota.token_bucket import QuotaConfig, RateUnit, RequestThrottle, TokenBucket

__all__ = [
    "PRODUCER_IDS_RATE",
    "ActiveProducers",
    "Admission",
    "Cleaner",
    "ClientQuotas",
    "ExactStore",
    "KafkaMetric",
    "LifeCycle",
    "Origin",
    "Population",
    "ProduceAnswer",
    "ProduceRequest",
    "ProducerIdQuotaManager",
    "QuotaChange",
    "QuotaConfig",
    "QuotaViolation",
    "RateUnit",
    "Remembering",
    "RequestThrottle",
    "TokenBucket",
    "UserRates",
    "combined_throttle_ms",
    "handle_produce",
    "kafka_metrics",
    "life_cycle",
    "user",
]
