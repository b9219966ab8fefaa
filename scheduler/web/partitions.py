"""The pages of one partition: whether tiering can be turned on and why not, its boundaries, snapshots and entries.

Two pictures show it: its boundaries as a row of cells, and its segments to scale. A cell is a boundary, or so many of
them, oldest first. A segment is as wide as the time it covers, as high as it is large, and coloured by the state of the
snapshot at its end. The active segment has a fixed width: an idle partition's may cover more time than all others.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from markupsafe import Markup

from resnap.replay.explain import BatchRole
from resnap.replay.window import SegmentSpan
from resnap.scheduler.api.paging import Paging
from resnap.scheduler.api.partitions import Number, Offset, ProducerId, Seen, Topic, explain_rows, seen_in
from resnap.scheduler.job.reports import producer_row
from resnap.scheduler.runs.partition_details import NoSnapshotError, ScannedBoundary, difference, name_of
from resnap.scheduler.runs.scans import ScannedPartition
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.commands import Command, resnap
from resnap.scheduler.web.pages import Context, PageContext, link, page_links, partition_path
from resnap.scheduler.web.rendering import LINE_PX, element, picture, rect
from resnap.scheduler.web.words import VERDICTS, Word, moment, waits_for
from resnap.storage.errors import ResnapError
from resnap.storage.words import human_bytes, some
from resnap.tiering.judging.inventory import SnapshotState

router = APIRouter(prefix="/partitions/{topic}/{partition}", include_in_schema=False)
Source = Annotated[str, Query(max_length=4096)]
_USABLE = ("empty", "present")
MEANS: Final = {
    BatchRole.FIRST_SEEN: ("first seen", "the producer's first batch that was read; it gives the entry nothing"),
    BatchRole.TRANSACTION_START: ("opened the transaction", "gives the offset from which a transaction is open"),
    BatchRole.LAST_BATCH: ("last batch", "gives the sequences and the last offset"),
    BatchRole.LAST_MARKER: ("last marker", "ended a transaction; gives the coordinator's epoch"),
}
"""What each batch is to an entry, and what the entry has from it; in the order of a log."""
MOST_CELLS: Final = 120
MADE: Final = "made"
BOUNDARIES: Final[Mapping[str, Word]] = {
    SnapshotState.CORRUPT: Word("corrupt", "!", "stop", "a snapshot that no broker would load"),
    SnapshotState.ZERO_BYTE: Word("zero-byte", "0", "stop", "what a crash leaves of a snapshot"),
    SnapshotState.MISSING: Word("missing", "✕", "todo", "no snapshot"),
    MADE: Word("made", "+", "near", "made by a run, and not beside the segments yet"),
    SnapshotState.EMPTY: Word("empty", "○", "good", "a snapshot without producers"),
    SnapshotState.PRESENT: Word("present", "•", "good", "a snapshot with producers"),
}
"""The states of a boundary, the worst first."""
ACTIVE: Final = Word("active", "…", "none", "a broker appends to it; it is not tiered yet")
SHIPPED: Final = Word("shipped", "✓", "busy", "in a store already")
_ORDER: Final = [*BOUNDARIES.values(), SHIPPED, ACTIVE]
MOST_COLUMNS: Final = 240
_SIZES: Final = {"wide": (1200, 230), "slim": (360, 230)}
_ACTIVE_PX: Final = 40
_TOP: Final = 3 * LINE_PX + 8
"""The names of the marked offsets are above it, each on a line of its own."""
_BOTTOM: Final = 22


@router.get("")
def show_partition(context: Context, topic: Topic, partition: Number, paging: Paging, source: Source = "") -> Response:
    """Show why, what to do, and a page of boundaries as they are now."""
    services = context.services
    places = services.scans.find(topic, partition, source or None)
    if len(places) > 1:
        several = {"places": places, "kinds": VERDICTS, "path": partition_path(places[0])}
        return context.page("places.html", several)
    seen = seen_in(services, context.who, topic, partition, source or None)
    boundaries, error = _boundaries(services, seen)
    shown, following = paging.cut_whole(boundaries, lambda boundary: boundary.offset, int)
    path, repairs = partition_path(seen), services.scans.repairs(seen)
    staged = frozenset[int]().union(*(repair.offsets for repair in repairs if repair.how == "regenerated"))
    values: dict[str, object] = {
        "seen": seen,
        "word": VERDICTS[seen.judgement.verdict],
        "waits_for": waits_for(seen.judgement),
        "error": error,
        "cells": cells(boundaries),
        "spread": spread_of(boundaries),
        "segments": None if error else _segments(services, seen, boundaries),
        "boundaries": [
            (boundary, BOUNDARIES[state_of(boundary)], state_of(boundary) in _USABLE or boundary.offset in staged)
            for boundary in shown
        ],
        "has_details": any(boundary.detail for boundary in shown),
        "count": len(boundaries),
        "legend": BOUNDARIES,
        "repairs": repairs,
        "path": path,
        **page_links(path, paging, following, source=source),
        "commands": _commands(context, seen),
    }
    return context.page("partition.html", values)


@router.get("/snapshots/{offset}")
def show_snapshot(
    context: Context,
    seen: Seen,
    offset: Offset,
    paging: Paging,
    to: Annotated[str, Query(max_length=19, pattern="^[0-9]*$")] = "",
    source: Source = "",
) -> Response:
    """Show the producers at an offset, and what is between them and those at another."""
    details = context.services.partition_details
    file, entries = details.snapshot(seen, offset)
    shown, following = paging.cut_whole(sorted(entries), lambda pid: pid, int)
    between = difference(entries, details.snapshot(seen, int(to))[1]) if to else None
    path, words = f"{partition_path(seen)}/snapshots/{offset}", (seen.row["path"], name_of(seen), str(offset))
    values = {
        "seen": seen,
        "offset": offset,
        "to": int(to) if to else None,
        "file": file,
        "rows": [producer_row(entries[pid]) for pid in shown],
        "count": len(entries),
        "between": between,
        "changes": [] if between is None else [_change(*changed) for changed in between.changed[: paging.limit]],
        "limit": paging.limit,
        "path": path,
        "explain_path": f"{partition_path(seen)}/explain/{offset}",
        "source": source,
        "partition_url": link(partition_path(seen), source=source),
        **page_links(path, paging, following, source=source, to=to),
        "commands": [
            Command("the same in a shell", resnap("inspect", file)),
            Command("which batches made these entries", context.shell.line("explain", *words)),
            context.api(link(f"/v1{path}", source=seen.source), "the same from the API"),
        ],
    }
    return context.page("snapshot.html", values)


@router.get("/explain/{offset}")
def show_explanation(
    context: Context, seen: Seen, offset: Offset, producer_id: ProducerId, source: Source = ""
) -> Response:
    """Show the batches that made the entry of a producer at an offset, and the entry; reads segments."""
    batches = explain_rows(context.services, context.who, seen, offset, producer_id)
    path = partition_path(seen)
    values = {
        "seen": seen,
        "offset": offset,
        "producer_id": producer_id,
        "batches": sorted(batches, key=lambda row: row["baseOffset"]),
        "means": {role.value: words for role, words in MEANS.items()},
        "entry": _entry(context.services, seen, offset, producer_id),
        "partition_url": link(path, source=source),
        "snapshot_url": link(f"{path}/snapshots/{offset}", source=source),
        "commands": _explanation_commands(context, seen, offset, producer_id),
    }
    return context.page("explain.html", values)


def _boundaries(services: Services, seen: ScannedPartition) -> tuple[list[ScannedBoundary], ResnapError | None]:
    """Return the boundaries as they are now, or why they cannot be read; what was seen is shown all the same."""
    try:
        return services.partition_details.boundaries(seen), None
    except ResnapError as error:
        return [], error


def _segments(services: Services, seen: ScannedPartition, boundaries: list[ScannedBoundary]) -> dict[str, Any] | None:
    """Return the picture of the segments as they are now; None where they cannot be read."""
    try:
        segments = services.partition_details.segments(seen)
    except ResnapError:
        return None
    repairs = services.scans.repairs(seen)
    shipped = frozenset[int]().union(*(repair.offsets for repair in repairs if repair.how == "shipped"))
    live = seen.row.get("live") or {}
    offsets = {
        "log start": seen.row["logStartOffset"],
        "last stable offset": live.get("lastStableOffset"),
        "high watermark": seen.row["highWatermark"],
    }
    marks = {name: offset for name, offset in offsets.items() if isinstance(offset, int)}
    return segments_picture(segments, boundaries, shipped, marks)


def _change(producer_id: int, before: Any, after: Any) -> tuple[int, list[tuple[str, object, object]]]:  # noqa: ANN401
    """Return the fields that differ between two entries of a producer."""
    return producer_id, [(name, before[name], after[name]) for name in before if before[name] != after[name]]


def _commands(context: PageContext, seen: ScannedPartition) -> list[Command]:
    body = {
        "kind": "regenerate",
        "sources": [seen.source],
        "partitions": [name_of(seen)],
        "destination": context.destination,
    }
    return [
        *context.shell.partition(seen, context.services.scans.repairs(seen)),
        context.api("/v1/replays", "let this service make them", body),
        context.api(link(f"/v1{partition_path(seen)}", source=seen.source), "this partition from the API"),
    ]


def _entry(services: Services, seen: ScannedPartition, offset: int, producer_id: int) -> Mapping[str, object] | None:
    """Return the producer's entry in the snapshot at ``offset``; None if there is none."""
    try:
        _, entries = services.partition_details.snapshot(seen, offset)
    except NoSnapshotError:
        return None
    return producer_row(entries[producer_id]) if producer_id in entries else None


