"""Kafka's own classes beside ours: bytes of remote log metadata, what they amount to, and what a reader dies of."""

from __future__ import annotations

import random
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.messages.schema import Frame, write_frame, write_message
from resnap.storage.messages.wire import uuid_text
from resnap.tiering.remote_log.metadata_cache import fold_events
from resnap.tiering.remote_log.records import (
    RemoteLogRecord,
    SegmentState,
    TopicIdPartition,
    encode_record,
    metadata_partition,
)
from tests.kafka.releases import HERE, PATIENCE_S
from tests.tiering.remote_log.test_codec import FINISHED, STARTED
from tests.tiering.remote_log.written_records import events, started, updated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.kafka.releases import Release

pytestmark = pytest.mark.kafka

PACKAGE: Final = "org.apache.kafka.server.log.remote.metadata.storage"
HISTORIES: Final = 300
EPOCHS, OFFSETS = 5, 50


@pytest.fixture(params=["3.9.1", pytest.param("4.1.1", marks=pytest.mark.heavy), "4.4.0"])
def kafka(request: pytest.FixtureRequest, release: Callable[[str], Release]) -> Callable[[list[str]], list[str]]:
    """Give the lines of a program of that release to lines of ours."""
    *java, name = release(request.param).program(HERE / "RemoteMetadata.java")
    command = [*java, f"{PACKAGE}.{name}"]

    def answers(lines: list[str]) -> list[str]:
        asked = "".join(f"{line}\n" for line in lines)
        ran = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert ran.returncode == 0, ran.stderr[-4000:]
        return [line for line in ran.stdout.splitlines() if line.startswith(("{", "dies", "lives")) or line.isdigit()]

    return answers


def history(chance: random.Random) -> Iterator[RemoteLogRecord]:
    """Records of a few segments in any order, most of them orderly; some span two leader epochs."""
    segments = {name: (chance.randrange(31), chance.randrange(13), chance.randrange(3)) for name in "abcdef"}
    steps = dict.fromkeys(segments, 0)
    for _ in range(chance.randrange(1, 30)):
        name = chance.choice("abcdef")
        step = steps[name] % 4 if chance.random() < 0.8 else chance.randrange(4)
        steps[name] = step + 1
        start, length, epoch = segments[name]
        spanning = {epoch: start, epoch + 1: start + length // 2} if length > 3 else {epoch: start}
        yield updated(name, SegmentState(step)) if step else started(name, start, start + length, spanning)


def shown(records: list[RemoteLogRecord]) -> str:
    """Return what Kafka's class would report of the same cache, in the form of Java's collections."""
    found = fold_events(events(records)).partitions
    states = {segment.id: segment.state.name for part in found for segment in part.segments}
    readable = sorted(name for part in found for name in part.readable_ids)
    return f"{{{', '.join(f'{name}={states[name]}' for name in sorted(states))}}} [{', '.join(readable)}]"


def test_records_amount_to_what_kafkas_own_cache_makes_of_them(
    kafka: Callable[[list[str]], list[str]], request: pytest.FixtureRequest
) -> None:
    chance = random.Random(request.config.getoption("seed"))
    told = [list(history(chance)) for _ in range(HISTORIES)]
    lines: list[str] = []
    for records in told:
        lines += ["new", *(f"tell {encode_record(record).hex()}" for record in records), f"state {EPOCHS} {OFFSETS}"]
    assert kafka(lines) == [shown(records) for records in told]


def test_what_we_refuse_to_write_is_what_kafkas_reader_dies_of(kafka: Callable[[list[str]], list[str]]) -> None:
    def raw(api_key: int, record: object, version: int = 0) -> bytes:
        return write_frame(Frame(api_key, version)) + write_message(record, 0)

    deadly = {
        "another first state": raw(0, replace(STARTED, remote_log_segment_state=1)),
        "unknown state": raw(1, replace(FINISHED, remote_log_segment_state=9)),
        "no epochs": raw(0, replace(STARTED, segment_leader_epochs=())),
        "end before start": raw(0, replace(STARTED, start_offset=30)),
        "unknown type": raw(9, FINISHED),
        "cut short": encode_record(STARTED)[:-10],
    }
    answers = kafka([f"kill {value.hex()}" for value in (*deadly.values(), encode_record(STARTED))])
    assert dict(zip([*deadly, "good"], answers, strict=True)) == dict.fromkeys(deadly, "dies") | {"good": "lives"}


def test_partitions_are_those_of_kafkas_partitioner(
    kafka: Callable[[list[str]], list[str]], request: pytest.FixtureRequest
) -> None:
    chance = random.Random(request.config.getoption("seed"))
    places = [(uuid_text(chance.randbytes(16)), chance.randrange(1000), chance.randrange(1, 60)) for _ in range(500)]
    ours = [metadata_partition(TopicIdPartition(name="t", id=topic, partition=of), n) for topic, of, n in places]
    assert kafka([f"place {topic} {of} {n}" for topic, of, n in places]) == [str(place) for place in ours]
