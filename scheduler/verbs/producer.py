"""`resnap producer simulate`: shows a broker's responses to a script of appends, bumps, expiries and restarts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from resnap.replay.leader.producer_script import Taken, run_script
from resnap.scheduler.job.contract import Context, Request, Result, Verb, View
from resnap.scheduler.output.records import plain
from resnap.scheduler.output.rendering import Column, Row
from resnap.storage.errors import UsageError
from resnap.storage.words import instant
from resnap.tiering.controller.transactions.client_errors import ProduceSituation, on_produce_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Request):
    """Show what a broker of a release would answer to each step of a script: appends, bumps, expiries, restarts."""

    script: Annotated[Path, typer.Argument(metavar="FILE", help="The script: JSON lines, one step each.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Result):
    """A step that was taken, and the verdict on it."""

    taken: Taken


def run(request: Asked, _: Context) -> Iterator[Step]:
    """Take the steps of the script one by one.

    Raises:
        UsageError: the script cannot be read, or a line of it is not a step.

    """
    path = request.script
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UsageError(f"{path}: the script cannot be read: {error.strerror}", hint="give a file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: the script cannot be read: {error}", hint="JSON lines, in UTF-8") from error
    for taken in run_script(lines, str(path)):
        yield Step(taken=taken)


class SimulationView(View[Step]):
    """A row per step."""

    name = "steps"
    kind = "step"
    columns = (
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

    def __init__(self) -> None:
        self._totals = {"accepted": 0, "duplicate": 0, "refused": 0}

    def row(self, result: Step) -> Row:
        """Return the row of a step, and count its verdict."""
        taken = result.taken
        verdict = taken.verdict
        if verdict.verdict in self._totals:
            self._totals[verdict.verdict] += 1
        return {
            "line": taken.line,
            "at": instant(taken.at_ms) if taken.at_ms >= 0 else taken.at_ms,
            "step": taken.step,
            "arguments": dict(taken.arguments),
            "producerId": taken.producer_id,
            "verdict": verdict.verdict,
            "error": verdict.error.name if verdict.error else None,
            "errorCode": verdict.error.value,
            "detail": verdict.detail,
            "producerDoes": _reaction(taken),
            "entry": plain(taken.entry),
            "note": taken.note,
        }

    def totals(self) -> Row:
        """Return how many steps got which verdict."""
        return self._totals


def _reaction(taken: Taken) -> str | None:
    """Return what a producer of the newest kind does about the refusal of a batch that it has sent."""
    verdict = taken.verdict
    if taken.step != "append" or not verdict.error or taken.arguments.get("origin", "client") != "client":
        return None
    transactional = bool(taken.arguments.get("transactional"))
    situation = ProduceSituation(transactional=transactional, follows_last_acked=verdict.in_order)
    return str(on_produce_error(verdict.error, situation))


VERB = Verb(takes=(), request=Asked, run=run, view=lambda *_: SimulationView(), reads="other")
