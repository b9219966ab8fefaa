"""The engine without Spark: cuts a run into splits, scans and combines them in this process.

It is the test oracle of ``spark.job``.

The splits of a segment are joined as if it had been scanned as one. Checking that they fit costs nothing, and replaces
trust in the index that gave the cuts: each split must end at the byte where the next begins, with continuing offsets.
If they do not fit, or one is damaged, the segment is scanned again as a whole, and errors are reported as for a segment
that was not cut.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import reduce
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING

from resnap.replay.anchor import make_idle
from resnap.replay.results import join_rounds, next_round, partition_result
from resnap.replay.run_combine import RunCombine
from resnap.replay.scan.header_scan import ScanFacts, SegmentRange
from resnap.replay.scan.split_scan import SplitScan, first_scan_compiles
from resnap.replay.scan.splits import ANCHOR_PART, TASKS_PER_SLOT, PartStart, Reading, Split, SplitSummary, locate
from resnap.replay.watching import Progress
from resnap.storage.errors import FormatError, LogDirError, StoreError
from resnap.storage.log.record_batch import HEADER, MAGIC_POSITION, MAGIC_V2
from resnap.storage.spans import span
from resnap.storage.threads import Threads, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resnap.replay.plan import PartitionPlan, SegmentRun
    from resnap.replay.results import PartitionResult, SnapshotSink


def plan_splits(plan: PartitionPlan, run: SegmentRun, part_bytes: int | None = None) -> Iterator[Split]:
    """Yield the splits of ``run`` in offset order, after the split for its anchor.

    A segment is one split, or, if ``part_bytes`` is given, several of at least about that size.
    """
    if run.anchor is not None:
        states = run.anchor.states
        before = SegmentRange(
            locator=states[0].path, base_offset=run.anchor.read_from, next_base_offset=run.anchor.offset
        )
        yield Split(
            segment_index=run.start,
            part=ANCHOR_PART,
            range=before,
            size_bytes=sum(state.size_bytes for state in states),
            ends_segment=False,
            anchor=run.anchor,
        )
    for index in range(run.start, run.end):
        whole = whole_segment(plan, index)
        yield from [whole] if part_bytes is None else _parts(whole, part_bytes)


def whole_segment(plan: PartitionPlan, index: int) -> Split:
    """Return the split for all of the segment at ``index``."""
    segment = plan.segments[index]
    mark, end = plan.high_watermark, segment.next_base_offset
    inside = mark is not None and segment.base_offset < mark and (end is None or mark < end)
    return Split(
        segment_index=index,
        part=0,
        range=SegmentRange(
            locator=segment.locator,
            base_offset=segment.base_offset,
            next_base_offset=segment.next_base_offset,
            verify_crc=plan.rules.verify_crc,
        ),
        size_bytes=segment.size_bytes,
        segment_bytes=segment.size_bytes,
        high_watermark=mark if inside else None,
    )


def part_bytes(reading: Reading, size_bytes: int, *, slots: int) -> int | None:
    """Return the part size that keeps ``slots`` busy; None to cut no segments.

    With a single slot cutting gains nothing.
    """
    if slots == 1:
        return None
    share = size_bytes // (slots * TASKS_PER_SLOT)
    return max(reading.least_part_bytes, min(reading.split_bytes, share))


def _parts(whole: Split, part_bytes: int) -> Iterator[Split]:
    """Yield the splits of a segment, of about ``part_bytes`` each."""
    count = max(1, whole.size_bytes // part_bytes)
    edges = [whole.size_bytes * number // count for number in range(count + 1)]
    for number in range(count):
        ends_segment = number == count - 1
        yield replace(
            whole,
            part=number,
            size_bytes=edges[number + 1] - edges[number],
            ends_segment=ends_segment,
            start_target=edges[number],
            end_target=None if ends_segment else edges[number + 1],
        )


def scan_part(split: Split, certain_silence_ms: int, reading: Reading) -> SplitSummary:
    """Read ``split`` and summarise it; if it is a part, first find where it begins and ends."""
    scan = begin_part(split, certain_silence_ms, reading)
    return scan.summary(tuple(scan.pieces()))


def begin_part(split: Split, certain_silence_ms: int, reading: Reading) -> SplitScan:
    """Return the scan of ``split``, which reads nothing of a part without a batch."""
    if not split.is_part:
        return SplitScan(split, certain_silence_ms, reading)
    located = locate(split, reading.sources)
    if located is None:
        return SplitScan(split, certain_silence_ms, reading, is_empty=True)
    try:
        start = _part_start(located.locator, located.start, reading)
    except (FormatError, LogDirError, StoreError):
        start = None  # the scan finds the same error, and reports it
    return SplitScan(replace(split, range=located), certain_silence_ms, reading, start)


def _part_start(locator: str, position: int, reading: Reading) -> PartStart | None:
    header = reading.sources.read_range(locator, position, position + HEADER.size)
    if len(header) <= MAGIC_POSITION:
        return None
    return PartStart(position, int.from_bytes(header[:8], "big", signed=True), header[MAGIC_POSITION] == MAGIC_V2)


def by_segment(summaries: Iterable[SplitSummary]) -> Iterator[tuple[SplitSummary, ...]]:
    """Group ordered summaries by segment; the state of a run's anchor is a group of its own."""
    for _, parts in groupby(summaries, key=lambda summary: (summary.segment_index, summary.part == ANCHOR_PART)):
        yield tuple(parts)


