"""``SharedCluster``: the one connection of a command; it loads no client before it is asked for."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from resnap.tiering.cluster.client import Cluster


class SharedCluster:
    """One connection to a cluster for all requests of a command, made at the first one; must be closed."""

    def __init__(self) -> None:
        """Begin without a connection."""
        self._guard = Lock()
        self._open: Cluster | None = None

    def get(self, connect: Callable[[], Cluster]) -> AbstractContextManager[Cluster]:
        """Return the connection, which stays open; ``connect`` makes it the first time."""
        with self._guard:
            if self._open is None:
                self._open = connect()
            return nullcontext(self._open)

    def close(self) -> None:
        """Close the connection."""
        if self._open is not None:
            self._open.close()
