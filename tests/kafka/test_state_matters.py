"""Why a snapshot's content matters: what a broker knows of producers after it has started from one.

A follower cannot show it: it throws away what it has fetched. One replica that starts from its own newest snapshot can.
"""

from __future__ import annotations

import re
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from tests.kafka.brokers import SMALL, Broker
from tests.kafka.releases import HERE
from tests.scheduler.files import bases, file_at
from tests.scheduler.installed import copied, lose_all_snapshots
from tests.scheduler.shipped import entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

SEQUENCES: Final = HERE / "Sequences.java"
TOPIC: Final = "payments"
SENT: Final = 20
EPOCH: Final = 0
REFUSED: Final = re.compile("OutOfOrderSequenceException|InvalidProducerEpochException")
"""What a broker says of the two batches that it refuses here."""


class LiveProducer:
    """A real idempotent producer in a process of its own, which outlives the broker's restart."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def send(self, batches: int) -> int:
        """Send batches of a record each; return the offset of the last."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{batches}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def live_producer(broker: Broker) -> Iterator[LiveProducer]:
    """Start a producer, which waits for its broker as long as it must."""
    command = broker.release.program(SEQUENCES, "live", broker.address, TOPIC)
    with (broker.root / "producer.log").open("wb") as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True)
    try:
        yield LiveProducer(process)
    finally:
        process.kill()
        process.communicate()


def send_batch(broker: Broker, producer_id: int, epoch: int, sequence: int) -> tuple[str, int]:
    """Send a batch in a producer's name; return the broker's error, and the offset that it gives."""
    told = broker.release.run(SEQUENCES, "batch", "127.0.0.1", broker.port, TOPIC, producer_id, epoch, sequence)
    error, offset = told.split()
    return error, int(offset)


def oldest_two(snapshot: Path) -> list[tuple[int, ...]]:
    """Return the entries of the producers that have been silent the longest."""
    return sorted(entries(snapshot.read_bytes()).values(), key=lambda entry: entry[5])[:2]


@pytest.mark.parametrize("version", ["3.9.1", pytest.param("4.1.1", marks=pytest.mark.heavy), "4.4.0"])
def test_from_a_regenerated_snapshot_producers_go_on_and_duplicates_stay_out(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    data, staged = tmp_path / "mended" / "data", tmp_path / "staged"
    data.mkdir(parents=True)
    broker, partition = Broker(release(version), [data]), data / f"{TOPIC}-0"
    with live_producer(broker) as live:
        with broker.running():
            broker.drive("create", TOPIC, 1, *SMALL[version])
            last = live.send(SENT)
            broker.release.run(SEQUENCES, "bumped", broker.address, TOPIC)
            broker.drive("append", TOPIC, 0, 60)
            broker.drive("decide", TOPIC, 0)
            end = _end(broker)
        lose_all_snapshots(partition)
        forgetful = Broker(release(version), [copied(data, tmp_path / "forgetful" / "data")])

        assert command("regenerate", data, "--into", staged, "--engine", "local").code == 0
        assert command("install", staged, data).code == 0
        newest = file_at(staged / partition.name, bases(partition)[-1], "snapshot")
        (producer_id, epoch, last_sequence, *_), (fenced_id, newer_epoch, *_) = oldest_two(newest)
        assert (epoch, last_sequence) == (EPOCH, SENT - 1)
        assert newer_epoch > EPOCH

        since = len(broker.printed())
        with broker.running():
            assert send_batch(broker, producer_id, EPOCH, last_sequence) == ("NONE", last)
            assert send_batch(broker, producer_id, EPOCH, last_sequence + 5)[0] == "OUT_OF_ORDER_SEQUENCE_NUMBER"
            assert send_batch(broker, fenced_id, EPOCH, 1)[0] == "INVALID_PRODUCER_EPOCH"
            assert _end(broker) == end, "a duplicate came in, or what should have been refused"
            assert live.send(3) == end + 2
        assert [one for one in broker.complaints(since) if not REFUSED.search(one)] == []

    with forgetful.running():
        assert send_batch(forgetful, producer_id, EPOCH, last_sequence) == ("NONE", end)
        assert send_batch(forgetful, fenced_id, EPOCH, 1) == ("NONE", end + 1)


def _end(broker: Broker) -> int:
    told = dict(map(str.split, broker.drive("read", TOPIC, 0).splitlines()))
    return int(told["end"])
