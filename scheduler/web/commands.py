"""Commands to copy from a page: the shell command, and the same request to the API.

A command does what the service would do: it names the service's configuration file and the flags that the service was
started with, then what is asked for. The environment is the shell's own, as it was the service's.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.scheduler.cli.commands import load_command
from resnap.scheduler.job.contract import verb_of
from resnap.scheduler.registry import KINDS
from resnap.scheduler.runs.configuration import absolute_places
from resnap.scheduler.settings.service import ServiceSettings
from resnap.scheduler.settings.settings import DECLARED
from resnap.scheduler.settings.values import json_form
from resnap.tiering.judging.refusal import UnblockedBy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from resnap.scheduler.runs.plans import KeptPlan
    from resnap.scheduler.runs.run import RunRequest
    from resnap.scheduler.runs.scans import ScannedPartition
    from resnap.scheduler.service.services import Services
    from resnap.tiering.judging.readiness import RunRepair

_FILES: Final = "/var/tmp"  # noqa: S108 - in commands that are printed
"""Where copied commands keep plans, and snapshots if no destination is allowed: absolute, wherever they are run."""
_STAGED: Final = f"{_FILES}/staged"
_OF_THE_SERVICE: Final = frozenset({*ServiceSettings.model_fields, "log_dirs", "output", "quiet", "verbose"})


class Command(NamedTuple):
    """A shell command line, quoted, and what it does."""

    says: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """Writes calls of the shell command that work under the same settings as the service.

    Attributes:
        flags: those that the service was started with, by name of the setting, and its configuration file.
        is_on: names of the switches that the service's settings have on.
        log_dirs: those that the service was started with, which no file names.
        staged: where snapshots are made, unless a run says otherwise.

    """

    flags: Mapping[str, object] = field(default_factory=dict)
    is_on: frozenset[str] = frozenset()
    log_dirs: tuple[str, ...] = ()
    staged: str = _STAGED

    @classmethod
    def of(cls, services: Services) -> Shell:
        """Return the shell beside a service."""
        given = {name: value for name, value in services.configuration.flags.items() if name not in _OF_THE_SERVICE}
        file = services.configuration.file()
        if file is not None:
            given["config"] = file.absolute()
        settings = services.settings
        is_on = frozenset(name for name in ("dry_run", "verify_crc", "full", "fresh") if getattr(settings, name))
        named = services.configuration.flags.get("log_dirs")
        log_dirs = tuple(absolute_places(map(str, named))) if isinstance(named, list) else ()
        staged = (f"{str(place).rstrip('/')}/staged" for place in settings.allow_destinations)
        return cls(flags=given, is_on=is_on, log_dirs=log_dirs, staged=next(staged, _STAGED))

    def line(self, verb: str, *words: str, settings: Mapping[str, object] | None = None) -> str:
        """Return a call of ``verb``; ``settings`` are those of a run, over the service's own."""
        asked = settings or {}
        of_the_service = {name: value for name, value in self.flags.items() if name not in asked}
        given = {name: value for name, value in {**asked, **of_the_service}.items() if name in _flags_of(verb)}
        return resnap(
            *verb.split(), *words, *(word for name, value in given.items() for word in self._flag(name, value))
        )

    def _flag(self, name: str, value: object) -> list[str]:
        flag = DECLARED[name].flag
        if value is False and name in self.is_on:
            return [f"--no-{flag.removeprefix('--')}"]
        if name == "spark_conf" and isinstance(value, list | tuple):
            value = [_property(str(entry)) for entry in value]
        return _words(flag, value)

    def run(self, request: RunRequest) -> str:
        """Return the shell command that does the same as a run; a run of a plan reads it from ``plan_file``."""
        verb = verb_of(request.kind)
        values = dict(request.settings) if verb.to is None else {**request.settings, verb.to: request.destination}
        arguments = [
            (one.flag, values.pop(name)) for name, one in verb.arguments.items() if one.flag and name in values
        ]
        words = [word for flag, value in arguments for word in _words(flag, value)]
        if request.plan is not None:
            return self.line(request.kind, "--plan", plan_file(request.plan), *words, settings=values)
        sources = [] if verb.reads == "cluster" else [*(request.sources or self.log_dirs)]
        return self.line(KINDS[request.kind], *sources, *words, settings=_with_partitions(request, values))

    def plan(self, plan: KeptPlan) -> list[Command]:
        """Return the commands that carry out a plan, read from ``plan_file``, and that make it again."""
        request, file = plan.request, plan_file(plan.id)
        sources, scoped = request.sources or self.log_dirs, _with_partitions(request, request.settings)
        carry_out = self.line("regenerate", "--plan", file, "--into", self.staged, settings=request.settings)
        again = self.line("plan", *sources, "--save", file, settings=scoped)
        return [Command("carry it out in a shell", carry_out), Command("make it again in a shell", again)]

    def partition(self, seen: ScannedPartition, repairs: Sequence[RunRepair]) -> list[Command]:
        """Return the commands for one partition: to scan, plan, rebuild and install."""
        place = seen.row["path"]
        return [
            *installs(seen, repairs),
            Command("scan it", self.line("scan", place)),
            Command("see what a replay would read and make", self.line("plan", place)),
            Command("make its snapshots", self.line("regenerate", place, "--into", self.staged)),
        ]

    def overview(self, verb: str, source: str, topic: str, *words: str) -> str:
        """Return a call of ``verb`` for what the overview is of."""
        places = (source,) if source else self.log_dirs
        return self.line(verb, *places, *words, settings={"topics": [topic]} if topic else {})

    def repair(self, verified: RunRequest, topics: Sequence[str]) -> str:
        """Return the command that repairs these topics, globs, in the store that a run has verified."""
        return self.line("repair", *verified.sources, settings={**verified.settings, "topics": list(topics)})