def _explanation_commands(context: PageContext, seen: ScannedPartition, offset: int, producer_id: int) -> list[Command]:
    words = (seen.row["path"], name_of(seen), str(offset), "--producer-id", str(producer_id))
    url = link(f"/v1{partition_path(seen)}/explain/{offset}", producerId=producer_id, source=seen.source)
    return [
        Command("the same in a shell", context.shell.line("explain", *words)),
        context.api(url, "the same from the API"),
    ]


def state_of(boundary: ScannedBoundary) -> str:
    """Return what a boundary is shown as."""
    return MADE if boundary.made else boundary.state


def cells(boundaries: Sequence[ScannedBoundary], most: int = MOST_CELLS) -> list[tuple[Word, str]]:
    """Return at most ``most`` cells with their titles, each of as many boundaries as the others, but for the last.

    A cell is shown as the worst of its boundaries.
    """
    size = max(1, -(-len(boundaries) // most))
    return [_cell(boundaries[at : at + size]) for at in range(0, len(boundaries), size)]


def spread_of(boundaries: Sequence[ScannedBoundary]) -> str:
    """Return how many boundaries are in each state, worst first."""
    counts = Counter(map(state_of, boundaries))
    return ", ".join(f"{counts[state]:,} {word.text}" for state, word in BOUNDARIES.items() if counts[state])


def _cell(boundaries: Sequence[ScannedBoundary]) -> tuple[Word, str]:
    first, last = boundaries[0].offset, boundaries[-1].offset
    found = set(map(state_of, boundaries))
    word = next(word for state, word in BOUNDARIES.items() if state in found)
    where = f"{first}" if first == last else f"{first} to {last}"
    return word, f"{where}: {spread_of(boundaries)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One or several neighbouring segments in the picture, which shows the worst of their states."""

    first: int
    end: int | None
    from_ms: int
    to_ms: int
    size_bytes: int
    word: Word
    count: int

    @property
    def title(self) -> str:
        """Its description."""
        end = "on" if self.end is None else f"to {self.end}"
        what = f"from offset {self.first} {end}, up to {moment(self.to_ms)}, {human_bytes(self.size_bytes)}"
        several = f"{some(self.count, 'segment')} " if self.count > 1 else ""
        return f"{several}{what}: {self.word.text}"


def segments_picture(
    segments: Sequence[SegmentSpan],
    boundaries: Sequence[ScannedBoundary],
    shipped: frozenset[int],
    marks: Mapping[str, int],
) -> dict[str, Any] | None:
    """Return the picture of a partition, with ``shipped`` ends and named offsets; None where it has no segment.

    That is in two forms, with what it shows in words, and the states in it.
    """
    if not segments:
        return None
    ends = {boundary.offset: BOUNDARIES[state_of(boundary)] for boundary in boundaries}
    words = [_word(segment, ends, shipped) for segment in segments]
    columns = _columns(segments, words)
    counts = Counter(word.text for word in words)
    said = ", ".join(f"{count:,} {text}" for text, count in counts.items())
    text = (
        f"{some(len(segments), 'segment')}, {human_bytes(sum(segment.size_bytes for segment in segments))}, up to"
        f" {moment(columns[-1].to_ms)}; by the snapshot at their end: {said}"
    )
    return {
        "pictures": [_draw(columns, marks, *size, text, name) for name, size in _SIZES.items()],
        "text": text,
        "legend": [word for word in _ORDER if counts[word.text]],
    }


def _word(segment: SegmentSpan, ends: Mapping[int, Word], shipped: frozenset[int]) -> Word:
    end = segment.next_base_offset
    if end is None:
        return ACTIVE
    return SHIPPED if end in shipped else ends.get(end, ACTIVE)


def _last_ms(segment: SegmentSpan) -> int:
    """Return the largest timestamp in its time index; without one, when the file was last written."""
    return segment.mtime_ms if segment.largest_timestamp_ms is None else segment.largest_timestamp_ms


def _columns(segments: Sequence[SegmentSpan], words: Sequence[Word]) -> list[_Column]:
    """Return at most ``MOST_COLUMNS`` columns, and the active segment; time never falls, whatever clients say."""
    closed = len(segments) - (segments[-1].next_base_offset is None)
    size = max(1, -(-closed // MOST_COLUMNS))
    last_ms = list(accumulate(map(_last_ms, segments), max))
    # When the first segment begins is in no index: it is drawn as if it covered as much time as the others on average.
    from_ms = last_ms[0] - (last_ms[max(closed - 1, 0)] - last_ms[0]) // max(closed - 1, 1)
    columns = []
    for at in [*range(0, closed, size), *range(closed, len(segments))]:
        group = segments[at : min(at + size, closed) if at < closed else None]
        to_ms = last_ms[at + len(group) - 1]
        columns.append(
            _Column(
                first=group[0].base_offset,
                end=group[-1].next_base_offset,
                from_ms=from_ms,
                to_ms=to_ms,
                size_bytes=sum(segment.size_bytes for segment in group),
                word=min(words[at : at + len(group)], key=_ORDER.index),
                count=len(group),
            )
        )
        from_ms = to_ms
    return columns


def _draw(
    columns: Sequence[_Column], marks: Mapping[str, int], width: int, height: int, title: str, class_: str
) -> Markup:
    closed = [column for column in columns if column.end is not None]
    end = float(width - _ACTIVE_PX * (closed != columns))  # where the active segment begins
    first_ms, last_ms = columns[0].from_ms, (closed or columns)[-1].to_ms
    count = max(len(closed), 1)
    # All are as wide where they cover no time, as in a log that was copied, or whose records have no timestamps.
    least = end / count if last_ms == first_ms else min(1.0, end / 2 / count)
    scale = (end - least * count) / max(last_ms - first_ms, 1)
    largest = max(1, *(column.size_bytes for column in columns))
    room, shapes, places, x = height - _TOP - _BOTTOM, [], [], 0.0
    for column in columns:
        wide = least + (column.to_ms - column.from_ms) * scale
        if column.end is None:
            x, wide = end, width - end
        high = max(room * column.size_bytes / largest, 2.0)
        places.append((x, wide))
        gap = min(1.0, wide / 4)
        shapes.append(rect(x + gap, height - _BOTTOM - high, wide - 2 * gap, high, column.word.tone, column.title))
        x += wide
    for line, (name, offset) in enumerate(marks.items()):
        shapes += _draw_mark(f"{name} {offset}", _place_of(offset, columns, places), line, width, height)
    axis = height - 6
    shapes.append(element("text", moment(first_ms), x=0, y=axis))
    shapes.append(element("text", moment(last_ms), x=end, y=axis, text_anchor="end"))
    return picture(width, height, title, shapes, class_=f"segments {class_}")


def _place_of(offset: int, columns: Sequence[_Column], places: Sequence[tuple[float, float]]) -> float:
    """Return where an offset is, between the ends of its column by its share of the offsets."""
    for column, (x, wide) in zip(columns, places, strict=True):
        if column.end is None or offset < column.end:
            share = 1.0 if column.end is None else (offset - column.first) / (column.end - column.first)
            return x + wide * max(share, 0.0) if offset > column.first else x
    return places[-1][0] + places[-1][1]


def _draw_mark(text: str, x: float, line: int, width: int, height: int) -> list[Markup]:
    y, at_end = (line + 1) * LINE_PX, x > width / 2
    side = {"x": x - 4, "text_anchor": "end"} if at_end else {"x": x + 4}
    rule = element("line", x1=x, x2=x, y1=y - 10, y2=height - _BOTTOM, class_="mark")
    return [rule, element("text", text, y=y, **side)]
