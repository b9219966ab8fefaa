"""What is damaged, forbidden, full or wrong: a clear message, the right exit code, everything else still done."""

from __future__ import annotations

import os
import shutil
import signal
import struct
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from tests.cases import mostly_slow
from tests.scheduler.files import BALLAST, bases, batch_positions, file_at, fill, flip, lost_boundaries
from tests.scheduler.shipped import CONTROL, check_content, check_store, eligible, entries, files_of, manifests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Bucket, Ran, Resnap

LOCAL = ("--engine", "local")
ROLL = ("--as-of", "roll", *LOCAL)
HEADER_BYTES = 61
ATTRIBUTES_POSITION = 21


class Hurt(NamedTuple):
    """A segment that a test has damaged."""

    base_offset: int
    next_base_offset: int
    path: Path


@pytest.fixture
def middle(broker_log: Path) -> Hurt:
    """The third segment of ``payments-0``, still whole."""
    found = bases(broker_log / "payments-0")
    return Hurt(found[2], found[3], file_at(broker_log / "payments-0", found[2], "log"))


@pytest.fixture
def expected(fixture_set: Callable[[str], FixtureSet]) -> Path:
    """The snapshots of the broker's that belong to ``broker_log``."""
    return fixture_set("kafka-2.7.2-then-3.9.1").expected


def _cut_inside_a_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: batch_positions(path)[3] + 30])


def _take_bytes_out_of_a_header(path: Path) -> None:
    data, at = path.read_bytes(), batch_positions(path)[3]
    path.write_bytes(data[: at + 20] + data[at + 40 :])


def _length_beyond_the_end(path: Path) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, batch_positions(path)[3] + 8, len(data))
    path.write_bytes(data)


def _zeros_in_the_middle(path: Path) -> None:
    data, at = bytearray(path.read_bytes()), batch_positions(path)[3]
    data[at : at + HEADER_BYTES] = bytes(HEADER_BYTES)
    path.write_bytes(data)


DAMAGES = [_cut_inside_a_header, _take_bytes_out_of_a_header, _length_beyond_the_end, _zeros_in_the_middle]


