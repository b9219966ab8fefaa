from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from resnap.replay.plan import plan_partition
from resnap.replay.producer_state import Expiry, ProducerStates
from resnap.replay.rebuild import plan_splits, scan_part
from resnap.replay.scan import splits
from resnap.replay.scan.header_scan import HEADER_DTYPE, SegmentRange
from resnap.replay.scan.splits import Reading, Split
from resnap.replay.window import AsOf, ReplayRules, SegmentSpan
from resnap.storage.errors import FormatError, LogDirError
from resnap.storage.log.names import TopicPartition
from tests.builders import a_batch, a_marker
from tests.replay.specification import entries_in, events_of, join
from tests.strategies import START_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

SILENCE_MS = 1_100
EXPIRY = Expiry(1_000, 100)
PLAIN = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
BATCH_AT = {
    0: a_batch(offset=0, records=3, transactional=True),
    3: a_batch(offset=3, producer_id=8),
    4: a_marker(offset=4),
    5: a_batch(offset=5, records=2, append_time=START_MS + 5_000, **PLAIN),
}
SEGMENT = b"".join(BATCH_AT.values())


def a_split(path: Path, *, high_watermark: int | None = None, next_base_offset: int | None = 7) -> Split:
    return Split(
        segment_index=0,
        part=0,
        range=SegmentRange(locator=str(path), base_offset=0, next_base_offset=next_base_offset),
        size_bytes=path.stat().st_size if path.exists() else 0,
        high_watermark=high_watermark,
    )


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(SEGMENT)
    return path


def test_a_split_is_summarised_as_the_fold_says(segment: Path) -> None:
    states = ProducerStates(EXPIRY)
    states.append(events_of(SEGMENT))
    (piece,) = scan_part(a_split(segment), SILENCE_MS, Reading()).pieces
    assert entries_in(piece.rows) == states.entries
    assert piece.clock_ms == START_MS + 5_000


@pytest.mark.parametrize("high_watermark", range(1, 7))
def test_at_the_high_watermark_a_split_comes_in_two_pieces(high_watermark: int, segment: Path) -> None:
    whole = scan_part(a_split(segment), SILENCE_MS, Reading()).pieces[0]
    below, above = scan_part(a_split(segment, high_watermark=high_watermark), SILENCE_MS, Reading()).pieces
    states = ProducerStates(EXPIRY)
    states.append(events_of(b"".join(batch for offset, batch in BATCH_AT.items() if offset < high_watermark)))
    assert entries_in(below.rows) == states.entries
    assert join(below, above, SILENCE_MS).rows.tolist() == whole.rows.tolist()
    assert (below.rows["first_offset"] < high_watermark).all()
    assert (above.rows["first_offset"] >= high_watermark).all()


@pytest.mark.parametrize("block_bytes", [61, 200, 300])
def test_blocks_of_any_size_give_the_same_summary(
    block_bytes: int, segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = scan_part(a_split(segment), SILENCE_MS, Reading())
    monkeypatch.setattr("resnap.replay.scan.header_scan.BLOCK_BYTES", block_bytes)
    small = scan_part(a_split(segment), SILENCE_MS, Reading(kernel=False))
    assert small.pieces[0].rows.tolist() == whole.pieces[0].rows.tolist()
    assert small.pieces[0].clock_ms == whole.pieces[0].clock_ms


def test_damage_is_part_of_the_answer_and_nothing_half_read_is(segment: Path) -> None:
    segment.write_bytes(SEGMENT[:-1])
    found = scan_part(a_split(segment), SILENCE_MS, Reading())
    assert isinstance(found.error, FormatError)
    assert found.error.file == str(segment)
    assert found.pieces == ()


def test_a_file_that_is_gone_is_part_of_the_answer(segment: Path) -> None:
    split = a_split(segment)
    segment.unlink()
    assert isinstance(scan_part(split, SILENCE_MS, Reading()).error, LogDirError)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_part_of_the_answer(segment: Path) -> None:
    segment.chmod(0)
    found = scan_part(a_split(segment), SILENCE_MS, Reading())
    assert isinstance(found.error, LogDirError)
    assert "Permission denied" in str(found.error)


@pytest.mark.parametrize(
    ("high_watermark", "divided"), [(None, None), (0, None), (1, 0), (99, 0), (100, None), (150, 1), (250, 2)]
)
def test_only_the_segment_that_holds_the_high_watermark_is_divided(
    high_watermark: int | None, divided: int | None
) -> None:
    spans = [
        SegmentSpan(
            locator=str(base), base_offset=base, next_base_offset=base + 100 if base < 200 else None, size_bytes=9,
            mtime_ms=0, largest_timestamp_ms=None,
        )
        for base in (0, 100, 200)
    ]  # fmt: skip
    rules = ReplayRules(as_of=AsOf(now_ms=0))
    plan = plan_partition(TopicPartition("payments", 0), spans, [], rules, high_watermark=high_watermark, to_end=True)
    made = list(plan_splits(plan, plan.runs[0]))
    assert [split.segment_index for split in made] == [0, 1, 2]
    assert [split.segment_index for split in made if split.high_watermark is not None] == (
        [] if divided is None else [divided]
    )


BATCHES = 1_000_000
PRODUCERS = 1_000
PAYLOAD_BYTES = 140


def large_segment() -> Iterator[bytes]:
    """Yield some 200 MB of batches, a thousand producers by turns."""
    layout = np.dtype([("header", HEADER_DTYPE), ("payload", f"V{PAYLOAD_BYTES}")])
    for start in range(0, BATCHES, 50_000):
        batches = np.zeros(50_000, dtype=layout)
        header = batches["header"]
        number = np.arange(start, start + 50_000)
        header["base_offset"] = number
        header["batch_length"] = layout.itemsize - 12
        header["magic"] = 2
        header["max_timestamp"] = START_MS
        header["producer_id"] = number % PRODUCERS
        header["base_sequence"] = number // PRODUCERS
        header["records_count"] = 1
        yield batches.tobytes()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_segment(tmp_path: Path) -> None:
    path = tmp_path / "large.log"
    with path.open("wb") as file:
        for part in large_segment():
            file.write(part)
    assert path.stat().st_size > 200_000_000
    program = (
        "import resource, sys\n"
        "from resnap.replay.scan.header_scan import SegmentRange\n"
        "from resnap.replay.rebuild import scan_part\n"
        "from resnap.replay.scan.splits import Reading\n"
        "from resnap.replay.scan.splits import Split\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before = peak()\n"
        "whole = SegmentRange(locator=sys.argv[1], base_offset=0, next_base_offset=None)\n"
        "found = scan_part(Split(segment_index=0, part=0, range=whole, size_bytes=0), 1_100, Reading())\n"
        "print(found.error, len(found.pieces[0].rows), found.facts.batches, peak() - before)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True,
        cwd=Path(splits.__file__).parent.parent,
    ).stdout.split()  # fmt: skip
    path.unlink()
    assert output[:3] == ["None", str(PRODUCERS), str(BATCHES)]
    # Half of it would already be too much; some tens of MiB are what a chunk takes.
    assert int(output[3]) < 100
