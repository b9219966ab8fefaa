"""Brokers that lead a partition in turn ship to one store: one chain, read back, reported by ``verify URL``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.scheduler.files import bases
from tests.tiering.replicas import PARTITION, Replica

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scheduler.conftest import Ran, Resnap

LOCAL = ("--engine", "local")
JSON = ("--output", "json")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def chain(ran: Ran) -> dict[str, Any]:
    [found] = ran.document["summary"]["chains"]
    return found


def whole_log(data: Path) -> bytes:
    """Return the bytes of all segments, one after the other: the same for all replicas of a log."""
    return b"".join(path.read_bytes() for path in sorted((data / str(PARTITION)).glob("*.log")))


def test_a_broker_then_another_then_the_first_one_truncated(command: Resnap, store: Path, tmp_path: Path) -> None:
    first, second = Replica(tmp_path / "a", {5, 10, 15}), Replica(tmp_path / "b", {5, 8, 13, 18, 22})
    # It was cut back to 12, has fetched the rest from the second one, and leads again.
    truncated = Replica(tmp_path / "c", {5, 10, 18, 20, 23})
    for replica, shipped in ((first, 3), (second, 4), (truncated, 2), (second, 0), (truncated, 0)):
        ran = command("tier", replica.data, "--to", store.as_uri(), *LOCAL, *JSON)
        assert (ran.code, ran.document["summary"]["shipped"]) == (0, shipped)
    ran = command("verify", "--store", store.as_uri(), *LOCAL, *JSON)
    assert ran.code == 0
    found = chain(ran)
    assert (found["startOffset"], found["endOffset"], found["segments"]) == (0, 23, 9)
    assert found["gaps"] == found["breaks"] == []
    overlaps = [(one["startOffset"], one["endOffset"]) for one in found["overlaps"]]
    assert overlaps == [(5, 8), (8, 10), (10, 13), (13, 15), (18, 20), (20, 22)]
    assert all(one["oneLineage"] for one in found["overlaps"])
    restored = tmp_path / "restored"
    restored.mkdir()
    assert command("restore", store.as_uri(), "--into", restored).code == 0
    assert whole_log(truncated.data).startswith(whole_log(restored))
    assert bases(restored / str(PARTITION)) == [0, 5, 8, 13, 18, 20]


def test_what_an_unclean_election_made_is_refused_and_the_store_stays_as_it_is(
    command: Resnap, store: Path, tmp_path: Path
) -> None:
    """A leader that lacked the offsets from 11 on was elected: those that were shipped are lost to all replicas."""
    first, unclean = Replica(tmp_path / "a", {5, 10, 15}), Replica(tmp_path / "b", {5, 10, 15, 20}, elections=(7, 11))
    assert command("tier", first.data, "--to", store.as_uri(), *LOCAL).code == 0
    before = sorted(store.rglob("*.manifest"))
    ran = command("tier", unclean.data, "--to", store.as_uri(), *LOCAL, *JSON)
    assert json.dumps(ran.document).count("lineage-conflict") >= 2
    assert "was written under other leader epochs" in json.dumps(ran.document)
    assert sorted(store.rglob("*.manifest")) == before
    ran = command("verify", "--store", store.as_uri(), *LOCAL, *JSON)
    assert (ran.code, chain(ran)["overlaps"]) == (0, [])
