"""What ``announce`` refuses before it connects, and how its output ends; ``tests.kafka.test_announce`` has the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.job.contract import Reported
from resnap.scheduler.verbs.announce import AnnounceView
from resnap.tiering.remote_log.announcement import Announceable, Announcement, StopAt, StopReason
from resnap.tiering.remote_log.records import TopicIdPartition

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scheduler.conftest import Resnap


def test_without_a_cluster_announcing_is_a_usage_error(command: Resnap, tmp_path: Path) -> None:
    ran = command("announce", tmp_path.as_uri())
    assert (ran.code, ran.out) == (10, "")
    assert "error: no cluster is named\nhint: give --bootstrap-server HOST:PORT" in ran.err


def test_a_connection_that_cannot_be_made_as_it_is_meant_is_not_made(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("security.protocol=SSL\nssl.truststore.location=/etc/kafka/trust.jks\n")
    ran = command("announce", tmp_path.as_uri(), "--bootstrap-server", "127.0.0.1:1", "--command-config", properties)
    assert ran.code == 10
    assert "ssl.truststore.location: a store of type JKS cannot be read" in ran.err
    at = ("--bootstrap-server", "127.0.0.1:1", "--command-config", tmp_path / "gone")
    for asked in (("replicas",), ("check", broker_log)):
        ran = command(*asked, *at)
        assert (ran.code, f"{tmp_path / 'gone'}: cannot be read: No such file" in ran.err) == (10, True), ran.err


ORDERS = TopicIdPartition(name="orders", id="AAAAAAAAAAAAAAAAAAAAAQ", partition=0)
SEGMENT = Announceable(
    topic=ORDERS.name, topic_id=ORDERS.id, partition=0, remote_id="AAAAAAAAAAAAAAAAAAAAAg", manifest_key="m",
    base_offset=0, next_base_offset=9, leader_epochs=(), snapshot_origin=None, snapshot_key="s", max_timestamp_ms=None,
    log_bytes=1, stored_bytes=1, made=(1, "i"), cluster_id=None, broker_id=None, misplaced=None,
)  # fmt: skip
GAP = StopAt(reason=StopReason.GAP, offset=9, detail="no segment begins at 9")


NOTHING = Announcement(partition=ORDERS, segments=(), below=0, expired=0, stop=None)


@pytest.mark.parametrize(
    ("published", "announced", "said"),
    [
        (False, replace(NOTHING, segments=(SEGMENT,)), "the same command with --publish"),
        (False, replace(NOTHING, stop=GAP), "the same command again, once what the errors and STOPS name"),
        (False, replace(NOTHING, below=3, awaits_leader=True), "let them copy, then the same command again"),
        (False, replace(NOTHING, below=3), "nothing is left to do here; `resnap remote status`"),
        (True, replace(NOTHING, segments=(SEGMENT,), awaits_leader=True), "let leaders copy again, then the same"),
    ],
)
def test_the_output_ends_with_the_next_step(published: bool, announced: Announcement, said: str) -> None:
    view = AnnounceView(published=published)
    assert view.row(Reported(what=announced)) is not None
    assert [*view.closing()][-1].startswith(f"Next: {said}")


def test_more_partitions_than_people_read_are_summed_up_by_topic() -> None:
    view, partitions = AnnounceView(published=False), [replace(ORDERS, partition=number) for number in range(51)]
    found = [replace(NOTHING, partition=partition, segments=(SEGMENT,), below=2) for partition in partitions]
    assert [row for one in found for row in view.table_rows(Reported(what=one))] == []
    (row,) = view.table_rest()
    shown = {column.title: column.cell(row) for column in view.columns}
    assert shown == {
        "PARTITION": "orders-* (51)", "TO BE ANNOUNCED": "-", "SEGMENTS": "51", "BYTES": "51 B", "BELOW": "102",
        "STOPS": "-",
    }  # fmt: skip
    assert next(view.closing()) == "Summed up by topic: 51 partitions; `--output json` has each."
