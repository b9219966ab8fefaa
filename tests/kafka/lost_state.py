"""How a stock broker loses producer state: a replica of a tiered partition starts from remote storage.

It is a new one, or one that is moved to another disk of its broker.

Broker 1 leads. A transaction begins, and an idempotent producer writes one batch, both in a segment that is tiered and
deleted locally; the transaction is aborted in a segment that stays. Broker 2 becomes a replica, fetches what is local,
and knows nothing of what it has not read.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.storage.log.names import TopicPartition
from tests.kafka.brokers import SMALL, Broker, eventually, tiering
from tests.kafka.raw_client import RawClient
from tests.kafka.releases import HERE
from tests.scheduler.files import bases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.kafka.releases import Release

TOPIC: Final = "payments"
IDEMPOTENT: Final = 900_001
"""A producer id that no coordinator gives in a test."""
QUICK: Final = {
    "replica.lag.time.max.ms": 6_000,
    "auto.leader.rebalance.enable": "false",
}
_SEGMENTS: Final = 4
_SEQUENCES: Final = HERE / "Sequences.java"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostState:
    """A partition whose second replica has lost producer state."""

    leader: Broker
    follower: Broker
    remote: Path
    aborted: int
    """Producer id of the transaction."""
    batch_offset: int
    """Where the batch of ``IDEMPOTENT`` is."""
    batch_offsets: dict[str, int]
    """Likewise, by topic."""

    def sent_again(self, broker: Broker, topic: str = TOPIC) -> int:
        """Send the batch of ``IDEMPOTENT`` again; return the offset that the broker says it has."""
        return send_batch(broker, IDEMPOTENT, topic)

    def lead(self, broker: Broker, *followers: Broker, topic: str = TOPIC) -> None:
        """Make a broker the leader, with these followers and no others."""
        self.leader.drive("reassign", topic, 0, ",".join(str(one.node) for one in (broker, *followers)))
        if followers:
            self.leader.drive("elect", topic, 0)

    def read(self) -> tuple[int, str]:
        """Return how many records ``read_committed`` consumers see, and their digest."""
        told = dict(map(str.split, self.leader.drive("read", TOPIC, 0).splitlines()))
        return int(told["records"]), told["sha256"]


def send_batch(broker: Broker, producer_id: int, topic: str = TOPIC) -> int:
    """Send a batch of one record in a producer's name; return its offset."""
    told = broker.release.run(_SEQUENCES, "batch", "127.0.0.1", broker.port, topic, producer_id, 0, 0)
    error, offset = told.split()
    assert error == "NONE", error
    return int(offset)


@contextmanager
def lost_state(
    release: Release,
    root: Path,
    *,
    more: dict[str, object] | None = None,
    before_replica: Callable[[Path], None] = lambda _: None,
    others: Sequence[str] = (),
) -> Iterator[LostState]:
    """Give the partition, while both brokers run.

    ``more`` are properties of both; ``before_replica`` is called with the remote folder before there is a replica.
    With ``others``, topics whose replicas lose the idempotent producer likewise, the follower has two log dirs.
    """
    remote, own = root / "remote", QUICK | (more or {})
    for folder in (remote, root / "one", root / "two"):
        folder.mkdir(parents=True)
    leader = Broker(release, [root / "one" / "data"], tiering(remote) | own)
    disks = [root / "two" / "data", *([root / "two" / "disk"] if others else [])]
    follower = Broker(release, disks, tiering(remote) | own, node=2, joins=leader)
    with ExitStack() as stack:
        stack.enter_context(leader.running())
        aborted, sent = _begun_in_remote(leader, (TOPIC, *others))
        stack.enter_context(follower.running())
        before_replica(remote)
        for topic in sent:
            leader.drive("reassign", topic, 0, "1,2")
        yield LostState(
            leader=leader,
            follower=follower,
            remote=remote,
            aborted=aborted,
            batch_offset=sent[TOPIC],
            batch_offsets=sent,
        )


def _begun_in_remote(leader: Broker, topics: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Make topics; in the first, a transaction begins in remote storage and is aborted in a local segment.

    Return its producer id, and where the batch of ``IDEMPOTENT`` is, by topic.
    """
    for topic in topics:
        leader.drive("assign", topic, 1, *SMALL[leader.release.version], "remote.storage.enable=true",
                     "file.delete.delay.ms=100", "local.retention.bytes=20000")  # fmt: skip
    client = RawClient(leader.port, "aborted later")
    leader.drive("append", TOPIC, 0, 2)
    client.add(TopicPartition(TOPIC, 0))
    client.produce(TopicPartition(TOPIC, 0))
    sent = {topic: send_batch(leader, IDEMPOTENT, topic) for topic in topics}
    for topic in sent:
        rolled = set[int]()  # with what a broker has deleted locally, on a slow machine before the next append
        while len(rolled) < _SEGMENTS:
            leader.drive("append", topic, 0, 30)
            rolled.update(bases(directory_of(leader, topic)))
    RawClient(leader.port, "aborted later")  # which aborts what the earlier instance has left open
    leader.drive("append", TOPIC, 0, 2)
    for topic, offset in sent.items():
        partition = directory_of(leader, topic)
        eventually(lambda at=partition, lost=offset: bases(at)[0] > lost, "no segment is deleted locally")
    return client.producer_id, sent


def directory_of(broker: Broker, topic: str = TOPIC) -> Path:
    """Return the directory of a topic's partition 0, on whichever disk it is."""
    (found,) = (path for log_dir in broker.log_dirs for path in log_dir.glob(f"{topic}-0"))
    return found


@contextmanager
def on_two_disks(release: Release, root: Path) -> Iterator[LostState]:
    """Give the partition with one replica, on a broker with two log dirs; ``move_to_other_disk`` loses its state."""
    remote = root / "remote"
    for folder in (remote, root / "one"):
        folder.mkdir(parents=True)
    broker = Broker(release, [root / "one" / "data", root / "one" / "disk"], tiering(remote) | QUICK)
    with broker.running():
        aborted, sent = _begun_in_remote(broker, (TOPIC,))
        yield LostState(
            leader=broker,
            follower=broker,
            remote=remote,
            aborted=aborted,
            batch_offset=sent[TOPIC],
            batch_offsets=sent,
        )


def move_to_other_disk(broker: Broker) -> None:
    """Move the partition to the other log dir of its broker, and wait until it is there."""
    here = directory_of(broker).parent
    (there,) = (one for one in broker.log_dirs if one != here)
    broker.drive("place", TOPIC, 0, there)
    eventually(lambda: not list(here.glob(f"{TOPIC}-0*")) and (there / f"{TOPIC}-0").exists(), "it is not moved")
