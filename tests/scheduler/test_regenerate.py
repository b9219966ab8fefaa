"""``resnap regenerate``: the snapshots that brokers would have written, and nothing anywhere else."""

from __future__ import annotations

import json
import shutil
import subprocess
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from resnap.replay.producer_state import Expiry
from resnap.storage.log.indexes import read_time_index
from resnap.storage.log.names import MAX_TOPIC_NAME_LENGTH
from resnap.storage.log.producer_snapshot import load_snapshot
from resnap.storage.words import instant
from tests.scheduler.files import bases, file_at, lost_boundaries, tree
from tests.scheduler.scenes import one_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from resnap.storage.log.producer_snapshot import ProducerEntry
    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Bucket, Ran, Resnap

LOCAL = ("--engine", "local")
TWO_DAYS_MS = 172_800_000


def snapshots(root: Path) -> dict[str, dict[int, ProducerEntry]]:
    return {str(path.relative_to(root)): load_snapshot(path) for path in sorted(root.rglob("*.snapshot"))}


def test_every_lost_snapshot_is_what_the_broker_had_written(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    fixture = fixture_set("kafka-2.7.2-then-3.9.1")
    before = tree(fixture.data)
    ran = command("regenerate", fixture.data, "--as-of", "roll", "--into", tmp_path / "out", *LOCAL)
    assert ran.code == 0
    made = snapshots(tmp_path / "out")
    partitions = [path for path in fixture.data.iterdir() if path.is_dir() and path.name != "compacted-0"]
    lost = {f"{path.name}/{offset:020d}.snapshot" for path in partitions for offset in lost_boundaries(path)}
    assert made.keys() == lost
    for name, entries in made.items():
        assert entries == load_snapshot(fixture.expected / name), name
    assert tree(fixture.data) == before


def test_a_copy_without_the_times_of_its_files_gives_the_same_snapshots(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    """Messages of before 0.10 have no time but that of their file, and producers came after them."""
    shutil.copytree(broker_log, tmp_path / "copy", copy_function=shutil.copyfile)
    for data in (broker_log, tmp_path / "copy"):
        into = tmp_path / "of" / data.name
        assert command("regenerate", data, "--as-of", "roll", "--into", into, *LOCAL).code == 0
    made, again = (snapshots(tmp_path / "of" / name) for name in (broker_log.name, "copy"))
    assert any(entries for name, entries in made.items() if name.startswith("legacy-0"))
    assert again == made


def test_all_boundaries_of_nine_days_are_what_the_broker_had_written(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    fixture = fixture_set("kafka-2.7.2-nine-days")
    ran = command(
        "regenerate", fixture.data, "--boundaries", "all", "--as-of", "roll", "--producer-id-expiration-ms",
        TWO_DAYS_MS, "--into", tmp_path / "out", "--output", "json", *LOCAL,
    )  # fmt: skip
    assert ran.code == 0
    made = snapshots(tmp_path / "out")
    assert len(made) == ran.document["summary"]["snapshots"] == 45
    assert made == {name: load_snapshot(fixture.expected / name) for name in made}


def test_a_topic_may_have_the_longest_name_that_kafka_allows(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    fixture, name = fixture_set("kafka-2.7.2"), f"{'t' * MAX_TOPIC_NAME_LENGTH}-0"
    written = snapshots(fixture.expected / "payments-0") | snapshots(fixture.data / "payments-0")
    shutil.copytree(fixture.data / "payments-0", tmp_path / "data" / name)
    for place in (tmp_path / "staged", tmp_path / "data"):  # to be installed, and beside the segments of a copy
        ran = command("regenerate", (tmp_path / "data").as_uri(), "--as-of", "roll", "--into", place.as_uri(), *LOCAL)
        assert (ran.code, (place / name / "fingerprint.json").exists()) == (0, True), ran.err
        assert snapshots(place / name).items() <= written.items()


@pytest.mark.slow
def test_a_window_gives_what_a_full_replay_gives_at_every_moment(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = fixture_set("kafka-2.7.2-nine-days").data
    seen, shorter = set(), 0
    for number, at_ms in enumerate(_moments(data)):
        window, whole = (
            _as_of(command, data, at_ms, tmp_path / f"{kind}-{number}", *flags)
            for kind, flags in (("window", ()), ("full", ("--full",)))
        )
        assert whole["summary"]["failed"] == window["summary"]["failed"] == 0
        shorter += window["summary"]["bytesRead"] < whole["summary"]["bytesRead"]
        full = {(row["partition"], row["offset"]): row for row in whole["boundaries"]}
        for row in window["boundaries"]:
            seen.add(row["coverage"])
            if row["coverage"] == "window":
                assert row["sha256"] == full[row["partition"], row["offset"]]["sha256"], (at_ms, row)
            else:
                _check_beyond(tmp_path / f"window-{number}", tmp_path / f"full-{number}", row)
    assert seen == {"window", "beyond-window"}
    assert shorter >= 3


def _largest_ms(time_index: Path) -> int:
    entries = read_time_index(time_index.read_bytes())
    return entries[-1].timestamp if entries else 0


def _moments(data: Path) -> list[int]:
    """Return times all over the history: at its ends, at rolls, just before and after a producer expires."""
    times = sorted({
        _largest_ms(path) for path in data.glob("payments-*/*.timeindex") if path.stat().st_size
    })  # fmt: skip
    gaps = sorted(pairwise(times), key=lambda pair: pair[1] - pair[0])[-2:]
    some = [times[0], *times[3::11], times[-1], *(later - 1 for _, later in gaps)]
    expiring = [times[len(times) // 2] + TWO_DAYS_MS, times[len(times) // 2] + TWO_DAYS_MS - 1]
    return [*some, *expiring, times[-1] + TWO_DAYS_MS - 1, times[-1] + 2 * TWO_DAYS_MS]


def _as_of(command: Resnap, data: Path, at_ms: int, into: Path, *flags: str) -> dict[str, object]:
    ran = command(
        "regenerate", data, "--boundaries", "all", "--as-of", instant(at_ms), "--producer-id-expiration-ms",
        TWO_DAYS_MS, "--into", into, "--output", "json", *LOCAL, *flags,
    )  # fmt: skip
    assert ran.code == 0
    document: dict[str, object] = ran.document
    return document


def _check_beyond(window: Path, full: Path, row: dict[str, object]) -> None:
    """Check that older boundaries have only entries that the full replay has, and none of them idle."""
    name = f"payments-{row['partition']}/{row['offset']:020d}.snapshot"
    ours, theirs = load_snapshot(window / name), load_snapshot(full / name)
    assert ours.items() <= theirs.items()
    assert [entry for entry in theirs.values() if entry not in ours.values() and not entry.has_open_transaction] == []


@pytest.mark.parametrize("verb", ["regenerate", "tier"])
def test_a_limit_on_reaching_back_says_that_a_transaction_which_hangs_may_be_lacking(
    verb: str, command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    log = shutil.copytree(fixture_set("kafka-2.7.2-nine-days").data, tmp_path / "log")
    for file in log.rglob("*.snapshot"):
        file.unlink()
    into = ["--into", tmp_path / "out"] if verb == "regenerate" else ["--to", f"file://{tmp_path}/store"]
    rules = ["--engine", "local", "--topic", "payments"]
    limited = command(verb, log, *into, *rules, "--max-reach-back", "1m")
    assert "--max-reach-back" in limited.err
    assert "one that hangs since then is lacking" in limited.err
    shutil.rmtree(tmp_path / ("out" if verb == "regenerate" else "store"))
    assert "hangs" not in command(verb, log, *into, *rules, "--fresh").err


def test_a_second_run_leaves_the_same_bytes_and_nothing_else(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    arguments = ("regenerate", broker_log, "--as-of", "roll", "--into", tmp_path / "out", *LOCAL)
    assert command(*arguments).code == 0
    first = {name: digest for name, (_, _, digest) in tree(tmp_path / "out").items()}
    assert command(*arguments).code == 0
    assert {name: digest for name, (_, _, digest) in tree(tmp_path / "out").items()} == first
    assert [name for name in first if name.endswith(".tmp")] == []


def test_an_s3_bucket_gets_what_a_directory_gets(
    command: Resnap, broker_log: Path, tmp_path: Path, bucket: Bucket
) -> None:
    arguments = ("regenerate", broker_log, "--topic", "payments", "--as-of", "roll", *LOCAL)
    assert command(*arguments, "--into", tmp_path / "out").code == 0
    assert command(*arguments, "--into", f"{bucket.url}/a/b", *bucket.flags, **bucket.variables).code == 0
    assert bucket.objects() == {
        f"a/b/{path.relative_to(tmp_path / 'out')}": path.read_bytes() for path in (tmp_path / "out").rglob("*.*")
    }


def test_a_place_inside_a_log_dir_is_refused_even_if_only_tried(command: Resnap, broker_log: Path) -> None:
    before = tree(broker_log)
    link = broker_log.parent / "link"
    link.symlink_to(broker_log / "orders-0")
    inside = [broker_log, broker_log / "out", f"file://{broker_log}/orders-0", link, f"{broker_log}/../data/x"]
    for place in inside:
        for flags in ((), ("--dry-run",)):
            ran = command("regenerate", broker_log, "--into", place, *LOCAL, *flags)
            assert (ran.code, ran.out) == (2, ""), place
            assert "inside the log dir" in ran.err
        lone = command("regenerate", broker_log / "payments-0", "--into", place, *LOCAL)
        assert (lone.code, lone.out) == (2, "")
    assert tree(broker_log) == before


def test_a_place_that_cannot_be_written_to_is_refused_before_anything_is_read(
    command: Resnap, broker_log: Path, tmp_path: Path, opened: Callable[[], list[str]]
) -> None:
    (tmp_path / "file").write_text("")
    ran = command("regenerate", broker_log, "--into", tmp_path / "file" / "below", "--engine", "local")
    assert (ran.code, f"{tmp_path / 'file'} is not a directory" in ran.err) == (2, True)
    assert [path for path in opened() if path.endswith(".log") and "legacy-0" not in path] == []
    for flags in ((), ("--dry-run",)):
        ran = command("regenerate", broker_log, "--into", "/proc/below", "--engine", "local", *flags)
        assert (ran.code, "/proc cannot be written to" in ran.err) == (2, True)


def test_where_not_all_could_be_made_the_same_command_comes_before_an_installation(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    def next_steps(ran: Ran) -> list[str]:
        return [line for line in ran.out.splitlines() if line.startswith(("Next: ", "Or "))]

    install = "stop the broker, then `resnap install"
    asked = ("regenerate", broker_log, "--topic", "payments", "--engine", "local", "--into")
    (tmp_path / "full").mkdir()
    obstacle = tmp_path / "full" / "payments-1"
    obstacle.write_text("stands where a folder is to be made")
    cut_short = command(*asked, obstacle.parent)
    obstacle.unlink()
    whole = command(*asked, obstacle.parent)
    wrong = broker_log / "payments-1" / "partition.metadata"
    wrong.write_text("nonsense")
    unread = command(*asked, tmp_path / "out")
    for ran in (unread, cut_short):
        again, later = next_steps(ran)
        assert (ran.code, again.startswith("Next: the same command again"), install in later) == (3, True, True)
    assert (whole.code, next_steps(whole)[0].startswith(f"Next: {install}")) == (0, True)


def test_beside_a_partition_that_lies_alone_there_is_room(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (broker_log / "payments-0").rename(tmp_path / "copy" / "payments-0")
    source = tmp_path / "copy" / "payments-0"
    assert command("regenerate", source, "--into", tmp_path / "copy" / "out", *LOCAL).code == 0
    assert command("regenerate", source, "--into", source / "out", *LOCAL).code == 2


@pytest.mark.parametrize("url", ["ftp://x/y", "s3://", "s3://b/a//c", "file://host/path", "file:///a?b"])
def test_a_url_of_no_known_form_is_refused_before_anything_is_read(command: Resnap, broker_log: Path, url: str) -> None:
    ran = command("regenerate", broker_log, "--into", url, *LOCAL)
    assert (ran.code, ran.out) == (2, "")
    assert "store URL" in ran.err
    assert "hint: " in ran.err


def test_a_dry_run_writes_nothing_and_ends_in_totals(command: Resnap, broker_log: Path) -> None:
    before = tree(broker_log.parent)
    arguments = ("regenerate", broker_log, "--into", broker_log.parent / "out", *LOCAL, "--dry-run")
    ran = command(*arguments, "--output", "json")
    lost = sum(len(lost_boundaries(path)) for path in broker_log.iterdir() if path.is_dir() and path.name[0] != "c")
    assert ran.code == 0
    assert (ran.document["dryRun"], ran.document["snapshots"]) == (True, lost)
    assert ran.document["bytesToRead"] > 0
    last, following = command(*arguments).out.splitlines()[-2:]
    assert last.endswith("Nothing was written.")
    assert following == "Next: the same command without --dry-run."
    assert tree(broker_log.parent) == before


def test_where_nothing_is_missing_it_says_so_and_what_comes_next(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = one_partition(fixture_set("kafka-2.7.2").data, tmp_path / "data")
    assert command("regenerate", data, "--into", tmp_path / "made", *LOCAL).code == 0
    for snapshot in (tmp_path / "made" / "payments-1").glob("*.snapshot"):
        shutil.copy(snapshot, data / "payments-1")
    ran = command("regenerate", data, "--into", tmp_path / "staged", *LOCAL)
    assert (ran.code, ran.out.splitlines()[-2:]) == (
        0,
        [
            "Nothing is missing: every closed segment has a usable snapshot at its end. Nothing was written.",
            f"Next: `resnap check {data}` says which topics can be tiered.",
        ],
    )


def test_what_was_made_is_reported_by_boundary(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    arguments = ("regenerate", broker_log, "--into", tmp_path / "out", *LOCAL)
    document = command(*arguments, "--output", "json").document
    rows = [json.loads(line) for line in command(*arguments, "--output", "ndjson").out.splitlines()]
    assert [row["type"] for row in rows] == ["boundary"] * (len(rows) - 1) + ["summary"]
    assert len(document["boundaries"]) == len(rows) - 1
    made = tree(tmp_path / "out")
    for row in document["boundaries"]:
        name = f"{row['topic']}-{row['partition']}/{row['offset']:020d}.snapshot"
        size, _, digest = made.pop(name)
        assert (size, digest) == (10 + 46 * row["entries"], row["sha256"])
    left = {name for name, (_, _, digest) in made.items() if digest != "folder"}
    assert {name.rpartition("/")[2] for name in left} == {"fingerprint.json"}


def test_progress_reports_segments_and_bytes_on_standard_error(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    arguments = ("regenerate", broker_log, "--topic", "legacy", "--into", tmp_path / "out", "--as-of", "roll", *LOCAL)
    last = command(*arguments).err.splitlines()[-1]
    assert last.startswith("replay: 17/17 segments, ")
    told = json.loads(command(*arguments, "--output", "json").err.splitlines()[-1])["progress"]
    assert (told["segments"], told["bytes"]) == (told["segmentsTotal"], told["bytesTotal"])
    assert command(*arguments, "--quiet").err == ""


def test_an_assumed_expiry_and_one_from_the_broker_differ_as_they_must(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = fixture_set("kafka-2.7.2-nine-days").data
    (tmp_path / "server.properties").write_text(
        f"transactional.id.expiration.ms=1\nproducer.id.expiration.ms={TWO_DAYS_MS}\n"
    )
    last = _largest_ms(max((data / "payments-0").glob("*.timeindex")))
    short = _as_of(command, data, last, tmp_path / "short")
    arguments = ("regenerate", data, "--boundaries", "all", "--as-of", instant(last), *LOCAL)
    told = command(*arguments, "--server-properties", tmp_path / "server.properties", "--into", tmp_path / "told")
    assumed = command(*arguments, "--into", tmp_path / "assumed")
    assert told.err.startswith("replay: ")
    assert "7 days is assumed" in assumed.err
    assert snapshots(tmp_path / "told") == snapshots(tmp_path / "short")
    kept, more = (snapshots(tmp_path / kind) for kind in ("told", "assumed"))
    expiry = Expiry(TWO_DAYS_MS, 600_000)
    for row in short["boundaries"]:  # type: ignore[attr-defined]
        name = f"payments-{row['partition']}/{row['offset']:020d}.snapshot"
        assert kept[name].keys() <= more[name].keys()
        extra = [entry for pid, entry in more[name].items() if pid not in kept[name]]
        assert all(expiry.is_expired(entry, last) for entry in extra if row["coverage"] == "window")
    assert kept != more


def test_a_closed_segment_without_a_time_index_counts_as_recent(command: Resnap, broker_log: Path) -> None:
    partition = broker_log / "payments-0"
    arguments = ("plan", partition, "--boundaries", "all", "--producer-id-expiration-ms", 1000, "--output", "json")
    old = command(*arguments).document["summary"]["segmentsToRead"]
    file_at(partition, bases(partition)[2], "timeindex").unlink()
    assert command(*arguments).document["summary"]["segmentsToRead"] >= len(bases(partition)) - 3 > old


def test_snapshots_from_batches_that_a_cleaner_thinned_out_come_with_a_warning(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    (broker_log / "cleaner-offset-checkpoint").unlink()
    arguments = ("regenerate", broker_log, "--as-of", "roll", *LOCAL)
    thinned = command(*arguments, "--topic", "compacted", "--into", tmp_path / "thinned")
    assert thinned.code == 0
    assert "compacted-0: batches are missing, compacted away or lost" in thinned.err
    assert "cleaner" not in command(*arguments, "--topic", "payments", "--into", tmp_path / "whole").err


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """Give a path of 1,500 directories, which Python itself could not remove again: it goes down by recursion."""
    yield tmp_path.joinpath(*["d"] * 1_500)
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_any_expiration_and_any_depth_of_the_destination_is_taken(
    command: Resnap, broker_log: Path, deep: Path
) -> None:
    never = ("--engine", "local", "--producer-id-expiration-ms", 2**63 - 1)
    ran = command("regenerate", broker_log / "payments-0", "--into", deep, "--as-of", "roll", *never)
    assert ran.code == 0, ran.err
    made = command("plan", broker_log / "payments-0", "--prove", *never)
    assert made.code == 0, made.err
    beyond = command("plan", broker_log / "payments-0", "--producer-id-expiration-ms", 2**63)
    assert (beyond.code, "expected less than or equal to 9223372036854775807" in beyond.err) == (2, True)
    assert len(list((deep / "payments-0").glob("*.snapshot"))) == len(lost_boundaries(broker_log / "payments-0"))
