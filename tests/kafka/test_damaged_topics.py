"""Whether `resnap check` and `resnap scan` judge damaged log dirs as real brokers do, a topic for each kind of damage.

All topics are copies of one log. The brokers are stopped, the files are damaged and judged; then a broker starts,
tiering is turned on, and what comes to remote storage is compared with the segment that each verdict names.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import kafka
import pytest
from kafka.admin import NewTopic

from tests.cases import mostly_slow
from tests.kafka.brokers import SMALL, Broker, eventually, tiering
from tests.kafka.releases import PATIENCE_S
from tests.kafka.test_check import configure, produce, tiered
from tests.scheduler.files import bases, file_at
from tests.scheduler.installed import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

BATCHES: Final = 90
"""Of one record each, ten to a segment."""
TEN: Final = 10
CLOSED: Final = list(range(0, BATCHES - TEN, TEN))
HIGH_WATERMARKS, STARTS = "replication-offset-checkpoint", "log-start-offset-checkpoint"
UNKNOWN_ID: Final = "version: 0\ntopic_id: AbCdEfGhQACAAAAAAAAAAQ"


def aborted(*last_offsets: int, version: int = 0) -> bytes:
    """Return a transaction index whose entries end at ``last_offsets``."""
    return b"".join(struct.pack(">hqqqq", version, 7, 1, last, 1) for last in last_offsets)


def checkpoint(data: Path, name: str, topic: str, offset: int | None) -> None:
    """Set a topic's line in an offset checkpoint, or remove it."""
    lines = (data / name).read_text().splitlines()[2:]
    kept = [line for line in lines if not line.startswith(f"{topic} ")]
    kept += [] if offset is None else [f"{topic} 0 {offset}"]
    (data / name).write_text("\n".join(["0", str(len(kept)), *kept, ""]))


@dataclass(frozen=True)
class Log:
    """One partition's directory, while no broker runs."""

    path: Path

    def at(self, offset: int, suffix: str) -> Path:
        return file_at(self.path, offset, suffix)

    def remove(self, offset: int, *suffixes: str) -> None:
        for suffix in suffixes:
            self.at(offset, suffix).unlink()

    def write(self, offset: int, suffix: str, data: bytes) -> None:
        self.at(offset, suffix).write_bytes(data)

    def append(self, offset: int, suffix: str, data: bytes) -> None:
        self.write(offset, suffix, self.at(offset, suffix).read_bytes() + data)

    def cut(self, offset: int, suffix: str, size: int) -> None:
        os.truncate(self.at(offset, suffix), size)

    def copy(self, offset: int, suffix: str, to: str) -> None:
        shutil.copy(self.at(offset, suffix), f"{self.at(offset, suffix)}.{to}")

    def epochs(self, text: str) -> None:
        (self.path / "leader-epoch-checkpoint").write_text(text)

    def metadata(self, text: str) -> None:
        (self.path / "partition.metadata").write_text(text)

    def checkpoint(self, name: str, offset: int | None) -> None:
        checkpoint(self.path.parent, name, self.path.name.rpartition("-")[0], offset)

    def linked(self, offset: int) -> None:
        elsewhere = self.path.parents[1] / "elsewhere.log"
        shutil.move(self.at(offset, "log"), elsewhere)
        self.at(offset, "log").symlink_to(elsewhere)

    def without_snapshots(self) -> None:
        for offset in bases(self.path, "snapshot"):
            self.remove(offset, "snapshot")