@cache
def _flags_of(verb: str) -> frozenset[str]:
    """Return the names of the settings that a command has flags for; the others mean nothing to it."""
    return frozenset(parameter.name for parameter in load_command(verb).params)


def resnap(*words: str) -> str:
    """Return a call of the shell command."""
    return shlex.join(["resnap", *words])


def install(made: str, partition: str) -> Command:
    """Return the command that puts snapshots of a destination into the log dir that holds a partition's directory."""
    line = resnap("install", made, str(PurePath(partition).parent))
    return Command("install what was made, once the broker is stopped", line)


def plan_file(plan_id: str) -> str:
    """Return the name under which copied commands keep a plan."""
    return f"{_FILES}/plan-{plan_id}.json"


def curl(url: str, *, needs_token: bool, body: Mapping[str, object] | None = None, words: Iterable[str] = ()) -> str:
    """Return a request to the API; the token comes from the environment, so that no history of a shell has it.

    ``words`` are further ones of the command. Where the answer is an error, it is shown, and the command fails.
    """
    line = shlex.join(["curl", "-sS", "--fail-with-body", *words])
    if needs_token:
        line += ' -H "Authorization: Bearer $RESNAP_TOKEN"'
    if body is not None:
        line += " " + shlex.join(["-H", "Content-Type: application/json", "-d", json.dumps(body)])
    return f"{line} {shlex.quote(url)}"


def installs(seen: ScannedPartition, repairs: Sequence[RunRepair]) -> list[Command]:
    """Return how to install what was rebuilt for a partition, if that unblocks it."""
    if seen.judgement.unblocked_by is not UnblockedBy.INSTALL:
        return []
    return [install(repair.destination, seen.row["path"]) for repair in repairs if repair.how == "regenerated"]


def _with_partitions(request: RunRequest, settings: Mapping[str, object]) -> Mapping[str, object]:
    return {**settings, "partitions": list(request.partitions)} if request.partitions else settings


def _property(entry: str) -> str:
    """Return ``KEY=VALUE`` as viewers may see it; a secret is to be filled in."""
    key, separator, value = entry.partition("=")
    properties = json_form({key: value})
    return f"{key}{separator}{properties[key]}" if isinstance(properties, dict) else key


def _words(flag: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [flag] if value else []
    if isinstance(value, list | tuple):
        return [word for entry in value for word in (flag, _text(entry))]
    return [] if value is None else [flag, _text(value)]


def _text(value: object) -> str:
    if isinstance(value, Path):
        return str(value.absolute())
    return value.isoformat() if isinstance(value, datetime) else str(value)
