from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.log.names import (
    MAX_OFFSET,
    MAX_PARTITION,
    DirKind,
    FileKind,
    FileState,
    LogFile,
    PartitionDirName,
    TopicPartition,
    is_unknown_directory,
    is_unknown_file,
    parse_file_name,
    parse_partition_dir_name,
    segment_name,
    topic_name_problem,
)
from tests.cases import each

UNIQUE = "0123456789abcdef0123456789abcdef"

offsets = st.integers(0, MAX_OFFSET)
topics = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(lambda topic: topic not in {".", ".."})
partitions = st.integers(0, MAX_PARTITION)


def live(topic: str, partition: int) -> PartitionDirName:
    return PartitionDirName(topic=topic, partition=partition, kind=DirKind.LIVE, unique=None)


def test_a_segment_name_has_twenty_digits() -> None:
    assert segment_name(0, ".log") == "00000000000000000000.log"
    assert segment_name(MAX_OFFSET, ".snapshot") == "09223372036854775807.snapshot"


def test_a_suffix_may_come_without_its_dot() -> None:
    assert segment_name(7, "snapshot.tmp") == segment_name(7, ".snapshot.tmp") == "00000000000000000007.snapshot.tmp"


@pytest.mark.parametrize("offset", [-1, MAX_OFFSET + 1])
def test_an_invalid_offset_has_no_segment_name(offset: int) -> None:
    with pytest.raises(ValueError, match="offset"):
        segment_name(offset, ".log")


@given(offsets, st.sampled_from(FileKind), st.sampled_from(FileState))
def test_a_file_name_round_trips(offset: int, kind: FileKind, state: FileState) -> None:
    name = segment_name(offset, f".{kind}" + (f".{state}" if state else ""))
    assert parse_file_name(name) == LogFile(kind, offset, state)


def test_the_digits_of_another_locale_are_read() -> None:
    arabic = segment_name(42, ".log").translate({ord("0") + digit: 0x660 + digit for digit in range(10)})
    assert parse_file_name(arabic) == LogFile(FileKind.LOG, 42, FileState.LIVE)


@each(
    "name",
    [
        "",
        "leader-epoch-checkpoint",
        "partition.metadata",
        "00000000000000000000",
        "00000000000000000000.",
        "00000000000000000000.logs",
        "00000000000000000000-log",
        "00000000000000000000.log.old",
        "00000000000000000000.log.deleted.deleted",
        "0000000000000000000.log",
        "000000000000000000000.log",
        "0000000000000000000x.log",
        "-0000000000000000001.log",
        "+0000000000000000001.log",
        "09223372036854775808.log",
        "00000000000000000104-0000000002.checkpoint",
    ],
)
def test_other_file_names_are_not_segment_files(name: str) -> None:
    assert parse_file_name(name) is None


@given(topics, partitions)
def test_a_partition_directory_is_read_back_from_its_topic_and_partition(topic: str, partition: int) -> None:
    name = str(TopicPartition(topic, partition))
    assert name == f"{topic}-{partition}"
    assert parse_partition_dir_name(name) == live(topic, partition)


@pytest.mark.parametrize(
    ("name", "topic", "partition"),
    [
        ("dash-ed.topic_1-0", "dash-ed.topic_1", 0),
        ("meta-3-1", "meta-3", 1),
        ("a--12", "a-", 12),
        ("old-delete-0", "old-delete", 0),
        ("x-future-2147483647", "x-future", MAX_PARTITION),
    ],
)
def test_the_last_dash_parts_topic_and_partition(name: str, topic: str, partition: int) -> None:
    assert parse_partition_dir_name(name) == live(topic, partition)


@pytest.mark.parametrize("kind", [DirKind.DELETE, DirKind.FUTURE, DirKind.STRAY])
def test_a_directory_set_aside_keeps_topic_partition_and_its_unique_digits(kind: DirKind) -> None:
    found = parse_partition_dir_name(f"dash-ed.topic_1-12.{UNIQUE}-{kind}")
    assert found == PartitionDirName(topic="dash-ed.topic_1", partition=12, kind=kind, unique=UNIQUE)
    assert found.topic_partition == TopicPartition("dash-ed.topic_1", 12)