DAMAGE: Final[dict[str, tuple[Callable[[Log], object], str | None, list[int]]]] = {
    # damage, the reason why the topic is blocked, and the segments that brokers tier
    "whole": (bool, None, CLOSED),
    # A broker recovers the segment, and deletes the snapshots above; it writes those at the last two segments again.
    "no-index": (lambda log: log.remove(20, "index"), "index-missing", [0, 10, 20]),
    "no-index-late": (lambda log: log.remove(60, "index"), None, CLOSED),
    "no-index-active": (lambda log: log.remove(80, "index"), None, CLOSED),
    "no-index-twice": (lambda log: (log.remove(10, "index"), log.remove(40, "index")), "index-missing",
                       [0, 10, 20, 30, 40]),
    "txn-below": (lambda log: log.write(10, "txnindex", aborted(3)), "index-unusable", [0, 10]),
    "txn-below-second": (lambda log: log.write(10, "txnindex", aborted(13, 3)), "index-unusable", [0, 10]),
    "txn-below-late": (lambda log: log.write(70, "txnindex", aborted(3)), None, CLOSED),
    "txn-cut": (lambda log: log.write(10, "txnindex", aborted(13) + b"odd"), None, CLOSED),
    "txn-empty": (lambda log: log.write(10, "txnindex", b""), None, CLOSED),
    "epochs-late": (lambda log: log.epochs("0\n1\n0 30\n"), "leader-epochs-unknown", []),
    "epochs-above-end": (lambda log: log.epochs("0\n1\n0 5000\n"), "leader-epochs-unknown", []),
    "epochs-in-first": (lambda log: log.epochs("0\n1\n0 4\n"), None, CLOSED),
    "epochs-other": (lambda log: log.epochs("0\n2\n0 0\n1 30\n"), "leader-epochs-wrong", CLOSED),
    "epochs-none": (lambda log: log.epochs("0\n0\n"), "leader-epochs-unknown", []),
    "epochs-no-bytes": (lambda log: log.epochs(""), "leader-epochs-unknown", []),
    "no-metadata": (lambda log: (log.path / "partition.metadata").unlink(), "stray", []),
    "unknown-id": (lambda log: log.metadata(UNKNOWN_ID), "stray", []),
    "no-middle": (lambda log: log.remove(30, "log", "index", "timeindex"), None, [0, 10, 20, 40, 50, 60, 70]),
    "swap": (lambda log: log.at(20, "log").rename(f"{log.at(20, 'log')}.swap"), "directory-busy", [0]),
    "swap-copy": (lambda log: log.copy(20, "log", "swap"), "directory-busy", [0]),
    "swap-index": (lambda log: log.copy(20, "index", "swap"), None, CLOSED),
    "cleaned": (lambda log: log.copy(20, "log", "cleaned"), None, CLOSED),
    "deleted": (lambda log: log.copy(20, "log", "deleted"), None, CLOSED),
    "no-timeindex": (lambda log: log.remove(20, "timeindex"), None, CLOSED),
    "short-index": (lambda log: log.cut(20, "index", 16), None, CLOSED),
    "padded-index": (lambda log: log.append(20, "index", bytes(8_000)), None, CLOSED),
    "no-snapshot-last": (lambda log: log.remove(80, "snapshot"), "missing-snapshot", CLOSED[:-1]),
    "snapshot-of-none": (lambda log: log.write(33, "snapshot", log.at(30, "snapshot").read_bytes()), None, CLOSED),
    "snapshot-garbage": (lambda log: log.write(30, "snapshot", bytes(100)), None, CLOSED),
    "no-end-snapshot": (lambda log: log.remove(90, "snapshot"), None, CLOSED),
    "start-above-end": (lambda log: log.checkpoint(STARTS, 5_000), "damaged", []),
    "no-high-watermark": (lambda log: log.checkpoint(HIGH_WATERMARKS, None), None, CLOSED),
    "linked-log": (lambda log: log.linked(20), None, CLOSED),
    "other-files": (lambda log: (log.path / "notes.txt").write_text("x"), None, CLOSED),
    # Brokers tier these, and no consumer can read them then.
    "padded-timeindex": (lambda log: log.append(20, "timeindex", bytes(1_200)), "index-unusable", CLOSED),
    "garbage-index": (lambda log: log.write(20, "index", bytes([255] * 64)), "index-unusable", CLOSED),
    "padded-log": (lambda log: log.append(20, "log", bytes(4_096)), "damaged", CLOSED),
}  # fmt: skip
STILL_TIERED: Final = {"padded-timeindex", "garbage-index", "padded-log", "epochs-other"}
AGAIN: Final = "tiered-before"
"""A topic whose segments are tiered already, and that has lost snapshots below since."""


