from __future__ import annotations

import shutil
import tracemalloc
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import pytest

from resnap.scheduler.clock import Clock
from resnap.scheduler.job.contract import Report, Reported
from resnap.scheduler.settings.loading import load_settings
from resnap.scheduler.verbs.inspect.file import InspectRequest, InspectView, Opened, run
from resnap.scheduler.verbs.inspect.opened_file import Kind, kind_by_content, kind_by_name
from resnap.storage.errors import FormatError, UsageError
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.producer_snapshot import ProducerEntry, load_snapshot, snapshot_bytes
from resnap.storage.readers import FileReader
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.tiering.controller.transactions.metadata import TransactionState
from resnap.tiering.selection import Scope
from tests.builders import a_batch, a_marker
from tests.cases import each, mostly_slow
from tests.logs.transaction_log import NOW_MS, step, write_segment
from tests.scheduler.contexts import SilentContext

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.tiering.engine import Engine
    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

Shown = tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]


def inspect(file: object, report: Report, *, verify_crc: bool = False, **options: Any) -> None:
    """Do what the job does: nothing in it replays."""
    context = SilentContext(load_settings({"verify_crc": verify_crc}), Clock(), cast("Engine", None))
    run(InspectRequest(scope=Scope(sources=()), file=str(file), **options), context, report)


def shown(file: object, **options: Any) -> Shown:
    """Return head, rows and tail of an inspection."""
    view, rows = InspectView(), list[dict[str, Any]]()
    inspect(file, lambda result: rows.extend(map(dict, view.rows(result))), **options)
    return dict(view.head()), rows, dict(view.totals())


def damaged(file: object, **options: Any) -> tuple[list[dict[str, Any]], FormatError]:
    """Return the rows before the damage, and the damage."""
    found: list[Opened | Reported[Any]] = []
    with pytest.raises(FormatError) as caught:
        inspect(file, found.append, **options)
    assert caught.value.file == str(file)
    return [dict(result.what) for result in found if isinstance(result, Reported)], caught.value


@pytest.fixture
def payments(fixture_set: Callable[[str], FixtureSet]) -> Path:
    return fixture_set("kafka-2.7.2").data / "payments-0"


@pytest.mark.parametrize(
    "name",
    mostly_slow(
        ["kafka-2.7.2", "kafka-2.7.2-killed", "kafka-2.7.2-then-3.9.1", "kafka-4.4.0-kraft", "kafka-4.4.0-tiered"],
        "kafka-2.7.2-then-3.9.1",
        "kafka-4.4.0-tiered",
    ),
)
def test_every_file_a_broker_left_is_recognised_and_read_whole(
    fixture_set: Callable[[str], FixtureSet], name: str
) -> None:
    files = [path for path in fixture_set(name).data.rglob("*") if path.is_file() and path.stat().st_size]
    ours = [path for path in files if path.name not in {".kafka_cleanshutdown", "bootstrap.checkpoint", "quorum-state"}]
    assert len(ours) > 20
    for path in ours:
        if path.suffix == ".deleted" or "remote-log-index-cache" in str(path):
            continue
        head, rows, _ = shown(path, verify_crc=True)
        assert head["sizeBytes"] == path.stat().st_size
        is_fact_only = head["kind"] in {Kind.META_PROPERTIES, Kind.PARTITION_METADATA}
        is_empty = head["kind"] == Kind.OFFSET_CHECKPOINT or head.get("producers") == 0 or head.get("paddingBytes")
        assert rows or is_fact_only or is_empty, path


def test_a_segment_is_shown_batch_by_batch_under_kafkas_names(payments: Path) -> None:
    path = payments / "00000000000000000000.log"
    head, rows, tail = shown(path)
    assert head["baseOffset"] == 0
    assert [row["position"] for row in rows][:3] == [0, 109, 1002]
    first = {key: rows[2][key] for key in ("baseOffset", "lastOffset", "count", "producerId", "producerEpoch")}
    assert first == {"baseOffset": 10, "lastOffset": 16, "count": 7, "producerId": 4, "producerEpoch": 0}
    assert {row["controlType"] for row in rows if row["isControl"]} == {"ABORT", "COMMIT"}
    assert all("coordinatorEpoch" in row for row in rows if row["isControl"])
    assert tail == {"batches": len(rows), "endOffset": 158, "validBytes": path.stat().st_size, "bytesAfter": 0}


