"""More producers than some releases read: said wherever such a snapshot is made, and never installed there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np
import pytest

from resnap.replay import DEFAULT_EXPIRATION_MS
from resnap.scheduler.job.large_states import LargeStates
from resnap.scheduler.settings.settings import Settings
from resnap.storage.log.checkpoints import LeaderEpoch, write_leader_epochs
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE, snapshot_array_parts
from resnap.storage.words import instant
from resnap.tiering.judging.known_faults import MANY_ENTRIES, MOST_READABLE_ENTRIES
from tests.cases import each
from tests.logs.bulk_log import HEADER_DTYPE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scheduler.conftest import Resnap

RECORD: Final = bytes.fromhex("0e00000001027800")
PRODUCERS: Final = MOST_READABLE_ENTRIES + 1
JSON: Final = ("--output", "json")


def write_log(root: Path) -> Path:
    """Write a log dir with a partition of one batch of each of 1,000,001 producers, and a segment above it."""
    partition = root / "big-0"
    partition.mkdir(parents=True)
    now_ms = int(time.time() * 1000) - 3_600_000
    dtype = np.dtype(
        [*((name, HEADER_DTYPE[name]) for name in HEADER_DTYPE.names or ()), ("record", f"V{len(RECORD)}")]
    )
    batches = np.zeros(PRODUCERS + 1, dtype)
    numbers = np.arange(PRODUCERS + 1)
    batches["base_offset"] = batches["producer_id"] = numbers
    batches["batch_length"] = dtype.itemsize - 12
    batches["magic"], batches["records_count"] = 2, 1
    batches["base_timestamp"] = batches["max_timestamp"] = now_ms + numbers
    batches["record"] = np.void(RECORD)
    for base, cut in ((0, slice(0, PRODUCERS)), (PRODUCERS, slice(PRODUCERS, None))):
        (partition / f"{base:020d}.log").write_bytes(batches[cut].tobytes())
        for kind in ("index", "timeindex"):
            (partition / f"{base:020d}.{kind}").touch()
    (partition / "leader-epoch-checkpoint").write_bytes(write_leader_epochs([LeaderEpoch(epoch=0, start_offset=0)]))
    (partition / "partition.metadata").write_text("version: 0\ntopic_id: lZ6vvmajTWKDBUTV6SQAtQ")
    (root / "replication-offset-checkpoint").write_text(f"0\n1\nbig 0 {PRODUCERS + 1}\n")
    (root / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=lZ6vvmajTWKDBUTV6SQAtA\n")
    return root


@each(
    "version, entries, said",
    [
        ("4.4.0", PRODUCERS, "would be deleted by a broker that loads it: 4.4.0 has this"),
        ("4.3.1", PRODUCERS, "brokers of 4.2.2 and 4.4.0 delete"),
        (None, PRODUCERS, "the release is not known"),
        ("4.4.0", MANY_ENTRIES, "at more than 1,000,000, brokers of 4.2.2 and 4.4.0 delete"),
    ],
)
def test_the_release_decides_what_is_said_of_many_producers_once_for_each_partition(
    version: str | None, entries: int, said: str
) -> None:
    warned: list[str] = []
    states = LargeStates(Settings(kafka_version=version), warned.append)
    for number in (0, 1, 0):
        states.look(TopicPartition("big", number), 7, entries)
        states.look(TopicPartition("small", number), 7, MANY_ENTRIES - 1)
    assert [one.partition(":")[0] for one in warned] == ["big-0", "big-1"]
    assert said in warned[0]


@pytest.mark.parametrize("version", ["4.4.0", None])
def test_until_when_is_said_where_the_snapshot_can_be_read(version: str | None, tmp_path: Path) -> None:
    entries = np.zeros(PRODUCERS + 1, ENTRY_DTYPE)
    entries["producer_id"] = np.arange(len(entries))
    entries["timestamp"] = 1_700_000_000_000 + 60_000 * np.arange(len(entries))[::-1]
    path = tmp_path / "00000000000000000007.snapshot"
    path.write_bytes(b"".join(snapshot_array_parts(entries)))
    until = f"will have by {instant(1_700_000_060_000 + DEFAULT_EXPIRATION_MS)}"
    for place, is_said in ((str(path), True), (str(tmp_path / "gone"), False), (None, False)):
        warned: list[str] = []
        states = LargeStates(Settings(kafka_version=version), warned.append)
        states.look(TopicPartition("big", 0), 7, len(entries), place)
        assert ("2 of them must expire first" in warned[0], until in warned[0]) == (True, is_said), warned


@pytest.mark.slow
def test_no_broker_gets_a_snapshot_that_it_would_delete(command: Resnap, tmp_path: Path) -> None:
    log_dir, staged = write_log(tmp_path / "data"), tmp_path / "staged"
    made = command("regenerate", log_dir, "--into", staged, "--engine", "local", "--kafka-version", "4.4.0")
    assert made.code == 0, made.err
    assert f"big-0: the snapshot at {PRODUCERS} would be deleted by a broker that loads it: 4.4.0 has this" in made.err
    first_ms = np.fromfile(log_dir / "big-0" / f"{0:020d}.log", HEADER_DTYPE, 1)["max_timestamp"][0]
    until = instant(int(first_ms) + DEFAULT_EXPIRATION_MS)
    expire = f"1 of them must expire first (producer.id.expiration.ms; if they are idle they will have by {until})"
    assert expire in made.err
    store = ("--to", (tmp_path / "store").as_uri(), "--engine", "local", "--kafka-version", "4.4.0")
    assert expire in command("tier", log_dir, *store).err
    for verb in (("verify",), ("repair", "--dry-run")):
        ran = command(*verb, *store[1:])
        assert (ran.code, expire in ran.err, "4.4.0 has this" in ran.err) == (0, True, True), ran.err
    placed = log_dir / "big-0" / f"{PRODUCERS:020d}.snapshot"
    for version in (("--kafka-version", "4.4.0"), ()):
        refused = command("install", staged, log_dir, *version, *JSON)
        (decision,) = refused.document["partitions"][0]["snapshots"]
        assert (refused.code != 0, decision["outcome"], placed.exists()) == (True, "too-many-producers", False)
        assert "1 of them must expire first" in decision["detail"]
        assert "was active at 20" in decision["detail"]
    installed = command("install", staged, log_dir, "--kafka-version", "4.3.1", *JSON)
    assert (installed.code, placed.stat().st_size) == (0, 10 + 46 * PRODUCERS)

    counted = command("producer", "census", log_dir, "--engine", "local", "--kafka-version", "4.4.0")
    assert f"the snapshot at {PRODUCERS} would be deleted by a broker that loads it" in counted.err
    for version, code, verdict in (("4.4.0", 4, "blocked"), ("4.3.1", 0, "ready")):
        checked = command("check", log_dir, "--kafka-version", version, *JSON)
        (topic,) = checked.document["topics"]
        assert (checked.code, topic["verdict"]) == (code, verdict), topic
        assert [one["reason"] for one in topic["blockers"]] == (["snapshot-too-large"] if code else [])
    (topic,) = command("check", log_dir, *JSON).document["topics"]
    assert (topic["verdict"], [one["reason"] for one in topic["warnings"]]) == ("ready", ["snapshot-too-large"])
    assert "the release is not known; 1 of them must expire first" in topic["warnings"][0]["detail"]
    (blocker,) = command("check", log_dir, "--kafka-version", "4.4.0", *JSON).document["topics"][0]["blockers"]
    (scanned,) = command("scan", log_dir, "--kafka-version", "4.4.0", *JSON).document["partitions"]
    said = f"1 of them must expire first (producer.id.expiration.ms), and will have by {until} if they are idle"
    assert said in blocker["detail"]
    assert said in scanned["knownFaults"][0]["detail"]
