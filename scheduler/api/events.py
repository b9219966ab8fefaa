"""Progress as server-sent events: from the history what was, from the hub what comes, each event once and in order."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from scheduler.answers.records import plain
from scheduler.runs.run import RunEvent, RunState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import Request

    from scheduler.daemon.services import Services
    from scheduler.runs.run import Run

LARGEST_ID: Final = (1 << 63) - 1
"""Of an event; what SQLite takes."""
BEAT_S: Final = 10.0
"""A comment after so long of silence, so that what stands between does not take the connection for dead."""
_PAGE: Final = 500
_POLL_S: Final = 1.0
"""How often a stream looks whether the service is about to end."""


def event_stream(request: Request, services: Services, run: Run, after: int) -> Response:
    """Return the events of ``run`` behind the event ``after``, until the run, the caller or the service ends.

    Where nothing will come any more the answer is 204, which ends a browser's attempts.
    Source: HTML Standard, 9.2, server-sent events.
    """
    if run.state.is_final and not services.history.events(run.id, after=after, limit=1):
        return Response(status_code=204)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_told(request, services, run.id, after), media_type="text/event-stream", headers=headers)


async def _told(request: Request, services: Services, run_id: str, after: int) -> AsyncIterator[str]:
    loop, fresh = asyncio.get_running_loop(), asyncio.Queue[RunEvent]()

    def tell(event: RunEvent) -> None:
        loop.call_soon_threadsafe(fresh.put_nowait, event)

    services.observation.event_stream(+1)
    try:
        with services.hub.listening(run_id, tell):
            yield "retry: 2000\n\n"
            while found := await run_in_threadpool(services.history.events, run_id, after=after, limit=_PAGE):
                for event in found:
                    yield _message(event)
                    if _is_last(event):
                        return
                after = found[-1].seq
            async for heard in _following(request, services, fresh):
                if heard is None:
                    yield ": still here\n\n"
                elif heard.seq > after:
                    after = heard.seq
                    yield _message(heard)
                if heard is not None and _is_last(heard):
                    return
    finally:
        services.observation.event_stream(-1)


async def _following(
    request: Request, services: Services, fresh: asyncio.Queue[RunEvent]
) -> AsyncIterator[RunEvent | None]:
    """Yield events as they come, and None where there was none for a while."""
    silent_s = 0.0
    while not services.is_ending and not await request.is_disconnected():
        try:
            yield await asyncio.wait_for(fresh.get(), _POLL_S)
            silent_s = 0.0
        except TimeoutError:
            silent_s += _POLL_S
            if silent_s >= BEAT_S:
                silent_s = 0.0
                yield None


def _message(event: RunEvent) -> str:
    data = json.dumps({"atMs": event.at_ms, **{str(key): plain(value) for key, value in event.data.items()}})
    return f"id: {event.seq}\nevent: {event.kind}\ndata: {data}\n\n"


def _is_last(event: RunEvent) -> bool:
    return event.kind == "state" and RunState(str(event.data["state"])).is_final
