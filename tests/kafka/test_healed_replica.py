"""A replica that lost its producer state, healed while it is stopped; without that see ``test_lost_state``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resnap.storage.log.names import TopicPartition
from tests.kafka.brokers import eventually
from tests.kafka.lost_state import TOPIC, lost_state
from tests.kafka.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka
HOW = ("--topic", TOPIC, "--output", "json", "-q")


@pytest.mark.parametrize(
    ("version", "more"),
    [
        ("3.9.1", {}),
        pytest.param("4.4.0", {}, marks=pytest.mark.heavy),
        pytest.param("4.4.0", {"follower.fetch.last.tiered.offset.enable": "true"}, marks=pytest.mark.heavy),
    ],
)
def test_a_healed_replica_knows_what_the_leader_knows_and_leads_without_any_effect(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str, more: dict[str, object]
) -> None:
    with lost_state(release(version), tmp_path, more=more) as lost:
        replicas = ("replicas", "--bootstrap-server", lost.leader.address, "--topic", TOPIC, "--output", "json")
        assert command(*replicas).code == 4
        across = RawClient(lost.leader.port, "open across the start")
        across.add(TopicPartition(TOPIC, 0))
        across.produce(TopicPartition(TOPIC, 0))
        data = lost.follower.log_dirs[0]
        eventually(lambda: _size(data) == _size(lost.leader.log_dirs[0]), "the replica does not catch up")
        lost.follower.stop()

        marked = command("scan", data, "--remote", lost.remote.as_uri(), *HOW)
        assert marked.document["partitions"][0]["lostProducerState"]["isProven"] is True, marked.out
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


def _size(data: Path) -> int:
    """Return the size of the last segment."""
    return max((data / f"{TOPIC}-0").glob("*.log")).stat().st_size
