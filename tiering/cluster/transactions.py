"""What the coordinators of a running cluster say of transactional ids (KIP-664).

They are asked by ListTransactions and DescribeTransactions, which brokers from 3.0 on know. Ids that the user may not
describe are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.storage.log.names import TopicPartition
from resnap.tiering.controller.transactions.metadata import TransactionMetadata, TransactionState
from resnap.tiering.controller.transactions.state_log import TransactionStates

if TYPE_CHECKING:
    from collections.abc import Collection

    from resnap.tiering.cluster.client import Cluster

_STATES = {state.kafka_name: state for state in TransactionState}


def describe_transactions(cluster: Cluster, producer_ids: Collection[int]) -> TransactionStates:
    """Return the transactional ids that have ``producer_ids`` now.

    Raises:
        ClusterError: the cluster does not answer, or is too old to be asked.

    """
    found = {
        name: TransactionMetadata(
            transactional_id=name,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            timeout_ms=one.transaction_timeout_ms,
            state=_STATES[one.state.value],
            partitions=frozenset(TopicPartition(*place) for place in one.topic_partitions),
            start_ms=one.transaction_start_time_ms,
        )
        for name, one in cluster.transactions(producer_ids).items()
        if one.state.value in _STATES
    }
    return TransactionStates(transactions=found)
