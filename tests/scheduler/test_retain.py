"""``resnap retain``: Kafka's own rules, oldest first, and nothing that lies whatever ends the run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from itertools import pairwise
from socket import gethostname
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.scheduler.clock import Clock
from resnap.scheduler.job.contract import Reported
from resnap.scheduler.verbs.retain import RetainView
from resnap.storage.errors import StoreAccessError
from resnap.storage.layouts.manifest import read_manifest
from resnap.storage.log.names import TopicPartition
from resnap.storage.stores.local import LocalObjectStore
from resnap.tiering.retain import Limits, delete_beyond, retention_of
from resnap.tiering.shipping.lease import lease_name, lease_on
from tests.scheduler.files import tree
from tests.scheduler.shipped import TOMBSTONE, check_store, files_of, without_tombstones
from tests.storage.layouts.manifests import a_manifest, stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from resnap.storage.crc32c import Buffer
    from resnap.storage.stores.protocol import ObjectInfo
    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

JSON: Final = ("--output", "json")
KRAFT: Final = "kafka-3.9.1-kraft"
"""Its topics have ids."""
NOW_MS: Final = 1_000


@pytest.fixture
def store(shipped: Path, tmp_path: Path) -> Path:
    return shutil.copytree(shipped, tmp_path / "store")


def oldest_first(store: Path, partition: int) -> list[Path]:
    found = sorted(store.glob(f"*/payments/*/{partition}/*.manifest"))
    return [path for path in found if path.read_bytes() != TOMBSTONE]


def test_nothing_is_deleted_without_being_asked_for(command: Resnap, store: Path) -> None:
    before = tree(store)
    ran = command("retain", store.as_uri(), "--retention-bytes", "20KiB", *JSON)
    assert (ran.code, ran.document["summary"]["dryRun"]) == (0, True)
    assert ran.document["summary"]["deleted"] > 2
    shown = command("retain", store.as_uri(), "--retention-bytes", "20KiB").out
    assert shown.endswith("Nothing was deleted.\nNext: the same command with --delete.\n")
    nothing = command("retain", store.as_uri(), "--retention-bytes", "1GiB").out
    assert nothing.endswith("Next: nothing is left to do, until more is beyond the retention.\n")
    assert tree(store) == before


@pytest.mark.parametrize("verb", ["retain", "repair", "verify", "restore"])
def test_an_unknown_topic_is_answered_with_a_command_that_lists_what_is_there(
    verb: str, command: Resnap, store: Path, tmp_path: Path
) -> None:
    more = {"retain": ("--retention", "1h"), "restore": ("--into", tmp_path / "new")}.get(verb, ())
    ran = command(verb, store.as_uri(), "--topic", "nope", *more)
    assert (ran.code, f"no topic in {store.as_uri()} matches --topic nope" in ran.err) == (2, True), ran.err
    (advised,) = re.findall(r"`resnap (.*)`", ran.err)
    listed = command(*shlex.split(advised))
    assert "payments" in {row["topic"] for row in listed.document["partitions"]}, "nothing of it is missing"


def test_many_partitions_are_summed_up_by_topic_without_their_offsets() -> None:
    manifests = [stored(a_manifest(partition=number), str(number)) for number in range(51)]
    view = RetainView("file:///store", dry_run=True)
    for one in retention_of(manifests, Limits(age_ms=1, log_bytes=None), now_ms=2_000_000_000_000):
        assert [*view.table_rows(Reported(what=one))] == []
    (row,) = view.table_rest()
    assert {key: row[key] for key in ("topic", "partition", "deleted", "kept", "newStartOffset")} == {
        "topic": "orders", "partition": "* (51)", "deleted": 51, "kept": 0, "newStartOffset": None,
    }  # fmt: skip
    assert view.columns[-1].cell(row) == "-", "no id"
    said = [*view.closing()]
    assert said[0] == "Summed up by topic: 51 partitions; `--output json` has each."
    assert said[-1] == "Next: the same command with --delete."


def test_what_a_dry_run_shows_is_what_goes_with_all_its_objects_and_nothing_else(command: Resnap, store: Path) -> None:
    flags = ("retain", store.as_uri(), "--retention-bytes", "20KiB", *JSON)
    shown = command(*flags).document["partitions"]
    gone = {key.removesuffix("manifest") for row in shown for key in row["manifests"]}
    before = files_of(store)
    ran = command(*flags, "--delete")
    assert (ran.code, ran.document["partitions"]) == (0, shown)
    progress = json.loads(ran.err.splitlines()[-1])["progress"]
    assert progress["bytes"] == progress["bytesTotal"] == sum(row["bytes"] for row in shown)
    kept = {key: body for key, body in before.items() if not any(key.startswith(stem) for stem in gone)}
    left = {key: body for key, body in files_of(store).items() if not key.startswith(".resnap/retained/")}
    assert left == kept | {f"{stem}manifest": TOMBSTONE for stem in gone}
    starts = [read_manifest(oldest_first(store, number)[0].read_bytes()).base_offset for number in (0, 1)]
    assert starts == [row["newStartOffset"] for row in shown]
    verified = command("verify", "--store", store.as_uri(), "--engine", "local")
    assert (verified.code, "warning: " in verified.err) == (0, False), verified.err
    assert command(*flags, "--delete").document["summary"]["deleted"] == 0


def test_all_that_is_older_goes_and_a_partition_may_end_empty(command: Resnap, store: Path) -> None:
    assert command("retain", store.as_uri(), "--retention", "1ms", "--topic", "orders", *JSON).code == 2
    ran = command("retain", store.as_uri(), "--retention", "1ms", "--delete", *JSON)
    assert ran.code == 0
    assert without_tombstones(files_of(store)) == {}


def test_by_a_clock_that_is_ahead_of_the_stores_nothing_is_deleted(
    command: Resnap, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, at_ms = files_of(store), Clock().now_ms()
    monkeypatch.setattr(Clock, "now_ms", lambda _: at_ms + 30 * 86_400_000)
    ran = command("retain", store.as_uri(), "--retention", "1ms", "--delete")
    assert ran.code == 10
    assert "ahead of that of" in ran.err
    assert files_of(store) == before
    assert command("retain", store.as_uri(), "--retention-bytes", "20KiB", "--delete").code == 0


def test_a_partition_at_which_another_run_is_at_work_is_left_as_it_is(command: Resnap, store: Path) -> None:
    place = lease_name(store.glob("*/payments").__next__().parent.name, TopicPartition("payments", 0))
    zero, one = (len(oldest_first(store, partition)) for partition in (0, 1))
    with lease_on(LocalObjectStore(store), place, verb="a tiering run", now_ms=0) as lease:
        lease.hold()
        ran = command("retain", store.as_uri(), "--retention-bytes", "20KiB", "--delete", *JSON)
    assert ran.code == 3
    assert f"another run is at work there: {gethostname()}, process {os.getpid()} (a tiering run)" in ran.err
    assert len(oldest_first(store, 0)) == zero
    assert 0 < len(oldest_first(store, 1)) < one
    assert ran.document["summary"]["kept"] == zero + len(oldest_first(store, 1))


def test_where_the_store_fails_deletions_are_reported_all_the_same(
    command: Resnap, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = str(oldest_first(store, 0)[1].relative_to(store))
    puts = LocalObjectStore.put

    def failing(self: LocalObjectStore, key: str, body: bytes, *, if_absent: bool = False) -> None:
        if key == second:
            raise StoreAccessError(f"{key}: permission denied", key=key)
        puts(self, key, body, if_absent=if_absent)

    monkeypatch.setattr(LocalObjectStore, "put", failing)
    before = len([*oldest_first(store, 0), *oldest_first(store, 1)])
    ran = command("retain", store.as_uri(), "--retention-bytes", "20KiB", "--delete", *JSON)
    assert ran.code == 3
    assert [row["deleted"] for row in ran.document["partitions"]] == [1, 0]
    assert ran.document["summary"]["kept"] == before - 1 == len([*oldest_first(store, 0), *oldest_first(store, 1)])
    assert "permission denied" in ran.err


def test_a_partition_with_a_manifest_that_cannot_be_read_is_left_alone(command: Resnap, store: Path) -> None:
    oldest_first(store, 1)[2].write_bytes(b"rubbish")
    before = tree(next(store.glob("*/payments/*/1")))
    ran = command("retain", store.as_uri(), "--retention", "1ms", "--delete", *JSON)
    assert ran.code == 3
    assert "nothing of this partition is deleted" in ran.error["hint"]
    assert tree(next(store.glob("*/payments/*/1"))) == before
    assert oldest_first(store, 0) == []


@pytest.mark.parametrize("flags", [(), ("--retention", "soon"), ("--retention-bytes", "many")])
def test_an_invalid_retention_is_a_usage_error(command: Resnap, store: Path, flags: tuple[str, ...]) -> None:
    assert command("retain", store.as_uri(), *flags).code == 2


class _DyingStore(LocalObjectStore):
    """A store before whose ``deaths``-th change the process dies."""

    left = 0

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        self._pass()
        super().put(key, body, if_absent=if_absent)

    def delete(self, key: str, *, etag: str | None = None) -> None:
        self._pass()
        super().delete(key, etag=etag)

    def _pass(self) -> None:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1


def test_a_death_before_any_deletion_leaves_no_manifest_that_lies_and_no_gap(
    command: Resnap, shipped: Path, tmp_path: Path
) -> None:
    manifests = [
        stored(read_manifest(path.read_bytes()), str(path.relative_to(shipped))) for path in oldest_first(shipped, 0)
    ]
    [retention] = retention_of(manifests, Limits(log_bytes=20_000), NOW_MS)
    deletions = sum(1 + len(one.objects) for one in retention.beyond)
    assert deletions > 14
    for death in range(deletions):
        root = shutil.copytree(shipped, tmp_path / f"store-{death}")
        store = _DyingStore(root)
        store.left = death
        with pytest.raises(KeyboardInterrupt):
            delete_beyond(store, retention, lambda _: None)
        there = sorted(one for one in check_store(files_of(root), strict=False) if one.partition == 0)
        assert all(below.next_base_offset == above.base_offset for below, above in pairwise(there))
        assert len(there) >= retention.kept
        store.left = deletions
        delete_beyond(store, retention, lambda _: None)
        assert len(oldest_first(root, 0)) == retention.kept
        shutil.rmtree(root)
    assert command("verify", "--store", shipped.as_uri(), "--engine", "local").code == 0


SEGMENTS: Final = st.lists(st.tuples(st.integers(-1, NOW_MS), st.integers(1, 100)), min_size=1, max_size=10)


@given(SEGMENTS, st.none() | st.integers(0, NOW_MS), st.none() | st.integers(0, 500))
def test_the_rules_are_those_of_kafka(
    segments: list[tuple[int, int]], age_ms: int | None, log_bytes: int | None
) -> None:
    manifests = []
    for number, (newest_ms, size_bytes) in enumerate(segments):
        plain = a_manifest(base_offset=number, next_base_offset=number + 1, last_offset=number, created_at_ms=500,
                           max_timestamp_ms=newest_ms, leader_epochs=())  # fmt: skip
        log, *others = plain.objects
        assert log.kind == "log"
        manifests.append(stored(a_manifest(
            base_offset=number, next_base_offset=number + 1, last_offset=number, created_at_ms=500, leader_epochs=(),
            max_timestamp_ms=newest_ms, objects=(type(log)(kind=log.kind, key=log.key, size_bytes=size_bytes,
            sha256=log.sha256, crc32c=log.crc32c), *others),
        ), str(number)))  # fmt: skip
    [found] = retention_of(manifests, Limits(age_ms=age_ms, log_bytes=log_bytes), NOW_MS)
    left = list(segments)
    while left and age_ms is not None and NOW_MS - (left[0][0] if left[0][0] >= 0 else 500) > age_ms:
        left.pop(0)
    while left and log_bytes is not None and sum(size for _, size in left) - log_bytes >= left[0][1]:
        left.pop(0)
    assert found.kept == len(left)
    assert [one.key for one in found.beyond] == [str(number) for number in range(len(segments) - len(left))]


def test_where_a_listing_hides_a_manifest_nothing_of_its_partition_goes(
    command: Resnap, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its segment would stay, and a gap be cut above it."""
    hidden = str(oldest_first(store, 0)[1].relative_to(store))
    lists = LocalObjectStore.list

    def lying(self: LocalObjectStore, prefix: str = "") -> Iterator[ObjectInfo]:
        return (info for info in lists(self, prefix) if info.key != hidden)

    monkeypatch.setattr(LocalObjectStore, "list", lying)
    before = tree(next(store.glob("*/payments/*/0")))
    ran = command("retain", store.as_uri(), "--retention", "1ms", "--delete", *JSON)
    assert ran.code == 3
    assert f"{hidden}: exists, but was not listed" in ran.err
    assert tree(next(store.glob("*/payments/*/0"))) == before
    assert oldest_first(store, 1) == []


