"""Progress as server-sent events: from the history what was, then what comes, each event once and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from resnap.scheduler.api.following import AT_ONCE, message_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.types import Receive, Scope, Send

    from resnap.scheduler.api.following import Following, Message, Tail
    from resnap.scheduler.runs.history import History
    from resnap.scheduler.runs.run import Run

LARGEST_ID: Final = (1 << 63) - 1
"""Largest id of an event that SQLite takes."""
_BEGIN: Final = b"retry: 2000\n\n"
_BEAT: Final = b": still here\n\n"


def event_stream(following: Following, history: History, run: Run, after: int) -> Response:
    """Return the events of ``run`` behind the event ``after``, until the run, the caller or the service ends.

    Where nothing will come any more the answer is 204, which ends a browser's attempts.
    Source: HTML Standard, 9.2, server-sent events.
    """
    if run.state.is_final and not history.events(run.id, after=after, limit=1):
        return Response(status_code=204)
    return _EventStream(following, history, run.id, after)


class _EventStream(Response):
    """Follows a run for as long as somebody is there to hear of it."""

    media_type = "text/event-stream"

    def __init__(self, following: Following, history: History, run_id: str, after: int) -> None:
        super().__init__()
        self._following, self._history, self._run_id, self._after = following, history, run_id, after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._following.of(self._run_id) as tail:
            headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
            answer = StreamingResponse(self._told(tail), media_type=self.media_type, headers=headers)
            await answer(scope, receive, send)

    async def _told(self, tail: Tail) -> AsyncIterator[bytes]:
        yield _BEGIN
        after, beats, is_behind = self._after, tail.beats, True
        while True:
            found = None if is_behind else tail.behind(after)
            if found is None:  # at first; later where it is read so slowly, or so much happens
                found = await self._kept(after)
                is_behind = len(found) == AT_ONCE
            elif not found:
                if tail.is_over:
                    return
                await tail.news()
            if found:
                yield b"".join(message.data for message in found)
                after = found[-1].seq
                if found[-1].is_last:
                    return
            if tail.beats != beats:
                beats = tail.beats
                yield _BEAT

    async def _kept(self, after: int) -> Sequence[Message]:
        found = await run_in_threadpool(self._history.events, self._run_id, after=after, limit=AT_ONCE)
        return [message_of(event) for event in found]
