"""Answers "can tiering be turned on yet?" in words, topic by topic, for the shell and the pages."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from typing_extensions import TypedDict

from resnap.scheduler.output.records import row_of
from resnap.storage.words import first_of, human_count, some
from resnap.tiering.controller.transactions.open_transaction import ANY_SERVER
from resnap.tiering.judging.known_faults import PAGE
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.judging.refusal import SWITCH, UnblockedBy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from resnap.scheduler.settings.settings import Settings
    from resnap.tiering.broker_releases import BrokerReleases

MOST_NAMED: Final = 10
"""Topics of one verdict that are named, and that one command turns on."""
_OTHERS: Final = {
    Verdict.BLOCKED: "",
    Verdict.UNKNOWN: "",
    Verdict.NEVER: " (Kafka does not tier what is compacted or internal)",
}


class Sentence(NamedTuple):
    """Something said in an answer, and the topics that it is of; pages link these."""

    text: str
    topics: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.text}: {first_of(self.topics, MOST_NAMED)}." if self.topics else self.text


class TieringAnswer(NamedTuple):
    """A word, and sentences that say of which topics it is."""

    word: str
    tone: str
    sentences: Sequence[Sentence]


def answer_of(
    topics: Mapping[Verdict, Sequence[str]], *, unread: int = 0, silent: int = 0, on: int = 0, is_seen: bool = True
) -> TieringAnswer:
    """Return the answer for topics, given their names by verdict.

    Args:
        topics: the names.
        unread: sources that could not be read, or not whole: what was not seen may stop a broker.
        silent: brokers whose services did not answer.
        on: how many of those that are ready have been turned on already.
        is_seen: whether anything was looked at; if not, that there is no topic says nothing.

    """
    everything, ready = sum(map(len, topics.values())), topics[Verdict.READY]
    tierable = everything - len(topics[Verdict.NEVER])
    rest = [
        Sentence(f"{human_count(len(names))} {verdict.value}{why}", names)
        for verdict, why in _OTHERS.items()
        if (names := topics[verdict])
    ]
    if silent:
        rest = [*rest, Sentence(f"{some(silent, 'broker')} did not answer.")]
    if unread:
        why = Sentence(
            f"{some(unread, 'source')} could not be read, or not whole: what was not seen may stop a broker."
        )
        seen = [Sentence(f"Of what was seen, {some(len(ready), 'topic')} would be ready.")] if ready else []
        return TieringAnswer("Not known yet", "none", [why, *seen, *rest])
    if not everything and (silent or not is_seen):
        return TieringAnswer("Not known yet", "none", [Sentence("Nothing was scanned yet."), *rest])
    if not tierable:
        return TieringAnswer("Nothing to tier", "none", rest or [Sentence("There is no topic that Kafka tiers.")])
    if not ready:
        word, tone = ("Not yet", "todo") if topics[Verdict.BLOCKED] else ("Not known yet", "none")
        return TieringAnswer(word, tone, [Sentence(f"None of {some(everything, 'topic')} is ready."), *rest])
    what = "are ready" if on else "can be turned on now"
    already = f", {human_count(on)} of them on already" if on else ""
    first = Sentence(f"{human_count(len(ready))} of {some(everything, 'topic')} {what}{already}", ready)
    if len(ready) == tierable:
        return TieringAnswer("Yes", "good", [first, *rest])
    return TieringAnswer(f"{human_count(len(ready))} of {some(everything, 'topic')}", "near", [first, *rest])


def turn_on_lines(topics: Sequence[str], settings: Settings) -> Iterator[str]:
    """Yield the command that turns tiering on for ``topics``, which are not; Kafka's tool takes one topic at a time."""
    alter = f"{kafka_configs(settings)} --alter --entity-type topics --add-config {SWITCH}=true --entity-name"
    if len(topics) == 1:
        yield f"{alter} {shlex.quote(topics[0])}"
    else:
        yield f'for topic in {shlex.join(topics[:MOST_NAMED])}; do {alter} "$topic"; done'
    if len(topics) > MOST_NAMED:
        yield f"and the same for {human_count(len(topics) - MOST_NAMED)} more, which --output json names."


