"""Damaged logs: a clear message, the right exit code, and everything else is still done."""

from __future__ import annotations

import os
import signal
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from resnap.storage.log.indexes import AbortedTxn, write_transaction_index
from tests.cases import mostly_slow
from tests.scheduler.files import bases, batch_positions, file_at, fill, flip, lost_boundaries
from tests.scheduler.shipped import CONTROL, check_content, check_store, eligible, entries, files_of, manifests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

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
    _check_damage_reported(ran, middle)
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
    _check_damage_reported(ran, middle)
    assert check_store(files_of(store)) == must
    check_content(files_of(store), broker_log, expected)
    [row] = [row for row in ran.document["partitions"] if (row["topic"], row["partition"]) == ("payments", 0)]
    assert {one["baseOffset"] for one in row["refused"] if one["reason"] == "damaged"} >= {middle.base_offset}


def _check_damage_reported(ran: Ran, hurt: Hurt) -> None:
    assert ran.code == 3
    assert str(hurt.path) in ran.error["message"]
    assert " at byte " in ran.error["message"]
    assert ran.error["hint"]


@pytest.mark.parametrize("commands", ["plan --prove", "verify"])
def test_damage_is_not_a_success_where_nothing_is_written(
    command: Resnap, broker_log: Path, middle: Hurt, commands: str
) -> None:
    _cut_inside_a_header(middle.path)
    name, *flags = commands.split()
    ran = command(name, broker_log, *flags, *ROLL)
    assert ran.code in {1, 3}
    assert str(middle.path) in ran.err


