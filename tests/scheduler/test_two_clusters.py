"""Two clusters whose segments lie in one store: what is done for one leaves the other's bytes as they are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

from tests.cases import mostly_slow
from tests.scheduler.shipped import files_of
from tests.scheduler.test_topics_of_one_name import LOCAL, NEW, OLD, a_log, bytes_of, shipped
from tests.tiering.replicas import META

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scheduler.conftest import Ran, Resnap

OTHER: Final = "BAAAAAAAQACAAAAAAAAAAQ"
LONG_AGO_S: Final = 1_500_000_000


def of_other_cluster(data: Path) -> Path:
    properties = data / "meta.properties"
    text = properties.read_text()
    assert META.cluster_id is not None
    assert META.cluster_id in text
    properties.write_text(text.replace(META.cluster_id, OTHER))
    return data


def spoilt(root: Path, keys: set[str]) -> str:
    """Damage one snapshot among ``keys``, and return its key."""
    key = sorted(one for one in keys if one.endswith(".snapshot"))[1]
    (root / key).write_bytes(b"garbage")
    return key


@pytest.mark.parametrize(
    ("layout", "nested"),
    mostly_slow(
        [("local-tiered", False), ("local-tiered", True), ("flat", False), ("flat", True), ("aiven", False)],
        ("local-tiered", True),
    ),
)
def test_stores_below_one_another_or_side_by_side_are_left_alone(
    command: Resnap, tmp_path: Path, layout: str, *, nested: bool
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    here, there = (root, root / "b") if nested else (root / "a", root / "b")
    ours = a_log(tmp_path / "ours", OLD, {5, 10, 15})
    shipped(command, ours, here, layout)
    theirs = of_other_cluster(a_log(tmp_path / "theirs", NEW, {5, 10, 15, 20}, producer_id=8))
    shipped(command, theirs, there, layout)
    for path in root.rglob("*"):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    before = files_of(there)

    def run(*arguments: object) -> Ran:
        ran = command(*arguments)
        assert files_of(there) == before, arguments
        return ran

    url = here.as_uri()
    verified = run("verify", "--store", url, *LOCAL)
    assert (verified.code, verified.document["summary"]["segments"]) == (0, 3), verified.err
    assert run("repair", url, "--no-other-writers", *LOCAL).document["summary"]["repaired"] == 0
    ran = run("gc", url, "--older-than", "1h", "--no-other-writers", "--delete", *LOCAL[2:])
    assert ran.document["summary"]["objects"] == 0, ran.document
    (tmp_path / "back").mkdir()
    back = run("restore", url, "--into", tmp_path / "back", *LOCAL[2:])
    assert back.code == 0, back.err
    assert bytes_of(tmp_path / "back", 15) == bytes_of(ours, 15)
    if layout != "flat":
        return  # brokers delete there themselves
    kept = run("retain", url, "--retention-bytes", "1", "--delete", *LOCAL[2:])
    assert [row["topicId"] for row in kept.document["partitions"]] == [OLD]


@pytest.mark.parametrize("layout", mostly_slow(["local-tiered", "flat", "aiven"], "local-tiered"))
def test_in_one_place_each_has_its_own_folders(command: Resnap, tmp_path: Path, layout: str) -> None:
    store = tmp_path / "store"
    ours = a_log(tmp_path / "ours", OLD, {5, 10, 15})
    shipped(command, ours, store, layout)
    only_ours = set(files_of(store))
    theirs = of_other_cluster(a_log(tmp_path / "theirs", NEW, {5, 10, 15, 20}, producer_id=8))
    shipped(command, theirs, store, layout)
    before = {key: body for key, body in files_of(store).items() if key not in only_ours}
    url = store.as_uri()
    verified = command("verify", "--store", url, *LOCAL)
    assert verified.code == 0, verified.err
    chains = {(one["topicId"], one["endOffset"]) for one in verified.document["summary"]["chains"]}
    assert chains == {(OLD, 15), (NEW, 20)}

    wrong = spoilt(store, only_ours) if layout != "aiven" else None
    repaired = command("repair", url, "--no-other-writers", *LOCAL)
    assert (repaired.code, repaired.document["summary"]["repaired"]) == (0, 1 if wrong else 0), repaired.err
    assert {key: body for key, body in files_of(store).items() if key in before} == before
    collected = command("gc", url, "--older-than", "1h", "--no-other-writers", "--delete", *LOCAL[2:])
    assert collected.document["summary"]["objects"] == 0

    if layout != "aiven":  # whose keys have no cluster
        both = command("restore", url, "--into", tmp_path / "both", *LOCAL[2:])
        assert (both.code, f"such as {url}/{min(OTHER, META.cluster_id or OTHER)}" in both.error["hint"]) == (2, True)
    for number, (topic_id, data, end) in enumerate(((OLD, ours, 15), (NEW, theirs, 20))):
        into = tmp_path / f"back{number}"
        into.mkdir()
        cluster = META.cluster_id if topic_id == OLD else OTHER
        at = url if layout == "aiven" else f"{url}/{cluster}"
        back = command("restore", at, "--into", into, "--topic-id", f"payments={topic_id}", *LOCAL[2:])
        assert back.code == 0, back.err
        assert bytes_of(into, end) == bytes_of(data, end)
