"""What one run of a command has at hand: its settings, where to print, and what time it is."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from resnap.scheduler.answers.progress import show_progress
from resnap.scheduler.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from resnap.replay.window import ReplayRules
    from resnap.scheduler.answers.progress import Progress
    from resnap.scheduler.answers.rendering import Answer, Output
    from resnap.scheduler.cli.failures import Failures
    from resnap.scheduler.clock import Clock
    from resnap.scheduler.settings.settings import Settings
    from resnap.scheduler.use_cases.service import Service


@dataclass(slots=True, kw_only=True)
class Invocation:
    """Handed to every command as its first argument."""

    settings: Settings
    flags: Mapping[str, object]
    """As they were given, by name of the setting; None where one was not."""
    output: Output
    failures: Failures
    clock: Clock = field(default_factory=SystemClock)
    partly_done: bool = False
    """Set by a command that has done some of its work, so that an error elsewhere means exit code 3."""

    at_end: ExitStack = field(default_factory=ExitStack)
    """Closed when the command ends, however it does."""

    def answer(self, answer: Answer) -> None:
        """Print the answer, in the form that was asked for."""
        self.output.write(answer)

    def service(self, rules: ReplayRules | None = None, *, replays: bool = True, remembers: bool = False) -> Service:
        """Return the service for this command, under the rules of a saved plan if there is one.

        Args:
            rules: those of the saved plan.
            replays: whether the command replays whatever it plans, so that Spark may start meanwhile.
            remembers: whether what earlier runs found out counts.

        """
        from resnap.scheduler.wiring import service_of, with_memory  # slow to import

        service = service_of(self.settings, self.clock, rules, ahead=replays and not self.settings.dry_run)
        self.at_end.enter_context(service.engine)
        return with_memory(service, self.settings, self.warn) if remembers else service

    def note(self, text: str) -> None:
        """Say something on standard error; nothing with ``--quiet``."""
        self.failures.note(text)

    def warn(self, text: str) -> None:
        """Say on standard error what may lead to trouble; nothing with ``--quiet``."""
        self.failures.warn(text)

    def error(self, error: Exception) -> None:
        """Report what went wrong with a part of the work, and go on; the exit code will tell."""
        self.failures.report(error)

    @contextmanager
    def progress(self, task: str) -> Iterator[Progress]:
        """Show how far ``task`` has come while the context lasts."""
        with self.progress_of(task) as (progress,):
            yield progress

    def progress_of(self, *tasks: str) -> AbstractContextManager[list[Progress]]:
        """Show how far each of several tasks has come that go on side by side."""
        return show_progress(
            tasks, sys.stderr, self.clock, quiet=self.settings.quiet, as_json=self.output.form != "table"
        )
