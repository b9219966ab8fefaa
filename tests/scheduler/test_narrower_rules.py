"""What was shipped under rules that keep fewer producers is named by ``tier`` and ``verify``; daily use is silent."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.storage.layouts.manifest import SnapshotHow, read_manifest
from resnap.storage.log.names import segment_name
from resnap.storage.log.producer_snapshot import snapshot_bytes
from resnap.storage.words import instant
from tests.builders import a_partition
from tests.replay.test_rebuild import DAY_MS, bases, hour, hourly, marker
from tests.replay.test_rebuild import data as data_at
from tests.scheduler.files import tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

    Tier = Callable[..., Ran]

JSON: Final = ("--output", "json", "-q")
LOCAL: Final = ("--engine", "local", *JSON)
NARROW: Final = ("--as-of", "roll", "--producer-id-expiration-ms", "1000", *LOCAL)
WIDE_FLAGS: Final = ("--producer-id-expiration-ms", "604800000")
WIDE: Final = ("--as-of", "roll", *WIDE_FLAGS, *LOCAL)


@pytest.fixture
def data(fixture_set: Callable[[str], FixtureSet]) -> Path:
    return fixture_set("kafka-2.7.2-nine-days").data


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def tier(command: Resnap, data: Path, store: Path) -> Tier:
    return lambda *arguments: command("tier", data, "--to", store.as_uri(), "--partition", "payments-1", *arguments)


def differing(ran: Ran) -> int:
    found: dict[str, Any] = ran.document["summary"]
    return int(found["snapshotsDifferent"])


def test_what_a_limit_has_excluded_is_named_by_a_run_that_reaches_further_and_repaired(
    command: Resnap, tmp_path: Path, store: Path
) -> None:
    directory = a_partition(tmp_path, hourly(data_at(30.3, sequence=4), marker(31.05), hours=40))
    end = bases(directory)[-1]
    rules = ("--as-of", instant(hour(55)), "--producer-id-expiration-ms", DAY_MS, "--high-watermark", end)
    tier = ("tier", directory, "--to", store.as_uri(), *rules, *LOCAL)
    limited = (*tier, "--max-reach-back", "0s")
    first, again = command(*limited), command(*limited)
    assert (first.code, again.code, again.err) == (0, 0, "")
    assert again.document["summary"]["shipped"] == 0
    ran = command(*tier)
    assert (ran.code, ran.document["summary"]["shipped"]) == (13, 0)
    assert "was read from there (--max-reach-back), and here it begins at 0" in ran.error["message"]
    assert "it lacks producers 1" in ran.error["message"]
    # The batch is 22 minutes before what the limit counts from: a limit that reaches no further sees no more.
    for reach, code in (("22m", 0), ("1321s", 13)):
        longer = command(*tier, "--max-reach-back", reach)
        assert (longer.code, longer.document["summary"]["shipped"]) == (code, 0), longer.err
    assert "it lacks producers 1" in longer.error["message"]
    assert command(*limited, "--full").code == 13
    assert command("verify", "--store", store.as_uri(), *LOCAL).code == 13
    assert command("repair", store.as_uri(), *rules[:4], *LOCAL).code == 0
    for healed in (command(*tier), command(*limited), command("verify", "--store", store.as_uri(), *LOCAL)):
        assert healed.code == 0, healed.err


def test_a_transaction_that_hangs_below_a_limit_is_named_by_a_run_without_one(
    command: Resnap, tmp_path: Path, store: Path
) -> None:
    directory = a_partition(tmp_path, hourly(data_at(2.5, transactional=True), hours=40))
    rules = ("--as-of", instant(hour(55)), "--producer-id-expiration-ms", DAY_MS, "--high-watermark", 41)
    tier = ("tier", directory, "--to", store.as_uri(), *rules, *LOCAL)
    limited = (*tier, "--max-reach-back", "0s")
    first, again, longer = command(*limited), command(*limited), command(*tier, "--max-reach-back", "1h")
    assert [(ran.code, ran.err) for ran in (first, again, longer)] == [(0, "")] * 3, (
        "none of them reads on without a doubt"
    )
    origins = [read_manifest(path.read_bytes()).snapshot_origin for path in sorted(store.rglob("*.manifest"))]
    assert [one and one.left_out for one in origins] == [()] * len(origins), "nothing in the window names it"
    assert [one and one.known_from_offset for one in origins[-3:]] != [0] * 3
    ran = command(*tier)
    assert ran.code == 13, ran.err
    assert "was read from there (--max-reach-back), and here it begins at 0" in ran.error["message"]
    assert "it lacks producers 1" in ran.error["message"]
    assert command("repair", store.as_uri(), *rules[:4], *LOCAL).code == 0
    for healed in (command(*limited), command("verify", "--store", store.as_uri(), *LOCAL)):
        assert (healed.code, healed.err) == (0, "")


def test_a_false_snapshot_of_a_broker_that_a_limit_could_not_contradict_is_named_without_it(
    command: Resnap, tmp_path: Path, store: Path
) -> None:
    directory = a_partition(tmp_path, hourly(data_at(30.3, sequence=4), marker(31.05), hours=40))
    (directory / segment_name(bases(directory)[-1], "snapshot")).write_bytes(snapshot_bytes([]))
    rules = ("--as-of", instant(hour(55)), "--producer-id-expiration-ms", DAY_MS, "--high-watermark", 41)
    tier = ("tier", directory, "--to", store.as_uri(), *rules, *LOCAL)
    assert command(*tier, "--max-reach-back", "0s").code == 0
    origins = [read_manifest(path.read_bytes()).snapshot_origin for path in sorted(store.rglob("*.manifest"))]
    assert [one and one.how for one in origins[-2:]] == [SnapshotHow.REGENERATED, SnapshotHow.KEPT]
    for path in store.rglob("*.snapshot"):  # as if shipped at that time: the broker cannot have expired the producer
        os.utime(path, ns=(hour(41) * 1_000_000,) * 2)
    ran = command(*tier)
    assert ran.code == 13
    assert "holds of the offsets [32, 41) was made from a log that began at offset" in ran.error["message"]
    verified = command("verify", "--store", store.as_uri(), *LOCAL)
    assert (verified.code, differing(verified)) == (13, 8)
    assert command("repair", store.as_uri(), *rules[:4], *LOCAL).code == 0
    assert command("verify", "--store", store.as_uri(), *LOCAL).code == 0


def test_a_shorter_expiration_is_named_by_the_next_tier_and_by_verify_with_the_flag(
    command: Resnap, tier: Tier, store: Path
) -> None:
    assert tier(*NARROW).code == 0
    before = tree(store)
    ran = tier(*WIDE)
    assert (ran.code, ran.document["summary"]["shipped"]) == (13, 0)
    assert tree(store) == before
    said = ran.error["message"]
    assert said.startswith(f"payments-1: what {store.as_uri()} holds of the offsets [")
    assert "was made under producer.id.expiration.ms 1000, at its roll, and this run asks for producer.id." in said
    assert "this run asks for producer.id.expiration.ms 604800000" in said
    assert "it lacks producers" in said
    verify = ("verify", "--store", store.as_uri(), *LOCAL)
    at_defaults = command(*verify)
    assert (at_defaults.code, differing(at_defaults)) == (0, 0)
    with_flag = command(*verify, *WIDE_FLAGS)
    assert with_flag.code == 13
    assert differing(with_flag) > 15
    assert "it was made under producer.id.expiration.ms 1000, at its roll" in with_flag.err
    # A file is not a flag: what it asks for counts where it keeps more than the manifest's rules.
    asked = {"RESNAP_AS_OF": "roll", "RESNAP_PRODUCER_ID_EXPIRATION_MS": "604800000"}
    assert differing(command(*verify, **asked)) == differing(with_flag)
    assert command(*verify, RESNAP_PRODUCER_ID_EXPIRATION_MS="1000").code == 0


def test_the_repair_that_verify_names_repairs_what_verify_found(command: Resnap, tier: Tier, store: Path) -> None:
    assert tier(*NARROW).code == 0
    verify = ("verify", "--store", store.as_uri(), *LOCAL, "--producer-id-expiration-ms", "604800000")
    (hint,) = {json.loads(line)["error"]["hint"] for line in command(*verify).err.splitlines()}
    named = hint.split("`")[1].removeprefix("resnap ").split(" ")
    assert named == ["repair", store.as_uri(), "--producer-id-expiration-ms", "604800000"]
    assert command(*named, "--engine", "local").code == 0
    assert command(*verify).code == 0


def test_what_keeps_more_than_is_asked_for_is_right(command: Resnap, tier: Tier, store: Path) -> None:
    assert tier(*WIDE).code == 0
    for rules in (NARROW, ("--as-of", "now", *LOCAL)):
        ran = tier(*rules)
        assert (ran.code, ran.err) == (0, "")
    assert command("verify", "--store", store.as_uri(), *LOCAL).code == 0


def times(store: Path) -> list[int]:
    """Return the largest timestamps of the segments that were shipped, ascending."""
    manifests = (read_manifest(path.read_bytes()) for path in store.rglob("*.manifest"))
    return sorted(manifest.max_timestamp_ms or 0 for manifest in manifests)


def test_each_night_is_later_and_silent_and_an_earlier_moment_is_named(tier: Tier, store: Path) -> None:
    assert tier(*WIDE).code == 0
    at = times(store)
    shutil.rmtree(store)
    expiration = ("--producer-id-expiration-ms", "86400000", *LOCAL)
    first, later = (("--as-of", instant(ms), *expiration) for ms in (at[len(at) // 2], at[-1]))
    for night in (first, first, later):
        ran = tier(*night)
        assert (ran.code, ran.err) == (0, "")
    shutil.rmtree(store)
    assert tier(*later).code == 0
    ran = tier(*first)
    assert ran.code == 13
    assert f"as of {instant(at[-1])}" in ran.error["message"]


def test_no_producer_is_missing_in_a_topic_without_producers(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], store: Path
) -> None:
    data = fixture_set("kafka-2.7.2-no-producers").data
    for rules in (NARROW, WIDE):
        ran = command("tier", data, "--to", store.as_uri(), *rules)
        assert (ran.code, ran.err) == (0, "")
    assert command("verify", "--store", store.as_uri(), *WIDE_FLAGS, *LOCAL).code == 0


def test_segments_that_are_shipped_beside_them_do_not_hide_what_is_wrong(
    command: Resnap, tier: Tier, data: Path, store: Path, tmp_path: Path
) -> None:
    bases = sorted(int(path.stem) for path in (data / "payments-1").glob("*.log"))
    shorter = without_its_end(data, tmp_path / "shorter", bases[-4])
    assert command("tier", shorter, "--to", store.as_uri(), "--partition", "payments-1", *NARROW).code == 0
    ran = tier(*WIDE)
    assert ran.document["summary"]["shipped"] > 0
    assert ran.code == 13


def test_a_dry_run_reports_segments_made_under_narrower_rules(tier: Tier) -> None:
    assert tier(*NARROW).code == 0
    ran = tier("--as-of", "roll", *WIDE_FLAGS, "--engine", "local", "--dry-run")
    assert ran.code == 0
    assert "payments-1: 22 segments that the store holds, from offset 0 on, were made under narrower rules" in ran.err


def without_its_end(data: Path, to: Path, last: int) -> Path:
    """Copy a log dir as it was when the segment at ``last`` was the active one."""
    shutil.copytree(data, to)
    for path in (to / "payments-1").iterdir():
        if path.stem.isdigit() and int(path.stem) > last:
            path.unlink()
    return to


def without_its_head(data: Path, to: Path, first: int) -> Path:
    """Copy a log dir as a replica of which retention has taken what lies below ``first``; its snapshots are lost."""
    shutil.copytree(data, to)
    for path in (to / "payments-1").iterdir():
        if path.suffix == ".snapshot" or (path.stem.isdigit() and int(path.stem) < first):
            path.unlink()
    starts = to / "log-start-offset-checkpoint"
    starts.write_text(f"0\n1\npayments 1 {first}\n")
    return to


def test_a_replica_with_the_beginning_names_what_one_without_it_has_shipped(
    command: Resnap, tier: Tier, data: Path, store: Path, tmp_path: Path
) -> None:
    bases = sorted(int(path.stem) for path in (data / "payments-1").glob("*.log"))
    headless = without_its_head(data, tmp_path / "headless", bases[4])
    assert command("tier", headless, "--to", store.as_uri(), "--partition", "payments-1", *WIDE).code == 0
    for shipped in (4, 0):
        ran = tier(*WIDE)
        assert (ran.code, ran.document["summary"]["shipped"]) == (13, shipped)
        assert (
            f"[{bases[4]}, {bases[-1]}) was made from a log that began at offset {bases[4]} or was read from there"
            f" (--max-reach-back), and here it begins at 0: at {bases[5]} it lacks producers"
        ) in ran.error["message"]
        assert "delete their manifests and run again" in ran.error["hint"]
    verified = command("verify", "--store", store.as_uri(), *LOCAL)
    assert verified.code == 13
    assert f"it was made from a log that began at offset {bases[4]}" in verified.error["message"]
    for path in store.rglob("*.manifest"):
        if int(path.name[:20]) >= bases[4]:
            path.unlink()
    assert tier(*WIDE).code == 0
    assert command("verify", "--store", store.as_uri(), *LOCAL).code == 0


def test_what_a_replica_with_other_boundaries_has_shipped_is_compared_where_both_have_one(
    command: Resnap, data: Path, store: Path, tmp_path: Path
) -> None:
    bases = sorted(int(path.stem) for path in (data / "payments-1").glob("*.log"))
    to = ("--to", store.as_uri(), "--partition", "payments-1", *WIDE)
    headless = without_its_end(without_its_head(data, tmp_path / "cut", bases[4]), tmp_path / "headless", bases[7])
    assert command("tier", headless, *to).code == 0
    other = shutil.copytree(data, tmp_path / "other")
    for base in bases[2:7]:  # the other replica rolled at none of these offsets
        _join(other / "payments-1", bases[1], base)
    for _ in range(2):
        ran = command("tier", other, *to, "--output", "json")
        assert ran.code == 13
        assert "lineage-conflict" in ran.out
        assert (
            f"made from a log that began at offset {bases[4]} or was read from there (--max-reach-back), and here it"
            " begins at 0" in ran.error["message"]
        )
        assert f"at {bases[7]} it lacks producers" in ran.error["message"]
    assert command("verify", store.as_uri(), *LOCAL).code == 13
    for path in store.rglob("*.manifest"):
        if bases[4] <= int(path.name[:20]) < bases[7]:
            path.unlink()
    assert command("tier", other, *to).code == 0
    assert command("verify", store.as_uri(), *LOCAL).code == 0


def _join(partition: Path, first: int, base: int) -> None:
    """Append the segment at ``base`` to the one at ``first``, as a replica has it that rolled at other offsets."""
    for suffix in ("log", "txnindex"):
        path = partition / f"{base:020}.{suffix}"
        with (partition / f"{first:020}.{suffix}").open("ab") as joined:
            joined.write(path.read_bytes() if path.exists() else b"")
    of_other_offsets = (partition / f"{first:020}.{suffix}" for suffix in ("index", "timeindex"))
    for path in (*partition.glob(f"{base:020}.*"), *of_other_offsets):
        path.unlink(missing_ok=True)


def test_retention_between_two_runs_is_daily_use(command: Resnap, data: Path, store: Path, tmp_path: Path) -> None:
    bases = sorted(int(path.stem) for path in (data / "payments-1").glob("*.log"))
    first = without_its_end(data, tmp_path / "first", bases[12])
    second = without_its_head(data, tmp_path / "second", bases[7])
    rules = ("--as-of", "roll", "--producer-id-expiration-ms", "172800000", *LOCAL)
    for night in (first, second, second):
        ran = command("tier", night, "--to", store.as_uri(), "--partition", "payments-1", *rules)
        assert (ran.code, ran.err) == (0, "")
    verified = command("verify", "--store", store.as_uri(), *LOCAL)
    assert (verified.code, verified.err) == (0, "")


def test_a_replica_that_lags_behind_a_shorter_log_fails_no_run_until_it_can_compare(
    command: Resnap, tier: Tier, data: Path, store: Path, tmp_path: Path
) -> None:
    bases = sorted(int(path.stem) for path in (data / "payments-1").glob("*.log"))
    to = ("--to", store.as_uri(), "--partition", "payments-1", "--as-of", "roll", "--engine", "local", *WIDE_FLAGS)
    first = without_its_head(data, tmp_path / "first", bases[12])
    lagging = without_its_end(data, tmp_path / "lagging", bases[12])
    assert command("tier", first, *to).code == 0
    for _ in range(2):
        ran = command("tier", lagging, *to)
        assert ran.code == 0, ran.err
        assert ran.err.count(f"warning: payments-1: what {store.as_uri()} holds of the offsets [{bases[12]}, ") == 1
        assert (
            f"made from a log that began at offset {bases[12]} or was read from there (--max-reach-back), and here it"
            " begins at 0; whether" in ran.err
        )
        assert f"`resnap verify {store.as_uri()} {' '.join(WIDE_FLAGS)} --as-of roll` shows it" in ran.err
    caught_up = tier(*WIDE)
    assert caught_up.code == 13
    assert f"at {bases[13]} it lacks producers" in caught_up.error["message"]


def test_what_a_lagging_replica_sees_to_be_missing_is_named_beside_what_it_cannot_compare(
    command: Resnap, data: Path, store: Path, tmp_path: Path
) -> None:
    bases = sorted(int(path.stem) for path in (data / "payments-1").glob("*.log"))
    to = ("--to", store.as_uri(), "--partition", "payments-1", "--as-of", "roll", "--engine", "local", *WIDE_FLAGS)
    assert command("tier", without_its_head(data, tmp_path / "first", bases[7]), *to).code == 0
    ran = command("tier", without_its_end(data, tmp_path / "lagging", bases[12]), *to)
    assert ran.code == 13
    assert f"the offsets [{bases[7]}, {bases[12]}) was made from a log that began at offset {bases[7]}" in ran.err
    assert f"at {bases[8]} it lacks producers" in ran.err
    assert f"the offsets [{bases[12]}, {bases[14]}) was made from a log" in ran.err
