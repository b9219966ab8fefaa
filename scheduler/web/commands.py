"""What a page shows, as a command to copy: the shell's, and the same question to the API."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from scheduler.runs.readiness import Readiness
from scheduler.runs.run import RunKind
from scheduler.settings.layers import flag_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.runs.readiness import Mending
    from scheduler.runs.run import RunRequest
    from scheduler.runs.sightings import SeenPartition

STAGED: Final = "staged"
"""Where copied commands have snapshots made, unless a run says otherwise: a directory below where they are run."""
_VERBS: Final[Mapping[RunKind, str]] = {RunKind.REGENERATE: "--into", RunKind.TIER: "--to", RunKind.VERIFY: "--store"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A line for a shell, every word of it quoted where it must be, and what it is for."""

    says: str
    line: str


def resnap(*words: str) -> str:
    """Return a call of the shell command."""
    return shlex.join(["resnap", *words])


def curl(url: str, *, needs_token: bool, body: Mapping[str, object] | None = None) -> str:
    """Return a request to the API; the token comes from the environment, so that no history of a shell has it."""
    words = ["curl", "-fsS"]
    line = shlex.join(words)
    if needs_token:
        line += ' -H "Authorization: Bearer $RESNAP_TOKEN"'
    if body is not None:
        line += " " + shlex.join(["-H", "Content-Type: application/json", "-d", json.dumps(body)])
    return f"{line} {shlex.quote(url)}"


def scan_of(source: str | None, topic: str | None) -> str:
    """Return the command that looks at what the overview is of."""
    return resnap("scan", *_word(source), *(["--topic", topic] if topic else []))


def partition_commands(seen: SeenPartition, mendings: Sequence[Mending]) -> list[Command]:
    """Return what can be asked for one partition, or done about it."""
    place = str(seen.row["path"])
    installs = [
        Command(
            says="install what was made, once the broker is stopped",
            line=resnap("install", one.destination, str(PurePath(place).parent)),
        )
        for one in mendings
        if one.how == "regenerated" and seen.judgement.readiness is Readiness.PREPARED
    ]
    return [
        *installs,
        Command(says="look at it", line=resnap("scan", place)),
        Command(says="see what a replay would read and make", line=resnap("plan", place)),
        Command(says="make its snapshots", line=resnap("regenerate", place, "--into", STAGED)),
    ]


def run_command(request: RunRequest) -> str:
    """Return the command that does what a run does.

    Settings of a run are flags of the same names; partitions are named by their topics, where no source is.
    """
    destination = [] if request.destination is None else [_VERBS[request.kind], request.destination]
    verb = [request.kind.value]
    sources = [] if request.kind is RunKind.VERIFY else list(request.sources)
    return resnap(*verb, *sources, *destination, *_flags(request.settings))


def _flags(settings: Mapping[str, object]) -> list[str]:
    flags = []
    for name, value in settings.items():
        flag = flag_of(name)
        if isinstance(value, bool):
            flags += [flag] if value else []
        elif isinstance(value, list | tuple):
            flags += [word for one in value for word in (flag, str(one))]
        elif value is not None:
            flags += [flag, str(value)]
    return flags


def _word(text: str | None) -> list[str]:
    return [text] if text else []
