"""What of a configuration that was read again holds at once, and what waits for the next start of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.scheduler.settings.settings import SETTING_NAMES, display_name

if TYPE_CHECKING:
    from resnap.scheduler.settings.settings import Settings

OF_THE_PROCESS: Final = frozenset(
    {"listen", "auth", "allow_hosts", "trusted_proxies", "log_format", "verbose", "state_dir"}
)
"""The socket, who may speak to it, the log, and the file."""
_OF_THE_ENGINE: Final = frozenset(
    {
        "engine", "threads", "header_read_size", "split_size", "range_size", "ranges_in_flight", "producers_per_task",
        "encryption_private_key",
    }
)  # fmt: skip
_PREFIXES: Final = ("spark_", "s3_", "producer_id_quota_")
AT_THE_START: Final = tuple(
    name for name in SETTING_NAMES if name in OF_THE_PROCESS | _OF_THE_ENGINE or name.startswith(_PREFIXES)
)
"""Settings of what lives as long as the process.

So does the engine, which keeps Spark and its connections, and the quota, which keeps what it has counted.
"""


def taken_over(at_work: Settings, read: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings to use from now on, and the names of those that wait for the next start."""
    old = {name: getattr(at_work, name) for name in AT_THE_START}
    waiting = tuple(display_name(name) for name, value in old.items() if value != getattr(read, name))
    return read.model_copy(update=old), waiting