def whole(parts: Sequence[SplitSummary], plan: PartitionPlan, reading: Reading) -> SplitSummary:
    """Return the result of scanning the whole segment, given all its ``parts`` in order."""
    if len(parts) == 1:
        return parts[0]
    if fit(parts):
        return join_parts(parts)
    split = whole_segment(plan, parts[0].segment_index)
    return scan_part(split, plan.rules.written_under.certain_silence_ms, reading)


def fit(parts: Sequence[SplitSummary]) -> bool:
    """Return whether ``parts`` follow one another without gap, overlap or damage, from the start of their segment."""
    if any(part.error is not None for part in parts):
        return False
    filled = [part for part in parts if part.start is not None]
    if not filled or filled[0].start is None or filled[0].start.position != 0:
        return False
    return all(_follows(left.facts, right.start) for left, right in pairwise(filled))


def _follows(left: ScanFacts, right: PartStart | None) -> bool:
    return right is not None and left.end_position == right.position and right.offset >= left.end_offset


def join_parts(parts: Sequence[SplitSummary]) -> SplitSummary:
    """Return the sum of ``parts``, which fit."""
    filled = [part for part in parts if part.start is not None]
    return SplitSummary(
        segment_index=parts[0].segment_index,
        part=0,
        facts=reduce(_join_facts, filled[1:], filled[0].facts),
        pieces=chain.from_iterable(part.pieces for part in filled),
        start=filled[0].start,
    )


def _join_facts(left: ScanFacts, part: SplitSummary) -> ScanFacts:
    """Return the facts of a segment's parts up to ``part``, given those of the parts before it."""
    right = part.facts
    clocks = [clock for clock in (left.oldest_server_clock_ms, right.oldest_server_clock_ms) if clock is not None]
    newest = left.leader_epochs[-1][0] if left.leader_epochs else -1
    # Offsets may be missing between two parts, as between two batches.
    gap = part.start is not None and part.start.is_v2 and part.start.offset > left.end_offset
    return ScanFacts(
        batches=left.batches + right.batches,
        bytes_read=left.bytes_read + right.bytes_read,
        end_offset=right.end_offset,
        end_position=right.end_position,
        server_clock_ms=left.server_clock_ms if right.server_clock_ms < 0 else right.server_clock_ms,
        oldest_server_clock_ms=min(clocks, default=None),
        clock_since_event_ms=right.clock_since_event_ms,
        max_timestamp_ms=max(left.max_timestamp_ms, right.max_timestamp_ms),
        lacks_records=left.lacks_records or right.lacks_records or gap,
        leader_epochs=[*left.leader_epochs, *(known for known in right.leader_epochs if known[0] > newest)],
    )


def rebuild_locally(
    plans: Iterable[PartitionPlan],
    sink: SnapshotSink,
    *,
    reading: Reading | None = None,
    progress: Progress | None = None,
) -> Iterator[PartitionResult]:
    """Replay ``plans`` one after the other in this process, and yield each result at once.

    ``reading.threads`` scan at once. ``progress`` receives what is done after each split, and additional work.
    """
    reading, progress = reading or Reading(), progress or Progress()
    for number, plan in enumerate(plans):
        progress.at_work("scanning" if number or not first_scan_compiles(reading) else "compiling", reading.threads)
        with span("replay partition", **{"resnap.partition": str(plan.topic_partition)}):
            result = _rebuild_once(plan, sink, reading, progress)
            while (further := next_round(plan, result)) is not None:
                plan = further  # noqa: PLW2901
                progress.expect_plan(plan)
                result = join_rounds(result, _rebuild_once(plan, sink, reading, progress))
        yield result


def _rebuild_once(plan: PartitionPlan, sink: SnapshotSink, reading: Reading, progress: Progress) -> PartitionResult:
    runs = []
    for run in plan.runs:
        combine = RunCombine(plan, run, sink, sources=reading.sources)
        for parts in by_segment(_scan_run(plan, run, reading, progress)):
            combine.add(whole(parts, plan, reading))
        runs.append(combine.finish())
    return partition_result(plan, runs, make_idle(plan, sink, reading.sources))


def _scan_run(plan: PartitionPlan, run: SegmentRun, reading: Reading, progress: Progress) -> Iterator[SplitSummary]:
    """Yield the summaries of the run's splits in order."""
    silence_ms = plan.rules.written_under.certain_silence_ms
    size_bytes = sum(segment.size_bytes for segment in plan.segments[run.start : run.end])
    splits = plan_splits(plan, run, part_bytes(reading, size_bytes, slots=reading.threads))

    def scanned(split: Split) -> SplitSummary:
        return scan_part(split, silence_ms, reading)

    for split, summary in _in_order(scanned, splits, reading.threads):
        yield summary
        progress.advance(split.ends_segment, split.size_bytes)


def _in_order(
    scanned: Callable[[Split], SplitSummary], splits: Iterator[Split], threads: int
) -> Iterator[tuple[Split, SplitSummary]]:
    """Scan several splits at once, but yield in order, and hold no more results than threads."""
    if threads == 1:
        yield from ((split, scanned(split)) for split in splits)
        return
    with (
        Threads(threads, thread_name_prefix="resnap-scan") as pool,
        closing(side_by_side(scanned, splits, threads + 1, lambda: None, pool)) as scans,
    ):
        yield from ((split, summary()) for split, summary in scans)
