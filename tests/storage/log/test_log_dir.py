from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from resnap.storage.errors import FormatError, LogDirError, UsageError
from resnap.storage.log.log_dir import load_log_dir, load_partition_dir, open_log_dir_or_partition
from resnap.storage.log.names import DirKind, TopicPartition, segment_name
from resnap.storage.log.partition_dir import Checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet

UNIQUE = "0123456789abcdef0123456789abcdef"
PAYMENTS = TopicPartition("payments", 0)


def make_partition(log_dir: Path, name: str, *files: str) -> Path:
    directory = log_dir / name
    directory.mkdir(parents=True)
    for file in files:
        (directory / file).write_bytes(b"x" * len(file))
    return directory


def make_segments(log_dir: Path, name: str, *base_offsets: int) -> Path:
    files = [segment_name(base, suffix) for base in base_offsets for suffix in (".log", ".index", ".timeindex")]
    return make_partition(log_dir, name, *files)


def base_offsets(path: Path) -> list[int]:
    return [segment.base_offset for segment in load_partition_dir(path).segments]


def test_a_real_log_dir_shows_its_broker_and_partitions(fixture_set: Callable[[str], FixtureSet]) -> None:
    log_dir = load_log_dir(fixture_set("kafka-2.7.2").data)
    assert (log_dir.cluster_id, log_dir.broker_id, log_dir.clean_shutdown) == ("z5W3VT5QSCibauYNT3y0NQ", 1, True)
    assert [str(partition.topic_partition) for partition in log_dir.partitions] == [
        "compacted-0", "dash-ed.topic_1-0", "legacy-0", "orders-0", "payments-0", "payments-1",
    ]  # fmt: skip
    assert (log_dir.set_aside, log_dir.problems) == ({}, ())


def test_a_real_partition_shows_what_its_checkpoints_say(fixture_set: Callable[[str], FixtureSet]) -> None:
    compacted, *others = load_log_dir(fixture_set("kafka-2.7.2").data).partitions
    assert (compacted.high_watermark, compacted.recovery_point, compacted.cleaner_offset) == (800, 800, 790)
    checkpoint = str(compacted.path / "leader-epoch-checkpoint")
    assert (compacted.log_start_offset, compacted.topic_id, compacted.leader_epochs) == (0, None, checkpoint)
    assert (compacted.deleted, compacted.unfinished) == (39, ())
    assert {partition.cleaner_offset for partition in others} == {None}


@pytest.mark.parametrize("name", ["kafka-2.7.2", "kafka-2.7.2-then-3.9.1", "kafka-3.9.1-kraft"])
def test_a_real_partition_shows_every_live_file_with_its_length(
    name: str, fixture_set: Callable[[str], FixtureSet]
) -> None:
    for partition in load_log_dir(fixture_set(name).data).partitions:
        found = {segment.path: segment.size_bytes for segment in partition.segments}
        found |= {snapshot.path: snapshot.size_bytes for snapshot in partition.snapshots}
        for segment in partition.segments:
            lengths = (segment.index_bytes, segment.timeindex_bytes, segment.txnindex_bytes)
            for suffix, length in zip(("index", "timeindex", "txnindex"), lengths, strict=True):
                found |= {} if length is None else {segment.sibling(suffix): length}
        there = {str(path): path.stat().st_size for path in partition.path.glob("0*") if path.suffix != ".deleted"}
        assert found == there


def test_a_killed_broker_left_no_clean_shutdown_and_padded_indexes(fixture_set: Callable[[str], FixtureSet]) -> None:
    log_dir = load_log_dir(fixture_set("kafka-2.7.2-killed").data)
    assert not log_dir.clean_shutdown
    active = {partition.segments[-1].index_bytes for partition in log_dir.partitions}
    assert active == {10_485_760}


def test_each_segment_ends_where_the_next_begins_and_the_last_is_active(tmp_path: Path) -> None:
    partition = load_partition_dir(make_segments(tmp_path, "payments-0", 100, 9, 25))
    assert [(s.base_offset, s.next_base_offset, s.is_active) for s in partition.segments] == [
        (9, 25, False),
        (25, 100, False),
        (100, None, True),
    ]
    assert partition.boundaries == (25, 100)


