"""What the JVM writes: carried to our standard error without its chatter, and kept for the message if it fails early.

A JVM writes to both of its streams before any logging is set up, and a part of it cannot be turned off. Neither stream
may be ours as it is: our standard output belongs to the answer of a command, and a progress bar on standard error is
torn by what is written past Python's ``sys.stderr``.
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
    r'Traceback [^\n]*\n(?:  File "[^"]*pyspark/daemon\.py"[^\n]*\n(?:    [^\n]*\n)*)+BrokenPipeError: [^\n]*\n'
)
"""A Python worker that Spark no longer needed, and that had not been ended before it wrote its last byte."""

_ENDED: Final = re.compile(r"\S+ \S+ ERROR \w+: Application has been killed\. Reason: (?P<reason>[^\n]*)\n?")
_HELD_PIECES: Final = 1000
_QUOTED_LINES: Final = 4
_JOIN_TIMEOUT_S: Final = 1.0
_CATCH_UP_S: Final = 30.0
_ALL_READ: Final = "resnap: all is read up to here\n"


class JvmOutput:
    """A pipe for a JVM's streams, read by a thread of its own: ``with`` it around the life of the JVM.

    Attributes:
        descriptor: where the JVM shall write; ours until ``handed_over``.
        ended_by: why the cluster has ended the application, as far as the JVM has said so.

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
        """Pass on what was held back, and from now on every line as it comes."""
        with self._lock:
            held, self._held = self._held, None
            for piece in held or ():
                if not _ENDED.fullmatch(piece):
                    _tell(piece)

    def catch_up(self, say: Callable[[str], object]) -> None:
        """Return once all is read that the JVM has written so far; ``say`` has it write a text."""
        self._is_read.clear()
        say(_ALL_READ)
        self._is_read.wait(_CATCH_UP_S)

    def last_words(self, within_s: float = _JOIN_TIMEOUT_S) -> str:
        """Return what was held back, in one line and without stack traces; waits a moment for a JVM that is ending."""
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
    """Give single lines, except that a Python traceback comes whole."""
    traceback = ""
    for line in lines:
        if traceback:
            traceback += line
            if not line.startswith(" "):
                yield traceback
                traceback = ""
        elif line.startswith("Traceback (most recent call last):"):
            traceback = line
        else:
            yield line
    if traceback:
        yield traceback


def _tell(piece: str) -> None:
    # Nothing of this may end the thread: the JVM would block on a full pipe. A service may have closed the stream.
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(piece)