def test_what_was_deleted_is_not_shipped_again_by_a_broker_that_keeps_it_for_longer(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    """Shipped again each night it would go again each night, and leave a tombstone each time."""
    for name, flags in (("kafka-2.7.2-then-3.9.1", ("--retention-bytes", "20KiB")), (KRAFT, ("--retention", "1ms"))):
        store, data = tmp_path / name, fixture_set(name).data
        tier = ("tier", data, "--topic", "payments", "--to", store.as_uri(), "--as-of", "roll", "--engine", "local")
        assert command(*tier).code == 0
        assert command("retain", store.as_uri(), *flags, "--delete", *JSON).document["summary"]["deleted"] > 2
        after = tree(store)
        for _ in range(2):
            ran = command(*tier, *JSON)
            assert (ran.code, ran.document["summary"]["shipped"]) == (0, 0), ran.err
            assert command("retain", store.as_uri(), *flags, "--delete").code == 0
            assert tree(store) == after
            assert command("retain", store.as_uri(), *flags, "--topic", "paymentz").code == 2
        refused = [one for row in ran.document["partitions"] for one in row["refused"]]
        assert {one["reason"] for one in refused} >= {"below-log-start"}
        notes = list((store / ".resnap" / "retained").rglob("*.json"))
        for note in notes:
            note.write_bytes(note.read_bytes()[:-1])
        ran = command(*tier, *JSON)
        assert ran.document["summary"]["shipped"] > 2
        assert [ran.err.count(f"{note.as_uri()}: note 'retained'") for note in notes] == [1] * len(notes)
        assert "may be shipped again" in ran.err
        assert check_store(files_of(store))


def test_a_topic_of_the_same_name_that_has_no_id_either_is_shipped_from_its_beginning(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    store = (tmp_path / "store").as_uri()
    flags = ("--topic", "payments", "--to", store, "--as-of", "roll", "--engine", "local", *JSON)
    old, new = (fixture_set(name).data for name in ("kafka-2.7.2", "kafka-2.7.2-nine-days"))
    assert command("tier", old, *flags).code == 0
    assert command("retain", store, "--retention", "1ms", "--delete").code == 0
    new = shutil.copytree(new, tmp_path / "new")
    shutil.copy(old / "meta.properties", new)
    shipped = command("tier", new, *flags).document["summary"]
    assert shipped["shipped"] > 20


def test_a_late_manifest_of_what_was_deleted_is_repaired(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    """Where a store keeps no conditions, who was stopped may still name what retention has deleted meanwhile."""
    store = tmp_path / "store"
    tier = ("tier", fixture_set(KRAFT).data, "--topic", "payments", "--to", store.as_uri(), "--as-of", "roll")
    assert command(*tier, "--engine", "local").code == 0
    late = oldest_first(store, 0)[1]
    body = late.read_bytes()
    assert command("retain", store.as_uri(), "--retention-bytes", "20KiB", "--delete").code == 0
    late.write_bytes(body)
    assert command("verify", "--store", store.as_uri(), "--engine", "local").code == 13
    assert command(*tier, "--engine", "local").code == 0
    assert command("verify", "--store", store.as_uri(), "--engine", "local").code == 0
    assert check_store(files_of(store))


def test_a_late_manifest_beside_a_whole_copy_is_taken_away_by_the_next_tier(
    command: Resnap, store: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    """As in a store that ignores conditions, when a run was stopped before its manifest."""
    data = str(fixture_set("kafka-2.7.2-then-3.9.1").data)
    tier = ("tier", data, "--topic", "payments", "--to", store.as_uri(), "--as-of", "roll", "--engine", "local", *JSON)
    verify = ("verify", "--store", store.as_uri(), "--engine", "local", *JSON)
    late = oldest_first(store, 0)[0]
    body = late.read_bytes()
    for path in late.parent.glob(f"{late.stem}.*"):
        path.unlink()
    late.write_bytes(TOMBSTONE)
    assert command(*tier).code == 0, "a copy under another id"
    late.write_bytes(body)
    assert command(*verify).code == 13
    assert command(*tier, "--dry-run").code == 0
    assert late.read_bytes() == body
    assert command(*tier).code == 0
    assert late.read_bytes() == TOMBSTONE
    assert command(*verify).code == 0
