"""The verdict "can tiering be turned on yet?" as text, for any number of partitions, with the next steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from resnap.scheduler.output.rendering import human_count, some
from resnap.tiering.readiness import Readiness

if TYPE_CHECKING:
    from collections.abc import Mapping

_GOOD_TONES = frozenset({"good", "near"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A word, a sentence that gives the reason, and what is left to do, most urgent first."""

    word: str
    tone: str
    sentence: str
    steps: tuple[str, ...] = ()


def answer_of(counts: Mapping[Readiness, int], unread: int = 0) -> Answer:
    """Return the answer for partitions, given their number of each kind.

    Where ``unread`` sources could not be read, or not whole, nothing good is said: what was not seen may stop a broker.
    """
    answer = _of_what_was_seen(counts)
    if not unread or answer.tone not in _GOOD_TONES:
        return answer
    sentence = f"{some(unread, 'source')} could not be read, or not whole. Of what was seen: {answer.sentence}"
    return Answer(word="Not known yet", tone="none", sentence=sentence, steps=answer.steps)


def _of_what_was_seen(counts: Mapping[Readiness, int]) -> Answer:
    everything = sum(counts.values())
    all_in = everything - counts[Readiness.EXCLUDED]
    stops = counts[Readiness.BLOCKED] + counts[Readiness.UNFIT]
    waits = counts[Readiness.PREPARED]
    if not everything:
        step = 'scan the log dirs: a schedule with `run = "scan"` does, at its time or when it is run by hand'
        return Answer(word="Not known yet", tone="none", sentence="No scan has shown a partition.", steps=(step,))
    if not all_in:
        sentence = f"{some(everything, 'partition')}, all of compacted topics, which cannot be tiered."
        return Answer(word="Nothing to tier", tone="none", sentence=sentence)
    if stops:
        sentence = f"A broker would stop at {stops + waits:,} of {some(all_in, 'partition')}."
        return Answer(word="Not yet", tone="todo", sentence=sentence, steps=_steps(counts))
    if waits:
        sentence = f"No snapshot is left to be made; {some(waits, 'partition')} of {all_in:,} wait for an installation."
        return Answer(word="Almost", tone="near", sentence=sentence, steps=_steps(counts))
    if not counts[Readiness.READY]:
        sentence = f"All that may be tiered of {some(all_in, 'partition')} is in a store already."
        return Answer(word="Shipped", tone="good", sentence=sentence)
    return Answer(word="Yes", tone="good", sentence=_yes(counts, all_in))


def _yes(counts: Mapping[Readiness, int], all_in: int) -> str:
    shipped = counts[Readiness.SHIPPED]
    if shipped:
        return f"{counts[Readiness.READY]:,} of {some(all_in, 'partition')} are ready; {shipped:,} are shipped already."
    return f"A broker can tier every closed segment of {some(all_in, 'partition')}."


def _steps(counts: Mapping[Readiness, int]) -> tuple[str, ...]:
    said = {
        Readiness.UNFIT: "see first why a replay is refused for {}",
        Readiness.BLOCKED: "replay {}: `resnap regenerate` makes the snapshots, `resnap tier` ships segments with them",
        Readiness.PREPARED: "install the snapshots that are made for {}, broker by broker",
    }
    return tuple(text.format(some(counts[one], "partition")) for one, text in said.items() if counts[one])


class Step(NamedTuple):
    """A step on the way to tiering: whether it is behind, here or ahead, and what is left of it."""

    name: str
    place: Literal["done", "here", "ahead"]
    text: str
    command: str


def way_of(counts: Mapping[Readiness, int], unread: int = 0) -> list[Step]:
    """Return the steps, of which the first that is not done is here; ``unread`` sources could not be checked."""
    seen = sum(counts.values())
    stops, waits = counts[Readiness.BLOCKED] + counts[Readiness.UNFIT], counts[Readiness.PREPARED]
    is_checked = bool(seen) and not unread
    known = [
        ("Check", is_checked, _checked(seen, unread), "resnap check"),
        ("Rebuild", is_checked and not stops, f"{some(stops, 'partition')} to go", "resnap regenerate"),
        ("Install", is_checked and not stops + waits, f"{some(waits, 'partition')} to go", "resnap install"),
        ("Tier", False, _tiered(counts), "remote.storage.enable=true"),
    ]
    steps, is_here = list[Step](), True
    for name, is_done, text, command in known:
        place: Literal["done", "here", "ahead"] = "done" if is_done and is_here else "here" if is_here else "ahead"
        is_here = place == "done"
        steps.append(Step(name, place, text, command))
    return steps


def _checked(seen: int, unread: int) -> str:
    if unread:
        return f"{some(unread, 'source')} not read"
    return f"{some(seen, 'partition')} seen" if seen else "nothing seen yet"


def _tiered(counts: Mapping[Readiness, int]) -> str:
    ready, shipped = counts[Readiness.READY], counts[Readiness.SHIPPED]
    said = f"{human_count(ready)} ready"
    return f"{said}, {human_count(shipped)} shipped" if shipped else said