def fill(broker: Broker, admin: kafka.KafkaAdminClient, remote: Path) -> None:
    """Create all topics, and write the log of ``whole``, and that of the topic that is tiered at once."""
    own = dict(one.split("=") for one in SMALL[broker.release.version])
    names = [*DAMAGE, AGAIN, "fatal"]
    on = own | {"remote.storage.enable": "true"}
    admin.create_topics([NewTopic(name, 1, 1, topic_configs=on if name == AGAIN else own) for name in names])
    eventually(lambda: all((broker.log_dirs[0] / f"{name}-0").is_dir() for name in names), "a topic is not there")
    now_ms = int(time.time() * 1000)
    for name in ("whole", AGAIN):
        for sequence in range(BATCHES):
            produce(broker.port, name, sequence, timestamp=now_ms)
    eventually(lambda: tiered(remote, AGAIN) == CLOSED, "what is to be tiered first is not")


def copies(data: Path) -> None:
    """Give every topic the log of ``whole``."""
    for name in (*DAMAGE, "fatal"):
        path = data / f"{name}-0"
        if name != "whole":
            metadata = (path / "partition.metadata").read_bytes()
            shutil.rmtree(path)
            shutil.copytree(data / "whole-0", path)
            (path / "partition.metadata").write_bytes(metadata)
            checkpoint(data, HIGH_WATERMARKS, name, BATCHES)
            checkpoint(data, "recovery-point-offset-checkpoint", name, BATCHES)


@contextmanager
def there(path: Path, content: bytes | None) -> Iterator[None]:
    """Have a file of this content, or a directory for None, where there may be another file."""
    before = path.read_bytes() if path.exists() else None
    path.mkdir() if content is None else path.write_bytes(content)
    yield
    path.rmdir() if content is None else path.unlink()
    if before is not None:
        path.write_bytes(before)


@pytest.mark.parametrize("version", mostly_slow(("3.9.1", "4.4.0"), "3.9.1"))
def test_damaged_topics_are_judged_as_brokers_treat_them(
    version: str, command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    data, remote = tmp_path / "data", tmp_path / "remote"
    remote.mkdir()
    settings = tiering(remote) | {"transaction.partition.verification.enable": "false"}
    broker = Broker(release(version), [data], settings)
    with broker.running(), kafka.KafkaAdminClient(bootstrap_servers=broker.address) as admin:
        fill(broker, admin, remote)
    copies(data)
    for name, (damage, _, _) in DAMAGE.items():
        damage(Log(data / f"{name}-0"))
    for offset in (30, 50):
        file_at(data / f"{AGAIN}-0", offset, "snapshot").unlink()

    ran = command("check", data, "--server-properties", broker.settings, "--output", "json")
    rows = {row["topic"]: row for row in ran.document["topics"]}
    reasons = {name: {blocker["reason"] for blocker in row["blockers"]} for name, row in rows.items()}
    blocked = {name: {reason} if reason else set() for name, (_, reason, _) in DAMAGE.items()}
    assert reasons == blocked | {AGAIN: set(), "fatal": set()}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        name: "blocked" if found else "ready" for name, found in reasons.items()
    }
    assert [one["reason"] for one in rows["no-middle"]["warnings"]] == ["missing-offsets"]
    assert "offsets 30 to 39 are missing" in rows["no-middle"]["warnings"][0]["detail"]
    stops = {name: min((one["baseOffset"] for one in rows[name]["blockers"]), default=BATCHES) for name in DAMAGE}
    on_disk = {name: bases(data / f"{name}-0")[:-1] for name in DAMAGE}
    said = {name: [base for base in on_disk[name] if base < stops[name]] for name in DAMAGE.keys() - STILL_TIERED}
    assert said == {name: DAMAGE[name][2] for name in said}
    scanned = command("scan", data, "--output", "json").document["partitions"]
    of_scan = {row["topic"]: row["brokerStops"] and row["brokerStops"]["reason"] for row in scanned}
    # Scheduled scans open no index, and no log with leader epochs.
    assert {name: of_scan[name] for name in DAMAGE.keys() - STILL_TIERED} == {
        name: DAMAGE[name][1] for name in DAMAGE.keys() - STILL_TIERED
    }
    assert of_scan[AGAIN] is None

    since = len(broker.printed())
    with broker.running(), kafka.KafkaAdminClient(bootstrap_servers=broker.address) as admin:
        on = {"remote.storage.enable": "true", "local.retention.bytes": "-2", "retention.ms": "-1"}
        own = dict(one.split("=") for one in SMALL[version])
        for name in DAMAGE:
            assert configure(admin, name, **own, **on) == ""
        now_ms = int(time.time() * 1000)
        for sequence in range(BATCHES, BATCHES + TEN):
            produce(broker.port, AGAIN, sequence, timestamp=now_ms)
        expected = {name: bases_tiered for name, (_, _, bases_tiered) in DAMAGE.items()}
        expected[AGAIN] = [*CLOSED, BATCHES - TEN]
        eventually(
            lambda: {name: tiered(remote, name) for name in expected} == expected,
            "what is tiered is not what check says",
        )
        failed = [one for one in broker.complaints(since) if f"{AGAIN}-0" in one]
        assert failed == []
        with pytest.raises(AssertionError, match="CorruptRecordException"):
            broker.drive("read", "padded-log", 0)
        for name in ("no-metadata", "unknown-id"):
            assert bases(data / f"{name}-0") == [0], "the partition begins empty"
            assert [path.name for path in data.glob(f"{name}-0.*-stray")] != []

    fatal = data / "fatal-0"
    for path, content, said in (
        (file_at(fatal, 10, "txnindex"), aborted(13, version=0x7F00), "aborted transaction version"),
        (fatal / "leader-epoch-checkpoint", b"garbage", "Malformed line in checkpoint file"),
        (fatal / "partition.metadata", b"version: 7", "Error starting LogManager"),
        (fatal / "copy.log", b"", "NumberFormatException"),
        (data / "lost+found", None, "is not in the form of topic-partition"),
    ):
        with there(path, content):
            topics = command("check", data, "--topic", "fatal", "--topic", "whole", "--output", "json").document[
                "topics"
            ]
            whole = next(row for row in topics if row["topic"] == "whole")
            assert [blocker["reason"] for blocker in whole["blockers"]] == ["no-start"]
            since, process = len(broker.printed()), broker.start()
            assert process.wait(PATIENCE_S) != 0, f"a broker starts with a damaged {path.name}"
            assert said in broker.printed()[since:]