def why_of(row: Mapping[str, Any]) -> str:
    """Return in a few words why a topic is not ready; empty if it is ready."""
    more = f" and {len(row['unknown']) - 1} more" if len(row["unknown"]) > 1 else ""
    unknown = [f"not known: {row['unknown'][0]}{more}"] if row["unknown"] else []
    return "; ".join([*(f"{one['reason']}: {some(one['replicas'], 'replica')}" for one in row["blockers"]), *unknown])


def kafka_configs(settings: Settings) -> str:
    """Return Kafka's tool for settings of topics, with the connection that this run has."""
    return shlex.join(["kafka-configs.sh", *connection_of(settings)])


def connection_of(settings: Settings) -> list[str]:
    """Return the flags of the connection that this run has; Kafka's tools and ours have the same."""
    words = ["--bootstrap-server", settings.bootstrap_server or ANY_SERVER]
    return words if settings.command_config is None else [*words, "--command-config", str(settings.command_config)]


class KnownFaultRow(TypedDict):
    """A known fault of Kafka's: which of the brokers' releases have it, or may, and what of the topic meets it."""

    fault: Annotated[str, "fault.name"]
    releases: list[str]
    isCertain: bool
    detail: str
    hint: str


def fault_rows_if(releases: BrokerReleases | None) -> list[KnownFaultRow] | None:
    """Return the known faults that any tiered topic may meet as rows; None where no broker's release is known."""
    if releases is None or not releases.known:
        return None
    return [row_of(KnownFaultRow, fault) for fault in releases.faults]


def faults_line(releases: BrokerReleases) -> str:
    """Return one line with the known faults that any tiered topic may meet with these releases."""
    if not releases.known:
        return str(releases.not_checked)
    names = [f"{'' if met.is_certain else 'perhaps '}{met.fault.name}" for met in releases.faults]
    of = ", ".join(map(str, releases.known))
    more = "" if releases.not_known is None else f" Not checked: {releases.not_known}."
    return f"Kafka's known faults in {of}, for any tiered topic: {', '.join(names) or 'none'} (see {PAGE}).{more}"


class Step(NamedTuple):
    """A step on the way to tiering: whether it is behind, here or ahead, and what is left of it."""

    name: str
    place: Literal["done", "here", "ahead"]
    text: str
    command: str


def way_of(
    verdicts: Mapping[Verdict, int], waiting: Mapping[UnblockedBy, int], ready_topics: int, unread: int
) -> list[Step]:
    """Return the steps, of which the first that is not done is here.

    Args:
        verdicts: partitions by verdict.
        waiting: partitions that are blocked, by what unblocks them.
        ready_topics: how many topics can be turned on.
        unread: sources that could not be checked.

    """
    seen = sum(verdicts.values())
    rebuilt, installed = waiting.get(UnblockedBy.REBUILD, 0), waiting.get(UnblockedBy.INSTALL, 0)
    is_checked = bool(seen) and not unread
    seen_text = f"{some(seen, 'partition')} seen" if seen else "nothing seen yet"
    seen_text = f"{some(unread, 'source')} not read" if unread else seen_text
    known = [
        ("Check", is_checked, seen_text, "resnap check"),
        ("Rebuild", is_checked and not rebuilt, f"{some(rebuilt, 'partition')} to go", "resnap regenerate"),
        ("Install", is_checked and not rebuilt + installed, f"{some(installed, 'partition')} to go", "resnap install"),
        ("Tier", False, f"{some(ready_topics, 'topic')} ready", "remote.storage.enable=true"),
    ]
    steps, is_here = list[Step](), True
    for name, is_done, text, command in known:
        place: Literal["done", "here", "ahead"] = "done" if is_done and is_here else "here" if is_here else "ahead"
        is_here = place == "done"
        steps.append(Step(name, place, text, command))
    return steps
