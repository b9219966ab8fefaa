"""Parses and runs scripts for a simulated partition: JSON lines, one step each, checked before the step runs.

    # a comment; empty lines are ignored
    {"do": "settings", "kafka": "3.9", "expirationMs": 86400000}
    {"do": "append", "producerId": 7, "records": 3, "note": "any step may carry a note"}
    {"do": "wait", "ms": 90000000}

``settings`` may only be the first step. ``STEPS`` lists the others with their keys; only ``producerId``, ``ms``,
``offset`` and ``expirationMs`` are required in the steps that have them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from resnap.replay.leader.append_validation import AppendOrigin
from resnap.replay.leader.simulated_partition import MAX_TIME, SimulatedPartition
from resnap.replay.leader.validation_rules import rules_of
from resnap.replay.producer_state import Expiry
from resnap.storage.errors import UsageError
from resnap.storage.log.record_batch import MAX_EPOCH, MAX_SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from resnap.replay.leader.simulated_partition import Verdict
    from resnap.storage.log.producer_snapshot import ProducerEntry

MAX_LONG: Final = 2**63 - 1
MAX_INT: Final = 2**31 - 1
DAY_MS: Final = 86_400_000


def _within(low: int, high: int, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"expected a whole number from {low} to {high}, found {json.dumps(value)}")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {json.dumps(value)}")  # noqa: TRY004 - of the text, not of us
    return value


def _origin(value: object) -> AppendOrigin:
    names = {origin.value: origin for origin in AppendOrigin}
    if value not in names:
        raise ValueError(f"expected one of {', '.join(names)}, found {json.dumps(value)}")
    return names[str(value)]


def _release(value: object) -> tuple[int, int]:
    parts = value.split(".") if isinstance(value, str) else []
    try:
        return int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        raise ValueError(f'expected a release such as "3.9", found {json.dumps(value)}') from None


_PRODUCER_ID: Final = partial(_within, 0, MAX_LONG)
_EPOCH: Final = partial(_within, 0, MAX_EPOCH)
_TIME: Final = partial(_within, -1, MAX_TIME)
_OFFSET: Final = partial(_within, 0, MAX_LONG)
_WAIT: Final = partial(_within, 0, MAX_LONG // 2)
_MILLISECONDS: Final = partial(_within, 1, MAX_INT)

STEPS: Final[Mapping[str, tuple[str, Mapping[str, tuple[str, Callable[[object], object]]]]]] = {
    "append": ("append", {
        "producerId": ("producer_id", _PRODUCER_ID),
        "epoch": ("epoch", _EPOCH),
        "sequence": ("sequence", partial(_within, 0, MAX_SEQUENCE)),
        "records": ("records", partial(_within, 1, MAX_INT)),
        "transactional": ("transactional", _truth),
        "timestamp": ("timestamp", _TIME),
        "origin": ("origin", _origin),
        "verified": ("verified", _truth),
    }),
    "end": ("end_transaction", {
        "producerId": ("producer_id", _PRODUCER_ID),
        "commit": ("commit", _truth),
        "epoch": ("epoch", _EPOCH),
        "coordinatorEpoch": ("coordinator_epoch", partial(_within, 0, MAX_INT)),
        "timestamp": ("timestamp", _TIME),
        "origin": ("origin", _origin),
    }),
    "bump": ("bump", {"producerId": ("producer_id", _PRODUCER_ID)}),
    "wait": ("wait", {"ms": ("ms", _WAIT)}),
    "expire": ("expire", {}),
    "expiration": ("set_expiration", {"expirationMs": ("expiration_ms", _MILLISECONDS)}),
    "roll": ("roll", {}),
    "restart": ("restart", {"clean": ("clean", _truth), "keepSnapshots": ("keep_snapshots", _truth)}),
    "truncate": ("truncate", {"offset": ("offset", _OFFSET)}),
    "deleteRecords": ("delete_records", {"offset": ("offset", _OFFSET)}),
}  # fmt: skip
"""Step -> method of ``SimulatedPartition``, and its keys, each with the argument that it stands for."""
SETTINGS: Final[Mapping[str, tuple[str, Callable[[object], object]]]] = {
    "kafka": ("release", _release),
    "expirationMs": ("expiration_ms", _MILLISECONDS),
    "checkIntervalMs": ("check_interval_ms", _MILLISECONDS),
    "now": ("now_ms", _TIME),
    "verification": ("verification", _truth),
}
_REQUIRED: Final = {"producerId", "ms", "offset", "expirationMs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A step that was run, and its producer's state after it."""

    line: int
    """Line of the script, from 1."""
    step: str
    arguments: Mapping[str, object]
    """As they stand in the script."""
    verdict: Verdict
    at_ms: int
    """Time on the clock after the step."""
    producer_id: int | None
    entry: ProducerEntry | None
    """The entry of that producer; None if the partition does not know it."""
    note: str | None


