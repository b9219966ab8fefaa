"""Topics and brokers of a fleet as rows, for the command, the API and the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resnap.storage.words import some

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resnap.scheduler.output.documents import FleetBrokerRow, FleetTopicRow
    from resnap.tiering.fleet import BrokerReplicas, TopicAnswer


def topic_row(answer: TopicAnswer) -> FleetTopicRow:
    """Return the row of a topic."""
    return {
        "topic": answer.topic,
        "verdict": answer.verdict,
        "partitions": answer.partitions,
        "replicas": sum(answer.verdicts.values()),
        "verdicts": dict(sorted(answer.verdicts.items())),
        "missing": answer.missing,
        "offline": answer.offline,
        "underReplicated": answer.under_replicated,
        "blockedLeaders": answer.blocked_leaders,
        "blockers": [
            {
                "reason": one.reason,
                "replicas": one.replicas,
                "brokers": list(one.brokers),
                "broker": one.broker_id,
                "partition": one.partition,
                "detail": one.detail,
                "hint": one.hint,
            }
            for one in answer.blockers
        ],
        "unknown": list(answer.unknown),
    }


def broker_row(broker: BrokerReplicas) -> FleetBrokerRow:
    """Return the row of a broker: its service's report, or why there is none."""
    return {
        "broker": broker.broker_id,
        "replicas": None if broker.error is not None else sum(map(len, broker.topics.values())),
        "scanned": broker.scanned,
        "error": broker.error,
    }


def why_of(row: Mapping[str, Any]) -> str:
    """Return in a few words why a topic is not ready; empty if it is ready."""
    more = f" and {len(row['unknown']) - 1} more" if len(row["unknown"]) > 1 else ""
    unknown = [f"not known: {row['unknown'][0]}{more}"] if row["unknown"] else []
    return "; ".join([*(f"{one['reason']}: {some(one['replicas'], 'replica')}" for one in row["blockers"]), *unknown])
