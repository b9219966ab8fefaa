"""A replica that lost its producer state, healed while it is stopped; without that see ``test_lost_state``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.log.names import TopicPartition
from tests.kafka.brokers import Broker, eventually, tiering
from tests.kafka.lost_state import IDEMPOTENT, QUICK, TOPIC, lost_state
from tests.kafka.raw_client import RawClient
from tests.scheduler.files import EMPTY_SNAPSHOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka
LAST_TIERED: Final = {"follower.fetch.last.tiered.offset.enable": "true"}
HOW: Final = ("--topic", TOPIC, "--output", "json", "-q")


def empty_all(remote: Path) -> None:
    """Make remote snapshots those of a leader that had lost its own state."""
    for snapshot in remote.rglob("*.snapshot"):
        snapshot.write_bytes(EMPTY_SNAPSHOT)


@pytest.mark.parametrize(
    ("brokers", "spoil"),
    [
        (("3.9.1", {}), None),
        pytest.param(("3.9.1", {}), empty_all, marks=pytest.mark.heavy),
        pytest.param(("4.4.0", {}), None, marks=pytest.mark.heavy),
        pytest.param(("4.4.0", LAST_TIERED), None, marks=pytest.mark.heavy),
    ],
)
def test_a_healed_replica_knows_what_the_leader_knows_and_leads_without_any_effect(
    command: Resnap,
    release: Callable[[str], Release],
    tmp_path: Path,
    brokers: tuple[str, dict[str, object]],
    spoil: Callable[[Path], None] | None,
) -> None:
    version, more = brokers
    with lost_state(release(version), tmp_path, more=more, before_replica=spoil or (lambda _: None)) as lost:
        replicas = ("replicas", "--bootstrap-server", lost.leader.address, "--topic", TOPIC, "--output", "json")
        assert command(*replicas).code == 4
        across = RawClient(lost.leader.port, "open across the start")
        across.add(TopicPartition(TOPIC, 0))
        across.produce(TopicPartition(TOPIC, 0))
        data = lost.follower.log_dirs[0]
        eventually(lambda: _size([data]) == _size(lost.leader.log_dirs), "the replica does not catch up")
        lost.follower.stop()

        marked = command("scan", data, "--remote", lost.remote.as_uri(), *HOW)
        mark = marked.document["partitions"][0]["lostProducerState"]
        assert spoil or mark["isProven"] is True, marked.out
        staged = command(
            "regenerate", data, "--remote", lost.remote.as_uri(), "--boundaries", "all", "--into", tmp_path / "staged",
            "--engine", "local", *HOW,
        )  # fmt: skip
        assert staged.code == 0, staged.err
        installed = command("install", tmp_path / "staged", data, "--replace", "false-partial", "--replace", "txnindex",
                            "--output", "json")  # fmt: skip
        assert installed.code == 0, installed.err
        (row,) = installed.document["partitions"]
        assert {one["file"] for one in row["snapshots"] if one["outcome"] in {"installed", "replaced"}} == {
            "snapshot", "txnindex",
        }  # fmt: skip

        lost.follower.start_up()
        eventually(lambda: command(*replicas).code == 0, "the healed replica does not know what the leader knows")
        RawClient(lost.leader.port, "open across the start")  # which aborts what the earlier instance has left open
        before = lost.read()
        lost.lead(lost.follower)
        assert lost.read() == before, "what was aborted stays hidden"
        assert lost.sent_again(lost.follower) == lost.batch_offset, "a duplicate is answered as one"
        assert lost.read() == before
        assert not lost.follower.complaints(lost.follower.started_at)


@pytest.mark.heavy
@pytest.mark.parametrize("version", ["3.9.1", "4.4.0"])
def test_brokers_that_all_lost_the_same_agree_and_are_found_by_the_log_and_healed(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    (tmp_path / "three").mkdir()
    kafka = release(version)
    with lost_state(kafka, tmp_path) as lost:
        data = [tmp_path / "three" / "data"]
        third = Broker(kafka, data, tiering(lost.remote) | QUICK, node=3, joins=lost.leader)
        with third.running():
            lost.leader.drive("reassign", TOPIC, 0, "1,2,3")
            before = lost.read()
            lost.leader.drive("reassign", TOPIC, 0, "2,3")
            replicas = ("replicas", "--bootstrap-server", lost.leader.address, "--topic", TOPIC, "--output", "json")
            by_log = (*replicas, "--remote", lost.remote.as_uri(), "--engine", "local")
            alone = command(*replicas)
            assert (alone.code, alone.document["summary"]["notReplayed"]) == (0, 1), "both know the same"
            found = command(*by_log)
            assert found.code == 4, found.err
            assert [(one["brokerId"], one["leads"]) for one in found.document["replicas"]] == [(2, True), (3, False)]
            assert IDEMPOTENT in {one["known"]["producerId"] for one in found.document["replicas"][0]["producers"]}
            assert lost.read()[0] == before[0] + 1, "the aborted record is served as committed"
            for broker in (third, lost.follower):
                broker.stop()
                staged = tmp_path / f"staged-{broker.node}"
                made = command("regenerate", *broker.log_dirs, "--remote", lost.remote.as_uri(), "--boundaries", "all",
                               "--into", staged, "--engine", "local", *HOW)  # fmt: skip
                assert made.code == 0, made.err
                replaced = ("--replace", "false-partial", "--replace", "txnindex")
                installed = command("install", staged, *broker.log_dirs, *replaced, "--output", "json")
                assert installed.code == 0, installed.err
                broker.start_up()
            eventually(lambda: command(*by_log).code == 0, "the healed leader lacks state")
            eventually(lambda: command(*replicas).code == 0, "the healed replicas differ")
            lost.lead(lost.follower)
            assert lost.read() == before
            assert lost.sent_again(lost.follower) == lost.batch_offset, "a duplicate is answered as one"
            complaints = (line for broker in (third, lost.follower) for line in broker.complaints(broker.started_at))
            assert not [line for line in complaints if "Connection to" not in line], "but of a broker that was stopped"


def test_replicas_on_both_disks_of_a_broker_are_healed_by_one_replay_and_an_installation_for_each_disk(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    other = "orders"
    with lost_state(release("3.9.1"), tmp_path, others=[other]) as lost:
        replicas = ("replicas", "--bootstrap-server", lost.leader.address, "--output", "json")
        found = command(*replicas)
        assert {(replica["topic"], replica["state"]) for replica in found.document["replicas"]} == {
            (TOPIC, "lost"), (other, "lost"),
        }  # fmt: skip
        disks = lost.follower.log_dirs
        assert sorted(_by_disk(disks, TOPIC, other)) == sorted((TOPIC, other))
        eventually(lambda: _size(disks) == _size(lost.leader.log_dirs), "the replica does not catch up")
        lost.follower.stop()
        staged = command(
            "regenerate", *disks, "--remote", lost.remote.as_uri(), "--boundaries", "all",
            "--into", tmp_path / "staged", "--topic", TOPIC, "--topic", other, "--engine", "local", "--output", "json",
        )  # fmt: skip
        assert staged.code == 0, staged.err
        for disk in disks:
            installed = command("install", tmp_path / "staged", disk, "--replace", "false-partial", "--replace",
                                "txnindex", "--output", "json")  # fmt: skip
            assert installed.code == 0, installed.err
            assert installed.document["undoManifest"] is not None

        lost.follower.start_up()
        eventually(lambda: command(*replicas).code == 0, "the healed replicas do not know what the leader knows")
        before = lost.read()
        for topic, offset in lost.batch_offsets.items():
            lost.lead(lost.follower, topic=topic)
            assert lost.sent_again(lost.follower, topic) == offset, "a duplicate is answered as one"
        assert lost.read() == before, "what was aborted stays hidden"
        assert not lost.follower.complaints(lost.follower.started_at)


def _by_disk(disks: Sequence[Path], *topics: str) -> list[str]:
    """Return the topic that each disk has; a broker puts a new partition where there are fewest."""
    return [next(topic for topic in topics if (disk / f"{topic}-0").exists()) for disk in disks]


def _size(log_dirs: Sequence[Path]) -> int:
    """Return the size of the last segment."""
    return max(one for data in log_dirs for one in data.glob(f"{TOPIC}-0/*.log")).stat().st_size
