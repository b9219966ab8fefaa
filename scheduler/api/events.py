"""Progress as server-sent events: first past events from the history, then new ones, each once and in order.

The newest events of each followed run are encoded once for all streams. A stream keeps only the number of the last
event it sent, however slowly its client reads: events that the feed no longer has are read from the history. One timer
and one wake-up per run serve all its streams, so that many idle streams cost nothing. Everything runs in the event
loop, except for calls from the history.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from fastapi.responses import Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool

from resnap.scheduler.api.problems import HttpError
from resnap.scheduler.output.records import plain
from resnap.scheduler.runs.run import RunState
from resnap.storage.words import instant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from starlette.types import Receive, Scope, Send

    from resnap.scheduler.runs.history import History
    from resnap.scheduler.runs.run import Run, RunEvent
    from resnap.scheduler.service.services import Services

MOST_STREAMS: Final = 500
"""Open at once; each is a connection, and a process may have 1,024 files by default."""
TAIL_EVENTS: Final = 10_000
"""Kept of a run that is followed."""
AT_ONCE: Final = 500
"""Events that are sent in one piece."""
PACE_S: Final = 1.0
"""What happens within it is sent together: many small partitions are done in a second, and each would wake all."""
BEAT_S: Final = 10.0
"""Seconds without an event until a comment is sent, so that no proxy considers the connection dead."""
TICK_S: Final = 1.0
"""How often it is checked whether the service is about to end."""
LARGEST_ID: Final = (1 << 63) - 1
"""Largest id of an event that SQLite takes."""
_RETRY: Final = format_sse_event(retry=2000)


class Message(NamedTuple):
    """An event as it is sent."""

    seq: int
    data: bytes
    is_last: bool


class EventFeed:
    """The newest events of one run, for all its followers, without gaps in their numbers.

    Attributes:
        is_over: whether there will be no more events: the run or the service has ended.
        beats: how often there was no event for ``BEAT_S``.

    """

    def __init__(self, services: Services) -> None:
        self._services, self._loop = services, asyncio.get_running_loop()
        self._messages = deque[Message](maxlen=TAIL_EVENTS)
        self._changed = asyncio.Event()
        self._woken_s = self._loop.time()
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._waking: asyncio.TimerHandle | None = None
        self.followers = self.beats = 0
        self.is_over = False

    def add(self, event: RunEvent) -> None:
        """Add an event, from any thread."""
        self._loop.call_soon_threadsafe(self._add, _message_of(event))

    def behind(self, seq: int) -> Sequence[Message] | None:
        """Return the next events after ``seq``; None if only the history has them."""
        missing = self._messages[-1].seq - seq if self._messages else 0
        if missing > len(self._messages):
            return None
        return [self._messages[at] for at in range(-missing, 0)[:AT_ONCE]]

    async def wait(self) -> None:
        """Wait for an event, a beat, or the end."""
        await self._changed.wait()

    def close(self) -> None:
        """Let go of the loop."""
        self._timer.cancel()
        if self._waking is not None:
            self._waking.cancel()

    def _add(self, message: Message) -> None:
        self._messages.append(message)
        self.is_over |= message.is_last
        due_s = self._woken_s + PACE_S
        if message.is_last or self._loop.time() >= due_s:
            self._wake()
        elif self._waking is None:
            self._waking = self._loop.call_at(due_s, self._wake)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        if self._services.is_ending:
            self.is_over = True
            self._wake()
        elif self._loop.time() - self._woken_s >= BEAT_S:
            self.beats += 1
            self._wake()

    def _wake(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        self._woken_s = self._loop.time()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class EventFeeds:
    """The feeds of all followed runs; one per service."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._feeds: dict[str, EventFeed] = {}
        services.history.listeners.append(self._on_event)

    def __len__(self) -> int:
        return len(self._feeds)

    def _on_event(self, event: RunEvent) -> None:
        feed = self._feeds.get(event.run_id)
        if feed is not None:
            feed.add(event)

    @contextmanager
    def of(self, run_id: str) -> Iterator[EventFeed]:
        """Yield the feed of a run, while the context lasts.

        Raises:
            HttpError: as many streams are open as may.

        """
        if sum(feed.followers for feed in self._feeds.values()) >= MOST_STREAMS:
            raise HttpError("too-many-streams", f"{MOST_STREAMS} event streams are open, and no more are allowed")
        if run_id not in self._feeds:
            self._feeds[run_id] = EventFeed(self._services)
        feed = self._feeds[run_id]
        feed.followers += 1
        self._services.observation.metrics.event_streams.inc()
        try:
            yield feed
        finally:
            self._services.observation.metrics.event_streams.dec()
            feed.followers -= 1
            if not feed.followers:
                del self._feeds[run_id]
                feed.close()


def event_stream(feeds: EventFeeds, history: History, run: Run, after: int) -> Response:
    """Return the events of ``run`` behind the event ``after``, until the run, the caller or the service ends.

    Where nothing will come any more the answer is 204, which ends a browser's attempts.
    Source: HTML Standard, 9.2, server-sent events.
    """
    if run.state.is_final and not history.events(run.id, after=after, limit=1):
        return Response(status_code=204)
    return _EventStream(feeds, history, run.id, after)


class _EventStream(Response):
    """Follows a run for as long as the client is there."""

    def __init__(self, feeds: EventFeeds, history: History, run_id: str, after: int) -> None:
        super().__init__()
        self._feeds, self._history, self._run_id, self._after = feeds, history, run_id, after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._feeds.of(self._run_id) as feed:
            headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
            answer = EventSourceResponse(self._events(feed), headers=headers)
            await answer(scope, receive, send)

    async def _events(self, feed: EventFeed) -> AsyncIterator[bytes]:
        yield _RETRY
        after, beats, is_behind = self._after, feed.beats, True
        while True:
            found = None if is_behind else feed.behind(after)
            if found is None:  # at first; later where it is read so slowly, or so much happens
                found = await self._kept_messages(after)
                is_behind = len(found) == AT_ONCE
            elif not found:
                if feed.is_over:
                    return
                await feed.wait()
            if found:
                yield b"".join(message.data for message in found)
                after = found[-1].seq
                if found[-1].is_last:
                    return
            if feed.beats != beats:
                beats = feed.beats
                yield KEEPALIVE_COMMENT

    async def _kept_messages(self, after: int) -> Sequence[Message]:
        found = await run_in_threadpool(self._history.events, self._run_id, after=after, limit=AT_ONCE)
        return [_message_of(event) for event in found]


def _message_of(event: RunEvent) -> Message:
    said = {str(key): plain(value) for key, value in event.data.items()}
    data = json.dumps({"atMs": event.at_ms, "at": instant(event.at_ms), **said})
    is_last = event.kind == "state" and RunState(str(event.data["state"])).is_final
    return Message(event.seq, format_sse_event(data_str=data, event=event.kind, id=str(event.seq)), is_last)