def test_a_segment_carries_what_the_file_system_says_of_its_log(tmp_path: Path) -> None:
    (segment,) = load_partition_dir(make_segments(tmp_path, "payments-0", 5)).segments
    status = Path(segment.path).stat()
    assert (segment.size_bytes, segment.mtime_ns, segment.inode) == (status.st_size, status.st_mtime_ns, status.st_ino)
    assert (segment.index_bytes, segment.txnindex_bytes) == (len("00000000000000000005.index"), None)


def test_a_snapshot_is_found_by_its_exact_offset(tmp_path: Path) -> None:
    names = [segment_name(offset, ".snapshot") for offset in (30, 7, 12)]
    partition = load_partition_dir(make_partition(tmp_path, "payments-0", *names))
    assert [snapshot.offset for snapshot in partition.snapshots] == [7, 12, 30]


def test_a_partition_without_a_segment_is_legal(tmp_path: Path) -> None:
    make_partition(tmp_path, "payments-0")
    (partition,) = load_log_dir(tmp_path).partitions
    assert (partition.segments, partition.boundaries, partition.log_start_offset) == ((), (), 0)


def test_files_in_the_middle_of_a_change_are_distinguished(tmp_path: Path) -> None:
    names = [
        "00000000000000000000.log.swap",
        "00000000000000000000.index.cleaned",
        "00000000000000000007.log.deleted",
        "00000000000000000007.snapshot.deleted",
        "00000000000000000009.snapshot.tmp",
        "00000000000000000009.log",
    ]
    partition = load_partition_dir(make_partition(tmp_path, "payments-0", *names))
    assert partition.unfinished == ("00000000000000000000.index.cleaned", "00000000000000000000.log.swap")
    assert partition.deleted == 2
    assert [segment.base_offset for segment in partition.segments] == [9]
    assert partition.snapshots == ()


def test_a_directory_or_a_dangling_link_with_a_files_name_is_not_a_file(tmp_path: Path) -> None:
    partition = make_segments(tmp_path, "payments-0", 0)
    (partition / segment_name(5, ".snapshot")).mkdir()
    (partition / segment_name(6, ".snapshot")).symlink_to(tmp_path / "gone")
    found = load_partition_dir(partition)
    assert (len(found.segments), found.snapshots) == (1, ())


@pytest.mark.parametrize(
    "stand_in",
    [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("gone")],
    ids=["directory", "pipe", "dangling link"],
)
def test_a_log_name_that_is_not_a_file_does_not_end_the_segment_below(
    stand_in: Callable[[Path], None], tmp_path: Path
) -> None:
    """What it held, or holds where its disk is mounted, is of the log: without it all snapshots above may be wrong."""
    partition = make_segments(tmp_path, "payments-0", 0, 10, 20)
    log = partition / segment_name(10, ".log")
    log.unlink()
    stand_in(log)
    with pytest.raises(LogDirError) as met:
        load_partition_dir(partition)
    assert str(met.value) == f"cannot read {log}: not a regular file"
    assert "put the broker's own file in its place" in str(met.value.hint)


def test_the_log_start_offset_comes_from_the_checkpoint_before_the_first_segment(tmp_path: Path) -> None:
    path = make_segments(tmp_path, "payments-0", 40, 80)
    assert load_partition_dir(path).log_start_offset == 40
    checkpoints = Checkpoints(log_start_offsets={PAYMENTS: 55})
    assert load_partition_dir(path, checkpoints=checkpoints).log_start_offset == 55


class VanishingFiles:
    """Removes files when the first of them is opened, as a live broker may between a listing and a stat."""

    def __init__(self, *, when: str, gone: list[str]) -> None:
        self._stat, self._when, self._gone = os.stat, when, gone

    def __call__(self, path: Any, **options: Any) -> os.stat_result:
        if path == self._when:
            for file in self._gone:
                os.unlink(file, **options)
        return self._stat(path, **options)


