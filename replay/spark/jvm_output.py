"""Filters the JVM's output: passes it to standard error without noise, and keeps it for the error if the start fails.

A JVM writes to both streams before logging is configured, and some of that cannot be turned off. Neither stream may be
passed on unfiltered: our standard output is reserved for a command's result, and writes that bypass Python's
``sys.stderr`` break a progress bar on standard error.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

CHATTER: Final = (
    "WARNING: Using incubator modules",
    "WARNING: package sun.security.action not in java.base",
    "Picked up JAVA_TOOL_OPTIONS",
    "Picked up _JAVA_OPTIONS",
    "NOTE: Picked up JDK_JAVA_OPTIONS",
)
"""How lines begin that are of no use to an operator: the JVM's own, which no option silences."""

WORKER_DROPPED: Final = re.compile(
    r'Traceback .*?(?:  File "[^"]*pyspark/\w+\.py"[^\n]*\n(?:    [^\n]*\n)*)+'
    r"(?:BrokenPipeError|ConnectionResetError): [^\n]*\n\s*",
    re.DOTALL,
)
"""A Python worker that Spark no longer needed, and that had not ended before it wrote its last byte, or its own error.

Of chained tracebacks the last one decides: its innermost frame is pyspark's.
"""
_CHAIN: Final = ("\n", "During handling of the above", "The above exception was the direct cause", "Traceback ")

_ENDED: Final = re.compile(r"\S+ \S+ ERROR \w+: Application has been killed\. Reason: (?P<reason>[^\n]*)\n?")
_HELD_PIECES: Final = 1000
_QUOTED_LINES: Final = 4
_JOIN_TIMEOUT_S: Final = 1.0
_CATCH_UP_S: Final = 30.0
_ALL_READ: Final = "resnap: all is read up to here\n"


class JvmOutput:
    """A pipe for a JVM's streams, read by a thread of its own; enter it for the life of the JVM.

    Attributes:
        descriptor: the end that the JVM writes to; ours until ``handed_over``.
        ended_by: why the cluster has ended the application, if the JVM has reported it.

    """

    def __init__(self) -> None:
        self._source, self.descriptor = os.pipe()
        self.ended_by: str | None = None
        self._is_ours = True
        self._lock = threading.Lock()
        self._is_read = threading.Event()
        self._held: deque[str] | None = deque(maxlen=_HELD_PIECES)
        self._thread = threading.Thread(target=self._carry, name="jvm-output", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.handed_over()
        # A process that the JVM left behind may hold the pipe open; its output is not worth waiting for.
        self._thread.join(_JOIN_TIMEOUT_S)

    def handed_over(self) -> None:
        """Close our end of the pipe, so that it ends when the JVM does."""
        if self._is_ours:
            self._is_ours = False
            os.close(self.descriptor)

    def release(self) -> None:
        """Pass on the lines held back, and from now on every line at once."""
        with self._lock:
            held, self._held = self._held, None
            for piece in held or ():
                if not _ENDED.fullmatch(piece):
                    _tell(piece)

    def catch_up(self, say: Callable[[str], object]) -> None:
        """Return once everything is read that the JVM has written so far; ``say`` makes it write a text."""
        self._is_read.clear()
        say(_ALL_READ)
        self._is_read.wait(_CATCH_UP_S)

    def last_words(self, within_s: float = _JOIN_TIMEOUT_S) -> str:
        """Return the lines held back as one line, without stack traces; waits briefly for an ending JVM."""
        self._thread.join(within_s)
        with self._lock:
            lines = "".join(self._held or ()).splitlines()
        causes = [line.strip() for line in lines if line.strip() and not line.startswith(("\t", " "))]
        return "; ".join(causes[:_QUOTED_LINES])

    def _carry(self) -> None:
        with open(self._source, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - a descriptor
            for piece in _pieces(lines):
                if piece == _ALL_READ:
                    self._is_read.set()
                elif not piece.startswith(CHATTER) and not WORKER_DROPPED.fullmatch(piece):
                    self._pass_on(piece)

    def _pass_on(self, piece: str) -> None:
        ended = _ENDED.fullmatch(piece)
        if ended is not None:
            self.ended_by = ended["reason"]
        with self._lock:
            if self._held is not None:
                self._held.append(piece)
            elif ended is None:
                # Otherwise it is part of the error that the user of the context gets.
                _tell(piece)


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """Yield single lines, but a Python traceback as a whole, with those that it is chained to."""
    traceback, has_error = "", False
    for line in lines:
        if traceback and (line.startswith(_CHAIN if has_error else "")):
            traceback += line
            has_error = not line.startswith((" ", "Traceback "))
            continue
        if traceback:
            yield traceback
            traceback = ""
        if line.startswith("Traceback (most recent call last):"):
            traceback, has_error = line, False
        else:
            yield line
    if traceback:
        yield traceback


def _tell(piece: str) -> None:
    # Nothing of this may end the thread: the JVM would block on a full pipe. A service may have closed the stream.
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(piece)
