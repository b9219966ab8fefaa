"""The first contact with a cluster, and what to say where there is none.

The library tries again and again until its time is up, whatever its settings say. So a broker that does not take a
connection, or takes it and refuses at once, is found out here, in seconds: an operator has mistyped something, and
waits.
"""

from __future__ import annotations

import logging
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from resnap.storage.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_Made = TypeVar("_Made")
SETUP_TIMEOUT_S: Final = 5.0
"""How long a broker has to take a connection."""
_FIRST_MS: Final = 3_000
_ENOUGH: Final = 2
"""Failures of one kind that settle the matter: the first may be for want of time alone."""
_FAILED: Final = re.compile(r"Bootstrap (?:connection|attempt) to \S+ failed: (.*?)(?: \(backoff .*)?$")
"""What the library logs of each attempt."""
_SAYS_NOTHING: Final = "socket disconnected"
"""What is heard, too, where a broker has said why before it hung up."""
_BY_PROPERTY: Final = (
    "look at --bootstrap-server, and whether the broker runs and a firewall lets you through;"
    " socket.connection.setup.timeout.ms in --command-config waits longer"
)
_BY_PROTOCOL: Final = (
    "look at --bootstrap-server and --command-config: brokers hang up on who gives another"
    " security.protocol than theirs, or wrong credentials"
)


def reach(servers: Sequence[str], timeout_s: float) -> None:
    """See that one of ``servers`` (host:port) takes a connection, all asked at once.

    Raises:
        UsageError: one of them is not an address.
        ClusterError: none does; says of each why.

    """
    places = [_place(server) for server in servers]
    with ThreadPoolExecutor(len(places)) as asking:
        failures = list(asking.map(lambda place: _failure(place, timeout_s), places))
    if None in failures:
        return
    failed = "; ".join(f"{server}: {why}" for server, why in zip(servers, failures, strict=True))
    raise ClusterError(f"cannot connect to {failed}", hint=_BY_PROPERTY)


def connected(
    connect: Callable[[int], _Made], errors: tuple[type[Exception], ...], bootstrap: str, patience_ms: int
) -> _Made:
    """Return what ``connect`` returns, which may take so many milliseconds; ended early where it is hopeless.

    It fails with one of ``errors``.

    Raises:
        ClusterError: it failed; says of what.

    """
    heard = _Failures()
    with _listening(heard):
        for wait_ms in (min(_FIRST_MS, patience_ms), patience_ms):
            try:
                return connect(wait_ms)
            except errors as error:
                last = error
            if len(heard.why) >= _ENOUGH:
                break
    what = next((why for why in heard.why if _SAYS_NOTHING not in why), None)
    what = what or next(iter(heard.why), f"{type(last).__name__}: {last}")
    raise ClusterError(f"cannot connect to {bootstrap}: {what}", hint=_BY_PROTOCOL) from last


def _place(server: str) -> tuple[str, int]:
    host, colon, port = server.strip().rpartition(":")
    if not (colon and host and port.isdecimal()):
        raise UsageError(f"--bootstrap-server {server!r}: expected HOST:PORT", hint="brokers have port 9092 by default")
    return host.strip("[]"), int(port)


def _failure(place: tuple[str, int], timeout_s: float) -> str | None:
    """Return why ``place`` takes no connection; None where it does."""
    try:
        socket.create_connection(place, timeout_s).close()
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


class _Failures(logging.Handler):
    """Keeps why the library could not connect, of which its exception says nothing."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.why: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what ``record`` says of a failure."""
        failed = _FAILED.match(record.getMessage())
        if failed is not None:
            self.why.append(failed[1])


@contextmanager
def _listening(heard: _Failures) -> Iterator[None]:
    """Let ``heard`` listen to the library's log, which is silent else: what matters comes as an exception."""
    log = logging.getLogger("kafka")
    log.addHandler(heard)
    log.propagate = False
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.removeHandler(heard)
        log.setLevel(logging.CRITICAL)