@pytest.mark.parametrize(
    ("when", "gone", "left"),
    [
        (30, [0, 10], [(20, 30), (30, None)]),
        (10, [0, 10], [(20, 30), (30, None)]),
        (20, [20, 30], [(0, 10), (10, 20), (30, None)]),
        (30, [20, 30], [(0, 10), (10, None)]),
        (20, [20], [(0, 10), (10, 20), (30, None)]),
    ],
    ids=["retention", "retention, half seen", "truncation, half seen", "truncation", "out of the middle"],
)
def test_a_log_that_vanishes_after_the_listing_is_not_there(
    when: int, gone: list[int], left: list[tuple[int, int | None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_segments(tmp_path, "payments-0", 0, 10, 20, 30)
    files = [segment_name(base_offset, ".log") for base_offset in gone]
    monkeypatch.setattr(
        "resnap.storage.log.partition_dir.os.stat", VanishingFiles(when=segment_name(when, ".log"), gone=files)
    )
    segments = load_partition_dir(path).segments
    assert [(segment.base_offset, segment.next_base_offset) for segment in segments] == left


def test_an_index_that_vanishes_after_the_listing_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_segments(tmp_path, "payments-0", 0)
    vanishing = VanishingFiles(when=segment_name(0, ".log"), gone=[segment_name(0, ".index")])
    monkeypatch.setattr("resnap.storage.log.partition_dir.os.stat", vanishing)
    (segment,) = load_partition_dir(path).segments
    assert (segment.index_bytes, segment.timeindex_bytes) == (None, len("00000000000000000000.timeindex"))


def test_a_partition_that_vanishes_after_the_listing_is_not_there(tmp_path: Path) -> None:
    make_segments(tmp_path, "payments-0", 0)
    doomed = make_partition(tmp_path, "orders-0")

    def all_but_the_doomed_stay(topic_partition: TopicPartition) -> bool:
        if topic_partition.topic == "orders":
            doomed.rmdir()
        return True

    log_dir = load_log_dir(tmp_path, topics=all_but_the_doomed_stay)
    assert [partition.topic_partition for partition in log_dir.partitions] == [PAYMENTS]
    assert log_dir.problems == ()


def test_directories_that_are_not_partitions_are_listed_by_kind(tmp_path: Path) -> None:
    names = {
        "__cluster_metadata-0": DirKind.METADATA,
        f"a-0.{UNIQUE}-delete": DirKind.DELETE,
        f"b-0.{UNIQUE}-future": DirKind.FUTURE,
        f"c-0.{UNIQUE}-stray": DirKind.STRAY,
        "remote-log-index-cache": DirKind.NOT_A_LOG,
    }
    for name in (*names, "payments-0"):
        make_segments(tmp_path, name, 0)
    log_dir = load_log_dir(tmp_path)
    assert log_dir.set_aside == names
    assert [partition.topic_partition for partition in log_dir.partitions] == [PAYMENTS]


def test_partitions_sort_by_number_and_not_by_digits(tmp_path: Path) -> None:
    for partition in (10, 9, 0):
        make_partition(tmp_path, f"a-{partition}")
    assert [p.topic_partition.partition for p in load_log_dir(tmp_path).partitions] == [0, 9, 10]


def test_only_the_selected_partitions_are_read(tmp_path: Path) -> None:
    make_segments(tmp_path, "payments-0", 0)
    (make_partition(tmp_path, "orders-0") / "partition.metadata").write_bytes(b"damaged")
    log_dir = load_log_dir(tmp_path, topics=lambda topic_partition: topic_partition.topic == "payments")
    assert [partition.topic_partition for partition in log_dir.partitions] == [PAYMENTS]
    assert log_dir.problems == ()


def test_a_partition_directory_may_be_a_link(tmp_path: Path) -> None:
    elsewhere = make_segments(tmp_path / "elsewhere", "payments-0", 0)
    (tmp_path / "log-dir").mkdir()
    (tmp_path / "log-dir/payments-0").symlink_to(elsewhere)
    (partition,) = load_log_dir(tmp_path / "log-dir").partitions
    assert len(partition.segments) == 1


def test_a_damaged_checkpoint_is_a_problem_and_leaves_its_values_unknown(tmp_path: Path) -> None:
    make_segments(tmp_path, "payments-0", 20)
    damaged = tmp_path / "replication-offset-checkpoint"
    damaged.write_bytes(b"0\n2\npayments 0 90\n")
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(b"0\n1\npayments 0 80\n")
    log_dir = load_log_dir(tmp_path)
    (partition,) = log_dir.partitions
    assert (partition.high_watermark, partition.recovery_point) == (None, 80)
    (problem,) = log_dir.problems
    assert problem.path == damaged
    assert isinstance(problem.error, FormatError)
    assert problem.error.file == str(damaged)
    assert "no other replica has it" in str(problem.error.hint)


@pytest.mark.parametrize("name", ["cleaner-offset-checkpoint", "log-start-offset-checkpoint", "meta.properties"])
def test_a_file_that_speaks_for_the_log_dir_and_cannot_be_read_ends_it(name: str, tmp_path: Path) -> None:
    """Without it a compacted topic would be taken for another, and a log for that of no cluster."""
    (tmp_path / name).mkdir()  # opens, and gives an error when read, also to root
    with pytest.raises(LogDirError, match=name):
        load_log_dir(tmp_path)


def test_a_partition_that_the_system_cannot_read_is_a_problem(tmp_path: Path) -> None:
    make_segments(tmp_path, "payments-0", 0)
    loop = tmp_path / "orders-0"
    loop.symlink_to(loop)
    log_dir = load_log_dir(tmp_path)
    assert len(log_dir.partitions) == 1
    (problem,) = log_dir.problems
    assert isinstance(problem.error, LogDirError)
    assert str(problem.error).startswith(f"cannot read {loop}: ")


def test_a_source_may_be_one_partition_with_the_checkpoints_above_it(fixture_set: Callable[[str], FixtureSet]) -> None:
    whole = load_log_dir(fixture_set("kafka-2.7.2").data)
    for partition in whole.partitions:
        lone = open_log_dir_or_partition(partition.path)
        assert lone.partitions == (partition,)
        assert (lone.path, lone.cluster_id, lone.clean_shutdown) == (whole.path, whole.cluster_id, True)


def test_a_source_may_be_a_log_dir_however_it_is_named(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = fixture_set("kafka-2.7.2").data
    assert open_log_dir_or_partition(data) == load_log_dir(data)
    (tmp_path / "kafka-1").symlink_to(data)
    assert len(open_log_dir_or_partition(tmp_path / "kafka-1").partitions) == 6


def test_a_source_may_be_copied_partitions_without_a_brokers_files(tmp_path: Path) -> None:
    make_segments(tmp_path, "payments-0", 0)
    log_dir = open_log_dir_or_partition(tmp_path)
    assert ([p.topic_partition for p in log_dir.partitions], log_dir.cluster_id) == ([PAYMENTS], None)


def test_a_lone_partition_without_anything_above_it_is_read(tmp_path: Path) -> None:
    make_segments(tmp_path, "payments-0", 3, 9)
    log_dir = open_log_dir_or_partition(tmp_path / "payments-0")
    (partition,) = log_dir.partitions
    assert (partition.boundaries, partition.high_watermark, log_dir.problems) == ((9,), None, ())


def test_a_lone_partition_that_is_not_wanted_is_not_there(tmp_path: Path) -> None:
    path = make_segments(tmp_path, "payments-0", 0)
    assert open_log_dir_or_partition(path, topics=lambda _: False).partitions == ()


def test_paths_are_absolute_wherever_the_source_was_named_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_segments(tmp_path, "payments-0", 0)
    monkeypatch.chdir(tmp_path)
    for log_dir in (load_log_dir(Path()), open_log_dir_or_partition(Path("payments-0"))):
        (partition,) = log_dir.partitions
        assert log_dir.path == tmp_path
        assert partition.segments[0].path == str(tmp_path / "payments-0/00000000000000000000.log")


@pytest.mark.parametrize(
    "files", [[], ["unrelated/file"], ["payments-0/00000000000000000007.snapshot"], ["project-2/README"], ["project-2"]]
)
def test_a_source_that_is_neither_log_dir_nor_partition_is_a_usage_error(files: list[str], tmp_path: Path) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(UsageError, match="neither a Kafka log dir nor") as caught:
        open_log_dir_or_partition(tmp_path)
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("backup", "is not that of a partition"),
        ("__cluster_metadata-0", r"set aside by Kafka \(metadata\)"),
        (f"a-0.{UNIQUE}-stray", r"set aside by Kafka \(stray\)"),
    ],
)
def test_segments_under_a_name_that_is_not_a_live_partitions_are_refused(name: str, says: str, tmp_path: Path) -> None:
    path = make_segments(tmp_path, name, 0)
    for load in (open_log_dir_or_partition, load_partition_dir):
        with pytest.raises(UsageError, match=says) as caught:
            load(path)
        assert caught.value.hint is not None