@pytest.mark.parametrize("damage", mostly_slow(DAMAGES, _cut_inside_a_header, _zeros_in_the_middle))
def test_a_segment_cut_in_the_middle_stops_its_partition_above_it_and_no_other(
    command: Resnap, middle: Hurt, expected: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    broker_log = middle.path.parents[1]
    lost = {path.name: lost_boundaries(path) for path in broker_log.iterdir() if path.is_dir()}
    damage(middle.path)
    ran = command("regenerate", broker_log, *ROLL, "--into", tmp_path / "out", "--output", "json")
    _check_damage_told(ran, middle)
    made = {name: bases(tmp_path / "out" / name, "snapshot") for name in lost if name != "compacted-0"}
    lost["payments-0"] = [offset for offset in lost["payments-0"] if offset <= middle.base_offset]
    del lost["compacted-0"]
    assert made == lost
    for path in (tmp_path / "out").rglob("*.snapshot"):
        theirs = expected / path.relative_to(tmp_path / "out")
        assert entries(path.read_bytes()) == entries(theirs.read_bytes()), path


@pytest.mark.parametrize("damage", mostly_slow(DAMAGES, _cut_inside_a_header, _zeros_in_the_middle))
def test_nothing_from_a_damaged_segment_on_is_shipped_and_all_else_is(
    command: Resnap, middle: Hurt, expected: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    broker_log = middle.path.parents[1]
    must = eligible(broker_log, {"payments-0": middle.base_offset})
    assert len({one.base_offset for one in must if (one.topic, one.partition) == ("payments", 0)}) > 0
    damage(middle.path)
    store = tmp_path / "store"
    ran = command("tier", broker_log, *ROLL, "--to", store.as_uri(), "--output", "json")
    _check_damage_told(ran, middle)
    assert check_store(files_of(store)) == must
    check_content(files_of(store), broker_log, expected)
    [row] = [row for row in ran.document["partitions"] if (row["topic"], row["partition"]) == ("payments", 0)]
    assert {one["baseOffset"] for one in row["refused"] if one["reason"] == "damaged"} >= {middle.base_offset}


def _check_damage_told(ran: Ran, hurt: Hurt) -> None:
    assert ran.code == 3
    assert str(hurt.path) in ran.error["message"]
    assert " at byte " in ran.error["message"]
    assert ran.error["hint"]


@pytest.mark.parametrize("commands", ["plan --prove", "verify"])
def test_damage_is_no_success_where_nothing_is_written(
    command: Resnap, broker_log: Path, middle: Hurt, commands: str
) -> None:
    _cut_inside_a_header(middle.path)
    name, *flags = commands.split()
    ran = command(name, broker_log, *flags, *ROLL)
    assert ran.code in {1, 3}
    assert str(middle.path) in ran.err


def test_a_control_record_with_any_byte_flipped_is_never_believed(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    partition = broker_log / "payments-0"
    path, at, end = next(_control_batches(partition))
    whole, believed = path.read_bytes(), []
    for position in range(at + HEADER_BYTES, end):
        path.write_bytes(whole)
        flip(path, position)
        out = tmp_path / f"out-{position}"
        ran = command("regenerate", partition, *ROLL, "--into", out, "--output", "json")
        if ran.code == 0:
            believed.append(position - at)
            continue
        assert ran.code in {1, 3}
        assert str(path) in ran.error["message"]
        assert ran.error["hint"]
        assert max(bases(out / "payments-0", "snapshot"), default=0) <= int(path.stem)
    assert believed == []


def _control_batches(partition: Path) -> Iterator[tuple[Path, int, int]]:
    for base in bases(partition):
        path = file_at(partition, base, "log")
        data, positions = path.read_bytes(), batch_positions(path)
        for at, end in zip(positions, [*positions[1:], len(data)], strict=True):
            if data[at + 16] == 2 and int.from_bytes(data[at + ATTRIBUTES_POSITION : at + 23], "big") & CONTROL:
                yield path, at, end


@pytest.mark.parametrize("entry", [struct.pack(">ii", 5, 2**30), struct.pack(">ii", 2**30, 17), b"\xff" * 8])
def test_an_index_that_points_nowhere_is_made_anew_from_the_log(
    command: Resnap, broker_log: Path, tmp_path: Path, middle: Hurt, entry: bytes
) -> None:
    index = middle.path.with_suffix(".index")
    index.write_bytes(index.read_bytes() + entry)
    store = tmp_path / "store"
    assert command("tier", broker_log / "payments-0", *ROLL, "--to", store.as_uri()).code == 0
    assert check_store(files_of(store)) == {one for one in eligible(broker_log) if one[:2] == ("payments", 0)}
    [manifest] = [
        one for one in manifests(files_of(store)).values() if one["baseOffset"] == middle.base_offset
    ]  # fmt: skip
    [shipped] = [store / one["key"] for one in manifest["objects"] if one["kind"] == "index"]
    pairs = list(struct.iter_unpack(">ii", shipped.read_bytes()))
    data, starts = middle.path.read_bytes(), set(batch_positions(middle.path))
    for relative, position in pairs:
        assert position in starts
        base, delta = struct.unpack_from(">q", data, position)[0], struct.unpack_from(">i", data, position + 23)[0]
        assert middle.base_offset + relative == base + delta


@pytest.mark.parametrize("content", [b"", None])
def test_a_useless_snapshot_is_replaced_in_what_is_made_and_shipped(
    command: Resnap, broker_log: Path, expected: Path, tmp_path: Path, content: bytes | None
) -> None:
    partition = broker_log / "orders-0"
    offset = bases(partition)[1]
    path = file_at(partition, offset, "snapshot")
    path.write_bytes(path.read_bytes() + b"\0" if content is None else content)
    assert command("regenerate", partition, *ROLL, "--into", tmp_path / "out").code == 0
    made = file_at(tmp_path / "out" / "orders-0", offset, "snapshot").read_bytes()
    assert entries(made) == entries(file_at(expected / "orders-0", offset, "snapshot").read_bytes())
    assert command("tier", partition, *ROLL, "--to", (tmp_path / "store").as_uri()).code == 0
    check_content(files_of(tmp_path / "store"), broker_log, expected)
    judged = command("verify", partition, *ROLL)
    assert judged.code == 13
    assert str(path) in judged.err


@pytest.fixture
def closed_log(open_folder: Path, broker_log: Path) -> Path:
    """A copy that every user can reach; a test may close parts of it."""
    data = shutil.copytree(broker_log, open_folder / "data")
    for path in (data, *data.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    return data


@pytest.fixture
def nobody(command: Resnap, closed_log: Path, tmp_path: Path) -> Iterator[Resnap]:
    """The command as a user without powers.

    Modules are loaded before, since Python itself may lie where only root may go.
    """
    for arguments in (["plan"], ["regenerate", "--into", tmp_path / "warm"], ["tier", "--to", f"file://{tmp_path}/w"]):
        assert command(*arguments, closed_log, "--topic", "orders", *LOCAL).code == 0
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield replace(command, directory=closed_log.parent)  # type: ignore[type-var]
    if root:
        os.seteuid(0)


def test_a_partition_without_permission_is_told_and_the_others_are_done(nobody: Resnap, closed_log: Path) -> None:
    out, store = closed_log.parent / "out", closed_log.parent / "store"
    with _closed(closed_log / "payments-1"):
        for arguments in (
            ["scan", closed_log],
            ["plan", closed_log, *LOCAL],
            ["regenerate", closed_log, *ROLL, "--into", out],
            ["tier", closed_log, *ROLL, "--to", store.as_uri()],
        ):
            ran = nobody(*arguments, "--output", "json")
            assert ran.code == 3, (arguments, ran.err)
            assert ran.error["type"] == "LogDirError"
            assert str(closed_log / "payments-1") in ran.error["message"]
            assert "run as the user that the broker runs as" in ran.error["hint"]
        assert nobody("scan", closed_log, "--topic", "orders").code == 0
    assert not (out / "payments-1").exists()
    assert bases(out / "payments-0", "snapshot") == lost_boundaries(closed_log / "payments-0")
    assert check_store(files_of(store)) == {one for one in eligible(closed_log) if one[:2] != ("payments", 1)}


@pytest.mark.parametrize("suffix", ["log", "snapshot", "txnindex"])
def test_a_file_without_permission_is_told_and_the_others_are_done(
    nobody: Resnap, closed_log: Path, suffix: str
) -> None:
    partition = closed_log / "payments-1"
    offset = next(base for base in bases(partition)[1:] if file_at(partition, base, suffix).exists())
    store = closed_log.parent / "store"
    with _closed(file_at(partition, offset, suffix)) as path:
        ran = nobody("tier", closed_log, *ROLL, "--to", store.as_uri(), "--output", "json")
    assert ran.code == 3
    assert str(path) in ran.error["message"]
    assert ran.error["hint"]
    # What was on its way above an index that cannot be read waits for the next run, and nothing names it.
    shipped = check_store(files_of(store), strict=suffix != "txnindex")
    assert {one for one in eligible(closed_log) if one[:2] != ("payments", 1)} <= shipped < eligible(closed_log)


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_what_follows_from_the_log_need_not_be_readable(nobody: Resnap, closed_log: Path, suffix: str) -> None:
    store = closed_log.parent / "store"
    with _closed(file_at(closed_log / "payments-1", bases(closed_log / "payments-1")[1], suffix)):
        assert nobody("tier", closed_log, *ROLL, "--to", store.as_uri()).code == 0
    assert check_store(files_of(store)) == eligible(closed_log)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


_PLANTED: Final[dict[str, Callable[[Path], None]]] = {
    "a pipe": os.mkfifo,
    "a link to an endless device": lambda path: path.symlink_to("/dev/zero"),
    "more than is read": _sparse,
}


@pytest.mark.parametrize("planted", _PLANTED)
@pytest.mark.parametrize(
    "name",
    mostly_slow(
        [
            "meta.properties", "replication-offset-checkpoint", "log-start-offset-checkpoint",
            "recovery-point-offset-checkpoint", "cleaner-offset-checkpoint", "payments-0/partition.metadata",
            "payments-0/leader-epoch-checkpoint",
        ],
        "replication-offset-checkpoint", "payments-0/leader-epoch-checkpoint",
    ),
)  # fmt: skip
def test_what_is_no_file_of_its_size_keeps_nobody_waiting(
    planted: str, name: str, command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    (broker_log / name).unlink(missing_ok=True)
    _PLANTED[planted](broker_log / name)
    signal.alarm(60)  # ends the tests: it would wait for ever
    try:
        ran = command("tier", broker_log, *ROLL, "--topic", "payments", "--to", (tmp_path / "store").as_uri())
    finally:
        signal.alarm(0)
    if name == "payments-0/leader-epoch-checkpoint":
        assert ran.code == 0  # the batches tell them, too
        return
    assert ran.code in {1, 3}
    assert str(broker_log / name) in ran.err
    assert ("larger than" if planted == "more than is read" else "not a regular file") in ran.err


def test_a_log_dir_without_permission_is_told(nobody: Resnap, closed_log: Path) -> None:
    with _closed(closed_log):
        ran = nobody("scan", closed_log)
    assert (ran.code, ran.out) == (1, "")
    assert str(closed_log) in ran.err
    assert "hint: run as the user that the broker runs as" in ran.err


def test_a_destination_without_permission_is_told(nobody: Resnap, closed_log: Path) -> None:
    (closed_log.parent / "out").mkdir()
    with _closed(closed_log.parent / "out") as out:
        made = nobody("regenerate", closed_log, *ROLL, "--into", out / "x")
        shipped = nobody("tier", closed_log, *ROLL, "--to", f"{out.as_uri()}/x")
    assert (made.code, shipped.code) == (1, 12)
    for ran in (made, shipped):
        assert f"{out}/x" in ran.err
        assert "permission denied" in ran.err.lower()
        assert "hint: " in ran.err


def test_stored_objects_without_permission_are_named_and_the_others_are_verified(
    nobody: Resnap, closed_log: Path
) -> None:
    store = closed_log.parent / "tiered"
    assert nobody("tier", closed_log, *ROLL, "--topic", "payments", "--to", store.as_uri()).code == 0
    manifests = sorted(store.rglob("*.manifest"))
    arguments = ("verify", "--store", store.as_uri(), *ROLL, "--output", "json", "--fresh")
    for closed in (manifests[1].with_suffix(".log"), manifests[1].with_suffix(".snapshot"), manifests[1]):
        with _closed(closed):
            ran = nobody(*arguments)
        summary = ran.document["summary"]
        assert (ran.code, summary["different"], summary["segments"]) == (12, 1, len(manifests))
        assert "nothing was shipped" not in ran.err, "it may be the segment that cannot be read"
        assert summary["snapshotsReplayed"] == len(manifests) - 1
        assert f"{closed.relative_to(store)}: cannot be read: " in ran.err
        assert "give the user who runs resnap read access, and verify again" in ran.err
    assert nobody(*arguments).code == 0


@contextmanager
def _closed(path: Path) -> Iterator[Path]:
    """Let nobody in but root, and everybody afterwards."""
    caller = os.geteuid()
    _chmod(path, 0, caller)
    try:
        yield path
    finally:
        _chmod(path, 0o777, caller)


def _chmod(path: Path, mode: int, caller: int) -> None:
    if os.getuid() == 0:
        os.seteuid(0)
    path.chmod(mode)
    os.seteuid(caller)


def test_a_full_disk_ends_a_regeneration_with_whole_snapshots_only(
    command: Resnap, broker_log: Path, tiny_disk: Path, tmp_path: Path
) -> None:
    assert command("regenerate", broker_log, *ROLL, "--into", tmp_path / "whole").code == 0
    fill(tiny_disk, leaving=40_000)
    ran = command("regenerate", broker_log, *ROLL, "--into", tiny_disk / "out", "--output", "json")
    assert ran.code == 3
    assert "No space left" in ran.error["message"]
    assert "free some space" in ran.error["hint"]
    partial = files_of(tiny_disk / "out")
    assert partial.items() <= files_of(tmp_path / "whole").items()
    (tiny_disk / BALLAST).unlink()
    assert command("regenerate", broker_log, *ROLL, "--into", tiny_disk / "out").code == 0
    assert files_of(tiny_disk / "out") == files_of(tmp_path / "whole")


@pytest.mark.parametrize("room", [0, 4_096, 40_000, 100_000, 200_000])
def test_a_full_disk_ends_a_shipment_with_whole_segments_only(
    command: Resnap, broker_log: Path, tiny_disk: Path, room: int
) -> None:
    fill(tiny_disk, leaving=room)
    few = ("--topic", "orders", "--topic", "dash*")
    must = {one for one in eligible(broker_log) if one.topic in {"orders", "dash-ed.topic_1"}}
    to = (*few, "--to", (tiny_disk / "store").as_uri())
    ran = command("tier", broker_log, *ROLL, *to, "--output", "json")
    assert ran.code == (3 if manifests(files_of(tiny_disk / "store")) else 12)
    assert ran.error["type"] == "StoreFullError"
    assert "make room" in ran.error["hint"]
    assert check_store(files_of(tiny_disk / "store"), strict=False) < must
    assert [name for name in files_of(tiny_disk) if name.endswith("~")] == []
    assert ran.document["summary"]["shipped"] == len(manifests(files_of(tiny_disk / "store")))
    (tiny_disk / BALLAST).unlink()
    assert command("tier", broker_log, *ROLL, *to).code == 0
    assert check_store(files_of(tiny_disk / "store"), strict=False) == must


def test_a_full_disk_where_snapshots_wait_is_told_as_such(
    command: Resnap, broker_log: Path, tiny_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tiny_disk, leaving=8_192)
    monkeypatch.setattr("tempfile.tempdir", str(tiny_disk))
    store = tmp_path / "store"
    ran = command("tier", broker_log, *ROLL, "--to", store.as_uri(), "--output", "json")
    assert ran.code in {1, 3}
    assert str(tiny_disk) in ran.error["message"]
    assert ran.error["hint"]
    assert {path.name for path in tiny_disk.iterdir()} == {BALLAST}
    assert check_store(files_of(store), strict=False) < eligible(broker_log)


@pytest.mark.parametrize("command_line", ["regenerate --into", "tier --to"])
def test_a_place_that_may_not_be_written_is_refused_before_a_segment_is_read(
    nobody: Resnap, closed_log: Path, command_line: str
) -> None:
    (name, flag), place = command_line.split(), closed_log.parent / "shut"
    place.mkdir(mode=0o555)
    segment = file_at(closed_log / "payments-0", bases(closed_log / "payments-0")[0], "log")
    with _closed(segment):
        for inside in ("", "/x"):
            ran = nobody(name, closed_log, *ROLL, flag, f"file://{place}{inside}")
            assert ran.code == (12 if name == "tier" else 2)
            assert str(place) in ran.err
            assert str(segment) not in ran.err
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("command_line", ["regenerate --into", "tier --to"])
def test_a_read_only_disk_is_told(command: Resnap, broker_log: Path, read_only_disk: Path, command_line: str) -> None:
    name, flag = command_line.split()
    ran = command(name, broker_log, *ROLL, flag, f"file://{read_only_disk}/x")
    assert ran.code == (12 if name == "tier" else 1)
    assert "ead-only file system" in ran.err
    assert "hint: " in ran.err


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "s3://", "s3://b", "s3://bucket/../x", "file://host/x", "bucket/prefix", "s3:/bucket", ""]
)
@pytest.mark.parametrize("command_line", ["tier --to", "verify --store"])
def test_a_wrong_url_is_a_matter_of_usage(command: Resnap, broker_log: Path, url: str, command_line: str) -> None:
    name, flag = command_line.split()
    sources = [broker_log] if name == "tier" else []
    ran = command(name, *sources, flag, url, *LOCAL)
    assert (ran.code, ran.out) == (2, "")
    assert "hint: " in ran.err


@pytest.mark.parametrize(
    "command_line",
    ["regenerate {log} --into", "restore file:///nowhere --into", "check", "doctor", "inspect", "tier {log}", "plan"],
)
def test_an_empty_argument_is_not_the_current_directory(
    command: Resnap, broker_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: str
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    ran = command(*command_line.format(log=broker_log).split(), "")
    assert (ran.code, ran.out) == (2, "")
    assert "it is empty: a shell variable may not be set" in ran.err
    assert not list(here.iterdir())


@pytest.mark.parametrize("below", ["", "strange", "payments-0"])
@pytest.mark.parametrize("command_line", ["regenerate --into", "tier --to"])
def test_no_log_dir_of_a_broker_is_a_destination_though_it_is_no_source(
    command: Resnap, broker_log: Path, tmp_path: Path, command_line: str, below: str
) -> None:
    other = tmp_path / "other"
    shutil.copytree(broker_log, other)
    before = sorted(other.rglob("*"))
    name, flag = command_line.split()
    ran = command(name, broker_log, *LOCAL, flag, (other / below).as_uri() if name == "tier" else other / below)
    assert (ran.code, ran.out) == (2, "")
    assert f"is inside the log dir {other}" in ran.err
    assert sorted(other.rglob("*")) == before


def test_a_destination_that_leads_round_in_a_circle_is_told(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    ran = command("tier", broker_log, *LOCAL, "--to", f"file://{tmp_path}/loop")
    assert (ran.code, "this is a bug" in ran.err) == (12, False), ran.err
    assert "loop" in ran.err
    assert "hint: " in ran.err


def test_a_directory_above_the_store_that_is_not_there_is_a_mistyped_one(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    ran = command("tier", broker_log, *ROLL, "--to", f"file://{tmp_path}/mnt/tiered/store")
    assert (ran.code, ran.out) == (12, "")
    assert "hint: check the path and whether its disk is mounted" in ran.err
    assert not (tmp_path / "mnt").exists()


@pytest.mark.s3
@pytest.mark.parametrize("command_line", ["tier --to", "verify --store", "regenerate --into"])
def test_a_bucket_that_does_not_exist_is_told_before_anything_is_replayed(
    command: Resnap, broker_log: Path, bucket: Bucket, command_line: str, opened: Callable[[], list[str]]
) -> None:
    name, flag = command_line.split()
    sources = [] if name == "verify" else [broker_log]
    ran = command(name, *sources, flag, "s3://no-such-bucket/x", *LOCAL, *bucket.flags, **bucket.variables)
    assert (ran.code, ran.out.strip()) == (12, "") or name == "verify"
    assert ran.code == 12
    assert "no such bucket" in ran.err
    assert "hint: check the bucket's name" in ran.err
    # Of `legacy` alone first bytes are read, to find where leader epochs begin: its checkpoint does not say it.
    assert {Path(path).parent.name for path in opened() if path.endswith(".log")} <= {"legacy-0"}


@pytest.mark.s3
@pytest.mark.parametrize("command_line", ["tier --to", "regenerate --into"])
def test_no_credentials_are_told_with_where_they_may_come_from(
    command: Resnap, broker_log: Path, bucket: Bucket, command_line: str
) -> None:
    name, flag = command_line.split()
    ran = command(name, broker_log, flag, bucket.url, *LOCAL, *bucket.flags, AWS_EC2_METADATA_DISABLED="true")
    assert (ran.code, ran.out) == (12, "")
    assert "credentials" in ran.err
    assert "hint: " in ran.err
    assert bucket.objects() == {}


@pytest.mark.s3
def test_a_store_that_does_not_answer_is_told_in_bounded_time(
    command: Resnap, broker_log: Path, bucket: Bucket
) -> None:
    flags = ("--s3-endpoint-url", "http://127.0.0.1:9", "--s3-region", "us-east-1")
    ran = command("tier", broker_log, "--to", bucket.url, *LOCAL, *flags, "--output", "json", **bucket.variables)
    assert (ran.code, ran.out) == (12, "")
    assert ran.error["type"] == "StoreUnavailableError"
    assert "127.0.0.1:9" in ran.error["message"]
    assert ran.error["hint"]


def test_a_partition_whose_topic_id_file_is_damaged_is_told_and_the_others_are_done(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    (broker_log / "orders-0" / "partition.metadata").write_text("version: 7\n")
    ran = command("tier", broker_log, *ROLL, "--to", (tmp_path / "store").as_uri(), "--output", "json")
    assert ran.code == 3
    assert "partition.metadata" in ran.error["message"]
    assert check_store(files_of(tmp_path / "store")) == {one for one in eligible(broker_log) if one.topic != "orders"}


@pytest.mark.parametrize("name", ["replication-offset-checkpoint", "meta.properties", "cleaner-offset-checkpoint"])
def test_a_damaged_file_of_the_log_dir_is_told_and_what_it_would_have_said_is_unknown(
    command: Resnap, broker_log: Path, tmp_path: Path, name: str
) -> None:
    (broker_log / name).write_bytes(b"version=7\n")
    ran = command("tier", broker_log, *ROLL, "--to", (tmp_path / "store").as_uri(), "--output", "json")
    assert ran.code == 3
    assert name in ran.error["message"]
    if name == "replication-offset-checkpoint":
        assert {row["blocking"]["reason"] for row in ran.document["partitions"]} >= {"hw-unknown"}
        assert files_of(tmp_path / "store") == {}


def test_input_that_kafka_refuses_is_refused_from_there_on(
    command: Resnap, broker_log: Path, tmp_path: Path, middle: Hurt
) -> None:
    data = bytearray(middle.path.read_bytes())
    at = _second_of_a_transaction(middle.path)
    attributes = int.from_bytes(data[at + ATTRIBUTES_POSITION : at + 23], "big") & ~0x10
    struct.pack_into(">h", data, at + ATTRIBUTES_POSITION, attributes)
    middle.path.write_bytes(data)
    ran = command("tier", broker_log / "payments-0", *ROLL, "--to", (tmp_path / "store").as_uri(), "--output", "json")
    assert ran.code == 3
    [row] = ran.document["partitions"]
    assert (row["blocking"]["reason"], row["blocking"]["baseOffset"]) == ("invalid-txn-state", middle.base_offset)
    assert "invalid-txn-state" in ran.error["message"]


def _second_of_a_transaction(path: Path) -> int:
    """Return the position of a batch whose producer opened its transaction in the batch before its own."""
    data, is_open = path.read_bytes(), set()
    for at in batch_positions(path):
        attributes = int.from_bytes(data[at + ATTRIBUTES_POSITION : at + 23], "big")
        producer_id = data[at + 43 : at + 51]
        if attributes & CONTROL:
            is_open.discard(producer_id)
        elif attributes & 0x10:
            if producer_id in is_open:
                return at
            is_open.add(producer_id)
    raise LookupError(path)


@pytest.mark.slow
@pytest.mark.spark
def test_on_spark_damage_and_a_full_disk_are_told_as_they_are_in_process(
    command: Resnap, broker_log: Path, tiny_disk: Path, tmp_path: Path, middle: Hurt
) -> None:
    fill(tiny_disk, leaving=20_000)
    full = command("regenerate", broker_log, "--as-of", "roll", "--into", tiny_disk / "out", "--output", "json")
    assert full.code in {1, 3}
    assert "No space left" in full.error["message"]
    assert "free some space" in full.error["hint"]
    assert len(full.error["message"]) < 500
    assert [name for name in files_of(tiny_disk) if name.endswith((".tmp", "~"))] == []
    _cut_inside_a_header(middle.path)
    ran = command("regenerate", broker_log, "--as-of", "roll", "--into", tmp_path / "out", "--output", "json")
    _check_damage_told(ran, middle)
    local = command("regenerate", broker_log, *ROLL, "--into", tmp_path / "local", "--output", "json")
    assert sorted(map(str, ran.document["boundaries"])) == sorted(map(str, local.document["boundaries"]))
    assert files_of(tmp_path / "out") == files_of(tmp_path / "local")
