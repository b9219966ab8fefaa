"""A context for jobs that tests run themselves: it reports nothing."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resnap.replay.watching import Progress
from resnap.scheduler.job.contract import Context

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from resnap.scheduler.clock import Clock
    from resnap.scheduler.settings.settings import Settings
    from resnap.tiering.engine import Engine


@dataclass
class SilentContext(Context):
    settings: Settings
    clock: Clock
    replays: Engine

    def engine(self, *, ahead: bool = False) -> Engine:  # noqa: ARG002
        return self.replays

    def progress(self, *tasks: str) -> AbstractContextManager[list[Progress]]:
        return nullcontext([Progress() for _ in tasks])

    def warn(self, text: str) -> None: ...
