"""A topic that was deleted and created again, under the same prefix of a store: each is a place of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.storage.log.properties import PartitionMetadata, write_partition_metadata
from tests.tiering.replicas import META, PARTITION, Replica

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from tests.scheduler.conftest import Ran, Resnap

LOCAL: Final = ("--engine", "local", "--output", "json")
OLD: Final = "AAAAAAAAQACAAAAAAAAAAA"
NEW: Final = "BBBBBBBBQACAAAAAAAAAAA"
LAYOUTS: Final = ("flat", "local-tiered", "aiven")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def a_log(root: Path, topic_id: str | None, cuts: Collection[int], *, producer_id: int = 7, start: int = 0) -> Path:
    """Write a log of the topic ``topic_id``; other producers write other topics."""
    data = Replica(root, cuts, producer_id=producer_id, start=start).data
    if topic_id is not None:
        metadata = write_partition_metadata(PartitionMetadata(version=0, topic_id=topic_id))
        (data / str(PARTITION) / "partition.metadata").write_bytes(metadata)
    return data


def shipped(command: Resnap, data: Path, store: Path, layout: str = "flat") -> int:
    """Ship ``data``, and return how many segments went."""
    ran = command("tier", data, "--to", store.as_uri(), "--layout", layout, *LOCAL)
    assert ran.code == 0
    went: int = ran.document["summary"]["shipped"]
    return went


def verified(command: Resnap, url: str) -> dict[str | None, tuple[int, int]]:
    """Verify what lies at ``url``: all of it must be right, each snapshot too; return the chains by topic id."""
    ran = command("verify", "--store", url, *LOCAL)
    assert (ran.code, ran.err.count("error")) == (0, 0), ran.err
    summary = ran.document["summary"]
    assert summary["snapshotsReplayed"] == summary["segments"] > 0
    return {one["topicId"]: (one["startOffset"], one["endOffset"]) for one in summary["chains"]}


def restored(command: Resnap, url: str, into: Path, *arguments: object) -> Ran:
    into.mkdir()
    return command("restore", url, "--into", into, *arguments, "--output", "json")


def bytes_of(data: Path, end: int) -> bytes:
    logs = sorted((data / str(PARTITION)).glob("*.log"))
    return b"".join(path.read_bytes() for path in logs if int(path.stem) < end)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_is_shipped_verified_and_restored_by_itself(
    command: Resnap, store: Path, tmp_path: Path, layout: str
) -> None:
    old = a_log(tmp_path / "old", OLD, {5, 10, 15})
    new = a_log(tmp_path / "new", NEW, {5, 10, 15, 20}, producer_id=8)
    assert (shipped(command, old, store, layout), shipped(command, new, store, layout)) == (3, 4)
    assert verified(command, store.as_uri()) == {OLD: (0, 15), NEW: (0, 20)}
    folder = f"payments-{NEW}" if layout == "aiven" else f"{META.cluster_id}/payments/{NEW}"
    for url in (f"{store.as_uri()}/{folder}", f"{store.as_uri()}/{folder}/0"):
        assert verified(command, url) == {NEW: (0, 20)}
    ran = restored(command, store.as_uri(), tmp_path / "which")
    assert (ran.code, ran.document["partitions"]) == (13, [])
    assert f"several topics of this name: {OLD}, {NEW}" in ran.error["message"]
    assert "--topic-id payments=ID" in ran.error["hint"]
    for topic_id, data, end in ((OLD, old, 15), (NEW, new, 20)):
        into = tmp_path / topic_id
        assert restored(command, store.as_uri(), into, "--topic-id", f"payments={topic_id}").code == 0
        assert bytes_of(into, end) == bytes_of(data, end)
        assert topic_id in (into / str(PARTITION) / "partition.metadata").read_text()
    ran = restored(command, store.as_uri(), tmp_path / "neither", "--topic-id", f"payments={META.cluster_id}")
    assert ran.code == 13
    assert f"and none of them is {META.cluster_id}" in ran.error["message"]


def test_retention_and_garbage_collection_take_each_by_itself(command: Resnap, store: Path, tmp_path: Path) -> None:
    shipped(command, a_log(tmp_path / "old", OLD, {5, 10, 15}), store)
    shipped(command, a_log(tmp_path / "new", NEW, {5, 10, 15, 20}, producer_id=8), store)
    (store / f"{META.cluster_id}/payments/{OLD}/0/{0:020d}-{'0' * 8}-0000-5000-8000-{'0' * 12}.log").write_bytes(b"")
    ran = command("gc", store.as_uri(), "--older-than", "0s", "--no-other-writers", "--delete", *LOCAL[2:])
    assert ran.document["summary"]["deleted"] == 1
    url = f"{store.as_uri()}/{META.cluster_id}/payments/{NEW}"
    ran = command("retain", url, "--retention-bytes", "1", "--delete", *LOCAL[2:])
    assert [(row["topicId"], row["deleted"], row["kept"]) for row in ran.document["partitions"]] == [(NEW, 3, 1)]
    assert verified(command, store.as_uri()) == {OLD: (0, 15), NEW: (15, 20)}


def test_what_was_shipped_without_an_id_is_of_the_topic_whose_batches_it_has(
    command: Resnap, store: Path, tmp_path: Path
) -> None:
    """Brokers were upgraded in between, then the topic was deleted and created again."""
    shipped(command, a_log(tmp_path / "before", None, {5, 10}), store)
    old = a_log(tmp_path / "old", OLD, {5, 10, 15, 20})
    assert shipped(command, old, store) == 2
    assert shipped(command, a_log(tmp_path / "new", NEW, {5, 10, 15}, producer_id=8), store) == 3
    assert verified(command, store.as_uri()) == {OLD: (0, 20), NEW: (0, 15)}
    assert verified(command, f"{store.as_uri()}/{META.cluster_id}/payments/{OLD}") == {OLD: (0, 20)}
    assert restored(command, store.as_uri(), tmp_path / "r", "--topic-id", f"payments={OLD}").code == 0
    assert bytes_of(tmp_path / "r", 20) == bytes_of(old, 20)
    rows: list[dict[str, Any]] = command(
        "retain", store.as_uri(), "--retention-bytes", "1", "--delete", *LOCAL[2:]
    ).document["partitions"]
    assert [(row["topicId"], row["newStartOffset"], row["kept"]) for row in rows] == [(OLD, 15, 1), (NEW, 10, 1)]
    assert verified(command, store.as_uri()) == {OLD: (15, 20), NEW: (10, 15)}


def test_a_topic_with_an_id_is_shipped_beside_one_of_its_name_without(
    command: Resnap, store: Path, tmp_path: Path
) -> None:
    shipped(command, a_log(tmp_path / "old", None, {5, 10, 15}), store)
    new = a_log(tmp_path / "new", NEW, {5, 10, 20}, producer_id=8)
    assert (shipped(command, new, store), shipped(command, new, store)) == (3, 0)
    assert verified(command, store.as_uri()) == {None: (0, 15), NEW: (0, 20)}
    assert verified(command, f"{store.as_uri()}/{META.cluster_id}/payments/none") == {None: (0, 15)}
    assert restored(command, store.as_uri(), tmp_path / "r", "--topic-id", f"payments={NEW}").code == 0
    assert bytes_of(tmp_path / "r", 20) == bytes_of(new, 20)