def test_a_deleted_topic_with_a_long_name_shows_only_its_front() -> None:
    suffix = f"-7.{UNIQUE}-delete"
    found = parse_partition_dir_name("t" * (255 - len(suffix)) + suffix)
    assert found is not None
    assert found.topic == "t" * 213
    assert found.kind is DirKind.DELETE


@each(
    "name",
    [
        "",
        "payments",
        "-0",
        "payments-",
        "payments-x",
        "payments-+1",
        "payments-01",
        "payments-\u0661",
        f"payments-{MAX_PARTITION + 1}",
        "pay ments-0",
        ".-0",
        "..-0",
        "t" * 250 + "-0",
        "remote-log-index-cache",
        "lost+found",
        f"payments-0.{UNIQUE}-gone",
        f"payments-0.{UNIQUE.upper()}-delete",
        f"payments-0.{UNIQUE[:-1]}-delete",
        f"payments.{UNIQUE}-delete",
        "payments-0-delete",
    ],
)
def test_other_directory_names_are_not_partitions(name: str) -> None:
    assert parse_partition_dir_name(name) is None


@pytest.mark.parametrize(
    ("name", "is_unknown"),
    [
        *((name, True) for name in ("lost+found", "backup", "-0", "t-", "t-99999999999", "t-x", "a.b-delete")),
        *((name, True) for name in ("my-delete", "t-0-stray", f"t-0.a.{UNIQUE}-delete", "t 0.x-future")),
        *((name, False) for name in ("t-0", "t--1", "t-01", "t-+1", "we ird-0", "..-0", ".Trash-1000", "t-\u0663")),
        *((name, False) for name in (f"t-0.{UNIQUE}-delete", "t-0.zz-stray", "t-0.abc-future")),
        *((name, False) for name in ("remote-log-index-cache", "__cluster_metadata-0", "t-2147483647")),
    ],
)
def test_a_broker_does_not_start_with_a_directory_that_it_takes_for_no_partition(name: str, is_unknown: bool) -> None:
    assert is_unknown_directory(name) is is_unknown


@pytest.mark.parametrize(
    ("name", "is_unknown"),
    [
        *((f"copy.{kind}", True) for kind in ("log", "index", "timeindex", "txnindex", "snapshot", "swap", "cleaned")),
        *((name, True) for name in ("00000000000000000000-copy.log", "99999999999999999999.log", " 5.log", ".log")),
        *((name, True) for name in ("copy.log.swap", f"{2**63}.snapshot")),
        *((name, False) for name in ("0.log", "-5.log", "00000000000000000005.old.log", f"{2**63 - 1}.snapshot")),
        *((name, False) for name in ("00000000000000000000.log.bak", "copy.log.deleted", "old.snapshot.deleted")),
        *((name, False) for name in ("x.txt", "leader-epoch-checkpoint.bak", "leader-epoch-checkpoint")),
    ],
)
def test_a_broker_does_not_start_with_a_file_of_a_segment_that_has_no_offset(name: str, is_unknown: bool) -> None:
    assert is_unknown_file(name) is is_unknown


@pytest.mark.parametrize(
    ("topic", "says"),
    [("", "empty"), (".", "neither"), ("..", "neither"), ("t" * 250, "249"), ("a b", "ASCII"), ("caf\u00e9", "ASCII")],
)
def test_a_topic_name_that_kafka_refuses_is_refused_with_the_reason(topic: str, says: str) -> None:
    assert says in (topic_name_problem(topic) or "")


@given(topics)
def test_a_topic_name_that_kafka_takes_has_no_problem(topic: str) -> None:
    assert topic_name_problem(topic) is None


def test_topic_partitions_sort_by_number_and_not_by_digits() -> None:
    assert sorted([TopicPartition("a", 10), TopicPartition("a", 9)]) == [
        TopicPartition("a", 9),
        TopicPartition("a", 10),
    ]