@pytest.mark.parametrize(
    ("name", "content", "ends_all"),
    [
        ("txnindex", aborted(13, version=0x7F00), True),
        ("partition.metadata", b"version: 0\n", True),
        ("partition.metadata", b"", True),
        ("partition.metadata", b"version: 0\ngarbage", False),
        ("leader-epoch-checkpoint", b"garbage", False),
    ],
)
@pytest.mark.parametrize("version", ["3.9.1", pytest.param("4.4.0", marks=pytest.mark.heavy)])
def test_a_damaged_file_on_one_of_two_disks_stops_what_check_says(  # noqa: PLR0917
    command: Resnap, release: Callable[[str], Release], fixture_set: Callable[[str], FixtureSet], tmp_path: Path,
    version: str, name: str, content: bytes, ends_all: bool,
) -> None:  # fmt: skip
    one, two = copied(fixture_set(f"kafka-{version}-kraft").data, tmp_path / "one"), tmp_path / "two"
    two.mkdir()
    shutil.move(one / "payments-1", two)
    shutil.copytree(two / "payments-1", two / "beside-0")
    properties = (one / "meta.properties").read_text()
    (two / "meta.properties").write_text(re.sub("directory.id=.*", "directory.id=AAAAAAAAQACAAAAAAAAAAg", properties))
    damaged = two / "payments-1"
    file = file_at(damaged, bases(damaged)[1], name) if name == "txnindex" else damaged / name
    file.write_bytes(content)
    arguments = ("--partition", "payments-0", "--partition", "beside-0", "--output", "json")
    scanned = command("scan", one, two, *arguments).document["partitions"]
    stops = {row["topic"]: (row["brokerStops"] or {}).get("reason") for row in scanned}
    shutil.rmtree(two / "beside-0")
    assert (stops["beside"], stops["payments"] == "no-start") == ("no-start", ends_all)
    broker = Broker(release(version), [one, two])
    process = broker.start()
    if ends_all:
        assert process.wait(PATIENCE_S) != 0
    else:
        broker.await_start()
        eventually(lambda: f"Stopping serving logs in dir {two}" in broker.printed(), "the log dir is not offline")
        assert broker.drive("read", "payments", 0)
        broker.stop()
