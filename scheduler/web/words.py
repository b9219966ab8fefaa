"""The words and signs of pages: colour is never the only distinction."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.output.rendering import plain_text
from resnap.scheduler.runs.run import RunState
from resnap.storage.words import human_bytes, human_count, instant, second, some
from resnap.tiering.judging.readiness import Verdict, day_of
from resnap.tiering.judging.refusal import UnblockedBy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from resnap.tiering.judging.readiness import Judgement

_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86400


class Word(NamedTuple):
    """A state as it is shown."""

    text: str
    sign: str
    tone: str
    """Class of the style sheet: ``good``, ``near``, ``todo``, ``stop``, ``busy`` or ``none``."""
    means: str = ""


VERDICTS: Final[Mapping[Verdict, Word]] = {
    Verdict.READY: Word(Verdict.READY.value, "✓", "good", "a broker can tier every closed segment"),
    Verdict.BLOCKED: Word(Verdict.BLOCKED.value, "✕", "todo", "a broker would stop"),
    Verdict.UNKNOWN: Word(Verdict.UNKNOWN.value, "?", "none", "something could not be read"),
    Verdict.NEVER: Word(Verdict.NEVER.value, "-", "none", "Kafka does not tier it: compacted, or internal"),
}
UNBLOCKED_BY: Final[Mapping[UnblockedBy, str]] = {
    UnblockedBy.OTHER: "look at the reason",
    UnblockedBy.REBUILD: "rebuild the snapshots",
    UnblockedBy.INSTALL: "install the rebuilt snapshots",
    UnblockedBy.ANNOUNCE: "announce what is shipped",
    UnblockedBy.RETENTION: "wait for retention",
}
"""What is to be done about a blocked partition, the most urgent first."""
RUN_STATES: Final[Mapping[RunState, Word]] = {
    RunState.QUEUED: Word("queued", "…", "none"),
    RunState.RUNNING: Word("running", "▶", "busy"),
    RunState.CANCELLING: Word("cancelling", "▶", "busy"),
    RunState.SUCCEEDED: Word("succeeded", "✓", "good"),
    RunState.PARTIALLY_FAILED: Word("partially failed", "!", "todo"),
    RunState.FAILED: Word("failed", "✕", "stop"),
    RunState.CANCELLED: Word("cancelled", "-", "none"),
}
PARTITION_STATES: Final[Mapping[PartitionState, Word]] = {
    PartitionState.DONE: Word("done", "✓", "good"),
    PartitionState.NOTHING_TO_DO: Word("nothing to do", "-", "none"),
    PartitionState.PLANNED: Word("planned", "…", "none"),
    PartitionState.FAILED: Word("failed", "✕", "stop"),
}


def waits_for(judgement: Judgement) -> str:
    """Return what a blocked partition waits for, or until when; empty for others."""
    if judgement.until_ms is not None:
        return f"until {day_of(judgement.until_ms)}"
    return "" if judgement.unblocked_by is None else UNBLOCKED_BY[judgement.unblocked_by]


def moment(at_ms: int) -> str:
    """Return a time for people, in UTC, to the second."""
    return second(at_ms).replace("T", " ").replace("Z", " UTC")


def ago(at_ms: int, now_ms: int) -> str:
    """Return how long ago a time was, no finer than a minute: a page that says so stays the same for as long."""
    seconds = (now_ms - at_ms) // 1000
    if seconds < 0:
        return f"in {_span(-seconds)}"
    return "just now" if seconds < _MINUTE_S else f"{_span(seconds)} ago"


def _span(seconds: int) -> str:
    for size, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= 2 * size or (size == _MINUTE_S and seconds >= size):
            return f"{seconds // size} {unit}"
    return "less than a minute"


def period(every: timedelta) -> str:
    """Return how long something is, exactly: ``15 min``, ``1 d 12 h``."""
    left, said = int(every.total_seconds()), []
    for size, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min"), (1, "s")):
        count, left = divmod(left, size)
        said += [f"{count} {unit}"] if count else []
    return " ".join(said)


def field_text(name: str, value: object) -> str:
    """Return a field of an entry; times as times, nothing as ``none``."""
    if name == "lastTimestamp" and isinstance(value, int) and value >= 0:
        return instant(value)
    return plain_text(value) or "none"


def _human_fact(name: str, value: object) -> tuple[str, str]:
    """Return a field of totals as people read it: ``bytesRead: 1024`` as ``bytes read`` and ``1.0 KiB``."""
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
    if isinstance(value, int) and not isinstance(value, bool):
        return words, human_bytes(value) if words.split()[0] == "bytes" else human_count(value)
    return words, plain_text(value)


def human_facts(totals: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return what something comes to, field by field, as people read it; tables are for pages of their own."""
    shown = (
        (name, value)
        for name, value in totals.items()
        if name != "dryRun" and value is not None and not isinstance(value, dict | list)
    )
    return [_human_fact(name, value) for name, value in shown]


def outcome_lines(row: Mapping[str, Any]) -> list[str]:
    """Return the outcome of a partition in a run, from the row that the shell command prints: reasons come first."""
    lines = [str(row["reason"])] if row.get("reason") else []
    lines += [f"at {one['offset']}: {one['reason']}" for one in row.get("boundaries", ()) if one.get("reason")]
    stops = [row["blocking"]] if row.get("blocking") else []
    lines += [f"from {stop['baseOffset']} on: {stop['detail']}; {stop['hint']}" for stop in stops]
    outcomes = Counter(str(boundary.get("outcome", "planned")) for boundary in row.get("boundaries", ()))
    lines += [f"{some(count, 'boundary')} {outcome}" for outcome, count in outcomes.items()]
    if "shipped" in row:
        size = sum(segment["bytes"] for segment in row["shipped"])
        lines.append(f"{some(len(row['shipped']), 'segment')} shipped, {human_bytes(size)}; {row['already']:,} before")
    if "unfitSnapshots" in row:
        lines.append(f"{some(row['unfitSnapshots'], 'snapshot')} missing, damaged, or not what a replay gives")
    if "read" in row:
        lines.append(f"would read {some(row['read']['segments'], 'segment')}, {human_bytes(row['read']['bytes'])}")
    return lines
