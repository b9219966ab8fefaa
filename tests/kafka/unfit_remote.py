"""How stock brokers come to tier wrong producer snapshots and transaction indexes, without a complaint.

In each story an idempotent producer writes one batch, and a transaction begins; the broker that aborts it, and tiers
the segments of both, has lost what was known of either.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.storage.log.names import TopicPartition
from tests.kafka.brokers import SMALL, Broker, eventually, tiering, zookeeper
from tests.kafka.lost_state import IDEMPOTENT, QUICK, TOPIC, lost_state
from tests.kafka.raw_client import RawClient
from tests.kafka.releases import HERE
from tests.scheduler.files import EMPTY_SNAPSHOT, bases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.kafka.releases import Release

PARTITION: Final = TopicPartition(TOPIC, 0)
_TIERED: Final = ("remote.storage.enable=true", "local.retention.ms=-2", "local.retention.bytes=1000")
_SEQUENCES: Final = HERE / "Sequences.java"
_INDEX_CACHE: Final = "remote-log-index-cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfitRemote:
    """A partition of which wrong snapshots are tiered, led by a broker that runs and goes on to tier."""

    broker: Broker
    remote: Path
    client: Release
    """Whose programs send single batches."""
    batch_offset: int
    """Where the batch of ``IDEMPOTENT`` is."""
    since: int
    """How much the broker had printed when it was to tier."""
    newcomer: Broker | None = None
    """Another broker of the cluster, which has not been started."""

    @property
    def partition(self) -> Path:
        """The directory of the partition."""
        return self.broker.log_dirs[0] / str(PARTITION)

    def read(self, level: str = "read_committed") -> tuple[int, str]:
        """Return how many records consumers of an isolation level see, and their digest."""
        said = dict(map(str.split, self.broker.drive("read", TOPIC, 0, level).splitlines()))
        return int(said["records"]), said["sha256"]

    def send(self, sequence: int) -> tuple[str, int]:
        """Send a batch of ``IDEMPOTENT``; return what the broker says of it, and at which offset it is."""
        return _send_batch(self.client, self.broker, sequence)

    def tier_all(self) -> None:
        """Wait until every closed segment is tiered and has left the disk."""
        active = bases(self.partition)[-1]
        eventually(lambda: bases(self.partition)[0] >= active, "local copies stay")

    def append(self) -> None:
        """Write some segments more, and wait until they are tiered."""
        self.broker.drive("append", TOPIC, 0, 30)
        self.tier_all()

    def read_of_new_replica(self) -> tuple[int, str]:
        """Let the newcomer become a replica and lead; return what ``read`` does then, and let it leave again."""
        assert self.newcomer is not None
        own, other = self.broker.node, self.newcomer.node
        with self.newcomer.running():
            self.broker.drive("reassign", TOPIC, 0, f"{own},{other}")
            since = len(self.newcomer.printed())  # before, it asks until it knows what is tiered
            self.broker.drive("reassign", TOPIC, 0, f"{other},{own}")
            self.broker.drive("elect", TOPIC, 0)
            found = self.read()
            assert self.newcomer.complaints(since) == []
            self.broker.drive("reassign", TOPIC, 0, own)
        return found

    def forget_indexes(self) -> None:
        """Take the indexes that the stopped broker has fetched off its disk, where they outlive it."""
        for path in (self.broker.log_dirs[0] / _INDEX_CACHE).iterdir():
            path.unlink()


def _send_batch(client: Release, broker: Broker, sequence: int) -> tuple[str, int]:
    said = client.run(_SEQUENCES, "batch", "127.0.0.1", broker.port, TOPIC, IDEMPOTENT, 0, sequence)
    error, offset = said.split()
    return error, int(offset)


def _move_by_hand(disks: Sequence[Path]) -> list[Path]:
    """Move the partition to the other disk as operators do who free a full one: with its segments and leader epochs.

    Return the disks, that of the partition first.
    """
    full, other = sorted(disks, key=lambda one: not (one / str(PARTITION)).exists())
    (other / str(PARTITION)).mkdir()
    for names in ("*.log", "*.*index", "leader-epoch-checkpoint"):
        for path in (full / str(PARTITION)).glob(names):
            shutil.copy2(path, other / str(PARTITION))
    shutil.rmtree(full / str(PARTITION))
    return [other, full]


@contextmanager
def moved_without_snapshots(
    release: Callable[[str], Release], root: Path, *, tiers: Callable[[Path], dict[str, object]] = tiering
) -> Iterator[UnfitRemote]:
    """Give a log of 2.7.2 that was moved to another disk without its snapshots, opened and tiered by 3.9.1.

    The other disk was a log dir of the broker, too, and says that all of its logs were closed. A broker that reads that
    and finds no snapshot reads no segment: it writes empty ones at the last two bases and goes on from there. The
    segments below, which have none, leave by retention before tiering is turned on. ``tiers`` gives the properties by
    which 3.9.1 tiers to a folder.

    Source: UnifiedLog.rebuildProducerState (3.9), Log.rebuildProducerState (2.7).
    """
    old, new = release("2.7.2"), release("3.9.1")
    disks, remote = [root / "disk1", root / "disk2"], root / "remote"
    remote.mkdir()
    with zookeeper(old, root / "zookeeper") as address:
        broker = Broker(old, disks, zookeeper=address)
        with broker.running():
            broker.drive("create", TOPIC, 1, *SMALL[old.version])
            (partition,) = (disk / str(PARTITION) for disk in disks if (disk / str(PARTITION)).exists())
            broker.drive("append", TOPIC, 0, 25)
            client = RawClient(broker.port, "aborted later")
            client.add(PARTITION)
            client.produce(PARTITION)
            error, batch_offset = _send_batch(new, broker, 0)
            assert error == "NONE"
            last = bases(partition)[-1]
            while bases(partition)[-1] == last:
                broker.drive("append", TOPIC, 0, 4)
        disks = _move_by_hand(disks)
        partition = disks[0] / str(PARTITION)
        broker = Broker(new, disks, tiers(remote) | {"inter.broker.protocol.version": "3.9"}, zookeeper=address)
        with broker.running():
            made = [path.read_bytes() for path in sorted(partition.glob("*.snapshot"))]
            assert made[:2] == [EMPTY_SNAPSHOT] * 2
            RawClient(broker.port, "aborted later")  # which aborts what the earlier instance has left open
            broker.drive("append", TOPIC, 0, 30)
            broker.drive("delete", TOPIC, 0, last)
            eventually(lambda: bases(partition)[0] == last, "retention deletes nothing")
            since = len(broker.printed())
            broker.drive("configure", TOPIC, *_TIERED)
            unfit = UnfitRemote(broker=broker, remote=remote, client=new, batch_offset=batch_offset, since=since)
            unfit.tier_all()
            yield unfit


@contextmanager
def led_without_state(release: Release, root: Path) -> Iterator[UnfitRemote]:
    """Give what a replica tiers that started from remote storage without producer state, and leads."""
    with lost_state(release, root) as lost:
        since = len(lost.follower.printed())
        lost.lead(lost.follower)
        lost.leader.drive("configure", TOPIC, *_TIERED)
        (root / "three").mkdir()
        unfit = UnfitRemote(
            broker=lost.follower,
            remote=lost.remote,
            client=release,
            batch_offset=lost.batch_offset,
            since=since,
            newcomer=Broker(
                release, [root / "three" / "data"], tiering(lost.remote) | QUICK, node=3, joins=lost.leader
            ),
        )
        unfit.append()
        yield unfit
