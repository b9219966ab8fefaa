"""The settings of runs: the service's own, read anew when it is told to, and what a request puts on top of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduler.settings.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from scheduler.runs.run import RunRequest
    from scheduler.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Where the settings of the service come from.

    Attributes:
        flags: of ``resnap serve``, by name of the setting.
        environment: of the process, unless given.
        directory: where ``resnap.toml`` is looked for.

    """

    flags: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] | None = None
    directory: Path | None = None

    def load(self) -> Settings:
        """Return the settings of the service as they are now.

        Raises:
            UsageError, ConfigurationError: a value cannot be used, or a file cannot be read.

        """
        return load_settings(self.flags, environment=self.environment, directory=self.directory, places=())

    def of(self, request: RunRequest) -> Settings:
        """Return the settings for one run; what the metadata log beside its sources says counts, too.

        Raises:
            UsageError, ConfigurationError: a value cannot be used, or a file cannot be read.

        """
        flags = {**self.flags, **request.settings}
        return load_settings(flags, environment=self.environment, directory=self.directory, places=request.sources)
