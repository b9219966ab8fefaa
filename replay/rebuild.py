"""The engine without Spark: scans and combines the same plan in this process. The test oracle of ``spark.job``."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

from resnap.replay.anchor import make_idle
from resnap.replay.parts import by_segment, part_bytes, plan_splits, scan_part, whole
from resnap.replay.results import join_rounds, next_round, partition_result
from resnap.replay.run_combine import RunCombine
from resnap.replay.scan.reading import Reading
from resnap.replay.scan.split_scan import first_scan_compiles
from resnap.replay.watching import expect_more
from resnap.storage.spans import span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from resnap.replay.plan import PartitionPlan, Run
    from resnap.replay.results import PartitionResult, SnapshotSink
    from resnap.replay.scan.splits import Split, SplitSummary
    from resnap.replay.watching import Watcher


def rebuild_locally(
    plans: Iterable[PartitionPlan],
    sink: SnapshotSink,
    *,
    reading: Reading | None = None,
    progress: Callable[[int, int], None] | None = None,
    watcher: Watcher | None = None,
) -> Iterator[PartitionResult]:
    """Replay ``plans`` one after the other in this process, and yield each result at once.

    ``reading.threads`` scan at once. ``progress`` is called with (segments, bytes covered) after each split;
    ``watcher`` is notified of additional work.
    """
    reading = reading or Reading()
    for number, plan in enumerate(plans):
        if watcher is not None:
            watcher.at_work("scanning" if number or not first_scan_compiles(reading) else "compiling", reading.threads)
        with span("replay partition", **{"resnap.partition": str(plan.topic_partition)}):
            result = _rebuild_once(plan, sink, reading, progress)
            while (further := next_round(plan, result)) is not None:
                plan = further  # noqa: PLW2901
                expect_more(watcher, plan)
                result = join_rounds(result, _rebuild_once(plan, sink, reading, progress))
        yield result


def _rebuild_once(
    plan: PartitionPlan, sink: SnapshotSink, reading: Reading, progress: Callable[[int, int], None] | None
) -> PartitionResult:
    runs = []
    for run in plan.runs:
        combine = RunCombine(plan, run, sink, sources=reading.sources)
        for parts in by_segment(_scanned(plan, run, reading, progress)):
            combine.add(whole(parts, plan, reading))
        runs.append(combine.finish())
    return partition_result(plan, runs, make_idle(plan, sink, reading.sources))


def _scanned(
    plan: PartitionPlan, run: Run, reading: Reading, progress: Callable[[int, int], None] | None
) -> Iterator[SplitSummary]:
    """Yield the summaries of the run's splits in order."""
    silence_ms = plan.rules.written_under.certain_silence_ms
    size_bytes = sum(segment.size_bytes for segment in plan.segments[run.start : run.end])
    splits = plan_splits(plan, run, part_bytes(reading, size_bytes, slots=reading.threads))

    def scanned(split: Split) -> SplitSummary:
        return scan_part(split, silence_ms, reading)

    for split, summary in _in_order(scanned, splits, reading.threads):
        yield summary
        if progress is not None:
            progress(split.ends_segment, split.size_bytes)


def _in_order(
    scanned: Callable[[Split], SplitSummary], splits: Iterator[Split], threads: int
) -> Iterator[tuple[Split, SplitSummary]]:
    """Scan several splits at once, but yield in order, and hold no more results than threads."""
    if threads == 1:
        yield from ((split, scanned(split)) for split in splits)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="resnap-scan") as pool:
        waiting = deque((split, pool.submit(scanned, split)) for split in islice(splits, threads))
        try:
            while waiting:
                split, summary = waiting.popleft()
                done = summary.result()
                waiting.extend((further, pool.submit(scanned, further)) for further in islice(splits, 1))
                yield split, done
        finally:
            for _, summary in waiting:
                summary.cancel()