def test_legacy_messages_have_no_producer(fixture_set: Callable[[str], FixtureSet]) -> None:
    _, rows, _ = shown(fixture_set("kafka-2.7.2").data / "legacy-0" / "00000000000000000000.log")
    assert rows[0]["magic"] == 0
    assert "producerId" not in rows[0]


def test_a_snapshot_is_shown_entry_by_entry(payments: Path) -> None:
    path = payments / "00000000000000001107.snapshot"
    head, rows, _ = shown(path)
    assert (head["offset"], head["producers"]) == (1107, 12)
    expected = load_snapshot(path)
    assert {row["producerId"]: row["lastSequence"] for row in rows} == {
        producer_id: entry.last_sequence if entry.last_offset >= 0 else None for producer_id, entry in expected.items()
    }
    assert all(row["currentTxnFirstOffset"] is None or row["currentTxnFirstOffset"] >= 0 for row in rows)


def test_first_sequence_wraps_as_kafkas_does(tmp_path: Path, payments: Path) -> None:
    entry = next(iter(load_snapshot(payments / "00000000000000001107.snapshot").values()))
    wrapped = entry._replace(last_sequence=3, last_offset=100, offset_delta=9)
    path = tmp_path / "00000000000000000101.snapshot"
    path.write_bytes(snapshot_bytes([wrapped]))
    _, rows, _ = shown(path)
    assert rows[0]["firstSequence"] == 2**31 - 6


def test_padding_of_an_active_index_is_counted_and_not_shown(fixture_set: Callable[[str], FixtureSet]) -> None:
    padded = [
        path for path in fixture_set("kafka-2.7.2-killed").data.rglob("*.index") if path.stat().st_size > 10_000_000
    ]
    head, rows, _ = shown(padded[0])
    assert head["paddingBytes"] > 10_000_000
    assert all(row["position"] for row in rows)


def test_an_object_of_a_store_is_inspected_by_its_url(payments: Path) -> None:
    store = MemoryObjectStore("inspection", "p")
    path = payments / "00000000000000000158.log"
    store.put(f"topic/{path.name}", path.read_bytes())
    head, rows, _ = shown(f"memory://inspection/p/topic/{path.name}")
    _, expected, _ = shown(path)
    assert rows == expected
    assert head["baseOffset"] == 158


def test_a_limit_reads_no_further(payments: Path) -> None:
    head, rows, tail = shown(payments / "00000000000000000000.log", limit=2)
    assert (len(rows), head["limit"]) == (2, 2)
    assert tail["bytesAfter"] > 0


