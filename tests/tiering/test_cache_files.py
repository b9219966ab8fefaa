from __future__ import annotations

import os
import threading
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.replay.kernel.summary import empty
from resnap.replay.plan import Coverage
from resnap.replay.scan.splits import Anchor, write_state
from resnap.replay.window import Unexplained
from resnap.storage.log.log_dir import load_partition_dir
from resnap.storage.log.producer_snapshot import LeftOut, SnapshotDigest
from resnap.tiering.judging.refusal import Reason, Refusal
from resnap.tiering.run_cache.results import CachedBoundary, CachedRefusals, CachedResults, SegmentMark
from resnap.tiering.run_cache.run_cache import (
    FILE,
    CacheFiles,
    decode_manifests,
    decode_results,
    encode_manifests,
    encode_results,
)
from tests.builders import a_partition
from tests.strategies import START_MS, PlainEvent

if TYPE_CHECKING:
    from resnap.storage.log.partition_dir import PartitionDir


@pytest.fixture
def partition(tmp_path: Path) -> PartitionDir:
    return load_partition_dir(a_partition(tmp_path, [[PlainEvent(records=1, timestamp=START_MS)]]))


def boundary(offset: int) -> CachedBoundary:
    return CachedBoundary(
        offset=offset,
        as_of_ms=START_MS,
        made_ms=START_MS + 1,
        coverage=Coverage.WINDOW,
        window_start_offset=0,
        known_from_offset=0,
        entries=3,
        digest=SnapshotDigest(size_bytes=10, crc32c=7, sha256="ab"),
        left_out=(LeftOut(5, Unexplained.BATCH),),
        evidence="cd",
        proven="ef",
    )


def results(directory: Path, offset: int = 10) -> CachedResults:
    state = write_state(str(directory), f"{offset}.state", empty())
    assert state is not None
    anchor = Anchor(
        offset=offset, read_from=0, known_from=0, seen_since_ms=None, touched_until_ms=4, cut_through=frozenset({3, 1}),
        oldest_clock_ms=None, clock_ms=-1, last_clock_ms=-1, lacks_records=False, certain_silence_ms=9, pruned_ms=2,
        states=(state,),
    )  # fmt: skip
    refusal = Refusal(
        base_offset=0, next_base_offset=10, reason=Reason.ABOVE_LAST_STABLE_OFFSET, detail="it is", hint="wait"
    )
    return CachedResults(
        rules="rules",
        marks=(SegmentMark(0, offset, 100, 5, 6, "aa"),),
        directory="dir",
        boundaries={offset: boundary(offset)},
        anchors=(anchor,),
        refused=CachedRefusals(
            store="file:///s", directory="dir", high_watermark=None, made_ms=1, refusals=(refusal,),
            last_stable_offset=0,
        ),
    )  # fmt: skip


def test_what_is_kept_is_known_again(partition: PartitionDir, tmp_path: Path) -> None:
    files = CacheFiles(tmp_path / "state")
    kept = results(files.directory(partition))
    files.save(partition, kept, before=CachedResults())
    assert files.load(partition) == kept


def test_of_another_topic_in_the_same_place_nothing_is_known(partition: PartitionDir, tmp_path: Path) -> None:
    files = CacheFiles(tmp_path / "state")
    files.save(partition, results(files.directory(partition)), before=CachedResults())
    assert files.load(replace(partition, topic_id="another")) == CachedResults()


WHOLE = CachedResults(
    rules="rules", marks=(SegmentMark(0, 1, 100, 5, 6, "aa"),), directory="dir", boundaries={1: boundary(1)}
)


@given(cut=st.integers(0, 2_000), flipped=st.integers(0, 2_000), garbage=st.binary(max_size=60))
def test_no_bytes_make_reading_fail_or_give_another_cached_result(cut: int, flipped: int, garbage: bytes) -> None:
    whole = b"".join(encode_results(WHOLE))
    broken = bytearray(whole[:cut] + garbage)
    if broken:
        broken[flipped % len(broken)] ^= 1
    try:
        found = decode_results(bytes(broken), Path())
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return
    assert found == WHOLE


@given(cut=st.integers(0, 400), flipped=st.integers(0, 400), garbage=st.binary(max_size=60))
def test_no_bytes_make_reading_manifests_fail_or_give_others(cut: int, flipped: int, garbage: bytes) -> None:
    manifests = {"1a": b'{"a": 1}\n', "2b": bytes(range(256))}
    whole = encode_manifests(manifests)
    broken = bytearray(whole[:cut] + garbage)
    if broken:
        broken[flipped % len(broken)] ^= 1
    try:
        found = decode_manifests(bytes(broken))
    except (ValueError, TypeError, AttributeError, RecursionError, zlib.error):
        return
    assert found == manifests
    assert decode_manifests(whole) == manifests


def test_a_full_disk_leaves_the_run_cache_that_was_there(partition: PartitionDir, tiny_disk: Path) -> None:
    complaints: list[str] = []
    files = CacheFiles(tiny_disk, complaints.append)
    kept = results(files.directory(partition))
    files.save(partition, kept, before=CachedResults())
    large = replace(kept, boundaries={offset: boundary(offset) for offset in range(10_000)})
    files.save(partition, large, before=kept)
    assert len(complaints) == 1
    assert files.load(partition) == kept
    assert {path.name for path in files.directory(partition).iterdir()} == {
        FILE, *(path.name for path in files.directory(partition).glob("*.state.*"))
    }  # fmt: skip


def test_replaced_states_go_at_once_and_unnamed_ones_after_a_day(partition: PartitionDir, tmp_path: Path) -> None:
    files = CacheFiles(tmp_path / "state")
    directory = files.directory(partition)
    before = results(directory, 10)
    files.save(partition, before, before=CachedResults())
    stray, young = (write_state(str(directory), name, empty()) for name in ("7.state", "8.state"))
    half_written = directory / ".9.state.tmp"
    half_written.write_bytes(b"half")
    assert stray is not None
    assert young is not None
    for path in (directory / stray.path.rpartition("/")[2], half_written):
        os.utime(path, (0, 0))
    now = results(directory, 20)
    files.save(partition, now, before=before)
    names = {path.name.partition(".state")[0] for path in directory.iterdir()}
    assert names == {FILE, "20", "8"}


def test_two_that_write_at_once_leave_one_of_the_two_whole(partition: PartitionDir, tmp_path: Path) -> None:
    files = CacheFiles(tmp_path / "state")
    directory = files.directory(partition)
    candidates = [replace(results(directory, offset), anchors=()) for offset in (10, 20)]
    reader_found: list[CachedResults] = []
    complaints: list[str] = []

    def write(kept: CachedResults) -> None:
        for _ in range(20):
            CacheFiles(tmp_path / "state").save(partition, kept, before=CachedResults())

    def read() -> None:
        files = CacheFiles(tmp_path / "state", complaints.append)
        reader_found.extend(files.load(partition) for _ in range(200))

    threads = [threading.Thread(target=write, args=(kept,)) for kept in candidates] + [threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert complaints == []
    assert all(found in (*candidates, CachedResults()) for found in reader_found)
    assert files.load(partition) in candidates


def test_a_pipe_in_the_place_of_the_results_is_not_waited_for(tmp_path: Path, partition: PartitionDir) -> None:
    said: list[str] = []
    files = CacheFiles(tmp_path / "cache", said.append)
    files.directory(partition).mkdir(parents=True)
    os.mkfifo(files.directory(partition) / FILE)
    assert files.load(partition) == CachedResults()
    assert len(said) == 1
    assert "not a regular file" in said[0]
