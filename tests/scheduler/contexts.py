"""A context for jobs that tests run themselves: it reports nothing."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from resnap.scheduler.job.contract import Observer
from resnap.scheduler.output.progress import Progress

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from resnap.scheduler.clock import Clock
    from resnap.scheduler.job.engines import Engine
    from resnap.scheduler.settings.settings import Settings


@dataclass
class SilentContext:
    settings: Settings
    clock: Clock
    replays: Engine
    observer: Observer = field(default_factory=Observer)
    errors: list[Exception] = field(default_factory=list)

    def engine(self, *, ahead: bool = False) -> Engine:  # noqa: ARG002
        return self.replays

    def progress(self, *tasks: str) -> AbstractContextManager[list[Progress]]:
        return nullcontext([Progress() for _ in tasks])

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def error(self, error: Exception) -> None:
        self.errors.append(error)

    def check(self) -> None: ...
