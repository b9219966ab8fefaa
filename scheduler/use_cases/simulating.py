"""The verdicts on a script of appends, bumps, expiries and restarts, as an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.replay.leader.producer_script import run_script
from resnap.scheduler.answers.records import plain
from resnap.scheduler.answers.rendering import Answer, Column
from resnap.scheduler.clock import instant
from resnap.storage.errors import UsageError
from resnap.tiering.controller.transactions.client_errors import ProduceSituation, on_produce_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from resnap.replay.leader.producer_script import Taken
    from resnap.scheduler.answers.rendering import Row

COLUMNS = (
    Column(key="line", title="LINE", right=True),
    Column(key="at", title="CLOCK"),
    Column(key="step", title="STEP"),
    Column(key="producerId", title="PRODUCER", right=True),
    Column(key="verdict", title="VERDICT"),
    Column(key="error", title="ERROR"),
    Column(key="detail", title="WHY"),
    Column(key="producerDoes", title="PRODUCER THEN"),
    Column(key="note", title="NOTE"),
)


def simulation(script: Path) -> Answer:
    """Return the answer whose rows take the steps of ``script`` one by one.

    Raises:
        UsageError: the script cannot be read; of a line that is no step, only when the rows come to it.

    """
    try:
        lines = script.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UsageError(f"{script}: the script cannot be read: {error.strerror}", hint="give a file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{script}: the script cannot be read: {error}", hint="JSON lines, in UTF-8") from error
    counts = {"accepted": 0, "duplicate": 0, "refused": 0}

    def rows() -> Iterator[Row]:
        for taken in run_script(lines, str(script)):
            if taken.verdict.verdict in counts:
                counts[taken.verdict.verdict] += 1
            yield _row(taken)

    return Answer(name="steps", kind="step", rows=rows(), columns=COLUMNS, tail=lambda: dict(counts))


def _row(taken: Taken) -> Row:
    error = taken.verdict.error
    return {
        "line": taken.line,
        "at": instant(taken.at_ms) if taken.at_ms >= 0 else taken.at_ms,
        "step": taken.step,
        "arguments": dict(taken.arguments),
        "producerId": taken.producer_id,
        "verdict": taken.verdict.verdict,
        "error": error.name if error else None,
        "errorCode": error.value,
        "detail": taken.verdict.detail,
        "producerDoes": _reaction(taken),
        "entry": plain(taken.entry),
        "note": taken.note,
    }


def _reaction(taken: Taken) -> str | None:
    """Tell what a producer of the newest kind does about the refusal of a batch that it has sent."""
    verdict = taken.verdict
    if taken.step != "append" or not verdict.error or taken.arguments.get("origin", "client") != "client":
        return None
    situation = ProduceSituation(
        transactional=bool(taken.arguments.get("transactional")), follows_last_acked=verdict.in_order
    )  # fmt: skip
    return str(on_produce_error(verdict.error, situation))
