"""What the stories have in common: a topic that is stuck, an operator with the runbook, and what must come of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.kafka.brokers import eventually
from tests.kafka.logs import partitions, tiered_snapshots
from tests.kafka.runbook import FOLLOWED, Operator
from tests.scheduler.files import bases

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.kafka.brokers import Broker
    from tests.kafka.logs import Snapshots

TOPIC: Final = "payments"
FAULTS: Final = ('"producerStateSnapshotFile" is null', "\njava.lang.NullPointerException")
"""How the lines of a broker end that found no snapshot of a segment; 3.6 and 3.7.0 give no message."""
LOOK, MAKE, PUT_IN, SWITCH_ON, ANNOUNCE, LOST_METADATA, ANNOUNCE_COPIES, TWO_DISKS, AFTER_A_CRASH, DISASTER = FOLLOWED
"""Sections of the runbook."""


def operator_of(broker: Broker, root: Path) -> Operator:
    """Return an operator of ``broker``, who works with what the runbook names."""
    own = {f"/var/lib/kafka/{disk.name}": disk for disk in broker.log_dirs}
    common = {"/etc/kafka/server.properties": broker.settings, "/var/tmp/snapshots": root / "snapshots"}  # noqa: S108
    return Operator(
        root,
        own | common,
        {
            "kafka-server-start.sh": lambda _: broker.start_up(),
            "kafka-server-stop.sh": lambda _: stop_once_it_serves(broker),
            "kafka-configs.sh": lambda line: configure(broker, line),
        },
    )


def stop_once_it_serves(broker: Broker) -> None:
    """Stop it, if it runs; 4.1 takes two minutes to stop if tiering has not begun yet."""
    if broker.is_running:
        await_fault(broker, partitions(broker.log_dirs, TOPIC), broker.started_at)
        broker.stop()


def configure(broker: Broker, line: str) -> None:
    """Give the topic the settings of a command line, and a local retention that suits its few bytes."""
    broker.drive("configure", TOPIC, *line.split("--add-config ")[1].split(","))
    broker.drive("configure", TOPIC, "local.retention.ms=-2", "local.retention.bytes=1000")


def read_all(broker: Broker) -> dict[str, str]:
    """Return what a ``read_committed`` consumer sees of each partition."""
    return {name: broker.drive("read", TOPIC, name[-1]) for name in partitions(broker.log_dirs, TOPIC)}


def ends_of(read: dict[str, str]) -> dict[str, int]:
    """Return the last stable offset of each partition, as consumers have seen it."""
    return {name: int(dict(map(str.split, told.splitlines()))["end"]) for name, told in read.items()}


def check_tiered(broker: Broker, expected: Snapshots, remote: Path) -> None:
    """Check that all that can be tiered comes to ``remote``, with the right snapshots, and leaves the disk."""
    eventually(
        lambda: all(tiered_snapshots(remote, TOPIC).get(name, {}).keys() >= expected[name].keys() for name in expected),
        "not all is tiered",
    )
    assert tiered_snapshots(remote, TOPIC) == expected
    for name, partition in partitions(broker.log_dirs, TOPIC).items():
        eventually(lambda: not expected[name].keys() & set(bases(partition)), f"{name}: local copies stay")  # noqa: B023


def await_fault(broker: Broker, names: Iterable[str], since: int = 0) -> None:
    """Wait until the broker has said of each partition that it cannot tier it, for want of a snapshot."""
    for name in names:
        eventually(lambda name=name: _stuck(broker, name, since), f"{name}: the fault does not show")


def _stuck(broker: Broker, name: str, since: int) -> bool:
    said = (one for one in broker.complaints(since) if one.endswith(FAULTS))
    return any("Error occurred while copying log segments of partition" in one and f":{name}]" in one for one in said)