def test_a_large_segment_is_never_held(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    filler = [b"x" * 64_000]
    with path.open("wb") as file:
        for offset in range(640):
            file.write(a_batch(offset=offset, base_sequence=offset, values=filler))
    tracemalloc.start()
    counts: Counter[type] = Counter()
    inspect(path, lambda result: counts.update([type(result)]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert counts[Reported] == 640
    assert peak < 8 << 20 < path.stat().st_size


def changed(data: bytes, position: int, byte: int) -> bytes:
    """Return ``data`` with another byte at a position, which may count from the end."""
    copy = bytearray(data)
    copy[position] = byte
    return bytes(copy)


FIRST, SECOND = a_batch(offset=0), a_batch(offset=1, base_sequence=1)
SNAPSHOT = snapshot_bytes([ProducerEntry(pid, 0, 4, 4, 4, 1_700_000_000_000, -1, -1) for pid in range(12)])


@each(
    ("name", "content", "rows", "position", "damage"),
    [
        ("0.log", FIRST + changed(a_marker(offset=1), -3, 9), 1, len(FIRST), "record batch checksum (CRC-32C)"),
        ("0.log", FIRST + changed(SECOND, 16, 9) + SECOND, 1, len(FIRST) + 16, "message magic"),
        ("0.log", SECOND + SECOND, 1, len(SECOND), "expected at least 2, found 1"),
        ("2.log", SECOND, 0, 0, "expected at least 2, found 1"),
        ("7.snapshot", SNAPSHOT[:-1], 11, len(SNAPSHOT) - 1, "producer snapshot length"),
        ("7.snapshot", changed(SNAPSHOT, -1, 9), 12, 2, "checksum"),
        *(("7.snapshot", content, 0, 0, "") for content in (b"", b"\0\1", b"\0\1" + bytes(7), b"\0\2" + bytes(8))),
        ("replication-offset-checkpoint", b"0\n2\npayments 0 17\n", 0, 2, "expected 2 entries"),
    ],
)
def test_what_comes_before_damage_is_shown_and_the_damage_is_reported_with_its_place(
    *, name: str, content: bytes, rows: int, position: int, damage: str, tmp_path: Path
) -> None:
    number, dot, suffix = name.partition(".")
    path = tmp_path / (f"{int(number):020d}.{suffix}" if dot else name)
    path.write_bytes(content)
    found, error = damaged(path)
    assert len(found) == rows
    assert damage in str(error)
    assert error.position == position or not damage, error


def test_a_flipped_byte_in_a_record_shows_only_with_verify_crc(tmp_path: Path) -> None:
    batch = bytearray(a_batch(offset=0))
    batch[-1] ^= 1
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(batch)
    assert len(shown(path)[1]) == 1
    assert damaged(path, verify_crc=True)[1].position == 0


def test_a_torn_tail_is_damage_in_a_closed_segment_only(tmp_path: Path) -> None:
    whole, torn = a_batch(offset=0), a_batch(offset=1, base_sequence=1)[:-1]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(whole + torn)
    assert shown(path)[2]["bytesAfter"] == len(torn)
    (tmp_path / "00000000000000000002.log").write_bytes(b"")
    rows, error = damaged(path)
    assert (len(rows), error.position) == (1, len(whole))


def test_zeros_after_the_last_batch_are_not_damage(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(a_batch(offset=0) + bytes(3_000_000))
    (tmp_path / "00000000000000000002.log").write_bytes(b"")
    assert shown(path)[2]["bytesAfter"] == 3_000_000
    path.write_bytes(a_batch(offset=0) + bytes(3_000_000) + b"x")
    assert damaged(path)[1].position == len(a_batch(offset=0))


def test_an_index_that_points_past_the_end_of_its_log_is_damage(tmp_path: Path, payments: Path) -> None:
    name = "00000000000000000158"
    (tmp_path / f"{name}.index").write_bytes((payments / f"{name}.index").read_bytes())
    (tmp_path / f"{name}.log").write_bytes((payments / f"{name}.log").read_bytes()[:5000])
    rows, error = damaged(tmp_path / f"{name}.index")
    assert rows
    assert all(row["position"] < 5000 for row in rows)
    assert error.what == "offset index position"


@each(
    ("name", "kind"),
    [
        ("00000000000000000158.log", Kind.SEGMENT),
        ("00000000000000000158.log.deleted", Kind.SEGMENT),
        ("00000000000000000158.timeindex.swap", Kind.TIME_INDEX),
        ("158_zNudbpADS06w3fwOa68uQw.timeindex", Kind.TIME_INDEX),
        ("158_zNudbpADS06w3fwOa68uQw.txnindex", Kind.TRANSACTION_INDEX),
        ("00000000000000000158-6f1ed002-ab5f-5c0b-9f0e-3b1f5d3c2a11.snapshot", Kind.SNAPSHOT),
        ("00000000000000000158-6f1ed002-ab5f-5c0b-9f0e-3b1f5d3c2a11.leader-epoch-checkpoint", Kind.LEADER_EPOCHS),
        ("00000000000000000158-6f1ed002-ab5f-5c0b-9f0e-3b1f5d3c2a11.manifest", Kind.MANIFEST),
        ("leader-epoch-checkpoint", Kind.LEADER_EPOCHS),
        ("log-start-offset-checkpoint", Kind.OFFSET_CHECKPOINT),
        ("server.log", None),
    ],
)
def test_the_kind_follows_from_the_name(name: str, kind: Kind | None) -> None:
    assert kind_by_name(name) is kind


def test_the_kind_follows_from_content_where_the_name_does_not_say_it(fixture_set: Callable[[str], FixtureSet]) -> None:
    indexes = {Kind.OFFSET_INDEX, Kind.TIME_INDEX, Kind.TRANSACTION_INDEX}
    seen = set()
    for path in fixture_set("kafka-2.7.2-then-3.9.1").data.rglob("*"):
        kind = kind_by_name(path.name)
        if kind is None or kind in indexes or not path.stat().st_size:
            continue
        with FileReader(str(path)) as reader:
            assert kind_by_content(reader) is kind, path
        seen.add(kind)
    elsewhere = {Kind.MANIFEST, Kind.RSM_MANIFEST, Kind.RSM_INDEXES, Kind.TRANSACTION_STATE, Kind.QUORUM_STATE}
    assert seen == set(Kind) - indexes - elsewhere


def test_what_cannot_be_recognised_needs_a_kind(tmp_path: Path, payments: Path) -> None:
    path = tmp_path / "copy"
    path.write_bytes((payments / "00000000000000000158.timeindex").read_bytes())
    with pytest.raises(UsageError) as caught:
        shown(path)
    assert "--kind" in str(caught.value.hint)
    _, rows, _ = shown(path, kind=Kind.TIME_INDEX)
    assert rows[0].keys() == {"timestamp", "relativeOffset"}


def test_an_index_that_a_broker_has_fetched_is_shown_as_that_of_the_segment(tmp_path: Path, payments: Path) -> None:
    fetched = tmp_path / "158_zNudbpADS06w3fwOa68uQw.timeindex"
    fetched.write_bytes((payments / "00000000000000000158.timeindex").read_bytes())
    assert shown(fetched)[1] == shown(payments / "00000000000000000158.timeindex")[1]


def test_a_file_of_another_kind_than_was_asked_for_is_not_called_damaged(
    command: Resnap, payments: Path, tmp_path: Path
) -> None:
    log = min(payments.glob("*.log"))
    for path in (log, shutil.copy(log, tmp_path / "renamed")):
        ran = command("inspect", path, "--kind", "snapshot")
        assert (ran.code, f"{path} is no snapshot" in ran.err, "what it is: log" in ran.err) == (2, True, True), ran.err
    damaged = tmp_path / f"{1:020d}.snapshot"
    damaged.write_bytes(b"\0" + min(payments.glob("*.snapshot")).read_bytes())
    assert command("inspect", damaged, "--kind", "snapshot").code == 1


def test_a_directory_or_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        shown(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        shown(tmp_path / "nowhere.log")


def test_a_segment_of_transaction_state_is_shown_by_its_records(command: Resnap, tmp_path: Path) -> None:
    payments = TopicPartition("payments", 3)
    path = write_segment(
        tmp_path, 7, [(7, "ledger", step(4000, TransactionState.ONGOING, payments)), (9, "old one", None)]
    )
    ran = command("inspect", path, "--kind", "transaction-state", "--output", "json")
    first, second = ran.document["records"]
    assert (ran.code, second) == (
        0, {"offset": 9, "transactionalId": "old one", "version": None, "isUnknown": False},
    )  # fmt: skip
    assert (first["transactionalId"], first["producerId"], first["state"]) == ("ledger", 4000, "Ongoing")
    assert (first["startTimestamp"], first["partitions"]) == (NOW_MS, ["payments-3"])
    table = command("inspect", path, "--kind", "transaction-state").out
    assert "2023-11-14T22:13:20.000Z" in table
    path.write_bytes(path.read_bytes()[:-1])
    write_segment(tmp_path, 20, [])
    assert command("inspect", path, "--kind", "transaction-state").code == 1


def test_a_snapshot_names_transactional_ids_where_the_log_dir_has_their_topic(
    command: Resnap, broker_log: Path
) -> None:
    path = next(path for path in sorted((broker_log / "payments-0").glob("*.snapshot")) if load_snapshot(path))
    plain = command("inspect", path, "--output", "json").document["entries"]
    assert not any("transactionalId" in row for row in plain)
    producer_id = plain[0]["producerId"]
    write_segment(broker_log, 0, [(0, "ledger", step(producer_id))], number=9)
    named = command("inspect", path, "--output", "json").document["entries"]
    assert [row.pop("transactionalId") for row in named] == ["ledger"] + [None] * (len(plain) - 1)
    assert named == plain


def test_the_state_of_a_quorum_is_shown_with_its_voters(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    path = fixture_set("kafka-3.9.1-kraft").data / "__cluster_metadata-0" / "quorum-state"
    head, rows, _ = shown(path)
    assert (head["kind"], head["leaderId"], head["data_version"]) == ("quorum-state", 1, 0)
    assert rows == [{"voterId": 1}]
    renamed = tmp_path / "copy"
    renamed.write_text('{"leaderId":2,"leaderEpoch":7,"votedId":-1,"votedDirectoryId":"AA","data_version":1}')
    head, rows, _ = shown(renamed)
    assert (head["kind"], head["leaderEpoch"], rows) == ("quorum-state", 7, [])
    renamed.write_text('{"leaderId":2,"leaderEpoch":"x"}')
    assert damaged(renamed)[0] == []


def test_what_is_no_file_is_refused_as_such_and_not_as_one_without_permission(command: Resnap) -> None:
    ran = command("inspect", "/dev/null")
    assert ran.code == 1
    assert "/dev/null: cannot be read: not a regular file\nhint: only regular files are read" in ran.err
