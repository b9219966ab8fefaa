"""Many clients follow runs: each gets every event once, however slow, and their number is bounded."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.api import events
from resnap.scheduler.api.events import AT_ONCE, TAIL_EVENTS, EventFeeds, Message
from resnap.scheduler.api.problems import HttpError
from resnap.scheduler.runs.run import Run, RunEnd, RunEvent, RunRequest, RunState
from tests.scheduler.api.whole import Whole, whole
from tests.scheduler.scenes import SET, one_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixture_sets import FixtureSet

RUN = "0" * 20


@pytest.fixture
def service(tmp_path: Path, fixture_set: Callable[[str], FixtureSet]) -> Iterator[Whole]:
    with whole(tmp_path, one_partition(fixture_set(SET).data, tmp_path / "data")) as found:
        yield found


def begin(service: Whole) -> None:
    """Keep a run that goes on until a test says how it ended."""
    request = RunRequest(kind="scan", sources=())
    service.services.history.add(
        Run(id=RUN, request=request, state=RunState.QUEUED, origin="api", principal="a", created_ms=1)
    )


def end(service: Whole) -> None:
    service.services.history.ended(RUN, RunEnd(state=RunState.SUCCEEDED, totals={}, errors=()))


def event(seq: int) -> RunEvent:
    return RunEvent(run_id=RUN, seq=seq, at_ms=seq, kind="progress", data={})


async def received(service: Whole, follower: EventFeeds, count: int) -> list[Message]:
    """Publish as many events from another thread, and return what a client gets that reads all that there is."""
    found: list[Message] = []
    with follower.of(RUN) as feed:
        publishing = asyncio.to_thread(
            lambda: [service.services.history.publish(event(seq)) for seq in range(1, count + 1)]
        )
        task = asyncio.create_task(publishing)
        while len(found) < count:
            behind = feed.behind(found[-1].seq if found else 0)
            assert behind is not None
            assert len(behind) <= AT_ONCE
            found += behind
            if not behind:
                await feed.wait()
        await task
    return found


def test_a_reader_that_keeps_pace_gets_each_event_once_and_in_order(service: Whole) -> None:
    found = asyncio.run(received(service, EventFeeds(service.services), TAIL_EVENTS))
    assert [message.seq for message in found] == [*range(1, TAIL_EVENTS + 1)]
    assert found[0].data == b'event: progress\ndata: {"atMs": 1, "at": "1970-01-01T00:00:00.001Z"}\nid: 1\n\n'


def test_a_reader_that_is_too_far_behind_is_sent_to_the_history(service: Whole) -> None:
    async def scene() -> None:
        with EventFeeds(service.services).of(RUN) as feed:
            for seq in range(1, TAIL_EVENTS + 6):
                service.services.history.publish(event(seq))
            await feed.wait()
            await asyncio.sleep(0)
            assert feed.behind(4) is None
            told = feed.behind(5)
            assert told is not None
            assert [message.seq for message in told] == [*range(6, 6 + AT_ONCE)]
            assert feed.behind(TAIL_EVENTS + 5) == []

    asyncio.run(scene())


def test_nothing_is_listened_to_once_the_last_follower_has_left(service: Whole) -> None:
    async def scene() -> None:
        follower = EventFeeds(service.services)
        with ExitStack() as all_of_them:
            for _ in range(events.MOST_STREAMS):
                all_of_them.enter_context(follower.of(RUN))
            assert len(follower) == 1, "one for all"
            with pytest.raises(HttpError, match="event streams are open"), follower.of("another"):
                pass
        assert len(follower) == 0
        with follower.of(RUN):
            assert len(follower) == 1

    asyncio.run(scene())


def test_more_streams_than_may_be_open_are_refused_with_a_time_to_retry(
    service: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_STREAMS", 2)
    begin(service)
    at = f"/v1/runs/{RUN}/events"
    with service.client() as client, client.stream("GET", at) as first, client.stream("GET", at) as second:
        assert (first.status_code, second.status_code) == (200, 200)
        lines, others = first.iter_lines(), second.iter_lines()
        assert next(lines) == next(others) == "retry: 2000"
        refused = client.get(at)
        assert (refused.status_code, refused.json()["code"]) == (503, "too-many-streams")
        assert int(refused.headers["retry-after"]) > 0
        assert client.get(f"/v1/runs/{RUN}").json()["state"] == "queued", "everything else is answered"
        end(service)
        assert [*lines] == [*others]
        assert client.get(at, headers={"Last-Event-ID": "1"}).text.count("event: state") == 1


def test_a_client_that_comes_when_the_run_ends_gets_its_end(service: Whole) -> None:
    begin(service)
    with service.client() as client, client.stream("GET", f"/v1/runs/{RUN}/events") as answer:
        lines = answer.iter_lines()
        while not next(lines).startswith("data: "):
            pass
        end(service)
        assert [line for line in lines if line.startswith("data: ")][-1].endswith('"state": "succeeded"}')
