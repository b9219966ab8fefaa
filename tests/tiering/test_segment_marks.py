from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnap.storage.log.log_dir import load_partition_dir
from resnap.storage.sources.files import Sources
from resnap.tiering.run_cache.results import mark_of, unchanged_up_to
from tests.builders import a_partition
from tests.strategies import START_MS, DataEvent

if TYPE_CHECKING:
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.tiering.run_cache.results import SegmentMark

SOURCES = Sources()


@pytest.fixture
def partition(tmp_path: Path) -> PartitionDir:
    segments = [
        [DataEvent(producer_id=1, base_sequence=number * 30 + i, timestamp=START_MS + i, records=20) for i in range(30)]
        for number in range(4)
    ]
    return load_partition_dir(a_partition(tmp_path, segments))


def marks(partition: PartitionDir) -> tuple[SegmentMark, ...]:
    return tuple(mark for segment in partition.segments if (mark := mark_of(segment, SOURCES)))


def rewritten(path: Path, position: int) -> None:
    """Flip a byte, and put size, time and inode back."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(position, os.SEEK_END if position < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def last_header(path: Path) -> int:
    data, position, last = path.read_bytes(), 0, 0
    while position < len(data):
        last, position = position, position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return last


def test_an_unchanged_log_is_the_same_up_to_its_last_boundary(partition: PartitionDir) -> None:
    assert partition.segments[0].index_bytes
    assert unchanged_up_to(partition.segments, marks(partition), SOURCES) == partition.boundaries[-1]


@pytest.mark.parametrize("where", ["first", "last"])
def test_another_header_is_another_segment_even_where_all_file_facts_are_the_same(
    partition: PartitionDir, where: str
) -> None:
    before = marks(partition)
    path = partition.path / f"{partition.segments[1].base_offset:020d}.log"
    rewritten(path, 40 if where == "first" else last_header(path) + 40)
    again = load_partition_dir(partition.path)
    assert again.segments == partition.segments
    assert unchanged_up_to(again.segments, before, SOURCES) == partition.boundaries[0]


@pytest.mark.parametrize("where", ["first", "last"])
def test_a_file_that_a_url_names_is_identified_by_its_headers_since_it_has_no_inode(
    partition: PartitionDir, where: str
) -> None:
    path = Path(partition.segments[1].path)
    segment = replace(partition.segments[1], path=path.as_uri(), inode=0)
    before = mark_of(segment, SOURCES)
    assert before is not None
    assert mark_of(segment, SOURCES) == before
    rewritten(path, 40 if where == "first" else last_header(path) + 40)
    assert mark_of(segment, SOURCES) != before


def test_retention_may_take_the_oldest_and_nothing_in_between(partition: PartitionDir) -> None:
    before = marks(partition)
    (partition.path / f"{partition.segments[0].base_offset:020d}.log").unlink()
    assert unchanged_up_to(load_partition_dir(partition.path).segments, before, SOURCES) == partition.boundaries[-1]
    (partition.path / f"{partition.segments[2].base_offset:020d}.log").unlink()
    assert unchanged_up_to(load_partition_dir(partition.path).segments, before, SOURCES) is None


def test_a_log_of_which_nothing_is_left_is_another(partition: PartitionDir) -> None:
    before = marks(partition)
    assert unchanged_up_to(partition.segments[3:], before, SOURCES) is None
    assert unchanged_up_to((), before, SOURCES) is None


def test_a_copy_in_its_place_is_another_file(partition: PartitionDir) -> None:
    before = marks(partition)
    path = partition.path / f"{partition.segments[0].base_offset:020d}.log"
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    copy.replace(path)
    assert unchanged_up_to(load_partition_dir(partition.path).segments, before, SOURCES) is None


@pytest.mark.parametrize("index", [b"", b"\x00" * 7, b"\xff" * 8, b"\x00\x00\x00\x01\x7f\xff\xff\xff"])
def test_without_a_usable_index_the_first_header_stands_alone(partition: PartitionDir, index: bytes) -> None:
    base = partition.segments[0].base_offset
    (partition.path / f"{base:020d}.index").write_bytes(index)
    segment = load_partition_dir(partition.path).segments[0]
    mark = mark_of(segment, SOURCES)
    assert mark is not None
    rewritten(partition.path / f"{base:020d}.log", last_header(partition.path / f"{base:020d}.log") + 40)
    assert mark_of(segment, SOURCES) == mark
    rewritten(partition.path / f"{base:020d}.log", 3)
    assert mark_of(segment, SOURCES) != mark


def test_the_active_segment_and_one_that_is_gone_have_no_mark(partition: PartitionDir) -> None:
    assert mark_of(partition.segments[-1], SOURCES) is None
    (partition.path / f"{partition.segments[0].base_offset:020d}.log").unlink()
    assert mark_of(partition.segments[0], SOURCES) is None
