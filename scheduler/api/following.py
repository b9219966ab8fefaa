"""What open event streams have yet to tell: the newest events of each run that is followed, encoded once for all.

A stream keeps nothing but the number of the last event it told, however slowly its caller reads: what it does not find
here any more it reads from the history. One timer and one wake-up for each run serve all who follow it, so that many
idle streams cost nothing. All of it happens in the event loop but what the hub calls.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.scheduler.answers.records import plain
from resnap.scheduler.api.problem_kinds import TooManyStreamsError
from resnap.scheduler.runs.run import RunState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.scheduler.daemon.services import Services
    from resnap.scheduler.runs.run import RunEvent

MOST_STREAMS: Final = 500
"""Open at once; each is a connection, and a process may have 1,024 files by default."""
TAIL_EVENTS: Final = 10_000
"""Kept of a run that is followed."""
AT_ONCE: Final = 500
"""Events that are sent in one piece."""
PACE_S: Final = 1.0
"""What happens within it is told together: many small partitions are done in a second, and each would wake all."""
BEAT_S: Final = 10.0
"""A comment after so long of silence, so that what stands between does not take the connection for dead."""
TICK_S: Final = 1.0
"""How often is looked whether the service is about to end."""


class Message(NamedTuple):
    """An event as it is sent."""

    seq: int
    data: bytes
    is_last: bool


class Tail:
    """The newest events of one run, for all who follow it; their numbers leave nothing out.

    Attributes:
        is_over: whether nothing will come any more: the run or the service ends.
        beats: how often there was silence for ``BEAT_S``.

    """

    def __init__(self, services: Services) -> None:
        self._services, self._loop = services, asyncio.get_running_loop()
        self._messages = deque[Message](maxlen=TAIL_EVENTS)
        self._news = asyncio.Event()
        self._told_s = self._loop.time()
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._waking: asyncio.TimerHandle | None = None
        self.followers = self.beats = 0
        self.is_over = False

    def hear(self, event: RunEvent) -> None:
        """Take an event, in any thread."""
        self._loop.call_soon_threadsafe(self._add, message_of(event))

    def behind(self, seq: int) -> Sequence[Message] | None:
        """Return the next of what came behind the event ``seq``; None where only the history has them."""
        missing = self._messages[-1].seq - seq if self._messages else 0
        if missing > len(self._messages):
            return None
        return [self._messages[at] for at in range(-missing, 0)[:AT_ONCE]]

    async def news(self) -> None:
        """Wait for an event, a beat, or the end."""
        await self._news.wait()

    def close(self) -> None:
        """Let go of the loop."""
        self._timer.cancel()
        if self._waking is not None:
            self._waking.cancel()

    def _add(self, message: Message) -> None:
        self._messages.append(message)
        self.is_over |= message.is_last
        due_s = self._told_s + PACE_S
        if message.is_last or self._loop.time() >= due_s:
            self._wake()
        elif self._waking is None:
            self._waking = self._loop.call_at(due_s, self._wake)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        if self._services.is_ending:
            self.is_over = True
            self._wake()
        elif self._loop.time() - self._told_s >= BEAT_S:
            self.beats += 1
            self._wake()

    def _wake(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        self._told_s = self._loop.time()
        news, self._news = self._news, asyncio.Event()
        news.set()


class Following:
    """Who follows which run."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tails: dict[str, tuple[Tail, ExitStack]] = {}
        """The runs that are followed, each with what ends the listening."""

    @contextmanager
    def of(self, run_id: str) -> Iterator[Tail]:
        """Give what there is to tell of a run, while the context lasts.

        Raises:
            TooManyStreamsError: as many streams are open as may.

        """
        if sum(tail.followers for tail, _ in self._tails.values()) >= MOST_STREAMS:
            raise TooManyStreamsError(f"{MOST_STREAMS} event streams are open, more are not")
        tail, listening = self._tails.get(run_id) or self._begun(run_id)
        tail.followers += 1
        self._services.observation.event_stream(+1)
        try:
            yield tail
        finally:
            self._services.observation.event_stream(-1)
            tail.followers -= 1
            if not tail.followers:
                del self._tails[run_id]
                listening.close()

    def _begun(self, run_id: str) -> tuple[Tail, ExitStack]:
        tail, listening = Tail(self._services), ExitStack()
        listening.callback(tail.close)
        listening.enter_context(self._services.hub.listening(run_id, tail.hear))
        self._tails[run_id] = tail, listening
        return tail, listening


def message_of(event: RunEvent) -> Message:
    """Return an event as it is sent.

    Source: HTML Standard, 9.2, server-sent events.
    """
    data = json.dumps({"atMs": event.at_ms, **{str(key): plain(value) for key, value in event.data.items()}})
    is_last = event.kind == "state" and RunState(str(event.data["state"])).is_final
    return Message(event.seq, f"id: {event.seq}\nevent: {event.kind}\ndata: {data}\n\n".encode(), is_last)
