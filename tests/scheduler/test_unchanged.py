"""Runs that are repeated: what an earlier one found is not computed again, and nothing else changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from resnap.tiering.run_cache.run_cache import VERSION
from tests.cases import mostly_slow
from tests.fixture_sets import copied_tree
from tests.scheduler.conftest import PROJECT
from tests.scheduler.files import bases, file_at, flip, tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

LOCAL: Final = ("--engine", "local")
JSON: Final = ("--output", "json")
WATCH: Final = """
import json, os, sys
opened, read = [], []
sys.addaudithook(lambda event, args: event == "open" and isinstance(args[0], str) and opened.append(args[0]))
pread = os.pread
def counted(descriptor, length, position):
    data = pread(descriptor, length, position)
    read.append((os.readlink(f"/proc/self/fd/{descriptor}"), len(data)))
    return data
os.pread = counted
from resnap.scheduler.cli import run
code = run(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    json.dump({"code": code, "opened": opened, "read": read}, file)
"""


@pytest.fixture
def log(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    return copied_tree(fixture_set("kafka-2.7.2").data, tmp_path / "data")


def closed(log: Path) -> list[Path]:
    partitions = [path for path in log.iterdir() if path.is_dir()]
    return [file_at(partition, base, "log") for partition in partitions for base in bases(partition)[:-1]]


def test_the_second_run_over_an_unchanged_log_makes_nothing_and_says_so(
    again: Callable[..., Ran], log: Path, tmp_path: Path
) -> None:
    first = again("regenerate", log, "--into", tmp_path / "out", *JSON).document
    before = tree(tmp_path / "out"), tree(tmp_path / "state")
    second = again("regenerate", log, "--into", tmp_path / "out", *JSON).document
    assert (tree(tmp_path / "out"), tree(tmp_path / "state")) == before
    assert second["summary"]["unchanged"] == len(first["boundaries"]) == first["summary"]["snapshots"] > 0
    assert tuple(second["summary"][key] for key in ("snapshots", "segmentsRead", "bytesRead")) == (0, 0, 0)
    assert {row["outcome"] for row in second["boundaries"]} == {"unchanged"}
    digests = [[(row["topic"], row["offset"], row["sha256"]) for row in one["boundaries"]] for one in (first, second)]
    assert digests[0] == digests[1]
    told = again("regenerate", log, "--into", tmp_path / "out").out
    count = second["summary"]["unchanged"]
    assert f"{count} of {count} boundaries of 4 partitions unchanged since " in told
    assert "nothing was read." in told


def test_it_reads_directory_entries_snapshots_index_tails_and_first_and_last_headers(
    again: Callable[..., Ran], log: Path, tmp_path: Path
) -> None:
    # The small files of the log dir itself, and what stands beside the segments but once per partition.
    checkpoints = {"meta.properties", "partition.metadata", "leader-epoch-checkpoint"}
    for name in ("cleaner-offset", "log-start-offset", "recovery-point-offset", "replication-offset"):
        checkpoints.add(f"{name}-checkpoint")
    assert again("regenerate", log, "--into", tmp_path / "out").code == 0
    arguments = ["regenerate", str(log), "--into", str(tmp_path / "out")]  # with Spark, which is not even started
    environment = {"PATH": os.environ["PATH"], "RESNAP_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(PROJECT)}
    subprocess.run(
        [sys.executable, "-c", WATCH, str(tmp_path / "watched"), *arguments],
        check=True, capture_output=True, env=environment, timeout=300,
    )  # fmt: skip
    watched = json.loads((tmp_path / "watched").read_text())
    assert watched["code"] == 0
    there = str(log.resolve())
    opened = [path for path in watched["opened"] if path.startswith(there)]
    of_partitions = {path for path in opened if path.rpartition("/")[2] not in checkpoints}
    assert {path.rpartition(".")[2] for path in of_partitions if Path(path).is_file()} == {"log", "index", "snapshot"}
    marked = {str(path) for path in closed(log) if path.parent.name not in {"compacted-0", "orders-0"}}
    assert {path for path in of_partitions if path.endswith(".log")} == marked
    read: dict[str, int] = {}
    for path, length in watched["read"]:
        read[path] = read.get(path, 0) + length
    for path in marked:
        # First header, the one that the index names, and those that follow it: some 4 KiB of batches.
        assert 61 <= read[path] <= 61 * 40
        assert sum(length == 61 for name, length in watched["read"] if name == path) == read[path] // 61
    assert {read[path] for path in read if path.endswith(".index")} == {8}
    assert not any("java" in path for path in watched["opened"])


@pytest.mark.parametrize("harm", ["delete", "flip", "empty"])
def test_a_snapshot_that_is_not_what_was_made_is_made_again(
    again: Callable[..., Ran], log: Path, tmp_path: Path, harm: str
) -> None:
    again("regenerate", log, "--into", tmp_path / "out", "--as-of", "roll")
    whole = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.snapshot")}
    victim = sorted(whole)[3]
    if harm == "delete":
        victim.unlink()
    elif harm == "flip":
        flip(victim, 20)
    else:
        victim.write_bytes(b"")
    ran = again("regenerate", log, "--into", tmp_path / "out", "--as-of", "roll", *JSON)
    assert ran.document["summary"]["snapshots"] == 1
    assert ran.document["summary"]["unchanged"] == len(whole) - 1
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.snapshot")} == whole


def test_in_another_place_all_are_made(again: Callable[..., Ran], log: Path, tmp_path: Path) -> None:
    again("regenerate", log, "--into", tmp_path / "out")
    assert again("regenerate", log, "--into", tmp_path / "other", *JSON).document["summary"]["unchanged"] == 0


@pytest.mark.parametrize(
    "flags",
    mostly_slow(
        [
            ["--fresh"], ["--full"], ["--verify-crc"], ["--as-of", "roll"], ["--producer-id-expiration-ms", "1000"],
            ["--history-expiration-ms", "1000"], ["--as-of", "2020-01-01T00:00:00Z"], ["--max-reach-back", "1h"],
            ["--transaction-max-timeout-ms", "1000"], ["--state-dir", "none"],
        ],
        ["--fresh"], ["--as-of", "roll"], ["--producer-id-expiration-ms", "1000"],
    ),
)  # fmt: skip
def test_what_was_made_by_other_rules_does_not_count(
    again: Callable[..., Ran], log: Path, tmp_path: Path, flags: list[str]
) -> None:
    again("regenerate", log, "--into", tmp_path / "out")
    assert again("regenerate", log, "--into", tmp_path / "out", *JSON, *flags).document["summary"]["unchanged"] == 0


def test_a_later_moment_changes_nothing(again: Callable[..., Ran], log: Path, tmp_path: Path) -> None:
    again("regenerate", log, "--into", tmp_path / "out", "--as-of", "2026-11-01T00:00:00Z")
    later = again("regenerate", log, "--into", tmp_path / "out", "--as-of", "2026-11-02T00:00:00Z", *JSON)
    assert later.document["summary"]["snapshots"] == 0


def test_a_dry_run_leaves_nothing_in_the_run_cache(again: Callable[..., Ran], log: Path, tmp_path: Path) -> None:
    assert again("regenerate", log, "--into", tmp_path / "out", "--dry-run").code == 0
    assert not (tmp_path / "state").exists()


def test_a_replaced_segment_invalidates_what_depends_on_it(
    again: Callable[..., Ran], log: Path, tmp_path: Path
) -> None:
    again("regenerate", log, "--into", tmp_path / "out", "--topic", "payments")
    base = bases(log / "payments-0")[3]
    segment = file_at(log / "payments-0", base, "log")
    segment.write_bytes(segment.read_bytes())
    ran = again("regenerate", log, "--into", tmp_path / "out", "--topic", "payments", *JSON)
    unchanged = {row["offset"] for row in ran.document["boundaries"]
                 if row["outcome"] == "unchanged" and row["partition"] == 0}  # fmt: skip
    rebuilt = {row["offset"] for row in ran.document["boundaries"]
               if row["outcome"] == "rebuilt" and row["partition"] == 0}  # fmt: skip
    assert unchanged
    assert max(unchanged) <= base < min(rebuilt)


def grown(fixture: FixtureSet, tmp_path: Path, count: int) -> tuple[Path, Callable[[], None]]:
    """Return a log dir that has its first ``count`` segments so far, and what makes it grow to its full length."""
    log = tmp_path / "growing"
    copied_tree(fixture.data, log)
    later = tmp_path / "later"
    for partition in [path for path in log.iterdir() if path.is_dir() and path.name != "compacted-0"]:
        for base in bases(partition)[count:]:
            for path in partition.glob(f"{base:020d}.*"):
                (later / partition.name).mkdir(parents=True, exist_ok=True)
                path.rename(later / partition.name / path.name)

    def grow() -> None:
        for path in [path for path in later.rglob("*") if path.is_file()]:
            path.rename(log / path.parent.name / path.name)

    return log, grow


@pytest.mark.parametrize("as_of", ["now", "roll"])
def test_of_a_log_that_grew_only_what_is_new_is_read_and_all_is_as_if_it_were_read_whole(
    again: Callable[..., Ran], fixture_set: Callable[[str], FixtureSet], tmp_path: Path, as_of: str
) -> None:
    expiration = ("--producer-id-expiration-ms", "172800000000", "--as-of", as_of, "--boundaries", "all")
    log, grow = grown(fixture_set("kafka-2.7.2-nine-days"), tmp_path, 6)
    first = again("regenerate", log, "--into", tmp_path / "out", *expiration, *JSON)
    grow()
    second = again("regenerate", log, "--into", tmp_path / "out", *expiration, *JSON)
    whole = again("regenerate", log, "--into", tmp_path / "whole", *expiration, *JSON, "--fresh")
    assert (first.code, second.code, whole.code) == (0, 0, 0)
    assert second.document["summary"]["unchanged"] > 0
    begun = {row["anchor"] for row in second.document["boundaries"] if row["outcome"] == "rebuilt"}
    assert None not in begun
    assert second.document["summary"]["segmentsRead"] < whole.document["summary"]["segmentsRead"]
    made = {path.relative_to(tmp_path / "out"): path.read_bytes() for path in (tmp_path / "out").rglob("*.snapshot")}
    for path in (tmp_path / "whole").rglob("*.snapshot"):
        assert made.pop(path.relative_to(tmp_path / "whole")) == path.read_bytes()
    assert made == {}


@pytest.mark.parametrize(
    "harm",
    mostly_slow(["states gone", "states garbled", "all garbled", "another version"], "states gone", "all garbled"),
)
def test_a_damaged_run_cache_costs_reading_and_nothing_else(
    again: Callable[..., Ran], fixture_set: Callable[[str], FixtureSet], tmp_path: Path, harm: str
) -> None:
    rules = ("--producer-id-expiration-ms", "172800000000", "--boundaries", "all")
    log, grow = grown(fixture_set("kafka-2.7.2-nine-days"), tmp_path, 6)
    again("regenerate", log, "--into", tmp_path / "out", *rules)
    grow()
    for path in [path for path in (tmp_path / "state").rglob("*") if path.is_file()]:
        match harm:
            case "states gone" if path.name != "memory.json":
                path.unlink()
            case "states garbled" if path.name != "memory.json":
                path.write_bytes(bytes(path.stat().st_size))
            case "all garbled":
                path.write_bytes(b"\x00garbage")
            case "another version" if path.name == "memory.json":
                head = f'"version": {VERSION}'.encode()
                path.write_bytes(path.read_bytes().replace(head, b'"version": 1'))
    second = again("regenerate", log, "--into", tmp_path / "out", *rules)
    assert second.code == 0
    assert ("it is rebuilt" in second.err) == (harm in {"all garbled", "another version"})
    whole = again("regenerate", log, "--into", tmp_path / "whole", *rules, "--fresh")
    assert whole.code == 0
    for path in (tmp_path / "whole").rglob("*.snapshot"):
        assert (tmp_path / "out" / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes()
    third = again("regenerate", log, "--into", tmp_path / "out", *rules, *JSON)
    assert third.document["summary"]["snapshots"] == 0


def test_a_place_that_cannot_be_written_is_reported_once_and_nothing_else_changes(
    again: Callable[..., Ran], log: Path, tmp_path: Path, read_only_disk: Path
) -> None:
    ran = again("regenerate", log, "--into", tmp_path / "out", RESNAP_STATE_DIR=str(read_only_disk))
    assert ran.code == 0
    assert ran.err.count("cannot be written") == 1
    assert again("regenerate", log, "--into", tmp_path / "other", RESNAP_STATE_DIR="none").code == 0
    first, other = ({path.name: path.read_bytes() for path in (tmp_path / name).rglob("*.snapshot")}
                    for name in ("out", "other"))  # fmt: skip
    assert first == other


def test_what_waits_to_be_shipped_waits_again_without_a_replay(
    again: Callable[..., Ran], log: Path, tmp_path: Path
) -> None:
    store = (tmp_path / "store").as_uri()
    checkpoint = log / "orders-0" / "leader-epoch-checkpoint"
    checkpoint.write_text("0\n1\n7 0\n")  # which its batches contradict
    first = again("tier", log, "--to", store, *JSON).document
    second = again("tier", log, "--to", store, *JSON).document
    refused = [{(row["topic"], row["partition"]): (row["refused"], row["blocking"]) for row in one["partitions"]}
               for one in (first, second)]  # fmt: skip
    assert refused[0] == refused[1]
    told = again("tier", log, "--to", store)
    assert "2 segments of 1 partition wait as they did: nothing has changed since " in told.out
    checkpoint.write_text("0\n1\n0 0\n")
    assert "wait as they did" not in again("tier", log, "--to", store).out


def test_what_was_rolled_since_is_shipped_as_if_the_log_were_read_whole(
    again: Callable[..., Ran], fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    rules = ("--producer-id-expiration-ms", "172800000000", "--as-of", "roll")
    log, grow = grown(fixture_set("kafka-2.7.2-nine-days"), tmp_path, 6)
    assert again("tier", log, "--to", (tmp_path / "store").as_uri(), *rules).code == 0
    before = set(tree(tmp_path / "store"))
    grow()
    assert again("tier", log, "--to", (tmp_path / "store").as_uri(), *rules).code == 0
    assert again("tier", log, "--to", (tmp_path / "whole").as_uri(), *rules, "--fresh").code == 0
    # Keys follow from the content, the snapshots' included.
    assert before < set(tree(tmp_path / "store")) == set(tree(tmp_path / "whole"))


def test_proving_and_verifying_find_everything_out_themselves(
    again: Callable[..., Ran], log: Path, tmp_path: Path
) -> None:
    again("regenerate", log, "--into", tmp_path / "out")
    first = again("plan", log, "--prove", *JSON).document
    assert (
        first["summary"]["segmentsRead"] == again("plan", log, "--prove", *JSON).document["summary"]["segmentsRead"] > 0
    )
    assert again("verify", log, "--snapshots", tmp_path / "out", *JSON).document["summary"]["segmentsRead"] > 0


def test_nothing_is_kept_inside_a_log_dir(command: Resnap, log: Path, tmp_path: Path) -> None:
    before = tree(log)
    asked = command("regenerate", log, "--into", tmp_path / "one", *LOCAL, RESNAP_STATE_DIR=str(log / "state"))
    assert asked.code == 2
    assert f"is inside the log dir {log}" in asked.err
    by_itself = subprocess.run(
        [sys.executable, "-m", "resnap", "regenerate", log, "--into", tmp_path / "two", *LOCAL],
        env={"PATH": os.environ["PATH"], "HOME": str(log), "PYTHONPATH": str(PROJECT)},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "are not kept" in by_itself.stderr
    assert tree(log) == before


def test_a_store_keeps_no_state(command: Resnap, log: Path, tmp_path: Path) -> None:
    ran = command("regenerate", log, "--into", tmp_path / "out", *LOCAL, "--state-dir", "s3://bucket/state")
    assert ran.code == 2
    assert "it cannot be in a store" in ran.err


def test_under_a_limit_one_boundary_that_must_be_made_makes_all_of_them_again(
    again: Callable[..., Ran], fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    rules = ("--as-of", "roll", "--max-reach-back", "0s", "--boundaries", "all", "--topic", "payments", *JSON)
    log, grow = grown(fixture_set("kafka-2.7.2-nine-days"), tmp_path, 6)
    assert again("regenerate", log, "--into", tmp_path / "out", *rules).document["summary"]["snapshots"] > 0
    grow()
    second = again("regenerate", log, "--into", tmp_path / "out", *rules).document
    assert second["summary"]["unchanged"] == 0
    whole = again("regenerate", log, "--into", tmp_path / "whole", *rules, "--fresh").document
    told = [[(row["offset"], row["leftOut"], row["sha256"]) for row in one["boundaries"]] for one in (second, whole)]
    assert told[0] == told[1]
    third = again("regenerate", log, "--into", tmp_path / "out", *rules).document["summary"]
    assert (third["snapshots"], third["unchanged"]) == (0, second["summary"]["snapshots"])