def test_a_control_record_with_any_byte_flipped_is_never_accepted(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    partition = broker_log / "payments-0"
    path, at, end = next(_control_batches(partition))
    whole, accepted = path.read_bytes(), []
    for position in range(at + HEADER_BYTES, end):
        path.write_bytes(whole)
        flip(path, position)
        out = tmp_path / f"out-{position}"
        ran = command("regenerate", partition, *ROLL, "--into", out, "--output", "json")
        if ran.code == 0:
            accepted.append(position - at)
            continue
        assert ran.code in {1, 3}
        assert str(path) in ran.error["message"]
        assert ran.error["hint"]
        assert max(bases(out / "payments-0", "snapshot"), default=0) <= int(path.stem)
    assert accepted == []


def _control_batches(partition: Path) -> Iterator[tuple[Path, int, int]]:
    for base in bases(partition):
        path = file_at(partition, base, "log")
        data, positions = path.read_bytes(), batch_positions(path)
        for at, end in zip(positions, [*positions[1:], len(data)], strict=True):
            if data[at + 16] == 2 and int.from_bytes(data[at + ATTRIBUTES_POSITION : at + 23], "big") & CONTROL:
                yield path, at, end


@pytest.mark.parametrize("entry", [struct.pack(">ii", 5, 2**30), struct.pack(">ii", 2**30, 17), b"\xff" * 8])
def test_an_index_that_points_nowhere_is_rebuilt_from_the_log(
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
def test_a_pipe_a_device_or_a_huge_file_in_place_of_a_checkpoint_does_not_block(
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
        assert ran.code == 0  # the batches show them, too
        return
    assert ran.code in {1, 3}
    assert str(broker_log / name) in ran.err
    assert ("larger than" if planted == "more than is read" else "not a regular file") in ran.err


def test_a_partition_whose_topic_id_file_is_damaged_is_reported_and_the_others_are_done(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    (broker_log / "orders-0" / "partition.metadata").write_text("version: 7\n")
    ran = command("tier", broker_log, *ROLL, "--to", (tmp_path / "store").as_uri(), "--output", "json")
    assert ran.code == 3
    assert "partition.metadata" in ran.error["message"]
    assert check_store(files_of(tmp_path / "store")) == {one for one in eligible(broker_log) if one.topic != "orders"}


@pytest.mark.parametrize("name", ["replication-offset-checkpoint", "meta.properties", "cleaner-offset-checkpoint"])
def test_a_damaged_file_of_the_log_dir_is_reported_and_what_it_would_have_said_is_unknown(
    command: Resnap, broker_log: Path, tmp_path: Path, name: str
) -> None:
    (broker_log / name).write_bytes(b"version=7\n")
    ran = command("tier", broker_log, *ROLL, "--to", (tmp_path / "store").as_uri(), "--output", "json")
    assert ran.code == 3
    assert name in ran.error["message"]
    if name == "replication-offset-checkpoint":
        assert {row["blocking"]["reason"] for row in ran.document["partitions"]} >= {"hw-unknown"}
        assert files_of(tmp_path / "store") == {}


@pytest.mark.parametrize(("name", "code"), [("leader-epoch-checkpoint", 0), ("00000000000000000000.txnindex", 3)])
def test_what_keeps_a_broker_from_starting_is_said_alike_with_and_without_dry_run(
    command: Resnap, broker_log: Path, tmp_path: Path, name: str, code: int
) -> None:
    (broker_log / "payments-0" / name).write_bytes(b"\x7f" * 34)
    tier = ("tier", broker_log, *ROLL, "--to", (tmp_path / "store").as_uri())
    dry, done = command(*tier, "--dry-run"), command(*tier)
    assert (dry.code, done.code) == (code, code)
    for ran in (dry, done):
        [warning] = [line for line in ran.err.splitlines() if line.startswith("warning: no-start: ")]
        assert f"{broker_log}/payments-0/{name}" in warning
        assert (
            "before the broker starts, repair the file that no-start names: take the partition that it belongs to"
            in warning
        )
        faults = [line.split(": ")[1:3] for line in ran.err.splitlines() if line.startswith("error: ")]
        assert faults == ([["payments-0", "index-unusable"]] if code else [])


def _more_epochs(middle: Path) -> None:
    checkpoint = middle.with_name("leader-epoch-checkpoint")
    version, number, *entries = checkpoint.read_text().split("\n")
    newer = int(entries[0].split(" ")[0]) + 1
    assert (version, number) == ("0", "1")
    checkpoint.write_text(f"0\n2\n{entries[0]}\n{newer} {int(middle.stem)}\n")


def _aborted_below(middle: Path) -> None:
    middle.with_suffix(".txnindex").write_bytes(write_transaction_index([AbortedTxn(3, 0, 1, 0)]))


def _aborted_above(middle: Path) -> None:
    middle.with_suffix(".txnindex").write_bytes(write_transaction_index([AbortedTxn(3, 0, 10**6, 0)]))


def _of_other_offsets(number: int, by: int) -> Callable[[Path], None]:
    """Return what changes the base offset of a batch of a log, counted from its beginning or its end."""

    def change(log: Path) -> None:
        data, at = bytearray(log.read_bytes()), batch_positions(log)[number]
        struct.pack_into(">q", data, at, struct.unpack_from(">q", data, at)[0] + by)
        log.write_bytes(data)

    return change


def _with_the_log_of_the_next(middle: Path) -> None:
    found = bases(middle.parent)
    following = file_at(middle.parent, found[found.index(int(middle.stem)) + 1], "log")
    middle.write_bytes(following.read_bytes())


@pytest.mark.parametrize(
    ("damage", "reason", "where"),
    [
        (_more_epochs, "leader-epochs-wrong", "blockers"),
        (_aborted_below, "index-unusable", "blockers"),
        # Brokers tier these; they ignore a part of an entry, and whatever else is wrong.
        (lambda middle: middle.with_suffix(".txnindex").write_bytes(b"odd"), "index-unusable", "warnings"),
        (_aborted_above, "index-unusable", "warnings"),
        (lambda middle: middle.write_bytes(middle.read_bytes()[: middle.stat().st_size // 2]), "damaged", "blockers"),
        (_of_other_offsets(-1, 1), "damaged", "blockers"),
        (_of_other_offsets(0, -1), "damaged", "blockers"),
        (_with_the_log_of_the_next, "damaged", "blockers"),
    ],
)
def test_what_the_files_show_without_their_batches_a_dry_run_judges_as_the_run_does(  # noqa: PLR0917
    command: Resnap, broker_log: Path, tmp_path: Path, middle: Hurt, damage: Callable[[Path], object], reason: str,
    where: str,
) -> None:  # fmt: skip
    damage(middle.path)
    tier = ("tier", broker_log, "--topic", "payments", *ROLL, "--to", (tmp_path / "store").as_uri(), "--output", "json")
    dry, done = command(*tier, "--dry-run"), command(*tier)
    assert (dry.code, done.code) == (3, 3)
    for ran in (dry, done):
        assert ran.error["message"].startswith(f"payments-0: {reason}: {middle.path.with_suffix('')}")
    [payments] = [partition for partition in done.document["partitions"] if partition["partition"] == 0]
    assert next(one["baseOffset"] for one in payments["refused"] if one["reason"] == reason) == middle.base_offset
    topics = command("check", broker_log, "--topic", "payments", "--output", "json").document["topics"]
    rows = {key: {one["reason"] for one in topics[0][key]} for key in ("blockers", "warnings")}
    assert [key for key in rows if reason in rows[key]] == [where]


def test_a_segment_of_which_the_manifest_is_damaged_is_said_to_wait(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    tier = ("tier", broker_log, *ROLL, "--topic", "orders", "--to", (tmp_path / "store").as_uri())
    assert command(*tier).code == 0
    manifest = min((tmp_path / "store").rglob("*.manifest"))
    manifest.write_bytes(manifest.read_bytes()[:20])
    for flags in ((), ("--dry-run",)):
        ran = command(*tier, *flags)
        assert ran.code == 3
        assert (
            "1 segment left alone: the store has a manifest of it that cannot be used. Keep it on this disk" in ran.out
        )
        assert "Nothing to ship" not in ran.out
        assert manifest.name in ran.err
        assert "delete the manifest to ship the segment again" in ran.err


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
@pytest.mark.usefixtures("one_spark")
def test_on_spark_damage_and_a_full_disk_are_reported_as_in_process(
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
    _check_damage_reported(ran, middle)
    local = command("regenerate", broker_log, *ROLL, "--into", tmp_path / "local", "--output", "json")
    assert sorted(map(str, ran.document["boundaries"])) == sorted(map(str, local.document["boundaries"]))
    assert files_of(tmp_path / "out") == files_of(tmp_path / "local")