def run_script(lines: Iterable[str], name: str = "the script") -> Iterator[Taken]:
    """Run the steps of a script one by one, and yield each.

    Raises:
        UsageError: a line is not a step; it names the line, and what would be valid. Earlier steps have been yielded.

    """
    partition: SimulatedPartition | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            step = _parsed(line)
            word = step.pop("do")
            if word == "settings" and partition is None:
                partition = _partition(step)
                continue
            partition = partition or _partition({})
            yield _take(partition, number, word, step)
        except ValueError as error:
            raise UsageError(f"{name}, line {number}: {error}") from None
        except UsageError as error:
            raise UsageError(f"{name}, line {number}: {error}", hint=error.hint) from None


def _parsed(line: str) -> dict[str, Any]:
    try:
        step = json.loads(line, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("not a step: nested too deeply") from None
    if not isinstance(step, dict) or not isinstance(step.get("do"), str):
        raise ValueError('expected an object with the key "do"')  # noqa: TRY004 - of the text, not of us
    return step


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    step = dict(pairs)
    if len(step) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {json.dumps(twice)} is given twice")
    return step


def _partition(given: dict[str, Any]) -> SimulatedPartition:
    arguments = _arguments("settings", SETTINGS, given, required=set())
    expiry = Expiry(arguments.pop("expiration_ms", DAY_MS), arguments.pop("check_interval_ms", 600_000))
    rules = rules_of(arguments.pop("release", (3, 9)))
    return SimulatedPartition(rules, expiry, arguments.pop("now_ms", 0), **arguments)


def _take(partition: SimulatedPartition, number: int, word: str, given: dict[str, Any]) -> Taken:
    if word == "settings":
        raise ValueError("settings are allowed only as the first step")
    if word not in STEPS:
        raise ValueError(f"unknown step {json.dumps(word)}: the steps are {', '.join(STEPS)}")
    note = given.pop("note", None)
    method, keys = STEPS[word]
    arguments = _arguments(word, keys, given, required=_REQUIRED & keys.keys())
    verdict = getattr(partition, method)(**arguments)
    producer_id = arguments.get("producer_id")
    known = partition.manager.producers.get(producer_id) if producer_id is not None else None
    return Taken(
        line=number, step=word, arguments=given, verdict=verdict, at_ms=partition.now_ms, producer_id=producer_id,
        entry=known.entry if known else None, note=None if note is None else str(note),
    )  # fmt: skip


def _arguments(
    word: str, keys: Mapping[str, tuple[str, Callable[[object], object]]], given: dict[str, Any], required: set[str]
) -> dict[str, Any]:
    unknown = given.keys() - keys.keys() - {"note"}
    if unknown:
        allowed = ", ".join(keys) or "none"
        raise ValueError(f"{word} has no key {json.dumps(min(unknown))}: its keys are {allowed}")
    missing = required - given.keys()
    if missing:
        raise ValueError(f"{word} lacks {json.dumps(min(missing))}")
    arguments: dict[str, Any] = {}
    for key, value in given.items():
        if key in keys:
            name, read = keys[key]
            try:
                arguments[name] = read(value)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
    return arguments
